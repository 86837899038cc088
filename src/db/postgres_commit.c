/* db/postgres_commit.c: transactions of the PostgreSQL driver, and a commit that overlaps with the next one. */
#include <poll.h>

#include "db/postgres_impl.h"

/* ---- transactions ---- */

static status exec_one(struct pg_db *db, const char *sql, struct error *err) {
    PGresult *result = pq->PQexec(db->link->conn, sql);
    status st = pg_is_good(result) || pq->PQresultStatus(result) == PGRES_EMPTY_QUERY
                    ? ST_OK
                    : pg_failed(db, "run", sql, result, err);
    pq->PQclear(result);
    return st;
}

status pg_exec(struct db *base, const char *sql, struct error *err) {
    struct pg_db *db = (struct pg_db *)base;
    status st = pg_settle(db, NULL, err);
    if (st == ST_OK && db->link->begin_due) {
        db->link->begin_due = false;
        st = exec_one(db, pg_begin_sql(db), err);
    }
    return st == ST_OK ? exec_one(db, sql, err) : st;
}

void pg_rollback(struct db *base) {
    struct pg_db *db = (struct pg_db *)base;
    struct error ignored = {0};
    (void)!pg_settle(db, NULL, &ignored); /* whatever came of it is undone now */
    db->link->begin_due = false;
    if (pq->PQtransactionStatus(db->link->conn) == PQTRANS_IDLE) return;
    /* If it fails the connection is lost, and the transaction with it. */
    pq->PQclear(pq->PQexec(db->link->conn, "ROLLBACK"));
}

/* COMMIT of a failed transaction is answered with ROLLBACK and no error: only the tag tells. */
static status check_commit(const struct pg_db *db, PGresult *result, struct error *err) {
    status st = ST_OK;
    if (!pg_is_good(result))
        st = pg_failed(db, "run", "COMMIT", result, err);
    else if (strcmp(pq->PQcmdStatus(result), "COMMIT") != 0)
        st = error_set(err, ST_RETRY, "could not run \"COMMIT\" on \"%s\": the server rolled back",
                       db->label);
    pq->PQclear(result);
    return st;
}

status pg_commit(struct db *base, struct error *err) {
    struct pg_db *db = (struct pg_db *)base;
    if (db->link->begin_due) { /* nothing was done */
        db->link->begin_due = false;
        return ST_OK;
    }
    status st = pg_settle(db, NULL, err);
    if (st == ST_OK) st = check_commit(db, pq->PQexec(db->link->conn, "COMMIT"), err);
    if (st != ST_OK) pg_rollback(base);
    return st;
}

/* ---- a commit that overlaps with the next transaction ----
 *
 * db_commit_send() asks for all answers that are due and leaves: a transaction that begins before
 * the outcome is known uses the other connection. When the answers are here and good, COMMIT
 * follows; that is looked after whenever rows are pushed, without waiting, and at the latest by
 * db_commit_wait(). */

/* Whether an answer can be read without waiting; if the connection is lost, reading tells so. */
static bool is_here(const struct pg_link *link) {
    return !pq->PQconsumeInput(link->conn) || !pq->PQisBusy(link->conn);
}

static status answers_then_commit(struct pg_db *db, struct error *err) {
    status st = pg_settle(db, NULL, err);
    if (st == ST_OK && !pq->PQsendQuery(db->link->conn, "COMMIT"))
        st = pg_give_up(db, "run", "COMMIT", err);
    return st;
}

static status read_commit(struct pg_db *db, struct error *err) {
    PGresult *result = pq->PQgetResult(db->link->conn);
    status st = check_commit(db, result, err);
    if (result) pq->PQclear(pq->PQgetResult(db->link->conn)); /* the NULL behind it */
    return st;
}

/* Takes the transaction that ends as far as it goes, or to its end. */
static void go_on_ending(struct pg_db *db, struct pg_link *link, bool wait) {
    struct pg_link *open = db->link;
    db->link = link;
    if (link->ending == PG_ENDS_ANSWERS && (wait || link->nsent == 0 || is_here(link))) {
        link->outcome = answers_then_commit(db, &link->why);
        link->ending = link->outcome == ST_OK ? PG_ENDS_COMMIT : PG_ENDED;
        if (link->outcome != ST_OK) pg_rollback(&db->base);
    }
    if (link->ending == PG_ENDS_COMMIT && (wait || is_here(link))) {
        link->outcome = read_commit(db, &link->why);
        link->ending = PG_ENDED;
        if (link->outcome != ST_OK) pg_rollback(&db->base);
    }
    db->link = open;
}

/* The one whose transaction ends, or NULL. */
static struct pg_link *ending_link(struct pg_db *db) {
    for (int i = 0; i < PG_LINKS; i++)
        if (db->links[i].ending != PG_NOT_ENDING) return &db->links[i];
    return NULL;
}

/* Goes over to the other connection, which is opened when it is needed. That takes its time: the
 * commit under way does not wait for it. */
static status use_other(struct pg_db *db, struct error *err) {
    struct pg_link *ending = db->link;
    struct pg_link *other = &db->links[ending == db->links];
    if (pq->PQstatus(other->conn) != CONNECTION_OK) go_on_ending(db, ending, true);
    db->link = other;
    status st = pq->PQstatus(other->conn) == CONNECTION_OK ? ST_OK : pg_open_link(db, err);
    if (st != ST_OK) db->link = ending;
    return st;
}

status pg_begin(struct db *base, bool write, struct error *err) {
    struct pg_db *db = (struct pg_db *)base;
    if (db->link->ending != PG_NOT_ENDING) {
        status st = use_other(db, err);
        if (st != ST_OK) return st;
    }
    if (pq->PQstatus(db->link->conn) != CONNECTION_OK)
        return error_set(err, ST_RETRY, "could not run \"BEGIN\" on \"%s\": the connection is lost",
                         db->label);
    ASSERT(db->link->nsent == 0);
    ASSERT(!db->link->copy);
    db->link->begin_due = true;
    db->link->begin_write = write;
    return ST_OK;
}

void pg_help_ending(struct pg_db *db) {
    struct pg_link *link = ending_link(db);
    if (link && link != db->link) go_on_ending(db, link, false);
}

void pg_wait_helping(struct pg_db *db) {
    struct pg_link *link = ending_link(db);
    if (!link || link == db->link) return;
    while (link->ending == PG_ENDS_ANSWERS && pq->PQisBusy(db->link->conn)) {
        struct pollfd fds[] = {{.fd = pq->PQsocket(db->link->conn), .events = POLLIN},
                               {.fd = pq->PQsocket(link->conn), .events = POLLIN}};
        (void)poll(fds, COUNT_OF(fds), -1);
        if (!pq->PQconsumeInput(db->link->conn)) return; /* reading will tell */
        go_on_ending(db, link, false);
    }
}

status pg_commit_send(struct db *base, struct error *err) {
    struct pg_db *db = (struct pg_db *)base;
    struct pg_link *link = db->link;
    status st = pg_copy_settle(db, err);
    if (st == ST_OK && link->nsent > 0) {
        link->synced = pq->PQpipelineSync(link->conn);
        if (!link->synced) st = pg_give_up(db, "talk to", db->label, err);
    }
    if (st != ST_OK) {
        pg_rollback(base);
        return st;
    }
    link->why = (struct error){0};
    link->outcome = ST_OK;
    link->ending = link->begin_due ? PG_ENDED : PG_ENDS_ANSWERS; /* ended: nothing was done */
    link->begin_due = false;
    go_on_ending(db, link, false);
    return ST_OK;
}

status pg_commit_wait(struct db *base, struct error *err) {
    struct pg_db *db = (struct pg_db *)base;
    struct pg_link *link = ending_link(db);
    ASSERT(link);
    go_on_ending(db, link, true);
    ASSERT(link->ending == PG_ENDED);
    link->ending = PG_NOT_ENDING;
    if (!base->in_transaction) db->link = link; /* it has just been heard from */
    if (link->outcome != ST_OK) *err = link->why;
    return link->outcome;
}
