/* The outbox worker in a real host, against an HTTP server that counts: effect steps, retries,
 * crashes. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/log.h"
#include "base/metrics.h"
#include "base/time.h"
#include "conformance/fixture.h"
#include "engine_helper.h"
#include "ledger/writer.h"
#include "net/fake_server_test.h"
#include "outbox/outbox.h"

enum { CALLS_MAX = 64, KEY_MAX = 256 };

struct place { /* what is called */
    struct bed bed;
    struct fake_server *server;
    struct guard guard;
    struct guard_rule rule;
    pthread_mutex_t lock; /* guards what the server's threads write */
    int calls;
    char keys[CALLS_MAX][KEY_MAX];
    char last[4096];     /* the newest request, whole */
    int busy, most_busy; /* requests at once */
    atomic_int fail;     /* so many are answered with 503 */
    atomic_bool hold;    /* the next one gets no answer until this is false */
    int slow_ms;
};

static bool on_request(void *context, int fd, const struct fake_request *request) {
    struct place *p = context;
    const char *key = strcasestr(request->head, "x-idempotency-key: ");
    pthread_mutex_lock(&p->lock);
    snprintf(p->last, sizeof(p->last), "%.*s%.*s", (int)(request->body.ptr - request->head),
             request->head, STR_ARG(request->body));
    if (key && p->calls < CALLS_MAX) (void)sscanf(key + 19, "%255[^\r\n]", p->keys[p->calls]);
    p->calls++;
    p->busy++;
    if (p->busy > p->most_busy) p->most_busy = p->busy;
    pthread_mutex_unlock(&p->lock);
    if (p->slow_ms > 0) usleep((useconds_t)p->slow_ms * 1000);
    for (int i = 0; i < 2000 && atomic_load(&p->hold); i++)
        usleep(5000);
    pthread_mutex_lock(&p->lock);
    p->busy--;
    pthread_mutex_unlock(&p->lock);
    if (atomic_fetch_sub(&p->fail, 1) > 0) return fake_answer(fd, 503, "", STR("{}"));
    return fake_answer(fd, 200, "Content-Type: application/json\r\n", STR("{\"ok\":true}"));
}

static void place_open(struct place *p, str url) {
    *p = (struct place){0};
    pthread_mutex_init(&p->lock, NULL);
    p->server = fake_server_open(on_request, p);
    p->rule = (struct guard_rule){
        .scheme = STR("http"), .host = STR("127.0.0.1"), .port = fake_server_port(p->server)};
    p->guard = (struct guard){.rules = &p->rule, .rule_count = 1, .allow_private = true};
    bed_init(&p->bed, url);
    p->bed.options.guard = &p->guard;
    bed_open(&p->bed);
}

static void place_close(struct place *p) {
    atomic_store(&p->hold, false);
    bed_close(&p->bed);
    fake_server_close(p->server);
    bed_release(&p->bed);
    pthread_mutex_destroy(&p->lock);
}

static int calls(struct place *p) {
    pthread_mutex_lock(&p->lock);
    int n = p->calls;
    pthread_mutex_unlock(&p->lock);
    return n;
}

static void wait_calls(struct place *p, int n) {
    for (int i = 0; i < 3000 && calls(p) < n; i++)
        bed_turn(&p->bed, 10);
    CHECK(calls(p) >= n, "%d calls", calls(p));
}

/* One step that calls the server. */
static const char *plan_of(struct place *p, const char *more) {
    static char text[1024];
    snprintf(text, sizeof(text),
             "{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"tell\",\"planVersion\":\"1\"},"
             "\"steps\":[{\"stepId\":\"tell\",\"type\":\"effect\",\"effectType\":\"WEBHOOK_CALL\","
             "\"payload\":{\"url\":\"http://127.0.0.1:%d/\",\"body\":{\"n\":1}}%s}]}",
             fake_server_port(p->server), more);
    return text;
}

static struct effect_info *effects_of(struct place *p, const char *run, size_t *count) {
    struct outbox_filter filter = {.run_id = str_c(run)};
    struct effect_info *items = NULL;
    struct error err = {0};
    int64_t next = 0;
    CHECK(outbox_list(host_reader(p->bed.host), &filter, 100, &p->bed.arena, &items, count, &next,
                      &err) == ST_OK,
          "%s", err.msg);
    return items;
}

/* Until the run's newest effect is there. */
static void wait_effect(struct place *p, const char *run, enum outbox_status wanted) {
    size_t count = 0;
    for (int i = 0; i < 3000 && effects_of(p, run, &count)->effect.status != wanted; i++)
        bed_turn(&p->bed, 10);
    enum outbox_status found = effects_of(p, run, &count)->effect.status;
    CHECK(found == wanted, "%s: it is %s", run, outbox_status_name(found));
}

/* CE-4.2-3: the worker makes one call. The step that waits ends with what it brought back. */
TEST_DB(outbox_step_waits_for_its_effect) {
    struct place p;
    size_t count = 0;
    place_open(&p, url);
    CHECK(bed_run(&p.bed, plan_of(&p, ",\"wait\":true"), "r1") == RUN_COMPLETED);
    const struct effect_info *e = effects_of(&p, "r1", &count);
    CHECK(count == 1 && e->effect.status == OUTBOX_COMPLETED && calls(&p) == 1);
    CHECK(str_eq(e->key, str_c(p.keys[0])) && str_eq(e->step_id, STR("tell")), "%s", p.keys[0]);
    str output = bed_payload(&p.bed, "r1", EVENT_STEP_COMPLETED, 0);
    CHECK(memmem(output.ptr, output.len, "\"result\":{\"ok\":true}", 20), "%.*s", STR_ARG(output));
    place_close(&p);
}

TEST_DB(outbox_step_that_does_not_wait) {
    struct place p;
    size_t count = 0;
    place_open(&p, url);
    atomic_store(&p.hold, true);
    CHECK(bed_run(&p.bed, plan_of(&p, ""), "r1") == RUN_COMPLETED, "whatever the receiver does");
    wait_calls(&p, 1);
    CHECK(effects_of(&p, "r1", &count)->effect.status == OUTBOX_PROCESSING, "of a finished run");
    atomic_store(&p.hold, false);
    wait_effect(&p, "r1", OUTBOX_COMPLETED);
    (void)effects_of(&p, "r1", &count);
    CHECK(count == 1);
    place_close(&p);
}

/* CE-4.4-4, CE-7.2-5: the worker executes again what failed, as often and as late as the settings
 * say; then the step fails for good, whatever its own retries are. */
TEST_DB(outbox_step_of_a_dead_effect) {
    struct effect_retry own[] = {{STR("WEBHOOK_CALL"), 2, 5}, {.type = STR_NONE}};
    struct place p;
    size_t count = 0;
    place_open(&p, url);
    bed_close(&p.bed);
    p.bed.options.effect_retries = own;
    bed_open(&p.bed);
    atomic_store(&p.fail, 3);
    CHECK(bed_run(&p.bed, plan_of(&p, ",\"wait\":true,\"retry\":{\"maxAttempts\":3}"), "r1") ==
          RUN_FAILED);
    CHECK(calls(&p) == 3 && strcmp(p.keys[0], p.keys[2]) == 0, "%d calls", calls(&p));
    const struct effect_info *e = effects_of(&p, "r1", &count);
    CHECK(count == 1 && e->effect.status == OUTBOX_DEAD_LETTER && e->effect.max_retries == 2);
    CHECK(memmem(e->error.ptr, e->error.len, "Webhook failed: 503", 19), "%.*s", STR_ARG(e->error));
    str failure = bed_payload(&p.bed, "r1", EVENT_STEP_FAILED, 0);
    CHECK(memmem(failure.ptr, failure.len, "EFFECT_DEAD_LETTERED", 20), "%.*s", STR_ARG(failure));
    CHECK(memmem(failure.ptr, failure.len, "HTTP_STATUS: Webhook failed: 503", 32), "%.*s",
          STR_ARG(failure));
    CHECK(!bed_payload(&p.bed, "r1", EVENT_STEP_FAILED, 1).ptr, "no second attempt");
    place_close(&p);
}

/* CE-4.1-1: the process ends between the call and the record of it. The next one calls
 * again, with the same key, so that the receiver can tell; and the step, which is started again,
 * finds its effect. */
TEST_DB(outbox_delivers_again_after_a_crash) {
    struct place p;
    size_t count = 0;
    struct error err = {0};
    place_open(&p, url);
    bed_close(&p.bed);
    p.bed.options.effect_lease_ms = 1500; /* on PostgreSQL it must run out */
    bed_open(&p.bed);
    atomic_store(&p.hold, true);
    struct start_request request = bed_request(&p.bed, plan_of(&p, ",\"wait\":true"), "r1");
    CHECK(bed_start(&p.bed, &request, &err) == ST_OK, "%s", err.msg);
    wait_calls(&p, 1);
    bed_reopen(&p.bed);
    atomic_store(&p.hold, false);
    CHECK(bed_wait(&p.bed, "r1") == RUN_COMPLETED);
    CHECK(calls(&p) == 2 && strcmp(p.keys[0], p.keys[1]) == 0, "%d calls", calls(&p));
    const struct effect_info *e = effects_of(&p, "r1", &count);
    CHECK(count == 1 && e->effect.executions == 2 && e->effect.retry_count == 1);
    place_close(&p);
}

/* CE-9.1-3: an answer that is not 2xx is a failure of the row, which has its status and its text.
 */
TEST_DB(outbox_failure_is_in_the_row) {
    struct effect_retry own[] = {{STR("WEBHOOK_CALL"), 1, 600000}, {.type = STR_NONE}};
    struct place p;
    size_t count = 0;
    place_open(&p, url);
    bed_close(&p.bed);
    p.bed.options.effect_retries = own;
    bed_open(&p.bed);
    atomic_store(&p.fail, 1);
    CHECK(bed_run(&p.bed, plan_of(&p, ""), "r1") == RUN_COMPLETED);
    wait_effect(&p, "r1", OUTBOX_FAILED);
    str error = effects_of(&p, "r1", &count)->error;
    CHECK(memmem(error.ptr, error.len, "\"message\":\"Webhook failed: 503 ", 31), "%.*s",
          STR_ARG(error));
    CHECK(count == 1 && calls(&p) == 1);
    place_close(&p);
}

/* CE-9.1-1: the contract's example, with its credential as a secret's name (T38): each member
 * reaches the receiver as it is, and what is stored has the name alone. */
TEST_DB(outbox_webhook_of_the_contract) {
    struct place p;
    char plan[1024];
    char path[256];
    size_t count = 0;
    place_open(&p, url);
    bed_close(&p.bed);
    const char *secrets = test_dir();
    snprintf(path, sizeof(path), "%s/ORDERS", secrets);
    FILE *f = fopen(path, "w");
    CHECK(f && fputs("Bearer token-1", f) > 0 && fclose(f) == 0);
    p.bed.options.secrets_dir = str_c(secrets);
    bed_open(&p.bed);
    snprintf(
        plan, sizeof(plan),
        "{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"tell\",\"planVersion\":\"1\"},"
        "\"steps\":[{\"stepId\":\"tell\",\"type\":\"effect\",\"effectType\":\"WEBHOOK_CALL\","
        "\"wait\":true,\"payload\":{\"url\":\"http://127.0.0.1:%d/webhook\",\"method\":\"PUT\","
        "\"headers\":{\"Authorization\":{\"secret\":\"ORDERS\"},\"X-Kind\":\"order\"},"
        "\"body\":{\"order_id\":\"order-123\",\"status\":\"CONFIRMED\"},"
        "\"idempotency_key\":\"run-456-webhook-order-123\"}}]}",
        fake_server_port(p.server));
    CHECK(bed_run(&p.bed, plan, "r1") == RUN_COMPLETED);
    CHECK(strncmp(p.last, "PUT /webhook HTTP/1.1\r\n", 23) == 0, "%s", p.last);
    CHECK(strstr(p.last, "\r\nAuthorization: Bearer token-1\r\n"), "%s", p.last);
    CHECK(strstr(p.last, "\r\nX-Kind: order\r\n"), "%s", p.last);
    CHECK(strstr(p.last, "\r\n\r\n{\"order_id\":\"order-123\",\"status\":\"CONFIRMED\"}"), "%s",
          p.last);
    CHECK(strcmp(p.keys[0], "run-456-webhook-order-123") == 0, "%s", p.keys[0]);
    const struct effect_info *e = effects_of(&p, "r1", &count);
    CHECK(count == 1 && str_eq(e->key, STR("run-456-webhook-order-123")));
    CHECK(memmem(e->payload.ptr, e->payload.len, "{\"secret\":\"ORDERS\"}", 19), "%.*s",
          STR_ARG(e->payload));
    CHECK(!memmem(e->payload.ptr, e->payload.len, "token-1", 7));
    for (int i = 0; i < EVENT_TYPE_COUNT; i++) {
        str payload = bed_payload(&p.bed, "r1", (enum event_type)i, 0);
        CHECK(!payload.ptr || !memmem(payload.ptr, payload.len, "token-1", 7), "%.*s",
              STR_ARG(payload));
    }
    place_close(&p);
}

/* CE-4.4-8: the worker of an idle outbox looks once a second: ten times in ten seconds, never
 * oftener. A busy machine may be late for some of them, not for all. */
TEST(outbox_is_looked_at_once_a_second) {
    struct bed bed;
    struct error err = {0};
    struct metrics *metrics = NULL;
    CHECK(metrics_open(&metrics, &err) == ST_OK, "%s", err.msg);
    bed_init(&bed, test_db_url("sqlite"));
    bed.options.metrics = metrics;
    bed_open(&bed);
    const struct metric *looks = metrics_counter(metrics, "cairn_outbox_polls_total", "", "");
    bed_turn(&bed, 1500); /* those of the start */
    int64_t first = metric_value(looks);
    int64_t seen = first;
    int64_t begin = clock_mono_ns();
    int64_t last = 0;
    int64_t shortest = INT64_MAX;
    int64_t now = begin;
    for (; now - begin < INT64_C(10000) * 1000000; now = clock_mono_ns()) {
        bed_turn(&bed, 5);
        if (metric_value(looks) == seen) continue;
        seen = metric_value(looks);
        if (last > 0 && now - last < shortest) shortest = now - last;
        last = now;
    }
    int count = (int)(seen - first);
    int ms = (int)((now - begin) / 1000000);
    CHECK(count >= 5 && count <= ms / 1000 + 1, "%d looks in %d ms", count, ms);
    CHECK(shortest < INT64_C(1100) * 1000000, "%d ms between two", (int)(shortest / 1000000));
    bed_close(&bed);
    bed_release(&bed);
    metrics_close(metrics);
}

struct asking { /* effects requested behind the worker's back */
    struct place *p;
    int first, count;
};

static status ask_quietly(struct ledger *ledger, void *context, struct error *err) {
    struct asking *a = context;
    struct effect_info info;
    bool existing = false;
    status st = ST_OK;
    for (int i = 0; i < a->count && st == ST_OK; i++) {
        struct arena arena;
        char payload[128];
        int n = snprintf(payload, sizeof(payload),
                         "{\"url\":\"http://127.0.0.1:%d/\",\"idempotency_key\":\"key-%02d\"}",
                         fake_server_port(a->p->server), a->first + i);
        struct effect_request request = {.run_id = STR("r1"),
                                         .type = STR("API_CALL"),
                                         .payload = str_n(payload, (size_t)n),
                                         .max_retries = -1,
                                         .base_ms = -1};
        arena_init(&arena, 4096, SIZE_MAX);
        st = outbox_request(ledger, &request, &arena, &info, &existing, err);
        arena_release(&arena);
    }
    return st;
}

/* How often `needle` stands in the file. */
static int count_in(const char *path, const char *needle) {
    static char text[64 * 1024];
    FILE *f = fopen(path, "r");
    CHECK(f);
    size_t n = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    text[n] = '\0';
    int count = 0;
    for (const char *at = text; (at = strstr(at, needle)) != NULL; at++)
        count++;
    return count;
}

static void ask_for(struct place *p, int first, int count) {
    struct asking asking = {p, first, count};
    struct writer_call call = {.task = ask_quietly, .task_context = &asking};
    struct error err = {0};
    CHECK(writer_append(host_writer(p->bed.host), &call, 30000, &err) == ST_OK, "%s", err.msg);
}

/* CE-4.2-2: a row that nobody told the worker of is found by its next look. CE-4.4-7: the rows of
 * one batch are called one after the other, in the order taken. */
TEST_DB(outbox_polls_and_keeps_the_order) {
    struct place p;
    place_open(&p, url);
    CHECK(bed_run(&p.bed, plan_of(&p, ",\"wait\":true"), "r1") == RUN_COMPLETED);
    p.slow_ms = 20;
    int64_t begin = clock_mono_ns();
    ask_for(&p, 0, 10);
    wait_calls(&p, 2);
    int64_t ms = (clock_mono_ns() - begin) / 1000000;
    CHECK(ms < 2000 + 8000, "found after %d ms",
          (int)ms); /* 2000, and patience with a busy machine */
    wait_calls(&p, 11);
    CHECK(p.most_busy == 1, "%d at once", p.most_busy);
    for (int i = 0; i < 10; i++) {
        char want[16];
        snprintf(want, sizeof(want), "key-%02d", i);
        CHECK(strcmp(p.keys[i + 1], want) == 0, "%s came in place of %s", p.keys[i + 1], want);
    }
    place_close(&p);
}

static size_t count_pending(struct place *p, const char *run) {
    size_t count = 0;
    size_t pending = 0;
    const struct effect_info *e = effects_of(p, run, &count);
    for (size_t i = 0; i < count; i++)
        pending += e[i].effect.status == OUTBOX_PENDING;
    return pending;
}

/* Of a process that drives only what it is asked for: the effects of other runs may need what it
 * does not have. */
TEST_DB(outbox_of_other_runs_is_left_alone) {
    struct place p;
    place_open(&p, url);
    CHECK(bed_run(&p.bed, plan_of(&p, ",\"wait\":true"), "r1") == RUN_COMPLETED);
    bed_close(&p.bed);
    p.bed.options.only_asked = true;
    bed_open(&p.bed);
    ask_for(&p, 0, 3);
    CHECK(bed_run(&p.bed, plan_of(&p, ",\"wait\":true"), "r2") == RUN_COMPLETED);
    bed_turn(&p.bed, 1500);
    CHECK(calls(&p) == 2 && count_pending(&p, "r1") == 3, "%d calls", calls(&p));
    /* And that run itself, finished as it is. */
    struct error err = {0};
    struct start_request again = bed_request(&p.bed, plan_of(&p, ",\"wait\":true"), "r1");
    CHECK(bed_start(&p.bed, &again, &err) == ST_OK, "%s", err.msg);
    wait_calls(&p, 5);
    wait_effect(&p, "r1", OUTBOX_COMPLETED);
    place_close(&p);
}

/* But a step that waits for the effect of another run, by its key, does not wait for ever. */
TEST_DB(outbox_of_another_run_is_minded_with_its_key) {
    struct place p;
    char plan[1024];
    place_open(&p, url);
    CHECK(bed_run(&p.bed, plan_of(&p, ",\"wait\":true"), "r1") == RUN_COMPLETED);
    bed_close(&p.bed);
    p.bed.options.only_asked = true;
    bed_open(&p.bed);
    ask_for(&p, 0, 1);
    snprintf(plan, sizeof(plan),
             "{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"tell\",\"planVersion\":\"1\"},"
             "\"steps\":[{\"stepId\":\"tell\",\"type\":\"effect\",\"effectType\":\"API_CALL\","
             "\"payload\":{\"url\":\"http://127.0.0.1:%d/\",\"idempotency_key\":\"key-00\"},"
             "\"wait\":true}]}",
             fake_server_port(p.server));
    CHECK(bed_run(&p.bed, plan, "r2") == RUN_COMPLETED);
    CHECK(calls(&p) == 2 && count_pending(&p, "r1") == 0, "%d calls", calls(&p));
    place_close(&p);
}

struct again {
    struct arena arena;
    struct effect_info info;
    bool existing;
    int port;
};

static status ask_again(struct ledger *ledger, void *context, struct error *err) {
    struct again *a = context;
    char payload[128];
    int n = snprintf(payload, sizeof(payload),
                     "{\"url\":\"http://127.0.0.1:%d/\",\"idempotency_key\":\"key-00\"}", a->port);
    struct effect_request request = {.run_id = STR("r1"),
                                     .type = STR("API_CALL"),
                                     .payload = str_n(payload, (size_t)n),
                                     .max_retries = -1,
                                     .base_ms = -1};
    return outbox_request(ledger, &request, &a->arena, &a->info, &a->existing, err);
}

/* CE-5.2-2, CE-5.2-3, CE-5.2-4: what was done is recorded with its result under its key. The same
 * payload again calls nobody, gets that result, and one line of the log says that it was skipped.
 */
TEST_DB(outbox_remembers_what_was_done) {
    struct place p;
    struct again again = {0};
    struct error err = {0};
    size_t count = 0;
    place_open(&p, url);
    CHECK(bed_run(&p.bed, plan_of(&p, ",\"wait\":true"), "r1") == RUN_COMPLETED);
    ask_for(&p, 0, 1);
    wait_effect(&p, "r1", OUTBOX_COMPLETED);
    str first = effects_of(&p, "r1", &count)->result;
    CHECK(str_eq(first, STR("{\"ok\":true}")) && calls(&p) == 2, "%.*s", STR_ARG(first));
    char path[256];
    snprintf(path, sizeof(path), "%s/log", test_dir());
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    CHECK(fd >= 0);
    log_setup(fd, true, LOG_INFO);
    arena_init(&again.arena, 4096, SIZE_MAX);
    again.port = fake_server_port(p.server);
    struct writer_call call = {.task = ask_again, .task_context = &again};
    status st = writer_append(host_writer(p.bed.host), &call, 30000, &err);
    bed_turn(&p.bed, 1500);
    log_setup(STDERR_FILENO, false, LOG_INFO);
    close(fd);
    CHECK(st == ST_OK && again.existing, "%s", err.msg);
    CHECK(str_eq(again.info.result, first) && calls(&p) == 2, "%d calls", calls(&p));
    CHECK(count_in(path, "\"idempotency_key\":\"key-00\"") == 1);
    arena_release(&again.arena);
    place_close(&p);
}

/* A worker that ends gives back what it has claimed and not begun: no execution is lost for it. */
TEST_DB(outbox_worker_ends_in_order) {
    struct place p;
    size_t count = 0;
    place_open(&p, url);
    CHECK(bed_run(&p.bed, plan_of(&p, ",\"wait\":true"), "r1") == RUN_COMPLETED);
    atomic_store(&p.hold, true);
    ask_for(&p, 0, 5);
    wait_calls(&p, 2);
    bed_close(&p.bed);
    atomic_store(&p.hold, false);
    bed_open(&p.bed);
    wait_calls(&p, db_is_postgres(ledger_db(host_reader(p.bed.host))) ? 6 : 7);
    for (int i = 0; i < 300; i++) {
        struct effect_info *e = effects_of(&p, "r1", &count);
        size_t done = 0;
        for (size_t k = 0; k < count; k++)
            done += e[k].effect.status == OUTBOX_COMPLETED;
        if (done >= count - 1) break;
        bed_turn(&p.bed, 10);
    }
    struct effect_info *e = effects_of(&p, "r1", &count);
    CHECK(count == 6);
    for (size_t k = 0; k < 4; k++) { /* the newest first: those that were not begun */
        CHECK(e[k].effect.status == OUTBOX_COMPLETED && e[k].effect.retry_count == 0, "%zu: %s", k,
              outbox_status_name(e[k].effect.status));
    }
    place_close(&p);
}

/* A run that is cancelled, or a step out of time, waits no longer; its effect goes on. */
TEST_DB(outbox_step_ends_before_its_effect) {
    struct place p;
    struct error err = {0};
    place_open(&p, url);
    atomic_store(&p.hold, true);
    CHECK(bed_run(&p.bed, plan_of(&p, ",\"wait\":true,\"timeoutMs\":300"), "r1") == RUN_FAILED);
    str failure = bed_payload(&p.bed, "r1", EVENT_STEP_FAILED, 0);
    CHECK(memmem(failure.ptr, failure.len, "TIMEOUT", 7), "%.*s", STR_ARG(failure));
    struct start_request request = bed_request(&p.bed, plan_of(&p, ",\"wait\":true"), "r2");
    CHECK(bed_start(&p.bed, &request, &err) == ST_OK, "%s", err.msg);
    wait_calls(&p, 2);
    CHECK(bed_signal(&p.bed, "r2", "CANCEL", NULL, "s1", &err) == ST_OK, "%s", err.msg);
    CHECK(bed_wait(&p.bed, "r2") == RUN_CANCELLED);
    atomic_store(&p.hold, false);
    wait_effect(&p, "r1", OUTBOX_COMPLETED);
    wait_effect(&p, "r2", OUTBOX_COMPLETED);
    place_close(&p);
}

/* A key that an effect of another run has: the step waits for that one, whichever state it is in.
 */
TEST_DB(outbox_step_waits_for_the_effect_of_another_run) {
    struct place p;
    struct error err = {0};
    size_t count = 0;
    char plan[1024];
    place_open(&p, url);
    snprintf(plan, sizeof(plan),
             "{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"tell\",\"planVersion\":\"1\"},"
             "\"steps\":[{\"stepId\":\"tell\",\"type\":\"effect\",\"effectType\":\"API_CALL\","
             "\"payload\":{\"url\":\"http://127.0.0.1:%d/\",\"idempotency_key\":\"one\"},"
             "\"wait\":true}]}",
             fake_server_port(p.server));
    atomic_store(&p.hold, true);
    struct start_request first = bed_request(&p.bed, plan, "r1");
    CHECK(bed_start(&p.bed, &first, &err) == ST_OK, "%s", err.msg);
    wait_calls(&p, 1);
    struct start_request second = bed_request(&p.bed, plan, "r2");
    CHECK(bed_start(&p.bed, &second, &err) == ST_OK, "%s", err.msg);
    bed_turn(&p.bed, 300);
    CHECK(bed_status(&p.bed, "r2") == RUN_RUNNING);
    atomic_store(&p.hold, false);
    CHECK(bed_wait(&p.bed, "r1") == RUN_COMPLETED && bed_wait(&p.bed, "r2") == RUN_COMPLETED);
    CHECK(bed_run(&p.bed, plan, "r3") == RUN_COMPLETED, "it had ended before");
    (void)effects_of(&p, "r3", &count);
    CHECK(count == 0 && calls(&p) == 1, "%d calls", calls(&p));
    place_close(&p);
}

/* CE-1-2, CE-10.1-1: of the sources, only the outbox worker calls the integrations, and nobody but
 * it (and whoever configures it) sees their interface. */
TEST(outbox_alone_calls_the_integrations) {
    static const struct {
        const char *pattern, *callers; /* in order, joined by blanks */
    } doors[] = {
        {"delivery_start(", "src/outbox/deliver.c src/outbox/deliver.h src/outbox/dispatch.c "},
        {"#include \"outbox/impl.h\"", "src/outbox/deliver.c src/outbox/email.c src/outbox/http.c "
                                       "src/outbox/sor.c src/outbox/webhook.c "},
        {"#include \"net/mail.h\"", "src/net/mail.c src/outbox/impl.h "},
    };
    CHECK(access("src/outbox/deliver.h", R_OK) == 0,
          "run the tests from the top of the repository");
    for (size_t i = 0; i < COUNT_OF(doors); i++) {
        char command[256];
        char found[1024];
        snprintf(command, sizeof(command),
                 "grep -rlF --include='*.[ch]' --exclude='*_test.[ch]' '%s' src | LC_ALL=C sort"
                 " | tr '\\n' ' '",
                 doors[i].pattern);
        FILE *pipe = popen(command, "r");
        CHECK(pipe);
        size_t n = fread(found, 1, sizeof(found) - 1, pipe);
        found[n] = '\0';
        CHECK(pclose(pipe) == 0);
        CHECK(strcmp(found, doors[i].callers) == 0, "%s: %s", doors[i].pattern, found);
    }
}

/* RE-5.3.3-2: the alert of an event that its run forbids is delivered to the configured URL, once,
 * with its key and all that it must say; what the log says of it plays no part. */
TEST_DB(outbox_alert_of_an_invalid_transition_arrives) {
    struct place p;
    struct ledger *ledger = NULL;
    struct error err = {0};
    char text[64];
    place_open(&p, url);
    bed_close(&p.bed);
    snprintf(text, sizeof(text), "http://127.0.0.1:%d/alerts", fake_server_port(p.server));
    struct outbox_sinks sinks = {.urls = {str_c(text)}, .count = 1};
    struct ledger_options options = {.validation = LEDGER_RECORD};
    CHECK(ledger_open(url, &options, &ledger, &err) == ST_OK, "%s", err.msg);
    outbox_tell(ledger, &sinks);
    struct append_item items[] = {fixture_item("RunStarted", "r1", NULL, 1),
                                  fixture_item("StepCompleted", "r1", "s", 1)};
    struct append_result results[2];
    struct append_request request = {
        .items = items, .count = 2, .results = results, .arena = &p.bed.arena};
    struct append_request *all[] = {&request};
    log_setup(2, false, LOG_OFF);
    CHECK(ledger_append(ledger, all, 1, &err) == ST_OK, "%s", err.msg);
    log_setup(2, false, LOG_INFO);
    CHECK(results[0].code == ST_OK && results[1].code == ST_OK);
    ledger_close(ledger);
    bed_open(&p.bed);
    wait_calls(&p, 1);
    bed_turn(&p.bed, 300);
    CHECK(calls(&p) == 1, "%d calls", calls(&p));
    char id[UUID_TEXT_LEN];
    uuid_format(items[1].event.event_id, id);
    CHECK(strncmp(p.keys[0], "ALERT:", 6) == 0 &&
              memmem(p.keys[0], strlen(p.keys[0]), id, sizeof(id)) != NULL,
          "%s", p.keys[0]);
    CHECK(strstr(p.last, "POST /alerts ") && strstr(p.last, "\"code\":\"INVALID_TRANSITION\"") &&
              strstr(p.last, "\"runId\":\"r1\""),
          "%s", p.last);
    place_close(&p);
}
