/* api/json_out.c: small pieces of answers. */
#include "api/impl.h"
#include "base/time.h"

void put_comma(struct buf *out) {
    if (out->len == 0) return;
    char last = out->ptr[out->len - 1];
    if (last != '{' && last != '[' && last != '\n') buf_put_char(out, ',');
}

void put_name(struct buf *out, const char *name) {
    put_comma(out);
    buf_put_char(out, '"');
    buf_put_c(out, name);
    buf_put_c(out, "\":");
}

void put_text(struct buf *out, const char *name, str value) {
    put_name(out, name);
    if (value.ptr)
        buf_put_json_str(out, value);
    else
        buf_put_c(out, "null");
}

void put_text_if(struct buf *out, const char *name, str value) {
    if (value.ptr) put_text(out, name, value);
}

void put_int(struct buf *out, const char *name, int64_t value) {
    put_name(out, name);
    buf_put_int(out, value);
}

void put_bool(struct buf *out, const char *name, bool value) {
    put_name(out, name);
    buf_put_c(out, value ? "true" : "false");
}

void put_time(struct buf *out, const char *name, int64_t us) {
    char text[TIME_TEXT_MAX];
    put_text(out, name, us ? str_n(text, time_format_us(us, text)) : STR_NONE);
}

void put_uuid(struct buf *out, const char *name, uuid value) {
    char text[UUID_TEXT_LEN];
    uuid_format(value, text);
    put_text(out, name, str_n(text, sizeof(text)));
}

void put_next_text(struct buf *out, str cursor) {
    buf_put_char(out, ']');
    put_text(out, "next", cursor);
    buf_put_char(out, '}');
}

void put_next(struct buf *out, bool more, char kind, int64_t a, int64_t b) {
    char mem[64];
    struct buf cursor;
    buf_init_fixed(&cursor, mem, sizeof(mem));
    if (more) cursor_write(&cursor, kind, a, b);
    put_next_text(out, more ? buf_str(&cursor) : STR_NONE);
}

void put_run(struct buf *out, const struct run_info *run) {
    const struct run_head *h = &run->head;
    put_text(out, "runId", run->run_id);
    put_text(out, "tenantId", run->tenant_id);
    put_text(out, "projectId", run->project_id);
    put_text(out, "environmentId", run->environment_id);
    put_text(out, "planId", run->plan_id);
    put_text(out, "planVersion", run->plan_version);
    put_uuid(out, "correlationId", run->correlation_id);
    put_text(out, "status", str_c(run_status_name(h->status)));
    put_text(out, "mark", h->inconsistent ? STR("INCONSISTENT") : STR_NONE);
    put_int(out, "runSeq", h->run_seq);
    put_int(out, "totalSteps", h->total_steps);
    put_int(out, "failedSteps", h->failed_steps);
    put_int(out, "openSteps", h->open_steps);
    put_int(out, "engineAttemptId", h->engine_attempt);
    put_time(out, "openedAt", run->opened_us);
    put_time(out, "startedAt", run->started_us);
    put_time(out, "completedAt", run->ended_us);
    put_time(out, "updatedAt", run->updated_us);
}

void put_error(struct buf *out, const struct error *err) {
    buf_put_char(out, '{');
    put_text(out, "code", str_c(problem_code(err)));
    put_text(out, "where", str_c(err->where));
    put_text(out, "message", str_c(err->msg));
    buf_put_char(out, '}');
}
