/* api/auth.c: the door. Reads the Authorization header, asks the keys or checks the token, and says
 * no in one voice: why a key is refused stands in the log only. */
#include "api/auth.h"

#include <assert.h>
#include <openssl/crypto.h>
#include <strings.h>

#include "api/auth_impl.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/uuid.h"

static_assert(PRINCIPAL_NAME_MAX >= 4 + KEY_ID_LEN, "key:ID fits");

bool principal_sees(const struct principal *p, str tenant_id) {
    str own = str_c(p->tenant);
    return str_eq(own, STR("*")) || str_eq(own, tenant_id);
}

bool principal_may(const struct principal *p, unsigned roles) {
    unsigned has = p->roles & ROLE_ALL;
    if (has & ROLE_ADMIN) has = ROLE_ALL;
    if (has & ROLE_OPERATOR) has |= ROLE_VIEWER;
    return (has & roles) != 0;
}

/* ---- answers ---- */

static void limited(struct auth_check *check, int64_t wait_s) {
    check->retry_after_s = wait_s;
    check->code = error_at(&check->err, REASON_RATE_LIMITED, "",
                           "too many failed attempts from this address: try again in %lld s",
                           (long long)wait_s);
    metric_add(check->auth->m_limited, 1);
}

/* check->err is filled. `why` is for the log: never a secret, never what was sent. */
static void refused(struct auth_check *check, const char *why) {
    struct auth *auth = check->auth;
    str remote = str_c(check->remote);
    int64_t wait_s = failures_wait_s(&auth->failures, remote, check->now_us);
    if (wait_s > 0) {
        limited(check, wait_s);
        return;
    }
    check->code = ST_INVALID;
    metric_add(auth->m_refused, 1);
    str key_id = check->key_id[0] ? str_n(check->key_id, KEY_ID_LEN) : STR("");
    LOG(LOG_INFO, "authentication failed", LOG_S("remote", remote), LOG_S("key", key_id),
        LOG_S("code", str_c(reason_name(check->err.reason))), LOG_S("why", str_c(why)));
    /* A token that was good until now is no guess. */
    bool guess = check->err.reason != REASON_JWT_EXPIRED;
    if (guess && failures_add(&auth->failures, remote, check->now_us))
        LOG(LOG_WARN, "too many failed attempts: the address is over its limit",
            LOG_S("remote", remote));
}

bool auth_may_try(struct auth_check *check) {
    if (failures_may_try(&check->auth->failures, str_c(check->remote), check->now_us)) return true;
    limited(check, 1); /* it may be good: then the next second may have room for it */
    return false;
}

static void refuse(struct auth_check *check, const char *message, const char *why) {
    (void)error_at(&check->err, REASON_UNAUTHENTICATED, "", "%s", message);
    refused(check, why);
}

static void accepted(struct auth_check *check) {
    check->code = ST_OK;
    metric_add(check->auth->m_ok, 1);
}

void auth_fail(struct auth_check *check, status code, const struct error *err) {
    ASSERT(code != ST_OK);
    check->err = *err;
    /* Whatever went wrong is ours: the caller may come again. */
    check->code = check->err.code = code == ST_LIMIT ? ST_LIMIT : ST_RETRY;
    check->retry_after_s = 1;
    metric_add(check->auth->m_failed, 1);
    if (code == ST_LIMIT || code == ST_RETRY) return;
    LOG(LOG_ERROR, "could not check an API key", LOG_S("error", str_c(err->msg)));
    (void)error_set(&check->err, ST_RETRY, "the API key cannot be checked at the moment");
}

/* ---- API keys ---- */

/* Compares whether there is such a key or not, so that both take the same time. */
static const char *key_fault(const struct auth_check *check, const struct key_entry *e) {
    bool same = CRYPTO_memcmp(check->hash, e->hash, SHA256_LEN) == 0;
    if (!e->found) return "there is no such key";
    if (!same) return "the secret is wrong";
    if (e->revoked_us != 0) return "the key is revoked";
    if (e->expires_us != 0 && check->now_us >= e->expires_us) return "the key has expired";
    return NULL;
}

void auth_judge(struct auth_check *check, struct key_entry *e) {
    const char *fault = key_fault(check, e);
    if (fault) {
        refuse(check, "the API key is not valid", fault);
        return;
    }
    struct principal *p = &check->principal;
    *p = (struct principal){
        .roles = e->roles & ROLE_ALL, .expires_us = e->expires_us, .key_version = e->version};
    snprintf(p->name, sizeof(p->name), "key:%.*s", KEY_ID_LEN, e->key_id);
    snprintf(p->tenant, sizeof(p->tenant), "%s", e->tenant);
    keys_used(check->auth, e, check->now_us);
    accepted(check);
}

static bool is_key_id(str text) {
    for (size_t i = 0; i < text.len; i++) {
        char c = text.ptr[i];
        if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9')) return false;
    }
    return text.len == KEY_ID_LEN;
}

static bool is_secret(str text) {
    for (size_t i = 0; i < text.len; i++) {
        char c = text.ptr[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && c != '-' && c != '_') return false;
    }
    return text.len == KEY_SECRET_LEN;
}

/* cairn_ID_SECRET; the secret's alphabet has '_' too, so the places are fixed. */
static bool take_key(struct auth_check *check, str text) {
    static const size_t prefix = 6;
    if (text.len != KEY_TEXT_LEN || !str_starts(text, STR("cairn_"))) return false;
    str id = str_n(text.ptr + prefix, KEY_ID_LEN);
    str secret = str_from(text, prefix + KEY_ID_LEN + 1);
    if (text.ptr[prefix + KEY_ID_LEN] != '_' || !is_key_id(id) || !is_secret(secret)) return false;
    memcpy(check->key_id, id.ptr, KEY_ID_LEN);
    sha256_of(secret, check->hash);
    return true;
}

void auth_key_make(char key_id[KEY_ID_LEN], uint8_t hash[SHA256_LEN], char text[KEY_TEXT_LEN + 1]) {
    static const char id_alphabet[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    enum { LETTERS = sizeof(id_alphabet) - 1, EVEN = 256 / LETTERS * LETTERS };
    for (size_t i = 0; i < KEY_ID_LEN;) {
        uint8_t byte;
        random_bytes(&byte, 1);
        if (byte < EVEN) key_id[i++] = id_alphabet[byte % LETTERS]; /* each equally likely */
    }
    uint8_t bytes[KEY_SECRET_LEN];
    char secret[KEY_SECRET_LEN];
    random_bytes(bytes, sizeof(bytes));
    for (size_t i = 0; i < KEY_SECRET_LEN; i++)
        secret[i] = alphabet[bytes[i] & 63];
    sha256_of(str_n(secret, sizeof(secret)), hash);
    snprintf(text, KEY_TEXT_LEN + 1, "cairn_%.*s_%.*s", KEY_ID_LEN, key_id, KEY_SECRET_LEN, secret);
    OPENSSL_cleanse(bytes, sizeof(bytes));
    OPENSSL_cleanse(secret, sizeof(secret));
}

/* ---- tokens ---- */

/* A subject that is too long is cut, and told from others that begin alike by its hash: receipts
 * and limits go by the name. */
static void name_subject(struct principal *p, str subject) {
    enum { ROOM = PRINCIPAL_NAME_MAX - 4, HASH = 8 };
    if (subject.len <= ROOM) {
        snprintf(p->name, sizeof(p->name), "jwt:%.*s", STR_ARG(subject));
        return;
    }
    uint8_t hash[SHA256_LEN];
    char hex[2 * HASH];
    size_t keep = ROOM - 1 - sizeof(hex);
    sha256_of(subject, hash);
    hex_encode(hash, HASH, hex);
    (void)str_utf8(str_n(subject.ptr, keep), &keep); /* not through a character */
    snprintf(p->name, sizeof(p->name), "jwt:%.*s~%.*s", (int)keep, subject.ptr, 2 * HASH, hex);
}

static void check_token(struct auth_check *check, str text) {
    struct auth *auth = check->auth;
    struct jwt_claims claims = {0};
    ASSERT(check->arena != NULL);
    if (!auth->options.jwks) {
        refuse(check, "tokens are not accepted here, only API keys", "tokens are not set up");
        return;
    }
    uint8_t hash[SHA256_LEN];
    sha256_of(text, hash);
    uint8_t *seen = auth->tokens_seen[(hash[0] << 8 | hash[1]) % TOKENS_SEEN];
    /* One that was good is checked again, but takes no try. */
    if (memcmp(seen, hash, SHA256_LEN) != 0 && !auth_may_try(check)) return;
    struct arena_mark mark = arena_mark(check->arena);
    status st = jwt_verify(auth->options.jwks, &auth->options.policy, text, check->now_us,
                           check->arena, &claims, &check->err);
    if (st == ST_OK) {
        struct principal *p = &check->principal;
        *p = (struct principal){.expires_us = claims.expires_us, .key_version = claims.key_mark};
        name_subject(p, claims.subject);
        snprintf(p->tenant, sizeof(p->tenant), "%.*s", STR_ARG(claims.tenant));
        for (size_t i = 0; i < claims.role_count; i++) /* one that we do not know grants nothing */
            p->roles |= role_of(claims.roles[i]);
        memcpy(seen, hash, SHA256_LEN);
        accepted(check);
    } else if (st == ST_INVALID) {
        refused(check, check->err.msg);
    } else {
        struct error err = check->err;
        auth_fail(check, st, &err);
    }
    arena_rewind(check->arena, mark);
}

/* ---- the header ---- */

/* "Bearer TOKEN": one token, of the characters that RFC 6750 gives it. */
static bool take_bearer(str header, str *token) {
    static const char scheme[] = "Bearer ";
    size_t len = sizeof(scheme) - 1;
    if (header.len <= len || strncasecmp(header.ptr, scheme, len) != 0) return false;
    *token = str_from(header, len);
    while (token->len > 0 && token->ptr[0] == ' ')
        *token = str_from(*token, 1);
    for (size_t i = 0; i < token->len; i++) {
        char c = token->ptr[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!plain && (c == '\0' || !strchr("-._~+/=", c))) return false;
    }
    return token->len > 0;
}

static bool check_header(struct auth_check *check, str header) {
    str text;
    if (!take_bearer(header, &text)) {
        refuse(check, "the Authorization header must be Bearer and one API key or token",
               "the Authorization header is malformed");
        return true;
    }
    if (take_key(check, text)) return keys_check(check);
    if (str_has(text, '.'))
        check_token(check, text);
    else
        refuse(check, "the API key is not valid", "it is neither a key nor a token");
    return true;
}

static void accept_anybody(struct auth_check *check) {
    check->principal = (struct principal){.name = "anonymous", .tenant = "*", .roles = ROLE_ALL};
    accepted(check);
}

bool auth_check(struct auth *auth, struct auth_check *check, str authorization, str remote,
                int64_t now_us) {
    ASSERT(check->done != NULL);
    ASSERT(!auth->closing);
    check->auth = auth;
    check->now_us = now_us;
    check->retry_after_s = 0;
    check->err = (struct error){0};
    memset(check->key_id, 0, sizeof(check->key_id));
    snprintf(check->remote, sizeof(check->remote), "%.*s", STR_ARG(remote));
    if (auth->options.open) {
        accept_anybody(check);
        return true;
    }
    if (authorization.ptr) return check_header(check, authorization);
    /* Who brings nothing guesses nothing: it is not counted. */
    metric_add(auth->m_refused, 1);
    check->code = error_at(&check->err, REASON_UNAUTHENTICATED, "",
                           "this needs an Authorization header: Bearer and an API key or a token");
    return true;
}

/* ---- opening and closing ---- */

static void register_metrics(struct auth *auth, struct metrics *m) {
    static const char name[] = "cairn_auth_checks_total";
    static const char help[] = "Callers checked, by what came of it.";
    if (!m) return;
    auth->m_ok = metrics_counter(m, name, help, "result=\"accepted\"");
    auth->m_refused = metrics_counter(m, name, help, "result=\"refused\"");
    auth->m_limited = metrics_counter(m, name, help, "result=\"limited\"");
    auth->m_failed = metrics_counter(m, name, help, "result=\"failed\"");
    auth->m_lookups = metrics_counter(m, "cairn_auth_lookups_total",
                                      "API keys looked up in the ledger, not in the cache.", "");
}

status auth_open(const struct auth_options *options, struct auth **out, struct error *err) {
    ASSERT(options->loop != NULL);
    ASSERT(options->open || options->readers != NULL);
    struct auth *auth = mem_alloc(sizeof(*auth));
    if (!auth) {
        jwks_close(options->jwks);
        return error_set(err, ST_RETRY, "authentication: out of memory");
    }
    auth->options = *options;
    map_init(&auth->keys);
    random_bytes(&auth->failures.seed, sizeof(auth->failures.seed));
    register_metrics(auth, options->metrics);
    uv_timer_init(options->loop, &auth->timer);
    uv_unref((uv_handle_t *)&auth->timer);
    *out = auth;
    return ST_OK;
}

void auth_set_jwks(struct auth *auth, struct jwks *jwks) {
    jwks_close(auth->options.jwks);
    auth->options.jwks = jwks;
}

bool auth_signs(const struct auth *auth, int64_t mark) {
    return auth->options.jwks && jwks_has(auth->options.jwks, mark);
}

void auth_end(struct auth *auth) {
    if (!auth->timer_closed || auth->lookups > 0 || auth->batches > 0) return;
    keys_release(auth);
    jwks_close(auth->options.jwks);
    mem_free(auth);
}

static void on_closed(uv_handle_t *handle) {
    struct auth *auth = (struct auth *)(void *)handle;
    auth->timer_closed = true;
    auth_end(auth);
}

void auth_close(struct auth *auth) {
    if (!auth) return;
    ASSERT(!auth->closing);
    auth->closing = true;
    auth->options.bridge = NULL;
    uv_close((uv_handle_t *)&auth->timer, on_closed);
}
