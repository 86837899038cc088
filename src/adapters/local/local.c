/* adapters/local/local.c: attempts come in, wait for their turn, run, and are answered. */
#include "adapters/local/local.h"

#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <unistd.h>

#include "adapters/local/impl.h"
#include "adapters/local/secret.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/os.h"

enum { JOB_ARENA_FIRST = 4096 };

/* ---- jobs ---- */

void job_fail(struct job *job, enum reason code, const char *fmt, ...) {
    job->ok = false;
    job->code = code;
    va_list args;
    va_start(args, fmt);
    vsnprintf(job->message, sizeof job->message, fmt, args);
    va_end(args);
}

static void executor_free_if_over(struct executor *ex);

static void job_free_if_over(struct job *job) {
    if (job->handles > 0 || !job->answered) return;
    struct executor *ex = job->ex;
    exec_release(job);
    buf_release(&job->output);
    buf_release(&job->detail);
    arena_release(&job->arena);
    mem_free(job);
    ex->jobs--;
    if (ex->jobs == 0 && !ex->closing) uv_unref((uv_handle_t *)&ex->wake);
    executor_free_if_over(ex);
}

void job_handle_closed(uv_handle_t *handle) {
    struct job *job = handle->data;
    ASSERT(job->handles > 0);
    job->handles--;
    job_free_if_over(job);
}

static struct job_list *list_of(struct job *job) {
    switch (job->state) {
    case JOB_WAITING:
        return &job->ex->waiting;
    case JOB_HTTP_WAITING:
        return &job->ex->http_waiting;
    case JOB_ENDED:
        return &job->ex->ended;
    case JOB_SPAWNING:
    case JOB_RUNNING:
    case JOB_DRAINING:
    case JOB_HTTP:
        break;
    }
    return &job->ex->active;
}

static void job_move(struct job *job, enum job_state state) {
    TAILQ_REMOVE(list_of(job), job, link);
    job->state = state;
    TAILQ_INSERT_TAIL(list_of(job), job, link);
}

void job_ended(struct job *job) {
    ASSERT(job->state != JOB_ENDED);
    job_move(job, JOB_ENDED);
    uv_close((uv_handle_t *)&job->timer, job_handle_closed);
    uv_async_send(&job->ex->wake);
}

/* Nothing that leaves the executor holds a secret: a message may quote what a program said. */
static void job_answer(struct job *job) {
    struct attempt *attempt = job->attempt;
    TAILQ_REMOVE(&job->ex->ended, job, link);
    attempt->executor_data = NULL;
    struct buf message;
    buf_init(&message, sizeof job->message);
    str text = str_c(job->message);
    text = text_uncut(text, false, true); /* vsnprintf() may have cut a character */
    if (!mask_text(&job->mask, text, &message)) buf_put_c(&message, "out of memory");
    struct outcome o = {.ok = job->ok};
    if (!o.ok)
        o = outcome_failed(job->code, buf_str(&message));
    else if (job->output.len > 0)
        o.output = buf_str(&job->output);
    if (job->detail.len > 0) o.detail = buf_str(&job->detail);
    attempt->done(attempt, &o);
    buf_release(&message);
    job->answered = true;
    job_free_if_over(job);
}

void job_launch_waiting(struct executor *ex) {
    while (!ex->closing && !ex->starved && ex->processes < ex->processes_max &&
           !TAILQ_EMPTY(&ex->waiting)) {
        struct job *job = TAILQ_FIRST(&ex->waiting);
        job_move(job, JOB_SPAWNING);
        exec_launch(job);
    }
    while (!ex->closing && !TAILQ_EMPTY(&ex->http_waiting) && http_has_room(ex)) {
        struct job *job = TAILQ_FIRST(&ex->http_waiting);
        job_move(job, JOB_HTTP);
        http_launch(job);
    }
}

/* ---- what steps have in common ---- */

bool job_body(struct job *job, yyjson_val **out) {
    struct json_limits limits = {BODY_BYTES_MAX, JSON_DEPTH_MAX};
    struct error err = {0};
    if (json_parse(job->attempt->body, limits, &job->arena, out, &err) != ST_OK) {
        job_fail(job, REASON_INVALID_STEP_SCHEMA, "the step's fields: %s", err.msg);
        return false;
    }
    if (!yyjson_is_obj(*out)) {
        job_fail(job, REASON_INVALID_STEP_SCHEMA, "the step's fields are not a JSON object");
        return false;
    }
    return true;
}

static bool job_secret(struct job *job, str name, str *out) {
    struct error err = {0};
    status st = secret_resolve(job->ex->secrets_dir, job->attempt->environment_id, name,
                               &job->arena, out, &err);
    if (st != ST_OK) {
        job_fail(job, err.reason ? err.reason : REASON_SECRET_UNREADABLE, "%s", err.msg);
        return false;
    }
    if (!mask_add(&job->mask, *out)) {
        job_fail(job, REASON_SECRET_UNREADABLE, "out of memory");
        return false;
    }
    return true;
}

bool job_value(struct job *job, yyjson_val *val, const char *what, str *out) {
    str name;
    if (yyjson_is_obj(val) && yyjson_obj_size(val) == 1 &&
        json_str(json_member(val, "secret"), &name))
        return job_secret(job, name, out);
    if (json_str(val, out)) return true;
    job_fail(job, REASON_INVALID_STEP_SCHEMA, "%s: expected a string or {\"secret\":\"NAME\"}",
             what);
    return false;
}

/* ---- ends that come from outside ---- */

void job_fail_early(struct job *job) {
    bool timeout = job->interrupted == REASON_TIMEOUT;
    job_fail(job, job->interrupted, "%s before it could start",
             timeout ? "timed out" : "cancelled");
}

static void job_interrupt(struct job *job, enum reason code) {
    if (job->interrupted || job->state == JOB_DRAINING || job->state == JOB_ENDED) return;
    job->interrupted = code;
    switch (job->state) {
    case JOB_WAITING:
    case JOB_HTTP_WAITING:
        job_fail_early(job);
        job_ended(job);
        return;
    case JOB_RUNNING:
        exec_terminate(job);
        return;
    case JOB_HTTP:
        http_interrupt(job);
        return;
    case JOB_SPAWNING: /* exec_spawned() looks for it */
    case JOB_DRAINING:
    case JOB_ENDED:
        return;
    }
}

static void on_timer(uv_timer_t *timer) {
    struct job *job = timer->data;
    if (job->timer_for == TIMER_TIMEOUT)
        job_interrupt(job, REASON_TIMEOUT);
    else
        exec_timer(job);
}

void job_timer_start(struct job *job, enum job_timer timer_for, int64_t ms) {
    job->timer_for = timer_for;
    uv_update_time(job->ex->loop); /* the loop's time is that of its last turn */
    uv_timer_start(&job->timer, on_timer, ms > 0 ? (uint64_t)ms : 0, 0);
}

/* ---- the port ---- */

static struct job *job_open(struct executor *ex, struct attempt *attempt) {
    struct job *job = mem_alloc(sizeof *job);
    if (!job) return NULL;
    job->ex = ex;
    job->attempt = attempt;
    arena_init(&job->arena, JOB_ARENA_FIRST, JOB_ARENA_MAX);
    mask_init(&job->mask, &job->arena);
    uv_timer_init(ex->loop, &job->timer);
    job->timer.data = job;
    job->handles = 1;
    if (ex->jobs == 0 && !ex->closing)
        uv_ref((uv_handle_t *)&ex->wake); /* work keeps the loop alive */
    ex->jobs++;
    attempt->executor_data = job;
    return job;
}

void executor_start(struct executor *ex, struct attempt *attempt) {
    struct job *job = job_open(ex, attempt);
    if (!job) { /* the one answer that cannot wait: there is nothing to wait in */
        attempt_fail(attempt, REASON_SPAWN_FAILED, STR("out of memory"));
        return;
    }
    if (attempt->timeout_ms > 0) job_timer_start(job, TIMER_TIMEOUT, attempt->timeout_ms);
    enum plan_type type = attempt->step->type;
    job->state = type == PLAN_EXEC ? JOB_WAITING : JOB_HTTP_WAITING;
    TAILQ_INSERT_TAIL(list_of(job), job, link);
    if (ex->closing) {
        job_fail(job, REASON_CANCELLED, "cancelled: the executor is closing");
        job_ended(job);
    } else if (type == PLAN_EXEC || type == PLAN_HTTP) {
        job_launch_waiting(ex);
    } else {
        job_fail(job, REASON_STEP_TYPE_UNSUPPORTED,
                 "the local executor does not carry out %s steps", plan_type_name(type));
        job_ended(job);
    }
}

void executor_stop(struct executor *ex, struct attempt *attempt) {
    struct job *job = attempt->executor_data;
    if (!job) return; /* answered */
    ASSERT(job->ex == ex);
    job_interrupt(job, REASON_CANCELLED);
}

/* Answers what has ended by now; what ends meanwhile has its answer in the next turn. */
static void on_wake(uv_async_t *handle) {
    struct executor *ex = handle->data;
    for (struct spawn *s = spawner_take(ex->spawner); s; s = spawner_take(ex->spawner))
        exec_spawned(s->owner);
    job_launch_waiting(ex);
    const struct job *last = TAILQ_LAST(&ex->ended, job_list);
    for (bool more = last != NULL; more;) {
        struct job *job = TAILQ_FIRST(&ex->ended);
        more = job != last;
        job_answer(job);
    }
    if (!TAILQ_EMPTY(&ex->ended)) uv_async_send(&ex->wake);
}

/* ---- open and close ---- */

static void spawner_notify(void *context) { uv_async_send(context); }

static void executor_free_if_over(struct executor *ex) {
    if (!ex->closing || ex->jobs > 0 || ex->handles > 0) return;
    mem_free(ex->read_room);
    buf_release(&ex->mask_room);
    arena_release(&ex->arena);
    mem_free(ex);
}

static void executor_handle_closed(uv_handle_t *handle) {
    struct executor *ex = handle->data;
    ex->handles--;
    executor_free_if_over(ex);
}

static bool options_copy(struct executor *ex, const struct local_options *o) {
    ex->guard = o->guard;
    ex->kill_grace_ms = o->kill_grace_ms > 0 ? o->kill_grace_ms : LOCAL_KILL_GRACE_MS;
    ex->output_max = o->output_max > 0 ? o->output_max : LOCAL_OUTPUT_MAX;
    ex->log_max = o->log_max > 0 ? o->log_max : LOCAL_LOG_MAX;
    ex->processes_max = o->processes_max > 0 ? o->processes_max : LOCAL_PROCESSES_MAX;
    ex->no_pidfd = o->no_pidfd;
    engine_text(ex->engine);
    ex->base_env = exec_base_env(&ex->arena);
    ex->read_room = mem_alloc(READ_BYTES);
    return ex->base_env && ex->read_room &&
           arena_try_str(&ex->arena, o->secrets_dir, &ex->secrets_dir);
}

/* Its real path: steps may have another working folder than we, and orphans are found by it. */
static status folders_make(struct executor *ex, str data_dir, struct error *err) {
    char path[PATH_MAX];
    char real[PATH_MAX];
    int n = snprintf(path, sizeof path, "%.*s/work", STR_ARG(data_dir));
    if (n >= (int)sizeof path)
        return error_set(err, ST_INVALID, "the data folder's path is too long");
    status st = dir_make(str_c(path), err);
    if (st != ST_OK) return st;
    path[data_dir.len] = '\0';
    if (!realpath(path, real)) return error_set(err, ST_RETRY, "could not find \"%s\"", path);
    if (!arena_try_str(&ex->arena, str_c(real), &ex->data_dir))
        return error_set(err, ST_RETRY, "out of memory");
    return ST_OK;
}

/* Children of a process that ignores SIGCHLD leave no exit code: a parent of ours may have set it.
 */
static void child_signal_heed(void) {
    struct sigaction now;
    struct sigaction plain = {.sa_handler = SIG_DFL};
    if (sigaction(SIGCHLD, NULL, &now) == 0 && now.sa_handler == SIG_IGN)
        sigaction(SIGCHLD, &plain, NULL);
}

static status handles_open(struct executor *ex, struct error *err) {
    if (uv_async_init(ex->loop, &ex->wake, on_wake) != 0)
        return error_set(err, ST_RETRY, "could not add the executor to the loop");
    ex->wake.data = ex;
    ex->handles++;
    uv_unref((uv_handle_t *)&ex->wake);
    if (uv_signal_init(ex->loop, &ex->child_signal) != 0)
        return error_set(err, ST_RETRY, "could not add the executor to the loop");
    ex->child_signal.data = ex;
    ex->handles++;
    uv_unref((uv_handle_t *)&ex->child_signal);
    return spawner_open(spawner_notify, &ex->wake, &ex->spawner, err);
}

status executor_open_local(uv_loop_t *loop, const struct local_options *options,
                           struct executor **out, struct error *err) {
    struct executor *ex = mem_alloc(sizeof *ex);
    if (!ex) return error_set(err, ST_RETRY, "out of memory");
    ex->loop = loop;
    arena_init(&ex->arena, JOB_ARENA_FIRST, JOB_ARENA_MAX);
    buf_init(&ex->mask_room, MASK_ROOM_MAX);
    TAILQ_INIT(&ex->waiting);
    TAILQ_INIT(&ex->http_waiting);
    TAILQ_INIT(&ex->active);
    TAILQ_INIT(&ex->ended);
    status st = options_copy(ex, options) ? folders_make(ex, options->data_dir, err)
                                          : error_set(err, ST_RETRY, "out of memory");
    child_signal_heed();
    if (st == ST_OK) st = handles_open(ex, err);
    if (st != ST_OK) {
        executor_close(ex);
        return st;
    }
    *out = ex;
    return ST_OK;
}

/* Ends all jobs, with their answers made but not given. */
static void jobs_end(struct executor *ex) {
    spawner_stop(ex->spawner);
    for (struct spawn *s = spawner_take(ex->spawner); s; s = spawner_take(ex->spawner)) {
        struct job *job = s->owner;
        if (!job->interrupted) job->interrupted = REASON_CANCELLED;
        exec_spawned(job);
    }
    while (!TAILQ_EMPTY(&ex->waiting))
        job_interrupt(TAILQ_FIRST(&ex->waiting), REASON_CANCELLED);
    while (!TAILQ_EMPTY(&ex->http_waiting))
        job_interrupt(TAILQ_FIRST(&ex->http_waiting), REASON_CANCELLED);
    while (!TAILQ_EMPTY(&ex->active)) {
        struct job *job = TAILQ_FIRST(&ex->active);
        job_interrupt(job, REASON_CANCELLED);
        exec_kill(job);
    }
}

void executor_close(struct executor *ex) {
    if (!ex) return;
    ex->closing = true;
    if (ex->spawner) jobs_end(ex);
    while (!TAILQ_EMPTY(&ex->ended))
        job_answer(TAILQ_FIRST(&ex->ended));
    http_close(ex);
    spawner_close(ex->spawner); /* only now: its threads' end would kill their children */
    if (ex->handles > 0) uv_close((uv_handle_t *)&ex->wake, executor_handle_closed);
    if (ex->handles > 1) uv_close((uv_handle_t *)&ex->child_signal, executor_handle_closed);
    executor_free_if_over(ex);
}
