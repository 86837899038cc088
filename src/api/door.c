/* api/door.c: what every request passes before its route: the path, where it came from, who asks,
 * what they may do, how often, and whether it was done before. */
#include "api/impl.h"
#include "base/log.h"
#include "base/time.h"

/* ---- traceparent ---- */

/* 00-<32 hex>-<16 hex>-<2 hex>; a malformed one is as good as none (W3C says so). */
static void take_trace(struct call *c) {
    str text = http_header(c->request, STR("traceparent"));
    uint8_t rest[8];
    uuid trace;
    uuid zero = {{0}};
    if (text.len < 55 || text.ptr[2] != '-' || text.ptr[35] != '-' || text.ptr[52] != '-') return;
    if (str_starts(text, STR("ff")) || (str_starts(text, STR("00")) && text.len != 55)) return;
    if (!hex_decode(str_n(text.ptr, 2), rest, 1) || !hex_decode(str_n(text.ptr + 53, 2), rest, 1) ||
        !hex_decode(str_n(text.ptr + 36, 16), rest, 8) ||
        !hex_decode(str_n(text.ptr + 3, 32), trace.b, 16) || uuid_eq(trace, zero))
        return;
    c->trace = trace;
    c->has_trace = true;
}

/* ---- without authentication only this machine may ask ---- */

/* Digits and dots only: "127.0.0.1.evil.example" is a name that anybody may point here. */
static bool is_loopback_v4(str name) {
    if (!str_starts(name, STR("127."))) return false;
    for (size_t i = 0; i < name.len; i++) {
        if (name.ptr[i] != '.' && (name.ptr[i] < '0' || name.ptr[i] > '9')) return false;
    }
    return true;
}

static bool is_loopback_name(str host) {
    str name = host;
    str port;
    if (str_starts(host, STR("[::1]"))) return host.len == 5 || host.ptr[5] == ':';
    (void)str_split(host, ':', &name, &port);
    return http_name_eq(name, STR("localhost")) || is_loopback_v4(name);
}

/* A page of another site must not talk to a server that asks for no key: neither by a name that it
 * points at this machine, nor by a form. */
static bool came_from_here(struct call *c) {
    const struct http_request *q = c->request;
    str origin = http_header(q, STR("Origin"));
    if (str_eq(q->remote, STR("unix"))) return true;
    if (q->host.ptr && !is_loopback_name(q->host)) {
        call_refuse(c, REASON_MISDIRECTED_REQUEST, "#Host",
                    "without authentication only localhost is answered, not \"%.*s\"",
                    (int)(q->host.len > 100 ? 100 : q->host.len), q->host.ptr);
        return false;
    }
    if (!origin.ptr) return true;
    str scheme = STR_NONE;
    str host = STR_NONE;
    if (str_split(origin, ':', &scheme, &host) && str_starts(host, STR("//")) &&
        is_loopback_name(str_from(host, 2)))
        return true;
    call_refuse(c, REASON_ORIGIN_NOT_ALLOWED, "#Origin",
                "without authentication no page of another site may ask");
    return false;
}

/* Names are unique in a tenant, not among all of them. */
static str caller(struct call *c) {
    const struct principal *p = c->who; /* the length: both may have blanks */
    return call_text(c, "%zu %s %s", strlen(p->tenant), p->tenant, p->name);
}

/* ---- repeated requests ---- */

static void put_lower(struct buf *text, str s) {
    for (size_t i = 0; i < s.len; i++) {
        char ch = s.ptr[i];
        buf_put_char(text, (char)(ch >= 'A' && ch <= 'Z' ? ch - 'A' + 'a' : ch));
    }
}

/* The same bytes as another type are another request; a type's parameters mean nothing to us. */
static void fingerprint(const struct http_request *q, uint8_t out[SHA256_LEN]) {
    uint8_t body[SHA256_LEN];
    struct buf text;
    str type = http_header(q, STR("Content-Type"));
    str parameters;
    sha256_of(q->body, body);
    buf_init(&text, (size_t)64 * 1024);
    buf_put(&text, q->method);
    buf_put_char(&text, '\n');
    buf_put(&text, q->target);
    buf_put_char(&text, '\n');
    if (type.ptr) {
        (void)str_split(type, ';', &type, &parameters);
        put_lower(&text, str_trim(type));
    }
    buf_put_char(&text, '\n');
    buf_put_hex(&text, body, sizeof(body));
    sha256_of(buf_str(&text), out);
    buf_release(&text);
}

static status find_receipt(struct call *c, struct ledger *reader, struct error *err) {
    struct receipt *found = ARENA_NEW(&c->arena, struct receipt);
    status st = receipt_find(reader, c->receipt.scope, c->receipt.key, &c->arena, found, err);
    if (st == ST_OK) c->own = found;
    return st == ST_NOT_FOUND ? ST_OK : st;
}

static void after_receipt(struct call *c) {
    const struct receipt *found = c->own;
    c->own = NULL;
    if (!found) {
        c->route->run(c);
        return;
    }
    if (memcmp(found->fingerprint, c->receipt.fingerprint, SHA256_LEN) != 0) {
        call_refuse(c, REASON_IDEMPOTENCY_KEY_REUSED, "#Idempotency-Key",
                    "this key was used for another request");
        return;
    }
    call_header(c, "Idempotent-Replayed", STR("true"));
    c->before = found;
    if (!found->body.ptr || (c->route->traits & ROUTE_AGAIN)) { /* idempotent by itself */
        c->route->run(c);
        return;
    }
    if (found->location.ptr && found->location.len > 0) call_header(c, "Location", found->location);
    buf_put(&c->out, found->body);
    call_answer(c, found->http_status);
}

/* Only what is under way on this node: the receipt itself is checked in the ledger. */
static bool enter_in_flight(struct call *c) {
    struct buf name;
    buf_init(&name, 1024);
    buf_put(&name, c->receipt.scope);
    buf_put_char(&name, '\n');
    buf_put(&name, c->receipt.key);
    str key = arena_str(&c->arena, buf_str(&name));
    buf_release(&name);
    if (map_get(&c->api->in_flight, key)) {
        call_refuse(c, REASON_IDEMPOTENCY_KEY_IN_USE, "#Idempotency-Key",
                    "the first request with this key is still under way");
        return false;
    }
    if (!map_put(&c->api->in_flight, key, c)) {
        struct error err;
        (void)error_set(&err, ST_RETRY, "out of memory");
        call_fail(c, &err);
        return false;
    }
    c->in_flight = key;
    return true;
}

static bool key_is_good(str key) {
    if (key.len == 0 || key.len > RECEIPT_KEY_MAX) return false;
    for (size_t i = 0; i < key.len; i++) {
        if (key.ptr[i] <= ' ' || key.ptr[i] > '~') return false;
    }
    return true;
}

static void check_repeated(struct call *c) {
    str key = http_header(c->request, STR("Idempotency-Key"));
    if (!key.ptr || !str_eq(c->request->method, STR("POST"))) {
        c->route->run(c);
        return;
    }
    if (!key_is_good(key)) {
        call_refuse(c, REASON_IDEMPOTENCY_KEY_INVALID, "#Idempotency-Key",
                    "expected 1 to %d visible ASCII characters", RECEIPT_KEY_MAX);
        return;
    }
    c->keyed = true;
    c->receipt = (struct receipt){.scope = caller(c), .key = key, .location = STR_NONE};
    fingerprint(c->request, c->receipt.fingerprint);
    if (enter_in_flight(c)) call_read(c, find_receipt, after_receipt);
}

void door_leave(struct call *c) {
    if (c->in_flight.ptr) (void)map_del(&c->api->in_flight, c->in_flight);
    c->in_flight = STR_NONE;
}

/* ---- what the caller may do ---- */

struct refusal_note { /* an audit record on its way by itself */
    struct bridge_call call;
    struct audit_entry entry;
    struct append_rider rider;
    struct arena arena;
};

static status ride_refusal(struct ledger *ledger, void *context, struct error *err) {
    struct refusal_note *note = context;
    return access_ride(ledger, &note->rider, err);
}

static void refusal_done(struct bridge_call *call) {
    struct refusal_note *note = CONTAINER_OF(call, struct refusal_note, call);
    if (call->write.code != ST_OK)
        LOG(LOG_WARN, "could not audit a refusal", LOG_S("error", str_c(call->write.err.msg)));
    arena_release(&note->arena);
    mem_free(note);
}

/* Nobody waits for it; when the ledger is too busy, or the caller is refused all the time, the log
 * line must do. */
static void audit_refusal(struct call *c, const char *code) {
    int64_t left;
    int64_t reset;
    if (!limiter_take(c->api->refusals, caller(c), c->begun_ns, &left, &reset)) {
        metric_add(c->api->m_left_out, 1);
        return;
    }
    struct refusal_note *note = mem_alloc(sizeof(*note));
    struct error ignored;
    if (!note) return;
    int64_t missed = limiter_missed(c->api->refusals, caller(c), c->begun_ns);
    arena_init(&note->arena, 1024, (size_t)64 * 1024);
    note->entry = (struct audit_entry){
        .tenant_id = arena_str(&note->arena, str_c(c->who->tenant)),
        .actor = arena_str(&note->arena, str_c(c->who->name)),
        .remote = arena_str(&note->arena, c->request->remote),
        .request_id = arena_str(&note->arena, c->request->id),
        .action = str_c(c->route->name),
        .target = arena_str(&note->arena, c->args[0].ptr ? c->args[0] : STR("")),
        .outcome = STR("refused"),
        .code = str_c(code),
    };
    if (missed > 0)
        note->entry.reason = arena_str(
            &note->arena, call_text(c, "%lld before it were left out", (long long)missed));
    note->rider = (struct append_rider){.audit = &note->entry};
    note->call = (struct bridge_call){.write.member = {.body = ride_refusal, .context = note},
                                      .done = refusal_done};
    if (bridge_try(c->api->bridge, &note->call, &ignored) == ST_OK) return;
    arena_release(&note->arena);
    mem_free(note);
}

static bool check_role(struct call *c) {
    const struct route *r = c->route;
    bool platform = str_eq(str_c(c->who->tenant), STR("*"));
    if (principal_may(c->who, r->roles) && (platform || !(r->traits & ROUTE_PLATFORM))) return true;
    if (r->traits & ROUTE_CHANGES) audit_refusal(c, "FORBIDDEN");
    call_refuse(c, REASON_FORBIDDEN, "", "\"%s\" has no role that allows this%s", c->who->name,
                r->traits & ROUTE_PLATFORM ? " for every tenant" : "");
    return false;
}

static bool check_rate(struct call *c) {
    struct limiter *limiter = c->api->limiter;
    int64_t left = 0;
    int64_t reset = 0;
    if (!limiter || c->trusted) return true;
    bool good = limiter_take(limiter, caller(c), c->begun_ns, &left, &reset);
    call_header(c, "RateLimit-Policy",
                call_text(c, "\"default\";q=%lld;w=1", (long long)c->api->options.rate));
    call_header(c, "RateLimit",
                call_text(c, "\"default\";r=%lld;t=%lld", (long long)left, (long long)reset));
    if (good) return true;
    c->retry_after_s = reset;
    call_refuse(c, REASON_RATE_LIMITED, "", "more than %lld requests a second",
                (long long)c->api->options.rate);
    return false;
}

static void caller_known(struct call *c) {
    c->who = &c->auth.principal;
    /* The rate first: a refusal is written down, too. */
    if (check_rate(c) && check_role(c)) check_repeated(c);
}

static void on_checked(struct auth_check *check) {
    struct call *c = (struct call *)(void *)((char *)check - offsetof(struct call, auth));
    if (check->code == ST_OK && c->api->closing) {
        call_refuse_closing(c);
        return;
    }
    if (check->code == ST_OK) {
        caller_known(c);
        return;
    }
    c->retry_after_s = check->retry_after_s;
    call_fail(c, &check->err);
}

/* ---- in ---- */

static void trust(struct call *c) {
    struct principal *p = &c->auth.principal;
    str actor =
        http_header(c->request, STR("Cairn-Actor")); /* who may open the socket may say so */
    size_t bad = 0;
    *p = (struct principal){.roles = ROLE_ALL};
    bool named =
        actor.ptr && actor.len > 0 && actor.len <= PRINCIPAL_NAME_MAX && str_utf8(actor, &bad);
    snprintf(p->name, sizeof(p->name), "%.*s", STR_ARG(named ? actor : STR("local")));
    snprintf(p->tenant, sizeof(p->tenant), "*");
    caller_known(c);
}

static bool find_route(struct call *c) {
    struct buf allow;
    buf_init(&allow, 256);
    c->route = route_find(c->request->method, c->request->path, &c->arena, c->args, &allow);
    str methods = arena_str(&c->arena, buf_str(&allow));
    buf_release(&allow);
    if (c->route) return true;
    if (methods.len > 0) {
        call_header(c, "Allow", methods);
        call_refuse(c, REASON_METHOD_NOT_ALLOWED, "", "this path takes %.*s", STR_ARG(methods));
        return false;
    }
    str path = c->request->path;
    call_refuse(c, REASON_ROUTE_NOT_FOUND, "", "there is nothing at \"%.*s\"",
                (int)(path.len > 200 ? 200 : path.len), path.ptr);
    return false;
}

void door_enter(struct call *c) {
    take_trace(c);
    if (c->api->options.open && !c->trusted && !came_from_here(c)) return;
    if (!find_route(c)) return;
    if (c->route->traits & ROUTE_OPEN) {
        c->route->run(c);
        return;
    }
    if (c->trusted) {
        trust(c);
        return;
    }
    c->auth.arena = &c->arena;
    c->auth.done = on_checked;
    if (auth_check(c->api->auth, &c->auth, http_header(c->request, STR("Authorization")),
                   c->request->remote, clock_wall_us()))
        on_checked(&c->auth);
}
