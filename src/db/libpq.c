#include "db/libpq.h"

#include <dlfcn.h>
#include <pthread.h>

#include "db/db.h"

static struct libpq functions;
const struct libpq *const pq = &functions;
static const char *missing; /* what could not be found; NULL: all is there */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void *find(void *library, const char *name) {
    void *address = dlsym(library, name);
    if (!address) missing = name;
    return address;
}

static void load(void) {
    void *library = dlopen("libpq.so.5", RTLD_NOW | RTLD_LOCAL);
    missing = library ? NULL : "libpq.so.5";
    if (!library) return;
    void *address;
    /* (memcpy: ISO C converts no object pointer to a function.) */
#define X(name)                                                                                    \
    address = find(library, #name);                                                                \
    memcpy(&functions.name, &address, sizeof(address));
    LIBPQ_FUNCTIONS(X)
#undef X
}

status libpq_load(struct error *err) {
    pthread_once(&once, load);
    if (missing)
        return error_at(err, REASON_LIBPQ_MISSING, "",
                        "PostgreSQL needs libpq 14 or newer: could not find %s", missing);
    return ST_OK;
}

status db_libpq_version(int *version, struct error *err) {
    status st = libpq_load(err);
    if (st == ST_OK) *version = pq->PQlibVersion();
    return st;
}
