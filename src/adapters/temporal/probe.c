/* adapters/temporal/probe.c: does the cluster answer? For cairn doctor. */
#include <signal.h>

#include "adapters/temporal/temporal.h"
#include "adapters/temporal/wire.h"
#include "base/buf.h"
#include "net/grpc.h"

enum { PROBE_MS = 5000 };

struct probe {
    struct arena *arena;
    struct grpc *grpc;
    uv_timer_t timer; /* closes the channel, outside of its answer */
    int code;
    str message, version;
};

static void on_timer(uv_timer_t *timer) {
    struct probe *p = timer->data;
    grpc_close(p->grpc);
    uv_close((uv_handle_t *)timer, NULL);
}

static void on_answer(void *context, const struct grpc_answer *answer) {
    struct probe *p = context;
    p->code = answer->code;
    p->message = arena_str(p->arena, answer->message);
    if (answer->code == GRPC_OK) {
        struct error ignored;
        void *value = NULL;
        if (wire_unpack(&tp__system_info__descriptor, answer->body, p->arena, &value, &ignored) ==
            ST_OK)
            p->version = wire_str(((const Tp__SystemInfo *)value)->server_version);
    }
    uv_timer_start(&p->timer, on_timer, 0, 0);
}

status temporal_probe(const struct temporal_options *o, struct arena *arena, str *version,
                      struct error *err) {
    uv_loop_t loop;
    struct probe p = {.arena = arena, .code = GRPC_UNAVAILABLE};
    struct buf bearer;
    struct grpc_options options = {.target = o->target,
                                   .tls = o->tls,
                                   .ca_file = o->ca_file,
                                   .cert_file = o->cert_file,
                                   .key_file = o->key_file,
                                   .server_name = o->server_name,
                                   .user_agent = STR("cairn")};
    struct grpc_request request = {
        .path = STR("/temporal.api.workflowservice.v1.WorkflowService/GetSystemInfo"),
        .body = STR(""),
        .timeout_ms = PROBE_MS};
    buf_init(&bearer, (size_t)64 * 1024);
    buf_put_c(&bearer, "Bearer ");
    buf_put(&bearer, o->api_key);
    if (o->api_key.ptr) options.authorization = buf_str(&bearer);
    (void)signal(SIGPIPE, SIG_IGN);
    uv_loop_init(&loop);
    uv_timer_init(&loop, &p.timer);
    p.timer.data = &p;
    status st = grpc_open(&loop, &options, &p.grpc, err);
    if (st == ST_OK) st = grpc_start(p.grpc, &request, on_answer, &p, NULL, err);
    if (st != ST_OK) uv_timer_start(&p.timer, on_timer, 0, 0);
    uv_run(&loop, UV_RUN_DEFAULT);
    uv_loop_close(&loop);
    buf_release(&bearer);
    (void)signal(SIGPIPE, SIG_DFL);
    if (st != ST_OK) return st;
    if (p.code != GRPC_OK)
        return error_set(err, ST_RETRY, "%.*s: %s: %.*s", STR_ARG(o->target),
                         grpc_code_name(p.code), STR_ARG(p.message));
    *version = p.version;
    return ST_OK;
}
