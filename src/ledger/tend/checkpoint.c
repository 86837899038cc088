/* Checkpoints: the state of a run at one of its events, kept so that replaying can start there. */
#include "base/time.h"
#include "ledger/handle.h"
#include "ledger/project.h"

/* A checkpoint may hold a run with STEPS_PER_RUN_MAX steps. */
#define CHECKPOINT_BYTES_MAX ((size_t)1024 * 1024 * 1024)

static status next_checkpoint(struct ledger *l, int64_t run_no, int64_t *index, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = db_prepare(
        l->db,
        "SELECT COALESCE(MAX(checkpoint_index), 0) + 1 FROM ledger_checkpoint WHERE run_no = $1",
        &q, err);
    if (st != ST_OK) return st;
    db_bind_int(q, 1, run_no);
    st = db_step(q, &row, err);
    if (st == ST_OK) *index = db_int(q, 0);
    db_reset(q);
    return st;
}

status checkpoint_insert(struct ledger *l, const struct run_checkpoint *c, int64_t created_us,
                         struct error *err) {
    struct db_stmt *ins = NULL;
    status st =
        db_prepare(l->db,
                   "INSERT INTO ledger_checkpoint(run_no, checkpoint_index, seq, data, created_us)"
                   " VALUES ($1, $2, $3, $4, $5)",
                   &ins, err);
    if (st != ST_OK) return st;
    db_bind_int(ins, 1, c->run_no);
    db_bind_int(ins, 2, c->index);
    db_bind_int(ins, 3, c->seq);
    db_bind_text(ins, 4, c->data);
    db_bind_int(ins, 5, created_us);
    int64_t changed = 0;
    st = db_run(ins, &changed, err);
    db_reset(ins);
    return st;
}

/* The event that records checkpoint number `index`. */
static status checkpoint_event(const struct run_info *info, int64_t index, uuid event_id,
                               struct arena *arena, struct event *e, struct error *err) {
    char text[64];
    struct buf payload;
    buf_init_fixed(&payload, text, sizeof(text));
    buf_printf(&payload, "{\"checkpointIndex\":%lld,\"lastSequenceNumber\":%lld}", (long long)index,
               (long long)info->head.last_seq);
    *e = (struct event){.type = EVENT_RUN_CHECKPOINT_CREATED,
                        .type_name = event_type_info(EVENT_RUN_CHECKPOINT_CREATED)->name,
                        .run_id = info->run_id,
                        .tenant_id = info->tenant_id,
                        .project_id = info->project_id,
                        .environment_id = info->environment_id,
                        .plan_id = info->plan_id,
                        .plan_version = info->plan_version,
                        .logical_attempt = index,
                        .event_id = event_id,
                        .emitted_ns = clock_wall_us() * 1000,
                        .emitted_digits = 6};
    e->engine_attempt = info->head.engine_attempt > 0 ? info->head.engine_attempt : 1;
    if (!arena_try_str(arena, buf_str(&payload), &e->payload)) return ledger_no_memory(err);
    event_key_derive(e, e->key);
    return ST_OK;
}

status ledger_prepare_checkpoint(struct ledger *l, str run_id, uuid event_id,
                                 const struct append_rider *riders, struct arena *arena,
                                 struct checkpoint_request **out, struct error *err) {
    struct run_info info;
    struct run run;
    struct buf data;
    struct checkpoint_request *r = arena_try(arena, sizeof(*r));
    if (!r) return ledger_no_memory(err);
    struct run_checkpoint *c = &r->checkpoint;
    buf_init(&data, CHECKPOINT_BYTES_MAX);
    status st = ledger_find_run(l, run_id, arena, &info, err);
    if (st == ST_OK) st = ledger_replay(l, run_id, 0, true, arena, &run, NULL, err);
    if (st == ST_OK) st = next_checkpoint(l, info.run_no, &c->index, err);
    if (st == ST_OK) st = checkpoint_event(&info, c->index, event_id, arena, &r->item.event, err);
    if (st == ST_OK) {
        c->run_no = info.run_no;
        c->seq = run.head.last_seq;
        run_state_json(&run, &data);
        if (data.full || !arena_try_str(arena, buf_str(&data), &c->data))
            st = error_set(err, ST_RETRY, "ledger: out of memory for a checkpoint");
    }
    buf_release(&data);
    if (st != ST_OK) return st;
    r->request = (struct append_request){.items = &r->item,
                                         .count = 1,
                                         .results = &r->result,
                                         .arena = arena,
                                         .riders = riders,
                                         .checkpoint = c};
    *out = r;
    return ST_OK;
}

status ledger_checkpoint(struct ledger *l, str run_id, struct append_result *result,
                         struct arena *arena, struct error *err) {
    struct checkpoint_request *r = NULL;
    status st = ledger_prepare_checkpoint(l, run_id, uuid_v4(), NULL, arena, &r, err);
    if (st != ST_OK) return st;
    ASSERT(r);
    struct append_request *all[] = {&r->request};
    st = ledger_append(l, all, 1, err);
    if (st != ST_OK) return st;
    *result = r->result;
    if (result->code != ST_OK) *err = *result->err;
    return result->code;
}
