#include "outbox/depot_test.h"

#include <unistd.h>

#include "test.h"

/* ---- the server ---- */

static bool answer_json(int fd, int code, str body) {
    return fake_answer(fd, code, "Content-Type: application/json\r\n", body);
}

static bool answer_big(int fd, bool json) {
    size_t len = (size_t)200 * 1024;
    char *big = malloc(len);
    if (!big) return false;
    memset(big, 'x', len);
    if (json) big[0] = big[len - 1] = '"';
    bool ok = answer_json(fd, 200, str_n(big, len));
    free(big);
    return ok;
}

static bool handle(void *context, int fd, const struct fake_request *request) {
    struct depot *b = context;
    pthread_mutex_lock(&b->lock);
    (void)snprintf(b->head, sizeof b->head, "%.*s", (int)(request->body.ptr - request->head),
                   request->head);
    (void)snprintf(b->body, sizeof b->body, "%.*s", STR_ARG(request->body));
    pthread_mutex_unlock(&b->lock);
    str path = str_from(request->target, 1);
    int64_t code = 0;
    char c;
    if (str_eq(path, STR("json"))) return answer_json(fd, 200, STR("{ \"ok\": true }"));
    if (str_eq(path, STR("empty"))) return fake_answer(fd, 204, "", STR(""));
    if (str_eq(path, STR("text"))) return fake_answer(fd, 201, "", STR("fine \xFF\n"));
    if (str_eq(path, STR("big"))) return answer_big(fd, false);
    if (str_eq(path, STR("bigjson"))) return answer_big(fd, true);
    if (str_eq(path, STR("echo"))) return fake_answer(fd, 200, "", str_c(b->head));
    if (str_eq(path, STR("echojson")))
        return answer_json(fd, 200, STR("{\"token\":\"s3cr\\u0065t-token\",\"s3cret-token\":1}"));
    if (str_eq(path, STR("echotwice")))
        return answer_json(fd, 200, STR("{\"s3cret-token\":1,\"Bearer s3cret-token\":2}"));
    if (str_eq(path, STR("move")))
        return fake_answer(fd, 302, "Location: http://127.0.0.1:1/\r\n", STR(""));
    if (str_to_int(path, &code)) return fake_answer(fd, (int)code, "", STR("s3cret-token"));
    (void)!read(fd, &c, 1); /* until the other side gives up */
    return false;
}

/* ---- secrets ---- */

static status secret(void *context, str environment_id, str name, struct arena *arena, str *out,
                     struct error *err) {
    static const struct {
        const char *name, *value;
    } secrets[] = {
        {"TOKEN", "s3cret-token"},
        {"BEARER", "Bearer s3cret-token"},
        {"SIGN", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"},
        {"PLAIN_SIGN", "plain-signing-key"},
        {"BAD_SIGN", "whsec_!!!!"},
        {"LINES", "one\r\nX-Two: two"},
        {"MAIL", "p%ss word-1"},
        {"WRONG", "wrong"},
    };
    UNUSED(context);
    CHECK(str_eq(environment_id, STR("env-1")));
    for (size_t i = 0; i < COUNT_OF(secrets); i++) {
        if (!str_eq(name, str_c(secrets[i].name))) continue;
        *out = arena_str(arena, str_c(secrets[i].value));
        return ST_OK;
    }
    return error_at(err, REASON_SECRET_NOT_FOUND, "", "there is no secret \"%.*s\"", STR_ARG(name));
}

/* ---- the deliverer ---- */

struct deliverer_options depot_options(struct depot *b) {
    memset(b, 0, sizeof *b);
    arena_init(&b->arena, 4096, (size_t)64 << 20);
    CHECK(pthread_mutex_init(&b->lock, NULL) == 0);
    b->server = fake_server_open(handle, b);
    b->rule = (struct guard_rule){
        .scheme = STR("http"), .host = STR("127.0.0.1"), .port = fake_server_port(b->server)};
    b->guard = (struct guard){.rules = &b->rule, .rule_count = 1, .allow_private = true};
    return (struct deliverer_options){.guard = &b->guard,
                                      .secret = secret,
                                      .sor_url = depot_text(b, "http://127.0.0.1:%d/json"),
                                      .timeout_ms = 20000};
}

void depot_open(struct depot *b, const struct deliverer_options *options) {
    struct error err = {0};
    CHECK(uv_loop_init(&b->loop) == 0);
    CHECK(deliverer_open(&b->loop, options, &b->deliverer, &err) == ST_OK, "%s", err.msg);
}

void depot_close(struct depot *b) {
    deliverer_close(b->deliverer);
    uv_run(&b->loop, UV_RUN_DEFAULT);
    CHECK(uv_loop_close(&b->loop) == 0);
    fake_server_close(b->server);
    pthread_mutex_destroy(&b->lock);
    arena_release(&b->arena);
}

str depot_text(struct depot *b, const char *fmt) {
    char text[16 * 1024];
    const char *at = strstr(fmt, "%d");
    if (!at) return arena_str(&b->arena, str_c(fmt));
    (void)snprintf(text, sizeof text, "%.*s%d%s", (int)(at - fmt), fmt, fake_server_port(b->server),
                   at + 2);
    return arena_str(&b->arena, str_c(text));
}

void depot_done(struct delivery *delivery, bool ok, str result, enum reason code, str message) {
    struct depot *b = delivery->context;
    b->ended++;
    b->ok = ok;
    CHECK(ok == (code == REASON_NONE) && ok == (message.ptr == NULL) && ok == (result.ptr != NULL));
    CHECK(result.len <= DELIVERY_RESULT_MAX && message.len <= DELIVERY_MESSAGE_MAX);
    (void)snprintf(b->code, sizeof b->code, "%s", reason_name(code));
    b->result = arena_str(&b->arena, ok ? result : STR("")).ptr;
    b->message = arena_str(&b->arena, ok ? STR("") : message).ptr;
}

struct delivery depot_delivery(struct depot *b, const char *type, str spec) {
    uuid effect_id;
    CHECK(uuid_parse(STR(DEPOT_EFFECT), &effect_id));
    return (struct delivery){.type = str_c(type),
                             .spec = spec,
                             .key = STR("run-456-webhook-order-123"),
                             .effect_id = effect_id,
                             .tenant_id = STR("tenant-1"),
                             .environment_id = STR("env-1"),
                             .run_id = STR("run-456"),
                             .now_us = (int64_t)DEPOT_NOW_S * 1000000 + 123456,
                             .done = depot_done,
                             .context = b};
}

void depot_wait(struct depot *b, int ended) {
    while (b->ended < ended)
        uv_run(&b->loop, UV_RUN_ONCE);
}

void depot_run(struct depot *b, const char *type, const char *spec) {
    struct delivery delivery = depot_delivery(b, type, depot_text(b, spec));
    b->ended = 0;
    delivery_start(b->deliverer, &delivery);
    CHECK(b->ended == 0); /* never before it returns */
    depot_wait(b, 1);
    CHECK(b->ended == 1 && delivery.under_way == NULL);
}

bool depot_has_header(struct depot *b, const char *line) {
    char text[1024];
    (void)snprintf(text, sizeof text, "\r\n%s\r\n", line);
    pthread_mutex_lock(&b->lock);
    bool has = strstr(b->head, text) != NULL;
    pthread_mutex_unlock(&b->lock);
    return has;
}
