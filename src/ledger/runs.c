/* Runs: finding one, listing them newest first.
 *
 * A listing looks at runs in slices, downwards from the newest, until the page is full, nothing is
 * left or as many were looked at as the caller allows. Where the runs of a slice come from depends on
 * the filter: the narrowest of a few indexes, or all runs. One statement then applies the whole
 * filter to the slice, whatever its source; so a source only has to hold every run that may match.
 * The rows of the page, with their sums over steps, are read last, by number. */
#include "ledger/handle.h"

/* ---- one run ---- */

#define STEPS_OF_RUN "p.step_pos >= r.run_no * 1048576 AND p.step_pos < (r.run_no + 1) * 1048576"
/* clang-format off */
#define TIME_AT(seq) EVENT_AT("y.persisted_us", "(r.tenant_no * 1099511627776 + " seq ")")
/* What a run has in ledger_event is newer than what was archived of it. */
#define NEWEST(col, tier) "(SELECT MAX(v." col ") FROM " tier " v WHERE v.run_no = r.run_no)"
#define RUN_SELECT                                                                                                       \
    "SELECT r.run_no, r.run_id, t.tenant_id, c.project_id, c.environment_id, c.plan_id, c.plan_version, r.run_uuid,"    \
    " r.correlation_id, r.signal_id, s.status, s.inconsistent, s.started_seq, s.ended_seq, s.run_level_seq,"            \
    " s.invalid_events, s.engine_attempt, " TIME_AT("r.opened_seq") ", " TIME_AT("s.started_seq") ", "                  \
    TIME_AT("s.ended_seq") ", COALESCE(" NEWEST("run_seq", "ledger_event") ", " NEWEST("run_seq", "ledger_archive") "),"  \
    " COALESCE(u.pos, ua.pos),"                                                                                         \
    " (SELECT COUNT(*) FROM state_step p WHERE " STEPS_OF_RUN " AND p.state = 3),"                                      \
    " (SELECT CAST(COALESCE(SUM(p.attempt - CASE p.state WHEN 4 THEN 0 ELSE 1 END), 0) AS {int}) FROM state_step p"     \
    "  WHERE " STEPS_OF_RUN " AND p.attempt > 0),"                                                                      \
    " (SELECT COUNT(*) FROM state_step p WHERE " STEPS_OF_RUN " AND p.state = 2),"                                      \
    " (SELECT COUNT(*) FROM state_step p WHERE " STEPS_OF_RUN " AND p.state = 4),"                                      \
    " COALESCE(u.persisted_us, ua.persisted_us)"                                                                        \
    " FROM ledger_run r"                                                                                                \
    " JOIN state_run s ON s.run_no = r.run_no JOIN ledger_tenant t ON t.tenant_no = r.tenant_no"                        \
    " JOIN ledger_context c ON c.context_no = r.context_no"                                                             \
    " LEFT JOIN ledger_event u ON u.pos = " NEWEST("pos", "ledger_event")                                               \
    " LEFT JOIN ledger_archive ua ON ua.pos = CASE WHEN u.pos IS NULL THEN " NEWEST("pos", "ledger_archive") " END"
/* clang-format on */

/* The first columns of both statements: who the run is, and its status. */
static status read_identity(struct db_stmt *q, struct arena *arena, struct run_info *r,
                            struct error *err) {
    r->run_no = db_int(q, 0);
    str *texts[] = {&r->run_id,         &r->tenant_id, &r->project_id,
                    &r->environment_id, &r->plan_id,   &r->plan_version};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        if (!arena_try_str(arena, db_text(q, (int)i + 1), texts[i])) return ledger_no_memory(err);
    }
    if (!uuid_parse(db_text(q, 7), &r->run_uuid) || !uuid_parse(db_text(q, 8), &r->correlation_id))
        return error_at(err, REASON_LEDGER_DAMAGED, "", "run \"%.*s\" has no readable identity",
                        STR_ARG(r->run_id));
    if (!uuid_parse(db_text(q, 9), &r->signal_id)) r->signal_id = r->correlation_id;
    return ST_OK;
}

static enum run_status read_status(struct db_stmt *q) {
    int64_t value = db_int(q, 10);
    return value >= 0 && value < RUN_STATUS_COUNT ? (enum run_status)value : RUN_NEW;
}

static status read_run_info(struct db_stmt *q, struct arena *arena, struct run_info *out,
                            struct error *err) {
    struct run_info r = {0};
    status st = read_identity(q, arena, &r, err);
    if (st != ST_OK) return st;
    r.head = (struct run_head){.status = read_status(q),
                               .inconsistent = db_int(q, 11) != 0,
                               .started_seq = db_int(q, 12),
                               .ended_seq = db_int(q, 13),
                               .run_level_seq = db_int(q, 14),
                               .invalid_events = db_int(q, 15),
                               .engine_attempt = db_int(q, 16),
                               .run_seq = db_int(q, 20),
                               .last_seq = pos_seq(db_int(q, 21)),
                               .total_steps = db_int(q, 22),
                               .failed_steps = db_int(q, 23),
                               .open_steps = db_int(q, 24),
                               .bad_steps = db_int(q, 25)};
    r.opened_us = db_int(q, 17);
    r.started_us = db_int(q, 18);
    r.ended_us = db_int(q, 19);
    r.updated_us = db_int(q, 26);
    *out = r;
    return ST_OK;
}

static status one_run(struct db_stmt *q, struct arena *arena, struct run_info *out, bool *found,
                      struct error *err) {
    status st = db_step(q, found, err);
    if (st == ST_OK && *found) st = read_run_info(q, arena, out, err);
    db_reset(q);
    return st;
}

status ledger_find_run(struct ledger *l, str run_id, struct arena *arena, struct run_info *out,
                       struct error *err) {
    struct db_stmt *q = NULL;
    bool found = false;
    status st = db_prepare(l->db, RUN_SELECT " WHERE r.run_id = $1", &q, err);
    if (st != ST_OK) return st;
    db_bind_text(q, 1, run_id);
    st = one_run(q, arena, out, &found, err);
    if (st == ST_OK && found && !str_eq(out->run_id, run_id)) {
        return error_at(err, REASON_LEDGER_DAMAGED, "", "the index of runs is damaged");
    }
    if (st == ST_OK && !found) {
        return error_at(err, REASON_RUN_NOT_FOUND, "", "there is no run \"%.*s\"", STR_ARG(run_id));
    }
    return st;
}

status ledger_find_identity(struct ledger *l, str run_id, struct arena *arena, struct run_info *out,
                            struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    struct run_info r = {0};
    status st = db_prepare(
        l->db,
        "SELECT r.run_no, r.run_id, t.tenant_id, c.project_id, c.environment_id, c.plan_id,"
        " c.plan_version, r.run_uuid, r.correlation_id, r.signal_id, s.status, s.engine_attempt"
        " FROM ledger_run r JOIN state_run s ON s.run_no = r.run_no"
        " JOIN ledger_tenant t ON t.tenant_no = r.tenant_no"
        " JOIN ledger_context c ON c.context_no = r.context_no WHERE r.run_id = $1",
        &q, err);
    if (st != ST_OK) return st;
    db_bind_text(q, 1, run_id);
    st = db_step(q, &row, err);
    if (st == ST_OK && !row)
        st = error_at(err, REASON_RUN_NOT_FOUND, "", "there is no run \"%.*s\"", STR_ARG(run_id));
    if (st == ST_OK) st = read_identity(q, arena, &r, err);
    if (st == ST_OK) {
        r.head.status = read_status(q);
        r.head.engine_attempt = db_int(q, 11);
        *out = r;
    }
    db_reset(q);
    return st;
}

status ledger_find_provider(struct ledger *l, str tenant_id, str provider, str workflow_id,
                            str provider_run_id, struct arena *arena, struct run_info *out,
                            struct error *err) {
    struct db_stmt *q = NULL;
    bool found = false;
    status st = db_prepare(
        l->db,
        RUN_SELECT
        " JOIN state_provider p ON p.run_no = r.run_no WHERE p.provider = $1 AND p.workflow_id = $2"
        " AND p.provider_run_id = $3 AND ({text:$4} IS NULL OR t.tenant_id = $4)"
        " ORDER BY r.run_no LIMIT 1",
        &q, err);
    if (st != ST_OK) return st;
    db_bind_text(q, 1, provider);
    db_bind_text(q, 2, workflow_id);
    db_bind_text(q, 3, provider_run_id);
    db_bind_text(q, 4, tenant_id);
    st = one_run(q, arena, out, &found, err);
    if (st == ST_OK && !found) {
        return error_at(err, REASON_RUN_NOT_FOUND, "",
                        "there is no run for workflow \"%.*s\", run \"%.*s\" of %.*s",
                        STR_ARG(workflow_id), STR_ARG(provider_run_id), STR_ARG(provider));
    }
    return st;
}

/* ---- listing: where to look ---- */

enum source {
    SOURCE_ALL,      /* every run */
    SOURCE_OPEN,     /* those that are not finished */
    SOURCE_ALERT,    /* those with an alert: all that are INCONSISTENT */
    SOURCE_PROVIDER, /* those with a provider reference */
    SOURCE_WORKFLOW, /* those of one workflow of a provider */
    SOURCE_TRACE,    /* those of one correlation */
};

enum {
    SLICE_FIRST = 256,     /* runs of the first slice: most pages need no more */
    SLICE_GROWS = 4,       /* each slice is so many times the one before, */
    SLICE_ALL_MAX = 16384, /* up to this one of SOURCE_ALL, which is a range, */
    SLICE_LIST_MAX = 4096, /* or this one of the others, which is a list */
    NUMBER_CHARS = 21,
};

/* One listing under way. */
struct hunt {
    struct ledger *l;
    const struct run_filter *f;
    enum source source;
    int64_t tenant_no;          /* 0: any */
    int64_t first_seq, end_seq; /* since and until as sequence numbers, if there is a tenant */
    int64_t before;             /* the runs below this one were not looked at yet */
    int64_t left;               /* so many more may be looked at */
    bool ended;                 /* there are no more */
    char correlation[UUID_TEXT_LEN];
    str needle; /* filter.text as MATCH_SQL wants it */
    int64_t *found;
    size_t count, wanted;
};

static bool only_open(unsigned statuses) {
    return statuses != 0 && (statuses & ~((1U << RUN_COMPLETED) - 1)) == 0;
}

static enum source source_of(const struct run_filter *f) {
    if (f->correlation) return SOURCE_TRACE;
    if (f->provider.ptr && f->workflow_id.ptr) return SOURCE_WORKFLOW;
    if (f->provider.ptr || f->workflow_id.ptr) return SOURCE_PROVIDER;
    if (f->only_inconsistent) return SOURCE_ALERT;
    return only_open(f->statuses) ? SOURCE_OPEN : SOURCE_ALL;
}

/* Numbers of runs below $1, the highest $2 of them, and whether each is worth a closer look;
 * SOURCE_ALL: how many they are, and the lowest. SQLite has no statistics to choose by, so the
 * index is named. */
static const char *source_sql(enum source source) {
    switch (source) {
    case SOURCE_ALL:
        return "SELECT COUNT(*), MIN(x.run_no) FROM (SELECT run_no FROM state_run"
               " WHERE run_no < $1 ORDER BY run_no DESC LIMIT $2) x";
    case SOURCE_OPEN:
        return "SELECT run_no, 1 FROM state_run{sqlite: INDEXED BY state_run_open}"
               " WHERE status < 5 AND run_no < $1 ORDER BY run_no DESC LIMIT $2";
    case SOURCE_ALERT:
        return "SELECT run_no, 1 FROM state_alert WHERE run_no < $1 GROUP BY run_no"
               " ORDER BY run_no DESC LIMIT $2";
    case SOURCE_PROVIDER: /* there may be many: those of others are passed over here */
        return "SELECT run_no, MAX(CASE WHEN ({text:$3} IS NULL OR provider = $3)"
               " AND ({text:$4} IS NULL OR workflow_id = $4) THEN 1 ELSE 0 END)"
               " FROM state_provider{sqlite: INDEXED BY state_provider_run}"
               " WHERE run_no < $1 GROUP BY run_no ORDER BY run_no DESC LIMIT $2";
    case SOURCE_WORKFLOW: /* tenant by tenant, along the primary key of the references */
        return "SELECT DISTINCT p.run_no, 1 FROM ledger_tenant t"
               "{sqlite: CROSS JOIN state_provider p WHERE p.tenant_no = t.tenant_no"
               " AND p.provider = $3 AND p.workflow_id = $4}"
               "{postgres: CROSS JOIN LATERAL (SELECT y.run_no FROM state_provider y"
               " WHERE y.tenant_no = t.tenant_no AND y.provider = $3 AND y.workflow_id = $4"
               " OFFSET 0) p WHERE true}"
               " AND ({int:$5} = 0 OR t.tenant_no = $5) AND p.run_no + 0 < $1"
               " ORDER BY p.run_no DESC LIMIT $2";
    case SOURCE_TRACE:
        return "SELECT run_no, 1 FROM ledger_run{sqlite: INDEXED BY ledger_run_correlation}"
               " WHERE correlation_id = $3 AND run_no < $1 ORDER BY run_no DESC LIMIT $2";
    }
    return NULL;
}

static status ask_source(struct hunt *h, int64_t slice, struct db_stmt **q, struct error *err) {
    status st = db_prepare(h->l->db, source_sql(h->source), q, err);
    if (st != ST_OK) return st;
    db_bind_int(*q, 1, h->before);
    db_bind_int(*q, 2, slice);
    if (h->source == SOURCE_TRACE) db_bind_text(*q, 3, str_n(h->correlation, UUID_TEXT_LEN));
    if (h->source == SOURCE_PROVIDER || h->source == SOURCE_WORKFLOW) {
        db_bind_text(*q, 3, h->f->provider);
        db_bind_text(*q, 4, h->f->workflow_id);
    }
    if (h->source == SOURCE_WORKFLOW) db_bind_int(*q, 5, h->tenant_no);
    return ST_OK;
}

/* The runs of a slice: as a list of numbers, which the database takes as one parameter; and how many
 * and how low they go. */
struct slice {
    struct buf list;
    int64_t count, lowest;
    bool any; /* one of them at least is worth a closer look */
};

static void list_open(struct hunt *h, struct buf *b, size_t count) {
    buf_init(b, count * NUMBER_CHARS + 2);
    buf_put_char(b, db_is_postgres(h->l->db) ? '{' : '[');
}

static void list_add(struct buf *b, int64_t number) {
    if (b->len > 1) buf_put_char(b, ',');
    buf_put_int(b, number);
}

static void list_end(struct hunt *h, struct buf *b) {
    buf_put_char(b, db_is_postgres(h->l->db) ? '}' : ']');
}

static status take_slice(struct hunt *h, int64_t size, struct slice *slice, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    status st = ask_source(h, size, &q, err);
    if (st != ST_OK) return st;
    while ((st = db_step(q, &row, err)) == ST_OK && row) {
        if (h->source == SOURCE_ALL) {
            slice->count = db_int(q, 0);
            slice->lowest = db_int(q, 1);
            slice->any = slice->count > 0;
            continue;
        }
        slice->count++;
        slice->lowest = db_int(q, 0);
        if (db_int(q, 1) == 0) continue;
        slice->any = true;
        list_add(&slice->list, slice->lowest);
    }
    db_reset(q);
    return st;
}

/* ---- listing: what matches ---- */

/* clang-format off */
#define IS_IN_LIST "r.run_no {sqlite:IN (SELECT value FROM json_each($1))}{postgres:= ANY($1::text::bigint[])}"
#define FROM_LIST "state_run s {sqlite:CROSS }JOIN ledger_run r ON r.run_no = s.run_no WHERE " IS_IN_LIST
/* For PostgreSQL a range of each table by itself, in order: a plan for any parameters guesses that a range is short, and
 * would look up one table for each row of the other. */
#define FROM_RANGE                                                                                                    \
    "{sqlite:state_run s CROSS JOIN ledger_run r ON r.run_no = s.run_no WHERE s.run_no >= $1 AND s.run_no < $19}"     \
    "{postgres:(SELECT * FROM state_run WHERE run_no >= $1 AND run_no < $19 ORDER BY run_no DESC OFFSET 0) s"         \
    " JOIN (SELECT * FROM ledger_run WHERE run_no >= $1 AND run_no < $19 ORDER BY run_no DESC OFFSET 0) r"            \
    " ON r.run_no = s.run_no WHERE true}"
#define HAS(text) "{sqlite:" text " LIKE $10 ESCAPE '!'}{postgres:strpos(lower(" text "), $10) > 0}"
/* `from` says which runs, as r and s. What a filter leaves open is 0 or NULL; a table that it needs is looked
 * up only then, so that the walk over many runs stays cheap. The big ones are asked by scalar subqueries: PostgreSQL
 * would take an EXISTS as leave to read the whole table. */
#define MATCH_SQL(from)                                                                                               \
    "SELECT r.run_no FROM " from                                                                                      \
    " AND ({int:$2} = 0 OR ({sqlite:(1 << s.status)}{postgres:(1::bigint << s.status::int)} & $2) <> 0)"              \
    " AND ({int:$3} = 0 OR s.inconsistent <> 0)"                                                                      \
    " AND ({int:$4} = 0 OR r.tenant_no = $4)"                                                                         \
    " AND ({int:$5} = 0 OR EXISTS (SELECT 1 FROM ledger_context c WHERE c.context_no = r.context_no"                  \
    "  AND ({text:$6} IS NULL OR c.project_id = $6) AND ({text:$7} IS NULL OR c.environment_id = $7)"                 \
    "  AND ({text:$8} IS NULL OR c.plan_id = $8) AND ({text:$9} IS NULL OR c.plan_version = $9)))"                    \
    " AND ({text:$10} IS NULL OR " HAS("r.run_id")                                                                    \
    "  OR EXISTS (SELECT 1 FROM ledger_context c WHERE c.context_no = r.context_no AND " HAS("c.plan_id") "))"        \
    " AND ({text:$11} IS NULL OR r.correlation_id = $11)"                                                             \
    " AND (({text:$12} IS NULL AND {text:$13} IS NULL) OR (SELECT 1 FROM state_provider p"                            \
    "  WHERE p.run_no = r.run_no AND ({text:$12} IS NULL OR p.provider = $12)"                                        \
    "  AND ({text:$13} IS NULL OR p.workflow_id = $13) LIMIT 1) = 1)"                                                 \
    " AND r.opened_seq >= {int:$14} AND r.opened_seq < {int:$15}"                                                     \
    " AND ({int:$16} = 0 OR " TIME_AT("r.opened_seq") " >= $16)"                                                      \
    " AND ({int:$17} = 0 OR " TIME_AT("r.opened_seq") " < $17)"                                                       \
    " ORDER BY s.run_no DESC LIMIT $18"
/* clang-format on */

static bool any_context(const struct run_filter *f) {
    return f->project_id.ptr || f->environment_id.ptr || f->plan_id.ptr || f->plan_version.ptr;
}

static unsigned status_mask(unsigned statuses) {
    bool pending = (statuses & 1U << RUN_PENDING) != 0; /* as which a new run is shown */
    return pending ? statuses | 1U << RUN_NEW : statuses;
}

static void bind_filter(struct hunt *h, struct db_stmt *q) {
    const struct run_filter *f = h->f;
    bool by_time = h->tenant_no == 0; /* else by sequence number, which needs no look at events */
    db_bind_int(q, 2, status_mask(f->statuses));
    db_bind_int(q, 3, f->only_inconsistent);
    db_bind_int(q, 4, h->tenant_no);
    db_bind_int(q, 5, any_context(f));
    db_bind_text(q, 6, f->project_id);
    db_bind_text(q, 7, f->environment_id);
    db_bind_text(q, 8, f->plan_id);
    db_bind_text(q, 9, f->plan_version);
    db_bind_text(q, 10, h->needle);
    db_bind_text(q, 11, f->correlation ? str_n(h->correlation, UUID_TEXT_LEN) : STR_NONE);
    db_bind_text(q, 12, f->provider);
    db_bind_text(q, 13, f->workflow_id);
    db_bind_int(q, 14, h->first_seq);
    db_bind_int(q, 15, h->end_seq);
    db_bind_int(q, 16, by_time ? f->since_us : 0);
    db_bind_int(q, 17, by_time ? f->until_us : 0);
    db_bind_int(q, 18, (int64_t)(h->wanted - h->count));
}

/* Adds what the filter lets through of the runs of a slice, all of which are below h->before. */
static status match_slice(struct hunt *h, const struct slice *slice, struct error *err) {
    struct db_stmt *q = NULL;
    bool row = false;
    bool range = h->source == SOURCE_ALL;
    status st = range ? db_prepare(h->l->db, MATCH_SQL(FROM_RANGE), &q, err)
                      : db_prepare(h->l->db, MATCH_SQL(FROM_LIST), &q, err);
    if (st != ST_OK) return st;
    bind_filter(h, q);
    if (range) {
        db_bind_int(q, 1, slice->lowest);
        db_bind_int(q, 19, h->before);
    } else {
        db_bind_text(q, 1, buf_str(&slice->list));
    }
    while ((st = db_step(q, &row, err)) == ST_OK && row) {
        ASSERT(h->count < h->wanted);
        h->found[h->count++] = db_int(q, 0);
    }
    db_reset(q);
    return st;
}

/* Looks at the next slice. */
static status hunt_lot(struct hunt *h, int64_t size, struct error *err) {
    struct slice slice = {0};
    list_open(h, &slice.list, h->source == SOURCE_ALL ? 0 : (size_t)size);
    status st = take_slice(h, size, &slice, err);
    list_end(h, &slice.list);
    if (st == ST_OK && slice.list.full) st = ledger_no_memory(err);
    if (st == ST_OK && slice.any) st = match_slice(h, &slice, err);
    buf_release(&slice.list);
    if (st != ST_OK) return st;
    h->left -= slice.count;
    h->ended = slice.count < size;
    if (slice.count > 0) h->before = slice.lowest;
    return ST_OK;
}

static status hunt(struct hunt *h, struct error *err) {
    int64_t most = h->source == SOURCE_ALL ? SLICE_ALL_MAX : SLICE_LIST_MAX;
    status st = ST_OK;
    for (int64_t size = SLICE_FIRST; st == ST_OK && !h->ended && h->left > 0 && h->count < h->wanted;
         size *= SLICE_GROWS) {
        if (size > most) size = most;
        st = hunt_lot(h, size < h->left ? size : h->left, err);
    }
    return st;
}

/* ---- listing ---- */

/* ASCII case is ignored: SQLite's LIKE does, once its own signs are escaped; PostgreSQL compares in
 * lower case. */
static status make_needle(struct hunt *h, struct arena *arena, struct error *err) {
    str text = h->f->text;
    bool like = !db_is_postgres(h->l->db);
    char *made = arena_try_raw(arena, 2 * text.len + 2);
    size_t n = 0;
    if (!made) return ledger_no_memory(err);
    if (like) made[n++] = '%';
    for (size_t i = 0; i < text.len; i++) {
        char c = text.ptr[i];
        if (like && (c == '%' || c == '_' || c == '!')) made[n++] = '!';
        made[n++] = (char)(!like && c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    }
    if (like) made[n++] = '%';
    h->needle = str_n(made, n);
    return ST_OK;
}

/* Turns ids and times into numbers. *none: the filter names a tenant that is not there. */
static status hunt_prepare(struct hunt *h, struct arena *arena, bool *none, struct error *err) {
    const struct run_filter *f = h->f;
    int64_t newest = 0;
    status st = ST_OK;
    if (f->correlation) uuid_format(*f->correlation, h->correlation);
    if (f->text.ptr) st = make_needle(h, arena, err);
    if (st != ST_OK || !f->tenant_id.ptr) return st;
    st = tenant_number(h->l, f->tenant_id, &h->tenant_no, &newest, err);
    *none = st == ST_NOT_FOUND;
    if (*none) return ST_OK;
    if (st == ST_OK && f->since_us > 0)
        st = ledger_seq_at(h->l, f->tenant_id, f->since_us, &h->first_seq, err);
    if (st == ST_OK && f->until_us > 0)
        st = ledger_seq_at(h->l, f->tenant_id, f->until_us, &h->end_seq, err);
    return st;
}

/* Reads the rows of the page, whose numbers are known. */
static status read_runs(struct hunt *h, size_t count, struct arena *arena, struct run_info *list,
                        struct error *err) {
    struct buf numbers;
    struct db_stmt *q = NULL;
    bool row = false;
    size_t n = 0;
    list_open(h, &numbers, count);
    for (size_t i = 0; i < count; i++)
        list_add(&numbers, h->found[i]);
    list_end(h, &numbers);
    status st = numbers.full ? ledger_no_memory(err) : ST_OK;
    if (st == ST_OK)
        st = db_prepare(h->l->db, RUN_SELECT " WHERE " IS_IN_LIST " ORDER BY r.run_no DESC", &q,
                        err);
    if (st == ST_OK) db_bind_text(q, 1, buf_str(&numbers));
    while (st == ST_OK && n < count && (st = db_step(q, &row, err)) == ST_OK && row) {
        st = read_run_info(q, arena, &list[n], err);
        n++;
    }
    if (q) db_reset(q);
    buf_release(&numbers);
    if (st == ST_OK && n != count) /* runs are never removed */
        st = error_at(err, REASON_LEDGER_DAMAGED, "", "rows of runs are missing");
    return st;
}

status ledger_list_runs(struct ledger *l, const struct run_filter *f, size_t limit,
                        struct arena *arena, struct run_info **runs, size_t *count, int64_t *next,
                        struct error *err) {
    ASSERT(limit > 0);
    limit = page_limit(limit);
    struct hunt h = {.l = l,
                     .f = f,
                     .source = source_of(f),
                     .end_seq = INT64_MAX,
                     .before = f->before_run_no > 0 ? f->before_run_no : INT64_MAX,
                     .left = f->scan_max > 0 ? f->scan_max : INT64_MAX,
                     .wanted = limit + 1}; /* one more tells whether there is a next page */
    struct run_info *list = arena_try(arena, limit * sizeof(*list));
    h.found = arena_try_raw(arena, h.wanted * sizeof(*h.found));
    if (!list || !h.found) return ledger_no_memory(err);
    status st = hunt_prepare(&h, arena, &h.ended, err);
    if (st == ST_OK) st = hunt(&h, err);
    size_t n = h.count < limit ? h.count : limit;
    if (st == ST_OK && n > 0) st = read_runs(&h, n, arena, list, err);
    if (st != ST_OK) return st;
    int64_t after = h.ended ? 0 : h.before; /* all above was looked at */
    if (h.count > limit) after = h.found[limit - 1];
    *runs = list;
    *count = n;
    if (next) *next = after;
    return ST_OK;
}
