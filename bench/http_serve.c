/* Servers in processes of their own, and single requests to them. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "http.h"
#include "net/server.h"

/* ---- the echo server ---- */

static void echo(void *context, struct http_exchange *e, const struct http_request *r) {
    static const struct http_header header = {STR_LIT("Content-Type"), STR_LIT("application/json")};
    char mem[160];
    struct buf body;
    UNUSED(context);
    buf_init_fixed(&body, mem, sizeof(mem));
    buf_put(&body, STR("{\"eventId\":\"7d444840-9dc0-11d1-b245-5ffdce74fad2\",\"bytes\":"));
    buf_put_int(&body, (int64_t)r->body.len);
    buf_put(&body, STR(",\"requestId\":\""));
    buf_put(&body, r->id);
    buf_put(&body, STR("\"}"));
    http_respond(e, 200, &header, 1, buf_str(&body));
}

void echo_start(struct http_child *out) {
    struct error err = {0};
    int ends[2];
    if (pipe(ends) != 0) die("pipe", NULL);
    fflush(stdout);
    *out = (struct http_child){.pid = fork(), .err = -1};
    if (out->pid < 0) die("fork", NULL);
    if (out->pid == 0) {
        uv_loop_t loop;
        struct http_server *server = NULL;
        int port = 0;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        uv_loop_init(&loop);
        check(http_server_open(&loop, NULL, echo, NULL, &server, &err), "server", &err);
        check(http_listen_tcp(server, STR("127.0.0.1"), 0, false, &port, &err), "listen", &err);
        pipe_put(ends[1], &port, sizeof(port));
        uv_run(&loop, UV_RUN_DEFAULT);
        _exit(1);
    }
    if (!pipe_get(ends[0], &out->port, sizeof(out->port))) die("the echo server failed", NULL);
    close(ends[0]);
    close(ends[1]);
}

/* ---- cairn serve ---- */

static bool find_port(const char *text, int *port) {
    const char *at = strstr(text, "http://127.0.0.1:");
    if (!at || !strchr(at, '\n')) return false;
    str rest = str_c(at + strlen("http://127.0.0.1:"));
    int64_t n = 0;
    if (!str_take_int(&rest, &n)) return false;
    *port = (int)n;
    return true;
}

static void wait_ready(struct http_child *c) {
    char text[4096];
    size_t len = 0;
    while (len < sizeof(text) - 1) {
        ssize_t n = read(c->err, text + len, sizeof(text) - 1 - len);
        if (n <= 0) break;
        len += (size_t)n;
        text[len] = 0;
        if (find_port(text, &c->port)) return;
    }
    fprintf(stderr, "%.*s", (int)len, text);
    die("cairn serve did not get ready", NULL);
}

/* What the server says later would fill the pipe and stop it: somebody reads it. */
static void pass_on(int from) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char text[4096];
    ssize_t n;
    while ((n = read(from, text, sizeof(text))) > 0)
        if (write(2, text, (size_t)n) < 0) break;
    _exit(0);
}

void cairn_start(const char *data_dir, struct http_child *out) {
    cairn_start_allowing(data_dir, NULL, out);
}

void cairn_start_allowing(const char *data_dir, const char *rule, struct http_child *out) {
    int ends[2];
    union { /* execv wants pointers to char; nobody writes through them */
        const char *in[10];
        char *out[10];
    } argv = {{cairn_path(), "serve", "--listen", "127.0.0.1:0", "--data", data_dir,
               rule ? "--allow" : NULL, rule, NULL}};
    if (pipe2(ends, O_CLOEXEC) != 0) die("pipe", NULL);
    fflush(stdout);
    *out = (struct http_child){.pid = fork(), .err = ends[0]};
    if (out->pid < 0) die("fork", NULL);
    if (out->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* nobody stays behind if the bench fails */
        dup2(ends[1], 2);
        execv(cairn_path(), argv.out);
        _exit(127);
    }
    close(ends[1]);
    wait_ready(out);
    pass_on(ends[0]);
}

void child_stop(struct http_child *c) {
    int wait = 0;
    (void)kill(c->pid, c->err < 0 ? SIGKILL : SIGTERM); /* (the echo server has nothing to save) */
    waitpid(c->pid, &wait, 0);
    if (c->err >= 0) close(c->err);
}

void raise_descriptors(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) die("getrlimit", NULL);
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) die("setrlimit", NULL);
}

str bench_data(const struct bench_options *o, const char *name, struct buf *out) {
    buf_clear(out);
    buf_printf(out, "%s/%s", o->dir, name);
    buf_put_char(out, 0);
    return str_n(out->ptr, out->len - 1);
}

double child_rss_mib(pid_t pid) {
    char path[64];
    char line[256];
    double kib = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    if (!f) die("the server is gone", NULL);
    while (fgets(line, sizeof(line), f))
        if (sscanf(line, "VmRSS: %lf kB", &kib) == 1) break;
    fclose(f);
    return kib / 1024;
}

/* ---- single requests ---- */

static void send_all(int fd, str bytes) {
    while (bytes.len > 0) {
        ssize_t n = send(fd, bytes.ptr, bytes.len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) die("send", NULL);
        bytes = str_from(bytes, (size_t)n);
    }
}

/* Puts the chunks of `body` together in their own memory. */
static size_t dechunk(char *body, size_t len) {
    size_t from = 0;
    size_t to = 0;
    while (from < len) {
        char *end = NULL;
        size_t size = strtoull(body + from, &end, 16);
        from = (size_t)(end - body) + 2;
        if (size == 0 || from + size > len) break;
        memmove(body + to, body + from, size);
        to += size;
        from += size + 2;
    }
    return to;
}

int http_once(int port, const char *method, const char *target, const char *headers, str body,
              struct buf *answer) {
    struct buf text;
    char mem[65536];
    ssize_t n;
    int fd = load_connect(port, true);
    buf_init(&text, (size_t)64 * 1024 * 1024);
    buf_printf(&text, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s", method,
               target, headers);
    if (body.ptr) buf_printf(&text, "Content-Length: %zu\r\n", body.len);
    buf_put(&text, STR("\r\n"));
    if (body.ptr) buf_put(&text, body);
    send_all(fd, buf_str(&text));
    buf_clear(&text);
    while ((n = recv(fd, mem, sizeof(mem), 0)) > 0)
        buf_put(&text, str_n(mem, (size_t)n));
    close(fd);
    buf_put_char(&text, 0);
    const char *end = strstr(text.ptr, "\r\n\r\n");
    int64_t code = 0;
    str digits = str_n(text.ptr + 9, 3);
    if (text.len < 20 || !end || !str_to_int(digits, &code)) die("no answer", NULL);
    size_t head = (size_t)(end - text.ptr) + 4;
    char *rest = text.ptr + head;
    size_t len = text.len - 1 - head;
    text.ptr[head - 1] = 0;
    if (strcasestr(text.ptr, "\r\nTransfer-Encoding: chunked")) len = dechunk(rest, len);
    buf_clear(answer);
    buf_put(answer, str_n(rest, len));
    buf_release(&text);
    return (int)code;
}

void http_put_plan(int port, str plan, struct buf *ref) {
    struct buf answer;
    buf_init(&answer, (size_t)1024 * 1024);
    int code = http_once(port, "POST", "/v1/plans?tenantId=bench",
                         "Content-Type: application/json\r\n", plan, &answer);
    if (code != 201 && code != 200) {
        fprintf(stderr, "%.*s\n", (int)answer.len, answer.ptr);
        die("the plan was refused", NULL);
    }
    /* {"planRef":{...}} or the reference itself */
    str text = str_trim(buf_str(&answer));
    str inner = STR("{\"planRef\":");
    if (str_starts(text, inner)) text = str_n(text.ptr + inner.len, text.len - inner.len - 1);
    buf_clear(ref);
    buf_put(ref, str_trim(text));
    buf_release(&answer);
}

void latency_figures(const char *bench, const char *name, const struct histogram *h) {
    static const struct {
        const char *name;
        double part;
    } parts[] = {{"p50", 0.5}, {"p95", 0.95}, {"p99", 0.99}, {"max", 1}};
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        char text[96];
        snprintf(text, sizeof(text), "%s, %s", name, parts[i].name);
        note(bench, text, histogram_ms(h, parts[i].part), "ms");
    }
}
