#include "net/systemd.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/str.h"
#include "base/time.h"

enum {
    STATE_MAX = 4096,        /* systemd reads no more of one message */
    NOTIFY_WAIT_US = 100000, /* for what is said once */
    FIRST_FD = 3,
};

static void complain(const char *variable, const char *why) {
    LOG(LOG_WARN, "ignored what systemd said", LOG_S("variable", str_c(variable)),
        LOG_S("why", str_c(why)));
}

/* A decimal number and nothing else: no sign, no blanks, no overflow. */
static bool parse_number(str text, int64_t *out) {
    return str_take_int(&text, out) && text.len == 0 && *out < INT64_MAX;
}

/* ---- what we say ---- */

/* NOTIFY_SOCKET as an address; "@name" is one in the abstract namespace, which has no NUL. */
static bool notify_address(str path, struct sockaddr_un *address, socklen_t *len) {
    bool abstract = path.len > 0 && path.ptr[0] == '@';
    if (path.len < 2 || (!abstract && path.ptr[0] != '/')) return false;
    if (path.len > sizeof(address->sun_path) - (abstract ? 0 : 1)) return false;
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path, path.ptr, path.len);
    if (abstract) address->sun_path[0] = '\0';
    *len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + path.len + (abstract ? 0 : 1));
    return true;
}

static bool is_said_once(str state) {
    return str_starts(state, STR("READY=")) || str_starts(state, STR("RELOADING=")) ||
           str_starts(state, STR("STOPPING="));
}

/* 0, or errno */
static int notify_send(const struct sockaddr_un *address, socklen_t len, str message, bool wait) {
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return errno;
    struct timeval patience = {.tv_usec = NOTIFY_WAIT_US};
    int rc = setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    int flags = MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT);
    ssize_t sent = -1;
    if (rc == 0) {
        do
            sent =
                sendto(fd, message.ptr, message.len, flags, (const struct sockaddr *)address, len);
        while (sent < 0 && errno == EINTR);
    }
    int code = sent < 0 ? errno : 0;
    close(fd);
    return code;
}

void systemd_notify(const char *state) {
    str path = str_c(getenv("NOTIFY_SOCKET"));
    if (!path.ptr) return;
    struct sockaddr_un address;
    socklen_t len = 0;
    bool once = is_said_once(str_c(state));
    if (!notify_address(path, &address, &len)) {
        if (once) complain("NOTIFY_SOCKET", "it is no absolute path and no @name that fits");
        return;
    }
    char message[STATE_MAX];
    bool reloading = str_starts(str_c(state), STR("RELOADING=1")) && !strstr(state, "MONOTONIC");
    int n = reloading ? snprintf(message, sizeof(message), "%s\nMONOTONIC_USEC=%lld", state,
                                 (long long)(clock_mono_ns() / 1000))
                      : snprintf(message, sizeof(message), "%s", state);
    /* A longer one can only be a STATUS= that got out of hand: its beginning will do. */
    size_t size = n < (int)sizeof(message) ? (size_t)n : sizeof(message) - 1;
    int code = notify_send(&address, len, str_n(message, size), once);
    char text[128];
    if (code != 0 && once)
        LOG(LOG_WARN, "could not notify systemd", LOG_S("state", str_n(message, size)),
            LOG_S("why", str_c(strerror_r(code, text, sizeof(text)))));
}

/* ---- what we are told ---- */

/* The variable names a process. false: it makes no sense; *ours: it is absent or names us. */
static bool parse_pid(const char *variable, bool absent_is_ours, bool *ours) {
    str text = str_c(getenv(variable));
    int64_t pid = 0;
    *ours = absent_is_ours;
    if (!text.ptr) return true;
    *ours = false;
    if (!parse_number(text, &pid) || pid == 0) {
        complain(variable, "it is no process id");
        return false;
    }
    *ours = pid == getpid();
    return true;
}

int64_t systemd_watchdog_ms(void) {
    str text = str_c(getenv("WATCHDOG_USEC"));
    int64_t us = 0;
    bool ours = false;
    if (!text.ptr || !parse_pid("WATCHDOG_PID", true, &ours) || !ours) return 0;
    if (!parse_number(text, &us) || us == 0) {
        complain("WATCHDOG_USEC", "it is no number of microseconds");
        return 0;
    }
    return us < 1000 ? 1 : us / 1000;
}

/* LISTEN_FDNAMES has one name for each of `count` sockets, or is absent. */
static bool parse_names(str names, size_t count, struct systemd_socket *sockets, size_t max) {
    bool absent = !names.ptr, more = true;
    for (size_t i = 0; i < count; i++) {
        str name = STR("unknown");
        if (!absent) {
            if (!more) return false; /* too few */
            more = str_split(names, ':', &name, &names);
            if (name.len == 0 || name.len > SYSTEMD_NAME_MAX) return false;
        }
        if (i < max) snprintf(sockets[i].name, sizeof(sockets[i].name), "%.*s", STR_ARG(name));
    }
    return absent || !more; /* or too many */
}

/* How many sockets LISTEN_PID and LISTEN_FDS give to this process. */
static size_t parse_count(void) {
    str text = str_c(getenv("LISTEN_FDS"));
    int64_t count = 0;
    bool ours = false;
    if (!text.ptr || !parse_pid("LISTEN_PID", false, &ours) || !ours) return 0;
    if (!parse_number(text, &count) || count > SYSTEMD_SOCKETS_MAX) {
        complain("LISTEN_FDS", "it is no number of sockets");
        return 0;
    }
    return (size_t)count;
}

/* All of them are open, and no child inherits them. */
static bool close_on_exec(size_t count) {
    for (size_t i = 0; i < count; i++) {
        int fd = FIRST_FD + (int)i;
        int flags = fcntl(fd, F_GETFD);
        if (flags < 0 || fcntl(fd, F_SETFD, flags | FD_CLOEXEC) < 0) return false;
    }
    return true;
}

static size_t take_sockets(struct systemd_socket *sockets, size_t max) {
    size_t count = parse_count();
    if (count == 0) return 0;
    if (!close_on_exec(count)) {
        complain("LISTEN_FDS", "one of the descriptors is not open");
        return 0;
    }
    if (!parse_names(str_c(getenv("LISTEN_FDNAMES")), count, sockets, max)) {
        complain("LISTEN_FDNAMES", "it has not one name for each socket");
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        int fd = FIRST_FD + (int)i;
        if (i < max)
            sockets[i].fd = fd;
        else
            close(fd);
    }
    if (count > max) complain("LISTEN_FDS", "there are more sockets than we take");
    return count < max ? count : max;
}

size_t systemd_listen(struct systemd_socket *sockets, size_t max) {
    static const char *const variables[] = {"LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDS",
                                            "LISTEN_FDNAMES"};
    size_t count = take_sockets(sockets, max);
    for (size_t i = 0; i < COUNT_OF(variables); i++)
        unsetenv(variables[i]);
    return count;
}

size_t systemd_listen_fds(int *fds, size_t max) {
    struct systemd_socket sockets[64];
    size_t count = systemd_listen(sockets, max < COUNT_OF(sockets) ? max : COUNT_OF(sockets));
    for (size_t i = 0; i < count; i++)
        fds[i] = sockets[i].fd;
    return count;
}
