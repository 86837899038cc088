#include "conformance/engine_tools.h"

#include "base/os.h"
#include "base/time.h"

enum { UNTIL_MS = 30000, ROWS_PAGE = 500, ROWS_MAX = 20000 };

bool is(str s, const char *want) { return str_eq(s, str_c(want)); }

bool holds(str s, const char *part) {
    str p = str_c(part);
    for (size_t i = 0; i + p.len <= s.len; i++) {
        if (memcmp(s.ptr + i, p.ptr, p.len) == 0) return true;
    }
    return false;
}

void check_history(struct bed *bed, const char *run_id, const char *want) {
    str h = bed_history(bed, run_id);
    CHECK(is(h, want), "%s: %.*s", run_id, STR_ARG(h));
}

struct rows {
    struct arena *arena;
    struct event_record *items;
    size_t count;
};

static status keep_row(void *context, const struct event_record *rec, bool *stop,
                       struct error *err) {
    UNUSED(stop);
    struct rows *r = context;
    UNUSED(err);
    CHECK(r->count < ROWS_MAX);
    struct event_record *to = &r->items[r->count++];
    *to = *rec;
    to->event.type_name = arena_str(r->arena, rec->event.type_name);
    to->event.subject = arena_str(r->arena, rec->event.subject);
    to->event.payload = arena_str(r->arena, rec->event.payload);
    to->actor = arena_str(r->arena, rec->actor);
    return ST_OK;
}

struct event_page all_rows(struct bed *bed, const char *run_id) {
    struct run_info info;
    struct error err = {0};
    struct rows r = {.arena = &bed->arena};
    status st = ledger_find_run(host_reader(bed->host), str_c(run_id), &bed->arena, &info, &err);
    if (st == ST_NOT_FOUND) return (struct event_page){0};
    CHECK(st == ST_OK, "%s", err.msg);
    r.items = ARENA_ARRAY(&bed->arena, struct event_record, ROWS_MAX);
    st = ledger_walk_run(host_reader(bed->host), &info, 0, keep_row, &r, &err);
    CHECK(st == ST_OK, "%s", err.msg);
    return (struct event_page){r.items, r.count};
}

static bool matches(const struct event_record *rec, enum event_type type, const char *step) {
    return rec->event.type == type && (!step || str_eq(rec->event.subject, str_c(step)));
}

const struct event_record *find_row(struct bed *bed, const char *run_id, enum event_type type,
                                    const char *step, size_t n) {
    struct arena_mark mark = arena_mark(&bed->arena);
    struct event_page rows = all_rows(bed, run_id);
    for (size_t i = 0; i < rows.count; i++) {
        if (!matches(&rows.records[i], type, step) || n-- > 0) continue;
        struct event_record found = rows.records[i];
        struct buf text; /* over the rewind */
        buf_init(&text, (size_t)1024 * 1024);
        buf_put(&text, found.event.payload);
        bool payload = found.event.payload.ptr != NULL;
        char actor[256];
        snprintf(actor, sizeof(actor), "%.*s", STR_ARG(found.actor));
        bool acted = found.actor.ptr != NULL;
        arena_rewind(&bed->arena, mark);
        struct event_record *kept = ARENA_NEW(&bed->arena, struct event_record);
        *kept = found;
        kept->event.type_name = event_type_info(type)->name;
        kept->event.subject = step ? arena_str(&bed->arena, str_c(step)) : STR_NONE;
        kept->event.payload = payload ? arena_str(&bed->arena, buf_str(&text)) : STR_NONE;
        kept->actor = acted ? arena_str(&bed->arena, str_c(actor)) : STR_NONE;
        buf_release(&text);
        return kept;
    }
    CHECK(false, "%s: no such %.*s: %.*s", run_id, STR_ARG(event_type_info(type)->name),
          STR_ARG(bed_history(bed, run_id)));
    return NULL;
}

int64_t ms_between(struct bed *bed, const char *run_id, const char *step, enum event_type from,
                   size_t n, enum event_type to, size_t m) {
    int64_t begin = find_row(bed, run_id, from, step, n)->event.emitted_ns;
    return (find_row(bed, run_id, to, step, m)->event.emitted_ns - begin) / 1000000;
}

size_t count_rows(struct bed *bed, const char *run_id, enum event_type type) {
    struct arena_mark mark = arena_mark(&bed->arena);
    struct event_page rows = all_rows(bed, run_id);
    size_t n = 0;
    for (size_t i = 0; i < rows.count; i++)
        n += rows.records[i].event.type == type;
    arena_rewind(&bed->arena, mark);
    return n;
}

struct run_snapshot snapshot(struct bed *bed, const char *run_id) {
    struct run_snapshot s;
    struct error err = {0};
    status st = status_snapshot(host_reader(bed->host), str_c(run_id), &bed->arena, &s, &err);
    CHECK(st == ST_OK, "%s", err.msg);
    if (s.substatus.ptr) CHECK(substatus_check(s.substatus, &err) == ST_OK, "%s", err.msg);
    return s;
}

str shown(struct bed *bed, const char *run_id) {
    struct run_snapshot s = snapshot(bed, run_id);
    char text[64];
    snprintf(text, sizeof(text), "%s%s%.*s", run_status_name(s.status), s.substatus.ptr ? "/" : "",
             STR_ARG(s.substatus));
    return arena_str(&bed->arena, str_c(text));
}

struct explanation explained(struct bed *bed, const char *run_id) {
    struct explanation x;
    struct error err = {0};
    status st =
        explain_run(host_reader(bed->host), str_c(run_id), clock_wall_us(), &bed->arena, &x, &err);
    CHECK(st == ST_OK, "%s", err.msg);
    return x;
}

/* ---- doing ---- */

void start(struct bed *bed, const char *plan, const char *run_id) {
    struct start_request request = bed_request(bed, plan, run_id);
    struct error err = {0};
    status st = bed_start(bed, &request, &err);
    CHECK(st == ST_OK, "%s: %s", reason_name(err.reason), err.msg);
}

void start_refused(struct bed *bed, const struct start_request *request, const char *reason) {
    struct error err = {0};
    status st = bed_start(bed, request, &err);
    CHECK(st != ST_OK, "started, although %s", reason);
    CHECK(err.reason && strcmp(reason_name(err.reason), reason) == 0, "%s: %s",
          reason_name(err.reason), err.msg);
}

void tell(struct bed *bed, const char *run_id, const char *name, const char *signal_id) {
    tell_step(bed, run_id, name, NULL, signal_id);
}

void tell_step(struct bed *bed, const char *run_id, const char *name, const char *step,
               const char *signal_id) {
    struct error err = {0};
    status st = bed_signal(bed, run_id, name, step, signal_id, &err);
    CHECK(st == ST_OK, "%s: %s", reason_name(err.reason), err.msg);
}

void tell_refused(struct bed *bed, const char *run_id, const char *name, const char *step,
                  const char *reason) {
    struct error err = {0};
    status st = bed_signal(bed, run_id, name, step, NULL, &err);
    CHECK(st != ST_OK && err.reason && strcmp(reason_name(err.reason), reason) == 0, "%s %s: %s %s",
          name, step ? step : "", err.reason ? reason_name(err.reason) : "accepted", err.msg);
}

void until_rows(struct bed *bed, const char *run_id, enum event_type type, size_t count) {
    int64_t end = clock_mono_ns() + (int64_t)UNTIL_MS * 1000000;
    while (count_rows(bed, run_id, type) < count) {
        bed_turn(bed, 5);
        CHECK(clock_mono_ns() < end, "%s: %.*s", run_id, STR_ARG(bed_history(bed, run_id)));
    }
}

void until_status(struct bed *bed, const char *run_id, enum run_status want) {
    int64_t end = clock_mono_ns() + (int64_t)UNTIL_MS * 1000000;
    while (bed_status(bed, run_id) != want) {
        bed_turn(bed, 5);
        CHECK(clock_mono_ns() < end, "%s: %.*s", run_id, STR_ARG(bed_history(bed, run_id)));
    }
}

str path_in(struct bed *bed, const char *name) {
    char path[1024];
    snprintf(path, sizeof(path), "%.*s/%s", STR_ARG(bed->data_dir), name);
    return arena_str(&bed->arena, str_c(path));
}

bool file_there(struct bed *bed, const char *name) { return path_exists(path_in(bed, name)); }

void until_file(struct bed *bed, const char *name) {
    int64_t end = clock_mono_ns() + (int64_t)UNTIL_MS * 1000000;
    while (!file_there(bed, name)) {
        bed_turn(bed, 5);
        CHECK(clock_mono_ns() < end, "no file %s", name);
    }
}

str ask(struct bed *bed, const char *sql, const char *parameter) {
    struct db_stmt *q = NULL;
    struct error err = {0};
    bool row = false;
    str out = STR_NONE;
    status st = db_prepare(ledger_db(host_reader(bed->host)), sql, &q, &err);
    CHECK(st == ST_OK, "%s", err.msg);
    db_bind_text(q, 1, str_c(parameter));
    st = db_step(q, &row, &err);
    CHECK(st == ST_OK, "%s", err.msg);
    if (row && !db_is_null(q, 0)) out = arena_str(&bed->arena, db_text(q, 0));
    db_reset(q);
    return out;
}

const char *with_folder(struct bed *bed, const char *plan) {
    struct buf b;
    str rest = str_c(plan);
    buf_init(&b, (size_t)1024 * 1024);
    for (size_t i = 0; i < rest.len; i++) {
        if (rest.ptr[i] == '%' && i + 1 < rest.len && rest.ptr[i + 1] == 's') {
            buf_put(&b, bed->data_dir);
            i++;
        } else {
            buf_put_char(&b, rest.ptr[i]);
        }
    }
    str kept = arena_str(&bed->arena, buf_str(&b));
    buf_release(&b);
    return kept.ptr;
}
