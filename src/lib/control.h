/* lib/control.h: how a second process talks to the one that holds a data folder.
 *
 * A Unix socket, control.sock in the folder, mode 0600: made by the process whose engine is at work
 * there, so by the holder of the folder's lock. One JSON object a line asks, one line answers, one
 * request at a time on a connection:
 *     {"op":"status"}
 *     {"op":"start","planRef":{...},"tenantId","projectId","environmentId","runId",
 *      "parameters":{...},"actor","approval":true}
 *     {"op":"resume","runId"}                        carries on with a run that nobody drives
 *     {"op":"signal","runId","signal","signalId","stepId","payload","reason","actor"}
 *     {"op":"poll","tenantId","queue","worker","max","leaseMs","waitMs"}
 *     {"op":"heartbeat","runId","stepId","attempt","lease","leaseMs"}
 *     {"op":"complete","runId","stepId","attempt","lease","output"}
 *     {"op":"fail","runId","stepId","attempt","lease","code","message"}
 * {"ok":true,...} or {"error":{"code","where","message","status"}}. Strict: an unknown member, a
 * wrong type, a line that is too long are refused, with CONTROL_INVALID and the pointer.
 *
 * It is a stopgap and kept small: the HTTP API will take its place.
 * Threads: the server on its loop's thread; a client anywhere, it blocks. */
#pragma once

#include <uv.h>
#include <yyjson.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/str.h"
#include "lib/host.h"

enum {
    CONTROL_CONNECTIONS_MAX = 64,
    CONTROL_IDLE_MS = 60000, /* a connection without a request is closed */
    CONTROL_WAIT_MS_MAX = 60000,
    CONTROL_LEASE_MS_MAX = 24 * 3600 * 1000,
    CONTROL_TASKS_MAX = 100, /* of one poll */
    CONTROL_CALL_MS = 30000, /* an answer that takes longer is none */
};

struct control;
/* Listens in the folder. The caller must hold it: a socket that is there is a dead process's. */
MUST_CHECK status control_open(uv_loop_t *loop, struct host *host, str data_dir,
                               struct control **out, struct error *err);
/* Closes every connection; call it before host_close(), and run the loop afterwards. NULL is fine.
 */
void control_close(struct control *control);

struct control_client;
/* ST_NOT_FOUND when nobody listens in the folder. */
MUST_CHECK status control_connect(str data_dir, struct control_client **out, struct error *err);
/* Asks and waits. The answer lives in the arena; so does err->reason when the other side refused.
 */
MUST_CHECK status control_call(struct control_client *client, str request, int64_t timeout_ms,
                               struct arena *arena, yyjson_val **answer, struct error *err);
/* Whether the connection still stands, without waiting. */
bool control_alive(const struct control_client *client);
void control_disconnect(struct control_client *client); /* NULL is fine */
