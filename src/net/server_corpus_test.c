/* The corpus of good, bad and hostile requests, tests/http/corpus.json, against the real server:
 * each case as a whole, byte by byte, and in random pieces, always with the same result.
 * (tests/e2e/http_corpus.sh asks Node for its opinion.) */
#include <yyjson.h>

#include "base/arena.h"
#include "net/http_parse.h"
#include "net/server_fixture_test.h"
#include "test.h"

static void put_raw(yyjson_val *raw, struct buf *out);

static void put_text(yyjson_val *text, struct buf *out) {
    const char *ptr = yyjson_get_str(text);
    size_t len = yyjson_get_len(text);
    for (size_t i = 0; i < len; i++) { /* U+0000 to U+00FF stand for bytes */
        unsigned char c = (unsigned char)ptr[i];
        if (c >= 0xc2) {
            CHECK(c <= 0xc3 && i + 1 < len);
            c = (unsigned char)(((c & 3) << 6) | ((unsigned char)ptr[++i] & 0x3f));
        }
        buf_put_char(out, (char)c);
    }
}

/* A string, or an array of strings and of [string, times]. */
static void put_raw(yyjson_val *raw, struct buf *out) {
    if (yyjson_is_str(raw)) {
        put_text(raw, out);
        return;
    }
    size_t i;
    size_t n;
    yyjson_val *part;
    yyjson_arr_foreach(raw, i, n, part) {
        if (yyjson_is_str(part)) {
            put_text(part, out);
        } else {
            for (int64_t k = yyjson_get_sint(yyjson_arr_get(part, 1)); k > 0; k--)
                put_text(yyjson_arr_get(part, 0), out);
        }
    }
}

static uint32_t random_next(uint32_t *seed) {
    *seed = *seed * 1664525U + 1013904223U;
    return *seed >> 16;
}

enum { WHOLE, BYTES, RANDOM, WAYS };

static void send_pieces(struct server_fixture *f, struct peer *c, str raw, int way,
                        uint32_t *seed) {
    while (raw.len > 0) {
        size_t n = way == WHOLE ? raw.len : way == BYTES ? 1 : 1 + random_next(seed) % 40;
        /* The long ones are long runs of one byte: there the first and last pieces matter. */
        if (way != WHOLE && raw.len > 2000) n = 1000;
        if (n > raw.len) n = raw.len;
        if (!peer_send(f, c, str_n(raw.ptr, n))) break; /* it was refused already */
        raw = str_from(raw, n);
    }
}

static void check_open(struct server_fixture *f, struct peer *c, const char *name) {
    struct answer a;
    CHECK(peer_send(f, c, STR("GET /probe HTTP/1.1\r\nHost: a\r\n\r\n")), "%s", name);
    CHECK(answer_next(f, c, false, 5000, &a), "%s: no answer to the probe", name);
    CHECK(a.code == 200 && str_eq(a.body, STR("/probe")), "%s: out of step", name);
}

static void run_case(struct server_fixture *f, yyjson_val *item, int way, uint32_t *seed) {
    const char *name = yyjson_get_str(yyjson_obj_get(item, "name"));
    yyjson_val *statuses = yyjson_obj_get(item, "status");
    struct buf raw;
    buf_init(&raw, 1 << 20);
    put_raw(yyjson_obj_get(item, "raw"), &raw);
    struct peer c;
    peer_open(f, &c);
    f->requests = 0;
    buf_clear(&f->body);
    send_pieces(f, &c, buf_str(&raw), way, seed);
    struct answer a;
    size_t i;
    size_t n;
    yyjson_val *want;
    bool is_head = str_starts(buf_str(&raw), STR("HEAD "));
    yyjson_arr_foreach(statuses, i, n, want) {
        CHECK(answer_next(f, &c, is_head, 5000, &a), "%s (way %d): answer %zu is missing", name,
              way, i);
        CHECK(a.code == yyjson_get_int(want), "%s (way %d): %d, not %d", name, way, a.code,
              yyjson_get_int(want));
        if (a.code >= 400) CHECK(answer_has(&a, "Connection: close\r\n"), "%s", name);
    }
    bool waiting = yyjson_get_bool(yyjson_obj_get(item, "waiting"));
    if (yyjson_get_bool(yyjson_obj_get(item, "closed"))) {
        CHECK(peer_ended(f, &c, 5000), "%s (way %d): still open", name, way);
        CHECK(!c.reset, "%s (way %d): reset", name, way);
    }
    server_fixture_turn(f);
    peer_poll(&c);
    CHECK(c.read == c.in.len, "%s (way %d): more than it should say: %.*s", name, way,
          (int)(c.in.len - c.read), c.in.ptr + c.read);
    CHECK(f->requests == yyjson_get_int(yyjson_obj_get(item, "requests")),
          "%s (way %d): %d requests", name, way, f->requests);
    yyjson_val *body = yyjson_obj_get(item, "body");
    if (body)
        CHECK(str_eq(buf_str(&f->body), str_c(yyjson_get_str(body))), "%s (way %d)", name, way);
    if (waiting) CHECK(!c.eof, "%s (way %d)", name, way);
    if (!waiting && !c.eof) check_open(f, &c, name);
    peer_end(&c);
    server_fixture_turn(f);
    buf_release(&raw);
}

TEST(http_server_corpus_in_any_pieces) {
    yyjson_doc *doc = yyjson_read_file("tests/http/corpus.json", 0, NULL, NULL);
    CHECK(doc != NULL);
    yyjson_val *cases = yyjson_doc_get_root(doc);
    CHECK(yyjson_arr_size(cases) >= 100);
    struct server_fixture *f = server_fixture_open(NULL);
    uint32_t seed = 42;
    for (int way = 0; way < WAYS; way++) {
        size_t i;
        size_t n;
        yyjson_val *item;
        yyjson_arr_foreach(cases, i, n, item) { run_case(f, item, way, &seed); }
    }
    struct http_stats stats;
    http_server_stats(f->server, &stats);
    CHECK(stats.exchanges == 0);
    CHECK(stats.refused[HTTP_BAD_REQUEST] > 0 && stats.refused[HTTP_BODY_TOO_LARGE] > 0);
    server_fixture_close(f);
    yyjson_doc_free(doc);
}

/* What the parser thinks of a message, as text. */
static void judge(str raw, struct buf *out) {
    struct http_options options = {0};
    http_options_fill(&options);
    size_t total = 0;
    struct http_parser p = {0};
    http_parser_start(&p, &options, &total);
    size_t used = http_parser_feed(&p, raw);
    buf_printf(out, "state %d", (int)p.state);
    if (p.state == HTTP_PARSE_BAD) buf_printf(out, " %d %s", (int)p.refusal, p.detail);
    if (p.state == HTTP_PARSE_DONE)
        buf_printf(out, " %.*s %.*s %zu %zu", STR_ARG(p.request.method), STR_ARG(p.request.target),
                   p.request.body.len, used);
    http_parser_release(&p);
    CHECK(total == 0);
}

/* Every case cut at every place, without sockets: the same verdict, down to its words. */
TEST(http_parser_verdict_does_not_depend_on_the_cut) {
    yyjson_doc *doc = yyjson_read_file("tests/http/corpus.json", 0, NULL, NULL);
    CHECK(doc != NULL);
    struct http_options options = {0};
    http_options_fill(&options);
    size_t i;
    size_t n;
    yyjson_val *item;
    yyjson_arr_foreach(yyjson_doc_get_root(doc), i, n, item) {
        const char *name = yyjson_get_str(yyjson_obj_get(item, "name"));
        struct buf raw;
        struct buf want;
        struct buf got;
        buf_init(&raw, 1 << 20);
        buf_init(&want, 10000);
        buf_init(&got, 10000);
        put_raw(yyjson_obj_get(item, "raw"), &raw);
        judge(buf_str(&raw), &want);
        size_t step = raw.len > 2000 ? raw.len / 50 : 1;
        for (size_t cut = 0; cut <= raw.len; cut += step) {
            size_t total = 0;
            struct http_parser p = {0};
            http_parser_start(&p, &options, &total);
            size_t used = http_parser_feed(&p, str_n(raw.ptr, cut));
            if (used == cut) used += http_parser_feed(&p, str_from(buf_str(&raw), cut));
            buf_clear(&got);
            buf_printf(&got, "state %d", (int)p.state);
            if (p.state == HTTP_PARSE_BAD) buf_printf(&got, " %d %s", (int)p.refusal, p.detail);
            if (p.state == HTTP_PARSE_DONE)
                buf_printf(&got, " %.*s %.*s %zu %zu", STR_ARG(p.request.method),
                           STR_ARG(p.request.target), p.request.body.len, used);
            CHECK(str_eq(buf_str(&want), buf_str(&got)), "%s at %zu: %.*s, not %.*s", name, cut,
                  STR_ARG(buf_str(&got)), STR_ARG(buf_str(&want)));
            http_parser_release(&p);
        }
        buf_release(&raw);
        buf_release(&want);
        buf_release(&got);
    }
    yyjson_doc_free(doc);
}
