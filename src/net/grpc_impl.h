/* net/grpc_impl.h: what the files of the gRPC client share. For net/grpc*.c only.
 *
 * grpc_start() and grpc_cancel() do no I/O: they change lists and ask for an idle turn. All bytes
 * move, and all `done` are called, in callbacks of the loop, each of which ends in grpc_settle():
 * waiting calls become streams, sessions are flushed, and those whose calls have ended are told. So
 * nghttp2's callbacks never run code of the caller, and `done` may do what it likes.
 *
 * A call is in exactly one list: waiting for a connection with room for one more stream (not inside
 * nghttp2, so that a goodbye does not concern it), on a connection (it has a stream), or
 * ended and not yet told. A channel has one connection that takes new calls, `current`, and any
 * number of others that were told goodbye and end with their last call. */
#pragma once

#include <nghttp2/nghttp2.h>
#include <openssl/types.h>
#include <uv.h>

#include "base/arena.h"
#include "base/buf.h"
#include "net/grpc.h"

enum {
    GRPC_CONNECT_MS = 10000,    /* name, addresses, TLS and the server's first words together */
    GRPC_BACKOFF_MS = 100,      /* after the first attempt to connect that failed, */
    GRPC_BACKOFF_MS_MAX = 5000, /* times 1.7 after each further one, up to this */
    GRPC_PING_MS = 30000,       /* of silence while calls are under way, then a PING */
    GRPC_PING_TIMEOUT_MS = 15000,
    GRPC_GRACE_MS_MIN = 100, /* how much later than the server we enforce a deadline: a tenth */
    GRPC_GRACE_MS_MAX = 5000,
    GRPC_TIMEOUT_MS_MAX = INT32_MAX,          /* 24 days; longer ones are as long as this */
    GRPC_READ_BYTES = 64 * 1024,              /* one read */
    GRPC_UNSENT_MAX = 256 * 1024,             /* given to the loop; the rest waits in its call */
    GRPC_WRITE_BYTES = 64 * 1024,             /* gathered for one write */
    GRPC_STREAM_WINDOW = 4 * 1024 * 1024,     /* what a server may send of one answer unasked, */
    GRPC_WINDOW = 16 * 1024 * 1024,           /* and of all together */
    GRPC_ANSWER_HEADER_BYTES_MAX = 64 * 1024, /* headers and trailers of an answer, together */
    GRPC_PREFIX_BYTES = 5,                    /* in front of a message: a flag and its length */
    GRPC_ADDRESSES_MAX = 16,                  /* of one name that are tried */
    GRPC_WHY_MAX = 200,
};

struct grpc_list {
    struct grpc_call *first, *last;
};

struct grpc_call {
    struct grpc *grpc;
    struct grpc_call *next, *prev;
    struct grpc_list *list; /* the one that it is in */
    struct grpc_conn *conn; /* with a stream; else NULL */
    int32_t stream;
    grpc_done done;
    void *context;
    uint64_t expires_ms;  /* for the server */
    uint64_t deadline_ms; /* for us */
    int64_t timeout_ms;
    size_t bytes_max;
    bool retried; /* was refused once, before it was looked at, and is on its second way */

    char *request; /* with its prefix; the path follows */
    size_t request_len, request_sent;
    str path;

    int http_status; /* 0: no headers yet */
    int status;      /* grpc-status, as it was said; -1: it was not */
    bool is_grpc;    /* by its content-type */
    uint8_t prefix[GRPC_PREFIX_BYTES];
    size_t prefix_len;
    size_t header_bytes;
    size_t reserved;    /* of the channel's memory, for the body */
    struct buf body;    /* its maximum is the length that the prefix says */
    struct buf message; /* grpc-message, or what we have to say ourselves */
    struct buf details; /* grpc-status-details-bin */
    int code;           /* when it has ended */
};

enum grpc_conn_state {
    CONN_LOOKUP,
    CONN_CONNECT,
    CONN_TLS,      /* handshake */
    CONN_SETTINGS, /* waits for the server's first frame */
    CONN_READY,
    CONN_LEAVING, /* no new calls; closed after the last one */
    CONN_CLOSED,  /* waits for the loop */
};

struct grpc_conn {
    struct grpc *grpc;
    struct grpc_conn *next, *prev;
    enum grpc_conn_state state;
    uv_tcp_t tcp;
    bool tcp_open; /* the loop has it */
    bool looking;  /* the loop has `lookup` */
    uv_getaddrinfo_t lookup;
    uv_connect_t connect;
    struct sockaddr_storage addresses[GRPC_ADDRESSES_MAX];
    size_t address_count, address_next;
    uint64_t deadline_ms;     /* of becoming ready */
    uint64_t try_deadline_ms; /* of this address */
    struct grpc_list streams; /* calls under way */
    size_t stream_count;
    nghttp2_session *session;
    SSL *ssl;
    BIO *tls_in, *tls_out; /* belong to ssl */
    struct buf out;        /* gathered for the next write */
    uint64_t heard_ms;     /* when the last bytes came */
    uint64_t pinged_ms;    /* when a PING was sent that nothing followed; 0: none */
    int connect_error;
    bool served;            /* a call was made on it */
    char why[GRPC_WHY_MAX]; /* the session's complaint; or "" */
};

struct grpc {
    uv_loop_t *loop;
    uv_idle_t soon;   /* started when there is something to settle */
    uv_timer_t timer; /* the next deadline */
    uint64_t wake_ms; /* when it fires; 0: it does not */
    struct arena arena;
    str target, host, authority, server_name, authorization, user_agent;
    char port[8];
    struct grpc_header *headers;
    size_t header_count;
    SSL_CTX *tls; /* NULL: plain */
    struct grpc_list waiting, ended;
    size_t call_count; /* in all lists */
    size_t bytes;      /* of requests and answers under way */
    struct grpc_conn *conns, *current;
    int failures;      /* to connect, in a row */
    uint64_t retry_ms; /* not before this again */
    char reason[GRPC_WHY_MAX];
    size_t handles; /* that the loop still has: ours and connections */
    bool telling, closing;
    uint64_t ping_ms, ping_timeout_ms, connect_ms; /* as above; tests want them shorter */
    char read[GRPC_READ_BYTES];
};

/* grpc.c */
uint64_t grpc_now(const struct grpc *grpc);
void grpc_settle(struct grpc *grpc);                  /* the end of each callback */
void grpc_soon(struct grpc *grpc);                    /* settle in the next turn */
void grpc_wake_at(struct grpc *grpc, uint64_t at_ms); /* look at the deadlines then */
void grpc_unref(struct grpc *grpc);                   /* a handle is gone */
void grpc_call_move(struct grpc_call *call, struct grpc_list *to);
/* Ends a call that has no stream (any more); it will be told soon. */
void grpc_call_end(struct grpc_call *call, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);
void grpc_call_ended(struct grpc_call *call, int code); /* likewise; its message is there already */
void grpc_call_forget_answer(struct grpc_call *call);
/* Could not connect: calls that wait for it end, and new ones for a while. */
void grpc_connect_failed(struct grpc *grpc, const char *why);

/* grpc_conn.c */
bool grpc_conn_open(struct grpc *grpc); /* sets grpc->current; or grpc_connect_failed() */
void grpc_conn_flush(struct grpc_conn *conn);
/* Ends it and its calls, because of `why`. */
void grpc_conn_lost(struct grpc_conn *conn, const char *why);
void grpc_conn_close(struct grpc_conn *conn);                  /* has no calls any more */
void grpc_conn_leave(struct grpc_conn *conn);                  /* takes no new calls */
void grpc_conn_check(struct grpc_conn *conn, uint64_t now_ms); /* deadlines and PINGs */
uint64_t grpc_conn_wake(const struct grpc_conn *conn);         /* the next of them; UINT64_MAX */
bool grpc_conn_write(struct grpc_conn *conn, str bytes);       /* raw; false: it was lost */
void grpc_conn_connected(struct grpc_conn *conn);              /* now HTTP/2 begins */

/* grpc_session.c. None of them loses the connection: they say false, and `why` is set. */
bool grpc_session_open(struct grpc_conn *conn);
bool grpc_session_take(struct grpc_conn *conn, str bytes);
bool grpc_session_has_room(const struct grpc_conn *conn); /* for one more stream */
bool grpc_session_submit(struct grpc_conn *conn, struct grpc_call *call);
bool grpc_session_ping(struct grpc_conn *conn);
/* Takes a call off its stream, which is reset unless it has ended. The call stays in its list. */
void grpc_session_drop(struct grpc_call *call, uint32_t error_code);

/* grpc_tls.c */
MUST_CHECK status grpc_tls_open(struct grpc *grpc, const struct grpc_options *options,
                                struct error *err);
bool grpc_tls_attach(struct grpc_conn *conn);
/* Decrypts, giving plain bytes to the session. false: `why` is set. */
bool grpc_tls_take(struct grpc_conn *conn, str bytes);
bool grpc_tls_put(struct grpc_conn *conn, str plain); /* encrypts to tls_out */
bool grpc_tls_send(struct grpc_conn *conn); /* tls_out to the socket; false: it was lost */

/* grpc_text.c */
bool grpc_target_parse(str target, str *host, int *port);
bool grpc_header_valid(
    const struct grpc_header *header); /* a name and value that callers may add */
bool grpc_value_valid(str value);
void grpc_timeout_format(int64_t ms, char out[16]);
int grpc_code_of_http(int http_status);
int grpc_code_of_reset(uint32_t error_code);
void grpc_message_decode(struct buf *text); /* percent signs, in place; then it is UTF-8 */
bool grpc_base64_decode(struct buf *text);  /* in place; padding or none */
