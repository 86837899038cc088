/* base/log.c: a line is built on the stack, so that logging works when memory is out, and goes out
 * in one write(2), so that lines of several threads and processes do not mix. A value that is too
 * long is cut; fields that do not fit are left out and the line says so; what is written is always
 * a whole line and, in the JSON form, always JSON. */
#include "base/log.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/time.h"

enum {
    LINE_MAX_BYTES = 16 * 1024,
    LINE_END_BYTES = 32, /* kept free for TRUNCATED and the end of the line */
    VALUE_MAX_BYTES =
        2048, /* of one message or value, before escaping, which may make it six times as long */
};
static_assert(6 * VALUE_MAX_BYTES + LINE_END_BYTES + 256 <= LINE_MAX_BYTES, "any message fits");

/* The settings. Set once by the program's start; atomic because any thread may log meanwhile. */
static atomic_int log_fd = STDERR_FILENO;
static atomic_bool log_json = false;
static atomic_int log_at_least = LOG_INFO;

void log_setup(int fd, bool json, enum log_level at_least) {
    atomic_store(&log_fd, fd);
    atomic_store(&log_json, json);
    atomic_store(&log_at_least, (int)at_least);
}

static str cut(str s) {
    if (s.len <= VALUE_MAX_BYTES) return s;
    s.len = VALUE_MAX_BYTES;
    for (int i = 0; i < 3 && ((unsigned char)s.ptr[s.len] & 0xC0) == 0x80; i++)
        s.len--;
    return s; /* not inside a character, which goes on for three bytes at most */
}

/* In the text form a value is bare if a reader can still tell where it ends, else a JSON string. */
static bool is_bare(str s, bool blanks_too) {
    size_t bad;
    if (!str_utf8(s, &bad)) return false;
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        if (c < 0x20 || c == 0x7F) return false;
        if (!blanks_too && (c == ' ' || c == '"' || c == '=' || c == '\\')) return false;
    }
    return blanks_too || s.len > 0;
}

static void put_field(struct buf *line, const struct log_field *f, bool json) {
    if (json) {
        buf_put_char(line, ',');
        buf_put_json_str(line, str_c(f->name));
        buf_put_char(line, ':');
    } else {
        buf_put_char(line, ' ');
        buf_put_c(line, f->name);
        buf_put_char(line, '=');
    }
    if (f->is_number) {
        buf_put_int(line, f->number);
    } else if (!json && is_bare(f->text, false)) {
        buf_put(line, cut(f->text));
    } else {
        buf_put_json_str(line, cut(f->text));
    }
}

static void put_head(struct buf *line, enum log_level level, str msg, bool json) {
    static const char *const name[] = {"debug", "info", "warn", "error"};
    char now[TIME_TEXT_MAX];
    str time = str_n(now, time_format_us(clock_wall_us(), now));
    if (json) {
        buf_put_c(line, "{\"time\":");
        buf_put_json_str(line, time);
        buf_put_c(line, ",\"level\":");
        buf_put_json_str(line, str_c(name[level]));
        buf_put_c(line, ",\"msg\":");
    } else {
        buf_put(line, time);
        buf_put_char(line, ' ');
        buf_put_c(line, name[level]);
        buf_put_char(line, ' ');
    }
    if (!json && is_bare(msg, true)) {
        buf_put(line, msg);
    } else {
        buf_put_json_str(line, msg);
    }
}

static void write_all(int fd, str line) {
    while (line.len > 0) {
        ssize_t n = write(fd, line.ptr, line.len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return; /* there is nowhere to report that the log cannot be written */
        line = str_from(line, (size_t)n);
    }
}

void log_write(enum log_level level, const char *msg, const struct log_field *fields, size_t n) {
    ASSERT(level < LOG_OFF);
    if ((int)level < atomic_load(&log_at_least)) return;
    bool json = atomic_load(&log_json);
    char mem[LINE_MAX_BYTES];
    struct buf line;
    buf_init_fixed(&line, mem, sizeof mem);
    line.max -= LINE_END_BYTES;
    line.cap = line.max;
    put_head(&line, level, cut(str_c(msg)), json);
    ASSERT(!line.full);
    bool truncated = false;
    for (size_t i = 0; i < n && !truncated; i++) {
        size_t before = line.len;
        put_field(&line, &fields[i], json);
        truncated = line.full;
        if (truncated) line.len = before;
    }
    line.full = false;
    line.max = line.cap = sizeof mem;
    if (truncated) buf_put_c(&line, json ? ",\"truncated\":true" : " truncated=true");
    buf_put_c(&line, json ? "}\n" : "\n");
    ASSERT(!line.full);
    int saved = errno; /* a caller may log between a failed call and looking at errno */
    write_all(atomic_load(&log_fd), buf_str(&line));
    errno = saved;
}
