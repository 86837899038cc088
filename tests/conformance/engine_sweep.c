/* Workspaces of runs that are over are removed; those of open runs are not. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/time.h"
#include "conformance/engine_helper.h"
#include "host/sweep.h"

#define PLAN(steps)                                                                                \
    "{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"p\",\"planVersion\":\"1\"},"           \
    "\"steps\":[" steps "]}"
#define SH(id, text) "{\"stepId\":\"" id "\",\"type\":\"exec\",\"command\":\"" text "\"}"
static const char writes[] = PLAN(SH("a", "mkdir d; echo x > d/f"));
static const char waits[] =
    PLAN(SH("a", "echo x > f") ",{\"stepId\":\"b\",\"type\":\"wait\",\"signal\":\"go\","
                               "\"dependsOn\":[\"a\"]}");

static const char *path_of(const struct bed *bed, const char *name) {
    static char path[4096];
    snprintf(path, sizeof(path), "%.*s/work/%s", STR_ARG(bed->data_dir), name);
    return path;
}

static bool there(const struct bed *bed, const char *name) {
    struct stat st;
    return lstat(path_of(bed, name), &st) == 0;
}

static int workspaces(const struct bed *bed) {
    DIR *d = opendir(path_of(bed, ""));
    int n = -2;
    CHECK(d != NULL);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void wait_gone(struct bed *bed, const char *name) {
    int64_t end = clock_mono_ns() + (int64_t)30 * 1000000000;
    while (there(bed, name)) {
        bed_turn(bed, 10);
        CHECK(clock_mono_ns() < end, "%s is still there", name);
    }
}

static void make_old(const struct bed *bed, const char *name) {
    struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    CHECK(utimensat(AT_FDCWD, path_of(bed, name), times, 0) == 0, "%s", name);
}

static void start_waiting(struct bed *bed, const char *run_id) {
    struct start_request request = bed_request(bed, waits, run_id);
    struct error err = {0};
    CHECK(bed_start(bed, &request, &err) == ST_OK, "%s", err.msg);
    bed_wait_event(bed, EVENT_STEP_COMPLETED, bed->events[EVENT_STEP_COMPLETED] + 1);
}

TEST_DB(engine_sweeps_the_workspaces_of_runs_that_are_over) {
    struct bed bed;
    bed_init(&bed, url); /* kept for ever */
    bed_open(&bed);
    CHECK(bed_run(&bed, writes, "done") == RUN_COMPLETED);
    CHECK(bed_run(&bed, writes, "done/2") == RUN_COMPLETED);
    start_waiting(&bed, "open");
    CHECK(there(&bed, "done") && there(&bed, "open") && workspaces(&bed) == 3);
    make_old(&bed, "done");
    make_old(&bed, "open");
    bed_close(&bed);
    /* Long ago for the folder, just now for the ledger. */
    bed.options.keep_us = (int64_t)3600 * 1000000;
    bed_open(&bed);
    bed_turn(&bed, 500);
    CHECK(there(&bed, "done") && there(&bed, "open"));
    bed_close(&bed);
    bed.options.keep_us = 1;
    bed_open(&bed);
    wait_gone(&bed, "done");
    int64_t end = clock_mono_ns() + (int64_t)30 * 1000000000;
    while (workspaces(&bed) > 1) { /* done/2, whose name is a hash */
        bed_turn(&bed, 10);
        CHECK(clock_mono_ns() < end, "%d are left", workspaces(&bed));
    }
    CHECK(there(&bed, "open/f"));
    struct error err = {0};
    CHECK(bed_signal(&bed, "open", "go", NULL, NULL, &err) == ST_OK, "%s", err.msg);
    CHECK(bed_wait(&bed, "open") == RUN_COMPLETED);
    bed_release(&bed);
}

TEST_DB(engine_keeps_no_workspace_if_told_so) {
    struct bed bed;
    bed_init(&bed, url);
    bed.options.keep_us = HOST_KEEP_NOT;
    bed_open(&bed);
    start_waiting(&bed, "open");
    CHECK(bed_run(&bed, writes, "done") == RUN_COMPLETED);
    wait_gone(&bed, "done");
    CHECK(there(&bed, "open/f"));
    CHECK(bed_run(&bed, writes, "last") == RUN_COMPLETED);
    bed_wait_event(&bed, EVENT_RUN_COMPLETED, 2); /* the host knows what the ledger says, */
    bed_close(&bed);                              /* and at once */
    CHECK(!there(&bed, "last") && there(&bed, "open/f"));
    bed.host = NULL;
    bed_release(&bed);
}

/* A pass comes again and again. */
TEST_DB(engine_sweep_is_regular) {
    struct bed bed;
    bed_init(&bed, url);
    bed_open(&bed);
    struct host_sweep_options options = {
        .url = url, .data_dir = bed.data_dir, .keep_us = 1, .period_us = 50000};
    struct host_sweep *sweep = NULL;
    struct error err = {0};
    CHECK(host_sweep_open(&options, &sweep, &err) == ST_OK, "%s", err.msg);
    bed_turn(&bed, 200);
    CHECK(bed_run(&bed, writes, "one") == RUN_COMPLETED);
    wait_gone(&bed, "one");
    CHECK(bed_run(&bed, writes, "two") == RUN_COMPLETED);
    wait_gone(&bed, "two");
    host_sweep_close(sweep);
    bed_release(&bed);
}
