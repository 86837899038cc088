/* base/os.c: files, folders, locks and lines. The only place that turns errno into a status. */
#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/time.h"
#include "base/uuid.h"

enum {
    READ_BYTES = 16 * 1024,      /* one read(2) of file_read() */
    LINE_BUFFER_MIN = 64 * 1024, /* one read(2) of a line_reader */
    LOCK_POLL_MS_MAX = 50,       /* flock(2) has no timeout, so we ask again this often */
};

/* What the caller can do about it: ask for something else, or the same again later. */
static status status_of(int code) {
    switch (code) {
    case ENOENT:
        return ST_NOT_FOUND;
    case EACCES:
    case EPERM:
    case EROFS:
    case EISDIR:
    case ENOTDIR:
    case EEXIST:
    case ELOOP:
    case EBADF:
    case EINVAL:
    case ENAMETOOLONG:
        return ST_INVALID;
    default:
        return ST_RETRY; /* no space, no memory, no descriptors, I/O error, busy */
    }
}

/* could not VERB "PATH": REASON */
static status fail(struct error *err, const char *verb, str path, int code) {
    char text[128];
    const char *why = strerror_r(code, text, sizeof text);
    return error_set(err, status_of(code), "could not %s \"%.*s\": %s", verb, STR_ARG(path), why);
}

struct path {
    char text[PATH_MAX];
};

static status path_make(str path, struct path *out, struct error *err) {
    if (path.len == 0) return error_set(err, ST_INVALID, "an empty path names no file");
    if (str_has(path, '\0')) return error_set(err, ST_INVALID, "a path holds a NUL byte");
    if (path.len >= sizeof out->text) {
        return error_set(err, ST_INVALID, "a path has %zu bytes, more than the %zu allowed",
                         path.len, sizeof out->text - 1);
    }
    memcpy(out->text, path.ptr, path.len);
    out->text[path.len] = '\0';
    return ST_OK;
}

/* The folder that holds `path`: "." if it names none. */
static str parent_of(str path) {
    while (path.len > 1 && path.ptr[path.len - 1] == '/')
        path.len--;
    while (path.len > 0 && path.ptr[path.len - 1] != '/')
        path.len--;
    while (path.len > 1 && path.ptr[path.len - 1] == '/')
        path.len--;
    return path.len == 0 ? STR(".") : path;
}

static int open_again(const char *path, int flags, mode_t mode) {
    int fd;
    do {
        fd = open(path, flags | O_CLOEXEC, mode);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

static ssize_t read_again(int fd, void *out, size_t n) {
    ssize_t got;
    do {
        got = read(fd, out, n);
    } while (got < 0 && errno == EINTR);
    return got;
}

/* ---- whole files ---- */

static status read_into(int fd, str path, struct buf *text, struct error *err) {
    char piece[READ_BYTES];
    for (;;) {
        ssize_t n = read_again(fd, piece, sizeof piece);
        if (n < 0) return fail(err, "read", path, errno);
        if (n == 0) return ST_OK;
        buf_put(text, str_n(piece, (size_t)n));
        if (!text->full) continue;
        if (text->len < text->max) {
            return error_set(err, ST_RETRY, "could not read \"%.*s\": out of memory",
                             STR_ARG(path));
        }
        return error_set(err, ST_LIMIT, "could not read \"%.*s\": it has more than %zu bytes",
                         STR_ARG(path), text->max);
    }
}

status file_read(str path, size_t bytes_max, struct arena *arena, str *out, struct error *err) {
    struct path name;
    status st = path_make(path, &name, err);
    if (st != ST_OK) return st;
    int fd = open_again(name.text, O_RDONLY, 0);
    if (fd < 0) return fail(err, "open", path, errno);
    struct buf text;
    buf_init(&text,
             bytes_max); /* not fstat(2): a pipe has no size, and a file may grow meanwhile */
    st = read_into(fd, path, &text, err);
    str bytes = text.len == 0 ? STR("") : buf_str(&text);
    if (st == ST_OK && !arena_try_str(arena, bytes, out)) {
        st = error_set(err, ST_RETRY, "could not read \"%.*s\": out of memory", STR_ARG(path));
    }
    buf_release(&text);
    close(fd);
    return st;
}

/* Makes the entries of a folder durable: files made in it, renamed into it. */
static status folder_sync(str path, struct error *err) {
    struct path name;
    status st = path_make(path, &name, err);
    if (st != ST_OK) return st;
    int fd = open_again(name.text, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0) return fail(err, "open folder", path, errno);
    if (fsync(fd) != 0) st = fail(err, "sync folder", path, errno);
    close(fd);
    return st;
}

/* A new file beside the one that it will replace. */
struct file {
    int fd;
    struct path path;
};

static void file_close(struct file *file) {
    if (file->fd < 0) return;
    close(file->fd);
    if (file->path.text[0] != '\0') unlink(file->path.text); /* it was not renamed */
}

static status file_create_beside(str path, struct file *out, struct error *err) {
    uint64_t random;
    random_bytes(&random, sizeof random);
    struct path target;
    status st = path_make(path, &target, err);
    if (st != ST_OK) return st;
    char suffix[32];
    int n = snprintf(suffix, sizeof suffix, ".new-%016llx", (unsigned long long)random);
    if (path.len + (size_t)n >= sizeof out->path.text)
        return fail(err, "write", path, ENAMETOOLONG);
    out->path = target;
    memcpy(out->path.text + path.len, suffix, (size_t)n + 1);
    out->fd = open_again(out->path.text, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (out->fd < 0) return fail(err, "create a file beside", path, errno);
    struct stat old;
    if (stat(target.text, &old) == 0 && fchmod(out->fd, old.st_mode & 0777) != 0) {
        return fail(err, "set the mode of a new", path, errno);
    }
    return ST_OK;
}

static status file_write_all(struct file *file, str path, str bytes, struct error *err) {
    while (bytes.len > 0) {
        ssize_t n = write(file->fd, bytes.ptr, bytes.len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail(err, "write", path, errno);
        bytes = str_from(bytes, (size_t)n);
    }
    return ST_OK;
}

static status file_rename(struct file *file, str path, struct error *err) {
    struct path target;
    status st = path_make(path, &target, err);
    if (st != ST_OK) return st;
    if (rename(file->path.text, target.text) != 0) return fail(err, "replace", path, errno);
    file->path.text[0] = '\0';
    return folder_sync(parent_of(path), err);
}

status file_replace(str path, str bytes, struct error *err) {
    struct file tmp = {.fd = -1}; /* nothing yet, and closing nothing is fine */
    status st = file_create_beside(path, &tmp, err);
    if (st != ST_OK) goto out;
    st = file_write_all(&tmp, path, bytes, err);
    if (st != ST_OK) goto out;
    if (fsync(tmp.fd) != 0) {
        st = fail(err, "sync", path, errno);
        goto out;
    }
    st = file_rename(&tmp, path, err);
out:
    file_close(&tmp);
    return st;
}

status file_rename_durable(str from, str to, struct error *err) {
    struct path source;
    struct path target;
    status st = path_make(from, &source, err);
    if (st == ST_OK) st = path_make(to, &target, err);
    if (st != ST_OK) return st;
    if (rename(source.text, target.text) != 0) return fail(err, "rename", from, errno);
    return folder_sync(parent_of(to), err);
}

/* ---- folders ---- */

static bool is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Makes one folder whose parent exists; durable when it returns. */
static status folder_make_one(str path, struct error *err) {
    struct path name;
    status st = path_make(path, &name, err);
    if (st != ST_OK) return st;
    if (mkdir(name.text, 0700) == 0) return folder_sync(parent_of(path), err);
    int code = errno;
    if (is_folder(name.text)) return ST_OK; /* whatever mkdir(2) said: EEXIST, or EROFS on "/" */
    return fail(err, "make folder", path, code == EEXIST ? ENOTDIR : code);
}

status dir_make(str path, struct error *err) {
    struct path whole;
    status st = path_make(path, &whole, err);
    if (st != ST_OK) return st;
    if (is_folder(whole.text)) return ST_OK;
    for (size_t i = 1; i < path.len; i++) {
        if (path.ptr[i] != '/' || path.ptr[i - 1] == '/') continue;
        st = folder_make_one(str_n(path.ptr, i), err);
        if (st != ST_OK) return st;
    }
    return folder_make_one(path, err);
}

bool path_exists(str path) {
    struct path name;
    struct error err;
    struct stat info;
    return path_make(path, &name, &err) == ST_OK && stat(name.text, &info) == 0;
}

/* ---- locks ---- */

static status lock_held(int fd, str path, struct error *err) {
    char text[32];
    ssize_t n = pread(fd, text, sizeof text, 0);
    str rest = n > 0 ? str_n(text, (size_t)n) : STR_NONE;
    int64_t pid;
    if (!str_take_int(&rest, &pid)) { /* it has the lock, but has not written its number yet */
        return error_set(err, ST_RETRY, "\"%.*s\" is locked by another process", STR_ARG(path));
    }
    return error_set(err, ST_RETRY, "\"%.*s\" is locked by process %lld", STR_ARG(path),
                     (long long)pid);
}

static status lock_wait(int fd, str path, int64_t wait_ms, struct error *err) {
    int64_t start_ns = clock_mono_ns();
    for (int64_t pause_ms = 1;; pause_ms *= 2) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) return ST_OK;
        if (errno != EWOULDBLOCK && errno != EINTR) return fail(err, "lock", path, errno);
        int64_t left_ms = wait_ms - (clock_mono_ns() - start_ns) / 1000000;
        if (left_ms <= 0) return lock_held(fd, path, err);
        if (pause_ms > LOCK_POLL_MS_MAX) pause_ms = LOCK_POLL_MS_MAX;
        if (pause_ms > left_ms) pause_ms = left_ms;
        struct timespec pause = {.tv_nsec = (long)pause_ms * 1000000};
        nanosleep(&pause, NULL); /* a signal only makes us ask sooner */
    }
}

static status lock_sign(int fd, str path, struct error *err) {
    char text[32];
    int n = snprintf(text, sizeof text, "%lld\n", (long long)getpid());
    if (ftruncate(fd, 0) != 0) return fail(err, "write", path, errno);
    ssize_t written = pwrite(fd, text, (size_t)n, 0);
    if (written != n) return fail(err, "write", path, written < 0 ? errno : ENOSPC);
    return ST_OK;
}

status lock_take(str path, int64_t wait_ms, int *fd, struct error *err) {
    struct path name;
    status st = path_make(path, &name, err);
    if (st != ST_OK) return st;
    int file = open_again(name.text, O_RDWR | O_CREAT, 0600);
    if (file < 0) return fail(err, "open", path, errno);
    st = lock_wait(file, path, wait_ms, err);
    if (st == ST_OK) st = lock_sign(file, path, err);
    if (st != ST_OK) {
        close(file);
        return st;
    }
    *fd = file;
    return ST_OK;
}

void lock_drop(int fd) {
    if (fd >= 0) close(fd); /* the file stays: removing it would let two processes lock two files */
}

/* ---- lines ---- */

/* bytes[start .. end) is read and not yet consumed; bytes[start .. scanned) has no newline. A call
 * that fails to read or to get memory changes nothing that the next call would miss. */
struct line_reader {
    int fd;
    size_t line_max, cap_max;
    char *bytes;
    size_t cap, start, scanned, end;
    bool at_eof, skipping; /* skipping: inside a line that is too long, its head already dropped */
    int64_t number, offset;
};

status line_reader_open(int fd, size_t line_max, struct line_reader **out, struct error *err) {
    ASSERT(line_max < SIZE_MAX / 4);
    struct line_reader *r = mem_alloc(sizeof *r);
    char *bytes = mem_alloc(LINE_BUFFER_MIN);
    if (r == NULL || bytes == NULL) {
        mem_free(bytes);
        mem_free(r);
        return error_set(err, ST_RETRY, "could not read lines: out of memory");
    }
    size_t longest = line_max + 2; /* with its "\r\n" */
    *r = (struct line_reader){.fd = fd,
                              .line_max = line_max,
                              .cap_max = longest < LINE_BUFFER_MIN ? LINE_BUFFER_MIN : longest,
                              .bytes = bytes,
                              .cap = LINE_BUFFER_MIN};
    *out = r;
    return ST_OK;
}

void line_reader_close(struct line_reader *r) {
    if (r == NULL) return;
    mem_free(r->bytes);
    mem_free(r);
}

/* Makes room behind `end`: moves the rest to the front, or grows. */
static bool reader_make_room(struct line_reader *r) {
    if (r->start > 0) {
        memmove(r->bytes, r->bytes + r->start, r->end - r->start);
        r->scanned -= r->start;
        r->end -= r->start;
        r->start = 0;
    }
    if (r->end < r->cap) return true;
    ASSERT(r->cap < r->cap_max); /* a longer line is being skipped */
    size_t cap = r->cap * 2 > r->cap_max ? r->cap_max : r->cap * 2;
    char *grown = mem_grow(r->bytes, r->cap, cap);
    if (grown == NULL) return false;
    r->bytes = grown;
    r->cap = cap;
    return true;
}

static status reader_fill(struct line_reader *r, struct error *err) {
    if (!reader_make_room(r))
        return error_set(err, ST_RETRY, "could not read a line: out of memory");
    ssize_t n = read_again(r->fd, r->bytes + r->end, r->cap - r->end);
    if (n < 0) {
        char text[128];
        return error_set(err, ST_RETRY, "could not read a line: %s",
                         strerror_r(errno, text, sizeof text));
    }
    r->at_eof = n == 0;
    r->end += (size_t)n;
    return ST_OK;
}

/* Consumes `len` bytes. */
static void reader_advance(struct line_reader *r, size_t len) {
    r->start += len;
    r->offset += (int64_t)len;
    r->scanned = r->start;
}

/* Ends the current line, `with_end` bytes long with its end, `len` without. */
static status reader_finish(struct line_reader *r, size_t len, size_t with_end, str *line,
                            struct error *err) {
    str text = str_n(r->bytes + r->start, len);
    bool too_long = r->skipping || len > r->line_max;
    reader_advance(r, with_end);
    r->skipping = false;
    r->number++;
    if (too_long) {
        return error_set(err, ST_LIMIT, "line %lld has more than %zu bytes", (long long)r->number,
                         r->line_max);
    }
    *line = text;
    return ST_OK;
}

status line_reader_next(struct line_reader *r, str *line, bool *eof, struct error *err) {
    for (;;) {
        size_t len = r->end - r->start;
        const char *newline = memchr(r->bytes + r->scanned, '\n', r->end - r->scanned);
        if (newline != NULL) {
            size_t text_len = (size_t)(newline - (r->bytes + r->start));
            size_t with_end = text_len + 1;
            if (text_len > 0 && newline[-1] == '\r') text_len--;
            *eof = false;
            return reader_finish(r, text_len, with_end, line, err);
        }
        r->scanned = r->end;
        if (len > r->line_max + 1) { /* one more could be the '\r' of a line that just fits */
            r->skipping = true;
        }
        if (r->at_eof) {
            *eof = len == 0 && !r->skipping;
            if (!*eof) return reader_finish(r, len, len, line, err);
            *line = STR_NONE;
            return ST_OK;
        }
        if (r->skipping) reader_advance(r, len);
        status st = reader_fill(r, err);
        if (st != ST_OK) return st;
    }
}

bool line_reader_ready(struct line_reader *r) {
    struct pollfd input = {.fd = r->fd, .events = POLLIN};
    struct error later; /* a failed read shows again in line_reader_next() */
    for (;;) {
        if (r->at_eof || memchr(r->bytes + r->scanned, '\n', r->end - r->scanned) != NULL) return true;
        r->scanned = r->end;
        size_t len = r->end - r->start;
        if (len > r->line_max + 1) r->skipping = true;
        if (r->skipping) reader_advance(r, len);
        if (poll(&input, 1, 0) == 0) return false;
        if (reader_fill(r, &later) != ST_OK) return true;
    }
}

int64_t line_reader_number(const struct line_reader *r) { return r->number; }

int64_t line_reader_offset(const struct line_reader *r) { return r->offset; }
