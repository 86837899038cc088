#include "adapters/local/bench_test.h"

#include <dirent.h>
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os.h"
#include "test.h"

/* ---- leaks ---- */

static int fds_before; /* of the bench that is open */

static int fd_count(void) {
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;
    while (dir && readdir(dir))
        n++;
    if (dir) closedir(dir);
    return n;
}

void bench_open(struct bench *b, struct local_options options) {
    struct error err = {0};
    *b = (struct bench){.dir = test_dir()};
    CHECK(uv_loop_init(&b->loop) ==
          0); /* the first of a process opens a pipe for signals, for good */
    CHECK(uv_loop_close(&b->loop) == 0);
    fds_before = fd_count();
    if (!options.data_dir.ptr) options.data_dir = str_c(b->dir);
    CHECK(uv_loop_init(&b->loop) == 0);
    CHECK(executor_open_local(&b->loop, &options, &b->ex, &err) == ST_OK, "%s", err.msg);
}

void bench_close(struct bench *b) {
    executor_close(b->ex);
    uv_run(&b->loop, UV_RUN_DEFAULT);
    CHECK(uv_loop_close(&b->loop) == 0, "a handle is still open");
    int left = fd_count();
    for (int i = 0; i < 200 && left != fds_before;
         i++) { /* a test's own server may take a moment */
        usleep(5000);
        left = fd_count();
    }
    CHECK(left == fds_before, "%d descriptors before, %d after", fds_before, left);
    CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD, "a child was not reaped");
}

/* ---- attempts ---- */

static char *keep(str s) { return s.ptr ? strndup(s.ptr, s.len) : NULL; }

static void on_done(struct attempt *attempt, const struct outcome *o) {
    struct shot *s = attempt->context;
    s->answers++;
    s->ok = o->ok;
    snprintf(s->code, sizeof s->code, "%.*s", STR_ARG(o->code));
    free(s->output);
    free(s->message);
    free(s->detail);
    s->output = keep(o->output);
    s->message = keep(o->message);
    s->detail = keep(o->detail);
}

void shot_init(struct shot *s, const char *step_id, const char *body) {
    *s = (struct shot){.step = {.id = str_c(step_id), .type = PLAN_EXEC}};
    s->attempt = (struct attempt){.run_id = STR("run-1"),
                                  .tenant_id = STR("acme"),
                                  .project_id = STR("shop"),
                                  .environment_id = STR("dev"),
                                  .number = 1,
                                  .body = str_c(body),
                                  .done = on_done};
}

void shot_release(struct shot *s) {
    free(s->output);
    free(s->message);
    free(s->detail);
    s->output = s->message = s->detail = NULL;
}

void shot_start(struct bench *b, struct shot *s) {
    s->attempt.step = &s->step;
    s->attempt.context = s;
    executor_start(b->ex, &s->attempt);
    CHECK(s->answers == 0, "answered from within executor_start()");
}

void shot_wait(struct bench *b, struct shot *s) {
    while (s->answers == 0)
        CHECK(uv_run(&b->loop, UV_RUN_ONCE) != 0 || s->answers > 0, "the loop has nothing to do");
    CHECK(s->answers == 1);
}

void shot_exec(struct bench *b, struct shot *s, const char *body, enum plan_output output) {
    shot_init(s, "step", body);
    s->step.output = output;
    shot_start(b, s);
    shot_wait(b, s);
}

bool has(const char *text, const char *part) { return text && strstr(text, part) != NULL; }

char *read_file_at(const char *dir, const char *path) {
    char whole[4096];
    snprintf(whole, sizeof whole, "%s/%s", dir, path);
    struct arena arena;
    struct error err;
    str text;
    arena_init(&arena, 4096, (size_t)64 * 1024 * 1024);
    char *out = NULL;
    if (file_read(str_c(whole), (size_t)32 * 1024 * 1024, &arena, &text, &err) == ST_OK)
        out = strndup(text.ptr, text.len);
    arena_release(&arena);
    return out;
}
