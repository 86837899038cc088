/* server/server.h: a process that carries out runs and answers over HTTP: a host with its front,
 * made of settings and of the environment.
 *
 * Every process that drives an engine answers on a socket in the data folder; with `serve` it
 * listens for the world besides. Threads: the loop's. */
#pragma once

#include <uv.h>

#include "base/arena.h"
#include "core/url_guard.h"
#include "engine/plan_source.h"
#include "host/host.h"
#include "server/front.h"
#include "server/settings.h"

struct server_options {
    uv_loop_t *loop;
    const struct server_settings *settings;
    str url, folder;
    str node;     /* STR_NONE: "local" on SQLite, host name and process id on PostgreSQL */
    bool passive; /* execute nothing, listen nowhere: the process only signals */
    bool all;     /* drive every open run, not only what is asked for */
    bool serve;   /* listen for the world, keep metrics */
    /* As in host_options. */
    void (*observe)(void *context, const struct engine_note *note);
    void (*trouble)(void *context, str run_id, const struct error *why, int tries);
    void (*lost)(void *context);
    void *context;
};

struct server;
/* Borrows the settings and the texts of the options for as long as the server lives. Settings that
 * make no sense have the reason USAGE. *out is there on failure, too, to be halted and closed. */
MUST_CHECK status server_open(const struct server_options *options, struct server **out,
                              struct error *err);
struct host *server_host(struct server *server);
str server_node(const struct server *server);
str server_addresses(const struct server *server); /* front_addresses() */
int64_t
server_delivery_ms(const struct server *server); /* how long the delivery of one effect may take */
/* New certificates and keys from the files: SIGHUP. */
void server_reload(struct server *server);
/* Answers what is under way and ends the host; runs the loop meanwhile. NULL is fine. */
void server_halt(struct server *server);
/* After server_halt(), and after the loop has closed what that left to it. NULL is fine. */
void server_close(struct server *server);
