#include "net/grpc_server_test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/time.h"
#include "test.h"

enum { WORDS_MAX = 8, FILES_MAX = 8 };

struct grpc_server {
    pid_t pid;
    int input; /* its; closed, it ends */
    int port;
    char folder[256];
    char files[FILES_MAX][320];
    size_t file_count;
};

static void run(const struct grpc_server *s, int port, const char *words, int input, int output) {
    char number[16];
    char text[256];
    char *argv[WORDS_MAX + 5] = {"python3", "tests/grpc/server.py", (char *)s->folder, number};
    (void)snprintf(number, sizeof number, "%d", port);
    (void)snprintf(text, sizeof text, "%s", words);
    int argc = 4;
    for (char *word = text; *word && argc < WORDS_MAX + 4;) {
        argv[argc++] = word;
        char *blank = strchr(word, ' ');
        if (!blank) break;
        *blank = 0;
        word = blank + 1;
    }
    (void)dup2(input, 0);
    (void)dup2(output, 1);
    /* Debian's own: another one does not see Debian's modules. */
    execv("/usr/bin/python3", argv);
    _exit(127);
}

struct grpc_server *grpc_server_open(int port, const char *words) {
    struct grpc_server *s = calloc(1, sizeof *s);
    int in[2];
    int out[2];
    CHECK(s != NULL && pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    CHECK(access("tests/grpc/server.py", R_OK) == 0, "run the tests from the top of the repository");
    (void)snprintf(s->folder, sizeof s->folder, "%s/grpc", test_dir());
    (void)mkdir(s->folder, 0700); /* a second server finds the first one's files */
    s->pid = fork();
    CHECK(s->pid >= 0);
    if (s->pid == 0) run(s, port, words, in[0], out[1]);
    close(in[0]);
    close(out[1]);
    s->input = in[1];
    char line[32] = "";
    size_t len = 0;
    for (ssize_t n; len < sizeof line - 1 && !strchr(line, '\n') &&
                    (n = read(out[0], line + len, sizeof line - 1 - len)) > 0;)
        len += (size_t)n;
    close(out[0]);
    str rest = str_c(line);
    int64_t bound = 0;
    if (str_starts(rest, STR("missing")) || access("/usr/bin/python3", X_OK) != 0) {
        grpc_server_close(s);
        test_skip("python3-grpcio is not installed");
    }
    CHECK(str_take_int(&rest, &bound) && bound > 0, "the gRPC server does not start");
    s->port = (int)bound;
    return s;
}

void grpc_server_close(struct grpc_server *s) {
    close(s->input);
    (void)waitpid(s->pid, NULL, 0);
    free(s);
}

int grpc_server_port(const struct grpc_server *s) { return s->port; }

str grpc_server_file(struct grpc_server *s, const char *name) {
    CHECK(s->file_count < FILES_MAX);
    char *path = s->files[s->file_count++];
    (void)snprintf(path, sizeof s->files[0], "%s/%s", s->folder, name);
    return str_c(path);
}

/* ---- the channel ---- */

void grpc_stage_open(struct grpc_stage *s, int port, const struct grpc_options *options) {
    struct error err = {0};
    struct grpc_options o = options ? *options : (struct grpc_options){0};
    (void)signal(SIGPIPE, SIG_IGN); /* as the program does: servers go away at any time */
    CHECK(uv_loop_init(&s->loop) == 0);
    (void)snprintf(s->target, sizeof s->target, "127.0.0.1:%d", port);
    if (o.target.len == 0) o.target = str_c(s->target);
    if (o.user_agent.len == 0) o.user_agent = STR("cairn/0.5");
    CHECK(grpc_open(&s->loop, &o, &s->grpc, &err) == ST_OK, "%s", err.msg);
}

void grpc_stage_turn(struct grpc_stage *s, int64_t ms) {
    int64_t end = clock_mono_ns() + ms * 1000000;
    do {
        uv_run(&s->loop, UV_RUN_NOWAIT);
        usleep(200);
    } while (clock_mono_ns() < end);
}

void grpc_stage_close(struct grpc_stage *s) {
    grpc_close(s->grpc);
    CHECK(uv_run(&s->loop, UV_RUN_DEFAULT) == 0);
    CHECK(uv_loop_close(&s->loop) == 0);
}

void grpc_told_init(struct grpc_told *told, struct grpc_stage *stage) {
    *told = (struct grpc_told){.stage = stage, .code = -1};
    buf_init(&told->message, GRPC_BYTES_MAX);
    buf_init(&told->details, GRPC_BYTES_MAX);
    buf_init(&told->body, GRPC_BYTES_MAX);
}

void grpc_told_release(struct grpc_told *told) {
    buf_release(&told->message);
    buf_release(&told->details);
    buf_release(&told->body);
}

void grpc_told_done(void *context, const struct grpc_answer *answer) {
    struct grpc_told *told = context;
    told->count++;
    told->code = answer->code;
    buf_clear(&told->message);
    buf_clear(&told->details);
    buf_clear(&told->body);
    buf_put(&told->message, answer->message);
    buf_put(&told->details, answer->details);
    buf_put(&told->body, answer->body);
    if (told->victim) grpc_cancel(told->victim);
    told->victim = NULL;
    if (!told->then || told->times-- <= 0) return;
    struct error err = {0};
    CHECK(grpc_start(told->stage->grpc, told->then, grpc_told_done, told, NULL, &err) == ST_OK);
    CHECK(told->count > 0);
}

bool grpc_told_wait(struct grpc_told *told, int count) {
    int64_t end = clock_mono_ns() + (int64_t)30 * 1000000000;
    while (told->count < count && clock_mono_ns() < end) {
        uv_run(&told->stage->loop, UV_RUN_NOWAIT);
        if (told->count < count) usleep(100);
    }
    return told->count >= count;
}

struct grpc_call *grpc_stage_start(struct grpc_stage *s, const char *path, str body,
                                   int64_t timeout_ms, struct grpc_told *told) {
    struct grpc_request request = {.path = str_c(path), .body = body, .timeout_ms = timeout_ms};
    struct grpc_call *call = NULL;
    struct error err = {0};
    int before = told->count;
    CHECK(grpc_start(s->grpc, &request, grpc_told_done, told, &call, &err) == ST_OK, "%s", err.msg);
    CHECK(told->count == before && call != NULL);
    return call;
}

int grpc_stage_run(struct grpc_stage *s, const char *path, str body, struct grpc_told *told) {
    int before = told->count;
    (void)grpc_stage_start(s, path, body, 20000, told);
    CHECK(grpc_told_wait(told, before + 1), "%s was not answered", path);
    return told->code;
}
