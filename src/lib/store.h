/* lib/store.h: a store behind cairn.h: a ledger thread for appending, and one reading connection
 * that is made when it is first needed. */
#pragma once

#include <pthread.h>

#include "base/error.h"
#include "cairn.h"
#include "ledger/ledger.h"
#include "ledger/writer.h"

#define CALL_BYTES_MAX                                                                             \
    ((size_t)4 * 1024 * 1024 * 1024) /* a page or a batch of the largest events */

struct cairn_store {
    struct writer *writer; /* NULL: read-only */
    pthread_mutex_t lock;  /* guards reader */
    struct ledger *reader; /* NULL: not connected */
    char url[1024];
};

/* Appends and waits. ST_OK at once for an empty request. */
MUST_CHECK status store_append(cairn_store *s, struct append_request *request, struct error *err);
/* Takes the lock and, on ST_OK, gives the reader. store_reader_done() must follow in any case, with
 * the status of what was done: a connection that failed is made anew by the next call. */
MUST_CHECK status store_reader_take(cairn_store *s, struct ledger **out, struct error *err);
void store_reader_done(cairn_store *s, status st);
