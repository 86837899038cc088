/* adapters/temporal/tasks.c: workflow tasks, from the poll to the answer.
 *
 * A task brings the whole history of its execution. What is new in it is told to the engine; then
 * the task is held until the engine has rested, a moment at most, so that one answer carries all
 * that follows from the news. */
#include "adapters/temporal/impl.h"

#include "base/log.h"

enum {
    TASK_ARENA_FIRST = 8192,
    TASK_PAGES_MAX = 1000,
    CAUSE_WORKER_FAILURE = 14, /* WORKFLOW_WORKER_UNHANDLED_FAILURE */
    QUERY_FAILED = 2,
    STUCK_PAUSE_MS = 1000, /* before we ask again for a task that can bring us forward */
};

/* ---- states ---- */

/* Polls are on a list of their own: they are counted by their queue, tasks by the provider. */
static void task_move(struct workflow_task *task, enum task_state state) {
    static const uint8_t allowed[] = {
        [TASK_POLLS] = 1 << TASK_READS,
        [TASK_READS] = 1 << TASK_PARKED | 1 << TASK_HELD | 1 << TASK_ANSWERS,
        [TASK_PARKED] = 1 << TASK_HELD | 1 << TASK_ANSWERS,
        [TASK_HELD] = 1 << TASK_ANSWERS,
        [TASK_ANSWERS] = 0,
    };
    struct temporal *t = task->t;
    ASSERT(allowed[task->state] & 1 << state);
    if (task->state == TASK_POLLS) {
        TAILQ_REMOVE(&t->polls, task, link);
        TAILQ_INSERT_TAIL(&t->tasks, task, link);
        t->task_count++;
        task->queue->polls--;
        task->queue = NULL;
    }
    task->state = state;
}

void workflow_task_check(const struct workflow_task *task) {
    ASSERT((task->state == TASK_POLLS) == (task->queue != NULL));
    ASSERT((task->state == TASK_POLLS) == (task->poll == NULL));
    if (task->state == TASK_HELD) {
        ASSERT(task->run && task->run->task == task);
        ASSERT(!task->call);
    }
    if (task->state == TASK_PARKED) ASSERT(task->parked_until > 0 && !task->run && !task->call);
    if (task->run) ASSERT(task->state == TASK_HELD || task->state == TASK_ANSWERS);
}

/* ---- polls ---- */

static void task_free(struct workflow_task *task) {
    arena_release(&task->arena);
    mem_free(task);
}

static void task_end(struct workflow_task *task) {
    struct temporal *t = task->t;
    ASSERT(!task->call);
    ASSERT(task->state != TASK_POLLS);
    TAILQ_REMOVE(&t->tasks, task, link);
    t->task_count--;
    task_free(task);
    if (temporal_is_closing(t))
        temporal_check_end(t);
    else
        workflow_tasks_poll(t);
}

/* Unanswered: the cluster offers it again if it still wants it. */
static void task_drop(struct workflow_task *task) {
    if (task->call) rpc_cancel(task->call);
    task->call = NULL;
    task_end(task);
}

static void task_fail(struct workflow_task *task, const char *why);
static void task_pages(struct workflow_task *task, str token);
static void task_whole(struct workflow_task *task);

static void poll_over(struct workflow_task *task) {
    struct temporal *t = task->t;
    ASSERT(task->state == TASK_POLLS);
    TAILQ_REMOVE(&t->polls, task, link);
    task->queue->polls--;
    task_free(task);
    task_queue_drop(t, NULL);
}

static void on_polled(void *context, const struct rpc_answer *answer) {
    struct workflow_task *task = context;
    struct temporal *t = task->t;
    struct error err = {0};
    task->call = NULL;
    if (answer->code != GRPC_OK) {
        LOG(LOG_WARN, "temporal: a poll failed", LOG_S("code", str_c(grpc_code_name(answer->code))),
            LOG_S("why", answer->message));
        poll_over(task); /* the next tick begins another */
        return;
    }
    const Tp__TaskResponse *poll = answer->value;
    if (poll->task_token.len == 0) {
        poll_over(task);
        workflow_tasks_poll(t);
        return;
    }
    task->poll = poll;
    task_move(task, TASK_READS);
    task_queue_drop(t, NULL);
    workflow_tasks_poll(t);
    history_init(&task->history, &task->arena);
    if (history_add(&task->history, poll->history, &err) != ST_OK)
        task_fail(task, err.msg);
    else if (poll->next_page_token.len > 0)
        task_pages(task, wire_str(poll->next_page_token));
    else
        task_whole(task);
}

static bool poll_begin(struct temporal *t, struct task_queue *queue) {
    struct error err;
    struct workflow_task *task = mem_alloc(sizeof *task);
    if (!task) return false;
    task->t = t;
    task->queue = queue;
    arena_init(&task->arena, TASK_ARENA_FIRST, TASK_ARENA_MAX);
    Tp__PollRequest request = TP__POLL_REQUEST__INIT;
    request.namespace_ = wire_bytes(t->ns);
    request.identity = wire_bytes(t->identity);
    request.task_queue = wire_queue(task_queue_str(queue), &task->arena);
    if (!request.task_queue || rpc_start(t->rpc, RPC_POLL_TASK, &request.base, &task->arena,
                                         on_polled, task, &task->call, &err) != ST_OK) {
        task_free(task);
        return false;
    }
    queue->polls++;
    TAILQ_INSERT_TAIL(&t->polls, task, link);
    return true;
}

void workflow_tasks_poll(struct temporal *t) {
    if (t->state != TEMPORAL_READY) return;
    for (struct task_queue *queue = TAILQ_FIRST(&t->queues); queue;
         queue = TAILQ_NEXT(queue, link)) {
        int want = queue == t->own_queue ? t->pollers : (queue->runs > 0 ? 1 : 0);
        while (queue->polls < want && t->task_count < TASKS_MAX) {
            if (!poll_begin(t, queue)) return; /* the next tick tries again */
        }
    }
}

/* ---- the history ---- */

static void on_page(void *context, const struct rpc_answer *answer) {
    struct workflow_task *task = context;
    struct error err = {0};
    task->call = NULL;
    if (answer->code != GRPC_OK || temporal_is_closing(task->t)) {
        task_drop(task); /* late, or gone */
        return;
    }
    const Tp__HistoryResponse *page = answer->value;
    if (history_add(&task->history, page->history, &err) != ST_OK)
        task_fail(task, err.msg);
    else if (++task->pages > TASK_PAGES_MAX)
        task_fail(task, "its history has too many pages");
    else if (page->next_page_token.len > 0)
        task_pages(task, wire_str(page->next_page_token));
    else
        task_whole(task);
}

static void task_pages(struct workflow_task *task, str token) {
    struct temporal *t = task->t;
    struct error err;
    Tp__HistoryRequest request = TP__HISTORY_REQUEST__INIT;
    request.namespace_ = wire_bytes(t->ns);
    request.execution = task->poll->execution;
    request.next_page_token = wire_bytes(token);
    if (rpc_start(t->rpc, RPC_HISTORY, &request.base, &task->arena, on_page, task, &task->call,
                  &err) != ST_OK)
        task_drop(task);
}

/* ---- answers without a run ---- */

static void on_told(void *context, const struct rpc_answer *answer) {
    struct workflow_task *task = context;
    UNUSED(answer);
    task->call = NULL;
    task_end(task);
}

static void task_fail(struct workflow_task *task, const char *why) {
    struct temporal *t = task->t;
    struct error err;
    LOG(temporal_is_closing(t) ? LOG_DEBUG : LOG_WARN, "temporal: a workflow task is given back",
        LOG_S("run",
              task->poll->execution ? wire_str(task->poll->execution->workflow_id) : STR_NONE),
        LOG_S("why", str_c(why)));
    Tp__TaskFailedRequest request = TP__TASK_FAILED_REQUEST__INIT;
    request.task_token = task->poll->task_token;
    request.cause = CAUSE_WORKER_FAILURE;
    request.failure = wire_failure(STR("CAIRN"), str_c(why), STR_NONE, true, &task->arena);
    request.identity = wire_bytes(t->identity);
    request.namespace_ = wire_bytes(t->ns);
    if (rpc_start(t->rpc, RPC_TASK_FAILED, &request.base, NULL, on_told, task, &task->call, &err) ==
        ST_OK)
        task_move(task, TASK_ANSWERS);
    else
        task_drop(task);
}

/* Nobody asks us questions: the ledger has the answers. */
static void task_refuse_query(struct workflow_task *task) {
    struct temporal *t = task->t;
    struct error err;
    Tp__QueryCompletedRequest request = TP__QUERY_COMPLETED_REQUEST__INIT;
    request.task_token = task->poll->task_token;
    request.completed_type = QUERY_FAILED;
    request.error_message = wire_bytes(STR("runs of Cairn answer no queries: ask Cairn"));
    request.namespace_ = wire_bytes(t->ns);
    if (rpc_start(t->rpc, RPC_QUERY_COMPLETED, &request.base, NULL, on_told, task, &task->call,
                  &err) == ST_OK)
        task_move(task, TASK_ANSWERS);
    else
        task_drop(task);
}

static bool put_query_results(struct workflow_task *task, Tp__TaskCompletedRequest *request) {
    size_t n = task->poll->n_queries;
    if (n == 0) return true;
    request->query_results = wire_list(n, &task->arena);
    for (size_t i = 0; request->query_results && i < n; i++) {
        Tp__QueryResultEntry *entry = wire_new(&tp__query_result_entry__descriptor, &task->arena);
        if (!entry) return false;
        entry->key = task->poll->queries[i]->key;
        entry->value = wire_new(&tp__query_result__descriptor, &task->arena);
        if (!entry->value) return false;
        entry->value->result_type = QUERY_FAILED;
        entry->value->error_message = wire_bytes(STR("runs of Cairn answer no queries: ask Cairn"));
        request->query_results[request->n_query_results++] = entry;
    }
    return request->query_results != NULL;
}

static status task_complete(struct workflow_task *task, const struct commands *commands,
                            rpc_done done, struct error *err) {
    struct temporal *t = task->t;
    Tp__TaskCompletedRequest request = TP__TASK_COMPLETED_REQUEST__INIT;
    request.task_token = task->poll->task_token;
    request.commands = commands->items;
    request.n_commands = commands->count;
    request.identity = wire_bytes(t->identity);
    request.force_new_task = commands->more;
    request.namespace_ = wire_bytes(t->ns);
    if (!put_query_results(task, &request)) return error_set(err, ST_RETRY, "out of memory");
    status st =
        rpc_start(t->rpc, RPC_TASK_COMPLETED, &request.base, NULL, done, task, &task->call, err);
    if (st == ST_OK) task_move(task, TASK_ANSWERS);
    return st;
}

/* For a run that is not in memory: closes its execution if it is over, else changes nothing. */
static void task_answer_alone(struct workflow_task *task, const struct provider_found *found) {
    struct error err = {0};
    struct commands commands;
    struct commands_want want = {.history = &task->history, .close = RUN_NEW};
    if (found && run_is_final(found->status)) {
        want.close = found->status;
        want.code = found->code;
        want.message = found->message;
    }
    status st = commands_make(&want, &task->arena, &commands, &err);
    if (st == ST_OK) st = task_complete(task, &commands, on_told, &err);
    if (st != ST_OK) task_fail(task, err.msg);
}

/* ---- tasks of runs ---- */

static bool is_unaware(const struct temporal_run *r) {
    return r->side == ENGINE_UNAWARE || r->side == ENGINE_ASKED;
}

static void task_attach(struct workflow_task *task, struct temporal_run *r) {
    struct temporal *t = task->t;
    if (r->task) {
        struct workflow_task *old =
            r->task; /* it was held for too long: this one stands for both */
        r->task = NULL;
        task_drop(old);
    }
    task_move(task, TASK_HELD);
    r->task = task;
    task->run = r;
    workflow_task_check(task);
    uint64_t now = now_ms(t);
    r->at.hold = now + (uint64_t)t->hold_ms;
    r->at.wake = 0;
    r->at.look = now + (uint64_t)t->look_ms;
    r->at.idle = now + (uint64_t)t->idle_ms;
    temporal_run_move(r, EXECUTION_OPEN); /* a task proves it, and may schedule again */
    tracked_enter(&r->tracked);
    if (is_unaware(r)) { /* the engine tells what it wants, now or soon */
        temporal_run_word(r, WORD_TOLD);
        t->ports.look(t->ports.context, r->tracked.run_id);
    }
    if (!temporal_is_closing(t))
        temporal_tell(r, wire_str(task->poll->execution->run_id), &task->history);
    if (!temporal_is_closing(t)) temporal_tell_ended(r, &task->history);
    tracked_exit(&r->tracked);
}

/* Given back at once, it would come back at once, then later and later: it is kept for as long as
 * the cluster allows, and asked for again. */
static void task_park(struct workflow_task *task, const char *why) {
    struct temporal *t = task->t;
    if (task->state != TASK_PARKED) {
        task_move(task, TASK_PARKED);
        task->parked_until = now_ms(t) + PARK_MS;
        workflow_task_check(task);
        temporal_tick_soon(t);
    } else if (now_ms(t) >= task->parked_until) {
        task_fail(task, why);
    }
}

static void task_adopt(struct workflow_task *task, str run_id) {
    struct temporal *t = task->t;
    struct provider_found found;
    struct error err;
    enum run_claim claim =
        provider_runs_claim(&t->runs, run_id, STR_NONE, &task->arena, &found, &err);
    if (claim != CLAIM_UNKNOWN && claim != CLAIM_UNSURE &&
        !execution_is_of(&task->history, found.correlation, &task->arena))
        claim = CLAIM_UNKNOWN; /* another ledger's run of the same id */
    struct temporal_run *r;
    switch (claim) {
    case CLAIM_UNKNOWN:
        LOG(LOG_WARN, "temporal: an execution of a run that is not in the ledger is left alone",
            LOG_S("run", run_id));
        task_answer_alone(task, NULL);
        return;
    case CLAIM_UNSURE:
        task_park(task, err.msg);
        return;
    case CLAIM_OVER:
        task_answer_alone(task, &found);
        return;
    case CLAIM_ELSEWHERE: /* whoever it belongs to polls this queue too, or will */
        task_park(task, "the run belongs to another node");
        return;
    case CLAIM_OURS:
        r = temporal_run_find(t, run_id);
        if (!r) r = temporal_run_new(t, run_id);
        if (!r)
            task_fail(task, "too many runs at once");
        else
            task_attach(task, r);
        return;
    }
}

bool workflow_tasks_recheck(struct temporal *t) {
    bool parked = false;
    t->round++;
    for (struct workflow_task *task = TAILQ_FIRST(&t->tasks); task && !temporal_is_closing(t);) {
        if (task->state != TASK_PARKED || task->round == t->round) {
            task = TAILQ_NEXT(task, link);
            continue;
        }
        parked = true;
        task->round = t->round;
        task_adopt(task, wire_str(task->poll->execution->workflow_id));
        task = TAILQ_FIRST(&t->tasks); /* any of them may have ended meanwhile */
    }
    return parked;
}

static void task_whole(struct workflow_task *task) {
    const Tp__TaskResponse *poll = task->poll;
    if (poll->query) {
        task_refuse_query(task);
        return;
    }
    if (!poll->execution || poll->execution->workflow_id.len == 0 || !poll->type ||
        !str_eq(wire_str(poll->type->name), WORKFLOW_TYPE)) {
        task_fail(task, "it is of a workflow type that is not ours");
        return;
    }
    str run_id = wire_str(poll->execution->workflow_id);
    struct temporal_run *r = temporal_run_find(task->t, run_id);
    if (!r || is_unaware(r))
        task_adopt(task, run_id);
    else if (execution_is_of(&task->history, r->correlation, &task->arena))
        task_attach(task, r);
    else
        task_fail(task, "the execution is of another run with the same id");
}

/* ---- the answer ---- */

static void answer_accepted(struct temporal_run *r, const struct workflow_task *task) {
    uint64_t now = now_ms(r->t);
    if (task->closes) {
        temporal_wanted_cancel(r, false);
        tracked_drop(&r->tracked);
        return;
    }
    const struct history *h = &task->history;
    bool draining = h->suggest_continue && !task->continues;
    bool left = false;
    for (struct temporal_wanted *w = temporal_wanted_first(r); w; w = temporal_wanted_after(w)) {
        if (task->continues) { /* the new execution knows none of them */
            w->sent = SENT_NOTHING;
            continue;
        }
        if (!w->in_answer) continue; /* it came later */
        bool there = w->due == WANTED_SCHEDULED || history_find(h, wanted_id(w)) != NULL;
        if (w->due == WANTED_CANCELLED)
            w->sent = SENT_CANCEL;
        else if (w->sent != SENT_CANCEL)
            w->sent = there ? SENT_SCHEDULE : SENT_NOTHING;
        left = left || !there;
    }
    if (temporal_run_is_open(r))
        temporal_run_move(r, draining && h->pending > 0 ? EXECUTION_DRAINING : EXECUTION_OPEN);
    r->at.wake = 0;
    if (task->continues) r->at.wake = now + FIRST_TASK_MS;
    if (task->more) r->at.wake = now + NEXT_TASK_MS;
    if (draining && left && r->state != EXECUTION_DRAINING) r->at.wake = now + STUCK_PAUSE_MS;
}

static void on_answered(void *context, const struct rpc_answer *answer) {
    struct workflow_task *task = context;
    struct temporal_run *r = task->run;
    task->call = NULL;
    if (!r) {
        task_end(task);
        return;
    }
    task->run = NULL;
    tracked_enter(&r->tracked);
    if (answer->code == GRPC_OK) {
        answer_accepted(r, task);
    } else {
        /* Something came in between, or it was too late: the next task brings all of it. */
        r->at.wake = now_ms(r->t) + NEXT_TASK_MS;
        if (answer->code == GRPC_NOT_FOUND) temporal_run_suspect(r);
        if (answer->code != GRPC_NOT_FOUND && answer->code != GRPC_INVALID_ARGUMENT &&
            answer->code != GRPC_UNAVAILABLE)
            LOG(LOG_WARN, "temporal: an answer to a workflow task was refused",
                LOG_S("run", r->tracked.run_id), LOG_S("code", str_c(grpc_code_name(answer->code))),
                LOG_S("why", answer->message));
    }
    for (struct temporal_wanted *w = temporal_wanted_first(r); w; w = temporal_wanted_after(w))
        w->in_answer = false;
    task_end(task);
    tracked_exit(&r->tracked);
}

/* What can be answered here and now. */
static void tell_answers(struct temporal_run *r, const struct workflow_task *task) {
    static const struct outcome never = {.code = STR_LIT("CANCELLED"),
                                         .message = STR_LIT("the attempt was cancelled")};
    static const struct outcome too_large = {
        .code = STR_LIT("PAYLOAD_TOO_LARGE"),
        .message = STR_LIT("the fields of the step are more than the cluster takes")};
    temporal_tell_ended(r, &task->history);
    for (struct temporal_wanted *w = temporal_wanted_first(r); w; w = temporal_wanted_after(w)) {
        if (w->due == WANTED_NEVER) temporal_tell_answer(r, w, &never);
        if (w->due == WANTED_TOO_LARGE) temporal_tell_answer(r, w, &too_large);
    }
}

static status make_commands(struct temporal_run *r, struct workflow_task *task,
                            struct commands *out, bool *answers, struct error *err) {
    struct temporal *t = r->t;
    struct wanted_attempt *attempts =
        arena_try(&task->arena, (r->tracked.wanted_count + 1) * sizeof *attempts);
    if (!attempts) return error_set(err, ST_RETRY, "out of memory");
    size_t n = 0;
    for (struct temporal_wanted *w = temporal_wanted_first(r); w; w = temporal_wanted_after(w))
        attempts[n++] =
            (struct wanted_attempt){w->wanted.attempt, wanted_id(w), w->stop, WANTED_WAITS};
    ASSERT(n == r->tracked.wanted_count);
    struct commands_want want = {.history = &task->history,
                                 .attempts = attempts,
                                 .attempt_count = n,
                                 .close = r->end,
                                 .code = r->code,
                                 .message = r->message,
                                 .may_continue = r->side == ENGINE_RESTS,
                                 .activity_queue = t->queue_name,
                                 .workflow_queue = t->own_queue_name,
                                 .heartbeat_ms = t->heartbeat_ms};
    status st = commands_make(&want, &task->arena, out, err);
    if (st != ST_OK) return st;
    n = 0;
    *answers = false;
    for (struct temporal_wanted *w = temporal_wanted_first(r); w; w = temporal_wanted_after(w)) {
        w->due = attempts[n++].due;
        *answers = *answers || w->due == WANTED_ENDED || w->due == WANTED_NEVER ||
                   w->due == WANTED_TOO_LARGE;
    }
    return ST_OK;
}

/* The engine, called through a port, may have ended all this. */
static bool is_held_still(const struct temporal_run *r, const struct workflow_task *task) {
    return r->task == task && !tracked_is_dropped(&r->tracked) && !temporal_is_closing(r->t);
}

void workflow_task_answer(struct temporal_run *r) {
    struct temporal *t = r->t;
    struct workflow_task *task = r->task;
    struct commands commands = {0};
    struct error err = {0};
    bool answers = false;
    workflow_task_check(task);
    struct arena_mark mark = arena_mark(&task->arena);
    status st = make_commands(r, task, &commands, &answers, &err);
    if (st == ST_OK && answers && r->side != ENGINE_ENDED) {
        tell_answers(r, task);
        if (!is_held_still(r, task)) return;
        arena_rewind(&task->arena, mark);
        if (now_ms(t) < r->at.hold && temporal_run_is_heard(r))
            return; /* it may have more to say */
        st = make_commands(r, task, &commands, &answers, &err);
    }
    if (st == ST_OK && commands.continues) t->ports.rotating(t->ports.context, r->tracked.run_id);
    if (!is_held_still(r, task)) return;
    r->task = NULL;
    r->at.wake = now_ms(t) + NEXT_TASK_MS; /* until its answer is there */
    if (st == ST_OK) st = task_complete(task, &commands, on_answered, &err);
    if (st != ST_OK) {
        task->run = NULL;
        task_fail(task, err.msg);
        return;
    }
    task->closes = commands.closes;
    task->continues = commands.continues;
    task->more = commands.more;
    for (struct temporal_wanted *w = temporal_wanted_first(r); w; w = temporal_wanted_after(w))
        w->in_answer = true;
}

/* ---- the end ---- */

void workflow_tasks_leave(struct temporal_run *r) {
    struct temporal *t = r->t;
    struct workflow_task *held = r->task;
    r->task = NULL;
    for (struct workflow_task *task = TAILQ_FIRST(&t->tasks); task; task = TAILQ_NEXT(task, link)) {
        if (task->run == r) task->run = NULL;
    }
    if (held) task_drop(held);
}

void workflow_tasks_release(struct temporal *t) {
    while (!TAILQ_EMPTY(&t->polls)) {
        struct workflow_task *task = TAILQ_FIRST(&t->polls);
        rpc_cancel(task->call);
        poll_over(task);
    }
    struct workflow_task *next;
    for (struct workflow_task *task = TAILQ_FIRST(&t->tasks); task; task = next) {
        next = TAILQ_NEXT(task, link);
        if (task->call) continue; /* being answered, or read */
        if (task->run) task->run->task = NULL;
        task->run = NULL;
        task_fail(task, "the node is shutting down");
    }
}
