/* api/call.c: one request: answering it, and sending it to other threads and back. */
#include <stdarg.h>

#include "api/impl.h"
#include "base/log.h"
#include "base/time.h"
#include "ledger/reference.h"

/* ---- answering ---- */

void call_header(struct call *c, const char *name, str value) {
    ASSERT(c->header_count < CALL_HEADERS_MAX);
    c->headers[c->header_count++] = (struct http_header){str_c(name), value};
}

str call_text(struct call *c, const char *fmt, ...) {
    char text[1024];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    size_t len = n < 0 ? 0 : (size_t)n;
    return arena_str(&c->arena, str_n(text, len < sizeof(text) ? len : sizeof(text) - 1));
}

str call_path(struct call *c, const char *prefix, str id) {
    static const char plain[] = "-._~"; /* besides letters and digits */
    struct buf path;
    buf_init(&path, (size_t)4 * ID_BYTES_MAX);
    buf_put_c(&path, prefix);
    for (size_t i = 0; i < id.len; i++) {
        char ch = id.ptr[i];
        bool alnum =
            (ch >= '0' && ch <= '9') || (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z');
        if (alnum || memchr(plain, ch, sizeof(plain) - 1))
            buf_put_char(&path, ch);
        else
            buf_printf(&path, "%%%02X", (unsigned)(unsigned char)ch);
    }
    str kept = arena_str(&c->arena, buf_str(&path));
    buf_release(&path);
    return kept;
}

static struct metric *request_metric(struct call *c, int code) {
    struct api *api = c->api;
    if (!c->route || !api->options.metrics) return NULL;
    struct metric **slot =
        &api->m_requests[route_index(c->route) * STATUS_CLASSES + (size_t)(code / 100)];
    if (!*slot) {
        char labels[160];
        snprintf(labels, sizeof(labels), "route=\"%s\",method=\"%s\",code=\"%dxx\"", c->route->path,
                 c->route->method, code / 100);
        *slot = metrics_counter(api->options.metrics, "cairn_http_requests_total",
                                "Requests answered, by route and class of status.", labels);
    }
    return *slot;
}

/* One line a request: what changed something, or failed here, is worth reading; the rest is for
 * those who look closely. Names the six correlation identifiers of the run that it was about. */
static void log_call(struct call *c, int code, const struct error *err) {
    bool changes = c->route && (c->route->traits & ROUTE_CHANGES);
    enum log_level level = code >= 500 ? LOG_ERROR : changes && code >= 400 ? LOG_INFO : LOG_DEBUG;
    struct log_field fields[20];
    size_t n = 0;
    fields[n++] = LOG_S("requestId", c->request->id);
    fields[n++] = LOG_S("method", c->request->method);
    fields[n++] = LOG_S("route", c->route ? str_c(c->route->path) : STR("none"));
    fields[n++] = LOG_N("status", code);
    fields[n++] = LOG_N("durationUs", (clock_mono_ns() - c->begun_ns) / 1000);
    fields[n++] = LOG_S("remote", c->request->remote);
    if (c->who) fields[n++] = LOG_S("actor", str_c(c->who->name));
    char trace[32];
    if (c->has_trace) {
        hex_encode(c->trace.b, sizeof(c->trace.b), trace);
        fields[n++] = LOG_S("traceId", str_n(trace, sizeof(trace)));
    }
    if (c->run_id.ptr) {
        fields[n++] = LOG_S("tenantId", c->tenant_id);
        fields[n++] = LOG_S("projectId", c->project_id);
        fields[n++] = LOG_S("environmentId", c->environment_id);
        fields[n++] = LOG_S("runId", c->run_id);
        fields[n++] = LOG_N("engineAttemptId", c->engine_attempt);
        fields[n++] = LOG_N("logicalAttemptId", c->logical_attempt);
    }
    if (err) {
        fields[n++] = LOG_S("code", str_c(error_name(err)));
        fields[n++] = LOG_S("error", str_c(err->msg));
    }
    log_write(level, "request", fields, n);
}

static void finish(struct call *c, int code, const struct error *err) {
    metric_add(request_metric(c, code), 1);
    log_call(c, code, err);
}

static void send_answer(struct call *c, int code, const char *content_type,
                        const struct error *err) {
    struct http_header all[CALL_HEADERS_MAX + 4];
    size_t n = 0;
    str body = buf_str(&c->out);
    if (content_type && body.len > 0)
        all[n++] = (struct http_header){STR("Content-Type"), str_c(content_type)};
    all[n++] = (struct http_header){STR("X-Request-Id"), c->request->id};
    all[n++] = (struct http_header){STR("X-Content-Type-Options"), STR("nosniff")};
    bool own_cache = false;
    for (size_t i = 0; i < c->header_count; i++) {
        own_cache |= http_name_eq(c->headers[i].name, STR("Cache-Control"));
        all[n++] = c->headers[i];
    }
    if (!own_cache) all[n++] = (struct http_header){STR("Cache-Control"), STR("no-store")};
    finish(c, code, err);
    c->cut = NULL;
    call_give_back(c); /* before the answer, which may bring the connection's next request */
    http_respond(c->exchange, code, all, n, body);
    c->request = NULL;
    c->exchange = NULL;
    call_end(c);
}

void call_answer_as(struct call *c, int code, const char *content_type) {
    if (c->out.full) {
        struct error err;
        error_at(&err, REASON_ANSWER_TOO_LARGE, "", "the answer is too large: ask for less");
        call_fail(c, &err);
        return;
    }
    send_answer(c, code, content_type, NULL);
}

void call_answer(struct call *c, int code) { call_answer_as(c, code, "application/json"); }

void call_fail(struct call *c, const struct error *err) {
    int code = problem_status(err);
    struct error shown = *err;
    if (code == 401) { /* why exactly is for the log */
        shown = (struct error){0};
        error_at(&shown, REASON_UNAUTHENTICATED, "",
                 "send \"Authorization: Bearer\" with an API key or token that is valid");
        call_header(c, "WWW-Authenticate", STR("Bearer realm=\"cairn\""));
    }
    if (problem_retryable(err, code)) {
        int64_t after = c->retry_after_s > 0 ? c->retry_after_s : 1;
        snprintf(c->retry_after, sizeof(c->retry_after), "%lld", (long long)after);
        call_header(c, "Retry-After", str_c(c->retry_after));
    }
    buf_clear(&c->out);
    problem_write(&c->out, &shown, code, c->request->id, c->has_trace ? &c->trace : NULL,
                  c->problems, c->problem_count);
    send_answer(c, code, "application/problem+json", err);
}

void call_refuse(struct call *c, enum reason reason, const char *where, const char *fmt, ...) {
    struct error err = {0};
    char text[ERROR_MSG_MAX];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    error_at(&err, reason, where, "%s", text);
    call_fail(c, &err);
}

void call_refuse_closing(struct call *c) {
    call_refuse(c, REASON_CLOSING, "", "the server is ending");
}

void call_handed_over(struct call *c, int code) {
    finish(c, code, NULL);
    c->cut = NULL;
    c->request = NULL;
    c->exchange = NULL;
}

/* ---- elsewhere and back ---- */

/* What a query may not use up of the arena: the answer needs some, and arena_alloc() panics. */
#define ARENA_KEPT ((size_t)64 * 1024)

static status job_work(struct reader_job *job, struct ledger *reader, struct error *err) {
    struct call *c = CONTAINER_OF(job, struct call, job);
    c->arena.cap -= ARENA_KEPT;
    if (c->may_stop) ledger_stop_on(reader, &c->api->stopping);
    status st = c->work(c, reader, err);
    if (c->may_stop) ledger_stop_on(reader, NULL);
    c->arena.cap += ARENA_KEPT;
    if (st == ST_RETRY && c->may_stop && atomic_load(&c->api->stopping))
        st = error_at(err, REASON_CLOSING, "", "the server is ending");
    return st;
}

static void reading_over(struct call *c) {
    share_give(c->reading, SHARE_QUERIES);
    c->reading = NULL;
}

/* On the loop again, from a reader or the ledger thread. */
static void come_back(struct call *c, status code, const struct error *err) {
    if (code != ST_OK) {
        call_fail(c, err);
    } else if (c->api->closing) {
        call_refuse_closing(c);
    } else if (c->then) {
        c->then(c);
    } else {
        call_answer(c, 200);
    }
}

static void job_done(struct reader_job *job) {
    struct call *c = CONTAINER_OF(job, struct call, job);
    reading_over(c);
    come_back(c, job->code, &job->err);
}

void call_read(struct call *c, call_work work, call_then then) {
    struct error err = {0};
    c->work = work;
    c->then = then;
    c->job = (struct reader_job){.work = job_work, .done = job_done};
    status st = ST_OK;
    if (c->who) /* else it is a route for everybody */
        st = share_take(&c->api->shares, str_c(c->who->tenant), SHARE_QUERIES, &c->reading, &err);
    if (st == ST_OK) st = readers_try(c->api->readers, &c->job, &err);
    if (st == ST_OK) return;
    reading_over(c);
    call_fail(c, &err);
}

static void change_done(struct bridge_call *change) {
    come_back(CONTAINER_OF(change, struct call, change), change->write.code, &change->write.err);
}

void call_later(struct call *c, call_then then) {
    c->then = then;
    c->change = (struct bridge_call){.done = change_done};
    bridge_post(c->api->bridge, &c->change);
}

/* A request from outside does not wait for room: it is told to come back. */
static void submit(struct call *c, call_then then) {
    struct error err = {0};
    c->then = then;
    c->change.done = change_done;
    if (c->api->closing)
        call_refuse_closing(c);
    else if (bridge_try(c->api->bridge, &c->change, &err) != ST_OK)
        call_fail(c, &err);
}

static status do_work(struct ledger *ledger, void *context, struct error *err) {
    struct call *c = context;
    c->out.len = c->out_before;
    c->header_count = c->headers_before;
    return c->work(c, ledger, err);
}

void call_change(struct call *c, call_work work, call_then then) {
    c->work = work;
    c->out_before = c->out.len;
    c->headers_before = c->header_count;
    c->change = (struct bridge_call){.write.member = {.body = do_work, .context = c}};
    submit(c, then);
}

void call_alone(struct call *c, call_work work, call_then then) {
    c->work = work;
    c->out_before = c->out.len;
    c->headers_before = c->header_count;
    c->change = (struct bridge_call){.write = {.task = do_work, .task_context = c}};
    submit(c, then);
}

void call_append(struct call *c, call_then then) { submit(c, then); }

/* ---- runs and tenants ---- */

/* The run that was looked for, if the caller may see it. */
static status found_run(struct call *c, status st, str run_id, const struct run_info *run,
                        struct error *err) {
    if (st == ST_OK && !principal_sees(c->who, run->tenant_id)) st = ST_NOT_FOUND;
    if (st == ST_NOT_FOUND)
        return error_at(err, REASON_RUN_NOT_FOUND, "", "there is no run \"%.*s\"", STR_ARG(run_id));
    if (st != ST_OK) return st;
    c->run_id = run->run_id;
    c->tenant_id = run->tenant_id;
    c->project_id = run->project_id;
    c->environment_id = run->environment_id;
    c->engine_attempt = run->head.engine_attempt;
    c->logical_attempt = 1;
    return ST_OK;
}

status call_find_run(struct call *c, struct ledger *reader, str run_id, struct run_info *out,
                     struct error *err) {
    status st = ledger_find_run(reader, run_id, &c->arena, out, err);
    return found_run(c, st, run_id, out, err);
}

status call_identify_run(struct call *c, struct ledger *reader, str run_id, struct run_info *out,
                         struct error *err) {
    status st = ledger_find_identity(reader, run_id, &c->arena, out, err);
    return found_run(c, st, run_id, out, err);
}

status call_find_ref(struct call *c, struct ledger *reader, const struct engine_run_ref *ref,
                     struct run_info *out, struct error *err) {
    status st = call_find_run(c, reader, ref->run_id, out, err);
    if (st == ST_OK) st = run_ref_match(reader, out, ref, err);
    if (st == ST_CONFLICT) error_under(err, "/engineRunRef");
    return st;
}

status call_tenant(struct call *c, str asked, str *out, struct error *err) {
    str own = str_c(c->who->tenant);
    bool all = str_eq(own, STR("*"));
    if (asked.ptr && (str_eq(asked, STR("*")) || !principal_sees(c->who, asked)))
        return error_at(err, REASON_TENANT_NOT_FOUND, "", "there is no tenant \"%.*s\"",
                        STR_ARG(asked));
    *out = asked.ptr ? asked : all ? STR_NONE : own;
    return ST_OK;
}

str call_new_id(struct call *c) {
    uuid id = uuid_v4();
    char text[UUID_TEXT_LEN];
    if (c->keyed) {
        uint8_t hash[SHA256_LEN];
        char request[2 * SHA256_LEN]; /* a key may be used for another one when a day is over */
        hex_encode(c->receipt.fingerprint, SHA256_LEN, request);
        sha256_of(call_text(c, "%.*s\n%.*s\n%.*s", STR_ARG(c->receipt.scope),
                            STR_ARG(c->receipt.key), (int)sizeof(request), request),
                  hash);
        memcpy(id.b, hash, sizeof(id.b));
        id.b[6] = (uint8_t)(0x40 | (id.b[6] & 0x0F));
        id.b[8] = (uint8_t)(0x80 | (id.b[8] & 0x3F));
    }
    uuid_format(id, text);
    return arena_str(&c->arena, str_n(text, sizeof(text)));
}

str call_actor(struct call *c) {
    if (c->trusted) return arena_str(&c->arena, str_c(c->who->name));
    /* The address is what an auditor misses most; a long name gives way to it. */
    str remote = c->request->remote;
    size_t room = ACTOR_BYTES_MAX - 1 - (remote.len < 46 ? remote.len : 46);
    size_t len = strlen(c->who->name);
    if (len > room) {
        len = room; /* never in the middle of a character */
        while (len > 0 && ((unsigned char)c->who->name[len] & 0xC0) == 0x80)
            len--;
    }
    return call_text(c, "%.*s@%.46s", (int)len, c->who->name, arena_str(&c->arena, remote).ptr);
}

const struct append_rider *call_riders(struct call *c, str target, str reason, int code,
                                       bool again) {
    c->audit = (struct audit_entry){
        .tenant_id = c->tenant_id.ptr ? c->tenant_id : str_c(c->who->tenant),
        .actor = str_c(c->who->name),
        .remote = c->request->remote,
        .request_id = c->request->id,
        .action = str_c(c->route->name),
        .target = target,
        .outcome = STR("done"),
        .code = STR_NONE,
        .reason = reason,
        .project_id = c->project_id,
        .environment_id = c->environment_id,
        .run_id = c->run_id,
        .engine_attempt = c->engine_attempt,
        .logical_attempt = c->logical_attempt,
    };
    (void)call_receipt(c, code, again);
    c->rider.audit = &c->audit;
    return &c->rider;
}

const struct append_rider *call_receipt(struct call *c, int code, bool again) {
    c->rode = false;
    c->rider = (struct append_rider){.rode = &c->rode};
    if (!c->keyed || c->before) return NULL;
    c->receipt.http_status = code;
    c->receipt.body = STR_NONE;
    if (!again && c->out.len <= RECEIPT_BODY_MAX)
        c->receipt.body = arena_str(&c->arena, buf_str(&c->out));
    c->rider.receipt = &c->receipt;
    return &c->rider;
}

static status ride_alone(struct call *c, struct ledger *ledger, struct error *err) {
    return access_ride(ledger, &c->rider, err);
}

void call_ride(struct call *c, call_then then) {
    if (c->rider.receipt || c->rider.audit)
        call_change(c, ride_alone, then);
    else
        then(c);
}

/* Of one request: a receipt for each line of a batch, and for each task that it took. */
enum { RECEIPTS_MAX = 4096 };

status call_receipts(struct call *c, struct ledger *reader, struct receipt **out, size_t *count,
                     struct error *err) {
    return receipt_list(reader, c->receipt.scope, c->receipt.key, RECEIPTS_MAX, &c->arena, out,
                        count, err);
}
