/* net/http_parse.h: bytes to one request, without sockets. For net/ only.
 *
 * The head is collected line by line and judged as the bytes come (line ends, control bytes,
 * limits), so that the verdict does not depend on how the bytes were cut into pieces. The complete
 * head goes through llhttp in one call, and then through our own rules where they are narrower than
 * llhttp's. The body goes through llhttp as it comes. A parser takes one message and is then used
 * up: nothing of one request can leak into the next. */
#pragma once

#include <llhttp.h>

#include "net/server.h"

enum {
    HTTP_METHOD_MAX = 32,           /* longer than any */
    HTTP_CHUNK_EXTENSION_MAX = 256, /* of all chunks together; nobody needs them */
    HTTP_TRAILER_BYTES_MAX = 8192,  /* of one message; read and dropped */
    HTTP_CHUNK_FRAMING_MAX = 32,    /* size line and line ends of a chunk, without extension */
    HTTP_HEAD_KEPT = 4096,          /* memory for heads up to this is kept for the next request */
};

enum http_parse_state {
    HTTP_PARSE_BLANK, /* nothing of the request yet but, maybe, one empty line */
    HTTP_PARSE_HEAD,
    HTTP_PARSE_BODY,
    HTTP_PARSE_DONE,
    HTTP_PARSE_BAD, /* see refusal and detail */
};

struct http_parser {
    llhttp_t llhttp;
    const struct http_options *options;
    size_t *body_total; /* the server's account of memory for bodies */
    enum http_parse_state state;
    enum http_refusal refusal;
    const char *detail; /* static storage */

    char *head;
    size_t head_len, head_cap;
    size_t line_start;     /* where the current line begins in the head */
    size_t first_line_len; /* the request line with its end */
    size_t lines;          /* complete lines so far, the request line included */
    size_t spaces;         /* blanks seen in the request line */
    size_t target_len;
    size_t blank_len; /* bytes of the empty line before the request */
    bool after_cr;

    struct http_header *headers;
    size_t header_count, headers_cap;
    bool expects_continue; /* and no byte of the body was seen yet */
    bool in_trailers;

    char *body;
    size_t body_len, body_cap;
    uint64_t raw_len; /* bytes of the body as sent, with the chunks' framing */
    uint64_t chunks;
    size_t extension_len, trailer_len;

    struct http_request request;
};

/* `options` has no zeros left (http_options_fill()). Memory of an earlier message is used again. */
void http_parser_start(struct http_parser *p, const struct http_options *options,
                       size_t *body_total);
void http_parser_release(struct http_parser *p); /* all memory */
void http_parser_trim(struct http_parser *p);    /* the body, and what is large */
/* Takes bytes up to the end of the message; returns how many. Check `state` then. */
size_t http_parser_feed(struct http_parser *p, str bytes);
bool http_parser_begun(const struct http_parser *p); /* something of the request itself was seen */

void http_options_fill(struct http_options *options);
int http_refusal_status(enum http_refusal refusal);
const char *http_refusal_code(enum http_refusal refusal);
