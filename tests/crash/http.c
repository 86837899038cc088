/* tests/crash/http.c: appends, starts and reads over HTTP, while `cairn serve` is killed with
 * SIGKILL at random moments and started again: is what the clients were told linearizable?
 *
 * 32 clients on one epoll append events (one or many, some twice, some with an Idempotency-Key),
 * start runs of a plan with one step (some ids are wanted by several clients at once, some runs
 * have only an Idempotency-Key in common), and read. Whatever was not answered is sent again until
 * it is. On PostgreSQL there are two nodes, killed independently, and a client whose connection
 * breaks may come back to the other one. At the end history_check() holds what the clients know
 * against the ledger, and `cairn ledger verify --state` must find nothing wrong. Before all that
 * the check itself is tested with histories that are not true (http_forged.h).
 *
 * CYCLES=n (10) gives a thousand times as many operations on SQLite, a tenth of these on
 * PostgreSQL, less by CAIRN_TEST_SCALE. HTTP_SEED=n repeats the choices, as far as a machine can.
 * CAIRN names the program. */
#include "base/json.h"
#include "base/map.h"
#include "crash/http_choice.h"
#include "crash/http_forged.h"
#include "ledger/ledger.h"

static const char plan_text[] = "{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"one\","
                                "\"planVersion\":\"1\"},\"steps\":["
                                "{\"stepId\":\"only\",\"type\":\"noop\"}]}";

/* ---- asking ---- */

static void put_append(struct client *c, const char *headers) {
    struct buf body;
    char target[128];
    char all[256];
    buf_init(&body, (size_t)64 * 1024);
    for (size_t i = 0; i < c->count; i++) {
        put_event(c->events[i], c->variant, &body);
        if (c->count > 1) buf_put_char(&body, '\n');
    }
    snprintf(target, sizeof(target), "/v1/runs/%s/events", test.h.runs[c->run].id);
    snprintf(all, sizeof(all), "%sContent-Type: application/%s\r\n", headers,
             c->count > 1 ? "x-ndjson" : "json");
    conn_request(&c->conn, "POST", target, all, buf_str(&body));
    buf_release(&body);
}

static void put_start(struct client *c, const char *headers) {
    char body[2048];
    char all[256];
    char id[80] = "";
    if (c->chosen) snprintf(id, sizeof(id), ",\"runId\":\"%s\"", test.h.runs[c->run].id);
    snprintf(body, sizeof(body), "{\"planRef\":%s,\"context\":{\"tenantId\":\"tenant\"%s}}",
             test.plan_ref, id);
    snprintf(all, sizeof(all), "%sContent-Type: application/json\r\n", headers);
    conn_request(&c->conn, "POST", "/v1/runs", all, str_c(body));
}

static void put_request(struct client *c) {
    char headers[128] = "";
    char target[160];
    const char *id = test.h.runs[c->run].id;
    if (c->key[0]) snprintf(headers, sizeof(headers), "Idempotency-Key: %s\r\n", c->key);
    switch (c->kind) {
    case OP_APPEND:
        put_append(c, headers);
        break;
    case OP_START:
        put_start(c, headers);
        break;
    case OP_GET:
        snprintf(target, sizeof(target), "/v1/runs/%s", id);
        conn_request(&c->conn, "GET", target, "", STR_NONE);
        break;
    case OP_PAGE:
        snprintf(target, sizeof(target), "/v1/runs/%s/events?after=%lld&limit=%d", id,
                 (long long)c->after, (int)PAGE_LIMIT);
        conn_request(&c->conn, "GET", target, "", STR_NONE);
        break;
    }
}

static void lose(struct client *c) {
    if (c->state == CLIENT_ASKED) test.lost++;
    conn_close(&c->conn);
    c->node = (int)random_below(&test.rng, (uint32_t)test.node_count);
    if (c->state == CLIENT_ASKED) c->state = CLIENT_WAITS;
    c->wait_ns = clock_mono_ns() + 1000000 * (int64_t)(1 + random_below(&test.rng, 5));
}

/* Sends the request, or connects first. */
static void ask(struct client *c) {
    const struct node *n = &test.nodes[c->node];
    if (c->conn.fd < 0) {
        if (n->child.port == 0 || !conn_open(&c->conn, test.epoll, n->child.port, c)) lose(c);
        return;
    }
    if (c->conn.connecting) return;
    if (c->kind == OP_GET || c->kind == OP_PAGE) c->asked_ns = clock_mono_ns();
    put_request(c);
    c->state = CLIENT_ASKED;
    if (!conn_flush(&c->conn, test.epoll, c)) lose(c);
}

/* ---- being told ---- */

static bool unexpected(const struct client *c, const struct answer *a) {
    return bad("unexpected answer %d to operation %d on %s: %.*s", a->status, (int)c->kind,
               test.h.runs[c->run].id, (int)(a->body.len < 300 ? a->body.len : 300), a->body.ptr);
}

static bool parse(str text, yyjson_val **root) {
    struct error err = {0};
    arena_reset(&test.arena);
    return json_parse(text, (struct json_limits){CONN_IN_MAX, 32}, &test.arena, root, &err) ==
           ST_OK;
}

static bool take_result(struct client *c, size_t index, yyjson_val *root) {
    struct h_event *e = &test.h.events[index];
    str id;
    str time;
    uuid got;
    int64_t run_seq = 0;
    int64_t ns = 0;
    int digits = 0;
    bool ok = json_str(json_member(root, "eventId"), &id) && uuid_parse(id, &got) &&
              json_str(json_member(root, "persistedAt"), &time) &&
              time_parse_utc(time, &ns, &digits) && json_int(json_member(root, "runSeq"), &run_seq);
    if (!ok) return bad("a result that lacks something");
    bool duplicate = yyjson_is_true(json_member(root, "duplicate"));
    if (!duplicate) {
        e->fresh++;
        ok = uuid_eq(got, e->ids[c->variant]);
    }
    if (e->acknowledged) {
        test.duplicates++;
        ok = ok && uuid_eq(got, e->id) && run_seq == e->run_seq && ns / 1000 == e->persisted_us;
        if (!ok) return bad("a duplicate of event %zu differs from the first answer", index);
        return true;
    }
    test.unseen += duplicate;
    e->acknowledged = true;
    e->told_ns = clock_mono_ns();
    e->id = got;
    e->run_seq = run_seq;
    e->persisted_us = ns / 1000;
    return ok || bad("a new event has another id than was sent");
}

static bool told_append(struct client *c, const struct answer *a) {
    str rest = a->body;
    str line;
    yyjson_val *root = NULL;
    struct live *l = &test.live[c->run];
    int64_t last = 0;
    bool right = c->count > 1 ? a->status == 200 : a->status == 200 || a->status == 201;
    if (!right) return unexpected(c, a);
    for (size_t i = 0; i < c->count; i++) {
        (void)str_split(rest, '\n', &line, &rest);
        if (!parse(line, &root) || json_member(root, "error")) return unexpected(c, a);
        if (!take_result(c, c->events[i], root)) return false;
        const struct h_event *e = &test.h.events[c->events[i]];
        if (e->run_seq > l->acknowledged_seq) l->acknowledged_seq = e->run_seq;
        if (e->type == EVENT_RUN_STARTED) l->open = true;
        if (yyjson_is_true(json_member(root, "duplicate"))) continue; /* it landed otherwise */
        if (e->run_seq <= last)
            return bad("a batch of %s is not in its order", test.h.runs[c->run].id);
        last = e->run_seq;
    }
    const struct h_event *only = &test.h.events[c->events[0]];
    if (c->count == 1 && c->original && only->type == EVENT_STEP_STARTED && !l->retired)
        l->started = only->number;
    l->busy--;
    return true;
}

static bool told_start(struct client *c, const struct answer *a) {
    struct h_run *run = &test.h.runs[c->run];
    yyjson_val *root = NULL;
    str id;
    if ((a->status != 200 && a->status != 201) || !parse(a->body, &root) ||
        !json_str(json_member(root, "runId"), &id) || id.len >= RUN_ID_BYTES)
        return unexpected(c, a);
    if (run->id[0] && !str_eq(id, str_c(run->id)))
        return bad("clients that started %s were told of %.*s, too", run->id, STR_ARG(id));
    snprintf(run->id, sizeof(run->id), "%.*s", STR_ARG(id));
    bool replayed = answer_header(a, "Idempotent-Replayed: ").ptr != NULL;
    bool existing = yyjson_is_true(json_member(root, "existing"));
    if (existing == (a->status == 201)) return unexpected(c, a);
    run->fresh += !existing && !replayed;
    test.replayed += replayed;
    test.starts++;
    if (run->told_ns == NEVER) run->told_ns = clock_mono_ns();
    test.live[c->run].open = true;
    return true;
}

static enum run_status status_of(str name) {
    for (int i = RUN_NEW; i < RUN_STATUS_COUNT; i++) {
        if (str_eq(name, str_c(run_status_name((enum run_status)i)))) return (enum run_status)i;
    }
    return RUN_NEW;
}

static bool told_get(struct client *c, const struct answer *a) {
    struct h_read r = {.run = c->run, .asked_ns = c->asked_ns, .told_ns = clock_mono_ns()};
    yyjson_val *root = NULL;
    str name;
    if (a->status == 200) {
        if (!parse(a->body, &root) || !json_str(json_member(root, "status"), &name) ||
            !json_int(json_member(root, "runSeq"), &r.run_seq))
            return unexpected(c, a);
        r.status = status_of(name);
    } else if (a->status != 404) {
        return unexpected(c, a);
    }
    (void)history_add_read(&test.h, &r);
    return true;
}

static bool told_page(struct client *c, const struct answer *a) {
    struct h_read r = {.run = c->run,
                       .asked_ns = c->asked_ns,
                       .told_ns = clock_mono_ns(),
                       .is_page = true,
                       .after = c->after,
                       .run_seq = c->after};
    yyjson_val *root = NULL;
    yyjson_val *item = NULL;
    size_t i = 0;
    size_t n = 0;
    if (a->status == 404) r.after = r.run_seq = 0;
    if (a->status == 200 && !parse(a->body, &root)) return unexpected(c, a);
    if (a->status != 200 && a->status != 404) return unexpected(c, a);
    yyjson_arr_foreach(json_member(root, "items"), i, n, item) {
        str id;
        str time;
        uuid got;
        int64_t ns = 0;
        int digits = 0;
        if (!json_str(json_member(item, "eventId"), &id) || !uuid_parse(id, &got) ||
            !json_str(json_member(item, "persistedAt"), &time) ||
            !time_parse_utc(time, &ns, &digits) ||
            !json_int(json_member(item, "runSeq"), &r.run_seq))
            return unexpected(c, a);
        r.digest = digest_add(r.digest, got, r.run_seq, ns / 1000);
        r.count++;
    }
    r.more = !yyjson_is_null(json_member(root, "next")) && a->status == 200;
    (void)history_add_read(&test.h, &r);
    return true;
}

static bool told(struct client *c, const struct answer *a) {
    bool later = a->status == 503 || a->status == 429 ||
                 memmem(a->body.ptr, a->body.len, "\"retryable\":true", 16);
    bool ok = true;
    if (later) { /* nobody knows whether it happened: the same again */
        test.again++;
        c->state = CLIENT_WAITS;
        c->wait_ns = clock_mono_ns() + 10000000;
        return true;
    }
    switch (c->kind) {
    case OP_APPEND:
        ok = told_append(c, a);
        break;
    case OP_START:
        ok = told_start(c, a);
        break;
    case OP_GET:
        ok = told_get(c, a);
        break;
    case OP_PAGE:
        ok = told_page(c, a);
        break;
    }
    test.ops++;
    test.answered_ns = clock_mono_ns();
    c->state = CLIENT_FREE;
    return ok;
}

/* News from the connection of a client. */
static bool on_news(struct client *c, uint32_t events) {
    struct answer a;
    if (c->conn.fd < 0) return true;
    if (c->conn.connecting) {
        int code = 0;
        socklen_t len = sizeof(code);
        (void)getsockopt(c->conn.fd, SOL_SOCKET, SO_ERROR, &code, &len);
        c->conn.connecting = false;
        if (code != 0 || !conn_watch(&c->conn, test.epoll, EPOLL_CTL_MOD, false, c)) lose(c);
        return true;
    }
    if ((events & EPOLLOUT) && c->state == CLIENT_ASKED && !conn_flush(&c->conn, test.epoll, c)) {
        lose(c);
        return true;
    }
    bool alive = conn_read(&c->conn);
    bool ok = true;
    if (c->state == CLIENT_ASKED && conn_answer(&c->conn, &a)) ok = told(c, &a);
    if (!alive) lose(c);
    return ok;
}

/* ---- the nodes ---- */

static bool start_node(struct node *n) {
    const char *words[CHILD_WORDS_MAX] = {test.cairn, "serve", "--listen", "127.0.0.1:0",
                                          "--data",   n->data, "--log",    "text:error"};
    size_t at = 8;
    if (test.db) {
        words[at++] = "--db";
        words[at++] = test.db;
        words[at++] = "--node";
        words[at++] = n->name;
    }
    /* A name of its own for each life: the lease of the last one need not run out first. Its runs
     * are carried on by whoever lives when it has. */
    snprintf(n->name, sizeof(n->name), "node-%d-%d", (int)(n - test.nodes), ++n->lives);
    n->ready = false;
    n->kill_ns = 0;
    if (!child_start(&n->child, words)) return bad("could not start: %s", strerror(errno));
    if (!test.last && random_chance(&test.rng, 10))
        n->kill_ns = clock_mono_ns() + (int64_t)random_below(&test.rng, 60000000);
    return true;
}

/* Two nodes that begin at the same moment may get in each other's way: then one says that it is to
 * be started again. */
static bool node_ended(struct node *n, int how) {
    enum { EXIT_TRY_AGAIN = 6, REFUSALS_MAX = 50 };
    if (test.db && !n->ready && WIFEXITED(how) && WEXITSTATUS(how) == EXIT_TRY_AGAIN &&
        ++n->refusals < REFUSALS_MAX)
        return true;
    return bad("a node ended by itself, status %#x: %s", (unsigned)how, n->child.said);
}

static bool mind_node(struct node *n) {
    int64_t now = clock_mono_ns();
    int how = 0;
    if (n->child.pid == 0) return start_node(n);
    child_listen(&n->child);
    if (child_ended(&n->child, &how)) return node_ended(n, how);
    if (n->child.port > 0 && !n->ready) {
        n->ready = true;
        n->refusals = 0;
        if (n->kill_ns == 0)
            n->kill_ns = now + 1000000 * (int64_t)(50 + random_below(&test.rng, 700));
    }
    if (!n->ready && now - n->child.started_ns > (int64_t)READY_MAX_S * 1000000000)
        return bad("a node is not ready after %d s: %s", (int)READY_MAX_S, n->child.said);
    if (test.last || n->kill_ns == 0 || now < n->kill_ns) return true;
    how = child_end(&n->child, SIGKILL);
    if (!WIFSIGNALED(how)) return node_ended(n, how);
    test.kills++;
    return true;
}

static bool stop_nodes(bool ok) {
    for (int i = 0; i < test.node_count; i++) {
        if (test.nodes[i].child.pid == 0) continue;
        int how = child_end(&test.nodes[i].child, ok ? SIGTERM : SIGKILL);
        if (ok && (!WIFEXITED(how) || WEXITSTATUS(how) != 0))
            ok = bad("a node ended with status %#x: %s", (unsigned)how, test.nodes[i].child.said);
    }
    return ok;
}

/* ---- a series ---- */

/* Waits for the nodes and puts the plan, at each of them, for the tenant of all runs. */
static bool put_plan(void) {
    struct conn c;
    struct answer a = {0};
    struct epoll_event ignored;
    bool ok = true;
    conn_init(&c);
    for (int i = 0; ok && i < test.node_count; i++) {
        ok = start_node(&test.nodes[i]);
        test.nodes[i].kill_ns = 0;
        if (ok && !child_ready(&test.nodes[i].child, (int64_t)READY_MAX_S * 1000))
            ok = bad("a node is not ready: %s", test.nodes[i].child.said);
        if (ok && !conn_open(&c, test.epoll, test.nodes[i].child.port, &c))
            ok = bad("connect: %s", strerror(errno));
        conn_request(&c, "POST", "/v1/plans?tenantId=tenant", "Content-Type: application/json\r\n",
                     str_c(plan_text));
        while (ok && !conn_answer(&c, &a)) {
            (void)epoll_wait(test.epoll, &ignored, 1, 1000);
            ok = (conn_flush(&c, test.epoll, &c) && conn_read(&c)) || bad("the plan was not taken");
        }
        if (ok) snprintf(test.plan_ref, sizeof(test.plan_ref), "%.*s", STR_ARG(a.body));
        if (ok && a.status >= 300) ok = bad("the plan was refused: %s", test.plan_ref);
        conn_close(&c);
    }
    conn_release(&c);
    return ok;
}

static bool turn(void) {
    struct epoll_event events[CLIENTS];
    int n = epoll_wait(test.epoll, events, CLIENTS, 1);
    bool ok = true;
    for (int i = 0; ok && i < n; i++)
        ok = on_news(events[i].data.ptr, events[i].events);
    for (int i = 0; ok && i < test.node_count; i++)
        ok = mind_node(&test.nodes[i]);
    int64_t now = clock_mono_ns();
    for (int i = 0; ok && i < CLIENTS; i++) {
        struct client *c = &test.clients[i];
        if (c->state == CLIENT_FREE && !test.last) choose(c);
        if (c->state == CLIENT_WAITS && c->wait_ns <= now) ask(c);
    }
    if (ok && now - test.answered_ns > (int64_t)IDLE_MAX_S * 1000000000)
        ok = bad("nothing was answered for %d s", (int)IDLE_MAX_S);
    return ok;
}

static bool all_done(void) {
    for (int i = 0; i < CLIENTS; i++) {
        if (test.clients[i].state != CLIENT_FREE) return false;
    }
    for (int i = 0; i < test.node_count; i++) { /* one that only begins cannot end well */
        if (!test.nodes[i].ready || test.nodes[i].child.pid == 0) return false;
    }
    return true;
}

static bool work(void) {
    bool ok = put_plan();
    test.answered_ns = clock_mono_ns();
    while (ok && !(test.last && all_done())) {
        ok = turn();
        test.last = test.ops >= test.ops_max && test.kills >= test.kills_min;
    }
    for (int i = 0; i < CLIENTS; i++)
        conn_close(&test.clients[i].conn);
    return stop_nodes(ok);
}

static bool read_ledger(const char *url) {
    struct ledger *l = NULL;
    struct error err = {0};
    struct event_page page = {0};
    struct map runs;
    int64_t seq = 0;
    map_init(&runs);
    for (size_t i = 0; i < test.h.run_count; i++)
        (void)map_put(&runs, str_c(test.h.runs[i].id), &test.h.runs[i]);
    bool ok = ledger_open_reader(str_c(url), &l, &err) == ST_OK || bad("open: %s", err.msg);
    do {
        arena_reset(&test.arena);
        ok = ok &&
             (ledger_read_tenant(l, STR("tenant"), seq, 1000, &test.arena, &page, &err) == ST_OK ||
              bad("read: %s", err.msg));
        for (size_t i = 0; ok && i < page.count; i++) {
            const struct event_record *rec = &page.records[i];
            const struct h_run *run = map_get(&runs, rec->event.run_id);
            struct h_record r = {.id = rec->event.event_id,
                                 .run = run ? (size_t)(run - test.h.runs) : SIZE_MAX,
                                 .type = rec->event.type,
                                 .seq = rec->seq,
                                 .run_seq = rec->run_seq,
                                 .persisted_us = rec->persisted_us};
            (void)history_add_record(&test.h, &r);
            seq = rec->seq;
        }
    } while (ok && page.count > 0);
    ledger_close(l);
    map_release(&runs);
    return ok;
}

static bool verifies(void) {
    const char *const words[] = {test.cairn,
                                 "ledger",
                                 "verify",
                                 "--state",
                                 test.db ? "--db" : "--data",
                                 test.db ? test.db : test.folder,
                                 "--quiet",
                                 NULL};
    struct child child;
    if (!child_start(&child, words)) return bad("could not run verify");
    int how = child_end(&child, 0);
    return (WIFEXITED(how) && WEXITSTATUS(how) == 0) ||
           bad("verify ended with status %#x: %s", (unsigned)how, child.said);
}

static void series_init(const char *db, int nodes, uint64_t seed, int64_t ops) {
    static const char *const names[NODES_MAX] = {"north", "south"};
    const char *cairn = test.cairn;
    char folder[sizeof(test.folder)];
    memcpy(folder, test.folder, sizeof(folder));
    memset(&test, 0, sizeof(test));
    memcpy(test.folder, folder, sizeof(folder));
    test.cairn = cairn;
    test.db = db;
    test.node_count = nodes;
    test.rng = seed;
    test.ops_max = ops;
    test.kills_min = ops / 1000 > 3 ? ops / 1000 : 3;
    test.contended = SIZE_MAX;
    test.epoll = epoll_create1(EPOLL_CLOEXEC);
    arena_init(&test.arena, (size_t)256 * 1024, (size_t)256 * 1024 * 1024);
    for (size_t i = 0; i < SHARED_RUNS; i++)
        test.slots[i] = SIZE_MAX;
    for (int i = 0; i < CLIENTS; i++) {
        conn_init(&test.clients[i].conn);
        test.clients[i].node = i % nodes;
    }
    for (int i = 0; i < nodes; i++) {
        snprintf(test.nodes[i].data, sizeof(test.nodes[i].data), "%s%s%s", folder, db ? "/" : "",
                 db ? names[i] : "");
    }
}

static void series_release(void) {
    for (int i = 0; i < CLIENTS; i++)
        conn_release(&test.clients[i].conn);
    close(test.epoll);
    arena_release(&test.arena);
    history_release(&test.h);
    free(test.live);
    test.live = NULL;
}

static bool run_series(const char *name, const char *url, uint64_t seed) {
    int64_t start_ns = clock_mono_ns();
    bool ok = work();
    double worked_s = (double)(clock_mono_ns() - start_ns) / 1e9;
    ok = ok && verifies() && read_ledger(url) && (history_check(&test.h) || bad("%s", test.h.why));
    printf("http %s: %lld operations by %d clients (%zu events in the ledger, %lld starts, %zu "
           "reads), %lld kills, %lld answers lost, %lld had landed unseen, %lld duplicates, %lld "
           "replays, %lld asked to come again; %.1f s, and %.1f s to check\n",
           name, (long long)test.ops, (int)CLIENTS, test.h.record_count, (long long)test.starts,
           test.h.read_count, (long long)test.kills, (long long)test.lost, (long long)test.unseen,
           (long long)test.duplicates, (long long)test.replayed, (long long)test.again, worked_s,
           (double)(clock_mono_ns() - start_ns) / 1e9 - worked_s);
    if (!ok)
        fprintf(stderr, "http %s: seed %llu: %s (kept in %s)\n", name, (unsigned long long)seed,
                test.why, test.folder);
    series_release();
    return ok;
}

static bool run_sqlite(int64_t ops, uint64_t seed) {
    char url[600];
    if (!child_folder("http", test.folder, sizeof(test.folder))) return false;
    snprintf(url, sizeof(url), "sqlite:%s/ledger.db", test.folder);
    series_init(NULL, 1, seed, ops);
    bool ok = run_series("sqlite", url, seed);
    if (ok) child_remove_folder(test.folder);
    return ok;
}

static bool on_server(const char *server, const char *verb, const char *database,
                      const char *more) {
    char sql[256];
    struct db *db = NULL;
    struct error err = {0};
    snprintf(sql, sizeof(sql), "%s DATABASE %s%s", verb, database, more);
    status st = db_open(str_c(server), DB_WRITE, &db, &err);
    if (st == ST_OK) st = db_exec(db, sql, &err);
    db_close(db);
    if (st != ST_OK) fprintf(stderr, "http postgres: %s: %s\n", sql, err.msg);
    return st == ST_OK;
}

static bool run_postgres(const char *server, int64_t ops, uint64_t seed) {
    char name[64];
    char url[1024];
    const char *authority = strstr(server, "://");
    authority = authority ? authority + 3 : server;
    size_t head = (size_t)(authority - server) + strcspn(authority, "/?");
    const char *options = strchr(authority, '?');
    snprintf(name, sizeof(name), "cairn_http_%d", (int)getpid());
    snprintf(url, sizeof(url), "%.*s/%s%s", (int)head, server, name, options ? options : "");
    if (!child_folder("http", test.folder, sizeof(test.folder)) ||
        !on_server(server, "CREATE", name, ""))
        return false;
    series_init(url, NODES_MAX, seed, ops);
    bool ok = run_series("postgres", url, seed);
    if (ok) child_remove_folder(test.folder);
    return on_server(server, "DROP", name, " WITH (FORCE)") && ok;
}

static int64_t number_from(const char *name, int64_t otherwise) {
    const char *text = getenv(name);
    int64_t n = 0;
    return text && str_to_int(str_c(text), &n) && n > 0 ? n : otherwise;
}

int main(void) {
    int64_t ops = number_from("CYCLES", 10) * 10 * number_from("CAIRN_TEST_SCALE", 100);
    uint64_t seed = (uint64_t)number_from("HTTP_SEED", clock_wall_us());
    const char *server = getenv("CAIRN_TEST_POSTGRES");
    int failed = 0;
    int skipped = 0;
    test.cairn = getenv("CAIRN");
    if (!test.cairn || access(test.cairn, X_OK) != 0) {
        fprintf(stderr, "http: CAIRN must name the program\n");
        return 1;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("http: seed %llu\n", (unsigned long long)seed);
    failed += !notices_lies();
    failed += !run_sqlite(ops, seed);
    if (server && server[0])
        failed += !run_postgres(server, ops / 10 > 500 ? ops / 10 : 500, seed);
    else {
        printf("skip postgres: CAIRN_TEST_POSTGRES names no server\n");
        skipped++;
    }
    printf("http: %d passed, %d failed, %d skipped\n", 3 - failed - skipped, failed, skipped);
    return failed > 0 ? 1 : 0;
}
