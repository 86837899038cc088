/* server/front.h: the HTTP API in front of an engine: sockets, certificates, keys, and their end.
 *
 * Every process that drives an engine answers on a socket in the data folder, which only the
 * folder's owner can open: that is how other commands reach it. `cairn serve` listens for the world
 * besides. */
#pragma once

#include <uv.h>

#include "api/api.h"
#include "base/arena.h"
#include "host/host.h"
#include "server/settings.h"

#define FRONT_SOCKET "cairn.sock"
#define FRONT_ADDRESS "127.0.0.1:8420"

struct front;
struct front_options {
    uv_loop_t *loop;
    const struct server_settings *settings; /* borrowed */
    struct host *host;
    str url, folder, node;
    bool postgres;
    bool local; /* listen in the data folder */
    bool world; /* and where --listen says */
    struct metrics *metrics;
};

/* *out is there on failure, too: the caller ends it with front_close(). */
MUST_CHECK status front_open(const struct front_options *options, struct front **out,
                             struct error *err);
/* "http://127.0.0.1:8420 (no authentication: this machine only)": every address, for the line that
 * says that we are ready. */
str front_addresses(const struct front *front);
/* New certificates and keys from the files: SIGHUP. What cannot be read stays as it was. */
void front_reload(struct front *front);
/* Stops listening and answers what is under way, at most 10 s; runs the loop. */
void front_drain(struct front *front);
/* front_drain() first, then host_close(), then this; the loop must run afterwards. NULL is fine. */
void front_close(struct front *front);
