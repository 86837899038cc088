/* adapters/conductor/polls.c: tasks are asked for, and what becomes of one that came.
 *
 * The server's long poll waits until it has as many tasks as were asked for, or its time is over,
 * and holds a connection to its database meanwhile. So we ask without waiting: soon after whatever
 * makes new tasks, then less and less often. */
#include <string.h>

#include "adapters/conductor/impl.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"

#define SCRATCH_BYTES_MAX ((size_t)64 * 1024 * 1024)

/* ---- a task that was polled ---- */

struct polled_task { /* views into the answer */
    str id, workflow;
    str run_id, step_id; /* STR_NONE: not one of ours */
    int64_t handed, times;
};

static bool task_read(yyjson_val *val, struct arena *scratch, struct polled_task *out) {
    *out = (struct polled_task){0};
    if (!json_str(json_member(val, "taskId"), &out->id) ||
        !json_str(json_member(val, "workflowInstanceId"), &out->workflow) || out->id.len > ID_MAX ||
        out->workflow.len > ID_MAX)
        return false;
    yyjson_val *input = json_member(val, "inputData");
    str step = STR_NONE;
    struct buf b;
    buf_init(&b, ID_BYTES_MAX);
    if (json_str(json_member(input, "runId"), &out->run_id) &&
        json_str(json_member(input, "stepId"), &step) && def_step_take(step, &b) && b.len > 0)
        out->step_id = arena_str(scratch, buf_str(&b));
    buf_release(&b);
    int64_t retries = 0;
    (void)json_int(json_member(val, "retryCount"), &retries);
    (void)json_int(json_member(json_member(val, "outputData"), "handed"), &out->handed);
    if (out->handed < 0 || out->handed > DEF_RETRIES_MAX) out->handed = 0;
    out->times = out->handed + retries;
    return true;
}

static void give_back(struct conductor *c, const struct polled_task *t, int64_t seconds) {
    char text[64];
    struct task_result result = {.workflow = t->workflow,
                                 .task = t->id,
                                 .status = "IN_PROGRESS",
                                 .output = conductor_handed_json(t->handed, text, sizeof text),
                                 .callback_s = seconds};
    conductor_answer(c, &result);
}

static void refuse(struct conductor *c, const struct polled_task *t, str reason) {
    struct task_result result = {.workflow = t->workflow,
                                 .task = t->id,
                                 .status = "FAILED_WITH_TERMINAL_ERROR",
                                 .reason = reason};
    conductor_answer(c, &result);
}

/* The run is over, and its workflow shall end the same way. */
static void answer_final(struct conductor *c, const struct polled_task *t,
                         const struct provider_found *found) {
    char reason[REASON_MAX + 1];
    struct buf b;
    buf_init_fixed(&b, reason, sizeof reason);
    if (found->status == RUN_CANCELLED) {
        ending_terminate(c, t->workflow, STR("the run was cancelled"));
        return;
    }
    if (found->status == RUN_FAILED) {
        buf_printf(&b, "%.*s: %.*s", STR_ARG(found->code), STR_ARG(found->message));
        refuse(c, t, found->code.ptr ? buf_str(&b) : STR("the run failed"));
        return;
    }
    struct buf out;
    buf_init(&out, OUTPUT_BYTES_MAX + 1024);
    conductor_outcome_json(found->step, found->output, &out);
    struct task_result result = {.workflow = t->workflow,
                                 .task = t->id,
                                 .status = "COMPLETED",
                                 .output = out.full ? STR_NONE : buf_str(&out)};
    conductor_answer(c, &result);
    buf_release(&out);
    conductor_poll_soon(c);
}

static int idle_held(const struct conductor *c) {
    int n = 0;
    struct conductor_step *s;
    for (s = TAILQ_FIRST(&c->held); s; s = TAILQ_NEXT(s, held))
        n += s->job == NULL;
    return n;
}

static void task_attach(struct conductor_run *r, const struct polled_task *t,
                        const struct provider_found *found) {
    struct conductor *c = r->c;
    struct conductor_step *s = conductor_step_get(r, t->step_id);
    if (!s) {
        give_back(c, t, SHELF_S);
        return;
    }
    conductor_copy(s->task, sizeof s->task, t->id);
    conductor_copy(s->workflow, sizeof s->workflow, t->workflow);
    s->handed = t->handed;
    s->times = t->times;
    /* An attempt that goes on, or that was not begun when the other worker was lost, is no news. */
    if (found->step != PROVIDER_STEP_OPEN || (s->job && s->job->state == JOB_RUNNING))
        s->told = t->times;
    conductor_step_move(s, HAND_HELD);
    if (found->step != PROVIDER_STEP_WAITS && found->step != PROVIDER_STEP_OPEN)
        conductor_step_settle(s, found->step, found->output);
    else
        conductor_step_settle(s, PROVIDER_STEP_WAITS, STR_NONE);
    if (s->job)
        conductor_job_ready(s->job);
    else if (found->step == PROVIDER_STEP_WAITS && idle_held(c) > IDLE_HELD_MAX)
        s->shelve = true;
    conductor_step_wake(s);
}

/* A run has one workflow: the one that the ledger knows. */
static bool is_duplicate(const struct conductor_run *r, const struct polled_task *t,
                         const struct provider_found *found) {
    str known = found->workflow_id;
    if (r && r->workflow[0]) known = str_c(r->workflow);
    return known.len > 0 && !str_eq(known, t->workflow);
}

static void task_ours(struct conductor *c, const struct polled_task *t,
                      const struct provider_found *found) {
    struct conductor_run *r = conductor_run_find(c, t->run_id);
    if (is_duplicate(r, t, found)) {
        LOG(LOG_WARN, "ending a second workflow of a run", LOG_S("run", t->run_id),
            LOG_S("workflow", t->workflow));
        ending_terminate(c, t->workflow, STR("duplicate"));
        return;
    }
    bool fresh = r == NULL;
    if (fresh) r = conductor_run_new(c, t->run_id);
    if (!r) {
        give_back(c, t, SHELF_S);
        return;
    }
    task_attach(r, t, found);
    if (fresh) c->ports.look(c->ports.context, t->run_id);
}

static void arrived(struct conductor *c, yyjson_val *val, struct arena *scratch) {
    struct polled_task t;
    if (!task_read(val, scratch, &t)) return; /* its lease runs out */
    if (conductor_is_closing(c)) {
        give_back(c, &t, 0);
        return;
    }
    if (!t.step_id.ptr) {
        refuse(c, &t, STR("the input names no run and step of Cairn"));
        return;
    }
    struct conductor_run *r;
    struct provider_found found;
    struct error err;
    switch (provider_runs_claim(&c->runs, t.run_id, t.step_id, scratch, &found, &err)) {
    case CLAIM_UNKNOWN:
        LOG(LOG_WARN, "Conductor offers a step of a run that is not here", LOG_S("run", t.run_id),
            LOG_S("workflow", t.workflow));
        give_back(c, &t, SHELF_S_MAX);
        return;
    case CLAIM_UNSURE:
        give_back(c, &t, SHELF_S / 6);
        return;
    case CLAIM_OVER:
        answer_final(c, &t, &found);
        return;
    case CLAIM_ELSEWHERE:
        r = conductor_run_find(c, t.run_id);
        if (r) conductor_run_release(r);
        give_back(c, &t, SHELF_S / 6);
        return;
    case CLAIM_OURS:
        task_ours(c, &t, &found);
        return;
    }
}

/* ---- polls ---- */

static int64_t poll_delay_max(const struct conductor *c) {
    return c->job_count[JOB_NO_TASK] > 0 && c->poll_ms > POLL_EXPECTING_MS ? POLL_EXPECTING_MS
                                                                           : c->poll_ms;
}

static void on_polled(void *context, const struct rest_answer *answer) {
    struct conductor_poller *p = context;
    struct conductor *c = p->c;
    p->call = NULL;
    size_t count = 0;
    if (answer->st == ST_OK && yyjson_is_arr(answer->json)) {
        struct arena scratch;
        arena_init(&scratch, (size_t)16 * 1024, SCRATCH_BYTES_MAX);
        size_t i;
        yyjson_val *val;
        yyjson_arr_foreach(answer->json, i, count, val) { arrived(c, val, &scratch); }
        arena_release(&scratch);
    }
    if (count > 0) p->delay_ms = POLL_FAST_MS;
    int64_t max = answer->st == ST_OK ? poll_delay_max(c) : RUN_DELAY_MS_MAX;
    if (p->delay_ms > max) p->delay_ms = max;
    p->next_ms = conductor_now(c) + (count == POLL_TASKS ? 0 : p->delay_ms);
    p->delay_ms *= 2;
    conductor_wake(c);
}

static void poll_send(struct conductor_poller *p) {
    struct conductor *c = p->c;
    char text[512];
    struct buf path;
    buf_init_fixed(&path, text, sizeof text);
    buf_printf(&path, "/tasks/poll/batch/" DEF_TASK_TYPE "?count=%d&timeout=0&domain=", POLL_TASKS);
    rest_escape(str_c(p->domain), &path);
    buf_put_c(&path, "&workerid=");
    rest_escape(str_c(c->domain), &path);
    struct rest_request request = {.method = "GET", .path = buf_str(&path), .hurry = true};
    ASSERT(!path.full);
    p->call = rest_start(c->rest, &request, on_polled, p);
    if (!p->call) p->next_ms = conductor_now(c) + RUN_DELAY_MS_MAX;
}

static void on_poll_timer(uv_timer_t *timer) { conductor_poll(timer->data); }

static void poller_free(struct conductor_poller *p) {
    if (p->call) rest_cancel(p->call);
    TAILQ_REMOVE(&p->c->pollers, p, link);
    mem_free(p);
}

void conductor_pollers_free(struct conductor *c) {
    while (!TAILQ_EMPTY(&c->pollers))
        poller_free(TAILQ_FIRST(&c->pollers));
}

void conductor_poll(struct conductor *c) {
    if (c->state != CONDUCTOR_READY) return;
    int64_t first = INT64_MAX;
    struct conductor_poller *p;
    struct conductor_poller *next;
    for (p = TAILQ_FIRST(&c->pollers); p; p = next) {
        next = TAILQ_NEXT(p, link);
        if (p->call) continue;
        if (p->users == 0)
            poller_free(p);
        else if (p->next_ms <= conductor_now(c))
            poll_send(p);
        else if (p->next_ms < first)
            first = p->next_ms;
    }
    if (first == INT64_MAX) return;
    (void)uv_timer_start(&c->poll, on_poll_timer, (uint64_t)(first - conductor_now(c)), 0);
}

void conductor_poll_soon(struct conductor *c) {
    struct conductor_poller *p;
    for (p = TAILQ_FIRST(&c->pollers); p; p = TAILQ_NEXT(p, link)) {
        p->delay_ms = POLL_FAST_MS;
        p->next_ms = conductor_now(c);
    }
    conductor_wake(c);
}

struct conductor_poller *conductor_poller_use(struct conductor *c, str domain) {
    struct conductor_poller *p;
    for (p = TAILQ_FIRST(&c->pollers); p; p = TAILQ_NEXT(p, link)) {
        if (str_eq(str_c(p->domain), domain)) break;
    }
    if (!p) {
        p = mem_alloc(sizeof *p);
        if (!p || domain.len >= sizeof p->domain) {
            mem_free(p);
            return NULL;
        }
        p->c = c;
        p->delay_ms = POLL_FAST_MS;
        conductor_copy(p->domain, sizeof p->domain, domain);
        TAILQ_INSERT_TAIL(&c->pollers, p, link);
    }
    p->users++;
    conductor_wake(c);
    return p;
}

void conductor_poller_leave(struct conductor_poller *p) {
    p->users--;
    conductor_wake(p->c);
}
