/* engine/plan_source.c: finding, fetching and checking a plan by its reference. */
#include "engine/plan_source.h"

#include "base/buf.h"
#include "base/log.h"
#include "base/os.h"

#define SCRATCH_BYTES_MAX (PLAN_BYTES_MAX + (size_t)1024 * 1024) /* a plan, and some URLs */

/* The URI in messages and log lines: a query may hold a signature. */
static str shown_uri(str uri) {
    str head;
    str query;
    (void)str_split(uri, '?', &head, &query);
    return head;
}

static status too_large(struct error *err) {
    return error_at(err, REASON_PLAN_TOO_LARGE, "", "plan: it has more than %zu bytes",
                    PLAN_BYTES_MAX);
}

/* ---- the local store ---- */

static str store_path(str folder, const uint8_t sha256[SHA256_LEN], struct arena *arena) {
    struct buf path;
    buf_init_fixed(&path, arena_alloc(arena, folder.len + SHA256_HEX_LEN + 8),
                   folder.len + SHA256_HEX_LEN + 8);
    buf_put(&path, folder);
    buf_put_char(&path, '/');
    buf_put_hex(&path, sha256, SHA256_LEN);
    buf_put_c(&path, ".json");
    return buf_str(&path);
}

static status not_kept(const struct plan_ref *ref, struct error *err) {
    return error_at(err, REASON_PLAN_NOT_FOUND, "", "plan \"%.*s\" is not kept here",
                    STR_ARG(ref->uri));
}

static status file_failed(const struct plan_ref *ref, status st, const struct error *why,
                          struct error *err) {
    if (st == ST_LIMIT) return too_large(err);
    if (st == ST_NOT_FOUND) return not_kept(ref, err);
    return error_as(err, st, REASON_PLAN_FETCH_FAILED, "", "plan \"%.*s\": %s", STR_ARG(ref->uri),
                    why->msg);
}

status plan_source_file(const struct plan_ref *ref, str path, struct arena *arena, str *bytes,
                        struct error *err) {
    struct error why = {0};
    status st = file_read(path, PLAN_BYTES_MAX, arena, bytes, &why);
    return st == ST_OK ? ST_OK : file_failed(ref, st, &why, err);
}

static status look_in_folder(const struct plan_source *source, const struct plan_ref *ref,
                             size_t here_max, struct arena *arena, struct plan_local *out,
                             struct error *err) {
    if (!source->plans_folder.ptr) return not_kept(ref, err);
    struct error why = {0};
    str path = store_path(source->plans_folder, ref->sha256, arena);
    str bytes = STR_NONE;
    status st = file_read(path, here_max, arena, &bytes, &why);
    if (st == ST_LIMIT && here_max < PLAN_BYTES_MAX) st = ST_OK; /* it is there, and large */
    if (st != ST_OK) return file_failed(ref, st, &why, err);
    *out = (struct plan_local){path, bytes, true};
    return ST_OK;
}

status plan_source_local(const struct plan_source *source, const struct plan_wanted *wanted,
                         size_t here_max, struct arena *arena, struct plan_local *out,
                         struct error *err) {
    const struct plan_ref *ref = wanted->ref;
    status st = look_in_folder(source, ref, here_max, arena, out, err);
    if (st != ST_NOT_FOUND || !source->stored || !wanted->reader) return st;
    struct error why = {0};
    str bytes = STR_NONE;
    st = source->stored(wanted->reader, wanted->tenant_id, ref->sha256, arena, &bytes, &why);
    if (st == ST_OK) *out = (struct plan_local){.bytes = bytes};
    if (st == ST_OK || st == ST_NOT_FOUND) return st; /* the folder's error tells enough */
    return error_as(err, st, REASON_PLAN_FETCH_FAILED, "", "plan \"%.*s\": %s", STR_ARG(ref->uri),
                    why.msg);
}

/* Is it there already, whole? */
static bool store_has(str path, str bytes, struct arena *arena) {
    struct error ignored;
    str found;
    return path_exists(path) && file_read(path, bytes.len, arena, &found, &ignored) == ST_OK &&
           str_eq(found, bytes);
}

status plan_store_put(str folder, str bytes, uint8_t sha256[SHA256_LEN], struct error *err) {
    uint8_t hash[SHA256_LEN];
    if (bytes.len > PLAN_BYTES_MAX) return too_large(err);
    struct arena scratch;
    arena_init(&scratch, 4096, SCRATCH_BYTES_MAX);
    sha256_of(bytes, hash);
    str path = store_path(folder, hash, &scratch);
    status st = ST_OK;
    if (!store_has(path, bytes, &scratch)) {
        st = dir_make(folder, err);
        if (st == ST_OK) st = file_replace(path, bytes, err);
    }
    arena_release(&scratch);
    if (st == ST_OK) memcpy(sha256, hash, SHA256_LEN);
    return st == ST_OK ? ST_OK : error_wrap(err, "could not store a plan");
}

/* ---- the network ---- */

static bool may_connect(void *context, const uint8_t *address, size_t len) {
    const struct plan_door *door = context;
    return guard_address(door->guard, door->exact, address, len);
}

static status fetch_failed(const struct plan_ref *ref, const struct error *why, struct error *err) {
    if (why->reason == REASON_HTTP_TOO_LARGE) {
        if (ref->size_bytes < 0) return too_large(err);
        return error_at(err, REASON_PLAN_SIZE_MISMATCH, "/sizeBytes",
                        "plan: it has more than the %lld bytes of its reference",
                        (long long)ref->size_bytes);
    }
    if (why->reason == REASON_HTTP_REFUSED_ADDRESS) {
        return error_at(err, REASON_PLAN_URI_NOT_ALLOWED, "/uri", "plan reference: %s", why->msg);
    }
    return error_as(err, why->code, REASON_PLAN_FETCH_FAILED, "/uri", "plan: %s", why->msg);
}

static status judge_answer(const struct plan_ref *ref, int code, struct error *err) {
    if (code == 200) return ST_OK;
    str uri = shown_uri(ref->uri);
    status st = ST_INVALID;
    if (code == 404 || code == 410) st = ST_NOT_FOUND;
    if (code >= 500 || code == 408 || code == 425 || code == 429) st = ST_RETRY;
    return error_as(err, st, REASON_PLAN_FETCH_FAILED, "/uri",
                    "plan: could not fetch \"%.*s\": the server answered %d%s", STR_ARG(uri), code,
                    code >= 300 && code < 400 ? ", and redirects are not followed" : "");
}

status plan_source_judge(const struct plan_ref *ref, status st,
                         const struct client_response *response, const struct error *why,
                         str *bytes, struct error *err) {
    if (st != ST_OK) return fetch_failed(ref, why, err);
    st = judge_answer(ref, response->status, err);
    if (st == ST_OK) *bytes = response->body;
    return st;
}

static status fetch_remote(const struct plan_source *source, const struct plan_ref *ref,
                           const struct plan_request *ask, struct arena *arena, str *bytes,
                           struct error *err) {
    struct error why = {0};
    struct client_response response = {0};
    plan_fetcher fetch = source->fetch ? source->fetch : client_fetch;
    status st = fetch(&ask->request, arena, &response, &why);
    return plan_source_judge(ref, st, &response, &why, bytes, err);
}

/* ---- what came ---- */

static status check_size(const struct plan_ref *ref, str bytes, struct error *err) {
    if (ref->size_bytes < 0 || bytes.len == (uint64_t)ref->size_bytes) return ST_OK;
    return error_at(err, REASON_PLAN_SIZE_MISMATCH, "/sizeBytes",
                    "plan: it has %zu bytes, its reference says %lld", bytes.len,
                    (long long)ref->size_bytes);
}

static status check_hash(const struct plan_ref *ref, str bytes, struct error *err) {
    uint8_t hash[SHA256_LEN];
    sha256_of(bytes, hash);
    if (memcmp(hash, ref->sha256, SHA256_LEN) == 0) return ST_OK;
    char want[SHA256_HEX_LEN];
    char got[SHA256_HEX_LEN];
    hex_encode(ref->sha256, SHA256_LEN, want);
    hex_encode(hash, SHA256_LEN, got);
    /* For audit, with its hashes, whatever becomes of the error. */
    LOG(LOG_ERROR, "plan integrity validation failed",
        LOG_S("code", STR("PLAN_INTEGRITY_VALIDATION_FAILED")),
        LOG_S("expectedSha256", str_n(want, sizeof want)),
        LOG_S("actualSha256", str_n(got, sizeof got)), LOG_S("uri", shown_uri(ref->uri)),
        LOG_S("planId", ref->plan_id), LOG_S("planVersion", ref->plan_version));
    return error_at(err, REASON_PLAN_INTEGRITY_VALIDATION_FAILED, "/sha256",
                    "plan: its SHA-256 is %.*s, its reference says %.*s", (int)sizeof got, got,
                    (int)sizeof want, want);
}

static status check_same(enum reason reason, const char *where, const char *name, str plan, str ref,
                         struct error *err) {
    if (str_eq(plan, ref)) return ST_OK;
    return error_at(err, reason, where, "plan: its %s is \"%.*s\", its reference says \"%.*s\"",
                    name, (int)(plan.len < 64 ? plan.len : 64), plan.ptr,
                    (int)(ref.len < 64 ? ref.len : 64), ref.ptr);
}

static status check_ids(const struct plan_ref *ref, const struct plan *plan, struct error *err) {
    status st = check_same(REASON_PLAN_SCHEMA_VERSION_MISMATCH, "/schemaVersion", "schemaVersion",
                           plan->schema_version, ref->schema_version, err);
    if (st == ST_OK)
        st = check_same(REASON_PLAN_ID_MISMATCH, "/metadata/planId", "planId", plan->plan_id,
                        ref->plan_id, err);
    if (st == ST_OK)
        st = check_same(REASON_PLAN_ID_MISMATCH, "/metadata/planVersion", "planVersion",
                        plan->plan_version, ref->plan_version, err);
    return st;
}

status plan_source_read(const struct plan_ref *ref, str bytes, struct arena *arena,
                        struct plan **out, struct error *err) {
    status st = check_size(ref, bytes, err);
    if (st == ST_OK) st = check_hash(ref, bytes, err);
    if (st != ST_OK) return st;
    struct plan *plan = NULL;
    struct plan_problems *problems = arena_try(arena, sizeof *problems);
    if (!problems) return error_set(err, ST_RETRY, "plan: out of memory");
    st = plan_parse(bytes, arena, &plan, problems, err);
    if (st == ST_OK) st = check_ids(ref, plan, err);
    if (st == ST_OK) *out = plan;
    return st;
}

/* ---- all of it ---- */

status plan_source_check(const struct plan_source *source, const struct plan_ref *ref,
                         int64_t now_us, struct arena *arena, struct plan_location *out,
                         struct error *err) {
    struct plan_policy policy = {source->guard, source->endpoints, source->endpoint_count,
                                 source->plans_folder.ptr != NULL || source->stored};
    return plan_ref_check(ref, now_us, &policy, arena, out, err);
}

status plan_source_ask(const struct plan_source *source, const struct plan_ref *ref, int64_t now_us,
                       struct arena *arena, struct plan_request *out, struct error *err) {
    struct plan_location location;
    status st = plan_source_check(source, ref, now_us, arena, &location, err);
    if (st != ST_OK) return st;
    if (location.deprecated) {
        LOG(LOG_WARN, "plan uses a deprecated schema version",
            LOG_S("schemaVersion", ref->schema_version), LOG_S("planId", ref->plan_id),
            LOG_S("planVersion", ref->plan_version));
    }
    if (ref->size_bytes > (int64_t)PLAN_BYTES_MAX) return too_large(err);
    size_t bytes_max = PLAN_BYTES_MAX;
    if (ref->size_bytes >= 0) /* one byte more than promised, and it ends */
        bytes_max = ref->size_bytes > 0 ? (size_t)ref->size_bytes : 1;
    out->local = location.local;
    out->door = (struct plan_door){source->guard, location.exact};
    out->request = (struct client_request){
        .url = location.url,
        .may_connect = may_connect,
        .context = &out->door,
        .bytes_max = bytes_max,
        .timeout_ms = source->timeout_ms ? source->timeout_ms : PLAN_FETCH_TIMEOUT_MS,
        .connect_timeout_ms = PLAN_FETCH_CONNECT_TIMEOUT_MS,
        .stall_ms = PLAN_FETCH_STALL_MS,
        .ca_file = source->ca_file,
    };
    return ST_OK;
}

static status get_bytes(const struct plan_source *source, const struct plan_wanted *wanted,
                        struct arena *arena, struct plan_local *out, struct error *err) {
    struct plan_request ask = {0};
    status st = plan_source_ask(source, wanted->ref, wanted->now_us, arena, &ask, err);
    if (st != ST_OK) return st;
    if (ask.local) return plan_source_local(source, wanted, PLAN_BYTES_MAX, arena, out, err);
    return fetch_remote(source, wanted->ref, &ask, arena, &out->bytes, err);
}

status plan_source_fetch(const struct plan_source *source, const struct plan_wanted *wanted,
                         struct arena *arena, bool *open, struct plan **out, struct error *err) {
    struct plan_local came = {0};
    struct arena scratch; /* the bytes as they came; plan_parse() keeps its own */
    arena_init(&scratch, 4096, SCRATCH_BYTES_MAX);
    status st = get_bytes(source, wanted, &scratch, &came, err);
    if (st == ST_OK) st = plan_source_read(wanted->ref, came.bytes, arena, out, err);
    if (st == ST_OK && open) *open = came.open;
    arena_release(&scratch);
    return st;
}
