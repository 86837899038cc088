/* Backup: a copy of a SQLite ledger, verified before it gets its name. */
#include <stdio.h>
#include <unistd.h>

#include "base/os.h"
#include "ledger/handle.h"

static status verify_copy(str path, const atomic_bool *stop, struct error *err) {
    struct ledger *copy = NULL;
    struct arena arena;
    struct verify_report report = {0};
    arena_init(&arena, 4096, (size_t)64 * 1024 * 1024);
    status st = ledger_open_reader(path, &copy, err);
    if (st == ST_OK) ledger_stop_on(copy, stop);
    if (st == ST_OK) st = ledger_verify(copy, true, NULL, NULL, &arena, &report, err);
    if (st == ST_OK && report.damaged)
        st = error_at(err, REASON_LEDGER_DAMAGED, "", "the copy is damaged: %.300s", report.what);
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
        return error_at(err, REASON_FILE_EXISTS, "", "\"%.*s\" exists already", STR_ARG(path));
    }
    char part[4096];
    uint32_t random; /* two backups to one name must not share their halves */
    random_bytes(&random, sizeof(random));
    int n = snprintf(part, sizeof(part), "%.*s.part-%08x", STR_ARG(path), random);
    if (n < 0 || (size_t)n >= sizeof(part)) return error_set(err, ST_LIMIT, "the path is too long");
    status st = db_backup(l->db, str_c(part), err);
    if (st == ST_OK) st = verify_copy(str_c(part), l->stop, err);
    if (st == ST_OK && path_exists(path)) {
        st = error_at(err, REASON_FILE_EXISTS, "", "\"%.*s\" exists already", STR_ARG(path));
    }
    remove_part(part, false);
    if (st == ST_OK) st = file_rename_durable(str_c(part), path, err);
    if (st != ST_OK) remove_part(part, true);
    return st;
}
