#include "lib/control.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/os.h"
#include "base/time.h"
#include "cairn.h"

#define SOCKET_NAME "control.sock"
#define ANSWER_BYTES_MAX ((size_t)64 * 1024 * 1024)

/* ---- requests ---- */

enum op {
    OP_STATUS,
    OP_START,
    OP_RESUME,
    OP_SIGNAL,
    OP_POLL,
    OP_HEARTBEAT,
    OP_COMPLETE,
    OP_FAIL,
    OP_COUNT
};
static const char *const op_names[OP_COUNT] = {"status", "start",     "resume",   "signal",
                                               "poll",   "heartbeat", "complete", "fail"};
#define BIT(op) (1U << OP_##op)
#define TASK (BIT(HEARTBEAT) | BIT(COMPLETE) | BIT(FAIL))

struct request {
    enum op op;
    str run_id, tenant, project, environment, actor, signal, signal_id, step_id, reason, queue,
        worker, code, message;
    str plan_ref, parameters, payload, output; /* JSON */
    int64_t attempt, lease, max, lease_ms, wait_ms;
    bool approval;
};

enum field_kind { FIELD_STR, FIELD_INT, FIELD_BOOL, FIELD_JSON };
struct field {
    const char *name;
    enum field_kind kind;
    size_t offset;
    unsigned ops, required;
    int64_t min, max; /* of an int */
};
#define AT(member) offsetof(struct request, member)
static const struct field fields[] = {
    {"runId", FIELD_STR, AT(run_id), BIT(START) | BIT(RESUME) | BIT(SIGNAL) | TASK,
     BIT(RESUME) | BIT(SIGNAL) | TASK, 0, 0},
    {"tenantId", FIELD_STR, AT(tenant), BIT(START) | BIT(POLL), BIT(START) | BIT(POLL), 0, 0},
    {"projectId", FIELD_STR, AT(project), BIT(START), BIT(START), 0, 0},
    {"environmentId", FIELD_STR, AT(environment), BIT(START), BIT(START), 0, 0},
    {"planRef", FIELD_JSON, AT(plan_ref), BIT(START), BIT(START), 0, 0},
    {"parameters", FIELD_JSON, AT(parameters), BIT(START), 0, 0, 0},
    {"approval", FIELD_BOOL, AT(approval), BIT(START), 0, 0, 0},
    {"actor", FIELD_STR, AT(actor), BIT(START) | BIT(SIGNAL), 0, 0, 0},
    {"signal", FIELD_STR, AT(signal), BIT(SIGNAL), BIT(SIGNAL), 0, 0},
    {"signalId", FIELD_STR, AT(signal_id), BIT(SIGNAL), 0, 0, 0},
    {"stepId", FIELD_STR, AT(step_id), BIT(SIGNAL) | TASK, TASK, 0, 0},
    {"payload", FIELD_JSON, AT(payload), BIT(SIGNAL), 0, 0, 0},
    {"reason", FIELD_STR, AT(reason), BIT(SIGNAL), 0, 0, 0},
    {"queue", FIELD_STR, AT(queue), BIT(POLL), BIT(POLL), 0, 0},
    {"worker", FIELD_STR, AT(worker), BIT(POLL), BIT(POLL), 0, 0},
    {"max", FIELD_INT, AT(max), BIT(POLL), 0, 1, CONTROL_TASKS_MAX},
    {"leaseMs", FIELD_INT, AT(lease_ms), BIT(POLL) | BIT(HEARTBEAT), BIT(POLL) | BIT(HEARTBEAT),
     100, CONTROL_LEASE_MS_MAX},
    {"waitMs", FIELD_INT, AT(wait_ms), BIT(POLL), 0, 0, CONTROL_WAIT_MS_MAX},
    {"attempt", FIELD_INT, AT(attempt), TASK, TASK, 1, INT64_MAX},
    {"lease", FIELD_INT, AT(lease), TASK, TASK, 1, INT64_MAX},
    {"output", FIELD_JSON, AT(output), BIT(COMPLETE), 0, 0, 0},
    {"code", FIELD_STR, AT(code), BIT(FAIL), BIT(FAIL), 0, 0},
    {"message", FIELD_STR, AT(message), BIT(FAIL), 0, 0, 0},
};

static status invalid(struct error *err, const char *name, const char *what) {
    char where[ERROR_WHERE_MAX];
    snprintf(where, sizeof(where), "%s%.60s", name[0] ? "/" : "", name);
    return error_at(err, ST_INVALID, "CONTROL_INVALID", where, "%s", what);
}

static status take_field(const struct field *f, yyjson_val *v, struct arena *arena,
                         struct request *out, struct error *err) {
    char *to = (char *)out + f->offset;
    int64_t n = 0;
    str text = STR_NONE;
    switch (f->kind) {
    case FIELD_STR:
        if (!json_str(v, &text) || text.len > LINE_BYTES_MAX)
            return invalid(err, f->name, "expected a string");
        *(str *)(void *)to = text;
        return ST_OK;
    case FIELD_INT:
        if (!json_int(v, &n) || n < f->min || n > f->max) {
            char what[96];
            snprintf(what, sizeof(what), "expected a whole number from %lld to %lld",
                     (long long)f->min, (long long)f->max);
            return invalid(err, f->name, what);
        }
        *(int64_t *)(void *)to = n;
        return ST_OK;
    case FIELD_BOOL:
        if (!yyjson_is_bool(v)) return invalid(err, f->name, "expected true or false");
        *(bool *)(void *)to = yyjson_get_bool(v);
        return ST_OK;
    case FIELD_JSON:
        *(str *)(void *)to = text = json_text(v, arena);
        return text.ptr ? ST_OK : error_set(err, ST_RETRY, "control: out of memory");
    }
    return ST_OK;
}

static status take_members(yyjson_val *root, struct arena *arena, struct request *out,
                           struct error *err) {
    size_t i;
    size_t max;
    yyjson_val *key;
    yyjson_val *val;
    unsigned given = 0;
    unsigned op = 1U << out->op;
    yyjson_obj_foreach(root, i, max, key, val) {
        size_t k = 0;
        while (k < COUNT_OF(fields) &&
               !((fields[k].ops & op) && yyjson_equals_str(key, fields[k].name)))
            k++;
        if (k < COUNT_OF(fields)) {
            given |= 1U << k;
            status st = take_field(&fields[k], val, arena, out, err);
            if (st != ST_OK) return st;
        } else if (!yyjson_equals_str(key, "op")) {
            return invalid(err, yyjson_get_str(key), "this request has no such member");
        }
    }
    for (size_t k = 0; k < COUNT_OF(fields); k++) {
        if ((fields[k].required & op) && !(given & (1U << k)))
            return invalid(err, fields[k].name, "is missing");
    }
    return ST_OK;
}
static_assert(COUNT_OF(fields) <= 32, "what was given is bits of one number");

static status parse_request(str line, struct arena *arena, struct request *out, struct error *err) {
    yyjson_val *root = NULL;
    str name = STR_NONE;
    struct json_limits limits = {LINE_BYTES_MAX, JSON_DEPTH_MAX};
    status st = json_parse(line, limits, arena, &root, err);
    if (st != ST_OK) return st;
    if (!yyjson_is_obj(root)) return invalid(err, "", "a request is an object");
    if (!json_str(json_member(root, "op"), &name)) return invalid(err, "op", "is missing");
    *out = (struct request){.max = 1};
    while (out->op < OP_COUNT && !str_eq(name, str_c(op_names[out->op])))
        out->op++;
    if (out->op == OP_COUNT) return invalid(err, "op", "there is no such operation");
    return take_members(root, arena, out, err);
}

/* ---- connections ---- */

struct conn {
    struct conn *next, **link; /* in the list of those that are open */
    struct control *control;   /* NULL: the control is gone, or going */
    uv_pipe_t pipe;
    uv_timer_t idle;
    int handles;        /* not closed yet */
    bool closing, busy; /* busy: a request is being carried out, or its answer written */
    bool asked;         /* the engine owes an answer */
    bool last;          /* closed after this answer */
    struct engine_poll *poll;
    char run_id[ID_BYTES_MAX + 1]; /* of a start */
    struct arena arena;            /* of the request */
    struct buf in, out;
    size_t scanned;
    uv_write_t write;
};

struct control {
    struct host *host;
    uv_loop_t *loop;
    uv_pipe_t listener;
    int folder_fd;
    struct conn *conns;
    int count;
};

static void conn_free(struct conn *c) {
    if (c->handles > 0 || c->asked) return;
    arena_release(&c->arena);
    buf_release(&c->in);
    buf_release(&c->out);
    mem_free(c);
}

static void on_handle_closed(uv_handle_t *handle) {
    struct conn *c = handle->data;
    c->handles--;
    conn_free(c);
}

static void conn_close(struct conn *c) {
    if (c->closing) return;
    c->closing = true;
    *c->link = c->next;
    if (c->next) c->next->link = c->link;
    c->control->count--;
    if (c->poll) { /* no answer comes any more */
        engine_poll_cancel(host_engine(c->control->host), c->poll);
        c->poll = NULL;
        c->asked = false;
    }
    uv_close((uv_handle_t *)&c->idle, on_handle_closed);
    uv_close((uv_handle_t *)&c->pipe, on_handle_closed);
}

static void on_idle(uv_timer_t *timer) {
    struct conn *c = timer->data;
    if (!c->busy) conn_close(c);
}

static void conn_next(struct conn *c);

static void on_written(uv_write_t *write, int code) {
    struct conn *c = write->data;
    if (c->closing) return;
    if (code < 0 || c->last) {
        conn_close(c);
        return;
    }
    c->busy = false;
    uv_timer_start(&c->idle, on_idle, CONTROL_IDLE_MS, 0);
    conn_next(c);
}

/* The answer is in c->out. */
static void conn_send(struct conn *c) {
    buf_put_char(&c->out, '\n');
    if (c->closing || c->out.full) {
        conn_close(c);
        return;
    }
    uv_buf_t data = uv_buf_init(c->out.ptr, (unsigned)c->out.len);
    c->write.data = c;
    if (uv_write(&c->write, (uv_stream_t *)&c->pipe, &data, 1, on_written) != 0) conn_close(c);
}

static void put_text(struct buf *out, const char *name, str value) {
    buf_printf(out, ",\"%s\":", name);
    buf_put_json_str(out, value);
}

static void put_int(struct buf *out, const char *name, int64_t value) {
    buf_printf(out, ",\"%s\":%lld", name, (long long)value);
}

static void answer_error(struct conn *c, const struct error *err) {
    buf_clear(&c->out);
    buf_put_c(&c->out, "{\"error\":{\"code\":");
    buf_put_json_str(&c->out, err->reason ? str_c(err->reason) : STR("TRY_AGAIN"));
    put_text(&c->out, "where", str_c(err->where));
    put_text(&c->out, "message", str_c(err->msg));
    put_text(&c->out, "status", str_c(status_name(err->code)));
    buf_put_c(&c->out, "}}");
    conn_send(c);
}

static void answer_ok(struct conn *c) {
    buf_clear(&c->out);
    buf_put_c(&c->out, "{\"ok\":true");
}

static void on_done(void *context, status code, const struct error *err) {
    struct conn *c = context;
    c->asked = false;
    if (c->closing) {
        conn_free(c);
        return;
    }
    if (code != ST_OK) {
        answer_error(c, err);
        return;
    }
    answer_ok(c);
    if (c->run_id[0]) put_text(&c->out, "runId", str_c(c->run_id));
    buf_put_char(&c->out, '}');
    conn_send(c);
}

static void on_tasks(void *context, const struct task *tasks, size_t count) {
    struct conn *c = context;
    c->asked = false;
    c->poll = NULL;
    answer_ok(c);
    buf_put_c(&c->out, ",\"tasks\":[");
    for (size_t i = 0; i < count; i++) {
        const struct task *t = &tasks[i];
        char until[TIME_TEXT_MAX];
        buf_put_c(&c->out, i > 0 ? ",{\"runId\":" : "{\"runId\":");
        buf_put_json_str(&c->out, t->ref.run_id);
        put_text(&c->out, "stepId", t->ref.step_id);
        put_int(&c->out, "attempt", t->ref.attempt);
        put_int(&c->out, "lease", t->ref.lease);
        put_text(&c->out, "tenantId", t->tenant_id);
        put_text(&c->out, "queue", t->queue);
        put_text(&c->out, "leaseUntil", str_n(until, time_format_us(t->lease_until_us, until)));
        buf_put_c(&c->out, ",\"input\":");
        buf_put(&c->out, t->input);
        buf_put_char(&c->out, '}');
    }
    buf_put_c(&c->out, "]}");
    conn_send(c);
}

/* ---- operations ---- */

static status do_start(struct conn *c, const struct request *q, struct error *err) {
    struct start_request start = {.tenant_id = q->tenant,
                                  .project_id = q->project,
                                  .environment_id = q->environment,
                                  .run_id = q->run_id,
                                  .adapter = STR("local"),
                                  .parameters = q->parameters,
                                  .actor = q->actor,
                                  .approval = q->approval};
    status st = plan_ref_parse(q->plan_ref, &c->arena, &start.ref, err);
    if (st != ST_OK) return st;
    if (q->actor.len > ACTOR_BYTES_MAX) return invalid(err, "actor", "is too long");
    c->asked = true;
    engine_start(host_engine(c->control->host), &start, c->run_id, on_done, c);
    return ST_OK;
}

static status do_signal(struct conn *c, const struct request *q, struct error *err) {
    struct signal signal = {.name = q->signal,
                            .signal_id = q->signal_id,
                            .step_id = q->step_id,
                            .payload = q->payload,
                            .reason = q->reason};
    if (q->actor.len > ACTOR_BYTES_MAX) return invalid(err, "actor", "is too long");
    c->asked = true;
    engine_signal(host_engine(c->control->host), q->run_id, &signal, q->actor, on_done, c);
    return ST_OK;
}

static status do_poll(struct conn *c, const struct request *q, struct error *err) {
    struct engine_poll *poll = NULL;
    c->asked = true;
    status st =
        engine_poll(host_engine(c->control->host), q->tenant, q->queue, q->worker, (size_t)q->max,
                    q->lease_ms, clock_wall_us() + q->wait_ms * 1000, on_tasks, c, &poll, err);
    if (st != ST_OK)
        c->asked = false;
    else if (c->asked) /* or it was answered at once */
        c->poll = poll;
    return st;
}

static void do_status(struct conn *c) {
    struct engine_stats stats;
    engine_stats(host_engine(c->control->host), &stats);
    answer_ok(c);
    put_int(&c->out, "pid", getpid());
    put_text(&c->out, "version", STR(CAIRN_VERSION));
    put_int(&c->out, "runs", (int64_t)stats.resident);
    put_int(&c->out, "attempts", (int64_t)stats.attempts);
    put_int(&c->out, "tasks", (int64_t)stats.tasks);
    put_int(&c->out, "polls", (int64_t)stats.polls);
    buf_put_char(&c->out, '}');
    conn_send(c);
}

static status do_heartbeat(struct conn *c, const struct request *q, const struct task_ref *ref,
                           struct error *err) {
    int64_t until_us = 0;
    char text[TIME_TEXT_MAX];
    status st = engine_heartbeat(host_engine(c->control->host), ref, q->lease_ms, &until_us, err);
    if (st != ST_OK) return st;
    answer_ok(c);
    put_text(&c->out, "leaseUntil", str_n(text, time_format_us(until_us, text)));
    buf_put_char(&c->out, '}');
    conn_send(c);
    return ST_OK;
}

static status carry_out(struct conn *c, const struct request *q, struct error *err) {
    struct engine *engine = host_engine(c->control->host);
    struct task_ref ref = {q->run_id, q->step_id, q->attempt, q->lease};
    switch (q->op) {
    case OP_STATUS:
        do_status(c);
        return ST_OK;
    case OP_START:
        return do_start(c, q, err);
    case OP_RESUME:
        engine_look(engine, q->run_id);
        answer_ok(c);
        buf_put_char(&c->out, '}');
        conn_send(c);
        return ST_OK;
    case OP_SIGNAL:
        return do_signal(c, q, err);
    case OP_POLL:
        return do_poll(c, q, err);
    case OP_HEARTBEAT:
        return do_heartbeat(c, q, &ref, err);
    case OP_COMPLETE:
    case OP_FAIL:
        c->asked = true;
        engine_task_done(engine, &ref, q->op == OP_COMPLETE, q->output, q->code, q->message,
                         on_done, c);
        return ST_OK;
    case OP_COUNT:
        break;
    }
    return ST_OK;
}

static void conn_request(struct conn *c, str line) {
    struct request q;
    struct error err = {0};
    c->busy = true;
    c->run_id[0] = 0;
    uv_timer_stop(&c->idle);
    arena_reset(&c->arena);
    status st = parse_request(line, &c->arena, &q, &err);
    if (st == ST_OK) st = carry_out(c, &q, &err);
    if (st != ST_OK) answer_error(c, &err);
}

/* ---- bytes ---- */

/* Says why, and no more. */
static void conn_refuse(struct conn *c, const struct error *err) {
    c->busy = c->last = true;
    uv_read_stop((uv_stream_t *)&c->pipe);
    answer_error(c, err);
}

/* Takes the next whole line, if no request is under way. */
static void conn_next(struct conn *c) {
    if (c->busy || c->closing) return;
    char *end = memchr(c->in.ptr ? c->in.ptr + c->scanned : "", '\n', c->in.len - c->scanned);
    size_t len = end ? (size_t)(end - c->in.ptr) : c->in.len;
    c->scanned = c->in.len;
    if (len > LINE_BYTES_MAX) {
        struct error err = {0};
        error_at(&err, ST_LIMIT, "CONTROL_INVALID", "", "a request may have %zu bytes",
                 LINE_BYTES_MAX);
        conn_refuse(c, &err);
        return;
    }
    if (!end) return;
    conn_request(c, str_n(c->in.ptr, len));
    if (c->closing) return;
    c->in.len -= len + 1;
    memmove(c->in.ptr, end + 1, c->in.len);
    c->scanned = 0;
}

static void on_alloc(uv_handle_t *handle, size_t wanted, uv_buf_t *out) {
    char *mem = mem_alloc(wanted);
    UNUSED(handle);
    *out = uv_buf_init(mem, mem ? (unsigned)wanted : 0);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *data) {
    struct conn *c = stream->data;
    if (n > 0) buf_put(&c->in, str_n(data->base, (size_t)n));
    mem_free(data->base);
    if (n < 0 || c->in.full) {
        conn_close(c);
        return;
    }
    conn_next(c);
}

static void on_connection(uv_stream_t *listener, int code) {
    struct control *ctl = listener->data;
    struct conn *c = code == 0 ? mem_alloc(sizeof(*c)) : NULL;
    if (!c) return;
    c->control = ctl;
    c->handles = 2;
    arena_init(&c->arena, 4096, (size_t)16 * 1024 * 1024);
    buf_init(&c->in, 2 * LINE_BYTES_MAX);
    buf_init(&c->out, ANSWER_BYTES_MAX);
    (void)uv_timer_init(ctl->loop, &c->idle);
    (void)uv_pipe_init(ctl->loop, &c->pipe, 0);
    c->pipe.data = c->idle.data = c;
    c->next = ctl->conns;
    c->link = &ctl->conns;
    if (c->next) c->next->link = &c->next;
    ctl->conns = c;
    ctl->count++;
    bool taken = uv_accept(listener, (uv_stream_t *)&c->pipe) == 0;
    uv_timer_start(&c->idle, on_idle, CONTROL_IDLE_MS, 0);
    if (!taken || uv_read_start((uv_stream_t *)&c->pipe, on_alloc, on_read) != 0) {
        conn_close(c);
    } else if (ctl->count > CONTROL_CONNECTIONS_MAX) {
        struct error err = {0};
        error_at(&err, ST_LIMIT, "CONTROL_BUSY", "", "%d connections are open already",
                 CONTROL_CONNECTIONS_MAX);
        conn_refuse(c, &err);
    }
}

/* ---- the socket ---- */

/* sun_path has room for 107 bytes; a folder's path may be longer. /proc/self/fd names it shortly.
 */
static status folder_address(str data_dir, int *folder_fd, struct sockaddr_un *out,
                             struct error *err) {
    char path[4096];
    if (data_dir.len >= sizeof(path))
        return error_set(err, ST_INVALID, "the data folder's path is too long");
    snprintf(path, sizeof(path), "%.*s", STR_ARG(data_dir));
    *folder_fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (*folder_fd < 0)
        return error_set(err, errno == ENOENT ? ST_NOT_FOUND : ST_RETRY,
                         "could not open folder \"%s\": %s", path, strerror(errno));
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(out->sun_path, sizeof(out->sun_path), "/proc/self/fd/%d/" SOCKET_NAME, *folder_fd);
    return ST_OK;
}

static int bind_socket(int folder_fd, const struct sockaddr_un *address) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    (void)unlinkat(folder_fd, SOCKET_NAME, 0);
    /* The mode of the socket becomes the mode of the file: there is no moment of another one. */
    if (fchmod(fd, 0600) == 0 && bind(fd, (const struct sockaddr *)address, sizeof(*address)) == 0)
        return fd;
    int code = errno;
    close(fd);
    errno = code;
    return -1;
}

static void on_listener_closed(uv_handle_t *handle) { mem_free(handle->data); }

status control_open(uv_loop_t *loop, struct host *host, str data_dir, struct control **out,
                    struct error *err) {
    struct sockaddr_un address;
    struct control *ctl = mem_alloc(sizeof(*ctl));
    if (!ctl) return error_set(err, ST_RETRY, "control: out of memory");
    ctl->host = host;
    ctl->loop = loop;
    status st = folder_address(data_dir, &ctl->folder_fd, &address, err);
    if (st != ST_OK) {
        mem_free(ctl);
        return st;
    }
    int fd = bind_socket(ctl->folder_fd, &address);
    if (fd < 0) {
        st = error_set(err, ST_RETRY, "could not make " SOCKET_NAME " in \"%.*s\": %s",
                       STR_ARG(data_dir), strerror(errno));
        close(ctl->folder_fd);
        mem_free(ctl);
        return st;
    }
    (void)uv_pipe_init(loop, &ctl->listener, 0);
    ctl->listener.data = ctl;
    if (uv_pipe_open(&ctl->listener, fd) != 0 ||
        uv_listen((uv_stream_t *)&ctl->listener, CONTROL_CONNECTIONS_MAX, on_connection) != 0) {
        st = error_set(err, ST_RETRY, "could not listen on " SOCKET_NAME);
        control_close(ctl);
        return st;
    }
    *out = ctl;
    return ST_OK;
}

void control_close(struct control *ctl) {
    if (!ctl) return;
    (void)unlinkat(ctl->folder_fd, SOCKET_NAME, 0);
    close(ctl->folder_fd);
    while (ctl->conns)
        conn_close(ctl->conns);
    uv_close((uv_handle_t *)&ctl->listener, on_listener_closed);
}

/* ---- the other side ---- */

struct control_client {
    int fd;
    struct buf in;
};

static status gone(struct error *err) {
    return error_at(err, ST_RETRY, "CONTROL_LOST", "",
                    "the process that holds the data folder ended before it answered");
}

status control_connect(str data_dir, struct control_client **out, struct error *err) {
    struct sockaddr_un address;
    int folder_fd = -1;
    status st = folder_address(data_dir, &folder_fd, &address, err);
    if (st != ST_OK) return st;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool connected =
        fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0;
    int code = errno;
    close(folder_fd);
    struct control_client *c = connected ? mem_alloc(sizeof(*c)) : NULL;
    if (!c) {
        if (fd >= 0) close(fd);
        bool nobody = code == ENOENT || code == ECONNREFUSED;
        return error_set(err, nobody ? ST_NOT_FOUND : ST_RETRY, "could not reach %s: %s",
                         SOCKET_NAME, strerror(code));
    }
    c->fd = fd;
    buf_init(&c->in, ANSWER_BYTES_MAX);
    *out = c;
    return ST_OK;
}

static bool wait_for(int fd, short events, int64_t until_ns) {
    int64_t left_ms = (until_ns - clock_mono_ns()) / 1000000 + 1;
    struct pollfd p = {.fd = fd, .events = events};
    return left_ms > 0 && poll(&p, 1, (int)left_ms) >= 0;
}

static status send_all(int fd, str bytes, struct error *err) {
    while (bytes.len > 0) {
        ssize_t n = send(fd, bytes.ptr, bytes.len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return gone(err);
        bytes = str_from(bytes, (size_t)n);
    }
    return ST_OK;
}

static status receive_line(struct control_client *c, int64_t until_ns, struct error *err) {
    char mem[16384];
    buf_clear(&c->in);
    while (c->in.len == 0 || c->in.ptr[c->in.len - 1] != '\n') {
        if (!wait_for(c->fd, POLLIN, until_ns))
            return error_at(err, ST_RETRY, "CONTROL_SLOW", "", "no answer came in time");
        ssize_t n = recv(c->fd, mem, sizeof(mem), MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (n <= 0) return gone(err);
        buf_put(&c->in, str_n(mem, (size_t)n));
        if (c->in.full) return error_set(err, ST_LIMIT, "the answer is too long");
    }
    return ST_OK;
}

static status refused(yyjson_val *e, struct arena *arena, struct error *err) {
    str code = STR_NONE;
    str where = STR_NONE;
    str message = STR_NONE;
    str name = STR_NONE;
    status st = ST_RETRY;
    (void)json_str(json_member(e, "code"), &code);
    (void)json_str(json_member(e, "where"), &where);
    (void)json_str(json_member(e, "message"), &message);
    (void)json_str(json_member(e, "status"), &name);
    for (int i = ST_INVALID; i <= ST_CORRUPT; i++) {
        if (str_eq(name, str_c(status_name((status)i)))) st = (status)i;
    }
    str kept = arena_str(arena, code.ptr ? code : STR("TRY_AGAIN"));
    char place[ERROR_WHERE_MAX];
    snprintf(place, sizeof(place), "%.*s", STR_ARG(where));
    error_set(err, st, "%.*s", STR_ARG(message));
    err->reason = kept.ptr;
    memcpy(err->where, place, sizeof(place));
    return st;
}

status control_call(struct control_client *c, str request, int64_t timeout_ms, struct arena *arena,
                    yyjson_val **answer, struct error *err) {
    struct json_limits limits = {ANSWER_BYTES_MAX, JSON_DEPTH_MAX + 8};
    int64_t until_ns = clock_mono_ns() + timeout_ms * 1000000;
    status sent = send_all(c->fd, request, err);
    if (sent == ST_OK) sent = send_all(c->fd, STR("\n"), err);
    UNUSED(sent); /* when not all could be sent, the answer may say why */
    status st = receive_line(c, until_ns, err);
    if (st == ST_OK) st = json_parse(buf_str(&c->in), limits, arena, answer, err);
    if (st != ST_OK) return st;
    yyjson_val *e = json_member(*answer, "error");
    return e ? refused(e, arena, err) : ST_OK;
}

bool control_alive(const struct control_client *c) {
    char byte;
    return recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
}

void control_disconnect(struct control_client *c) {
    if (!c) return;
    close(c->fd);
    buf_release(&c->in);
    mem_free(c);
}
