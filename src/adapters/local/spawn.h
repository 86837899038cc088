/* adapters/local/spawn.h: starting programs, on a few threads of their own.
 *
 * A child that shares our memory until it is a program of its own (as with vfork()) costs nothing
 * to make, but holds the calling thread until the new program is in place, about half a
 * millisecond: on the loop's thread that alone would be the whole budget of a step. So
 * SPAWN_THREADS threads do it. They live as long as the spawner, and must: PR_SET_PDEATHSIG kills a
 * child when the thread that started it ends.
 *
 * A struct spawn belongs to the spawner from spawner_put() until spawner_take() gives it back. */
#pragma once

#include <sys/types.h>

#include "base/error.h"
#include "base/str.h"

enum { SPAWN_THREADS = 2 }; /* one starts while the other waits for the kernel; more gain nothing */

enum spawn_stage {                /* what went wrong, with spawn.error */
                   SPAWN_PREPARE, /* descriptors, memory */
                   SPAWN_FOLDER,  /* making the workspace */
                   SPAWN_FIND,    /* the command is not in PATH */
                   SPAWN_FORK,
                   SPAWN_ENTER, /* chdir */
                   SPAWN_EXEC,
};

struct spawn {
    /* What to start. All text ends in NUL. */
    const char *workspace; /* made if missing */
    str workspace_run;     /* written into it: whose it is, if its name is a hash; or STR_NONE */
    const char *cwd;
    const char *path; /* of the new environment: where argv[0] is searched, unless it has a '/' */
    char **argv, **envp;
    str input; /* stdin; STR_NONE: /dev/null */
    bool no_pidfd;
    /* What became of it. error 0: it runs, and the caller owns pid and the descriptors. */
    int error; /* errno */
    enum spawn_stage stage;
    pid_t pid;
    int pidfd;    /* -1: there is none; look for SIGCHLD */
    int out, err; /* the reading ends, which do not block */

    void *owner;        /* the caller's */
    struct spawn *next; /* the spawner's */
};

struct spawner;
/* `notify` is called, from any thread, when spawner_take() has something to give. */
MUST_CHECK status spawner_open(void (*notify)(void *context), void *context, struct spawner **out,
                               struct error *err);
/* Waits for the threads. Give back all with spawner_take() first, after spawner_stop(). */
void spawner_close(struct spawner *s);
/* No more starts: what has not begun comes back at once with ECANCELED. Waits for what has. The
 * threads stay, and with them the children. */
void spawner_stop(struct spawner *s);
void spawner_put(struct spawner *s, struct spawn *spawn);
struct spawn *spawner_take(struct spawner *s); /* NULL: nothing now */

/* Starts one program, on this thread. */
void spawn_now(struct spawn *spawn);
