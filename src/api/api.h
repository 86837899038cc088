/* api/api.h: the HTTP API: routes under /v1, authentication, problems, streams. docs/api.md and
 * contracts/openapi.json tell it to users.
 *
 * Sits between net/server.h, whose handler it is, and a host, which it borrows and watches: commits
 * wake streams and whoever waits for a run's end. It does no I/O of its own.
 * Threads: the loop's. */
#pragma once

#include <uv.h>

#include "api/auth.h"
#include "host/host.h"
#include "net/server.h"

struct api;

struct api_options {
    uv_loop_t *loop;
    struct host
        *host;    /* whose engine, ledger thread, plans and outbox serve the requests; borrowed */
    str url;      /* of the ledger, for readers */
    str data_dir; /* for backups */
    str node, version;
    struct metrics *metrics;
    bool open;         /* no authentication: see auth_options */
    struct jwks *jwks; /* or NULL; the api owns it */
    struct jwt_policy policy;
    int64_t rate;       /* requests a second of one caller; 0: no limit */
    bool other_writers; /* others may append to the same ledger (PostgreSQL): streams look for it */
};
enum { API_QUEUE_MAX = HOST_QUERIES_MAX, API_BODY_MAX = 8 * 1024 * 1024 };

MUST_CHECK status api_open(const struct api_options *options, struct api **out, struct error *err);
/* The http_handler; `context` is the api. */
void api_handle(void *context, struct http_exchange *exchange, const struct http_request *request);
/* The same for requests that came through a socket which only the owner of the data folder can
 * open: the caller is "local", admin of every tenant. */
void api_handle_trusted(void *context, struct http_exchange *exchange,
                        const struct http_request *request);
/* http_options.problem: the API's form for answers of the server itself. */
void api_problem(void *context, int http_status, const char *code, const char *detail,
                 struct buf *body);
void api_http_server(struct api *api, struct http_server *server); /* for its statistics */
void api_set_jwks(struct api *api, struct jwks *jwks);
/* Not ready any more: ends streams and long polls politely, writes down what is remembered; other
 * requests go on. */
void api_drain(struct api *api);
/* The HTTP server is closed, the host ends now: nothing more is asked of them. What is
 * still under way there is refused with CLOSING when it comes back. */
void api_halt(struct api *api);
/* After the HTTP server is closed and after the host has closed, which answers whatever was still
 * under way at the ledger thread and the readers. The loop must run afterwards. NULL is fine. */
void api_close(struct api *api);
