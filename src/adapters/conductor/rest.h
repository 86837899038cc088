/* adapters/conductor/rest.h: calls to Conductor's REST API, on the loop.
 *
 * A call is sent, sent again while it fails for a reason that passes and its caller is patient, and
 * answered once. A few are under way at a time and the others wait, first come first served; but
 * for calls in a hurry, which go out at once. One line is logged when the cluster goes away, and
 * one when it is back.
 *
 * Threads: the loop's. */
#pragma once

#include <uv.h>
#include <yyjson.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/str.h"

enum {
    REST_ACTIVE_MAX = 12, /* calls under way, those in a hurry not counted */
    REST_TIMEOUT_MS = 10000,
    REST_DELAY_MS = 200, /* before the second try; doubles up to REST_DELAY_MS_MAX */
    REST_DELAY_MS_MAX = 5000,
};
#define REST_BYTES_MAX ((size_t)64 * 1024 * 1024) /* of an answer: a workflow with its tasks */

struct rest;
struct rest_call;
struct rest_request {
    const char *method;  /* static */
    str path;            /* below /api, with query: "/tasks" */
    str body;            /* JSON, or STR_NONE */
    int64_t patience_ms; /* tries are begun for so long; 0: one */
    int64_t timeout_ms;  /* of one try; 0: REST_TIMEOUT_MS */
    bool hurry;
};
struct rest_answer {
    status st;               /* see rest_status() */
    str text;                /* the body; "" if there is none */
    yyjson_val *json;        /* the body, if it is JSON; else NULL */
    const struct error *err; /* unless ST_OK */
};
/* All is borrowed until it returns; the call is gone by then. It may start and cancel others. */
typedef void (*rest_done)(void *context, const struct rest_answer *answer);

/* `url` is http://host:port, with or without /api. ST_INVALID: CONDUCTOR_URL_INVALID. */
MUST_CHECK status rest_open(uv_loop_t *loop, str url, struct rest **out, struct error *err);
/* Cancels what is under way; its memory is freed by the loop. Not from inside a rest_done. */
void rest_close(struct rest *rest);
/* Begins a call; all of the request is copied. `done` is never called before this returns. NULL:
 * memory is out. */
struct rest_call *rest_start(struct rest *rest, const struct rest_request *request, rest_done done,
                             void *context);
void rest_cancel(struct rest_call *call);     /* `done` will not be called */
size_t rest_pending(const struct rest *rest); /* calls that are not answered yet */
/* Ends the patience of all calls: each is answered after the try that it is at. */
void rest_hasten(struct rest *rest);

/* What an HTTP status and its body mean. ST_OK: 2xx. ST_RETRY: 429, 502, 503, 504, and 500 that
 * the server says can be tried again. ST_NOT_FOUND: 404. ST_INVALID: other 4xx. ST_CONFLICT: the
 * state forbids it, 409 and every other 500. The message is the server's. */
MUST_CHECK status rest_status(int http, str body, struct error *err);
/* Appends text as a part of a path or a query: all but letters, digits, '-', '_', '.' escaped. */
void rest_escape(str text, struct buf *out);
