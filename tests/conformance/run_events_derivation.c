/* Run Events 3.1, rule by rule, and 6: what takes part in the key, what does not, and that every
 * departure is seen. */
#include "conformance/fixture.h"

#include "base/hash.h"

static struct event base(void) {
    struct event e = {.type = EVENT_STEP_STARTED,
                      .type_name = STR("StepStarted"),
                      .run_id = STR("0d3c6a9e-4f0c-4a8e-9d5d-3d4c0f7dbb8a"),
                      .tenant_id = STR("acme"),
                      .project_id = STR("shop"),
                      .environment_id = STR("prod"),
                      .plan_id = STR("plan_abc"),
                      .plan_version = STR("2"),
                      .subject = STR("model.orders"),
                      .engine_attempt = 1,
                      .logical_attempt = 1};
    return e;
}

/* What vector 1 hashes to. */
static const char vector_1[] = "7f4b974658a54fb2aee9ecb9cefebd2eec27f3fd01f0f8c0d031dfc4a5b96e3c";

struct hex {
    char text[SHA256_HEX_LEN + 1];
};

static struct hex hex_of(str bytes) {
    uint8_t digest[SHA256_LEN];
    struct hex h;
    sha256_of(bytes, digest);
    hex_encode(digest, SHA256_LEN, h.text);
    h.text[SHA256_HEX_LEN] = '\0';
    return h;
}

static struct hex key_of(struct event e) {
    uint8_t digest[SHA256_LEN];
    struct hex h;
    event_key_derive(&e, digest);
    hex_encode(digest, SHA256_LEN, h.text);
    h.text[SHA256_HEX_LEN] = '\0';
    return h;
}

static bool same(struct hex a, struct hex b) { return strcmp(a.text, b.text) == 0; }

/* The second and third field of the preimage. */
static bool preimage_has(const struct event *e, const char *part) {
    char mem[2048];
    struct buf b;
    buf_init_fixed(&b, mem, sizeof mem);
    event_key_preimage(e, &b);
    return text_has(buf_str(&b), part);
}

/* RE-3.1-3: the order of the fields counts. RE-3.1-5: so does the delimiter, one byte without
 * blanks. */
TEST(run_events_key_order_and_delimiter) {
    struct hex ours = key_of(base());
    CHECK(strcmp(ours.text, vector_1) == 0);
    struct hex swapped =
        hex_of(STR("0d3c6a9e-4f0c-4a8e-9d5d-3d4c0f7dbb8a|model.orders|1|StepStarted|2|plan_abc"));
    CHECK(!same(swapped, ours));
    struct hex blanks = hex_of(STR(
        "0d3c6a9e-4f0c-4a8e-9d5d-3d4c0f7dbb8a | model.orders | 1 | StepStarted | plan_abc | 2"));
    CHECK(!same(blanks, ours));
    struct hex bars =
        hex_of(STR("0d3c6a9e-4f0c-4a8e-9d5d-3d4c0f7dbb8a|model.orders|1|StepStarted|plan_abc|2"));
    CHECK(same(bars, ours));
}

/* RE-3.1-6: the preimage is UTF-8, and what is not UTF-8 is refused. The digest is sha256sum's. */
TEST_DB(run_events_key_is_over_utf8) {
    struct event e = base();
    e.subject = STR("\xC3\xA9");
    CHECK(strcmp(key_of(e).text,
                 "876a78c3a27483fe42859c83c1fa6becb54516c8bbe32ad39d9c7a4034cd3978") == 0,
          "%s", key_of(e).text);
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    struct error err = {0};
    struct event good = fixture_event("StepStarted", "r", "x", 1);
    CHECK(fixture_put_json(&c, fixture_edit(&c, &good, "stepId", "\"\xE9\""), &err) == ST_INVALID);
    CHECK(err.reason == REASON_JSON_UTF8 && fixture_event_count(&c) == 0, "%s",
          reason_name(err.reason));
    fixture_close(&c);
}

/* RE-3.1-7: verbatim: case, blanks and composition all make another key. */
TEST(run_events_key_takes_text_verbatim) {
    static const str steps[] = {STR_LIT("A"), STR_LIT("a"), STR_LIT("a "), STR_LIT("\xC3\xA9"),
                                STR_LIT("e\xCC\x81")};
    struct hex keys[COUNT_OF(steps)];
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        struct event e = base();
        e.subject = steps[i];
        keys[i] = key_of(e);
        for (size_t k = 0; k < i; k++)
            CHECK(!same(keys[i], keys[k]), "%zu and %zu", i, k);
    }
}

/* RE-3.1-8: attempts in decimal, without zeros in front. */
TEST(run_events_key_renders_attempts_in_decimal) {
    static const struct {
        int64_t attempt;
        const char *field;
    } cases[] = {{0, "|model.orders|0|StepStarted|"},
                 {7, "|model.orders|7|StepStarted|"},
                 {10, "|model.orders|10|StepStarted|"},
                 {4294967296, "|model.orders|4294967296|StepStarted|"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct event e = base();
        e.logical_attempt = cases[i].attempt;
        CHECK(preimage_has(&e, cases[i].field), "%s", cases[i].field);
    }
}

/* RE-3.1-9: the second field is the stepId at step level. RE-3.1-10: and RUN at run level. */
TEST(run_events_key_normalises_the_step) {
    struct event step = base();
    CHECK(preimage_has(&step, "0f7dbb8a|model.orders|1|StepStarted|"));
    struct event run = base();
    run.type = EVENT_RUN_STARTED;
    run.type_name = STR("RunStarted");
    run.subject = STR_NONE;
    CHECK(preimage_has(&run, "0f7dbb8a|RUN|1|RunStarted|"));
}

/* RE-3.1-11, RE-3.3-8: tenant, project, environment and engine attempt never change the key. */
TEST(run_events_key_ignores_the_forbidden_fields) {
    struct hex want = key_of(base());
    for (int i = 0; i < 1000; i++) {
        char text[3][UUID_TEXT_LEN];
        for (int k = 0; k < 3; k++)
            uuid_format(uuid_v4(), text[k]);
        struct event e = base();
        if (i % 4 == 0 || i > 500) e.tenant_id = str_n(text[0], (size_t)(1 + i % UUID_TEXT_LEN));
        if (i % 4 == 1 || i > 500) e.project_id = str_n(text[1], (size_t)(1 + i % UUID_TEXT_LEN));
        if (i % 4 == 2 || i > 500)
            e.environment_id = str_n(text[2], (size_t)(1 + i % UUID_TEXT_LEN));
        if (i % 4 == 3 || i > 500) random_bytes(&e.engine_attempt, sizeof e.engine_attempt);
        CHECK(same(key_of(e), want), "round %d", i);
    }
}

/* RE-3.1-12: planId and planVersion do; so do the other four fields. RE-3.1-16: 64 lower-case
 * hexadecimal digits. */
TEST(run_events_key_depends_on_each_of_its_fields) {
    struct event changed[6];
    for (size_t i = 0; i < COUNT_OF(changed); i++)
        changed[i] = base();
    changed[0].plan_id = STR("plan_abd");
    changed[1].plan_version = STR("3");
    changed[2].run_id = STR("0d3c6a9e-4f0c-4a8e-9d5d-3d4c0f7dbb8b");
    changed[3].subject = STR("model.order");
    changed[4].logical_attempt = 2;
    changed[5].type = EVENT_STEP_FAILED;
    changed[5].type_name = STR("StepFailed");
    for (size_t i = 0; i < COUNT_OF(changed); i++) {
        struct hex key = key_of(changed[i]);
        CHECK(strcmp(key.text, vector_1) != 0, "change %zu", i);
        CHECK(strlen(key.text) == 64 && strspn(key.text, "0123456789abcdef") == 64, "%s", key.text);
    }
}

/* RE-3.1-13: no '|' in runId, eventType, planId, planVersion. RE-3.1-14: nor in stepId. Nothing is
 * stored. */
TEST_DB(run_events_delimiter_is_refused_in_fields) {
    static const char *const members[] = {"runId", "eventType", "planId", "planVersion", "stepId"};
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_RECORD);
    struct event e = fixture_event("StepStarted", "r", "a", 1);
    for (size_t i = 0; i < COUNT_OF(members); i++) {
        struct error err = {0};
        char where[32];
        snprintf(where, sizeof where, "/%s", members[i]);
        CHECK(fixture_put_json(&c, fixture_edit(&c, &e, members[i], "\"a|b\""), &err) ==
              ST_INVALID);
        CHECK(err.reason == REASON_DELIMITER_IN_FIELD && strcmp(err.where, where) == 0, "%s",
              err.msg);
    }
    CHECK(fixture_event_count(&c) == 0);
    fixture_close(&c);
}

/* ---- mutants ---- */

struct fields {
    str run, step, attempt, type, plan, version, tenant;
    bool step_level;
};

static void join(struct buf *out, const str *parts, size_t count, const char *delimiter) {
    for (size_t i = 0; i < count; i++) {
        if (i > 0) buf_put_c(out, delimiter);
        buf_put(out, parts[i]);
    }
}

static void normal(const struct fields *f, struct buf *out) {
    str parts[] = {f->run, f->step, f->attempt, f->type, f->plan, f->version};
    join(out, parts, COUNT_OF(parts), "|");
}
static void order(const struct fields *f, struct buf *out) {
    str parts[] = {f->step, f->run, f->attempt, f->type, f->plan, f->version};
    join(out, parts, COUNT_OF(parts), "|");
}
static void delimiter(const struct fields *f, struct buf *out) {
    str parts[] = {f->run, f->step, f->attempt, f->type, f->plan, f->version};
    join(out, parts, COUNT_OF(parts), ":");
}
static void encoding(const struct fields *f, struct buf *out) { /* UTF-16, big end first */
    struct buf utf8;
    buf_init(&utf8, 4096);
    normal(f, &utf8);
    for (size_t i = 0; i < utf8.len; i++) {
        buf_put_char(out, '\0');
        buf_put_char(out, utf8.ptr[i]);
    }
    buf_release(&utf8);
}
static void normalisation(const struct fields *f, struct buf *out) { /* run level as "" */
    str parts[] = {f->run,    f->step_level ? f->step : STR(""), f->attempt, f->type, f->plan,
                   f->version};
    join(out, parts, COUNT_OF(parts), "|");
}
static void field_set(const struct fields *f, struct buf *out) {
    str parts[] = {f->run, f->step, f->attempt, f->type, f->plan, f->version, f->tenant};
    join(out, parts, COUNT_OF(parts), "|");
}

/* How many of the given five vectors a derivation gets right; `sha1`: with the wrong algorithm. */
static int vectors_right(struct fixture *c, void (*derive)(const struct fields *, struct buf *),
                         bool sha1) {
    int right = 0;
    yyjson_val *all = fixture_json(c, fixture_file(c, VECTORS_FILE));
    for (size_t i = 0; i < 5; i++) {
        yyjson_val *v = yyjson_arr_get(all, i);
        struct fields f = {.attempt = json_text(json_member(v, "logicalAttemptId"), &c->arena),
                           .tenant = STR("acme"),
                           .step_level = json_member(v, "stepId") != NULL};
        str want;
        CHECK(json_str(json_member(v, "runId"), &f.run) &&
              json_str(json_member(v, "stepIdNormalized"), &f.step));
        CHECK(json_str(json_member(v, "eventType"), &f.type) &&
              json_str(json_member(v, "planId"), &f.plan));
        CHECK(json_str(json_member(v, "planVersion"), &f.version));
        CHECK(json_str(json_member(v, "expectedSha256Hex"), &want));
        struct buf preimage;
        buf_init(&preimage, 8192);
        derive(&f, &preimage);
        uint8_t digest[SHA256_LEN] = {0};
        if (sha1)
            sha1_of(buf_str(&preimage), STR(""), digest);
        else
            sha256_of(buf_str(&preimage), digest);
        char hex[SHA256_HEX_LEN];
        hex_encode(digest, SHA256_LEN, hex);
        right += str_eq(str_n(hex, sizeof hex), want);
        buf_release(&preimage);
    }
    return right;
}

/* RE-3.1-15: a derivation with another order, delimiter, encoding, algorithm, normalisation or
 * field set fails the vectors; RE-6-1: the rules as 2.0.0 states them, written down here once more,
 * pass them, so its keys stay good. */
TEST(run_events_every_mutant_of_the_derivation_is_caught) {
    static const struct {
        const char *aspect;
        void (*derive)(const struct fields *, struct buf *);
        bool sha1;
    } mutants[] = {{"order", order, false},
                   {"delimiter", delimiter, false},
                   {"encoding", encoding, false},
                   {"algorithm", normal, true},
                   {"normalisation", normalisation, false},
                   {"field set", field_set, false}};
    struct fixture c = {0}; /* its arena is all that is needed */
    arena_init(&c.arena, 4096, (size_t)16 << 20);
    CHECK(vectors_right(&c, normal, false) == 5, "the rules of 2.0.0");
    for (size_t i = 0; i < COUNT_OF(mutants); i++)
        CHECK(vectors_right(&c, mutants[i].derive, mutants[i].sha1) < 5, "%s", mutants[i].aspect);
    arena_release(&c.arena);
}
