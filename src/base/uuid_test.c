#include "base/uuid.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

static str text_of(uuid u, char text[UUID_TEXT_LEN]) {
    uuid_format(u, text);
    return str_n(text, UUID_TEXT_LEN);
}

TEST(uuid_text_is_canonical) {
    static const struct {
        const char *in;
        bool ok;
        int version;
    } cases[] = {
        {"00000000-0000-0000-0000-000000000000", true, -1},
        {"ffffffff-ffff-ffff-ffff-ffffffffffff", true, -1},
        {"f47ac10b-58cc-4372-a567-0e02b2c3d479", true, 4},
        {"F47AC10B-58CC-4372-A567-0E02B2C3D479", true, 4},
        {"017f22e2-79b0-7cc3-98c4-dc0c0c07398f", true, 7},
        {"2ed6657d-e927-568b-95e1-2665a8aea6a2", true, 5},
        {"f47ac10b-58cc-4372-8567-0e02b2c3d479", true, 4},
        {"f47ac10b-58cc-4372-b567-0e02b2c3d479", true, 4},
        {"f47ac10b-58cc-4372-7567-0e02b2c3d479", true, -1}, /* another variant has no version */
        {"f47ac10b-58cc-4372-c567-0e02b2c3d479", true, -1},
        {"", false, 0},
        {"f47ac10b58cc4372a5670e02b2c3d479", false, 0},
        {"{f47ac10b-58cc-4372-a567-0e02b2c3d479}", false, 0},
        {"urn:uuid:f47ac10b-58cc-4372-a567-0e02b2c3d479", false, 0},
        {"f47ac10b-58cc-4372-a567-0e02b2c3d47", false, 0},
        {"f47ac10b-58cc-4372-a567-0e02b2c3d4790", false, 0},
        {"f47ac10b-58cc-4372-a567-0e02b2c3d47g", false, 0},
        {"f47ac10b-58cc-4372-a567_0e02b2c3d479", false, 0},
        {"f47ac10-b58cc-4372-a567-0e02b2c3d479", false, 0},
        {" 47ac10b-58cc-4372-a567-0e02b2c3d479", false, 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        uuid u = {{0}};
        CHECK(uuid_parse(str_c(cases[i].in), &u) == cases[i].ok, "case %zu", i);
        if (!cases[i].ok) continue;
        CHECK(uuid_version(u) == cases[i].version, "case %zu: %d", i, uuid_version(u));
        char text[UUID_TEXT_LEN];
        uuid again;
        CHECK(uuid_parse(text_of(u, text), &again) && uuid_eq(u, again), "case %zu", i);
        for (size_t k = 0; k < sizeof text; k++)
            CHECK(text[k] < 'A' || text[k] > 'Z');
    }
}

TEST(uuid_v4_never_repeats) {
    enum { COUNT = 2000 };
    static uuid made[COUNT];
    uint8_t ones[16] = {0};
    uint8_t zeros[16] = {0};
    for (size_t i = 0; i < COUNT; i++) {
        made[i] = uuid_v4();
        CHECK(uuid_version(made[i]) == 4);
        for (size_t k = 0; k < 16; k++) {
            ones[k] |= made[i].b[k];
            zeros[k] |= (uint8_t)~made[i].b[k];
        }
        for (size_t k = 0; k < i; k++)
            CHECK(!uuid_eq(made[i], made[k]));
    }
    for (size_t k = 0; k < 16; k++) { /* every bit that is not fixed takes both values */
        uint8_t fixed = k == 6 ? 0xF0 : k == 8 ? 0xC0 : 0;
        CHECK((ones[k] | fixed) == 0xFF && (zeros[k] | fixed) == 0xFF, "byte %zu", k);
    }
}

TEST(uuid_v7_carries_the_time) {
    char text[UUID_TEXT_LEN];
    uuid u = uuid_v7(INT64_C(0x017F22E279B0)); /* the example of RFC 9562 */
    CHECK(uuid_version(u) == 7);
    CHECK(str_starts(text_of(u, text), STR("017f22e2-79b0-7")), "%.36s", text);
    CHECK(!uuid_eq(u, uuid_v7(INT64_C(0x017F22E279B0))));
    CHECK(str_starts(text_of(uuid_v7((INT64_C(1) << 48) - 1), text), STR("ffffffff-ffff-7")));
    CHECK(memcmp(uuid_v7(1000).b, uuid_v7(1001).b, 16) < 0);
}

TEST(uuid_v5_is_the_standards) {
    uuid dns;
    uuid u;
    char text[UUID_TEXT_LEN];
    CHECK(uuid_parse(STR("6ba7b810-9dad-11d1-80b4-00c04fd430c8"), &dns));
    u = uuid_v5(dns, STR("www.example.com")); /* RFC 9562, appendix A.4 */
    CHECK(str_eq(text_of(u, text), STR("2ed6657d-e927-568b-95e1-2665a8aea6a2")), "%.36s", text);
    CHECK(uuid_version(uuid_v5(dns, STR_NONE)) == 5);
}

TEST(uuid_random_bytes_of_any_length) {
    static const size_t sizes[] = {0, 1, 15, 1023, 1024, 1025, 100000};
    static uint8_t a[100000];
    static uint8_t b[100000];
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        memset(a, 0, sizeof a);
        random_bytes(a, sizes[i]);
        random_bytes(b, sizes[i]);
        if (sizes[i] >= 15) CHECK(memcmp(a, b, sizes[i]) != 0, "size %zu", sizes[i]);
        for (size_t k = sizes[i]; k < sizes[i] + 16 && k < sizeof a; k++)
            CHECK(a[k] == 0);
    }
}

/* Parent and child start from the same buffer; what they draw from it must differ. */
TEST(uuid_a_forked_child_draws_its_own) {
    (void)uuid_v4(); /* the buffer is filled */
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        uuid own = uuid_v4();
        _exit(write(ends[1], own.b, sizeof own.b) == sizeof own.b ? 0 : 1);
    }
    uuid ours = uuid_v4();
    uuid theirs = ours;
    int how = 0;
    CHECK(waitpid(child, &how, 0) == child && how == 0);
    CHECK(read(ends[0], theirs.b, sizeof theirs.b) == sizeof theirs.b);
    close(ends[0]);
    close(ends[1]);
    CHECK(!uuid_eq(ours, theirs));
}

static void *draw(void *out) {
    *(uuid *)out = uuid_v4();
    return NULL;
}

TEST(uuid_threads_draw_their_own) {
    pthread_t a;
    pthread_t b;
    uuid from_a;
    uuid from_b;
    CHECK(pthread_create(&a, NULL, draw, &from_a) == 0 &&
          pthread_create(&b, NULL, draw, &from_b) == 0);
    CHECK(pthread_join(a, NULL) == 0 && pthread_join(b, NULL) == 0);
    CHECK(!uuid_eq(from_a, from_b));
}
