/* api/problem.c: failures as RFC 9457 problems; base/reason.def has the numbers. */
#include "api/impl.h"

int problem_status(const struct error *err) { return reason_http_status(err->reason, err->code); }

/* What the server refuses before there is a call has its own number, and no status. */
bool problem_retryable(const struct error *err, int http_status) {
    if (err->code != ST_OK) return reason_retryable(err->reason, err->code);
    return http_status == 429 || http_status == 503;
}

static void put_item(struct buf *out, str where, str code, str message) {
    json_object_begin(out);
    json_put_text(out, "pointer", where);
    json_put_text(out, "code", code);
    json_put_text(out, "detail", message);
    json_object_end(out);
}

void problem_line(struct buf *out, const struct error *err) {
    json_object_begin(out);
    json_put_text(out, "code", str_c(error_name(err)));
    json_put_text(out, "where", str_c(err->where));
    json_put_text(out, "message", str_c(err->msg));
    json_object_end(out);
}

void problem_write(struct buf *out, const struct error *err, int http_status, str request_id,
                   const uuid *trace, const struct problem_item *items, size_t count) {
    const char *code = error_name(err);
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
    struct error err = {.reason = reason_find(str_c(code))};
    snprintf(err.msg, sizeof(err.msg), "%s", detail);
    problem_write(body, &err, http_status, STR_NONE, NULL, NULL, 0);
}
