/* tests/conformance/engine_helper.h: an engine at work, for tests: a host over a fresh store, with
 * its loop, and runs to completion or to a condition. Functions check what they do and fail the
 * test. */
#pragma once

#include <uv.h>

#include "host/host.h"
#include "test.h"

struct bed {
    uv_loop_t loop;
    struct host *host;
    struct host_options options;
    struct arena arena;
    str data_dir;
    bool lost;
    /* Counted as commits are seen. */
    int64_t events[EVENT_TYPE_COUNT];
    /* Called for every committed event, if set. */
    void (*on_event)(struct bed *bed, const struct engine_note *note, size_t i);
    void *context;
};

/* Opens a host on `url` with a folder of its own. bed_init() first, then change bed->options. */
void bed_init(struct bed *bed, str url);
void bed_open(struct bed *bed);
void bed_close(struct bed *bed);  /* the host and the loop; the store and the folder stay */
void bed_reopen(struct bed *bed); /* as after a restart */
void bed_release(struct bed *bed);

/* Puts the plan into the store and gives its reference. */
struct plan_ref bed_put(struct bed *bed, const char *plan_text);
/* {tenant acme, project shop, environment prod} */
struct start_request bed_request(struct bed *bed, const char *plan_text, const char *run_id);
/* The answer to a start or a signal. */
/* Waits for the answers. */
MUST_CHECK status bed_heartbeat(struct bed *bed, const struct task_ref *ref, int64_t lease_ms,
                                int64_t *until_us, struct error *err);
MUST_CHECK status bed_task_again(struct bed *bed, const struct task_ref *ref, struct task *out,
                                 struct error *err);
status bed_start(struct bed *bed, const struct start_request *request, struct error *err);
status bed_signal(struct bed *bed, const char *run_id, const char *name, const char *step,
                  const char *signal_id, struct error *err);
/* Starts (run id as given) and runs to the end; the final status. */
enum run_status bed_run(struct bed *bed, const char *plan_text, const char *run_id);
/* Turns the loop until the run is in the state, or final; fails the test after 30 s. */
enum run_status bed_wait(struct bed *bed, const char *run_id);
void bed_wait_event(struct bed *bed, enum event_type type, int64_t count);
void bed_turn(struct bed *bed, int64_t ms); /* lets the loop run so long */
enum run_status bed_status(struct bed *bed, const char *run_id);
/* "RunStarted a:StepStarted#1 a:StepCompleted#1 RunCompleted": the run's events, facts left out. */
str bed_history(struct bed *bed, const char *run_id);
/* A member of the payload of the n-th (0, 1, ...) event of that type; STR_NONE. */
str bed_payload(struct bed *bed, const char *run_id, enum event_type type, size_t n);
