/* net/server.h: a strict, bounded HTTP/1.1 server on a libuv loop. Knows no workflow.
 *
 * The handler gets whole requests (body complete, within its bound) and answers each exactly once,
 * at once or later: with http_respond(), or with http_stream_begin(), any number of
 * http_stream_write() and http_stream_end(). On one connection the next request is looked at only
 * when the last one was answered, so answers come in order and a handler never sees two requests of
 * one connection at once.
 *
 * Whatever a stranger can use up has a bound in struct http_options. What is not plainly right is
 * refused with 400 (or 408, 413, 414, 417, 431, 505) and the connection ends: bytes after a request
 * that we did not understand are never taken for another one. Upgrades are ignored, HTTP/1.0 gets
 * one answer and the end of the connection.
 *
 * Threads: everything here belongs to the loop's thread, and no function waits. */
#pragma once

#include <uv.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/str.h"

struct http_server;
struct http_exchange; /* one request and the right to answer it */

struct http_header {
    str name, value;
};

enum { HTTP_REQUEST_ID_LEN = 24 };

struct http_request {
    str method; /* "GET"; as sent, upper case */
    str target; /* as sent: "/v1/runs?status=open"; or "*" with OPTIONS */
    str path;   /* the target up to '?', not decoded: it begins with '/' (or is "*") */
    str query;  /* what follows '?'; STR_NONE without one */
    str body;   /* empty when there is none */
    str host;   /* the Host header; STR_NONE only with HTTP/1.0 */
    str remote; /* the client's IP address, or "unix" */
    str id;     /* HTTP_REQUEST_ID_LEN characters, different for each request of each server */
    const struct http_header
        *headers; /* in the order sent, names as sent; values without blanks around them */
    size_t header_count;
    int version;     /* 10 or 11 */
    bool keep_alive; /* the client would like to go on */
    bool has_body;   /* it had Content-Length or Transfer-Encoding, if only for an empty one */
    bool tls;
};

/* `request` and all its strings live until the exchange is answered (http_respond() or
 * http_stream_begin()), also if the client goes away before. */
typedef void (*http_handler)(void *context, struct http_exchange *exchange,
                             const struct http_request *request);

/* Why a request or a connection was refused; also the index of http_stats.refused. */
enum http_refusal {
    HTTP_BAD_REQUEST,          /* 400 */
    HTTP_TIMEOUT_HEAD,         /* 408: the head was not complete in time */
    HTTP_TIMEOUT_BODY,         /* 408 */
    HTTP_BODY_TOO_LARGE,       /* 413 */
    HTTP_TARGET_TOO_LONG,      /* 414 */
    HTTP_BAD_EXPECTATION,      /* 417 */
    HTTP_HEAD_TOO_LARGE,       /* 431: bytes or number of headers, trailers */
    HTTP_NO_MEMORY,            /* 503: all bodies together, or the machine is empty */
    HTTP_BAD_VERSION,          /* 505 */
    HTTP_TOO_MANY_CONNECTIONS, /* 503 and the end, before anything was read */
    HTTP_BAD_TLS,              /* no answer: the handshake failed or took too long */
    HTTP_REFUSAL_COUNT,
};

struct http_stats {
    uint64_t connections_total, requests_total, bytes_in_total, bytes_out_total;
    uint64_t refused[HTTP_REFUSAL_COUNT];
    uint64_t idle_closed_total;     /* kept alive, but nothing came any more */
    uint64_t stalled_total;         /* the reader took nothing for write_stall_ms */
    uint64_t slow_readers_total;    /* more than unsent_max of a stream was waiting */
    uint64_t headers_dropped_total; /* of answers: they would have broken the framing */
    size_t connections, exchanges;  /* now; exchanges: with the handler */
    size_t body_bytes;              /* memory held for bodies, now */
};

/* 0 stands for the default, which is named here. */
struct http_options {
    size_t header_bytes_max; /* 32 KiB: the header lines together, blanks and line ends included */
    size_t headers_max;      /* 100 */
    size_t target_max;       /* 8 KiB */
    size_t body_max;         /* 8 MiB */
    size_t body_total_max;   /* 256 MiB: memory for the bodies of all requests together */
    size_t connections_max;  /* 20,000 */
    size_t unsent_max; /* 1 MiB of a stream that the client has not taken yet, then it is ended */
    int64_t requests_max; /* of one connection; unlimited */
    /* Absolute times, whatever trickles in: */
    int64_t
        head_ms; /* 10 s from the first byte of a request to the end of its head (and for TLS) */
    int64_t body_ms;        /* 30 s from there to its last byte */
    int64_t idle_ms;        /* 75 s without a request */
    int64_t write_stall_ms; /* 30 s in which the client takes nothing of what waits for it */
    int64_t linger_ms; /* 2 s for the client to take the last answer before the connection ends */
    /* Writes the body of an answer that the server gives by itself; NULL: a small problem document.
     * The content type is application/problem+json. `code` is stable ("HTTP_BAD_REQUEST"). */
    void (*problem)(void *context, int status, const char *code, const char *detail,
                    struct buf *body);
};

/* The server keeps `context` for the handler and for options->problem. NULL options: all defaults.
 */
MUST_CHECK status http_server_open(uv_loop_t *loop, const struct http_options *options,
                                   http_handler handler, void *context, struct http_server **out,
                                   struct error *err);
/* Listens; may be called several times. `tls` needs http_tls_load() first. Port 0 takes any free
 * one. *bound (may be NULL) is the port. `host` is an IP address, or "localhost" for 127.0.0.1. */
MUST_CHECK status http_listen_tcp(struct http_server *server, str host, int port, bool tls,
                                  int *bound, struct error *err);
/* Replaces a socket that nobody listens on any more; the file gets `mode` before anybody can
 * connect, and is removed when the server stops listening. */
MUST_CHECK status http_listen_unix(struct http_server *server, str path, unsigned mode,
                                   struct error *err);
/* A listening stream socket from outside (systemd), TCP or Unix. The server owns `fd` after ST_OK.
 */
MUST_CHECK status http_listen_fd(struct http_server *server, int fd, bool tls, struct error *err);
/* Loads certificate chain and key (PEM); again: for new connections, those that are there keep
 * theirs. On failure what was loaded before stays. */
MUST_CHECK status http_tls_load(struct http_server *server, str certificate_file, str key_file,
                                struct error *err);
void http_server_stats(const struct http_server *server, struct http_stats *out);

/* Stops listening, ends idle connections, answers what is under way with "Connection: close", and
 * calls `done` from the loop when no connection is left, at the latest after deadline_ms, when the
 * rest is cut off. The owner ends its own streams and long polls: the server cannot know where they
 * may stop. */
void http_server_drain(struct http_server *server, int64_t deadline_ms, void (*done)(void *context),
                       void *context);
/* Cuts everything off. `closed` (may be NULL) is called from the loop when no handle of ours is
 * left in it. The memory goes when every exchange was answered, too: answering is still allowed,
 * and nobody hears it. NULL is fine. */
void http_server_close(struct http_server *server, void (*closed)(void *context), void *context);

/* --- Answering
 * ------------------------------------------------------------------------------------ */

/* Answers (`code` is 200 or more) and gives the exchange up. Borrows everything for the call.
 * Content-Length, Date and Connection are added and must not be given; a header with a byte that
 * would break the framing is dropped. HEAD sends no body, nor do 204, 304. */
void http_respond(struct http_exchange *exchange, int code, const struct http_header *headers,
                  size_t header_count, str body);
/* Begins an answer whose length is not known yet (chunked; HTTP/1.0: until the connection ends). */
void http_stream_begin(struct http_exchange *exchange, int code, const struct http_header *headers,
                       size_t header_count);
/* Sends `bytes` as soon as the client takes them. false: the client is gone, or was just ended
 * because more than unsent_max waited; nothing is sent any more, but the exchange still wants its
 * http_stream_end(). */
bool http_stream_write(struct http_exchange *exchange, str bytes);
/* Ends the answer and gives the exchange up. */
void http_stream_end(struct http_exchange *exchange);
/* Ends the connection in the middle of a stream, so that the client sees that the answer is not
 * complete. */
void http_stream_abort(struct http_exchange *exchange);
/* Bytes that the client has not taken yet: a writer with much to say waits for http_on_writable().
 */
size_t http_stream_unsent(const struct http_exchange *exchange);

/* `gone` is called once, from the loop and never from inside a call of ours, if the client ends its
 * side or the connection breaks before the exchange is given up. It may answer there; it must still
 * answer some time. */
void http_on_gone(struct http_exchange *exchange,
                  void (*gone)(void *context, struct http_exchange *exchange), void *context);
/* `writable` is called from the loop each time that all of a stream has been taken by the client's
 * machine. */
void http_on_writable(struct http_exchange *exchange,
                      void (*writable)(void *context, struct http_exchange *exchange),
                      void *context);

/* --- Small tools (http_text.c)
 * -------------------------------------------------------------------- */

/* The value of the first header of that name, in any case; STR_NONE if there is none. */
str http_header(const struct http_request *request, str name);
/* Takes the next name=value off *query, both as sent. false at the end. */
bool http_query_next(str *query, str *name, str *value);
/* Appends `text` with %XX decoded (and '+' as a blank if `form`). false when an escape is
 * malformed. */
bool http_unescape(str text, bool form, struct buf *out);
bool http_name_eq(str a, str b);        /* without regard to ASCII case */
const char *http_status_text(int code); /* "Not Found"; "Unknown" */
