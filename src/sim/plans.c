/* sim/plans.c: random plans, as text, through the parser. */
#include "base/json.h"
#include "sim/impl.h"

struct drawing { /* one plan being made */
    struct world *w;
    struct buf text;
    uint32_t count;
    uint32_t place[STEPS_MAX]; /* of the n-th step in an order without cycles: its name */
};

static int64_t between(struct drawing *d, int64_t least, int64_t most) {
    return sim_rng_between(&d->w->rng, least, most);
}

static bool chance(struct drawing *d, int64_t per_mille) {
    return sim_rng_chance(&d->w->rng, per_mille);
}

static void put_retry(struct drawing *d) {
    int64_t initial = chance(d, 250) ? between(d, 5000, 45000) : between(d, 0, 3000);
    buf_printf(&d->text,
               ",\"retry\":{\"maxAttempts\":%lld,\"initialMs\":%lld,\"factor\":%lld,\"maxMs\":%lld",
               (long long)between(d, 1, 4), (long long)initial, (long long)between(d, 1, 3),
               (long long)initial + between(d, 0, 20000));
    if (chance(d, 300)) buf_printf(&d->text, ",\"jitter\":0.%lld", (long long)between(d, 1, 9));
    if (chance(d, 150)) buf_put_c(&d->text, ",\"nonRetryable\":[\"EXIT_CODE\"]");
    buf_put_char(&d->text, '}');
}

static void put_type(struct drawing *d, const uint32_t *deps, uint32_t dep_count) {
    struct buf *b = &d->text;
    int64_t kind = between(d, 0, 99);
    char value[64] = "";
    if (dep_count > 0)
        snprintf(value, sizeof(value), "{{ steps.s%u.output.v }}",
                 deps[between(d, 0, dep_count - 1)]);
    if (kind < 25) {
        buf_put_c(b, ",\"type\":\"noop\"");
    } else if (kind < 49) {
        buf_printf(b, ",\"type\":\"exec\",\"command\":[\"work\",\"v=%s\"]", value);
    } else if (kind < 53) {
        buf_printf(b, ",\"type\":\"http\",\"url\":\"http://example.test/v=%s\"", value);
    } else if (kind < 57) {
        buf_printf(b,
                   ",\"type\":\"effect\",\"effectType\":\"E%lld\",\"payload\":{\"text\":\"v=%s\"}",
                   (long long)between(d, 1, 2), value);
        if (chance(d, 500)) buf_put_c(b, ",\"wait\":true");
    } else if (kind < 75) {
        buf_printf(b, ",\"type\":\"task\",\"queue\":\"q%lld\",\"input\":\"v=%s\"",
                   (long long)between(d, 1, 2), value);
    } else if (kind < 85) {
        buf_printf(b, ",\"type\":\"sleep\",\"durationMs\":%lld",
                   (long long)(chance(d, 300) ? between(d, 0, 90000) : between(d, 0, 5000)));
    } else if (kind < 92) {
        buf_printf(b, ",\"type\":\"wait\",\"signal\":\"go%lld\"", (long long)between(d, 1, 3));
        if (chance(d, 350))
            buf_printf(b, ",\"expiresInMs\":%lld", (long long)between(d, 100, 60000));
    } else {
        buf_put_c(b, ",\"type\":\"approval\"");
        if (chance(d, 350))
            buf_printf(b, ",\"expiresInMs\":%lld", (long long)between(d, 100, 60000));
    }
}

static void put_step(struct drawing *d, uint32_t n) {
    static const char *const on_failure[] = {"fail", "continue", "skipDependents"};
    static const char *const conditions[] = {"== 'SUCCESS'", "!= 'FAILED'", "== 'SKIPPED'",
                                             "!= 'SUCCESS'"};
    struct buf *b = &d->text;
    uint32_t deps[4];
    uint32_t dep_count = 0;
    uint32_t wanted = (uint32_t)between(d, 0, 3);
    for (uint32_t tries = 0; n > 0 && tries < wanted; tries++) {
        uint32_t dep = d->place[between(d, n > 6 && chance(d, 700) ? n - 6 : 0, n - 1)];
        bool twice = false;
        for (uint32_t i = 0; i < dep_count; i++)
            twice = twice || deps[i] == dep;
        if (!twice) deps[dep_count++] = dep;
    }
    buf_printf(b, "%s{\"stepId\":\"s%u\"", b->ptr[b->len - 1] == '[' ? "" : ",", d->place[n]);
    put_type(d, deps, dep_count);
    for (uint32_t i = 0; i < dep_count; i++)
        buf_printf(b, "%s\"s%u\"%s", i == 0 ? ",\"dependsOn\":[" : ",", deps[i],
                   i + 1 == dep_count ? "]" : "");
    if (chance(d, 500)) put_retry(d);
    if (chance(d, 200)) buf_printf(b, ",\"timeoutMs\":%lld", (long long)between(d, 100, 60000));
    if (chance(d, 600)) buf_printf(b, ",\"onFailure\":\"%s\"", on_failure[between(d, 0, 2)]);
    if (dep_count > 0 && chance(d, 200))
        buf_printf(b, ",\"runIf\":\"steps.s%u.state %s\"", deps[between(d, 0, dep_count - 1)],
                   conditions[between(d, 0, 3)]);
    buf_put_char(b, '}');
}

/* Steps are written in any order: what waits for what is not where it stands. */
static void put_steps(struct drawing *d) {
    struct buf whole = d->text;
    struct buf pieces[STEPS_MAX];
    uint32_t order[STEPS_MAX];
    const uint32_t count = d->count;
    for (uint32_t i = 0; i < count; i++) {
        buf_init(&d->text, 4096);
        buf_put_char(&d->text, '[');
        put_step(d, i);
        pieces[i] = d->text;
        order[i] = i;
    }
    d->text = whole;
    for (uint32_t i = count; i > 1 && chance(d, 700); i--) {
        uint32_t k = (uint32_t)between(d, 0, i - 1);
        uint32_t swap = order[i - 1];
        order[i - 1] = order[k];
        order[k] = swap;
    }
    for (uint32_t i = 0; i < count; i++) {
        str piece = str_from(buf_str(&pieces[order[i]]), 1);
        if (i > 0) buf_put_char(&d->text, ',');
        buf_put(&d->text, piece);
    }
    for (uint32_t i = 0; i < count; i++)
        buf_release(&pieces[i]);
}

static void make_plan(struct world *w, struct sim_plan *out, uint32_t index) {
    struct drawing d = {.w = w};
    struct error err = {0};
    struct plan *plan = NULL;
    struct plan_problems *problems = ARENA_NEW(&w->scratch, struct plan_problems);
    char hex[SHA256_HEX_LEN];
    d.count = (uint32_t)(chance(&d, 600) ? between(&d, 1, 8) : between(&d, 1, STEPS_MAX));
    for (uint32_t i = 0; i < d.count; i++)
        d.place[i] = i;
    buf_init(&d.text, (size_t)256 * 1024);
    buf_printf(&d.text,
               "{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"p%u\","
               "\"planVersion\":\"1\"}",
               index + 1);
    if (chance(&d, 700)) buf_printf(&d.text, ",\"concurrency\":%lld", (long long)between(&d, 1, 5));
    buf_put_c(&d.text, ",\"steps\":[");
    put_steps(&d);
    buf_put_c(&d.text, "]}");
    status st = plan_parse(buf_str(&d.text), &w->arena, &plan, problems, &err);
    if (st != ST_OK) sim_world_break(w, "plans-parse", "%s: %s", err.where, err.msg);
    ASSERT(st == ST_OK);
    if (w->trace) fprintf(w->trace, "plan %u: %.*s\n", index, STR_ARG(buf_str(&d.text)));
    buf_release(&d.text);
    arena_reset(&w->scratch);
    hex_encode(plan->sha256, SHA256_LEN, hex);
    struct buf uri;
    buf_init(&uri, 128);
    buf_printf(&uri, "plan:sha256:%.*s", SHA256_HEX_LEN, hex);
    *out = (struct sim_plan){.plan = plan,
                             .ref = {.uri = arena_str(&w->arena, buf_str(&uri)),
                                     .schema_version = plan->schema_version,
                                     .plan_id = plan->plan_id,
                                     .plan_version = plan->plan_version,
                                     .size_bytes = -1}};
    memcpy(out->ref.sha256, plan->sha256, SHA256_LEN);
    buf_release(&uri);
}

void sim_plans_make(struct world *w) {
    w->plan_count = (uint32_t)sim_rng_between(&w->rng, 1, PLANS_MAX);
    for (uint32_t i = 0; i < w->plan_count; i++)
        make_plan(w, &w->plans[i], i);
}
