/* tests/load/event.h: small things that the programs here share: an event to append, numbers from
 * the environment, how much memory a process has. */
#pragma once

#include "core/event.h"
#include "load/child.h"

/* The event of a run that makes `type` of step `number`, as JSON, with `filler` bytes of payload.
 */
static inline void put_event(const char *run_id, enum event_type type, int64_t number,
                             size_t filler, struct buf *out) {
    char step[32];
    char payload[4096];
    struct error err = {0};
    struct event e = {.run_id = str_c(run_id),
                      .tenant_id = STR("tenant"),
                      .project_id = STR("p"),
                      .environment_id = STR("e"),
                      .plan_id = STR("plan"),
                      .plan_version = STR("1"),
                      .engine_attempt = 1,
                      .logical_attempt = 1,
                      .event_id = uuid_v4(),
                      .emitted_ns = 1771228800000000000 + number,
                      .emitted_digits = 9};
    if (filler > sizeof(payload) - 64) filler = sizeof(payload) - 64;
    snprintf(step, sizeof(step), "step-%lld", (long long)number);
    e.type_name = type == EVENT_UNKNOWN ? STR("StepPondered") : event_type_info(type)->name;
    if (type == EVENT_UNKNOWN) e.subject = str_c(step);
    if (filler > 0) {
        struct buf b;
        buf_init_fixed(&b, payload, sizeof(payload));
        buf_put_c(&b, "{\"text\":\"");
        for (size_t i = 0; i < filler; i++)
            buf_put_char(&b, '.');
        buf_put_c(&b, "\"}");
        e.payload = buf_str(&b);
    }
    event_key_derive(&e, e.key);
    if (event_validate(&e, &err) != ST_OK) abort();
    event_write_json(&e, out);
}

static inline int64_t number_from(const char *name, int64_t otherwise) {
    const char *text = getenv(name);
    int64_t n = 0;
    return text && str_to_int(str_c(text), &n) && n > 0 ? n : otherwise;
}

/* Sanitizers are slow and need memory: CAIRN_TEST_SCALE (percent) says how much less to do. */
static inline size_t scaled(size_t n) {
    return n * (size_t)number_from("CAIRN_TEST_SCALE", 100) / 100;
}

/* Resident memory of a process in MiB; 0 if nobody knows. */
static inline double resident_mib(pid_t pid) {
    char path[64];
    long long pages = 0;
    snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    if (fscanf(f, "%*d %lld", &pages) != 1) pages = 0;
    fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / (1024.0 * 1024.0);
}
