/* api/impl.h: what the files of api/ share.
 *
 * A call is one request on its way: through the door (door.c: route, caller, role, rate, repeated
 * request), then its route's function, which ends in exactly one of call_answer(), call_fail(), or
 * hands the exchange to the hub. Between them it may go to a reader thread (call_read), to the
 * ledger thread (call_change, call_append) or to the engine, and come back on the loop.
 *
 * While a call is at another thread, that thread alone touches its arena, `out` and `own`. The
 * request's strings stay until it is answered. */
#pragma once

#include "api/api.h"
#include "api/hub.h"
#include "api/share.h"
#include "api/waits.h"
#include "base/json.h"
#include "base/json_out.h"
#include "base/limits.h"
#include "base/map.h"
#include "core/run.h"
#include "core/run_ref.h"
#include "view/view.h"

struct call;

enum route_trait {
    ROUTE_OPEN = 1,     /* for everybody, without a check of the caller */
    ROUTE_CHANGES = 2,  /* a refusal is audited, too */
    ROUTE_AGAIN = 4,    /* a repeated request comes here, too: its receipts are no answers, but
                           say what was done (call->before) */
    ROUTE_PLATFORM = 8, /* for callers of every tenant only */
};
struct route {
    const char *method;
    const char *path; /* "/v1/runs/{runId}/events" */
    const char *name; /* "run.append": in metrics, logs and audit */
    unsigned roles;   /* any of these; admin always */
    unsigned traits;
    void (*run)(struct call *call);
};
struct route_table {
    const struct route *routes;
    size_t count;
};
/* One table a file. */
extern const struct route_table meta_routes, run_routes, step_routes, signal_routes, event_routes,
    task_routes, plan_routes, effect_routes, key_routes, admin_routes;

enum { PATH_ARGS_MAX = 2, CALL_HEADERS_MAX = 12, STATUS_CLASSES = 6 };

typedef status (*call_work)(struct call *call, struct ledger *ledger, struct error *err);
typedef void (*call_then)(struct call *call);

struct problem_item {
    str pointer, code, message;
};

struct call {
    struct api *api;
    struct call *next, **link; /* of those under way */
    struct http_exchange *exchange;
    const struct http_request *request; /* NULL after the answer */
    const struct route *route;
    str args[PATH_ARGS_MAX]; /* of the path, decoded */
    bool trusted;
    struct auth_check auth;
    const struct principal *who; /* auth.principal, once it is known */
    struct arena arena;
    struct buf out; /* the body of the answer */
    struct http_header headers[CALL_HEADERS_MAX];
    size_t header_count;
    uuid trace; /* the trace id of traceparent */
    bool has_trace;
    int64_t begun_ns;
    int64_t retry_after_s;
    char retry_after[24]; /* as a header: a failure may come when the arena is used up */
    const struct problem_item *problems; /* of a failure with several; else err->where is the one */
    size_t problem_count;
    /* The run it is about, for logs and audit: filled by call_find_run(). */
    str tenant_id, project_id, environment_id, run_id;
    int64_t engine_attempt, logical_attempt;
    /* What is committed with its change. */
    bool keyed;                   /* has an Idempotency-Key that counts */
    str in_flight;                /* its entry in api->in_flight */
    const struct receipt *before; /* of a request that was done before, and is carried out again */
    struct receipt receipt;
    struct audit_entry audit;
    struct append_rider rider;
    bool rode; /* the engine has committed it */
    /* Where it is. */
    struct reader_job job;
    struct share *reading; /* while it is at a reader */
    bool may_stop;         /* what it does there is long, and ends early when the server does */
    struct bridge_call change; /* at the ledger thread */
    size_t out_before;         /* what `out` and `headers` held before it went there */
    size_t headers_before;
    call_work work;
    call_then then;
    void (*cut)(struct call *call);   /* a call that waits: the client is gone, or we are draining;
                                         it must be answered now, or when it is known what it has
                                         begun */
    struct run_wait *wait;            /* while it waits for a run's end; or NULL */
    void (*ended)(struct call *call); /* or NULL: it is answered now, whatever the answer */
    void *own;                        /* the route's, in the arena */
};

struct limiter;

struct api {
    struct api_options options;
    struct engine *engine; /* the host's, and so is the ledger thread */
    struct bridge *bridge; /* the host's */
    struct readers *readers; /* the host's */
    struct hub *hub;
    struct auth *auth;
    struct limiter *limiter;  /* of requests; NULL: no limit */
    struct limiter *refusals; /* of those that are written into the audit trail */
    struct http_server *server;
    struct call *calls;
    size_t call_count;
    struct call *unused;
    size_t unused_count;
    struct map in_flight; /* Idempotency-Keys of requests under way */
    struct waits waits;   /* for the ends of runs */
    struct shares shares;
    uv_timer_t sweep;
    int open_handles;
    bool draining, sweeping, verifying, archiving;
    atomic_bool stopping; /* for readers: we are draining */
    bool closing;         /* engine and writer end, or are gone: whatever comes back is refused */
    bool sweep_more;      /* there are more old receipts than one sweep takes */
    struct bridge_call sweep_call;
    int64_t ready_until_ns; /* a query was answered just now */
    struct metric *m_seconds, *m_under_way, *m_left_out;
    struct metric **m_requests; /* [route][class] */
    char node[256], version[64];
};

/* ---- routes.c ---- */

/* NULL: no such path, or (*allow is not empty) another method. Fills args. */
const struct route *route_find(str method, str path, struct arena *arena, str args[PATH_ARGS_MAX],
                               struct buf *allow);
size_t route_count(void);
const struct route *route_at(size_t at);
size_t route_index(const struct route *route);

/* ---- call.c: answering ---- */

/* Answers with `out`: application/json if it is not empty. */
void call_answer(struct call *call, int code);
void call_answer_as(struct call *call, int code, const char *content_type);
/* Answers with a problem. */
void call_fail(struct call *call, const struct error *err);
/* The same from parts. */
void call_refuse(struct call *call, enum reason reason, const char *where, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
void call_refuse_closing(struct call *call); /* CLOSING */
/* `value` must live until the answer: in the arena. */
void call_header(struct call *call, const char *name, str value);
/* The exchange was given to somebody else (the hub): forgets the call after `ended`. */
void call_handed_over(struct call *call, int code);
void call_end(struct call *call);       /* frees it: only after call_handed_over() */
void call_give_back(struct call *call); /* what it holds so that others must wait; once */
/* "/v1/runs/" and the id, percent-encoded; in the arena. */
str call_path(struct call *call, const char *prefix, str id);
/* A str in the call's arena. */
str call_text(struct call *call, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* ---- call.c: going elsewhere ---- */

/* `work` on a reader thread, then `then` on the loop; NULL: call_answer(200). A failure of `work`
 * is the answer. */
void call_read(struct call *call, call_work work, call_then then);
/* `work` on the ledger thread, as a member of the group that is being committed: see struct
 * ledger_member for what it may do. It may run several times; what it put into `out` or added as a
 * header is taken back before it runs again. */
void call_change(struct call *call, call_work work, call_then then);
/* `work` alone on the ledger thread, with transactions of its own. */
void call_alone(struct call *call, call_work work, call_then then);
/* An append: fill call->change.write.request first. `then` looks at the results. */
void call_append(struct call *call, call_then then);

/* `then` soon, from the loop: for a route that must not answer from where it is, because the
 * answer may bring the connection's next request. */
void call_later(struct call *call, call_then then);

/* ---- call.c: what every route needs ---- */

/* Finds a run that the caller may see, on a reader or the ledger thread: RUN_NOT_FOUND for others,
 * too. Fills the call's ids. */
MUST_CHECK status call_find_run(struct call *call, struct ledger *reader, str run_id,
                                struct run_info *out, struct error *err);
/* The same for the run of a reference, with RUN_REF_MISMATCH when that says something else of it.
 */
MUST_CHECK status call_find_ref(struct call *call, struct ledger *reader,
                                const struct engine_run_ref *ref, struct run_info *out,
                                struct error *err);
/* The same with ledger_find_identity(): who the run is, however long it is. */
MUST_CHECK status call_identify_run(struct call *call, struct ledger *reader, str run_id,
                                    struct run_info *out, struct error *err);
/* The tenant a request is about: `asked` if the caller may see it, the caller's own if STR_NONE;
 * STR_NONE for a caller of every tenant that asks for none. TENANT_NOT_FOUND. */
MUST_CHECK status call_tenant(struct call *call, str asked, str *out, struct error *err);
/* A new UUID, in the arena: of a request with an Idempotency-Key the same each time, also when it
 * reaches two nodes at once. */
str call_new_id(struct call *call);
/* "key:abc@10.0.0.1": who did it, for the events; in the arena. */
str call_actor(struct call *call);
/* What rides with the change: its audit record, about `target`, and the receipt of a request with
 * an Idempotency-Key. Call it when `out` holds the answer that a repetition would get (`code`), or
 * with `again` when a repetition is simply carried out again. Never NULL. */
const struct append_rider *call_riders(struct call *call, str target, str reason, int code,
                                       bool again);
/* The receipt alone, for what is no change, or tells by itself who made it. NULL without a key, and
 * of a request that has one already. */
const struct append_rider *call_receipt(struct call *call, int code, bool again);
/* Writes what call_riders() or call_receipt() made by itself, then `then`; at once if that is
 * nothing. */
void call_ride(struct call *call, call_then then);
/* On a reader: every receipt of a request that was done before. */
MUST_CHECK status call_receipts(struct call *call, struct ledger *reader, struct receipt **out,
                                size_t *count, struct error *err);

/* ---- input.c: strict bodies and queries ---- */

enum field_kind {
    FIELD_TEXT,         /* str; min and max bytes (0: none, ID_BYTES_MAX) */
    FIELD_INT,          /* int64_t within min and max */
    FIELD_BOOL,         /* bool */
    FIELD_TIME,         /* int64_t microseconds */
    FIELD_TIME_OR_NULL, /* 0 for null (bodies only) */
    FIELD_LIST,         /* str: may be given several times, joined with commas (queries only) */
    FIELD_JSON,         /* str: the value's text (bodies only) */
    FIELD_VALUE,        /* yyjson_val * (bodies only) */
    FIELD_UUID,         /* struct { uuid } and `given` tells (queries and bodies) */
};
struct field {
    const char *name;
    enum field_kind kind;
    size_t offset; /* in the struct to be filled */
    bool required;
    int64_t min, max;
};
/* Reads an object's members into *out, whose other members stay as they are. FIELD_UNKNOWN,
 * FIELD_MISSING, FIELD_TYPE, FIELD_EMPTY, FIELD_TOO_LONG, NUMBER_OUT_OF_RANGE,
 * TIME_NOT_RFC3339_UTC, FIELD_NOT_UUID with the pointer, which begins with `at` ("" at the root).
 * *given gets a bit for each field that was there; may be NULL. */
MUST_CHECK status object_read(yyjson_val *object, const char *at, const struct field *fields,
                              size_t count, struct arena *arena, void *out, uint64_t *given,
                              struct error *err);
/* The request's body as one JSON object. UNSUPPORTED_MEDIA_TYPE, BODY_MISSING, BODY_TOO_LARGE (over
 * `bytes_max`; 0: 1 MiB), BODY_NOT_OBJECT, and json_parse()'s reasons. */
MUST_CHECK status body_object(struct call *call, size_t bytes_max, yyjson_val **out,
                              struct error *err);
MUST_CHECK status body_read(struct call *call, const struct field *fields, size_t count, void *out,
                            uint64_t *given, struct error *err);
/* Whether there is a body, and of which type: exactly `type`, parameters ignored. */
bool body_is(const struct call *call, const char *type);
/* The query as fields. A parameter may come once: PARAMETER_UNKNOWN, PARAMETER_REPEATED,
 * PARAMETER_INVALID; where is "?name". `cursor` and `limit` are given as fields like all others. */
MUST_CHECK status query_read(struct call *call, const struct field *fields, size_t count, void *out,
                             uint64_t *given, struct error *err);
/* Picks what Accept wants from a list that ends in NULL; the first if there is no such header or it
 * takes anything; -1: nothing fits (NOT_ACCEPTABLE). */
int accept_choose(const struct call *call, const char *const *types);
/* A request without any. */
MUST_CHECK status query_none(struct call *call, struct error *err);
#define FIELD(type, member) offsetof(type, member)
#define NUMBER_MAX ((int64_t)9007199254740991) /* what JavaScript can count to */

/* An EngineRunRef in the member "engineRunRef" of a body: RUN_REF_INVALID with its pointer. */
MUST_CHECK status body_run_ref(yyjson_val *value, struct engine_run_ref *out, struct error *err);

/* ---- cursor.c ---- */

/* An opaque cursor for two numbers; `kind` keeps cursors of different lists apart. */
void cursor_write(struct buf *out, char kind, int64_t a, int64_t b);
/* CURSOR_INVALID at ?cursor. STR_NONE leaves both 0. */
MUST_CHECK status cursor_read(str text, char kind, int64_t *a, int64_t *b, struct error *err);

/* ---- page.c ---- */

/* {"items":[ */
void page_begin(struct buf *out);
/* Ends a page: ],"next":"..."} with a cursor for two numbers, or null if there is no more. */
void page_end(struct buf *out, bool more, char kind, int64_t a, int64_t b);
void page_end_text(struct buf *out, str cursor); /* the same; STR_NONE: there is no more */

/* ---- problem.c ---- */

int problem_status(const struct error *err); /* the HTTP status */
/* Whether the same request may be answered otherwise later. */
bool problem_retryable(const struct error *err, int http_status);
/* {"code":...,"where":...,"message":...}: of one line of a batch. */
void problem_line(struct buf *out, const struct error *err);
void problem_write(struct buf *out, const struct error *err, int http_status, str request_id,
                   const uuid *trace, const struct problem_item *items, size_t count);

/* ---- limit.c: how often a caller may do something ---- */

/* `rate` a second, and `burst` at once after a rest. */
MUST_CHECK status limiter_open(double rate, double burst, struct limiter **out, struct error *err);
void limiter_close(struct limiter *limiter);
/* Takes one. *left: what remains now; *reset_s: until it is full again, or until one is there. */
bool limiter_take(struct limiter *limiter, str who, int64_t now_ns, int64_t *left,
                  int64_t *reset_s);
/* How often there was none to take since this was asked last. (A bucket that was given to somebody
 * else forgets it.) */
int64_t limiter_missed(struct limiter *limiter, str who, int64_t now_ns);

/* ---- door.c ---- */

void door_enter(struct call *call); /* from a new request to its route's function */
void door_leave(struct call *call); /* what the door keeps of it is forgotten */

/* ---- plans.c ---- */
/* Checks a plan that came in the member "plan" of a request and makes its reference. On a reader
 * thread. PLAN_INVALID, with all that is wrong. */
MUST_CHECK status plan_check_inline(struct call *call, str text, struct plan_ref *ref,
                                    struct error *err);

/* ---- waits.c ---- */

void waits_observe(struct api *api, const struct engine_note *note);

/* ---- append.c: the routes that append events; their rows are in the table of events.c ---- */

void post_run_events(struct call *call);
void post_events(struct call *call);
