#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "base/json.h"
#include "base/time.h"
#include "test.h"

static char captured[256 * 1024];
static int capture_fd;

/* From here to capture_end() log lines go to a file of ours. */
static void capture_start(bool json, enum log_level at_least) {
    char path[512];
    (void)snprintf(path, sizeof path, "%s/log", test_dir());
    capture_fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    CHECK(capture_fd >= 0);
    log_setup(capture_fd, json, at_least);
}

static str capture_end(void) {
    log_setup(STDERR_FILENO, false, LOG_INFO);
    ssize_t n = pread(capture_fd, captured, sizeof captured, 0);
    close(capture_fd);
    CHECK(n >= 0);
    return str_n(captured, (size_t)n);
}

/* Takes the time off a line of the text form, after looking at it. */
static str without_time(str line) {
    str time;
    str rest;
    int64_t ns;
    int digits;
    CHECK(str_split(line, ' ', &time, &rest));
    CHECK(time_parse_utc(time, &ns, &digits) && digits == 6, "%.*s", STR_ARG(line));
    return rest;
}

TEST(log_text_lines) {
    static const struct {
        struct log_field field;
        const char *want;
    } cases[] = {
        {{"run", STR_LIT("r-1"), 0, false}, "run=r-1"},
        {{"n", {NULL, 0}, -42, true}, "n=-42"},
        {{"v", STR_LIT("two words"), 0, false}, "v=\"two words\""},
        {{"v", STR_LIT(""), 0, false}, "v=\"\""},
        {{"v", {NULL, 0}, 0, false}, "v=\"\""},
        {{"v", STR_LIT("a=b"), 0, false}, "v=\"a=b\""},
        {{"v", STR_LIT("say \"hi\""), 0, false}, "v=\"say \\\"hi\\\"\""},
        {{"v", STR_LIT("x\nfake line"), 0, false}, "v=\"x\\nfake line\""}, /* one line stays one */
        {{"v", STR_LIT("\x1B[31m"), 0, false}, "v=\"\\u001B[31m\""},
        {{"v", STR_LIT("caf\xC3\xA9"), 0, false}, "v=caf\xC3\xA9"},
        {{"v", STR_LIT("\xFF"), 0, false}, "v=\"\xEF\xBF\xBD\""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        capture_start(false, LOG_DEBUG);
        LOG(LOG_INFO, "it went well", cases[i].field, LOG_N("more", 7));
        str got = without_time(capture_end());
        char want[200];
        (void)snprintf(want, sizeof want, "info it went well %s more=7\n", cases[i].want);
        CHECK(str_eq(got, str_c(want)), "case %zu: %.*s", i, STR_ARG(got));
    }
}

TEST(log_messages_stay_on_their_line) {
    capture_start(false, LOG_DEBUG);
    log_write(LOG_ERROR, "two\nlines", NULL, 0);
    str got = without_time(capture_end());
    CHECK(str_eq(got, STR("error \"two\\nlines\"\n")), "%.*s", STR_ARG(got));
}

TEST(log_json_lines_are_json) {
    capture_start(true, LOG_DEBUG);
    errno = ENOENT;
    LOG(LOG_WARN, "a \"quoted\"\nmessage", LOG_S("text", STR("x\"\\\n\xFF")),
        LOG_N("n", INT64_MIN));
    CHECK(errno == ENOENT);
    str line = capture_end();
    CHECK(str_ends(line, STR("}\n")));
    struct arena a;
    arena_init(&a, 4096, 65536);
    yyjson_val *root;
    struct error err;
    struct json_limits limits = {.bytes_max = 10000, .depth_max = 1};
    CHECK(json_parse(line, limits, &a, &root, &err) == ST_OK, "%s: %.*s", err.msg, STR_ARG(line));
    str s;
    int64_t n;
    int digits;
    CHECK(json_str(json_member(root, "time"), &s) && time_parse_utc(s, &n, &digits));
    CHECK(json_str(json_member(root, "level"), &s) && str_eq(s, STR("warn")));
    CHECK(json_str(json_member(root, "msg"), &s) && str_eq(s, STR("a \"quoted\"\nmessage")));
    CHECK(json_str(json_member(root, "text"), &s) && str_eq(s, STR("x\"\\\n\xEF\xBF\xBD")));
    CHECK(json_int(json_member(root, "n"), &n) && n == INT64_MIN);
    arena_release(&a);
}

TEST(log_levels) {
    static const struct {
        enum log_level at_least;
        int lines;
    } cases[] = {{LOG_DEBUG, 4}, {LOG_INFO, 3}, {LOG_WARN, 2}, {LOG_ERROR, 1}, {LOG_OFF, 0}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        capture_start(false, cases[i].at_least);
        for (int level = LOG_DEBUG; level < LOG_OFF; level++) {
            log_write((enum log_level)level, "m", NULL, 0);
        }
        str got = capture_end();
        int lines = 0;
        for (size_t k = 0; k < got.len; k++)
            lines += got.ptr[k] == '\n';
        CHECK(lines == cases[i].lines, "case %zu: %d", i, lines);
    }
}

/* Whatever is too much is cut, and the line is still one whole line of JSON that says so. */
TEST(log_lines_have_a_limit) {
    static char huge[100000];
    static const char fill[] = {'x', '\x01', '\xFF', '\x80'};
    struct arena a;
    arena_init(&a, 4096, (size_t)1 << 20);
    for (size_t i = 0; i < COUNT_OF(fill); i++) {
        memset(huge, fill[i], sizeof huge - 1);
        struct log_field fields[40];
        for (size_t k = 0; k < COUNT_OF(fields); k++) {
            fields[k] = LOG_S("field", str_n(huge, sizeof huge - 1));
        }
        static char name[40][8];
        for (size_t k = 0; k < COUNT_OF(fields); k++) {
            (void)snprintf(name[k], sizeof name[k], "f%zu", k);
            fields[k].name = name[k];
        }
        capture_start(true, LOG_INFO);
        log_write(LOG_INFO, huge, fields, COUNT_OF(fields));
        str line = capture_end();
        yyjson_val *root = NULL;
        struct error err = {0};
        struct json_limits limits = {.bytes_max = 16384, .depth_max = 1};
        CHECK(json_parse(line, limits, &a, &root, &err) == ST_OK, "fill %zu: %s", i, err.msg);
        CHECK(yyjson_is_true(json_member(root, "truncated")), "fill %zu", i);
        capture_start(false, LOG_INFO);
        log_write(LOG_INFO, huge, fields, COUNT_OF(fields));
        line = capture_end();
        CHECK(str_ends(line, STR(" truncated=true\n")) && line.len <= 16384, "fill %zu", i);
        arena_reset(&a);
    }
    arena_release(&a);
}

static void *chatter(void *unused) {
    UNUSED(unused);
    for (int i = 0; i < 200; i++) {
        LOG(LOG_INFO, "chatter", LOG_S("filler", STR("abcdefghijklmnopqrstuvwxyz")), LOG_N("i", i));
    }
    return NULL;
}

TEST(log_lines_of_threads_do_not_mix) {
    pthread_t thread[4];
    capture_start(false, LOG_INFO);
    for (size_t i = 0; i < COUNT_OF(thread); i++)
        CHECK(pthread_create(&thread[i], NULL, chatter, NULL) == 0);
    for (size_t i = 0; i < COUNT_OF(thread); i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    str rest = capture_end();
    str line;
    int lines = 0;
    while (str_split(rest, '\n', &line, &rest)) {
        CHECK(str_starts(without_time(line),
                         STR("info chatter filler=abcdefghijklmnopqrstuvwxyz i=")),
              "%.*s", STR_ARG(line));
        lines++;
    }
    CHECK(lines == 800, "%d", lines);
}
