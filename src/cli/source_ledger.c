/* cli/source_ledger.c: a source that is a ledger, opened by this process. And choosing one. */
#include "api/auth.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/time.h"
#include "cli/remote.h"
#include "cli/source.h"
#include "db/db.h"
#include "ledger/reference.h"
#include "server/outbox_env.h"

#define REPORT_ACTOR STR("local")
enum { REQUEUE_LOT = 32 };

struct ledger_source {
    struct source source;
    struct ledger *ledger;
    bool owned;
};

static struct ledger *of(struct source *s) { return ((struct ledger_source *)s)->ledger; }

/* Our cursors are numbers: "17" or "17.4". */
static status read_cursor(str cursor, int64_t *a, int64_t *b, struct error *err) {
    str first = cursor;
    str second = STR_NONE;
    *a = *b = 0;
    if (!cursor.ptr) return ST_OK;
    bool two = str_split(cursor, '.', &first, &second);
    if (str_to_int(first, a) && *a > 0 && (!two || str_to_int(second, b))) return ST_OK;
    return cli_usage(err, "--before must be a whole number from 1, found \"%.*s\"",
                     STR_ARG(cursor));
}

/* ---- runs ---- */

static status find_run(struct source *s, str run_id, struct arena *arena, struct run_info *out,
                       struct error *err) {
    return ledger_find_run(of(s), run_id, arena, out, err);
}

static status list_runs(struct source *s, const struct run_filter *filter, struct page *page,
                        struct arena *arena, struct run_info **runs, struct error *err) {
    struct run_filter f = *filter;
    int64_t before = 0;
    int64_t unused = 0;
    status st = read_cursor(page->cursor, &f.before_run_no, &unused, err);
    page->cursor = STR_NONE;
    if (st == ST_OK)
        st = ledger_list_runs(of(s), &f, page->limit, arena, runs, &page->count, &before, err);
    if (st == ST_OK && before > 0) page->cursor = cli_text(s->cli, "%lld", (long long)before);
    return st;
}

static status resolve(struct source *s, str tenant_id, str provider, str workflow_id,
                      str provider_run_id, struct arena *arena, struct run_info *out,
                      struct error *err) {
    return ledger_find_provider(of(s), tenant_id, provider, workflow_id, provider_run_id, arena,
                                out, err);
}

static status resolve_ref(struct source *s, const struct engine_run_ref *ref, struct arena *arena,
                          struct run_info *out, struct error *err) {
    return run_ref_resolve(of(s), ref, arena, out, err);
}

static status replay(struct source *s, str run_id, int64_t at, struct arena *arena, struct run *out,
                     struct error *err) {
    return ledger_replay(of(s), run_id, at, true, arena, out, NULL, err);
}

static status walk_run(struct source *s, const struct run_info *run, ledger_walk walk,
                       void *context, struct error *err) {
    return ledger_walk_run(of(s), run, 0, walk, context, err);
}

static status steps(struct source *s, str run_id, struct arena *arena, struct step_shown **out,
                    size_t *count, struct error *err) {
    struct run_view view;
    int64_t now = clock_wall_us();
    status st = run_view_load(of(s), run_id, arena, &view, err);
    if (st != ST_OK) return st;
    *out = ARENA_ARRAY(arena, struct step_shown, (size_t)view.run.step_count + 1);
    *count = 0;
    for (uint32_t i = 0; i < view.run.step_count; i++) {
        if (view.steps[i].state != STEP_MENTIONED)
            step_show(&view.steps[i], now, &(*out)[(*count)++]);
    }
    return ST_OK;
}

static status explain(struct source *s, str run_id, struct arena *arena, struct explanation *out,
                      struct error *err) {
    return explain_run(of(s), run_id, clock_wall_us(), arena, out, err);
}

/* ---- events ---- */

static status causes(struct source *s, uuid event_id, size_t limit, struct arena *arena,
                     struct event_page *page, bool *more, struct error *err) {
    return ledger_causes(of(s), event_id, limit, arena, page, more, err);
}

static status alerts(struct source *s, str run_id, struct page *page, struct arena *arena,
                     struct alert **out, struct error *err) {
    int64_t run_no = 0;
    int64_t seq = 0;
    status st = read_cursor(page->cursor, &run_no, &seq, err);
    page->cursor = STR_NONE;
    if (st == ST_OK)
        st = ledger_list_alerts(
            of(s),
            &(struct alert_query){
                .run_id = run_id, .before_run_no = run_no, .before_seq = seq, .limit = page->limit},
            arena, out, &page->count, err);
    if (st != ST_OK || page->count < page->limit) return st;
    const struct alert *last = &(*out)[page->count - 1];
    page->cursor = cli_text(s->cli, "%lld.%lld", (long long)last->run_no, (long long)last->seq);
    return ST_OK;
}

/* ---- maintenance ---- */

static status stats(struct source *s, struct ledger_stats *out, struct error *err) {
    return ledger_stats(of(s), out, err);
}

static status verify(struct source *s, bool state, ledger_progress progress, void *context,
                     struct arena *arena, struct verify_report *out, struct error *err) {
    return ledger_verify(of(s), state, progress, context, arena, out, err);
}

static status checkpoint(struct source *s, str run_id, struct arena *arena,
                         struct append_result *out, struct error *err) {
    return ledger_checkpoint(of(s), run_id, out, arena, err);
}

static status backup(struct source *s, str file, struct error *err) {
    return ledger_backup(of(s), file, err);
}

static status archive(struct source *s, const struct archive_request *request,
                      ledger_progress progress, void *context, struct archive_report *out,
                      struct error *err) {
    return ledger_archive(of(s), request, progress, context, out, err);
}

/* ---- keys ---- */

/* What the API would have written down of the same request. */
static void fill_audit(str tenant_id, str target, const char *action, struct audit_entry *out) {
    *out = (struct audit_entry){.tenant_id = tenant_id,
                                .actor = REPORT_ACTOR,
                                .remote = STR("cli"),
                                .request_id = STR("-"),
                                .action = str_c(action),
                                .target = target,
                                .outcome = STR("done")};
}

static status key_create(struct source *s, struct api_key *key, struct arena *arena, str *text,
                         struct error *err) {
    char id[KEY_ID_LEN];
    char shown[KEY_TEXT_LEN + 1];
    struct audit_entry audit;
    if (key->expires_us > 0 && key->expires_us <= clock_wall_us())
        return error_at(err, REASON_TIME_IN_THE_PAST, "/expiresAt", "is not in the future");
    auth_key_make(id, key->hash, shown);
    key->key_id = arena_str(arena, str_n(id, sizeof(id)));
    key->created_us = clock_wall_us();
    key->created_by = REPORT_ACTOR;
    key->version = 1;
    fill_audit(key->tenant_id, key->key_id, "key.create", &audit);
    struct append_rider rider = {.audit = &audit};
    status st = api_key_create(of(s), key, &rider, err);
    if (st == ST_OK) *text = arena_str(arena, str_n(shown, KEY_TEXT_LEN));
    return st;
}

static status key_find(struct source *s, str key_id, struct arena *arena, struct api_key *out,
                       struct error *err) {
    status st = api_key_find(of(s), key_id, arena, out, err);
    if (st != ST_NOT_FOUND) return st;
    return error_at(err, REASON_KEY_NOT_FOUND, "", "there is no key \"%.*s\"", STR_ARG(key_id));
}

static status key_list(struct source *s, str tenant_id, struct page *page, struct arena *arena,
                       struct api_key **keys, struct error *err) {
    status st =
        api_key_list(of(s), tenant_id, page->cursor, page->limit, arena, keys, &page->count, err);
    page->cursor = STR_NONE;
    if (st == ST_OK && page->count == page->limit)
        page->cursor = arena_str(&s->cli->arena, (*keys)[page->count - 1].key_id);
    return st;
}

static status key_revoke(struct source *s, str key_id, struct error *err) {
    struct api_key key;
    struct audit_entry audit;
    status st = key_find(s, key_id, &s->cli->arena, &key, err);
    if (st != ST_OK || key.revoked_us > 0) return st;
    key.revoked_us = clock_wall_us();
    fill_audit(key.tenant_id, key.key_id, "key.revoke", &audit);
    struct append_rider rider = {.audit = &audit};
    return api_key_update(of(s), &key, &rider, err);
}

static status audit_page(struct source *s, str tenant_id, struct page *page, struct arena *arena,
                         struct audit_entry **entries, struct error *err) {
    int64_t before = 0;
    int64_t unused = 0;
    status st = read_cursor(page->cursor, &before, &unused, err);
    page->cursor = STR_NONE;
    if (st == ST_OK)
        st = audit_list(of(s), tenant_id, before, page->limit, arena, entries, &page->count, err);
    if (st == ST_OK && page->count == page->limit)
        page->cursor = cli_text(s->cli, "%lld", (long long)(*entries)[page->count - 1].audit_no);
    return st;
}

/* ---- effects ---- */

static status effect_list(struct source *s, const struct outbox_filter *filter, struct page *page,
                          struct arena *arena, struct effect_info **items, struct error *err) {
    struct outbox_filter f = *filter;
    int64_t before = 0;
    int64_t unused = 0;
    status st = read_cursor(page->cursor, &f.before, &unused, err);
    page->cursor = STR_NONE;
    if (st == ST_OK)
        st = outbox_list(of(s), &f, page->limit, arena, items, &page->count, &before, err);
    if (st == ST_OK && before > 0) page->cursor = cli_text(s->cli, "%lld", (long long)before);
    return st;
}

static status effect_find(struct source *s, uuid id, struct arena *arena, struct effect_info *out,
                          struct error *err) {
    return outbox_find(of(s), STR_NONE, id, arena, out, err);
}

struct effect_rider {
    str actor, reason;
    char target[UUID_TEXT_LEN];
    struct audit_entry audit;
    struct append_rider rider;
};

static const struct append_rider *effect_audit(struct effect_rider *r, uuid id, const char *action,
                                               const struct effect_info *info) {
    uuid_format(id, r->target);
    fill_audit(info->tenant_id, str_n(r->target, sizeof(r->target)), action, &r->audit);
    if (r->actor.ptr) r->audit.actor = r->actor;
    r->audit.reason = r->reason;
    r->audit.run_id = info->run_id;
    r->audit.project_id = info->project_id;
    r->audit.environment_id = info->environment_id;
    r->audit.engine_attempt = info->engine_attempt;
    r->audit.logical_attempt = 1;
    r->rider = (struct append_rider){.audit = &r->audit};
    return &r->rider;
}

static status effect_request(struct source *s, const struct effect_request *request,
                             struct arena *arena, struct effect_info *out, bool *existing,
                             struct error *err) {
    struct effect_rider r = {.actor = request->actor};
    struct effect_request q = *request;
    struct run_info run = {0};
    q.run = &run;
    const struct effect_retry *own = NULL;
    uuid id = uuid_v4();
    status st = effect_retries_env(&s->cli->arena, &own, err);
    if (st != ST_OK) return st;
    outbox_retries(of(s), own);
    st = ledger_find_run(of(s), q.run_id, arena, &run, err);
    if (st == ST_NOT_FOUND)
        return error_at(err, REASON_RUN_NOT_FOUND, "", "there is no run \"%.*s\"",
                        STR_ARG(q.run_id));
    if (st != ST_OK) return st;
    struct effect_info about = {.run_id = run.run_id,
                                .tenant_id = run.tenant_id,
                                .project_id = run.project_id,
                                .environment_id = run.environment_id,
                                .engine_attempt = run.head.engine_attempt};
    q.id = &id;
    if (!q.actor.ptr) q.actor = REPORT_ACTOR;
    static const struct append_rider none = {0};
    q.riders = effect_audit(&r, id, "effect.request", &about);
    q.riders_again = &none; /* what finds an effect changes nothing */
    return outbox_request(of(s), &q, arena, out, existing, err);
}

static status effect_requeue(struct source *s, uuid id, str actor, str reason, struct arena *arena,
                             struct effect_info *out, struct error *err) {
    struct effect_rider r = {.actor = actor, .reason = reason};
    status st = effect_find(s, id, arena, out, err);
    if (st == ST_OK)
        st = outbox_requeue(of(s), STR_NONE, id, actor.ptr ? actor : REPORT_ACTOR, reason,
                            effect_audit(&r, id, "effect.requeue", out), err);
    return st == ST_OK ? effect_find(s, id, arena, out, err) : st;
}

static const struct append_rider *lot_audit(void *context, const struct effect_info *info,
                                            struct arena *arena) {
    const struct effect_rider *all = context;
    struct effect_rider *r = ARENA_NEW(arena, struct effect_rider);
    *r = *all;
    return effect_audit(r, info->effect.id, "effect.requeue", info);
}

static status effect_requeue_all(struct source *s, struct requeue_lot *lot, struct error *err) {
    struct effect_rider r = {.actor = lot->actor, .reason = lot->reason};
    struct requeue_lot part = *lot;
    if (!part.actor.ptr) part.actor = REPORT_ACTOR;
    part.riders = lot_audit;
    part.context = &r;
    status st = ST_OK;
    lot->done = 0;
    do { /* in lots, for the payloads are read, too */
        size_t rest = lot->limit - lot->done;
        part.limit = rest < REQUEUE_LOT ? rest : REQUEUE_LOT;
        st = outbox_requeue_lot(of(s), &part, err);
        lot->done += part.done;
    } while (st == ST_OK && part.more && lot->done < lot->limit);
    lot->more = part.more;
    return st;
}

/* ---- opening ---- */

static void close_ledger(struct source *s) {
    struct ledger_source *own = (struct ledger_source *)s;
    if (own->owned) ledger_close(own->ledger);
}

static const struct source_ops ledger_ops = {
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
    .close = close_ledger,
};

struct source *source_of_ledger(struct cli *cli, struct ledger *ledger) {
    struct ledger_source *s = ARENA_NEW(&cli->arena, struct ledger_source);
    *s = (struct ledger_source){.source = {&ledger_ops, cli}, .ledger = ledger};
    return &s->source;
}

static status open_ledger(struct cli *cli, enum source_use use, struct source **out,
                          struct error *err) {
    struct ledger *ledger = NULL;
    status st = use == SOURCE_READ     ? store_read(cli, &ledger, err)
                : use == SOURCE_CHANGE ? store_change(cli, &ledger, err)
                                       : store_write(cli, LEDGER_REJECT, &ledger, err);
    if (st != ST_OK) return st;
    *out = source_of_ledger(cli, ledger);
    ((struct ledger_source *)*out)->owned = true;
    return ST_OK;
}

status source_open(struct cli *cli, enum source_use use, struct source **out, struct error *err) {
    struct remote *remote = NULL;
    struct error nobody;
    str url = STR_NONE;
    if (remote_is_named(cli)) {
        status st = remote_open(cli, &remote, err);
        if (st == ST_OK) *out = source_of_remote(cli, remote);
        return st;
    }
    status st = store_url(cli, &url, err);
    if (st != ST_OK) return st;
    if (use == SOURCE_READ || db_url_is_postgres(url) ||
        remote_open_folder(cli, store_folder(cli), &remote, &nobody) != ST_OK)
        return open_ledger(cli, use, out, err);
    *out = source_of_remote(cli, remote);
    return ST_OK;
}

status source_run_word(struct cli *cli, str *word, struct error *err) {
    struct engine_run_ref ref;
    struct run_info run;
    struct source *source = NULL;
    if (word->len == 0 || word->ptr[0] != '{') return ST_OK;
    status st = run_ref_parse(*word, &cli->arena, &ref, err);
    if (st != ST_OK) return error_wrap(err, "RUN");
    st = source_open(cli, SOURCE_READ, &source, err);
    if (st == ST_OK) st = source->ops->resolve_ref(source, &ref, &cli->arena, &run, err);
    source_close(source);
    if (st == ST_OK) *word = ref.run_id;
    return st;
}

void source_close(struct source *s) {
    if (s) s->ops->close(s);
}
