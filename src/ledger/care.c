/* Checkpoints, statistics, backup. */
#include "base/os.h"
#include "base/time.h"
#include "ledger/impl.h"

#include <stdio.h>
#include <unistd.h>

/* ---- checkpoints ---- */

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

status checkpoint_insert(struct ledger *l, const struct checkpoint *c, int64_t created_us,
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

status ledger_checkpoint_as(struct ledger *l, str run_id, uuid event_id,
                            const struct append_rider *riders, struct append_result *result,
                            struct arena *arena, struct error *err) {
    struct run_info info;
    struct run run;
    struct checkpoint c = {0};
    struct append_item item = {0};
    struct buf data;
    buf_init(&data, CHECKPOINT_BYTES_MAX);
    status st = ledger_find_run(l, run_id, arena, &info, err);
    if (st == ST_OK) st = ledger_replay(l, run_id, 0, true, arena, &run, NULL, err);
    if (st == ST_OK) st = next_checkpoint(l, info.run_no, &c.index, err);
    if (st == ST_OK) st = checkpoint_event(&info, c.index, event_id, arena, &item.event, err);
    if (st == ST_OK) {
        run_state_json(&run, &data);
        if (data.full) st = error_set(err, ST_RETRY, "ledger: out of memory for a checkpoint");
    }
    if (st == ST_OK) {
        c.run_no = info.run_no;
        c.seq = run.head.last_seq;
        c.data = buf_str(&data);
        struct append_request req = {
            .items = &item, .count = 1, .results = result, .arena = arena, .riders = riders};
        struct append_request *reqs[] = {&req};
        l->checkpoint = &c; /* goes into the same transaction, if the event does */
        st = ledger_append(l, reqs, 1, err);
        l->checkpoint = NULL;
        if (st == ST_OK && result->code != ST_OK) {
            *err = *result->err;
            st = result->code;
        }
    }
    buf_release(&data);
    return st;
}

status ledger_checkpoint(struct ledger *l, str run_id, struct append_result *result,
                         struct arena *arena, struct error *err) {
    return ledger_checkpoint_as(l, run_id, uuid_v4(), NULL, result, arena, err);
}

/* ---- statistics ---- */

status ledger_stats(struct ledger *l, struct ledger_stats *out, struct error *err) {
    struct ledger_stats s = {0};
    const struct {
        const char *sql;
        int64_t *to;
    } counts[] = {
        {"SELECT COUNT(*) FROM ledger_tenant", &s.tenants},
        {"SELECT COUNT(*) FROM ledger_run", &s.runs},
        {"SELECT COUNT(*) FROM state_run WHERE status < 5", &s.open_runs},
        {"SELECT CAST(COALESCE(SUM(seq), 0) AS {int}) FROM ledger_tenant", &s.events},
        {"SELECT COUNT(*) FROM state_alert", &s.alerts},
        {"SELECT COUNT(*) FROM ledger_rejection", &s.rejections},
        {"SELECT COUNT(*) FROM ledger_checkpoint", &s.checkpoints},
        {"SELECT COUNT(*) FROM state_effect WHERE status <> 'COMPLETED' AND status <> "
         "'DEAD_LETTER'",
         &s.effects_waiting},
        {"SELECT COUNT(*) FROM state_effect WHERE status <> 'COMPLETED' AND status = "
         "'DEAD_LETTER'",
         &s.effects_dead},
        {"SELECT {sqlite:page_count * page_size FROM pragma_page_count(), pragma_page_size()}"
         "{postgres:pg_database_size(current_database())}",
         &s.bytes}};
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        struct db_stmt *q = NULL;
        bool row = false;
        status st = db_prepare(l->db, counts[i].sql, &q, err);
        if (st == ST_OK) st = db_step(q, &row, err);
        if (st != ST_OK) return st;
        *counts[i].to = db_int(q, 0);
        db_reset(q);
    }
    *out = s;
    return ST_OK;
}

/* ---- backup ---- */

static status verify_copy(str path, const atomic_bool *stop, struct error *err) {
    struct ledger *copy = NULL;
    struct arena arena;
    struct verify_report report = {0};
    arena_init(&arena, 4096, (size_t)64 * 1024 * 1024);
    status st = ledger_open_reader(path, &copy, err);
    if (st == ST_OK) ledger_stop_on(copy, stop);
    if (st == ST_OK) st = ledger_verify(copy, true, NULL, NULL, &arena, &report, err);
    if (st == ST_OK && report.damaged)
        st = error_at(err, ST_CORRUPT, "LEDGER_DAMAGED", "", "the copy is damaged: %.300s",
                      report.what);
    ledger_close(copy);
    arena_release(&arena);
    return st;
}

/* The copy and what SQLite left beside it while it was verified. */
static void remove_part(const char *part, bool all) {
    static const char *const suffixes[] = {"-wal", "-shm", "-journal"};
    for (size_t i = 0; i < COUNT_OF(suffixes); i++) {
        char path[4200];
        snprintf(path, sizeof(path), "%s%s", part, suffixes[i]);
        unlink(path);
    }
    if (all) unlink(part);
}

status ledger_backup(struct ledger *l, str path, struct error *err) {
    if (path_exists(path)) {
        return error_at(err, ST_CONFLICT, "FILE_EXISTS", "", "\"%.*s\" exists already",
                        STR_ARG(path));
    }
    char part[4096];
    uint32_t random; /* two backups to one name must not share their halves */
    random_bytes(&random, sizeof(random));
    int n = snprintf(part, sizeof(part), "%.*s.part-%08x", STR_ARG(path), random);
    if (n < 0 || (size_t)n >= sizeof(part)) return error_set(err, ST_LIMIT, "the path is too long");
    status st = db_backup(l->db, str_c(part), err);
    if (st == ST_OK) st = verify_copy(str_c(part), l->stop, err);
    if (st == ST_OK && path_exists(path)) {
        st =
            error_at(err, ST_CONFLICT, "FILE_EXISTS", "", "\"%.*s\" exists already", STR_ARG(path));
    }
    remove_part(part, false);
    if (st == ST_OK) st = file_rename_durable(str_c(part), path, err);
    if (st != ST_OK) remove_part(part, true);
    return st;
}
