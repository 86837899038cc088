/* The stored format.
 *
 * ledger_event is the big one. Its row is compact (integers for tenant, run, type and context;
 * bytes for ids and hashes) and strictly append-only by `pos`; the only other index on it is
 * UNIQUE(run_no, first 8 bytes of the idempotency key), whose prefix is recent. That is what makes
 * groups cheap: a commit costs the pages it touches. The full key stands in the row and decides
 * when a prefix hits.
 *
 * CANON names four indexes over its table. They serve these queries through:
 *   idx_events_sequence (tenant, sequence)      the primary key `pos`
 *   idx_events_aggregate (tenant, aggregate)    ledger_event_run_key, by run
 *   idx_events_correlation (tenant, correlation) ledger_run_correlation, then by run
 *   idx_events_type (tenant, type, time)        ledger_event_type, partial: the types that are rare
 * enough to be looked for
 *
 * state_lot maps an eventId to its position. Random ids would touch a page each in one large index,
 * so they are indexed lot by lot: when a tenant has LOT_EVENTS more events, their ids are sorted
 * and stored as a few rows of packed entries (lots.c). A look-up reads one row of each lot, and
 * scans the unsealed tail. */
#include "ledger/schema.h"

#include "base/buf.h"
#include "base/limits.h"
#include "core/event_type.h"

/* clang-format off */
/* NULL stays NULL (SQLite's hex() would make it empty). */
#define UUID_TEXT(col)                                                                             \
    "{sqlite:lower(substr(NULLIF(hex(" col "),''),1,8)||'-'||substr(hex(" col "),9,4)||'-'||substr(hex(" col  \
    "),13,4)||'-'||substr(hex(" col "),17,4)||'-'||substr(hex(" col "),21,12))}"                   \
    "{postgres:encode(" col ",'hex')::uuid::text}"
#define HEX(col) "{sqlite:lower(hex(" col "))}{postgres:encode(" col ",'hex')}"
#define TIME_US(col)                                                                               \
    "{sqlite:strftime('%Y-%m-%dT%H:%M:%S'," col "/1000000,'unixepoch')||printf('.%06dZ'," col      \
    "%1000000)}"                                                                                   \
    "{postgres:to_char(timestamp 'epoch' + " col                                                   \
    " * interval '1 microsecond','YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')}"
/* Producer time, with as many fraction digits as the producer wrote. */
#define TIME_NS(ns, digits)                                                                        \
    "{sqlite:strftime('%Y-%m-%dT%H:%M:%S'," ns "/1000000000,'unixepoch')||CASE WHEN " digits       \
    ">0 THEN '.'||substr(printf('%09d'," ns "%1000000000),1," digits ") ELSE '' END||'Z'}"         \
    "{postgres:to_char(timestamp 'epoch' + (" ns "/1000000000) * interval '1 second','YYYY-MM-DD\"T\"HH24:MI:SS')" \
    "||CASE WHEN " digits ">0 THEN '.'||substr(lpad((" ns "%1000000000)::text,9,'0'),1," digits    \
    "::int) ELSE '' END||'Z'}"
/* json, not jsonb: jsonb refuses numbers such as 1e200000, so one payload could make a view unreadable, and it changes the text. */
#define OBJECT "{sqlite:json_object}{postgres:json_build_object}"
#define JSON(col) "{sqlite:json(" col ")}{postgres:" col "::json}"
/* A member of a JSON text column, as text; NULL if absent. */
#define MEMBER(col, name) "{sqlite:json_extract(" col ",'$." name "')||''}{postgres:(" col "::json->>'" name "')}"
/* What a step gave: the object `output` of a payload, else the whole payload, else `none`. */
#define OUTPUT(col, none)                                                                          \
    "{sqlite:json(CASE json_type(" col ",'$.output') WHEN 'object' THEN json_extract(" col ",'$.output')"  \
    " ELSE COALESCE(" col "," none ") END)}"                                                       \
    "{postgres:CASE json_typeof(" col "::json->'output') WHEN 'object' THEN " col "::json->'output'"       \
    " ELSE COALESCE(" col "," none ")::json END}"
#define STATUS_NAME(col)                                                                           \
    "CASE " col " WHEN 3 THEN 'RUNNING' WHEN 4 THEN 'PAUSED' WHEN 5 THEN 'COMPLETED' WHEN 6 THEN " \
    "'FAILED' WHEN 7 THEN 'CANCELLED' WHEN 2 THEN 'APPROVED' ELSE 'PENDING' END"
#define SEQ_OF(pos) "(" pos " & 1099511627775)"
#define TENANT_OF(pos) "(" pos " >> 40)"
#define STEP_POS(run_no, step_index) "(" run_no " * 1048576 + " step_index ")"
#define STEPS_OF(alias, run_no)                                                                    \
    alias ".step_pos >= " STEP_POS(run_no, "0") " AND " alias ".step_pos < " STEP_POS("(" run_no " + 1)", "0")
#define POS_OF(tenant_no, seq) "(" tenant_no " * 1099511627776 + " seq ")"

static const char tables_sql[] =
    "CREATE TABLE ledger_meta(name {text} PRIMARY KEY, value {text} NOT NULL);"
    /* seq, head and persisted_us are the tenant's end of the chain: the anchor against a lost tail. */
    "CREATE TABLE ledger_tenant(tenant_no {pk}, tenant_id {text} NOT NULL UNIQUE, tenant_uuid {text} NOT NULL,"
    " seq {int} NOT NULL, head {blob} NOT NULL, persisted_us {int} NOT NULL){postgres: WITH (fillfactor=10)};"
    "CREATE TABLE ledger_context(context_no {pk}, tenant_no {int} NOT NULL, project_id {text} NOT NULL,"
    " environment_id {text} NOT NULL, plan_id {text} NOT NULL, plan_version {text} NOT NULL,"
    " UNIQUE(tenant_no, project_id, environment_id, plan_id, plan_version));"
    "CREATE TABLE ledger_type(type_no {pk}, name {text} NOT NULL UNIQUE, snake {text} NOT NULL,"
    " family {text} NOT NULL, lifecycle {int} NOT NULL);"
    "CREATE TABLE ledger_run(run_no {pk}, tenant_no {int} NOT NULL, run_id {text} NOT NULL UNIQUE,"
    " run_uuid {text} NOT NULL, context_no {int} NOT NULL, correlation_id {text} NOT NULL,"
    " signal_id {text}, opened_seq {int} NOT NULL);"
    "CREATE INDEX ledger_run_correlation ON ledger_run(correlation_id);"
    "CREATE TABLE ledger_event(pos {pk}, run_no {int} NOT NULL, run_seq {int}, type_no {int} NOT NULL,"
    " context_no {int} NOT NULL, engine_attempt {int} NOT NULL, logical_attempt {int} NOT NULL,"
    " emitted_ns {int} NOT NULL, emitted_digits {int} NOT NULL, persisted_us {int} NOT NULL, cause_seq {int},"
    " step_index {int}, event_id {blob} NOT NULL, key {blob} NOT NULL, subject {text}, actor {text}, payload {text},"
    " hash {blob} NOT NULL);"
    "CREATE UNIQUE INDEX ledger_event_run_key ON ledger_event(run_no, substr(key, 1, 8));"
    "CREATE INDEX ledger_event_type ON ledger_event(type_no, pos) WHERE type_no = 5 OR type_no >= 10;"
    "CREATE TABLE ledger_checkpoint(run_no {int} NOT NULL, checkpoint_index {int} NOT NULL, seq {int} NOT NULL,"
    " data {text} NOT NULL, created_us {int} NOT NULL, PRIMARY KEY(run_no, checkpoint_index)){norowid};"
    /* First rejections of invalid appends, repeated verbatim. Not part of the history: bounded, oldest forgotten. */
    "CREATE TABLE ledger_rejection(rejection_no {pk}, tenant_id {text} NOT NULL, key {text} NOT NULL,"
    " message {text} NOT NULL, UNIQUE(key, tenant_id));";

static const char state_sql[] =
    /* Only what run-level events change: a step event touches its step's row alone, and the counts are sums over those. */
    "CREATE TABLE state_run(run_no {pk}, status {int} NOT NULL, inconsistent {int} NOT NULL, started_seq {int}, ended_seq {int},"
    " run_level_seq {int}, invalid_events {int} NOT NULL, engine_attempt {int} NOT NULL){postgres: WITH (fillfactor=50)};"
    "CREATE INDEX state_run_open ON state_run(run_no) WHERE status < 5;"
    /* result_seq is set only when a StepCorrected replaced the data of the event at ended_seq. */
    "CREATE TABLE state_step(step_pos {pk}, step_id {text} NOT NULL, step_uuid {blob} NOT NULL, attempt {int} NOT NULL,"
    " state {int} NOT NULL, started_seq {int}, ended_seq {int}, result_seq {int}){postgres: WITH (fillfactor=50)};"
    "CREATE TABLE state_alert(run_no {int} NOT NULL, seq {int} NOT NULL, prior {text} NOT NULL,"
    " attempted {text} NOT NULL, PRIMARY KEY(run_no, seq)){norowid};"
    "CREATE TABLE state_provider(tenant_no {int} NOT NULL, provider {text} NOT NULL, workflow_id {text} NOT NULL,"
    " provider_run_id {text} NOT NULL, run_no {int} NOT NULL, seq {int} NOT NULL,"
    " PRIMARY KEY(tenant_no, provider, workflow_id, provider_run_id)){norowid};"
    "CREATE TABLE state_lot(lot {int} NOT NULL, bucket {int} NOT NULL, ids {blob} NOT NULL, PRIMARY KEY(lot, bucket)){norowid};";

/* The truth refuses UPDATE and DELETE, whoever asks. */
#define REFUSE(table, verb)                                                                        \
    "{sqlite:CREATE TRIGGER " table "_no_" verb " BEFORE " verb " ON " table                       \
    " BEGIN SELECT RAISE(ABORT, '" table " is append-only: " verb " refused'); END;}"              \
    "{postgres:CREATE TRIGGER " table "_no_" verb " BEFORE " verb " ON " table                     \
    " FOR EACH STATEMENT EXECUTE FUNCTION cairn_refuse();}"
#define APPEND_ONLY(table)                                                                         \
    REFUSE(table, "UPDATE") REFUSE(table, "DELETE")                                                \
    "{postgres:CREATE TRIGGER " table "_no_TRUNCATE BEFORE TRUNCATE ON " table                     \
    " FOR EACH STATEMENT EXECUTE FUNCTION cairn_refuse();}"

static const char triggers_sql[] =
    "{postgres:CREATE FUNCTION cairn_refuse() RETURNS trigger LANGUAGE plpgsql AS $$"
    " BEGIN RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP; END $$;}"
    APPEND_ONLY("ledger_event") APPEND_ONLY("ledger_run") APPEND_ONLY("ledger_context") APPEND_ONLY("ledger_type")
    APPEND_ONLY("ledger_checkpoint")
    "{sqlite:CREATE TRIGGER ledger_tenant_no_update BEFORE UPDATE OF tenant_no, tenant_id, tenant_uuid ON ledger_tenant"
    " BEGIN SELECT RAISE(ABORT, 'ledger_tenant: the identity of a tenant never changes'); END;}"
    "{postgres:CREATE TRIGGER ledger_tenant_no_update BEFORE UPDATE OF tenant_no, tenant_id, tenant_uuid ON ledger_tenant"
    " FOR EACH STATEMENT EXECUTE FUNCTION cairn_refuse();}"
    REFUSE("ledger_tenant", "DELETE")
    "{postgres:CREATE TRIGGER ledger_tenant_no_TRUNCATE BEFORE TRUNCATE ON ledger_tenant"
    " FOR EACH STATEMENT EXECUTE FUNCTION cairn_refuse();}";

/* The documents' tables. Stable; documented in docs/sql.md. */
static const char views_sql[] =
    "CREATE VIEW run_events AS SELECT " UUID_TEXT("e.event_id") " AS \"eventId\", ty.name AS \"eventType\", "
    TIME_NS("e.emitted_ns", "e.emitted_digits") " AS \"emittedAt\", r.run_id AS \"runId\", t.tenant_id AS \"tenantId\","
    " c.project_id AS \"projectId\", c.environment_id AS \"environmentId\", c.plan_id AS \"planId\","
    " c.plan_version AS \"planVersion\", e.engine_attempt AS \"engineAttemptId\", e.logical_attempt AS \"logicalAttemptId\", "
    HEX("e.key") " AS \"idempotencyKey\", e.subject AS \"stepId\", " JSON("e.payload") " AS payload,"
    " e.run_seq AS \"runSeq\", " TIME_US("e.persisted_us") " AS \"persistedAt\", " SEQ_OF("e.pos") " AS \"sequenceNumber\","
    " e.pos AS position"
    " FROM ledger_event e JOIN ledger_run r ON r.run_no = e.run_no JOIN ledger_tenant t ON t.tenant_no = r.tenant_no"
    " JOIN ledger_context c ON c.context_no = e.context_no JOIN ledger_type ty ON ty.type_no = e.type_no"
    " WHERE e.run_seq IS NOT NULL;"

    "CREATE VIEW orchestration_events AS SELECT " UUID_TEXT("e.event_id") " AS id, t.tenant_uuid AS tenant_id,"
    " ty.snake AS event_type,"
    " CASE WHEN ty.family = 'TOOL' THEN 'STEP' WHEN ty.family <> 'RUN' THEN ty.family"
    "  WHEN e.subject IS NOT NULL THEN 'STEP' ELSE 'RUN' END AS aggregate_type,"
    " CASE WHEN ty.family IN ('SIGNAL','EFFECT') THEN e.subject"
    "  WHEN e.subject IS NOT NULL THEN " UUID_TEXT("s.step_uuid") " ELSE r.run_uuid END AS aggregate_id,"
    " CASE WHEN e.type_no = 2 THEN " OBJECT "('run_id', r.run_uuid, 'signal_id', COALESCE(r.signal_id, r.correlation_id),"
    "  'run_type', COALESCE(" MEMBER("e.payload", "runType") ", 'SIGNAL_PROCESSING'), 'orchestrator_version',"
    "  COALESCE(" MEMBER("e.payload", "orchestratorVersion") ", 'unknown'))"
    " WHEN e.type_no = 4 THEN " OBJECT "('step_id', " UUID_TEXT("s.step_uuid") ", 'run_id', r.run_uuid,"
    "  'step_index', e.step_index, 'step_type', COALESCE(" MEMBER("e.payload", "stepType") ", 'STEP'), 'output_result', "
    OUTPUT("e.payload", "'{}'") ", 'duration_ms',"
    "  (e.persisted_us - COALESCE(b.persisted_us, e.persisted_us)) / 1000)"
    " WHEN ty.family IN ('SIGNAL','EFFECT','TOOL') THEN " JSON("COALESCE(e.payload,'{}')")
    " ELSE " OBJECT "('run_id', r.run_uuid, 'step_id', " UUID_TEXT("s.step_uuid") ", 'logical_attempt_id',"
    "  e.logical_attempt, 'payload', "
    JSON("COALESCE(e.payload,'{}')") ") END AS event_data,"
    " r.correlation_id AS correlation_id, " UUID_TEXT("ce.event_id") " AS causation_id, e.actor AS actor, "
    TIME_US("e.persisted_us") " AS occurred_at, " SEQ_OF("e.pos") " AS sequence_number, r.run_id AS run_id, e.type_no AS type_no,"
    " ce.pos AS cause_position, e.pos AS position"
    " FROM ledger_event e JOIN ledger_run r ON r.run_no = e.run_no JOIN ledger_tenant t ON t.tenant_no = r.tenant_no"
    " JOIN ledger_type ty ON ty.type_no = e.type_no"
    " LEFT JOIN state_step s ON s.step_pos = " STEP_POS("e.run_no", "e.step_index")
    " LEFT JOIN ledger_event b ON e.type_no = 4 AND s.started_seq < " SEQ_OF("e.pos")
    "  AND b.pos = " POS_OF("r.tenant_no", "s.started_seq")
    " LEFT JOIN ledger_event ce ON ce.pos = " POS_OF("r.tenant_no", "e.cause_seq") ";"

    "CREATE VIEW runs AS SELECT r.run_id AS run_id, r.run_uuid AS id, t.tenant_id AS tenant_id, c.project_id AS project_id,"
    " c.environment_id AS environment_id, c.plan_id AS plan_id, c.plan_version AS plan_version, " STATUS_NAME("s.status")
    " AS status, CASE s.inconsistent WHEN 0 THEN NULL ELSE 'INCONSISTENT' END AS mark,"
    " (SELECT MAX(v.run_seq) FROM ledger_event v WHERE v.run_no = r.run_no) AS run_seq,"
    " (SELECT COUNT(*) FROM state_step p WHERE " STEPS_OF("p", "r.run_no") " AND p.state = 3) AS total_steps,"
    " (SELECT CAST(COALESCE(SUM(p.attempt - CASE p.state WHEN 4 THEN 0 ELSE 1 END), 0) AS {int}) FROM state_step p WHERE "
    STEPS_OF("p", "r.run_no") " AND p.attempt > 0) AS failed_steps,"
    " (SELECT COUNT(*) FROM state_step p WHERE " STEPS_OF("p", "r.run_no") " AND p.state = 2) AS open_steps,"
    " s.engine_attempt AS engine_attempt_id, " TIME_US("a.persisted_us") " AS started_at, " TIME_US("z.persisted_us")
    " AS completed_at, r.correlation_id AS correlation_id, COALESCE(r.signal_id, r.correlation_id) AS signal_id,"
    " r.run_no AS run_no"
    " FROM ledger_run r JOIN state_run s ON s.run_no = r.run_no JOIN ledger_tenant t ON t.tenant_no = r.tenant_no"
    " JOIN ledger_context c ON c.context_no = r.context_no"
    " LEFT JOIN ledger_event a ON a.pos = " POS_OF("r.tenant_no", "s.started_seq")
    " LEFT JOIN ledger_event z ON z.pos = " POS_OF("r.tenant_no", "s.ended_seq") ";"

    "CREATE VIEW steps AS SELECT " UUID_TEXT("s.step_uuid") " AS id, r.run_id AS run_id, s.step_id AS step_id,"
    " (s.step_pos & 1048575) AS step_index, CASE s.state WHEN 2 THEN 'RUNNING' WHEN 3 THEN 'COMPLETED' WHEN 4 THEN 'FAILED'"
    " WHEN 5 THEN 'SKIPPED' ELSE 'PENDING' END AS status, CASE s.state WHEN 2 THEN 'RUNNING' WHEN 3 THEN 'SUCCESS'"
    " WHEN 4 THEN 'FAILED' WHEN 5 THEN 'SKIPPED' ELSE 'PENDING' END AS state, s.attempt AS logical_attempt_id,"
    " s.attempt - 1 AS retry_count, " TIME_US("a.persisted_us") " AS started_at, " TIME_US("z.persisted_us")
    " AS completed_at, " OUTPUT("o.payload", "NULL") " AS output_result, r.correlation_id AS correlation_id, r.run_no AS run_no"
    " FROM ledger_run r JOIN state_step s ON " STEPS_OF("s", "r.run_no")
    " LEFT JOIN ledger_event a ON a.pos = " POS_OF("r.tenant_no", "s.started_seq")
    " LEFT JOIN ledger_event z ON z.pos = " POS_OF("r.tenant_no", "s.ended_seq")
    " LEFT JOIN ledger_event o ON o.pos = " POS_OF("r.tenant_no", "COALESCE(s.result_seq, s.ended_seq)")
    " WHERE s.state > 0;"

    "CREATE VIEW alerts AS SELECT 'INVALID_TRANSITION' AS code, v.\"runId\" AS run_id, v.\"tenantId\" AS tenant_id,"
    " v.\"projectId\" AS project_id, v.\"environmentId\" AS environment_id, v.\"eventId\" AS event_id,"
    " v.\"eventType\" AS event_type, v.\"runSeq\" AS run_seq, v.\"persistedAt\" AS persisted_at, a.prior AS prior_state,"
    " a.attempted AS attempted_state, v.\"stepId\" AS step_id, a.seq AS sequence_number, v.position AS position"
    " FROM state_alert a JOIN ledger_run r ON r.run_no = a.run_no"
    " JOIN run_events v ON v.position = " POS_OF("r.tenant_no", "a.seq") ";"

    "CREATE VIEW run_checkpoints AS SELECT r.run_id AS run_id, k.checkpoint_index AS checkpoint_index, k.data AS checkpoint_data, "
    TIME_US("k.created_us") " AS created_at, k.seq AS sequence_number FROM ledger_checkpoint k"
    " JOIN ledger_run r ON r.run_no = k.run_no;"

    /* base_position + n is the position of the tenant's sequence_number n. */
    "CREATE VIEW tenants AS SELECT t.tenant_id AS tenant_id, t.tenant_uuid AS id, t.seq AS sequence_number, "
    POS_OF("t.tenant_no", "0") " AS base_position, " POS_OF("t.tenant_no", "t.seq") " AS last_position, "
    TIME_US("NULLIF(t.persisted_us, 0)") " AS updated_at FROM ledger_tenant t;"

    "CREATE VIEW provider_refs AS SELECT p.provider AS provider, p.workflow_id AS workflow_id,"
    " p.provider_run_id AS provider_run_id, r.run_id AS run_id, t.tenant_id AS tenant_id FROM state_provider p"
    " JOIN ledger_run r ON r.run_no = p.run_no JOIN ledger_tenant t ON t.tenant_no = p.tenant_no;";
/* clang-format on */

/* The catalogue of known types, so that the views can name them. */
static status insert_types(struct db *db, struct error *err) {
    struct db_stmt *ins = NULL;
    status st = db_prepare(db,
                           "INSERT INTO ledger_type(type_no, name, snake, family, lifecycle)"
                           " VALUES ($1, $2, $3, $4, $5)",
                           &ins, err);
    for (int i = 1; i < EVENT_TYPE_COUNT && st == ST_OK; i++) {
        const struct event_type_info *info = event_type_info((enum event_type)i);
        if (info->name.len == 0) continue;
        char mem[EVENT_TYPE_SNAKE_MAX];
        struct buf snake;
        buf_init_fixed(&snake, mem, sizeof(mem));
        event_type_to_snake(info->name, &snake);
        db_bind_int(ins, 1, i);
        db_bind_text(ins, 2, info->name);
        db_bind_text(ins, 3, buf_str(&snake));
        db_bind_text(ins, 4, str_c(event_family_name(info->family)));
        db_bind_int(ins, 5, info->lifecycle);
        int64_t changed = 0;
        st = db_run(ins, &changed, err);
        db_reset(ins);
    }
    return st;
}

static status create_v1(struct db *db, struct error *err) {
    static const char *const parts[] = {tables_sql, state_sql, triggers_sql, views_sql};
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        status st = db_exec(db, parts[i], err);
        if (st != ST_OK) return st;
    }
    return insert_types(db, err);
}

/* Version 2: who carries out which run (lease.h). Not history: what the engine needs to find its work
 * again, written in the same commit as the events it follows from. */
static status create_v2(struct db *db, struct error *err) {
    static const char leases_sql[] =
        "CREATE TABLE lease_node(node_no {pk}, name {text} NOT NULL UNIQUE, epoch {int} NOT NULL,"
        " lease_until_us {int} NOT NULL){postgres: WITH (fillfactor=10)};"
        /* wake_us: 0 has work under way or due, NULL only a signal wakes it. epoch: of the node, when it last wrote. */
        "CREATE TABLE lease_run(run_no {pk}, node_no {int} NOT NULL, epoch {int} NOT NULL, wake_us {int},"
        " poked {int} NOT NULL);"
        "CREATE INDEX lease_run_due ON lease_run(node_no, wake_us) WHERE wake_us IS NOT NULL;"
        "CREATE INDEX lease_run_poked ON lease_run(node_no) WHERE poked = 1;"
        "INSERT INTO ledger_type(type_no, name, snake, family, lifecycle)"
        " SELECT 17, 'RunRecovered', 'RUN_RECOVERED', 'RUN', 0"
        " WHERE NOT EXISTS (SELECT 1 FROM ledger_type WHERE type_no = 17 OR name = 'RunRecovered');";
    return db_exec(db, leases_sql, err);
}

/* migrations[i] takes a ledger from version i to i + 1. */
static status (*const migrations[LEDGER_SCHEMA_VERSION])(struct db *, struct error *) = {create_v1,
                                                                                         create_v2};

/* 0 when there is no ledger yet. */
static status read_version(struct db *db, int64_t *version, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    *version = 0;
    status st = db_prepare(
        db,
        "SELECT COUNT(*) FROM {sqlite:sqlite_master WHERE type = 'table' AND name}"
        "{postgres:pg_tables WHERE schemaname = current_schema() AND tablename} = 'ledger_meta'",
        &q, err);
    if (st == ST_OK) st = db_step(q, &row, err);
    if (st != ST_OK) return st;
    bool there = row && db_int(q, 0) > 0;
    db_reset(q);
    if (!there) return ST_OK;
    st = db_prepare(db, "SELECT value FROM ledger_meta WHERE name = 'schema_version'", &q, err);
    if (st == ST_OK) st = db_step(q, &row, err);
    if (st == ST_OK && (!row || !str_to_int(db_text(q, 0), version))) {
        st = error_set(err, ST_CORRUPT, "the ledger has no readable schema version");
    }
    if (q) db_reset(q);
    return st;
}

static status write_version(struct db *db, int64_t version, struct error *err) {
    struct db_stmt *put = NULL;
    status st = db_prepare(db,
                           "INSERT INTO ledger_meta(name, value) VALUES ('schema_version', $1)"
                           " ON CONFLICT(name) DO UPDATE SET value = excluded.value",
                           &put, err);
    if (st != ST_OK) return st;
    char text[24];
    struct buf b;
    buf_init_fixed(&b, text, sizeof(text));
    buf_put_int(&b, version);
    db_bind_text(put, 1, buf_str(&b));
    int64_t changed = 0;
    st = db_run(put, &changed, err);
    db_reset(put);
    return st;
}

static status too_new(int64_t version, struct error *err) {
    return error_at(err, ST_INVALID, "SCHEMA_VERSION", "",
                    "the ledger has schema version %lld, this program works with %d",
                    (long long)version, LEDGER_SCHEMA_VERSION);
}

static status migrate_from(struct db *db, int64_t version, struct error *err) {
    for (int64_t v = version; v < LEDGER_SCHEMA_VERSION; v++) {
        status st = migrations[v](db, err);
        if (st != ST_OK)
            return error_wrap(err, "could not migrate the ledger to schema version %lld",
                              (long long)v + 1);
    }
    return write_version(db, LEDGER_SCHEMA_VERSION, err);
}

status schema_migrate(struct db *db, struct error *err) {
    status st = db_begin(db, true, err);
    if (st != ST_OK) return st;
    /* Two nodes may start at once on one PostgreSQL. */
    if (db_is_postgres(db)) st = db_exec(db, "SELECT pg_advisory_xact_lock(4918273651)", err);
    int64_t version = 0;
    if (st == ST_OK) st = read_version(db, &version, err);
    if (st == ST_OK && version > LEDGER_SCHEMA_VERSION) st = too_new(version, err);
    if (st == ST_OK && version < LEDGER_SCHEMA_VERSION) {
        st = migrate_from(db, version, err);
        if (st == ST_OK) return db_commit(db, err);
    }
    db_rollback(db);
    return st;
}

status schema_check(struct db *db, struct error *err) {
    int64_t version = 0;
    status st = read_version(db, &version, err);
    if (st != ST_OK) return st;
    if (version == 0) return error_set(err, ST_NOT_FOUND, "there is no ledger here yet");
    return version == LEDGER_SCHEMA_VERSION ? ST_OK : too_new(version, err);
}
