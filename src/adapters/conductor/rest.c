/* adapters/conductor/rest.c: see the header.
 *
 * A call is in one of three lists: `ready` waits for its turn, `active` has a request under way,
 * `resting` failed and is sent again when its time has come. One timer serves the resting ones. */
#include "adapters/conductor/rest.h"

#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/time.h"
#include "base/uuid.h"
#include "core/url_guard.h"
#include "net/client.h"

enum { JSON_NESTING_MAX = 2 * JSON_DEPTH_MAX, FIRST_CHUNK = 16 * 1024, MESSAGE_MAX = 300 };

enum call_state { CALL_READY, CALL_ACTIVE, CALL_RESTING };

struct rest_call {
    TAILQ_ENTRY(rest_call) link;
    struct rest *rest;
    enum call_state state;
    const char *method;
    char *url, *body; /* own memory */
    size_t url_len, body_len;
    int64_t timeout_ms, until_ms, next_ms, delay_ms;
    bool hurry;
    bool broken; /* it can never be sent */
    rest_done done;
    void *context;
    struct client_call *request; /* while active */
};
TAILQ_HEAD(call_list, rest_call);

struct rest {
    uv_loop_t *loop;
    struct client *client;
    uv_timer_t timer;
    struct call_list ready, active, resting;
    int active_count; /* without those in a hurry */
    size_t pending;
    int64_t down_ms; /* since when nobody answers; 0: somebody does */
    bool closing;
    char *base; /* http://host:port/api */
};

/* ---- what answers mean ---- */

static bool is_passing(int http, yyjson_val *root) {
    if (http == 429 || http == 502 || http == 503 || http == 504) return true;
    return http == 500 && yyjson_is_true(json_member(root, "retryable"));
}

status rest_status(int http, str body, struct error *err) {
    if (http >= 200 && http <= 299) return ST_OK;
    struct arena arena;
    arena_init(&arena, FIRST_CHUNK, (size_t)4 * 1024 * 1024);
    yyjson_val *root = NULL;
    struct error bad;
    struct json_limits limits = {(size_t)256 * 1024, JSON_DEPTH_MAX};
    if (json_parse(body, limits, &arena, &root, &bad) != ST_OK) root = NULL;
    str message = STR_NONE;
    if (!json_str(json_member(root, "message"), &message)) message = STR("no message");
    if (message.len > MESSAGE_MAX) message.len = MESSAGE_MAX;
    status st = ST_CONFLICT;
    if (is_passing(http, root))
        st = ST_RETRY;
    else if (http == 404)
        st = ST_NOT_FOUND;
    else if (http != 409 && http < 500)
        st = ST_INVALID;
    (void)error_as(err, st, REASON_CONDUCTOR_REFUSED, "conductor", "answered with status %d: %.*s",
                   http, STR_ARG(message));
    arena_release(&arena);
    return st;
}

void rest_escape(str text, struct buf *out) {
    for (size_t i = 0; i < text.len; i++) {
        char c = text.ptr[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     c == '-' || c == '_' || c == '.';
        if (plain)
            buf_put_char(out, c);
        else
            buf_printf(out, "%%%02X", (unsigned)(unsigned char)c);
    }
}

/* ---- a call ---- */

static int64_t now_ms(const struct rest *rest) { return (int64_t)uv_now(rest->loop); }

static struct call_list *list_of(struct rest_call *call) {
    struct rest *rest = call->rest;
    return call->state == CALL_READY    ? &rest->ready
           : call->state == CALL_ACTIVE ? &rest->active
                                        : &rest->resting;
}

static void move(struct rest_call *call, enum call_state state) {
    struct rest *rest = call->rest;
    TAILQ_REMOVE(list_of(call), call, link);
    if (!call->hurry) {
        rest->active_count -= call->state == CALL_ACTIVE;
        rest->active_count += state == CALL_ACTIVE;
    }
    call->state = state;
    TAILQ_INSERT_TAIL(list_of(call), call, link);
}

static void call_free(struct rest_call *call) {
    struct rest *rest = call->rest;
    TAILQ_REMOVE(list_of(call), call, link);
    if (call->state == CALL_ACTIVE && !call->hurry) rest->active_count--;
    rest->pending--;
    mem_free(call->url);
    mem_free(call->body);
    mem_free(call);
}

static void send_ready(struct rest *rest);
static void on_timer(uv_timer_t *timer);

static void timer_set(struct rest *rest) {
    if (rest->closing) return;
    int64_t first = INT64_MAX;
    struct rest_call *call;
    for (call = TAILQ_FIRST(&rest->resting); call; call = TAILQ_NEXT(call, link))
        first = call->next_ms < first ? call->next_ms : first;
    if (first == INT64_MAX) {
        (void)uv_timer_stop(&rest->timer);
        return;
    }
    int64_t wait = first - now_ms(rest);
    (void)uv_timer_start(&rest->timer, on_timer, (uint64_t)(wait > 0 ? wait : 0), 0);
}

static void call_rest(struct rest_call *call) {
    uint32_t random;
    random_bytes(&random, sizeof random);
    int64_t delay = call->delay_ms;
    call->next_ms = now_ms(call->rest) + delay - (int64_t)(random % (uint32_t)(delay / 2));
    call->delay_ms = delay * 2 < REST_DELAY_MS_MAX ? delay * 2 : REST_DELAY_MS_MAX;
    move(call, CALL_RESTING);
    timer_set(call->rest);
}

static void outage(struct rest *rest, bool down, const struct error *err) {
    if (down == (rest->down_ms > 0)) return;
    if (down) {
        rest->down_ms = now_ms(rest) > 0 ? now_ms(rest) : 1;
        LOG(LOG_WARN, "Conductor does not answer, trying again until it does",
            LOG_S("url", str_c(rest->base)), LOG_S("error", str_c(err->msg)));
        return;
    }
    LOG(LOG_INFO, "Conductor answers again", LOG_S("url", str_c(rest->base)),
        LOG_N("after_s", (now_ms(rest) - rest->down_ms) / 1000));
    rest->down_ms = 0;
}

static void call_answer(struct rest_call *call, status st, str text, const struct error *err) {
    struct arena arena;
    arena_init(&arena, FIRST_CHUNK, 16 * REST_BYTES_MAX);
    struct rest_answer answer = {.st = st, .text = text, .err = err};
    struct error bad;
    struct json_limits limits = {REST_BYTES_MAX, JSON_NESTING_MAX};
    bool looks = text.len > 0 && (text.ptr[0] == '{' || text.ptr[0] == '[');
    if (!looks || json_parse(text, limits, &arena, &answer.json, &bad) != ST_OK) answer.json = NULL;
    rest_done done = call->done;
    void *context = call->context;
    call_free(call);
    done(context, &answer);
    arena_release(&arena);
}

static void on_response(void *context, status st, const struct client_response *response,
                        const struct error *why) {
    struct rest_call *call = context;
    struct rest *rest = call->rest;
    struct error err = {0};
    call->request = NULL;
    if (st == ST_OK)
        st = rest_status(response->status, response->body, &err);
    else
        err = *why;
    outage(rest, st == ST_RETRY && (!response || response->status != 500), &err);
    if (st == ST_RETRY && now_ms(rest) < call->until_ms)
        call_rest(call);
    else
        call_answer(call, st, response ? response->body : STR(""), &err);
    send_ready(rest);
}

/* The URL is the operator's own. */
static bool may_connect(void *context, const uint8_t *address, size_t len) {
    UNUSED(context);
    UNUSED(address);
    UNUSED(len);
    return true;
}

static void call_send(struct rest_call *call) {
    static const struct client_header headers[] = {
        {STR_LIT("Content-Type"), STR_LIT("application/json")},
        {STR_LIT("Accept"), STR_LIT("*/*")}};
    struct client_request request = {
        .method = str_c(call->method),
        .url = str_n(call->url, call->url_len),
        .headers = headers,
        .header_count = COUNT_OF(headers),
        .body = call->body ? str_n(call->body, call->body_len) : STR_NONE,
        .may_connect = may_connect,
        .bytes_max = REST_BYTES_MAX,
        .timeout_ms = call->timeout_ms,
        .connect_timeout_ms = call->timeout_ms,
    };
    struct error err = {0};
    status st = client_start(call->rest->client, &request, on_response, call, &call->request, &err);
    call->broken = st == ST_INVALID;
    if (st == ST_OK)
        move(call, CALL_ACTIVE);
    else
        call_rest(call); /* busy, or no memory: it passes. Or its answer comes from the timer */
}

static void send_ready(struct rest *rest) {
    struct rest_call *call;
    struct rest_call *next;
    for (call = TAILQ_FIRST(&rest->ready); call && !rest->closing; call = next) {
        next = TAILQ_NEXT(call, link);
        if (call->hurry || rest->active_count < REST_ACTIVE_MAX) call_send(call);
    }
}

/* Answers may cancel other calls: the list is read anew each time. */
static void answer_broken(struct rest *rest) {
    struct rest_call *call;
    do {
        for (call = TAILQ_FIRST(&rest->ready); call; call = TAILQ_NEXT(call, link)) {
            if (call->broken) break;
        }
        struct error err;
        (void)error_at(&err, REASON_CONDUCTOR_REFUSED, "conductor",
                       "the request could not be made");
        if (call) call_answer(call, ST_INVALID, STR(""), &err);
    } while (call);
}

static void on_timer(uv_timer_t *timer) {
    struct rest *rest = timer->data;
    struct rest_call *call;
    struct rest_call *next;
    for (call = TAILQ_FIRST(&rest->resting); call; call = next) {
        next = TAILQ_NEXT(call, link);
        if (call->next_ms <= now_ms(rest)) move(call, CALL_READY);
    }
    answer_broken(rest);
    timer_set(rest);
    send_ready(rest);
}

/* ---- the port ---- */

static char *copy(const char *first, str second, size_t *len) {
    size_t room = strlen(first) + second.len + 1; /* for the NUL of base */
    char *text = mem_alloc(room);
    if (!text) return NULL;
    struct buf b;
    buf_init_fixed(&b, text, room);
    buf_put_c(&b, first);
    buf_put(&b, second);
    *len = b.len;
    return text;
}

struct rest_call *rest_start(struct rest *rest, const struct rest_request *request, rest_done done,
                             void *context) {
    ASSERT(!rest->closing);
    struct rest_call *call = mem_alloc(sizeof *call);
    if (!call) return NULL;
    *call = (struct rest_call){.rest = rest,
                               .method = request->method,
                               .timeout_ms =
                                   request->timeout_ms > 0 ? request->timeout_ms : REST_TIMEOUT_MS,
                               .until_ms = now_ms(rest) + request->patience_ms,
                               .delay_ms = REST_DELAY_MS,
                               .hurry = request->hurry,
                               .done = done,
                               .context = context};
    call->url = copy(rest->base, request->path, &call->url_len);
    if (request->body.ptr) call->body = copy("", request->body, &call->body_len);
    if (!call->url || (request->body.ptr && !call->body)) {
        mem_free(call->url);
        mem_free(call->body);
        mem_free(call);
        return NULL;
    }
    TAILQ_INSERT_TAIL(&rest->ready, call, link);
    rest->pending++;
    send_ready(rest);
    return call;
}

void rest_cancel(struct rest_call *call) {
    struct rest *rest = call->rest;
    if (call->request) client_cancel(call->request);
    call_free(call);
    timer_set(rest);
}

size_t rest_pending(const struct rest *rest) { return rest->pending; }

void rest_hasten(struct rest *rest) {
    struct rest_call *call;
    struct call_list *lists[] = {&rest->ready, &rest->active, &rest->resting};
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        for (call = TAILQ_FIRST(lists[i]); call; call = TAILQ_NEXT(call, link))
            call->until_ms = call->next_ms = 0;
    }
    timer_set(rest);
}

/* "http://host:8080/", "http://host:8080/api" -> "http://host:8080/api" */
static status base_make(struct rest *rest, str url, struct error *err) {
    struct arena arena;
    arena_init(&arena, FIRST_CHUNK, (size_t)1024 * 1024);
    struct url parts;
    struct error why;
    status st = url_parse(url, &arena, &parts, &why);
    bool fine = st == ST_OK && !parts.has_user &&
                (str_eq(parts.scheme, STR("http")) || str_eq(parts.scheme, STR("https"))) &&
                !str_has(url, '?');
    arena_release(&arena);
    if (!fine)
        return error_at(err, REASON_CONDUCTOR_URL_INVALID, "conductor",
                        "expected the URL of a Conductor server, like http://host:8080: %s",
                        st == ST_OK ? "it has a part that is not expected" : why.msg);
    while (str_ends(url, STR("/")))
        url.len--;
    if (str_ends(url, STR("/api"))) url.len -= 4;
    size_t len;
    struct buf b;
    buf_init(&b, url.len + 8);
    buf_put(&b, url);
    buf_put_c(&b, "/api");
    rest->base = b.full ? NULL : copy("", buf_str(&b), &len);
    buf_release(&b);
    return rest->base ? ST_OK : error_set(err, ST_RETRY, "out of memory");
}

status rest_open(uv_loop_t *loop, str url, struct rest **out, struct error *err) {
    struct rest *rest = mem_alloc(sizeof *rest);
    if (!rest) return error_set(err, ST_RETRY, "out of memory");
    rest->loop = loop;
    TAILQ_INIT(&rest->ready);
    TAILQ_INIT(&rest->active);
    TAILQ_INIT(&rest->resting);
    status st = base_make(rest, url, err);
    if (st == ST_OK) st = client_open(loop, &rest->client, err);
    if (st != ST_OK) {
        mem_free(rest->base);
        mem_free(rest);
        return st;
    }
    (void)uv_timer_init(loop, &rest->timer);
    rest->timer.data = rest;
    *out = rest;
    return ST_OK;
}

static void on_closed(uv_handle_t *handle) {
    struct rest *rest = handle->data;
    mem_free(rest->base);
    mem_free(rest);
}

void rest_close(struct rest *rest) {
    if (!rest) return;
    rest->closing = true;
    struct call_list *lists[] = {&rest->ready, &rest->active, &rest->resting};
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        struct rest_call *call;
        while ((call = TAILQ_FIRST(lists[i])) != NULL)
            rest_cancel(call);
    }
    client_close(rest->client);
    uv_close((uv_handle_t *)&rest->timer, on_closed);
}
