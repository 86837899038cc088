#include "lib/producer_stage_test.h"

#include "base/limits.h"
#include "test.h"

struct error test_err;

void stage_check_ok(status st, const char *file, int line) {
    test_checks++;
    if (st != ST_OK) test_fail(file, line, "OK", "%s: %s", status_name(st), test_err.msg);
}

void stage_check_refused(status st, const char *reason, const char *file, int line) {
    test_checks++;
    const char *found = reason_name(test_err.reason);
    if (st == ST_CONFLICT && strcmp(found, reason) == 0) return;
    test_fail(file, line, "REFUSED", "%s, %s: %s", status_name(st), found, test_err.msg);
}

/* ---- an Append Authority that remembers what it was sent, and fails on demand ---- */

static status authority_append(void *context, struct append_request *request, struct error *e) {
    struct authority *a = context;
    CHECK(request->count == 1 && a->ledger != NULL);
    a->sent[a->calls++ % SENT_MAX] = request->items[0].event;
    if (a->failures == 0) return ledger_append(a->ledger, &request, 1, e);
    a->failures--;
    if (a->after) OK(ledger_append(a->ledger, &request, 1, &test_err));
    return error_set(e, ST_RETRY, "injected failure");
}

const struct event *stage_sent(const struct stage *s) {
    CHECK(s->authority.calls > 0);
    return &s->authority.sent[(s->authority.calls - 1) % SENT_MAX];
}

static status loader_read(void *context, str run_id, int64_t after_seq, struct arena *arena,
                          struct event_page *page, struct error *e) {
    struct loader *l = context;
    if (l->broken) return error_set(e, ST_RETRY, "injected failure");
    return ledger_read_run(l->ledger, run_id, after_seq, 3, arena, page,
                           e); /* small pages, so that there are many */
}

/* ---- a stage: a ledger, a registry, a producer ---- */

str stage_ids_url(str url) {
    return str_starts(url, STR("postgres")) ? url : test_db_url("sqlite");
}

struct ledger *stage_ledger(str url) {
    struct ledger *l = NULL;
    struct ledger_options options = {.validation = LEDGER_RECORD};
    OK(ledger_open(url, &options, &l, &test_err));
    return l;
}

struct producer *stage_producer(struct stage *s, struct registry *registry) {
    struct producer *p = NULL;
    struct producer_options options = {.registry = registry,
                                       .append = authority_append,
                                       .append_context = &s->authority,
                                       .load = loader_read,
                                       .load_context = &s->loader};
    OK(producer_open(&options, &p, &test_err));
    return p;
}

void stage_open(struct stage *s, str url, str ids_url) {
    *s = (struct stage){.ledger = stage_ledger(url)};
    if (ids_url.ptr)
        OK(registry_open(ids_url, &s->registry, &test_err));
    else
        OK(registry_open_memory(&s->registry, &test_err));
    s->authority.ledger = s->loader.ledger = s->ledger;
    s->producer = stage_producer(s, s->registry);
    arena_init(&s->arena, 4096, (size_t)64 * 1024 * 1024);
}

void stage_close(struct stage *s) {
    producer_close(s->producer);
    registry_close(s->registry);
    ledger_close(s->ledger);
    arena_release(&s->arena);
}

void stage_restart(struct stage *s) {
    producer_close(s->producer);
    s->producer = stage_producer(s, s->registry);
}

struct append_item stage_item(const char *run_id, const char *type, const char *step_id,
                              int64_t attempt) {
    struct append_item item = {0};
    item.event = (struct event){.type_name = str_c(type),
                                .run_id = str_c(run_id),
                                .tenant_id = STR("acme"),
                                .project_id = STR("shop"),
                                .environment_id = STR("prod"),
                                .plan_id = STR("orders"),
                                .plan_version = STR("7"),
                                .subject = str_c(step_id),
                                .logical_attempt = attempt};
    return item;
}

status stage_try(struct stage *s, const char *run_id, const char *type, const char *step_id,
                 int64_t attempt, struct append_result *result) {
    struct append_item item = stage_item(run_id, type, step_id, attempt);
    return producer_emit(s->producer, &item, result, &test_err);
}

struct append_result stage_emit(struct stage *s, const char *run_id, const char *type,
                                const char *step_id) {
    struct append_result result = {0};
    OK(stage_try(s, run_id, type, step_id, 1, &result));
    CHECK(result.code == ST_OK && result.seq > 0 && result.run_seq > 0 && result.persisted_us > 0);
    return result;
}

void stage_refuse(struct stage *s, const char *run_id, const char *type, const char *step_id,
                  int64_t attempt) {
    struct append_result result;
    int calls = s->authority.calls;
    REFUSED(stage_try(s, run_id, type, step_id, attempt, &result), "INVALID_TRANSITION_DETECTED");
    CHECK(s->authority.calls == calls, "%s was appended", type);
}

bool stage_report(struct stage *s, const char *run_id, const char *type, const char *step_id,
                  int64_t attempt) {
    struct append_item item = stage_item(run_id, type, step_id, attempt);
    struct append_result result = {0};
    bool emitted = false;
    int calls = s->authority.calls;
    OK(producer_report_invalid(s->producer, &item, &result, &emitted, &test_err));
    CHECK(s->authority.calls == calls + emitted && (result.seq > 0) == emitted);
    return emitted;
}

struct event_page stage_records(struct stage *s, const char *run_id) {
    struct event_page page = {0};
    status st =
        ledger_read_run(s->ledger, str_c(run_id), 0, PAGE_EVENTS_MAX, &s->arena, &page, &test_err);
    CHECK(st == ST_OK || st == ST_NOT_FOUND, "%s", test_err.msg);
    return page;
}

size_t stage_count(struct stage *s, const char *run_id, const char *type) {
    struct event_page page = stage_records(s, run_id);
    size_t n = 0;
    for (size_t i = 0; i < page.count; i++)
        n += str_eq(page.records[i].event.type_name, str_c(type));
    return n;
}

static void key_of(const struct append_item *item, uint8_t key[SHA256_LEN]) {
    struct event e = item->event;
    e.type = event_type_of(e.type_name);
    event_key_derive(&e, key);
}

uuid stage_id_of(struct registry *r, const struct append_item *item, bool want_fresh) {
    uuid id = {0};
    bool fresh = false;
    uint8_t key[SHA256_LEN];
    key_of(item, key);
    OK(registry_get(r, item->event.run_id, key, &id, &fresh, &test_err));
    CHECK(fresh == want_fresh);
    return id;
}

void stage_emit_all(struct stage *s, const char *run_id) {
    stage_emit(s, run_id, "RunQueued", NULL);
    stage_emit(s, run_id, "RunStarted", NULL);
    stage_emit(s, run_id, "StepStarted", "a");
    stage_emit(s, run_id, "NoteTaken", "a"); /* unknown, opaque */
    stage_emit(s, run_id, "StepCompleted", "a");
    stage_emit(s, run_id, "StepSkipped", "b");
    stage_emit(s, run_id, "RunCompleted", NULL);
}
