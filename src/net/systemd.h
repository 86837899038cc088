/* net/systemd.h: what a service says to systemd, and what it gets from there, without libsystemd.
 *
 * Everything comes in environment variables. Without them, so outside of systemd, all of this does
 * nothing. A variable that is there and makes no sense is told in the log and then ignored as a
 * whole: half of a list of sockets is worse than none.
 *
 * Threads: the environment belongs to the process. Call systemd_listen() and systemd_listen_fds()
 * before there are other threads, the rest from any. */
#pragma once

#include "base/base.h"

/* Tells systemd lines of NAME=VALUE, as sd_notify() does: "READY=1\nSTATUS=3 open runs". To
 * RELOADING=1 it adds the MONOTONIC_USEC that Type=notify-reload asks for.
 *
 * A state that begins with READY, RELOADING or STOPPING is said once, so while systemd's queue is
 * full it waits, at most 100 ms, and a failure is in the log. Anything else (WATCHDOG=1, STATUS=)
 * is said again soon: it never waits, and is lost when there is no room. */
void systemd_notify(const char *state);

/* Within how many ms WATCHDOG=1 must be said again and again (say it twice as often); 0: no
 * watchdog waits for this process. */
int64_t systemd_watchdog_ms(void);

enum { SYSTEMD_NAME_MAX = 255, SYSTEMD_SOCKETS_MAX = 1024 };

struct systemd_socket {
    int fd;
    char name[SYSTEMD_NAME_MAX + 1]; /* FileDescriptorName= of the unit; "unknown" without one */
};

/* The sockets of socket activation, from descriptor 3 on; the caller owns them. They are closed on
 * exec from now on, and the variables are gone, so that no child takes them for its own. Returns
 * how many; those after the first `max` are closed, and the log says so. */
size_t systemd_listen(struct systemd_socket *sockets, size_t max);
/* The same without their names. */
size_t systemd_listen_fds(int *fds, size_t max);
