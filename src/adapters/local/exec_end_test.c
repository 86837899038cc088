/* exec steps that do not end by themselves, or leave something behind. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "adapters/local/bench_test.h"
#include "base/time.h"
#include "test.h"

static int64_t now_ms(void) { return clock_mono_ns() / 1000000; }

static bool lives(int pid) {
    char path[64];
    char text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    const char *end = n ? strrchr(text, ')') : NULL;
    return end && end[2] != 'Z' && end[2] != 'X';
}

/* Waits for a file with `count` numbers in it, one a line. */
static void read_pids(const char *dir, const char *path, int *pids, int count) {
    for (int tries = 0; tries < 500; tries++) {
        char *text = read_file_at(dir, path);
        str rest = str_c(text);
        str line;
        int found = 0;
        int64_t pid;
        while (rest.len > 0 && found < count && str_split(rest, '\n', &line, &rest)) {
            if (str_to_int(line, &pid)) pids[found++] = (int)pid;
        }
        free(text);
        if (found == count) return;
        usleep(10000);
    }
    CHECK(false, "\"%s\" has no %d numbers", path, count);
}

static bool wait_dead(int pid) {
    for (int i = 0; i < 300 && lives(pid); i++)
        usleep(10000);
    return !lives(pid);
}

TEST(exec_timeout_ends_the_whole_group) {
    struct bench b;
    struct shot s;
    for (int no_pidfd = 0; no_pidfd < 2; no_pidfd++) {
        bench_open(&b, (struct local_options){.kill_grace_ms = 100, .no_pidfd = no_pidfd});
        /* one that obeys */
        shot_init(&s, "polite", "{\"command\":\"echo said >&2; sleep 300\"}");
        s.attempt.timeout_ms = 150;
        int64_t start = now_ms();
        shot_start(&b, &s);
        shot_wait(&b, &s);
        CHECK(!s.ok && strcmp(s.code, "TIMEOUT") == 0, "%s", s.code);
        CHECK(has(s.message, "timed out after 150 ms"), "%s", s.message);
        CHECK(has(s.detail, "\"signal\":\"SIGTERM\",\"stderrTail\":\"said\\n\""), "%s", s.detail);
        CHECK(now_ms() - start >= 150 && now_ms() - start < 5000);
        shot_release(&s);
        /* one that ignores SIGTERM, with a child that does */
        shot_init(&s, "stubborn",
                  "{\"command\":\"trap '' TERM; sleep 300 & echo $! > pids; sleep 300\"}");
        s.attempt.timeout_ms = 150;
        shot_start(&b, &s);
        shot_wait(&b, &s);
        CHECK(strcmp(s.code, "TIMEOUT") == 0 && has(s.detail, "\"signal\":\"SIGKILL\""), "%s",
              s.detail);
        int pid;
        read_pids(b.dir, "work/run-1/pids", &pid, 1);
        CHECK(wait_dead(pid));
        shot_release(&s);
        bench_close(&b);
    }
}

TEST(exec_stop_cancels_whatever_state_it_is_in) {
    struct bench b;
    struct shot first;
    struct shot second;
    struct shot third;
    bench_open(&b, (struct local_options){.processes_max = 1, .kill_grace_ms = 100});
    shot_init(&first, "first", "{\"command\":\"trap 'exit 0' TERM; echo ready > f; sleep 300\"}");
    shot_init(&second, "second", "{\"command\":[\"echo\",\"never\"]}");
    shot_init(&third, "third", "{\"command\":[\"echo\",\"done\"]}");
    shot_start(&b, &first);
    shot_start(&b, &second);
    shot_start(&b, &third);
    executor_stop(b.ex, &second.attempt); /* while it waits */
    shot_wait(&b, &second);
    CHECK(strcmp(second.code, "CANCELLED") == 0, "%s", second.code);
    char *ready = NULL;
    while (!(ready = read_file_at(b.dir, "work/run-1/f")))
        uv_run(&b.loop, UV_RUN_NOWAIT);
    free(ready);
    executor_stop(b.ex, &first.attempt); /* while it runs; an exit code of 0 changes nothing */
    executor_stop(b.ex, &first.attempt);
    shot_wait(&b, &first);
    CHECK(!first.ok && strcmp(first.code, "CANCELLED") == 0, "%s", first.code);
    shot_wait(&b, &third);
    CHECK(third.ok, "%s", third.message);
    executor_stop(b.ex, &third.attempt); /* after its end: nothing */
    shot_release(&first);
    shot_release(&second);
    shot_release(&third);
    /* in the very moment it starts */
    shot_init(&first, "first", "{\"command\":[\"sleep\",\"300\"]}");
    shot_start(&b, &first);
    executor_stop(b.ex, &first.attempt);
    shot_wait(&b, &first);
    CHECK(!first.ok && strcmp(first.code, "CANCELLED") == 0, "%s", first.code);
    shot_release(&first);
    bench_close(&b);
}

TEST(exec_timeout_counts_while_waiting) {
    struct bench b;
    struct shot first;
    struct shot second;
    bench_open(&b, (struct local_options){.processes_max = 1});
    shot_init(&first, "first", "{\"command\":[\"sleep\",\"0.4\"]}");
    shot_init(&second, "second", "{\"command\":[\"true\"]}");
    second.attempt.timeout_ms = 50;
    shot_start(&b, &first);
    shot_start(&b, &second);
    shot_wait(&b, &second);
    CHECK(strcmp(second.code, "TIMEOUT") == 0 && first.answers == 0);
    shot_wait(&b, &first);
    CHECK(first.ok);
    shot_release(&first);
    shot_release(&second);
    bench_close(&b);
}

TEST(exec_what_a_step_leaves_behind_does_not_hold_it_up) {
    struct bench b;
    struct shot s;
    int pids[2];
    bench_open(&b, (struct local_options){0});
    /* in its group: killed with its end, so the pipes end at once */
    int64_t start = now_ms();
    shot_exec(&b, &s, "{\"command\":\"sleep 300 & echo $! > pids; echo out\"}", PLAN_OUTPUT_TEXT);
    CHECK(s.ok && strcmp(s.output, "\"out\"") == 0);
    CHECK(now_ms() - start < LOCAL_EOF_WAIT_MS, "it took %lld ms", (long long)(now_ms() - start));
    read_pids(b.dir, "work/run-1/pids", pids, 1);
    CHECK(wait_dead(pids[0]));
    shot_release(&s);
    /* in a session of its own, with the pipe in its hands: waited for, but not for long */
    start = now_ms();
    shot_exec(&b, &s,
              "{\"command\":\"setsid sh -c 'echo $$ > pids2; exec sleep 300' & "
              "until [ -s pids2 ]; do sleep 0.01; done; echo out\"}",
              PLAN_OUTPUT_TEXT);
    int64_t took = now_ms() - start;
    CHECK(s.ok && strcmp(s.output, "\"out\"") == 0);
    CHECK(took >= LOCAL_EOF_WAIT_MS - 20 && took < LOCAL_EOF_WAIT_MS + 3000, "%lld ms",
          (long long)took);
    read_pids(b.dir, "work/run-1/pids2", pids, 1);
    kill(pids[0], SIGKILL);
    shot_release(&s);
    bench_close(&b);
}

TEST(exec_close_kills_reaps_and_answers) {
    struct bench b;
    static struct shot shots[12];
    bench_open(&b, (struct local_options){.processes_max = 5});
    for (int i = 0; i < 12; i++) {
        shot_init(&shots[i], "s", "{\"command\":\"trap '' TERM; sleep 300\"}");
        shot_start(&b, &shots[i]);
    }
    uv_run(&b.loop, UV_RUN_ONCE);
    bench_close(&b);
    for (int i = 0; i < 12; i++) {
        CHECK(shots[i].answers == 1 && strcmp(shots[i].code, "CANCELLED") == 0, "%d: %s", i,
              shots[i].code);
        shot_release(&shots[i]);
    }
}

/* Without descriptors for more, steps wait for others to end instead of failing. */
TEST(exec_waits_when_descriptors_run_out) {
    static struct shot shots[40];
    struct bench b;
    struct rlimit before;
    struct rlimit few;
    bench_open(&b, (struct local_options){0});
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    int next = dup(0);
    close(next);
    few = before;
    few.rlim_cur = (rlim_t)next + 24;
    CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    for (int i = 0; i < 40; i++) {
        shot_init(&shots[i], "s", "{\"command\":[\"sleep\",\"0.02\"]}");
        shot_start(&b, &shots[i]);
    }
    uv_run(&b.loop, UV_RUN_DEFAULT);
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    for (int i = 0; i < 40; i++) {
        CHECK(shots[i].ok, "%d: %s %s", i, shots[i].code, shots[i].message);
        shot_release(&shots[i]);
    }
    bench_close(&b);
}

/* ---- an engine that is killed ---- */

static _Noreturn void engine_main(struct bench *b) {
    struct shot s;
    struct error err;
    struct local_options options = {.data_dir = str_c(b->dir)};
    uv_loop_init(&b->loop);
    if (executor_open_local(&b->loop, &options, &b->ex, &err) != ST_OK) _exit(1);
    shot_init(&s, "s",
              "{\"command\":\"echo $$ > pids; sleep 300 & echo $! >> pids; "
              "setsid sh -c 'echo $$ >> pids; exec sleep 300' & wait\"}");
    shot_start(b, &s);
    uv_run(&b->loop, UV_RUN_DEFAULT);
    _exit(2);
}

TEST(exec_orphans_of_a_killed_engine_are_found) {
#ifdef __SANITIZE_THREAD__
    test_skip("ThreadSanitizer allows no threads in a forked process");
#endif
    struct bench b = {.dir = test_dir()};
    const char *other = test_dir();
    CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0); /* so that we can wait for what it leaves */
    pid_t engine = fork();
    CHECK(engine >= 0);
    if (engine == 0) engine_main(&b);
    int pids[3];
    read_pids(b.dir, "work/run-1/pids", pids, 3);
    CHECK(local_kill_orphans(str_c(b.dir)) == 0, "the engine still lives");
    CHECK(lives(pids[0]) && lives(pids[1]) && lives(pids[2]));
    kill(engine, SIGKILL);
    CHECK(waitpid(engine, NULL, 0) == engine);
    CHECK(wait_dead(pids[0]), "the step itself dies with its engine");
    CHECK(lives(pids[1]) && lives(pids[2]), "what it started does not");
    CHECK(local_kill_orphans(str_c(other)) == 0, "not those of another data folder");
    CHECK(lives(pids[1]) && lives(pids[2]));
    int killed = local_kill_orphans(str_c(b.dir));
    CHECK(killed == 2, "%d", killed);
    CHECK(wait_dead(pids[1]) && wait_dead(pids[2]));
    CHECK(local_kill_orphans(str_c(b.dir)) == 0);
    while (waitpid(-1, NULL, 0) > 0) {
    }
    prctl(PR_SET_CHILD_SUBREAPER, 0);
}
