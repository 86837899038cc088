#include "model/program.h"

#include "base/buf.h"
#include "base/uuid.h"
#include "model/random.h"

/* ---- the vocabulary ---- */

enum level { LEVEL_RUN, LEVEL_STEP, LEVEL_SIGNAL, LEVEL_TOOL };
static const struct {
    const char *name;
    enum level level;
    enum event_type fact;
    uint8_t weight;
} types[] = {
    {"RunQueued", LEVEL_RUN, 0, 3},
    {"RunApproved", LEVEL_RUN, 0, 2},
    {"RunStarted", LEVEL_RUN, 0, 8},
    {"RunPaused", LEVEL_RUN, 0, 4},
    {"RunResumed", LEVEL_RUN, 0, 4},
    {"RunCompleted", LEVEL_RUN, 0, 2},
    {"RunFailed", LEVEL_RUN, 0, 1},
    {"RunCancelled", LEVEL_RUN, 0, 1},
    {"RunProviderLinked", LEVEL_RUN, 0, 3},
    {"RunTeleported", LEVEL_RUN, 0, 3}, /* unknown to everyone */
    {"SignalAccepted", LEVEL_RUN, 0, 1},
    {"StepStarted", LEVEL_STEP, 0, 16},
    {"StepCompleted", LEVEL_STEP, 0, 9},
    {"StepFailed", LEVEL_STEP, 0, 9},
    {"StepSkipped", LEVEL_STEP, 0, 4},
    {"StepRetried", LEVEL_STEP, 0, 2},
    {"StepCorrected", LEVEL_STEP, 0, 4},
    {"StepPondered", LEVEL_STEP, 0, 3}, /* unknown, with a step */
    {"SignalReceived", LEVEL_SIGNAL, EVENT_SIGNAL_RECEIVED, 2},
    {"SignalProcessed", LEVEL_SIGNAL, EVENT_SIGNAL_PROCESSED, 2},
    {"ToolCalled", LEVEL_TOOL, EVENT_TOOL_CALLED, 2},
};
static const char *const steps[] = {"extract", "lade \xc3\xbc\xe2\x82\xac", "RUN"};
/* An unknown type may not use the step id "RUN". */
enum { STEPS_SAFE = 2 };
static const char *const payloads[] = {
    NULL,
    "{}",
    "{\"output\":{\"rows\":3}}",
    "{\"text\":\"\xf0\x9f\xaa\xa8 \\u0001\",\"n\":1e400,\"deep\":[[[{}]]]}",
    "{\"provider\":\"temporal\",\"workflowId\":\"w\",\"providerRunId\":\"one\"}",
    "{\"provider\":\"temporal\",\"workflowId\":\"w\",\"providerRunId\":\"two\"}"};
enum { PAYLOADS_PLAIN = 4 }; /* the others are provider references */
static const char *const actors[] = {NULL, "user:ada", "engine"};

static uint8_t random_type(uint64_t *rng) {
    uint32_t sum = 0;
    for (size_t i = 0; i < COUNT_OF(types); i++)
        sum += types[i].weight;
    uint32_t at = random_below(rng, sum);
    uint8_t type = 0;
    while (at >= types[type].weight)
        at -= types[type++].weight;
    return type;
}

/* ---- making a program ---- */

/* Mostly a plausible next event: few runs, few steps, low attempts, so that programs reach the
 * deeper states. */
static void random_event(uint64_t *rng, const struct op *ops, size_t count, uint16_t *next_id,
                         struct op *op) {
    op->kind = OP_EVENT;
    op->run = (uint8_t)random_below(rng, PROGRAM_RUNS);
    op->tenant = random_chance(rng, 96) ? op->run % 2 : (uint8_t)random_below(rng, PROGRAM_TENANTS);
    op->type = random_type(rng);
    op->step = (uint8_t)random_below(rng, random_chance(rng, 85) ? STEPS_SAFE : COUNT_OF(steps));
    op->attempt = (uint8_t)(random_chance(rng, 60) ? 1 : 1 + random_below(rng, 3));
    op->engine_attempt = (uint8_t)(random_chance(rng, 90) ? 1 : 2 + random_below(rng, 3));
    op->plan = random_chance(rng, 95) ? 0 : 1;
    op->project = random_chance(rng, 97) ? 0 : 1;
    op->environment = random_chance(rng, 97) ? 0 : 1;
    bool link = strcmp(types[op->type].name, "RunProviderLinked") == 0 && random_chance(rng, 85);
    op->payload =
        (uint8_t)(link ? PAYLOADS_PLAIN + random_below(rng, COUNT_OF(payloads) - PAYLOADS_PLAIN)
                       : random_below(rng, PAYLOADS_PLAIN));
    op->actor = (uint8_t)random_below(rng, COUNT_OF(actors));
    op->correlation = (uint8_t)random_below(rng, 3);
    op->signal = (uint8_t)random_below(rng, 3);
    op->id = (*next_id)++;
    if (random_chance(rng, 4) && op->id > 0) op->id = (uint16_t)random_below(rng, op->id);
    if (random_chance(rng, 15)) op->cause = (uint16_t)(1 + random_below(rng, (uint32_t)op->id + 2));
    if (count == 0 || !random_chance(rng, 15)) return;

    /* A retry of something sent before: the same key, perhaps another id, payload or project. */
    const struct op *old = &ops[random_below(rng, (uint32_t)count)];
    if (old->kind != OP_EVENT) return;
    struct op fresh = *op;
    *op = *old;
    if (random_chance(rng, 50)) op->id = fresh.id;
    if (random_chance(rng, 50)) op->payload = fresh.payload;
    if (random_chance(rng, 10)) op->project = fresh.project;
    if (random_chance(rng, 10)) op->cause = fresh.cause;
}

static void random_batching(uint64_t *rng, uint32_t joins_percent, struct op *op) {
    op->joins_group = random_chance(rng, joins_percent);
    op->joins_request = op->joins_group && random_chance(rng, 70);
    op->atomic = random_chance(rng, 40);
    op->node = (uint8_t)random_below(rng, 2);
    op->clock_us = random_chance(rng, 90) ? (int32_t)random_below(rng, 2000)
                                          : -(int32_t)random_below(rng, 5000000);
}

void program_make(uint64_t seed, struct program *out) {
    uint64_t rng = seed;
    uint16_t next_id = 0;
    uint32_t joins_percent = 40 + random_below(&rng, 60);
    *out = (struct program){.seed = seed, .count = 5 + random_below(&rng, PROGRAM_OPS_MAX - 8)};
    /* Twenty programs in a row agree on it, because a change means reopening the ledger. */
    out->validation = seed / 20 % 5 < 3 ? LEDGER_REJECT : LEDGER_RECORD;
    for (size_t i = 0; i < out->count; i++) {
        struct op *op = &out->ops[i];
        uint32_t pick = random_below(&rng, 100);
        random_event(&rng, out->ops, i, &next_id, op);
        random_batching(&rng, joins_percent, op);
        if (pick < 3)
            op->kind = OP_CHECKPOINT;
        else if (pick < 5)
            op->kind = OP_REOPEN;
        else if (pick < 6)
            op->kind = OP_REBUILD;
        else if (pick < 7)
            op->kind = OP_COMPARE;
        else if (pick < 9)
            op->kind = OP_ARCHIVE;
        op->validation = random_chance(&rng, 80) ? out->validation : LEDGER_RECORD;
    }
}

/* ---- one execution ---- */

static str made_text(struct arena *arena, const char *name, unsigned number, int64_t salt) {
    char mem[64];
    struct buf b;
    buf_init_fixed(&b, mem, sizeof(mem));
    buf_printf(&b, "%s-%u-%lld", name, number, (long long)salt);
    ASSERT(!b.full);
    return arena_str(arena, buf_str(&b));
}

str program_run_id(unsigned run, int64_t salt, struct arena *arena) {
    return made_text(arena, "run", run, salt);
}
str program_tenant_id(unsigned tenant, int64_t salt, struct arena *arena) {
    return made_text(arena, "tenant", tenant, salt);
}

/* A UUID v4 that is the same whenever the same number of the same execution is asked for. */
static uuid made_uuid(uint32_t number, int64_t salt) {
    uint64_t rng = ((uint64_t)salt << 20) ^ number ^ 0x5eed0000000000U;
    uuid u;
    for (int i = 0; i < 16; i += 8) {
        uint64_t bits = random_next(&rng);
        memcpy(u.b + i, &bits, 8);
    }
    u.b[6] = (uint8_t)((u.b[6] & 0x0f) | 0x40);
    u.b[8] = (uint8_t)((u.b[8] & 0x3f) | 0x80);
    return u;
}

static const uuid *kept_uuid(uint32_t number, int64_t salt, struct arena *arena) {
    uuid *u = ARENA_NEW(arena, uuid);
    *u = made_uuid(number, salt);
    return u;
}

static str kept_uuid_text(uint32_t number, int64_t salt, struct arena *arena) {
    char text[UUID_TEXT_LEN];
    uuid_format(made_uuid(number, salt), text);
    return arena_str(arena, str_n(text, sizeof(text)));
}

static str subject_of(const struct op *op, int64_t salt, struct arena *arena) {
    bool may_be_run = types[op->type].level == LEVEL_TOOL ||
                      str_eq(str_c(types[op->type].name), STR("StepStarted"));
    switch (types[op->type].level) {
    case LEVEL_RUN:
        return STR_NONE;
    case LEVEL_SIGNAL:
        return kept_uuid_text(0x20000U + op->step, salt, arena);
    case LEVEL_STEP:
    case LEVEL_TOOL:
        return str_c(steps[may_be_run ? op->step : op->step % STEPS_SAFE]);
    }
    return STR_NONE;
}

static void fill_event(const struct op *op, int64_t salt, struct arena *arena, struct event *e) {
    *e = (struct event){.type_name = str_c(types[op->type].name),
                        .run_id = program_run_id(op->run, salt, arena),
                        .tenant_id = program_tenant_id(op->tenant, salt, arena),
                        .project_id = op->project ? STR("other|project") : STR("project"),
                        .environment_id = op->environment ? STR("test") : STR("production"),
                        .plan_id = STR("plan"),
                        .plan_version = op->plan ? STR("2") : STR("1"),
                        .subject = subject_of(op, salt, arena),
                        .engine_attempt = op->engine_attempt,
                        .logical_attempt = op->attempt,
                        .event_id = made_uuid(op->id, salt),
                        .emitted_ns = 1771228800000000000 + (int64_t)op->id * 1000,
                        .emitted_digits = 6,
                        .payload = str_c(payloads[op->payload])};
}

void program_item(const struct op *op, int64_t salt, struct arena *arena, struct append_item *out) {
    struct error err = {0};
    *out = (struct append_item){.actor = str_c(actors[op->actor])};
    fill_event(op, salt, arena, &out->event);
    status st;
    if (types[op->type].fact) {
        struct event ids = out->event;
        str data = ids.payload.ptr ? ids.payload : STR("{}");
        st = ledger_fact(&ids, types[op->type].fact, ids.subject, op->attempt, data, out, &err);
        out->event.event_id = ids.event_id; /* the ledger's own choice and clock would not repeat */
        out->event.emitted_ns = ids.emitted_ns;
    } else {
        event_key_derive(&out->event, out->event.key);
        st = event_validate(&out->event, &err);
    }
    ASSERT(st == ST_OK); /* programs break the rules of the ledger, not those of the envelope */
    if (op->cause > 0) out->cause = kept_uuid(op->cause - 1U, salt, arena);
    if (op->correlation > 0) out->correlation = kept_uuid(0x30000U + op->correlation, salt, arena);
    if (op->signal > 0) out->signal = kept_uuid(0x40000U + op->signal, salt, arena);
}

/* ---- showing ---- */

static void print_event(const struct op *op, struct buf *out) {
    buf_put_c(out, op->joins_request ? "      and " : op->joins_group ? "    with " : "  append ");
    if (!op->joins_request && op->atomic) buf_put_c(out, "atomic ");
    buf_printf(out, "%s tenant=%u run=%u", types[op->type].name, op->tenant, op->run);
    if (types[op->type].level != LEVEL_RUN) buf_printf(out, " step=%u", op->step);
    buf_printf(out, " attempt=%u id=%u", op->attempt, op->id);
    if (op->engine_attempt > 1) buf_printf(out, " engineAttempt=%u", op->engine_attempt);
    if (op->plan) buf_printf(out, " plan=%u", op->plan);
    if (op->project) buf_printf(out, " project=%u", op->project);
    if (op->environment) buf_printf(out, " environment=%u", op->environment);
    if (op->payload) buf_printf(out, " payload=%u", op->payload);
    if (op->cause) buf_printf(out, " cause=%u", op->cause - 1U);
    if (op->actor) buf_printf(out, " actor=%u", op->actor);
    if (op->correlation) buf_printf(out, " correlation=%u", op->correlation);
    if (op->signal) buf_printf(out, " signal=%u", op->signal);
    if (!op->joins_group) buf_printf(out, " node=%u clock%+d", op->node, op->clock_us);
}

void program_print(const struct program *p, struct buf *out) {
    buf_printf(out, "seed %llu, %s invalid events\n", (unsigned long long)p->seed,
               p->validation == LEDGER_REJECT ? "rejecting" : "recording");
    for (size_t i = 0; i < p->count; i++) {
        const struct op *op = &p->ops[i];
        switch (op->kind) {
        case OP_EVENT:
            print_event(op, out);
            break;
        case OP_REOPEN:
            buf_printf(out, "  reopen node=%u, %s", op->node,
                       op->validation == LEDGER_REJECT ? "rejecting" : "recording");
            break;
        case OP_REBUILD:
            buf_put_c(out, "  rebuild");
            break;
        case OP_ARCHIVE:
            buf_printf(out, "  archive node=%u", op->node);
            break;
        case OP_CHECKPOINT:
            buf_printf(out, "  checkpoint run=%u node=%u clock%+d", op->run, op->node,
                       op->clock_us);
            break;
        case OP_COMPARE:
            buf_put_c(out, "  compare");
            break;
        }
        buf_put_char(out, '\n');
    }
}
