/* adapters/temporal/worker.c: activities. A job is one activity task of this process: its input
 * names the plan, the step and the attempt, the executor carries it out, heartbeats keep it alive
 * at the cluster and bring back that it is not wanted any more.
 *
 * A step that failed has failed for good, as far as the cluster is concerned: the engine decides
 * whether there is another attempt. Only what did not happen (a shutdown, a plan that could not be
 * read yet) is told as a failure that the cluster may try elsewhere. */
#include "adapters/temporal/impl.h"

#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"

enum {
    JOB_ARENA_FIRST = 8192,
    WAIT_MS = 250, /* between two looks for a plan that is being fetched */
    WAIT_MS_MAX = 60000,
    ANSWER_PAUSE_MS = 1000, /* between two tries to tell a result to a cluster that is down */
    ANSWER_TRIES_MAX = 300,
};
#define JOB_ARENA_MAX ((size_t)64 * 1024 * 1024)

enum job_state { JOB_POLLS, JOB_WAITS, JOB_RUNS, JOB_ANSWERS };
struct job {
    TAILQ_ENTRY(job) link;
    struct temporal *t;
    struct arena arena;
    const Tp__ActivityResponse *poll;
    enum job_state state;
    struct attempt attempt;
    struct plan_ref plan_ref;
    const struct plan *plan;
    str step_id;
    struct rpc_call *call;      /* the poll, or the answer */
    struct rpc_call *heartbeat; /* under way, or NULL */
    bool cancelled;             /* the cluster asked us to end it */
    bool lost;                  /* the cluster does not know it any more: no answer */
    enum rpc_method method;     /* of the answer */
    str code, message, json;    /* of the answer: a failure, or a value */
    bool retryable;
    int tries;
    uint64_t waits_until;
    uv_timer_t timer; /* JOB_WAITS: look again; JOB_RUNS: heartbeat; JOB_ANSWERS: try again */
};

static void on_job_closed(uv_handle_t *handle) {
    struct job *job = handle->data;
    struct temporal *t = job->t;
    arena_release(&job->arena);
    mem_free(job);
    t->handles--;
    temporal_check_end(t);
}

static void job_free(struct job *job) {
    struct temporal *t = job->t;
    if (job->call) rpc_cancel(job->call);
    if (job->heartbeat) rpc_cancel(job->heartbeat);
    if (job->plan) t->ports.plan_done(t->ports.context, job->plan);
    TAILQ_REMOVE(&t->jobs, job, link);
    if (job->state == JOB_POLLS)
        t->job_polls--;
    else
        t->job_count--;
    uv_close((uv_handle_t *)&job->timer, on_job_closed);
    if (t->closing) temporal_check_end(t);
}

/* And its slot is free for another. */
static void job_end(struct job *job) {
    struct temporal *t = job->t;
    job_free(job);
    jobs_poll(t);
}

/* ---- the answer ---- */

static void job_send(struct job *job);

static void on_send_again(uv_timer_t *timer) { job_send(timer->data); }

static void on_sent(void *context, const struct rpc_answer *answer) {
    struct job *job = context;
    struct temporal *t = job->t;
    job->call = NULL;
    bool later = answer->code == GRPC_UNAVAILABLE || answer->code == GRPC_RESOURCE_EXHAUSTED ||
                 answer->code == GRPC_DEADLINE_EXCEEDED;
    if (later && !t->closing && ++job->tries < ANSWER_TRIES_MAX) {
        uv_timer_start(&job->timer, on_send_again, ANSWER_PAUSE_MS, 0);
        return;
    }
    if (answer->code != GRPC_OK && answer->code != GRPC_NOT_FOUND)
        LOG(LOG_WARN, "temporal: the result of an attempt was not taken; it will be executed again",
            LOG_S("run", job->attempt.run_id), LOG_S("step", job->step_id),
            LOG_S("code", str_c(grpc_code_name(answer->code))), LOG_S("why", answer->message));
    struct temporal_run *r =
        answer->code == GRPC_NOT_FOUND ? execution_find(t, job->attempt.run_id) : NULL;
    if (r) execution_suspect(r);
    job_end(job);
}

static status send_completed(struct job *job, struct error *err) {
    struct temporal *t = job->t;
    Tp__ActivityCompletedRequest request = TP__ACTIVITY_COMPLETED_REQUEST__INIT;
    request.task_token = job->poll->task_token;
    request.result = wire_json_list(job->json, &job->arena);
    request.identity = wire_bytes(t->identity);
    request.namespace_ = wire_bytes(t->ns);
    if (!request.result) return error_set(err, ST_RETRY, "out of memory");
    return rpc_start(t->rpc, job->method, &request.base, NULL, on_sent, job, &job->call, err);
}

static status send_failed(struct job *job, struct error *err) {
    struct temporal *t = job->t;
    Tp__ActivityFailedRequest request = TP__ACTIVITY_FAILED_REQUEST__INIT;
    request.task_token = job->poll->task_token;
    request.failure = wire_failure(job->code, job->message, job->json, job->retryable, &job->arena);
    request.identity = wire_bytes(t->identity);
    request.namespace_ = wire_bytes(t->ns);
    if (!request.failure) return error_set(err, ST_RETRY, "out of memory");
    return rpc_start(t->rpc, job->method, &request.base, NULL, on_sent, job, &job->call, err);
}

static status send_canceled(struct job *job, struct error *err) {
    struct temporal *t = job->t;
    Tp__ActivityCanceledRequest request = TP__ACTIVITY_CANCELED_REQUEST__INIT;
    request.task_token = job->poll->task_token;
    request.identity = wire_bytes(t->identity);
    request.namespace_ = wire_bytes(t->ns);
    return rpc_start(t->rpc, job->method, &request.base, NULL, on_sent, job, &job->call, err);
}

static void job_send(struct job *job) {
    struct error err = {0};
    struct arena_mark mark = arena_mark(&job->arena);
    status st = job->method == RPC_ACTIVITY_COMPLETED ? send_completed(job, &err)
                : job->method == RPC_ACTIVITY_FAILED  ? send_failed(job, &err)
                                                      : send_canceled(job, &err);
    arena_rewind(&job->arena, mark);
    if (st == ST_OK) return;
    if (++job->tries < ANSWER_TRIES_MAX && !job->t->closing) {
        uv_timer_start(&job->timer, on_send_again, ANSWER_PAUSE_MS, 0);
        return;
    }
    job_end(job);
}

static void job_answer(struct job *job, enum rpc_method method) {
    struct temporal *t = job->t;
    ASSERT(job->state == JOB_WAITS || job->state == JOB_RUNS);
    job->state = JOB_ANSWERS;
    job->method = method;
    uv_timer_stop(&job->timer);
    if (job->heartbeat) rpc_cancel(job->heartbeat);
    job->heartbeat = NULL;
    if (job->plan) t->ports.plan_done(t->ports.context, job->plan);
    job->plan = NULL;
    if (job->lost)
        job_end(job);
    else
        job_send(job);
}

/* The texts are copied, cut to what fits an answer. */
static void job_fail(struct job *job, str code, str message, str detail, bool retryable) {
    if (message.len > WIRE_PAYLOAD_MAX / 4) message.len = WIRE_PAYLOAD_MAX / 4;
    if (detail.len > WIRE_PAYLOAD_MAX / 2) detail = STR_NONE;
    if (!arena_try_str(&job->arena, code, &job->code) ||
        !arena_try_str(&job->arena, message, &job->message) ||
        !arena_try_str(&job->arena, detail, &job->json)) {
        job->code = STR("PROVIDER_FAILURE");
        job->message = STR("out of memory for the answer");
        job->json = STR_NONE;
    }
    job->retryable = retryable;
    job_answer(job, RPC_ACTIVITY_FAILED);
}

static void job_complete(struct job *job, str output) {
    struct buf b;
    buf_init(&b, WIRE_PAYLOAD_MAX);
    buf_put_c(&b, "{");
    if (output.ptr) buf_put_c(&b, "\"output\":");
    if (output.ptr) buf_put(&b, output);
    buf_put_c(&b, "}");
    bool good = !b.full && arena_try_str(&job->arena, buf_str(&b), &job->json);
    buf_release(&b);
    if (good)
        job_answer(job, RPC_ACTIVITY_COMPLETED);
    else
        job_fail(job, STR("OUTPUT_TOO_LARGE"), STR("the output is more than the cluster takes"),
                 STR_NONE, false);
}

static void on_attempt_done(struct attempt *attempt, const struct outcome *o) {
    struct job *job = attempt->context;
    if (o->ok)
        job_complete(job, o->output);
    else if (!str_eq(o->code, STR("CANCELLED")))
        job_fail(job, o->code, o->message, o->detail, false);
    else if (job->cancelled)
        job_answer(job, RPC_ACTIVITY_CANCELED);
    else /* nobody at the cluster wanted that: it is this process that ends */
        job_fail(job, STR("WORKER_SHUTDOWN"), STR("the worker shut down"), STR_NONE, true);
}

/* ---- heartbeats ---- */

static void job_stop(struct job *job) {
    if (job->state == JOB_RUNS)
        executor_stop(job->t->ports.executor, &job->attempt);
    else if (job->state == JOB_WAITS && job->cancelled)
        job_answer(job, RPC_ACTIVITY_CANCELED);
    else if (job->state == JOB_WAITS)
        job_fail(job, STR("WORKER_SHUTDOWN"), STR("the worker shut down"), STR_NONE, true);
}

static void on_heartbeat(void *context, const struct rpc_answer *answer) {
    struct job *job = context;
    job->heartbeat = NULL;
    if (answer->code == GRPC_OK) {
        const Tp__HeartbeatResponse *response = answer->value;
        if (!response->cancel_requested || job->cancelled) return;
        job->cancelled = true;
        job_stop(job);
    } else if (answer->code == GRPC_NOT_FOUND && !job->lost) {
        struct temporal_run *r = execution_find(job->t, job->attempt.run_id);
        if (r) execution_suspect(r);
        job->lost = true;
        job_stop(job);
    }
}

static void job_heartbeat(struct job *job) {
    struct temporal *t = job->t;
    struct error err;
    if (job->heartbeat || job->lost) return;
    Tp__ActivityCanceledRequest request = TP__ACTIVITY_CANCELED_REQUEST__INIT;
    request.task_token = job->poll->task_token;
    request.identity = wire_bytes(t->identity);
    request.namespace_ = wire_bytes(t->ns);
    if (rpc_start(t->rpc, RPC_HEARTBEAT, &request.base, NULL, on_heartbeat, job, &job->heartbeat,
                  &err) != ST_OK)
        job->heartbeat = NULL; /* the next one may have more luck */
}

static void on_heartbeat_timer(uv_timer_t *timer) { job_heartbeat(timer->data); }

/* ---- the input ---- */

static bool take_str(yyjson_val *root, const char *name, size_t bytes_max, str *out) {
    return json_str(json_member(root, name), out) && out->len > 0 && out->len <= bytes_max;
}

static status job_parse(struct job *job, struct error *err) {
    struct json_limits limits = {WIRE_PAYLOAD_MAX + 1024, JSON_DEPTH_MAX + 2};
    struct attempt *a = &job->attempt;
    yyjson_val *root = NULL;
    str correlation;
    if (!job->poll->activity_type ||
        !str_eq(wire_str(job->poll->activity_type->name), ACTIVITY_TYPE))
        return error_set(err, ST_INVALID, "the activity is of a type that is not ours");
    str text = wire_json_of(job->poll->input);
    if (!text.ptr) return error_set(err, ST_INVALID, "the input of the activity is not JSON");
    status st = json_parse(text, limits, &job->arena, &root, err);
    if (st != ST_OK) return st;
    yyjson_val *body = json_member(root, "body");
    yyjson_val *ref = json_member(root, "planRef");
    bool good = yyjson_obj_size(root) == 10 && take_str(root, "runId", ID_BYTES_MAX, &a->run_id) &&
                take_str(root, "tenantId", ID_BYTES_MAX, &a->tenant_id) &&
                take_str(root, "projectId", ID_BYTES_MAX, &a->project_id) &&
                take_str(root, "environmentId", ID_BYTES_MAX, &a->environment_id) &&
                take_str(root, "stepId", ID_BYTES_MAX, &job->step_id) &&
                take_str(root, "correlationId", UUID_TEXT_LEN, &correlation) &&
                uuid_parse(correlation, &a->correlation) &&
                json_int(json_member(root, "attempt"), &a->number) && a->number > 0 &&
                json_int(json_member(root, "timeoutMs"), &a->timeout_ms) && a->timeout_ms >= 0 &&
                yyjson_is_obj(body) && ref;
    if (!good) return error_set(err, ST_INVALID, "the input of the activity is not an attempt");
    st = plan_ref_read(ref, &job->plan_ref, err);
    if (st != ST_OK) return st;
    a->body = json_text(body, &job->arena);
    a->plan_ref = json_text(ref, &job->arena);
    str id = activity_id(job->step_id, a->number, &job->arena);
    if (!a->body.ptr || !a->plan_ref.ptr || !id.ptr)
        return error_set(err, ST_RETRY, "out of memory");
    if (!str_eq(id, wire_str(job->poll->activity_id)) || !job->poll->execution ||
        !str_eq(a->run_id, wire_str(job->poll->execution->workflow_id)))
        return error_set(err, ST_INVALID, "the activity has the input of another attempt");
    return ST_OK;
}

/* ---- running ---- */

/* Its predecessor, given up by the cluster, may still be on its way out in this very process. */
static bool job_has_twin(const struct job *job) {
    for (const struct job *other = TAILQ_FIRST(&job->t->jobs); other;
         other = TAILQ_NEXT(other, link)) {
        if (other != job && other->state == JOB_RUNS &&
            str_eq(wire_str(other->poll->activity_id), wire_str(job->poll->activity_id)) &&
            str_eq(other->attempt.run_id, job->attempt.run_id))
            return true;
    }
    return false;
}

static void job_try(struct job *job);
static void on_job_try(uv_timer_t *timer) {
    job_heartbeat(timer->data);
    job_try(timer->data);
}

static void job_wait(struct job *job, const char *why) {
    if (now_ms(job->t) < job->waits_until)
        uv_timer_start(&job->timer, on_job_try, WAIT_MS, 0);
    else
        job_fail(job, STR("PLAN_UNAVAILABLE"), str_c(why), STR_NONE, true);
}

static void job_run(struct job *job) {
    struct temporal *t = job->t;
    int64_t at = plan_find(job->plan, job->step_id);
    if (at < 0 || !plan_type_is_executed(job->plan->steps[at].type)) {
        job_fail(job, STR("ATTEMPT_INVALID"), STR("the plan has no such step to execute"), STR_NONE,
                 false);
        return;
    }
    job->attempt.step = &job->plan->steps[at];
    job->attempt.done = on_attempt_done;
    job->attempt.context = job;
    job->state = JOB_RUNS;
    uint64_t every = (uint64_t)t->heartbeat_ms / 4;
    uv_timer_start(&job->timer, on_heartbeat_timer, every, every);
    executor_start(t->ports.executor, &job->attempt);
}

static void job_try(struct job *job) {
    struct temporal *t = job->t;
    struct error err = {0};
    if (job_has_twin(job)) {
        job_wait(job, "the attempt before this one has not ended yet");
        return;
    }
    status st =
        t->ports.plan(t->ports.context, job->attempt.tenant_id, &job->plan_ref, &job->plan, &err);
    if (st == ST_OK) {
        job_run(job);
    } else if (st == ST_RETRY) {
        job->plan = NULL;
        job_wait(job, err.msg[0] ? err.msg : "the plan could not be read in time");
    } else {
        job->plan = NULL;
        job_fail(job, str_c(err.reason ? err.reason : "PLAN_INVALID"), str_c(err.msg), STR_NONE,
                 false);
    }
}

/* Workers of other ledgers may poll the same queue: they have neither the plan nor the secrets. */
static bool job_is_ours(struct job *job) {
    struct temporal *t = job->t;
    struct provider_found found = {0};
    struct error err;
    status st =
        t->ports.find(t->ports.context, job->attempt.run_id, STR_NONE, &job->arena, &found, &err);
    if (st != ST_OK) return st != ST_NOT_FOUND;
    return uuid_eq(found.correlation, (uuid){0}) ||
           uuid_eq(found.correlation, job->attempt.correlation);
}

static void job_begin(struct job *job) {
    struct temporal *t = job->t;
    struct error err = {0};
    status st = job_parse(job, &err);
    if (st != ST_OK) {
        job_fail(job, STR("ATTEMPT_INVALID"), str_c(err.msg), STR_NONE, st == ST_RETRY);
        return;
    }
    if (!job_is_ours(job)) {
        job_fail(job, STR("WORKER_ELSEWHERE"), STR("the run is not in the ledger of this worker"),
                 STR_NONE, true);
        return;
    }
    if (job->poll->attempt > 1 && execution_find(t, job->attempt.run_id))
        t->ports.recovered(t->ports.context, job->attempt.run_id, job->step_id, job->attempt.number,
                           job->poll->attempt - 1);
    if (t->closing) return; /* from inside the port: jobs_release() has seen to it */
    job->waits_until = now_ms(t) + WAIT_MS_MAX;
    job_try(job);
}

/* ---- polls ---- */

static void on_polled(void *context, const struct rpc_answer *answer) {
    struct job *job = context;
    struct temporal *t = job->t;
    job->call = NULL;
    if (answer->code != GRPC_OK) { /* the next tick polls again */
        LOG(LOG_WARN, "temporal: a poll failed", LOG_S("code", str_c(grpc_code_name(answer->code))),
            LOG_S("why", answer->message));
        job_free(job);
        return;
    }
    job->poll = answer->value;
    if (job->poll->task_token.len == 0) {
        job_end(job);
        return;
    }
    job->state = JOB_WAITS;
    t->job_polls--;
    t->job_count++;
    jobs_poll(t);
    job_begin(job);
}

static bool poll_begin(struct temporal *t) {
    struct error err;
    struct job *job = mem_alloc(sizeof *job);
    if (!job) return false;
    job->t = t;
    arena_init(&job->arena, JOB_ARENA_FIRST, JOB_ARENA_MAX);
    Tp__PollRequest request = TP__POLL_REQUEST__INIT;
    request.namespace_ = wire_bytes(t->ns);
    request.identity = wire_bytes(t->identity);
    request.task_queue = wire_queue(t->queue_name, &job->arena);
    if (!request.task_queue || rpc_start(t->rpc, RPC_POLL_ACTIVITY, &request.base, &job->arena,
                                         on_polled, job, &job->call, &err) != ST_OK) {
        arena_release(&job->arena);
        mem_free(job);
        return false;
    }
    uv_timer_init(t->loop, &job->timer);
    job->timer.data = job;
    t->handles++;
    t->job_polls++;
    TAILQ_INSERT_TAIL(&t->jobs, job, link);
    return true;
}

void jobs_poll(struct temporal *t) {
    if (t->closing || !t->ready) return;
    while (t->job_polls < ACTIVITY_POLLS_MAX && t->job_polls + t->job_count < t->slots) {
        if (!poll_begin(t)) return;
    }
}

void jobs_release(struct temporal *t) {
    struct job *next;
    for (struct job *job = TAILQ_FIRST(&t->jobs); job; job = next) {
        next = TAILQ_NEXT(job, link);
        if (job->state == JOB_POLLS)
            job_free(job);
        else
            job_stop(job);
    }
}
