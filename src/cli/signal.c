/* cli/signal.c: cairn run pause, resume, cancel, retry, approve, reject, signal.
 *
 * Who may tell a run something depends on who drives it: the process that holds the SQLite folder
 * is asked through its socket, as a server is; when there is none, this process is it for a moment;
 * on PostgreSQL the signal is recorded and the run's node finds it. */
#include "base/json.h"
#include "base/limits.h"
#include "base/time.h"
#include "cli/drive.h"
#include "cli/result.h"
#include "db/db.h"

#include <time.h>

enum { PROCESSED_WAIT_MS = 3000, PROCESSED_LOOK_MS = 50, OPEN_PAGE = 200 };
#define PAYLOAD_BYTES_MAX ((size_t)64 * 1024)

struct order { /* what was asked for */
    str run_id;
    struct signal signal;
    str actor;
};

static status read_order(struct cli *cli, str name, str step_id, struct order *o,
                         struct error *err) {
    const str *v = cli->args.values;
    struct json_limits limits = {PAYLOAD_BYTES_MAX, JSON_DEPTH_MAX - 2};
    yyjson_val *payload = NULL;
    *o = (struct order){.run_id = cli->args.words[0], .actor = v[OPT_ACTOR]};
    o->signal = (struct signal){
        .name = name, .signal_id = v[OPT_SIGNAL_ID], .step_id = step_id, .reason = v[OPT_REASON]};
    if (v[OPT_PAYLOAD].ptr) {
        status st = json_parse(v[OPT_PAYLOAD], limits, &cli->arena, &payload, err);
        if (st != ST_OK) return error_wrap(err, "--payload");
        o->signal.payload = json_text(payload, &cli->arena);
    }
    if (o->actor.len > ACTOR_BYTES_MAX)
        return cli_usage(err, "--actor may have %d bytes", ACTOR_BYTES_MAX);
    if (!o->signal.signal_id.ptr) { /* ours, so that its outcome can be found */
        char id[UUID_TEXT_LEN];
        uuid_format(uuid_v4(), id);
        o->signal.signal_id = arena_str(&cli->arena, str_n(id, sizeof(id)));
    }
    return signal_validate(&o->signal, err);
}

static void tell_sent(struct cli *cli, const struct order *o) {
    if (cli->format == OUT_TABLE) {
        cli_say("%.*s: run %.*s was told", STR_ARG(o->signal.name), STR_ARG(o->run_id));
        return;
    }
    struct buf *out = &cli->out.buf;
    json_object_begin(out);
    json_put_text(out, "runId", o->run_id);
    json_put_text(out, "signal", o->signal.name);
    json_put_text(out, "signalId", o->signal.signal_id);
    buf_put_c(out, "}\n");
}

static status find_run(struct ledger *reader, str run_id, struct arena *arena,
                       struct run_info *info, struct error *err) {
    status st = ledger_find_run(reader, run_id, arena, info, err);
    if (st != ST_NOT_FOUND) return st;
    return error_at(err, REASON_RUN_NOT_FOUND, "", "there is no run \"%.*s\"", STR_ARG(run_id));
}

/* ---- PostgreSQL ---- */

struct signalling {
    char subject[UUID_TEXT_LEN];
    bool processed, failed;
    char why[ERROR_MSG_MAX];
};

static status look_for_outcome(void *context, const struct event_record *rec, bool *stop,
                               struct error *err) {
    UNUSED(stop);
    struct signalling *o = context;
    UNUSED(err);
    if (!str_eq(rec->event.subject, str_n(o->subject, sizeof(o->subject)))) return ST_OK;
    if (rec->event.type == EVENT_SIGNAL_PROCESSED) o->processed = true;
    if (rec->event.type == EVENT_SIGNAL_PROCESSING_FAILED) {
        o->failed = true;
        snprintf(o->why, sizeof(o->why), "%.*s", STR_ARG(rec->event.payload));
    }
    return ST_OK;
}

/* The node looks for woken runs a few times a second: most often its verdict comes soon. */
static status wait_processed(struct cli *cli, struct ledger *ledger, const struct order *o,
                             struct error *err) {
    struct signalling outcome = {0};
    struct run_info info;
    int64_t end = clock_mono_ns() + (int64_t)PROCESSED_WAIT_MS * 1000000;
    uuid_format(signal_uuid(o->run_id, o->signal.signal_id), outcome.subject);
    status st = find_run(ledger, o->run_id, &cli->arena, &info, err);
    while (st == ST_OK && !outcome.processed && !outcome.failed && clock_mono_ns() < end) {
        struct timespec pause = {.tv_nsec = PROCESSED_LOOK_MS * 1000000L};
        st = ledger_walk_run(ledger, &info, 0, look_for_outcome, &outcome, err);
        if (st == ST_OK && !outcome.processed && !outcome.failed) nanosleep(&pause, NULL);
    }
    if (st == ST_OK && outcome.failed)
        return error_at(err, REASON_SIGNAL_NOT_APPLICABLE, "/signal",
                        "the run's node refused it: %s", outcome.why);
    if (st == ST_OK && !outcome.processed && o->signal.kind != SIGNAL_CANCEL &&
        o->signal.kind != SIGNAL_NAMED)
        cli_say("recorded; no node has looked at it yet");
    return st;
}

static status post(struct cli *cli, const struct order *o, struct error *err) {
    struct ledger *ledger = NULL;
    status st = store_change(cli, &ledger, err);
    if (st == ST_OK) st = host_post_signal(ledger, o->run_id, &o->signal, o->actor, NULL, err);
    if (st == ST_OK) st = wait_processed(cli, ledger, o, err);
    ledger_close(ledger);
    return st;
}

/* ---- sending ---- */

/* There must be a ledger: a signal makes none. */
static status ledger_is_there(struct cli *cli, struct error *err) {
    struct ledger *reader = NULL;
    if (remote_is_named(cli)) return ST_OK; /* a server has one */
    status st = store_read(cli, &reader, err);
    ledger_close(reader);
    return st;
}

static status is_postgres(struct cli *cli, bool *out, struct error *err) {
    str url = STR_NONE;
    *out = false;
    if (remote_is_named(cli)) return ST_OK; /* whatever it has */
    status st = store_url(cli, &url, err);
    *out = st == ST_OK && db_url_is_postgres(url);
    return st;
}

static status send_to_engine(struct cli *cli, const struct order *o, struct error *err) {
    struct drive d;
    struct drive_options options = {.quiet = true, .passive = true};
    status st = drive_open(&d, cli, &options, err);
    if (st != ST_OK) return st;
    bool cancel = o->signal.kind == SIGNAL_CANCEL;
    st = drive_signal(&d, o->run_id, &o->signal, o->actor, err);
    bool alone = d.peer == NULL;
    if (st == ST_OK && alone && cancel) st = drive_wait(&d, o->run_id, err);
    drive_close(&d);
    if (st == ST_OK && alone && !cancel)
        cli_say("nobody carries out the run now; go on with: cairn run resume %.*s",
                STR_ARG(o->run_id));
    return st;
}

static status send_order(struct cli *cli, str name, str step_id, struct error *err) {
    struct order o;
    bool postgres = false;
    status st = read_order(cli, name, step_id, &o, err);
    if (st == ST_OK) st = is_postgres(cli, &postgres, err);
    if (st == ST_OK) st = ledger_is_there(cli, err);
    if (st == ST_OK) st = postgres ? post(cli, &o, err) : send_to_engine(cli, &o, err);
    if (st == ST_OK) tell_sent(cli, &o);
    return st;
}

static str second_word(const struct cli *cli) {
    return cli->args.word_count > 1 ? cli->args.words[1] : STR_NONE;
}

status cmd_run_pause(struct cli *cli, struct error *err) {
    return send_order(cli, STR("PAUSE"), STR_NONE, err);
}

status cmd_run_cancel(struct cli *cli, struct error *err) {
    return send_order(cli, STR("CANCEL"), STR_NONE, err);
}

status cmd_run_retry(struct cli *cli, struct error *err) {
    return send_order(cli, STR("RETRY_STEP"), cli->args.words[1], err);
}

status cmd_run_approve(struct cli *cli, struct error *err) {
    return send_order(cli, STR("APPROVE"), second_word(cli), err);
}

status cmd_run_reject(struct cli *cli, struct error *err) {
    return send_order(cli, STR("REJECT"), second_word(cli), err);
}

status cmd_run_signal(struct cli *cli, struct error *err) {
    return send_order(cli, cli->args.words[1], STR_NONE, err);
}

/* ---- resume ---- */

/* Sends RESUME if the run is paused; otherwise it only needs somebody to drive it. */
static status resume_and_wait(struct cli *cli, struct drive *d, const struct order *o, bool paused,
                              struct error *err) {
    struct source *source = NULL;
    status st = ST_OK;
    if (d->postgres) {
        if (paused) st = post(cli, o, err);
    } else if (paused) {
        if (!d->peer) st = drive_resume(d, o->run_id, err);
        if (st == ST_OK) st = drive_signal(d, o->run_id, &o->signal, o->actor, err);
    } else {
        st = drive_resume(d, o->run_id, err);
    }
    if (st == ST_OK) st = drive_wait(d, o->run_id, err);
    bool stopped = d->stop;
    if (st == ST_OK && stopped) drive_say_interrupted(d, o->run_id);
    drive_close(d);
    if (st != ST_OK || stopped) return st;
    st = source_open(cli, SOURCE_READ, &source, err);
    if (st == ST_OK) st = result_print(cli, source, o->run_id, err);
    source_close(source);
    return st;
}

static status look_at_run(struct cli *cli, str run_id, struct explanation *x, struct error *err) {
    struct source *source = NULL;
    status st = source_open(cli, SOURCE_READ, &source, err);
    if (st == ST_OK) st = source->ops->explain(source, run_id, &cli->arena, x, err);
    source_close(source);
    if (st == ST_OK && run_is_final(x->snapshot.status))
        st = error_at(err, REASON_RUN_FINISHED, "", "the run is %s",
                      run_status_name(x->snapshot.status));
    if (st == ST_OK && !x->node.ptr)
        st = error_at(err, REASON_RUN_NOT_MANAGED, "",
                      "run \"%.*s\" was not started by an engine: its events come from elsewhere",
                      STR_ARG(run_id));
    return st;
}

static status resume_one(struct cli *cli, struct error *err) {
    struct order o;
    struct explanation x;
    struct drive d;
    bool postgres = false;
    status st = read_order(cli, STR("RESUME"), STR_NONE, &o, err);
    if (st == ST_OK) st = is_postgres(cli, &postgres, err);
    if (st == ST_OK) st = look_at_run(cli, o.run_id, &x, err);
    if (st != ST_OK) return st;
    bool paused = x.snapshot.status == RUN_PAUSED;
    if (paused && postgres && x.alive) { /* somebody else drives it: say it, and be done */
        st = post(cli, &o, err);
        if (st == ST_OK) tell_sent(cli, &o);
        return st;
    }
    struct drive_options options = {.quiet = args_has(&cli->args, OPT_QUIET),
                                    .all = postgres && !x.alive};
    st = drive_open(&d, cli, &options, err);
    if (st != ST_OK) return st;
    if (d.peer && paused) {
        st = drive_signal(&d, o.run_id, &o.signal, o.actor, err);
        drive_close(&d);
        if (st == ST_OK) tell_sent(cli, &o);
        return st;
    }
    return resume_and_wait(cli, &d, &o, paused, err);
}

/* ---- resume --all ---- */

/* Calls `each` for every run that is not finished; stops when it answers true. */
static status each_open(struct source *source,
                        bool (*each)(void *context, const struct run_info *info), void *context,
                        bool *found, struct error *err) {
    struct run_filter filter = {.statuses = 1U << RUN_PENDING | 1U << RUN_APPROVED |
                                            1U << RUN_RUNNING | 1U << RUN_PAUSED};
    struct arena arena;
    struct page page = {.limit = OPEN_PAGE};
    status st = ST_OK;
    *found = false;
    arena_init(&arena, (size_t)64 * 1024, (size_t)16 * 1024 * 1024);
    do {
        struct run_info *runs = NULL;
        arena_reset(&arena);
        st = source->ops->list_runs(source, &filter, &page, &arena, &runs, err);
        for (size_t k = 0; k < page.count && st == ST_OK && !*found; k++)
            *found = each(context, &runs[k]);
    } while (st == ST_OK && page.cursor.ptr && !*found);
    arena_release(&arena);
    return st;
}

static bool has_work(void *context, const struct run_info *info) {
    struct ledger *reader = context;
    struct lease_info lease = {0};
    struct arena arena;
    struct error ignored;
    arena_init(&arena, 1024, (size_t)64 * 1024);
    status st = lease_find(reader, info->run_no, &arena, &lease, &ignored);
    arena_release(&arena);
    return st != ST_OK || (lease.held && lease.wake_us != CLAIM_NEVER);
}

/* Nothing runs, nothing sleeps: what is left waits for people. */
static bool all_at_rest(struct drive *d) {
    struct engine_stats stats;
    struct error ignored;
    bool found = true;
    engine_stats(host_engine(d->host), &stats);
    if (stats.attempts > 0) return false;
    struct ledger *reader = host_reader(d->host);
    struct arena_mark mark = arena_mark(&d->cli->arena);
    status st = each_open(source_of_ledger(d->cli, reader), has_work, reader, &found, &ignored);
    arena_rewind(&d->cli->arena, mark);
    return st == ST_OK && !found;
}

static bool hand_over(void *context, const struct run_info *info) {
    struct drive *d = context;
    struct error ignored;
    status st = drive_resume(d, info->run_id, &ignored);
    UNUSED(st); /* one that cannot go on stays open */
    return false;
}

static status resume_all(struct cli *cli, struct error *err) {
    struct drive d;
    struct source *source = NULL;
    struct drive_options options = {.all = true, .quiet = true};
    bool found = false;
    status st = ledger_is_there(cli, err);
    if (st == ST_OK) st = drive_open(&d, cli, &options, err);
    if (st != ST_OK) return st;
    if (d.peer) {
        st = source_open(cli, SOURCE_READ, &source, err);
        if (st == ST_OK) st = each_open(source, hand_over, &d, &found, err);
        source_close(source);
        if (st == ST_OK)
            cli_say("%s goes on with them",
                    d.served ? "the server" : "the process that holds the data folder");
    } else {
        st = drive_until(&d, all_at_rest, err);
    }
    bool stopped = d.stop;
    drive_close(&d);
    if (st == ST_OK && stopped) cli->exit_code = EXIT_INTERRUPTED;
    return st;
}

status cmd_run_resume(struct cli *cli, struct error *err) {
    bool all = args_has(&cli->args, OPT_ALL);
    if (all && cli->args.word_count > 0) return cli_usage(err, "RUN and --all: give one of them");
    if (!all && cli->args.word_count == 0) return cli_usage(err, "RUN is missing, or --all");
    return all ? resume_all(cli, err) : resume_one(cli, err);
}
