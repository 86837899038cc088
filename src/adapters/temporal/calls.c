/* adapters/temporal/calls.c: what the cluster is asked about one run: to make its execution, to
 * tell what it has, to make a workflow task of it. */
#include "adapters/temporal/impl.h"

#include "base/log.h"

enum {
    CALL_ARENA_FIRST = 1024,
    READ_PAGES_MAX = 1000,
    STATUS_RUNNING = 1,
    STATUS_CONTINUED = 6,
    STATUS_PAUSED = 8,
    ACTIVITY_STATE_STARTED = 2,
    REUSE_REJECT_DUPLICATE = 3,
    CONFLICT_USE_EXISTING = 2,
};
#define TEXT_BYTES_MAX ((size_t)1024 * 1024)

/* ---- trying again ---- */

/* A call about the run failed. Outages are logged by rpc.c, once; the rest here, once for a run. */
static void call_failed(struct temporal_run *r, const char *what, int code, str message) {
    tracked_failed(&r->tracked);
    if (r->complained || code == GRPC_UNAVAILABLE) return;
    r->complained = true;
    LOG(LOG_WARN, "temporal: a call about a run failed; it is made again",
        LOG_S("run", r->tracked.run_id), LOG_S("call", str_c(what)),
        LOG_S("code", str_c(grpc_code_name(code))), LOG_S("why", message));
}

static void call_worked(struct temporal_run *r) {
    tracked_worked(&r->tracked);
    r->complained = false;
}

/* ---- reading its history without a task ---- */

static void mark_sent(struct temporal_run *r, const struct history *h) {
    for (struct temporal_wanted *w = temporal_wanted_first(r); w; w = temporal_wanted_after(w)) {
        const struct history_activity *a = history_find(h, wanted_id(w));
        w->sent = !a ? SENT_NOTHING : a->cancel_requested ? SENT_CANCEL : SENT_SCHEDULE;
    }
}

static void read_over(struct temporal_run *r) {
    const struct history *h = &r->read.history;
    if (strcmp(r->read.execution, r->execution) != 0) return; /* a task was faster */
    if (!execution_is_of(h, r->correlation, &r->read.arena)) {
        temporal_run_other(r);
        return;
    }
    temporal_tell(r, str_c(r->read.execution), h);
    if (!temporal_is_closing(r->t)) temporal_tell_ended(r, h);
    mark_sent(r, h);
    char text[256];
    switch (h->end) {
    case HISTORY_OPEN:
        return;
    case HISTORY_CONTINUED: /* there is a newer one */
        temporal_run_move(r, EXECUTION_UNKNOWN);
        r->tracked.retry_at = now_ms(r->t) + RETRY_MS;
        return;
    case HISTORY_TIMED_OUT:
        temporal_run_gone(r, REASON_PROVIDER_TIMED_OUT,
                          STR("the execution timed out at the cluster"));
        return;
    case HISTORY_TERMINATED:
        snprintf(text, sizeof text, "the execution was terminated at the cluster: %.*s",
                 (int)(h->end_reason.len < 150 ? h->end_reason.len : 150), h->end_reason.ptr);
        size_t bad = 0;
        str message = str_c(text);
        if (!str_utf8(message, &bad)) message.len = bad;
        temporal_run_gone(r, REASON_PROVIDER_TERMINATED, message);
        return;
    case HISTORY_CANCELLED:
        temporal_run_gone(r, REASON_PROVIDER_TERMINATED,
                          STR("the execution was cancelled at the cluster"));
        return;
    case HISTORY_COMPLETED:
    case HISTORY_FAILED:
        temporal_run_gone(r, REASON_PROVIDER_FAILED,
                          STR("the execution was closed by somebody else"));
        return;
    }
}

static void lost(struct temporal_run *r) {
    temporal_run_gone(r, REASON_PROVIDER_LOST, STR("the cluster knows no such execution"));
}

static void read_page(struct temporal_run *r, str token);

static void on_read(void *context, const struct rpc_answer *answer) {
    struct temporal_run *r = context;
    struct error err = {0};
    r->call = NULL;
    tracked_enter(&r->tracked);
    if (answer->code == GRPC_NOT_FOUND) {
        lost(r);
    } else if (answer->code != GRPC_OK) {
        r->looked_length = 0;
        call_failed(r, rpc_name(RPC_HISTORY), answer->code, answer->message);
    } else {
        const Tp__HistoryResponse *page = answer->value;
        call_worked(r);
        if (history_add(&r->read.history, page->history, &err) != ST_OK ||
            ++r->read.pages > READ_PAGES_MAX) {
            call_failed(r, rpc_name(RPC_HISTORY), GRPC_DATA_LOSS, str_c(err.msg));
        } else if (page->next_page_token.len > 0) {
            read_page(r, wire_str(page->next_page_token));
        } else {
            read_over(r);
        }
    }
    if (!r->call) arena_release(&r->read.arena);
    tracked_exit(&r->tracked);
}

static void read_page(struct temporal_run *r, str token) {
    struct temporal *t = r->t;
    struct error err;
    Tp__HistoryRequest request = TP__HISTORY_REQUEST__INIT;
    Tp__Execution execution = TP__EXECUTION__INIT;
    execution.workflow_id = wire_bytes(r->tracked.run_id);
    execution.run_id = wire_bytes(str_c(r->read.execution));
    request.namespace_ = wire_bytes(t->ns);
    request.execution = &execution;
    request.next_page_token = wire_bytes(token);
    request.skip_archival = true;
    if (rpc_start(t->rpc, RPC_HISTORY, &request.base, &r->read.arena, on_read, r, &r->call, &err) !=
        ST_OK)
        call_failed(r, rpc_name(RPC_HISTORY), GRPC_RESOURCE_EXHAUSTED, str_c(err.msg));
}

static void read_begin(struct temporal_run *r) {
    arena_release(&r->read.arena);
    history_init(&r->read.history, &r->read.arena);
    r->read.pages = 0;
    memcpy(r->read.execution, r->execution, sizeof r->read.execution);
    read_page(r, STR_NONE);
}

/* Attempts of dead workers that others carry on with now: no event tells of them yet. */
static void tell_pending(struct temporal_run *r, const Tp__DescribeResponse *d) {
    for (size_t i = 0; i < d->n_pending_activities; i++) {
        const Tp__PendingActivity *p = d->pending_activities[i];
        if (p->attempt < 2 || p->state != ACTIVITY_STATE_STARTED) continue;
        struct temporal_wanted *w = temporal_wanted_first(r);
        while (w && !str_eq(wanted_id(w), wire_str(p->activity_id)))
            w = temporal_wanted_after(w);
        if (w) temporal_tell_recovered(r, w->wanted.attempt, p->attempt);
    }
}

static void described(struct temporal_run *r, const Tp__DescribeResponse *d) {
    const Tp__ExecutionInfo *info = d->info;
    if (!info || !info->execution || info->execution->run_id.len == 0) {
        call_failed(r, rpc_name(RPC_DESCRIBE), GRPC_DATA_LOSS, STR("the answer lacks the run id"));
        return;
    }
    if (!info->type || !str_eq(wire_str(info->type->name), WORKFLOW_TYPE)) {
        temporal_run_other(r);
        return;
    }
    if (info->status == STATUS_CONTINUED) { /* its successor is about to be there */
        r->tracked.retry_at = now_ms(r->t) + RETRY_MS;
        return;
    }
    bool open = info->status == STATUS_RUNNING || info->status == STATUS_PAUSED;
    if (!open && r->side == ENGINE_ENDED) { /* it is over, as it should be */
        temporal_wanted_cancel(r, false);
        tracked_drop(&r->tracked);
        return;
    }
    temporal_run_set_execution(r, wire_str(info->execution->run_id));
    temporal_run_set_queue(r, wire_str(info->task_queue));
    tell_pending(r, d);
    bool news = !open || !temporal_run_is_open(r) || info->history_length != r->looked_length;
    r->looked_length = info->history_length;
    if (open && !temporal_run_is_open(r)) temporal_run_move(r, EXECUTION_OPEN);
    if (open && !d->pending_task) r->at.wake = 0; /* none is coming that we could wait for */
    if (news) read_begin(r);
}

static void on_described(void *context, const struct rpc_answer *answer) {
    struct temporal_run *r = context;
    r->call = NULL;
    tracked_enter(&r->tracked);
    if (answer->code == GRPC_OK) {
        call_worked(r);
        described(r, answer->value);
    } else if (answer->code == GRPC_NOT_FOUND) {
        call_worked(r);
        lost(r);
    } else {
        call_failed(r, rpc_name(RPC_DESCRIBE), answer->code, answer->message);
    }
    tracked_exit(&r->tracked);
}

void temporal_run_describe(struct temporal_run *r) {
    struct temporal *t = r->t;
    struct error err;
    Tp__DescribeRequest request = TP__DESCRIBE_REQUEST__INIT;
    Tp__Execution execution = TP__EXECUTION__INIT; /* without a run id: the newest */
    execution.workflow_id = wire_bytes(r->tracked.run_id);
    request.namespace_ = wire_bytes(t->ns);
    request.execution = &execution;
    r->at.look = now_ms(t) + (uint64_t)t->look_ms;
    if (rpc_start(t->rpc, RPC_DESCRIBE, &request.base, NULL, on_described, r, &r->call, &err) !=
        ST_OK)
        call_failed(r, rpc_name(RPC_DESCRIBE), GRPC_RESOURCE_EXHAUSTED, str_c(err.msg));
}

/* ---- making an execution ---- */

static void on_started(void *context, const struct rpc_answer *answer) {
    struct temporal_run *r = context;
    r->call = NULL;
    tracked_enter(&r->tracked);
    if (answer->code == GRPC_OK) {
        const Tp__StartResponse *started = answer->value;
        call_worked(r);
        temporal_run_set_execution(r, wire_str(started->run_id));
        if (r->state == EXECUTION_ASKED) /* else its first task was faster */
            temporal_run_move(r, started->started ? EXECUTION_OPEN : EXECUTION_UNKNOWN);
        if (strcmp(r->told.execution, r->execution) !=
            0) /* its first task comes by itself, if not before */
            r->at.wake = now_ms(r->t) + FIRST_TASK_MS;
        if (started->started) temporal_tell_execution(r, false);
    } else if (answer->code == GRPC_ALREADY_EXISTS) {
        struct arena scratch;
        arena_init(&scratch, CALL_ARENA_FIRST, TEXT_BYTES_MAX);
        str id = rpc_existing_run(answer, &scratch);
        call_worked(r);
        if (id.ptr) temporal_run_set_execution(r, id);
        if (r->state == EXECUTION_ASKED) /* there is one, and it is over: its history says how */
            temporal_run_move(r, EXECUTION_UNKNOWN);
        arena_release(&scratch);
    } else {
        call_failed(r, rpc_name(RPC_START), answer->code, answer->message);
    }
    tracked_exit(&r->tracked);
}

static bool put_memo(Tp__Memo *memo, const char *name, str value, struct arena *arena) {
    struct buf b;
    str json = STR_NONE;
    buf_init(&b, TEXT_BYTES_MAX);
    buf_put_json_str(&b, value.ptr ? value : STR(""));
    bool good = !b.full && arena_try_str(arena, buf_str(&b), &json);
    buf_release(&b);
    Tp__Field *field = wire_new(&tp__field__descriptor, arena);
    if (!good || !field) return false;
    field->key = wire_bytes(str_c(name));
    field->value = wire_json(json, arena);
    memo->fields[memo->n_fields++] = field;
    return field->value != NULL;
}

static status start_request(struct temporal_run *r, struct arena *arena, Tp__StartRequest *request,
                            struct error *err) {
    struct temporal *t = r->t;
    struct execution_input input = {.run_id = r->tracked.run_id,
                                    .tenant_id = r->tenant_id,
                                    .project_id = r->project_id,
                                    .environment_id = r->environment_id,
                                    .plan_ref = r->plan_ref,
                                    .correlation = r->correlation};
    char correlation[UUID_TEXT_LEN];
    str request_id = STR_NONE;
    uuid_format(r->correlation, correlation);
    str json = execution_input_json(&input, arena);
    Tp__Memo *memo = wire_new(&tp__memo__descriptor, arena);
    if (memo) memo->fields = wire_list(5, arena);
    bool good = json.ptr && memo && memo->fields && put_memo(memo, "planId", r->plan_id, arena) &&
                put_memo(memo, "planVersion", r->plan_version, arena) &&
                put_memo(memo, "tenantId", r->tenant_id, arena) &&
                put_memo(memo, "projectId", r->project_id, arena) &&
                put_memo(memo, "environmentId", r->environment_id, arena);
    if (!good) return error_set(err, ST_RETRY, "out of memory");
    request->namespace_ = wire_bytes(t->ns);
    request->workflow_id = wire_bytes(r->tracked.run_id);
    request->workflow_type = wire_type(WORKFLOW_TYPE, arena);
    request->task_queue = wire_queue(task_queue_str(r->queue), arena);
    request->input = wire_json_list(json, arena);
    request->task_timeout = wire_ms(WORKFLOW_TASK_TIMEOUT_MS, arena);
    request->identity = wire_bytes(t->identity);
    /* The same for the same run, on every node; another ledger's run of that id has another. */
    if (!arena_try_str(arena, str_n(correlation, sizeof correlation), &request_id))
        return error_set(err, ST_RETRY, "out of memory");
    request->request_id = wire_bytes(request_id);
    request->id_reuse_policy = REUSE_REJECT_DUPLICATE;
    request->id_conflict_policy = CONFLICT_USE_EXISTING;
    request->memo = memo;
    if (!request->workflow_type || !request->task_queue || !request->input ||
        !request->task_timeout)
        return error_set(err, ST_RETRY, "out of memory");
    return ST_OK;
}

void temporal_run_make(struct temporal_run *r) {
    struct error err = {0};
    struct arena scratch;
    Tp__StartRequest request = TP__START_REQUEST__INIT;
    arena_init(&scratch, CALL_ARENA_FIRST, WIRE_REQUEST_MAX * 2);
    temporal_run_set_queue(r, r->t->own_queue_name);
    status st = r->queue ? start_request(r, &scratch, &request, &err)
                         : error_set(&err, ST_RETRY, "out of memory");
    temporal_run_move(r, EXECUTION_ASKED);
    if (st == ST_OK)
        st = rpc_start(r->t->rpc, RPC_START, &request.base, NULL, on_started, r, &r->call, &err);
    if (st != ST_OK) call_failed(r, rpc_name(RPC_START), GRPC_RESOURCE_EXHAUSTED, str_c(err.msg));
    arena_release(&scratch);
}

/* ---- asking for a workflow task ---- */

static void on_woken(void *context, const struct rpc_answer *answer) {
    struct temporal_run *r = context;
    r->wake_call = NULL;
    tracked_enter(&r->tracked);
    uint64_t now = now_ms(r->t);
    if (answer->code == GRPC_OK) { /* its task may have been faster than this answer */
        r->tracked.retry_ms = 0;
    } else if (answer->code == GRPC_NOT_FOUND) { /* closed, or not there: see which */
        r->at.wake = now + NEXT_TASK_MS;
        if (temporal_run_is_open(r)) temporal_run_move(r, EXECUTION_UNKNOWN);
        r->tracked.retry_at = 0;
    } else {
        r->at.wake = now + (uint64_t)tracked_pause(&r->tracked);
    }
    tracked_exit(&r->tracked);
}

void temporal_run_wake(struct temporal_run *r) {
    struct temporal *t = r->t;
    struct error err;
    char id[UUID_TEXT_LEN];
    Tp__SignalRequest request = TP__SIGNAL_REQUEST__INIT;
    Tp__Execution execution = TP__EXECUTION__INIT;
    uuid_format(uuid_v4(), id);
    execution.workflow_id = wire_bytes(r->tracked.run_id);
    request.namespace_ = wire_bytes(t->ns);
    request.execution = &execution;
    request.signal_name = wire_bytes(WAKE_SIGNAL);
    request.identity = wire_bytes(t->identity);
    request.request_id = wire_bytes(str_n(id, sizeof id));
    r->at.wake = now_ms(t) + NEXT_TASK_MS;
    if (rpc_start(t->rpc, RPC_SIGNAL, &request.base, NULL, on_woken, r, &r->wake_call, &err) !=
        ST_OK)
        r->at.wake = now_ms(t) + (uint64_t)tracked_pause(&r->tracked);
}
