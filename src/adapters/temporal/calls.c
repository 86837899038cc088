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

static int64_t next_retry(struct temporal_run *r) {
    r->retry_ms = r->retry_ms == 0 ? RETRY_MS : r->retry_ms * 2;
    if (r->retry_ms > RETRY_MS_MAX) r->retry_ms = RETRY_MS_MAX;
    return r->retry_ms;
}

/* A call about the run failed. Outages are logged by rpc.c, once; the rest here, once for a run. */
static void call_failed(struct temporal_run *r, const char *what, int code, str message) {
    r->at.retry = now_ms(r->t) + (uint64_t)next_retry(r);
    if (r->complained || code == GRPC_UNAVAILABLE) return;
    r->complained = true;
    LOG(LOG_WARN, "temporal: a call about a run failed; it is made again", LOG_S("run", r->run_id),
        LOG_S("call", str_c(what)), LOG_S("code", str_c(grpc_code_name(code))),
        LOG_S("why", message));
}

static void call_worked(struct temporal_run *r) {
    r->retry_ms = 0;
    r->at.retry = 0;
    r->complained = false;
}

/* ---- reading its history without a task ---- */

static void mark_commanded(struct temporal_run *r, const struct history *h) {
    for (struct wanted *w = wanted_first(r); w; w = wanted_after(w)) {
        const struct history_activity *a = history_find(h, wanted_id(w));
        w->commanded = a != NULL;
        w->cancel_sent = a && a->cancel_requested;
    }
}

static void read_over(struct temporal_run *r) {
    const struct history *h = &r->read;
    if (strcmp(r->read_execution, r->execution) != 0) return; /* a task was faster */
    if (!execution_is_of(h, r->correlation, &r->read_arena)) {
        execution_other(r);
        return;
    }
    execution_tell(r, str_c(r->read_execution), h);
    if (!r->t->closing) execution_tell_ended(r, h);
    mark_commanded(r, h);
    execution_set_due(r);
    char text[256];
    switch (h->end) {
    case HISTORY_OPEN:
        return;
    case HISTORY_CONTINUED: /* there is a newer one */
        r->phase = PHASE_UNKNOWN;
        r->at.retry = now_ms(r->t) + RETRY_MS;
        return;
    case HISTORY_TIMED_OUT:
        execution_gone(r, "PROVIDER_TIMED_OUT", STR("the execution timed out at the cluster"));
        return;
    case HISTORY_TERMINATED:
        snprintf(text, sizeof text, "the execution was terminated at the cluster: %.*s",
                 (int)(h->end_reason.len < 150 ? h->end_reason.len : 150), h->end_reason.ptr);
        size_t bad = 0;
        str message = str_c(text);
        if (!str_utf8(message, &bad)) message.len = bad;
        execution_gone(r, "PROVIDER_TERMINATED", message);
        return;
    case HISTORY_CANCELLED:
        execution_gone(r, "PROVIDER_TERMINATED", STR("the execution was cancelled at the cluster"));
        return;
    case HISTORY_COMPLETED:
    case HISTORY_FAILED:
        execution_gone(r, "PROVIDER_FAILED", STR("the execution was closed by somebody else"));
        return;
    }
}

static void lost(struct temporal_run *r) {
    execution_gone(r, "PROVIDER_LOST", STR("the cluster knows no such execution"));
}

static void read_page(struct temporal_run *r, str token);

static void on_read(void *context, const struct rpc_answer *answer) {
    struct temporal_run *r = context;
    struct error err = {0};
    r->call = NULL;
    execution_enter(r);
    if (answer->code == GRPC_NOT_FOUND) {
        lost(r);
    } else if (answer->code != GRPC_OK) {
        r->looked_length = 0;
        call_failed(r, rpc_name(RPC_HISTORY), answer->code, answer->message);
    } else {
        const Tp__HistoryResponse *page = answer->value;
        call_worked(r);
        if (history_add(&r->read, page->history, &err) != ST_OK ||
            ++r->read_pages > READ_PAGES_MAX) {
            call_failed(r, rpc_name(RPC_HISTORY), GRPC_DATA_LOSS, str_c(err.msg));
        } else if (page->next_page_token.len > 0) {
            read_page(r, wire_str(page->next_page_token));
        } else {
            read_over(r);
        }
    }
    if (!r->call) arena_release(&r->read_arena);
    execution_exit(r);
}

static void read_page(struct temporal_run *r, str token) {
    struct temporal *t = r->t;
    struct error err;
    Tp__HistoryRequest request = TP__HISTORY_REQUEST__INIT;
    Tp__Execution execution = TP__EXECUTION__INIT;
    execution.workflow_id = wire_bytes(r->run_id);
    execution.run_id = wire_bytes(str_c(r->read_execution));
    request.namespace_ = wire_bytes(t->ns);
    request.execution = &execution;
    request.next_page_token = wire_bytes(token);
    request.skip_archival = true;
    if (rpc_start(t->rpc, RPC_HISTORY, &request.base, &r->read_arena, on_read, r, &r->call, &err) !=
        ST_OK)
        call_failed(r, rpc_name(RPC_HISTORY), GRPC_RESOURCE_EXHAUSTED, str_c(err.msg));
}

static void read_begin(struct temporal_run *r) {
    arena_release(&r->read_arena);
    history_init(&r->read, &r->read_arena);
    r->read_pages = 0;
    memcpy(r->read_execution, r->execution, sizeof r->read_execution);
    read_page(r, STR_NONE);
}

/* Attempts of dead workers that others carry on with now: no event tells of them yet. */
static void tell_pending(struct temporal_run *r, const Tp__DescribeResponse *d) {
    for (size_t i = 0; i < d->n_pending_activities; i++) {
        const Tp__PendingActivity *p = d->pending_activities[i];
        if (p->attempt < 2 || p->state != ACTIVITY_STATE_STARTED) continue;
        struct wanted *w = wanted_first(r);
        while (w && !str_eq(wanted_id(w), wire_str(p->activity_id)))
            w = wanted_after(w);
        if (w) execution_tell_recovered(r, w->attempt, p->attempt);
    }
}

static void described(struct temporal_run *r, const Tp__DescribeResponse *d) {
    const Tp__ExecutionInfo *info = d->info;
    if (!info || !info->execution || info->execution->run_id.len == 0) {
        call_failed(r, rpc_name(RPC_DESCRIBE), GRPC_DATA_LOSS, STR("the answer lacks the run id"));
        return;
    }
    if (!info->type || !str_eq(wire_str(info->type->name), WORKFLOW_TYPE)) {
        execution_other(r);
        return;
    }
    if (info->status == STATUS_CONTINUED) { /* its successor is about to be there */
        r->at.retry = now_ms(r->t) + RETRY_MS;
        return;
    }
    bool open = info->status == STATUS_RUNNING || info->status == STATUS_PAUSED;
    if (!open && r->close != RUN_NEW) { /* it is over, as it should be */
        execution_cancel_wanted(r, false);
        r->doomed = true;
        return;
    }
    execution_set_id(r, wire_str(info->execution->run_id));
    execution_set_queue(r, wire_str(info->task_queue));
    tell_pending(r, d);
    bool news = !open || r->phase != PHASE_READY || info->history_length != r->looked_length;
    r->looked_length = info->history_length;
    if (open) r->phase = PHASE_READY;
    if (open && !d->pending_task) r->at.wake = 0; /* none is coming that we could wait for */
    if (news) read_begin(r);
}

static void on_described(void *context, const struct rpc_answer *answer) {
    struct temporal_run *r = context;
    r->call = NULL;
    execution_enter(r);
    if (answer->code == GRPC_OK) {
        call_worked(r);
        described(r, answer->value);
    } else if (answer->code == GRPC_NOT_FOUND) {
        call_worked(r);
        lost(r);
    } else {
        call_failed(r, rpc_name(RPC_DESCRIBE), answer->code, answer->message);
    }
    execution_exit(r);
}

void execution_describe(struct temporal_run *r) {
    struct temporal *t = r->t;
    struct error err;
    Tp__DescribeRequest request = TP__DESCRIBE_REQUEST__INIT;
    Tp__Execution execution = TP__EXECUTION__INIT; /* without a run id: the newest */
    execution.workflow_id = wire_bytes(r->run_id);
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
    execution_enter(r);
    if (answer->code == GRPC_OK) {
        const Tp__StartResponse *started = answer->value;
        call_worked(r);
        execution_set_id(r, wire_str(started->run_id));
        r->phase = started->started ? PHASE_READY : PHASE_UNKNOWN;
        if (strcmp(r->told, r->execution) != 0) /* its first task comes by itself, if not before */
            r->at.wake = now_ms(r->t) + FIRST_TASK_MS;
        if (started->started) execution_tell_id(r, false);
    } else if (answer->code == GRPC_ALREADY_EXISTS) {
        struct arena scratch;
        arena_init(&scratch, CALL_ARENA_FIRST, TEXT_BYTES_MAX);
        str id = rpc_existing_run(answer, &scratch);
        call_worked(r);
        if (id.ptr) execution_set_id(r, id);
        r->phase = PHASE_UNKNOWN; /* there is one, and it is over: its history says how */
        arena_release(&scratch);
    } else {
        call_failed(r, rpc_name(RPC_START), answer->code, answer->message);
    }
    execution_exit(r);
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
    struct execution_input input = {.run_id = r->run_id,
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
    request->workflow_id = wire_bytes(r->run_id);
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

void execution_make(struct temporal_run *r) {
    struct error err = {0};
    struct arena scratch;
    Tp__StartRequest request = TP__START_REQUEST__INIT;
    arena_init(&scratch, CALL_ARENA_FIRST, WIRE_REQUEST_MAX * 2);
    execution_set_queue(r, r->t->own_queue_name);
    status st = r->queue ? start_request(r, &scratch, &request, &err)
                         : error_set(&err, ST_RETRY, "out of memory");
    r->tried = true;
    if (st == ST_OK)
        st = rpc_start(r->t->rpc, RPC_START, &request.base, NULL, on_started, r, &r->call, &err);
    if (st != ST_OK) call_failed(r, rpc_name(RPC_START), GRPC_RESOURCE_EXHAUSTED, str_c(err.msg));
    arena_release(&scratch);
}

/* ---- asking for a workflow task ---- */

static void on_woken(void *context, const struct rpc_answer *answer) {
    struct temporal_run *r = context;
    r->wake_call = NULL;
    execution_enter(r);
    uint64_t now = now_ms(r->t);
    if (answer->code == GRPC_OK) { /* its task may have been faster than this answer */
        r->retry_ms = 0;
    } else if (answer->code == GRPC_NOT_FOUND) { /* closed, or not there: see which */
        r->at.wake = now + NEXT_TASK_MS;
        r->phase = PHASE_UNKNOWN;
        r->at.retry = 0;
    } else {
        int64_t pause = next_retry(r);
        r->at.wake = now + (uint64_t)pause;
    }
    execution_exit(r);
}

void execution_wake(struct temporal_run *r) {
    struct temporal *t = r->t;
    struct error err;
    char id[UUID_TEXT_LEN];
    Tp__SignalRequest request = TP__SIGNAL_REQUEST__INIT;
    Tp__Execution execution = TP__EXECUTION__INIT;
    uuid_format(uuid_v4(), id);
    execution.workflow_id = wire_bytes(r->run_id);
    request.namespace_ = wire_bytes(t->ns);
    request.execution = &execution;
    request.signal_name = wire_bytes(WAKE_SIGNAL);
    request.identity = wire_bytes(t->identity);
    request.request_id = wire_bytes(str_n(id, sizeof id));
    r->at.wake = now_ms(t) + NEXT_TASK_MS;
    if (rpc_start(t->rpc, RPC_SIGNAL, &request.base, NULL, on_woken, r, &r->wake_call, &err) !=
        ST_OK)
        r->at.wake = now_ms(t) + (uint64_t)next_retry(r);
}
