/* tests/crash/producer.h: a producer that sends events to `cairn ledger append` and remembers what
 * it was answered, for kill9.c. All in a header because each crash test is one source file.
 *
 * Answers come in the order of the lines, so the n-th answer is about the n-th line of the
 * program's present life. Only a whole line is an answer. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/time.h"
#include "core/event.h"
#include "model/random.h"

enum {
    PRODUCERS_MAX = 2,
    EVENTS_MAX = 400000,
    CYCLE_EVENTS_MAX = 1500,
    RUNS_EACH = 5,
    RUN_EVENTS = 60,
    LIVES_PER_KILL = 4,
    LINE_MAX_BYTES = 900,
    TIME_BYTES = 40
};

struct sent { /* one event, its line, and its first acknowledgement */
    uuid id;
    str line;
    bool acknowledged;
    int64_t run_seq;
    char persisted_at[TIME_BYTES];
};

struct producer {
    int number;
    int64_t made;       /* events so far, of which kinds and steps follow */
    size_t *unanswered; /* numbers of events, in the order they must be sent */
    size_t unanswered_count;
    /* one life of the program: */
    pid_t pid;
    int in, out;
    size_t queue[CYCLE_EVENTS_MAX];              /* what was sent, line by line */
    size_t queue_count, answered, written_bytes; /* written_bytes: of the line queue[writing] */
    size_t writing;
    char reply[65536];
    size_t reply_len;
};

static struct {
    const char *cairn, *option, *where; /* --data DIR or --db URL */
    struct sent *events;
    size_t count;
    struct arena lines;
    struct producer producers[PRODUCERS_MAX];
    int producer_count;
    uint64_t rng;
    int64_t kills, retries;
    int64_t landed_unseen; /* committed, but killed before the answer came */
    char why[512];
} test;

static bool bad(const char *fmt, ...) PRINTF_LIKE(1, 2);
static bool bad(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(test.why, sizeof(test.why), fmt, args);
    va_end(args);
    return false;
}

static void *must(void *ptr) {
    if (!ptr) abort();
    return ptr;
}

/* ---- events ---- */

/* Event number n of a producer. A few runs at a time start, go through their steps, and are
 * followed by the next runs; every third event is of a type that nobody knows. All are legal in
 * this order, so a refusal is a failure. */
static void fill_event(const struct producer *p, int64_t n, char *run_id, size_t run_size,
                       char *step_id, size_t step_size, struct event *e) {
    int64_t lot = n / ((int64_t)RUNS_EACH * RUN_EVENTS);
    int64_t turn = n / RUNS_EACH % RUN_EVENTS;
    int64_t run = lot * RUNS_EACH + n % RUNS_EACH;
    int64_t step = (turn - 1) / 3;
    snprintf(run_id, run_size, "run-%d-%lld", p->number, (long long)run);
    snprintf(step_id, step_size, "step-%lld", (long long)step);
    *e = (struct event){.run_id = str_c(run_id),
                        .tenant_id = STR("tenant"),
                        .project_id = STR("p"),
                        .environment_id = STR("e"),
                        .plan_id = STR("plan"),
                        .plan_version = STR("1"),
                        .engine_attempt = 1,
                        .logical_attempt = 1,
                        .event_id = uuid_v4(),
                        .emitted_ns = 1771228800000000000 + n,
                        .emitted_digits = 9};
    if (turn == 0)
        e->type_name = STR("RunStarted");
    else if ((turn - 1) % 3 == 2)
        e->type_name = STR("StepPondered");
    else
        e->type_name = (turn - 1) % 3 == 0 ? STR("StepStarted") : STR("StepCompleted");
    if (turn > 0) e->subject = str_c(step_id);
    if (n % 4 == 1)
        e->payload = STR("{\"output\":{\"rows\":[1,2,3],\"text\":\"................................"
                         "................................\"}}");
}

static str line_of(struct event *e) {
    struct buf json;
    char mem[LINE_MAX_BYTES];
    struct error err = {0};
    event_key_derive(e, e->key);
    if (event_validate(e, &err) != ST_OK) abort();
    buf_init_fixed(&json, mem, sizeof(mem));
    event_write_json(e, &json);
    buf_put_char(&json, '\n');
    if (json.full) abort();
    return arena_str(&test.lines, buf_str(&json));
}

static size_t make_event(struct producer *p) {
    char run_id[64];
    char step_id[64];
    struct event e;
    if (test.count == EVENTS_MAX) abort();
    struct sent *s = &test.events[test.count];
    fill_event(p, p->made++, run_id, sizeof(run_id), step_id, sizeof(step_id), &e);
    *s = (struct sent){.id = e.event_id, .line = line_of(&e)};
    p->unanswered[p->unanswered_count++] = test.count;
    return test.count++;
}

/* ---- one life of the program ---- */

/* Starts the program with these descriptors as its input and output. */
static bool spawn(const char *const *words, int in, int out, pid_t *pid) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in, 0);
    posix_spawn_file_actions_adddup2(&actions, out, 1);
    int rc = posix_spawn(pid, words[0], &actions, NULL, (char *const *)words, environ);
    posix_spawn_file_actions_destroy(&actions);
    return rc == 0 || bad("could not start \"%s\": %s", words[0], strerror(rc));
}

static bool start(struct producer *p) {
    int in[2];
    int out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)
        return bad("pipe: %s", strerror(errno));
    char group[16];
    snprintf(group, sizeof(group), "%u", 1 + random_below(&test.rng, 64));
    const char *const words[] = {test.cairn, "ledger", "append",  test.option, test.where,
                                 "--group",  group,    "--quiet", NULL};
    bool started = spawn(words, in[0], out[1], &p->pid);
    close(in[0]);
    close(out[1]);
    p->in = in[1];
    p->out = out[0];
    fcntl(p->in, F_SETFL, O_NONBLOCK);
    fcntl(p->out, F_SETFL, O_NONBLOCK);
    p->queue_count = p->answered = p->writing = p->written_bytes = p->reply_len = 0;
    return started;
}

/* Another time one of the first `before` events, if it was acknowledged. */
static void queue_retry(struct producer *p, size_t before) {
    if (before == 0) return;
    size_t old = random_below(&test.rng, (uint32_t)before);
    if (test.events[old].acknowledged) p->queue[p->queue_count++] = old;
}

/* A few retries; what was never answered, in its order; then new events, and more retries among
 * them. */
static void fill_queue(struct producer *p, size_t new_events) {
    size_t before = test.count;
    for (int i = 0; i < 4; i++)
        queue_retry(p, before);
    for (size_t i = 0; i < p->unanswered_count && p->queue_count < CYCLE_EVENTS_MAX; i++)
        p->queue[p->queue_count++] = p->unanswered[i];
    if (p->queue_count == CYCLE_EVENTS_MAX) return; /* later events must wait for these */
    for (size_t i = 0; i < new_events && p->queue_count + 2 < CYCLE_EVENTS_MAX; i++) {
        if (random_chance(&test.rng, 15)) queue_retry(p, before);
        p->queue[p->queue_count++] = make_event(p);
    }
}

static bool write_some(struct producer *p) {
    while (p->in >= 0 && p->writing < p->queue_count) {
        const struct sent *s = &test.events[p->queue[p->writing]];
        ssize_t n = write(p->in, s->line.ptr + p->written_bytes, s->line.len - p->written_bytes);
        if (n < 0) return errno == EAGAIN || errno == EINTR || errno == EPIPE;
        p->written_bytes += (size_t)n;
        if (p->written_bytes < s->line.len) continue;
        p->writing++;
        p->written_bytes = 0;
    }
    return true;
}

static bool member_str(yyjson_val *root, const char *name, str *out) {
    return json_str(json_member(root, name), out);
}

/* {"eventId":...,"runSeq":...,"persistedAt":...,"duplicate":...}, the answer to the next line of
 * the queue. */
static bool take_answer(struct producer *p, str line) {
    struct arena arena;
    struct error err = {0};
    yyjson_val *root = NULL;
    str id;
    str persisted_at;
    uuid got;
    int64_t run_seq = 0;
    arena_init(&arena, 4096, (size_t)1024 * 1024);
    bool ok = p->answered < p->queue_count &&
              json_parse(line, (struct json_limits){65536, 16}, &arena, &root, &err) == ST_OK &&
              member_str(root, "eventId", &id) && uuid_parse(id, &got) &&
              member_str(root, "persistedAt", &persisted_at) && persisted_at.len < TIME_BYTES &&
              json_int(json_member(root, "runSeq"), &run_seq);
    if (!ok) {
        arena_release(&arena);
        return bad("unexpected answer: %.*s", (int)(line.len < 300 ? line.len : 300), line.ptr);
    }
    struct sent *s = &test.events[p->queue[p->answered++]];
    bool duplicate = yyjson_is_true(json_member(root, "duplicate"));
    if (s->acknowledged) {
        test.retries++;
        ok = duplicate && run_seq == s->run_seq && str_eq(persisted_at, str_c(s->persisted_at));
    } else {
        test.landed_unseen += duplicate;
        s->acknowledged = true;
        s->run_seq = run_seq;
        snprintf(s->persisted_at, sizeof(s->persisted_at), "%.*s", STR_ARG(persisted_at));
    }
    ok = ok && uuid_eq(got, s->id);
    if (!ok) bad("the answer to a retry differs from the first: %.*s", STR_ARG(line));
    arena_release(&arena);
    return ok;
}

/* Reads what is there. *eof when the program has closed its end. */
static bool read_some(struct producer *p, bool *eof) {
    for (;;) {
        ssize_t n = read(p->out, p->reply + p->reply_len, sizeof(p->reply) - p->reply_len);
        if (n < 0) return errno == EAGAIN || errno == EINTR || bad("read: %s", strerror(errno));
        if (n == 0) {
            *eof = true;
            return true;
        }
        p->reply_len += (size_t)n;
        size_t used = 0;
        const char *newline = NULL;
        while ((newline = memchr(p->reply + used, '\n', p->reply_len - used))) {
            str line = str_n(p->reply + used, (size_t)(newline - p->reply) - used);
            if (!take_answer(p, line)) return false;
            used += line.len + 1;
        }
        memmove(p->reply, p->reply + used, p->reply_len - used);
        p->reply_len -= used;
        if (p->reply_len == sizeof(p->reply)) return bad("an answer without an end");
    }
}

static void forget_answered(struct producer *p) {
    size_t n = 0;
    for (size_t i = 0; i < p->unanswered_count; i++) {
        if (!test.events[p->unanswered[i]].acknowledged) p->unanswered[n++] = p->unanswered[i];
    }
    p->unanswered_count = n;
}

/* When to kill: so many microseconds after the start, or after that many answers, whichever is
 * first. Never: both -1. */
struct moment {
    int64_t us, answers;
};

static bool is_due(const struct producer *p, struct moment when, int64_t started_ns) {
    int64_t us = (clock_mono_ns() - started_ns) / 1000;
    return (when.us >= 0 && us >= when.us) ||
           (when.answers >= 0 && (int64_t)p->answered >= when.answers);
}

static bool serve(struct producer *p, bool *eof) {
    struct pollfd fds[] = {{.fd = p->out, .events = POLLIN},
                           {.fd = p->writing < p->queue_count ? p->in : -1, .events = POLLOUT}};
    poll(fds, COUNT_OF(fds), 1);
    if (!write_some(p)) return bad("write: %s", strerror(errno));
    if (p->in >= 0 && p->writing == p->queue_count) {
        close(p->in);
        p->in = -1;
    }
    return read_some(p, eof);
}

/* Gathers the end: after a kill only what was already in the pipe. */
static bool finish(struct producer *p, bool killed) {
    int wait_status = 0;
    bool eof = false, ok = true;
    if (waitpid(p->pid, &wait_status, 0) != p->pid) return bad("waitpid: %s", strerror(errno));
    while (ok && !eof)
        ok = read_some(p, &eof);
    if (p->in >= 0) close(p->in);
    close(p->out);
    p->in = p->out = -1;
    forget_answered(p);
    if (!ok) return false;
    bool clean = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0;
    bool by_us = killed && WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL;
    test.kills += by_us;
    if (!clean && !by_us) return bad("the program ended with status %#x", (unsigned)wait_status);
    if (clean && p->answered != p->queue_count)
        return bad("%zu answers to %zu events", p->answered, p->queue_count);
    return true;
}

/* One life of each producer's program. */
static bool cycle(const struct moment *when, size_t new_events) {
    bool running[PRODUCERS_MAX] = {0}, killed[PRODUCERS_MAX] = {0}, ok = true;
    int alive = 0;
    for (int i = 0; i < test.producer_count && ok; i++) {
        ok = start(&test.producers[i]);
        if (ok) fill_queue(&test.producers[i], new_events);
        running[i] = ok;
        alive += ok;
    }
    int64_t started_ns = clock_mono_ns();
    while (alive > 0) {
        for (int i = 0; i < test.producer_count; i++) {
            struct producer *p = &test.producers[i];
            bool eof = false;
            if (!running[i]) continue;
            ok = ok && serve(p, &eof);
            killed[i] = !ok || is_due(p, when[i], started_ns);
            if (killed[i]) kill(p->pid, SIGKILL);
            if (!killed[i] && !eof) continue;
            ok = finish(p, killed[i]) && ok;
            running[i] = false;
            alive--;
        }
    }
    return ok;
}
