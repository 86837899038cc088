#include "api/hub_fixture_test.h"

#include <signal.h>
#include <unistd.h>

#include "base/log.h"
#include "base/time.h"
#include "test.h"

/* ---- the bed ---- */

static void on_ended(void *context) { ((struct hub_bed *)context)->ended++; }

static int64_t number_of(str text) {
    int64_t n = 0;
    CHECK(str_to_int(text, &n));
    return n;
}

static void handle(void *context, struct http_exchange *exchange, const struct http_request *r) {
    struct hub_bed *b = context;
    struct http_header extra = {STR("X-Request-Id"), r->id};
    struct hub_request q = {.tenant_feed = str_starts(r->path, STR("/t/")),
                            .follow = true,
                            .headers = &extra,
                            .header_count = 1,
                            .ended = on_ended,
                            .context = b};
    *(q.tenant_feed ? &q.tenant_id : &q.run_id) = str_from(r->path, 3);
    str query = r->query;
    str name;
    str value;
    while (http_query_next(&query, &name, &value)) {
        if (str_eq(name, STR("after"))) q.after = number_of(value);
        if (str_eq(name, STR("once"))) q.follow = false;
        if (str_eq(name, STR("nd"))) q.format = HUB_NDJSON;
        if (str_eq(name, STR("owner"))) q.owner = value;
        if (str_eq(name, STR("version"))) q.owner_version = number_of(value);
    }
    struct error err = {0};
    b->asked++;
    b->refused = hub_stream(b->hub, exchange, &q, &err);
    if (b->refused == ST_OK) return;
    snprintf(b->reason, sizeof(b->reason), "%s", reason_name(err.reason));
    http_respond(exchange, 503, NULL, 0, STR("no"));
}

static void wake_loop(void *context) {
    struct hub_bed *b = context;
    CHECK(uv_async_send(&b->async) == 0);
}

static void on_async(uv_async_t *async) {
    struct hub_bed *b = async->data;
    readers_deliver(b->readers);
}

void hub_bed_open_empty(struct hub_bed *b, str url, bool other_writers,
                        const struct http_options *options) {
    struct error err = {0};
    memset(b, 0, sizeof(*b));
    signal(SIGPIPE, SIG_IGN); /* as the program does: clients go away at any time */
    log_setup(2, false, LOG_ERROR);
    arena_init(&b->arena, 4096, (size_t)64 << 20);
    CHECK(uv_loop_init(&b->f.loop) == 0);
    CHECK(metrics_open(&b->metrics, &err) == ST_OK);
    CHECK(uv_async_init(&b->f.loop, &b->async, on_async) == 0);
    b->async.data = b;
    struct readers_options readers = {.url = url,
                                      .threads = 3,
                                      .queue_max = 64,
                                      .wake = wake_loop,
                                      .context = b,
                                      .metrics = b->metrics};
    CHECK(readers_open(&readers, &b->readers, &err) == ST_OK, "%s", err.msg);
    CHECK(hub_open(&b->f.loop, b->readers, other_writers, b->metrics, &b->hub, &err) == ST_OK);
    CHECK(http_server_open(&b->f.loop, options, handle, b, &b->f.server, &err) == ST_OK);
    CHECK(http_listen_tcp(b->f.server, STR("127.0.0.1"), 0, false, &b->f.port, &err) == ST_OK, "%s",
          err.msg);
    b->tell = true;
}

void hub_bed_ledger(struct hub_bed *b, str url) {
    struct error err = {0};
    CHECK(ledger_open(url, NULL, &b->ledger, &err) == ST_OK, "%s", err.msg);
}

void hub_bed_open(struct hub_bed *b, str url) {
    hub_bed_open_empty(b, url, false, NULL);
    hub_bed_ledger(b, url);
}

static void on_server_closed(void *context) { *(bool *)context = true; }

void hub_bed_close(struct hub_bed *b) {
    bool closed = false;
    hub_drain(b->hub);
    CHECK(hub_streams(b->hub) == 0);
    readers_halt(b->readers);
    hub_close(b->hub);
    readers_close(b->readers);
    uv_close((uv_handle_t *)&b->async, NULL);
    http_server_close(b->f.server, on_server_closed, &closed);
    for (int i = 0; i < 1000 && uv_loop_alive(&b->f.loop); i++)
        uv_run(&b->f.loop, UV_RUN_NOWAIT);
    CHECK(closed && uv_loop_close(&b->f.loop) == 0);
    ledger_close(b->ledger);
    metrics_close(b->metrics);
    arena_release(&b->arena);
    log_setup(2, false, LOG_INFO);
}

int64_t hub_bed_metric(struct hub_bed *b, const char *name) {
    return metric_value(metrics_counter(b->metrics, name, "", ""));
}

/* ---- appending ---- */

static struct event event_of(const char *type, str run, str step, str payload) {
    static int64_t shuffle = 0;
    struct event e = {.type_name = str_c(type),
                      .run_id = run,
                      .tenant_id = STR("acme"),
                      .project_id = STR("shop"),
                      .environment_id = STR("prod"),
                      .plan_id = STR("orders"),
                      .plan_version = STR("7"),
                      .subject = step,
                      .engine_attempt = 1,
                      .logical_attempt = 1,
                      .event_id = uuid_v4(),
                      /* The producer's clock runs as it likes. */
                      .emitted_ns = INT64_C(1771228800000000000) +
                                    (shuffle++ * 7919 % 1000) * INT64_C(1000000000),
                      .payload = payload};
    e.type = event_type_of(e.type_name);
    event_key_derive(&e, e.key);
    struct error err = {0};
    CHECK(event_validate(&e, &err) == ST_OK, "%s", err.msg);
    return e;
}

static void append_to(struct ledger *ledger, struct arena *arena, struct append_item *items,
                      size_t count) {
    struct append_result *results = ARENA_ARRAY(arena, struct append_result, count);
    struct append_request request = {
        .items = items, .count = count, .results = results, .arena = arena};
    struct append_request *requests[] = {&request};
    struct error err = {0};
    CHECK(ledger_append(ledger, requests, 1, &err) == ST_OK, "%s", err.msg);
    for (size_t i = 0; i < count; i++)
        CHECK(results[i].code == ST_OK && !results[i].duplicate, "%s", results[i].err->msg);
}

void hub_bed_put(struct hub_bed *b, const char *type, const char *run, const char *step,
                 const char *payload) {
    struct append_item item = {.event = event_of(type, str_c(run), str_c(step), str_c(payload))};
    append_to(b->ledger, &b->arena, &item, 1);
    if (b->tell) hub_committed(b->hub, STR("acme"), str_c(run));
}

void hub_bed_put_fact(struct hub_bed *b, const char *run, int64_t occurrence) {
    struct event ids = event_of("RunStarted", str_c(run), STR_NONE, STR_NONE);
    str subject = STR("6f9619ff-8b86-4d01-b42d-00cf4fc964ff");
    struct append_item item = {0};
    struct error err = {0};
    CHECK(ledger_fact(&ids, EVENT_SIGNAL_RECEIVED, subject, occurrence, STR("{}"), &item, &err) ==
              ST_OK,
          "%s", err.msg);
    append_to(b->ledger, &b->arena, &item, 1);
    if (b->tell) hub_committed(b->hub, STR("acme"), str_c(run));
}

static void put_steps(struct ledger *ledger, str run, int first, int count, str payload) {
    struct arena arena;
    arena_init(&arena, 4096, (size_t)64 << 20);
    struct append_item *items = ARENA_ARRAY(&arena, struct append_item, count);
    for (int i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof(name), "s%d", first + i);
        items[i].event = event_of("StepStarted", run, arena_str(&arena, str_c(name)), payload);
    }
    append_to(ledger, &arena, items, (size_t)count);
    arena_release(&arena);
}

void hub_bed_put_steps(struct hub_bed *b, const char *run, int first, int count, str payload) {
    put_steps(b->ledger, str_c(run), first, count, payload);
    if (b->tell) hub_committed(b->hub, STR("acme"), str_c(run));
}

/* ---- reading ---- */

void hub_reader_open(struct hub_bed *b, struct hub_reader *r, const char *target, int64_t after) {
    char text[200];
    memset(r, 0, sizeof(*r));
    buf_init(&r->body, (size_t)64 << 20);
    r->nd = strstr(target, "nd=1") != NULL;
    r->last = after;
    peer_open(&b->f, &r->peer);
    snprintf(text, sizeof(text), "GET %s%cafter=%lld HTTP/1.1\r\nHost: a\r\n\r\n", target,
             strchr(target, '?') ? '&' : '?', (long long)after);
    CHECK(peer_send(&b->f, &r->peer, str_c(text)));
}

void hub_reader_end(struct hub_reader *r) {
    peer_end(&r->peer);
    buf_release(&r->body);
}

static bool cut_at(str text, const char *sep, str *head, size_t *used) {
    const char *at = text.len ? memmem(text.ptr, text.len, sep, strlen(sep)) : NULL;
    if (!at) return false;
    *head = str_n(text.ptr, (size_t)(at - text.ptr));
    *used = head->len + strlen(sep);
    return true;
}

static void unchunk(struct hub_reader *r) {
    str head;
    size_t used;
    while (!r->whole) {
        str rest = str_from(buf_str(&r->peer.in), r->raw);
        if (r->code == 0) {
            if (!cut_at(rest, "\r\n\r\n", &head, &used)) return;
            str digits = str_from(head, 9);
            int64_t code = 0;
            CHECK(str_take_int(&digits, &code));
            r->code = (int)code;
            r->raw += used;
            if (code != 200) r->whole = true;
            continue;
        }
        if (!cut_at(rest, "\r\n", &head, &used)) return;
        size_t size = strtoul(head.ptr, NULL, 16);
        if (rest.len < used + size + 2) return;
        buf_put(&r->body, str_n(rest.ptr + used, size));
        r->raw += used + size + 2;
        r->whole = size == 0;
    }
}

/* The next event must be the next one in order. */
static void take_event(struct hub_reader *r, int64_t number) {
    CHECK(number == r->last + 1, "%lld after %lld", (long long)number, (long long)r->last);
    r->last = number;
    r->events++;
}

static void take_line(struct hub_reader *r, str line) {
    static const char *names[] = {"\"sequenceNumber\":", "\"runSeq\":"};
    if (line.len == 0) {
        r->comments++;
        return;
    }
    CHECK(line.ptr[0] == '{' && line.ptr[line.len - 1] == '}');
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *at = memmem(line.ptr, line.len, names[i], strlen(names[i]));
        if (!at) continue;
        str digits = str_from(line, (size_t)(at - line.ptr) + strlen(names[i]));
        int64_t number = 0;
        CHECK(str_take_int(&digits, &number));
        take_event(r, number);
        return;
    }
    CHECK(false, "no number: %.*s", STR_ARG(line));
}

static void take_frame(struct hub_reader *r, str frame) {
    if (str_eq(frame, STR(": "))) {
        r->comments++;
        return;
    }
    if (str_eq(frame, STR("retry: 2000"))) return;
    CHECK(str_starts(frame, STR("id: ")), "%.*s", STR_ARG(frame));
    str digits = str_from(frame, 4);
    int64_t number = 0;
    CHECK(str_take_int(&digits, &number));
    if (str_starts(digits, STR("\nevent: end\n"))) {
        CHECK(number == r->last && !r->over);
        r->over = true;
        return;
    }
    CHECK(!r->over && memmem(digits.ptr, digits.len, "\ndata: {\"", 9));
    take_event(r, number);
}

void hub_reader_poll(struct hub_reader *r) {
    str part;
    size_t used;
    peer_poll(&r->peer);
    unchunk(r);
    while (cut_at(str_from(buf_str(&r->body), r->seen), r->nd ? "\n" : "\n\n", &part, &used)) {
        if (r->nd)
            take_line(r, part);
        else
            take_frame(r, part);
        r->seen += used;
    }
}

bool hub_readers_at(struct hub_bed *b, struct hub_reader *r, size_t count, int64_t last) {
    int64_t end = clock_mono_ns() + (int64_t)30 * 1000000000;
    while (clock_mono_ns() < end) {
        size_t there = 0;
        server_fixture_turn(&b->f);
        for (size_t i = 0; i < count; i++) {
            hub_reader_poll(&r[i]);
            there += last < 0 ? r[i].whole : r[i].last >= last;
        }
        if (there == count) return true;
        usleep(200);
    }
    return false;
}

bool hub_reader_answered(struct hub_bed *b, struct hub_reader *r) {
    for (int i = 0; i < 20000 && r->code == 0; i++) {
        server_fixture_turn(&b->f);
        hub_reader_poll(r);
        usleep(200);
    }
    return r->code == 200;
}

bool hub_bed_streams_are(struct hub_bed *b, size_t count) {
    for (int i = 0; i < 20000 && hub_streams(b->hub) != count; i++) {
        server_fixture_turn(&b->f);
        usleep(200);
    }
    return hub_streams(b->hub) == count;
}

bool hub_reader_has(const struct hub_reader *r, const char *text) {
    return r->body.len > 0 && memmem(r->body.ptr, r->body.len, text, strlen(text));
}

/* ---- a writer beside the loop ---- */

static void on_author(uv_async_t *wake) {
    struct hub_author *a = wake->data;
    hub_committed(a->bed->hub, STR("acme"), a->run);
}

static void *write_on(void *arg) {
    struct hub_author *a = arg;
    for (int i = 0; i < a->commits; i++) {
        put_steps(a->bed->ledger, a->run, a->first + i * a->each, a->each, STR_NONE);
        uv_async_send(&a->wake);
        if (i % 8 == 0) usleep(1000);
    }
    return NULL;
}

void hub_author_start(struct hub_author *a, struct hub_bed *b, const char *run, int first,
                      int commits, int each) {
    *a = (struct hub_author){
        .bed = b, .run = str_c(run), .first = first, .commits = commits, .each = each};
    CHECK(uv_async_init(&b->f.loop, &a->wake, on_author) == 0);
    a->wake.data = a;
    CHECK(pthread_create(&a->thread, NULL, write_on, a) == 0);
}

void hub_author_join(struct hub_author *a) {
    pthread_join(a->thread, NULL);
    uv_close((uv_handle_t *)&a->wake, NULL);
}
