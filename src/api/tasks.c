/* api/tasks.c: outside workers: poll, heartbeat, complete, fail, and results in batches.
 *
 * The token of a task is opaque to workers: which lease of which attempt of which step. Forging one
 * gains nothing: the lease number is the fence, and the run must be the caller's tenant's. */
#include "api/impl.h"
#include "base/base64.h"
#include "base/time.h"

enum {
    TASKS_MAX = 100,
    LEASE_MS_MIN = 100,
    LEASE_MS_MAX_ = 24 * 3600 * 1000,
    LEASE_MS_DEFAULT = 30000,
    WAIT_MS_MAX = 60000,
    RESULTS_MAX = 1000,
    PARSE_HERE_MAX = 128 * 1024, /* bytes of results: some milliseconds */
    TOKEN_BYTES_MAX = 1024,
    MESSAGE_BYTES_MAX = 4096,
    CODE_BYTES_MAX = 100,
};

/* ---- tokens ---- */

static str own_tenant(const struct call *c) {
    str own = str_c(c->who->tenant);
    return str_eq(own, STR("*")) ? STR_NONE : own;
}

static status read_token(struct call *c, str token, struct task_ref *out, struct error *err) {
    str plain = STR_NONE;
    if (!base64url_read(token, &c->arena, &plain) || !task_ref_read(plain, out))
        return error_at(err, REASON_TASK_TOKEN_INVALID, "/task",
                        "expected the \"task\" of a poll, as it came");
    out->tenant_id = own_tenant(c);
    return ST_OK;
}

/* ---- poll ---- */

struct poll {
    str queue, worker, tenant;
    int64_t max, lease_ms, wait_ms;
    struct engine_poll *poll; /* while it waits */
    struct share *share;
    bool asking; /* inside a call of the engine: an answer is kept until it returns */
    bool answered;
    bool held;              /* takes tasks while the results of the same request are handed in */
    bool after_results;     /* the tasks are the last line of a batch's answer */
    struct receipt *before; /* of a repeated request: what it did */
    size_t before_count;
    struct { /* the tasks of these, told once more */
        size_t at;
        bool told, waits; /* the engine has answered; it has not, and on_again() goes on */
        status code;
        struct error err;
        struct task task;
        struct arena arena;
    } again;
    int64_t *lines; /* the lines of results that were taken then, in order */
    size_t line_count;
};
#define AT(member) FIELD(struct poll, member)
static const struct field poll_fields[] = {
    {"queue", FIELD_TEXT, AT(queue), true, 1, 0},
    {"worker", FIELD_TEXT, AT(worker), true, 1, ACTOR_BYTES_MAX},
    {"max", FIELD_INT, AT(max), false, 1, TASKS_MAX},
    {"leaseMs", FIELD_INT, AT(lease_ms), false, LEASE_MS_MIN, LEASE_MS_MAX_},
    {"waitMs", FIELD_INT, AT(wait_ms), false, 0, WAIT_MS_MAX},
    {"tenantId", FIELD_TEXT, AT(tenant), false, 1, 0},
};

static void put_tasks(struct buf *out, const struct task *tasks, size_t count) {
    page_begin(out);
    for (size_t i = 0; i < count; i++)
        view_write(&view_task, &tasks[i], out);
    buf_put_c(out, "]}");
}

static void answer_poll(struct call *c) {
    struct poll *p = c->own;
    if (p->after_results)
        call_answer_as(c, 200, "application/x-ndjson");
    else
        call_answer(c, 200);
}

static void on_tasks(void *context, const struct task *tasks, size_t count) {
    struct call *c = context;
    struct poll *p = c->own;
    p->poll = NULL;
    if (p->held) return; /* the engine closes: what it has leased runs out. The results answer */
    put_tasks(&c->out, tasks, count);
    if (p->after_results) buf_put_char(&c->out, '\n');
    p->answered = true;
    if (!p->asking) answer_poll(c);
}

/* What it has been leased is told, also to nobody: until the receipt of a lease is committed, the
 * key must be in use, or a repetition would take other tasks. */
static void stop_polling(struct call *c) {
    struct poll *p = c->own;
    engine_poll_stop(c->api->engine, p->poll);
}

static void on_gone(void *context, struct http_exchange *exchange) {
    (void)exchange;
    struct call *c = context;
    if (!c->cut) return;
    c->cut = NULL;
    stop_polling(c);
}

/* ---- a poll that is repeated ----
 *
 * With each lease a receipt was committed that names the task. Those that the caller still holds
 * are given once more, with their tokens; no other is taken. */

static int compare_lines(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a;
    int64_t y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static status find_before(struct call *c, struct ledger *reader, struct error *err) {
    struct poll *p = c->own;
    status st = call_receipts(c, reader, &p->before, &p->before_count, err);
    if (st != ST_OK) return st;
    p->lines = arena_try(&c->arena, (p->before_count + 1) * sizeof(*p->lines));
    if (!p->lines) return error_set(err, ST_RETRY, "out of memory");
    for (size_t i = 0; i < p->before_count; i++) {
        str body = p->before[i].body;
        if (body.ptr && str_to_int(body, &p->lines[p->line_count])) p->line_count++;
    }
    qsort(p->lines, p->line_count, sizeof(*p->lines), compare_lines);
    return ST_OK;
}

static void again_over(struct call *c, const struct error *failed) {
    struct poll *p = c->own;
    arena_release(&p->again.arena);
    if (failed) {
        call_fail(c, failed);
        return;
    }
    buf_put_c(&c->out, p->after_results ? "]}\n" : "]}");
    answer_poll(c);
}

/* Writes the task that the engine told of, if the caller still has it. false: the call is answered, for that could
 * not be told just now. */
static bool put_again(struct call *c) {
    struct poll *p = c->own;
    p->again.at++;
    if (p->again.code == ST_RETRY) {
        again_over(c, &p->again.err);
        return false;
    }
    if (p->again.code == ST_OK) view_write(&view_task, &p->again.task, &c->out);
    arena_reset(&p->again.arena);
    return true;
}

static void next_again(struct call *c);

static void on_again(void *context, status code, const struct error *err) {
    struct call *c = context;
    struct poll *p = c->own;
    bool waited = p->again.waits;
    p->again.waits = false;
    p->again.told = true;
    p->again.code = code;
    if (code != ST_OK) p->again.err = *err;
    if (waited && put_again(c)) next_again(c);
}

/* One after the other: a run may have to be read first. */
static void next_again(struct call *c) {
    struct poll *p = c->own;
    struct engine_caller caller = {.done = on_again, .context = c};
    while (p->again.at < p->before_count) {
        struct task_ref ref;
        str body = p->before[p->again.at].body;
        if (!body.ptr || !task_ref_read(body, &ref)) {
            p->again.at++;
            continue;
        }
        ref.tenant_id = own_tenant(c);
        p->again.told = false;
        engine_task_again(c->api->engine, &ref, &p->again.arena, &p->again.task, &caller);
        p->again.waits = !p->again.told;
        if (p->again.waits || !put_again(c)) return;
    }
    again_over(c, NULL);
}

/* Whether it had taken any; then the call is answered, or will be. */
static bool poll_again(struct call *c) {
    struct poll *p = c->own;
    size_t taken = 0;
    for (size_t i = 0; i < p->before_count; i++) {
        struct task_ref ref;
        taken += p->before[i].body.ptr && task_ref_read(p->before[i].body, &ref);
    }
    if (taken == 0) return false;
    page_begin(&c->out);
    arena_init(&p->again.arena, 4096, (size_t)64 * 1024 * 1024);
    next_again(c);
    return true;
}

static void poll_over(struct call *c) {
    struct poll *p = c->own;
    share_give(p->share, SHARE_POLLS);
    if (p->poll)
        engine_poll_cancel(c->api->engine, p->poll); /* its results could not be answered */
    p->poll = NULL;
}

static int64_t poll_deadline(const struct call *c, const struct poll *p) {
    return clock_wall_us() + (c->api->draining ? 0 : p->wait_ms * 1000);
}

/* With `held`, it is not answered before release_poll(). */
static status open_poll(struct call *c, struct poll *p, bool held, struct error *err) {
    c->receipt.http_status = 200;
    status st = ST_OK;
    if (p->wait_ms > 0 && !c->api->draining && !p->share)
        st = share_take(&c->api->shares, str_c(c->who->tenant), SHARE_POLLS, &p->share, err);
    if (st != ST_OK) return st;
    c->ended = poll_over;
    p->asking = true;
    struct poll_request request = {.tenant_id = p->tenant,
                                   .queue = p->queue,
                                   .worker = p->worker,
                                   .max = (size_t)p->max,
                                   .lease_ms = p->lease_ms,
                                   .deadline_us = poll_deadline(c, p),
                                   .receipt = c->keyed ? &c->receipt : NULL,
                                   .held = held};
    st = engine_poll(c->api->engine, &request, on_tasks, c, &p->poll, err);
    p->asking = false;
    p->held = held && st == ST_OK;
    if (st != ST_OK) p->poll = NULL;
    return st;
}

static void await_tasks(struct call *c) {
    struct poll *p = c->own;
    if (p->answered) {
        answer_poll(c);
        return;
    }
    c->cut = stop_polling;
    http_on_gone(c->exchange, on_gone, c);
}

static status start_poll(struct call *c, struct poll *p, struct error *err) {
    status st = open_poll(c, p, false, err);
    if (st == ST_OK) await_tasks(c);
    return st;
}

static void release_poll(struct call *c) {
    struct poll *p = c->own;
    p->held = false;
    p->asking = true;
    engine_poll_release(c->api->engine, p->poll, poll_deadline(c, p));
    p->asking = false;
    await_tasks(c);
}

static status poll_tenant(struct call *c, str *tenant, struct error *err) {
    status st = call_tenant(c, *tenant, tenant, err);
    if (st == ST_OK && !tenant->ptr) *tenant = STR("default");
    return st;
}

static void repeat_poll(struct call *c) {
    struct error err = {0};
    if (poll_again(c)) return;
    if (start_poll(c, c->own, &err) != ST_OK) call_fail(c, &err);
}

static void post_poll(struct call *c) {
    struct error err = {0};
    struct poll *p = ARENA_NEW(&c->arena, struct poll);
    *p = (struct poll){.max = 1, .lease_ms = LEASE_MS_DEFAULT};
    c->own = p;
    status st = query_none(c, &err);
    if (st == ST_OK) st = body_read(c, poll_fields, COUNT_OF(poll_fields), p, NULL, &err);
    if (st == ST_OK) st = poll_tenant(c, &p->tenant, &err);
    if (st == ST_OK && c->before) {
        call_read(c, find_before, repeat_poll);
        return;
    }
    if (st == ST_OK) st = start_poll(c, p, &err);
    if (st != ST_OK) call_fail(c, &err);
}

/* ---- heartbeat ---- */

struct answer {
    str token, output, code, message;
    yyjson_val *error;
    int64_t lease_ms, until_us;
    struct task_ref ref;
};
#define IN(member) FIELD(struct answer, member)
#define TOKEN                                                                                      \
    { "task", FIELD_TEXT, IN(token), true, 1, TOKEN_BYTES_MAX }
#define CODE                                                                                       \
    { "code", FIELD_TEXT, IN(code), true, 1, CODE_BYTES_MAX }
#define MESSAGE                                                                                    \
    { "message", FIELD_TEXT, IN(message), false, 0, MESSAGE_BYTES_MAX }
#define OUTPUT                                                                                     \
    { "output", FIELD_JSON, IN(output), false, 0, 0 }
static const struct field heartbeat_fields[] = {
    TOKEN, {"leaseMs", FIELD_INT, IN(lease_ms), false, LEASE_MS_MIN, LEASE_MS_MAX_}};
static const struct field complete_fields[] = {TOKEN, OUTPUT};
static const struct field fail_fields[] = {TOKEN, CODE, MESSAGE};
static const struct field result_fields[] = {
    TOKEN, OUTPUT, {"error", FIELD_VALUE, IN(error), false, 0, 0}};
static const struct field error_fields[] = {CODE, MESSAGE};

static status read_answer(struct call *c, const struct field *fields, size_t count,
                          struct answer *a, struct error *err) {
    status st = query_none(c, err);
    if (st == ST_OK) st = body_read(c, fields, count, a, NULL, err);
    return st == ST_OK ? read_token(c, a->token, &a->ref, err) : st;
}

static void answer_ok(struct call *c) { call_answer(c, 200); }

static void on_heartbeat(void *context, status code, const struct error *err) {
    struct call *c = context;
    const struct answer *a = c->own;
    if (code != ST_OK) {
        call_fail(c, err);
        return;
    }
    json_object_begin(&c->out);
    json_put_time(&c->out, "leaseUntil", a->until_us);
    json_object_end(&c->out);
    (void)call_receipt(c, 200, true);
    call_ride(c, answer_ok);
}

/* Repeated, it is a heartbeat like any other: a lease that is lost must be told. */
static void post_heartbeat(struct call *c) {
    struct error err = {0};
    struct answer *a = ARENA_NEW(&c->arena, struct answer);
    struct engine_caller caller = {.done = on_heartbeat, .context = c};
    a->lease_ms = LEASE_MS_DEFAULT;
    c->own = a;
    if (read_answer(c, heartbeat_fields, COUNT_OF(heartbeat_fields), a, &err) != ST_OK)
        call_fail(c, &err);
    else
        engine_heartbeat(c->api->engine, &a->ref, a->lease_ms, &a->until_us, &caller);
}

/* ---- one result ---- */

static void on_taken(void *context, status code, const struct error *err) {
    struct call *c = context;
    if (code != ST_OK)
        call_fail(c, err);
    else if (c->rode)
        call_answer(c, 200);
    else /* told before, perhaps without a key */
        call_ride(c, answer_ok);
}

static void give_result(struct call *c, const struct field *fields, size_t count, bool ok) {
    struct error err = {0};
    struct answer *a = ARENA_NEW(&c->arena, struct answer);
    if (read_answer(c, fields, count, a, &err) != ST_OK) {
        call_fail(c, &err);
        return;
    }
    buf_put_c(&c->out, "{}");
    struct outcome outcome = {
        .ok = ok, .output = a->output, .code = a->code, .message = a->message};
    struct engine_caller caller = {.actor = call_actor(c),
                                   .riders = call_receipt(c, 200, false),
                                   .done = on_taken,
                                   .context = c};
    engine_task_done(c->api->engine, &a->ref, &outcome, &caller);
}

static void post_complete(struct call *c) {
    give_result(c, complete_fields, COUNT_OF(complete_fields), true);
}
static void post_fail(struct call *c) { give_result(c, fail_fields, COUNT_OF(fail_fields), false); }

/* ---- many results, and perhaps the next tasks ----
 *
 * With a key, a receipt that names the line is committed with each step's end. Repeated, those
 * lines are answered as they were; the others, if the first time ended in the middle, are handed in
 * now. */

struct result {
    struct call *call;
    struct receipt receipt;
    struct append_rider rider;
    struct answer answer;
    struct error *err; /* NULL: taken */
    int64_t line;
    bool rode; /* its receipt is committed */
};
struct results {
    struct poll poll; /* first: the functions of a poll find it at c->own */
    str poll_queue;
    struct result *items;
    size_t count, pending;
    str actor;
};
#define Q(member) FIELD(struct results, member)
static const struct field results_query[] = {
    {"poll", FIELD_TEXT, Q(poll_queue), false, 1, 0},
    {"worker", FIELD_TEXT, Q(poll.worker), false, 1, ACTOR_BYTES_MAX},
    {"max", FIELD_INT, Q(poll.max), false, 1, TASKS_MAX},
    {"leaseMs", FIELD_INT, Q(poll.lease_ms), false, LEASE_MS_MIN, LEASE_MS_MAX_},
    {"waitMs", FIELD_INT, Q(poll.wait_ms), false, 0, WAIT_MS_MAX},
    {"tenantId", FIELD_TEXT, Q(poll.tenant), false, 1, 0},
};

static void results_given(struct call *c) {
    struct results *r = c->own;
    struct error err = {0};
    for (size_t i = 0; i < r->count; i++) {
        const struct error *why = r->items[i].err;
        json_object_begin(&c->out);
        if (why) {
            json_put_int(&c->out, "line", r->items[i].line);
            json_name(&c->out, "error");
            problem_line(&c->out, why);
        } else {
            json_put_bool(&c->out, "ok", true);
        }
        buf_put_c(&c->out, "}\n");
    }
    if (!r->poll_queue.ptr) {
        call_answer_as(c, 200, "application/x-ndjson");
        return;
    }
    r->poll.after_results = true;
    bool closing = c->api->closing; /* perhaps in the middle of the engine's own end */
    if (!closing && r->poll.poll) {
        release_poll(c);
        return;
    }
    if (r->poll.poll) engine_poll_cancel(c->api->engine, r->poll.poll);
    r->poll.poll = NULL;
    r->poll.held = false;
    if (!closing && poll_again(c)) return;
    if (closing || start_poll(c, &r->poll, &err) != ST_OK)
        on_tasks(c, NULL, 0); /* the results were taken: that is what must be said */
}

/* All lines are answered. One that was told before had no effect, and so has left no receipt; when
 * its run is over, it could not be taken once more. */
static void results_over(struct call *c) {
    struct results *r = c->own;
    const struct append_rider *left = NULL;
    for (size_t i = 0; i < r->count; i++) {
        struct result *item = &r->items[i];
        if (item->err || item->rode || !item->rider.receipt) continue;
        item->rider.next = left;
        left = &item->rider;
    }
    c->rider = left ? *left : (struct append_rider){0};
    call_ride(c, results_given);
}

static void on_result(void *context, status code, const struct error *err) {
    struct result *item = context;
    struct call *c = item->call;
    struct results *r = c->own;
    if (code != ST_OK && !item->err) {
        item->err = ARENA_NEW(&c->arena, struct error);
        *item->err = *err;
    }
    if (--r->pending == 0) results_over(c);
}

static status read_result(struct call *c, struct result *item, str line, struct error *err) {
    struct json_limits limits = {LINE_BYTES_MAX, JSON_DEPTH_MAX};
    yyjson_val *root = NULL;
    struct answer *a = &item->answer;
    status st = json_parse(line, limits, &c->arena, &root, err);
    if (st == ST_OK)
        st = object_read(root, "", result_fields, COUNT_OF(result_fields), &c->arena, a, NULL, err);
    if (st == ST_OK && a->error)
        st = object_read(a->error, "/error", error_fields, COUNT_OF(error_fields), &c->arena, a,
                         NULL, err);
    if (st == ST_OK && a->error && a->output.ptr)
        st = error_at(err, REASON_FIELD_UNKNOWN, "/output", "a failure has no output");
    return st == ST_OK ? read_token(c, a->token, &a->ref, err) : st;
}

static const struct append_rider *line_rider(struct call *c, struct result *item) {
    if (!c->keyed) return NULL;
    item->receipt = c->receipt;
    item->receipt.http_status = 200;
    item->receipt.body = call_text(c, "%lld", (long long)item->line);
    item->rider = (struct append_rider){.receipt = &item->receipt, .rode = &item->rode};
    return &item->rider;
}

static bool was_taken(const struct poll *p, int64_t line) {
    return p->line_count > 0 &&
           bsearch(&line, p->lines, p->line_count, sizeof(*p->lines), compare_lines);
}

/* Reads every line that is not known to be taken. */
static status parse_results(struct call *c, struct ledger *unused, struct error *err) {
    struct results *r = c->own;
    str rest = c->request->body;
    UNUSED(unused);
    for (int64_t number = 1; rest.len > 0; number++) {
        str line;
        struct error why = {0};
        if (!str_split(rest, '\n', &line, &rest)) rest = STR_NONE;
        line = str_trim(line);
        if (line.len == 0) continue;
        struct result *item = &r->items[r->count++];
        item->call = c;
        item->line = number;
        if (was_taken(&r->poll, number) || read_result(c, item, line, &why) == ST_OK) continue;
        item->err = arena_try(&c->arena, sizeof(why));
        if (!item->err) return error_set(err, ST_RETRY, "out of memory");
        *item->err = why;
    }
    return ST_OK;
}

static status count_lines(struct call *c, struct results *r, struct error *err) {
    str rest = c->request->body;
    size_t lines = 0;
    while (rest.len > 0) {
        str line;
        if (!str_split(rest, '\n', &line, &rest)) rest = STR_NONE;
        lines += str_trim(line).len > 0;
    }
    if (lines > RESULTS_MAX)
        return error_at(err, REASON_BATCH_TOO_LARGE, "", "at most %d results in one request",
                        RESULTS_MAX);
    r->items = arena_try(&c->arena, (lines + 1) * sizeof(*r->items));
    return r->items ? ST_OK : error_set(err, ST_RETRY, "out of memory");
}

static status read_results(struct call *c, struct results *r, struct error *err) {
    status st = query_read(c, results_query, COUNT_OF(results_query), r, NULL, err);
    if (st == ST_OK && r->poll_queue.ptr && !r->poll.worker.ptr)
        st = error_at(err, REASON_PARAMETER_MISSING, "?worker", "is missing");
    if (st == ST_OK && c->request->body.len > 0 && !body_is(c, "application/x-ndjson"))
        st = error_at(err, REASON_UNSUPPORTED_MEDIA_TYPE, "#Content-Type",
                      "expected \"Content-Type: application/x-ndjson\"");
    if (st == ST_OK && c->request->body.len == 0 && !r->poll_queue.ptr)
        st = error_at(err, REASON_BODY_MISSING, "", "results are expected, one a line");
    if (st == ST_OK) st = poll_tenant(c, &r->poll.tenant, err);
    r->poll.queue = r->poll_queue;
    return st == ST_OK ? count_lines(c, r, err) : st;
}

static void give_one_result(struct call *c, struct result *item) {
    struct results *r = c->own;
    const struct answer *a = &item->answer;
    struct outcome outcome = {
        .ok = !a->error, .output = a->output, .code = a->code, .message = a->message};
    struct engine_caller caller = {
        .actor = r->actor, .riders = line_rider(c, item), .done = on_result, .context = item};
    caller.poll = r->poll.poll;
    engine_task_done(c->api->engine, &a->ref, &outcome, &caller);
}

static void give_results(struct call *c) {
    struct results *r = c->own;
    struct error ignored; /* a poll that cannot begin now is tried again when the results are in */
    r->actor = call_actor(c);
    /* It waits before the results are taken: then the tasks that follow from them are leased in the
     * commits that take them. A repeated request first looks for the tasks that it was given. */
    if (r->poll_queue.ptr && !c->before) (void)!open_poll(c, &r->poll, true, &ignored);
    r->pending = 1 + r->count; /* one our own: the end comes after the last, whoever answers when */
    for (size_t i = 0; i < r->count; i++) {
        struct result *item = &r->items[i];
        if (item->err || was_taken(&r->poll, item->line))
            on_result(item, item->err ? item->err->code : ST_OK, item->err);
        else
            give_one_result(c, item);
    }
    if (--r->pending == 0) results_over(c);
}

/* The loop is everybody's: much is read elsewhere. */
static void take_results(struct call *c) {
    struct error err = {0};
    if (c->request->body.len > PARSE_HERE_MAX)
        call_read(c, parse_results, give_results);
    else if (parse_results(c, NULL, &err) == ST_OK)
        give_results(c);
    else
        call_fail(c, &err);
}

static void post_results(struct call *c) {
    struct error err = {0};
    struct results *r = ARENA_NEW(&c->arena, struct results);
    r->poll = (struct poll){.max = 1, .lease_ms = LEASE_MS_DEFAULT};
    c->own = r;
    if (read_results(c, r, &err) != ST_OK)
        call_fail(c, &err);
    else if (c->before)
        call_read(c, find_before, take_results);
    else
        take_results(c);
}

#define TASK(verb, traits, run)                                                                    \
    { "POST", "/v1/tasks/" verb, "task." verb, ROLE_WORKER, traits, run }
static const struct route routes[] = {
    TASK("poll", ROUTE_AGAIN, post_poll),
    TASK("results", ROUTE_AGAIN | ROUTE_CHANGES, post_results),
    TASK("complete", ROUTE_CHANGES, post_complete),
    TASK("fail", ROUTE_CHANGES, post_fail),
    TASK("heartbeat", 0, post_heartbeat),
};
const struct route_table task_routes = {routes, COUNT_OF(routes)};
