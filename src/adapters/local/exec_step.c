/* adapters/local/exec_step.c: the life of one process: start, streams, end, answer.
 *
 * It is over when the process has ended and both of its pipes have: or, should somebody else hold
 * them open, LOCAL_EOF_WAIT_MS after its end. When it ends, the rest of its group is killed, before
 * it is reaped: until then its number, and so its group's, cannot belong to anybody else. */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "adapters/local/impl.h"
#include "base/json.h"
#include "base/limits.h"

enum {
    READ_ROUNDS = 4,        /* reads of one stream before others have their turn */
    DRAIN_ROUNDS = 32,      /* at the end: more than the largest pipe holds */
    OUTPUT_DEPTH_SPARE = 8, /* nesting of the event around an output */
    DETAIL_BYTES_MAX = 6 * LOCAL_STDERR_TAIL_MAX + 512,
};
static_assert((int)OUTPUT_DEPTH_SPARE < (int)JSON_DEPTH_MAX, "an output may nest at all");

/* ---- the answer ---- */

static str signal_name(int sig, char *room, size_t size) {
    const char *name = sigabbrev_np(sig);
    int n = name ? snprintf(room, size, "SIG%s", name) : snprintf(room, size, "SIG%d", sig);
    return str_n(room, (size_t)n);
}

/* {"exitCode":3,"stderrTail":"..."} with more members in front. */
static void detail_make(struct job *job, const char *more) {
    struct buf *d = &job->detail;
    char room[32];
    buf_init(d, DETAIL_BYTES_MAX);
    buf_printf(d, "{%s", more);
    if (job->signal != 0)
        buf_printf(d, "\"signal\":\"%.*s\"", STR_ARG(signal_name(job->signal, room, sizeof room)));
    else
        buf_printf(d, "\"exitCode\":%d", job->exit_code);
    buf_put_c(d, ",\"stderrTail\":");
    str tail = text_uncut(buf_str(&job->err.kept), job->err.dropped, false);
    (void)text_put_json(d, tail, 6 * LOCAL_STDERR_TAIL_MAX + 2);
    buf_put_char(d, '}');
}

static void fail_too_large(struct job *job) {
    char more[96];
    snprintf(more, sizeof more, "\"outputBytes\":%llu,\"outputMax\":%zu,",
             (unsigned long long)job->out.bytes, job->ex->output_max);
    detail_make(job, more);
    job_fail(job, REASON_OUTPUT_TOO_LARGE,
             "stdout has %llu bytes; at most %zu can be a json output",
             (unsigned long long)job->out.bytes, job->ex->output_max);
}

static void answer_json(struct job *job) {
    str text = buf_str(&job->out.kept);
    struct json_limits limits = {job->ex->output_max + 1,
                                 (int)JSON_DEPTH_MAX - (int)OUTPUT_DEPTH_SPARE};
    yyjson_val *root;
    struct error err = {0};
    if (job->out.dropped || str_trim(text).len > job->ex->output_max) {
        fail_too_large(job);
    } else if (json_parse(text, limits, &job->arena, &root, &err) != ST_OK) {
        detail_make(job, "");
        if (str_trim(text).len == 0)
            job_fail(job, REASON_OUTPUT_NOT_JSON,
                     "stdout is empty where a JSON value was expected");
        else
            job_fail(job, REASON_OUTPUT_NOT_JSON, "stdout is not one JSON value: %s at %s", err.msg,
                     err.where[0] ? err.where : "its start");
    } else {
        buf_init(&job->output, 6 * job->ex->output_max + 16);
        job->ok = json_write_masked(root, &job->mask, &job->output);
        if (!job->ok) job_fail(job, REASON_OUTPUT_TOO_LARGE, "no memory for the output");
    }
}

/* Without one newline at its end; with the end cut off if it is too long, which `detail` tells. */
static void answer_text(struct job *job) {
    str text = buf_str(&job->out.kept);
    size_t max = job->ex->output_max;
    bool cut = job->out.dropped;
    if (!cut && text.len > 0 && text.ptr[text.len - 1] == '\n') text.len--;
    if (text.len > max) {
        cut = true;
        text.len = max;
    }
    if (cut) text = text_uncut(text, false, true);
    buf_init(&job->output, 2 * max + 2); /* one that is all control characters is cut earlier */
    if (!text_put_json(&job->output, text, 2 * max + 2)) cut = true;
    job->ok = !job->output.full;
    if (!job->ok) job_fail(job, REASON_OUTPUT_TOO_LARGE, "no memory for the output");
    if (!cut || !job->ok) return;
    buf_init(&job->detail, 128);
    buf_printf(&job->detail, "{\"outputTruncated\":true,\"outputBytes\":%llu}",
               (unsigned long long)job->out.bytes);
}

static void answer_output(struct job *job) {
    switch (job->attempt->step->output) {
    case PLAN_OUTPUT_JSON:
        answer_json(job);
        return;
    case PLAN_OUTPUT_TEXT:
        answer_text(job);
        return;
    case PLAN_OUTPUT_NONE:
        job->ok = true;
        return;
    }
}

static void answer_make(struct job *job) {
    char room[32];
    if (job->interrupted) {
        detail_make(job, "");
        if (job->interrupted == REASON_TIMEOUT)
            job_fail(job, REASON_TIMEOUT, "timed out after %lld ms",
                     (long long)job->attempt->timeout_ms);
        else
            job_fail(job, job->interrupted, "cancelled");
    } else if (job->signal != 0) {
        detail_make(job, "");
        job_fail(job, REASON_SIGNALLED, "killed by %.*s",
                 STR_ARG(signal_name(job->signal, room, sizeof room)));
    } else if (job->exit_code != 0) {
        detail_make(job, "");
        job_fail(job, REASON_EXIT_CODE, "exited with code %d", job->exit_code);
    } else {
        answer_output(job);
    }
}

/* ---- streams ---- */

static void poll_close(struct job *job, uv_poll_t *poll, int *fd) {
    UNUSED(job);
    uv_poll_stop(poll);
    uv_close((uv_handle_t *)poll, job_handle_closed);
    close(*fd);
    *fd = -1;
}

static void stream_close(struct job *job, bool is_err) {
    bool *open = is_err ? &job->err_open : &job->out_open;
    if (!*open) return;
    *open = false;
    poll_close(job, is_err ? &job->err_poll : &job->out_poll,
               is_err ? &job->spawn.err : &job->spawn.out);
}

static void stream_read(struct job *job, bool is_err, int rounds) {
    struct capture *c = is_err ? &job->err : &job->out;
    int fd = is_err ? job->spawn.err : job->spawn.out;
    bool open = is_err ? job->err_open : job->out_open;
    for (int i = 0; open && i < rounds; i++) {
        ssize_t n = read(fd, job->ex->read_room, READ_BYTES);
        if (n > 0) capture_feed(c, str_n(job->ex->read_room, (size_t)n), &job->ex->mask_room);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) {
            stream_close(job, is_err);
            return;
        }
    }
}

static void finish(struct job *job) {
    stream_close(job, false);
    stream_close(job, true);
    capture_end(&job->out, &job->ex->mask_room);
    capture_end(&job->err, &job->ex->mask_room);
    job->ex->processes--;
    job->ex->starved = false;
    answer_make(job);
    job_ended(job);
}

static void finish_if_over(struct job *job) {
    if (job->state == JOB_DRAINING && !job->out_open && !job->err_open) finish(job);
}

static void on_readable(uv_poll_t *poll, int error, int events) {
    UNUSED(error); /* it shows in read() */
    UNUSED(events);
    struct job *job = poll->data;
    stream_read(job, poll == &job->err_poll, READ_ROUNDS);
    finish_if_over(job);
}

static bool stream_open(struct job *job, uv_poll_t *poll, int *fd) {
    if (uv_poll_init(job->ex->loop, poll, *fd) != 0) {
        close(*fd);
        *fd = -1;
        return false; /* as if the process had closed it */
    }
    poll->data = job;
    job->handles++;
    uv_poll_start(poll, UV_READABLE, on_readable);
    return true;
}

/* ---- the end of the process ---- */

/* Reaps the process if it has ended (waits for that, if told so) and kills the rest of its group.
 */
static bool reap(struct job *job, bool wait) {
    siginfo_t info = {0};
    int flags = WEXITED | WNOWAIT | (wait ? 0 : WNOHANG);
    int result;
    do {
        result = waitid(P_PID, (id_t)job->spawn.pid, &info, flags);
    } while (result != 0 && errno == EINTR);
    if (result == 0 && info.si_pid == 0) return false;
    kill(-job->spawn.pid, SIGKILL);
    if (result == 0)
        waitid(P_PID, (id_t)job->spawn.pid, &info, WEXITED);
    else
        info = (siginfo_t){.si_code = CLD_EXITED}; /* somebody else has reaped it: not in here */
    job->signal = info.si_code == CLD_EXITED ? 0 : info.si_status;
    job->exit_code = info.si_code == CLD_EXITED ? info.si_status : 0;
    return true;
}

static void check_end(struct job *job) {
    if (job->state != JOB_RUNNING || !reap(job, false)) return;
    job->state = JOB_DRAINING;
    if (job->spawn.pidfd >= 0) poll_close(job, &job->end_poll, &job->spawn.pidfd);
    stream_read(job, false, DRAIN_ROUNDS);
    stream_read(job, true, DRAIN_ROUNDS);
    job_timer_start(job, TIMER_EOF, LOCAL_EOF_WAIT_MS);
    finish_if_over(job);
}

static void on_end(uv_poll_t *poll, int error, int events) {
    UNUSED(error);
    UNUSED(events);
    check_end(poll->data);
}

void exec_check_ends(struct executor *ex) {
    for (struct job *job = TAILQ_FIRST(&ex->active), *next; job; job = next) {
        next = TAILQ_NEXT(job, link);
        check_end(job);
    }
}

static void on_child_signal(uv_signal_t *handle, int signum) {
    UNUSED(signum);
    exec_check_ends(handle->data);
}

/* A kernel, or a sandbox, without pidfd_open(): the ends of all are announced by one signal. */
static void child_signal_use(struct executor *ex) {
    if (ex->child_signal_on) return;
    ex->child_signal_on = true;
    uv_signal_start(&ex->child_signal, on_child_signal, SIGCHLD);
}

static void end_watch(struct job *job) {
    if (job->spawn.pidfd >= 0 &&
        uv_poll_init(job->ex->loop, &job->end_poll, job->spawn.pidfd) == 0) {
        job->end_poll.data = job;
        job->handles++;
        uv_poll_start(&job->end_poll, UV_READABLE, on_end);
        return;
    }
    if (job->spawn.pidfd >= 0) close(job->spawn.pidfd);
    job->spawn.pidfd = -1;
    child_signal_use(job->ex);
    check_end(job); /* it may have ended before anybody listened */
}

/* ---- starting ---- */

static void fail_spawn(struct job *job) {
    static const char *const tried[] = {
        [SPAWN_PREPARE] = "could not make its pipes",
        [SPAWN_FOLDER] = "could not make the folder",
        [SPAWN_FIND] = "could not start",
        [SPAWN_FORK] = "could not start",
        [SPAWN_ENTER] = "could not enter",
        [SPAWN_EXEC] = "could not start",
    };
    const struct spawn *s = &job->spawn;
    const char *what = s->stage == SPAWN_FOLDER  ? s->workspace
                       : s->stage == SPAWN_ENTER ? s->cwd
                                                 : s->argv[0];
    const char *name = strerrorname_np(s->error);
    job_fail(job, REASON_SPAWN_FAILED, "%s \"%.160s\": %s%s", tried[s->stage], what,
             strerrordesc_np(s->error), s->stage == SPAWN_FIND ? " (looked in PATH)" : "");
    buf_init(&job->detail, 64);
    buf_printf(&job->detail, "{\"errno\":\"%s\"}", name ? name : "?");
}

/* No more descriptors or processes just now, but some of ours will end. */
static bool is_shortage(const struct spawn *s) {
    return (s->stage == SPAWN_PREPARE || s->stage == SPAWN_FORK) &&
           (s->error == EMFILE || s->error == ENFILE || s->error == EAGAIN);
}

void exec_launch(struct job *job) {
    if (!job->captures && !exec_prepare(job)) {
        job_ended(job);
        return;
    }
    job->captures = true;
    job->state = JOB_SPAWNING;
    job->ex->processes++;
    spawner_put(job->ex->spawner, &job->spawn);
}

void exec_spawned(struct job *job) {
    struct executor *ex = job->ex;
    if (job->spawn.error != 0) {
        ex->processes--;
        if (is_shortage(&job->spawn) && ex->processes > 0 && !job->interrupted && !ex->closing) {
            TAILQ_REMOVE(&ex->active, job, link);
            TAILQ_INSERT_HEAD(&ex->waiting, job, link);
            job->state = JOB_WAITING;
            ex->starved = true;
            return;
        }
        if (job->interrupted)
            job_fail_early(job);
        else
            fail_spawn(job);
        job_ended(job);
        return;
    }
    job->state = JOB_RUNNING;
    job->out_open = stream_open(job, &job->out_poll, &job->spawn.out);
    job->err_open = stream_open(job, &job->err_poll, &job->spawn.err);
    end_watch(job);
    if (job->interrupted && job->state == JOB_RUNNING) exec_terminate(job);
}

/* ---- ending it ---- */

void exec_terminate(struct job *job) {
    ASSERT(job->state == JOB_RUNNING);
    kill(-job->spawn.pid, SIGTERM);
    kill(-job->spawn.pid, SIGCONT); /* one that is stopped would not hear of it */
    job_timer_start(job, TIMER_KILL, job->ex->kill_grace_ms);
}

void exec_timer(struct job *job) {
    if (job->timer_for == TIMER_KILL && job->state == JOB_RUNNING)
        kill(-job->spawn.pid, SIGKILL); /* its end is told as any other */
    else if (job->timer_for == TIMER_EOF && job->state == JOB_DRAINING)
        finish(job);
}

void exec_kill(struct job *job) {
    if (job->state == JOB_RUNNING) {
        kill(-job->spawn.pid, SIGKILL);
        (void)reap(job, true);
        if (job->spawn.pidfd >= 0) poll_close(job, &job->end_poll, &job->spawn.pidfd);
        job->state = JOB_DRAINING;
        stream_read(job, false, DRAIN_ROUNDS);
        stream_read(job, true, DRAIN_ROUNDS);
    }
    if (job->state == JOB_DRAINING) finish(job);
}

void exec_release(struct job *job) {
    if (!job->captures) return;
    capture_release(&job->out);
    capture_release(&job->err);
}
