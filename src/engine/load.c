/* engine/load.c: a run from its rows: loaded when it is looked at, built again after a commit
 * failed, and read on where another process has written. The rows come with a struct engine_read. */
#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"
#include "engine/impl.h"

/* ---- from rows to a flow ---- */

/* Stands in for a plan that cannot be had any more: the run is only ended. */
static const struct plan no_plan = {.concurrency = 1};

status launch_read(str payload, struct arena *arena, struct plan_ref *out, str *adapter,
                   struct error *err) {
    yyjson_val *root = NULL;
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    status st = json_parse(payload, limits, arena, &root, err);
    *adapter = STR("local");
    if (st == ST_OK) (void)json_str(json_member(root, "adapter"), adapter);
    return st == ST_OK ? plan_ref_read(json_member(root, "plan_ref"), out, err) : st;
}

bool engine_launch_ref(const struct event_record *first, struct arena *arena,
                       struct plan_ref *out) {
    struct error ignored;
    str adapter = STR_NONE;
    return first->event.type == EVENT_SIGNAL_RECEIVED && first->event.payload.ptr &&
           launch_read(first->event.payload, arena, out, &adapter, &ignored) == ST_OK;
}

/* The first row of a run that the engine started is its launch, which names the plan. */
static status begin_flow(struct engine_run *r, struct engine_read *read, struct error *err) {
    struct engine *eng = r->eng;
    struct plan_ref ref = {0};
    if (read->row_count == 0 || !engine_launch_ref(&read->rows[0], &eng->scratch, &ref))
        return error_as(err, ST_INVALID, REASON_RUN_NOT_MANAGED, "",
                        "run \"%.*s\" was not started by an engine: its events come from elsewhere",
                        STR_ARG(r->run_id));
    if (r->plan) read->plan_code = ST_OK;
    if (!r->plan && read->plan_code == ST_OK)
        read->plan_code =
            eng->ports.plan(eng->ports.context, r->ids.tenant_id, &ref, &r->plan, &read->plan_err);
    if (read->plan_code == ST_RETRY || read->plan_code == ST_LIMIT) {
        *err = read->plan_err;
        return read->plan_code;
    }
    const struct plan *plan = read->plan_code == ST_OK ? r->plan : &no_plan;
    return flow_init(&r->flow, plan, &r->ids, &r->arena, &eng->scratch, err);
}

status run_copy_ids(struct engine_run *r, const struct run_info *info, struct error *err) {
    const str from[] = {info->tenant_id, info->project_id, info->environment_id, info->plan_id,
                        info->plan_version};
    str *to[] = {&r->ids.tenant_id, &r->ids.project_id, &r->ids.environment_id, &r->ids.plan_id,
                 &r->ids.plan_version};
    r->ids.run_id = r->run_id;
    for (size_t i = 0; i < COUNT_OF(to); i++) {
        if (!arena_try_str(&r->arena, from[i], to[i])) return no_memory(err);
    }
    return ST_OK;
}

/* A plan that is gone, or no longer what it was, ends the run with that code. */
static status end_without_plan(struct engine_run *r, const struct error *why, struct error *err) {
    const char *code = reason_name(why->reason ? why->reason : REASON_PLAN_UNAVAILABLE);
    LOG(LOG_ERROR, "a run cannot go on without its plan", LOG_S("severity", STR("P1")),
        LOG_S("runId", r->run_id), LOG_S("tenantId", r->ids.tenant_id), LOG_S("code", str_c(code)),
        LOG_S("error", str_c(why->msg)));
    r->ending_code = code;
    return arena_try_str(&r->arena, str_c(why->msg), &r->ending_message) ? ST_OK : no_memory(err);
}

/* A run that was launched with warnings and has not started yet tells them when it does. */
static status restore_warnings(struct engine_run *r, struct error *err) {
    struct arena *scratch = &r->eng->scratch;
    yyjson_val *launch = NULL;
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    if (r->started || !r->flow.launch.ptr) return ST_OK;
    status st = json_parse(r->flow.launch, limits, scratch, &launch, err);
    yyjson_val *report = st == ST_OK ? json_member(launch, "validation_report") : NULL;
    if (!report) return st;
    str id = STR_NONE;
    (void)json_str(json_member(launch, "signal_id"), &id);
    r->warnings = json_text(json_member(report, "warnings"), &r->arena);
    return r->warnings.ptr && arena_try_str(&r->arena, id, &r->report) ? ST_OK : no_memory(err);
}

/* ---- from rows to a flow, page by page ---- */

/* The first page: who the run is, and its plan. */
static status build_begin(struct engine_run *r, struct engine_read *read, struct error *err) {
    struct engine *eng = r->eng;
    ASSERT(r->stage == STAGE_LOADING);
    r->last_seq = r->read_seq = 0;
    r->ending_code = NULL;
    r->correlation = read->loaded.info.correlation_id;
    status st = run_copy_ids(r, &read->loaded.info, err);
    struct arena_mark mark = arena_mark(&eng->scratch);
    if (st == ST_OK) st = begin_flow(r, read, err);
    arena_rewind(&eng->scratch, mark);
    read->begun = st == ST_OK;
    return st;
}

static status build_rows(struct engine_run *r, const struct engine_read *read, struct error *err) {
    status st = ST_OK;
    for (size_t i = 0; i < read->row_count && st == ST_OK; i++) {
        st = flow_apply(&r->flow, &read->rows[i], err);
        if (st == ST_OK) r->last_seq = r->read_seq = read->rows[i].seq;
    }
    return st;
}

/* After the last page. */
static status build_end(struct engine_run *r, const struct engine_read *read, struct error *err) {
    struct engine *eng = r->eng;
    const struct engine_loaded *loaded = &read->loaded;
    r->claimed = loaded->held;
    r->claimed_wake = -1; /* not known: the next commit writes it */
    bool was_started = r->started || r->purpose == LOAD_LOOK;
    r->started = r->flow.run.head.status >= RUN_RUNNING;
    if (r->started && !was_started) r->start_no = ++eng->start_no;
    if (r->is_queued && r->started) run_unqueue(r); /* a start that was thought lost had landed */
    r->recovered = loaded->epoch != eng->options.lease.epoch && r->started &&
                   !run_is_final(r->flow.run.head.status);
    r->engine_attempt = r->flow.run.head.engine_attempt + (r->recovered ? 1 : 0);
    if (r->engine_attempt < 1) r->engine_attempt = 1;
    r->flow.ids.engine_attempt = r->engine_attempt;
    if (read->plan_code != ST_OK) return end_without_plan(r, &read->plan_err, err);
    struct arena_mark mark = arena_mark(&eng->scratch);
    status st = restore_warnings(r, err);
    arena_rewind(&eng->scratch, mark);
    return st;
}

/* *whole: the flow is there; else the next page was asked for. */
static status build(struct engine_run *r, struct engine_read *read, bool *whole,
                    struct error *err) {
    status st = read->begun ? ST_OK : build_begin(r, read, err);
    if (st == ST_OK) st = build_rows(r, read, err);
    *whole = st == ST_OK && !read->more;
    if (st != ST_OK) return st;
    if (!*whole) {
        run_ask_more(r, read);
        return ST_OK;
    }
    return build_end(r, read, err);
}

static void built(struct engine_run *r, bool loaded) {
    run_bind(r);
    if (loaded && r->recovered) metric_add(r->eng->m_recovered, 1);
    if (!r->recovered) run_ensure_attempts(r);
    run_move(r, STAGE_RESTING);
    run_drive(r);
}

/* ---- a run that is not in memory ---- */

status run_not_found(str run_id, struct error *err) {
    return error_at(err, REASON_RUN_NOT_FOUND, "", "there is no run \"%.*s\"", STR_ARG(run_id));
}

status run_want(struct engine *eng, str run_id, bool wanted, struct engine_run **out,
                struct error *err) {
    *out = engine_resident(eng, run_id);
    if (*out) return ST_OK;
    if (!wanted && eng->load_count - eng->wanted_count >= LOADS_FOR_NEWS_MAX)
        return error_at(err, REASON_RUN_LOADING, "", "many runs are being read: try again");
    struct engine_run *r = run_new(eng, run_id, err);
    if (!r) return ST_RETRY;
    r->wanted = wanted;
    r->purpose = LOAD_LOOK;
    status st = run_ask(r, 0, err);
    if (st == ST_OK)
        *out = r;
    else
        run_drop(r, st, err);
    return st;
}

static bool is_from_worker(const struct news *n) {
    return n->kind == NEWS_TASK_DONE || n->kind == NEWS_HEARTBEAT || n->kind == NEWS_TASK_AGAIN;
}

/* Notes in n->rides which signals the run had taken while it was open. false: no more rows are needed for that. */
static bool seek_signals(struct engine_run *r, const struct engine_read *read) {
    bool seeking = false;
    for (struct news *n = r->inbox; n; n = n->next) {
        char id[UUID_TEXT_LEN];
        if (n->kind != NEWS_SIGNAL || n->signal.signal.kind == SIGNAL_CANCEL) continue;
        uuid_format(n->signal.id, id);
        for (size_t i = 0; i < read->row_count && !n->rides; i++) {
            const struct event *e = &read->rows[i].event;
            n->rides = e->type == EVENT_SIGNAL_RECEIVED && str_eq(e->subject, str_n(id, sizeof(id)));
        }
        seeking |= !n->rides;
    }
    return seeking;
}

/* What a run that is finished answers: cancelling it again changes nothing, a signal that it took while it was
 * open is answered as it was then, anything else comes too late. */
static status answer_of_finished(const struct news *n, struct error *err) {
    if (n->kind == NEWS_SIGNAL && (n->rides || n->signal.signal.kind == SIGNAL_CANCEL)) return ST_OK;
    if (is_from_worker(n)) return error_at(err, REASON_LEASE_LOST, "", "the run is finished");
    return error_at(err, REASON_RUN_FINISHED, "", "the run is finished");
}

/* Answers each piece of news for itself. */
static void drop_unloaded(struct engine_run *r, bool finished, status code,
                          const struct error *why) {
    struct news *list = r->inbox;
    r->inbox = NULL;
    r->inbox_end = &r->inbox;
    run_drop(r, code, why);
    while (list) {
        struct news *n = list;
        list = n->next;
        struct error own = *why;
        status st = finished ? answer_of_finished(n, &own) : code;
        news_answer(n, st, &own);
    }
}

/* For strangers a run is not even loaded. */
void run_turn_away(struct engine_run *r, str tenant_id) {
    for (struct news **at = &r->inbox; *at;) {
        struct news *n = *at;
        struct error err = {0};
        if (!is_from_worker(n) || !n->task.tenant_id.ptr || str_eq(n->task.tenant_id, tenant_id)) {
            at = &n->next;
            continue;
        }
        *at = n->next;
        if (!n->next) r->inbox_end = at;
        news_answer(n, run_not_found(r->run_id, &err), &err);
    }
}

static status check_ours(const struct engine_run *r, const struct engine_loaded *loaded,
                         struct error *err) {
    if (loaded->ours) return ST_OK;
    return error_at(err, loaded->held ? REASON_RUN_ELSEWHERE : REASON_RUN_NOT_MANAGED, "",
                    loaded->held ? "run \"%.*s\" is carried out by another node"
                                 : "run \"%.*s\" is carried out by no engine",
                    STR_ARG(r->run_id));
}

static void looked_at(struct engine_run *r, struct engine_read *read) {
    struct engine *eng = r->eng;
    struct error err = read->err;
    bool whole = false;
    status st = read->code == ST_NOT_FOUND ? run_not_found(read->run_id, &err) : read->code;
    if (st == ST_OK) run_turn_away(r, read->loaded.info.tenant_id);
    if (st == ST_OK && !r->inbox && !r->wanted && !r->stale) {
        run_drop(r, ST_OK, &err);
        return;
    }
    bool finished = st == ST_OK && run_is_final(read->loaded.info.head.status);
    if (finished) {
        bool seeking = seek_signals(r, read);
        if (read->more && seeking)
            run_ask_more(r, read);
        else
            drop_unloaded(r, true, ST_OK, &err);
        return;
    }
    if (st == ST_OK) st = check_ours(r, &read->loaded, &err);
    if (st == ST_OK) st = build(r, read, &whole, &err);
    if (st == ST_OK && whole) built(r, true);
    if (st == ST_OK) return;
    /* Somebody looked at it since the store was asked: perhaps this node has just taken it over. */
    if (r->stale && run_ask(r, 0, &err) == ST_OK) return;
    if (!r->inbox) /* nobody else is told */
        LOG(LOG_WARN, "could not load a run", LOG_S("runId", r->run_id),
            LOG_S("error", str_c(err.msg)));
    drop_unloaded(r, false, st, &err);
    if (st == ST_RETRY || st == ST_LIMIT) engine_recover_later(eng);
}

/* ---- again ---- */

static void try_later(struct engine_run *r) {
    struct engine *eng = r->eng;
    run_move(r, STAGE_BROKEN);
    run_timer(r, eng->ports.now_us(eng->ports.context) + RETRY_AFTER_US);
}

void run_reload(struct engine_run *r) {
    struct error err = {0};
    run_move(r, STAGE_LOADING);
    r->purpose = LOAD_AGAIN;
    if (run_ask(r, 0, &err) != ST_OK) try_later(r);
}

/* Attempts under way go on: their steps are open in the new flow, too, or their answers are stale
 * and fall on the floor. */
static void read_again(struct engine_run *r, struct engine_read *read) {
    struct engine *eng = r->eng;
    struct error err = read->err;
    status st = read->code == ST_NOT_FOUND ? run_not_found(read->run_id, &err) : read->code;
    bool whole = true;
    if (st == ST_OK && !read->loaded.ours && !run_is_final(read->loaded.info.head.status))
        st = error_at(&err, REASON_RUN_ELSEWHERE, "", "another node has the run");
    if (st == ST_NOT_FOUND && r->inbox && r->inbox->kind == NEWS_LAUNCH) {
        /* The start itself did not land: begin again. */
        struct arena_mark mark = arena_mark(&eng->scratch);
        st = flow_init(&r->flow, r->plan, &r->ids, &r->arena, &eng->scratch, &err);
        arena_rewind(&eng->scratch, mark);
        r->flow.ids.engine_attempt = r->engine_attempt;
        if (st == ST_OK) {
            run_move(r, STAGE_RESTING);
            run_drive(r);
            return;
        }
    } else if (st == ST_OK) {
        st = build(r, read, &whole, &err);
        if (st == ST_OK && whole) built(r, false);
        if (st == ST_OK) return;
    }
    if (st == ST_RETRY || st == ST_LIMIT)
        try_later(r);
    else
        run_drop(r, st, &err);
}

/* ---- what another process wrote ---- */

/* Another process can write nothing but a SignalReceived; it may stand before rows of ours, that were
 * on their way at that time. */
static status newer_row(struct engine_run *r, const struct event_record *rec, struct error *err) {
    uuid id;
    bool news = rec->event.type == EVENT_SIGNAL_RECEIVED && uuid_parse(rec->event.subject, &id) &&
                !flow_signal_seen(&r->flow, id);
    struct event_record next = *rec;
    next.seq = r->flow.run.head.last_seq + 1;
    status st = news ? flow_apply(&r->flow, &next, err) : ST_OK;
    if (st == ST_OK) r->read_seq = rec->seq;
    if (st == ST_OK && rec->seq > r->last_seq) r->last_seq = rec->seq;
    return st;
}

/* Its flow is there: what is new is added to it. Counts that could not be had are asked for again soon. */
static void read_on(struct engine_run *r, struct engine_read *read) {
    struct error err = read->err;
    bool stored = r->last_seq > 0;
    status st = stored ? read->code : ST_OK;
    for (size_t i = 0; i < read->row_count && st == ST_OK && stored; i++)
        st = newer_row(r, &read->rows[i], &err);
    if (st == ST_OK && read->more) {
        run_ask_more(r, read);
        return;
    }
    if (st != ST_OK) {
        r->stale = true;
        if (r->eng->admitting == r) engine_admit_next(r->eng, r->queued_next);
        run_move(r, STAGE_BROKEN);
        run_build_again_later(r, &err);
        return;
    }
    run_move(r, STAGE_RESTING);
    run_drive(r);
}

void run_was_read(struct engine_run *r, struct engine_read *read) {
    bool counted = read->wants_counts && (read->code == ST_OK || read->code == ST_NOT_FOUND);
    r->counts = counted ? COUNTS_KNOWN : read->wants_counts ? COUNTS_FAILED : COUNTS_UNKNOWN;
    r->tenant_active = read->tenant_active;
    r->plan_active = read->plan_active;
    if (r->stage == STAGE_READING) {
        read_on(r, read);
        return;
    }
    ASSERT(r->stage == STAGE_LOADING);
    if (r->purpose == LOAD_START) {
        struct error ignored;
        if (r->stale && run_ask(r, 0, &ignored) == ST_OK) return;
        if (!start_was_read(r, read)) return;
        r->purpose = LOAD_LOOK;
        r->wanted = true;
    }
    if (r->purpose == LOAD_AGAIN)
        read_again(r, read);
    else
        looked_at(r, read);
}

void engine_look(struct engine *eng, str run_id) {
    struct engine_run *r = engine_resident(eng, run_id);
    struct error err = {0};
    if (eng->lost) return;
    if (r) { /* news from another process: read what is new, once no append is under way */
        r->claimed_wake = -1;
        r->stale = true;
        r->wanted = true;
        run_drive(r);
        return;
    }
    if (run_want(eng, run_id, true, &r, &err) != ST_OK) engine_recover_later(eng);
}
