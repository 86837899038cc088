/* adapters/local/output.c: from a pipe to the log file and the step's output. */
#include "adapters/local/output.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/os.h"

/* ---- log files ---- */

/* Makes <workspace>/.cairn/logs, of which the workspace is there. */
static bool log_folder_make(const char *log_path) {
    str folder = str_c(log_path);
    while (folder.len > 0 && folder.ptr[folder.len - 1] != '/')
        folder.len--;
    struct error err;
    return dir_make(str_n(folder.ptr, folder.len - 1), &err) == ST_OK;
}

/* The file is opened for each piece: a descriptor for every stream of every process would be too
 * many, and most steps write once. O_NONBLOCK, should a step put a pipe in its place. */
static int log_open(const char *path) {
    int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    int fd = open(path, flags, 0600);
    if (fd >= 0 || errno != ENOENT) return fd;
    return log_folder_make(path) ? open(path, flags, 0600) : -1;
}

static bool log_put(int fd, str bytes) {
    while (bytes.len > 0) {
        ssize_t n = write(fd, bytes.ptr, bytes.len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        bytes = str_from(bytes, (size_t)n);
    }
    return true;
}

static bool log_append(struct capture *c, int fd, str bytes) {
    struct stat st;
    if (!c->log_opened) { /* after a crash the attempt runs again, and its log goes on */
        if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
            errno = EINVAL;
            return false;
        }
        c->log_len = (uint64_t)st.st_size;
        c->log_opened = true;
    }
    uint64_t room = c->log_len < c->log_max ? c->log_max - c->log_len : 0;
    str fits = str_n(bytes.ptr, bytes.len < room ? bytes.len : (size_t)room);
    if (!log_put(fd, fits)) return false;
    c->log_len += fits.len;
    if (fits.len == bytes.len) return true;
    c->log_over = true;
    char line[96];
    struct buf b;
    buf_init_fixed(&b, line, sizeof line);
    buf_printf(&b, "\n[cairn: the log is cut here, at %llu bytes]\n",
               (unsigned long long)c->log_max);
    return log_put(fd, buf_str(&b));
}

/* A log that cannot be written is no reason to fail the step. */
static void log_write_piece(struct capture *c, str bytes) {
    if (c->log_over || !c->log_path || bytes.len == 0) return;
    int fd = log_open(c->log_path);
    bool ok = fd >= 0 && log_append(c, fd, bytes);
    if (!ok) {
        c->log_over = true;
        LOG(LOG_WARN, "could not write the log of a step", LOG_S("file", str_c(c->log_path)),
            LOG_S("error", str_c(strerrordesc_np(errno))));
    }
    if (fd >= 0) close(fd);
}

/* ---- captures ---- */

bool capture_init(struct capture *c, const struct mask *mask, const char *log_path,
                  uint64_t log_max, size_t keep_max, bool keeps_end) {
    *c = (struct capture){.log_path = log_path, .log_max = log_max, .keeps_end = keeps_end};
    /* the end is kept twice as long, so that it need not be moved for every byte */
    buf_init(&c->kept, keeps_end ? keep_max * 2 : keep_max);
    return mask_stream_init(&c->stream, mask);
}

static void keep_end(struct capture *c, str bytes) {
    size_t want = c->kept.max / 2;
    if (bytes.len > want) {
        c->dropped = true;
        bytes = str_from(bytes, bytes.len - want);
        buf_clear(&c->kept);
    }
    if (c->kept.len + bytes.len > c->kept.max) {
        c->dropped = true;
        memmove(c->kept.ptr, c->kept.ptr + c->kept.len - want, want);
        c->kept.len = want;
    }
    buf_put(&c->kept, bytes);
}

static void capture_masked(struct capture *c, str bytes) {
    if (bytes.len == 0) return;
    c->bytes += bytes.len;
    log_write_piece(c, bytes);
    if (c->keeps_end) {
        keep_end(c, bytes);
    } else {
        buf_put(&c->kept, bytes);
        c->dropped = c->kept.full;
    }
}

void capture_feed(struct capture *c, str bytes, struct buf *room) {
    if (c->stream.mask->count == 0) {
        capture_masked(c, bytes);
        return;
    }
    buf_clear(room);
    mask_feed(&c->stream, bytes, room);
    capture_masked(c, buf_str(room));
}

void capture_end(struct capture *c, struct buf *room) {
    buf_clear(room);
    mask_end(&c->stream, room);
    capture_masked(c, buf_str(room));
    size_t want = c->kept.max / 2;
    if (!c->keeps_end || c->kept.len <= want) return;
    c->dropped = true;
    memmove(c->kept.ptr, c->kept.ptr + c->kept.len - want, want);
    c->kept.len = want;
}

void capture_release(struct capture *c) { buf_release(&c->kept); }
