/* Runs that a real Temporal dispatches: the same plans, the same events, and the ids of both sides.
 * (Those of Conductor are in provider_conductor.c.) */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/os.h"
#include "base/time.h"
#include "conformance/provider_helper.h"

#define QUICK(id, more) SH(id, "echo " id, more)

static struct run_info resolve(struct cluster *c, const char *provider, str workflow, str run) {
    struct run_info info = {0};
    struct error err = {0};
    status st = ledger_find_provider(host_reader(c->bed.host), STR_NONE, str_c(provider), workflow,
                                     run, &c->bed.arena, &info, &err);
    CHECK(st == ST_OK, "%.*s: %s", STR_ARG(run), err.msg);
    return info;
}

/* WE-2.1-8: temporal and conductor are taken, auto, any and mock are not. A cluster that cannot be
 * reached is waited for: the run is queued, and says for whom. */
TEST_DB(provider_names_are_temporal_and_conductor) {
    struct bed bed;
    struct error err = {0};
    bed_init(&bed, url);
    struct temporal_options temporal = {.target = STR("127.0.0.1:1")};
    struct conductor_options conductor = {.url = STR("http://127.0.0.1:1")};
    bed.options.temporal = &temporal;
    bed.options.conductor = &conductor;
    bed_open(&bed);
    const char *const wrong[] = {"auto", "any", "mock", "", "Temporal"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        struct start_request q = bed_request(&bed, PLAN(NOOP("a", "")), "w");
        q.adapter = str_c(wrong[i]);
        start_refused(&bed, &q, "CONTEXT_INVALID");
    }
    const char *const right[] = {"temporal", "conductor"};
    for (size_t i = 0; i < COUNT_OF(right); i++) {
        struct start_request q = bed_request(&bed, PLAN(NOOP("a", "")), right[i]);
        q.adapter = str_c(right[i]);
        CHECK(bed_start(&bed, &q, &err) == ST_OK, "%s: %s", right[i], err.msg);
        CHECK(is(shown(&bed, right[i]), "PENDING"));
        CHECK(is(bed_payload(&bed, right[i], EVENT_RUN_QUEUED, 0), "{\"reason\":\"provider\"}"));
        struct explanation x = explained(&bed, right[i]);
        CHECK(x.count == 1 && x.waits[0].kind == WAIT_PROVIDER && is(x.waits[0].on, right[i]));
    }
    /* Who waits can be cancelled; the same id with another adapter is something else. */
    struct start_request q = bed_request(&bed, PLAN(NOOP("a", "")), "temporal");
    start_refused(&bed, &q, "RUN_ID_TAKEN");
    tell(&bed, "temporal", "CANCEL", "c1");
    CHECK(bed_wait(&bed, "temporal") == RUN_CANCELLED);
    bed_release(&bed);
}

/* WE-2.1-9: the plan says any, the context says temporal: it runs there. The history is that of a
 * local run but for RunQueued and the link, and it verifies. WE-2.1.3-11: it is found by its runId.
 * WE-2.1.3-13: and by the provider's three ids, with the same metadata. */
TEST_DB(provider_temporal_carries_out_a_plan) {
    struct cluster c;
    cluster_temporal(&c, url);
    cluster_open(&c);
    cluster_start(&c,
                  PLAN_META(",\"targetAdapter\":\"any\"", "",
                            STEP("a", "exec",
                                 ",\"command\":[\"echo\",\"{\\\"n\\\":7}\"],"
                                 "\"output\":\"json\""),
                            STEP("b", "exec",
                                 ",\"command\":[\"echo\",\"{{ steps.a.output.n }}\"]" AFTER("a")),
                            NOOP("c", AFTER("b"))));
    CHECK(cluster_end(&c) == RUN_COMPLETED, "%.*s", STR_ARG(bed_history(&c.bed, c.run)));
    check_history(&c.bed, c.run,
                  "RunQueued RunProviderLinked RunStarted a:StepStarted#1 a:StepCompleted#1 "
                  "b:StepStarted#1 b:StepCompleted#1 c:StepStarted#1 c:StepCompleted#1 "
                  "RunCompleted");
    CHECK(holds(bed_payload(&c.bed, c.run, EVENT_STEP_COMPLETED, 1), "7"));
    CHECK(holds(bed_payload(&c.bed, c.run, EVENT_RUN_STARTED, 0), "\"adapter\":\"temporal\""));
    struct run_info by_ref =
        resolve(&c, "temporal", cluster_link(&c, "workflowId"), cluster_link(&c, "providerRunId"));
    struct run_info by_id = {0};
    struct error err = {0};
    CHECK(ledger_find_run(host_reader(c.bed.host), str_c(c.run), &c.bed.arena, &by_id, &err) ==
          ST_OK);
    CHECK(by_ref.run_no == by_id.run_no && by_ref.head.last_seq == by_id.head.last_seq);
    cluster_until_shows(&c, "COMPLETED");
    str history = temporal_says(&c, "workflow show -w %s -o json", c.run);
    CHECK(holds(history, "\"a#1\"") && holds(history, "\"b#1\"") && !holds(history, "\"a#2\""));
    CHECK(!holds(history, "\"c#1\"")); /* nobody executes a noop */
    cluster_release(&c);
}

/* WE-2.1.3-10, temporal: who knows only Temporal's ids reaches the run, and what follows carries
 * its tenant, project, environment and run; the ids themselves resolve to them. */
TEST_DB(provider_temporal_resolves_native_ids) {
    struct cluster c;
    cluster_temporal(&c, url);
    cluster_open(&c);
    cluster_start(&c, PLAN(STEP("w", "wait", ",\"signal\":\"go\""), QUICK("a", AFTER("w"))));
    until_status(&c.bed, c.run, RUN_RUNNING);
    struct run_info info =
        resolve(&c, "temporal", cluster_link(&c, "workflowId"), cluster_link(&c, "providerRunId"));
    CHECK(is(info.run_id, c.run) && is(info.tenant_id, "acme") && is(info.project_id, "shop") &&
          is(info.environment_id, "prod"));
    (void)temporal_says(&c,
                        "workflow signal -w %s -r %.*s --name PAUSE --input '{\"signalId\":\"p1\","
                        "\"reason\":\"lunch\"}'",
                        c.run, STR_ARG(cluster_link(&c, "providerRunId")));
    until_status(&c.bed, c.run, RUN_PAUSED);
    cluster_has_ids(&c, EVENT_RUN_PAUSED);
    CHECK(holds(bed_payload(&c.bed, c.run, EVENT_RUN_PAUSED, 0), "lunch"));
    /* The same signal again has no second effect, whichever way it comes. */
    tell(&c.bed, c.run, "RESUME", "r1");
    until_status(&c.bed, c.run, RUN_RUNNING);
    tell(&c.bed, c.run, "PAUSE", "p1");
    (void)temporal_says(&c, "workflow signal -w %s --name PAUSE --input '{\"signalId\":\"p1\"}'",
                        c.run);
    (void)temporal_says(&c, "workflow signal -w %s --name go --input '{\"signalId\":\"g1\"}'",
                        c.run);
    CHECK(cluster_end(&c) == RUN_COMPLETED);
    CHECK(count_rows(&c.bed, c.run, EVENT_RUN_PAUSED) == 1);
    cluster_release(&c);
}

/* Cancelled with Temporal's own tool, a run is CANCELLED, and so is one that is terminated there.
 */
TEST_DB(provider_temporal_ends_from_outside) {
    struct cluster c;
    cluster_temporal(&c, url);
    cluster_open(&c);
    cluster_start(&c, PLAN(SH("a", "exec sleep 60", "")));
    until_rows(&c.bed, c.run, EVENT_STEP_STARTED, 1);
    (void)temporal_says(&c, "workflow cancel -w %s", c.run);
    CHECK(cluster_end(&c) == RUN_CANCELLED);
    cluster_until_shows(&c, "CANCELED");

    snprintf(c.run, sizeof(c.run), "%s-t", c.queue);
    cluster_start(&c, PLAN(STEP("w", "wait", ",\"signal\":\"go\""), SH("a", "exec sleep 60", "")));
    until_rows(&c.bed, c.run, EVENT_STEP_STARTED, 2);
    (void)temporal_says(&c, "workflow terminate -w %s --reason enough", c.run);
    CHECK(cluster_end(&c) == RUN_CANCELLED, "%.*s", STR_ARG(bed_history(&c.bed, c.run)));
    cluster_release(&c);
}

/* A failing step is retried by the plan's rules, and each attempt is an activity of its own; a run
 * that fails has failed there, too. */
TEST_DB(provider_temporal_retries_as_the_plan_says) {
    struct cluster c;
    cluster_temporal(&c, url);
    cluster_open(&c);
    cluster_start(&c, PLAN(SH("a", "exit 3",
                              ",\"retry\":{\"maxAttempts\":2,\"initialMs\":50,\"factor\":1,"
                              "\"maxMs\":50,\"jitter\":0}")));
    CHECK(cluster_end(&c) == RUN_FAILED);
    check_history(&c.bed, c.run,
                  "RunQueued RunProviderLinked RunStarted a:StepStarted#1 a:StepFailed#1 "
                  "a:StepRetried#2 a:StepStarted#2 a:StepFailed#2 RunFailed");
    str failed = bed_payload(&c.bed, c.run, EVENT_STEP_FAILED, 1);
    CHECK(holds(failed, "\"code\":\"EXIT_CODE\"") && holds(failed, "\"exitCode\":3"), "%.*s",
          STR_ARG(failed));
    cluster_until_shows(&c, "FAILED");
    cluster_release(&c);
}

/* ---- restart, crash, continue-as-new ---- */

static pid_t drive_in_child(struct cluster *c, const char *plan) {
    struct start_request request = bed_request(&c->bed, plan, c->run);
    request.adapter = str_c(c->adapter);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid > 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(60);
    log_setup(2, false, LOG_OFF);
    struct error err = {0};
    cluster_open(c);
    if (bed_start(&c->bed, &request, &err) != ST_OK) _exit(1);
    for (;;)
        bed_turn(&c->bed, 20);
}

static void kill_when_there(struct cluster *c, pid_t pid, const char *file) {
    int64_t end = clock_mono_ns() + (int64_t)30 * 1000000000;
    int how = 0;
    while (!file_there(&c->bed, file)) {
        usleep(10000);
        CHECK(clock_mono_ns() < end, "no file %s", file);
    }
    CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, &how, 0) == pid && WIFSIGNALED(how));
}

/* a waits until it is executed again, w for a signal; then twenty steps, one after the other: more
 * history than the test's server likes. */
static const char *long_plan(struct cluster *c) {
    struct buf b;
    buf_init(&b, (size_t)64 * 1024);
    buf_put(&b, str_c(with_folder(&c->bed,
                                  "{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"p\","
                                  "\"planVersion\":\"1\"},\"steps\":[" SH(
                                      "a", "echo x >> %s/a; test -e %s/again || exec sleep 60",
                                      "") "," STEP("w", "wait", ",\"signal\":\"go\"" AFTER("a")))));
    for (int i = 1; i <= 20; i++) {
        char before[16] = "w";
        if (i > 1) snprintf(before, sizeof(before), "s%d", i - 1);
        buf_printf(&b,
                   ",{\"stepId\":\"s%d\",\"type\":\"exec\",\"command\":[\"true\"],"
                   "\"dependsOn\":[\"%s\"]}",
                   i, before);
    }
    buf_put_c(&b, "]}");
    const char *plan = arena_str(&c->bed.arena, buf_str(&b)).ptr;
    buf_release(&b);
    return plan;
}

struct seen {
    bool rotating;
    const char *run;
    struct cluster *c;
};

static void see_rotation(struct bed *bed, const struct engine_note *note, size_t i) {
    struct seen *s = bed->context;
    const struct flow_event *e = &note->events[i];
    if (e->type != EVENT_RUN_RECOVERED || !holds(e->payload, "continueAsNew")) return;
    if (i + 1 < note->count) return; /* its link is in the same commit */
    s->rotating = s->rotating || is(shown(bed, s->run), "RUNNING/CONTINUE_AS_NEW");
}

/* WE-2.1.3-5: a restart of the workflow's node, a worker that crashed, and a continue-as-new: with
 * each of them engineAttemptId rises by one, and logicalAttemptId stays. WE-2.1.2-3: between the
 * old execution and the new one the substatus is CONTINUE_AS_NEW. Afterwards both provider runs
 * resolve to the run. */
TEST_DB(provider_temporal_engine_attempt_rises) {
    struct cluster c;
    struct error err = {0};
    cluster_temporal(&c, url);
    const char *plan = long_plan(&c);
    pid_t pid = drive_in_child(&c, plan);
    kill_when_there(&c, pid, "a");
    CHECK(file_replace(path_in(&c.bed, "again"), STR("x"), &err) == ST_OK);
    struct seen seen = {.run = c.run, .c = &c};
    c.bed.on_event = see_rotation;
    c.bed.context = &seen;
    cluster_open(&c);
    until_rows(&c.bed, c.run, EVENT_STEP_COMPLETED, 1);
    CHECK(count_rows(&c.bed, c.run, EVENT_RUN_RECOVERED) == 2, "%.*s %.*s",
          STR_ARG(bed_history(&c.bed, c.run)),
          STR_ARG(bed_payload(&c.bed, c.run, EVENT_RUN_RECOVERED, 1)));
    const struct event_record *restart = find_row(&c.bed, c.run, EVENT_RUN_RECOVERED, NULL, 0);
    const struct event_record *crash = find_row(&c.bed, c.run, EVENT_RUN_RECOVERED, NULL, 1);
    CHECK(!holds(restart->event.payload, "cause") && restart->event.engine_attempt == 2);
    CHECK(holds(crash->event.payload, "\"cause\":\"workerLost\"") &&
          crash->event.engine_attempt == 3);
    const struct event_record *done = find_row(&c.bed, c.run, EVENT_STEP_COMPLETED, "a", 0);
    CHECK(done->event.engine_attempt == 3 && done->event.logical_attempt == 1);
    CHECK(count_rows(&c.bed, c.run, EVENT_STEP_STARTED) <= 2); /* a once, and perhaps w */

    str first = cluster_link(&c, "providerRunId");
    tell(&c.bed, c.run, "go", "g1");
    CHECK(cluster_end(&c) == RUN_COMPLETED, "%.*s", STR_ARG(bed_history(&c.bed, c.run)));
    CHECK(seen.rotating);
    size_t recoveries = count_rows(&c.bed, c.run, EVENT_RUN_RECOVERED);
    CHECK(recoveries >= 3);
    for (size_t i = 2; i < recoveries; i++) {
        const struct event_record *r = find_row(&c.bed, c.run, EVENT_RUN_RECOVERED, NULL, i);
        CHECK(holds(r->event.payload, "\"cause\":\"continueAsNew\""));
        CHECK(r->event.engine_attempt == (int64_t)i + 2);
    }
    struct event_page rows = all_rows(&c.bed, c.run);
    for (size_t i = 0; i < rows.count; i++) {
        const struct event *e = &rows.records[i].event;
        if (e->type == EVENT_STEP_STARTED || e->type == EVENT_STEP_COMPLETED)
            CHECK(e->logical_attempt == 1, "%.*s", STR_ARG(e->subject));
    }
    str last = cluster_link(&c, "providerRunId");
    CHECK(!str_eq(first, last));
    CHECK(is(resolve(&c, "temporal", str_c(c.run), first).run_id, c.run));
    CHECK(is(resolve(&c, "temporal", str_c(c.run), last).run_id, c.run));
    CHECK(count_rows(&c.bed, c.run, EVENT_RUN_PROVIDER_LINKED) == recoveries - 2 + 1);
    cluster_release(&c);
}
