#include "base/base.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/error.h"
#include "test.h"

/* Runs `func` in a child with stderr in `out`; true if it died by abort(). */
static bool aborts(void (*func)(void), char *out, size_t size) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        func();
        _exit(0);
    }
    close(ends[1]);
    size_t len = 0;
    for (ssize_t n = 1; n > 0 && len<size - 1; len += n> 0 ? (size_t)n : 0) {
        n = read(ends[0], out + len, size - 1 - len);
    }
    out[len] = '\0';
    close(ends[0]);
    int how = 0;
    CHECK(waitpid(child, &how, 0) == child);
    return WIFSIGNALED(how) && WTERMSIG(how) == SIGABRT;
}

static void break_an_assertion(void) {
    int apples = 2;
    ASSERT(apples == 3);
}

static void pass_the_cap(void) {
    struct arena a;
    arena_init(&a, 0, 64);
    arena_alloc(&a, 65);
}

static void long_condition(void) {
    char what[2000];
    memset(what, 'x', sizeof what);
    what[sizeof what - 1] = '\0';
    panic("f.c", 1, what);
}

static void succeed_with_an_error(void) {
    struct error err;
    error_set(&err, ST_OK, "nothing is wrong");
}

static void hold_an_assertion(void) { ASSERT(1 + 1 == 2); }

TEST(panic_says_what_broke_and_aborts) {
    char text[4096];
    CHECK(aborts(break_an_assertion, text, sizeof text));
    CHECK(strstr(text, "panic: ") == text, "%s", text);
    CHECK(strstr(text, "panic_test.c:") != NULL && strstr(text, ": apples == 3\n") != NULL, "%s",
          text);
    CHECK(aborts(long_condition, text, sizeof text));
    CHECK(strncmp(text, "panic: f.c:1: xxx", 17) == 0 && text[510] == '\n' && text[511] == '\0');
    CHECK(!aborts(hold_an_assertion, text, sizeof text) && text[0] == '\0', "%s", text);
}

TEST(panic_ends_what_only_a_bug_can_do) {
    static void (*const bugs[])(void) = {pass_the_cap, succeed_with_an_error};
    for (size_t i = 0; i < COUNT_OF(bugs); i++) {
        char text[4096];
        CHECK(aborts(bugs[i], text, sizeof text), "case %zu: %s", i, text);
    }
}
