/* cli/drive.c: an engine at work inside a command, or a command that asks the process that has one.
 */
#include "cli/drive.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/os.h"
#include "base/time.h"
#include "cli/source.h"
#include "db/db.h"

enum {
    LOCK_PROBE_MS = 50,
    FOLLOW_MS = 100, /* between two looks at a run */
    EFFECTS_SPARE_MS = 5000,
    PROVIDER_WAIT_MS = 15000, /* for a cluster to close what has ended */
    FOLLOW_PAGE = 500,        /* events of one look */
    DONE_CHECK_MS = 200,
    TROUBLE_TRIES_MAX = 5, /* about eight seconds */
};
#define FOLLOW_BYTES_MAX ((size_t)64 * 1024 * 1024)
#define REQUEST_BYTES_MAX ((size_t)8 * 1024 * 1024) /* the API takes no more */
#define LOOK_AHEAD_US ((int64_t)1000000) /* a sleeping run is loaded this long before its time */

static void pause_ms(int64_t ms) {
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL); /* a signal only makes us look sooner */
}

/* ---- what the engine tells ---- */

static void on_look(uv_timer_t *timer) {
    struct drive *d = timer->data;
    if (d->host) engine_look(host_engine(d->host), d->run_id);
}

/* A run that sleeps for long leaves the engine's memory, and an engine that drives only what it is
 * asked for does not look for it by itself: we ask in time. */
static void look_in_time(struct drive *d, const struct flow *flow) {
    int64_t wake = flow_wake(flow);
    uv_timer_stop(&d->look);
    if (d->options.all || wake == 0 || wake == FLOW_NEVER) return;
    int64_t ms = (wake - LOOK_AHEAD_US - clock_wall_us()) / 1000;
    uv_timer_start(&d->look, on_look, ms > 0 ? (uint64_t)ms : 0, 0);
}

static void on_note(void *context, const struct engine_note *note) {
    struct drive *d = context;
    if (!d->run_id.ptr || !str_eq(note->run_id, d->run_id)) return;
    if (!d->live_knows) live_flow(d->live, note->flow);
    d->live_knows = true;
    struct arena_mark mark = arena_mark(&d->cli->arena);
    struct live_event *events = ARENA_ARRAY(&d->cli->arena, struct live_event, note->count);
    for (size_t i = 0; i < note->count; i++) {
        const struct flow_event *e = &note->events[i];
        bool fact = event_type_is_fact(e->type);
        events[i] = (struct live_event){.type = e->type,
                                        .step_id = fact ? STR_NONE : e->subject,
                                        .attempt = e->attempt,
                                        .payload = e->payload,
                                        .us = note->results[i].persisted_us};
    }
    live_events(d->live, events, note->count);
    arena_rewind(&d->cli->arena, mark);
    if (run_is_final(note->flow->run.head.status))
        d->over = true;
    else
        look_in_time(d, note->flow);
}

/* A server waits for better times; somebody who looks at a terminal is told. */
static void on_trouble(void *context, str run_id, const struct error *why, int tries) {
    struct drive *d = context;
    if (d->options.serve || tries < TROUBLE_TRIES_MAX) return;
    d->trouble = *why;
    (void)error_wrap(&d->trouble, "run \"%.*s\" is durable up to here, but cannot go on",
                     STR_ARG(run_id));
    d->hopeless = d->stop = true;
}

static void on_lost(void *context) {
    struct drive *d = context;
    d->lost = true;
}

/* From now on the signal does what it does to any program: it ends us at once. */
static void on_signal(uv_signal_t *handle, int number) {
    struct drive *d = handle->data;
    UNUSED(number);
    d->stop = true;
    uv_signal_stop(&d->interrupt);
    uv_signal_stop(&d->terminate);
}

static void on_reload(uv_signal_t *handle, int number) {
    struct drive *d = handle->data;
    UNUSED(number);
    if (d->server) server_reload(d->server);
}

static void on_draw(uv_timer_t *timer) {
    struct drive *d = timer->data;
    live_draw(d->live);
}

/* ---- opening ---- */

static void read_list(const struct args *args, enum opt opt, struct setting_list *out) {
    static_assert((int)ARGS_REPEATS_MAX <= (int)SETTINGS_LIST_MAX,
                  "every repeated option has its place");
    str text;
    for (size_t at = 0; args_each(args, opt, &at, &text);)
        out->items[out->count++] = text;
}

static status read_settings(struct drive *d, struct error *err) {
    const struct args *args = &d->cli->args;
    const str *v = args->values;
    struct server_settings *s = &d->settings;
    *s = (struct server_settings){.auth = args_has(args, OPT_AUTH),
                                  .tls_cert = v[OPT_TLS_CERT],
                                  .tls_key = v[OPT_TLS_KEY],
                                  .jwks = v[OPT_JWKS],
                                  .jwt_issuer = v[OPT_JWT_ISSUER],
                                  .jwt_audience = v[OPT_JWT_AUDIENCE],
                                  .secrets_dir = v[OPT_SECRETS]};
    read_list(args, OPT_LISTEN, &s->listen);
    read_list(args, OPT_ALLOW, &s->allow);
    read_list(args, OPT_ENDPOINT, &s->endpoints);
    status st = args_int(args, OPT_RATE, 1, 1000000, 0, &s->rate, err);
    if (st == ST_OK)
        st = args_int(args, OPT_MAX_RUNS_PER_TENANT, 1, INT64_MAX, 0, &s->tenant_active_max, err);
    if (st == ST_OK)
        st = args_int(args, OPT_MAX_RUNS_PER_PLAN, 1, INT64_MAX, 0, &s->plan_active_max, err);
    return st;
}

static void close_server(struct drive *d) {
    server_halt(d->server);
    (void)uv_run(&d->loop, UV_RUN_NOWAIT); /* its handles close */
    server_close(d->server);
    d->server = NULL;
}

static status open_server(struct drive *d, struct error *err) {
    struct server_options options = {.loop = &d->loop,
                                     .settings = &d->settings,
                                     .url = d->url,
                                     .folder = d->folder,
                                     .node = d->options.node,
                                     .passive = d->options.passive,
                                     .all = d->options.all,
                                     .serve = d->options.serve,
                                     .observe = on_note,
                                     .trouble = on_trouble,
                                     .lost = on_lost,
                                     .context = d};
    status st = server_open(&options, &d->server, err);
    d->host = st == ST_OK ? server_host(d->server) : NULL;
    return st;
}

static bool folder_is_locked(struct drive *d) {
    int fd = -1;
    struct error ignored;
    str path = cli_text(d->cli, "%.*s/ledger.db.lock", STR_ARG(d->folder));
    if (lock_take(path, 0, &fd, &ignored) == ST_RETRY) return true;
    lock_drop(fd);
    return false;
}

/* The folder is ours; or a process that can be talked to has it; or we wait for one that cannot. */
static status open_either(struct drive *d, struct error *err) {
    int64_t wait_ms = 0;
    status st = store_wait_ms(d->cli, &wait_ms, err);
    int64_t end_ns = clock_mono_ns() + wait_ms * 1000000;
    while (st == ST_OK) {
        struct error nobody;
        if (!d->postgres && remote_open_folder(d->cli, d->folder, &d->peer, &nobody) == ST_OK)
            return ST_OK;
        st = open_server(d, err);
        if (st == ST_OK) return ST_OK;
        close_server(d);
        bool locked = st == ST_RETRY && !d->postgres && folder_is_locked(d);
        if (!locked || clock_mono_ns() >= end_ns) return st;
        pause_ms(LOCK_PROBE_MS);
        st = ST_OK;
    }
    return st;
}

static void open_loop(struct drive *d) {
    (void)uv_loop_init(&d->loop);
    (void)uv_signal_init(&d->loop, &d->interrupt);
    (void)uv_signal_init(&d->loop, &d->terminate);
    (void)uv_signal_init(&d->loop, &d->reload);
    (void)uv_timer_init(&d->loop, &d->draw);
    (void)uv_timer_init(&d->loop, &d->look);
    d->interrupt.data = d->terminate.data = d->reload.data = d->draw.data = d->look.data = d;
}

/* Which ledger, which folder, and what its engine may do. */
static status open_here(struct drive *d, struct error *err) {
    status st = store_url(d->cli, &d->url, err);
    if (st != ST_OK) return st;
    d->postgres = db_url_is_postgres(d->url);
    d->folder = arena_str(&d->cli->arena, store_folder(d->cli));
    return read_settings(d, err);
}

status drive_open(struct drive *d, struct cli *cli, const struct drive_options *options,
                  struct error *err) {
    *d = (struct drive){.cli = cli, .options = *options};
    d->served = remote_is_named(cli);
    status st = d->served ? remote_open(cli, &d->peer, err) : open_here(d, err);
    if (st != ST_OK) return st;
    (void)signal(SIGPIPE, SIG_IGN); /* a client that went away is no reason to end */
    if (!options->serve) log_setup(STDERR_FILENO, false, LOG_ERROR);
    open_loop(d);
    arena_init(&d->follow.arena, (size_t)64 * 1024, FOLLOW_BYTES_MAX);
    d->live = live_open(!options->quiet && !options->serve);
    if (!d->served) st = open_either(d, err);
    if (st != ST_OK) {
        drive_close(d);
        return st;
    }
    uv_signal_start(&d->interrupt, on_signal, SIGINT);
    uv_signal_start(&d->terminate, on_signal, SIGTERM);
    if (options->serve) uv_signal_start(&d->reload, on_reload, SIGHUP);
    uv_timer_start(&d->draw, on_draw, LIVE_DRAW_MS, LIVE_DRAW_MS);
    if (options->quiet || options->serve) uv_timer_stop(&d->draw);
    return ST_OK;
}

void drive_close(struct drive *d) {
    uv_timer_stop(&d->draw); /* the loop goes on turning, but nothing more is shown */
    uv_timer_stop(&d->look);
    d->run_id = STR_NONE;
    live_close(d->live);
    server_halt(d->server);
    uv_handle_t *handles[] = {(uv_handle_t *)&d->interrupt, (uv_handle_t *)&d->terminate,
                              (uv_handle_t *)&d->reload, (uv_handle_t *)&d->draw,
                              (uv_handle_t *)&d->look};
    for (size_t i = 0; i < COUNT_OF(handles); i++)
        uv_close(handles[i], NULL);
    (void)uv_run(&d->loop, UV_RUN_DEFAULT);
    (void)uv_loop_close(&d->loop);
    server_close(d->server);
    arena_release(&d->follow.arena);
    (void)signal(SIGPIPE, SIG_DFL);
}

/* ---- asking ---- */

struct answer {
    bool there;
    status code;
    struct error err;
};

static void take_answer(void *context, status code, const struct error *err) {
    struct answer *a = context;
    a->there = true;
    a->code = code;
    if (code != ST_OK && err) a->err = *err;
}

static status interrupted(struct error *err) {
    return error_at(err, REASON_INTERRUPTED, "", "interrupted before the answer came");
}

static status lost(struct error *err) {
    return error_as(err, ST_RETRY, REASON_LEASE_LOST, "",
                    "the lease is lost: another node has taken over the work, or may have");
}

/* The answer lives in the command's arena: it may come while the host closes. */
static status wait_answer(struct drive *d, const struct answer *a, struct error *err) {
    while (!a->there && !d->stop && !d->lost)
        (void)uv_run(&d->loop, UV_RUN_ONCE);
    if (!a->there && d->hopeless) {
        *err = d->trouble;
        return err->code;
    }
    if (!a->there) return d->lost ? lost(err) : interrupted(err);
    if (a->code != ST_OK) *err = a->err;
    return a->code;
}

/* The process that had the folder went away before it answered. What was asked is asked again,
 * of its successor or of ourselves: ids make sure that it happens once. */
static bool asks_again(struct drive *d, status st, struct error *err) {
    if (!d->peer || d->served || st == ST_OK || !remote_is_gone(err)) return false;
    d->peer = NULL;
    pause_ms(LOCK_PROBE_MS);
    return open_either(d, err) == ST_OK;
}

static status ask(struct drive *d, const struct target *target, struct buf *body,
                  yyjson_val **answer, struct error *err) {
    struct remote_body json = {"application/json", body ? buf_str(body) : STR_NONE};
    status st = body && body->full
                    ? error_at(err, REASON_BODY_TOO_LARGE, "", "the request is too long")
                    : remote_send(d->peer, "POST", target, &json, &d->cli->arena, answer, err);
    if (body) buf_release(body);
    return st;
}

/* A server knows the tenant of its caller, who need not name it. */
static status ask_start(struct drive *d, const struct start_request *q, char *run_id,
                        struct error *err) {
    struct buf b;
    struct target t;
    yyjson_val *answer = NULL;
    str id = STR_NONE;
    buf_init(&b, REQUEST_BYTES_MAX);
    json_object_begin(&b);
    json_name(&b, "context");
    json_object_begin(&b);
    if (args_has(&d->cli->args, OPT_TENANT)) json_put_text(&b, "tenantId", q->tenant_id);
    json_put_text(&b, "projectId", q->project_id);
    json_put_text(&b, "environmentId", q->environment_id);
    json_put_text_if(&b, "runId", q->run_id);
    json_put_text(&b, "targetAdapter", q->adapter);
    json_object_end(&b);
    json_name(&b, "planRef");
    plan_ref_json(&q->ref, &b);
    json_put_json_if(&b, "parameters", q->parameters);
    if (q->approval) json_put_bool(&b, "approval", true);
    json_object_end(&b);
    target_init(&t, "/v1/runs");
    status st = ask(d, &t, &b, &answer, err);
    if (st == ST_OK && (!json_str(json_member(answer, "runId"), &id) || id.len > ID_BYTES_MAX))
        st = error_at(err, REASON_SERVER_ANSWER_INVALID, "", "the answer names no run");
    if (st == ST_OK) {
        memcpy(run_id, id.ptr, id.len);
        run_id[id.len] = 0;
    }
    return st;
}

static status start_once(struct drive *d, const struct start_request *q, char *run_id,
                         struct error *err) {
    if (d->peer) return ask_start(d, q, run_id, err);
    struct answer *a = ARENA_NEW(&d->cli->arena, struct answer);
    host_start(d->host, q, run_id, take_answer, a);
    return wait_answer(d, a, err);
}

status drive_start(struct drive *d, const struct start_request *q, char *run_id,
                   struct error *err) {
    struct start_request with_id = *q;
    if (!q->run_id.ptr) { /* known before the first event, so that none is missed */
        char text[UUID_TEXT_LEN];
        uuid_format(uuid_v4(), text);
        with_id.run_id = arena_str(&d->cli->arena, str_n(text, sizeof(text)));
        with_id.fresh_id = true;
    }
    d->run_id = with_id.run_id;
    live_run(d->live, d->run_id);
    status st = start_once(d, &with_id, run_id, err);
    while (asks_again(d, st, err))
        st = start_once(d, &with_id, run_id, err);
    return st == ST_OK ? ST_OK : err->code;
}

static void run_target(struct target *t, str run_id, const char *what) {
    target_init(t, "/v1/runs/");
    target_id(t, run_id);
    target_path(t, what);
}

static status ask_signal(struct drive *d, str run_id, const struct signal *s, struct error *err) {
    struct buf b;
    struct target t;
    yyjson_val *answer = NULL;
    buf_init(&b, REQUEST_BYTES_MAX);
    json_object_begin(&b);
    json_put_text(&b, "signal", s->name);
    json_put_text_if(&b, "signalId", s->signal_id);
    json_put_text_if(&b, "stepId", s->step_id);
    json_put_text_if(&b, "reason", s->reason);
    json_put_json_if(&b, "payload", s->payload);
    json_object_end(&b);
    run_target(&t, run_id, "/signals");
    return ask(d, &t, &b, &answer, err);
}

static status signal_once(struct drive *d, str run_id, const struct signal *signal, str actor,
                          struct error *err) {
    if (d->peer) return ask_signal(d, run_id, signal, err);
    struct answer *a = ARENA_NEW(&d->cli->arena, struct answer);
    engine_signal(host_engine(d->host), run_id, signal,
                  &(struct engine_caller){.actor = actor, .done = take_answer, .context = a});
    return wait_answer(d, a, err);
}

status drive_signal(struct drive *d, str run_id, const struct signal *signal, str actor,
                    struct error *err) {
    status st = signal_once(d, run_id, signal, actor, err);
    while (asks_again(d, st, err))
        st = signal_once(d, run_id, signal, actor, err);
    return st == ST_OK ? ST_OK : err->code;
}

static status resume_once(struct drive *d, str run_id, struct error *err) {
    if (!d->peer) {
        d->run_id = arena_str(&d->cli->arena, run_id);
        live_run(d->live, d->run_id);
        engine_look(host_engine(d->host), run_id);
        return ST_OK;
    }
    struct target t;
    yyjson_val *answer = NULL;
    run_target(&t, run_id, "/wake");
    return ask(d, &t, NULL, &answer, err);
}

status drive_resume(struct drive *d, str run_id, struct error *err) {
    status st = resume_once(d, run_id, err);
    while (asks_again(d, st, err))
        st = resume_once(d, run_id, err);
    return st == ST_OK ? ST_OK : err->code;
}

/* ---- waiting ---- */

void drive_say_interrupted(struct drive *d, str run_id) {
    live_close(d->live);
    d->live = NULL;
    if (d->peer)
        cli_say("interrupted: the run goes on %s; see: cairn run show %.*s",
                d->served ? "on the server" : "in another process", STR_ARG(run_id));
    else
        cli_say("interrupted: the run stays open; go on with: cairn run resume %.*s",
                STR_ARG(run_id));
    d->cli->exit_code = EXIT_INTERRUPTED;
}

static void wake_loop(uv_timer_t *timer) { UNUSED(timer); }

status drive_until(struct drive *d, bool (*done)(struct drive *d), struct error *err) {
    uv_timer_t timer;
    (void)uv_timer_init(&d->loop, &timer);
    uv_timer_start(&timer, wake_loop, DONE_CHECK_MS, DONE_CHECK_MS);
    while (!d->stop && !d->lost && !(done && done(d)))
        (void)uv_run(&d->loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&timer, NULL);
    (void)uv_run(&d->loop, UV_RUN_NOWAIT);
    if (d->hopeless) {
        *err = d->trouble;
        return err->code;
    }
    return d->lost ? lost(err) : ST_OK;
}

/* Looks at the run as it stands in the ledger. */
static status look_at_run(struct drive *d, struct ledger *reader, struct error *err) {
    struct arena arena;
    struct run_info info;
    arena_init(&arena, 4096, (size_t)1024 * 1024);
    status st = ledger_find_run(reader, d->run_id, &arena, &info, err);
    if (st == ST_OK) {
        d->over = run_is_final(info.head.status);
        live_started(d->live, info.started_us);
    }
    arena_release(&arena);
    return st;
}

static bool run_level_end(enum event_type type) {
    return type == EVENT_RUN_COMPLETED || type == EVENT_RUN_FAILED || type == EVENT_RUN_CANCELLED;
}

/* Shows the events after *after, and notes the end of the run. */
static status show_page(struct drive *d, struct ledger *reader, int64_t *after, bool *more,
                        struct error *err) {
    struct arena arena;
    struct event_page page = {0};
    arena_init(&arena, (size_t)64 * 1024, (size_t)512 * 1024 * 1024);
    status st = ledger_read_run(reader, d->run_id, *after, FOLLOW_PAGE, &arena, &page, err);
    *more = st == ST_OK && page.count == FOLLOW_PAGE;
    if (st == ST_OK && page.count > 0) {
        struct live_event *events = ARENA_ARRAY(&arena, struct live_event, page.count);
        for (size_t i = 0; i < page.count; i++) {
            const struct event_record *r = &page.records[i];
            events[i] = (struct live_event){
                .type = r->event.type < EVENT_TYPE_COUNT ? r->event.type : EVENT_UNKNOWN,
                .step_id = event_type_is_fact(r->event.type) ? STR_NONE : r->event.subject,
                .attempt = r->event.logical_attempt,
                .payload = r->event.payload,
                .us = r->persisted_us};
            if (run_level_end(r->event.type)) d->over = true;
        }
        *after = page.records[page.count - 1].seq;
        live_events(d->live, events, page.count);
    }
    arena_release(&arena);
    return st;
}

/* Another node of PostgreSQL may carry it out: then the ledger tells. */
static bool run_is_over(struct drive *d) {
    struct error ignored;
    bool more = true;
    while (d->postgres && !d->live_knows && !d->over && more) {
        if (show_page(d, host_reader(d->host), &d->shown_seq, &more, &ignored) != ST_OK) break;
    }
    return d->over;
}

static bool effects_are_out(struct drive *d) {
    return host_outbox_idle(d->host) || clock_mono_ns() >= d->effects_until_ns;
}

/* What the run asked for is tried once before the process goes; what fails is for whoever comes
 * next. A batch is delivered one after the other: that is how long it may take. */
static status send_effects(struct drive *d, struct error *err) {
    int64_t wait_ms = server_delivery_ms(d->server) * DISPATCH_BATCH + EFFECTS_SPARE_MS;
    d->effects_until_ns = clock_mono_ns() + wait_ms * 1000000;
    return drive_until(d, effects_are_out, err);
}

static bool is_closed_there(struct drive *d) {
    return host_providers_are_idle(d->host) || clock_mono_ns() >= d->effects_until_ns;
}

/* A cluster that dispatched the run hears of its end; if not now, then from whoever comes next. */
static status tell_provider(struct drive *d, struct error *err) {
    d->effects_until_ns = clock_mono_ns() + (int64_t)PROVIDER_WAIT_MS * 1000000;
    return drive_until(d, is_closed_there, err);
}

/* In this process. */
static status wait_here(struct drive *d, struct error *err) {
    status st = look_at_run(d, host_reader(d->host), err);
    if (st == ST_OK && !d->over) st = drive_until(d, run_is_over, err);
    if (st == ST_OK && d->over && !d->stop) st = send_effects(d, err);
    return st == ST_OK && d->over && !d->stop ? tell_provider(d, err) : st;
}

/* ---- following what a peer does ---- */

static void show_followed(struct drive *d) {
    struct follow *f = &d->follow;
    if (f->count > 0) live_events(d->live, f->events, f->count);
    f->count = 0;
    arena_reset(&f->arena);
}

static bool on_event(void *context, str line) {
    struct drive *d = context;
    struct follow *f = &d->follow;
    struct json_limits limits = {2 * LINE_BYTES_MAX, JSON_DEPTH_MAX + 8};
    struct error ignored;
    struct event_record rec;
    yyjson_val *root = NULL;
    if (line.len == 0) return true;
    if (f->count == FOLLOW_EVENTS || f->arena.used > FOLLOW_BYTES_MAX / 2) show_followed(d);
    if (json_parse(line, limits, &f->arena, &root, &ignored) != ST_OK) return false;
    view_read(&view_event, root, &f->arena, &rec);
    f->after = rec.run_seq;
    if (run_level_end(rec.event.type)) d->over = true;
    f->events[f->count++] = (struct live_event){.type = rec.event.type,
                                                .step_id = rec.event.subject,
                                                .attempt = rec.event.logical_attempt,
                                                .payload = rec.event.payload,
                                                .us = rec.persisted_us};
    return true;
}

static void on_ended(void *context, status st, const struct error *err) {
    struct drive *d = context;
    d->follow.ended = true;
    d->follow.st = st;
    d->follow.why = *err;
}

/* What came together is shown together: a failure and its retry are one line. */
static bool has_followed(struct drive *d) {
    show_followed(d);
    return d->follow.ended;
}

static status follow_stream(struct drive *d, struct error *err) {
    struct follow *f = &d->follow;
    struct target t;
    f->ended = false;
    run_target(&t, d->run_id, "/events");
    target_query_int(&t, "after", f->after);
    status st = client_open(&d->loop, &f->client, err);
    if (st == ST_OK)
        st = remote_stream_open(d->peer, f->client, &t, on_event, on_ended, d, &f->stream, err);
    if (st == ST_OK) st = drive_until(d, has_followed, err);
    show_followed(d);
    remote_stream_close(f->stream);
    client_close(f->client);
    f->stream = NULL;
    f->client = NULL;
    (void)uv_run(&d->loop, UV_RUN_NOWAIT);
    if (st == ST_OK && f->ended && f->st != ST_OK) {
        *err = f->why;
        st = f->st;
    }
    return st;
}

/* A stream may end for other reasons than the run's end: the run itself tells. */
static status look_at_peer(struct drive *d, struct error *err) {
    struct source *source = source_of_remote(d->cli, d->peer);
    struct arena arena;
    struct run_info info;
    arena_init(&arena, 4096, (size_t)1024 * 1024);
    status st = source->ops->find_run(source, d->run_id, &arena, &info, err);
    if (st == ST_OK) {
        d->over = run_is_final(info.head.status);
        live_started(d->live, info.started_us);
    }
    arena_release(&arena);
    return st;
}

/* The peer carries it out: its events tell. *gone: that process is not there any more. */
static status follow(struct drive *d, bool *gone, struct error *err) {
    status st = look_at_peer(d, err);
    bool over = d->over; /* it had ended before: its events are shown all the same */
    d->over = false;
    while (st == ST_OK && !d->over && !d->stop) {
        st = follow_stream(d, err);
        if (over) d->over = true;
        if (st != ST_OK || d->over || d->stop) continue;
        pause_ms(FOLLOW_MS);
        st = look_at_peer(d, err);
    }
    *gone = st != ST_OK && !d->served && remote_is_gone(err);
    if (!*gone) return st;
    d->peer = NULL;
    return ST_OK;
}

status drive_wait(struct drive *d, str run_id, struct error *err) {
    status st = ST_OK;
    if (!d->run_id.ptr || !str_eq(d->run_id, run_id)) {
        d->run_id = arena_str(&d->cli->arena, run_id);
        live_run(d->live, d->run_id);
    }
    while (st == ST_OK && d->peer && !d->over && !d->stop) {
        bool gone = false;
        st = follow(d, &gone, err);
        if (st != ST_OK || !gone) return st;
        st = open_either(d, err); /* perhaps it is there again, or another one */
        if (st == ST_OK) st = drive_resume(d, run_id, err);
    }
    return st == ST_OK && d->host && !d->stop ? wait_here(d, err) : st;
}
