#include "cli/remote.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/json.h"
#include "base/limits.h"
#include "server/front.h"

enum { KEY_BYTES_MAX = 16 * 1024, HEADERS_MAX = 5, ANSWER_DEPTH_MAX = JSON_DEPTH_MAX + 8 };
#define ANSWER_BYTES_MAX ((size_t)256 * 1024 * 1024)

struct remote {
    struct cli *cli;
    str base;      /* "https://host:8420" */
    str unix_path; /* or STR_NONE */
    str authorization;
    str ca_file;
    str shown; /* in messages */
};

/* ---- which server ---- */

static str joined(struct remote *r, str a, str b) {
    char *text = arena_alloc(&r->cli->arena, a.len + b.len + 1);
    memcpy(text, a.ptr, a.len);
    memcpy(text + a.len, b.ptr, b.len);
    return str_n(text, a.len + b.len);
}

static str from_env(const char *name) {
    const char *value = getenv(name);
    return value && value[0] ? str_c(value) : STR_NONE;
}

bool remote_is_named(const struct cli *cli) {
    const struct args *a = &cli->args;
    if (!cli->command || !(cli->command->traits & USES_SERVER)) return false;
    if (args_has(a, OPT_SERVER)) return true;
    return !args_has(a, OPT_DATA) && !args_has(a, OPT_DB) && from_env("CAIRN_SERVER").ptr;
}

static bool is_visible(str s) {
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] <= ' ' || s.ptr[i] > '~') return false;
    }
    return s.len > 0;
}

/* A key is a password: a file that others can read is refused before it is used. */
static status read_key(struct remote *r, str path, struct error *err) {
    struct stat info;
    char text[KEY_BYTES_MAX + 1];
    str name = arena_str(&r->cli->arena, path);
    int fd = open(name.ptr, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) != 0) {
        status st =
            error_as(err, errno == ENOENT ? ST_NOT_FOUND : ST_INVALID, REASON_KEY_FILE_UNREADABLE,
                     "", "could not read key file \"%s\": %s", name.ptr, strerror(errno));
        if (fd >= 0) close(fd);
        return st;
    }
    ssize_t n = read(fd, text, sizeof(text));
    close(fd);
    if (S_ISREG(info.st_mode) && (info.st_mode & (S_IRGRP | S_IROTH)))
        return error_at(err, REASON_KEY_FILE_OPEN_TO_OTHERS, "",
                        "others can read key file \"%s\": chmod 600 it, and think of a new key",
                        name.ptr);
    str key = str_trim(str_n(text, n > 0 ? (size_t)n : 0));
    if (n > KEY_BYTES_MAX || !is_visible(key))
        return error_at(err, REASON_KEY_FILE_UNREADABLE, "",
                        "key file \"%s\" holds no key: one line is expected", name.ptr);
    r->authorization = joined(r, STR("Bearer "), key);
    return ST_OK;
}

static status read_url(struct remote *r, str url, struct error *err) {
    if (str_starts(url, STR("unix:")) && url.len > 5) {
        r->unix_path = arena_str(&r->cli->arena, str_from(url, 5));
        r->base = STR("http://localhost");
        return ST_OK;
    }
    bool http = str_starts(url, STR("http://")) && url.len > 7;
    bool https = str_starts(url, STR("https://")) && url.len > 8;
    if (!(http || https) || str_has(url, '?') || str_has(url, '#'))
        return cli_usage(err,
                         "--server takes http://HOST:PORT, https://HOST or unix:PATH, not "
                         "\"%.*s\"",
                         STR_ARG(url));
    while (url.len > 0 && url.ptr[url.len - 1] == '/')
        url.len--;
    r->base = arena_str(&r->cli->arena, url);
    return ST_OK;
}

static str named_url(const struct cli *cli) {
    const struct args *a = &cli->args;
    return args_has(a, OPT_SERVER) ? a->values[OPT_SERVER] : from_env("CAIRN_SERVER");
}

/* What belongs to the process that carries out the runs, or writes the ledger, is said there. */
status remote_check(const struct cli *cli, struct error *err) {
    static const enum opt local[] = {OPT_SECRETS, OPT_ALLOW, OPT_ENDPOINT, OPT_VALIDATION,
                                     OPT_WAIT};
    for (size_t i = 0; i < COUNT_OF(local); i++) {
        if (args_has(&cli->args, local[i]))
            return cli_usage(err, "--%s is the server's own to say: leave it out with --server",
                             opt_info(local[i])->name);
    }
    const struct args *a = &cli->args;
    if (args_has(a, OPT_DATA) || args_has(a, OPT_DB))
        return cli_usage(err, "--server and --%s: give one of them",
                         args_has(a, OPT_DATA) ? "data" : "db");
    if (args_has(a, OPT_ACTOR) && !str_starts(named_url(cli), STR("unix:")))
        return cli_usage(err,
                         "--actor: a server knows you by your key: leave it out with --server");
    return ST_OK;
}

status remote_open(struct cli *cli, struct remote **out, struct error *err) {
    const struct args *a = &cli->args;
    struct remote *r = ARENA_NEW(&cli->arena, struct remote);
    *r = (struct remote){.cli = cli, .ca_file = from_env("SSL_CERT_FILE")};
    str url = named_url(cli);
    str key = args_has(a, OPT_KEY_FILE) ? a->values[OPT_KEY_FILE] : from_env("CAIRN_KEY_FILE");
    r->shown = arena_str(&cli->arena, url);
    status st = read_url(r, url, err);
    if (st == ST_OK && key.ptr) st = read_key(r, key, err);
    *out = r;
    return st;
}

/* A connection that is closed again at once: cheaper than loading libcurl to find nobody. */
static bool answers(str path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char text[4096];
    int folder_fd = -1;
    if (path.len >= sizeof(text)) return false;
    memcpy(text, path.ptr, path.len);
    text[path.len] = 0;
    if (path.len >= sizeof(address.sun_path)) {
        text[path.len - strlen("/" FRONT_SOCKET)] = 0;
        folder_fd = open(text, O_PATH | O_DIRECTORY | O_CLOEXEC);
        snprintf(text, sizeof(text), "/proc/self/fd/%d/" FRONT_SOCKET, folder_fd);
    }
    memcpy(address.sun_path, text, strlen(text));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool connected =
        fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0;
    if (fd >= 0) close(fd);
    if (folder_fd >= 0) close(folder_fd);
    return connected;
}

status remote_open_folder(struct cli *cli, str folder, struct remote **out, struct error *err) {
    str path = cli_text(cli, "%.*s/" FRONT_SOCKET, STR_ARG(folder));
    if (!answers(path))
        return error_set(err, ST_NOT_FOUND, "nobody answers at \"%.*s\"", STR_ARG(path));
    struct remote *r = ARENA_NEW(&cli->arena, struct remote);
    *r = (struct remote){
        .cli = cli, .base = STR("http://localhost"), .unix_path = path, .shown = path};
    *out = r;
    return ST_OK;
}

/* ---- targets ---- */

void target_init(struct target *t, const char *path) {
    buf_init_fixed(&t->text, t->mem, sizeof(t->mem));
    buf_put_c(&t->text, path);
}

static void put_escaped(struct buf *out, str text) {
    for (size_t i = 0; i < text.len; i++) {
        char c = text.ptr[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     str_has(STR("-._~"), c);
        if (plain)
            buf_put_char(out, c);
        else
            buf_printf(out, "%%%02X", (unsigned char)c);
    }
}

void target_id(struct target *t, str id) { put_escaped(&t->text, id); }
void target_path(struct target *t, const char *path) { buf_put_c(&t->text, path); }

void target_query(struct target *t, const char *name, str value) {
    if (!value.ptr) return;
    buf_put_char(&t->text, str_has(buf_str(&t->text), '?') ? '&' : '?');
    buf_put_c(&t->text, name);
    buf_put_char(&t->text, '=');
    put_escaped(&t->text, value);
}

void target_query_int(struct target *t, const char *name, int64_t value) {
    char mem[INT_TEXT_MAX];
    target_query(t, name, int_text(mem, value));
}

/* ---- problems ---- */

/* The one table from HTTP's numbers to ours: the inverse of api/problem.c. */
static status status_of(int http_status, str code) {
    static const struct {
        int http_status;
        status st;
    } known[] = {{404, ST_NOT_FOUND}, {409, ST_CONFLICT}, {412, ST_CONFLICT},
                 {413, ST_LIMIT},     {429, ST_LIMIT},    {500, ST_CORRUPT},
                 {502, ST_RETRY},     {503, ST_RETRY},    {504, ST_RETRY}};
    if (http_status == 500 && str_eq(code, STR("INTERNAL"))) return ST_RETRY;
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        if (known[i].http_status == http_status) return known[i].st;
    }
    return http_status >= 500 ? ST_RETRY : ST_INVALID;
}

status remote_failure(struct error *err, status st, str code, const char *where, str message) {
    enum reason reason = reason_find(code);
    if (reason != REASON_NONE) return error_as(err, st, reason, where, "%.*s", STR_ARG(message));
    return error_as(err, st, reason, where, "%.*s: %.*s", STR_ARG(code), STR_ARG(message));
}

static status problem_error(struct remote *r, const struct client_response *answer,
                            struct error *err) {
    struct json_limits limits = {ANSWER_BYTES_MAX, ANSWER_DEPTH_MAX};
    yyjson_val *root = NULL;
    str code = STR_NONE;
    str detail = STR_NONE;
    str where = STR_NONE;
    char place[ERROR_WHERE_MAX];
    if (json_parse(answer->body, limits, &r->cli->arena, &root, err) == ST_OK) {
        yyjson_val *errors = json_member(root, "errors");
        (void)json_str(json_member(root, "code"), &code);
        (void)json_str(json_member(root, "detail"), &detail);
        (void)json_str(json_member(yyjson_arr_get_first(errors), "pointer"), &where);
    }
    if (!code.ptr)
        return error_as(err, status_of(answer->status, STR_NONE), REASON_SERVER_ANSWER_INVALID, "",
                        "\"%.*s\" answered with status %d, and not as a Cairn server does",
                        STR_ARG(r->shown), answer->status);
    snprintf(place, sizeof(place), "%.*s", STR_ARG(where));
    return remote_failure(err, status_of(answer->status, code), code, place, detail);
}

static status nonsense(struct remote *r, struct error *err) {
    return error_at(err, REASON_SERVER_ANSWER_INVALID, "", "the answer of \"%.*s\" is not JSON",
                    STR_ARG(r->shown));
}

static status fetch_failed(struct remote *r, struct error *err) {
    struct error why = *err;
    if (why.code != ST_RETRY) return why.code;
    const char *cause = strstr(why.msg, "\": "); /* after the URL, which is ours to name */
    return error_at(err, REASON_SERVER_UNREACHABLE, "", "could not reach \"%.*s\": %s",
                    STR_ARG(r->shown), cause ? cause + 3 : why.msg);
}

bool remote_is_gone(const struct error *err) {
    return err->reason == REASON_SERVER_UNREACHABLE || err->reason == REASON_NOT_READY;
}

/* ---- asking ---- */

/* Whoever names a server means its address. */
static bool may_connect(void *context, const uint8_t *address, size_t len) {
    UNUSED(context);
    UNUSED(address);
    UNUSED(len);
    return true;
}

struct asking {
    struct client_header headers[HEADERS_MAX];
    struct client_request request;
};

static void add_header(struct asking *a, str name, str value) {
    if (value.ptr) a->headers[a->request.header_count++] = (struct client_header){name, value};
}

static status prepare(struct remote *r, const char *method, const struct target *target,
                      const struct remote_body *body, str accept, struct asking *a,
                      struct error *err) {
    if (target->text.full)
        return error_at(err, REASON_REQUEST_TOO_LONG, "",
                        "the words of the command are too "
                        "long for a request");
    *a = (struct asking){0};
    a->request = (struct client_request){.method = str_c(method),
                                         .url = joined(r, r->base, buf_str(&target->text)),
                                         .headers = a->headers,
                                         .body = body ? body->bytes : STR_NONE,
                                         .unix_path = r->unix_path,
                                         .may_connect = may_connect,
                                         .bytes_max = ANSWER_BYTES_MAX,
                                         .timeout_ms = REMOTE_CALL_MS,
                                         .ca_file = r->ca_file};
    add_header(a, STR("Accept"), accept);
    add_header(a, STR("Authorization"), r->authorization);
    if (body && body->bytes.ptr) add_header(a, STR("Content-Type"), str_c(body->type));
    if (r->unix_path.ptr) add_header(a, STR("Cairn-Actor"), r->cli->args.values[OPT_ACTOR]);
    return ST_OK;
}

status remote_fetch(struct remote *r, const char *method, const struct target *target,
                    const struct remote_body *body, int64_t timeout_ms, struct arena *arena,
                    str *answer, struct error *err) {
    struct asking a;
    struct client_response got = {0};
    status st = prepare(r, method, target, body,
                        STR("application/json, application/x-ndjson;q=0.9"), &a, err);
    if (st != ST_OK) return st;
    a.request.timeout_ms = timeout_ms;
    st = client_fetch(&a.request, arena, &got, err);
    if (st != ST_OK) return fetch_failed(r, err);
    if (got.status < 200 || got.status > 299) return problem_error(r, &got, err);
    *answer = got.body;
    return ST_OK;
}

static status fetch_json(struct remote *r, const char *method, const struct target *target,
                         const struct remote_body *body, int64_t timeout_ms, struct arena *arena,
                         yyjson_val **answer, struct error *err) {
    struct json_limits limits = {ANSWER_BYTES_MAX, ANSWER_DEPTH_MAX};
    struct error ignored;
    str text = STR_NONE;
    status st = remote_fetch(r, method, target, body, timeout_ms, arena, &text, err);
    *answer = NULL;
    if (st != ST_OK || text.len == 0) return st;
    return json_parse(text, limits, arena, answer, &ignored) == ST_OK ? ST_OK : nonsense(r, err);
}

status remote_get(struct remote *r, const struct target *target, struct arena *arena,
                  yyjson_val **answer, struct error *err) {
    status st = fetch_json(r, "GET", target, NULL, REMOTE_CALL_MS, arena, answer, err);
    return st == ST_OK && !*answer ? nonsense(r, err) : st;
}

status remote_send(struct remote *r, const char *method, const struct target *target,
                   const struct remote_body *body, struct arena *arena, yyjson_val **answer,
                   struct error *err) {
    bool slow = str_starts(buf_str(&target->text), STR("/v1/admin/")); /* verify, backup */
    return fetch_json(r, method, target, body, slow ? REMOTE_LONG_MS : REMOTE_CALL_MS, arena,
                      answer, err);
}

/* ---- following ---- */

struct remote_stream {
    struct remote *remote;
    remote_line line;
    remote_ended ended;
    void *context;
    struct buf rest; /* of a line that is not complete yet */
    struct client_call *call;
    bool enough;
};

static bool take_line(struct remote_stream *s, str line) {
    if (line.len > 0 && !s->line(s->context, line)) s->enough = true;
    return !s->enough;
}

static bool take_chunk(void *context, str bytes) {
    struct remote_stream *s = context;
    str line;
    if (bytes.len == 0) {
        if (!s->line(s->context, STR(""))) s->enough = true;
        return !s->enough;
    }
    while (str_split(bytes, '\n', &line, &bytes)) {
        buf_put(&s->rest, line);
        if (s->rest.full || !take_line(s, buf_str(&s->rest))) return false;
        buf_clear(&s->rest);
    }
    buf_put(&s->rest, line);
    return !s->rest.full;
}

static status follow_result(struct remote_stream *s, status st, const struct client_response *got,
                            struct error *err) {
    if (s->enough) return ST_OK;
    if (s->rest.full) return nonsense(s->remote, err);
    if (st != ST_OK) return fetch_failed(s->remote, err);
    if (got->status < 200 || got->status > 299) return problem_error(s->remote, got, err);
    return ST_OK;
}

static void stream_init(struct remote_stream *s, struct remote *r, remote_line line,
                        void *context) {
    *s = (struct remote_stream){.remote = r, .line = line, .context = context};
    buf_init(&s->rest, 2 * LINE_BYTES_MAX);
}

static status prepare_stream(struct remote_stream *s, const struct target *target, struct asking *a,
                             struct error *err) {
    status st = prepare(s->remote, "GET", target, NULL, STR("application/x-ndjson"), a, err);
    a->request.timeout_ms = CLIENT_TIMEOUT_MS_MAX;
    a->request.chunk = take_chunk;
    a->request.context = s;
    return st;
}

status remote_follow(struct remote *r, const struct target *target, remote_line line, void *context,
                     struct error *err) {
    struct remote_stream s;
    struct asking a;
    struct client_response got = {0};
    stream_init(&s, r, line, context);
    status st = prepare_stream(&s, target, &a, err);
    if (st == ST_OK) {
        st = client_fetch(&a.request, &r->cli->arena, &got, err);
        st = follow_result(&s, st, &got, err);
    }
    buf_release(&s.rest);
    return st;
}

static void stream_done(void *context, status st, const struct client_response *got,
                        const struct error *why) {
    struct remote_stream *s = context;
    struct error err = {0};
    if (why) err = *why;
    s->call = NULL;
    st = follow_result(s, st, got, &err);
    s->ended(s->context, st, &err);
}

status remote_stream_open(struct remote *r, struct client *client, const struct target *target,
                          remote_line line, remote_ended ended, void *context,
                          struct remote_stream **out, struct error *err) {
    struct asking a;
    struct remote_stream *s = mem_alloc(sizeof(*s));
    if (!s) return error_set(err, ST_RETRY, "out of memory");
    stream_init(s, r, line, context);
    s->ended = ended;
    status st = prepare_stream(s, target, &a, err);
    if (st == ST_OK) st = client_start(client, &a.request, stream_done, s, &s->call, err);
    if (st != ST_OK) {
        remote_stream_close(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

void remote_stream_close(struct remote_stream *s) {
    if (!s) return;
    if (s->call) client_cancel(s->call);
    buf_release(&s->rest);
    mem_free(s);
}
