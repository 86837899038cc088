/* sim/store.c: the ledger as the engine sees it: one request at a time, all of it or nothing.
 *
 * The order of the checks is that of ledger/append.c: the fence, then for each item the tenant,
 * duplicates, identity, transitions; then the claim, unless every item was a duplicate. */
#include "base/json.h"
#include "sim/impl.h"

struct landing { /* one request on its way in */
    struct world *w;
    struct sim_run *run;
    const struct sim_node *node; /* NULL: from outside */
    struct run_undo *undo;       /* room for each of its items */
    size_t added;
};

static void refuse_all(struct append_request *req, const struct error *why) {
    for (size_t i = 0; i < req->count; i++) {
        struct error *copy = ARENA_NEW(req->arena, struct error);
        *copy = *why;
        req->results[i] = (struct append_result){.code = why->code, .err = copy};
    }
}

static struct sim_record *find_key(const struct sim_run *run, const uint8_t *key) {
    for (size_t i = 0; i < run->count; i++) {
        if (memcmp(run->records[i].rec.event.key, key, SHA256_LEN) == 0) return &run->records[i];
    }
    return NULL;
}

static status check_item(const struct landing *l, const struct append_item *item,
                         struct error *why) {
    const struct event *e = &item->event;
    struct transition bad;
    if (!str_eq(e->tenant_id, l->run->tenant_id))
        return error_at(why, REASON_RUN_ID_TAKEN, "/runId", "another tenant's run");
    for (size_t i = 0; i < l->run->count; i++) {
        if (uuid_eq(l->run->records[i].rec.event.event_id, e->event_id))
            return error_at(why, REASON_EVENT_ID_REUSED, "/eventId", "used before");
    }
    if (run_allows(&l->run->run, e, &bad)) return ST_OK;
    return error_at(why, REASON_INVALID_TRANSITION, "/eventType", "%.*s in %s",
                    STR_ARG(e->type_name), bad.prior);
}

static void copy_event(struct world *w, struct event *e) {
    str *texts[] = {&e->run_id,  &e->tenant_id,    &e->project_id, &e->environment_id,
                    &e->plan_id, &e->plan_version, &e->subject,    &e->payload};
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        *texts[i] = arena_str(&w->arena, *texts[i]);
}

static void accept(struct landing *l, const struct append_item *item, struct append_result *res) {
    struct world *w = l->w;
    struct sim_run *run = l->run;
    struct transition bad;
    struct error err;
    if (run->count == run->cap) {
        size_t cap = run->cap == 0 ? 64 : run->cap * 2;
        struct sim_record *more = ARENA_ARRAY(&w->arena, struct sim_record, cap);
        if (run->count > 0) memcpy(more, run->records, run->count * sizeof(*more));
        run->records = more;
        run->cap = cap;
    }
    struct sim_record *r = &run->records[run->count];
    *r = (struct sim_record){.rec = {.event = item->event}, .number = w->record_count};
    copy_event(w, &r->rec.event);
    r->rec.actor = arena_str(&w->arena, item->actor);
    r->rec.seq = w->tenant_seq + 1;
    r->rec.persisted_us = w->now_us;
    if (!event_type_is_fact(item->event.type)) r->rec.run_seq = run->run.head.run_seq + 1;
    status st = run_apply(&run->run, &r->rec, &w->arena, &bad, &l->undo[l->added], &err);
    ASSERT(st == ST_OK); /* check_item() allowed it */
    l->added++;
    run->count++;
    w->tenant_seq++;
    w->record_count++;
    *res = (struct append_result){.code = ST_OK,
                                  .event_id = r->rec.event.event_id,
                                  .run_seq = r->rec.run_seq,
                                  .seq = r->rec.seq,
                                  .persisted_us = w->now_us};
}

static void take_back(struct landing *l) {
    while (l->added > 0) {
        run_undo(&l->run->run, &l->undo[--l->added]);
        l->run->count--;
        l->w->tenant_seq--;
        l->w->record_count--;
    }
}

/* A signal that another process recorded, perhaps unread so far. */
static bool is_others(const struct sim_run *run, const struct event_record *rec) {
    uuid id;
    if (rec->event.type != EVENT_SIGNAL_RECEIVED || !uuid_parse(rec->event.subject, &id))
        return false;
    for (size_t i = 0; i < run->signal_count; i++) {
        if (uuid_eq(run->signals[i].id, id)) return run->signals[i].from_outside;
    }
    return false;
}

static status take_items(struct landing *l, struct append_request *req, struct error *why) {
    for (size_t i = 0; i < req->count; i++) {
        struct append_item *item = &req->items[i];
        struct append_result *res = &req->results[i];
        const struct sim_record *known = find_key(l->run, item->event.key);
        if (known) {
            if (l->node &&
                !is_others(l->run,
                           &known->rec)) /* it has read what is stored, and need not say it again */
                sim_world_break(l->w, "nodes-repeat-nothing", "%s: %.*s %.*s", l->run->run_id,
                                STR_ARG(item->event.type_name), STR_ARG(item->event.subject));
            *res = (struct append_result){.code = ST_OK,
                                          .duplicate = true,
                                          .event_id = known->rec.event.event_id,
                                          .run_seq = known->rec.run_seq,
                                          .seq = known->rec.seq,
                                          .persisted_us = known->rec.persisted_us};
            continue;
        }
        status st = check_item(l, item, why);
        if (st != ST_OK) return st;
        accept(l, item, res);
    }
    return ST_OK;
}

static void claim(struct world *w, struct sim_run *run, const struct run_claim *c) {
    switch (c->act) {
    case CLAIM_NONE:
        return;
    case CLAIM_OPEN:
        run->held = true;
        break;
    case CLAIM_MOVE:
        if (!run->held) return; /* no such row */
        break;
    case CLAIM_CLOSE:
        run->held = false;
        return;
    case CLAIM_WAKE:
        if (run->held) {
            run->wake_us = 0;
            run->woken = true;
            sim_world_trace(w, "%s is woken", run->run_id);
        }
        return;
    }
    run->node_no = c->node_no;
    run->epoch = c->epoch;
    run->wake_us = c->wake_us; /* a wake-up call stays until its node has seen it */
}

static void trace_records(struct world *w, const struct sim_node *node, const struct sim_run *run,
                          size_t from) {
    for (size_t i = from; i < run->count; i++) {
        const struct event *e = &run->records[i].rec.event;
        sim_world_trace(w, "%s %s: %.*s %.*s#%lld %.*s", node ? node->name : "outside", run->run_id,
                        STR_ARG(e->type_name), STR_ARG(e->subject), (long long)e->logical_attempt,
                        (int)(e->payload.len < 120 ? e->payload.len : 120),
                        e->payload.ptr ? e->payload.ptr : "");
    }
}

/* The model sees each new record as the history grows: it is applied again, one by one. */
static void check_all(struct world *w, struct sim_node *node, struct sim_run *run, size_t from,
                      int64_t decided) {
    struct check_batch batch = {.node = node, .decided = decided};
    if (from < run->count) batch.first = run->records[from].rec.event.type;
    for (size_t i = from; i < run->count && !w->over; i++) {
        batch.index = i - from;
        sim_check_record(w, run, &run->records[i].rec, &batch);
    }
}

/* Everybody who asks a node for something sends a rider along: what is stored of the one must be
 * stored of the other. */
static void check_riders(struct world *w, const struct sim_node *node, const struct sim_run *run,
                         const struct append_request *req) {
    size_t asked = 0;
    size_t riders = 0;
    for (size_t i = 0; i < req->count; i++)
        asked += req->items[i].event.type == EVENT_SIGNAL_RECEIVED;
    for (const struct append_rider *r = req->riders; r; r = r->next)
        riders++;
    if (node && asked != riders)
        sim_world_break(w, "riders-travel-with-their-news", "%s: %zu were asked, %zu came along",
                        run->run_id, asked, riders);
}

/* Another process has written to the run since the node read it; now and then, as if it had. */
static bool has_moved(struct world *w, const struct sim_node *node, const struct sim_run *run,
                      const struct run_claim *c) {
    if (!node || !run->exists) return false;
    if (c->known_seq > 0 && run->records[run->count - 1].rec.seq > c->known_seq) return true;
    return !w->calm && !w->closing && sim_rng_chance(&w->rng, w->rates.commit_fails / 2);
}

status sim_store_append(struct world *w, struct sim_node *node, struct append_request *req,
                        int64_t decided) {
    struct error why = {0};
    const struct run_claim *c = req->claim;
    struct sim_run *run = sim_find_run(w, req->items[0].event.run_id);
    ASSERT(run && req->atomic && c);
    bool fenced = c->act != CLAIM_WAKE && (c->node_no < 1 || c->node_no > (int64_t)w->node_count ||
                                           w->nodes[c->node_no - 1].row_epoch != c->epoch);
    if (fenced) {
        error_at(&why, REASON_LEASE_LOST, "", "another node has taken over");
        refuse_all(req, &why);
        sim_world_trace(w, "%s %s: fenced", node ? node->name : "outside", run->run_id);
        return ST_OK;
    }
    if (has_moved(w, node, run, c)) {
        error_at(&why, REASON_RUN_MOVED, "", "another process wrote to the run");
        refuse_all(req, &why);
        sim_world_fault(w, "%s: %s has moved", node->name, run->run_id);
        return ST_OK;
    }
    struct landing l = {.w = w, .run = run, .node = node};
    size_t from = run->count;
    l.undo = arena_try_raw(&w->scratch, req->count * sizeof(*l.undo));
    ASSERT(l.undo);
    status st = take_items(&l, req, &why);
    if (st == ST_OK && l.added > 0 && c->act == CLAIM_OPEN && run->held)
        sim_world_break(w, "a-row-is-opened-once", "%s opens %s", node->name, run->run_id);
    if (st != ST_OK) {
        take_back(&l);
        refuse_all(req, &why);
        sim_world_trace(w, "%s %s: refused: %s", node ? node->name : "outside", run->run_id,
                        why.msg);
        if (node && why.reason == REASON_INVALID_TRANSITION)
            sim_world_break(w, "no-illegal-transition", "%s %s: %s", node->name, run->run_id,
                            why.msg);
        arena_reset(&w->scratch);
        return ST_OK;
    }
    bool added = l.added > 0;
    check_riders(w, node, run, req);
    arena_reset(&w->scratch);
    if (!added) return ST_OK; /* all duplicates: it was done then */
    claim(w, run, c);
    if (!run->exists) {
        run->exists = true;
        run->run_no = ++w->next_run_no;
    }
    trace_records(w, node, run, from);
    if (node && node->row_epoch != node->lease.epoch)
        sim_world_break(w, "fenced-node-writes-nothing",
                        "%s wrote to %s with epoch %lld, it is %lld", node->name, run->run_id,
                        (long long)node->lease.epoch, (long long)node->row_epoch);
    check_all(w, node, run, from, decided);
    if (!w->over)
        sim_check_commit(w, run, node, decided,
                         run->records[run->count - 1].rec.event.emitted_ns / 1000);
    return ST_OK;
}

/* ---- leases ---- */

status sim_store_take(struct world *w, struct sim_node *n, struct error *err) {
    if (w->node_count > 1 && n->row_until_us > w->now_us)
        return error_at(err, REASON_NODE_ALIVE, "", "a process has this name");
    n->row_epoch++;
    n->row_until_us = w->now_us + LEASE_US;
    n->lease.epoch = n->row_epoch;
    return ST_OK;
}

status sim_store_renew(struct world *w, struct sim_node *n, struct error *err) {
    if (n->row_epoch != n->lease.epoch)
        return error_at(err, REASON_LEASE_LOST, "", "another node has taken over");
    n->row_until_us = w->now_us + LEASE_US;
    return ST_OK;
}

size_t sim_store_take_over(struct world *w, struct sim_node *n, struct sim_run **out) {
    for (uint32_t i = 0; i < w->node_count; i++) {
        struct sim_node *dead = &w->nodes[i];
        size_t count = 0;
        if (dead == n || dead->row_until_us >= w->now_us) continue;
        for (uint32_t k = 0; k < w->run_count; k++) {
            struct sim_run *run = w->runs[k];
            if (run->held && run->node_no == dead->lease.node_no) out[count++] = run;
        }
        if (count == 0) continue;
        dead->row_epoch++;
        for (size_t k = 0; k < count; k++) {
            out[k]->node_no = n->lease.node_no;
            out[k]->epoch = 0;
            sim_world_trace(w, "%s takes over %s of %s", n->name, out[k]->run_id, dead->name);
        }
        return count;
    }
    return 0;
}

size_t sim_store_woken(struct world *w, struct sim_node *n, struct sim_run **out) {
    size_t count = 0;
    for (uint32_t k = 0; k < w->run_count; k++) {
        struct sim_run *run = w->runs[k];
        if (!run->held || !run->woken || run->node_no != n->lease.node_no) continue;
        run->woken = false;
        out[count++] = run;
    }
    return count;
}

/* ---- signals from a process that drives nothing ---- */

status sim_store_post_signal(struct world *w, struct sim_run *run, struct signal *signal, str actor,
                             struct error *err) {
    struct append_item item = {.actor = actor};
    struct append_result result = {0};
    struct run_claim wake = {.act = CLAIM_WAKE};
    struct append_request request = {.items = &item,
                                     .count = 1,
                                     .atomic = true,
                                     .results = &result,
                                     .arena = &w->arena,
                                     .claim = &wake};
    struct event *e = &item.event;
    struct buf data;
    char name[UUID_TEXT_LEN];
    status st = signal_validate(signal, err);
    if (st != ST_OK) return st;
    if (!run->exists) return error_at(err, REASON_RUN_NOT_FOUND, "", "no such run");
    if (run_is_final(run->run.head.status))
        return error_at(err, REASON_RUN_FINISHED, "", "the run is over");
    *e = run->records[0].rec.event; /* its ids */
    uuid id = signal_uuid(e->run_id, signal->signal_id);
    uuid_format(id, name);
    buf_init(&data, 4096);
    signal_json(signal, id, &data);
    e->type = EVENT_SIGNAL_RECEIVED;
    e->type_name = event_type_info(e->type)->name;
    e->subject = str_n(name, sizeof(name));
    e->logical_attempt = 1;
    e->engine_attempt = run->run.head.engine_attempt;
    e->payload = buf_str(&data);
    e->emitted_ns = w->now_us * 1000;
    uint64_t words[2] = {sim_rng_next(&w->rng), sim_rng_next(&w->rng)};
    memcpy(e->event_id.b, words, sizeof(words));
    event_key_derive(e, e->key);
    st = sim_store_append(w, NULL, &request, w->record_count);
    buf_release(&data);
    return st == ST_OK ? result.code : st;
}
