/* adapters/conductor/runs.c: a run and its workflow: found or started, paused, looked at, ended.
 *
 * Conductor does not refuse a second start, so one is never sent without a look for the first: a
 * workflow with the run's id as its correlationId. After a start without an answer we look again.
 *
 * The engine's pauses are pushed to the cluster once. What is seen there later and differs was
 * somebody's wish: it becomes a signal, and is not fought. */
#include <string.h>

#include "adapters/conductor/impl.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"

enum {
    START_TIMEOUT_MS = 60000,
    LOOK_ENDING_MS = 200,
    LOOK_ENDING_MS_MAX = 2000,
    LOOK_BYTES_PER_S = 64 * 1024,
    LOOK_MS_MAX = 60000
};

/* ---- memory ---- */

struct conductor_run *conductor_run_get(struct conductor *c, str run_id) {
    return map_get(&c->by_id, run_id);
}

struct conductor_run *conductor_run_make(struct conductor *c, str run_id) {
    struct conductor_run *r = mem_alloc(sizeof *r + run_id.len + 1);
    if (!r) return NULL;
    char *id = (char *)(r + 1);
    memcpy(id, run_id.ptr, run_id.len);
    r->c = c;
    r->run_id = str_n(id, run_id.len);
    r->since_ms = conductor_now(c);
    r->ours_ms = r->since_ms + OURS_MS;
    map_init(&r->steps);
    if (!map_put(&c->by_id, r->run_id, r)) {
        mem_free(r);
        return NULL;
    }
    TAILQ_INSERT_TAIL(&c->runs, r, link);
    return r;
}

static void body_drop(struct conductor_run *r) {
    mem_free(r->start_body);
    r->start_body = NULL;
    r->start_len = 0;
}

void conductor_run_free(struct conductor_run *r) {
    struct conductor *c = r->c;
    struct map_slot *slot;
    size_t i = 0;
    while (map_next(&r->steps, &i, &slot)) {
        conductor_step_free(slot->value);
        i = 0; /* what is behind a removed entry moves */
    }
    map_release(&r->steps);
    if (r->call) rest_cancel(r->call);
    if (r->poller) conductor_poller_leave(r->poller);
    if (r->dirty) TAILQ_REMOVE(&c->dirty_runs, r, dirt);
    TAILQ_REMOVE(&c->runs, r, link);
    (void)map_del(&c->by_id, r->run_id);
    body_drop(r);
    mem_free(r);
}

/* ---- requests ---- */

static void run_send(struct conductor_run *r, const char *method, str path, str body,
                     int64_t timeout_ms, rest_done done) {
    struct rest_request request = {
        .method = method, .path = path, .body = body, .timeout_ms = timeout_ms};
    r->asked_paused = r->paused;
    r->call = rest_start(r->c->rest, &request, done, r);
    if (!r->call) r->wait_ms = conductor_now(r->c) + RUN_DELAY_MS_MAX;
}

/* A request about the run's workflow: `before` and `after` its id. */
static void workflow_send(struct conductor_run *r, const char *method, const char *before,
                          const char *after, str reason, rest_done done) {
    char text[64 + 3 * (ID_MAX + REASON_MAX)];
    struct buf path;
    buf_init_fixed(&path, text, sizeof text);
    buf_put_c(&path, before);
    rest_escape(str_c(r->workflow), &path);
    buf_put_c(&path, after);
    rest_escape(reason, &path);
    ASSERT(!path.full);
    run_send(r, method, buf_str(&path), STR_NONE, 0, done);
}

/* Every answer passes here. false: it is to be tried again in a while. */
static bool settled(struct conductor_run *r, const struct rest_answer *answer) {
    struct conductor *c = r->c;
    r->call = NULL;
    conductor_run_wake(r);
    if (answer->st != ST_RETRY) {
        r->delay_ms = 0;
        r->wait_ms = 0;
        return true;
    }
    r->delay_ms = r->delay_ms == 0 ? RUN_DELAY_MS : r->delay_ms * 2;
    if (r->delay_ms > RUN_DELAY_MS_MAX) r->delay_ms = RUN_DELAY_MS_MAX;
    r->wait_ms = conductor_now(c) + r->delay_ms;
    return false;
}

static void ignore(void *context, const struct rest_answer *answer) {
    struct conductor *c = context;
    UNUSED(answer);
    if (c->closing) conductor_wake(c);
}

void conductor_terminate(struct conductor *c, str workflow, str reason) {
    char text[64 + 3 * (ID_MAX + REASON_MAX)];
    struct buf path;
    buf_init_fixed(&path, text, sizeof text);
    buf_put_c(&path, "/workflow/");
    rest_escape(workflow, &path);
    buf_put_c(&path, "?reason=");
    rest_escape(reason, &path);
    struct rest_request request = {
        .method = "DELETE", .path = buf_str(&path), .patience_ms = c->closing ? 0 : PATIENCE_MS};
    if (!path.full) (void)rest_start(c->rest, &request, ignore, c);
}

bool conductor_run_is_closed(str cluster_status) {
    return !str_eq(cluster_status, STR("RUNNING")) && !str_eq(cluster_status, STR("PAUSED"));
}

static str text_of(yyjson_val *val, const char *name) {
    str text = STR_NONE;
    return json_str(json_member(val, name), &text) ? text : STR("");
}

static int64_t number_of(yyjson_val *val, const char *name) {
    int64_t n = 0;
    return json_int(json_member(val, name), &n) ? n : 0;
}

/* ---- a workflow for the run ---- */

void conductor_run_link(struct conductor_run *r, str workflow, str domain) {
    struct conductor *c = r->c;
    conductor_copy(r->workflow, sizeof r->workflow, workflow);
    if (domain.len == 0) domain = str_c(c->domain);
    if (!r->poller) r->poller = conductor_poller_use(c, domain);
    body_drop(r);
    r->tell_link = true;
    r->look_ms = conductor_now(c) + CONDUCTOR_RECONCILE_MS;
    struct map_slot *slot;
    for (size_t i = 0; map_next(&r->steps, &i, &slot);) {
        struct conductor_step *s = slot->value;
        if (s->hand == HAND_NONE || strcmp(s->workflow, r->workflow) == 0) continue;
        conductor_step_hand(s, HAND_NONE);
        conductor_terminate(c, str_c(s->workflow), STR("duplicate"));
    }
    conductor_poll_soon(c);
}

static void tell_link(struct conductor_run *r) {
    struct conductor *c = r->c;
    r->tell_link = false;
    str workflow = str_c(r->workflow);
    struct provider_link link = {.workflow_id = workflow,
                                 .provider_run_id = workflow,
                                 .queue = str_c(r->poller ? r->poller->domain : c->domain)};
    c->ports.linked(c->ports.context, r->run_id, &link);
}

/* The oldest that is open; else the newest that was. */
static bool is_better(yyjson_val *one, yyjson_val *best) {
    if (!best) return true;
    bool open = !conductor_run_is_closed(text_of(one, "status"));
    bool best_open = !conductor_run_is_closed(text_of(best, "status"));
    if (open != best_open) return open;
    bool older = number_of(one, "createTime") < number_of(best, "createTime");
    return open ? older : !older;
}

static void on_looked_up(void *context, const struct rest_answer *answer) {
    struct conductor_run *r = context;
    if (!settled(r, answer)) return;
    if (answer->st != ST_OK && answer->st != ST_NOT_FOUND) {
        r->wait_ms = conductor_now(r->c) + RUN_DELAY_MS_MAX;
        return;
    }
    yyjson_val *best = NULL;
    size_t i;
    size_t n;
    size_t j;
    size_t m;
    yyjson_val *key;
    yyjson_val *list;
    yyjson_val *one;
    yyjson_obj_foreach(answer->json, i, n, key, list) {
        yyjson_arr_foreach(list, j, m, one) {
            if (str_eq(text_of(one, "correlationId"), r->run_id) && is_better(one, best))
                best = one;
        }
    }
    r->looked_up = true;
    if (!best || text_of(best, "workflowId").len > ID_MAX) return;
    yyjson_obj_foreach(answer->json, i, n, key, list) {
        yyjson_arr_foreach(list, j, m, one) {
            if (one != best && !conductor_run_is_closed(text_of(one, "status")) &&
                str_eq(text_of(one, "correlationId"), r->run_id))
                conductor_terminate(r->c, text_of(one, "workflowId"), STR("duplicate"));
        }
    }
    conductor_run_link(r, text_of(best, "workflowId"),
                       text_of(json_member(best, "taskToDomain"), DEF_TASK_TYPE));
    r->full = r->reset_due = r->push_pause = true;
    r->look_ms = 0;
}

/* The run's id goes in the body: servers refuse some characters in a path, escaped or not. */
static void look_up(struct conductor_run *r) {
    char text[256];
    struct buf path;
    buf_init_fixed(&path, text, sizeof text);
    buf_printf(&path, "/workflow/%s/correlated?includeClosed=true&includeTasks=false", r->name);
    struct buf body;
    buf_init(&body, 6 * r->run_id.len + 16);
    buf_put_char(&body, '[');
    buf_put_json_str(&body, r->run_id);
    buf_put_char(&body, ']');
    ASSERT(!path.full);
    if (!body.full)
        run_send(r, "POST", buf_str(&path), buf_str(&body), 0, on_looked_up);
    else
        r->wait_ms = conductor_now(r->c) + RUN_DELAY_MS_MAX;
    buf_release(&body);
}

static void on_started(void *context, const struct rest_answer *answer) {
    struct conductor_run *r = context;
    struct conductor *c = r->c;
    if (!settled(r, answer)) {
        r->looked_up = false; /* it may have been started all the same */
        return;
    }
    str workflow = str_trim(answer->text);
    if (answer->st == ST_OK && workflow.len > 0 && workflow.len <= ID_MAX) {
        conductor_run_link(r, workflow, str_c(c->domain));
        r->cluster = CLUSTER_RUNS;
        r->push_pause |= r->paused;
        return;
    }
    r->looked_up = false;
    r->wait_ms = conductor_now(c) + RUN_DELAY_MS_MAX;
    LOG(LOG_WARN, "Conductor did not start a workflow", LOG_S("run", r->run_id),
        LOG_S("error", str_c(answer->err->msg)));
    if (answer->st == ST_INVALID || ++r->refusals >= REFUSALS_MAX)
        conductor_copy(r->refused, sizeof r->refused, str_c(answer->err->msg));
}

static void tell_refused(struct conductor_run *r) {
    struct conductor *c = r->c;
    r->over = true;
    c->ports.ended(c->ports.context, r->run_id, STR("PROVIDER_REFUSED"), str_c(r->refused));
}

/* ---- looks ---- */

static void tell_signal(struct conductor_run *r, enum signal_kind kind, int64_t time_ms) {
    struct conductor *c = r->c;
    bool pause = kind == SIGNAL_PAUSE;
    char text[ID_MAX + 64];
    struct buf id;
    buf_init_fixed(&id, text, sizeof text);
    buf_printf(&id, "conductor:%s:%s:%lld", r->workflow, pause ? "paused" : "resumed",
               (long long)time_ms);
    struct signal signal = {.kind = kind,
                            .name = pause ? STR("PAUSE") : STR("RESUME"),
                            .signal_id = buf_str(&id),
                            .reason = pause ? STR("the workflow was paused at Conductor")
                                            : STR("the workflow was resumed at Conductor")};
    c->ports.signalled(c->ports.context, r->run_id, &signal, STR("conductor"));
}

static void tell_ended(struct conductor_run *r, str code, str message) {
    struct conductor *c = r->c;
    r->over = true;
    c->ports.ended(c->ports.context, r->run_id, code,
                   message.len > 0 ? message : STR("the workflow was ended at Conductor"));
}

static bool run_waits_for_task(const struct conductor_run *r, int64_t for_ms) {
    struct conductor *c = r->c;
    struct conductor_job *j;
    for (j = TAILQ_FIRST(&c->jobs); j; j = TAILQ_NEXT(j, link)) {
        if (j->state == JOB_NO_TASK && j->step && j->step->run == r &&
            conductor_now(c) - j->since_ms >= for_ms)
            return true;
    }
    return false;
}

/* Over, and not by us. One that is complete is well if nothing is wanted of it any more. */
static void saw_closed(struct conductor_run *r, str cluster_status, str reason) {
    if (str_eq(cluster_status, STR("COMPLETED"))) {
        r->cluster = CLUSTER_RUNS;
        r->push_pause = r->poke = r->reset_due = false;
        if (run_waits_for_task(r, POKE_MS))
            tell_ended(r, STR("PROVIDER_COMPLETED"),
                       STR("the workflow was completed at Conductor before the run was"));
    } else if (str_eq(cluster_status, STR("TERMINATED"))) {
        tell_ended(r, STR("PROVIDER_TERMINATED"), reason);
    } else if (str_eq(cluster_status, STR("TIMED_OUT"))) {
        tell_ended(r, STR("PROVIDER_TIMED_OUT"), reason);
    } else {
        tell_ended(r, STR("PROVIDER_FAILED"), reason);
    }
}

static void saw_open(struct conductor_run *r, bool paused, int64_t time_ms) {
    enum cluster before = r->cluster;
    r->cluster = paused ? CLUSTER_PAUSED : CLUSTER_RUNS;
    if (r->push_pause) {
        r->push_pause = paused != r->paused;
        return;
    }
    /* The engine changed its mind while we looked, or it is no change at all. */
    if (r->asked_paused != r->paused || before == CLUSTER_UNKNOWN || before == r->cluster) return;
    if (paused && !r->paused) tell_signal(r, SIGNAL_PAUSE, time_ms);
    if (!paused && r->paused) tell_signal(r, SIGNAL_RESUME, time_ms);
}

/* Why a step that is to start has no task. */
static void inspect_job(struct conductor_run *r, struct conductor_job *j, yyjson_val *tasks) {
    yyjson_val *task = NULL;
    size_t i;
    size_t n;
    yyjson_val *one;
    struct buf id;
    buf_init(&id, (size_t)3 * ID_BYTES_MAX);
    def_step_put(j->step->id, &id);
    yyjson_arr_foreach(tasks, i, n, one) {
        if (str_eq(text_of(json_member(one, "inputData"), "stepId"), buf_str(&id)) &&
            str_eq(text_of(one, "taskType"), STR(DEF_TASK_TYPE)))
            task = one; /* the newest is the last */
    }
    buf_release(&id);
    str state = task ? text_of(task, "status") : STR("ABSENT");
    if (!j->late)
        LOG(LOG_WARN, "a step waits for its task from Conductor", LOG_S("run", r->run_id),
            LOG_S("step", j->step->id), LOG_S("task", state));
    j->late = true;
    j->since_ms = conductor_now(r->c) - POKE_MS; /* asked after again in a while */
    if (!task || str_eq(state, STR("IN_PROGRESS"))) return;
    if (str_eq(state, STR("SCHEDULED"))) {
        r->reset_due = true;
        return;
    }
    /* Conductor is done with the step, the engine is not, and the engine decides. */
    conductor_step_hand(j->step, HAND_ANSWERED);
    conductor_job_ready(j);
}

static void inspect(struct conductor_run *r, yyjson_val *workflow) {
    struct conductor_job *j;
    r->inspect = false;
    for (j = TAILQ_FIRST(&r->c->jobs); j; j = TAILQ_NEXT(j, link)) {
        if (j->state == JOB_NO_TASK && j->step && j->step->run == r &&
            conductor_now(r->c) - j->since_ms >= TASK_LATE_MS)
            inspect_job(r, j, json_member(workflow, "tasks"));
    }
}

static void end_saw(struct conductor_run *r, str cluster_status);

/* The definition of a large plan comes along each time: such a one is looked at less often. */
static int64_t look_interval_ms(size_t bytes) {
    int64_t ms = CONDUCTOR_RECONCILE_MS + (int64_t)(bytes / LOOK_BYTES_PER_S) * 1000;
    return ms < LOOK_MS_MAX ? ms : LOOK_MS_MAX;
}

static void on_full_look(void *context, const struct rest_answer *answer) {
    struct conductor_run *r = context;
    struct conductor *c = r->c;
    if (!settled(r, answer)) return;
    r->look_ms = conductor_now(c) + look_interval_ms(answer->text.len);
    if (answer->st == ST_NOT_FOUND) {
        if (r->ending)
            end_saw(r, STR("GONE"));
        else
            tell_ended(r, STR("PROVIDER_LOST"), STR("Conductor does not know the workflow"));
        return;
    }
    str cluster_status = text_of(answer->json, "status");
    if (answer->st != ST_OK || cluster_status.len == 0) {
        r->wait_ms = conductor_now(c) + RUN_DELAY_MS_MAX;
        return;
    }
    if (r->short_failed) c->status_path = STATUS_ABSENT;
    r->full = r->short_failed = false;
    str domain = text_of(json_member(answer->json, "taskToDomain"), DEF_TASK_TYPE);
    if (domain.len > 0 && r->poller && !str_eq(str_c(r->poller->domain), domain)) {
        struct conductor_poller *p = conductor_poller_use(c, domain);
        if (p) conductor_poller_leave(r->poller);
        if (p) r->poller = p;
        r->tell_link = true;
    }
    if (r->ending)
        end_saw(r, cluster_status);
    else if (conductor_run_is_closed(cluster_status))
        saw_closed(r, cluster_status, text_of(answer->json, "reasonForIncompletion"));
    else {
        if (r->inspect) inspect(r, answer->json);
        saw_open(r, str_eq(cluster_status, STR("PAUSED")), number_of(answer->json, "updateTime"));
    }
}

/* The short answer of newer servers. Whatever it says that is news is read in full. */
static void on_short_look(void *context, const struct rest_answer *answer) {
    struct conductor_run *r = context;
    if (!settled(r, answer)) return;
    str cluster_status = text_of(answer->json, "status");
    r->full = answer->st != ST_OK || cluster_status.len == 0;
    r->short_failed = answer->st == ST_NOT_FOUND;
    if (r->full) return; /* at once */
    r->c->status_path = STATUS_THERE;
    r->look_ms = conductor_now(r->c) + CONDUCTOR_RECONCILE_MS;
    if (r->ending) {
        end_saw(r, cluster_status);
        return;
    }
    enum cluster cluster = str_eq(cluster_status, STR("PAUSED"))    ? CLUSTER_PAUSED
                           : str_eq(cluster_status, STR("RUNNING")) ? CLUSTER_RUNS
                                                                    : CLUSTER_UNKNOWN;
    r->full = cluster == CLUSTER_UNKNOWN || cluster != r->cluster;
    if (r->full) r->look_ms = 0;
}

static void look(struct conductor_run *r) {
    bool tasks = r->inspect;
    if (r->full || tasks || r->c->status_path == STATUS_ABSENT)
        workflow_send(r, "GET", "/workflow/", tasks ? "?includeTasks=true" : "?includeTasks=false",
                      STR_NONE, on_full_look);
    else
        workflow_send(r, "GET", "/workflow/", "/status?includeOutput=false&includeVariables=false",
                      STR_NONE, on_short_look);
}

static void on_reset(void *context, const struct rest_answer *answer) {
    struct conductor_run *r = context;
    if (!settled(r, answer)) return;
    r->reset_due = false;
    conductor_poll_soon(r->c);
}

static void on_poked(void *context, const struct rest_answer *answer) {
    struct conductor_run *r = context;
    (void)settled(r, answer);
    r->poke = false;
    if (answer->st == ST_OK) conductor_poll_soon(r->c);
}

/* ---- pauses ---- */

static void on_pushed(void *context, const struct rest_answer *answer) {
    struct conductor_run *r = context;
    if (!settled(r, answer)) return;
    if (answer->st == ST_OK) {
        r->cluster = r->asked_paused ? CLUSTER_PAUSED : CLUSTER_RUNS;
        r->push_pause = r->asked_paused != r->paused;
        if (!r->asked_paused) conductor_poll_soon(r->c);
        return;
    }
    /* It is in that state already, or over. */
    r->cluster = CLUSTER_UNKNOWN;
    r->full = true;
    r->look_ms = 0;
    r->wait_ms = conductor_now(r->c) + RUN_DELAY_MS;
}

static void push_pause(struct conductor_run *r) {
    workflow_send(r, "PUT", "/workflow/", r->paused ? "/pause" : "/resume", STR_NONE, on_pushed);
}

/* ---- the end ---- */

void conductor_run_end(struct conductor_run *r, enum run_status value, str code, str message) {
    ASSERT(run_is_final(value));
    if (r->ending) return;
    r->ending = true;
    r->end = value;
    r->ending_ms = conductor_now(r->c);
    r->look_ms = 0;
    r->delay_ms = 0;
    r->inspect = r->poke = false;
    struct buf b;
    buf_init_fixed(&b, r->reason, sizeof r->reason - 1);
    if (code.ptr)
        buf_printf(&b, "%.*s%s%.*s", STR_ARG(code), message.len > 0 ? ": " : "", STR_ARG(message));
    else
        buf_put_c(&b, value == RUN_CANCELLED ? "the run was cancelled" : "the run failed");
    r->reason[b.len] = '\0';
    conductor_run_wake(r);
}

static void on_terminated(void *context, const struct rest_answer *answer) {
    struct conductor_run *r = context;
    if (!settled(r, answer)) return;
    r->over = true;
}

static void terminate(struct conductor_run *r) {
    workflow_send(r, "DELETE", "/workflow/", "?reason=", str_c(r->reason), on_terminated);
}

static void on_failed(void *context, const struct rest_answer *answer) {
    struct conductor_run *r = context;
    if (!settled(r, answer)) return;
    r->full = true;
    r->look_ms = 0;
}

/* The task that shows the failure: that of the step which failed, else any that we hold. */
static struct conductor_step *failing_step(struct conductor_run *r) {
    struct conductor_step *best = NULL;
    struct map_slot *slot;
    for (size_t i = 0; map_next(&r->steps, &i, &slot);) {
        struct conductor_step *s = slot->value;
        if (s->hand != HAND_HELD && s->hand != HAND_SHELVED) continue;
        if (s->settled == PROVIDER_STEP_DONE || s->settled == PROVIDER_STEP_SKIPPED) continue;
        if (!best || s->withheld) best = s;
    }
    return best;
}

static void end_failed(struct conductor_run *r) {
    if (r->stage == END_TERMINATE) {
        terminate(r);
        return;
    }
    if (r->stage == END_FAILING) {
        look(r);
        return;
    }
    struct conductor_step *s = failing_step(r);
    if (!s) {
        r->stage = END_TERMINATE;
        terminate(r);
        return;
    }
    if (s->call) return; /* its end wakes us */
    struct task_result result = {.workflow = str_c(s->workflow),
                                 .task = str_c(s->task),
                                 .worker = str_c(r->c->node),
                                 .status = "FAILED_WITH_TERMINAL_ERROR",
                                 .reason = str_c(r->reason)};
    struct buf body;
    buf_init(&body, (size_t)16 * 1024);
    conductor_result_json(&result, &body);
    r->stage = END_FAILING;
    run_send(r, "POST", STR("/tasks"), buf_str(&body), 0, on_failed);
    buf_release(&body);
}

static bool steps_busy(struct conductor_run *r) {
    bool busy = false;
    struct map_slot *slot;
    for (size_t i = 0; map_next(&r->steps, &i, &slot);) {
        struct conductor_step *s = slot->value;
        if (s->hand != HAND_HELD && s->hand != HAND_SHELVED) continue;
        busy = true;
        s->withheld = false;
        if (s->settled == PROVIDER_STEP_WAITS) s->settled = PROVIDER_STEP_SKIPPED;
        conductor_step_wake(s);
    }
    return busy;
}

/* All steps are settled, so are all tasks, sooner or later: those that come yet are answered by
 * arrived(). */
static void end_completed(struct conductor_run *r) {
    struct conductor *c = r->c;
    if (steps_busy(r)) return;
    if (conductor_now(c) < r->look_ms) return;
    if (r->poke)
        workflow_send(r, "PUT", "/workflow/decide/", "", STR_NONE, on_poked);
    else if (r->cluster == CLUSTER_PAUSED)
        workflow_send(r, "PUT", "/workflow/", "/resume", STR_NONE, on_pushed);
    else
        look(r);
}

static void end_saw(struct conductor_run *r, str cluster_status) {
    struct conductor *c = r->c;
    if (conductor_run_is_closed(cluster_status)) {
        r->over = true;
        return;
    }
    r->cluster = str_eq(cluster_status, STR("PAUSED")) ? CLUSTER_PAUSED : CLUSTER_RUNS;
    if (r->stage == END_FAILING) r->stage = END_TERMINATE;
    int64_t waited = conductor_now(c) - r->ending_ms;
    int64_t delay = waited < LOOK_ENDING_MS       ? LOOK_ENDING_MS
                    : waited < LOOK_ENDING_MS_MAX ? waited
                                                  : LOOK_ENDING_MS_MAX;
    r->look_ms =
        r->stage == END_TERMINATE || r->cluster == CLUSTER_PAUSED ? 0 : conductor_now(c) + delay;
    r->poke = waited > POKE_MS;
    r->paused = false;
    if (waited > ENDING_MS_MAX) {
        LOG(LOG_WARN, "a workflow does not end with its run", LOG_S("run", r->run_id),
            LOG_S("workflow", str_c(r->workflow)));
        r->over = true;
    }
}

static void end_next(struct conductor_run *r) {
    if (r->over) {
        conductor_run_free(r);
    } else if (!r->workflow[0]) {
        if (r->looked_up || r->name[0] == '\0')
            conductor_run_free(r);
        else
            look_up(r);
    } else if (r->end == RUN_COMPLETED) {
        end_completed(r);
    } else if (r->end == RUN_FAILED) {
        end_failed(r);
    } else {
        terminate(r);
    }
}

/* ---- what next ---- */

void conductor_run_withhold_no_more(struct conductor_run *r) {
    if (r->withheld_ms == 0) return;
    r->withheld_ms = 0;
    struct map_slot *slot;
    for (size_t i = 0; map_next(&r->steps, &i, &slot);) {
        struct conductor_step *s = slot->value;
        if (s->withheld) conductor_step_wake(s);
        s->withheld = false;
    }
}

void conductor_run_release(struct conductor_run *r) {
    struct conductor *c = r->c;
    struct map_slot *slot;
    for (size_t i = 0; map_next(&r->steps, &i, &slot);) {
        struct conductor_step *s = slot->value;
        if (s->hand != HAND_HELD || s->call) continue; /* with a call, its lease runs out */
        s->handed += s->job && s->job->state == JOB_RUNNING;
        char text[64];
        struct buf out;
        buf_init_fixed(&out, text, sizeof text);
        buf_printf(&out, "{\"handed\":%lld}", (long long)s->handed);
        struct task_result result = {.workflow = str_c(s->workflow),
                                     .task = str_c(s->task),
                                     .worker = str_c(c->node),
                                     .status = "IN_PROGRESS",
                                     .output = buf_str(&out)};
        conductor_answer(c, &result);
    }
    conductor_run_free(r);
}

/* Another node may have taken the run over, and the engine has no word for that. */
static bool is_ours(struct conductor_run *r) {
    struct conductor *c = r->c;
    if (conductor_now(c) < r->ours_ms) return true;
    r->ours_ms = conductor_now(c) + OURS_MS;
    struct arena scratch;
    arena_init(&scratch, (size_t)4 * 1024, (size_t)16 * 1024 * 1024);
    struct provider_found found = {0};
    struct error err = {0};
    status st = c->ports.find(c->ports.context, r->run_id, STR_NONE, &scratch, &found, &err);
    bool final = st == ST_OK && run_is_final(found.status);
    bool ours = st == ST_RETRY || final || (st == ST_OK && found.ours);
    if (final) conductor_run_end(r, found.status, found.code, found.message);
    arena_release(&scratch);
    return ours;
}

static void linked_next(struct conductor_run *r) {
    struct conductor *c = r->c;
    int64_t now = conductor_now(c);
    if (r->over) return; /* the engine was told, and will end the run */
    if (c->expected > 0 && now - r->poked_ms >= POKE_MS) {
        r->poked_ms = now;
        r->poke = run_waits_for_task(r, POKE_MS);
        if (r->poke && run_waits_for_task(r, TASK_LATE_MS)) {
            r->inspect = r->full = true;
            r->look_ms = now;
        }
    }
    if (r->cluster == CLUSTER_UNKNOWN || now >= r->look_ms)
        look(r);
    else if (r->reset_due)
        workflow_send(r, "POST", "/workflow/", "/resetcallbacks", STR_NONE, on_reset);
    else if (r->push_pause)
        push_pause(r);
    else if (r->poke)
        workflow_send(r, "PUT", "/workflow/decide/", "", STR_NONE, on_poked);
}

void conductor_run_next(struct conductor_run *r) {
    struct conductor *c = r->c;
    if (r->call || c->closing || !c->ready || conductor_now(c) < r->wait_ms) return;
    if (!r->ending && !is_ours(r)) {
        conductor_run_release(r);
        return;
    }
    if (r->ending) {
        end_next(r);
    } else if (!r->known) {
        if (conductor_now(c) - r->since_ms > STUB_MS) conductor_run_release(r);
    } else if (r->over) {
        return;
    } else if (r->refused[0]) {
        tell_refused(r);
    } else if (r->workflow[0]) {
        if (r->tell_link) tell_link(r);
        if (!r->call && !r->ending) linked_next(r);
    } else if (!r->looked_up) {
        look_up(r);
    } else {
        run_send(r, "POST", STR("/workflow"), str_n(r->start_body, r->start_len), START_TIMEOUT_MS,
                 on_started);
    }
}
