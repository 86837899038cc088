#include "lib/producer.h"

#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/map.h"
#include "base/time.h"
#include "ledger/writer.h"

enum {
    APPEND_WAIT_MS = 30000,   /* for room in the writer's queue; then the caller comes back */
    REFUSAL_BYTES_MAX = 2048, /* an event type of 100 bytes, escaped, and short texts */
};
/* The envelope of the longest ids, every byte escaped: eight of them, and the fixed members. */
#define ENVELOPE_BYTES_MAX ((size_t)8 * 6 * ID_BYTES_MAX + 1024)
/* One call: the page of records that is being reduced, the payload, the answer. */
#define SCRATCH_BYTES_MAX ((size_t)1024 * 1024 * 1024)

/* A step, or the run, of which nothing more is emitted. */
struct halt {
    str payload;            /* refusal_json() of what was refused */
    enum event_type report; /* what producer_report_invalid() chose; EVENT_UNKNOWN: not yet */
    int64_t attempt;        /* the logicalAttemptId of that */
};

struct produced_run {
    str run_id;
    struct run run;      /* reduced from a prefix of the run's events */
    bool current;        /* from all of them, as far as we know */
    struct map keys;     /* the idempotency keys of those events */
    struct halt *halted; /* the whole run, or NULL */
    struct map halted_steps;
    uint64_t used;      /* the producer's tick when it was last asked for */
    struct arena arena; /* of all of the above */
};

struct producer {
    struct producer_options options;
    struct map runs;
    uint64_t tick;
    struct arena scratch; /* of one call */
};

/* ---- opening and closing ---- */

static status no_memory(struct error *err) {
    return error_set(err, ST_RETRY, "producer: out of memory");
}

status producer_open(const struct producer_options *options, struct producer **out,
                     struct error *err) {
    ASSERT(options->registry && options->append && options->load);
    struct producer *p = mem_alloc(sizeof(*p));
    if (!p) return no_memory(err);
    p->options = *options;
    map_init(&p->runs);
    arena_init(&p->scratch, 4096, SCRATCH_BYTES_MAX);
    *out = p;
    return ST_OK;
}

static void run_free(struct produced_run *run) {
    map_release(&run->keys);
    map_release(&run->halted_steps);
    arena_release(&run->arena);
    mem_free(run);
}

void producer_close(struct producer *p) {
    if (!p) return;
    struct map_slot *slot = NULL;
    for (size_t i = 0; map_next(&p->runs, &i, &slot);)
        run_free(slot->value);
    map_release(&p->runs);
    arena_release(&p->scratch);
    mem_free(p);
}

/* ---- the runs and their derived state ---- */

static bool is_halted(const struct produced_run *run) {
    return run->halted || run->halted_steps.count > 0;
}

/* Makes room for one more run. A halt must be remembered, so a halted run is never dropped. */
static bool make_room(struct producer *p, struct error *err) {
    if (p->runs.count < PRODUCER_RUNS_MAX) return true;
    struct produced_run *oldest = NULL;
    struct map_slot *slot = NULL;
    for (size_t i = 0; map_next(&p->runs, &i, &slot);) {
        struct produced_run *run = slot->value;
        if (!is_halted(run) && (!oldest || run->used < oldest->used)) oldest = run;
    }
    if (!oldest) {
        error_at(err, REASON_TOO_MANY_RUNS, "/runId", "producer: %d runs are halted already",
                 PRODUCER_RUNS_MAX);
        return false;
    }
    map_del(&p->runs, oldest->run_id);
    run_free(oldest);
    return true;
}

static struct produced_run *add_run(struct producer *p, str run_id) {
    struct produced_run *run = mem_alloc(sizeof(*run));
    if (!run) return NULL;
    map_init(&run->keys);
    map_init(&run->halted_steps);
    arena_init(&run->arena, 1024, SIZE_MAX);
    if (arena_try_str(&run->arena, run_id, &run->run_id) && map_put(&p->runs, run->run_id, run)) {
        return run;
    }
    run_free(run);
    return NULL;
}

/* NULL, with *err filled, when there is no room for it. */
static struct produced_run *find_run(struct producer *p, str run_id, struct error *err) {
    struct produced_run *run = map_get(&p->runs, run_id);
    if (!run) {
        if (!make_room(p, err)) return NULL;
        run = add_run(p, run_id);
    }
    if (run)
        run->used = ++p->tick;
    else
        no_memory(err);
    return run;
}

static bool has_key(const struct produced_run *run, const struct event *e) {
    return map_get(&run->keys, str_n(e->key, SHA256_LEN)) != NULL;
}

/* Takes one more record into the derived state. A forbidden one is layer 3's affair: the reducer
 * marks the run. */
static status learn(struct produced_run *run, const struct event_record *rec, struct error *err) {
    if (rec->seq <= run->run.head.last_seq) {
        return error_at(err, REASON_LEDGER_DAMAGED, "",
                        "the events of run \"%.*s\" are out of order", STR_ARG(run->run_id));
    }
    struct transition ignored;
    str key;
    if (!arena_try_str(&run->arena, str_n(rec->event.key, SHA256_LEN), &key) ||
        !map_put(&run->keys, key, run)) {
        return no_memory(err);
    }
    status st = run_apply(&run->run, rec, &run->arena, &ignored, NULL, err);
    return st == ST_CONFLICT ? ST_OK : st;
}

/* Reads and reduces what is new. What was reduced before a failure stays: it is still a prefix. */
static status catch_up(struct producer *p, struct produced_run *run, struct error *err) {
    const struct producer_options *o = &p->options;
    run->current = false;
    for (;;) {
        struct arena_mark mark = arena_mark(&p->scratch);
        struct event_page page = {0};
        status st =
            o->load(o->load_context, run->run_id, run->run.head.last_seq, &p->scratch, &page, err);
        if (st == ST_NOT_FOUND) st = ST_OK; /* nobody has appended to it yet */
        for (size_t i = 0; i < page.count && st == ST_OK; i++)
            st = learn(run, &page.records[i], err);
        /* Replay is what makes a registry in memory survive. */
        if (st == ST_OK && !registry_is_durable(o->registry))
            st = registry_fill(o->registry, &page, err);
        bool end = page.count == 0;
        arena_rewind(&p->scratch, mark);
        if (st != ST_OK)
            return error_wrap(err, "the state of run \"%.*s\" is unknown", STR_ARG(run->run_id));
        if (end) break;
    }
    run->current = true;
    return ST_OK;
}

/* NULL, with *err filled, when its state cannot be read. */
static struct produced_run *current_run(struct producer *p, str run_id, struct error *err) {
    struct produced_run *run = find_run(p, run_id, err);
    if (!run || run->current) return run;
    return catch_up(p, run, err) == ST_OK ? run : NULL;
}

/* ---- layer 1 ---- */

static struct halt *halt_of(const struct produced_run *run, const struct event *e) {
    if (run->halted) return run->halted;
    return e->subject.ptr ? map_get(&run->halted_steps, e->subject) : NULL;
}

static status check_halt(const struct produced_run *run, const struct event *e, struct error *err) {
    if (!halt_of(run, e)) return ST_OK;
    if (run->halted) {
        return error_at(
            err, REASON_INVALID_TRANSITION_DETECTED, "/runId",
            "%.*s was not emitted: an invalid transition of run \"%.*s\" was detected before",
            STR_ARG(e->type_name), STR_ARG(e->run_id));
    }
    return error_at(
        err, REASON_INVALID_TRANSITION_DETECTED, "/stepId",
        "%.*s was not emitted: an invalid transition of step \"%.*s\" was detected before",
        STR_ARG(e->type_name), STR_ARG(e->subject));
}

/* Returns the error that the caller gets, also when there is no memory left to remember the halt:
 * then the guard will refuse the same event again. */
static status halt_entity(struct produced_run *run, const struct event *e,
                          const struct refusal *why, struct error *err) {
    char text[REFUSAL_BYTES_MAX];
    struct buf json;
    buf_init_fixed(&json, text, sizeof(text));
    refusal_json(why, &json);
    ASSERT(!json.full);
    struct halt *h = arena_try(&run->arena, sizeof(*h));
    str step_id = STR_NONE;
    bool kept = h && arena_try_str(&run->arena, buf_str(&json), &h->payload);
    if (kept && why->step_level) {
        kept = arena_try_str(&run->arena, e->subject, &step_id) &&
               map_put(&run->halted_steps, step_id, h);
    } else if (kept) {
        run->halted = h;
    }
    if (!kept) return no_memory(err);
    return error_at(err, REASON_INVALID_TRANSITION_DETECTED, "/eventType",
                    "%.*s was not emitted: %s \"%.*s\" is in state %s, expected %s",
                    STR_ARG(e->type_name), why->step_level ? "step" : "run",
                    STR_ARG(why->step_level ? e->subject : e->run_id), why->actual, why->expected);
}

/* An event that is in the ledger moves nothing when it is sent again. */
static bool may_emit(const struct produced_run *run, const struct event *e, struct refusal *why) {
    return has_key(run, e) || run_guard(&run->run, e, why);
}

static status guard(struct producer *p, struct produced_run *run, const struct event *e,
                    struct error *err) {
    struct refusal why;
    status st = check_halt(run, e, err);
    if (st != ST_OK || may_emit(run, e, &why)) return st;
    st = catch_up(p, run, err);
    if (st != ST_OK || may_emit(run, e, &why)) return st;
    return halt_entity(run, e, &why, err);
}

/* ---- sending ---- */

/* The event is durable. If its record does not follow what we know, others have written, and we
 * read before the next use. */
static void learn_result(struct produced_run *run, const struct event *e,
                         const struct append_result *res) {
    struct event_record rec = {
        .event = *e, .seq = res->seq, .run_seq = res->run_seq, .persisted_us = res->persisted_us};
    struct error ignored;
    rec.event.event_id = res->event_id;
    if (res->seq <= run->run.head.last_seq) return; /* a duplicate that we knew */
    bool next = !res->duplicate && res->run_seq == run->run.head.run_seq + 1;
    if (!next || learn(run, &rec, &ignored) != ST_OK) run->current = false;
}

static status adopt(struct producer *p, const struct event *e, uuid returned, struct error *err) {
    char id[UUID_TEXT_LEN];
    uuid_format(returned, id);
    LOG(LOG_DEBUG, "the ledger has this event under another id, which is now ours",
        LOG_S("runId", e->run_id), LOG_S("eventType", e->type_name),
        LOG_S("eventId", str_n(id, sizeof(id))));
    return registry_adopt(p->options.registry, e->run_id, e->key, returned, err);
}

static status send_event(struct producer *p, struct produced_run *run, struct append_item *item,
                         struct append_result *result, struct error *err) {
    const struct producer_options *o = &p->options;
    struct event *e = &item->event;
    bool fresh = false;
    status st = registry_get(o->registry, e->run_id, e->key, &e->event_id, &fresh, err);
    if (st != ST_OK) return st;
    struct append_result res = {0};
    struct append_request request = {
        .items = item, .count = 1, .outside = true, .results = &res, .arena = &p->scratch};
    st = o->append(o->append_context, &request, err);
    if (st != ST_OK)
        return st; /* its outcome is unknown; the registry keeps the id for the next try */
    if (res.code != ST_OK) {
        run->current = false; /* we believed that it would be accepted */
        *err = *res.err;
        return res.code;
    }
    learn_result(run, e, &res);
    if (!uuid_eq(res.event_id, e->event_id)) st = adopt(p, e, res.event_id, err);
    if (st == ST_OK) *result = res;
    return st;
}

static int64_t now_us(const struct producer *p) {
    return p->options.now_us ? p->options.now_us(p->options.clock) : clock_wall_us();
}

status producer_emit(struct producer *p, const struct append_item *given,
                     struct append_result *result, struct error *err) {
    struct append_item item = *given;
    arena_reset(&p->scratch);
    item.event.event_id = (uuid){0};
    status st = producer_prepare(&item.event, now_us(p), &p->scratch, err);
    if (st != ST_OK) return st;
    struct produced_run *run = current_run(p, item.event.run_id, err);
    if (!run) return err->code;
    st = guard(p, run, &item.event, err);
    return st == ST_OK ? send_event(p, run, &item, result, err) : st;
}

/* ---- reporting a refusal ---- */

/* Chooses once, so that trying again after a lost answer sends the same event. */
static void choose_report(const struct produced_run *run, const struct event *refused,
                          struct halt *h) {
    if (h->report != EVENT_UNKNOWN) return;
    const struct step *step =
        run->halted || !refused->subject.ptr ? NULL : run_step(&run->run, refused->subject);
    bool step_runs = step && step->state == STEP_RUNNING;
    h->report = step_runs ? EVENT_STEP_FAILED : EVENT_RUN_FAILED;
    h->attempt = step_runs ? step->attempt : 1;
}

static void fill_report(struct event *e, const struct halt *h) {
    e->type_name = event_type_info(h->report)->name;
    if (h->report == EVENT_RUN_FAILED) e->subject = STR_NONE;
    e->logical_attempt = h->attempt;
    e->payload = h->payload;
    e->emitted_ns = 0;
    e->event_id = (uuid){0};
}

status producer_report_invalid(struct producer *p, const struct append_item *refused,
                               struct append_result *result, bool *emitted, struct error *err) {
    struct append_item item = *refused;
    struct refusal why;
    *emitted = false;
    arena_reset(&p->scratch);
    item.event.event_id = (uuid){0};
    status st = producer_prepare(&item.event, now_us(p), &p->scratch, err);
    if (st != ST_OK) return st;
    struct produced_run *run = find_run(p, item.event.run_id, err);
    if (!run) return err->code;
    st = catch_up(p, run, err); /* the newest state decides; if unsure, nothing is emitted */
    if (st != ST_OK) return st;
    struct halt *h = halt_of(run, &item.event);
    if (!h)
        return error_set(err, ST_NOT_FOUND,
                         "no invalid transition of that run or step was detected");
    choose_report(run, &item.event, h);
    fill_report(&item.event, h);
    st = producer_prepare(&item.event, now_us(p), &p->scratch, err);
    if (st != ST_OK || !may_emit(run, &item.event, &why)) return st;
    st = send_event(p, run, &item, result, err);
    *emitted = st == ST_OK;
    return st;
}

/* ---- the rest ---- */

status producer_state(struct producer *p, str run_id, const struct run **out, struct error *err) {
    arena_reset(&p->scratch);
    const struct produced_run *run = current_run(p, run_id, err);
    if (!run) return err->code;
    *out = &run->run;
    return ST_OK;
}

status producer_forget_run(struct producer *p, str run_id, struct error *err) {
    status st = registry_forget_run(p->options.registry, run_id, err);
    if (st != ST_OK) return st;
    struct produced_run *run = map_del(&p->runs, run_id);
    if (run) run_free(run);
    return ST_OK;
}

/* The place was found within the payload; the caller gave an event. */
static status payload_refused(struct error *err) {
    char where[ERROR_WHERE_MAX];
    struct buf b;
    buf_init_fixed(&b, where, sizeof(where) - 1);
    buf_put_c(&b, "/payload");
    if (err->where[0] != '/' && err->where[0] != 0) buf_put_char(&b, ' ');
    buf_put_c(&b, err->where);
    where[b.len] = 0;
    memcpy(err->where, where, sizeof(where));
    return error_wrap(err, "event: \"payload\"");
}

static status compact_payload(struct event *e, struct arena *arena, struct error *err) {
    if (!e->payload.ptr) return ST_OK;
    yyjson_val *root = NULL;
    struct json_limits limits = {EVENT_BYTES_MAX,
                                 JSON_DEPTH_MAX - 1}; /* the envelope is one level */
    status st = json_parse(e->payload, limits, arena, &root, err);
    if (st != ST_OK) return payload_refused(err);
    if (!yyjson_is_obj(root)) {
        return error_at(err, REASON_PAYLOAD_NOT_OBJECT, "/payload",
                        "event: \"payload\" must be an object, found %s",
                        yyjson_get_type_desc(root));
    }
    e->payload = json_text(root, arena);
    return e->payload.ptr ? ST_OK : no_memory(err);
}

/* Whether the whole event is within the limit that it would meet as JSON. Only a long payload needs
 * measuring. */
static status check_size(const struct event *e, struct arena *arena, struct error *err) {
    if (e->payload.len + ENVELOPE_BYTES_MAX <= EVENT_BYTES_MAX) return ST_OK;
    struct arena_mark mark = arena_mark(arena);
    char *mem = arena_try_raw(arena, EVENT_BYTES_MAX);
    if (!mem) return no_memory(err);
    struct buf json;
    buf_init_fixed(&json, mem, EVENT_BYTES_MAX);
    event_write_json(e, &json);
    arena_rewind(arena, mark);
    if (!json.full) return ST_OK;
    return error_at(err, REASON_JSON_TOO_LARGE, "/payload", "event: over %zu bytes as JSON",
                    EVENT_BYTES_MAX);
}

/* Ids that are too long cannot be part of a key; event_validate() names them. */
static bool key_fits(const struct event *e) {
    const str parts[] = {e->run_id, e->subject, e->type_name, e->plan_id, e->plan_version};
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        if (parts[i].len > ID_BYTES_MAX) return false;
    }
    return true;
}

status producer_prepare(struct event *e, int64_t now, struct arena *arena, struct error *err) {
    static const uuid none = {{0}};
    status st = compact_payload(e, arena, err);
    if (st != ST_OK) return st;
    if (e->engine_attempt == 0) e->engine_attempt = 1;
    if (e->emitted_ns == 0) {
        e->emitted_ns = now * 1000;
        e->emitted_digits = 6;
    }
    if (uuid_eq(e->event_id, none)) e->event_id = uuid_v4();
    e->type = event_type_of(e->type_name);
    if (key_fits(e)) event_key_derive(e, e->key);
    st = event_validate(e, err);
    return st == ST_OK ? check_size(e, arena, err) : st;
}

status producer_append_writer(void *writer, struct append_request *request, struct error *err) {
    struct writer_call call = {.request = *request};
    return writer_append(writer, &call, APPEND_WAIT_MS, err);
}

status producer_append_ledger(void *ledger, struct append_request *request, struct error *err) {
    return ledger_append(ledger, &request, 1, err);
}

status producer_load_ledger(void *ledger, str run_id, int64_t after_seq, struct arena *arena,
                            struct event_page *page, struct error *err) {
    return ledger_read_run(ledger, run_id, after_seq, PAGE_EVENTS_MAX, arena, page, err);
}
