/* Runs outlive the process that carries them out: restarts, kill -9, other nodes. The dead process
 * is a child of the test, killed for good; on PostgreSQL its work is taken over when its lease has
 * run out. */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/os.h"
#include "base/time.h"
#include "conformance/engine_tools.h"
#include "view/view.h"

enum { CHILD_SECONDS_MAX = 60, LOST = 42, TAKEOVER_MS = 20000 };

/* ---- a process that can be killed ---- */

/* Opens the bed in a process of its own, starts the plan and drives it until killed; exits with
 * LOST when its lease is lost. The bed is not open in this process. */
static pid_t drive_in_child(struct bed *bed, const char *plan, const char *run_id) {
    struct start_request request = bed_request(bed, plan, run_id);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid > 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(CHILD_SECONDS_MAX); /* whatever a failed check makes of this process */
    log_setup(2, false, LOG_OFF);
    struct error err = {0};
    bed_open(bed);
    if (bed_start(bed, &request, &err) != ST_OK) _exit(1);
    while (!bed->lost)
        bed_turn(bed, 20);
    _exit(LOST);
}

static int ended(pid_t pid) {
    int how = 0;
    CHECK(waitpid(pid, &how, 0) == pid);
    return how;
}

static void kill_child(pid_t pid) {
    CHECK(kill(pid, SIGKILL) == 0);
    CHECK(WIFSIGNALED(ended(pid)));
}

static void wait_for_file(struct bed *bed, const char *name) {
    int64_t end = clock_mono_ns() + (int64_t)TAKEOVER_MS * 1000000;
    while (!file_there(bed, name)) {
        usleep(10000);
        CHECK(clock_mono_ns() < end, "no file %s", name);
    }
}

static int64_t lines(struct bed *bed, const char *name) {
    struct error err = {0};
    str text = STR_NONE;
    int64_t n = 0;
    CHECK(file_read(path_in(bed, name), 10000, &bed->arena, &text, &err) == ST_OK, "%s", err.msg);
    for (size_t i = 0; i < text.len; i++)
        n += text.ptr[i] == '\n';
    return n;
}

/* WE-1-1: killed after the first of three steps and started again: all three finish once, and the
 * run is COMPLETED. WE-1-5: it goes on without repeating the completed step; the open one is
 * replayed as the same logical attempt, with the next engineAttemptId. WE-2.1.2-5: asked while
 * nobody has taken it up, it is RECOVERING. */
TEST_DB(engine_recovers_a_run_whose_process_was_killed) {
    struct bed bed;
    bed_init(&bed, url);
    const char *plan = with_folder(
        &bed, PLAN(SH("a", "echo x >> %s/a", ""),
                   SH("b", "echo x >> %s/b; test -e %s/again || exec sleep 60", AFTER("a")),
                   SH("c", "echo x >> %s/c", AFTER("b"))));
    pid_t pid = drive_in_child(&bed, plan, "r");
    wait_for_file(&bed, "b");
    kill_child(pid);
    struct error err = {0};
    CHECK(file_replace(path_in(&bed, "again"), STR("x"), &err) == ST_OK);
    bed.options.only_asked = true; /* looks, and does nothing by itself */
    bed_open(&bed);
    int64_t end = clock_mono_ns() + (int64_t)TAKEOVER_MS * 1000000;
    while (!is(shown(&bed, "r"), "RUNNING/RECOVERING")) {
        bed_turn(&bed, 50);
        CHECK(clock_mono_ns() < end, "%.*s", STR_ARG(shown(&bed, "r")));
    }
    CHECK(explained(&bed, "r").waits[0].kind == WAIT_NOBODY);
    bed.options.only_asked = false;
    bed_reopen(&bed);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    check_history(&bed, "r",
                  "RunStarted a:StepStarted#1 a:StepCompleted#1 b:StepStarted#1 RunRecovered "
                  "b:StepCompleted#1 c:StepStarted#1 c:StepCompleted#1 RunCompleted");
    CHECK(lines(&bed, "a") == 1 && lines(&bed, "b") == 2 && lines(&bed, "c") == 1);
    CHECK(find_row(&bed, "r", EVENT_STEP_STARTED, "b", 0)->event.engine_attempt == 1);
    const struct event_record *done = find_row(&bed, "r", EVENT_STEP_COMPLETED, "b", 0);
    CHECK(done->event.engine_attempt == 2 && done->event.logical_attempt == 1);
    bed_release(&bed);
}

/* ---- restarts ---- */

/* WE-1N-2: with all memory of the engine gone a bare reader of the store gives the same answer. */
TEST_DB(engine_status_is_the_same_without_an_engine) {
    struct bed bed;
    struct buf before;
    struct buf after;
    bed_init(&bed, url);
    bed_open(&bed);
    static const struct {
        const char *run_id, *plan;
    } cases[] = {
        {"approval", PLAN(STEP("a", "approval", ""))},
        {"retry", PLAN(SH("a", "exit 1", ",\"retry\":{\"maxAttempts\":2,\"initialMs\":600000}"))},
        {"sleep", PLAN(STEP("a", "sleep", ",\"durationMs\":600000"))},
        {"failed", PLAN(SH("a", "exit 1", ""))},
        {"done", PLAN(NOOP("a", ""))}};
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        start(&bed, cases[i].plan, cases[i].run_id);
    until_rows(&bed, "retry", EVENT_STEP_RETRIED, 1);
    CHECK(bed_wait(&bed, "failed") == RUN_FAILED && bed_wait(&bed, "done") == RUN_COMPLETED);
    buf_init(&before, 65536);
    buf_init(&after, 65536);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct run_snapshot s = snapshot(&bed, cases[i].run_id);
        view_write(&view_snapshot, &s, &before);
    }
    bed_close(&bed);
    struct ledger *reader = NULL;
    struct error err = {0};
    CHECK(ledger_open_reader(url, &reader, &err) == ST_OK, "%s", err.msg);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct run_snapshot s;
        CHECK(status_snapshot(reader, str_c(cases[i].run_id), &bed.arena, &s, &err) == ST_OK);
        view_write(&view_snapshot, &s, &after);
    }
    ledger_close(reader);
    CHECK(str_eq(buf_str(&before), buf_str(&after)), "%.*s\n%.*s", STR_ARG(buf_str(&before)),
          STR_ARG(buf_str(&after)));
    CHECK(holds(buf_str(&after), "WAITING_APPROVAL") && holds(buf_str(&after), "RETRYING"));
    buf_release(&before);
    buf_release(&after);
    bed_release(&bed);
}

/* A process that ends in good order leaves its open steps open: they are no failures. */
TEST_DB(engine_restart_repeats_the_open_attempt) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed,
          with_folder(&bed,
                      PLAN(SH("a", "echo x >> %s/a; test $(wc -l < %s/a) -ge 2 || exec sleep 60",
                              ",\"retry\":{\"maxAttempts\":3,\"initialMs\":1}"))),
          "r");
    until_file(&bed, "a");
    bed_reopen(&bed);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    check_history(&bed, "r",
                  "RunStarted a:StepStarted#1 RunRecovered a:StepCompleted#1 RunCompleted");
    CHECK(holds(bed_payload(&bed, "r", EVENT_RUN_RECOVERED, 0), "\"node\":"));
    CHECK(find_row(&bed, "r", EVENT_RUN_RECOVERED, NULL, 0)->event.engine_attempt == 2);
    bed_release(&bed);
}

TEST_DB(engine_sleep_survives_a_restart) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, PLAN(STEP("a", "sleep", ",\"durationMs\":1200"), NOOP("b", AFTER("a"))), "r");
    bed_turn(&bed, 200);
    bed_reopen(&bed);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    int64_t took = ms_between(&bed, "r", "a", EVENT_STEP_STARTED, 0, EVENT_STEP_COMPLETED, 0);
    CHECK(took >= 1000 && took < 30000, "%lld", (long long)took);
    CHECK(count_rows(&bed, "r", EVENT_STEP_STARTED) == 2);
    bed_release(&bed);
}

/* A sleep that ended while no process was there ends as soon as there is one. */
TEST_DB(engine_sleep_that_ended_meanwhile_ends_at_once) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, PLAN(STEP("a", "sleep", ",\"durationMs\":300")), "r");
    bed_close(&bed);
    usleep(500000);
    bed_open(&bed);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    bed_release(&bed);
}

TEST_DB(engine_backoff_survives_a_restart) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed,
          with_folder(&bed,
                      PLAN(SH("a", "echo x >> %s/a; test $(wc -l < %s/a) -ge 2",
                              ",\"retry\":{\"maxAttempts\":2,\"initialMs\":1000,\"jitter\":0}"))),
          "r");
    until_rows(&bed, "r", EVENT_STEP_RETRIED, 1);
    bed_reopen(&bed);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    int64_t took = ms_between(&bed, "r", "a", EVENT_STEP_FAILED, 0, EVENT_STEP_STARTED, 1);
    CHECK(took >= 800, "%lld", (long long)took);
    CHECK(count_rows(&bed, "r", EVENT_STEP_RETRIED) == 1);
    CHECK(find_row(&bed, "r", EVENT_STEP_STARTED, "a", 1)->event.logical_attempt == 2);
    bed_release(&bed);
}

/* Waits, approvals, kept signals and the pause itself are in the store. */
TEST_DB(engine_waits_survive_a_restart) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed,
          PLAN(STEP("a", "wait", ",\"signal\":\"one\""),
               STEP("b", "wait", ",\"signal\":\"two\",\"dependsOn\":[\"a\"]")),
          "wait");
    start(&bed, PLAN(STEP("a", "approval", "")), "approval");
    start(&bed, PLAN(STEP("a", "wait", ",\"signal\":\"go\""), NOOP("b", AFTER("a"))), "paused");
    tell(&bed, "wait", "two", NULL); /* kept until b asks for it */
    tell(&bed, "paused", "PAUSE", NULL);
    bed_reopen(&bed);
    CHECK(is(shown(&bed, "paused"), "PAUSED/DRAINING"));
    CHECK(is(shown(&bed, "approval"), "RUNNING/WAITING_APPROVAL"));
    tell(&bed, "wait", "one", NULL);
    CHECK(bed_wait(&bed, "wait") == RUN_COMPLETED);
    tell(&bed, "approval", "APPROVE", NULL);
    CHECK(bed_wait(&bed, "approval") == RUN_COMPLETED);
    tell(&bed, "paused", "go", NULL);
    bed_turn(&bed, 100);
    CHECK(is(shown(&bed, "paused"), "PAUSED"));
    bed_reopen(&bed);
    tell(&bed, "paused", "RESUME", NULL);
    CHECK(bed_wait(&bed, "paused") == RUN_COMPLETED);
    bed_release(&bed);
}

/* What a replay rebuilds decides as what was in memory did: a failure that skips others, judged
 * before the restart, skips the rest after it. */
TEST_DB(engine_restart_remembers_how_steps_failed) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed,
          PLAN(SH("bad", "exit 1", ",\"onFailure\":\"skipDependents\""),
               STEP("hold", "wait", ",\"signal\":\"go\""),
               NOOP("b", ",\"dependsOn\":[\"bad\",\"hold\"]"), NOOP("c", AFTER("b")),
               NOOP("d", AFTER("hold"))),
          "r");
    until_rows(&bed, "r", EVENT_STEP_FAILED, 1);
    bed_reopen(&bed);
    tell(&bed, "r", "go", NULL);
    CHECK(bed_wait(&bed, "r") == RUN_FAILED);
    (void)find_row(&bed, "r", EVENT_STEP_SKIPPED, "b", 0);
    (void)find_row(&bed, "r", EVENT_STEP_SKIPPED, "c", 0);
    (void)find_row(&bed, "r", EVENT_STEP_COMPLETED, "d", 0);
    bed_release(&bed);
}

/* Several restarts: each raises the engine's attempt by one, none the step's. */
TEST_DB(engine_restart_counts_engine_attempts) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, with_folder(&bed, PLAN(SH("a", "test -e %s/go || exec sleep 60", ""))), "r");
    for (size_t i = 1; i <= 3; i++) {
        bed_reopen(&bed);
        until_rows(&bed, "r", EVENT_RUN_RECOVERED, i);
    }
    struct error err = {0};
    CHECK(file_replace(path_in(&bed, "go"), STR("x"), &err) == ST_OK);
    bed_reopen(&bed);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    const struct event_record *done = find_row(&bed, "r", EVENT_STEP_COMPLETED, "a", 0);
    CHECK(done->event.engine_attempt == 5 && done->event.logical_attempt == 1);
    bed_release(&bed);
}

/* Starting it again under the same id goes on with it, and never begins it anew. */
TEST_DB(engine_start_again_finds_the_run) {
    struct bed bed;
    bed_init(&bed, url);
    bed.options.only_asked = true;
    bed_open(&bed);
    const char *plan = PLAN(STEP("a", "wait", ",\"signal\":\"go\""));
    start(&bed, plan, "r");
    start(&bed, plan, "r");
    CHECK(count_rows(&bed, "r", EVENT_RUN_STARTED) == 1);
    bed_reopen(&bed);
    start(&bed, plan, "r");
    tell(&bed, "r", "go", NULL);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    size_t rows = all_rows(&bed, "r").count;
    start(&bed, plan, "r");
    CHECK(all_rows(&bed, "r").count == rows && bed_status(&bed, "r") == RUN_COMPLETED);
    bed_release(&bed);
}

/* ---- several nodes on one PostgreSQL ---- */

static str need_postgres(void) {
    str url = test_db_url("postgres");
    if (!url.ptr) test_skip("there is no PostgreSQL");
    return url;
}

static void put_plan(struct bed *bed, const char *plan) { (void)bed_put(bed, plan); }

/* A node that is stopped, not dead, comes back after another took its work: nothing that it still
 * has to say is taken. RE-5.3.1-2: the step that both carried out has one StepCompleted. */
TEST(engine_fences_a_node_that_was_thought_dead) {
    str url = need_postgres();
    struct bed old;
    struct bed next;
    bed_init(&old, url);
    bed_init(&next, url);
    old.options.node = STR("old");
    next.options.node = STR("next");
    const char *plan =
        with_folder(&old, PLAN(SH("a", "echo x >> %s/a; sleep 1", ""), NOOP("b", AFTER("a"))));
    put_plan(&next, plan);
    pid_t pid = drive_in_child(&old, plan, "r");
    wait_for_file(&old, "a");
    CHECK(kill(pid, SIGSTOP) == 0);
    bed_open(&next);
    CHECK(bed_wait(&next, "r") == RUN_COMPLETED);
    CHECK(kill(pid, SIGCONT) == 0);
    int how = ended(pid);
    CHECK(WIFEXITED(how) && WEXITSTATUS(how) == LOST, "%d", how);
    bed_turn(&next, 300);
    CHECK(lines(&old, "a") == 2); /* both did it: at least once */
    check_history(&next, "r",
                  "RunStarted a:StepStarted#1 RunRecovered a:StepCompleted#1 b:StepStarted#1 "
                  "b:StepCompleted#1 RunCompleted");
    CHECK(holds(bed_payload(&next, "r", EVENT_RUN_RECOVERED, 0), "\"node\":\"next\""));
    bed_release(&next);
    bed_release(&old);
}

/* A node that ends in good order gives its work away at once. */
TEST(engine_hands_its_runs_to_another_node) {
    str url = need_postgres();
    struct bed a;
    struct bed b;
    bed_init(&a, url);
    bed_init(&b, url);
    a.options.node = STR("a");
    b.options.node = STR("b");
    const char *plan = PLAN(STEP("w", "wait", ",\"signal\":\"go\""), NOOP("n", AFTER("w")));
    put_plan(&b, plan);
    bed_open(&a);
    bed_open(&b);
    start(&a, plan, "r");
    tell_refused(&b, "r", "go", NULL, "RUN_ELSEWHERE");
    int64_t before = clock_mono_ns();
    bed_close(&a);
    until_rows(&b, "r", EVENT_RUN_RECOVERED, 1);
    CHECK((clock_mono_ns() - before) / 1000000 < 5000);
    CHECK(is(explained(&b, "r").node, "b"));
    tell(&b, "r", "go", NULL);
    CHECK(bed_wait(&b, "r") == RUN_COMPLETED);
    bed_release(&a);
    bed_release(&b);
}

/* A process that drives nothing records the signal; the run's node is woken and acts on it. */
TEST(engine_takes_signals_that_other_processes_recorded) {
    str url = need_postgres();
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, PLAN(STEP("w", "wait", ",\"signal\":\"go\"")), "r");
    struct ledger *ledger = NULL;
    struct error err = {0};
    struct signal s = {.name = STR("go"), .signal_id = STR("x"), .payload = STR("7")};
    CHECK(ledger_open(url, &(struct ledger_options){0}, &ledger, &err) == ST_OK, "%s", err.msg);
    CHECK(host_post_signal(ledger, STR("r"), &s, STR("bob"), NULL, &err) == ST_OK, "%s", err.msg);
    CHECK(host_post_signal(ledger, STR("r"), &s, STR("bob"), NULL, &err) == ST_OK, "%s", err.msg);
    CHECK(host_post_signal(ledger, STR("none"), &s, STR("bob"), NULL, &err) == ST_NOT_FOUND);
    CHECK(bed_wait(&bed, "r") == RUN_COMPLETED);
    CHECK(is(find_row(&bed, "r", EVENT_STEP_COMPLETED, "w", 0)->actor, "bob"));
    CHECK(count_rows(&bed, "r", EVENT_SIGNAL_RECEIVED) == 2);
    ledger_close(ledger);
    bed_release(&bed);
}

/* WE-1-4: a cancellation that another process recorded ends what is at work, although it leaves
 * nothing to write before that has ended. */
TEST(engine_ends_processes_when_another_process_cancels) {
    str url = need_postgres();
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    start(&bed, with_folder(&bed, PLAN(SH("a", "touch %s/there; exec sleep 60", ""))), "r");
    until_file(&bed, "there");
    struct ledger *ledger = NULL;
    struct error err = {0};
    struct signal s = {.name = STR("CANCEL")};
    CHECK(ledger_open(url, &(struct ledger_options){0}, &ledger, &err) == ST_OK, "%s", err.msg);
    CHECK(host_post_signal(ledger, STR("r"), &s, STR("bob"), NULL, &err) == ST_OK, "%s", err.msg);
    CHECK(bed_wait(&bed, "r") == RUN_CANCELLED);
    CHECK(count_rows(&bed, "r", EVENT_STEP_FAILED) == 1 &&
          count_rows(&bed, "r", EVENT_STEP_COMPLETED) == 0);
    ledger_close(ledger);
    bed_release(&bed);
}

TEST(engine_two_processes_of_one_name_are_refused) {
    str url = need_postgres();
    struct bed bed;
    bed_init(&bed, url);
    bed.options.node = STR("same");
    bed_open(&bed);
    uv_loop_t loop;
    struct host *second = NULL;
    struct error err = {0};
    CHECK(uv_loop_init(&loop) == 0);
    CHECK(host_open(&loop, &bed.options, &second, &err) == ST_CONFLICT);
    CHECK(err.reason == REASON_NODE_ALIVE);
    uv_run(&loop, UV_RUN_DEFAULT);
    CHECK(uv_loop_close(&loop) == 0);
    bed_release(&bed);
}
