/* server/outbox_env.c: the variables of the outbox become options. */
#include "server/outbox_env.h"

#include <stdlib.h>

enum { RETRY_TYPES_MAX = 64, TIMEOUT_MS_MAX = 600 * 1000, BATCHES_MAX = 64 };

static str variable(const char *name, struct arena *arena) {
    const char *value = getenv(name);
    return value && value[0] ? arena_str(arena, str_c(value)) : STR_NONE;
}

static status bad(const char *name, const char *expected, str found, struct error *err) {
    return error_at(err, REASON_USAGE, "", "%s must be %s, found \"%.*s\"", name, expected,
                    STR_ARG(found));
}

static status number(const char *name, int64_t max, struct arena *arena, int64_t *out,
                     struct error *err) {
    str text = variable(name, arena);
    if (!text.ptr || (str_to_int(text, out) && *out > 0 && *out <= max)) return ST_OK;
    return error_at(err, REASON_USAGE, "", "%s must be a number from 1 to %lld, found \"%.*s\"",
                    name, (long long)max, STR_ARG(text));
}

status effect_retries_parse(str text, struct arena *arena, struct effect_retry **out,
                            struct error *err) {
    static const char form[] = "TYPE=RETRIESxDELAY,... such as API_CALL=5x1000";
    struct effect_retry *list = ARENA_ARRAY(arena, struct effect_retry, RETRY_TYPES_MAX + 1);
    size_t count = 0;
    str rest = text;
    for (bool more = rest.len > 0; more; count++) {
        str one = STR_NONE;
        str numbers = STR_NONE;
        str left = STR_NONE;
        more = str_split(rest, ',', &one, &left);
        rest = left;
        if (count == RETRY_TYPES_MAX) return bad("CAIRN_EFFECT_RETRIES", form, text, err);
        struct effect_retry *r = &list[count];
        bool ok = str_split(one, '=', &r->type, &numbers) && r->type.len > 0 &&
                  str_take_int(&numbers, &r->max_retries) && str_starts(numbers, STR("x"));
        if (ok) numbers = str_from(numbers, 1);
        ok = ok && str_to_int(numbers, &r->base_ms) && r->max_retries >= 0 &&
             r->max_retries <= EFFECT_RETRIES_MAX && r->base_ms >= 0 &&
             r->base_ms <= EFFECT_DELAY_MAX_MS;
        if (!ok) return bad("CAIRN_EFFECT_RETRIES", form, text, err);
    }
    list[count].type = STR_NONE;
    *out = list;
    return ST_OK;
}

status effect_retries_env(struct arena *arena, const struct effect_retry **out, struct error *err) {
    str list = variable("CAIRN_EFFECT_RETRIES", arena);
    struct effect_retry *own = NULL;
    status st = list.ptr ? effect_retries_parse(list, arena, &own, err) : ST_OK;
    if (st == ST_OK) *out = own;
    return st;
}

/* Such a URL often is a secret itself, or has a password in it: it is not shown. */
static status bad_urls(const char *expected, struct error *err) {
    return error_at(err, REASON_USAGE, "", "CAIRN_ALERT_URLS must be %s", expected);
}

/* URLs, separated by blanks. Where they may lead is checked when they are called, as for any
 * effect. */
status alert_urls_env(struct arena *arena, const struct outbox_sinks **out, struct error *err) {
    str text = variable("CAIRN_ALERT_URLS", arena);
    struct outbox_sinks *sinks = ARENA_NEW(arena, struct outbox_sinks);
    *out = NULL;
    for (str rest = str_trim(text), left = STR_NONE; rest.len > 0; rest = str_trim(left)) {
        struct url url;
        str one = STR_NONE;
        left = STR_NONE;
        (void)str_split(rest, ' ', &one, &left);
        if (sinks->count == OUTBOX_SINKS_MAX) return bad_urls("at most 8 URLs", err);
        status st = url_parse(one, arena, &url, err);
        if (st != ST_OK || url.has_user ||
            (!str_eq(url.scheme, STR("https")) && !str_eq(url.scheme, STR("http"))))
            return bad_urls("http or https URLs without a user, separated by blanks", err);
        sinks->urls[sinks->count++] = one;
        *out = sinks;
    }
    return ST_OK;
}

status outbox_env(struct host_options *options, struct arena *arena, struct error *err) {
    struct deliverer_options *d = &options->deliver;
    int64_t batches = 0;
    str plain = variable("CAIRN_SMTP_PLAIN", arena);
    d->smtp_url = variable("CAIRN_SMTP_URL", arena);
    d->smtp_from = variable("CAIRN_SMTP_FROM", arena);
    d->smtp_user = variable("CAIRN_SMTP_USER", arena);
    d->smtp_password_secret = variable("CAIRN_SMTP_PASSWORD_SECRET", arena);
    d->sor_url = variable("CAIRN_SOR_URL", arena);
    d->webhook_secret = variable("CAIRN_WEBHOOK_SECRET", arena);
    if (plain.ptr && !str_eq(plain, STR("1")) && !str_eq(plain, STR("0")))
        return bad("CAIRN_SMTP_PLAIN", "1 or 0", plain, err);
    d->smtp_plain = str_eq(plain, STR("1"));
    status st = number("CAIRN_EFFECT_TIMEOUT", TIMEOUT_MS_MAX, arena, &d->timeout_ms, err);
    if (st == ST_OK) st = number("CAIRN_EFFECT_BATCHES", BATCHES_MAX, arena, &batches, err);
    if (st == ST_OK) st = alert_urls_env(arena, &options->effect_alerts, err);
    if (st == ST_OK) st = effect_retries_env(arena, &options->effect_retries, err);
    options->effect_batches = (int)batches;
    return st;
}
