/* Any bytes as HTTP requests, one after the other as on a connection: cut into pieces by the input
 * itself, and again as a whole. Both ways the same requests come out, and the same refusal ends it.
 */
#include "base/arena.h"
#include "net/http_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MESSAGES_MAX = 20 };

struct outcome {
    uint64_t hash[MESSAGES_MAX];
    int count, state, refusal;
};

static uint64_t hash_request(const struct http_request *r) {
    uint64_t hash = str_hash(r->method, 1) ^ str_hash(r->target, 2) ^ str_hash(r->body, 3);
    for (size_t i = 0; i < r->header_count; i++)
        hash = hash * 31 + (str_hash(r->headers[i].name, 4) ^ str_hash(r->headers[i].value, 5));
    ASSERT(r->version == 10 || r->version == 11);
    ASSERT(r->version == 10 || r->host.ptr);
    ASSERT(r->path.len > 0 && (r->path.ptr[0] == '/' || str_eq(r->path, STR("*"))));
    return hash;
}

/* In pieces of 1 to `piece_max` bytes; 0: as a whole. */
static void run(str bytes, size_t piece_max, struct outcome *out) {
    struct http_options options = {.body_max = 5000, .target_max = 200, .header_bytes_max = 2000};
    http_options_fill(&options);
    size_t total = 0;
    struct http_parser p = {0};
    memset(out, 0, sizeof(*out));
    http_parser_start(&p, &options, &total);
    for (size_t at = 0; at < bytes.len;) {
        size_t n = piece_max ? 1 + (unsigned char)bytes.ptr[at] % piece_max : bytes.len - at;
        if (n > bytes.len - at) n = bytes.len - at;
        size_t used = http_parser_feed(&p, str_n(bytes.ptr + at, n));
        ASSERT(used <= n);
        at += used;
        if (p.state == HTTP_PARSE_BAD) break;
        if (p.state != HTTP_PARSE_DONE) {
            ASSERT(used == n);
            continue;
        }
        if (out->count < MESSAGES_MAX) out->hash[out->count++] = hash_request(&p.request);
        http_parser_trim(&p);
        http_parser_start(&p, &options, &total);
    }
    out->state = (int)p.state;
    out->refusal = p.state == HTTP_PARSE_BAD ? (int)p.refusal : -1;
    http_parser_release(&p);
    ASSERT(total == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    struct outcome whole;
    struct outcome pieces;
    str bytes = str_n(data, size);
    run(bytes, 0, &whole);
    static const size_t piece_max[] = {1, 7, 100};
    for (size_t i = 0; i < COUNT_OF(piece_max); i++) {
        run(bytes, piece_max[i], &pieces);
        ASSERT(pieces.count == whole.count);
        ASSERT(pieces.state == whole.state && pieces.refusal == whole.refusal);
        for (int k = 0; k < whole.count; k++)
            ASSERT(pieces.hash[k] == whole.hash[k]);
    }
    return 0;
}
