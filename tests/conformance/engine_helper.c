#include "conformance/engine_helper.h"

#include "base/json.h"
#include "base/time.h"

enum { WAIT_MS = 60000 };

static void count_note(void *context, const struct engine_note *note) {
    struct bed *bed = context;
    for (size_t i = 0; i < note->count; i++) {
        bed->events[note->events[i].type]++;
        if (bed->on_event) bed->on_event(bed, note, i);
    }
}

static void note_lost(void *context) {
    struct bed *bed = context;
    bed->lost = true;
}

void bed_init(struct bed *bed, str url) {
    *bed = (struct bed){0};
    arena_init(&bed->arena, 4096, (size_t)256 * 1024 * 1024);
    bed->data_dir = arena_str(&bed->arena, str_c(test_dir()));
    bed->options = (struct host_options){.url = url,
                                         .data_dir = bed->data_dir,
                                         .kill_grace_ms = 200,
                                         .observe = count_note,
                                         .lost = note_lost,
                                         .context = bed};
}

void bed_open(struct bed *bed) {
    struct error err = {0};
    CHECK(uv_loop_init(&bed->loop) == 0);
    status st = host_open(&bed->loop, &bed->options, &bed->host, &err);
    CHECK(st == ST_OK, "%s", err.msg);
}

void bed_close(struct bed *bed) {
    host_close(bed->host);
    bed->host = NULL;
    uv_run(&bed->loop, UV_RUN_DEFAULT);
    CHECK(uv_loop_close(&bed->loop) == 0);
}

void bed_reopen(struct bed *bed) {
    bed_close(bed);
    bed_open(bed);
}

void bed_release(struct bed *bed) {
    if (bed->host) bed_close(bed);
    arena_release(&bed->arena);
}

struct plan_ref bed_put(struct bed *bed, const char *plan_text) {
    struct error err = {0};
    struct plan *plan = NULL;
    struct plan_problems *problems = ARENA_NEW(&bed->arena, struct plan_problems);
    struct plan_ref ref = {.size_bytes = -1};
    struct buf folder;
    struct buf uri;
    status st = plan_parse(str_c(plan_text), &bed->arena, &plan, problems, &err);
    CHECK(st == ST_OK, "%s %s", err.where, err.msg);
    buf_init(&folder, 4096);
    buf_printf(&folder, "%.*s/plans", STR_ARG(bed->data_dir));
    st = plan_store_put(buf_str(&folder), str_c(plan_text), ref.sha256, &err);
    CHECK(st == ST_OK, "%s", err.msg);
    buf_release(&folder);
    buf_init(&uri, 256);
    buf_put_c(&uri, "plan:sha256:");
    buf_put_hex(&uri, ref.sha256, sizeof(ref.sha256));
    ref.uri = arena_str(&bed->arena, buf_str(&uri));
    buf_release(&uri);
    ref.schema_version = plan->schema_version;
    ref.plan_id = plan->plan_id;
    ref.plan_version = plan->plan_version;
    return ref;
}

struct start_request bed_request(struct bed *bed, const char *plan_text, const char *run_id) {
    return (struct start_request){.ref = bed_put(bed, plan_text),
                                  .tenant_id = STR("acme"),
                                  .project_id = STR("shop"),
                                  .environment_id = STR("prod"),
                                  .run_id = run_id ? str_c(run_id) : STR_NONE,
                                  .adapter = STR("local")};
}

struct answer {
    bool there;
    status code;
    struct error err;
};

static void take_answer(void *context, status code, const struct error *err) {
    struct answer *a = context;
    a->there = true;
    a->code = code;
    if (code != ST_OK && err) a->err = *err;
}

static void wake(uv_timer_t *timer) { (void)timer; }

/* One turn, at most a few milliseconds long. */
static void turn(struct bed *bed) {
    uv_timer_t timer;
    uv_timer_init(&bed->loop, &timer);
    uv_timer_start(&timer, wake, 5, 0);
    uv_run(&bed->loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&timer, NULL);
    uv_run(&bed->loop, UV_RUN_NOWAIT);
}

static status wait_answer(struct bed *bed, struct answer *a, struct error *err) {
    int64_t end = clock_mono_ns() + (int64_t)WAIT_MS * 1000000;
    while (!a->there) {
        turn(bed);
        CHECK(clock_mono_ns() < end, "no answer");
    }
    *err = a->err;
    return a->code;
}

status bed_start(struct bed *bed, const struct start_request *request, struct error *err) {
    char run_id[256];
    struct answer *a = ARENA_NEW(&bed->arena, struct answer);
    host_start(bed->host, request, run_id, take_answer, a);
    return wait_answer(bed, a, err);
}

status bed_heartbeat(struct bed *bed, const struct task_ref *ref, int64_t lease_ms,
                     int64_t *until_us, struct error *err) {
    struct answer *a = ARENA_NEW(&bed->arena, struct answer);
    engine_heartbeat(host_engine(bed->host), ref, lease_ms, until_us,
                     &(struct engine_caller){.done = take_answer, .context = a});
    return wait_answer(bed, a, err);
}

status bed_task_again(struct bed *bed, const struct task_ref *ref, struct task *out,
                      struct error *err) {
    struct answer *a = ARENA_NEW(&bed->arena, struct answer);
    engine_task_again(host_engine(bed->host), ref, &bed->arena, out,
                      &(struct engine_caller){.done = take_answer, .context = a});
    return wait_answer(bed, a, err);
}

status bed_signal(struct bed *bed, const char *run_id, const char *name, const char *step,
                  const char *signal_id, struct error *err) {
    struct signal s = {.name = str_c(name), .step_id = str_c(step), .signal_id = str_c(signal_id)};
    struct answer *a = ARENA_NEW(&bed->arena, struct answer);
    engine_signal(
        host_engine(bed->host), str_c(run_id), &s,
        &(struct engine_caller){.actor = STR("operator"), .done = take_answer, .context = a});
    return wait_answer(bed, a, err);
}

enum run_status bed_status(struct bed *bed, const char *run_id) {
    struct run_info info;
    struct error err = {0};
    struct arena_mark mark = arena_mark(&bed->arena);
    status st = ledger_find_run(host_reader(bed->host), str_c(run_id), &bed->arena, &info, &err);
    CHECK(st == ST_OK || st == ST_NOT_FOUND, "%s", err.msg);
    arena_rewind(&bed->arena, mark);
    return st == ST_OK ? info.head.status : RUN_NEW;
}

enum run_status bed_wait(struct bed *bed, const char *run_id) {
    int64_t end = clock_mono_ns() + (int64_t)WAIT_MS * 1000000;
    while (!run_is_final(bed_status(bed, run_id))) {
        turn(bed);
        CHECK(clock_mono_ns() < end, "run %s does not end: %.*s", run_id,
              STR_ARG(bed_history(bed, run_id)));
    }
    return bed_status(bed, run_id);
}

void bed_wait_event(struct bed *bed, enum event_type type, int64_t count) {
    int64_t end = clock_mono_ns() + (int64_t)WAIT_MS * 1000000;
    while (bed->events[type] < count) {
        turn(bed);
        CHECK(clock_mono_ns() < end, "event type %d did not come %lld times", type,
              (long long)count);
    }
}

void bed_turn(struct bed *bed, int64_t ms) {
    int64_t end = clock_mono_ns() + ms * 1000000;
    while (clock_mono_ns() < end)
        turn(bed);
}

enum run_status bed_run(struct bed *bed, const char *plan_text, const char *run_id) {
    struct start_request request = bed_request(bed, plan_text, run_id);
    struct error err = {0};
    status st = bed_start(bed, &request, &err);
    CHECK(st == ST_OK, "%s: %s", reason_name(err.reason), err.msg);
    return bed_wait(bed, run_id);
}

str bed_history(struct bed *bed, const char *run_id) {
    struct error err = {0};
    struct buf out;
    buf_init(&out, (size_t)4 * 1024 * 1024);
    int64_t after = 0;
    for (;;) {
        struct event_page page = {0};
        status st = ledger_read_run(host_reader(bed->host), str_c(run_id), after, 500, &bed->arena,
                                    &page, &err);
        CHECK(st == ST_OK || st == ST_NOT_FOUND, "%s", err.msg);
        for (size_t i = 0; i < page.count; i++) {
            const struct event *e = &page.records[i].event;
            after = page.records[i].seq;
            if (event_type_is_fact(e->type)) continue;
            if (out.len > 0) buf_put_char(&out, ' ');
            if (e->subject.ptr) buf_printf(&out, "%.*s:", STR_ARG(e->subject));
            buf_put(&out, e->type_name);
            if (e->subject.ptr) buf_printf(&out, "#%lld", (long long)e->logical_attempt);
        }
        if (page.count < 500) break;
    }
    str kept = arena_str(&bed->arena, buf_str(&out));
    buf_release(&out);
    return kept;
}

struct find_payload {
    struct bed *bed;
    enum event_type type;
    size_t n;
    str found;
};

static status find_payload(void *context, const struct event_record *rec, bool *stop,
                           struct error *err) {
    UNUSED(stop);
    struct find_payload *f = context;
    (void)err;
    if (rec->event.type == f->type && f->n-- == 0)
        f->found = arena_str(&f->bed->arena, rec->event.payload);
    return ST_OK;
}

str bed_payload(struct bed *bed, const char *run_id, enum event_type type, size_t n) {
    struct run_info info;
    struct error err = {0};
    struct find_payload f = {.bed = bed, .type = type, .n = n};
    status st = ledger_find_run(host_reader(bed->host), str_c(run_id), &bed->arena, &info, &err);
    if (st == ST_OK) st = ledger_walk_run(host_reader(bed->host), &info, 0, find_payload, &f, &err);
    CHECK(st == ST_OK, "%s", err.msg);
    return f.found;
}
