/* core/run_ref.c: one table of members and of who needs them, for reading, checking and writing. */
#include "core/run_ref.h"

#include "base/json_out.h"
#include "base/limits.h"

enum { MEMBER_COUNT = 5, URL_BYTES_MAX = 2048 };

enum need { NEVER, MAY, MUST };

struct member {
    const char *name, *where;
    uint8_t need[ADAPTER_COUNT]; /* local, temporal, conductor */
};
static const struct member members[MEMBER_COUNT] = {
    {"namespace", "/namespace", {NEVER, MUST, NEVER}},
    {"workflowId", "/workflowId", {MUST, MUST, MUST}},
    {"runId", "/runId", {MUST, MUST, MUST}},
    {"taskQueue", "/taskQueue", {NEVER, MAY, NEVER}},
    {"conductorUrl", "/conductorUrl", {NEVER, NEVER, MUST}}};

static status bad(struct error *err, const char *where, const char *name, const char *what) {
    return error_at(err, REASON_RUN_REF_INVALID, where, "%s %s", name, what);
}

static void values_of(const struct engine_run_ref *ref, str out[MEMBER_COUNT]) {
    out[0] = ref->namespace;
    out[1] = ref->workflow_id;
    out[2] = ref->run_id;
    out[3] = ref->task_queue;
    out[4] = ref->conductor_url;
}

static bool is_text(str s, size_t bytes_max) {
    size_t at = 0;
    if (s.len == 0 || s.len > bytes_max || !str_utf8(s, &at)) return false;
    for (size_t i = 0; i < s.len; i++) {
        if ((unsigned char)s.ptr[i] < 0x20 || s.ptr[i] == '|') return false;
    }
    return true;
}

static bool is_url(str s) {
    bool http = str_starts(s, STR("http://")) || str_starts(s, STR("https://"));
    return http && !str_ends(s, STR("://")) && !str_has(s, ' ') && is_text(s, URL_BYTES_MAX);
}

status run_ref_check(const struct engine_run_ref *ref, struct error *err) {
    str values[MEMBER_COUNT];
    values_of(ref, values);
    if (ref->provider >= ADAPTER_COUNT)
        return bad(err, "/provider", "provider", "must be local, temporal or conductor");
    for (size_t i = 0; i < MEMBER_COUNT; i++) {
        const struct member *m = &members[i];
        uint8_t need = m->need[ref->provider];
        if (values[i].ptr && need == NEVER)
            return bad(err, m->where, m->name, "is of another provider");
        if (!values[i].ptr && need == MUST) return bad(err, m->where, m->name, "is missing");
        if (!values[i].ptr) continue;
        if (i == 4 && !is_url(values[i]))
            return bad(err, m->where, m->name, "must be an http or https URL");
        if (i != 4 && !is_text(values[i], ID_BYTES_MAX))
            return bad(err, m->where, m->name,
                       "must have 1 to 255 bytes without '|' and control characters");
    }
    return ST_OK;
}

static status check_members(yyjson_val *root, struct error *err) {
    size_t i;
    size_t n;
    yyjson_val *key;
    yyjson_val *value;
    yyjson_obj_foreach(root, i, n, key, value) {
        str name = STR_NONE;
        UNUSED(value);
        (void)json_str(key, &name);
        bool known = str_eq(name, STR("provider"));
        for (size_t k = 0; k < MEMBER_COUNT; k++)
            known = known || str_eq(name, str_c(members[k].name));
        if (known) continue;
        char where[ERROR_WHERE_MAX];
        snprintf(where, sizeof(where), "/%.*s", (int)(name.len < 60 ? name.len : 60), name.ptr);
        return bad(err, where, "an EngineRunRef", "has no such member");
    }
    return ST_OK;
}

status run_ref_read(yyjson_val *root, struct engine_run_ref *out, struct error *err) {
    if (!yyjson_is_obj(root)) return bad(err, "", "an EngineRunRef", "is an object");
    struct engine_run_ref ref = {0};
    str provider = STR_NONE;
    if (!json_member(root, "provider")) return bad(err, "/provider", "provider", "is missing");
    if (!json_str(json_member(root, "provider"), &provider) || !adapter_of(provider, &ref.provider))
        return bad(err, "/provider", "provider", "must be local, temporal or conductor");
    status st = check_members(root, err);
    if (st != ST_OK) return st;
    str *to[MEMBER_COUNT] = {&ref.namespace, &ref.workflow_id, &ref.run_id, &ref.task_queue,
                             &ref.conductor_url};
    for (size_t i = 0; i < MEMBER_COUNT; i++) {
        yyjson_val *v = json_member(root, members[i].name);
        if (v && !json_str(v, to[i]))
            return bad(err, members[i].where, members[i].name, "must be a string");
    }
    st = run_ref_check(&ref, err);
    if (st == ST_OK) *out = ref;
    return st;
}

status run_ref_parse(str json, struct arena *arena, struct engine_run_ref *out, struct error *err) {
    yyjson_val *root = NULL;
    struct json_limits limits = {RUN_REF_BYTES_MAX, 4};
    status st = json_parse(json, limits, arena, &root, err);
    return st == ST_OK ? run_ref_read(root, out, err) : st;
}

struct engine_run_ref run_ref_local(str run_id) {
    return (struct engine_run_ref){
        .provider = ADAPTER_LOCAL, .workflow_id = run_id, .run_id = run_id};
}

void run_ref_json(const struct engine_run_ref *ref, struct buf *out) {
    str values[MEMBER_COUNT];
    values_of(ref, values);
    json_object_begin(out);
    json_put_text(out, "provider", str_c(adapter_name(ref->provider)));
    for (size_t i = 0; i < MEMBER_COUNT; i++) {
        if (members[i].need[ref->provider] != NEVER)
            json_put_text_if(out, members[i].name, values[i]);
    }
    json_object_end(out);
}
