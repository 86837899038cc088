/* Any bytes as a RunEventWrite. What is refused says why; what is accepted survives the trip
 * through JSON, with its key. */
#include "base/limits.h"
#include "core/event.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ARENA_BYTES ((size_t)64 * 1024 * 1024)

static bool same_str(str a, str b) { return str_eq(a, b) && !a.ptr == !b.ptr; }

static bool same_event(const struct event *a, const struct event *b) {
    return a->type == b->type && same_str(a->type_name, b->type_name) &&
           same_str(a->run_id, b->run_id) && same_str(a->tenant_id, b->tenant_id) &&
           same_str(a->project_id, b->project_id) &&
           same_str(a->environment_id, b->environment_id) && same_str(a->plan_id, b->plan_id) &&
           same_str(a->plan_version, b->plan_version) && same_str(a->subject, b->subject) &&
           same_str(a->payload, b->payload) && a->engine_attempt == b->engine_attempt &&
           a->logical_attempt == b->logical_attempt && a->emitted_ns == b->emitted_ns &&
           a->emitted_digits == b->emitted_digits && uuid_eq(a->event_id, b->event_id) &&
           memcmp(a->key, b->key, SHA256_LEN) == 0;
}

static void check_refusal(status st, const struct error *err) {
    ASSERT(st == ST_INVALID || st == ST_LIMIT);
    ASSERT(err->code == st);
    ASSERT(err->reason && err->msg[0] != 0); /* a code for machines and a sentence for people */
}

/* Writing may lengthen an event that just fitted, through escapes: then the second parse refuses
 * its size, and only that. */
static void check_round_trip(const struct event *e, struct arena *arena) {
    struct buf json;
    struct error err = {0};
    struct event again;
    uint8_t key[SHA256_LEN];
    event_key_derive(e, key);
    ASSERT(memcmp(key, e->key, SHA256_LEN) == 0);
    buf_init(&json, ARENA_BYTES);
    event_write_json(e, &json);
    ASSERT(!json.full);
    status st = event_parse(buf_str(&json), arena, &again, &err);
    bool too_long = st == ST_LIMIT && json.len > EVENT_BYTES_MAX;
    ASSERT(st == ST_OK || too_long);
    ASSERT(too_long || same_event(e, &again));
    buf_release(&json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct arena arena;
    struct event event;
    struct error err = {0};
    arena_init(&arena, 4096, ARENA_BYTES);
    status st = event_parse(str_n(data, size), &arena, &event, &err);
    if (st == ST_OK)
        check_round_trip(&event, &arena);
    else
        check_refusal(st, &err);
    arena_release(&arena);
    return 0;
}
