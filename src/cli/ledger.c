/* cli/ledger.c: cairn ledger alerts, checkpoint, verify, rebuild, stats, backup, types. */
#include "cli/progress.h"
#include "cli/remote.h"
#include "cli/source.h"
#include "core/event_type.h"

enum { ALERTS_PAGE = 200 };
#define ALERTS_BYTES_MAX ((size_t)16 * 1024 * 1024)
#define VERIFY_BYTES_MAX ((size_t)256 * 1024 * 1024) /* the tenants, and one finding */

static bool wants_progress(const struct cli *cli) { return !args_has(&cli->args, OPT_QUIET); }

/* ---- alerts ---- */

static const struct column alert_columns[] = {
    {"RUN", false, 40},  {"RUNSEQ", true, 0}, {"PERSISTED AT", false, 0}, {"EVENT", false, 0},
    {"STEP", false, 32}, {"WAS", false, 0},   {"ATTEMPTED", false, 0}};

static void print_alert(struct list *list, const struct alert *a) {
    if (!list_is_table(list)) {
        view_write(&view_alert, a, list_json(list));
        list_json_end(list);
        return;
    }
    char seq[INT_TEXT_MAX];
    char time[TIME_TEXT_MAX];
    list_row(list, (struct cell[]){{a->run_id, TONE_PLAIN},
                                   {int_text(seq, a->run_seq), TONE_PLAIN},
                                   {time_text(time, a->persisted_us, 6), TONE_DIM},
                                   {a->event_type, TONE_WARN},
                                   {a->step_id, TONE_PLAIN},
                                   {a->prior, TONE_PLAIN},
                                   {a->attempted, TONE_PLAIN}});
}

static status print_alerts(struct cli *cli, struct source *source, struct list *list,
                           struct error *err) {
    struct arena arena;
    int64_t left = 0;
    struct page page = {0};
    bool more = true;
    status st = args_int(&cli->args, OPT_LIMIT, 1, INT64_MAX, INT64_MAX, &left, err);
    arena_init(&arena, (size_t)64 * 1024, ALERTS_BYTES_MAX);
    while (st == ST_OK && left > 0 && more) {
        struct alert *alerts = NULL;
        arena_reset(&arena);
        page.limit = left < ALERTS_PAGE ? (size_t)left : ALERTS_PAGE;
        st = source->ops->alerts(source, cli->args.values[OPT_RUN], &page, &arena, &alerts, err);
        for (size_t i = 0; st == ST_OK && i < page.count; i++)
            print_alert(list, &alerts[i]);
        more = page.cursor.ptr != NULL;
        left -= (int64_t)page.count;
    }
    arena_release(&arena);
    return st;
}

status cmd_ledger_alerts(struct cli *cli, struct error *err) {
    struct source *source = NULL;
    struct list list;
    struct run_info info;
    status st = source_open(cli, SOURCE_READ, &source, err);
    if (st == ST_OK && args_has(&cli->args, OPT_RUN))
        st = source->ops->find_run(source, cli->args.values[OPT_RUN], &cli->arena, &info, err);
    if (st == ST_OK) {
        list_open(&list, &cli->out, cli->format, alert_columns, COUNT_OF(alert_columns),
                  cli->colour);
        st = print_alerts(cli, source, &list, err);
        if (st == ST_OK && list.count == 0 && list_is_table(&list)) cli_say("no alerts");
        list_close(&list);
    }
    source_close(source);
    return st;
}

/* ---- checkpoint ---- */

status cmd_ledger_checkpoint(struct cli *cli, struct error *err) {
    struct source *source = NULL;
    struct append_result r = {0};
    struct buf *out = &cli->out.buf;
    status st = source_open(cli, SOURCE_CHANGE, &source, err);
    if (st == ST_OK) st = source->ops->checkpoint(source, cli->args.words[0], &cli->arena, &r, err);
    source_close(source);
    if (st != ST_OK) return st;
    if (cli->format == OUT_TABLE) {
        buf_printf(out, "checkpoint saved, as event %lld of the run\n", (long long)r.run_seq);
        return ST_OK;
    }
    view_write(&view_result, &r, out);
    buf_put_char(out, '\n');
    return ST_OK;
}

/* ---- verify and rebuild ---- */

static void print_report(struct cli *cli, const struct verify_report *r) {
    struct buf *out = &cli->out.buf;
    if (cli->format == OUT_TABLE) {
        if (r->damaged) return; /* the error tells it */
        buf_printf(out, "verified: %lld events of %lld runs, hash chain and order%s\n",
                   (long long)r->events, (long long)r->runs,
                   r->state ? ", and every projection equals the replay of its events" : "");
        return;
    }
    view_write(&view_report, r, out);
    buf_put_char(out, '\n');
}

static status damage_error(const struct verify_report *r, struct error *err) {
    char where[ERROR_WHERE_MAX];
    struct buf b;
    buf_init_fixed(&b, where, sizeof(where) - 1);
    if (r->tenant_id.ptr) buf_printf(&b, "tenant \"%.*s\"", STR_ARG(r->tenant_id));
    if (r->run_id.ptr) buf_printf(&b, "%srun \"%.*s\"", b.len > 0 ? " " : "", STR_ARG(r->run_id));
    if (r->seq > 0)
        buf_printf(&b, "%ssequenceNumber %lld", b.len > 0 ? " " : "", (long long)r->seq);
    where[b.len] = 0;
    return error_at(err, REASON_LEDGER_DAMAGED, where, "the ledger is damaged: %s", r->what);
}

status cmd_ledger_verify(struct cli *cli, struct error *err) {
    struct source *source = NULL;
    struct verify_report report = {0};
    struct arena arena;
    struct progress progress;
    bool state = args_has(&cli->args, OPT_STATE);
    status st = source_open(cli, SOURCE_READ, &source, err);
    if (st != ST_OK) return st;
    arena_init(&arena, 4096, VERIFY_BYTES_MAX);
    progress_start(&progress, "verifying", wants_progress(cli));
    st = source->ops->verify(source, state, progress_tick, &progress, &arena, &report, err);
    progress_end(&progress);
    if (st == ST_OK) print_report(cli, &report);
    if (st == ST_OK && report.damaged) st = damage_error(&report, err);
    arena_release(&arena);
    source_close(source);
    return st;
}

status cmd_ledger_rebuild(struct cli *cli, struct error *err) {
    struct ledger *ledger = NULL;
    struct progress progress;
    int64_t runs = 0;
    status st = store_change(cli, &ledger, err);
    if (st != ST_OK) return st;
    progress_start(&progress, "rebuilding", wants_progress(cli));
    st = ledger_rebuild(ledger, progress_tick, &progress, &runs, err);
    progress_end(&progress);
    ledger_close(ledger);
    if (st != ST_OK) return st;
    if (cli->format == OUT_TABLE)
        buf_printf(&cli->out.buf, "rebuilt the projections of %lld runs\n", (long long)runs);
    else
        buf_printf(&cli->out.buf, "{\"runs\":%lld}\n", (long long)runs);
    return ST_OK;
}

/* ---- stats, backup ---- */

status cmd_ledger_stats(struct cli *cli, struct error *err) {
    struct source *source = NULL;
    struct ledger_stats s = {0};
    struct buf *out = &cli->out.buf;
    status st = source_open(cli, SOURCE_READ, &source, err);
    if (st == ST_OK) st = source->ops->stats(source, &s, err);
    source_close(source);
    if (st != ST_OK) return st;
    if (cli->format == OUT_TABLE) {
        for (size_t i = 0; i < view_stats.count; i++) {
            const struct member_row *m = &view_stats.rows[i];
            int64_t value;
            memcpy(&value, (const char *)&s + m->offset, sizeof(value));
            buf_printf(out, "%-14s %12lld\n", m->name, (long long)value);
        }
    } else {
        view_write(&view_stats, &s, out);
        buf_put_char(out, '\n');
    }
    return ST_OK;
}

status cmd_ledger_backup(struct cli *cli, struct error *err) {
    struct source *source = NULL;
    str path = cli->args.words[0];
    if (path.len == 0) return cli_usage(err, "FILE must not be empty");
    str url = STR_NONE;
    status st = remote_is_named(cli) ? ST_OK : store_url(cli, &url, err);
    if (st == ST_OK && db_url_is_postgres(url))
        return cli_usage(
            err, "a ledger on PostgreSQL is backed up with PostgreSQL's own tools (pg_dump)");
    if (st == ST_OK) st = source_open(cli, SOURCE_READ, &source, err);
    if (st == ST_OK) st = source->ops->backup(source, path, err);
    source_close(source);
    if (st != ST_OK) return st;
    if (cli->format == OUT_TABLE) {
        buf_put_c(&cli->out.buf, "backed up and verified: ");
        text_show(path, 0, &cli->out.buf);
        buf_put_char(&cli->out.buf, '\n');
        return ST_OK;
    }
    json_object_begin(&cli->out.buf);
    put_shown(&cli->out.buf, "file", path);
    json_put_bool(&cli->out.buf, "verified", true);
    buf_put_c(&cli->out.buf, "}\n");
    return ST_OK;
}

/* ---- types ---- */

static const struct column type_columns[] = {{"EVENT", false, 0},
                                             {"CANON", false, 0},
                                             {"AGGREGATE", false, 0},
                                             {"KIND", false, 0},
                                             {"WRITTEN BY", false, 0}};

static void print_type(struct list *list, enum event_type type) {
    const struct event_type_info *info = event_type_info(type);
    char mem[128];
    struct buf snake;
    buf_init_fixed(&snake, mem, sizeof(mem));
    event_type_to_snake(info->name, &snake);
    str family = str_c(event_family_name(info->family));
    str by = info->store_only ? STR("ledger") : STR("producer");
    str kind = info->lifecycle            ? STR("lifecycle")
               : event_type_is_fact(type) ? STR("fact")
                                          : STR("extension");
    if (list_is_table(list)) {
        list_row(list, (struct cell[]){{info->name, TONE_PLAIN},
                                       {buf_str(&snake), TONE_PLAIN},
                                       {family, TONE_PLAIN},
                                       {kind, TONE_PLAIN},
                                       {by, TONE_PLAIN}});
        return;
    }
    struct buf *out = list_json(list);
    json_object_begin(out);
    json_put_text(out, "eventType", info->name);
    json_put_text(out, "canonType", buf_str(&snake));
    json_put_text(out, "aggregateType", family);
    json_put_text(out, "kind", kind);
    json_put_text(out, "writtenBy", by);
    json_object_end(out);
    list_json_end(list);
}

status cmd_ledger_types(struct cli *cli, struct error *err) {
    UNUSED(err);
    struct list list;
    list_open(&list, &cli->out, cli->format, type_columns, COUNT_OF(type_columns), cli->colour);
    for (int i = 1; i < EVENT_TYPE_COUNT; i++) {
        if (event_type_info((enum event_type)i)->name.len > 0)
            print_type(&list, (enum event_type)i);
    }
    list_close(&list);
    return ST_OK;
}
