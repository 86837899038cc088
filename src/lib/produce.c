/* lib/produce.c: producers on a store. */
#include "base/arena.h"
#include "lib/producer.h"
#include "lib/registry.h"
#include "lib/convert.h"
#include "lib/store.h"

struct cairn_producer {
    cairn_store *store;
    struct registry *registry;
    struct producer *producer;
};

static status producer_appends(void *context, struct append_request *request, struct error *err) {
    return store_append(context, request, err);
}

static status producer_loads(void *context, str run_id, int64_t after, struct arena *arena,
                             struct event_page *page, struct error *err) {
    struct ledger *ledger = NULL;
    status st = store_reader_take(context, &ledger, err);
    if (st == ST_OK) st = producer_load_ledger(ledger, run_id, after, arena, page, err);
    store_reader_done(context, st);
    return st;
}

cairn_status cairn_producer_open(cairn_store *s, const char *registry_url, cairn_producer **out,
                                 cairn_error *give) {
    struct error err = {0};
    cairn_producer *p = mem_alloc(sizeof(*p));
    if (!p) return give_status(error_set(&err, ST_RETRY, "out of memory"), &err, give);
    status st = registry_url ? registry_open(str_c(registry_url), &p->registry, &err)
                             : registry_open_memory(&p->registry, &err);
    if (st == ST_OK) {
        struct producer_options options = {.registry = p->registry,
                                           .append = producer_appends,
                                           .append_context = s,
                                           .load = producer_loads,
                                           .load_context = s};
        st = producer_open(&options, &p->producer, &err);
    }
    if (st == ST_OK)
        *out = p;
    else
        cairn_producer_close(p);
    return give_status(st, &err, give);
}

void cairn_producer_close(cairn_producer *p) {
    if (!p) return;
    producer_close(p->producer);
    registry_close(p->registry);
    mem_free(p);
}

static status take_for_producer(const cairn_event *event, struct arena *arena,
                                struct append_item *item, struct error *err) {
    if (event->event_id || event->idempotency_key) {
        return error_at(err, REASON_FIELD_RESERVED,
                        event->event_id ? "/eventId" : "/idempotencyKey",
                        "event: a producer takes the id from its registry and derives the key");
    }
    return take_fields(event, arena, item, err);
}

cairn_status cairn_producer_emit(cairn_producer *p, const cairn_event *event, cairn_result *result,
                                 cairn_error *give) {
    struct arena arena;
    struct append_item item;
    struct append_result res = {0};
    struct error err = {0};
    arena_init(&arena, 256, CALL_BYTES_MAX);
    status st = take_for_producer(event, &arena, &item, &err);
    if (st == ST_OK) st = producer_emit(p->producer, &item, &res, &err);
    if (result) result->line = 0;
    if (st == ST_OK)
        give_result(&res, result);
    else
        give_failure(&err, result);
    arena_release(&arena);
    return give_status(st, &err, give);
}

cairn_status cairn_producer_report_invalid(cairn_producer *p, const cairn_event *event,
                                           bool *emitted, cairn_result *result, cairn_error *give) {
    struct arena arena;
    struct append_item item;
    struct append_result res = {0};
    struct error err = {0};
    *emitted = false;
    arena_init(&arena, 256, CALL_BYTES_MAX);
    status st = take_for_producer(event, &arena, &item, &err);
    if (st == ST_OK) st = producer_report_invalid(p->producer, &item, &res, emitted, &err);
    if (result) result->line = 0;
    if (*emitted)
        give_result(&res, result);
    else if (st != ST_OK)
        give_failure(&err, result);
    arena_release(&arena);
    return give_status(st, &err, give);
}

cairn_status cairn_producer_forget_run(cairn_producer *p, const char *run_id, cairn_error *give) {
    struct error err = {0};
    return give_status(producer_forget_run(p->producer, str_c(run_id), &err), &err, give);
}
