/* cli/append.c: cairn ledger append: NDJSON in, one result line per event out, in bounded memory.
 *
 * Lines are gathered into batches. A batch goes to the ledger thread when it is full, or as soon as the
 * input has no more for now and nothing is being committed; while one batch commits, the next is read
 * and parsed. Results are printed when the batch's commit is durable, in input order, for the ledger
 * thread answers in the order it was asked.
 *
 * Threads: a batch belongs to the main thread while it is filled and printed, to the ledger thread in
 * between; it comes back through a queue, and an eventfd wakes the main thread when it waits for
 * its input at the same time. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/os.h"
#include "base/queue.h"
#include "cli/progress.h"
#include "cli/remote.h"
#include "core/event_v1.h"
#include "db/db.h"
#include "ledger/writer.h"
#include "view/view.h"
#include "outbox/outbox.h"
#include "server/outbox_env.h"

enum { BATCHES = 3, GROUP_DEFAULT = 512 };
#define BATCH_BYTES_FULL ((size_t)2 * 1024 * 1024) /* keeps an import of large events small, too */
#define BATCH_BYTES_MAX (BATCH_BYTES_FULL + 2 * EVENT_BYTES_MAX)
#define REMOTE_BODY_MAX ((size_t)8 * 1024 * 1024) /* the API takes no more */
#define PARSED_BYTES_MAX (64 * EVENT_BYTES_MAX)   /* JSON values need more room than their text */

struct line {
    int64_t number;
    struct error *refused; /* before it came to the ledger; in the batch's arena */
};

struct batch {
    struct writer_call call;
    struct import *import;
    struct arena arena;
    struct line *lines;
    size_t line_count;
    size_t empty_bytes; /* of the arena, before the first line */
};

struct import {
    struct cli *cli;
    struct list results;
    struct progress progress;
    int fd;
    int64_t size; /* of the file; 0 if it is none */
    size_t group;
    int64_t v1_until_us; /* the end of the window for version 1 events; 0: none is open */
    struct line_reader *reader;
    struct arena parsed;         /* JSON values of one line */
    struct remote *remote;       /* a server appends them; or */
    struct writer *writer;       /* we do */
    struct writer_stream stream; /* once a commit failed, what was sent behind it is not stored */
    struct queue *done;
    int wake; /* eventfd */
    struct batch batches[BATCHES];
    struct batch *idle[BATCHES];
    size_t idle_count, in_flight;
    int64_t appended, duplicates, refused, unanswered;
    int64_t first_unanswered, last_unanswered; /* line numbers */
    struct error failure; /* the first that ended the import; code ST_OK: none */
};

/* ---- batches ---- */

static void batch_reset(struct batch *batch) {
    arena_reset(&batch->arena);
    size_t n = batch->import->group;
    batch->lines = ARENA_ARRAY(&batch->arena, struct line, n);
    batch->line_count = 0;
    batch->call = (struct writer_call){.context = batch, .stream = &batch->import->stream};
    batch->call.request =
        (struct append_request){.items = ARENA_ARRAY(&batch->arena, struct append_item, n),
                                .results = ARENA_ARRAY(&batch->arena, struct append_result, n),
                                .outside = true,
                                .arena = &batch->arena};
    batch->empty_bytes = batch->arena.used;
}

static bool batch_is_full(const struct batch *batch) {
    return batch->line_count == batch->import->group ||
           batch->arena.used - batch->empty_bytes >= BATCH_BYTES_FULL;
}

/* On the ledger thread. */
static void batch_answered(struct writer_call *call) {
    struct batch *batch = call->context;
    int wake = batch->import->wake;
    bool pushed = queue_try_push(batch->import->done, batch); /* it has room for all batches there are */
    ASSERT(pushed);
    uint64_t one = 1;
    ssize_t n = write(wake, &one, sizeof(one));
    UNUSED(n);
}

/* ---- results ---- */

static void put_refusal(struct buf *out, int64_t line, const struct error *why) {
    json_object_begin(out);
    json_put_int(out, "line", line);
    json_name(out, "error");
    cli_error_json(why, out);
    json_object_end(out);
}

/* The commit failed: nobody knows whether the event is there. */
static void put_unanswered(struct import *im, struct buf *out, int64_t line,
                           const struct error *why) {
    struct error e;
    error_as(&e, why->code, REASON_NOT_ACKNOWLEDGED, "",
             "the commit failed, append the event again: %.300s", why->msg);
    put_refusal(out, line, &e);
    if (im->unanswered++ == 0) im->first_unanswered = line;
    im->last_unanswered = line;
}

static void print_line(struct import *im, const struct batch *batch, const struct line *line,
                       const struct append_result *r) {
    struct buf *out = list_json(&im->results);
    if (line->refused)
        put_refusal(out, line->number, line->refused);
    else if (batch->call.code != ST_OK)
        put_unanswered(im, out, line->number, &batch->call.err);
    else if (r->code != ST_OK)
        put_refusal(out, line->number, r->err);
    else
        view_write(&view_result, r, out);
    list_json_end(&im->results);
    if (line->refused || (batch->call.code == ST_OK && r->code != ST_OK))
        im->refused++;
    else if (batch->call.code == ST_OK && r->duplicate)
        im->duplicates++;
    else if (batch->call.code == ST_OK)
        im->appended++;
}

/* Prints what became of a batch, and makes it idle. */
static void finish_batch(struct import *im, struct batch *batch) {
    size_t item = 0;
    for (size_t i = 0; i < batch->line_count; i++) {
        const struct line *line = &batch->lines[i];
        print_line(im, batch, line, &batch->call.request.results[line->refused ? 0 : item]);
        if (!line->refused) item++;
    }
    list_flush(&im->results);
    if (batch->call.code != ST_OK && im->failure.code == ST_OK) im->failure = batch->call.err;
    if (im->failure.code == ST_OK) {
        status st = out_check(&im->cli->out, &im->failure);
        UNUSED(st); /* a failure is in im->failure now, and ends the loop */
    }
    progress_show(&im->progress, line_reader_offset(im->reader), im->size,
                  line_reader_number(im->reader));
    im->idle[im->idle_count++] = batch;
}

/* Takes back what the ledger thread has answered; waits for one if `wait`. */
static void collect(struct import *im, bool wait) {
    void *taken[BATCHES];
    if (im->in_flight == 0) return;
    size_t n = queue_take(im->done, taken, BATCHES, wait ? -1 : 0);
    im->in_flight -= n;
    for (size_t i = 0; i < n; i++)
        finish_batch(im, taken[i]);
}

static struct batch *next_batch(struct import *im) {
    while (im->idle_count == 0)
        collect(im, true);
    struct batch *batch = im->idle[--im->idle_count];
    batch_reset(batch);
    return batch;
}

/* ---- a server ---- */

/* {"line":N,"error":{"code","where","message"}} of an event that the ledger refused. */
static bool read_refusal(yyjson_val *e, struct arena *arena, struct append_result *r) {
    str code = STR_NONE;
    str where = STR_NONE;
    str message = STR_NONE;
    char place[ERROR_WHERE_MAX];
    if (!json_str(json_member(e, "code"), &code)) return false;
    (void)json_str(json_member(e, "where"), &where);
    (void)json_str(json_member(e, "message"), &message);
    r->err = arena_try(arena, sizeof(*r->err));
    if (!r->err) return false;
    snprintf(place, sizeof(place), "%.*s", STR_ARG(where));
    r->code = remote_failure(r->err, ST_INVALID, code, place, message);
    return true;
}

/* One line for each event, in order. */
static bool read_results(struct import *im, const struct append_request *q, str answer) {
    struct json_limits limits = {LINE_BYTES_MAX, JSON_DEPTH_MAX};
    struct error ignored;
    for (size_t i = 0; i < q->count; i++) {
        yyjson_val *root = NULL;
        str line;
        if (!str_split(answer, '\n', &line, &answer)) return false;
        arena_reset(&im->parsed);
        if (json_parse(line, limits, &im->parsed, &root, &ignored) != ST_OK) return false;
        yyjson_val *e = json_member(root, "error");
        q->results[i] = (struct append_result){0};
        if (!e)
            view_read(&view_result, root, &im->parsed, &q->results[i]);
        else if (!read_refusal(e, q->arena, &q->results[i]))
            return false;
    }
    return answer.len == 0;
}

static status append_remote(struct import *im, const struct append_request *q, struct error *err) {
    struct buf body;
    struct arena arena;
    struct target target;
    str answer = STR_NONE;
    target_init(&target, "/v1/events");
    buf_init(&body, REMOTE_BODY_MAX);
    arena_init(&arena, (size_t)64 * 1024, (size_t)64 * 1024 * 1024);
    for (size_t i = 0; i < q->count; i++) {
        event_write_json(&q->items[i].event, &body);
        buf_put_char(&body, '\n');
    }
    struct remote_body lines = {"application/x-ndjson", buf_str(&body)};
    status st = body.full ? error_at(err, REASON_BODY_TOO_LARGE, "", "a batch is too large to send")
                          : remote_fetch(im->remote, "POST", &target, &lines, REMOTE_CALL_MS,
                                         &arena, &answer, err);
    if (st == ST_OK && !read_results(im, q, answer))
        st = error_at(err, REASON_SERVER_ANSWER_INVALID, "",
                      "the answer has not one result for each event");
    arena_release(&arena);
    buf_release(&body);
    return st;
}

/* ---- sending ---- */

static void submit(struct import *im, struct batch *batch) {
    batch->call.done = batch_answered;
    if (batch->call.request.count ==
        0) { /* refused to the last line: there is nothing to commit, only an order to keep */
        while (im->in_flight > 0)
            collect(im, true);
        finish_batch(im, batch);
        return;
    }
    if (im->remote) {
        batch->call.code = append_remote(im, &batch->call.request, &batch->call.err);
        finish_batch(im, batch);
        return;
    }
    struct error err = {0};
    status st = writer_submit(im->writer, &batch->call, &err);
    if (st == ST_OK) {
        im->in_flight++;
        return;
    }
    while (im->in_flight > 0)
        collect(im, true);
    batch->call.code = st;
    batch->call.err = err;
    finish_batch(im, batch);
}

/* ---- lines ---- */

static status no_memory(struct error *err) {
    return error_set(err, ST_RETRY, "could not read the events: out of memory");
}

static status refuse_line(struct batch *batch, struct line *line, const struct error *why,
                          struct error *err) {
    line->refused = arena_try(&batch->arena, sizeof(*why));
    if (!line->refused) return no_memory(err);
    *line->refused = *why;
    return ST_OK;
}

/* Parses into the arena that the next line reuses, and keeps only the texts: JSON values take
 * several times their text. */
static status parse_line(struct import *im, struct batch *batch, str text, struct event *e,
                         struct error *err) {
    arena_reset(&im->parsed);
    struct event_v1_window window = {.until_ns = im->v1_until_us * 1000, .fresh_id = uuid_v4()};
    status st = event_parse_any(text, &window, &im->parsed, e, err);
    str *texts[] = {&e->type_name,    &e->run_id,         &e->tenant_id,
                    &e->project_id,   &e->environment_id, &e->plan_id,
                    &e->plan_version, &e->subject,        &e->payload};
    for (size_t i = 0; i < COUNT_OF(texts) && st == ST_OK; i++) {
        if (!arena_try_str(&batch->arena, *texts[i], texts[i])) st = no_memory(err);
    }
    return st;
}

/* Adds one line; fails only when reading cannot go on. */
static status add_line(struct import *im, struct batch *batch, str text, status read,
                       const struct error *why, struct error *err) {
    struct line *line = &batch->lines[batch->line_count];
    *line = (struct line){.number = line_reader_number(im->reader)};
    struct error bad;
    if (read == ST_LIMIT) {
        error_at(&bad, REASON_LINE_TOO_LONG, "", "%s", why->msg);
    } else {
        if (str_trim(text).len == 0) return ST_OK;
        struct append_item *item = &batch->call.request.items[batch->call.request.count];
        *item = (struct append_item){.actor = im->cli->args.values[OPT_ACTOR]};
        read = parse_line(im, batch, text, &item->event, &bad);
    }
    if (read == ST_OK)
        batch->call.request.count++;
    else if (read != ST_RETRY)
        read = refuse_line(batch, line, &bad, err);
    else
        *err = bad;
    if (read == ST_OK) batch->line_count++;
    return read;
}

/* Until there is something to read, or an answer to print. */
static void wait_for_more(struct import *im) {
    struct pollfd fds[] = {{.fd = im->fd, .events = POLLIN}, {.fd = im->wake, .events = POLLIN}};
    if (poll(fds, COUNT_OF(fds), -1) <= 0 || !(fds[1].revents & POLLIN)) return;
    uint64_t count = 0;
    ssize_t n = read(im->wake, &count, sizeof(count));
    UNUSED(n);
    collect(im, false);
}

static void read_line(struct import *im, struct batch *batch, bool *eof) {
    struct error why = {0};
    struct error err = {0};
    str text = STR_NONE;
    status st = line_reader_next(im->reader, &text, eof, &why);
    if (st == ST_RETRY)
        err = why;
    else if (!*eof)
        st = add_line(im, batch, text, st, &why, &err);
    if (st != ST_OK) im->failure = err;
}

static void read_all(struct import *im) {
    bool eof = false;
    struct batch *batch = next_batch(im);
    while (!eof && im->failure.code == ST_OK) {
        bool ready = line_reader_ready(im->reader);
        if (batch_is_full(batch) || (!ready && batch->line_count > 0 && im->in_flight == 0)) {
            submit(im, batch);
            batch = next_batch(im);
        } else if (!ready) {
            wait_for_more(im);
        } else {
            read_line(im, batch, &eof);
        }
    }
    if (batch->line_count > 0) submit(im, batch);
    while (im->in_flight > 0)
        collect(im, true);
}

/* ---- the command ---- */

static status unreadable(str path, int code, struct error *err) {
    char text[128];
    return error_as(err, code == ENOENT ? ST_NOT_FOUND : ST_INVALID, REASON_INPUT_UNREADABLE, "",
                    "could not read \"%.*s\": %s", STR_ARG(path),
                    strerror_r(code, text, sizeof(text)));
}

static status open_input(struct import *im, struct error *err) {
    const struct args *args = &im->cli->args;
    struct stat info;
    if (args->word_count == 0 || str_eq(args->words[0], STR("-"))) {
        im->fd = STDIN_FILENO;
        if (isatty(im->fd))
            cli_say("reading events from the terminal, one JSON object a line; end with ctrl-D");
    } else {
        im->fd = open(args->words[0].ptr, O_RDONLY | O_CLOEXEC);
        if (im->fd < 0) return unreadable(args->words[0], errno, err);
    }
    bool known = fstat(im->fd, &info) == 0;
    if (known && S_ISDIR(info.st_mode))
        return unreadable(args->word_count > 0 ? args->words[0] : STR("-"), EISDIR, err);
    if (known && S_ISREG(info.st_mode)) im->size = info.st_size;
    return line_reader_open(im->fd, LINE_BYTES_MAX, &im->reader, err);
}

/* A process that holds the folder appends for us; it alone says how it validates. */
static bool has_holder(struct import *im) {
    struct error nobody;
    str url = STR_NONE;
    return !args_has(&im->cli->args, OPT_VALIDATION) &&
           store_url(im->cli, &url, &nobody) == ST_OK && !db_url_is_postgres(url) &&
           remote_open_folder(im->cli, store_folder(im->cli), &im->remote, &nobody) == ST_OK;
}

/* Events that were recorded though their run forbids them are told to the sinks of a server: the
 * outbox of the next process that carries out runs delivers that. */
static status tell_of_alerts(struct import *im, struct ledger *ledger, struct error *err) {
    const struct outbox_sinks *sinks = NULL;
    const struct effect_retry *retries = NULL;
    status st = alert_urls_env(&im->cli->arena, &sinks, err);
    if (st == ST_OK) st = effect_retries_env(&im->cli->arena, &retries, err);
    if (st != ST_OK) {
        ledger_close(ledger);
        return st;
    }
    outbox_tell(ledger, sinks);
    outbox_retries(ledger, retries);
    return ST_OK;
}

static status open_writer(struct import *im, struct error *err) {
    static const char *const names[] = {"reject", "record", NULL};
    int validation = LEDGER_REJECT;
    struct ledger *ledger = NULL;
    status st = args_choice(&im->cli->args, OPT_VALIDATION, names, LEDGER_REJECT, &validation, err);
    if (st == ST_OK && remote_is_named(im->cli)) return remote_open(im->cli, &im->remote, err);
    if (st == ST_OK && has_holder(im)) return ST_OK;
    if (st == ST_OK) st = store_write(im->cli, (enum ledger_validation)validation, &ledger, err);
    if (st == ST_OK) st = tell_of_alerts(im, ledger, err);
    if (st == ST_OK) st = writer_open(ledger, NULL, &im->writer, err);
    if (st == ST_OK) st = queue_open(BATCHES, &im->done, err);
    if (st != ST_OK) return st;
    im->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return im->wake >= 0
               ? ST_OK
               : error_set(err, ST_RETRY, "could not make an eventfd: %s", strerror(errno));
}

static status check_request(struct import *im, struct error *err) {
    int64_t group = GROUP_DEFAULT;
    str actor = im->cli->args.values[OPT_ACTOR];
    status st =
        args_int(&im->cli->args, OPT_GROUP, 1, BATCH_EVENTS_MAX, GROUP_DEFAULT, &group, err);
    im->group = (size_t)group;
    if (st == ST_OK) st = args_time(&im->cli->args, OPT_ACCEPT_V1_UNTIL, 0, &im->v1_until_us, err);
    if (st == ST_OK && actor.ptr && (actor.len == 0 || actor.len > ACTOR_BYTES_MAX)) {
        st = cli_usage(err, "--actor must have 1 to %d bytes", ACTOR_BYTES_MAX);
    }
    if (st == ST_OK && im->cli->format_given && im->cli->format == OUT_TABLE)
        st = cli_usage(err, "results are printed as ndjson or json, not as a table");
    return st;
}

static status stopped(const struct import *im, struct error *err) {
    long long last = (long long)line_reader_number(im->reader);
    *err = im->failure;
    if (im->unanswered == 0) return error_wrap(err, "reading stopped after line %lld", last);
    return error_wrap(err,
                      "%lld events of lines %lld to %lld are not acknowledged and reading stopped "
                      "after line %lld: append them again",
                      (long long)im->unanswered, (long long)im->first_unanswered,
                      (long long)im->last_unanswered, last);
}

/* What the exit code and the last message say. */
static status conclude(const struct import *im, struct error *err) {
    int64_t answered = im->refused + im->appended + im->duplicates;
    if (!args_has(&im->cli->args, OPT_QUIET)) {
        cli_say("cairn: %lld appended, %lld duplicates, %lld refused", (long long)im->appended,
                (long long)im->duplicates, (long long)im->refused);
    }
    if (im->failure.code != ST_OK) return stopped(im, err);
    if (im->refused == 0) return ST_OK;
    return error_at(err, REASON_LINES_REFUSED, "", "%lld of %lld events were refused",
                    (long long)im->refused, (long long)answered);
}

static void run_import(struct import *im) {
    for (size_t i = 0; i < BATCHES; i++) {
        im->batches[i].import = im;
        arena_init(&im->batches[i].arena, (size_t)64 * 1024, BATCH_BYTES_MAX + im->group * 2048);
        im->idle[im->idle_count++] = &im->batches[i];
    }
    enum out_format format = im->cli->format == OUT_JSON ? OUT_JSON : OUT_NDJSON;
    list_open(&im->results, &im->cli->out, format, NULL, 0, false);
    progress_start(&im->progress, "appending",
                   im->size > 0 && !args_has(&im->cli->args, OPT_QUIET));
    arena_init(&im->parsed, (size_t)64 * 1024, PARSED_BYTES_MAX);
    read_all(im);
    arena_release(&im->parsed);
    progress_end(&im->progress);
    list_close(&im->results);
    for (size_t i = 0; i < BATCHES; i++)
        arena_release(&im->batches[i].arena);
}

status cmd_ledger_append(struct cli *cli, struct error *err) {
    struct import im = {.cli = cli, .fd = -1, .wake = -1};
    status st = check_request(&im, err);
    if (st == ST_OK) st = open_input(&im, err);
    if (st == ST_OK) st = open_writer(&im, err);
    if (st == ST_OK) {
        run_import(&im);
        st = conclude(&im, err);
    }
    writer_close(im.writer);
    line_reader_close(im.reader);
    if (im.done) queue_close(im.done);
    if (im.wake >= 0) close(im.wake);
    if (im.fd > STDIN_FILENO) close(im.fd);
    return st;
}
