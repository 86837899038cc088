/* adapters/conductor/steps.c: a step and its task: held, shelved, answered.
 *
 * The list of held tasks is in the order of their next heartbeats, since each waits for the same
 * time. An answer that does not arrive is not kept: the lease of its task runs out, Conductor gives
 * us the step again, and arrived() answers that task from the ledger. */
#include <string.h>

#include "adapters/conductor/impl.h"
#include "base/json_out.h"

/* ---- texts ---- */

void conductor_result_json(const struct conductor *c, const struct task_result *result,
                           struct buf *out) {
    json_object_begin(out);
    json_put_text(out, "workflowInstanceId", result->workflow);
    json_put_text(out, "taskId", result->task);
    json_put_text(out, "workerId", str_c(c->node));
    json_put_text(out, "status", str_c(result->status ? result->status : "IN_PROGRESS"));
    if (!result->status) {
        json_put_bool(out, "extendLease", true);
    } else {
        json_put_int(out, "callbackAfterSeconds", result->callback_s);
        json_put_json(out, "outputData", result->output.len > 0 ? result->output : STR("{}"));
        json_put_text_if(out, "reasonForIncompletion", result->reason);
    }
    json_object_end(out);
}

str conductor_handed_json(int64_t handed, char *text, size_t size) {
    int n = snprintf(text, size, "{\"handed\":%lld}", (long long)handed);
    ASSERT(n > 0 && (size_t)n < size);
    return str_n(text, (size_t)n);
}

void conductor_outcome_json(enum provider_step_state state, str output, struct buf *out) {
    switch (state) {
    case PROVIDER_STEP_DONE:
        json_object_begin(out);
        json_put_text(out, "status", STR("SUCCESS"));
        json_put_json(out, "output", output.len > OUTPUT_BYTES_MAX ? STR_NONE : output);
        if (output.len > OUTPUT_BYTES_MAX) json_put_int(out, "outputBytes", (int64_t)output.len);
        json_object_end(out);
        return;
    case PROVIDER_STEP_SKIPPED:
        buf_put_c(out, "{\"status\":\"SKIPPED\",\"skipped\":true}");
        return;
    case PROVIDER_STEP_FAILED:
        buf_put_c(out, "{\"status\":\"FAILED\",\"failed\":true}");
        return;
    case PROVIDER_STEP_WAITS:
    case PROVIDER_STEP_OPEN:
        break;
    }
    buf_put_c(out, "{\"ended\":true}");
}

static struct rest_call *send_result(struct conductor *c, const struct task_result *result,
                                     rest_done done, void *context) {
    struct buf body;
    buf_init(&body, 2 * OUTPUT_BYTES_MAX + (size_t)64 * 1024);
    conductor_result_json(c, result, &body);
    struct rest_request request = {.method = "POST",
                                   .path = STR("/tasks"),
                                   .body = buf_str(&body),
                                   .patience_ms = conductor_is_closing(c) ? 0 : PATIENCE_MS};
    struct rest_call *call = body.full ? NULL : rest_start(c->rest, &request, done, context);
    buf_release(&body);
    return call;
}

void conductor_answer(struct conductor *c, const struct task_result *result) {
    (void)send_result(c, result, conductor_ignore, c); /* if memory is out, its lease will be */
}

/* The more tasks are on the shelf, the longer they stay there. */
static int64_t shelf_s(const struct conductor *c) {
    int64_t s = SHELF_S + c->shelved / 8;
    return s < SHELF_S_MAX ? s : SHELF_S_MAX;
}

/* ---- states ---- */

static void step_check(const struct conductor_step *s) {
    if (conductor_step_has_task(s)) ASSERT(s->task[0] && s->workflow[0]);
    if (s->job) ASSERT(s->job->step == s);
    ASSERT(s->settled != PROVIDER_STEP_OPEN);
    ASSERT(!s->output || s->settled == PROVIDER_STEP_DONE);
}

void conductor_step_move(struct conductor_step *s, enum hand hand) {
    static const uint8_t allowed[] = {
        [HAND_NONE] = 1 << HAND_NONE | 1 << HAND_HELD | 1 << HAND_ANSWERED,
        [HAND_HELD] = 1 << HAND_NONE | 1 << HAND_HELD | 1 << HAND_SHELVED | 1 << HAND_ANSWERED,
        [HAND_SHELVED] = 1 << HAND_NONE | 1 << HAND_HELD | 1 << HAND_ANSWERED,
        [HAND_ANSWERED] = 1 << HAND_NONE | 1 << HAND_HELD,
    };
    struct conductor *c = s->run->c;
    ASSERT(allowed[s->hand] & 1 << hand);
    if (s->hand == HAND_HELD) TAILQ_REMOVE(&c->held, s, held);
    if (s->hand == HAND_SHELVED) c->shelved--;
    s->hand = hand;
    s->shelve = false;
    if (hand == HAND_SHELVED) c->shelved++;
    if (hand != HAND_HELD) return;
    s->beat_ms = conductor_now(c) + BEAT_MS;
    TAILQ_INSERT_TAIL(&c->held, s, held);
}

bool conductor_step_has_task(const struct conductor_step *s) {
    return s->hand == HAND_HELD || s->hand == HAND_SHELVED;
}

/* ---- steps ---- */

struct conductor_step *conductor_step_find(const struct conductor_run *r, str step_id) {
    return map_get(&r->steps, step_id);
}

struct conductor_step *conductor_step_get(struct conductor_run *r, str step_id) {
    struct conductor_step *s = conductor_step_find(r, step_id);
    if (s) return s;
    s = mem_alloc(sizeof *s + step_id.len + 1);
    if (!s) return NULL;
    char *id = (char *)(s + 1);
    memcpy(id, step_id.ptr, step_id.len);
    s->run = r;
    s->id = str_n(id, step_id.len);
    if (map_put(&r->steps, s->id, s)) return s;
    mem_free(s);
    return NULL;
}

void conductor_step_wake(struct conductor_step *s) {
    struct conductor *c = s->run->c;
    if (s->dirty) return;
    s->dirty = true;
    TAILQ_INSERT_TAIL(&c->dirty_steps, s, dirt);
    conductor_wake(c);
}

static void output_drop(struct conductor_step *s) {
    mem_free(s->output);
    s->output = NULL;
    s->output_len = 0;
}

void conductor_step_free(struct conductor_step *s) {
    struct conductor *c = s->run->c;
    conductor_step_move(s, HAND_NONE);
    if (s->call) rest_cancel(s->call);
    if (s->dirty) TAILQ_REMOVE(&c->dirty_steps, s, dirt);
    if (s->job) conductor_job_orphan(s->job);
    output_drop(s);
    (void)map_del(&s->run->steps, s->id);
    mem_free(s);
}

void conductor_step_settle(struct conductor_step *s, enum provider_step_state state, str output) {
    s->settled = state;
    output_drop(s);
    if (state == PROVIDER_STEP_DONE && output.len > 0 && output.len <= OUTPUT_BYTES_MAX) {
        s->output = mem_alloc(output.len);
        if (s->output) memcpy(s->output, output.ptr, output.len);
        if (s->output) s->output_len = output.len;
    }
    conductor_step_wake(s);
}

/* ---- what goes out for a step ---- */

static void on_answer(void *context, const struct rest_answer *answer) {
    struct conductor_step *s = context;
    struct conductor_run *r = s->run;
    bool lost = answer->st == ST_NOT_FOUND || answer->st == ST_INVALID;
    s->call = NULL;
    switch (s->sent) {
    case SENT_BEAT:
        if (lost) conductor_step_move(s, HAND_NONE);
        break;
    case SENT_BACK:
        if (s->hand == HAND_HELD) /* else it is another task by now, or none */
            conductor_step_move(s, answer->st == ST_OK ? HAND_SHELVED : HAND_NONE);
        break;
    case SENT_FINAL:
        if (conductor_step_has_task(s))
            conductor_step_move(s, answer->st == ST_OK || lost ? HAND_ANSWERED : HAND_NONE);
        output_drop(s);
        if (answer->st == ST_OK) conductor_poll_soon(r->c);
        break;
    }
    conductor_step_wake(s);
    if (conductor_run_is_ending(r)) tracked_soon(&r->tracked);
}

static bool step_send(struct conductor_step *s, enum sent sent, const char *state, str output,
                      int64_t callback_s) {
    struct task_result result = {.workflow = str_c(s->workflow),
                                 .task = str_c(s->task),
                                 .status = state,
                                 .output = output,
                                 .callback_s = callback_s};
    s->sent = sent;
    s->call = send_result(s->run->c, &result, on_answer, s);
    return s->call != NULL;
}

static void send_final(struct conductor_step *s) {
    struct buf out;
    buf_init(&out, OUTPUT_BYTES_MAX + 1024);
    conductor_outcome_json(s->settled, str_n(s->output, s->output_len), &out);
    if (!step_send(s, SENT_FINAL, "COMPLETED", out.full ? STR_NONE : buf_str(&out), 0))
        conductor_step_move(s, HAND_NONE);
    buf_release(&out);
}

/* How often the step was taken from a worker travels with its task. */
static void send_back(struct conductor_step *s, int64_t callback_s) {
    char text[64];
    if (!step_send(s, SENT_BACK, "IN_PROGRESS", conductor_handed_json(s->handed, text, sizeof text),
                   callback_s))
        conductor_step_move(s, HAND_NONE);
}

void conductor_step_next(struct conductor_step *s) {
    struct conductor *c = s->run->c;
    step_check(s);
    if (s->call || !conductor_step_has_task(s)) return;
    if (s->settled != PROVIDER_STEP_WAITS && !s->withheld)
        send_final(s);
    else if (s->hand == HAND_HELD && conductor_is_closing(c))
        send_back(s, 0);
    else if (s->hand == HAND_HELD && s->shelve && !s->job)
        send_back(s, shelf_s(c));
}

void conductor_step_give_back(struct conductor_step *s) {
    if (s->hand != HAND_HELD || s->call) return; /* with a call, its lease runs out */
    char text[64];
    s->handed += s->job && s->job->state == JOB_RUNNING;
    struct task_result result = {.workflow = str_c(s->workflow),
                                 .task = str_c(s->task),
                                 .status = "IN_PROGRESS",
                                 .output = conductor_handed_json(s->handed, text, sizeof text)};
    conductor_answer(s->run->c, &result);
}

void conductor_steps_beat(struct conductor *c) {
    struct conductor_step *s;
    while ((s = TAILQ_FIRST(&c->held)) != NULL && s->beat_ms <= conductor_now(c)) {
        TAILQ_REMOVE(&c->held, s, held);
        s->beat_ms = conductor_now(c) + BEAT_MS;
        TAILQ_INSERT_TAIL(&c->held, s, held);
        if (!s->call) (void)step_send(s, SENT_BEAT, NULL, STR_NONE, 0);
    }
}
