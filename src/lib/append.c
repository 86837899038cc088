/* lib/append.c: appending from structs, JSON and NDJSON. */
#include "base/json.h"
#include "base/limits.h"
#include "lib/producer.h"
#include "lib/convert.h"
#include "lib/store.h"

enum { NDJSON_LOT_LINES = 512 };                   /* lines of one commit, */
#define NDJSON_LOT_BYTES ((size_t)2 * 1024 * 1024) /* unless they have more bytes than this */

/* One event that was taken, or not (st). */
static cairn_status append_one(cairn_store *s, status st, struct append_item *item,
                               struct arena *arena, cairn_result *result, struct error *err,
                               cairn_error *give) {
    struct append_result res = {0};
    struct append_request request = {.items = item, .count = 1, .results = &res, .arena = arena};
    if (result) result->line = 0;
    if (st == ST_OK) st = store_append(s, &request, err);
    if (st != ST_OK)
        give_failure(err, result);
    else
        give_result(&res, result);
    cairn_status code =
        st != ST_OK ? give_error(err, give) : give_status(res.code, res.err ? res.err : err, give);
    arena_release(arena);
    return code;
}

cairn_status cairn_append(cairn_store *s, const cairn_event *event, cairn_result *result,
                          cairn_error *give) {
    struct arena arena;
    struct append_item item;
    struct error err = {0};
    arena_init(&arena, 4096, CALL_BYTES_MAX);
    status st = take_event(event, &arena, &item, &err);
    return append_one(s, st, &item, &arena, result, &err, give);
}

cairn_status cairn_append_json(cairn_store *s, const char *json, size_t length,
                               cairn_result *result, cairn_error *give) {
    struct arena arena;
    struct append_item item = {0};
    struct error err = {0};
    arena_init(&arena, 4096, CALL_BYTES_MAX);
    status st = event_parse(str_n(json, length), &arena, &item.event, &err);
    return append_one(s, st, &item, &arena, result, &err, give);
}

/* ---- appending many: items that were taken go to the ledger, the others keep their error ---- */

struct entry {
    struct error *refused; /* it was not good enough to be sent */
    size_t line;
};
struct lot {
    struct arena arena;
    struct append_request request; /* those that were good */
    struct entry *entries;         /* all that were given, in order */
    size_t count, bytes;
};

static status lot_init(struct lot *lot, size_t max, bool atomic, struct error *err) {
    *lot = (struct lot){0};
    arena_init(&lot->arena, (size_t)64 * 1024, CALL_BYTES_MAX);
    lot->entries = arena_try(&lot->arena, max * sizeof(*lot->entries));
    lot->request = (struct append_request){
        .items = arena_try(&lot->arena, max * sizeof(struct append_item)),
        .results = arena_try(&lot->arena, max * sizeof(struct append_result)),
        .atomic = atomic,
        .outside = true,
        .arena = &lot->arena};
    if (lot->entries && lot->request.items && lot->request.results) return ST_OK;
    return error_set(err, ST_RETRY, "out of memory for a batch of %zu events", max);
}

/* Where the next event is to be taken to; it counts when lot_put() says that it was good. */
static struct append_item *lot_next(struct lot *lot) {
    return &lot->request.items[lot->request.count];
}

static status lot_put(struct lot *lot, status taken, size_t line, struct error *err) {
    struct entry *entry = &lot->entries[lot->count++];
    *entry = (struct entry){.line = line};
    if (taken == ST_OK) {
        lot->request.count++;
        return ST_OK;
    }
    if (taken == ST_RETRY) return taken; /* out of memory: that is not the event's fault */
    entry->refused = arena_try(&lot->arena, sizeof(*entry->refused));
    if (!entry->refused) return error_set(err, ST_RETRY, "out of memory");
    *entry->refused = *err;
    return ST_OK;
}

/* With `atomic` one bad event refuses the others, before anything is sent. */
static void lot_refuse_all(struct lot *lot) {
    size_t bad = 0;
    while (bad < lot->count && !lot->entries[bad].refused)
        bad++;
    if (!lot->request.atomic || bad == lot->count) return;
    struct error why = *lot->entries[bad].refused;
    error_wrap(&why, "event %zu of the batch", bad + 1);
    for (size_t i = 0; i < lot->count; i++) {
        struct error *copy = lot->entries[i].refused;
        if (copy) continue;
        copy = arena_try(&lot->arena, sizeof(*copy));
        if (copy) *copy = why;
        lot->entries[i].refused = copy ? copy : lot->entries[bad].refused;
    }
    lot->request.count = 0;
}

static status lot_append(cairn_store *s, struct lot *lot, struct error *err) {
    lot_refuse_all(lot);
    return store_append(s, &lot->request, err);
}

/* Why entry `i`, the `k`-th of those that were good, failed; NULL: it did not. `st` and `err` are
 * lot_append()'s. */
static const struct error *lot_error(const struct lot *lot, size_t i, size_t k, status st,
                                     const struct error *err) {
    if (lot->entries[i].refused) return lot->entries[i].refused;
    return st != ST_OK ? err : lot->request.results[k].err;
}

static void lot_result(const struct lot *lot, size_t i, size_t k, status st,
                       const struct error *err, cairn_result *out) {
    const struct error *why = lot_error(lot, i, k, st, err);
    out->line = lot->entries[i].line;
    if (why)
        give_failure(why, out);
    else
        give_result(&lot->request.results[k], out);
}

/* Remembers the first failure for the caller. */
static void note_failure(const cairn_result *result, cairn_status *code, cairn_error *give) {
    if (result->code == CAIRN_OK || *code != CAIRN_OK) return;
    *code = result->code;
    if (give) *give = result->error;
}

static status check_batch(size_t count, struct error *err) {
    if (count <= BATCH_EVENTS_MAX) return ST_OK;
    return error_at(err, REASON_BATCH_TOO_LARGE, "",
                    "a batch of %zu events, at most %d are allowed", count, BATCH_EVENTS_MAX);
}

cairn_status cairn_append_batch(cairn_store *s, const cairn_event *events, size_t count,
                                bool atomic, cairn_result *results, cairn_error *give) {
    struct lot lot = {0};
    struct error err = {0};
    cairn_status code = CAIRN_OK;
    if (count == 0) return CAIRN_OK;
    status st = check_batch(count, &err);
    if (st == ST_OK) st = lot_init(&lot, count, atomic, &err);
    for (size_t i = 0; i < count && st == ST_OK; i++) {
        status taken = take_event(&events[i], &lot.arena, lot_next(&lot), &err);
        st = lot_put(&lot, taken, 0, &err);
    }
    bool whole = st == ST_OK; /* else the lot is not complete, and nothing was sent */
    if (whole) st = lot_append(s, &lot, &err);
    for (size_t i = 0, k = 0; i < count; i++) {
        results[i].line = 0;
        if (whole)
            lot_result(&lot, i, k, st, &err, &results[i]);
        else
            give_failure(&err, &results[i]);
        k += whole && !lot.entries[i].refused;
        note_failure(&results[i], &code, give);
    }
    arena_release(&lot.arena);
    return code;
}

/* ---- NDJSON ---- */

struct ndjson {
    str rest;
    size_t line;
    cairn_on_result on_result;
    void *context;
    bool stopped;
    cairn_status code; /* of the first line that failed */
    cairn_error *give;
};

/* Fills a lot from the text. */
static status ndjson_fill(struct ndjson *n, struct lot *lot, struct error *err) {
    status st = ST_OK;
    while (st == ST_OK && n->rest.len > 0 && lot->count < NDJSON_LOT_LINES &&
           lot->bytes < NDJSON_LOT_BYTES) {
        str line;
        str rest = STR_NONE;
        str_split(n->rest, '\n', &line, &rest);
        n->rest = rest;
        n->line++;
        if (str_trim(line).len == 0) continue;
        lot->bytes += line.len;
        struct append_item *item = lot_next(lot);
        *item = (struct append_item){0};
        st = lot_put(lot, event_parse(line, &lot->arena, &item->event, err), n->line, err);
    }
    return st;
}

static void ndjson_answer(struct ndjson *n, const struct lot *lot, status st,
                          const struct error *err) {
    for (size_t i = 0, k = 0; i < lot->count && !n->stopped; i++) {
        cairn_result result;
        lot_result(lot, i, k, st, err, &result);
        if (result.code != CAIRN_OK && n->code == CAIRN_OK) {
            struct error first = *lot_error(lot, i, k, st, err);
            error_wrap(&first, "line %zu", result.line);
            n->code = give_error(&first, n->give);
        }
        k += !lot->entries[i].refused;
        if (n->on_result) n->stopped = !n->on_result(n->context, &result);
    }
}

cairn_status cairn_append_ndjson(cairn_store *s, const char *text, size_t length,
                                 cairn_on_result on_result, void *context, cairn_error *give) {
    struct ndjson n = {
        .rest = str_n(text, length), .on_result = on_result, .context = context, .give = give};
    struct error err = {0};
    status st = ST_OK;
    while (st == ST_OK && n.rest.len > 0 && !n.stopped) {
        struct lot lot;
        st = lot_init(&lot, NDJSON_LOT_LINES, false, &err);
        if (st == ST_OK) st = ndjson_fill(&n, &lot, &err);
        if (st == ST_OK) {
            st = lot_append(s, &lot, &err);
            ndjson_answer(&n, &lot, st, &err);
        }
        arena_release(&lot.arena);
    }
    if (n.code != CAIRN_OK) return n.code;
    return give_status(st, &err, give);
}

cairn_status cairn_event_key(const cairn_event *event, char key[65], cairn_error *give) {
    struct arena arena;
    struct error err = {0};
    struct event e = {.type_name = str_c(event->event_type),
                      .run_id = str_c(event->run_id),
                      .plan_id = str_c(event->plan_id),
                      .plan_version = str_c(event->plan_version),
                      .subject = str_c(event->step_id),
                      .logical_attempt = event->logical_attempt_id,
                      /* which take no part, and must not be what is wrong: */
                      .tenant_id = STR("-"),
                      .project_id = STR("-"),
                      .environment_id = STR("-")};
    arena_init(&arena, 256, CALL_BYTES_MAX);
    status st = producer_prepare(&e, 1, &arena, &err);
    if (st == ST_OK) hex_encode(e.key, SHA256_LEN, key);
    if (st == ST_OK) key[SHA256_HEX_LEN] = 0;
    arena_release(&arena);
    return give_status(st, &err, give);
}
