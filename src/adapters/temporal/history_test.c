#include "adapters/temporal/history.h"

#include <string.h>

#include "adapters/temporal/events_test.h"
#include "test.h"

static void check_ends(const struct history *h, struct arena *arena) {
    static const struct {
        const char *id;
        enum history_activity_state state;
        int32_t attempt;
        bool ok;
        const char *output, *code, *message, *detail;
    } want[] = {
        {"a#1", ACTIVITY_COMPLETED, 1, true, "{\"n\":1}", "", "", ""},
        {"b#1", ACTIVITY_FAILED, 3, false, "", "EXIT_CODE", "exited with code 3",
         "{\"exitCode\":3}"},
        {"c#1", ACTIVITY_CANCELLED, 0, false, "", "CANCELLED", "the attempt was cancelled", ""},
        {"d#1", ACTIVITY_TIMED_OUT, 1, false, "", "WORKER_LOST",
         "the worker of the attempt was lost", ""},
    };
    for (size_t i = 0; i < COUNT_OF(want); i++) {
        const struct history_activity *found = history_find(h, str_c(want[i].id));
        struct outcome o;
        CHECK(found && found->state == want[i].state, "%s", want[i].id);
        CHECK(found->attempt == want[i].attempt, "%s", want[i].id);
        history_outcome(found, false, arena, &o);
        CHECK(o.ok == want[i].ok && str_eq(o.output, str_c(want[i].output)), "%s", want[i].id);
        CHECK(str_eq(o.code, str_c(want[i].code)), "%s: %.*s", want[i].id, STR_ARG(o.code));
        CHECK(str_eq(o.message, str_c(want[i].message)), "%s", want[i].id);
        CHECK(str_eq(o.detail, str_c(want[i].detail)), "%s", want[i].id);
    }
}

TEST(temporal_history_is_the_sum_of_its_events) {
    struct events e;
    struct history h;
    events_init(&e);
    events_started(&e, "{\"cairn\":1}", "");
    events_task(&e, false);
    int64_t a = events_scheduled(&e, "a#1");
    int64_t b = events_scheduled(&e, "b#1");
    int64_t c = events_scheduled(&e, "c#1");
    int64_t d = events_scheduled(&e, "d#1");
    (void)events_scheduled(&e, "e#1");
    events_signal(&e, "PAUSE", "{\"signalId\":\"s1\"}");
    events_activity_started(&e, a, 1);
    events_completed(&e, a, "{\"output\":{\"n\":1}}");
    events_activity_started(&e, b, 3);
    events_failed(&e, b,
                  wire_failure(STR("EXIT_CODE"), STR("exited with code 3"), STR("{\"exitCode\":3}"),
                               false, &e.arena));
    events_cancel_requested(&e, c);
    events_cancelled(&e, c);
    events_activity_started(&e, d, 1);
    events_timed_out(&e, d, 4);
    (void)events_add(&e, 9999); /* of a newer server */
    events_task(&e, true);
    events_fold(&e, &h);

    CHECK(h.started && !history_continues(&h).ptr && h.end == HISTORY_OPEN);
    CHECK(str_eq(history_queue(&h), STR("q.node")));
    CHECK(h.length == (int64_t)e.page.n_events && h.activity_count == 5 && h.pending == 1);
    CHECK(h.suggest_continue && !h.cancel_requested);
    CHECK(h.signal_count == 1 && str_eq(h.signals[0].name, STR("PAUSE")));
    CHECK(str_eq(h.signals[0].identity, STR("ann")) && h.signals[0].event_id == c + 3);
    check_ends(&h, &e.arena);
    CHECK(history_find(&h, STR("e#1"))->state == ACTIVITY_PENDING);
    CHECK(!history_find(&h, STR("a#2")));
    events_release(&e);
}

TEST(temporal_histories_of_many_activities_are_found_by_id) {
    struct events e;
    struct history h;
    struct error err = {0};
    events_init(&e);
    events_started(&e, "{}", "before");
    events_fold(&e, &h);
    CHECK(str_eq(history_continues(&h), STR("before")));
    for (int page = 0; page < 40; page++) {
        e.page.n_events = 0;
        for (int i = 0; i < 100; i++) {
            char *id = arena_alloc(&e.arena, 32);
            snprintf(id, 32, "step-%d#1", page * 100 + i);
            (void)events_scheduled(&e, id);
        }
        CHECK(history_add(&h, &e.page, &err) == ST_OK, "%s", err.msg);
    }
    CHECK(h.activity_count == 4000 && h.pending == 4000);
    for (int i = 0; i < 4000; i++) {
        char id[32];
        snprintf(id, sizeof id, "step-%d#1", i);
        const struct history_activity *a = history_find(&h, str_c(id));
        CHECK(a && a->scheduled_id == i + 2, "%s", id);
    }
    events_release(&e);
}

TEST(temporal_histories_say_how_they_were_closed) {
    static const struct {
        int32_t type;
        enum history_end end;
    } cases[] = {{2, HISTORY_COMPLETED},  {3, HISTORY_FAILED},      {4, HISTORY_TIMED_OUT},
                 {21, HISTORY_CANCELLED}, {27, HISTORY_TERMINATED}, {28, HISTORY_CONTINUED}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct events e;
        struct history h;
        events_init(&e);
        events_started(&e, "{}", "");
        (void)events_add(&e, cases[i].type);
        events_fold(&e, &h);
        CHECK(h.end == cases[i].end, "case %zu", i);
        events_release(&e);
    }
}

TEST(temporal_histories_that_are_none_are_refused) {
    struct events e;
    struct history h;
    struct error err = {0};
    events_init(&e);
    events_started(&e, "{}", "");
    Tp__Event *event = events_add(&e, 10); /* says that it is a scheduled activity, and is not */
    events_fold(&e, &h);
    CHECK(h.activity_count == 0);
    CHECK(history_add(&h, &e.page, &err) == ST_CORRUPT); /* the same events again */
    event->event_id = 70;
    e.list[0] = event;
    e.page.n_events = 1;
    CHECK(history_add(&h, &e.page, &err) == ST_OK);
    CHECK(history_add(&h, NULL, &err) == ST_OK);
    h.length = HISTORY_EVENTS_MAX;
    event->event_id = 71;
    CHECK(history_add(&h, &e.page, &err) == ST_LIMIT);
    /* Ends of activities that are not there change nothing. */
    events_release(&e);
    events_init(&e);
    events_completed(&e, 5, "{}");
    events_cancelled(&e, 6);
    events_activity_started(&e, 7, 1);
    events_fold(&e, &h);
    CHECK(h.activity_count == 0 && h.pending == 0);
    events_release(&e);
}

TEST(temporal_outcomes_of_others_are_taken_with_care) {
    static const struct {
        const char *result;
        bool ok;
        const char *output;
    } cases[] = {{NULL, true, NULL},
                 {"{}", true, NULL},
                 {"{\"output\":null}", true, "null"},
                 {"{\"output\":[1.50]}", true, "[1.50]"},
                 {"{\"output\":1,\"more\":2}", true, "{\"output\":1,\"more\":2}"},
                 {"7", true, "7"},
                 {"{", false, NULL},
                 {"{\"a\":1,\"a\":2}", false, NULL}};
    struct events e;
    events_init(&e);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct history_activity a = {.state = ACTIVITY_COMPLETED};
        struct outcome o;
        if (cases[i].result) a.result = wire_json_list(str_c(cases[i].result), &e.arena);
        history_outcome(&a, false, &e.arena, &o);
        CHECK(o.ok == cases[i].ok && str_eq(o.output, str_c(cases[i].output)), "case %zu", i);
        CHECK(o.ok || str_eq(o.code, STR("OUTPUT_NOT_JSON")), "case %zu", i);
    }
    struct history_activity a = {.state = ACTIVITY_FAILED};
    struct outcome o;
    a.failure = wire_failure(STR("not a code"), STR("m"), STR("[1]"), false, &e.arena);
    history_outcome(&a, false, &e.arena, &o);
    CHECK(str_eq(o.code, STR("PROVIDER_FAILURE")) && !o.detail.ptr);
    a.failure = wire_failure(STR("WORKER_SHUTDOWN"), STR("m"), STR_NONE, true, &e.arena);
    history_outcome(&a, true, &e.arena, &o);
    CHECK(str_eq(o.code, STR("CANCELLED")));
    a.failure = NULL;
    history_outcome(&a, true, &e.arena, &o);
    CHECK(str_eq(o.code, STR("PROVIDER_FAILURE")));
    a.state = ACTIVITY_TIMED_OUT;
    history_outcome(&a, false, &e.arena, &o);
    CHECK(str_eq(o.code, STR("TIMEOUT")));
    events_release(&e);
}
