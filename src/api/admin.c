/* api/admin.c: care of the ledger: statistics, verify, backup, what this process does. */
#include <sys/stat.h>
#include <unistd.h>

#include "api/impl.h"
#include "base/os.h"

enum { BACKUP_NAME_MAX = 100 };

struct admin_call {
    bool state;
    str file;
    str path;
    int64_t bytes;
};

static void put_stats(struct buf *out, const struct ledger_stats *s) {
    put_int(out, "tenants", s->tenants);
    put_int(out, "runs", s->runs);
    put_int(out, "openRuns", s->open_runs);
    put_int(out, "events", s->events);
    put_int(out, "alerts", s->alerts);
    put_int(out, "rejections", s->rejections);
    put_int(out, "checkpoints", s->checkpoints);
    put_int(out, "bytes", s->bytes);
}

static status load_stats(struct call *c, struct ledger *reader, struct error *err) {
    struct ledger_stats stats;
    status st = ledger_stats(reader, &stats, err);
    if (st != ST_OK) return st;
    buf_put_char(&c->out, '{');
    put_stats(&c->out, &stats);
    buf_put_char(&c->out, '}');
    return ST_OK;
}

static bool has_no_query(struct call *c) {
    struct error err = {0};
    if (query_none(c, &err) == ST_OK) return true;
    call_fail(c, &err);
    return false;
}

static void get_stats(struct call *c) {
    if (has_no_query(c)) call_read(c, load_stats, NULL);
}

static void get_status(struct call *c) {
    struct api *api = c->api;
    struct engine_stats engine = {0};
    struct http_stats http = {0};
    if (!has_no_query(c)) return;
    if (api->options.engine) engine_stats(api->options.engine, &engine);
    if (api->server) http_server_stats(api->server, &http);
    buf_put_char(&c->out, '{');
    put_text(&c->out, "version", api->options.version);
    put_text(&c->out, "node", api->options.node);
    put_int(&c->out, "pid", getpid());
    put_int(&c->out, "runs", (int64_t)engine.resident);
    put_int(&c->out, "attempts", (int64_t)engine.attempts);
    put_int(&c->out, "tasks", (int64_t)engine.tasks);
    put_int(&c->out, "polls", (int64_t)engine.polls);
    put_int(&c->out, "connections", (int64_t)http.connections);
    put_int(&c->out, "requests", (int64_t)api->call_count);
    put_int(&c->out, "streams", (int64_t)hub_streams(api->hub));
    buf_put_char(&c->out, '}');
    call_answer(c, 200);
}

/* ---- verify ---- */

static const struct field verify_fields[] = {
    {"state", FIELD_BOOL, FIELD(struct admin_call, state), false, 0, 0}};

static status verify(struct call *c, struct ledger *reader, struct error *err) {
    struct admin_call *a = c->own;
    struct verify_report report = {0};
    status st = ledger_verify(reader, a->state, NULL, NULL, &c->arena, &report, err);
    if (st != ST_OK) return st;
    buf_put_char(&c->out, '{');
    put_bool(&c->out, "damaged", report.damaged);
    put_int(&c->out, "events", report.events);
    put_int(&c->out, "runs", report.runs);
    put_bool(&c->out, "state", a->state);
    if (report.damaged) {
        put_text(&c->out, "what", str_c(report.what));
        put_text_if(&c->out, "tenantId", report.tenant_id);
        if (report.seq > 0) put_int(&c->out, "sequenceNumber", report.seq);
        put_text_if(&c->out, "runId", report.run_id);
    }
    buf_put_char(&c->out, '}');
    return ST_OK;
}

/* A verify and a backup are long and hold a reader each: one at a time, or nobody else could ask,
 * nor a key be checked. */
static void verify_over(struct call *c) { c->api->verifying = false; }

static void refuse_busy(struct call *c) {
    call_refuse(c, ST_CONFLICT, "VERIFY_UNDER_WAY", "",
                "the ledger is being verified or backed up already");
}

static void post_verify(struct call *c) {
    struct error err = {0};
    struct admin_call *a = ARENA_NEW(&c->arena, struct admin_call);
    c->own = a;
    if (!has_no_query(c)) return;
    if (c->request->body.len > 0 &&
        body_read(c, verify_fields, COUNT_OF(verify_fields), a, NULL, &err) != ST_OK) {
        call_fail(c, &err);
    } else if (c->api->verifying) {
        refuse_busy(c);
    } else {
        c->api->verifying = true;
        c->ended = verify_over;
        call_read(c, verify, NULL);
    }
}

/* ---- backup ---- */

static const struct field backup_fields[] = {
    {"file", FIELD_TEXT, FIELD(struct admin_call, file), true, 1, BACKUP_NAME_MAX}};

/* A plain name: letters, digits, '.', '-', '_', and no dot in front. */
static bool name_is_plain(str name) {
    for (size_t i = 0; i < name.len; i++) {
        char ch = name.ptr[i];
        bool plain = (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') ||
                     (ch >= '0' && ch <= '9') || ch == '-' || ch == '_' || (ch == '.' && i > 0);
        if (!plain) return false;
    }
    return name.len > 0;
}

static status backup(struct call *c, struct ledger *reader, struct error *err) {
    struct admin_call *a = c->own;
    struct stat info;
    if (c->api->options.data_dir.len > 900) /* call_text() would cut it */
        return error_at(err, ST_LIMIT, "BACKUP_FAILED", "", "the data folder's path is too long");
    str folder = call_text(c, "%.*s/backups", STR_ARG(c->api->options.data_dir));
    if (mkdir(folder.ptr, 0700) != 0 && access(folder.ptr, W_OK) != 0)
        return error_at(err, ST_RETRY, "BACKUP_FAILED", "", "could not make \"%s\"", folder.ptr);
    a->path = call_text(c, "%s/%.*s", folder.ptr, STR_ARG(a->file));
    if (access(a->path.ptr, F_OK) == 0)
        return error_at(err, ST_CONFLICT, "FILE_EXISTS", "/file", "there is a backup of that name");
    status st = ledger_backup(reader, a->path, err);
    if (st != ST_OK) return st;
    if (stat(a->path.ptr, &info) == 0) a->bytes = info.st_size;
    buf_put_char(&c->out, '{');
    put_text(&c->out, "file", a->file);
    put_int(&c->out, "bytes", a->bytes);
    buf_put_char(&c->out, '}');
    return ST_OK;
}

static status note_backup(struct call *c, struct ledger *ledger, struct error *err) {
    struct admin_call *a = c->own;
    return access_ride(ledger, call_riders(c, a->file, STR_NONE, 201, false), err);
}

static void answer_backup(struct call *c) { call_answer(c, 201); }
static void backed_up(struct call *c) { call_change(c, note_backup, answer_backup); }

static void post_backup(struct call *c) {
    struct error err = {0};
    struct admin_call *a = ARENA_NEW(&c->arena, struct admin_call);
    c->own = a;
    if (!has_no_query(c)) return;
    if (c->api->options.other_writers)
        call_refuse(c, ST_LIMIT, "BACKUP_UNSUPPORTED", "",
                    "a ledger on PostgreSQL is backed up with pg_dump");
    else if (body_read(c, backup_fields, COUNT_OF(backup_fields), a, NULL, &err) != ST_OK)
        call_fail(c, &err);
    else if (!name_is_plain(a->file))
        call_refuse(c, ST_INVALID, "FILE_NAME_INVALID", "/file",
                    "expected a plain name of letters, digits, '.', '-' and '_'");
    else if (c->api->verifying)
        refuse_busy(c);
    else {
        c->api->verifying = true;
        c->ended = verify_over;
        call_read(c, backup, backed_up);
    }
}

static const struct route routes[] = {
    {"GET", "/v1/admin/stats", "admin.stats", ROLE_ADMIN, ROUTE_PLATFORM, get_stats},
    {"GET", "/v1/admin/status", "admin.status", ROLE_ADMIN, ROUTE_PLATFORM, get_status},
    {"POST", "/v1/admin/verify", "admin.verify", ROLE_ADMIN, ROUTE_PLATFORM | ROUTE_NO_RECEIPT,
     post_verify},
    {"POST", "/v1/admin/backup", "admin.backup", ROLE_ADMIN, ROUTE_PLATFORM | ROUTE_CHANGES,
     post_backup},
};
const struct route_table admin_routes = {routes, COUNT_OF(routes)};
