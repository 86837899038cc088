/* outbox/deliver.c: the life of a delivery.
 *
 * A parcel is begun by the driver of its type and ended by it, at once or when a server has
 * answered. Then it waits among the ended ones for a timer of no length: so no answer is given
 * inside a call of the caller's, nor inside one of the clients', and `done` may do what it likes.
 */
#include "outbox/deliver.h"

#include <stdarg.h>

#include "base/limits.h"
#include "base/text.h"
#include "outbox/impl.h"

enum { MESSAGE_ROOM = 2 * DELIVERY_MESSAGE_MAX };
/* A payload of EVENT_BYTES_MAX as values, the mail made of it, some secrets, an answer. */
#define PARCEL_ARENA_MAX ((size_t)16 * 1024 * 1024)

static const struct {
    str name;
    void (*begin)(struct parcel *p);
} drivers[] = {
    {STR_LIT("WEBHOOK_CALL"), webhook_begin},
    {STR_LIT("API_CALL"), api_begin},
    {STR_LIT("SEND_EMAIL"), email_begin},
    {STR_LIT("SOR_UPDATE"), sor_begin},
};

/* ---- answers ---- */

static void parcel_unlink(struct parcel *p) {
    if (p->prev)
        p->prev->next = p->next;
    else
        p->deliverer->under_way = p->next;
    if (p->next) p->next->prev = p->prev;
}

static void parcel_free(struct parcel *p) {
    buf_release(&p->result);
    buf_release(&p->message);
    arena_release(&p->arena);
    mem_free(p);
}

/* Of a failure before anything could be sent. */
static enum reason failed_code(str type) {
    return str_eq(type, STR("SEND_EMAIL")) ? REASON_SMTP_FAILED : REASON_HTTP_FAILED;
}

/* Answers the oldest of the ended ones. false: there is none. */
static bool answer_one(struct deliverer *d) {
    struct delivery *starved = d->starved;
    if (starved) {
        d->starved = starved->under_way;
        starved->under_way = NULL;
        starved->done(starved, false, STR_NONE, failed_code(starved->type), STR("out of memory"));
        return true;
    }
    struct parcel *p = d->ended;
    if (!p) return false;
    d->ended = p->next;
    if (!d->ended) d->ended_tail = &d->ended;
    p->delivery->under_way = NULL;
    p->delivery->done(p->delivery, p->ok, p->ok ? buf_str(&p->result) : STR_NONE, p->code,
                      p->ok                ? STR_NONE
                      : p->message.len > 0 ? buf_str(&p->message)
                                           : STR(""));
    parcel_free(p);
    return true;
}

static void on_timer(uv_timer_t *timer) {
    struct deliverer *d = timer->data;
    while (!d->closing && answer_one(d)) {
    }
}

static void answer_soon(struct deliverer *d) {
    if (!d->closing) (void)uv_timer_start(&d->timer, on_timer, 0, 0);
}

static void parcel_end(struct parcel *p) {
    struct deliverer *d = p->deliverer;
    ASSERT(!p->ended);
    p->ended = true;
    parcel_unlink(p);
    p->next = NULL;
    p->prev = NULL;
    *d->ended_tail = p;
    d->ended_tail = &p->next;
    answer_soon(d);
}

void parcel_done(struct parcel *p) {
    p->ok = true;
    parcel_end(p);
}

bool parcel_put_masked(struct parcel *p, str text, bool cut, struct buf *out) {
    struct arena_mark mark = arena_mark(&p->arena);
    struct mask_stream stream;
    bool ok = mask_stream_init(&stream, &p->mask);
    if (ok) {
        mask_feed(&stream, text, out);
        if (cut && stream.held_len >= MASK_BYTES_MIN)
            buf_put_c(out, "***");
        else
            mask_end(&stream, out);
    }
    arena_rewind(&p->arena, mark);
    return ok;
}

bool parcel_fail(struct parcel *p, enum reason code, const char *fmt, ...) {
    char room[MESSAGE_ROOM];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(room, sizeof room, fmt, args);
    va_end(args);
    buf_init(&p->message, MESSAGE_ROOM + 3);
    if (!parcel_put_masked(p, str_c(room), true, &p->message)) buf_clear(&p->message);
    for (size_t bad; !str_utf8(buf_str(&p->message), &bad);)
        p->message.ptr[bad] = '?';
    if (p->message.len > DELIVERY_MESSAGE_MAX)
        p->message.len = text_uncut(str_n(p->message.ptr, DELIVERY_MESSAGE_MAX), false, true).len;
    p->code = code;
    parcel_end(p);
    return false;
}

bool parcel_no_memory(struct parcel *p) {
    return parcel_fail(p, failed_code(p->delivery->type), "out of memory");
}

/* ---- what drivers need ---- */

static bool has_control(str text) {
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.ptr[i];
        if (c < ' ' || c == 0x7f) return true;
    }
    return false;
}

bool parcel_secret(struct parcel *p, str name, str *out) {
    const struct deliverer_options *o = &p->deliverer->options;
    struct error err = {0};
    if (!o->secret)
        return parcel_fail(p, REASON_SECRET_NOT_FOUND, "secret \"%.*s\": no secrets are configured",
                           STR_ARG(name));
    status st =
        o->secret(o->secret_context, p->delivery->environment_id, name, &p->arena, out, &err);
    if (st != ST_OK)
        return parcel_fail(p, err.reason ? err.reason : REASON_SECRET_NOT_FOUND, "%s", err.msg);
    /* Servers that say again what they were sent may leave out the word before a token. */
    str scheme = STR_NONE;
    str token = STR_NONE;
    bool two = str_split(*out, ' ', &scheme, &token) && !str_has(token, ' ');
    if (!mask_add(&p->mask, *out) || (two && !mask_add(&p->mask, token)))
        return parcel_no_memory(p);
    if (has_control(*out))
        return parcel_fail(p, REASON_SECRET_INVALID,
                           "secret \"%.*s\" has a control character in it", STR_ARG(name));
    return true;
}

bool parcel_members(struct parcel *p, const char *const *names) {
    size_t i;
    size_t n;
    yyjson_val *key;
    yyjson_val *val;
    yyjson_obj_foreach(p->payload, i, n, key, val) {
        bool known = false;
        for (size_t k = 0; names[k] && !known; k++)
            known = yyjson_equals_str(key, names[k]);
        if (!known)
            return parcel_fail(p, REASON_PAYLOAD_INVALID, "payload: there is no member \"%.200s\"",
                               yyjson_get_str(key));
    }
    str own;
    return parcel_text(p, "idempotency_key", false, &own);
}

bool parcel_text(struct parcel *p, const char *name, bool required, str *out) {
    yyjson_val *val = json_member(p->payload, name);
    *out = STR_NONE;
    if (!val && !required) return true;
    if (!val) return parcel_fail(p, REASON_PAYLOAD_INVALID, "payload: \"%s\" is missing", name);
    if (json_str(val, out)) return true;
    return parcel_fail(p, REASON_PAYLOAD_INVALID, "payload: \"%s\" is not a string", name);
}

/* ---- a delivery ---- */

static void begin(struct parcel *p) {
    const struct delivery *delivery = p->delivery;
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    struct error err = {0};
    size_t i = 0;
    while (i < COUNT_OF(drivers) && !str_eq(drivers[i].name, delivery->type))
        i++;
    if (p->deliverer->closing) {
        (void)parcel_fail(p, REASON_CANCELLED, "nothing is delivered any more");
    } else if (delivery->key.len == 0) {
        (void)parcel_fail(p, REASON_KEY_MISSING, "without an idempotency key nothing is called");
    } else if (i == COUNT_OF(drivers)) {
        (void)parcel_fail(p, REASON_EFFECT_TYPE_UNKNOWN, "there is no integration \"%.*s\"",
                          (int)(delivery->type.len < 100 ? delivery->type.len : 100),
                          delivery->type.ptr);
    } else if (json_parse(delivery->spec, limits, &p->arena, &p->payload, &err) != ST_OK) {
        (void)parcel_fail(p, REASON_PAYLOAD_INVALID, "payload: %s", err.msg);
    } else if (!yyjson_is_obj(p->payload)) {
        (void)parcel_fail(p, REASON_PAYLOAD_INVALID, "payload: expected an object");
    } else {
        drivers[i].begin(p);
    }
}

void delivery_start(struct deliverer *d, struct delivery *delivery) {
    struct parcel *p = mem_alloc(sizeof *p);
    delivery->under_way = p;
    if (!p) {
        delivery->under_way = d->starved;
        d->starved = delivery;
        answer_soon(d);
        return;
    }
    p->deliverer = d;
    p->delivery = delivery;
    arena_init(&p->arena, 4096, PARCEL_ARENA_MAX);
    mask_init(&p->mask, &p->arena);
    p->next = d->under_way;
    if (p->next) p->next->prev = p;
    d->under_way = p;
    begin(p);
}

/* ---- the deliverer ---- */

static status check_smtp(str url, struct error *err) {
    bool smtp = str_starts(url, STR("smtp://"));
    bool ok = smtp || str_starts(url, STR("smtps://"));
    for (size_t i = 0; i < url.len; i++)
        ok = ok && url.ptr[i] > ' ' && url.ptr[i] <= '~';
    if (ok && url.len <= MAIL_URL_MAX && !str_has(url, '@') && !str_has(url, '?')) return ST_OK;
    return error_at(err, REASON_SMTP_URL_INVALID, "",
                    "mail server: expected smtp://host:port or smtps://host:port");
}

/* The operator's own: the host that it names may be a private one, and no other is connected to. */
static status sor_open(struct deliverer *d, struct error *err) {
    struct url url;
    status st = url_parse(d->options.sor_url, &d->arena, &url, err);
    if (st != ST_OK) return error_wrap(err, "system of record");
    d->sor_rule = (struct guard_rule){.scheme = url.scheme, .host = url.host, .port = url.port};
    d->sor_guard = (struct guard){.rules = &d->sor_rule, .rule_count = 1, .allow_private = true};
    st = guard_url(&d->sor_guard, d->options.sor_url, &d->arena, &url, err);
    bool web = str_eq(url.scheme, STR("http")) || str_eq(url.scheme, STR("https"));
    if (st == ST_OK && !web)
        st = error_at(err, REASON_URL_NOT_ALLOWED, "", "expected an http or https URL");
    return st == ST_OK ? ST_OK : error_wrap(err, "system of record");
}

static bool options_copy(struct deliverer *d, const struct deliverer_options *from) {
    struct deliverer_options *o = &d->options;
    *o = *from;
    str *texts[] = {&o->smtp_url, &o->smtp_from,      &o->smtp_user, &o->smtp_password_secret,
                    &o->sor_url,  &o->webhook_secret, &o->ca_file};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        if (texts[i]->ptr && !arena_try_str(&d->arena, *texts[i], texts[i])) return false;
    }
    if (o->timeout_ms <= 0) o->timeout_ms = DELIVERY_TIMEOUT_MS;
    return true;
}

static void on_closed(uv_handle_t *handle) {
    struct deliverer *d = handle->data;
    arena_release(&d->arena);
    mem_free(d->sent.hashes);
    mem_free(d);
}

status deliverer_open(uv_loop_t *loop, const struct deliverer_options *options,
                      struct deliverer **out, struct error *err) {
    struct deliverer *d = mem_alloc(sizeof *d);
    if (!d) return error_set(err, ST_RETRY, "integrations: out of memory");
    d->loop = loop;
    d->ended_tail = &d->ended;
    arena_init(&d->arena, 1024, (size_t)1024 * 1024);
    status st = ST_OK;
    if (!options_copy(d, options)) st = error_set(err, ST_RETRY, "integrations: out of memory");
    if (st == ST_OK && d->options.smtp_url.ptr) st = check_smtp(d->options.smtp_url, err);
    if (st == ST_OK && d->options.sor_url.ptr) st = sor_open(d, err);
    if (st != ST_OK) {
        arena_release(&d->arena);
        mem_free(d);
        return st;
    }
    (void)uv_timer_init(loop, &d->timer); /* cannot fail */
    d->timer.data = d;
    *out = d;
    return ST_OK;
}

void deliverer_close(struct deliverer *d) {
    if (!d || d->closing) return;
    d->closing = true;
    do {
        while (d->under_way) {
            struct parcel *p = d->under_way;
            if (p->http) client_cancel(p->http);
            if (p->mail) mailer_cancel(p->mail);
            p->http = NULL;
            p->mail = NULL;
            (void)parcel_fail(p, REASON_CANCELLED, "ended while it was under way");
        }
    } while (answer_one(d));
    client_close(d->client);
    mailer_close(d->mailer);
    uv_close((uv_handle_t *)&d->timer, on_closed);
}
