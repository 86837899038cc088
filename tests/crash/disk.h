/* tests/crash/disk.h: a disk in memory that can lose its power, and the SQLite VFS "powercut" on
 * it.
 *
 * The disk writes down every operation (create, write, truncate, sync, sync of the folder, delete)
 * and obeys at once, so SQLite sees a perfect disk. Afterwards `struct cut` walks over that log to
 * any point and makes images of what a power cut there could have left: everything synced is there;
 * of what was not synced, operations are lost, kept, torn at a sector, or carried out in another
 * order.
 *
 * Promises of the disk, the same as those SQLite's own VFS for Unix counts on (it syncs the folder
 * with the first sync of a new journal or log, and with xDelete if asked to; other names may be
 * lost): a sync makes a file's bytes durable but not its name, a sync of the folder makes names
 * durable, and a write harms no byte outside of its range.
 *
 * Locks and shared memory are those of one connection: none needed, and forgotten at the cut. All
 * in a header because each crash test is one source file. */
#pragma once

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/random.h"

enum { DISK_FILES_MAX = 64, DISK_NAME_MAX = 64, DISK_SECTOR = 512, DISK_SHM_MAX = 16 };

enum disk_op_kind {
    DISK_CREATE,
    DISK_WRITE,
    DISK_TRUNCATE,
    DISK_SYNC,
    DISK_SYNC_FOLDER,
    DISK_DELETE,
    DISK_MARK
};
struct disk_op {
    enum disk_op_kind kind;
    int file;      /* an inode: a name that is made again is another file */
    size_t offset; /* of a write; the new size of a truncate; the number of a mark */
    size_t len;
    const uint8_t *bytes; /* of a write; the log's own */
};

struct disk_file {
    char name[DISK_NAME_MAX];
    bool linked; /* its name is there */
    uint8_t *bytes;
    size_t size, cap;
};

struct disk {
    struct disk_file files[DISK_FILES_MAX];
    int file_count;
    struct disk_op *ops;
    size_t op_count, op_cap;
    bool records; /* whether operations are written down */
    bool lies;    /* a disk that answers syncs and does nothing */
    uint8_t *shm[DISK_SHM_MAX];
};

static struct disk *disk_mounted; /* what the VFS works on */

static void *disk_grow(void *old, size_t size) {
    void *ptr = realloc(old, size > 0 ? size : 1);
    if (!ptr) abort(); /* a test program without memory has nothing to say */
    return ptr;
}

/* ---- files ---- */

static void disk_resize(struct disk_file *f, size_t size) {
    if (size > f->cap) {
        f->cap = size * 2;
        f->bytes = disk_grow(f->bytes, f->cap);
    }
    if (size > f->size) memset(f->bytes + f->size, 0, size - f->size);
    f->size = size;
}

static void disk_put(struct disk_file *f, size_t offset, const uint8_t *bytes, size_t len) {
    if (offset + len > f->size) disk_resize(f, offset + len);
    if (len > 0) memcpy(f->bytes + offset, bytes, len);
}

static int disk_find(const struct disk *d, const char *name) {
    for (int i = 0; i < d->file_count; i++) {
        if (d->files[i].linked && strcmp(d->files[i].name, name) == 0) return i;
    }
    return -1;
}

static int disk_add(struct disk *d, const char *name) {
    if (d->file_count == DISK_FILES_MAX) abort();
    struct disk_file *f = &d->files[d->file_count];
    *f = (struct disk_file){.linked = true};
    snprintf(f->name, sizeof(f->name), "%s", name);
    return d->file_count++;
}

static void disk_log(struct disk *d, struct disk_op op) {
    if (!d->records) return;
    if (d->lies && (op.kind == DISK_SYNC || op.kind == DISK_SYNC_FOLDER)) return;
    if (d->op_count == d->op_cap) {
        d->op_cap = d->op_cap * 2 + 256;
        d->ops = disk_grow(d->ops, d->op_cap * sizeof(*d->ops));
    }
    if (op.kind == DISK_WRITE) op.bytes = memcpy(disk_grow(NULL, op.len), op.bytes, op.len);
    d->ops[d->op_count++] = op;
}

/* Notes that something was promised to somebody at this point. */
static void disk_mark(struct disk *d, size_t number) {
    disk_log(d, (struct disk_op){.kind = DISK_MARK, .offset = number});
}

static void disk_forget_shm(struct disk *d) {
    for (int i = 0; i < DISK_SHM_MAX; i++) {
        free(d->shm[i]);
        d->shm[i] = NULL;
    }
}

static void disk_release(struct disk *d) {
    for (int i = 0; i < d->file_count; i++)
        free(d->files[i].bytes);
    for (size_t i = 0; i < d->op_count; i++)
        free((void *)d->ops[i].bytes);
    free(d->ops);
    disk_forget_shm(d);
    *d = (struct disk){0};
}

/* ---- the power cut ---- */

enum cut_style {
    CUT_ALL_LOST,
    CUT_ALL_KEPT,
    CUT_PREFIX,
    CUT_SUBSET,
    CUT_SHUFFLED,
    CUT_SECTORS,
    CUT_GARBAGE,
    CUT_STYLE_COUNT
};
static const char *const cut_style_names[CUT_STYLE_COUNT] = {"all lost",
                                                             "all kept",
                                                             "a prefix, torn",
                                                             "some of them",
                                                             "some, in another order",
                                                             "some sectors",
                                                             "some sectors, some garbage"};

struct cut { /* a point in the log: operations before `at` have been issued */
    const struct disk *log;
    size_t at;
    struct disk_file
        durable[DISK_FILES_MAX]; /* as of each file's last sync; `linked` as of the folder's */
    size_t synced_at[DISK_FILES_MAX], folder_synced_at;
    size_t marks; /* number of the newest mark before the cut */
};

static void cut_do(struct disk_file *files, const struct disk_op *op) {
    struct disk_file *f = &files[op->file];
    if (op->kind == DISK_WRITE) disk_put(f, op->offset, op->bytes, op->len);
    if (op->kind == DISK_TRUNCATE && op->offset < f->size) disk_resize(f, op->offset);
    if (op->kind == DISK_CREATE) f->linked = true;
    if (op->kind == DISK_DELETE) f->linked = false;
}

static bool cut_changes_bytes(const struct disk_op *op) {
    return op->kind == DISK_WRITE || op->kind == DISK_TRUNCATE;
}
static bool cut_changes_names(const struct disk_op *op) {
    return op->kind == DISK_CREATE || op->kind == DISK_DELETE;
}

static void cut_sync(struct cut *c, int file, size_t until) {
    for (size_t i = c->synced_at[file]; i < until; i++) {
        if (c->log->ops[i].file == file && cut_changes_bytes(&c->log->ops[i]))
            cut_do(c->durable, &c->log->ops[i]);
    }
    c->synced_at[file] = until;
}

static void cut_sync_folder(struct cut *c, size_t until) {
    for (size_t i = c->folder_synced_at; i < until; i++) {
        if (cut_changes_names(&c->log->ops[i])) cut_do(c->durable, &c->log->ops[i]);
    }
    c->folder_synced_at = until;
}

static void cut_start(struct cut *c, const struct disk *log) { *c = (struct cut){.log = log}; }

static void cut_move_to(struct cut *c, size_t at) {
    for (; c->at < at; c->at++) {
        const struct disk_op *op = &c->log->ops[c->at];
        if (op->kind == DISK_SYNC) cut_sync(c, op->file, c->at);
        if (op->kind == DISK_SYNC_FOLDER) cut_sync_folder(c, c->at);
        if (op->kind == DISK_MARK) c->marks = op->offset;
    }
}

static void cut_release(struct cut *c) {
    for (int i = 0; i < DISK_FILES_MAX; i++)
        free(c->durable[i].bytes);
    *c = (struct cut){0};
}

/* Operations that no sync covers. Gives their number; *out is the caller's to free. */
static size_t cut_pending(const struct cut *c, const struct disk_op ***out) {
    const struct disk_op **list = disk_grow(NULL, (c->at + 1) * sizeof(const struct disk_op *));
    size_t n = 0;
    for (size_t i = 0; i < c->at; i++) {
        const struct disk_op *op = &c->log->ops[i];
        bool bytes = cut_changes_bytes(op) && i >= c->synced_at[op->file];
        if (bytes || (cut_changes_names(op) && i >= c->folder_synced_at)) list[n++] = op;
    }
    *out = list;
    return n;
}

static void cut_shuffle(const struct disk_op **list, size_t n, uint64_t *rng) {
    for (size_t i = n; i > 1; i--) {
        size_t k = random_below(rng, (uint32_t)i);
        const struct disk_op *swap = list[k];
        list[k] = list[i - 1];
        list[i - 1] = swap;
    }
}

/* Only the first sectors of a write. */
static void cut_do_torn(struct disk_file *files, const struct disk_op *op, uint64_t *rng) {
    if (op->kind != DISK_WRITE) return;
    size_t sectors = (op->offset + op->len) / DISK_SECTOR - op->offset / DISK_SECTOR + 1;
    size_t end = (op->offset / DISK_SECTOR + random_below(rng, (uint32_t)sectors)) * DISK_SECTOR;
    if (end > op->offset) disk_put(&files[op->file], op->offset, op->bytes, end - op->offset);
}

/* Each sector for itself: written, not written, or written with something else. */
static void cut_do_sectors(struct disk_file *files, const struct disk_op *op, uint32_t percent,
                           bool garbage, uint64_t *rng) {
    if (op->kind != DISK_WRITE) {
        if (random_chance(rng, percent)) cut_do(files, op);
        return;
    }
    for (size_t done = 0; done < op->len;) {
        size_t n = DISK_SECTOR - (op->offset + done) % DISK_SECTOR;
        uint8_t noise[DISK_SECTOR];
        if (n > op->len - done) n = op->len - done;
        if (random_chance(rng, percent)) {
            disk_put(&files[op->file], op->offset + done, op->bytes + done, n);
        } else if (garbage && random_chance(rng, 30)) {
            for (size_t i = 0; i < n; i++)
                noise[i] = (uint8_t)random_next(rng);
            disk_put(&files[op->file], op->offset + done, noise, n);
        }
        done += n;
    }
}

static void cut_apply(struct disk_file *files, const struct disk_op **list, size_t n,
                      enum cut_style style, uint64_t *rng) {
    uint32_t percent = 5 + random_below(rng, 91);
    size_t prefix = n > 0 ? random_below(rng, (uint32_t)n + 1) : 0;
    if (style == CUT_SHUFFLED) cut_shuffle(list, n, rng);
    for (size_t i = 0; i < n; i++) {
        bool kept = random_chance(rng, percent);
        switch (style) {
        case CUT_ALL_LOST:
        case CUT_STYLE_COUNT:
            break;
        case CUT_ALL_KEPT:
            cut_do(files, list[i]);
            break;
        case CUT_PREFIX:
            if (i < prefix) cut_do(files, list[i]);
            if (i == prefix) cut_do_torn(files, list[i], rng);
            break;
        case CUT_SUBSET:
        case CUT_SHUFFLED:
            if (kept && random_chance(rng, 85))
                cut_do(files, list[i]);
            else if (kept)
                cut_do_torn(files, list[i], rng);
            break;
        case CUT_SECTORS:
        case CUT_GARBAGE:
            cut_do_sectors(files, list[i], percent, style == CUT_GARBAGE, rng);
            break;
        }
    }
}

/* What the disk may hold when the power comes back. */
static void cut_image(const struct cut *c, enum cut_style style, uint64_t *rng, struct disk *out) {
    struct disk_file files[DISK_FILES_MAX] = {0};
    const struct disk_op **pending = NULL;
    for (int i = 0; i < c->log->file_count; i++) {
        files[i].linked = c->durable[i].linked;
        disk_put(&files[i], 0, c->durable[i].bytes ? c->durable[i].bytes : (const uint8_t *)"",
                 c->durable[i].size);
    }
    size_t n = cut_pending(c, &pending);
    cut_apply(files, pending, n, style, rng);
    free(pending);
    *out = (struct disk){0};
    for (int i = 0; i < c->log->file_count; i++) {
        const char *name = c->log->files[i].name;
        /* Of two files of one name the older was deleted, durably or not: a folder holds a name
         * once. */
        int old = files[i].linked ? disk_find(out, name) : -1;
        if (old >= 0) out->files[old].linked = false;
        if (!files[i].linked) {
            free(files[i].bytes);
            continue;
        }
        int at = disk_add(out, name);
        out->files[at].bytes = files[i].bytes;
        out->files[at].size = files[i].size;
        out->files[at].cap = files[i].cap;
    }
}

/* ---- the VFS ---- */

struct disk_handle {
    sqlite3_file base;
    int file;
    bool syncs_folder; /* with its first sync */
};

static struct disk_file *handle_file(sqlite3_file *h) {
    return &disk_mounted->files[((struct disk_handle *)h)->file];
}

static int disk_close(sqlite3_file *h) {
    UNUSED(h);
    return SQLITE_OK;
}

static int disk_read(sqlite3_file *h, void *out, int len, sqlite3_int64 offset) {
    const struct disk_file *f = handle_file(h);
    size_t at = (size_t)offset;
    size_t want = (size_t)len;
    size_t have = at < f->size ? f->size - at : 0;
    if (have > want) have = want;
    if (have > 0) memcpy(out, f->bytes + at, have);
    memset((char *)out + have, 0, want - have);
    return have == want ? SQLITE_OK : SQLITE_IOERR_SHORT_READ;
}

static int disk_write(sqlite3_file *h, const void *bytes, int len, sqlite3_int64 offset) {
    struct disk_op op = {.kind = DISK_WRITE,
                         .file = ((struct disk_handle *)h)->file,
                         .offset = (size_t)offset,
                         .len = (size_t)len,
                         .bytes = bytes}; /* copied by the log */
    disk_put(handle_file(h), op.offset, bytes, op.len);
    disk_log(disk_mounted, op);
    return SQLITE_OK;
}

static int disk_truncate(sqlite3_file *h, sqlite3_int64 size) {
    disk_resize(handle_file(h), (size_t)size);
    disk_log(disk_mounted, (struct disk_op){.kind = DISK_TRUNCATE,
                                            .file = ((struct disk_handle *)h)->file,
                                            .offset = (size_t)size});
    return SQLITE_OK;
}

static int disk_sync(sqlite3_file *h, int flags) {
    UNUSED(flags);
    struct disk_handle *handle = (struct disk_handle *)h;
    disk_log(disk_mounted, (struct disk_op){.kind = DISK_SYNC, .file = handle->file});
    if (handle->syncs_folder) disk_log(disk_mounted, (struct disk_op){.kind = DISK_SYNC_FOLDER});
    handle->syncs_folder = false;
    return SQLITE_OK;
}

static int disk_size(sqlite3_file *h, sqlite3_int64 *out) {
    *out = (sqlite3_int64)handle_file(h)->size;
    return SQLITE_OK;
}

static int disk_lock(sqlite3_file *h, int level) {
    UNUSED(h);
    UNUSED(level);
    return SQLITE_OK;
}
static int disk_reserved(sqlite3_file *h, int *out) {
    UNUSED(h);
    *out = 0;
    return SQLITE_OK;
}
static int disk_control(sqlite3_file *h, int op, void *arg) {
    UNUSED(h);
    UNUSED(op);
    UNUSED(arg);
    return SQLITE_NOTFOUND;
}
static int disk_sector_size(sqlite3_file *h) {
    UNUSED(h);
    return 4096; /* what SQLite's own VFS says; we tear at DISK_SECTOR */
}
static int disk_character(sqlite3_file *h) {
    UNUSED(h);
    return SQLITE_IOCAP_POWERSAFE_OVERWRITE;
}

static int disk_shm_map(sqlite3_file *h, int page, int size, int extend, void volatile **out) {
    UNUSED(h);
    if (page >= DISK_SHM_MAX) return SQLITE_NOMEM;
    uint8_t **shm = &disk_mounted->shm[page];
    if (!*shm && extend) *shm = memset(disk_grow(NULL, (size_t)size), 0, (size_t)size);
    *out = *shm;
    return SQLITE_OK;
}
static int disk_shm_lock(sqlite3_file *h, int offset, int n, int flags) {
    UNUSED(h);
    UNUSED(offset);
    UNUSED(n);
    UNUSED(flags);
    return SQLITE_OK;
}
static void disk_shm_barrier(sqlite3_file *h) { UNUSED(h); }
static int disk_shm_unmap(sqlite3_file *h, int remove_it) {
    UNUSED(h);
    UNUSED(remove_it);
    disk_forget_shm(disk_mounted); /* the last connection is gone */
    return SQLITE_OK;
}

static const sqlite3_io_methods disk_methods = {.iVersion = 2,
                                                .xClose = disk_close,
                                                .xRead = disk_read,
                                                .xWrite = disk_write,
                                                .xTruncate = disk_truncate,
                                                .xSync = disk_sync,
                                                .xFileSize = disk_size,
                                                .xLock = disk_lock,
                                                .xUnlock = disk_lock,
                                                .xCheckReservedLock = disk_reserved,
                                                .xFileControl = disk_control,
                                                .xSectorSize = disk_sector_size,
                                                .xDeviceCharacteristics = disk_character,
                                                .xShmMap = disk_shm_map,
                                                .xShmLock = disk_shm_lock,
                                                .xShmBarrier = disk_shm_barrier,
                                                .xShmUnmap = disk_shm_unmap};

static int disk_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *out, int flags,
                     int *out_flags) {
    UNUSED(vfs);
    struct disk_handle *h = (struct disk_handle *)out;
    h->base.pMethods = NULL;
    int file = name ? disk_find(disk_mounted, name) : -1;
    if (file < 0 && name && !(flags & SQLITE_OPEN_CREATE)) return SQLITE_CANTOPEN;
    if (file < 0) {
        file = disk_add(disk_mounted, name ? name : "");
        disk_log(disk_mounted, (struct disk_op){.kind = DISK_CREATE, .file = file});
    }
    bool journal = (flags & (SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_WAL)) != 0;
    *h = (struct disk_handle){.base = {&disk_methods},
                              .file = file,
                              .syncs_folder = journal && (flags & SQLITE_OPEN_CREATE)};
    if (out_flags) *out_flags = flags;
    return SQLITE_OK;
}

static int disk_delete(sqlite3_vfs *vfs, const char *name, int sync_folder) {
    UNUSED(vfs);
    int file = disk_find(disk_mounted, name);
    if (file < 0) return SQLITE_IOERR_DELETE_NOENT;
    disk_mounted->files[file].linked = false;
    disk_log(disk_mounted, (struct disk_op){.kind = DISK_DELETE, .file = file});
    if (sync_folder) disk_log(disk_mounted, (struct disk_op){.kind = DISK_SYNC_FOLDER});
    return SQLITE_OK;
}

static int disk_access(sqlite3_vfs *vfs, const char *name, int flags, int *out) {
    UNUSED(vfs);
    int file = disk_find(disk_mounted, name);
    /* As on Unix: an empty journal is as good as none. */
    *out = file >= 0 && (flags != SQLITE_ACCESS_EXISTS || disk_mounted->files[file].size > 0);
    return SQLITE_OK;
}

static int disk_full_path(sqlite3_vfs *vfs, const char *name, int size, char *out) {
    UNUSED(vfs);
    snprintf(out, (size_t)size, "%s", name);
    return SQLITE_OK;
}

/* Makes the VFS known; clocks and randomness are the default one's. */
static bool disk_register(void) {
    static sqlite3_vfs vfs;
    const sqlite3_vfs *base = sqlite3_vfs_find(NULL);
    if (!base) return false;
    vfs = *base;
    vfs.zName = "powercut";
    vfs.pNext = NULL;
    vfs.szOsFile = (int)sizeof(struct disk_handle);
    vfs.mxPathname = DISK_NAME_MAX;
    vfs.xOpen = disk_open;
    vfs.xDelete = disk_delete;
    vfs.xAccess = disk_access;
    vfs.xFullPathname = disk_full_path;
    return sqlite3_vfs_register(&vfs, 0) == SQLITE_OK;
}
