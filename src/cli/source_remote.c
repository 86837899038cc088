/* cli/source_remote.c: a source that is a server. */
#include "api/auth.h"
#include "base/json.h"
#include "base/limits.h"
#include "cli/remote.h"
#include "cli/source.h"

enum { BODY_BYTES_MAX = 64 * 1024 };

struct remote_source {
    struct source source;
    struct remote *remote;
};

static struct remote *of(struct source *s) { return ((struct remote_source *)s)->remote; }

static void run_target(struct target *t, str run_id, const char *rest) {
    target_init(t, "/v1/runs/");
    target_id(t, run_id);
    target_path(t, rest);
}

static status get(struct source *s, const struct target *t, struct arena *arena,
                  yyjson_val **answer, struct error *err) {
    return remote_get(of(s), t, arena, answer, err);
}

/* One thing. */
static status get_one(struct source *s, const struct target *t, const struct noun *noun,
                      struct arena *arena, void *out, struct error *err) {
    yyjson_val *answer = NULL;
    status st = get(s, t, arena, &answer, err);
    if (st == ST_OK) view_read(noun, answer, arena, out);
    return st;
}

/* {"items":[...],"next":...} as an array of things, *items. */
static status get_page(struct source *s, struct target *t, const struct noun *noun,
                       struct page *page, struct arena *arena, void *items, struct error *err) {
    yyjson_val *answer = NULL;
    str next = STR_NONE;
    target_query(t, "cursor", page->cursor);
    target_query_int(t, "limit", (int64_t)page->limit);
    status st = get(s, t, arena, &answer, err);
    if (st != ST_OK) return st;
    void *all = view_read_all(noun, json_member(answer, "items"), arena, &page->count);
    memcpy(items, &all, sizeof(all));
    (void)json_str(json_member(answer, "next"), &next);
    page->cursor = arena_str(&s->cli->arena, next);
    return ST_OK;
}

/* ---- runs ---- */

static status find_run(struct source *s, str run_id, struct arena *arena, struct run_info *out,
                       struct error *err) {
    struct target t;
    run_target(&t, run_id, "");
    return get_one(s, &t, &view_run, arena, out, err);
}

static void put_filter(struct target *t, const struct run_filter *f) {
    target_query(t, "tenantId", f->tenant_id);
    target_query(t, "projectId", f->project_id);
    target_query(t, "environmentId", f->environment_id);
    target_query(t, "planId", f->plan_id);
    if (f->only_inconsistent) target_query(t, "inconsistent", STR("true"));
    char mem[128];
    struct buf names;
    buf_init_fixed(&names, mem, sizeof(mem));
    for (int i = RUN_PENDING; i < RUN_STATUS_COUNT; i++) {
        if (!(f->statuses & 1U << i)) continue;
        if (names.len > 0) buf_put_char(&names, ',');
        buf_put_c(&names, run_status_name((enum run_status)i));
    }
    if (names.len > 0) target_query(t, "status", buf_str(&names));
}

static status list_runs(struct source *s, const struct run_filter *filter, struct page *page,
                        struct arena *arena, struct run_info **runs, struct error *err) {
    struct target t;
    target_init(&t, "/v1/runs");
    put_filter(&t, filter);
    return get_page(s, &t, &view_run, page, arena, runs, err);
}

static status resolve(struct source *s, str tenant_id, str provider, str workflow_id,
                      str provider_run_id, struct arena *arena, struct run_info *out,
                      struct error *err) {
    struct target t;
    target_init(&t, "/v1/resolve");
    target_query(&t, "provider", provider);
    target_query(&t, "workflowId", workflow_id);
    target_query(&t, "providerRunId", provider_run_id);
    target_query(&t, "tenantId", tenant_id);
    return get_one(s, &t, &view_run, arena, out, err);
}

static status resolve_ref(struct source *s, const struct engine_run_ref *ref, struct arena *arena,
                          struct run_info *out, struct error *err) {
    struct target t;
    struct buf body;
    yyjson_val *answer = NULL;
    target_init(&t, "/v1/run-refs/status");
    buf_init(&body, BODY_BYTES_MAX);
    buf_put_c(&body, "{\"engineRunRef\":");
    run_ref_json(ref, &body);
    buf_put_char(&body, '}');
    struct remote_body given = {"application/json", buf_str(&body)};
    status st = remote_send(of(s), "POST", &t, &given, arena, &answer, err);
    buf_release(&body);
    if (st == ST_OK) view_read(&view_run, answer, arena, out);
    return st;
}

static status replay(struct source *s, str run_id, int64_t at, struct arena *arena, struct run *out,
                     struct error *err) {
    struct target t;
    str text = STR_NONE;
    run_target(&t, run_id, "/state");
    if (at > 0) target_query_int(&t, "at", at);
    status st = remote_fetch(of(s), "GET", &t, NULL, REMOTE_CALL_MS, arena, &text, err);
    return st == ST_OK ? run_state_parse(text, arena, out, err) : st;
}

struct walking {
    ledger_walk walk;
    void *context;
    struct arena arena; /* of one line */
    status st;
    struct error err;
};

static bool walk_line(void *context, str line) {
    struct walking *w = context;
    struct json_limits limits = {2 * LINE_BYTES_MAX, JSON_DEPTH_MAX + 8};
    struct event_record rec;
    yyjson_val *root = NULL;
    if (line.len == 0) return true;
    arena_reset(&w->arena);
    w->st = json_parse(line, limits, &w->arena, &root, &w->err);
    if (w->st != ST_OK) return false;
    view_read(&view_event, root, &w->arena, &rec);
    bool stop = false;
    w->st = w->walk(w->context, &rec, &stop, &w->err);
    return w->st == ST_OK && !stop;
}

static status walk_run(struct source *s, const struct run_info *run, ledger_walk walk,
                       void *context, struct error *err) {
    struct walking w = {.walk = walk, .context = context};
    struct target t;
    run_target(&t, run->run_id, "/events");
    target_query(&t, "follow", STR("false"));
    arena_init(&w.arena, (size_t)64 * 1024, (size_t)64 * LINE_BYTES_MAX);
    status st = remote_follow(of(s), &t, walk_line, &w, err);
    if (st == ST_OK && w.st != ST_OK) {
        *err = w.err;
        st = w.st;
    }
    arena_release(&w.arena);
    return st;
}

static status steps(struct source *s, str run_id, struct arena *arena, struct step_shown **out,
                    size_t *count, struct error *err) {
    struct target t;
    yyjson_val *answer = NULL;
    run_target(&t, run_id, "/steps");
    status st = get(s, &t, arena, &answer, err);
    if (st == ST_OK) *out = view_read_all(&view_step, json_member(answer, "items"), arena, count);
    return st;
}

static status explain(struct source *s, str run_id, struct arena *arena, struct explanation *out,
                      struct error *err) {
    struct target t;
    run_target(&t, run_id, "/explain");
    return get_one(s, &t, &view_explanation, arena, out, err);
}

/* ---- events ---- */

static status causes(struct source *s, uuid event_id, size_t limit, struct arena *arena,
                     struct event_page *page, bool *more, struct error *err) {
    struct target t;
    yyjson_val *answer = NULL;
    char id[UUID_TEXT_LEN];
    uuid_format(event_id, id);
    target_init(&t, "/v1/events/");
    target_id(&t, str_n(id, sizeof(id)));
    target_path(&t, "/causes");
    target_query_int(&t, "limit", (int64_t)limit);
    status st = get(s, &t, arena, &answer, err);
    if (st != ST_OK) return st;
    page->records = view_read_all(&view_event, json_member(answer, "items"), arena, &page->count);
    *more = yyjson_is_true(json_member(answer, "more")) && page->count > 0;
    return ST_OK;
}

static status alerts(struct source *s, str run_id, struct page *page, struct arena *arena,
                     struct alert **out, struct error *err) {
    struct target t;
    target_init(&t, "/v1/alerts");
    target_query(&t, "runId", run_id);
    return get_page(s, &t, &view_alert, page, arena, out, err);
}

/* ---- maintenance ---- */

static status stats(struct source *s, struct ledger_stats *out, struct error *err) {
    struct target t;
    target_init(&t, "/v1/admin/stats");
    return get_one(s, &t, &view_stats, &s->cli->arena, out, err);
}

static status verify(struct source *s, bool state, ledger_progress progress, void *context,
                     struct arena *arena, struct verify_report *out, struct error *err) {
    struct target t;
    yyjson_val *answer = NULL;
    struct remote_body body = {"application/json", state ? STR("{\"state\":true}") : STR("{}")};
    UNUSED(progress); /* a server tells the end only */
    UNUSED(context);
    target_init(&t, "/v1/admin/verify");
    status st = remote_send(of(s), "POST", &t, &body, arena, &answer, err);
    if (st == ST_OK) view_read(&view_report, answer, arena, out);
    return st;
}

static status checkpoint(struct source *s, str run_id, struct arena *arena,
                         struct append_result *out, struct error *err) {
    struct target t;
    yyjson_val *answer = NULL;
    run_target(&t, run_id, "/checkpoints");
    status st = remote_send(of(s), "POST", &t, NULL, arena, &answer, err);
    if (st == ST_OK) view_read(&view_result, answer, arena, out);
    return st;
}

static status backup(struct source *s, str file, struct error *err) {
    struct target t;
    char mem[1024];
    struct buf body;
    yyjson_val *answer = NULL;
    size_t bad = 0;
    buf_init_fixed(&body, mem, sizeof(mem));
    json_object_begin(&body);
    if (str_utf8(file, &bad)) json_put_text(&body, "file", file);
    json_object_end(&body);
    if (body.full || body.len == 2)
        return cli_usage(err, "FILE is a plain name on the server: letters, digits, . - and _");
    target_init(&t, "/v1/admin/backup");
    return remote_send(of(s), "POST", &t, &(struct remote_body){"application/json", buf_str(&body)},
                       &s->cli->arena, &answer, err);
}

/* One request, unless the server is ended in the middle: another may follow it. */
static status archive(struct source *s, const struct archive_request *request,
                      ledger_progress progress, void *context, struct archive_report *out,
                      struct error *err) {
    struct target t;
    struct buf body;
    yyjson_val *answer = NULL;
    UNUSED(progress); /* a server tells the end only */
    UNUSED(context);
    buf_init(&body, BODY_BYTES_MAX);
    json_object_begin(&body);
    json_put_text_if(&body, "runId", request->run_id);
    json_put_time_if(&body, "before", request->until_us);
    json_put_int_if(&body, "limit", request->runs_max);
    json_object_end(&body);
    target_init(&t, "/v1/admin/archive");
    status st =
        remote_send(of(s), "POST", &t, &(struct remote_body){"application/json", buf_str(&body)},
                    &s->cli->arena, &answer, err);
    buf_release(&body);
    if (st != ST_OK) return st;
    *out = (struct archive_report){0};
    (void)json_int(json_member(answer, "runs"), &out->runs);
    (void)json_int(json_member(answer, "events"), &out->events);
    if (!yyjson_is_true(json_member(answer, "more"))) return ST_OK;
    return error_at(err, REASON_CLOSING, "", "the server is ending: there is more to archive");
}

/* ---- keys ---- */

/* A caller of one tenant makes keys of that tenant, whatever it is called. */
static status own_tenant(struct source *s, str *out, struct error *err) {
    struct target t;
    yyjson_val *answer = NULL;
    str tenant = STR_NONE;
    target_init(&t, "/v1/me");
    status st = get(s, &t, &s->cli->arena, &answer, err);
    if (st != ST_OK) return st;
    (void)json_str(json_member(answer, "tenantId"), &tenant);
    *out = str_eq(tenant, STR("*")) || !tenant.ptr ? STR("default") : tenant;
    return ST_OK;
}

static status key_create(struct source *s, struct api_key *key, struct arena *arena, str *text,
                         struct error *err) {
    struct target t;
    struct buf body;
    yyjson_val *answer = NULL;
    if (!args_has(&s->cli->args, OPT_TENANT)) {
        status st = own_tenant(s, &key->tenant_id, err);
        if (st != ST_OK) return st;
    }
    buf_init(&body, BODY_BYTES_MAX);
    json_object_begin(&body);
    json_put_text(&body, "name", key->name);
    json_put_text(&body, "tenantId", key->tenant_id);
    json_put_time_if(&body, "expiresAt", key->expires_us);
    json_name(&body, "roles");
    roles_json(key->roles, &body);
    json_object_end(&body);
    target_init(&t, "/v1/keys");
    status st =
        remote_send(of(s), "POST", &t, &(struct remote_body){"application/json", buf_str(&body)},
                    arena, &answer, err);
    buf_release(&body);
    if (st != ST_OK) return st;
    view_read(&view_key, answer, arena, key);
    (void)json_str(json_member(answer, "key"), text);
    return ST_OK;
}

static void key_target(struct target *t, str key_id) {
    target_init(t, "/v1/keys/");
    target_id(t, key_id);
}

static status key_find(struct source *s, str key_id, struct arena *arena, struct api_key *out,
                       struct error *err) {
    struct target t;
    key_target(&t, key_id);
    return get_one(s, &t, &view_key, arena, out, err);
}

static status key_list(struct source *s, str tenant_id, struct page *page, struct arena *arena,
                       struct api_key **keys, struct error *err) {
    struct target t;
    target_init(&t, "/v1/keys");
    target_query(&t, "tenantId", tenant_id);
    return get_page(s, &t, &view_key, page, arena, keys, err);
}

static status key_revoke(struct source *s, str key_id, struct error *err) {
    struct target t;
    yyjson_val *answer = NULL;
    key_target(&t, key_id);
    return remote_send(of(s), "DELETE", &t, NULL, &s->cli->arena, &answer, err);
}

static status audit_page(struct source *s, str tenant_id, struct page *page, struct arena *arena,
                         struct audit_entry **entries, struct error *err) {
    struct target t;
    target_init(&t, "/v1/audit");
    target_query(&t, "tenantId", tenant_id);
    return get_page(s, &t, &view_audit, page, arena, entries, err);
}

/* ---- effects ---- */

static void effect_target(struct target *t, uuid effect_id, const char *rest) {
    char id[UUID_TEXT_LEN];
    uuid_format(effect_id, id);
    target_init(t, "/v1/effects/");
    target_id(t, str_n(id, sizeof(id)));
    target_path(t, rest);
}

static status effect_list(struct source *s, const struct outbox_filter *filter, struct page *page,
                          struct arena *arena, struct effect_info **items, struct error *err) {
    struct target t;
    target_init(&t, "/v1/effects");
    target_query(&t, "tenantId", filter->tenant_id);
    target_query(&t, "runId", filter->run_id);
    target_query(&t, "effectType", filter->type);
    for (int k = OUTBOX_PENDING; k < OUTBOX_STATUS_COUNT; k++) {
        if (filter->statuses & 1U << k)
            target_query(&t, "status", str_c(outbox_status_name((enum outbox_status)k)));
    }
    return get_page(s, &t, &view_effect, page, arena, items, err);
}

static status effect_find(struct source *s, uuid id, struct arena *arena, struct effect_info *out,
                          struct error *err) {
    struct target t;
    effect_target(&t, id, "");
    return get_one(s, &t, &view_effect, arena, out, err);
}

/* The body is closed, sent and released here. */
static status send_body(struct source *s, const struct target *t, struct buf *body,
                        struct arena *arena, yyjson_val **answer, struct error *err) {
    struct remote_body sent = {"application/json", STR_NONE};
    json_object_end(body);
    sent.bytes = buf_str(body);
    status st = body->full ? error_at(err, REASON_BODY_TOO_LARGE, "", "that is too much")
                           : remote_send(of(s), "POST", t, &sent, arena, answer, err);
    buf_release(body);
    return st;
}

/* (The actor of a request is whoever the server takes us for.) */
static status effect_request(struct source *s, const struct effect_request *request,
                             struct arena *arena, struct effect_info *out, bool *existing,
                             struct error *err) {
    struct target t;
    struct buf body;
    yyjson_val *answer = NULL;
    run_target(&t, request->run_id, "/effects");
    buf_init(&body, EVENT_BYTES_MAX + (size_t)BODY_BYTES_MAX);
    json_object_begin(&body);
    json_put_text(&body, "effectType", request->type);
    json_put_text_if(&body, "stepId", request->step_id);
    json_put_json(&body, "payload", request->payload);
    status st = send_body(s, &t, &body, arena, &answer, err);
    if (st != ST_OK) return st;
    view_read(&view_effect, answer, arena, out);
    *existing = yyjson_is_true(json_member(answer, "existing"));
    return ST_OK;
}

static status effect_requeue(struct source *s, uuid id, str actor, str reason, struct arena *arena,
                             struct effect_info *out, struct error *err) {
    struct target t;
    struct buf body;
    yyjson_val *answer = NULL;
    UNUSED(actor);
    effect_target(&t, id, "/requeue");
    buf_init(&body, BODY_BYTES_MAX);
    json_object_begin(&body);
    json_put_text_if(&body, "reason", reason);
    status st = send_body(s, &t, &body, arena, &answer, err);
    if (st == ST_OK) view_read(&view_effect, answer, arena, out);
    return st;
}

static status effect_requeue_all(struct source *s, struct requeue_lot *lot, struct error *err) {
    struct target t;
    struct buf body;
    yyjson_val *answer = NULL;
    int64_t done = 0;
    target_init(&t, "/v1/effects/requeue");
    buf_init(&body, BODY_BYTES_MAX);
    json_object_begin(&body);
    json_put_int(&body, "limit", (int64_t)lot->limit);
    json_put_text_if(&body, "tenantId", lot->filter.tenant_id);
    json_put_text_if(&body, "runId", lot->filter.run_id);
    json_put_text_if(&body, "effectType", lot->filter.type);
    json_put_text_if(&body, "reason", lot->reason);
    status st = send_body(s, &t, &body, &s->cli->arena, &answer, err);
    if (st != ST_OK) return st;
    (void)json_int(json_member(answer, "requeued"), &done);
    lot->done = (size_t)done;
    lot->more = yyjson_is_true(json_member(answer, "more"));
    return ST_OK;
}

static void close_remote(struct source *s) { UNUSED(s); }

static const struct source_ops remote_ops = {
    .find_run = find_run,
    .list_runs = list_runs,
    .resolve = resolve,
    .resolve_ref = resolve_ref,
    .replay = replay,
    .walk = walk_run,
    .steps = steps,
    .explain = explain,
    .causes = causes,
    .alerts = alerts,
    .stats = stats,
    .verify = verify,
    .checkpoint = checkpoint,
    .backup = backup,
    .archive = archive,
    .key_create = key_create,
    .key_find = key_find,
    .key_list = key_list,
    .key_revoke = key_revoke,
    .audit = audit_page,
    .effect_list = effect_list,
    .effect_find = effect_find,
    .effect_request = effect_request,
    .effect_requeue = effect_requeue,
    .effect_requeue_all = effect_requeue_all,
    .close = close_remote,
};

struct source *source_of_remote(struct cli *cli, struct remote *remote) {
    struct remote_source *s = ARENA_NEW(&cli->arena, struct remote_source);
    *s = (struct remote_source){.source = {&remote_ops, cli}, .remote = remote};
    return &s->source;
}
