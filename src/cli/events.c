/* cli/events.c: cairn ledger events and causes: reading page by page, in bounded memory.
 *
 * Every selection but --run is a list of places, one for each tenant it covers: where to go on and
 * where to stop. */
#include <signal.h>
#include <time.h>

#include "base/json.h"
#include "base/limits.h"
#include "cli/remote.h"
#include "cli/source.h"

enum { PAGE = 256, FOLLOW_MS = 200, TENANTS_PAGE = 1000 };
#define PAGE_BYTES_MAX ((size_t)256 * 1024 * 1024) /* a page of the largest events, with room */

enum select { SELECT_RUN, SELECT_TENANT, SELECT_CORRELATION };

struct place {
    str tenant_id;
    int64_t after, end;
}; /* sequence numbers: after < seq < end */

struct feed {
    struct cli *cli;
    struct ledger *ledger; /* or */
    struct remote *remote;
    enum select select;
    str run_id;
    uuid correlation;
    bool every_tenant;
    int64_t since_us, until_us; /* 0 and INT64_MAX: no bound */
    struct place *places;       /* in cli->arena */
    size_t place_count, place_cap;
    int64_t tenant_no; /* tenants up to this number have their place */
    int64_t after;     /* --after */
    int64_t left;      /* how many more may be printed */
    struct arena page_arena;
    struct list list;
};

static volatile sig_atomic_t interrupted;
static void on_signal(int number) {
    UNUSED(number);
    interrupted = 1;
}

/* ---- places ---- */

static status add_place(struct feed *f, str tenant_id, struct error *err) {
    if (f->place_count == f->place_cap) {
        size_t cap = f->place_cap ? f->place_cap * 2 : 8;
        struct place *more = arena_try(&f->cli->arena, cap * sizeof(*more));
        if (!more) return error_set(err, ST_LIMIT, "too many tenants: name one with --tenant");
        if (f->place_count > 0) memcpy(more, f->places, f->place_count * sizeof(*more));
        f->places = more;
        f->place_cap = cap;
    }
    struct place p = {.tenant_id = tenant_id, .end = INT64_MAX};
    status st = ST_OK;
    if (f->since_us > 0) {
        st = ledger_seq_at(f->ledger, tenant_id, f->since_us, &p.after, err);
        p.after--;
    }
    if (st == ST_OK && f->until_us < INT64_MAX)
        st = ledger_seq_at(f->ledger, tenant_id, f->until_us, &p.end, err);
    if (st == ST_OK) f->places[f->place_count++] = p;
    return st;
}

/* The tenants that came since the last look. The page is copied before it is used: each place asks
 * the ledger again. */
static status tenants_page(struct feed *f, str *ids, size_t *count, struct error *err) {
    static const char all[] = "SELECT tenant_no, tenant_id FROM ledger_tenant WHERE tenant_no > $1 "
                              "ORDER BY tenant_no LIMIT $2";
    static const char of_trace[] =
        "SELECT tenant_no, tenant_id FROM ledger_tenant WHERE tenant_no > $1 AND tenant_no IN"
        " (SELECT tenant_no FROM ledger_run WHERE correlation_id = $3) ORDER BY tenant_no LIMIT $2";
    struct db_stmt *q = NULL;
    bool trace = f->select == SELECT_CORRELATION, row = false;
    status st = db_prepare(ledger_db(f->ledger), trace ? of_trace : all, &q, err);
    if (st != ST_OK) return st;
    char text[UUID_TEXT_LEN];
    uuid_format(f->correlation, text);
    db_bind_int(q, 1, f->tenant_no);
    db_bind_int(q, 2, TENANTS_PAGE);
    if (trace) db_bind_text(q, 3, str_n(text, sizeof(text)));
    *count = 0;
    while ((st = db_step(q, &row, err)) == ST_OK && row) {
        if (!trace) f->tenant_no = db_int(q, 0);
        ids[(*count)++] = arena_str(&f->cli->arena, db_text(q, 1));
    }
    db_reset(q);
    return st;
}

static bool has_place(const struct feed *f, str tenant_id) {
    for (size_t i = 0; i < f->place_count; i++) {
        if (str_eq(f->places[i].tenant_id, tenant_id)) return true;
    }
    return false;
}

/* Numbers of tenants only grow, so the look goes on after the last one; the tenants of a trace are
 * few and may appear in any order, so they are all looked at again. */
static status find_tenants(struct feed *f, struct error *err) {
    str ids[TENANTS_PAGE];
    size_t count = TENANTS_PAGE;
    status st = ST_OK;
    while (f->every_tenant && st == ST_OK && count == TENANTS_PAGE) {
        struct arena_mark mark = arena_mark(&f->cli->arena);
        size_t before = f->place_count;
        st = tenants_page(f, ids, &count, err);
        for (size_t i = 0; i < count && st == ST_OK; i++) {
            if (f->select == SELECT_CORRELATION && has_place(f, ids[i])) continue;
            st = add_place(f, ids[i], err);
        }
        if (f->place_count == before) arena_rewind(&f->cli->arena, mark);
        if (f->select == SELECT_CORRELATION) break;
    }
    return st;
}

/* ---- printing ---- */

static const struct column run_columns[] = {{"RUNSEQ", true, 0},  {"PERSISTED AT", false, 0},
                                            {"EVENT", false, 0},  {"STEP", false, 40},
                                            {"ATTEMPT", true, 0}, {"PAYLOAD", false, 72}};
static const struct column feed_columns[] = {
    {"SEQ", true, 0},    {"PERSISTED AT", false, 0}, {"RUN", false, 40},   {"RUNSEQ", true, 0},
    {"EVENT", false, 0}, {"STEP", false, 32},        {"ATTEMPT", true, 0}, {"PAYLOAD", false, 48}};
static const struct column cause_columns[] = {
    {"DEPTH", true, 0},  {"SEQ", true, 0},    {"PERSISTED AT", false, 0}, {"RUN", false, 40},
    {"EVENT", false, 0}, {"STEP", false, 32}, {"EVENT ID", false, 0}};

static enum tone tone_of(const struct event *e) {
    if (e->type == EVENT_STEP_FAILED || e->type == EVENT_RUN_FAILED) return TONE_BAD;
    if (e->type == EVENT_RUN_COMPLETED) return TONE_GOOD;
    return e->type == EVENT_RUN_CANCELLED || e->type == EVENT_RUN_PAUSED ? TONE_WARN : TONE_PLAIN;
}

static void print_row(struct feed *f, const struct event_record *rec) {
    char seq[INT_TEXT_MAX];
    char run_seq[INT_TEXT_MAX];
    char attempt[INT_TEXT_MAX];
    char time[TIME_TEXT_MAX];
    const struct event *e = &rec->event;
    struct cell run_seq_cell = {rec->run_seq > 0 ? int_text(run_seq, rec->run_seq) : STR(""),
                                TONE_PLAIN};
    struct cell time_cell = {time_text(time, rec->persisted_us, 6), TONE_DIM};
    struct cell type_cell = {e->type_name, tone_of(e)};
    struct cell step = {e->subject, TONE_PLAIN};
    struct cell attempt_cell = {int_text(attempt, e->logical_attempt), TONE_PLAIN};
    struct cell payload = {e->payload, TONE_PLAIN};
    if (f->select == SELECT_RUN) {
        list_row(&f->list,
                 (struct cell[]){run_seq_cell, time_cell, type_cell, step, attempt_cell, payload});
        return;
    }
    struct cell seq_cell = {int_text(seq, rec->seq), TONE_PLAIN};
    struct cell run = {e->run_id, TONE_PLAIN};
    list_row(&f->list, (struct cell[]){seq_cell, time_cell, run, run_seq_cell, type_cell, step,
                                       attempt_cell, payload});
}

static void print_record(struct feed *f, const struct event_record *rec) {
    f->left--;
    if (list_is_table(&f->list)) {
        print_row(f, rec);
        return;
    }
    struct buf *out = list_json(&f->list);
    if (f->select == SELECT_RUN)
        event_record_json(rec, out);
    else
        event_feed_json(rec, out);
    list_json_end(&f->list);
}

/* ---- reading ---- */

static status read_page(struct feed *f, const struct place *p, struct event_page *page,
                        struct error *err) {
    arena_reset(&f->page_arena);
    switch (f->select) {
    case SELECT_RUN:
        return ledger_read_run(f->ledger, f->run_id, p->after, PAGE, &f->page_arena, page, err);
    case SELECT_TENANT:
        return ledger_read_tenant(f->ledger, p->tenant_id, p->after, PAGE, &f->page_arena, page,
                                  err);
    case SELECT_CORRELATION:
        return ledger_read_correlation(f->ledger, p->tenant_id, f->correlation, p->after, PAGE,
                                       &f->page_arena, page, err);
    }
    return error_set(err, ST_INVALID, "no such selection");
}

/* Prints a place up to its end, or to what there is. */
static status print_place(struct feed *f, struct place *p, struct error *err) {
    struct event_page page = {.count = PAGE};
    status st = ST_OK;
    while (st == ST_OK && page.count == PAGE && f->left > 0 && !interrupted) {
        st = read_page(f, p, &page, err);
        for (size_t i = 0; st == ST_OK && i < page.count && f->left > 0; i++) {
            const struct event_record *rec = &page.records[i];
            if (rec->seq >= p->end) return ST_OK;
            p->after = rec->seq;
            if (f->select != SELECT_RUN || rec->run_seq > 0) print_record(f, rec);
        }
        if (st == ST_OK) st = out_check(&f->cli->out, err);
    }
    return st;
}

static status print_places(struct feed *f, struct error *err) {
    status st = ST_OK;
    for (size_t i = 0; i < f->place_count && st == ST_OK && f->left > 0; i++)
        st = print_place(f, &f->places[i], err);
    return st;
}

static status follow(struct feed *f, struct error *err) {
    struct sigaction action = {.sa_handler = on_signal};
    struct timespec pause = {.tv_nsec = (long)FOLLOW_MS * 1000 * 1000};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    status st = ST_OK;
    while (st == ST_OK && !interrupted && f->left > 0) {
        st = find_tenants(f, err);
        if (st == ST_OK) st = print_places(f, err);
        list_flush(&f->list);
        if (st == ST_OK) st = out_check(&f->cli->out, err);
        if (st == ST_OK && f->left > 0 && !interrupted) nanosleep(&pause, NULL);
    }
    return st;
}

/* ---- a server ---- */

struct reading {
    struct feed *feed;
    status st;
    struct error err;
};

/* One line of the stream. Without one: the time to let go of what was printed. */
static bool print_remote_line(void *context, str line) {
    struct reading *r = context;
    struct feed *f = r->feed;
    struct json_limits limits = {2 * LINE_BYTES_MAX, JSON_DEPTH_MAX + 8};
    struct event_record rec;
    yyjson_val *root = NULL;
    if (line.len > 0) {
        arena_reset(&f->page_arena);
        r->st = json_parse(line, limits, &f->page_arena, &root, &r->err);
        if (r->st != ST_OK) return false;
        view_read(&view_event, root, &f->page_arena, &rec);
        print_record(f, &rec);
    }
    if (line.len == 0 || args_has(&f->cli->args, OPT_FOLLOW)) list_flush(&f->list);
    r->st = out_check(&f->cli->out, &r->err);
    return r->st == ST_OK && f->left > 0 && !interrupted;
}

static status stream_remote(struct feed *f, struct target *t, struct error *err) {
    struct reading r = {.feed = f};
    if (!args_has(&f->cli->args, OPT_FOLLOW)) target_query(t, "follow", STR("false"));
    status st = remote_follow(f->remote, t, print_remote_line, &r, err);
    if (st == ST_OK && r.st != ST_OK) *err = r.err;
    return st == ST_OK ? r.st : st;
}

/* A trace comes in pages. */
static status page_remote(struct feed *f, struct error *err) {
    str cursor = STR_NONE;
    status st = ST_OK;
    do {
        struct target t;
        yyjson_val *answer = NULL;
        yyjson_val *item;
        size_t i;
        size_t max;
        struct event_record rec;
        target_init(&t, "/v1/traces/");
        target_id(&t, f->cli->args.values[OPT_CORRELATION]);
        target_query(&t, "tenantId", f->cli->args.values[OPT_TENANT]);
        target_query(&t, "cursor", cursor);
        arena_reset(&f->page_arena);
        st = remote_get(f->remote, &t, &f->page_arena, &answer, err);
        if (st != ST_OK) return st;
        yyjson_arr_foreach(json_member(answer, "items"), i, max, item) {
            view_read(&view_event, item, &f->page_arena, &rec);
            if (f->left > 0) print_record(f, &rec);
        }
        str next = STR_NONE;
        (void)json_str(json_member(answer, "next"), &next);
        cursor = arena_str(&f->cli->arena, next);
        st = out_check(&f->cli->out, err);
    } while (st == ST_OK && cursor.ptr && f->left > 0);
    return st;
}

static status not_served(struct error *err, const char *option) {
    return cli_usage(err, "--%s is not served: read the ledger itself, with --data or --db",
                     option);
}

static status print_remote(struct feed *f, struct error *err) {
    const struct args *a = &f->cli->args;
    struct sigaction action = {.sa_handler = on_signal};
    struct target t;
    if (args_has(a, OPT_SINCE)) return not_served(err, "since");
    if (args_has(a, OPT_UNTIL)) return not_served(err, "until");
    if (f->select == SELECT_CORRELATION && args_has(a, OPT_FOLLOW))
        return not_served(err, "correlation with --follow");
    if (args_has(a, OPT_FOLLOW)) {
        sigaction(SIGINT, &action, NULL);
        sigaction(SIGTERM, &action, NULL);
    }
    if (f->select == SELECT_CORRELATION) return page_remote(f, err);
    target_init(&t, "/v1/");
    if (f->select == SELECT_RUN) {
        target_path(&t, "runs/");
        target_id(&t, f->run_id);
        target_path(&t, "/");
    }
    target_path(&t, "events");
    target_query(&t, "tenantId", a->values[OPT_TENANT]);
    target_query(&t, "after", a->values[OPT_AFTER]);
    return stream_remote(f, &t, err);
}

/* ---- the command ---- */

static status choose(struct feed *f, struct error *err) {
    const struct args *a = &f->cli->args;
    bool run = args_has(a, OPT_RUN), trace = args_has(a, OPT_CORRELATION),
         tenant = args_has(a, OPT_TENANT);
    bool window = args_has(a, OPT_SINCE) || args_has(a, OPT_UNTIL);
    if (run + trace + window > 1)
        return cli_usage(err,
                         "select by one of --run, --tenant, --correlation and --since/--until");
    if (!run && !trace && !window && !tenant)
        return cli_usage(err,
                         "which events? give --run, --tenant, --correlation or --since/--until");
    if (run && tenant) return cli_usage(err, "a run has one tenant: leave --tenant out");
    if (args_has(a, OPT_AFTER) && (!tenant || window || trace))
        return cli_usage(err, "--after counts in one tenant: give it with --tenant alone");
    if (args_has(a, OPT_UNTIL) && args_has(a, OPT_FOLLOW))
        return cli_usage(err, "--follow has no end: leave --until out");
    f->select = run ? SELECT_RUN : trace ? SELECT_CORRELATION : SELECT_TENANT;
    f->run_id = a->values[OPT_RUN];
    f->every_tenant = !run && !tenant;
    if (trace && !uuid_parse(a->values[OPT_CORRELATION], &f->correlation))
        return cli_usage(err, "--correlation must be a UUID");
    status st = args_time(a, OPT_SINCE, 0, &f->since_us, err);
    if (st == ST_OK) st = args_time(a, OPT_UNTIL, INT64_MAX, &f->until_us, err);
    if (st == ST_OK) st = args_int(a, OPT_LIMIT, 1, INT64_MAX, INT64_MAX, &f->left, err);
    if (st == ST_OK) st = args_int(a, OPT_AFTER, 0, INT64_MAX, 0, &f->after, err);
    return st;
}

static status find_places(struct feed *f, struct error *err) {
    const struct args *a = &f->cli->args;
    status st = ST_OK;
    if (f->select == SELECT_RUN)
        st = add_place(f, STR(""), err); /* the run knows its tenant */
    else if (!f->every_tenant)
        st = add_place(f, a->values[OPT_TENANT], err);
    else
        st = find_tenants(f, err);
    if (st == ST_OK && args_has(a, OPT_AFTER)) f->places[0].after = f->after;
    return st;
}

static status print_all(struct feed *f, struct error *err) {
    status st = f->remote ? print_remote(f, err) : find_places(f, err);
    if (st == ST_OK && !f->remote)
        st = args_has(&f->cli->args, OPT_FOLLOW) ? follow(f, err) : print_places(f, err);
    if (st != ST_OK || f->select != SELECT_CORRELATION || f->list.count > 0 ||
        args_has(&f->cli->args, OPT_FOLLOW))
        return st;
    str text = f->cli->args.values[OPT_CORRELATION];
    return error_at(err, REASON_CORRELATION_NOT_FOUND, "",
                    "there is no event with correlationId \"%.*s\"", STR_ARG(text));
}

status cmd_ledger_events(struct cli *cli, struct error *err) {
    struct feed f = {.cli = cli};
    status st = choose(&f, err);
    if (st == ST_OK)
        st = remote_is_named(cli) ? remote_open(cli, &f.remote, err)
                                  : store_read(cli, &f.ledger, err);
    if (st != ST_OK) return st;
    arena_init(&f.page_arena, (size_t)64 * 1024, PAGE_BYTES_MAX);
    bool run = f.select == SELECT_RUN;
    list_open(&f.list, &cli->out, cli->format, run ? run_columns : feed_columns,
              run ? COUNT_OF(run_columns) : COUNT_OF(feed_columns), cli->colour);
    st = print_all(&f, err);
    list_close(&f.list);
    arena_release(&f.page_arena);
    ledger_close(f.ledger);
    return st;
}

/* ---- causes ---- */

static void print_cause(struct list *list, const struct event_record *rec, int64_t depth) {
    if (list_is_table(list)) {
        char depth_mem[INT_TEXT_MAX];
        char seq[INT_TEXT_MAX];
        char time[TIME_TEXT_MAX];
        char id[UUID_TEXT_LEN];
        uuid_format(rec->event.event_id, id);
        list_row(list, (struct cell[]){{int_text(depth_mem, depth), TONE_PLAIN},
                                       {int_text(seq, rec->seq), TONE_PLAIN},
                                       {time_text(time, rec->persisted_us, 6), TONE_DIM},
                                       {rec->event.run_id, TONE_PLAIN},
                                       {rec->event.type_name, tone_of(&rec->event)},
                                       {rec->event.subject, TONE_PLAIN},
                                       {str_n(id, sizeof(id)), TONE_PLAIN}});
        return;
    }
    struct buf *out = list_json(list);
    json_object_begin(out);
    json_put_int(out, "depth", depth);
    json_name(out, "event");
    event_feed_json(rec, out);
    json_object_end(out);
    list_json_end(list);
}

/* A chain may be as long as the tenant's history: it is walked in pages, each from the cause of the
 * last one's end. */
static status print_causes(struct cli *cli, struct source *source, uuid id, struct list *list,
                           struct error *err) {
    int64_t limit = 0;
    struct arena arena;
    status st = args_int(&cli->args, OPT_LIMIT, 1, INT64_MAX, INT64_MAX, &limit, err);
    bool more = true;
    arena_init(&arena, (size_t)64 * 1024, PAGE_BYTES_MAX);
    for (int64_t depth = 0; st == ST_OK && more && depth < limit;) {
        struct event_page page = {0};
        arena_reset(&arena);
        size_t wanted = limit - depth < PAGE ? (size_t)(limit - depth) : PAGE;
        st = source->ops->causes(source, id, wanted, &arena, &page, &more, err);
        for (size_t i = 0; i < page.count && st == ST_OK; i++)
            print_cause(list, &page.records[i], depth++);
        if (st == ST_OK && more) id = page.records[page.count - 1].cause_id;
    }
    arena_release(&arena);
    return st;
}

status cmd_ledger_causes(struct cli *cli, struct error *err) {
    struct source *source = NULL;
    struct list list;
    uuid id;
    if (!uuid_parse(cli->args.words[0], &id))
        return cli_usage(err, "EVENT_ID must be a UUID, found \"%.*s\"",
                         STR_ARG(cli->args.words[0]));
    status st = source_open(cli, SOURCE_READ, &source, err);
    if (st != ST_OK) return st;
    list_open(&list, &cli->out, cli->format, cause_columns, COUNT_OF(cause_columns), cli->colour);
    st = print_causes(cli, source, id, &list, err);
    list_close(&list);
    source_close(source);
    return st;
}
