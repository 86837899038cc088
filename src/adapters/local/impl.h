/* adapters/local/impl.h: what the files of the local executor share.
 *
 * A job is one attempt under way. It is in exactly one list: waiting (for a process, or a request,
 * to end), active, or ended, whose answers are given by the next turn of the loop: so `done` is
 * never called from within executor_start() or executor_stop(), and no chain of failures can nest.
 */
#pragma once

#include <sys/queue.h>
#include <uv.h>

#include "adapters/local/local.h"
#include "adapters/local/orphan.h"
#include "adapters/local/output.h"
#include "adapters/local/spawn.h"
#include "base/arena.h"
#include "base/mask.h"

enum job_state {
    JOB_WAITING, /* for its turn */
    JOB_HTTP_WAITING,
    JOB_SPAWNING, /* its struct spawn is with the spawner */
    JOB_RUNNING,  /* a process */
    JOB_DRAINING, /* a process that has ended; its pipes have not */
    JOB_HTTP,     /* a request under way */
    JOB_ENDED,    /* the answer is made */
};
enum job_timer { TIMER_TIMEOUT, TIMER_KILL, TIMER_EOF };

struct job {
    TAILQ_ENTRY(job) link;
    struct executor *ex;
    struct attempt *attempt;
    enum job_state state;
    enum reason interrupted; /* TIMEOUT or CANCELLED: the code that its end will have; or none */
    struct arena arena;
    struct mask mask;
    uv_timer_t timer;
    enum job_timer timer_for;
    int handles; /* of libuv, that are not closed yet */
    bool answered;
    /* the answer */
    bool ok;
    enum reason code;
    char message[ERROR_MSG_MAX];
    struct buf output, detail; /* len 0: none */
    /* exec */
    struct spawn spawn;
    uv_poll_t end_poll, out_poll, err_poll;
    struct capture out, err;
    bool out_open, err_open, captures;
    int exit_code, signal; /* of the process that has ended; signal 0: it exited */
    /* http */
    struct http_step *http;
};
TAILQ_HEAD(job_list, job);

struct executor {
    uv_loop_t *loop;
    struct arena arena;
    str data_dir, secrets_dir;
    const struct guard *guard;
    int64_t kill_grace_ms;
    size_t output_max, log_max;
    int processes_max;
    bool no_pidfd;
    bool closing;
    struct spawner *spawner;
    uv_async_t wake; /* spawner_take() or `ended` has something */
    uv_signal_t child_signal;
    bool child_signal_on;
    int handles;   /* of the executor itself */
    bool starved;  /* the machine had no room for a process: wait until one of ours ends */
    int processes; /* spawning, running or draining */
    int64_t jobs;  /* not freed yet */
    struct job_list waiting, http_waiting, active, ended;
    char engine[ENGINE_TEXT_MAX];
    char **base_env; /* NAME=value, ends in NULL */
    char *read_room; /* READ_BYTES */
    struct buf mask_room;
    struct client *client; /* of http steps; NULL until the first one */
};

enum { READ_BYTES = 64 * 1024 };                  /* one read(2): what a pipe holds */
#define BODY_BYTES_MAX ((size_t)64 * 1024 * 1024) /* of a step's own fields, rendered */
#define MASK_ROOM_MAX ((size_t)1024 * 1024)       /* one read, and the longest secret before it */
#define JOB_ARENA_MAX ((size_t)1024 * 1024 * 1024)

/* local.c */
void job_fail(struct job *job, enum reason code, const char *fmt, ...) PRINTF_LIKE(3, 4);
void job_fail_early(struct job *job); /* interrupted before it ran */
void job_ended(struct job *job); /* the answer is made: gives back the timer, lets others start */
void job_timer_start(struct job *job, enum job_timer timer_for, int64_t ms);
void job_handle_closed(uv_handle_t *handle); /* for uv_close(); handle->data is the job */
void job_launch_waiting(struct executor *ex);
/* A string, or {"secret":"NAME"} as its value, which is masked from now on. false: job_fail() has
 * been called. *out is in the job's arena and ends in NUL. */
MUST_CHECK bool job_value(struct job *job, yyjson_val *val, const char *what, str *out);
/* Parses the attempt's body, an object. */
MUST_CHECK bool job_body(struct job *job, yyjson_val **out);

/* exec_step.c */
void exec_launch(struct job *job);
void exec_spawned(struct job *job);        /* its struct spawn came back */
void exec_terminate(struct job *job);      /* SIGTERM, and SIGKILL in a while */
void exec_kill(struct job *job);           /* SIGKILL, and waits for its end */
void exec_timer(struct job *job);          /* TIMER_KILL or TIMER_EOF */
void exec_check_ends(struct executor *ex); /* after SIGCHLD */
void exec_release(struct job *job);
/* exec_body.c: fills job->spawn. false: job_fail() has been called. */
MUST_CHECK bool exec_prepare(struct job *job);
/* NAME=value of what every step gets; ends in NULL. NULL: memory is out. */
char **exec_base_env(struct arena *arena);

/* http_step.c */
void http_launch(struct job *job);
bool http_has_room(const struct executor *ex); /* for one more request */
void http_interrupt(struct job *job);          /* the answer is job->interrupted */
void http_close(struct executor *ex);
