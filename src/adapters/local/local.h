/* adapters/local/local.h: carries out exec and http steps in this process, on a libuv loop.
 *
 * One executor belongs to the thread that runs its loop; all calls and all answers happen there.
 * Processes are started by a few threads that live as long as the executor (spawn.h), because
 * starting one holds its caller until the new program is in place. Every process has a group and a
 * session of its own; when Cairn dies, the kernel kills it (PR_SET_PDEATHSIG), and what it had
 * started itself is found by local_kill_orphans() at the next start. */
#pragma once

#include <uv.h>

#include "adapters/executor.h"
#include "base/buf.h"
#include "core/url_guard.h"

enum {
    LOCAL_KILL_GRACE_MS = 5000, /* between SIGTERM and SIGKILL */
    LOCAL_EOF_WAIT_MS = 1000,   /* for the pipes of a process that has ended */
    LOCAL_PROCESSES_MAX = 256,  /* at a time; three descriptors each, so they fit the usual 1024 */
    LOCAL_STDERR_TAIL_MAX = 2048,
    LOCAL_BODY_HEAD_MAX = 2048, /* of an http answer that is a failure */
};
#define LOCAL_OUTPUT_MAX ((size_t)64 * 1024)
#define LOCAL_LOG_MAX ((size_t)16 * 1024 * 1024)

struct local_options { /* zero stands for the default */
    str data_dir;
    str secrets_dir;           /* STR_NONE: no files, the environment only */
    const struct guard *guard; /* which URLs http steps may call; NULL: none. Borrowed */
    int64_t kill_grace_ms;
    size_t output_max; /* bytes of stdout, or of an http body, that become the step's output */
    size_t log_max;    /* bytes of one log file */
    int processes_max; /* more wait, first come first served */
    bool no_pidfd;     /* learn of ends by SIGCHLD, as on a kernel without pidfd_open() */
};

/* Opens an executor on `loop`, which must live longer. Makes the data folder if it is missing. */
MUST_CHECK status executor_open_local(uv_loop_t *loop, const struct local_options *options,
                                      struct executor **out, struct error *err);
/* Kills and reaps what runs, answers every attempt (CANCELLED), and gives all back. The last memory
 * is freed by callbacks: run the loop once more before uv_loop_close(). NULL is fine. */
void executor_close(struct executor *ex);

/* SIGKILL to every process of this user that a step under data_dir left behind when its engine
 * died. To be called once, before the first attempt. Returns how many. */
int local_kill_orphans(str data_dir);

/* The folder of a run: <data_dir>/work/<run id>, or a hash of ids that make no safe file name. */
void local_workspace_path(str data_dir, str run_id, struct buf *out);
/* Where the stdout or stderr of an attempt is written. The file is there once a byte was. */
void local_log_path(str data_dir, str run_id, str step_id, int64_t attempt, bool is_stderr,
                    struct buf *out);
