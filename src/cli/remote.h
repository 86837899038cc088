/* cli/remote.h: a Cairn server at the other end of its HTTP API: the one that --server names, or
 * the process that holds the data folder, which answers on a socket in it.
 *
 * A problem becomes a struct error with the same code, place and sentence as if the work had been
 * done here; a server that cannot be reached is SERVER_UNREACHABLE (ST_RETRY). libcurl is loaded
 * with the first request. Threads: the command's. */
#pragma once

#include <yyjson.h>

#include "cli/cli.h"
#include "net/client.h"

struct remote; /* lives in cli->arena */

/* Whether --server or $CAIRN_SERVER names a server; --data and --db beat the environment. */
bool remote_is_named(const struct cli *cli);
/* Whether the other options go together with it. */
MUST_CHECK status remote_check(const struct cli *cli, struct error *err);
/* The one that they name, with the key of --key-file. */
MUST_CHECK status remote_open(struct cli *cli, struct remote **out, struct error *err);
/* The process that holds the folder. ST_NOT_FOUND: nobody listens there. */
MUST_CHECK status remote_open_folder(struct cli *cli, str folder, struct remote **out,
                                     struct error *err);

/* ---- what to ask for: "/v1/runs/" id "/events" "?after=" 7 ---- */

enum { TARGET_BYTES_MAX = 4096 };
struct target {
    char mem[TARGET_BYTES_MAX];
    struct buf text;
};
void target_init(struct target *t, const char *path);
void target_id(struct target *t, str id); /* a part of the path */
void target_path(struct target *t, const char *path);
void target_query(struct target *t, const char *name, str value); /* nothing for STR_NONE */
void target_query_int(struct target *t, const char *name, int64_t value);

/* ---- asking ---- */

enum { REMOTE_CALL_MS = 60000, REMOTE_LONG_MS = 24 * 3600 * 1000 };
struct remote_body {
    const char *type; /* "application/json" */
    str bytes;        /* STR_NONE: no body */
};
/* The answer lives in the arena; *answer is NULL when it is empty. */
MUST_CHECK status remote_get(struct remote *r, const struct target *target, struct arena *arena,
                             yyjson_val **answer, struct error *err);
MUST_CHECK status remote_send(struct remote *r, const char *method, const struct target *target,
                              const struct remote_body *body, struct arena *arena,
                              yyjson_val **answer, struct error *err);
/* The same, without looking at the answer. */
MUST_CHECK status remote_fetch(struct remote *r, const char *method, const struct target *target,
                               const struct remote_body *body, int64_t timeout_ms,
                               struct arena *arena, str *answer, struct error *err);
/* Fills *err with a failure that a server told. A code that this program does not know, because the
 * server is newer, stands in front of the message. */
status remote_failure(struct error *err, status st, str code, const char *where, str message);
/* Whether it failed because the other side is not there (any more). */
bool remote_is_gone(const struct error *err);

/* ---- following: NDJSON, a line at a time ---- */

/* Also called about once a second with STR(""). false: enough. */
typedef bool (*remote_line)(void *context, str line);
/* Until the stream ends, or `line` has enough: ST_OK in both cases. */
MUST_CHECK status remote_follow(struct remote *r, const struct target *target, remote_line line,
                                void *context, struct error *err);

/* The same on a loop. `ended` is called once, unless it is closed first. */
struct remote_stream;
typedef void (*remote_ended)(void *context, status st, const struct error *err);
MUST_CHECK status remote_stream_open(struct remote *r, struct client *client,
                                     const struct target *target, remote_line line,
                                     remote_ended ended, void *context, struct remote_stream **out,
                                     struct error *err);
void remote_stream_close(struct remote_stream *stream); /* NULL is fine */
