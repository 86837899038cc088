/* engine/task_ref.c: the text of a task_ref: "t1.<attempt>.<lease>.<bytes of the run
 * id>.<run><step>". Tokens of workers and receipts of polls are made of it. */
#include "engine/engine.h"

void task_ref_write(struct buf *out, const struct task_ref *ref) {
    buf_printf(out, "t1.%lld.%lld.%zu.", (long long)ref->attempt, (long long)ref->lease,
               ref->run_id.len);
    buf_put(out, ref->run_id);
    buf_put(out, ref->step_id);
}

bool task_ref_read(str text, struct task_ref *out) {
    struct task_ref ref = {.tenant_id = STR_NONE};
    str attempt;
    str lease;
    str len;
    int64_t run_len = 0;
    if (!str_starts(text, STR("t1."))) return false;
    text = str_from(text, 3);
    bool good = str_split(text, '.', &attempt, &text) && str_split(text, '.', &lease, &text) &&
                str_split(text, '.', &len, &text) && str_to_int(attempt, &ref.attempt) &&
                str_to_int(lease, &ref.lease) && str_to_int(len, &run_len) && run_len > 0 &&
                (size_t)run_len < text.len && str_utf8(text, &(size_t){0});
    if (!good) return false;
    ref.run_id = str_n(text.ptr, (size_t)run_len);
    ref.step_id = str_from(text, (size_t)run_len);
    *out = ref;
    return true;
}
