/* adapters/conductor/rig_test.h: an engine with one run, in memory, behind the ports of a
 * provider; a real executor; and a way to a real Conductor that can be cut.
 *
 * It decides every few milliseconds, like the real one: starts what is ready, tries again what
 * failed, settles, ends. A test looks at what became of it, here and at the cluster. */
#pragma once

#include <uv.h>

#include "adapters/conductor/conductor.h"
#include "adapters/local/local.h"
#include "base/json.h"
#include "net/fake_server_test.h"

enum { RIG_STEPS_MAX = 128, RIG_WAIT_MS = 60000 };

struct rig_step {
    enum provider_step_state state;
    int fails;         /* so many attempts fail */
    bool skips;        /* it is skipped when its turn comes */
    bool held;         /* a step without an executor is settled only when this is taken back */
    bool in_flight;    /* an attempt is */
    bool answered, ok; /* ... was, and how */
    int starts, results;
    int64_t attempt;
    struct attempt asked;
    char body[512];
    char code[64];
    char output[256];
};
struct rig {
    uv_loop_t loop;
    uv_timer_t clock;
    struct arena arena;
    struct executor *ex;
    struct provider *provider; /* NULL: not open */
    const char *dir;           /* where steps leave traces */
    struct plan *plan;
    char run_id[64], node[64];
    char workflow[128], queue[128];
    struct rig_step steps[RIG_STEPS_MAX];
    enum run_status status;
    char code[64], message[128];
    bool loaded, paused, not_ours;
    bool obeys; /* a signal to pause or resume has its effect */
    int links, looks, signals, recovered, ended;
    int64_t recovered_times, recovered_attempt;
    char signal[32], signal_id[256], ended_code[64], ended_message[256];
    /* The way to the server. */
    char server[256];
    struct fake_server *proxy;
    bool down;           /* connections are cut */
    int lose_answers_of; /* so many answers to a start are lost */
    int starts;          /* of workflows, that passed */
};

/* `steps`: the array of a plan, with ' for ". Skips the test without a server. The run is loaded,
 * the provider is not open. */
void rig_open(struct rig *e, const char *steps);
void rig_close(struct rig *e);
void rig_connect(struct rig *e);    /* opens a provider */
void rig_disconnect(struct rig *e); /* closes it, and what it executes */
/* As if the process had died: nobody gives anything back, nobody extends a lease. */
void rig_crash(struct rig *e);
struct rig_step *rig_step(struct rig *e, const char *id);
/* Runs the loop until the condition holds; fails the test after RIG_WAIT_MS. */
#define RIG_UNTIL(e, cond)                                                                         \
    for (int64_t deadline = rig_deadline(); !(cond);)                                              \
    rig_turn_before((e), deadline, #cond)
void rig_turn_before(struct rig *e, int64_t deadline, const char *what);
int64_t rig_deadline(void);
bool rig_turn(struct rig *e, int64_t deadline);
void rig_run_for(struct rig *e, int64_t ms);
void rig_begin(struct rig *e, const char *id); /* before its turn */
void rig_pause(struct rig *e, bool paused);
void rig_end(struct rig *e, enum run_status value, const char *code, const char *message);
/* A request to the server itself. The answer's JSON, or NULL. */
yyjson_val *rig_ask(struct rig *e, const char *method, const char *path, str body);
str rig_cluster_status(struct rig *e); /* of the run's workflow */
/* The newest task of a step: a member's text; "" if there is none. */
str rig_task(struct rig *e, const char *step_id, const char *member);
int rig_task_count(struct rig *e, const char *step_id);
int rig_traces(struct rig *e, const char *name); /* lines of a file in e->dir */
