/* Run Events 3.1, 3.3, 6 and appendix B: the idempotency key, against the golden vectors. */
#include "conformance/fixture.h"

#include "base/hash.h"
#include "base/os.h"

/* ---- the vectors ---- */

enum { VECTORS_MAX = 64 };
struct vector {
    str name, run_id, step_id, normalized, type, plan_id, plan_version, preimage, digest;
    int64_t attempt;
};
struct vectors {
    struct arena arena;
    struct vector v[VECTORS_MAX];
    size_t count;
};

static str text_member(yyjson_val *obj, const char *name) {
    str text;
    CHECK(json_str(json_member(obj, name), &text), "\"%s\" is missing or no string", name);
    return text;
}

static struct vector read_vector(yyjson_val *obj) {
    struct vector v = {.name = text_member(obj, "name"),
                       .run_id = text_member(obj, "runId"),
                       .normalized = text_member(obj, "stepIdNormalized"),
                       .type = text_member(obj, "eventType"),
                       .plan_id = text_member(obj, "planId"),
                       .plan_version = text_member(obj, "planVersion"),
                       .preimage = text_member(obj, "preimage"),
                       .digest = text_member(obj, "expectedSha256Hex")};
    CHECK(json_int(json_member(obj, "logicalAttemptId"), &v.attempt), "%.*s", STR_ARG(v.name));
    bool step_level = json_member(obj, "stepId") != NULL;
    if (step_level) v.step_id = text_member(obj, "stepId");
    CHECK(yyjson_obj_size(obj) == (step_level ? 10 : 9), "%.*s: surplus members", STR_ARG(v.name));
    return v;
}

static void vectors_open(struct vectors *all) {
    *all = (struct vectors){0};
    arena_init(&all->arena, 4096, (size_t)16 << 20);
    struct error err = {0};
    str text;
    yyjson_val *root = NULL;
    struct json_limits limits = {(size_t)1 << 20, 8};
    CHECK(file_read(STR(VECTORS_FILE), limits.bytes_max, &all->arena, &text, &err) == ST_OK, "%s",
          err.msg);
    CHECK(json_parse(text, limits, &all->arena, &root, &err) == ST_OK, "%s", err.msg);
    CHECK(yyjson_is_arr(root) && yyjson_arr_size(root) <= VECTORS_MAX);
    yyjson_arr_iter it = yyjson_arr_iter_with(root);
    for (yyjson_val *obj = yyjson_arr_iter_next(&it); obj; obj = yyjson_arr_iter_next(&it))
        all->v[all->count++] = read_vector(obj);
}

static void vectors_close(struct vectors *all) { arena_release(&all->arena); }

static struct event event_of(const struct vector *v) {
    return (struct event){.type = event_type_of(v->type),
                          .type_name = v->type,
                          .run_id = v->run_id,
                          .plan_id = v->plan_id,
                          .plan_version = v->plan_version,
                          .subject = v->step_id,
                          .logical_attempt = v->attempt,
                          .engine_attempt = 1,
                          .tenant_id = STR("t"),
                          .project_id = STR("p"),
                          .environment_id = STR("e")};
}

static void preimage_of(const struct event *e, struct buf *out) {
    buf_init(out, 4096);
    event_key_preimage(e, out);
    CHECK(!out->full);
}

static bool key_is(const struct event *e, str hex) {
    uint8_t key[SHA256_LEN];
    char text[SHA256_HEX_LEN];
    event_key_derive(e, key);
    hex_encode(key, SHA256_LEN, text);
    return str_eq(str_n(text, sizeof text), hex);
}

/* RE-3.1-1, RE-3.3-5, RE-3.3-7: preimage byte for byte, digest digit by digit, for every vector. */
TEST(run_events_vectors_hold) {
    struct vectors all;
    vectors_open(&all);
    for (size_t i = 0; i < all.count; i++) {
        struct event e = event_of(&all.v[i]);
        struct buf preimage;
        preimage_of(&e, &preimage);
        CHECK(str_eq(buf_str(&preimage), all.v[i].preimage), "%.*s", STR_ARG(all.v[i].name));
        CHECK(key_is(&e, all.v[i].digest), "%.*s", STR_ARG(all.v[i].name));
        buf_release(&preimage);
    }
    CHECK(all.count >= 15);
    vectors_close(&all);
}

/* RE-3.1-2, RE-3.3-6: five delimiters, each at the border of two of the six fields. */
TEST(run_events_preimage_has_six_fields) {
    struct vectors all;
    vectors_open(&all);
    for (size_t i = 0; i < all.count; i++) {
        const struct vector *v = &all.v[i];
        struct event e = event_of(v);
        struct buf preimage;
        preimage_of(&e, &preimage);
        char attempt[24];
        snprintf(attempt, sizeof attempt, "%lld", (long long)v->attempt);
        str fields[] = {v->run_id, v->normalized, str_c(attempt),
                        v->type,   v->plan_id,    v->plan_version};
        size_t border = 0;
        size_t bars = 0;
        for (size_t k = 0; k < preimage.len; k++)
            bars += preimage.ptr[k] == 0x7C;
        for (size_t f = 0; f < COUNT_OF(fields); f++) {
            border += fields[f].len;
            CHECK(f == 5 ? border == preimage.len : preimage.ptr[border] == 0x7C, "%.*s",
                  STR_ARG(v->name));
            border++;
        }
        CHECK(bars == 5, "%.*s", STR_ARG(v->name));
        buf_release(&preimage);
    }
    vectors_close(&all);
}

/* RE-3.3-1 run level, RE-3.3-2 step level, RE-3.3-3 attempts, RE-3.3-4 plan versions, RE-3.3-9 five
 * at least, and every lifecycle type. */
TEST(run_events_vectors_cover_what_they_must) {
    struct vectors all;
    vectors_open(&all);
    size_t run_level = 0;
    size_t step_level = 0;
    size_t attempts = 0;
    size_t versions = 0;
    bool types[EVENT_TYPE_COUNT] = {0};
    for (size_t i = 0; i < all.count; i++) {
        const struct vector *v = &all.v[i];
        run_level += !v->step_id.ptr && text_is(v->normalized, "RUN");
        step_level += v->step_id.ptr && str_eq(v->step_id, v->normalized);
        attempts += v->attempt != all.v[0].attempt;
        versions += !str_eq(v->plan_version, all.v[0].plan_version);
        types[event_type_of(v->type)] = true;
    }
    CHECK(all.count >= 5 && run_level + step_level == all.count);
    CHECK(run_level >= 1 && step_level >= 1 && attempts >= 1 && versions >= 1);
    for (int t = EVENT_UNKNOWN; t <= EVENT_RUN_CANCELLED; t++)
        CHECK(types[t], "type %d has no vector", t);
    vectors_close(&all);
}

/* RE-3.3-10: the vectors lie beside the contract. RE-0-1: both, and the program, say the same
 * version. */
TEST(run_events_contract_and_vectors_stand_together) {
    CHECK(path_exists(STR(CONTRACT_FILE)) && path_exists(STR(VECTORS_FILE)));
    CHECK(strcmp(RUN_EVENTS_CONTRACT_VERSION, "2.0.1") == 0);
    static const char folder[] = "contracts/run-events/RunEvents.v" RUN_EVENTS_CONTRACT_VERSION;
    CHECK(str_starts(STR(CONTRACT_FILE), str_c(folder)) &&
          str_starts(STR(VECTORS_FILE), str_c(folder)));
    struct arena arena;
    arena_init(&arena, 4096, (size_t)1 << 20);
    struct error err = {0};
    str text;
    CHECK(file_read(STR(CONTRACT_FILE), (size_t)1 << 20, &arena, &text, &err) == ST_OK, "%s",
          err.msg);
    CHECK(str_starts(text, STR("# Run Events, version " RUN_EVENTS_CONTRACT_VERSION "\n")));
    arena_release(&arena);
}

/* sha256sum's answer for these bytes. */
static void sha256sum_of(str bytes, char hex[SHA256_HEX_LEN + 1]) {
    char path[512];
    char command[600];
    struct error err = {0};
    snprintf(path, sizeof path, "%s/bytes", test_dir());
    CHECK(file_replace(str_c(path), bytes, &err) == ST_OK, "%s", err.msg);
    snprintf(command, sizeof command, "sha256sum < '%s'", path);
    FILE *out = popen(command, "r");
    CHECK(out != NULL);
    size_t n = fread(hex, 1, SHA256_HEX_LEN, out);
    hex[n] = '\0';
    pclose(out);
    CHECK(n == SHA256_HEX_LEN);
}

/* RE-B-1, RE-B-2, RE-B-3, RE-B-4, RE-B-5: the contract's own preimages and digests, by sha256sum
 * and by us. */
TEST(run_events_given_vectors_by_an_independent_tool) {
    static const struct {
        const char *preimage, *digest;
    } given[] = {
        {"0d3c6a9e-4f0c-4a8e-9d5d-3d4c0f7dbb8a|model.orders|1|StepStarted|plan_abc|2",
         "7f4b974658a54fb2aee9ecb9cefebd2eec27f3fd01f0f8c0d031dfc4a5b96e3c"},
        {"0d3c6a9e-4f0c-4a8e-9d5d-3d4c0f7dbb8a|RUN|1|RunStarted|plan_abc|2",
         "204197f81e5dc1a8491d8e411c440a730c51a741cd48a74863d3e5c4c452640d"},
        {"0d3c6a9e-4f0c-4a8e-9d5d-3d4c0f7dbb8a|model.orders|2|StepFailed|plan_abc|2",
         "599945c1a8023ece5d2ae5132a4397b8cfbe9fa1c4c08d6fc4193a9bd9a2ebcd"},
        {"0d3c6a9e-4f0c-4a8e-9d5d-3d4c0f7dbb8a|RUN|1|RunFailed|plan_abc|3",
         "b5a178e6f30962ca3d17b573c0d4c5f96d7623be5fe62a972644785fc05a003b"},
        {"0d3c6a9e-4f0c-4a8e-9d5d-3d4c0f7dbb8a|seed.customers|1|StepSkipped|plan_abc|1",
         "6bfdbe26d62eac0c00cf2683aae31115e76e4d33d515e39957627be091367b31"},
    };
    struct vectors all;
    vectors_open(&all);
    for (size_t i = 0; i < COUNT_OF(given); i++) {
        char hex[SHA256_HEX_LEN + 1];
        sha256sum_of(str_c(given[i].preimage), hex);
        CHECK(strcmp(hex, given[i].digest) == 0, "vector %zu: sha256sum says %s", i + 1, hex);
        struct event e = event_of(&all.v[i]);
        CHECK(text_is(all.v[i].preimage, given[i].preimage) && key_is(&e, str_c(given[i].digest)),
              "%zu", i + 1);
    }
    for (size_t i = COUNT_OF(given); i < all.count; i++) { /* and the vectors we added */
        char hex[SHA256_HEX_LEN + 1];
        sha256sum_of(all.v[i].preimage, hex);
        CHECK(text_is(all.v[i].digest, hex), "%.*s", STR_ARG(all.v[i].name));
    }
    vectors_close(&all);
}

/* RE-B-6: names, members and types of the given vectors. (read_vector() checks the members and
 * types of them all.) */
TEST(run_events_vectors_have_their_names_and_members) {
    static const struct {
        const char *name, *step, *normalized, *type, *version;
        int64_t attempt;
    } given[] = {
        {"vector-1-step-started", "model.orders", "model.orders", "StepStarted", "2", 1},
        {"vector-2-run-started", NULL, "RUN", "RunStarted", "2", 1},
        {"vector-3-step-failed-attempt-2", "model.orders", "model.orders", "StepFailed", "2", 2},
        {"vector-4-run-failed-plan-v3", NULL, "RUN", "RunFailed", "3", 1},
        {"vector-5-step-skipped-customers-v1", "seed.customers", "seed.customers", "StepSkipped",
         "1", 1},
    };
    struct vectors all;
    vectors_open(&all);
    for (size_t i = 0; i < COUNT_OF(given); i++) {
        const struct vector *v = &all.v[i];
        CHECK(text_is(v->name, given[i].name), "%.*s", STR_ARG(v->name));
        CHECK(text_is(v->run_id, "0d3c6a9e-4f0c-4a8e-9d5d-3d4c0f7dbb8a") &&
              text_is(v->plan_id, "plan_abc"));
        CHECK(str_eq(v->step_id, str_c(given[i].step)) &&
              text_is(v->normalized, given[i].normalized));
        CHECK(text_is(v->type, given[i].type) && text_is(v->plan_version, given[i].version));
        CHECK(v->attempt == given[i].attempt);
    }
    for (size_t i = 0; i < all.count; i++) {
        const struct vector *v = &all.v[i];
        str want = v->step_id.ptr ? v->step_id : STR("RUN");
        CHECK(str_eq(v->normalized, want), "%.*s", STR_ARG(v->name));
    }
    vectors_close(&all);
}

/* RE-3.1-4: SHA-256 as in FIPS 180-4. */
TEST(run_events_hash_is_sha256) {
    static char million[1000000];
    memset(million, 'a', sizeof million);
    const struct {
        str in;
        const char *digest;
    } cases[] = {{STR(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
                 {STR("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
                 {str_n(million, sizeof million),
                  "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        uint8_t digest[SHA256_LEN];
        char hex[SHA256_HEX_LEN];
        sha256_of(cases[i].in, digest);
        hex_encode(digest, SHA256_LEN, hex);
        CHECK(text_is(str_n(hex, sizeof hex), cases[i].digest), "case %zu", i);
    }
}
