/* adapters/conductor/workflow.c: the workflow of a run: found or started, looked at, paused.
 *
 * Conductor does not refuse a second start, so one is never sent without a look for the first: a
 * workflow with the run's id as its correlationId. After a start without an answer we look again.
 *
 * The engine's pauses are pushed to the cluster once. What is seen there later and differs was
 * somebody's wish: it becomes a signal, and is not fought. */
#include <string.h>

#include "adapters/conductor/impl.h"
#include "base/limits.h"
#include "base/log.h"

enum {
    START_TIMEOUT_MS = 60000,
    LOOK_BYTES_PER_S = 64 * 1024,
    LOOK_MS_MAX = 60000,
};

bool workflow_is_closed(str cluster_status) {
    return !str_eq(cluster_status, STR("RUNNING")) && !str_eq(cluster_status, STR("PAUSED"));
}

/* ---- a workflow for the run ---- */

void workflow_link(struct conductor_run *r, str workflow, str domain) {
    struct conductor *c = r->c;
    ASSERT(workflow.len > 0 && workflow.len <= ID_MAX);
    conductor_copy(r->workflow, sizeof r->workflow, workflow);
    conductor_run_move(r,
                       conductor_run_is_ending(r) ? ending_first_state(r->end) : WORKFLOW_LINKED);
    if (domain.len == 0) domain = str_c(c->domain);
    if (!r->poller) r->poller = conductor_poller_use(c, domain);
    mem_free(r->start_body);
    r->start_body = NULL;
    r->todo |= TODO_TELL_LINK;
    r->look_ms = conductor_now(c) + CONDUCTOR_RECONCILE_MS;
    struct map_slot *slot;
    for (size_t i = 0; map_next(&r->steps, &i, &slot);) {
        struct conductor_step *s = slot->value;
        if (s->hand == HAND_NONE || strcmp(s->workflow, r->workflow) == 0) continue;
        conductor_step_move(s, HAND_NONE);
        ending_terminate(c, str_c(s->workflow), STR("duplicate"));
    }
    conductor_poll_soon(c);
}

static void tell_link(struct conductor_run *r) {
    struct conductor *c = r->c;
    str workflow = str_c(r->workflow);
    struct provider_link link = {.workflow_id = workflow,
                                 .provider_run_id = workflow,
                                 .queue = str_c(r->poller ? r->poller->domain : c->domain)};
    r->todo &= ~(unsigned)TODO_TELL_LINK;
    c->ports.linked(c->ports.context, r->tracked.run_id, &link);
}

/* The oldest that is open; else the newest that was. */
static bool is_better(yyjson_val *one, yyjson_val *best) {
    if (!best) return true;
    bool open = !workflow_is_closed(conductor_text(one, "status"));
    bool best_open = !workflow_is_closed(conductor_text(best, "status"));
    if (open != best_open) return open;
    bool older = conductor_number(one, "createTime") < conductor_number(best, "createTime");
    return open ? older : !older;
}

/* There was none. */
static void sought_in_vain(struct conductor_run *r) {
    if (r->state == WORKFLOW_LEFT)
        tracked_drop(&r->tracked);
    else
        conductor_run_move(r, WORKFLOW_ABSENT);
}

static void on_sought(struct conductor_run *r, const struct rest_answer *answer) {
    if (answer->st == ST_RETRY) return;
    if (answer->st != ST_OK && answer->st != ST_NOT_FOUND) {
        conductor_run_wait(r, RUN_DELAY_MS_MAX);
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
            if (str_eq(conductor_text(one, "correlationId"), r->tracked.run_id) &&
                is_better(one, best))
                best = one;
        }
    }
    str workflow = conductor_text(best, "workflowId");
    if (workflow.len == 0 || workflow.len > ID_MAX) {
        sought_in_vain(r);
        return;
    }
    yyjson_obj_foreach(answer->json, i, n, key, list) {
        yyjson_arr_foreach(list, j, m, one) {
            if (one != best && !workflow_is_closed(conductor_text(one, "status")) &&
                str_eq(conductor_text(one, "correlationId"), r->tracked.run_id))
                ending_terminate(r->c, conductor_text(one, "workflowId"), STR("duplicate"));
        }
    }
    workflow_link(r, workflow, conductor_text(json_member(best, "taskToDomain"), DEF_TASK_TYPE));
    workflow_look_at_least(r, LOOK_FULL);
    r->todo |= TODO_RESET | TODO_PUSH_PAUSE;
    r->look_ms = 0;
}

/* The run's id goes in the body: servers refuse some characters in a path, escaped or not. */
void workflow_seek(struct conductor_run *r) {
    char text[256];
    struct buf path;
    buf_init_fixed(&path, text, sizeof text);
    buf_printf(&path, "/workflow/%s/correlated?includeClosed=true&includeTasks=false", r->name);
    struct buf body;
    buf_init(&body, 6 * r->tracked.run_id.len + 16);
    buf_put_char(&body, '[');
    buf_put_json_str(&body, r->tracked.run_id);
    buf_put_char(&body, ']');
    ASSERT(!path.full);
    struct rest_request request = {
        .method = "POST", .path = buf_str(&path), .body = buf_str(&body)};
    if (!body.full)
        conductor_run_send(r, &request, on_sought);
    else
        conductor_run_wait(r, RUN_DELAY_MS_MAX);
    buf_release(&body);
}

/* It may have been started all the same. */
static void seek_again(struct conductor_run *r) {
    if (r->state == WORKFLOW_ABSENT) conductor_run_move(r, WORKFLOW_SOUGHT);
}

static void on_started(struct conductor_run *r, const struct rest_answer *answer) {
    struct conductor *c = r->c;
    str workflow = str_trim(answer->text);
    if (answer->st == ST_RETRY) {
        seek_again(r);
        return;
    }
    if (answer->st == ST_OK && workflow.len > 0 && workflow.len <= ID_MAX) {
        workflow_link(r, workflow, str_c(c->domain));
        r->cluster = CLUSTER_RUNS;
        if (r->paused) r->todo |= TODO_PUSH_PAUSE;
        return;
    }
    const char *why = answer->st == ST_OK ? "its answer is no workflow id" : answer->err->msg;
    conductor_run_wait(r, RUN_DELAY_MS_MAX);
    LOG(LOG_WARN, "Conductor did not start a workflow", LOG_S("run", r->tracked.run_id),
        LOG_S("error", str_c(why)));
    if (r->state == WORKFLOW_ABSENT &&
        (answer->st == ST_INVALID || ++r->refusals >= REFUSALS_MAX)) {
        conductor_copy(r->refused, sizeof r->refused, str_c(why));
        conductor_run_move(r, WORKFLOW_REFUSED);
        return;
    }
    seek_again(r);
}

void workflow_start(struct conductor_run *r) {
    struct rest_request request = {.method = "POST",
                                   .path = STR("/workflow"),
                                   .body = str_n(r->start_body, r->start_len),
                                   .timeout_ms = START_TIMEOUT_MS};
    ASSERT(r->start_body);
    conductor_run_send(r, &request, on_started);
}

static void tell_ended(struct conductor_run *r, enum reason code, str message) {
    struct conductor *c = r->c;
    conductor_run_move(r, WORKFLOW_LOST);
    c->ports.ended(c->ports.context, r->tracked.run_id, code,
                   message.len > 0 ? message : STR("the workflow was ended at Conductor"));
}

void workflow_tell_refused(struct conductor_run *r) {
    ASSERT(r->refused[0]);
    tell_ended(r, REASON_PROVIDER_REFUSED, str_c(r->refused));
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
    c->ports.signalled(c->ports.context, r->tracked.run_id, &signal, STR("conductor"));
}

/* A workflow is COMPLETED when all of its tasks are answered, a moment before the run is over. */
static void saw_closed(struct conductor_run *r, str cluster_status, str reason) {
    if (str_eq(cluster_status, STR("COMPLETED"))) {
        r->cluster = CLUSTER_RUNS;
        r->todo &= (unsigned)TODO_TELL_LINK;
        if (conductor_run_waits_for_task(r, EVALUATE_MS))
            tell_ended(r, REASON_PROVIDER_COMPLETED,
                       STR("the workflow was completed at Conductor before the run was"));
    } else if (str_eq(cluster_status, STR("TERMINATED"))) {
        tell_ended(r, REASON_PROVIDER_TERMINATED, reason);
    } else if (str_eq(cluster_status, STR("TIMED_OUT"))) {
        tell_ended(r, REASON_PROVIDER_TIMED_OUT, reason);
    } else {
        tell_ended(r, REASON_PROVIDER_FAILED, reason);
    }
}

static void set_todo(struct conductor_run *r, enum todo what, bool to_do) {
    r->todo = to_do ? r->todo | what : r->todo & ~(unsigned)what;
}

static void saw_open(struct conductor_run *r, bool paused, int64_t time_ms) {
    enum cluster before = r->cluster;
    r->cluster = paused ? CLUSTER_PAUSED : CLUSTER_RUNS;
    if (r->todo & TODO_PUSH_PAUSE) {
        set_todo(r, TODO_PUSH_PAUSE, paused != r->paused);
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
        if (str_eq(conductor_text(json_member(one, "inputData"), "stepId"), buf_str(&id)) &&
            str_eq(conductor_text(one, "taskType"), STR(DEF_TASK_TYPE)))
            task = one; /* the newest is the last */
    }
    buf_release(&id);
    str state = task ? conductor_text(task, "status") : STR("ABSENT");
    if (!j->late)
        LOG(LOG_WARN, "a step waits for its task from Conductor", LOG_S("run", r->tracked.run_id),
            LOG_S("step", j->step->id), LOG_S("task", state));
    j->late = true;
    j->since_ms = conductor_now(r->c) - EVALUATE_MS; /* asked after again in a while */
    if (!task || str_eq(state, STR("IN_PROGRESS"))) return;
    if (str_eq(state, STR("SCHEDULED"))) {
        r->todo |= TODO_RESET;
        return;
    }
    /* Conductor is done with the step, the engine is not, and the engine decides. */
    conductor_step_move(j->step, HAND_ANSWERED);
    conductor_job_ready(j);
}

static void inspect(struct conductor_run *r, yyjson_val *workflow) {
    for (struct wanted *w = wanted_first(&r->tracked); w; w = wanted_after(w)) {
        struct conductor_job *j = (struct conductor_job *)w;
        if (j->state == JOB_NO_TASK && conductor_now(r->c) - j->since_ms >= TASK_LATE_MS)
            inspect_job(r, j, json_member(workflow, "tasks"));
    }
}

/* The definition of a large plan comes along each time: such a one is looked at less often. */
static int64_t look_interval_ms(size_t bytes) {
    int64_t ms = CONDUCTOR_RECONCILE_MS + (int64_t)(bytes / LOOK_BYTES_PER_S) * 1000;
    return ms < LOOK_MS_MAX ? ms : LOOK_MS_MAX;
}

/* Somebody may have moved its tasks to another domain. */
static void take_domain(struct conductor_run *r, str domain) {
    if (domain.len == 0 || !r->poller || str_eq(str_c(r->poller->domain), domain)) return;
    struct conductor_poller *p = conductor_poller_use(r->c, domain);
    if (p) conductor_poller_leave(r->poller);
    if (p) r->poller = p;
    r->todo |= TODO_TELL_LINK;
}

static void on_full_look(struct conductor_run *r, const struct rest_answer *answer) {
    struct conductor *c = r->c;
    if (answer->st == ST_RETRY) return;
    r->look_ms = conductor_now(c) + look_interval_ms(answer->text.len);
    if (answer->st == ST_NOT_FOUND) {
        if (conductor_run_is_ending(r))
            ending_saw(r, STR(""));
        else
            tell_ended(r, REASON_PROVIDER_LOST, STR("Conductor does not know the workflow"));
        return;
    }
    str cluster_status = conductor_text(answer->json, "status");
    if (answer->st != ST_OK || cluster_status.len == 0) {
        conductor_run_wait(r, RUN_DELAY_MS_MAX);
        return;
    }
    if (r->look == LOOK_AFTER_SHORT) c->status_path = STATUS_ABSENT;
    bool tasks = r->look == LOOK_TASKS;
    r->look = LOOK_SHORT;
    take_domain(r, conductor_text(json_member(answer->json, "taskToDomain"), DEF_TASK_TYPE));
    if (conductor_run_is_ending(r)) {
        ending_saw(r, cluster_status);
    } else if (workflow_is_closed(cluster_status)) {
        saw_closed(r, cluster_status, conductor_text(answer->json, "reasonForIncompletion"));
    } else {
        if (tasks) inspect(r, answer->json);
        saw_open(r, str_eq(cluster_status, STR("PAUSED")),
                 conductor_number(answer->json, "updateTime"));
    }
}

/* The short answer of newer servers. Whatever it says that is news is read in full. */
static void on_short_look(struct conductor_run *r, const struct rest_answer *answer) {
    if (answer->st == ST_RETRY) return;
    str cluster_status = conductor_text(answer->json, "status");
    if (answer->st != ST_OK || cluster_status.len == 0) { /* at once */
        workflow_look_at_least(r, answer->st == ST_NOT_FOUND ? LOOK_AFTER_SHORT : LOOK_FULL);
        return;
    }
    r->c->status_path = STATUS_THERE;
    r->look_ms = conductor_now(r->c) + CONDUCTOR_RECONCILE_MS;
    if (conductor_run_is_ending(r)) {
        ending_saw(r, cluster_status);
        return;
    }
    enum cluster cluster = str_eq(cluster_status, STR("PAUSED"))    ? CLUSTER_PAUSED
                           : str_eq(cluster_status, STR("RUNNING")) ? CLUSTER_RUNS
                                                                    : CLUSTER_UNKNOWN;
    if (cluster != CLUSTER_UNKNOWN && cluster == r->cluster) return;
    workflow_look_at_least(r, LOOK_FULL);
    r->look_ms = 0;
}

void workflow_look_at_least(struct conductor_run *r, enum look look) {
    if (r->look < look) r->look = look;
}

void workflow_look(struct conductor_run *r) {
    if (r->look == LOOK_SHORT && r->c->status_path != STATUS_ABSENT)
        conductor_run_send_workflow(r, "GET", "/workflow/",
                                    "/status?includeOutput=false&includeVariables=false", STR_NONE,
                                    on_short_look);
    else
        conductor_run_send_workflow(r, "GET", "/workflow/",
                                    r->look == LOOK_TASKS ? "?includeTasks=true"
                                                          : "?includeTasks=false",
                                    STR_NONE, on_full_look);
}

/* ---- requests that change it ---- */

static void on_reset(struct conductor_run *r, const struct rest_answer *answer) {
    if (answer->st == ST_RETRY) return;
    set_todo(r, TODO_RESET, false);
    conductor_poll_soon(r->c);
}

static void on_evaluated(struct conductor_run *r, const struct rest_answer *answer) {
    set_todo(r, TODO_EVALUATE, false);
    if (answer->st == ST_OK) conductor_poll_soon(r->c);
}

void workflow_evaluate(struct conductor_run *r) {
    conductor_run_send_workflow(r, "PUT", "/workflow/decide/", "", STR_NONE, on_evaluated);
}

static void on_pushed(struct conductor_run *r, const struct rest_answer *answer) {
    if (answer->st == ST_RETRY) return;
    if (answer->st == ST_OK) {
        r->cluster = r->asked_paused ? CLUSTER_PAUSED : CLUSTER_RUNS;
        set_todo(r, TODO_PUSH_PAUSE, r->asked_paused != r->paused);
        if (!r->asked_paused) conductor_poll_soon(r->c);
        return;
    }
    /* It is in that state already, or over. */
    r->cluster = CLUSTER_UNKNOWN;
    workflow_look_at_least(r, LOOK_FULL);
    r->look_ms = 0;
    conductor_run_wait(r, RUN_DELAY_MS);
}

void workflow_push_pause(struct conductor_run *r) {
    conductor_run_send_workflow(r, "PUT", "/workflow/", r->paused ? "/pause" : "/resume", STR_NONE,
                                on_pushed);
}

/* ---- what a linked workflow needs ---- */

/* A workflow whose tasks do not come may need to be evaluated, or to be looked at. */
static void look_after_tasks(struct conductor_run *r, int64_t now) {
    if (now < r->evaluate_ms || !conductor_run_waits_for_task(r, 0)) return;
    r->evaluate_ms = now + EVALUATE_MS;
    set_todo(r, TODO_EVALUATE, conductor_run_waits_for_task(r, EVALUATE_MS));
    if (!conductor_run_waits_for_task(r, TASK_LATE_MS)) return;
    workflow_look_at_least(r, LOOK_TASKS);
    r->look_ms = now;
}

void workflow_tend(struct conductor_run *r) {
    int64_t now = conductor_now(r->c);
    if (r->todo & TODO_TELL_LINK) tell_link(r);
    if (r->state != WORKFLOW_LINKED) return; /* ended from inside the port */
    look_after_tasks(r, now);
    if (r->cluster == CLUSTER_UNKNOWN || now >= r->look_ms)
        workflow_look(r);
    else if (r->todo & TODO_RESET)
        conductor_run_send_workflow(r, "POST", "/workflow/", "/resetcallbacks", STR_NONE, on_reset);
    else if (r->todo & TODO_PUSH_PAUSE)
        workflow_push_pause(r);
    else if (r->todo & TODO_EVALUATE)
        workflow_evaluate(r);
}
