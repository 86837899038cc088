/* api/json_out.c: small pieces of answers. */
#include "api/impl.h"

void page_begin(struct buf *out) {
    json_object_begin(out);
    json_name(out, "items");
    json_array_begin(out);
}

void page_end_text(struct buf *out, str cursor) {
    json_array_end(out);
    json_put_text(out, "next", cursor);
    json_object_end(out);
}

void page_end(struct buf *out, bool more, char kind, int64_t a, int64_t b) {
    char mem[64];
    struct buf cursor;
    buf_init_fixed(&cursor, mem, sizeof(mem));
    if (more) cursor_write(&cursor, kind, a, b);
    page_end_text(out, more ? buf_str(&cursor) : STR_NONE);
}

void put_run(struct buf *out, const struct run_info *run) {
    const struct run_head *h = &run->head;
    json_put_text(out, "runId", run->run_id);
    json_put_text(out, "tenantId", run->tenant_id);
    json_put_text(out, "projectId", run->project_id);
    json_put_text(out, "environmentId", run->environment_id);
    json_put_text(out, "planId", run->plan_id);
    json_put_text(out, "planVersion", run->plan_version);
    json_put_uuid(out, "correlationId", run->correlation_id);
    json_put_text(out, "status", str_c(run_status_name(h->status)));
    json_put_text(out, "mark", h->inconsistent ? STR("INCONSISTENT") : STR_NONE);
    json_put_int(out, "runSeq", h->run_seq);
    json_put_int(out, "totalSteps", h->total_steps);
    json_put_int(out, "failedSteps", h->failed_steps);
    json_put_int(out, "openSteps", h->open_steps);
    json_put_int(out, "engineAttemptId", h->engine_attempt);
    json_put_time(out, "openedAt", run->opened_us);
    json_put_time(out, "startedAt", run->started_us);
    json_put_time(out, "completedAt", run->ended_us);
    json_put_time(out, "updatedAt", run->updated_us);
}

void put_error(struct buf *out, const struct error *err) {
    json_object_begin(out);
    json_put_text(out, "code", str_c(problem_code(err)));
    json_put_text(out, "where", str_c(err->where));
    json_put_text(out, "message", str_c(err->msg));
    json_object_end(out);
}
