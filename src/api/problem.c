/* api/problem.c: failures as RFC 9457 problems. One table from our reasons to HTTP's numbers. */
#include "api/impl.h"

/* Reasons whose HTTP status is not that of their class. */
static const struct {
    const char *reason;
    int http_status;
} exceptions[] = {
    {"UNAUTHENTICATED", 401},
    {"FORBIDDEN", 403},
    {"ORIGIN_NOT_ALLOWED", 403},
    {"METHOD_NOT_ALLOWED", 405},
    {"NOT_ACCEPTABLE", 406},
    {"PRECONDITION_FAILED", 412},
    {"BODY_TOO_LARGE", 413},
    {"JSON_TOO_LARGE", 413},
    {"BATCH_TOO_LARGE", 413},
    {"LINE_TOO_LONG", 413},
    {"PLAN_TOO_LARGE", 413},
    {"UNSUPPORTED_MEDIA_TYPE", 415},
    {"MISDIRECTED_REQUEST", 421},
    {"IDEMPOTENCY_KEY_REUSED", 422},
    {"PARAMETERS_INVALID", 422},
    {"CONTEXT_INVALID", 422},
    {"ADAPTER_UNAVAILABLE", 422},
    {"PRECONDITION_REQUIRED", 428},
    {"RATE_LIMITED", 429},
    {"QUEUE_FULL", 429},
    {"STREAMS_TOO_MANY", 429},
    {"POLLS_TOO_MANY", 429},
    {"TENANT_QUERIES_TOO_MANY", 429},
    {"TENANT_STREAMS_TOO_MANY", 429},
    {"TENANT_POLLS_TOO_MANY", 429},
    {"TENANT_FETCHES_TOO_MANY", 429},
    {"TENANT_PLANS_TOO_MANY", 429},
    {"PLAN_FETCHES_TOO_MANY", 429},
    {"PLANS_TOO_MANY", 429},
    {"JSON_DEPTH", 400},
};

int problem_status(const struct error *err) {
    const char *reason = err->reason;
    for (size_t i = 0; reason && i < COUNT_OF(exceptions); i++) {
        if (strcmp(exceptions[i].reason, reason) == 0) return exceptions[i].http_status;
    }
    switch (err->code) {
    case ST_OK:
        return 200;
    case ST_INVALID:
        if (!reason) return 400;
        if (strncmp(reason, "JWT_", 4) == 0) return 401;
        /* A reference or plan that is well-formed but cannot be run. */
        return strncmp(reason, "PLAN_", 5) == 0 || strncmp(reason, "INVALID_STEP", 12) == 0 ||
                       strncmp(reason, "STEP_TYPE", 9) == 0
                   ? 422
                   : 400;
    case ST_NOT_FOUND:
        return 404;
    case ST_CONFLICT:
        return 409;
    case ST_LIMIT:
        return 422;
    case ST_RETRY:
        return 503;
    case ST_CORRUPT:
        return 500;
    }
    return 500;
}

bool problem_retryable(const struct error *err, int http_status) {
    return http_status == 429 || http_status == 503 ||
           (err->reason && strcmp(err->reason, "IDEMPOTENCY_KEY_IN_USE") == 0);
}

const char *problem_code(const struct error *err) {
    if (err->reason) return err->reason;
    switch (err->code) {
    case ST_OK:
        return "OK";
    case ST_INVALID:
        return "INVALID";
    case ST_NOT_FOUND:
        return "NOT_FOUND";
    case ST_CONFLICT:
        return "CONFLICT";
    case ST_LIMIT:
        return "LIMIT";
    case ST_RETRY:
        return "TRY_AGAIN";
    case ST_CORRUPT:
        return "DAMAGED";
    }
    return "INTERNAL";
}

static void put_item(struct buf *out, str where, str code, str message) {
    json_object_begin(out);
    json_put_text(out, "pointer", where);
    json_put_text(out, "code", code);
    json_put_text(out, "detail", message);
    json_object_end(out);
}

void problem_write(struct buf *out, const struct error *err, int http_status, str request_id,
                   const uuid *trace, const struct problem_item *items, size_t count) {
    const char *code = problem_code(err);
    json_object_begin(out);
    json_name(out, "type");
    buf_printf(out, "\"urn:cairn:problem:%s\"", code);
    json_put_text(out, "title", str_c(http_status_text(http_status)));
    json_put_int(out, "status", http_status);
    json_put_text(out, "detail", str_c(err->msg));
    json_put_text(out, "code", str_c(code));
    json_put_bool(out, "retryable", problem_retryable(err, http_status));
    json_put_text_if(out, "requestId", request_id);
    if (trace) {
        json_name(out, "traceId");
        buf_put_char(out, '"');
        buf_put_hex(out, trace->b, sizeof(trace->b));
        buf_put_char(out, '"');
    }
    if (count > 0 || err->where[0]) {
        json_name(out, "errors");
        json_array_begin(out);
        if (count == 0) put_item(out, str_c(err->where), str_c(code), str_c(err->msg));
        for (size_t i = 0; i < count; i++)
            put_item(out, items[i].pointer, items[i].code, items[i].message);
        json_array_end(out);
    }
    json_object_end(out);
}

void api_problem(void *context, int http_status, const char *code, const char *detail,
                 struct buf *body) {
    (void)context;
    struct error err = {.reason = code};
    snprintf(err.msg, sizeof(err.msg), "%s", detail);
    problem_write(body, &err, http_status, STR_NONE, NULL, NULL, 0);
}
