/* cli/run.c: cairn run list, show, resolve. */
#include "cli/source.h"

enum { LIST_DEFAULT = 50, LIST_PAGE = 200 };
#define LIST_BYTES_MAX ((size_t)16 * 1024 * 1024)

static enum tone tone_of(enum run_status s) {
    if (s == RUN_FAILED) return TONE_BAD;
    if (s == RUN_COMPLETED) return TONE_GOOD;
    return s == RUN_PAUSED || s == RUN_CANCELLED ? TONE_WARN : TONE_PLAIN;
}

/* ---- one run ---- */

static void put_run_json(const struct run_info *r, struct buf *out) {
    json_object_begin(out);
    view_members(&view_run, r, out);
    json_put_int_if(out, "cursor", r->run_no); /* a server keeps its own */
    json_object_end(out);
}

static const struct column run_columns[] = {
    {"RUN", false, 40},    {"STATUS", false, 0}, {"MARK", false, 0},  {"PLAN", false, 24},
    {"TENANT", false, 20}, {"STEPS", true, 0},   {"FAILED", true, 0}, {"EVENTS", true, 0},
    {"STARTED", false, 0}, {"ENDED", false, 0}};

static void print_run(struct list *list, const struct run_info *r) {
    if (!list_is_table(list)) {
        put_run_json(r, list_json(list));
        list_json_end(list);
        return;
    }
    char steps[INT_TEXT_MAX];
    char failed[INT_TEXT_MAX];
    char events[INT_TEXT_MAX];
    char started[TIME_TEXT_MAX];
    char ended[TIME_TEXT_MAX];
    char plan_mem[600];
    struct buf plan;
    buf_init_fixed(&plan, plan_mem, sizeof(plan_mem));
    buf_put(&plan, r->plan_id);
    buf_put_c(&plan, " v");
    buf_put(&plan, r->plan_version);
    list_row(list,
             (struct cell[]){{r->run_id, TONE_PLAIN},
                             {str_c(run_status_name(r->head.status)), tone_of(r->head.status)},
                             {r->head.inconsistent ? STR("INCONSISTENT") : STR(""), TONE_BAD},
                             {buf_str(&plan), TONE_PLAIN},
                             {r->tenant_id, TONE_PLAIN},
                             {int_text(steps, r->head.total_steps), TONE_PLAIN},
                             {int_text(failed, r->head.failed_steps), TONE_PLAIN},
                             {int_text(events, r->head.run_seq), TONE_PLAIN},
                             {time_text(started, r->started_us, 0), TONE_DIM},
                             {time_text(ended, r->ended_us, 0), TONE_DIM}});
}

/* ---- list ---- */

static status parse_status(const struct args *args, unsigned *out, struct error *err) {
    static const char *const names[] = {"PENDING",   "APPROVED", "RUNNING",   "PAUSED",
                                        "COMPLETED", "FAILED",   "CANCELLED", NULL};
    int chosen = -2;
    status st = args_choice(args, OPT_STATUS, names, -2, &chosen, err);
    *out = chosen == -2 ? 0 : 1U << (chosen + RUN_PENDING);
    return st;
}

static status make_filter(struct cli *cli, struct run_filter *f, int64_t *limit,
                          struct error *err) {
    const str *v = cli->args.values;
    *f = (struct run_filter){.tenant_id = v[OPT_TENANT],
                             .project_id = v[OPT_PROJECT],
                             .environment_id = v[OPT_ENVIRONMENT],
                             .plan_id = v[OPT_PLAN],
                             .only_inconsistent = args_has(&cli->args, OPT_INCONSISTENT)};
    status st = parse_status(&cli->args, &f->statuses, err);
    if (st == ST_OK) st = args_int(&cli->args, OPT_LIMIT, 1, INT64_MAX, LIST_DEFAULT, limit, err);
    return st;
}

/* *cursor: where to begin, and then where to go on; STR_NONE when there are no more. */
static status print_runs(struct source *source, const struct run_filter *f, int64_t left,
                         struct list *list, str *cursor, struct error *err) {
    struct arena arena;
    struct page page = {.cursor = *cursor};
    status st = ST_OK;
    arena_init(&arena, (size_t)64 * 1024, LIST_BYTES_MAX);
    do {
        struct run_info *runs = NULL;
        arena_reset(&arena);
        page.limit = left < LIST_PAGE ? (size_t)left : LIST_PAGE;
        st = source->ops->list_runs(source, f, &page, &arena, &runs, err);
        for (size_t i = 0; i < page.count && st == ST_OK; i++)
            print_run(list, &runs[i]);
        left -= (int64_t)page.count;
    } while (st == ST_OK && page.cursor.ptr && left > 0);
    *cursor = page.cursor;
    arena_release(&arena);
    return st;
}

status cmd_run_list(struct cli *cli, struct error *err) {
    struct run_filter filter;
    struct source *source = NULL;
    struct list list;
    int64_t limit = 0;
    str cursor = cli->args.values[OPT_BEFORE];
    status st = make_filter(cli, &filter, &limit, err);
    if (st == ST_OK) st = source_open(cli, SOURCE_READ, &source, err);
    if (st != ST_OK) return st;
    list_open(&list, &cli->out, cli->format, run_columns, COUNT_OF(run_columns), cli->colour);
    st = print_runs(source, &filter, limit, &list, &cursor, err);
    bool none = list.count == 0, table = list_is_table(&list);
    list_close(&list);
    source_close(source);
    if (st != ST_OK || !table) return st;
    out_flush(&cli->out); /* before the talk about it */
    if (none) cli_say("no runs");
    if (cursor.ptr) cli_say("there are more: --before %.*s", STR_ARG(cursor));
    return ST_OK;
}

/* ---- show ---- */

static const struct column step_columns[] = {{"STEP", false, 60},
                                             {"STATE", false, 0},
                                             {"ATTEMPT", true, 0},
                                             {"STARTED AT SEQ", true, 0},
                                             {"ENDED AT SEQ", true, 0}};

static enum tone step_tone(enum step_state s) {
    if (s == STEP_FAILED) return TONE_BAD;
    return s == STEP_SUCCESS ? TONE_GOOD : TONE_PLAIN;
}

static void print_steps(struct cli *cli, const struct run *run) {
    struct list list;
    list_open(&list, &cli->out, OUT_TABLE, step_columns, COUNT_OF(step_columns), cli->colour);
    for (uint32_t i = 0; i < run->step_count; i++) {
        const struct step *s = &run->steps[i];
        char attempt[INT_TEXT_MAX];
        char started[INT_TEXT_MAX];
        char ended[INT_TEXT_MAX];
        list_row(&list,
                 (struct cell[]){
                     {s->id, TONE_PLAIN},
                     {str_c(step_state_name(s->state)), step_tone(s->state)},
                     {int_text(attempt, s->attempt), TONE_PLAIN},
                     {s->started_seq > 0 ? int_text(started, s->started_seq) : STR(""), TONE_PLAIN},
                     {s->ended_seq > 0 ? int_text(ended, s->ended_seq) : STR(""), TONE_PLAIN}});
    }
    list_close(&list);
}

static void put_line(struct buf *out, const char *name, str value) {
    if (value.len == 0) return;
    buf_printf(out, "%-13s ", name);
    text_show(value, 0, out);
    buf_put_char(out, '\n');
}

static void print_show(struct cli *cli, const struct run_info *r, const struct run *run) {
    struct buf *out = &cli->out.buf;
    const struct run_head *h = &run->head;
    char number[INT_TEXT_MAX];
    char started[TIME_TEXT_MAX];
    char ended[TIME_TEXT_MAX];
    char id[UUID_TEXT_LEN];
    uuid_format(r->correlation_id, id);
    put_line(out, "run", r->run_id);
    put_line(out, "status", str_c(run_status_name(h->status)));
    if (h->inconsistent) put_line(out, "mark", STR("INCONSISTENT"));
    put_line(out, "plan", r->plan_id);
    put_line(out, "plan version", r->plan_version);
    put_line(out, "tenant", r->tenant_id);
    put_line(out, "project", r->project_id);
    put_line(out, "environment", r->environment_id);
    put_line(out, "correlation", str_n(id, sizeof(id)));
    put_line(out, "at event", int_text(number, h->run_seq));
    if (h->started_seq > 0) put_line(out, "started", time_text(started, r->started_us, 6));
    if (h->ended_seq > 0) put_line(out, "ended", time_text(ended, r->ended_us, 6));
    if (run->step_count == 0) return;
    buf_put_char(out, '\n');
    print_steps(cli, run);
}

static void put_show_json(const struct run_info *r, const struct run *run, struct buf *out) {
    json_object_begin(out);
    members_write(view_run.rows, RUN_IDENTITY_ROWS, r, out);
    json_put_time(out, "openedAt", r->opened_us);
    json_put_time(out, "startedAt", run->head.started_seq > 0 ? r->started_us : 0);
    json_put_time(out, "completedAt", run->head.ended_seq > 0 ? r->ended_us : 0);
    json_name(out, "state");
    run_state_json(run, out);
    buf_put_c(out, "}\n");
}

static status check_position(const struct run_info *r, int64_t at, struct error *err) {
    if (at <= r->head.run_seq) return ST_OK;
    return error_at(err, REASON_POSITION_NOT_FOUND, "",
                    "run \"%.*s\" has %lld events, there is no runSeq %lld", STR_ARG(r->run_id),
                    (long long)r->head.run_seq, (long long)at);
}

status cmd_run_show(struct cli *cli, struct error *err) {
    struct source *source = NULL;
    struct run_info info;
    struct run run;
    int64_t at = 0;
    str id = cli->args.words[0];
    status st = args_int(&cli->args, OPT_AT, 1, INT64_MAX, 0, &at, err);
    if (st == ST_OK) st = source_open(cli, SOURCE_READ, &source, err);
    if (st == ST_OK) st = source->ops->find_run(source, id, &cli->arena, &info, err);
    if (st == ST_OK) st = check_position(&info, at, err);
    if (st == ST_OK) st = source->ops->replay(source, id, at, &cli->arena, &run, err);
    source_close(source);
    if (st != ST_OK) return st;
    if (cli->format == OUT_TABLE)
        print_show(cli, &info, &run);
    else
        put_show_json(&info, &run, &cli->out.buf);
    return ST_OK;
}

/* ---- resolve ---- */

status cmd_run_resolve(struct cli *cli, struct error *err) {
    const str *v = cli->args.values;
    struct source *source = NULL;
    struct run_info info;
    status st = source_open(cli, SOURCE_READ, &source, err);
    if (st == ST_OK)
        st = source->ops->resolve(source, v[OPT_TENANT], v[OPT_PROVIDER], v[OPT_WORKFLOW],
                                  v[OPT_PROVIDER_RUN], &cli->arena, &info, err);
    source_close(source);
    if (st != ST_OK) return st;
    if (cli->format != OUT_TABLE) {
        put_run_json(&info, &cli->out.buf);
        buf_put_char(&cli->out.buf, '\n');
        return ST_OK;
    }
    struct list list;
    list_open(&list, &cli->out, OUT_TABLE, run_columns, COUNT_OF(run_columns), cli->colour);
    print_run(&list, &info);
    list_close(&list);
    return ST_OK;
}
