/* core/plan_retry.c: how often a failed step is tried again, and after how long. */
#include "core/plan_impl.h"

#define RETRY_FACTOR_MAX 100.0

const struct plan_retry plan_retry_none = {
    .attempts_max = 1, .initial_ms = 1000, .max_ms = 60000, .factor = 2, .jitter = 0};

static void read_factor(struct parse *p, yyjson_val *val, void *into) {
    struct plan_retry *retry = into;
    (void)plan_take_number(p, val, "factor", 1, RETRY_FACTOR_MAX, &retry->factor);
}

static void read_jitter(struct parse *p, yyjson_val *val, void *into) {
    struct plan_retry *retry = into;
    (void)plan_take_number(p, val, "jitter", 0, 1, &retry->jitter);
}

static void read_codes(struct parse *p, yyjson_val *val, void *into) {
    struct plan_retry *retry = into;
    (void)plan_take_ids(p, val, "nonRetryable", &retry->non_retryable, &retry->non_retryable_count);
}

static const struct field retry_fields[] = {
    {.name = STR_LIT("maxAttempts"),
     .kind = FIELD_INT,
     .min = 1,
     .max = PLAN_ATTEMPTS_MAX,
     .into = offsetof(struct plan_retry, attempts_max)},
    {.name = STR_LIT("initialMs"),
     .kind = FIELD_INT,
     .min = 0,
     .max = PLAN_DELAY_MS_MAX,
     .into = offsetof(struct plan_retry, initial_ms)},
    {.name = STR_LIT("factor"), .kind = FIELD_CUSTOM, .read = read_factor},
    {.name = STR_LIT("maxMs"),
     .kind = FIELD_INT,
     .min = 0,
     .max = PLAN_DELAY_MS_MAX,
     .into = offsetof(struct plan_retry, max_ms)},
    {.name = STR_LIT("jitter"), .kind = FIELD_CUSTOM, .read = read_jitter},
    {.name = STR_LIT("nonRetryable"), .kind = FIELD_CUSTOM, .read = read_codes},
};

void plan_read_retry(struct parse *p, yyjson_val *val, const struct plan_retry *base,
                     struct plan_retry *out) {
    const char *outer = p->prefix;
    *out = *base; /* what the object does not say stays as it is */
    if (!plan_take_object(p, val, "retry")) return;
    p->prefix = p->in_step ? "retry." : "defaults.retry.";
    plan_read_fields(p, val, FIELD_LIST(retry_fields), FIELD_LIST_NONE, out);
    p->prefix = outer;
}

/* Multiplies step by step instead of calling pow(): the same bits on every machine, and so the same
 * delay on replay. Past max_ms it cannot grow any more. */
int64_t plan_backoff_ms(const struct plan_retry *retry, int64_t attempt, uint64_t random) {
    double max = (double)retry->max_ms;
    double delay = (double)retry->initial_ms;
    int64_t times = attempt < PLAN_ATTEMPTS_MAX ? attempt : PLAN_ATTEMPTS_MAX;
    for (int64_t i = 1; i < times && delay < max && retry->factor > 1; i++)
        delay *= retry->factor;
    if (!(delay < max)) delay = max;
    double part = (double)(random >> 11) * 0x1p-53; /* 0 <= part < 1 */
    delay *= 1 + retry->jitter * (2 * part - 1);
    return delay > 0 ? (int64_t)delay : 0;
}
