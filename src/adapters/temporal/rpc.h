/* adapters/temporal/rpc.h: calls to a Temporal cluster. Each is a message, a method and an answer.
 *
 * A call that fails for a reason that may pass is made again, with growing pauses: a few times, or,
 * if it is a poll, for ever. When the cluster cannot be reached that is logged once, and once more
 * when it answers again.
 *
 * Threads: all on the loop's thread. */
#pragma once

#include <temporal.pb-c.h>
#include <uv.h>

#include "adapters/temporal/wire.h"
#include "base/error.h"
#include "net/grpc.h"

enum rpc_method {
    RPC_SYSTEM_INFO,
    RPC_DESCRIBE_NAMESPACE,
    RPC_REGISTER_NAMESPACE,
    RPC_START,
    RPC_DESCRIBE,
    RPC_HISTORY,
    RPC_SIGNAL,
    RPC_CANCEL,
    RPC_TERMINATE,
    RPC_LIST,
    RPC_POLL_TASK,
    RPC_TASK_COMPLETED,
    RPC_TASK_FAILED,
    RPC_QUERY_COMPLETED,
    RPC_POLL_ACTIVITY,
    RPC_ACTIVITY_COMPLETED,
    RPC_ACTIVITY_FAILED,
    RPC_ACTIVITY_CANCELED,
    RPC_HEARTBEAT,
    RPC_METHOD_COUNT
};

struct rpc;
struct rpc_call;
struct rpc_answer {
    int code; /* enum grpc_code */
    str message;
    str details;       /* google.rpc.Status, or STR_NONE */
    const void *value; /* of GRPC_OK: the method's answer, unpacked */
};
/* The last answer to a call. All is borrowed until it returns, but what is in the call's arena. */
typedef void (*rpc_done)(void *context, const struct rpc_answer *answer);

/* Opens a channel; does not connect yet. */
MUST_CHECK status rpc_open(uv_loop_t *loop, const struct grpc_options *options, struct rpc **out,
                           struct error *err);
/* Ends all calls, without `done`, and calls `closed` (may be NULL) when the memory is free: soon,
 * but calls that are quickly answered may come to their end. Not from inside `done`. */
void rpc_close(struct rpc *rpc, void (*closed)(void *context), void *context);

/* Begins a call. The answer is unpacked into `arena`, which must live until then; NULL: into one of
 * the call's own. `done` is never called before this returns, and always called once, unless the
 * call is cancelled or the channel closed. *call may be NULL. ST_LIMIT and ST_RETRY. */
MUST_CHECK status rpc_start(struct rpc *rpc, enum rpc_method method,
                            const ProtobufCMessage *request, struct arena *arena, rpc_done done,
                            void *context, struct rpc_call **call, struct error *err);
/* `done` will not be called. A poll is reset; any other call goes on unheard: its answer is near,
 * and a server that keeps its state in SQLite does not always survive a query that is interrupted.
 */
void rpc_cancel(struct rpc_call *call);
size_t rpc_active(const struct rpc *rpc); /* calls under way, or waiting for their next try */
/* The execution that is there already, from the details of an ALREADY_EXISTS; or STR_NONE. */
str rpc_existing_run(const struct rpc_answer *answer, struct arena *arena);
const char *rpc_name(enum rpc_method method);
