/* lib/producer_test.c: what a producer sends: ids that survive retries, restarts and SIGKILL;
 * bounds; bad input. */
#include "lib/producer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/log.h"
#include "base/os.h"
#include "lib/producer_stage_test.h"
#include "test.h"

/* ---- emitting ---- */

/* RE-2.4-3: the runtime told us of no attempts (0), and every record has engineAttemptId 1. */
TEST_DB(producer_emits_a_run) {
    struct stage s;
    stage_open(&s, url, stage_ids_url(url));
    stage_emit_all(&s, "run-1");
    struct event_page page = stage_records(&s, "run-1");
    CHECK(page.count == 7);
    for (size_t i = 0; i < page.count; i++) {
        const struct event *e = &page.records[i].event;
        uint8_t key[SHA256_LEN];
        event_key_derive(e, key);
        CHECK(e->engine_attempt == 1 && e->logical_attempt == 1, "record %zu", i);
        CHECK(memcmp(key, e->key, SHA256_LEN) == 0 && uuid_version(e->event_id) == 4, "record %zu",
              i);
        CHECK(e->emitted_ns > 0 && e->emitted_digits == 6, "record %zu", i);
    }
    const struct run *run = NULL;
    OK(producer_state(s.producer, STR("run-1"), &run, &test_err));
    CHECK(run->head.status == RUN_COMPLETED && run->head.run_seq == 7 && !run->head.inconsistent);
    stage_close(&s);
}

/* RE-2.5-1 */
TEST_DB(producer_retries_with_one_id) {
    struct stage s;
    stage_open(&s, url, stage_ids_url(url));
    for (int after = 0; after < 2; after++) { /* the append fails; or only its answer is lost */
        const char *run_id = after > 0 ? "run-after" : "run-before";
        struct append_result result = {0};
        int first = s.authority.calls;
        s.authority.failures = 2;
        s.authority.after = after > 0;
        CHECK(stage_try(&s, run_id, "RunStarted", NULL, 1, &result) == ST_RETRY);
        CHECK(stage_try(&s, run_id, "RunStarted", NULL, 1, &result) == ST_RETRY && result.seq == 0);
        OK(stage_try(&s, run_id, "RunStarted", NULL, 1, &result));
        CHECK(s.authority.calls == first + 3 && result.duplicate == (after > 0));
        for (int i = first; i < s.authority.calls; i++) {
            CHECK(uuid_eq(s.authority.sent[i].event_id, result.event_id), "attempt %d", i - first);
        }
        CHECK(stage_records(&s, run_id).count == 1);
    }
    stage_close(&s);
}

/* RE-2.4-4: five writes of one event in one life; the attempt is the caller's, whatever happens. */
TEST_DB(producer_leaves_the_engine_attempt_alone) {
    struct stage s;
    stage_open(&s, url, stage_ids_url(url));
    struct append_item item = stage_item("run", "RunStarted", NULL, 1);
    struct append_result result = {0};
    item.event.engine_attempt = 3;
    s.authority.failures = 4;
    for (int i = 0; i < 4; i++)
        CHECK(producer_emit(s.producer, &item, &result, &test_err) == ST_RETRY);
    OK(producer_emit(s.producer, &item, &result, &test_err));
    CHECK(s.authority.calls == 5);
    for (int i = 0; i < 5; i++)
        CHECK(s.authority.sent[i].engine_attempt == 3, "write %d", i);
    CHECK(stage_records(&s, "run").records[0].event.engine_attempt == 3);
    stage_close(&s);
}

/* RE-2.5.1-2 */
TEST_DB(producer_makes_a_fresh_id_for_each_event) {
    enum { N = 1000 };
    static uuid ids[N];
    struct stage s;
    stage_open(&s, url, stage_ids_url(url));
    for (int i = 0; i < N; i++) {
        char step[24];
        snprintf(step, sizeof(step), "step-%d", i);
        ids[i] = stage_emit(&s, "run", i == 0 ? "RunStarted" : "StepStarted", i == 0 ? NULL : step)
                     .event_id;
        CHECK((ids[i].b[6] & 0xF0) == 0x40 && (ids[i].b[8] & 0xC0) == 0x80, "event %d", i);
        for (int k = 0; k < i; k++)
            CHECK(!uuid_eq(ids[i], ids[k]), "events %d and %d", i, k);
    }
    CHECK(stage_records(&s, "run").count == N);
    stage_close(&s);
}

/* RE-2.5.1-8: the same inputs in two fresh stores. */
TEST_DB(producer_derives_no_id_from_inputs) {
    struct stage a;
    struct stage b;
    str other = test_db_url(str_starts(url, STR("postgres")) ? "postgres" : "sqlite");
    stage_open(&a, url, stage_ids_url(url));
    stage_open(&b, other, stage_ids_url(other));
    uuid first = stage_emit(&a, "run", "RunStarted", NULL).event_id;
    uuid second = stage_emit(&b, "run", "RunStarted", NULL).event_id;
    CHECK(uuid_version(first) == 4 && uuid_version(second) == 4 && !uuid_eq(first, second));
    struct event_page one = stage_records(&a, "run");
    struct event_page two = stage_records(&b, "run");
    CHECK(memcmp(one.records[0].event.key, two.records[0].event.key, SHA256_LEN) == 0);
    stage_close(&a);
    stage_close(&b);
}

/* ---- believing the Append Authority ---- */

static str log_of_adopting(struct stage *s, struct append_result *result) {
    static char path[300];
    str text = STR_NONE;
    snprintf(path, sizeof(path), "%s/log", test_dir());
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    CHECK(fd >= 0);
    log_setup(fd, true, LOG_DEBUG);
    *result = stage_emit(s, "run", "RunStarted", NULL);
    log_setup(STDERR_FILENO, false, LOG_INFO);
    close(fd);
    OK(file_read(str_c(path), 65536, &s->arena, &text, &test_err));
    return text;
}

/* RE-2.5-4: somebody else has appended the event under his id. Ours is forgotten: in the result,
 * the log, the registry, in what is caused by it. */
TEST_DB(producer_accepts_another_id) {
    struct stage s;
    char id[UUID_TEXT_LEN + 1] = {0};
    stage_open(&s, url, stage_ids_url(url));
    struct append_item item = stage_item("run", "RunStarted", NULL, 1);
    OK(producer_prepare(&item.event, 1700000000000000, &s.arena, &test_err));
    struct append_result theirs = {0};
    struct append_request request = {
        .items = &item, .count = 1, .results = &theirs, .arena = &s.arena};
    struct append_request *requests[] = {&request};
    /* The producer has read the run before, so that it knows nothing of this. */
    const struct run *run = NULL;
    OK(producer_state(s.producer, STR("run"), &run, &test_err));
    OK(ledger_append(s.ledger, requests, 1, &test_err));

    struct append_result mine = {0};
    str log = log_of_adopting(&s, &mine);
    CHECK(!uuid_eq(stage_sent(&s)->event_id, theirs.event_id));
    CHECK(mine.duplicate && uuid_eq(mine.event_id, theirs.event_id) &&
          mine.run_seq == theirs.run_seq);
    CHECK(mine.persisted_us == theirs.persisted_us);
    uuid_format(theirs.event_id, id);
    CHECK(strstr(log.ptr, id) != NULL, "%s", log.ptr);
    uuid_format(stage_sent(&s)->event_id, id);
    CHECK(strstr(log.ptr, id) == NULL, "%s", log.ptr);
    CHECK(uuid_eq(stage_id_of(s.registry, &item, false), theirs.event_id));

    struct append_item next = stage_item("run", "StepStarted", "a", 1);
    struct append_result result = {0};
    next.cause = &mine.event_id;
    OK(producer_emit(s.producer, &next, &result, &test_err));
    struct event_page page = stage_records(&s, "run");
    CHECK(page.count == 2 && uuid_eq(page.records[1].cause_id, theirs.event_id));
    stage_close(&s);
}

/* RE-2.5.1-9, RE-2.5.1-10, RE-2.5.1-11: the registry entry is lost after the append. */
TEST_DB(producer_that_lost_its_registry_entry) {
    struct stage s;
    stage_open(&s, url, stage_ids_url(url));
    struct append_item item = stage_item("run", "RunStarted", NULL, 1);
    struct append_result first = stage_emit(&s, "run", "RunStarted", NULL);
    OK(registry_forget_run(s.registry, STR("run"), &test_err));
    stage_restart(&s);
    struct append_result again = {0};
    OK(producer_emit(s.producer, &item, &again, &test_err));
    uuid sent = stage_sent(&s)->event_id;
    CHECK(uuid_version(sent) == 4 &&
          !uuid_eq(sent, first.event_id)); /* a new one was sent, and the append succeeded */
    CHECK(again.duplicate && uuid_eq(again.event_id, first.event_id) &&
          again.run_seq == first.run_seq && again.persisted_us == first.persisted_us);
    CHECK(uuid_eq(stage_id_of(s.registry, &item, false), first.event_id));
    OK(producer_emit(s.producer, &item, &again, &test_err)); /* and that one is sent from now on */
    CHECK(uuid_eq(stage_sent(&s)->event_id, first.event_id));
    CHECK(stage_records(&s, "run").count == 1);
    stage_close(&s);
}

/* ---- crashes ---- */

struct crash {
    str url, ids_url;
    struct authority authority;
    struct append_result result;
};

static status append_killed_before(void *context, struct append_request *request, struct error *e) {
    UNUSED(context);
    UNUSED(request);
    raise(SIGKILL); /* the registry has been written, nothing was sent */
    return error_set(e, ST_RETRY, "still alive");
}

static status append_killed_after(void *context, struct append_request *request, struct error *e) {
    if (ledger_append(context, &request, 1, e) == ST_OK)
        raise(SIGKILL); /* durable, and nobody knows */
    return error_set(e, ST_RETRY, "still alive");
}

/* A producer process from start to end: exits with 0 when the event was accepted. CHECK() does not
 * work here. */
static void child_emits(const struct crash *c, producer_append append,
                        const struct append_item *item) {
    struct ledger *ledger = NULL;
    struct registry *registry = NULL;
    struct producer *p = NULL;
    struct append_result result;
    struct error e;
    struct producer_options options = {.append = append, .load = producer_load_ledger};
    if (ledger_open(c->url, NULL, &ledger, &e) != ST_OK ||
        registry_open(c->ids_url, &registry, &e) != ST_OK)
        _exit(2);
    options.registry = registry;
    options.append_context = options.load_context = ledger;
    if (producer_open(&options, &p, &e) != ST_OK) _exit(3);
    _exit(producer_emit(p, item, &result, &e) == ST_OK ? 0 : 4);
}

/* The status of waitpid(). */
static int run_child(const struct crash *c, producer_append append,
                     const struct append_item *item) {
    int ended = 0;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) child_emits(c, append, item);
    CHECK(waitpid(pid, &ended, 0) == pid);
    return ended;
}

static bool was_killed(int ended) { return WIFSIGNALED(ended) && WTERMSIG(ended) == SIGKILL; }
static bool was_good(int ended) { return WIFEXITED(ended) && WEXITSTATUS(ended) == 0; }

/* The eventIds of the run in the ledger, and what the registry says of the item. */
static size_t look(const struct crash *c, const struct append_item *item, uuid *in_ledger,
                   uuid *in_registry) {
    struct stage s;
    stage_open(&s, c->url, c->ids_url);
    struct event_page page = stage_records(&s, "run");
    if (page.count > 0) *in_ledger = page.records[0].event.event_id;
    *in_registry = stage_id_of(s.registry, item, false);
    stage_close(&s);
    return page.count;
}

/* RE-2.5.1-3, RE-2.5.1-4: killed between the registry write and the append, then started again. */
TEST_DB(producer_killed_before_the_append) {
    struct crash c = {.url = url, .ids_url = stage_ids_url(url)};
    struct append_item item = stage_item("run", "RunStarted", NULL, 1);
    uuid in_ledger = {0};
    uuid before = {0};
    uuid after = {0};
    CHECK(was_killed(run_child(&c, append_killed_before, &item)));
    CHECK(look(&c, &item, &in_ledger, &before) ==
          0); /* the registry has the id, the ledger has no event */
    CHECK(uuid_version(before) == 4);
    CHECK(was_killed(run_child(&c, append_killed_before, &item)));
    CHECK(was_good(run_child(&c, producer_append_ledger, &item)));
    CHECK(look(&c, &item, &in_ledger, &after) == 1);
    CHECK(uuid_eq(in_ledger, before) && uuid_eq(after, before));
}

/* RE-2.5.1-5: emitted, killed, started again, emitted again. */
TEST_DB(producer_killed_after_the_append) {
    struct crash c = {.url = url, .ids_url = stage_ids_url(url)};
    struct append_item item = stage_item("run", "RunStarted", NULL, 1);
    uuid first = {0};
    uuid second = {0};
    uuid in_registry = {0};
    CHECK(was_killed(run_child(&c, append_killed_after, &item)));
    CHECK(look(&c, &item, &first, &in_registry) == 1 && uuid_eq(first, in_registry));
    CHECK(was_good(run_child(&c, producer_append_ledger, &item)));
    CHECK(look(&c, &item, &second, &in_registry) == 1); /* no second record */
    CHECK(uuid_eq(first, second) && uuid_eq(first, in_registry));
}

/* RE-2.5.2-2: an activity emits, its worker is lost, the runtime runs it again: another process,
 * another engine attempt. */
TEST_DB(producer_of_a_retried_activity_has_the_same_id) {
    struct crash c = {.url = url, .ids_url = stage_ids_url(url)};
    struct append_item item = stage_item("run", "RunStarted", NULL, 1);
    uuid first = {0};
    uuid in_registry = {0};
    item.event.engine_attempt = 1;
    CHECK(was_killed(run_child(&c, append_killed_after, &item)));
    CHECK(look(&c, &item, &first, &in_registry) == 1);
    struct stage s;
    stage_open(&s, url, c.ids_url);
    struct append_result result = {0};
    item.event.engine_attempt = 2;
    OK(producer_emit(s.producer, &item, &result, &test_err));
    CHECK(s.authority.calls == 1 && uuid_eq(stage_sent(&s)->event_id, first));
    CHECK(stage_sent(&s)->engine_attempt == 2 && result.duplicate);
    stage_close(&s);
}

/* RE-2.5.1-6, RE-2.5.2-1: the registry is gone with the process and rebuilt only by replaying what
 * is recorded; running the same workflow again gives every event the id of the first execution. */
TEST_DB(producer_replays_its_ids) {
    struct stage s;
    stage_open(&s, url, STR_NONE);
    stage_emit_all(&s, "run");
    struct event_page page = stage_records(&s, "run");
    CHECK(page.count == 7 && s.authority.calls == 7);
    registry_close(s.registry);
    OK(registry_open_memory(&s.registry, &test_err));
    stage_restart(&s);
    stage_emit_all(&s, "run");
    CHECK(s.authority.calls == 14);
    for (size_t i = 0; i < page.count; i++) {
        const struct append_item item = {.event = page.records[i].event};
        CHECK(uuid_eq(s.authority.sent[7 + i].event_id, item.event.event_id), "event %zu was sent",
              i);
        CHECK(uuid_eq(stage_id_of(s.registry, &item, false), item.event.event_id),
              "event %zu is registered", i);
    }
    CHECK(stage_records(&s, "run").count == 7);
    stage_close(&s);
}

/* ---- bounds and failures ---- */

static char long_id[ID_BYTES_MAX + 2]; /* with its NUL */

/* A payload that makes the whole event too long, and one that is too deep. */
static str big_payload(struct buf *out) {
    buf_put_c(out, "{\"a\":\"");
    while (out->len < EVENT_BYTES_MAX - 2)
        buf_put_char(out, 'x');
    buf_put_c(out, "\"}");
    return buf_str(out);
}

static str deep_payload(struct buf *out) {
    for (int i = 0; i < JSON_DEPTH_MAX; i++)
        buf_put_c(out, "[[");
    return buf_str(out);
}

TEST(producer_prepare_says_what_is_wrong) {
    struct buf big;
    struct buf deep;
    memset(long_id, 'x', sizeof(long_id) - 1);
    buf_init(&big, EVENT_BYTES_MAX);
    buf_init(&deep, 1024);
    str big_text = big_payload(&big);
    str deep_text = deep_payload(&deep);
    const struct {
        const char *type, *step_id;
        int64_t attempt;
        str payload;
        status want;
        const char *reason, *where;
    } cases[] = {
        {"RunStarted", NULL, 1, STR_NONE, ST_OK, "", ""},
        {"StepStarted", long_id, 1, STR_NONE, ST_INVALID, "FIELD_TOO_LONG", "/stepId"},
        {long_id, NULL, 1, STR_NONE, ST_INVALID, "FIELD_TOO_LONG", "/eventType"},
        {NULL, NULL, 1, STR_NONE, ST_INVALID, "FIELD_EMPTY", "/eventType"},
        {"RunStarted", NULL, 0, STR_NONE, ST_INVALID, "ATTEMPT_OUT_OF_RANGE", "/logicalAttemptId"},
        {"EffectRequested", NULL, 1, STR_NONE, ST_INVALID, "EVENT_TYPE_RESERVED", "/eventType"},
        {"RunStarted", NULL, 1, STR("[1]"), ST_INVALID, "PAYLOAD_NOT_OBJECT", "/payload"},
        {"RunStarted", NULL, 1, STR("{\"a\":1,\"a\":2}"), ST_INVALID, "JSON_DUPLICATE_KEY",
         "/payload/a"},
        {"RunStarted", NULL, 1, STR("{nope}"), ST_INVALID, "JSON_SYNTAX", "/payload offset 1"},
        {"RunStarted", NULL, 1, deep_text, ST_LIMIT, "JSON_DEPTH", NULL},
        {"RunStarted", NULL, 1, big_text, ST_LIMIT, "JSON_TOO_LARGE", "/payload"}};
    struct arena arena;
    arena_init(&arena, 4096, (size_t)16 << 20);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct append_item item =
            stage_item("run", cases[i].type, cases[i].step_id, cases[i].attempt);
        item.event.payload = cases[i].payload;
        test_err = (struct error){0};
        CHECK(producer_prepare(&item.event, 1, &arena, &test_err) == cases[i].want, "case %zu: %s",
              i, test_err.msg);
        CHECK(strcmp(reason_name(test_err.reason), cases[i].reason) == 0, "case %zu: %s", i,
              reason_name(test_err.reason));
        CHECK(!cases[i].where || strcmp(test_err.where, cases[i].where) == 0, "case %zu: %s", i,
              test_err.where);
    }
    struct append_item item = stage_item("run", "RunStarted", NULL, 1);
    item.event.payload = STR(" { \"n\" : 1.50 } ");
    item.event.emitted_ns = 7000;
    item.event.emitted_digits = 9;
    OK(producer_prepare(&item.event, 1, &arena, &test_err));
    CHECK(str_eq(item.event.payload, STR("{\"n\":1.50}")) && item.event.emitted_ns == 7000);
    arena_release(&arena);
    buf_release(&big);
    buf_release(&deep);
}

TEST_DB(producer_passes_refusals_on) {
    struct stage s;
    struct append_result result = {0};
    stage_open(&s, url, STR_NONE);
    stage_emit(&s, "run", "RunStarted", NULL);
    struct append_item item = stage_item("run", "StepStarted", "a", 1);
    item.event.project_id = STR("another");
    REFUSED(producer_emit(s.producer, &item, &result, &test_err), "RUN_IDENTITY_MISMATCH");
    CHECK(strcmp(test_err.where, "/projectId") == 0 && result.seq == 0);
    stage_emit(&s, "run", "StepStarted", "a"); /* that was no transition, and halts nothing */
    stage_close(&s);
}

TEST_DB(producer_forgets_a_run) {
    struct stage s;
    stage_open(&s, url, stage_ids_url(url));
    stage_emit_all(&s, "run");
    stage_refuse(&s, "run", "RunPaused", NULL, 1);
    OK(producer_forget_run(s.producer, STR("run"), &test_err));
    OK(producer_forget_run(s.producer, STR("never seen"), &test_err));
    struct append_item item = stage_item("run", "RunStarted", NULL, 1);
    stage_id_of(s.registry, &item, true);
    CHECK(stage_emit(&s, "run", "RunStarted", NULL)
              .duplicate); /* begins again from what is recorded */
    stage_close(&s);
}

/* An authority and a loader of no size, for many runs. */
static status append_counting(void *context, struct append_request *request, struct error *e) {
    UNUSED(e);
    int64_t *seq = context;
    request->results[0] = (struct append_result){.event_id = request->items[0].event.event_id,
                                                 .run_seq = 1,
                                                 .seq = ++*seq,
                                                 .persisted_us = 1};
    return ST_OK;
}

static status load_nothing(void *context, str run_id, int64_t after_seq, struct arena *arena,
                           struct event_page *page, struct error *e) {
    UNUSED(run_id), UNUSED(after_seq), UNUSED(arena), UNUSED(page);
    ++*(int64_t *)context;
    return error_set(e, ST_NOT_FOUND, "no such run");
}

/* The states of at most PRODUCER_RUNS_MAX runs are kept, and every halt. */
TEST(producer_keeps_a_bounded_number_of_runs) {
    int64_t seq = 0;
    int64_t loads = 0;
    struct registry *registry = NULL;
    struct producer *p = NULL;
    struct append_result result;
    char run_id[24];
    OK(registry_open_memory(&registry, &test_err));
    struct producer_options options = {.registry = registry,
                                       .append = append_counting,
                                       .append_context = &seq,
                                       .load = load_nothing,
                                       .load_context = &loads};
    OK(producer_open(&options, &p, &test_err));
    struct append_item halted = stage_item("halted", "RunPaused", NULL, 1);
    REFUSED(producer_emit(p, &halted, &result, &test_err), "INVALID_TRANSITION_DETECTED");
    for (int i = 0; i < 2 * PRODUCER_RUNS_MAX; i++) {
        snprintf(run_id, sizeof(run_id), "run-%d", i);
        struct append_item item = stage_item(run_id, "RunStarted", NULL, 1);
        OK(producer_emit(p, &item, &result, &test_err));
    }
    int64_t before = loads;
    OK(producer_emit(
        p, &(struct append_item){.event = stage_item(run_id, "RunStarted", NULL, 1).event}, &result,
        &test_err));
    CHECK(loads == before); /* the newest is there, */
    OK(producer_emit(
        p, &(struct append_item){.event = stage_item("run-0", "RunStarted", NULL, 1).event},
        &result, &test_err));
    CHECK(loads == before + 1); /* the oldest was read again, */
    halted.event.type_name = STR("RunStarted");
    REFUSED(producer_emit(p, &halted, &result, &test_err),
            "INVALID_TRANSITION_DETECTED"); /* and this is not forgotten */
    for (int i = 1; i < PRODUCER_RUNS_MAX; i++) {
        snprintf(run_id, sizeof(run_id), "bad-%d", i);
        struct append_item item = stage_item(run_id, "RunPaused", NULL, 1);
        REFUSED(producer_emit(p, &item, &result, &test_err), "INVALID_TRANSITION_DETECTED");
    }
    struct append_item one_more = stage_item("one more", "RunStarted", NULL, 1);
    CHECK(producer_emit(p, &one_more, &result, &test_err) == ST_LIMIT &&
          test_err.reason == REASON_TOO_MANY_RUNS);
    producer_close(p);
    producer_close(NULL);
    registry_close(registry);
}

static status load_disorder(void *context, str run_id, int64_t after_seq, struct arena *arena,
                            struct event_page *page, struct error *e) {
    UNUSED(context), UNUSED(e);
    struct event_record *records = arena_alloc(arena, 2 * sizeof(*records));
    for (int i = 0; i < 2; i++) {
        records[i].event = stage_item("run", "NoteTaken", NULL, 1 + i).event;
        records[i].event.run_id = run_id;
        records[i].seq = after_seq + 5 - i;
        records[i].run_seq = i + 1;
    }
    *page = (struct event_page){records, 2};
    return ST_OK;
}

TEST(producer_does_not_believe_disorder) {
    int64_t seq = 0;
    struct registry *registry = NULL;
    struct producer *p = NULL;
    struct append_result result;
    OK(registry_open_memory(&registry, &test_err));
    struct producer_options options = {.registry = registry,
                                       .append = append_counting,
                                       .append_context = &seq,
                                       .load = load_disorder};
    OK(producer_open(&options, &p, &test_err));
    struct append_item item = stage_item("run", "RunStarted", NULL, 1);
    CHECK(producer_emit(p, &item, &result, &test_err) == ST_CORRUPT && seq == 0);
    CHECK(test_err.reason == REASON_LEDGER_DAMAGED);
    producer_close(p);
    registry_close(registry);
}

/* Every allocation of an emission fails once: it is refused for lack of memory, or done; and doing
 * it again is always right. */
TEST(producer_without_memory) {
    int64_t n = 0;
    for (bool failed = true; failed; n++) {
        int64_t seq = 0;
        int64_t loads = 0;
        struct registry *registry = NULL;
        struct producer *p = NULL;
        struct append_result result = {0};
        OK(registry_open_memory(&registry, &test_err));
        struct producer_options options = {.registry = registry,
                                           .append = append_counting,
                                           .append_context = &seq,
                                           .load = load_nothing,
                                           .load_context = &loads};
        struct append_item item = stage_item("run", "RunStarted", NULL, 1);
        struct append_item bad = stage_item("run", "StepCompleted", "a", 1);
        item.event.payload = STR("{\"a\":1}");
        mem_fail_at(n);
        status st = producer_open(&options, &p, &test_err);
        if (st == ST_OK) st = producer_emit(p, &item, &result, &test_err);
        status refused = st == ST_OK ? producer_emit(p, &bad, &result, &test_err) : st;
        failed = mem_calls() > n;
        mem_fail_at(-1);
        CHECK(st == ST_OK || st == ST_RETRY, "allocation %d: %s", (int)n, test_err.msg);
        CHECK(refused == ST_CONFLICT || refused == ST_RETRY, "allocation %d: %s", (int)n,
              test_err.msg);
        CHECK((st == ST_OK) == (seq == 1), "allocation %d", (int)n);
        if (!p) OK(producer_open(&options, &p, &test_err));
        OK(producer_emit(p, &item, &result, &test_err));
        REFUSED(producer_emit(p, &bad, &result, &test_err), "INVALID_TRANSITION_DETECTED");
        producer_close(p);
        registry_close(registry);
    }
    CHECK(n > 10);
}
