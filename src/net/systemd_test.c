#include "net/systemd.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/time.h"
#include "test.h"

/* ---- notify ---- */

/* A socket such as systemd has, at `name` (a path, or @name); NOTIFY_SOCKET leads to it. */
static int open_systemd(const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = strlen(name);
    CHECK(len < sizeof(address.sun_path), "%s", name);
    memcpy(address.sun_path, name, len);
    bool abstract = name[0] == '@';
    if (abstract) address.sun_path[0] = '\0';
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + (abstract ? 0 : 1));
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK(bind(fd, (struct sockaddr *)&address, size) == 0, "%s: %s", name, strerror(errno));
    CHECK(setenv("NOTIFY_SOCKET", name, 1) == 0);
    return fd;
}

/* The next message, or "" if there is none. */
static const char *heard(int fd, char *mem, size_t size) {
    ssize_t n = recv(fd, mem, size - 1, MSG_DONTWAIT);
    mem[n > 0 ? n : 0] = '\0';
    return mem;
}

static void check_messages(int fd) {
    static const char *const states[] = {"READY=1\nSTATUS=3 open runs", "STOPPING=1", "WATCHDOG=1",
                                         "STATUS=\xc3\xa4rgerlich"};
    char mem[8192];
    for (size_t i = 0; i < COUNT_OF(states); i++) {
        systemd_notify(states[i]);
        CHECK(strcmp(heard(fd, mem, sizeof(mem)), states[i]) == 0, "case %zu: %s", i, mem);
    }
    CHECK(heard(fd, mem, sizeof(mem))[0] == '\0', "one message each");
}

TEST(systemd_notify_reaches_a_path) {
    char name[100];
    CHECK(snprintf(name, sizeof(name), "%s/notify", test_dir()) < (int)sizeof(name));
    int fd = open_systemd(name);
    check_messages(fd);
    close(fd);
    log_setup(2, false, LOG_OFF);
    systemd_notify("READY=1"); /* nobody listens any more: a line in the log, nothing else */
    log_setup(2, false, LOG_INFO);
    unsetenv("NOTIFY_SOCKET");
}

TEST(systemd_notify_reaches_an_abstract_name) {
    char name[64];
    snprintf(name, sizeof(name), "@cairn-test-%ld", (long)getpid());
    int fd = open_systemd(name);
    check_messages(fd);
    close(fd);
    unsetenv("NOTIFY_SOCKET");
}

TEST(systemd_notify_tells_when_a_reload_began) {
    char name[100];
    char mem[8192];
    long long us = 0;
    int end = 0;
    snprintf(name, sizeof(name), "@cairn-reload-%ld", (long)getpid());
    int fd = open_systemd(name);
    int64_t before = clock_mono_ns() / 1000;
    systemd_notify("RELOADING=1");
    heard(fd, mem, sizeof(mem));
    CHECK(sscanf(mem, "RELOADING=1\nMONOTONIC_USEC=%lld%n", &us, &end) == 1, "%s", mem);
    CHECK(mem[end] == '\0' && us >= before && us <= clock_mono_ns() / 1000, "%s", mem);
    systemd_notify("RELOADING=1\nMONOTONIC_USEC=7"); /* the caller knows better */
    CHECK(strcmp(heard(fd, mem, sizeof(mem)), "RELOADING=1\nMONOTONIC_USEC=7") == 0, "%s", mem);
    close(fd);
    unsetenv("NOTIFY_SOCKET");
}

TEST(systemd_notify_cuts_what_systemd_would_not_read) {
    char name[100];
    char mem[8192];
    char state[5001] = "STATUS=";
    memset(state + 7, 'x', sizeof(state) - 8);
    snprintf(name, sizeof(name), "@cairn-long-%ld", (long)getpid());
    int fd = open_systemd(name);
    systemd_notify(state);
    CHECK(strlen(heard(fd, mem, sizeof(mem))) == 4095, "%zu", strlen(mem));
    CHECK(strncmp(mem, state, 4095) == 0);
    close(fd);
    unsetenv("NOTIFY_SOCKET");
}

TEST(systemd_notify_waits_for_nobody_for_long) {
    char name[100];
    snprintf(name, sizeof(name), "@cairn-full-%ld", (long)getpid());
    int fd = open_systemd(name);
    log_setup(2, false, LOG_OFF);
    for (int i = 0; i < 5000; i++) /* more than any queue holds; nobody reads */
        systemd_notify("WATCHDOG=1");
    int64_t start = clock_mono_ns();
    systemd_notify("WATCHDOG=1");
    systemd_notify("READY=1");
    int64_t ms = (clock_mono_ns() - start) / 1000000;
    log_setup(2, false, LOG_INFO);
    CHECK(ms >= 90 && ms < 5000, "%lld ms", (long long)ms);
    close(fd);
    unsetenv("NOTIFY_SOCKET");
}

TEST(systemd_notify_ignores_addresses_that_are_none) {
    char mem[64];
    char longest[200];
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    longest[0] = '/';
    const char *const bad[] = {"", "/", "@", "relative", "vsock:2:1234", longest};
    char name[100];
    snprintf(name, sizeof(name), "@cairn-none-%ld", (long)getpid());
    int fd = open_systemd(name);
    log_setup(2, false, LOG_OFF);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        setenv("NOTIFY_SOCKET", bad[i], 1);
        systemd_notify("READY=1");
    }
    log_setup(2, false, LOG_INFO);
    unsetenv("NOTIFY_SOCKET");
    systemd_notify("READY=1");
    CHECK(heard(fd, mem, sizeof(mem))[0] == '\0');
    close(fd);
}

/* ---- watchdog ---- */

TEST(systemd_watchdog_is_strict) {
    char own[32];
    snprintf(own, sizeof(own), "%ld", (long)getpid());
    const struct {
        const char *usec, *pid;
        int64_t ms;
    } cases[] = {{NULL, NULL, 0},
                 {"30000000", NULL, 30000},
                 {"30000000", own, 30000},
                 {"1", own, 1},
                 {"999", own, 1},
                 {"2500", own, 2},
                 {"9223372036854775806", own, 9223372036854775},
                 {"30000000", "1", 0}, /* another process's */
                 {"30000000", "", 0},
                 {"30000000", "0", 0},
                 {"30000000", "x", 0},
                 {"0", own, 0},
                 {"", own, 0},
                 {"-1", own, 0},
                 {"+1", own, 0},
                 {" 5", own, 0},
                 {"5 ", own, 0},
                 {"30s", own, 0},
                 {"9223372036854775807", own, 0}, /* the largest we can read is not a number */
                 {"99999999999999999999", own, 0}};
    log_setup(2, false, LOG_OFF);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        unsetenv("WATCHDOG_USEC");
        unsetenv("WATCHDOG_PID");
        if (cases[i].usec) setenv("WATCHDOG_USEC", cases[i].usec, 1);
        if (cases[i].pid) setenv("WATCHDOG_PID", cases[i].pid, 1);
        int64_t ms = systemd_watchdog_ms();
        CHECK(ms == cases[i].ms, "case %zu: %lld", i, (long long)ms);
    }
    log_setup(2, false, LOG_INFO);
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

/* ---- socket activation ---- */

enum { GIVEN = 3 };

struct activation {
    const char *pid; /* NULL: absent; "own": that of the child */
    const char *fds, *names;
    size_t max, want;
    const char *want_names; /* joined with ' ' */
};

static bool is_closed(int fd) { return fcntl(fd, F_GETFD) < 0 && errno == EBADF; }

static bool is_listening(int fd) {
    int on = 0;
    socklen_t size = sizeof(on);
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &size) == 0 && on == 1;
}

static void put_variable(const char *name, const char *value) {
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

/* Looks at what systemd_listen() made of it: 0, or the number of the first thing that is wrong. */
static int judge(const struct activation *a) {
    struct systemd_socket sockets[GIVEN] = {0};
    char names[3 * SYSTEMD_NAME_MAX] = "";
    size_t at = 0;
    size_t n = systemd_listen(sockets, a->max);
    if (n != a->want) return 1;
    if (getenv("LISTEN_PID") || getenv("LISTEN_FDS") || getenv("LISTEN_FDNAMES")) return 2;
    for (size_t i = 0; i < n; i++) {
        if (sockets[i].fd != 3 + (int)i || !is_listening(sockets[i].fd)) return 3;
        if (fcntl(sockets[i].fd, F_GETFD) != FD_CLOEXEC) return 4;
        at += (size_t)snprintf(names + at, sizeof(names) - at, "%s%s", i > 0 ? " " : "",
                               sockets[i].name);
    }
    if (strcmp(names, a->want_names) != 0) return 5;
    if (n > 0 && n < GIVEN && a->max == n && !is_closed(3 + (int)n)) return 6; /* the surplus */
    return 0;
}

/* A process of its own gets three listening sockets as 3, 4 and 5, as systemd hands them over. */
static int activate(const struct activation *a, const int *listening) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char own[32];
        snprintf(own, sizeof(own), "%ld", (long)getpid());
        for (int i = 0; i < GIVEN; i++)
            if (dup2(listening[i], 3 + i) < 0) _exit(100);
        close(3 + GIVEN);
        put_variable("LISTEN_PID", a->pid && strcmp(a->pid, "own") == 0 ? own : a->pid);
        put_variable("LISTEN_FDS", a->fds);
        put_variable("LISTEN_FDNAMES", a->names);
        log_setup(2, false, LOG_OFF);
        _exit(judge(a));
    }
    int result = 0;
    CHECK(waitpid(child, &result, 0) == child && WIFEXITED(result), "status %x", result);
    return WEXITSTATUS(result);
}

static int listening_socket(void) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
    CHECK(listen(fd, 1) == 0);
    int high = fcntl(fd, F_DUPFD, 20); /* out of the way of 3, 4 and 5 */
    CHECK(high >= 20);
    close(fd);
    return high;
}

TEST(systemd_listen_takes_what_is_meant_for_us) {
    char name_max[SYSTEMD_NAME_MAX + 1];
    char too_long[SYSTEMD_NAME_MAX + 2];
    memset(name_max, 'n', SYSTEMD_NAME_MAX);
    name_max[SYSTEMD_NAME_MAX] = '\0';
    memset(too_long, 'n', SYSTEMD_NAME_MAX + 1);
    too_long[SYSTEMD_NAME_MAX + 1] = '\0';
    const struct activation cases[] = {
        {"own", "3", "http:https:admin", 3, 3, "http https admin"},
        {"own", "3", NULL, 3, 3, "unknown unknown unknown"},
        {"own", "1", "cairn.socket", 3, 1, "cairn.socket"},
        {"own", "1", name_max, 3, 1, name_max},
        {"own", "3", "http:https:admin", 2, 2, "http https"}, /* the third one is closed */
        {"own", "0", NULL, 3, 0, ""},
        {NULL, NULL, NULL, 3, 0, ""},
        {NULL, "3", NULL, 3, 0, ""},
        {"1", "3", NULL, 3, 0, ""}, /* another process's */
        {"own", NULL, NULL, 3, 0, ""},
        {"", "3", NULL, 3, 0, ""},
        {"own ", "3", NULL, 3, 0, ""},
        {"0", "3", NULL, 3, 0, ""},
        {"own", "", NULL, 3, 0, ""},
        {"own", "-1", NULL, 3, 0, ""},
        {"own", "3x", NULL, 3, 0, ""},
        {"own", " 3", NULL, 3, 0, ""},
        {"own", "4", NULL, 3, 0, ""}, /* 6 is not open */
        {"own", "1025", NULL, 3, 0, ""},
        {"own", "99999999999999999999", NULL, 3, 0, ""},
        {"own", "3", "http:https", 3, 0, ""},        /* too few names, */
        {"own", "3", "http:https:admin:", 3, 0, ""}, /* too many, */
        {"own", "3", "http::admin", 3, 0, ""},       /* an empty one, */
        {"own", "1", "", 3, 0, ""},
        {"own", "1", too_long, 3, 0, ""}};
    int listening[GIVEN];
    for (int i = 0; i < GIVEN; i++)
        listening[i] = listening_socket();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int wrong = activate(&cases[i], listening);
        CHECK(wrong == 0, "case %zu: check %d", i, wrong);
    }
    for (int i = 0; i < GIVEN; i++)
        close(listening[i]);
}

TEST(systemd_listen_fds_gives_descriptors_that_accept) {
    int listening = listening_socket();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char own[32];
        int fds[4] = {-1, -1, -1, -1};
        struct sockaddr_in address;
        socklen_t size = sizeof(address);
        snprintf(own, sizeof(own), "%ld", (long)getpid());
        if (dup2(listening, 3) < 0) _exit(100);
        setenv("LISTEN_PID", own, 1);
        setenv("LISTEN_FDS", "1", 1);
        if (systemd_listen_fds(fds, COUNT_OF(fds)) != 1 || fds[0] != 3 || fds[1] != -1) _exit(1);
        int client = socket(AF_INET, SOCK_STREAM, 0);
        if (getsockname(fds[0], (struct sockaddr *)&address, &size) != 0) _exit(2);
        if (connect(client, (struct sockaddr *)&address, size) != 0) _exit(3);
        if (accept(fds[0], NULL, NULL) < 0) _exit(4);
        if (systemd_listen_fds(fds, COUNT_OF(fds)) != 0) _exit(5); /* once only */
        _exit(0);
    }
    int result = 0;
    CHECK(waitpid(child, &result, 0) == child && WIFEXITED(result), "status %x", result);
    CHECK(WEXITSTATUS(result) == 0, "check %d", WEXITSTATUS(result));
    close(listening);
}
