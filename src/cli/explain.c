#include "cli/explain.h"

#include <signal.h>
#include <time.h>

#include "adapters/local/local.h"
#include "base/os.h"
#include "cli/drive.h"
#include "cli/remote.h"
#include "cli/result.h"
#include "engine/status.h"

enum { WATCH_MS = 200, WATCH_EVENTS = 256 };
#define WATCH_BYTES_MAX ((size_t)256 * 1024 * 1024)

static enum tone step_tone(enum step_state s) {
    if (s == STEP_FAILED) return TONE_BAD;
    return s == STEP_SUCCESS ? TONE_GOOD : s == STEP_RUNNING ? TONE_WARN : TONE_PLAIN;
}

/* ---- explain ---- */

static void put_at(struct buf *out, const char *word, int64_t us) {
    char text[TIME_TEXT_MAX];
    if (us > 0) buf_printf(out, "%s %.*s", word, STR_ARG(time_text(text, us, 0)));
}

static const char *wait_words(enum wait_kind kind) {
    static const char *const words[WAIT_KIND_COUNT] = {
        [WAIT_FINISHED] = "nothing: it is finished",
        [WAIT_NOBODY] = "a node to carry it out",
        [WAIT_LAUNCH_APPROVAL] = "approval of its launch",
        [WAIT_ADMISSION] = "admission",
        [WAIT_PAUSED] = "somebody to resume it",
        [WAIT_WORKER] = "worker of queue",
        [WAIT_TIMER] = "timer",
        [WAIT_RETRY] = "retry",
        [WAIT_SIGNAL] = "signal",
        [WAIT_APPROVAL] = "approval",
        [WAIT_EXECUTING] = "at work on",
        [WAIT_EFFECT] = "effect",
        [WAIT_ENGINE] = "the engine, which decides what comes next",
        [WAIT_PROVIDER] = "provider"};
    return words[kind];
}

static const char *until_word(enum wait_kind kind) {
    if (kind == WAIT_TIMER) return ", until";
    if (kind == WAIT_RETRY) return ", next attempt";
    return ", expires";
}

static void print_wait(const struct wait *w, struct buf *out) {
    buf_put_c(out, "  ");
    if (w->step.ptr) {
        buf_put_c(out, "step ");
        text_show(w->step, 0, out);
        buf_put_c(out, " (");
    }
    buf_put_c(out, wait_words(w->kind));
    if (w->on.ptr && w->kind != WAIT_NOBODY) { /* the node stands at the end */
        buf_put_char(out, ' ');
        text_show(w->on, 0, out);
    }
    if (w->step.ptr) buf_put_char(out, ')');
    put_at(out, " since", w->since_us);
    put_at(out, until_word(w->kind), w->until_us);
    if (w->detail.ptr) {
        buf_put_c(out, ": ");
        text_show(w->detail, 0, out);
    }
    buf_put_char(out, '\n');
}

static void print_explanation(const struct explanation *x, struct buf *out) {
    const struct run_snapshot *s = &x->snapshot;
    buf_put_c(out, "run ");
    text_show(s->run_id, 0, out);
    buf_printf(out, " is %s", run_status_name(s->status));
    if (s->substatus.ptr) {
        buf_put_c(out, " (");
        text_show(s->substatus, 0, out);
        buf_put_char(out, ')');
    }
    put_at(out, ", started", s->started_us);
    put_at(out, ", ended", s->completed_us);
    if (s->message.ptr) {
        buf_put_c(out, ": ");
        text_show(s->message, 0, out);
    }
    buf_put_char(out, '\n');
    if (run_is_final(s->status)) return;
    buf_put_c(out, "waits on:\n");
    for (size_t i = 0; i < x->count; i++)
        print_wait(&x->waits[i], out);
    if (x->wakes && x->wake_us == 0)
        buf_put_c(out, "next wake: now, work is under way or due\n");
    else if (x->wakes)
        put_at(out, "next wake:", x->wake_us);
    else
        buf_put_c(out, "next wake: when it is signalled");
    if (!x->wakes || x->wake_us != 0) buf_put_char(out, '\n');
    if (!x->node.ptr) return;
    buf_put_c(out, "carried out by node ");
    text_show(x->node, 0, out);
    buf_put_c(out, x->alive ? "\n" : ", which is not at work on it now\n");
}

status cmd_explain(struct cli *cli, struct error *err) {
    struct source *source = NULL;
    struct explanation x;
    status st = source_open(cli, SOURCE_READ, &source, err);
    if (st == ST_OK) st = source->ops->explain(source, cli->args.words[0], &cli->arena, &x, err);
    source_close(source);
    if (st != ST_OK) return st;
    if (cli->format == OUT_TABLE) {
        print_explanation(&x, &cli->out.buf);
        return ST_OK;
    }
    view_write(&view_explanation, &x, &cli->out.buf);
    buf_put_char(&cli->out.buf, '\n');
    return ST_OK;
}

/* ---- steps ---- */

static const struct column step_columns[] = {
    {"STEP", false, 40},   {"TYPE", false, 0},    {"STATE", false, 0}, {"ATTEMPT", true, 0},
    {"STARTED", false, 0}, {"DURATION", true, 0}, {"CODE", false, 30}};

static void print_step(struct list *list, const struct step_shown *shown) {
    const struct step_view *s = &shown->step;
    if (!list_is_table(list)) {
        view_write(&view_step, shown, list_json(list));
        list_json_end(list);
        return;
    }
    char attempt[INT_TEXT_MAX];
    char started[TIME_TEXT_MAX];
    char mem[32];
    struct buf duration;
    buf_init_fixed(&duration, mem, sizeof(mem));
    if (shown->duration_ms >= 0) live_duration(shown->duration_ms * 1000, &duration);
    list_row(list, (struct cell[]){{s->id, TONE_PLAIN},
                                   {s->type, TONE_PLAIN},
                                   {str_c(step_state_name(s->state)), step_tone(s->state)},
                                   {int_text(attempt, s->attempt), TONE_PLAIN},
                                   {time_text(started, s->started_us, 0), TONE_DIM},
                                   {buf_str(&duration), TONE_PLAIN},
                                   {s->code, s->state == STEP_FAILED ? TONE_BAD : TONE_PLAIN}});
}

status cmd_run_steps(struct cli *cli, struct error *err) {
    struct source *source = NULL;
    struct step_shown *steps = NULL;
    struct list list;
    size_t count = 0;
    status st = source_open(cli, SOURCE_READ, &source, err);
    if (st == ST_OK)
        st = source->ops->steps(source, cli->args.words[0], &cli->arena, &steps, &count, err);
    source_close(source);
    if (st != ST_OK) return st;
    list_open(&list, &cli->out, cli->format, step_columns, COUNT_OF(step_columns), cli->colour);
    for (size_t i = 0; i < count; i++)
        print_step(&list, &steps[i]);
    bool none = list.count == 0;
    list_close(&list);
    if (none && cli->format == OUT_TABLE) cli_say("no step has begun yet");
    return ST_OK;
}

/* ---- logs ---- */

static status load_view(struct cli *cli, struct run_view *view, struct error *err) {
    struct ledger *ledger = NULL;
    status st = store_read(cli, &ledger, err);
    if (st == ST_OK) st = run_view_load(ledger, cli->args.words[0], &cli->arena, view, err);
    ledger_close(ledger);
    return st;
}

struct logs {
    struct cli *cli;
    struct list list; /* unless it is a table: then lines as they are */
    bool prefix;
    int64_t found;
};

static void print_lines(struct logs *l, const struct step_view *s, int64_t attempt, bool is_stderr,
                        str text) {
    struct buf *out = &l->cli->out.buf;
    if (!l->prefix) {
        buf_put(out, text);
        out_more(&l->cli->out);
        return;
    }
    for (str rest = text, line; rest.len > 0;) {
        if (!str_split(rest, '\n', &line, &rest)) rest = STR_NONE;
        text_show(s->id, 0, out);
        if (attempt > 1 || s->attempt > 1) buf_printf(out, "#%lld", (long long)attempt);
        buf_put_c(out, is_stderr ? " ! " : " | ");
        buf_put(out, line);
        buf_put_char(out, '\n');
        out_more(&l->cli->out);
    }
}

static void print_log_json(struct logs *l, const struct step_view *s, int64_t attempt,
                           bool is_stderr, str text) {
    struct buf *out = list_json(&l->list);
    json_object_begin(out);
    json_put_text(out, "stepId", s->id);
    json_put_int(out, "logicalAttemptId", attempt);
    json_put_text(out, "stream", is_stderr ? STR("stderr") : STR("stdout"));
    put_shown(out, "text", text); /* whatever the step wrote */
    json_object_end(out);
    list_json_end(&l->list);
}

/* What one attempt wrote to one stream, if anything. */
static status print_log(struct logs *l, const struct step_view *s, int64_t attempt, bool is_stderr,
                        struct error *err) {
    struct cli *cli = l->cli;
    struct buf path;
    struct arena arena;
    str text = STR_NONE;
    buf_init(&path, 8192);
    arena_init(&arena, 4096, (size_t)4 * LOCAL_LOG_MAX);
    local_log_path(store_folder(cli), cli->args.words[0], s->id, attempt, is_stderr, &path);
    status st = file_read(buf_str(&path), LOCAL_LOG_MAX + 4096, &arena, &text, err);
    if (st == ST_NOT_FOUND) {
        st = ST_OK;
    } else if (st == ST_OK) {
        l->found++;
        if (cli->format == OUT_TABLE)
            print_lines(l, s, attempt, is_stderr, text);
        else
            print_log_json(l, s, attempt, is_stderr, text);
        st = out_check(&cli->out, err);
    }
    arena_release(&arena);
    buf_release(&path);
    return st;
}

static status print_step_logs(struct logs *l, const struct step_view *s, int64_t only,
                              struct error *err) {
    status st = ST_OK;
    for (int64_t a = only > 0 ? only : 1; st == ST_OK && a <= (only > 0 ? only : s->attempt); a++) {
        st = print_log(l, s, a, false, err);
        if (st == ST_OK) st = print_log(l, s, a, true, err);
    }
    return st;
}

static status print_all_logs(struct logs *l, const struct run_view *view, str step, int64_t only,
                             struct error *err) {
    status st = ST_OK;
    bool known = false;
    for (uint32_t i = 0; i < view->run.step_count && st == ST_OK; i++) {
        const struct step_view *s = &view->steps[i];
        if (step.ptr && !str_eq(step, s->id)) continue;
        known = true;
        l->prefix = !step.ptr || (only == 0 && s->attempt > 1);
        st = print_step_logs(l, s, only, err);
    }
    if (st != ST_OK || known || !step.ptr) return st;
    return error_at(err, REASON_STEP_NOT_FOUND, "", "no step \"%.*s\" of the run has begun",
                    STR_ARG(step));
}

status cmd_run_logs(struct cli *cli, struct error *err) {
    struct run_view view;
    struct logs l = {.cli = cli};
    int64_t only = 0;
    str step = cli->args.word_count > 1 ? cli->args.words[1] : STR_NONE;
    if (remote_is_named(cli))
        return error_at(err, REASON_LOGS_NOT_SERVED, "",
                        "what programs wrote is in the data folder of the machine that ran them: "
                        "say --data DIR there");
    status st = args_int(&cli->args, OPT_ATTEMPT, 1, INT64_MAX, 0, &only, err);
    if (st == ST_OK) st = load_view(cli, &view, err);
    if (st != ST_OK) return st;
    bool table = cli->format == OUT_TABLE;
    if (!table) list_open(&l.list, &cli->out, cli->format, NULL, 0, false);
    st = print_all_logs(&l, &view, step, only, err);
    if (!table) list_close(&l.list);
    if (st != ST_OK || !table || l.found > 0) return st;
    out_flush(&cli->out);
    cli_say("nothing was written, or it was written on another machine, or its time is over");
    return ST_OK;
}

/* ---- watch ---- */

static volatile sig_atomic_t interrupted;
static void on_interrupt(int number) {
    UNUSED(number);
    interrupted = 1;
}

struct watching {
    struct live *live;
    struct arena arena; /* of the events held */
    struct live_event events[WATCH_EVENTS];
    size_t count;
    int64_t after;
};

static void show_events(struct watching *w) {
    if (w->count > 0) live_events(w->live, w->events, w->count);
    w->count = 0;
    arena_reset(&w->arena);
}

static status watch_row(void *context, const struct event_record *rec, bool *stop,
                        struct error *err) {
    UNUSED(stop);
    struct watching *w = context;
    UNUSED(err);
    w->after = rec->seq;
    if (event_type_is_fact(rec->event.type)) return ST_OK;
    if (w->count == WATCH_EVENTS) show_events(w);
    struct live_event *e = &w->events[w->count++];
    *e = (struct live_event){
        .type = rec->event.type, .attempt = rec->event.logical_attempt, .us = rec->persisted_us};
    e->step_id = arena_str(&w->arena, rec->event.subject);
    e->payload = arena_str(&w->arena, rec->event.payload);
    return ST_OK;
}

static status watch_with(struct ledger *reader, struct watching *w, str run_id,
                         enum run_status *final, struct error *err) {
    struct timespec pause = {.tv_nsec = (long)WATCH_MS * 1000 * 1000};
    struct arena arena;
    status st = ST_OK;
    arena_init(&arena, 4096, WATCH_BYTES_MAX);
    for (;;) {
        struct run_info info;
        arena_reset(&arena);
        st = ledger_find_run(reader, run_id, &arena, &info, err);
        if (st == ST_NOT_FOUND)
            st = error_at(err, REASON_RUN_NOT_FOUND, "", "there is no run \"%.*s\"",
                          STR_ARG(run_id));
        if (st == ST_OK) st = ledger_walk_run(reader, &info, w->after, watch_row, w, err);
        if (st != ST_OK) break;
        show_events(w);
        *final = info.head.status;
        if (run_is_final(*final) || interrupted) break;
        nanosleep(&pause, NULL);
        live_draw(w->live);
    }
    arena_release(&arena);
    return st;
}

status watch_run(struct cli *cli, str run_id, enum run_status *final, struct error *err) {
    struct sigaction action = {.sa_handler = on_interrupt};
    struct ledger *reader = NULL;
    struct watching w = {0};
    status st = store_read(cli, &reader, err);
    if (st != ST_OK) return st;
    interrupted = 0;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    arena_init(&w.arena, 65536, WATCH_BYTES_MAX);
    w.live = live_open(!args_has(&cli->args, OPT_QUIET));
    live_run(w.live, run_id);
    st = watch_with(reader, &w, run_id, final, err);
    live_close(w.live);
    arena_release(&w.arena);
    ledger_close(reader);
    return st;
}

/* A server tells what happens when it does; a ledger must be looked at. */
static status watch_server(struct cli *cli, str run_id, enum run_status *final, struct error *err) {
    struct drive d;
    struct drive_options options = {.passive = true, .quiet = args_has(&cli->args, OPT_QUIET)};
    status st = drive_open(&d, cli, &options, err);
    if (st != ST_OK) return st;
    st = drive_wait(&d, run_id, err);
    if (st == ST_OK && d.over) *final = RUN_COMPLETED; /* or another end: the result tells which */
    drive_close(&d);
    return st;
}

status cmd_run_watch(struct cli *cli, struct error *err) {
    enum run_status final = RUN_NEW;
    struct source *source = NULL;
    str run_id = cli->args.words[0];
    status st = remote_is_named(cli) ? watch_server(cli, run_id, &final, err)
                                     : watch_run(cli, run_id, &final, err);
    if (st != ST_OK) return st;
    if (!run_is_final(final)) {
        cli->exit_code = EXIT_INTERRUPTED;
        return ST_OK;
    }
    st = source_open(cli, SOURCE_READ, &source, err);
    if (st == ST_OK) st = result_print(cli, source, run_id, err); /* sets the exit code */
    source_close(source);
    return st;
}
