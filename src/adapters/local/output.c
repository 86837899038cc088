#include "adapters/local/output.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
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

/* ---- text ---- */

static bool is_middle(char c) { return ((unsigned char)c & 0xc0) == 0x80; }

/* Bytes of the character that starts with `c`, going by its first byte. */
static size_t char_len(char first) {
    unsigned char c = (unsigned char)first;
    return c < 0xc0 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

str text_uncut(str text, bool start, bool end) {
    for (int i = 0; start && i < 3 && text.len > 0 && is_middle(text.ptr[0]); i++)
        text = str_from(text, 1);
    for (size_t back = 1; end && back <= 3 && back <= text.len; back++) {
        char c = text.ptr[text.len - back];
        if (is_middle(c)) continue;
        if (char_len(c) > back) text.len -= back;
        break;
    }
    return text;
}

/* How many bytes at the start of a text stand in JSON as they are. */
static size_t plain_len(str text) {
    size_t n = 0;
    while (n < text.len && text.ptr[n] >= ' ' && text.ptr[n] < 0x7f && text.ptr[n] != '"' &&
           text.ptr[n] != '\\')
        n++;
    return n;
}

/* Appends what fits, with the closing quote still to come; true: all of it. */
static bool put_plain(struct buf *out, str text, size_t end_max) {
    size_t room = end_max - 1 > out->len ? end_max - 1 - out->len : 0;
    buf_put(out, str_n(text.ptr, text.len < room ? text.len : room));
    return text.len <= room;
}

/* One character, or what stands for it: whole or not at all. */
static bool put_char_json(struct buf *out, str one, size_t end_max) {
    struct buf b; /* the longest is \u001f */
    char room[16];
    buf_init_fixed(&b, room, sizeof room);
    buf_put_json_str(&b, one);
    str inner = str_n(room + 1, b.len - 2);
    return out->len + inner.len + 1 <= end_max && put_plain(out, inner, end_max);
}

bool text_put_json(struct buf *out, str text, size_t bytes_max) {
    size_t end_max = out->len + bytes_max;
    buf_put_char(out, '"');
    bool fits = true;
    while (fits && text.len > 0) {
        size_t n = plain_len(text);
        if (n > 0) {
            fits = put_plain(out, str_n(text.ptr, n), end_max);
            text = str_from(text, n);
            continue;
        }
        n = char_len(text.ptr[0]);
        str one = str_n(text.ptr, n < text.len ? n : text.len);
        if (one.ptr[0] == '\0' || !str_utf8(one, &n)) {
            one = STR("\xef\xbf\xbd");
            n = 1;
        }
        fits = put_char_json(out, one, end_max);
        text = str_from(text, n < text.len ? n : text.len);
    }
    buf_put_char(out, '"');
    return fits;
}

/* ---- JSON ---- */

static bool put_masked(yyjson_val *val, const struct mask *mask, struct buf *out) {
    struct buf text;
    buf_init(&text, yyjson_get_len(val)); /* stars are never longer than what they stand for */
    bool ok = mask_text(mask, str_n(yyjson_get_str(val), yyjson_get_len(val)), &text);
    buf_put_json_str(out, buf_str(&text));
    ok = ok && !text.full && !out->full;
    buf_release(&text);
    return ok;
}

/* As deep as json_parse() let it be. NOLINTNEXTLINE(misc-no-recursion) */
bool json_write_masked(yyjson_val *val, const struct mask *mask, struct buf *out) {
    if (mask->count == 0) return json_write(val, out);
    if (yyjson_is_str(val)) return put_masked(val, mask, out);
    if (!yyjson_is_ctn(val)) return json_write(val, out);
    bool object = yyjson_is_obj(val);
    buf_put_char(out, object ? '{' : '[');
    bool ok = true;
    size_t i;
    size_t n;
    yyjson_val *key;
    yyjson_val *item;
    if (object) {
        yyjson_obj_foreach(val, i, n, key, item) {
            if (i > 0) buf_put_char(out, ',');
            ok = ok && put_masked(key, mask, out);
            buf_put_char(out, ':');
            ok = ok && json_write_masked(item, mask, out);
        }
    } else {
        yyjson_arr_foreach(val, i, n, item) {
            if (i > 0) buf_put_char(out, ',');
            ok = ok && json_write_masked(item, mask, out);
        }
    }
    buf_put_char(out, object ? '}' : ']');
    return ok && !out->full;
}
