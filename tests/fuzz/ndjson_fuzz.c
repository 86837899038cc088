/* The importer's front: any stream of bytes, arriving in pieces of any size, cut into lines and
 * parsed as events.
 *
 * The first two bytes choose the sizes of the pieces and the longest line. Each piece is one packet
 * of a socket, so one read(2) gives exactly one piece. The lines are compared with those that a
 * plain scan of the whole input finds. */
#include <sys/socket.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/os.h"
#include "core/event.h"
#include "model/random.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PIECE_MAX = 600, SOCKET_BYTES = 4 * 1024 * 1024 };

/* Sends as many pieces as the socket holds, and gives the number of bytes sent. */
static size_t send_pieces(int fd, str bytes, uint64_t rng) {
    size_t sent = 0;
    uint32_t piece_max = 1 + random_below(&rng, PIECE_MAX);
    while (sent < bytes.len) {
        size_t n = 1 + random_below(&rng, piece_max);
        if (n > bytes.len - sent) n = bytes.len - sent;
        if (send(fd, bytes.ptr + sent, n, MSG_DONTWAIT) != (ssize_t)n) break;
        sent += n;
    }
    return sent;
}

/* The next line of *rest, the plain way. */
static str expected_line(str *rest, size_t *with_end) {
    const char *newline = memchr(rest->ptr, '\n', rest->len);
    str line = str_n(rest->ptr, newline ? (size_t)(newline - rest->ptr) : rest->len);
    *with_end = line.len + (newline ? 1 : 0);
    if (newline && str_ends(line, STR("\r"))) line.len--;
    *rest = str_from(*rest, *with_end);
    return line;
}

static void parse_line(str line, struct arena *arena) {
    struct event event;
    struct error err = {0};
    arena_reset(arena);
    status st = event_parse(line, arena, &event, &err);
    ASSERT(st == ST_OK || reason_name(err.reason));
}

static void check_lines(struct line_reader *r, str rest, size_t line_max, struct arena *arena) {
    int64_t number = 0;
    int64_t offset = 0;
    while (rest.len > 0) {
        struct error err = {0};
        str line = STR_NONE;
        bool eof = true;
        size_t with_end = 0;
        str want = expected_line(&rest, &with_end);
        status st = line_reader_next(r, &line, &eof, &err);
        offset += (int64_t)with_end;
        ASSERT(!eof && line_reader_number(r) == ++number);
        ASSERT(line_reader_offset(r) == offset);
        ASSERT(st == (want.len > line_max ? ST_LIMIT : ST_OK));
        ASSERT(st != ST_OK || str_eq(line, want));
        if (st == ST_OK) parse_line(line, arena);
    }
    struct error err = {0};
    str line;
    bool eof = false;
    status st = line_reader_next(r, &line, &eof, &err);
    ASSERT(st == ST_OK && eof);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    int pair[2];
    int room = SOCKET_BYTES;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0) abort();
    setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &room,
               sizeof(room)); /* less is fine: then less is sent */
    str bytes = str_n(data + 2, size - 2);
    size_t line_max = data[1] < 128 ? data[1] : LINE_BYTES_MAX;
    bytes.len = send_pieces(pair[0], bytes, data[0]);
    close(pair[0]);

    struct line_reader *r = NULL;
    struct arena arena;
    struct error err = {0};
    arena_init(&arena, 4096, (size_t)64 * 1024 * 1024);
    status st = line_reader_open(pair[1], line_max, &r, &err);
    ASSERT(st == ST_OK);
    check_lines(r, bytes, line_max, &arena);
    line_reader_close(r);
    arena_release(&arena);
    close(pair[1]);
    return 0;
}
