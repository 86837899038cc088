/* net/grpc.h: unary gRPC calls to one server, over HTTP/2, on a libuv loop. Knows no workflow.
 *
 * A channel connects when the first call needs it, keeps one connection, and opens another when the
 * server says goodbye (GOAWAY), when a PING is not answered, or when the connection is lost: calls
 * under way on a connection that says goodbye end in peace, new ones go to the next. It waits a
 * moment longer after each attempt to connect that failed; meanwhile calls fail with
 * GRPC_UNAVAILABLE. Everything is bounded: the time of a call, its answer, the calls under way.
 *
 * Threads: all calls and all answers on the loop's thread. Signals: libuv writes to sockets without
 * MSG_NOSIGNAL, so the program must ignore SIGPIPE, as for net/server.h. */
#pragma once

#include <uv.h>

#include "base/error.h"
#include "base/str.h"

enum grpc_code {
    GRPC_OK = 0,
    GRPC_CANCELLED = 1,
    GRPC_UNKNOWN = 2,
    GRPC_INVALID_ARGUMENT = 3,
    GRPC_DEADLINE_EXCEEDED = 4,
    GRPC_NOT_FOUND = 5,
    GRPC_ALREADY_EXISTS = 6,
    GRPC_PERMISSION_DENIED = 7,
    GRPC_RESOURCE_EXHAUSTED = 8,
    GRPC_FAILED_PRECONDITION = 9,
    GRPC_ABORTED = 10,
    GRPC_OUT_OF_RANGE = 11,
    GRPC_UNIMPLEMENTED = 12,
    GRPC_INTERNAL = 13,
    GRPC_UNAVAILABLE = 14,
    GRPC_DATA_LOSS = 15,
    GRPC_UNAUTHENTICATED = 16,
};
const char *grpc_code_name(int code); /* "UNAVAILABLE"; "UNKNOWN" for a number that is none */

enum {
    GRPC_CALLS_MAX = 1024,   /* under way at once on one channel, then ST_LIMIT */
    GRPC_TIMEOUT_MS = 10000, /* of a call that names none */
};
#define GRPC_BYTES_MAX ((size_t)128 * 1024 * 1024)  /* of an answer, unless the call says less */
#define GRPC_MEMORY_MAX ((size_t)512 * 1024 * 1024) /* of all requests and answers of a channel */

struct grpc_header {
    str name, value; /* the name in lower case */
};
struct grpc_options {
    str target; /* host:port; an IPv6 address in brackets */
    bool tls;
    str ca_file;             /* certificates to trust; STR_NONE: the system's */
    str cert_file, key_file; /* our own, for servers that want one; or STR_NONE */
    str server_name;         /* what its certificate must say; STR_NONE: the host of target */
    str authorization;       /* sent with each call, never logged, never indexed; or STR_NONE */
    str user_agent;          /* "cairn/0.5" */
    const struct grpc_header *headers; /* sent with each call */
    size_t header_count;
};

struct grpc;      /* a channel */
struct grpc_call; /* a call under way */

/* Copies the options. Does not connect yet, but reads the files. ST_INVALID with
 * GRPC_TARGET_INVALID, GRPC_HEADER_INVALID, or TLS_INVALID when a file is no good. */
MUST_CHECK status grpc_open(uv_loop_t *loop, const struct grpc_options *options, struct grpc **out,
                            struct error *err);
/* Cancels what is under way, without `done`. The last memory is freed by the loop, which must run
 * until its handles are closed. Not from inside `done`. NULL is fine. */
void grpc_close(struct grpc *grpc);

struct grpc_answer {
    int code;    /* enum grpc_code */
    str message; /* of a failure, decoded, UTF-8; else empty */
    str details; /* the bytes of grpc-status-details-bin, decoded; or STR_NONE */
    str body;    /* of GRPC_OK: the one message */
};
/* The one answer to a call. All is borrowed until it returns; the call is gone by then. It may
 * start and cancel others. */
typedef void (*grpc_done)(void *context, const struct grpc_answer *answer);

struct grpc_request {
    str path; /* "/temporal.api.workflowservice.v1.WorkflowService/GetSystemInfo" */
    str body; /* one message, copied */
    int64_t
        timeout_ms;   /* told to the server, and enforced here a little later; 0: GRPC_TIMEOUT_MS */
    size_t bytes_max; /* of the answer; 0: GRPC_BYTES_MAX */
};
/* Begins a call. `done` is never called before this returns. ST_LIMIT with GRPC_BUSY when
 * GRPC_CALLS_MAX or GRPC_MEMORY_MAX are under way, with GRPC_TOO_LARGE when the request is;
 * ST_INVALID with GRPC_REQUEST_INVALID. `call` may be NULL. */
MUST_CHECK status grpc_start(struct grpc *grpc, const struct grpc_request *request, grpc_done done,
                             void *context, struct grpc_call **call, struct error *err);
/* Ends a call: its stream is reset and `done` will not be called. */
void grpc_cancel(struct grpc_call *call);
size_t grpc_active(const struct grpc *grpc);
