/* tests/load/child.h: `cairn serve` as a child: started, asked for its port, killed. */
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/time.h"
#include "load/conn.h"

enum { CHILD_SAID_MAX = 4096, CHILD_WORDS_MAX = 16 };

struct child {
    pid_t pid;                 /* 0: there is none */
    int err;                   /* its stderr */
    int port;                  /* 0: not ready yet */
    char said[CHILD_SAID_MAX]; /* the last of its stderr */
    size_t said_len;
    int64_t started_ns;
};

/* Starts `words` (which end with NULL); its output goes nowhere. false: errno says why. */
static inline bool child_start(struct child *c, const char *const *words) {
    int err[2];
    posix_spawn_file_actions_t actions;
    if (pipe2(err, O_CLOEXEC | O_NONBLOCK) != 0) return false;
    (void)fcntl(err[1], F_SETFL, 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, err[1], 2);
    *c = (struct child){.err = err[0], .started_ns = clock_mono_ns()};
    int rc = posix_spawn(&c->pid, words[0], &actions, NULL, (char *const *)words, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(err[1]);
    if (rc == 0) return true;
    close(err[0]);
    c->pid = 0;
    errno = rc;
    return false;
}

/* Takes what it said meanwhile; when the ready line is there, the port. */
static inline void child_listen(struct child *c) {
    for (;;) {
        if (c->said_len > CHILD_SAID_MAX / 2 && c->port > 0) { /* only the newest is of interest */
            memmove(c->said, c->said + c->said_len - 1024, 1024);
            c->said_len = 1024;
        }
        ssize_t n = read(c->err, c->said + c->said_len, CHILD_SAID_MAX - 1 - c->said_len);
        if (n <= 0) break;
        c->said_len += (size_t)n;
    }
    c->said[c->said_len] = 0;
    const char *ready = c->port == 0 ? strstr(c->said, " ready: ") : NULL;
    const char *at = ready ? strstr(ready, "http://127.0.0.1:") : NULL;
    if (!at || !strchr(at, '\n')) return;
    str number = str_c(at + strlen("http://127.0.0.1:"));
    int64_t port = 0;
    if (str_take_int(&number, &port)) c->port = (int)port;
}

/* Waits for the ready line. */
static inline bool child_ready(struct child *c, int64_t wait_ms) {
    int64_t end = clock_mono_ns() + wait_ms * 1000000;
    while (c->port == 0 && clock_mono_ns() < end) {
        struct pollfd fd = {.fd = c->err, .events = POLLIN};
        (void)poll(&fd, 1, 50);
        child_listen(c);
        if (fd.revents & POLLHUP) break;
    }
    return c->port > 0;
}

/* Whether it has ended by itself; *how as from waitpid(). */
static inline bool child_ended(struct child *c, int *how) {
    if (c->pid == 0 || waitpid(c->pid, how, WNOHANG) != c->pid) return false;
    child_listen(c);
    close(c->err);
    c->pid = 0;
    c->port = 0;
    return true;
}

/* Ends it with a signal (0: waits for its own end). Returns the status as from waitpid(). */
static inline int child_end(struct child *c, int signal_number) {
    int how = 0;
    if (c->pid == 0) return 0;
    (void)kill(c->pid, signal_number);
    while (waitpid(c->pid, &how, 0) < 0 && errno == EINTR)
        continue;
    child_listen(c);
    close(c->err);
    c->pid = 0;
    c->port = 0;
    return how;
}

/* As many descriptors as we may have, for us and for our children. */
static inline size_t child_raise_files(void) {
    struct rlimit limit = {0};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 256;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    return (size_t)limit.rlim_cur;
}

/* A folder for one test; removed with child_remove_folder(). */
static inline bool child_folder(const char *name, char *out, size_t size) {
    const char *parent = getenv("TMPDIR");
    snprintf(out, size, "%s/cairn-%s.XXXXXX", parent && parent[0] ? parent : "/tmp", name);
    return mkdtemp(out) != NULL;
}

static inline void child_remove_folder(const char *folder) {
    const char *const words[] = {"/bin/rm", "-rf", folder, NULL};
    pid_t pid = 0;
    if (posix_spawn(&pid, words[0], NULL, NULL, (char *const *)words, environ) == 0)
        (void)waitpid(pid, NULL, 0);
}
