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
 * ledger_archive is the second tier: a table like ledger_event, to which archive.c moves the rows
 * of runs that are finished (docs/decisions/0008-archive.md). A row is in one of them, never in
 * both; every read asks both.
 *
 * state_lot maps an eventId to its position. Random ids would touch a page each in one large index,
 * so they are indexed lot by lot: when a tenant has ID_LOT_EVENTS more events, their ids are sorted
 * and stored as a few rows of packed entries (id_lots.c). A look-up reads one row of each lot, and
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

/* One tier of the events: the same columns and indexes for both. */
#define EVENT_TABLE(name)                                                                          \
    "CREATE TABLE " name "(pos {pk}, run_no {int} NOT NULL, run_seq {int}, type_no {int} NOT NULL,"             \
    " context_no {int} NOT NULL, engine_attempt {int} NOT NULL, logical_attempt {int} NOT NULL,"   \
    " emitted_ns {int} NOT NULL, emitted_digits {int} NOT NULL, persisted_us {int} NOT NULL, cause_seq {int},"  \
    " step_index {int}, event_id {blob} NOT NULL, key {blob} NOT NULL, subject {text}, actor {text}, payload {text}," \
    " hash {blob} NOT NULL);"                                                                      \
    "CREATE UNIQUE INDEX " name "_run_key ON " name "(run_no, substr(key, 1, 8));"                 \
    "CREATE INDEX " name "_type ON " name "(type_no, pos) WHERE type_no = 5 OR type_no >= 10;"

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
    EVENT_TABLE("ledger_event")
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

/* The documents' tables. Stable; documented in docs/sql.md. Those over events are version 3's. */
static const char views_sql[] =
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

/* Version 2: who carries out which run (lease.h). Not history: what the engine needs to find its
 * work again, written in the same commit as the events it follows from. */
static status create_v2(struct db *db, struct error *err) {
    static const char leases_sql[] =
        "CREATE TABLE lease_node(node_no {pk}, name {text} NOT NULL UNIQUE, epoch {int} NOT NULL,"
        " lease_until_us {int} NOT NULL){postgres: WITH (fillfactor=10)};"
        /* wake_us: 0 has work under way or due, NULL only a signal wakes it. epoch: of the node,
           when it last wrote. */
        "CREATE TABLE lease_run(run_no {pk}, node_no {int} NOT NULL, epoch {int} NOT NULL, wake_us "
        "{int},"
        " poked {int} NOT NULL);"
        "CREATE INDEX lease_run_due ON lease_run(node_no, wake_us) WHERE wake_us IS NOT NULL;"
        "CREATE INDEX lease_run_poked ON lease_run(node_no) WHERE poked = 1;"
        "INSERT INTO ledger_type(type_no, name, snake, family, lifecycle)"
        " SELECT 17, 'RunRecovered', 'RUN_RECOVERED', 'RUN', 0"
        " WHERE NOT EXISTS (SELECT 1 FROM ledger_type WHERE type_no = 17 OR name = "
        "'RunRecovered');";
    return db_exec(db, leases_sql, err);
}

/* Version 3: what is kept besides the events (access.h). The audit trail and the plans are history
 * and refuse changes as the events do; receipts and keys are not.
 *
 * api_receipt has no unique constraint on purpose: a commit must not fail, nor wait for another
 * node, because of a receipt. The oldest one counts; the others are swept with it. Its index is
 * over the first 8 bytes of a hash. */
/* clang-format off */
#define SERIAL "{sqlite:INTEGER PRIMARY KEY}{postgres:BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY}"
static const char access_sql[] =
    "CREATE TABLE api_receipt(receipt_no " SERIAL ", tag {int} NOT NULL, scope {blob} NOT NULL, key {blob} NOT NULL,"
    " fingerprint {blob} NOT NULL, http_status {int} NOT NULL, body {blob}, location {blob}, created_us {int} NOT NULL);"
    "CREATE INDEX api_receipt_tag ON api_receipt(tag);"
    /* 0 in a time: never. */
    "CREATE TABLE api_key(key_id {text} PRIMARY KEY, tenant_id {text} NOT NULL, name {text} NOT NULL,"
    " created_by {text} NOT NULL, roles {int} NOT NULL, hash {blob} NOT NULL, created_us {int} NOT NULL,"
    " expires_us {int} NOT NULL, revoked_us {int} NOT NULL, used_us {int} NOT NULL, version {int} NOT NULL);"
    /* The tenant's id as text: a refusal may name one that is not there. */
    "CREATE TABLE ledger_audit(audit_no " SERIAL ", at_us {int} NOT NULL, tenant_id {text}, actor {text}, remote {text},"
    " request_id {text}, action {text} NOT NULL, target {text}, outcome {text} NOT NULL, code {text}, reason {text},"
    " project_id {text}, environment_id {text}, run_id {text}, engine_attempt {int}, logical_attempt {int});"
    "CREATE INDEX ledger_audit_tenant ON ledger_audit(tenant_id, audit_no);"
    "CREATE TABLE ledger_plan(sha256 {blob} NOT NULL, tenant_id {text} NOT NULL, bytes {blob} NOT NULL,"
    " created_us {int} NOT NULL, PRIMARY KEY(sha256, tenant_id));"
    /* To list the runs of a provider, newest first. */
    "CREATE INDEX state_provider_run ON state_provider(run_no);"
    APPEND_ONLY("ledger_audit") APPEND_ONLY("ledger_plan")
    "CREATE VIEW audit AS SELECT a.audit_no AS audit_no, " TIME_US("a.at_us") " AS occurred_at, a.tenant_id AS tenant_id,"
    " a.actor AS actor, a.remote AS remote, a.request_id AS request_id, a.action AS action, a.target AS target,"
    " a.outcome AS outcome, a.code AS code, a.reason AS reason, a.project_id AS project_id,"
    " a.environment_id AS environment_id, a.run_id AS run_id, a.engine_attempt AS engine_attempt_id,"
    " a.logical_attempt AS logical_attempt_id FROM ledger_audit a;";
/* Version 3, too: the archive. A row leaves ledger_event only as a copy: the same in every column, already in ledger_archive. */
#define SAME(col, row) " AND a." col " {sqlite:IS}{postgres:IS NOT DISTINCT FROM} " row "." col
#define IS_ARCHIVED(archive, row)                                                                  \
    "EXISTS (SELECT 1 FROM " archive " a WHERE a.pos = " row ".pos" SAME("hash", row) SAME("run_no", row)            \
    SAME("run_seq", row) SAME("type_no", row) SAME("context_no", row) SAME("engine_attempt", row)  \
    SAME("logical_attempt", row) SAME("emitted_ns", row) SAME("emitted_digits", row) SAME("persisted_us", row)       \
    SAME("cause_seq", row) SAME("step_index", row) SAME("event_id", row) SAME("key", row) SAME("subject", row)       \
    SAME("actor", row) SAME("payload", row) ")"

static const char archive_sql[] =
    EVENT_TABLE("ledger_archive")
    APPEND_ONLY("ledger_archive")
    "DROP TRIGGER IF EXISTS ledger_event_no_DELETE{postgres: ON ledger_event};"
    "{sqlite:CREATE TRIGGER ledger_event_no_DELETE BEFORE DELETE ON ledger_event WHEN NOT " IS_ARCHIVED("ledger_archive", "OLD")
    " BEGIN SELECT RAISE(ABORT, 'ledger_event is append-only: DELETE refused'); END;}"
    /* Once for all rows of a statement. The schema is named: a temporary table must not pass for the archive. */
    "{postgres:CREATE OR REPLACE FUNCTION cairn_refuse() RETURNS trigger LANGUAGE plpgsql AS $$"
    " DECLARE kept boolean; BEGIN IF TG_TABLE_NAME = 'ledger_event' AND TG_OP = 'DELETE' THEN"
    " EXECUTE format('SELECT NOT EXISTS (SELECT 1 FROM gone g WHERE NOT " IS_ARCHIVED("%I.ledger_archive", "g") ")',"
    " TG_TABLE_SCHEMA) INTO kept; IF kept THEN RETURN NULL; END IF; END IF;"
    " RAISE EXCEPTION '% is append-only: % refused', TG_TABLE_NAME, TG_OP; END $$;"
    "CREATE TRIGGER ledger_event_no_DELETE AFTER DELETE ON ledger_event REFERENCING OLD TABLE AS gone"
    " FOR EACH STATEMENT EXECUTE FUNCTION cairn_refuse();}";

/* The views over events, for both tiers.
 *
 * PostgreSQL plans a UNION ALL of two plain tables as if it were one, whatever the query. SQLite does so only for simple
 * queries: a join with something else, or a sum, would read all events. So on SQLite the two big views read one
 * tier until the other is used: the first archiving makes them again (schema_archive_views()), each as the UNION ALL of two whole
 * queries, which can be narrowed by constants at least. What is looked up by position is looked up in both from the start. */
#define VIEW(name)                                                                                 \
    "{sqlite:DROP VIEW IF EXISTS " name "; CREATE VIEW " name "}{postgres:CREATE OR REPLACE VIEW " name "} AS "
#define ALL_EVENTS "(SELECT * FROM ledger_event e UNION ALL SELECT * FROM ledger_archive f)"

/* The event at a position, as `x` of the first tier or `xa` of the second. */
#define EVENT_JOIN(x, pos)                                                                         \
    " LEFT JOIN ledger_event " x " ON " x ".pos = " pos                                            \
    " LEFT JOIN ledger_archive " x "a ON " x "a.pos = CASE WHEN " x ".pos IS NULL THEN " pos " END"
#define EVENT_JOINED(x, col) "COALESCE(" x "." col ", " x "a." col ")"
/* When that was. PostgreSQL would sometimes read a whole tier to join it; SQLite tries conditions on what it looked up
 * before those on what it joins later, and this one is dear. */
#define TIME_AT(x, seq)                                                                            \
    "{sqlite:" TIME_US(EVENT_JOINED(x, "persisted_us")) "}"                                        \
    "{postgres:" EVENT_AT(TIME_US("y.persisted_us"), POS_OF("r.tenant_no", seq)) "}"
#define TIME_JOIN(x, seq) "{sqlite:" EVENT_JOIN(x, POS_OF("r.tenant_no", seq)) "}"

#define RUN_EVENTS(from, e)                                                                        \
    "SELECT " UUID_TEXT(e ".event_id") " AS \"eventId\", ty.name AS \"eventType\", "              \
    TIME_NS(e ".emitted_ns", e ".emitted_digits") " AS \"emittedAt\", r.run_id AS \"runId\", t.tenant_id AS \"tenantId\","  \
    " c.project_id AS \"projectId\", c.environment_id AS \"environmentId\", c.plan_id AS \"planId\","                      \
    " c.plan_version AS \"planVersion\", " e ".engine_attempt AS \"engineAttemptId\", " e ".logical_attempt AS \"logicalAttemptId\", " \
    HEX(e ".key") " AS \"idempotencyKey\", " e ".subject AS \"stepId\", " JSON(e ".payload") " AS payload,"                \
    " " e ".run_seq AS \"runSeq\", " TIME_US(e ".persisted_us") " AS \"persistedAt\", " SEQ_OF(e ".pos") " AS \"sequenceNumber\"," \
    " " e ".pos AS position"                                                                       \
    " FROM " from " " e " JOIN ledger_run r ON r.run_no = " e ".run_no JOIN ledger_tenant t ON t.tenant_no = r.tenant_no"  \
    " JOIN ledger_context c ON c.context_no = " e ".context_no JOIN ledger_type ty ON ty.type_no = " e ".type_no"          \
    " WHERE " e ".run_seq IS NOT NULL"

#define ORCHESTRATION_EVENTS(from, e)                                                              \
    "SELECT " UUID_TEXT(e ".event_id") " AS id, t.tenant_uuid AS tenant_id,"                       \
    " ty.snake AS event_type,"                                                                     \
    " CASE WHEN ty.family = 'TOOL' THEN 'STEP' WHEN ty.family <> 'RUN' THEN ty.family"             \
    "  WHEN " e ".subject IS NOT NULL THEN 'STEP' ELSE 'RUN' END AS aggregate_type,"               \
    " CASE WHEN ty.family IN ('SIGNAL','EFFECT') THEN " e ".subject"                               \
    "  WHEN " e ".subject IS NOT NULL THEN " UUID_TEXT("s.step_uuid") " ELSE r.run_uuid END AS aggregate_id,"              \
    " CASE WHEN " e ".type_no = 2 THEN " OBJECT "('run_id', r.run_uuid, 'signal_id', COALESCE(r.signal_id, r.correlation_id)," \
    "  'run_type', COALESCE(" MEMBER(e ".payload", "runType") ", 'SIGNAL_PROCESSING'), 'orchestrator_version',"            \
    "  COALESCE(" MEMBER(e ".payload", "orchestratorVersion") ", 'unknown'))"                      \
    " WHEN " e ".type_no = 4 THEN " OBJECT "('step_id', " UUID_TEXT("s.step_uuid") ", 'run_id', r.run_uuid,"               \
    "  'step_index', " e ".step_index, 'step_type', COALESCE(" MEMBER(e ".payload", "stepType") ", 'STEP'), 'output_result', " \
    OUTPUT(e ".payload", "'{}'") ", 'duration_ms',"                                                \
    "  (" e ".persisted_us - COALESCE(CASE WHEN s.started_seq < " SEQ_OF(e ".pos") " THEN "        \
    EVENT_AT("y.persisted_us", POS_OF("r.tenant_no", "s.started_seq")) " END, " e ".persisted_us)) / 1000)"                  \
    " WHEN ty.family IN ('SIGNAL','EFFECT','TOOL') THEN " JSON("COALESCE(" e ".payload,'{}')")     \
    " ELSE " OBJECT "('run_id', r.run_uuid, 'step_id', " UUID_TEXT("s.step_uuid") ", 'logical_attempt_id',"                \
    "  " e ".logical_attempt, 'payload', "                                                         \
    JSON("COALESCE(" e ".payload,'{}')") ") END AS event_data,"                                    \
    " r.correlation_id AS correlation_id, "                                                        \
    EVENT_AT(UUID_TEXT("y.event_id"), POS_OF("r.tenant_no", e ".cause_seq")) " AS causation_id, " e ".actor AS actor, "    \
    TIME_US(e ".persisted_us") " AS occurred_at, " SEQ_OF(e ".pos") " AS sequence_number, r.run_id AS run_id, "            \
    e ".type_no AS type_no, " POS_OF("r.tenant_no", e ".cause_seq") " AS cause_position, " e ".pos AS position"            \
    " FROM " from " " e " JOIN ledger_run r ON r.run_no = " e ".run_no JOIN ledger_tenant t ON t.tenant_no = r.tenant_no"  \
    " JOIN ledger_type ty ON ty.type_no = " e ".type_no"                                           \
    " LEFT JOIN state_step s ON s.step_pos = " STEP_POS(e ".run_no", e ".step_index")

static const char event_views_sql[] =
    VIEW("run_events") "{sqlite:" RUN_EVENTS("ledger_event", "e") "}{postgres:" RUN_EVENTS(ALL_EVENTS, "v") "};"
    VIEW("orchestration_events")
    "{sqlite:" ORCHESTRATION_EVENTS("ledger_event", "e") "}{postgres:" ORCHESTRATION_EVENTS(ALL_EVENTS, "v") "};"

    VIEW("runs") "SELECT r.run_id AS run_id, r.run_uuid AS id, t.tenant_id AS tenant_id, c.project_id AS project_id,"
    " c.environment_id AS environment_id, c.plan_id AS plan_id, c.plan_version AS plan_version, " STATUS_NAME("s.status")
    " AS status, CASE s.inconsistent WHEN 0 THEN NULL ELSE 'INCONSISTENT' END AS mark,"
    /* What came after an archiving is newer than what was archived. */
    " COALESCE((SELECT MAX(y.run_seq) FROM ledger_event y WHERE y.run_no = r.run_no),"
    "  (SELECT MAX(y.run_seq) FROM ledger_archive y WHERE y.run_no = r.run_no)) AS run_seq,"
    " (SELECT COUNT(*) FROM state_step p WHERE " STEPS_OF("p", "r.run_no") " AND p.state = 3) AS total_steps,"
    " (SELECT CAST(COALESCE(SUM(p.attempt - CASE p.state WHEN 4 THEN 0 ELSE 1 END), 0) AS {int}) FROM state_step p WHERE "
    STEPS_OF("p", "r.run_no") " AND p.attempt > 0) AS failed_steps,"
    " (SELECT COUNT(*) FROM state_step p WHERE " STEPS_OF("p", "r.run_no") " AND p.state = 2) AS open_steps,"
    " s.engine_attempt AS engine_attempt_id, " TIME_AT("a", "s.started_seq") " AS started_at, " TIME_AT("z", "s.ended_seq")
    " AS completed_at, r.correlation_id AS correlation_id, COALESCE(r.signal_id, r.correlation_id) AS signal_id,"
    " r.run_no AS run_no"
    " FROM ledger_run r JOIN state_run s ON s.run_no = r.run_no JOIN ledger_tenant t ON t.tenant_no = r.tenant_no"
    " JOIN ledger_context c ON c.context_no = r.context_no"
    TIME_JOIN("a", "s.started_seq") TIME_JOIN("z", "s.ended_seq") ";"

    VIEW("steps") "SELECT " UUID_TEXT("s.step_uuid") " AS id, r.run_id AS run_id, s.step_id AS step_id,"
    " (s.step_pos & 1048575) AS step_index, CASE s.state WHEN 2 THEN 'RUNNING' WHEN 3 THEN 'COMPLETED' WHEN 4 THEN 'FAILED'"
    " WHEN 5 THEN 'SKIPPED' ELSE 'PENDING' END AS status, CASE s.state WHEN 2 THEN 'RUNNING' WHEN 3 THEN 'SUCCESS'"
    " WHEN 4 THEN 'FAILED' WHEN 5 THEN 'SKIPPED' ELSE 'PENDING' END AS state, s.attempt AS logical_attempt_id,"
    " s.attempt - 1 AS retry_count, " TIME_AT("a", "s.started_seq") " AS started_at, " TIME_AT("z", "s.ended_seq") " AS completed_at, " OUTPUT(EVENT_JOINED("o", "payload"), "NULL")
    " AS output_result, r.correlation_id AS correlation_id, r.run_no AS run_no"
    " FROM ledger_run r JOIN state_step s ON " STEPS_OF("s", "r.run_no")
    TIME_JOIN("a", "s.started_seq") TIME_JOIN("z", "s.ended_seq")
    EVENT_JOIN("o", POS_OF("r.tenant_no", "COALESCE(s.result_seq, s.ended_seq)"))
    " WHERE s.state > 0;"

    /* Not through run_events, which SQLite could not narrow to these few. */
    VIEW("alerts") "SELECT 'INVALID_TRANSITION' AS code, r.run_id AS run_id, t.tenant_id AS tenant_id,"
    " c.project_id AS project_id, c.environment_id AS environment_id, " UUID_TEXT(EVENT_JOINED("e", "event_id")) " AS event_id,"
    " ty.name AS event_type, " EVENT_JOINED("e", "run_seq") " AS run_seq, " TIME_US(EVENT_JOINED("e", "persisted_us"))
    " AS persisted_at, a.prior AS prior_state, a.attempted AS attempted_state, " EVENT_JOINED("e", "subject") " AS step_id,"
    " a.seq AS sequence_number, " EVENT_JOINED("e", "pos") " AS position"
    " FROM state_alert a JOIN ledger_run r ON r.run_no = a.run_no JOIN ledger_tenant t ON t.tenant_no = r.tenant_no"
    EVENT_JOIN("e", POS_OF("r.tenant_no", "a.seq"))
    " JOIN ledger_context c ON c.context_no = " EVENT_JOINED("e", "context_no")
    " JOIN ledger_type ty ON ty.type_no = " EVENT_JOINED("e", "type_no") ";";

static const char archive_views_sql[] =
    "DROP VIEW run_events; CREATE VIEW run_events AS " RUN_EVENTS("ledger_event", "e") " UNION ALL "
    RUN_EVENTS("ledger_archive", "f") ";"
    "DROP VIEW orchestration_events; CREATE VIEW orchestration_events AS " ORCHESTRATION_EVENTS("ledger_event", "e")
    " UNION ALL " ORCHESTRATION_EVENTS("ledger_archive", "f");
/* clang-format on */

static status create_v3(struct db *db, struct error *err) {
    static const char *const parts[] = {access_sql, archive_sql, event_views_sql};
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        status st = db_exec(db, parts[i], err);
        if (st != ST_OK) return st;
    }
    return ST_OK;
}

/* Version 4: the outbox (outbox.h). Its rows are a projection of the EFFECT facts: one for each effect, by the position of its
 * EffectRequested, where its payload stands; result and error stand in the events that they name.
 *
 * due_us is when a worker must look at it: at once, at its next execution, or when a lease that nobody
 * ended is over. */
/* clang-format off */
#define MEMBER_JSON(col, name) "{sqlite:(" col " -> '$." name "')}{postgres:(" col "::json -> '" name "')}"
#define EFFECT_PAYLOAD EVENT_JOINED("q", "payload")
static const char outbox_sql[] =
    "CREATE TABLE state_effect(effect_pos {pk}, tenant_no {int} NOT NULL, run_no {int} NOT NULL, effect_id {blob} NOT NULL,"
    " effect_type {text} NOT NULL CHECK (length(effect_type) <= 100),"
    " idempotency_key {text} NOT NULL CHECK (length(idempotency_key) <= 255), created_us {int} NOT NULL,"
    " status {text} NOT NULL DEFAULT 'PENDING' CHECK (status IN ('PENDING','PROCESSING','COMPLETED','FAILED','DEAD_LETTER')),"
    " executions {int} NOT NULL DEFAULT 0, retry_count {int} NOT NULL DEFAULT 0, max_retries {int} NOT NULL DEFAULT 3,"
    " base_ms {int} NOT NULL, due_us {int}, processed_us {int}, result_seq {int}, error_seq {int}, last_seq {int} NOT NULL)"
    "{postgres: WITH (fillfactor=50)};"
    "CREATE INDEX idx_outbox_status ON state_effect(tenant_no, status, created_us);"
    "CREATE INDEX idx_outbox_retry ON state_effect(status, due_us) WHERE status = 'FAILED';"
    "CREATE UNIQUE INDEX idx_outbox_idempotency ON state_effect(idempotency_key);"
    "CREATE UNIQUE INDEX state_effect_id ON state_effect(effect_id);"
    "CREATE INDEX state_effect_run ON state_effect(run_no);"
    "CREATE INDEX state_effect_due ON state_effect(due_us, effect_pos) WHERE due_us IS NOT NULL;"
    /* The few that are of interest to people. */
    "CREATE INDEX state_effect_open ON state_effect(effect_pos) WHERE status <> 'COMPLETED';"

    "CREATE VIEW outbox_events AS SELECT " UUID_TEXT(EVENT_JOINED("q", "event_id")) " AS id, t.tenant_uuid AS tenant_id,"
    " f.effect_type AS event_type, " MEMBER_JSON(EFFECT_PAYLOAD, "payload") " AS payload, f.idempotency_key AS idempotency_key, "
    TIME_US("f.created_us") " AS created_at, " TIME_US("f.processed_us") " AS processed_at, f.status AS status,"
    " f.retry_count AS retry_count, f.max_retries AS max_retries, "
    TIME_US("CASE f.status WHEN 'FAILED' THEN f.due_us END") " AS next_retry_at, "
    MEMBER_JSON(EVENT_JOINED("o", "payload"), "result") " AS result,"
    " CASE WHEN f.error_seq IS NOT NULL THEN " OBJECT "('code', " MEMBER(EVENT_JOINED("x", "payload"), "error_code")
    ", 'message', " MEMBER(EVENT_JOINED("x", "payload"), "error_message") ", 'stack', "
    MEMBER(EVENT_JOINED("x", "payload"), "stack") ") END AS error_details,"
    " r.correlation_id AS correlation_id, 'EFFECT' AS aggregate_type, " UUID_TEXT("f.effect_id") " AS aggregate_id,"
    " f.executions AS executions, r.run_id AS run_id, f.effect_pos AS position"
    " FROM state_effect f JOIN ledger_run r ON r.run_no = f.run_no JOIN ledger_tenant t ON t.tenant_no = f.tenant_no"
    EVENT_JOIN("q", "f.effect_pos") EVENT_JOIN("o", POS_OF("f.tenant_no", "f.result_seq"))
    EVENT_JOIN("x", POS_OF("f.tenant_no", "f.error_seq")) ";"

    "CREATE VIEW effects AS SELECT " UUID_TEXT("f.effect_id") " AS id, t.tenant_uuid AS tenant_id, r.run_id AS run_id, "
    MEMBER(EFFECT_PAYLOAD, "step_id") " AS step_id, f.effect_type AS effect_type, "
    MEMBER_JSON(EFFECT_PAYLOAD, "payload") " AS effect_spec, f.status AS status, "
    MEMBER_JSON(EVENT_JOINED("o", "payload"), "result") " AS execution_result, " TIME_US("f.processed_us") " AS executed_at, "
    TIME_US("f.created_us") " AS created_at, r.correlation_id AS correlation_id, f.effect_pos AS position"
    " FROM state_effect f JOIN ledger_run r ON r.run_no = f.run_no JOIN ledger_tenant t ON t.tenant_no = f.tenant_no"
    EVENT_JOIN("q", "f.effect_pos") EVENT_JOIN("o", POS_OF("f.tenant_no", "f.result_seq")) ";";
/* clang-format on */

static status create_v4(struct db *db, struct error *err) { return db_exec(db, outbox_sql, err); }

status schema_archive_views(struct db *db, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    if (db_is_postgres(db)) return ST_OK;
    status st = db_prepare(db,
                           "SELECT COUNT(*) FROM sqlite_master WHERE type = 'view'"
                           " AND name = 'run_events' AND sql LIKE '%UNION ALL%'",
                           &q, err);
    if (st == ST_OK) st = db_step(q, &row, err);
    bool done = st == ST_OK && db_int(q, 0) > 0;
    if (q) db_reset(q);
    return st != ST_OK || done ? st : db_exec(db, archive_views_sql, err);
}

/* migrations[i] takes a ledger from version i to i + 1. */
static status (*const migrations[LEDGER_SCHEMA_VERSION])(struct db *, struct error *) = {
    create_v1, create_v2, create_v3, create_v4};

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
    return error_at(err, REASON_SCHEMA_VERSION, "",
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
