/* cli/effect.c: cairn effect list, show, request, requeue. */
#include "base/json.h"
#include "base/limits.h"
#include "base/os.h"
#include "cli/source.h"

enum { EFFECTS_PAGE = 32, LIST_DEFAULT = 50, REQUEUE_MAX = 1000 };
#define PAGE_BYTES_MAX ((size_t)256 * 1024 * 1024)

/* ---- showing ---- */

static const struct column columns[] = {
    {"EFFECT", false, 0},   {"TYPE", false, 24},       {"STATUS", false, 0},  {"RUN", false, 40},
    {"TENANT", false, 20},  {"EXECUTED", true, 0},     {"RETRIES", false, 0}, {"CREATED", false, 0},
    {"NEXT TRY", false, 0}, {"FAILED WITH", false, 32}};

static enum tone tone_of(enum outbox_status s) {
    if (s == OUTBOX_DEAD_LETTER) return TONE_BAD;
    if (s == OUTBOX_FAILED) return TONE_WARN;
    return s == OUTBOX_COMPLETED ? TONE_GOOD : TONE_PLAIN;
}

static str id_text(char mem[UUID_TEXT_LEN], uuid id) {
    uuid_format(id, mem);
    return str_n(mem, UUID_TEXT_LEN);
}

/* "1 of 3". The count is one of failures, and the last one is not retried. */
static str retries_text(char mem[2 * INT_TEXT_MAX], const struct effect *e) {
    int64_t retries = e->retry_count < e->max_retries ? e->retry_count : e->max_retries;
    int n = snprintf(mem, (size_t)2 * INT_TEXT_MAX, "%lld of %lld", (long long)retries,
                     (long long)e->max_retries);
    return str_n(mem, (size_t)n);
}

/* Of the newest failure. */
static str error_part(struct cli *cli, const struct effect_info *info, const char *name) {
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    struct error ignored;
    yyjson_val *root = NULL;
    str text = STR_NONE;
    if (info->error.ptr && json_parse(info->error, limits, &cli->arena, &root, &ignored) == ST_OK)
        (void)json_str(json_member(root, name), &text);
    return text;
}

static void print_effect(struct cli *cli, struct list *list, const struct effect_info *info) {
    const struct effect *e = &info->effect;
    if (!list_is_table(list)) {
        view_write(&view_effect, info, list_json(list));
        list_json_end(list);
        return;
    }
    char id[UUID_TEXT_LEN];
    char executed[INT_TEXT_MAX];
    char retries[2 * INT_TEXT_MAX];
    char created[TIME_TEXT_MAX];
    char next[TIME_TEXT_MAX];
    struct arena_mark mark = arena_mark(&cli->arena);
    list_row(list, (struct cell[]){
                       {id_text(id, e->id), TONE_PLAIN},
                       {e->type, TONE_PLAIN},
                       {str_c(outbox_status_name(e->status)), tone_of(e->status)},
                       {info->run_id, TONE_PLAIN},
                       {info->tenant_id, TONE_PLAIN},
                       {int_text(executed, e->executions), TONE_PLAIN},
                       {retries_text(retries, e), TONE_PLAIN},
                       {time_text(created, e->created_us, 0), TONE_DIM},
                       {time_text(next, e->status == OUTBOX_FAILED ? e->due_us : 0, 0), TONE_DIM},
                       {error_part(cli, info, "code"), TONE_PLAIN}});
    arena_rewind(&cli->arena, mark);
}

static void put_line(struct buf *out, const char *name, str value) {
    if (value.len == 0) return;
    buf_printf(out, "%-13s ", name);
    text_show(value, 0, out);
    buf_put_char(out, '\n');
}

static void put_time_line(struct buf *out, const char *name, int64_t us) {
    char text[TIME_TEXT_MAX];
    put_line(out, name, time_text(text, us, 6));
}

static void print_one(struct cli *cli, const struct effect_info *info) {
    struct buf *out = &cli->out.buf;
    const struct effect *e = &info->effect;
    char id[UUID_TEXT_LEN];
    char executed[INT_TEXT_MAX];
    char retries[2 * INT_TEXT_MAX];
    if (cli->format != OUT_TABLE) {
        view_write(&view_effect, info, out);
        buf_put_char(out, '\n');
        return;
    }
    put_line(out, "effect", id_text(id, e->id));
    put_line(out, "type", e->type);
    put_line(out, "status", str_c(outbox_status_name(e->status)));
    put_line(out, "run", info->run_id);
    put_line(out, "tenant", info->tenant_id);
    put_line(out, "step", info->step_id);
    put_line(out, "key", info->key);
    put_line(out, "executed", int_text(executed, e->executions));
    put_line(out, "retries", retries_text(retries, e));
    put_time_line(out, "created", e->created_us);
    put_time_line(out, "next try", e->status == OUTBOX_FAILED ? e->due_us : 0);
    put_time_line(out, "lease until", e->status == OUTBOX_PROCESSING ? e->due_us : 0);
    put_time_line(out, "completed", e->processed_us);
    put_line(out, "correlation", id_text(id, info->correlation));
    put_line(out, "payload", info->payload);
    put_line(out, "result", info->result);
    put_line(out, "error", error_part(cli, info, "code"));
    put_line(out, "", error_part(cli, info, "message"));
    put_line(out, "", error_part(cli, info, "stack"));
}

/* ---- list, show ---- */

static status read_filter(struct cli *cli, struct outbox_filter *f, struct error *err) {
    static const char *const names[] = {"PENDING", "PROCESSING",  "COMPLETED",
                                        "FAILED",  "DEAD_LETTER", NULL};
    const str *v = cli->args.values;
    int chosen = -1;
    *f = (struct outbox_filter){
        .tenant_id = v[OPT_TENANT], .run_id = v[OPT_RUN], .type = v[OPT_TYPE]};
    status st = args_choice(&cli->args, OPT_STATUS, names, -1, &chosen, err);
    if (st == ST_OK && chosen >= 0) f->statuses = 1U << outbox_status_named(str_c(names[chosen]));
    return st;
}

static status print_pages(struct cli *cli, struct source *source, const struct outbox_filter *f,
                          int64_t left, struct list *list, struct error *err) {
    struct arena arena;
    struct page page = {0};
    status st = ST_OK;
    arena_init(&arena, (size_t)64 * 1024, PAGE_BYTES_MAX);
    do {
        struct effect_info *items = NULL;
        arena_reset(&arena);
        page.limit = left < EFFECTS_PAGE ? (size_t)left : EFFECTS_PAGE;
        st = source->ops->effect_list(source, f, &page, &arena, &items, err);
        for (size_t i = 0; i < page.count && st == ST_OK; i++)
            print_effect(cli, list, &items[i]);
        left -= (int64_t)page.count;
    } while (st == ST_OK && page.cursor.ptr && left > 0);
    arena_release(&arena);
    return st;
}

status cmd_effect_list(struct cli *cli, struct error *err) {
    struct source *source = NULL;
    struct outbox_filter filter;
    struct list list;
    int64_t limit = 0;
    status st = read_filter(cli, &filter, err);
    if (st == ST_OK) st = args_int(&cli->args, OPT_LIMIT, 1, INT64_MAX, LIST_DEFAULT, &limit, err);
    if (st == ST_OK) st = source_open(cli, SOURCE_READ, &source, err);
    if (st != ST_OK) return st;
    list_open(&list, &cli->out, cli->format, columns, COUNT_OF(columns), cli->colour);
    st = print_pages(cli, source, &filter, limit, &list, err);
    bool none = list.count == 0;
    list_close(&list);
    source_close(source);
    if (st == ST_OK && none && cli->format == OUT_TABLE) cli_say("no effects");
    return st;
}

static status read_id(str word, uuid *id, struct error *err) {
    if (uuid_parse(word, id)) return ST_OK;
    return error_at(err, REASON_EFFECT_NOT_FOUND, "", "there is no effect \"%.*s\"", STR_ARG(word));
}

status cmd_effect_show(struct cli *cli, struct error *err) {
    struct source *source = NULL;
    struct effect_info info;
    uuid id;
    status st = read_id(cli->args.words[0], &id, err);
    if (st == ST_OK) st = source_open(cli, SOURCE_READ, &source, err);
    if (st == ST_OK) st = source->ops->effect_find(source, id, &cli->arena, &info, err);
    source_close(source);
    if (st == ST_OK) print_one(cli, &info);
    return st;
}

/* ---- request ---- */

static status check_actor(struct cli *cli, struct error *err) {
    str actor = cli->args.values[OPT_ACTOR];
    if (!actor.ptr || (actor.len > 0 && actor.len <= ACTOR_BYTES_MAX)) return ST_OK;
    return cli_usage(err, "--actor must have 1 to %d bytes", ACTOR_BYTES_MAX);
}

static status read_request(struct cli *cli, struct effect_request *q, struct error *err) {
    const str *v = cli->args.values;
    str file = cli->args.words[1];
    size_t bad = 0;
    *q = (struct effect_request){.run_id = cli->args.words[0],
                                 .type = v[OPT_TYPE],
                                 .step_id = v[OPT_STEP_ID],
                                 .actor = v[OPT_ACTOR],
                                 .max_retries = -1,
                                 .base_ms = -1};
    if (!str_utf8(q->run_id, &bad)) return cli_usage(err, "RUN is not valid UTF-8");
    status st = check_actor(cli, err);
    if (st != ST_OK) return st;
    return file_read(str_eq(file, STR("-")) ? STR("/dev/stdin") : file, EVENT_BYTES_MAX,
                     &cli->arena, &q->payload, err);
}

status cmd_effect_request(struct cli *cli, struct error *err) {
    struct source *source = NULL;
    struct effect_request request;
    struct effect_info info;
    struct json_limits limits = {EVENT_BYTES_MAX, JSON_DEPTH_MAX};
    yyjson_val *payload = NULL;
    bool existing = false;
    struct buf *out = &cli->out.buf;
    status st = read_request(cli, &request, err);
    if (st == ST_OK && json_parse(request.payload, limits, &cli->arena, &payload, err) != ST_OK)
        return error_wrap(err, "the payload"); /* it becomes a part of a larger document */
    if (st == ST_OK) st = source_open(cli, SOURCE_CHANGE, &source, err);
    if (st == ST_OK)
        st = source->ops->effect_request(source, &request, &cli->arena, &info, &existing, err);
    source_close(source);
    if (st != ST_OK) return st;
    if (cli->format == OUT_TABLE) {
        char id[UUID_TEXT_LEN];
        buf_put(out, id_text(id, info.effect.id));
        buf_put_char(out, '\n');
        out_flush(&cli->out); /* before the talk about it */
        if (existing)
            cli_say("there is an effect with this key already: it is %s",
                    outbox_status_name(info.effect.status));
        return ST_OK;
    }
    json_object_begin(out);
    view_members(&view_effect, &info, out);
    json_put_bool(out, "existing", existing);
    buf_put_c(out, "}\n");
    return ST_OK;
}

/* ---- requeue ---- */

static status requeue_some(struct cli *cli, struct source *source, struct list *list,
                           struct error *err) {
    const str *v = cli->args.values;
    status st = ST_OK;
    for (size_t i = 0; i < cli->args.word_count && st == ST_OK; i++) {
        struct effect_info info;
        uuid id;
        st = read_id(cli->args.words[i], &id, err);
        if (st == ST_OK)
            st = source->ops->effect_requeue(source, id, v[OPT_ACTOR], v[OPT_REASON], &cli->arena,
                                             &info, err);
        if (st == ST_OK) print_effect(cli, list, &info);
    }
    return st;
}

static status requeue_all(struct cli *cli, struct source *source, struct error *err) {
    struct requeue_lot lot = {.actor = cli->args.values[OPT_ACTOR],
                              .reason = cli->args.values[OPT_REASON]};
    struct buf *out = &cli->out.buf;
    int64_t limit = 0;
    status st = read_filter(cli, &lot.filter, err);
    if (st == ST_OK) st = args_int(&cli->args, OPT_LIMIT, 1, REQUEUE_MAX, REQUEUE_MAX, &limit, err);
    lot.limit = (size_t)limit;
    if (st == ST_OK) st = source->ops->effect_requeue_all(source, &lot, err);
    if (st != ST_OK) return st;
    if (cli->format == OUT_TABLE) {
        cli_say("%zu %s put back%s", lot.done, lot.done == 1 ? "effect was" : "effects were",
                lot.more ? "; there are more" : "");
        return ST_OK;
    }
    json_object_begin(out);
    json_put_int(out, "requeued", (int64_t)lot.done);
    json_put_bool(out, "more", lot.more);
    buf_put_c(out, "}\n");
    return ST_OK;
}

static status check_requeue(struct cli *cli, struct error *err) {
    static const enum opt which[] = {OPT_RUN, OPT_TYPE, OPT_TENANT, OPT_LIMIT};
    bool all = args_has(&cli->args, OPT_ALL);
    if (all && cli->args.word_count > 0) return cli_usage(err, "ID and --all: give one of them");
    if (!all && cli->args.word_count == 0) return cli_usage(err, "ID is missing, or --all");
    for (size_t i = 0; i < COUNT_OF(which) && !all; i++) {
        if (args_has(&cli->args, which[i]))
            return cli_usage(err, "--%s goes with --all", opt_info(which[i])->name);
    }
    if (cli->args.values[OPT_REASON].len > AUDIT_REASON_MAX)
        return cli_usage(err, "--reason may have %d bytes", AUDIT_REASON_MAX);
    return check_actor(cli, err);
}

status cmd_effect_requeue(struct cli *cli, struct error *err) {
    struct source *source = NULL;
    struct list list;
    status st = check_requeue(cli, err);
    if (st == ST_OK) st = source_open(cli, SOURCE_CHANGE, &source, err);
    if (st != ST_OK) return st;
    if (args_has(&cli->args, OPT_ALL)) {
        st = requeue_all(cli, source, err);
    } else {
        list_open(&list, &cli->out, cli->format, columns, COUNT_OF(columns), cli->colour);
        st = requeue_some(cli, source, &list, err);
        list_close(&list);
    }
    source_close(source);
    return st;
}
