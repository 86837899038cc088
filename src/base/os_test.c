#include "base/os.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/time.h"
#include "test.h"

/* A path in this test's own folder; four of them can be in use. */
static str in_dir(const char *dir, const char *name) {
    static char texts[4][512];
    static size_t turn;
    char *text = texts[turn++ % COUNT_OF(texts)];
    int n = snprintf(text, sizeof texts[0], "%s/%s", dir, name);
    return str_n(text, (size_t)n);
}

static int entries(const char *dir) {
    DIR *d = opendir(dir);
    CHECK(d != NULL);
    int n = -2; /* "." and ".." */
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

TEST(os_file_replace_and_read) {
    struct arena a;
    struct error err;
    arena_init(&a, 0, (size_t)1 << 20);
    const char *dir = test_dir();
    str path = in_dir(dir, "file");
    str text = STR_NONE;
    CHECK(!path_exists(path));
    CHECK(file_read(path, 10, &a, &text, &err) == ST_NOT_FOUND);
    CHECK(strstr(err.msg, "could not open \"") == err.msg, "%s", err.msg);
    static const char *const contents[] = {"first", "second, longer", "", "third"};
    for (size_t i = 0; i < COUNT_OF(contents); i++) {
        CHECK(file_replace(path, str_c(contents[i]), &err) == ST_OK, "%s", err.msg);
        CHECK(path_exists(path) && entries(dir) == 1); /* no temporary file stays */
        CHECK(file_read(path, 100, &a, &text, &err) == ST_OK, "%s", err.msg);
        CHECK(str_eq(text, str_c(contents[i])) && text.ptr != NULL && text.ptr[text.len] == '\0');
    }
    CHECK(file_read(path, 5, &a, &text, &err) == ST_OK);    /* the last good limit, */
    CHECK(file_read(path, 4, &a, &text, &err) == ST_LIMIT); /* and the first bad one */
    CHECK(strstr(err.msg, "more than 4 bytes") != NULL, "%s", err.msg);
    CHECK(chmod(path.ptr, 0640) == 0 && file_replace(path, STR("x"), &err) == ST_OK);
    struct stat info;
    CHECK(stat(path.ptr, &info) == 0 && (info.st_mode & 0777) == 0640); /* the mode is kept */
    arena_release(&a);
}

TEST(os_file_replace_leaves_nothing_behind) {
    struct error err;
    const char *dir = test_dir();
    str folder = in_dir(dir, "folder");
    CHECK(dir_make(folder, &err) == ST_OK);
    CHECK(file_replace(folder, STR("x"), &err) == ST_INVALID, "%s",
          err.msg); /* cannot replace a folder */
    CHECK(entries(dir) == 1);
    CHECK(file_replace(in_dir(dir, "none/file"), STR("x"), &err) == ST_NOT_FOUND);
    char name[PATH_MAX + 10];
    memset(name, 'n', sizeof name);
    static const size_t lengths[] = {0, 256, PATH_MAX - 1, PATH_MAX, PATH_MAX + 10};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        CHECK(file_replace(str_n(name, lengths[i]), STR("x"), &err) == ST_INVALID, "%zu",
              lengths[i]);
        CHECK(!path_exists(str_n(name, lengths[i])));
    }
    CHECK(file_replace(STR("a\0b"), STR("x"), &err) == ST_INVALID && !path_exists(STR("a\0b")));
}

TEST(os_file_read_large_and_without_memory) {
    enum { SIZE = 200000 };
    static char bytes[SIZE];
    for (size_t i = 0; i < SIZE; i++)
        bytes[i] = (char)(i * 7);
    struct error err;
    str path = in_dir(test_dir(), "large");
    str text = STR_NONE;
    CHECK(file_replace(path, str_n(bytes, SIZE), &err) == ST_OK);
    status st = ST_RETRY;
    int64_t n = 0;
    for (; st == ST_RETRY; n++) {
        CHECK(n < 100);
        struct arena a;
        arena_init(&a, 0, SIZE + 100);
        mem_fail_at(n);
        st = file_read(path, SIZE, &a, &text, &err);
        mem_fail_at(-1);
        if (st == ST_OK) CHECK(str_eq(text, str_n(bytes, SIZE)));
        arena_release(&a);
    }
    CHECK(st == ST_OK && n > 2);
    struct arena small;
    arena_init(&small, 0, SIZE);
    CHECK(file_read(path, SIZE, &small, &text, &err) ==
          ST_RETRY); /* one byte, the NUL, does not fit */
    CHECK(file_read(str_c(test_dir()), SIZE, &small, &text, &err) == ST_INVALID); /* a folder */
    arena_release(&small);
}

TEST(os_dir_make_makes_the_parents) {
    struct error err;
    const char *dir = test_dir();
    static const char *const names[] = {"a", "b/c/d", "b/c/d", "b/c/e/", "b//f///g", "./h/../h/i"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        str path = in_dir(dir, names[i]);
        CHECK(dir_make(path, &err) == ST_OK, "case %zu: %s", i, err.msg);
        struct stat info;
        CHECK(stat(path.ptr, &info) == 0 && S_ISDIR(info.st_mode) && (info.st_mode & 0777) == 0700);
    }
    CHECK(dir_make(STR("/"), &err) == ST_OK && dir_make(STR("."), &err) == ST_OK);
    CHECK(file_replace(in_dir(dir, "file"), STR("x"), &err) == ST_OK);
    CHECK(dir_make(in_dir(dir, "file"), &err) == ST_INVALID, "%s", err.msg);
    CHECK(dir_make(in_dir(dir, "file/x"), &err) == ST_INVALID, "%s", err.msg);
    CHECK(dir_make(STR(""), &err) == ST_INVALID);
}

TEST(os_lock_has_one_holder) {
    struct error err;
    str path = in_dir(test_dir(), "lock");
    int fd = -1;
    int second = -1;
    CHECK(lock_take(path, 0, &fd, &err) == ST_OK && fd >= 0);
    CHECK(lock_take(path, 0, &second, &err) == ST_RETRY && second == -1);
    char want[64];
    (void)snprintf(want, sizeof want, "is locked by process %lld", (long long)getpid());
    CHECK(strstr(err.msg, want) != NULL, "%s", err.msg);
    int64_t start = clock_mono_ns();
    CHECK(lock_take(path, 80, &second, &err) == ST_RETRY);
    CHECK(clock_mono_ns() - start >= 79000000);
    lock_drop(fd);
    CHECK(lock_take(path, 0, &second, &err) == ST_OK); /* free again */
    lock_drop(second);
    lock_drop(-1);
    CHECK(lock_take(in_dir(test_dir(), "no/lock"), 0, &fd, &err) == ST_NOT_FOUND);
}

TEST(os_lock_waits_for_a_holder_that_ends) {
    struct error err;
    str path = in_dir(test_dir(), "lock");
    int ready[2];
    int fd = -1;
    char byte;
    CHECK(pipe(ready) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        if (lock_take(path, 0, &fd, &err) != ST_OK || write(ready[1], "x", 1) != 1) _exit(1);
        usleep(100000);
        _exit(0); /* without lock_drop(): the kernel drops it, as after a crash */
    }
    CHECK(read(ready[0], &byte, 1) == 1);
    status refused = lock_take(path, 0, &fd, &err);
    char want[64];
    (void)snprintf(want, sizeof want, "by process %lld", (long long)child);
    bool named = strstr(err.msg, want) != NULL;
    status st = lock_take(path, 20000, &fd, &err);
    int how = 0;
    CHECK(waitpid(child, &how, 0) == child && how == 0);
    CHECK(refused == ST_RETRY && named && st == ST_OK);
    char text[32] = {0};
    CHECK(pread(fd, text, sizeof text - 1, 0) > 0);
    (void)snprintf(want, sizeof want, "%lld\n", (long long)getpid());
    CHECK(strcmp(text, want) == 0, "%s", text); /* the pid of the new holder, and nothing else */
    lock_drop(fd);
    close(ready[0]);
    close(ready[1]);
}

/* ---- lines ---- */

static int open_with(str bytes) {
    struct error err;
    str path = in_dir(test_dir(), "lines");
    CHECK(file_replace(path, bytes, &err) == ST_OK, "%s", err.msg);
    int fd = open(path.ptr, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    return fd;
}

TEST(os_lines_of_every_kind) {
    /* What comes out: "line|line|", with "!" for a line that is too long (over 5 bytes). */
    static const struct {
        str in, out;
        int64_t count;
    } cases[] = {
        {STR_LIT(""), STR_LIT(""), 0},
        {STR_LIT("a\n"), STR_LIT("a|"), 1},
        {STR_LIT("a"), STR_LIT("a|"), 1}, /* the last line may lack its end */
        {STR_LIT("a\r\nb\r\n"), STR_LIT("a|b|"), 2},
        {STR_LIT("\n\n\r\n"), STR_LIT("|||"), 3},
        {STR_LIT("a\rb\n\r\r\n"), STR_LIT("a\rb|\r|"), 2}, /* only one \r, only before \n */
        {STR_LIT("a\r"), STR_LIT("a\r|"), 1},
        {STR_LIT("a\0b\n\0"), STR_LIT("a\0b|\0|"), 2}, /* NUL bytes are passed on */
        {STR_LIT("12345\n"), STR_LIT("12345|"), 1},    /* the last good one, */
        {STR_LIT("12345\r\n"), STR_LIT("12345|"), 1},
        {STR_LIT("12345"), STR_LIT("12345|"), 1},
        {STR_LIT("123456\n"), STR_LIT("!|"), 1}, /* and the first bad one */
        {STR_LIT("123456\r\n"), STR_LIT("!|"), 1},
        {STR_LIT("123456"), STR_LIT("!|"), 1},
        {STR_LIT("12345\r"), STR_LIT("!|"), 1}, /* its \r ends nothing */
        {STR_LIT("12345\r\r\n"), STR_LIT("!|"), 1},
        {STR_LIT("1234567890123\nok\n12345678\n"), STR_LIT("!|ok|!|"), 3},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int fd = open_with(cases[i].in);
        struct line_reader *r = NULL;
        struct error err;
        CHECK(line_reader_open(fd, 5, &r, &err) == ST_OK);
        char mem[64];
        struct buf got;
        buf_init_fixed(&got, mem, sizeof mem);
        int64_t count = 0;
        for (;;) {
            str line;
            bool eof = false;
            status st = line_reader_next(r, &line, &eof, &err);
            CHECK(st == ST_OK || st == ST_LIMIT, "case %zu", i);
            if (eof) break;
            count++;
            CHECK(line_reader_number(r) == count, "case %zu", i);
            buf_put(&got, st == ST_OK ? line : STR("!"));
            buf_put_char(&got, '|');
        }
        CHECK(str_eq(buf_str(&got), cases[i].out), "case %zu: %.*s", i, STR_ARG(buf_str(&got)));
        CHECK(count == cases[i].count && line_reader_number(r) == count, "case %zu", i);
        CHECK(line_reader_offset(r) == (int64_t)cases[i].in.len, "case %zu", i);
        line_reader_close(r);
        close(fd);
    }
    line_reader_close(NULL);
}

/* Line lengths around the buffer's sizes, through a file many times as long as the buffer. */
enum { LONG_MAX_BYTES = 200000 };
static const size_t long_lines[] = {65534,  65535,   65536,  65537,  1,      131071, 131072,
                                    131073, 0,       199999, 200000, 200001, 200002, 200003,
                                    5,      1000000, 7,      200000, 300000};

/* Every other line ends in "\r\n". */
static size_t end_len(size_t i) { return i % 2 == 1 ? 2 : 1; }

static str put_long_lines(char *bytes) {
    size_t len = 0;
    for (size_t i = 0; i < COUNT_OF(long_lines); i++) {
        memset(bytes + len, 'a' + (int)i, long_lines[i]);
        len += long_lines[i];
        memcpy(bytes + len, end_len(i) == 2 ? "\r\n" : "\n", end_len(i));
        len += end_len(i);
    }
    return str_n(bytes, len);
}

static void check_long_line(struct line_reader *r, size_t i, str want) {
    struct error err = {0};
    str line = STR_NONE;
    bool eof = false;
    status st = line_reader_next(r, &line, &eof, &err);
    CHECK(!eof && line_reader_number(r) == (int64_t)i + 1);
    if (want.len <= LONG_MAX_BYTES) {
        CHECK(st == ST_OK && str_eq(line, want), "line %zu", i);
        return;
    }
    char msg[64];
    (void)snprintf(msg, sizeof msg, "line %zu has more than 200000 bytes", i + 1);
    CHECK(st == ST_LIMIT && strcmp(err.msg, msg) == 0, "%s", err.msg);
}

TEST(os_lines_longer_than_the_buffer) {
    static char bytes[3200000];
    int fd = open_with(put_long_lines(bytes));
    struct line_reader *r = NULL;
    struct error err;
    CHECK(line_reader_open(fd, LONG_MAX_BYTES, &r, &err) == ST_OK);
    size_t offset = 0;
    for (size_t i = 0; i < COUNT_OF(long_lines); i++) {
        check_long_line(r, i, str_n(bytes + offset, long_lines[i]));
        offset += long_lines[i] + end_len(i);
        CHECK(line_reader_offset(r) == (int64_t)offset, "line %zu", i);
    }
    str line;
    bool eof = false;
    for (int i = 0; i < 2; i++)
        CHECK(line_reader_next(r, &line, &eof, &err) == ST_OK && eof);
    line_reader_close(r);
    close(fd);
}

TEST(os_lines_come_as_they_are_written) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    struct line_reader *r = NULL;
    struct error err;
    CHECK(line_reader_open(ends[0], 100, &r, &err) == ST_OK);
    CHECK(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    str line;
    bool eof = true;
    CHECK(write(ends[1], "one\ntw", 6) == 6);
    CHECK(line_reader_next(r, &line, &eof, &err) == ST_OK && !eof && str_eq(line, STR("one")));
    CHECK(line_reader_next(r, &line, &eof, &err) == ST_RETRY, "%s",
          err.msg); /* half a line so far */
    CHECK(write(ends[1], "o\n", 2) == 2);
    CHECK(line_reader_next(r, &line, &eof, &err) == ST_OK && str_eq(line, STR("two")));
    CHECK(line_reader_number(r) == 2);
    close(ends[1]);
    CHECK(line_reader_next(r, &line, &eof, &err) == ST_OK && eof);
    line_reader_close(r);
    close(ends[0]);
    CHECK(line_reader_open(-1, 100, &r, &err) == ST_OK); /* a descriptor that is none */
    CHECK(line_reader_next(r, &line, &eof, &err) == ST_RETRY, "%s", err.msg);
    line_reader_close(r);
}

TEST(os_lines_say_whether_the_next_one_is_there) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    struct line_reader *r = NULL;
    struct error err;
    CHECK(line_reader_open(ends[0], 5, &r, &err) == ST_OK);
    static const struct { const char *more; bool ready; } cases[] = {
        {"", false}, {"on", false}, {"e\ntw", true},
        {"", false}, {"o12345678", false}, /* too long already, but where does it end? */
        {"9\n", true}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        size_t n = strlen(cases[i].more);
        CHECK(write(ends[1], cases[i].more, n) == (ssize_t)n);
        CHECK(line_reader_ready(r) == cases[i].ready, "case %zu", i);
        if (!cases[i].ready) continue;
        str line;
        bool eof = true;
        status want = i == 2 ? ST_OK : ST_LIMIT;
        CHECK(line_reader_next(r, &line, &eof, &err) == want && !eof, "case %zu", i);
    }
    CHECK(!line_reader_ready(r));
    close(ends[1]);
    CHECK(line_reader_ready(r)); /* the end is an answer too */
    line_reader_close(r);
    close(ends[0]);
}

TEST(os_lines_without_memory) {
    static char bytes[300000];
    memset(bytes, 'x', sizeof bytes);
    int fd = open_with(str_n(bytes, sizeof bytes));
    struct line_reader *r = NULL;
    struct error err;
    for (int64_t n = 0; n < 2; n++) {
        mem_fail_at(n);
        CHECK(line_reader_open(fd, sizeof bytes, &r, &err) == ST_RETRY && r == NULL);
    }
    mem_fail_at(-1);
    CHECK(line_reader_open(fd, sizeof bytes, &r, &err) == ST_OK);
    str line;
    bool eof = false;
    status st = ST_RETRY;
    int refused = 0;
    for (; st == ST_RETRY; refused++) { /* each call gets one step further, and nothing is lost */
        CHECK(refused < 100);
        mem_fail_at(0);
        if (refused % 2 == 1) mem_fail_at(1);
        st = line_reader_next(r, &line, &eof, &err);
    }
    mem_fail_at(-1);
    CHECK(refused > 1 && st == ST_OK && str_eq(line, str_n(bytes, sizeof bytes)));
    line_reader_close(r);
    close(fd);
}
