/* api/keys.c: API keys: made, listed, changed, revoked; and the audit trail. */
#include "api/impl.h"
#include "base/base64.h"
#include "base/time.h"

enum { KEYS_DEFAULT = 50, KEYS_MAX = 1000, AUDIT_DEFAULT = 50 };

struct key_call {
    struct api_key key;
    str name, tenant, cursor;
    yyjson_val *roles;
    int64_t expires_us, limit, before;
    uint64_t given;
    char key_id[KEY_ID_LEN];
    char text[KEY_TEXT_LEN + 1];
    int64_t version;
};
#define AT(member) FIELD(struct key_call, member)
enum { GIVEN_NAME = 1, GIVEN_ROLES = 2, GIVEN_EXPIRES = 4 };
static const struct field patch_fields[] = {
    {"name", FIELD_TEXT, AT(name), false, 1, KEY_NAME_MAX},
    {"roles", FIELD_VALUE, AT(roles), false, 0, 0},
    {"expiresAt", FIELD_TIME_OR_NULL, AT(expires_us), false, 0, 0},
};
static const struct field create_fields[] = {
    {"name", FIELD_TEXT, AT(name), true, 1, KEY_NAME_MAX},
    {"roles", FIELD_VALUE, AT(roles), true, 0, 0},
    {"expiresAt", FIELD_TIME, AT(expires_us), false, 0, 0},
    {"tenantId", FIELD_TEXT, AT(tenant), false, 1, 0},
};
static const struct field list_fields[] = {
    {"tenantId", FIELD_TEXT, AT(tenant), false, 1, 0},
    {"limit", FIELD_INT, AT(limit), false, 1, KEYS_MAX},
    {"cursor", FIELD_TEXT, AT(cursor), false, 1, 0},
};

static status read_roles(yyjson_val *val, unsigned *out, struct error *err) {
    size_t i;
    size_t max;
    yyjson_val *item;
    *out = 0;
    if (!yyjson_is_arr(val) || yyjson_arr_size(val) == 0)
        return error_at(err, REASON_FIELD_TYPE, "/roles", "expected a list of roles");
    yyjson_arr_foreach(val, i, max, item) {
        str name = STR_NONE;
        unsigned role = json_str(item, &name) ? role_of(name) : 0;
        if (!role)
            return error_at(err, REASON_ROLE_UNKNOWN, "/roles",
                            "expected viewer, operator, producer, worker or admin");
        *out |= role;
    }
    return ST_OK;
}

static status check_expiry(int64_t us, struct error *err) {
    if (us == 0 || us > clock_wall_us()) return ST_OK;
    return error_at(err, REASON_TIME_IN_THE_PAST, "/expiresAt", "is not in the future");
}

static str key_tag(struct call *c, int64_t version) {
    return call_text(c, "\"%lld\"", (long long)version);
}

/* ---- making one ---- */

static status create(struct call *c, struct ledger *ledger, struct error *err) {
    struct key_call *k = c->own;
    json_object_begin(&c->out);
    json_put_text(&c->out, "key", str_n(k->text, KEY_TEXT_LEN));
    view_members(&view_key, &k->key, &c->out);
    json_object_end(&c->out);
    /* Shown once means once: a repeated request is told that the key was made, not the key. */
    const struct append_rider *riders = call_riders(c, k->key.key_id, STR_NONE, 201, true);
    if (c->keyed) {
        c->receipt.http_status = 201;
        c->receipt.location = call_text(c, "/v1/keys/%.*s", STR_ARG(k->key.key_id));
        struct buf body;
        buf_init(&body, 4096);
        json_object_begin(&body);
        json_put_text(&body, "key", STR_NONE);
        view_members(&view_key, &k->key, &body);
        json_object_end(&body);
        c->receipt.body = arena_str(&c->arena, buf_str(&body));
        buf_release(&body);
    }
    return api_key_create(ledger, &k->key, riders, err);
}

static void created(struct call *c) {
    struct key_call *k = c->own;
    auth_forget(c->api->auth, k->key.key_id); /* it may be known as unknown */
    call_header(c, "Location", call_text(c, "/v1/keys/%.*s", STR_ARG(k->key.key_id)));
    call_header(c, "ETag", key_tag(c, 1));
    call_answer(c, 201);
}

/* Nobody gives what they have not: only a caller of every tenant makes a key for every tenant. */
static status key_tenant(struct call *c, str asked, str *out, struct error *err) {
    str own = str_c(c->who->tenant);
    if (str_eq(asked, STR("*")) && !str_eq(own, STR("*")))
        return error_at(err, REASON_FORBIDDEN, "/tenantId",
                        "only an admin of every tenant makes such a key");
    if (str_eq(asked, STR("*"))) {
        *out = asked;
        return ST_OK;
    }
    status st = call_tenant(c, asked, out, err);
    if (st == ST_OK && !out->ptr)
        st = error_at(err, REASON_FIELD_MISSING, "/tenantId",
                      "say for which tenant, or \"*\" for all");
    return st;
}

static void post_key(struct call *c) {
    struct error err = {0};
    struct key_call *k = ARENA_NEW(&c->arena, struct key_call);
    struct api_key *key = &k->key;
    c->own = k;
    status st = query_none(c, &err);
    if (st == ST_OK) st = body_read(c, create_fields, COUNT_OF(create_fields), k, NULL, &err);
    if (st == ST_OK) st = read_roles(k->roles, &key->roles, &err);
    if (st == ST_OK) st = check_expiry(k->expires_us, &err);
    if (st == ST_OK) st = key_tenant(c, k->tenant, &key->tenant_id, &err);
    if (st != ST_OK) {
        call_fail(c, &err);
        return;
    }
    auth_key_make(k->key_id, key->hash, k->text);
    key->key_id = str_n(k->key_id, KEY_ID_LEN);
    key->name = k->name;
    key->created_by = str_c(c->who->name);
    key->expires_us = k->expires_us;
    key->created_us = clock_wall_us();
    key->version = 1;
    c->tenant_id = key->tenant_id;
    call_change(c, create, created);
}

/* ---- looking ---- */

static status find_key(struct call *c, struct ledger *reader, struct api_key *out,
                       struct error *err) {
    status st = api_key_find(reader, c->args[0], &c->arena, out, err);
    bool seen = st == ST_OK &&
                (principal_sees(c->who, out->tenant_id) || str_eq(str_c(c->who->tenant), STR("*")));
    if (st == ST_NOT_FOUND || (st == ST_OK && !seen))
        return error_at(err, REASON_KEY_NOT_FOUND, "", "there is no key \"%.*s\"",
                        STR_ARG(c->args[0]));
    if (st == ST_OK) c->tenant_id = out->tenant_id;
    return st;
}

static status load_key(struct call *c, struct ledger *reader, struct error *err) {
    struct key_call *k = c->own;
    status st = find_key(c, reader, &k->key, err);
    if (st != ST_OK) return st;
    call_header(c, "ETag", key_tag(c, k->key.version));
    view_write(&view_key, &k->key, &c->out);
    return ST_OK;
}

static void get_key(struct call *c) {
    struct error err = {0};
    c->own = ARENA_NEW(&c->arena, struct key_call);
    if (query_none(c, &err) != ST_OK)
        call_fail(c, &err);
    else
        call_read(c, load_key, NULL);
}

static status list_keys(struct call *c, struct ledger *reader, struct error *err) {
    struct key_call *k = c->own;
    struct api_key *keys = NULL;
    size_t count = 0;
    str after = STR_NONE;
    if (k->cursor.ptr && (!base64url_read(k->cursor, &c->arena, &after) || after.len != KEY_ID_LEN))
        return error_at(err, REASON_CURSOR_INVALID, "?cursor",
                        "a cursor is the \"next\" of a page of this list, as it came");
    status st =
        api_key_list(reader, k->tenant, after, (size_t)k->limit, &c->arena, &keys, &count, err);
    if (st != ST_OK) return st;
    page_begin(&c->out);
    for (size_t i = 0; i < count; i++) {
        view_write(&view_key, &keys[i], &c->out);
    }
    char mem[2 * KEY_ID_LEN];
    struct buf cursor;
    buf_init_fixed(&cursor, mem, sizeof(mem));
    bool more = (int64_t)count == k->limit;
    if (more) base64url_write(&cursor, keys[count - 1].key_id.ptr, KEY_ID_LEN);
    page_end_text(&c->out, more ? buf_str(&cursor) : STR_NONE);
    return ST_OK;
}

static void get_keys(struct call *c) {
    struct error err = {0};
    struct key_call *k = ARENA_NEW(&c->arena, struct key_call);
    k->limit = KEYS_DEFAULT;
    c->own = k;
    status st = query_read(c, list_fields, COUNT_OF(list_fields), k, NULL, &err);
    if (st == ST_OK) st = call_tenant(c, k->tenant, &k->tenant, &err);
    if (st != ST_OK)
        call_fail(c, &err);
    else
        call_read(c, list_keys, NULL);
}

/* ---- changing ---- */

static status change(struct call *c, struct ledger *ledger, struct error *err) {
    struct key_call *k = c->own;
    status st = find_key(c, ledger, &k->key, err);
    if (st == ST_OK && k->version > 0 && k->version != k->key.version)
        st = error_at(err, REASON_PRECONDITION_FAILED, "#If-Match",
                      "the key was changed since: it is at version %lld now",
                      (long long)k->key.version);
    if (st != ST_OK) return st;
    if (k->given & GIVEN_NAME) k->key.name = k->name;
    if (k->given & GIVEN_EXPIRES) k->key.expires_us = k->expires_us;
    if (k->given & GIVEN_ROLES) st = read_roles(k->roles, &k->key.roles, err);
    if (st != ST_OK) return st;
    bool revoke = strcmp(c->route->method, "DELETE") == 0;
    if (revoke && k->key.revoked_us) return ST_OK;
    if (revoke) k->key.revoked_us = clock_wall_us();
    st = api_key_update(ledger, &k->key, call_riders(c, k->key.key_id, STR_NONE, 200, true), err);
    if (st != ST_OK || revoke) return st;
    call_header(c, "ETag", key_tag(c, k->key.version + 1));
    view_write(&view_key, &k->key, &c->out);
    return ST_OK;
}

static void changed(struct call *c) {
    struct key_call *k = c->own;
    auth_forget(c->api->auth, k->key.key_id);
    hub_owner_changed(c->api->hub, call_text(c, "key:%.*s", STR_ARG(k->key.key_id)));
    call_answer(c, c->out.len > 0 ? 200 : 204);
}

static status read_if_match(struct call *c, int64_t *version, struct error *err) {
    str tag = http_header(c->request, STR("If-Match"));
    if (!tag.ptr)
        return error_at(err, REASON_PRECONDITION_REQUIRED, "#If-Match",
                        "send If-Match with the ETag that you have seen");
    if (tag.len < 3 || tag.ptr[0] != '"' || tag.ptr[tag.len - 1] != '"' ||
        !str_to_int(str_n(tag.ptr + 1, tag.len - 2), version) || *version < 1)
        return error_at(err, REASON_PRECONDITION_FAILED, "#If-Match",
                        "that is no ETag of this key");
    return ST_OK;
}

static void patch_key(struct call *c) {
    struct error err = {0};
    struct key_call *k = ARENA_NEW(&c->arena, struct key_call);
    unsigned ignored = 0;
    c->own = k;
    status st = query_none(c, &err);
    if (st == ST_OK) st = read_if_match(c, &k->version, &err);
    if (st == ST_OK) st = body_read(c, patch_fields, COUNT_OF(patch_fields), k, &k->given, &err);
    if (st == ST_OK && k->roles) st = read_roles(k->roles, &ignored, &err);
    if (st == ST_OK) st = check_expiry(k->expires_us, &err);
    if (st != ST_OK)
        call_fail(c, &err);
    else
        call_change(c, change, changed);
}

static void delete_key(struct call *c) {
    struct error err = {0};
    c->own = ARENA_NEW(&c->arena, struct key_call);
    if (query_none(c, &err) != ST_OK)
        call_fail(c, &err);
    else
        call_change(c, change, changed);
}

/* ---- audit ---- */

static status list_audit(struct call *c, struct ledger *reader, struct error *err) {
    struct key_call *k = c->own;
    struct audit_entry *entries = NULL;
    size_t count = 0;
    status st = audit_list(reader, k->tenant, k->before, (size_t)k->limit, &c->arena, &entries,
                           &count, err);
    if (st != ST_OK) return st;
    page_begin(&c->out);
    for (size_t i = 0; i < count; i++)
        view_write(&view_audit, &entries[i], &c->out);
    bool more = (int64_t)count == k->limit;
    page_end(&c->out, more, 'u', more ? entries[count - 1].audit_no : 0, 0);
    return ST_OK;
}

static void get_audit(struct call *c) {
    struct error err = {0};
    int64_t unused = 0;
    struct key_call *k = ARENA_NEW(&c->arena, struct key_call);
    k->limit = AUDIT_DEFAULT;
    c->own = k;
    status st = query_read(c, list_fields, COUNT_OF(list_fields), k, NULL, &err);
    if (st == ST_OK) st = cursor_read(k->cursor, 'u', &k->before, &unused, &err);
    if (st == ST_OK) st = call_tenant(c, k->tenant, &k->tenant, &err);
    if (st != ST_OK)
        call_fail(c, &err);
    else
        call_read(c, list_audit, NULL);
}

static const struct route routes[] = {
    {"POST", "/v1/keys", "key.create", ROLE_ADMIN, ROUTE_CHANGES, post_key},
    {"GET", "/v1/keys", "key.list", ROLE_ADMIN, 0, get_keys},
    {"GET", "/v1/keys/{keyId}", "key.get", ROLE_ADMIN, 0, get_key},
    {"PATCH", "/v1/keys/{keyId}", "key.change", ROLE_ADMIN, ROUTE_CHANGES, patch_key},
    {"DELETE", "/v1/keys/{keyId}", "key.revoke", ROLE_ADMIN, ROUTE_CHANGES, delete_key},
    {"GET", "/v1/audit", "audit.list", ROLE_ADMIN, 0, get_audit},
};
const struct route_table key_routes = {routes, COUNT_OF(routes)};
