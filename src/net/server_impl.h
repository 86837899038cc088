/* net/server_impl.h: what the files of the HTTP server share. For net/server.c, net/http_*.c only.
 *
 * A connection is small (about half a KiB): bytes are read into one buffer of the server, parsed
 * there, and only what is unfinished is kept, in the exchange under way. Memory for exchanges is
 * taken when the first byte of a request comes and goes back to a small stock of the server when it
 * was answered.
 *
 * Each connection is in exactly one list, named by what it waits for. All connections in a list
 * wait equally long, so each list is in the order of its deadlines, and the one timer of the server
 * looks at the heads only. */
#pragma once

#include <openssl/types.h>
#include <uv.h>

#include "net/http_parse.h"
#include "net/server.h"

enum {
    HTTP_READ_BYTES = 64 * 1024, /* one read; the buffer is shared by all connections */
    HTTP_BACKLOG_MAX =
        64 *
        1024, /* pipelined bytes kept while a request is being answered, then we stop reading */
    HTTP_PIPELINE_UNSENT_MAX =
        64 * 1024,             /* the next request waits until fewer bytes of answers wait */
    HTTP_EXCHANGES_KEPT = 256, /* in stock */
    HTTP_ANSWER_HEAD_MAX = 256 * 1024,       /* status line and headers of an answer */
    HTTP_PROBLEM_MAX = 4096,                 /* body of an answer that the server gives by itself */
    HTTP_UNSENT_TOTAL_MAX = 256 * 1024 * 1024, /* answers waiting for their readers, together */
    HTTP_LINGER_BYTES_MAX = 16 * 1024 * 1024, /* thrown away before a connection ends */
    HTTP_SWEEP_MS = 500,
    HTTP_STALL_LOOKS = 4, /* a client that took nothing in as many looks in a row is ended */
    HTTP_REMOTE_MAX = 48, /* an IPv6 address with zone */
    HTTP_LISTEN_BACKLOG = 1024,
    HTTP_LISTENERS_MAX = 16,
};

/* What a connection waits for. */
enum http_wait {
    WAIT_TLS,     /* the handshake */
    WAIT_IDLE,    /* a request */
    WAIT_HEAD,    /* the rest of a head */
    WAIT_BODY,    /* the rest of a body */
    WAIT_HANDLER, /* the handler's answer: no deadline of ours */
    WAIT_WRITE,   /* the client, to take what was sent */
    WAIT_LINGER,  /* the client, to end its side after we ended ours */
    WAIT_COUNT,
};

struct http_connection {
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } uv; /* first: a handle of ours is its connection */
    struct http_server *server;
    struct http_connection *next, *prev;
    enum http_wait wait;
    int64_t deadline_ms;
    uint64_t given;                 /* bytes to be sent so far */
    uint64_t taken_seen;            /* of these by the client, when it was last looked at */
    int quiet;                      /* looks at it in a row that found nothing taken */
    struct http_exchange *exchange; /* being parsed, or with the handler */
    SSL *ssl;                       /* NULL: plain */
    char *backlog;                  /* bytes that came while a request was being answered */
    size_t backlog_len;
    size_t lingered; /* bytes thrown away */
    int64_t requests;
    uv_shutdown_t shutdown;
    char remote[HTTP_REMOTE_MAX];
    bool reading;
    bool fresh;   /* a request was finished: the next wait begins now, though it may be the same */
    bool pumping; /* parsing: answers do not start it again */
    bool eof;     /* the client ended its side */
    bool finishing; /* the last answer is on its way: what comes in is thrown away */
    bool closing;   /* uv_close() was called */
};

enum http_exchange_state { EXCHANGE_PARSING, EXCHANGE_HANDLING, EXCHANGE_STREAMING };

struct http_exchange {
    struct http_server *server;
    struct http_connection *connection; /* NULL: gone */
    struct http_exchange *next_free;
    enum http_exchange_state state;
    struct http_parser parser;
    char id[HTTP_REQUEST_ID_LEN];
    char remote[HTTP_REMOTE_MAX];
    bool is_head, chunked, close_after, told_gone;
    void (*gone)(void *context, struct http_exchange *exchange);
    void *gone_context;
    void (*writable)(void *context, struct http_exchange *exchange);
    void *writable_context;
};

struct http_listener {
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } uv; /* first, as above */
    struct http_server *server;
    bool tls, is_unix;
    bool pending; /* a connection waits for memory */
};

struct http_list {
    struct http_connection *first, *last;
};

struct http_server {
    uv_loop_t *loop;
    struct http_options options;
    http_handler handler;
    void *context;
    size_t unsent_bytes; /* of all connections, kept in blocks */
    struct http_stats stats;
    struct http_list waiting[WAIT_COUNT];
    int64_t wait_ms[WAIT_COUNT]; /* 0: without end */
    struct http_listener *listeners[HTTP_LISTENERS_MAX];
    size_t listener_count;
    uv_timer_t sweep;
    size_t handles; /* of ours in the loop */
    struct http_exchange *free_exchanges;
    size_t free_count;
    uint64_t request_number;
    char id_prefix[12];
    char date[64]; /* "Date: ...\r\n" */
    size_t date_len;
    struct buf out; /* the head of an answer, for the length of one call */
    bool draining, closed;
    int64_t drain_deadline_ms;
    void (*drained)(void *context);
    void *drained_context;
    void (*on_closed)(void *context);
    void *closed_context;
    /* TLS. Bytes from the socket are seen by OpenSSL for the length of one call. */
    SSL_CTX *tls_context;
    struct bio_method_st *tls_method;
    const struct http_connection *tls_reader;
    str tls_in;
    struct buf tls_out;
    char *plain; /* HTTP_READ_BYTES, with TLS only */
    char read[HTTP_READ_BYTES];
};

/* server.c */
void http_connection_closed(struct http_connection *c); /* takes it out and frees it */
void http_server_unref(struct http_server *s);          /* frees it when nothing is left */
struct http_exchange *http_exchange_take(struct http_server *s);
void http_exchange_give(struct http_exchange *e);

/* http_connection.c */
void http_connection_wait(struct http_connection *c, enum http_wait wait);
void http_connection_leave(struct http_connection *c);           /* its list */
void http_connection_open(struct http_connection *c);            /* accepted: begin to read */
void http_connection_take(struct http_connection *c, str bytes); /* decrypted */
void http_connection_end_of_input(struct http_connection *c);
void http_connection_expire(struct http_connection *c);
void http_connection_resume(struct http_connection *c); /* an answer was given: go on */
void http_connection_close(struct http_connection *c);  /* at once */
size_t http_connection_unsent(const struct http_connection *c);
/* http_write.c */
bool http_connection_write(struct http_connection *c, const uv_buf_t *bufs, unsigned count);
bool http_connection_write_raw(struct http_connection *c, const uv_buf_t *bufs, unsigned count);
void http_connection_finish(struct http_connection *c); /* after what was written */
/* http_respond.c */
void http_connection_refuse(struct http_connection *c, enum http_refusal refusal,
                            const char *detail);
void http_problem(struct http_server *s, enum http_refusal refusal, const char *detail,
                  struct buf *body);
/* http_tls.c */
bool http_tls_attach(struct http_connection *c);
void http_tls_detach(struct http_connection *c);
void http_tls_read(struct http_connection *c, str bytes);
bool http_tls_write(struct http_connection *c, const uv_buf_t *bufs, unsigned count);
void http_tls_finish(struct http_connection *c);
void http_tls_release(struct http_server *s);
