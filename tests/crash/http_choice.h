/* tests/crash/http_choice.h: the clients of http.c, and how they choose what to do next. */
#pragma once

#include "crash/http_history.h"
#include "load/child.h"
#include "model/random.h"

enum {
    CLIENTS = 32,
    NODES_MAX = 2,
    SHARED_RUNS = 12, /* runs that all clients append to */
    RUN_EVENTS = 150,
    BATCH_MAX = 12,
    CONTENDERS_MAX = 4, /* clients that start the same run */
    PAGE_LIMIT = 50,
    RETIRED_MAX = 4096,
    READY_MAX_S = 60, /* for a node to be ready again */
    IDLE_MAX_S = 60,  /* without any answer: something hangs */
    KEY_BYTES = 32,
};

enum op_kind { OP_APPEND, OP_START, OP_GET, OP_PAGE };
enum client_state { CLIENT_FREE, CLIENT_WAITS, CLIENT_ASKED };

struct client {
    struct conn conn;
    int node;
    enum client_state state;
    int64_t wait_ns; /* until then, when it waits */
    /* what it does: */
    enum op_kind kind;
    size_t run;
    size_t events[BATCH_MAX];
    size_t count;
    int variant;   /* of h_event.ids */
    bool original; /* what it appends is its own */
    bool chosen;   /* OP_START: with a runId */
    char key[KEY_BYTES];
    int64_t asked_ns, after;
};

struct live { /* what only the clients need of a run, beside h_run */
    bool open, retired;
    int busy; /* operations under way that change it */
    int64_t made, acknowledged_seq;
    int64_t started; /* a step that was started alone; 0: none */
    bool keyed;      /* engine: known by an Idempotency-Key, not by a runId */
    int contenders;
};

struct node {
    struct child child;
    char data[600], name[32];
    int lives;
    int refusals;    /* in a row */
    int64_t kill_ns; /* 0: not yet decided */
    bool ready;
};

static struct {
    const char *cairn, *db; /* db: NULL on SQLite */
    char folder[512];
    struct node nodes[NODES_MAX];
    int node_count;
    struct client clients[CLIENTS];
    struct history h;
    struct live *live;
    size_t live_cap;
    size_t slots[SHARED_RUNS]; /* SIZE_MAX: empty */
    size_t retired[RETIRED_MAX];
    size_t retired_count;
    size_t contended; /* the newest start; SIZE_MAX */
    char plan_ref[1024];
    struct arena arena; /* of one answer */
    uint64_t rng;
    int epoll;
    int64_t ops, ops_max, kills, kills_min, answered_ns;
    int64_t lost, unseen, starts, duplicates, again, replayed;
    bool last; /* nobody is killed any more, nothing new is begun */
    char why[512];
} test;

__attribute__((format(printf, 1, 2))) static bool bad(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(test.why, sizeof(test.why), fmt, args);
    va_end(args);
    return false;
}

/* ---- runs and events ---- */

static size_t new_run(bool by_engine) {
    size_t run = history_add_run(
        &test.h,
        &(struct h_run){.by_engine = by_engine, .asked_ns = clock_mono_ns(), .told_ns = NEVER});
    test.live = history_more(test.live, &test.live_cap, run, sizeof(*test.live));
    test.live[run] = (struct live){0};
    if (!by_engine) snprintf(test.h.runs[run].id, RUN_ID_BYTES, "x-%zu", run);
    return run;
}

static void add_event(struct client *c, enum event_type type, int64_t number) {
    c->events[c->count++] =
        history_add_event(&test.h, &(struct h_event){.run = c->run,
                                                     .type = type,
                                                     .number = number,
                                                     .ids = {uuid_v4(), uuid_v4()},
                                                     .asked_ns = c->asked_ns,
                                                     .told_ns = NEVER});
    test.live[c->run].made++;
}

static void put_event(size_t index, int variant, struct buf *out) {
    const struct h_event *he = &test.h.events[index];
    char step[32];
    struct event e = {.run_id = str_c(test.h.runs[he->run].id),
                      .tenant_id = STR("tenant"),
                      .project_id = STR("p"),
                      .environment_id = STR("e"),
                      .plan_id = STR("plan"),
                      .plan_version = STR("1"),
                      .engine_attempt = 1,
                      .logical_attempt = 1,
                      .event_id = he->ids[variant],
                      .emitted_ns = 1771228800000000000 + (int64_t)index * 1000 + variant,
                      .emitted_digits = 9};
    struct error err = {0};
    snprintf(step, sizeof(step), "step-%lld", (long long)he->number);
    e.type_name = he->type == EVENT_UNKNOWN ? STR("StepPondered") : event_type_info(he->type)->name;
    if (he->type != EVENT_RUN_STARTED && he->type != EVENT_RUN_COMPLETED) e.subject = str_c(step);
    event_key_derive(&e, e.key);
    if (event_validate(&e, &err) != ST_OK) abort();
    event_write_json(&e, out);
}

/* ---- choosing what to do ---- */

static void begin(struct client *c, enum op_kind kind, size_t run) {
    c->kind = kind;
    c->run = run;
    c->count = 0;
    c->variant = 0;
    c->original = true;
    c->key[0] = 0;
    c->asked_ns = clock_mono_ns();
}

static void maybe_key(struct client *c, uint32_t percent) {
    if (random_chance(&test.rng, percent))
        snprintf(c->key, sizeof(c->key), "op-%016llx", (unsigned long long)random_next(&test.rng));
}

static bool choose_retired(struct client *c) {
    for (size_t i = 0; i < test.retired_count; i++) {
        size_t run = test.retired[i];
        if (test.live[run].busy > 0) continue;
        test.retired[i] = test.retired[--test.retired_count];
        begin(c, OP_APPEND, run);
        add_event(c, EVENT_RUN_COMPLETED, 0);
        return true;
    }
    return false;
}

/* Where a run to append to is, or is to be opened. */
static size_t *choose_slot(void) {
    size_t *slot = &test.slots[random_below(&test.rng, SHARED_RUNS)];
    if (*slot != SIZE_MAX && test.live[*slot].made >= RUN_EVENTS &&
        test.retired_count < RETIRED_MAX) {
        test.live[*slot].retired = true;
        test.retired[test.retired_count++] = *slot;
        *slot = SIZE_MAX;
    }
    return slot;
}

/* Steps begin and end in one batch, so that any order of batches is a legal one. */
static void fill_batch(struct client *c) {
    size_t n = 2 + random_below(&test.rng, BATCH_MAX - 1);
    while (c->count < n) {
        int64_t number = test.live[c->run].made + 1;
        bool pair = c->count + 2 <= n && random_chance(&test.rng, 60);
        add_event(c, pair ? EVENT_STEP_STARTED : EVENT_UNKNOWN, number);
        if (pair) add_event(c, EVENT_STEP_COMPLETED, number);
    }
}

static bool choose_append(struct client *c, bool batch) {
    if (choose_retired(c)) return true;
    size_t *slot = choose_slot();
    bool opens = *slot == SIZE_MAX;
    if (opens) *slot = new_run(false);
    struct live *l = &test.live[*slot];
    if (!opens && !l->open) return false;
    begin(c, OP_APPEND, *slot);
    maybe_key(c, 10);
    if (opens) {
        add_event(c, EVENT_RUN_STARTED, 0);
    } else if (batch) {
        fill_batch(c);
    } else if (l->started > 0 && random_chance(&test.rng, 50)) {
        int64_t number = l->started;
        l->started = 0;
        add_event(c, EVENT_STEP_COMPLETED, number);
    } else {
        add_event(c, random_chance(&test.rng, 50) ? EVENT_UNKNOWN : EVENT_STEP_STARTED,
                  l->made + 1);
    }
    return true;
}

/* The same event another time, perhaps under the other id, perhaps while the first is under way. */
static bool choose_duplicate(struct client *c) {
    size_t back = random_below(&test.rng, random_chance(&test.rng, 50) ? 40 : 4000) + 1;
    if (back > test.h.event_count) return false;
    size_t index = test.h.event_count - back;
    const struct h_event *e = &test.h.events[index];
    bool any_time =
        e->type == EVENT_UNKNOWN || e->type == EVENT_STEP_STARTED || e->type == EVENT_RUN_STARTED;
    if (!e->acknowledged && !(any_time && (e->type == EVENT_RUN_STARTED || test.live[e->run].open)))
        return false;
    begin(c, OP_APPEND, e->run);
    c->events[c->count++] = index;
    c->original = false;
    c->variant = (int)random_below(&test.rng, IDS_MAX);
    maybe_key(c, 10);
    return true;
}

static void choose_start(struct client *c) {
    size_t run = test.contended;
    if (run == SIZE_MAX || test.live[run].contenders >= CONTENDERS_MAX ||
        random_chance(&test.rng, 40)) {
        run = test.contended = new_run(true);
        test.live[run].keyed = random_chance(&test.rng, 40);
        if (!test.live[run].keyed) snprintf(test.h.runs[run].id, RUN_ID_BYTES, "s-%zu", run);
    }
    test.live[run].contenders++;
    begin(c, OP_START, run);
    c->chosen = !test.live[run].keyed;
    if (test.live[run].keyed)
        snprintf(c->key, sizeof(c->key), "start-%zu", run);
    else
        maybe_key(c, 30);
}

static bool choose_read(struct client *c, bool page) {
    size_t recent = test.h.run_count < 60 ? test.h.run_count : 60;
    if (recent == 0) return false;
    size_t run = test.h.run_count - 1 - random_below(&test.rng, (uint32_t)recent);
    if (random_chance(&test.rng, 60)) run = test.slots[random_below(&test.rng, SHARED_RUNS)];
    if (run == SIZE_MAX || !test.live[run].open) return false;
    begin(c, page ? OP_PAGE : OP_GET, run);
    c->after = 0;
    int64_t newest = test.live[run].acknowledged_seq;
    if (page && newest > 0 && random_chance(&test.rng, 80))
        c->after = newest - random_below(&test.rng, newest > 30 ? 30 : (uint32_t)newest);
    return true;
}

static void choose(struct client *c) {
    for (bool chosen = false; !chosen;) {
        uint32_t dice = random_below(&test.rng, 100);
        if (dice < 6) {
            choose_start(c);
            chosen = true;
        } else if (dice < 24) {
            chosen = choose_read(c, dice < 10);
        } else if (dice < 31) {
            chosen = choose_duplicate(c);
        } else {
            chosen = choose_append(c, dice < 39);
        }
    }
    if (c->kind == OP_APPEND) test.live[c->run].busy++;
    c->state = CLIENT_WAITS;
    c->wait_ns = 0;
}
