/* db/libpq.h: libpq, loaded when the first PostgreSQL address is opened. For db/ only.
 *
 * Linked in the ordinary way it would bring Kerberos, LDAP and a second TLS library into every
 * start of the program, also of those that never see a server: some 5 ms of the 10 that `cairn
 * version` may take. */
#pragma once

#include <libpq-fe.h>

#include "base/error.h"

/* clang-format off */
#define LIBPQ_FUNCTIONS(X)                                                                         \
    X(PQclear) X(PQcmdStatus) X(PQcmdTuples) X(PQconnectdbParams) X(PQconninfoFree)                \
    X(PQconninfoParse) X(PQenterPipelineMode) X(PQerrorMessage) X(PQexec) X(PQexecParams)          \
    X(PQexitPipelineMode) X(PQfinish) X(PQfreemem) X(PQftype) X(PQgetResult) X(PQgetisnull)        \
    X(PQgetlength) X(PQgetvalue) X(PQlibVersion) X(PQnfields) X(PQntuples) X(PQpipelineSync)       \
    X(PQputCopyData) X(PQputCopyEnd) X(PQresultErrorField) X(PQresultStatus) X(PQsendPrepare)      \
    X(PQsendQuery) X(PQsendQueryParams) X(PQsendQueryPrepared) X(PQsetNoticeProcessor) X(PQstatus)                \
    X(PQtransactionStatus) X(PQcancel) X(PQconsumeInput) X(PQfreeCancel) X(PQgetCancel)             \
    X(PQisBusy) X(PQsocket)

struct libpq {
#define X(name) __typeof__(&name) name; /* NOLINT(bugprone-macro-parentheses): a declaration */
    LIBPQ_FUNCTIONS(X)
#undef X
};
/* clang-format on */
extern const struct libpq *const pq; /* filled by libpq_load(), and then never changed */
/* Loads it, once; safe from any thread. ST_INVALID when it is not installed or too old. */
MUST_CHECK status libpq_load(struct error *err);
