#include "adapters/local/secret.h"

#include <sys/stat.h>
#include <unistd.h>

#include "adapters/local/workspace.h"
#include "base/os.h"
#include "test.h"

static void put_file(const char *dir, const char *path, str bytes) {
    char whole[512];
    struct error err;
    snprintf(whole, sizeof whole, "%s/%s", dir, path);
    CHECK(file_replace(str_c(whole), bytes, &err) == ST_OK, "%s", err.msg);
}

/* WE-2.1.3-4: each environment resolves its own values. */
TEST(secret_comes_from_the_first_place_that_has_it) {
    const char *dir = test_dir();
    char folder[512];
    snprintf(folder, sizeof folder, "%s/prod-eu", dir);
    CHECK(mkdir(folder, 0700) == 0);
    put_file(dir, "prod-eu/BOTH", STR("own\n"));
    put_file(dir, "BOTH", STR("shared\n\n"));
    put_file(dir, "EMPTY", STR(""));
    put_file(dir, "a.b-c", STR("dots"));
    setenv("CAIRN_SECRET_PROD_EU__BOTH", "variable", 1);
    setenv("CAIRN_SECRET_PROD_EU__IN_ENV", "own variable", 1);
    setenv("CAIRN_SECRET_IN_ENV", "shared variable", 1);
    setenv("CAIRN_SECRET_x_y", "lower", 1);
    static const struct {
        const char *environment, *name, *value; /* NULL: SECRET_NOT_FOUND */
    } cases[] = {
        {"prod-eu", "BOTH", "own"},
        {"dev", "BOTH", "shared\n"}, /* one newline is dropped */
        {"prod-eu", "IN_ENV", "own variable"},
        {"dev", "IN_ENV", "shared variable"},
        {"", "IN_ENV", "shared variable"},
        {"dev", "EMPTY", ""},
        {"dev", "a.b-c", "dots"},
        {"dev", "x-y", "lower"},
        {"dev", "NOWHERE", NULL},
        {"dev", "PROD_EU__IN_ENV", NULL}, /* a name cannot reach into another environment, */
        {"dev", "PROD-EU-.IN_ENV", NULL}, /* however it is spelled */
        {"PROD", "EU__IN_ENV", NULL},
        {"..", "BOTH", "shared\n"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct arena arena;
        struct error err = {0};
        str value = STR_NONE;
        arena_init(&arena, 1024, (size_t)1024 * 1024);
        status st = secret_resolve(str_c(dir), str_c(cases[i].environment), str_c(cases[i].name),
                                   &arena, &value, &err);
        if (cases[i].value)
            CHECK(st == ST_OK && str_eq(value, str_c(cases[i].value)), "case %zu: %s %.*s", i,
                  err.msg, STR_ARG(value));
        else
            CHECK(st == ST_NOT_FOUND && err.reason == REASON_SECRET_NOT_FOUND, "case %zu: %d", i,
                  st);
        arena_release(&arena);
    }
    unsetenv("CAIRN_SECRET_PROD_EU__BOTH");
    unsetenv("CAIRN_SECRET_PROD_EU__IN_ENV");
    unsetenv("CAIRN_SECRET_IN_ENV");
    unsetenv("CAIRN_SECRET_x_y");
}

TEST(secret_failures_say_where_they_looked) {
    const char *dir = test_dir();
    char folder[512];
    char big[1024];
    snprintf(folder, sizeof folder, "%s/FOLDER", dir);
    CHECK(mkdir(folder, 0700) == 0);
    struct arena arena;
    arena_init(&arena, 1024, (size_t)4 * 1024 * 1024);
    char *bytes = arena_alloc(&arena, SECRET_BYTES_MAX + 2);
    memset(bytes, 'x', SECRET_BYTES_MAX + 2);
    bytes[SECRET_BYTES_MAX] = '\n';
    put_file(dir, "FITS", str_n(bytes, SECRET_BYTES_MAX + 1));
    bytes[SECRET_BYTES_MAX] = 'x';
    put_file(dir, "LARGE", str_n(bytes, SECRET_BYTES_MAX + 1));
    put_file(dir, "LARGER", str_n(bytes, SECRET_BYTES_MAX + 2));
    memset(big, 'n', sizeof big);
    big[SECRET_NAME_MAX + 1] = '\0';
    static const struct {
        const char *name;
        status want;
        const char *reason;
    } cases[] = {
        {"FITS", ST_OK, NULL},
        {"LARGE", ST_LIMIT, "SECRET_TOO_LARGE"},
        {"LARGER", ST_LIMIT, "SECRET_TOO_LARGE"},
        {"FOLDER", ST_INVALID, "SECRET_UNREADABLE"},
        {"", ST_INVALID, "SECRET_NAME_INVALID"},
        {".hidden", ST_INVALID, "SECRET_NAME_INVALID"},
        {"../BOTH", ST_INVALID, "SECRET_NAME_INVALID"},
        {"a b", ST_INVALID, "SECRET_NAME_INVALID"},
        {NULL, ST_INVALID, "SECRET_NAME_INVALID"}, /* stands for the long one */
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct error err = {0};
        str value;
        str name = str_c(cases[i].name ? cases[i].name : big);
        status st = secret_resolve(str_c(dir), STR("dev"), name, &arena, &value, &err);
        CHECK(st == cases[i].want && str_eq(str_c(reason_name(err.reason)), str_c(cases[i].reason)),
              "case %zu: %s %s", i, reason_name(err.reason), err.msg);
    }
    struct error err = {0};
    str value;
    CHECK(secret_resolve(str_c(dir), STR("dev"), STR("NONE"), &arena, &value, &err) ==
          ST_NOT_FOUND);
    snprintf(big, sizeof big,
             "secret \"NONE\" was not found; looked at: file \"%s/dev/NONE\", file \"%s/NONE\", "
             "variable CAIRN_SECRET_DEV__NONE, variable CAIRN_SECRET_NONE",
             dir, dir);
    CHECK(strcmp(err.msg, big) == 0, "%s", err.msg);
    CHECK(secret_resolve(STR_NONE, STR("dev"), STR("NONE"), &arena, &value, &err) == ST_NOT_FOUND);
    CHECK(strstr(err.msg, "file") == NULL, "%s", err.msg);
    arena_release(&arena);
}

TEST(workspace_paths_stay_inside) {
    static const struct {
        const char *path;
        bool inside;
    } cases[] = {
        {"", true},        {".", true},   {"a/b", true},        {"a/../b", true},
        {"a//./b/", true}, {"..", false}, {"a/../..", false},   {"/a", false},
        {"../a", false},   {"...", true}, {"a/../../a", false}, {"./..", false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        CHECK(path_stays_inside(str_c(cases[i].path)) == cases[i].inside, "%s", cases[i].path);
    static const struct {
        const char *part;
        bool safe;
    } parts[] = {
        {"run-1", true}, {"A.b_c", true}, {"", false},    {".a", false},       {"a/b", false},
        {"..", false},   {"~x", false},   {"a b", false}, {"\xc3\xa9", false},
    };
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        CHECK(path_part_safe(str_c(parts[i].part)) == parts[i].safe, "%s", parts[i].part);
}
