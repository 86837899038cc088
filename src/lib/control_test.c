/* The control socket, with a host at work in a thread and clients in the test's. */
#include "lib/control.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/json.h"
#include "base/limits.h"
#include "test.h"

struct server {
    str url, data_dir;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ready_changed;
    bool ready;
    uv_loop_t loop;
    uv_async_t stop;
    bool stopping;
    struct plan_ref ref;
    struct arena arena;
};

static void on_stop(uv_async_t *async) {
    struct server *s = async->data;
    s->stopping = true;
}

static void *serve(void *context) {
    struct server *s = context;
    struct host *host = NULL;
    struct control *control = NULL;
    struct error err = {0};
    struct host_options options = {.url = s->url, .data_dir = s->data_dir, .only_asked = true};
    CHECK(host_open(&s->loop, &options, &host, &err) == ST_OK, "%s", err.msg);
    CHECK(control_open(&s->loop, host, s->data_dir, &control, &err) == ST_OK, "%s", err.msg);
    pthread_mutex_lock(&s->lock);
    s->ready = true;
    pthread_cond_signal(&s->ready_changed);
    pthread_mutex_unlock(&s->lock);
    while (!s->stopping)
        uv_run(&s->loop, UV_RUN_ONCE);
    control_close(control);
    host_close(host);
    uv_close((uv_handle_t *)&s->stop, NULL);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    return NULL;
}

static void server_open(struct server *s, str url) {
    *s = (struct server){.url = url};
    arena_init(&s->arena, 4096, (size_t)64 * 1024 * 1024);
    s->data_dir = arena_str(&s->arena, str_c(test_dir()));
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->ready_changed, NULL);
    CHECK(uv_loop_init(&s->loop) == 0);
    uv_async_init(&s->loop, &s->stop, on_stop);
    s->stop.data = s;
    CHECK(pthread_create(&s->thread, NULL, serve, s) == 0);
    pthread_mutex_lock(&s->lock);
    while (!s->ready)
        pthread_cond_wait(&s->ready_changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

static void server_close(struct server *s) {
    uv_async_send(&s->stop);
    CHECK(pthread_join(s->thread, NULL) == 0);
    CHECK(uv_loop_close(&s->loop) == 0);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->ready_changed);
    arena_release(&s->arena);
}

static struct control_client *connect_to(struct server *s) {
    struct control_client *c = NULL;
    struct error err = {0};
    CHECK(control_connect(s->data_dir, &c, &err) == ST_OK, "%s", err.msg);
    return c;
}

static void put_plan(struct server *s, const char *text, struct buf *request) {
    struct error err = {0};
    struct buf folder;
    uint8_t sha256[SHA256_LEN];
    buf_init(&folder, 4096);
    buf_printf(&folder, "%.*s/plans", STR_ARG(s->data_dir));
    CHECK(plan_store_put(buf_str(&folder), str_c(text), sha256, &err) == ST_OK, "%s", err.msg);
    buf_release(&folder);
    buf_put_c(request, "{\"uri\":\"plan:sha256:");
    buf_put_hex(request, sha256, sizeof(sha256));
    buf_put_c(request, "\",\"sha256\":\"");
    buf_put_hex(request, sha256, sizeof(sha256));
    buf_put_c(request, "\",\"schemaVersion\":\"v1.3\",\"planId\":\"p\",\"planVersion\":\"1\"}");
}

TEST(control_refuses_what_it_does_not_know) {
    static const struct {
        const char *request, *code, *where;
        status want;
    } cases[] = {
        {"", "JSON_SYNTAX", "offset 0", ST_INVALID},
        {"[]", "CONTROL_INVALID", "", ST_INVALID},
        {"{}", "CONTROL_INVALID", "/op", ST_INVALID},
        {"{\"op\":7}", "CONTROL_INVALID", "/op", ST_INVALID},
        {"{\"op\":\"fly\"}", "CONTROL_INVALID", "/op", ST_INVALID},
        {"{\"op\":\"status\",\"runId\":\"r\"}", "CONTROL_INVALID", "/runId", ST_INVALID},
        {"{\"op\":\"signal\",\"runId\":\"r\"}", "CONTROL_INVALID", "/signal", ST_INVALID},
        {"{\"op\":\"signal\",\"runId\":7,\"signal\":\"PAUSE\"}", "CONTROL_INVALID", "/runId",
         ST_INVALID},
        {"{\"op\":\"signal\",\"runId\":\"r\",\"signal\":\"LAUNCH\"}", "SIGNAL_INVALID", "/signal",
         ST_INVALID},
        {"{\"op\":\"signal\",\"runId\":\"r\",\"signal\":\"PAUSE\"}", "RUN_NOT_FOUND", "",
         ST_NOT_FOUND},
        {"{\"op\":\"start\",\"tenantId\":\"t\",\"projectId\":\"p\",\"environmentId\":\"e\"}",
         "CONTROL_INVALID", "/planRef", ST_INVALID},
        {"{\"op\":\"start\",\"tenantId\":\"t\",\"projectId\":\"p\",\"environmentId\":\"e\","
         "\"planRef\":{}}",
         "PLAN_REF_INVALID", "/uri", ST_INVALID},
        {"{\"op\":\"start\",\"tenantId\":\"t\",\"projectId\":\"p\",\"environmentId\":\"e\","
         "\"planRef\":{},\"approval\":1}",
         "CONTROL_INVALID", "/approval", ST_INVALID},
        {"{\"op\":\"poll\",\"tenantId\":\"t\",\"queue\":\"q\",\"worker\":\"w\",\"leaseMs\":99}",
         "CONTROL_INVALID", "/leaseMs", ST_INVALID},
        {"{\"op\":\"poll\",\"tenantId\":\"t\",\"queue\":\"q\",\"worker\":\"w\",\"leaseMs\":100,"
         "\"max\":101}",
         "CONTROL_INVALID", "/max", ST_INVALID},
        {"{\"op\":\"complete\",\"runId\":\"r\",\"stepId\":\"s\",\"attempt\":1,\"lease\":1}",
         "RUN_NOT_FOUND", "", ST_NOT_FOUND},
        {"{\"op\":\"heartbeat\",\"runId\":\"r\",\"stepId\":\"s\",\"attempt\":0,\"lease\":1,"
         "\"leaseMs\":100}",
         "CONTROL_INVALID", "/attempt", ST_INVALID}};
    struct server s;
    server_open(&s, test_db_url("sqlite"));
    struct control_client *c = connect_to(&s);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct error err = {0};
        yyjson_val *answer = NULL;
        status st =
            control_call(c, str_c(cases[i].request), CONTROL_CALL_MS, &s.arena, &answer, &err);
        CHECK(st == cases[i].want && strcmp(err.reason, cases[i].code) == 0, "case %zu: %s %s: %s",
              i, err.reason ? err.reason : "", err.where, err.msg);
        CHECK(strcmp(err.where, cases[i].where) == 0, "case %zu: %s", i, err.where);
    }
    control_disconnect(c);
    server_close(&s);
}

TEST(control_starts_signals_and_hands_out_tasks) {
    struct server s;
    struct error err = {0};
    yyjson_val *a = NULL;
    struct buf q;
    server_open(&s, test_db_url("sqlite"));
    struct control_client *c = connect_to(&s);
    buf_init(&q, 65536);
    buf_put_c(&q,
              "{\"op\":\"start\",\"tenantId\":\"t\",\"projectId\":\"p\",\"environmentId\":\"e\","
              "\"runId\":\"r\",\"parameters\":{\"n\":4},\"planRef\":");
    put_plan(&s,
             "{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"p\",\"planVersion\":\"1\"},"
             "\"steps\":[{\"stepId\":\"s\",\"type\":\"task\",\"queue\":\"q\",\"input\":{\"n\":"
             "\"{{ parameters.n }}\"}}]}",
             &q);
    buf_put_c(&q, "}");
    CHECK(control_call(c, buf_str(&q), CONTROL_CALL_MS, &s.arena, &a, &err) == ST_OK, "%s",
          err.msg);
    str id = STR_NONE;
    CHECK(json_str(json_member(a, "runId"), &id) && str_eq(id, STR("r")));
    CHECK(control_call(c, buf_str(&q), CONTROL_CALL_MS, &s.arena, &a, &err) == ST_OK,
          "the same start again: %s", err.msg);
    static const char *const steps[][2] = {
        {"{\"op\":\"status\"}", "runs"},
        {"{\"op\":\"resume\",\"runId\":\"r\"}", "ok"},
        {"{\"op\":\"poll\",\"tenantId\":\"t\",\"queue\":\"q\",\"worker\":\"w\",\"leaseMs\":60000,"
         "\"waitMs\":5000}",
         "tasks"},
        {"{\"op\":\"heartbeat\",\"runId\":\"r\",\"stepId\":\"s\",\"attempt\":1,\"lease\":1,"
         "\"leaseMs\":60000}",
         "leaseUntil"},
        {"{\"op\":\"signal\",\"runId\":\"r\",\"signal\":\"PAUSE\",\"signalId\":\"x\"}", "ok"},
        {"{\"op\":\"signal\",\"runId\":\"r\",\"signal\":\"PAUSE\",\"signalId\":\"x\"}", "ok"},
        {"{\"op\":\"signal\",\"runId\":\"r\",\"signal\":\"RESUME\",\"reason\":\"go\"}", "ok"},
        {"{\"op\":\"complete\",\"runId\":\"r\",\"stepId\":\"s\",\"attempt\":1,\"lease\":1,"
         "\"output\":{\"m\":8}}",
         "ok"}};
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        status st = control_call(c, str_c(steps[i][0]), CONTROL_CALL_MS, &s.arena, &a, &err);
        CHECK(st == ST_OK && json_member(a, steps[i][1]), "request %zu: %s", i, err.msg);
    }
    CHECK(control_call(c, STR("{\"op\":\"signal\",\"runId\":\"r\",\"signal\":\"RESUME\"}"),
                       CONTROL_CALL_MS, &s.arena, &a, &err) == ST_CONFLICT);
    CHECK(strcmp(err.reason, "RUN_FINISHED") == 0, "%s", err.reason);
    buf_release(&q);
    control_disconnect(c);
    server_close(&s);
}

/* A poll whose poller leaves, a second one that gets the task; answers while it closes. */
TEST(control_pollers_may_leave) {
    struct server s;
    struct error err = {0};
    yyjson_val *a = NULL;
    server_open(&s, test_db_url("sqlite"));
    static const char poll[] =
        "{\"op\":\"poll\",\"tenantId\":\"t\",\"queue\":\"q\",\"worker\":\"w\","
        "\"leaseMs\":60000,\"waitMs\":50000}";
    struct control_client *gone = connect_to(&s);
    CHECK(control_call(gone, str_c(poll), 50, &s.arena, &a, &err) == ST_RETRY);
    CHECK(strcmp(err.reason, "CONTROL_SLOW") == 0, "%s", err.reason);
    control_disconnect(gone);
    struct control_client *waits = connect_to(&s);
    CHECK(control_call(waits, str_c(poll), 50, &s.arena, &a, &err) == ST_RETRY);
    CHECK(control_alive(waits));
    server_close(&s);
    CHECK(!control_alive(waits));
    control_disconnect(waits);
}

TEST(control_has_bounds) {
    struct server s;
    struct error err = {0};
    yyjson_val *a = NULL;
    struct control_client *many[CONTROL_CONNECTIONS_MAX];
    struct control_client *c = NULL;
    server_open(&s, test_db_url("sqlite"));
    for (size_t i = 0; i < COUNT_OF(many); i++) {
        many[i] = connect_to(&s);
        CHECK(control_call(many[i], STR("{\"op\":\"status\"}"), CONTROL_CALL_MS, &s.arena, &a,
                           &err) == ST_OK);
    }
    c = connect_to(&s);
    status st = control_call(c, STR("{\"op\":\"status\"}"), CONTROL_CALL_MS, &s.arena, &a, &err);
    CHECK(st == ST_LIMIT || st == ST_RETRY, "%s", err.msg); /* told, or cut off before it asked */
    control_disconnect(c);
    for (size_t i = 1; i < COUNT_OF(many); i++)
        control_disconnect(many[i]);
    struct buf line;
    buf_init(&line, 3 * LINE_BYTES_MAX);
    while (line.len <= LINE_BYTES_MAX + 1)
        buf_put_c(&line, "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[");
    st = control_call(many[0], buf_str(&line), CONTROL_CALL_MS, &s.arena, &a, &err);
    CHECK(st == ST_LIMIT && strcmp(err.reason, "CONTROL_INVALID") == 0, "%s", err.msg);
    buf_release(&line);
    control_disconnect(many[0]);
    server_close(&s);
}

TEST(control_socket_is_private_and_gone_afterwards) {
    struct server s;
    struct error err = {0};
    struct control_client *c = NULL;
    struct stat info;
    char path[512];
    server_open(&s, test_db_url("sqlite"));
    snprintf(path, sizeof(path), "%.*s/control.sock", STR_ARG(s.data_dir));
    CHECK(stat(path, &info) == 0 && S_ISSOCK(info.st_mode) && (info.st_mode & 0777) == 0600);
    str folder = str_c(test_dir());
    server_close(&s);
    CHECK(stat(path, &info) != 0);
    CHECK(control_connect(folder, &c, &err) == ST_NOT_FOUND, "%s", err.msg);
    CHECK(control_connect(STR("/nowhere/at/all"), &c, &err) == ST_NOT_FOUND, "%s", err.msg);
}
