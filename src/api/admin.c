/* api/admin.c: maintenance of the ledger: statistics, verify, backup, archive, what this process does. */
#include <sys/stat.h>
#include <unistd.h>

#include "api/impl.h"
#include "base/os.h"
#include "base/time.h"

enum { BACKUP_NAME_MAX = 100 };

struct admin_call {
    bool state;
    str file;
    str path;
    bool there; /* the file, from a first time that was not answered */
    int64_t bytes;
    str answer; /* of a first time that was; or STR_NONE */
    struct archive_request archive;
    struct archive_at at;
    str reason;
};

static status load_stats(struct call *c, struct ledger *reader, struct error *err) {
    struct ledger_stats stats;
    status st = ledger_stats(reader, &stats, err);
    if (st == ST_OK) view_write(&view_stats, &stats, &c->out);
    return st;
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
    if (api->engine) engine_stats(api->engine, &engine);
    if (api->server) http_server_stats(api->server, &http);
    struct node_shown node = {.version = api->options.version,
                              .node = api->options.node,
                              .pid = getpid(),
                              .runs = (int64_t)engine.resident,
                              .attempts = (int64_t)engine.attempts,
                              .tasks = (int64_t)engine.tasks,
                              .polls = (int64_t)engine.polls,
                              .connections = (int64_t)http.connections,
                              .requests = (int64_t)api->call_count,
                              .streams = (int64_t)hub_streams(api->hub)};
    view_write(&view_node, &node, &c->out);
    call_answer(c, 200);
}

/* ---- verify ---- */

static const struct field verify_fields[] = {
    {"state", FIELD_BOOL, FIELD(struct admin_call, state), false, 0, 0}};

static status verify(struct call *c, struct ledger *reader, struct error *err) {
    struct admin_call *a = c->own;
    struct verify_report report = {0};
    status st = ledger_verify(reader, a->state, NULL, NULL, &c->arena, &report, err);
    if (st == ST_OK) view_write(&view_report, &report, &c->out);
    return st;
}

/* A verify and a backup are long and hold a reader each: one at a time, or nobody else could ask,
 * nor a key be checked. */
static void verify_over(struct call *c) { c->api->verifying = false; }

static void refuse_busy(struct call *c) {
    call_refuse(c, REASON_VERIFY_UNDER_WAY, "",
                "the ledger is being verified or backed up already");
}

static void answer_ok(struct call *c) { call_answer(c, 200); }

/* Nothing changed, but it took its time: a repeated request gets these findings. */
static void verified(struct call *c) {
    (void)call_receipt(c, 200, false);
    call_ride(c, answer_ok);
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
        c->api->verifying = c->may_stop = true;
        c->ended = verify_over;
        call_read(c, verify, verified);
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

static status find_folder(struct call *c, str *folder, struct error *err) {
    if (c->api->options.data_dir.len > 900) /* call_text() would cut it */
        return error_as(err, ST_LIMIT, REASON_BACKUP_FAILED, "",
                        "the data folder's path is too long");
    *folder = call_text(c, "%.*s/backups", STR_ARG(c->api->options.data_dir));
    if (mkdir(folder->ptr, 0700) != 0 && access(folder->ptr, W_OK) != 0)
        return error_at(err, REASON_BACKUP_FAILED, "", "could not make \"%s\"", folder->ptr);
    return ST_OK;
}

/* The file cannot be part of a commit. So a request with a key leaves a receipt without an answer
 * before it begins, and one with the answer in the end. If only the first is there, the file says
 * how far it came: it gets its name when it is complete and verified. But when the first time came
 * to nothing, another request may have made it: that is in the audit trail since. */
static status find_maker(struct call *c, struct ledger *reader, int64_t since_us, bool *found,
                         struct error *err) {
    const struct admin_call *a = c->own;
    struct audit_entry *page = NULL;
    struct arena arena;
    int64_t before_no = 0;
    size_t count = AUDIT_PAGE_MAX;
    status st = ST_OK;
    arena_init(&arena, (size_t)64 * 1024, (size_t)64 * 1024 * 1024);
    while (st == ST_OK && !*found && count == AUDIT_PAGE_MAX) {
        arena_reset(&arena);
        st = audit_list(reader, STR_NONE, before_no, AUDIT_PAGE_MAX, &arena, &page, &count, err);
        for (size_t i = 0; st == ST_OK && i < count; i++) {
            before_no = page[i].audit_no;
            if (page[i].at_us < since_us)
                count = 0;
            else if (str_eq(page[i].action, str_c(c->route->name)) &&
                     str_eq(page[i].target, a->file) && str_eq(page[i].outcome, STR("done")))
                *found = true;
        }
    }
    arena_release(&arena);
    return st;
}

static status look_for_backup(struct call *c, struct ledger *reader, struct error *err) {
    struct admin_call *a = c->own;
    struct receipt *found = NULL;
    size_t count = 0;
    struct stat info;
    str folder = STR_NONE;
    status st = c->before ? call_receipts(c, reader, &found, &count, err) : ST_OK;
    if (st == ST_OK) st = find_folder(c, &folder, err);
    if (st != ST_OK) return st;
    for (size_t i = 0; i < count; i++) {
        if (found[i].body.ptr) a->answer = found[i].body;
    }
    a->path = call_text(c, "%s/%.*s", folder.ptr, STR_ARG(a->file));
    a->there = stat(a->path.ptr, &info) == 0;
    if (a->there) a->bytes = info.st_size;
    bool others = a->there && count == 0;
    if (a->there && count > 0 && !a->answer.ptr)
        st = find_maker(c, reader, found[0].created_us, &others, err);
    if (st == ST_OK && others)
        st = error_at(err, REASON_FILE_EXISTS, "/file", "there is a backup of that name");
    return st;
}

static status backup(struct call *c, struct ledger *reader, struct error *err) {
    struct admin_call *a = c->own;
    struct stat info;
    status st = ledger_backup(reader, a->path, err);
    if (st == ST_OK && stat(a->path.ptr, &info) == 0) a->bytes = info.st_size;
    return st;
}

static void answer_backup(struct call *c) { call_answer(c, 201); }

static void backed_up(struct call *c) {
    struct admin_call *a = c->own;
    json_object_begin(&c->out);
    json_put_text(&c->out, "file", a->file);
    json_put_int(&c->out, "bytes", a->bytes);
    json_object_end(&c->out);
    c->before = NULL; /* that was only the beginning */
    (void)call_riders(c, a->file, STR_NONE, 201, false);
    call_ride(c, answer_backup);
}

static void copy_now(struct call *c) { call_read(c, backup, backed_up); }

static void begin_backup(struct call *c) {
    struct admin_call *a = c->own;
    if (a->answer.ptr) {
        buf_put(&c->out, a->answer);
        call_answer(c, 201);
    } else if (a->there) {
        backed_up(c);
    } else {
        (void)call_receipt(c, 201, true);
        call_ride(c, copy_now);
    }
}

static void post_backup(struct call *c) {
    struct error err = {0};
    struct admin_call *a = ARENA_NEW(&c->arena, struct admin_call);
    c->own = a;
    if (!has_no_query(c)) return;
    if (c->api->options.other_writers)
        call_refuse(c, REASON_BACKUP_UNSUPPORTED, "",
                    "a ledger on PostgreSQL is backed up with pg_dump");
    else if (body_read(c, backup_fields, COUNT_OF(backup_fields), a, NULL, &err) != ST_OK)
        call_fail(c, &err);
    else if (!name_is_plain(a->file))
        call_refuse(c, REASON_FILE_NAME_INVALID, "/file",
                    "expected a plain name of letters, digits, '.', '-' and '_'");
    else if (c->api->verifying)
        refuse_busy(c);
    else {
        c->api->verifying = c->may_stop = true;
        c->ended = verify_over;
        call_read(c, look_for_backup, begin_backup);
    }
}

/* ---- archive ----
 *
 * Batch by batch, and what others want from the ledger in between. Who asked is written down with
 * the first batch. There is a receipt when all is done: before that, a repeated request goes on. */

#define ARCHIVE(member) FIELD(struct admin_call, archive.member)
static const struct field archive_fields[] = {
    {"before", FIELD_TIME, ARCHIVE(until_us), false, 0, 0},
    {"runId", FIELD_TEXT, ARCHIVE(run_id), false, 1, 0},
    {"limit", FIELD_INT, ARCHIVE(runs_max), false, 1, NUMBER_MAX},
    {"reason", FIELD_TEXT, FIELD(struct admin_call, reason), false, 0, AUDIT_REASON_MAX},
};

static void archive_over(struct call *c) { c->api->archiving = false; }

/* Alone, not in a group: it moves thousands of rows, and nobody else's commit shall wait for that or
 * fail with it. */
static status archive_batch(struct call *c, struct ledger *ledger, struct error *err) {
    struct admin_call *a = c->own;
    return ledger_archive_batch(ledger, &a->archive, &a->at, err);
}

static void archived(struct call *c) {
    struct admin_call *a = c->own;
    if (!a->at.done && !c->api->draining) {
        call_alone(c, archive_batch, archived);
        return;
    }
    json_object_begin(&c->out);
    json_put_int(&c->out, "runs", a->at.report.runs);
    json_put_int(&c->out, "events", a->at.report.events);
    json_put_bool(&c->out, "more", !a->at.done);
    json_object_end(&c->out);
    (void)call_receipt(c, 200, false);
    if (!a->at.done) c->rider.receipt = NULL;
    call_ride(c, answer_ok);
}

static void begin_archive(struct call *c) {
    struct admin_call *a = c->own;
    char time[TIME_TEXT_MAX];
    str target = a->archive.run_id.ptr ? a->archive.run_id : STR("*");
    if (!a->archive.run_id.ptr && a->archive.until_us > 0)
        target = arena_str(&c->arena, str_n(time, time_format_us(a->archive.until_us, time)));
    (void)call_riders(c, target, a->reason, 200, true);
    c->rider.receipt = NULL;
    a->archive.riders = &c->rider;
    c->api->archiving = true;
    c->ended = archive_over;
    call_alone(c, archive_batch, archived);
}

static void post_archive(struct call *c) {
    struct error err = {0};
    struct admin_call *a = ARENA_NEW(&c->arena, struct admin_call);
    c->own = a;
    uint64_t given = 0;
    if (!has_no_query(c)) return;
    if (c->request->body.len > 0 &&
        body_read(c, archive_fields, COUNT_OF(archive_fields), a, &given, &err) != ST_OK) {
        call_fail(c, &err);
        return;
    }
    if ((given & 1) && a->archive.until_us == 0) a->archive.until_us = 1; /* 0 is "whenever" */
    if (c->api->archiving)
        call_refuse(c, REASON_ARCHIVE_UNDER_WAY, "", "the ledger is being archived already");
    else
        begin_archive(c);
}

static const struct route routes[] = {
    {"GET", "/v1/admin/stats", "admin.stats", ROLE_ADMIN, ROUTE_PLATFORM, get_stats},
    {"GET", "/v1/admin/status", "admin.status", ROLE_ADMIN, ROUTE_PLATFORM, get_status},
    {"POST", "/v1/admin/verify", "admin.verify", ROLE_ADMIN, ROUTE_PLATFORM, post_verify},
    {"POST", "/v1/admin/archive", "admin.archive", ROLE_ADMIN, ROUTE_PLATFORM | ROUTE_CHANGES,
     post_archive},
    {"POST", "/v1/admin/backup", "admin.backup", ROLE_ADMIN, ROUTE_PLATFORM | ROUTE_CHANGES,
     post_backup},
};
const struct route_table admin_routes = {routes, COUNT_OF(routes)};
