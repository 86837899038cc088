#include "core/plan_ref.h"

#include "base/json.h"
#include "base/json_out.h"
#include "base/limits.h"
#include "base/time.h"
#include "core/plan.h"

enum { REF_DEPTH_MAX = 2, SHOWN_BYTES_MAX = 64 };

/* ---- reading ---- */

enum field { F_URI, F_SHA256, F_SCHEMA, F_PLAN_ID, F_PLAN_VERSION, F_SIZE, F_EXPIRES, F_COUNT };
static const struct {
    str name;
    const char *where;
    bool optional;
} fields[F_COUNT] = {
    [F_URI] = {STR_LIT("uri"), "/uri", false},
    [F_SHA256] = {STR_LIT("sha256"), "/sha256", false},
    [F_SCHEMA] = {STR_LIT("schemaVersion"), "/schemaVersion", false},
    [F_PLAN_ID] = {STR_LIT("planId"), "/planId", false},
    [F_PLAN_VERSION] = {STR_LIT("planVersion"), "/planVersion", false},
    [F_SIZE] = {STR_LIT("sizeBytes"), "/sizeBytes", true},
    [F_EXPIRES] = {STR_LIT("expiresAt"), "/expiresAt", true},
};

static status invalid(struct error *err, enum field f, const char *why) {
    return error_at(err, REASON_PLAN_REF_INVALID, fields[f].where, "plan reference: \"%.*s\" %s",
                    STR_ARG(fields[f].name), why);
}

/* At most SHOWN_BYTES_MAX of a text from outside, cut between characters. */
static str shown(str s) {
    if (s.len > SHOWN_BYTES_MAX) s.len = SHOWN_BYTES_MAX;
    size_t bad = s.len;
    if (!str_utf8(s, &bad)) s.len = bad;
    return s;
}

static status unknown_member(str name, struct error *err) {
    char where[ERROR_WHERE_MAX];
    struct buf b;
    buf_init_fixed(&b, where, sizeof where - 1);
    buf_put_char(&b, '/');
    str cut = shown(name);
    for (size_t i = 0; i < cut.len; i++) {
        if (cut.ptr[i] == '~' || cut.ptr[i] == '/')
            buf_put_c(&b, cut.ptr[i] == '~' ? "~0" : "~1");
        else
            buf_put_char(&b, cut.ptr[i]);
    }
    where[b.len] = 0;
    return error_at(err, REASON_PLAN_REF_INVALID, where, "plan reference: unknown member \"%.*s\"",
                    STR_ARG(cut));
}

static status collect(yyjson_val *root, yyjson_val *vals[F_COUNT], struct error *err) {
    if (!yyjson_is_obj(root)) {
        return error_at(err, REASON_PLAN_REF_INVALID, "",
                        "plan reference: expected a JSON object, found %s",
                        yyjson_get_type_desc(root));
    }
    yyjson_obj_iter it = yyjson_obj_iter_with(root);
    for (yyjson_val *key = yyjson_obj_iter_next(&it); key; key = yyjson_obj_iter_next(&it)) {
        str name = str_n(yyjson_get_str(key), yyjson_get_len(key));
        int f = 0;
        while (f < F_COUNT && !str_eq(fields[f].name, name))
            f++;
        if (f == F_COUNT) return unknown_member(name, err);
        vals[f] = yyjson_obj_iter_get_val(key);
    }
    for (int f = 0; f < F_COUNT; f++) {
        if (!vals[f] && !fields[f].optional) return invalid(err, (enum field)f, "is missing");
    }
    return ST_OK;
}

static status take_text(yyjson_val *val, enum field f, size_t bytes_max, str *out,
                        struct error *err) {
    if (!json_str(val, out)) return invalid(err, f, "must be a string");
    if (out->len == 0) return invalid(err, f, "must not be empty");
    if (out->len > bytes_max) {
        return error_at(err, REASON_PLAN_REF_INVALID, fields[f].where,
                        "plan reference: \"%.*s\" has %zu bytes, at most %zu are allowed",
                        STR_ARG(fields[f].name), out->len, bytes_max);
    }
    return ST_OK;
}

/* As events have it: both ids are part of every event's key. */
static status take_id(yyjson_val *val, enum field f, str *out, struct error *err) {
    status st = take_text(val, f, ID_BYTES_MAX, out, err);
    if (st != ST_OK) return st;
    return str_has(*out, '|') ? invalid(err, f, "must not contain '|'") : ST_OK;
}

static status take_optional(yyjson_val *vals[F_COUNT], struct plan_ref *ref, struct error *err) {
    ref->size_bytes = -1;
    if (vals[F_SIZE] && (!json_int(vals[F_SIZE], &ref->size_bytes) || ref->size_bytes < 0))
        return invalid(err, F_SIZE, "must be a whole number of bytes");
    if (!vals[F_EXPIRES]) return ST_OK;
    str text;
    int64_t ns;
    int digits;
    if (!json_str(vals[F_EXPIRES], &text) || !time_parse_utc(text, &ns, &digits)) {
        return invalid(err, F_EXPIRES, "must be RFC 3339 in UTC, such as 2026-02-16T08:00:00Z");
    }
    ref->expires_us = ns / 1000;
    if (ref->expires_us == 0) ref->expires_us = 1; /* 1970 is an expiry too, and long past */
    return ST_OK;
}

status plan_ref_read(yyjson_val *val, struct plan_ref *out, struct error *err) {
    yyjson_val *vals[F_COUNT] = {0};
    struct plan_ref ref = {0};
    str hash;
    status st = collect(val, vals, err);
    if (st == ST_OK) st = take_text(vals[F_URI], F_URI, URL_BYTES_MAX, &ref.uri, err);
    if (st == ST_OK && !json_str(vals[F_SHA256], &hash))
        st = invalid(err, F_SHA256, "must be a string");
    if (st == ST_OK && !hex_decode(hash, ref.sha256, SHA256_LEN))
        st = invalid(err, F_SHA256, "must be 64 lower-case hexadecimal characters");
    if (st == ST_OK)
        st = take_text(vals[F_SCHEMA], F_SCHEMA, ID_BYTES_MAX, &ref.schema_version, err);
    if (st == ST_OK) st = take_id(vals[F_PLAN_ID], F_PLAN_ID, &ref.plan_id, err);
    if (st == ST_OK) st = take_id(vals[F_PLAN_VERSION], F_PLAN_VERSION, &ref.plan_version, err);
    if (st == ST_OK) st = take_optional(vals, &ref, err);
    if (st == ST_OK) *out = ref;
    return st;
}

status plan_ref_parse(str json, struct arena *arena, struct plan_ref *out, struct error *err) {
    yyjson_val *root = NULL;
    struct json_limits limits = {PLAN_REF_BYTES_MAX, REF_DEPTH_MAX};
    status st = json_parse(json, limits, arena, &root, err);
    return st == ST_OK ? plan_ref_read(root, out, err) : st;
}

static void put_member(struct buf *out, enum field f, str value) {
    json_put_text(out, fields[f].name.ptr, value);
}

void plan_ref_json(const struct plan_ref *ref, struct buf *out) {
    char hex[SHA256_HEX_LEN];
    hex_encode(ref->sha256, SHA256_LEN, hex);
    json_object_begin(out);
    put_member(out, F_URI, ref->uri);
    put_member(out, F_SHA256, str_n(hex, sizeof hex));
    put_member(out, F_SCHEMA, ref->schema_version);
    put_member(out, F_PLAN_ID, ref->plan_id);
    put_member(out, F_PLAN_VERSION, ref->plan_version);
    if (ref->size_bytes >= 0) json_put_int(out, "sizeBytes", ref->size_bytes);
    if (ref->expires_us != 0) { /* also one that is long over */
        char text[TIME_TEXT_MAX];
        put_member(out, F_EXPIRES, str_n(text, time_format_us(ref->expires_us, text)));
    }
    json_object_end(out);
}

/* ---- checking ---- */

static status refuse(struct error *err, const char *why) {
    return error_at(err, REASON_PLAN_URI_NOT_ALLOWED, "/uri", "plan reference: %s", why);
}

/* plan:sha256:<hex>: the name of a plan in the local store is its hash, so there is one answer. */
static status check_local(const struct plan_ref *ref, const struct plan_policy *policy,
                          struct error *err) {
    uint8_t hash[SHA256_LEN];
    str text = str_from(ref->uri, strlen("plan:"));
    if (!policy->local_plans) return refuse(err, "there is no local plan store here");
    if (!str_starts(text, STR("sha256:")) ||
        !hex_decode(str_from(text, strlen("sha256:")), hash, SHA256_LEN))
        return refuse(err, "a plan: URI is plan:sha256: and 64 lower-case hexadecimal characters");
    if (memcmp(hash, ref->sha256, SHA256_LEN) != 0)
        return refuse(err, "the hash in its plan: URI is not its \"sha256\"");
    return ST_OK;
}

/* The parts of s3://bucket/key, gs://bucket/key, azure://account/container/blob. */
struct part {
    const char *name;
    str value;
};

static size_t parts_of(const struct url *url, struct part out[3]) {
    str path = url->path.len > 0 ? str_from(url->path, 1) : url->path;
    if (!str_eq(url->scheme, STR("azure"))) {
        out[0] = (struct part){"{bucket}", url->host};
        out[1] = (struct part){"{key}", path};
        return 2;
    }
    str container;
    str blob = STR_NONE;
    if (!str_split(path, '/', &container, &blob)) blob = STR_NONE;
    out[0] = (struct part){"{account}", url->host};
    out[1] = (struct part){"{container}", container};
    out[2] = (struct part){"{blob}", blob};
    return 3;
}

static void expand(str template, const struct part *parts, size_t count, struct buf *out) {
    for (size_t at = 0; at < template.len;) {
        size_t i = 0;
        while (i < count && !str_starts(str_from(template, at), str_c(parts[i].name)))
            i++;
        if (i < count) {
            buf_put(out, parts[i].value);
            at += strlen(parts[i].name);
        } else {
            buf_put_char(out, template.ptr[at++]);
        }
    }
}

/* Is the host of the template fixed, and not made from what the reference says? */
static bool host_is_fixed(str template) {
    size_t slashes = 0;
    for (size_t i = 0; i < template.len && slashes < 3; i++) {
        if (template.ptr[i] == '{') return false;
        slashes += template.ptr[i] == '/';
    }
    return true;
}

/* The URL that the operator's template makes is allowed by being the operator's; what is never
 * reachable stays so, and a private host must stand in the template as it is. */
static status check_mapped(str mapped, bool fixed, const struct guard *guard, struct arena *arena,
                           struct plan_location *out, struct error *err) {
    struct url url;
    status st = url_parse(mapped, arena, &url, err);
    if (st != ST_OK) return st;
    if (!str_eq(url.scheme, STR("https")) && !str_eq(url.scheme, STR("http")))
        return error_set(err, ST_INVALID, "its endpoint is neither https nor http");
    struct guard_rule rule = {url.scheme, fixed ? url.host : STR("*"), url.port, STR_NONE};
    struct guard own = {&rule, 1, guard->allow_private};
    st = guard_url(&own, mapped, arena, &url, err);
    if (st != ST_OK) return st;
    out->url = arena_str(arena, mapped);
    out->exact = url.exact;
    return ST_OK;
}

static status map_cloud(const struct url *url, const struct plan_policy *policy,
                        struct arena *arena, struct plan_location *out, struct error *err) {
    const struct plan_endpoint *endpoint = NULL;
    for (size_t i = 0; i < policy->endpoint_count && !endpoint; i++) {
        if (str_eq(policy->endpoints[i].scheme, url->scheme)) endpoint = &policy->endpoints[i];
    }
    if (!endpoint) {
        return error_set(err, ST_INVALID, "no endpoint is configured for the scheme \"%.*s\"",
                         STR_ARG(url->scheme));
    }
    struct part parts[3];
    size_t count = parts_of(url, parts);
    for (size_t i = 0; i < count; i++) {
        if (parts[i].value.len > 0) continue;
        return error_set(err, ST_INVALID, "it has no %s", parts[i].name);
    }
    char text[URL_BYTES_MAX];
    struct buf mapped;
    buf_init_fixed(&mapped, text, sizeof text);
    expand(endpoint->base_url, parts, count, &mapped);
    if (mapped.full) return error_set(err, ST_INVALID, "it becomes too long a URL");
    return check_mapped(buf_str(&mapped), host_is_fixed(endpoint->base_url), policy->guard, arena,
                        out, err);
}

static status check_uri(const struct plan_ref *ref, const struct plan_policy *policy,
                        struct arena *arena, struct plan_location *out, struct error *err) {
    if (str_starts(ref->uri, STR("plan:"))) {
        out->local = true;
        return check_local(ref, policy, err);
    }
    if (!policy->guard) return refuse(err, "no location is allowed here");
    struct error why = {0};
    struct url url;
    status st = guard_url(policy->guard, ref->uri, arena, &url, &why);
    if (st == ST_OK && (str_eq(url.scheme, STR("https")) || str_eq(url.scheme, STR("http")))) {
        out->url = arena_str(arena, ref->uri);
        out->exact = url.exact;
    } else if (st == ST_OK) {
        st = map_cloud(&url, policy, arena, out, &why);
    }
    return st == ST_OK ? ST_OK : refuse(err, why.msg);
}

status plan_ref_check(const struct plan_ref *ref, int64_t now_us, const struct plan_policy *policy,
                      struct arena *arena, struct plan_location *out, struct error *err) {
    struct plan_location location = {0};
    status st = plan_schema_check(ref->schema_version, &location.deprecated, err);
    if (st != ST_OK) return st;
    if (ref->expires_us != 0 && now_us >= ref->expires_us) {
        char text[TIME_TEXT_MAX];
        size_t len = time_format_us(ref->expires_us, text);
        return error_at(err, REASON_PLAN_REF_EXPIRED, "/expiresAt",
                        "plan reference: it expired at %.*s", (int)len, text);
    }
    st = check_uri(ref, policy, arena, &location, err);
    if (st == ST_OK) *out = location;
    return st;
}
