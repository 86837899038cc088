/* Statistics: how much there is in the ledger. */
#include "ledger/handle.h"

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
