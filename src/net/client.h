/* net/client.h: HTTP requests to other servers, blocking or on a libuv loop.
 *
 * A request goes to exactly the URL it names: redirects are answers like any other, proxies from
 * the environment are ignored, and every address is shown to the caller's may_connect() before a
 * socket connects to it and before a kept connection is used again. Everything is bounded: the
 * time, the bytes of the answer, the requests under way. Only http and https, TLS always verified.
 *
 * Reasons of failure: HTTP_TIMEOUT and HTTP_FAILED (mostly ST_RETRY), HTTP_TOO_LARGE (ST_LIMIT),
 * HTTP_REFUSED_ADDRESS and HTTP_REQUEST_INVALID (ST_INVALID), HTTP_ENDED when chunk() said so. A
 * status of 400 or 500 is no failure. Threads: client_fetch() from any; a struct client belongs to
 * its loop's thread. */
#pragma once

#include <uv.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/str.h"

enum {
    CLIENT_REQUESTS_MAX = 256,           /* under way at once on one client, then ST_LIMIT */
    CLIENT_CONNECTIONS_KEPT = 32,        /* idle ones, for the next request to the same host */
    CLIENT_HEADERS_MAX = 100,            /* of a request */
    CLIENT_HEADER_BYTES_MAX = 32 * 1024, /* one of a request; a token may be long */
    CLIENT_URL_BYTES_MAX = 8192,
    CLIENT_TIMEOUT_MS = 60000,         /* of a request that names none */
    CLIENT_CONNECT_TIMEOUT_MS = 10000, /* likewise */
    CLIENT_TIMEOUT_MS_MAX = INT32_MAX, /* 24 days; longer ones are as long as this */
};
#define CLIENT_BYTES_MAX ((size_t)1024 * 1024)              /* of the answer, likewise */
#define CLIENT_ANSWER_HEADER_BYTES_MAX ((size_t)128 * 1024) /* of an answer, together */

struct client_header {
    str name, value;
};
struct client_request {
    str method; /* upper case; STR_NONE: GET */
    str url;
    const struct client_header *headers;
    size_t header_count;
    str body;      /* STR_NONE: none */
    str unix_path; /* of a Unix socket to connect to, whatever host the URL names; or STR_NONE */
    /* May a socket connect to this address (4 bytes or 16, network order)? Not asked, and may be
     * NULL, with unix_path. */
    bool (*may_connect)(void *context, const uint8_t *address, size_t len);
    void *context;
    size_t bytes_max;           /* of the answer's body; 0: CLIENT_BYTES_MAX */
    bool cuts;                  /* an answer over bytes_max is cut there, and no failure */
    int64_t timeout_ms;         /* of it all; 0: CLIENT_TIMEOUT_MS */
    int64_t connect_timeout_ms; /* of look-up, connection, TLS; 0: CLIENT_CONNECT_TIMEOUT_MS */
    int64_t stall_ms;           /* ends it when nothing comes for so long (whole seconds); 0: off */
    str ca_file;                /* certificates to trust; STR_NONE: the system's */
    /* Takes the body of an answer with status 200 as it comes, instead of response.body, and
     * without bytes_max; about once a second without any bytes, too. false ends the request
     * (HTTP_ENDED). Its context is `context`; or NULL. */
    bool (*chunk)(void *context, str bytes);
};
struct client_response {
    int status;
    str content_type; /* as sent; STR_NONE */
    str body;
    bool cut; /* there was more of it */
};

/* Sends the request and waits for the answer, which lives in the arena. */
MUST_CHECK status client_fetch(const struct client_request *request, struct arena *arena,
                               struct client_response *out, struct error *err);

struct client;
struct client_call; /* a request under way */

/* The caller owns *out and ends it with client_close(). `loop` is borrowed. */
MUST_CHECK status client_open(uv_loop_t *loop, struct client **out, struct error *err);
/* The one answer to a request, on the loop: `st` is ST_OK and `response` is set, or `err` is. All
 * is borrowed until it returns; the call is gone by then. It may start and cancel others. */
typedef void (*client_done)(void *context, status st, const struct client_response *response,
                            const struct error *err);
/* Begins a request; all of it but `context` is copied. `done` is never called before this returns.
 * ST_LIMIT with HTTP_BUSY when CLIENT_REQUESTS_MAX are under way. */
MUST_CHECK status client_start(struct client *client, const struct client_request *request,
                               client_done done, void *context, struct client_call **out,
                               struct error *err);
/* Ends a request: the connection is closed and `done` will not be called. */
void client_cancel(struct client_call *call);
size_t client_active(const struct client *client); /* requests under way */
/* Cancels what is under way. Memory is freed by the loop, which must run until its handles are
 * closed. Not from inside `done`. NULL is fine. */
void client_close(struct client *client);
