/* tests/crash/http_forged.h: a small true history, and one lie after another told about it. Each
 * must be noticed, or history_check() is worth nothing. For http.c. */
#pragma once

#include "crash/http_history.h"

#define T ((int64_t)1000) /* the events of the true history are asked for at T, 2T, ... */

static size_t forge_event(struct history *h, size_t run, enum event_type type, int64_t run_seq) {
    int64_t seq = (int64_t)h->record_count + 1;
    struct h_event e = {.run = run,
                        .type = type,
                        .number = seq,
                        .ids = {uuid_v4(), uuid_v4()},
                        .asked_ns = seq * T,
                        .told_ns = seq * T + T / 2,
                        .acknowledged = true,
                        .fresh = 1,
                        .run_seq = run_seq,
                        .persisted_us = seq};
    e.id = e.ids[seq % 2];
    (void)history_add_record(h, &(struct h_record){.id = e.id,
                                                   .run = run,
                                                   .type = type,
                                                   .seq = seq,
                                                   .run_seq = run_seq,
                                                   .persisted_us = seq});
    return history_add_event(h, &e);
}

static void forge_start(struct history *h) {
    int64_t seq = (int64_t)h->record_count + 1;
    size_t run = history_add_run(h, &(struct h_run){.id = "started",
                                                    .by_engine = true,
                                                    .asked_ns = seq * T,
                                                    .told_ns = seq * T + T / 2,
                                                    .fresh = 1});
    static const enum event_type types[] = {EVENT_RUN_STARTED, EVENT_STEP_STARTED,
                                            EVENT_STEP_COMPLETED, EVENT_RUN_COMPLETED};
    for (size_t i = 0; i < COUNT_OF(types); i++)
        (void)history_add_record(h, &(struct h_record){.id = uuid_v4(),
                                                       .run = run,
                                                       .type = types[i],
                                                       .seq = seq + (int64_t)i,
                                                       .run_seq = (int64_t)i + 1,
                                                       .persisted_us = seq});
}

/* Records 0, 2, 4, 6: run 0; 1, 3, 5: run 1; 7 to 10: run 2, which the engine carried out. */
static void forge_truth(struct history *h) {
    *h = (struct history){.quiet = true};
    (void)history_add_run(h, &(struct h_run){.id = "zero", .told_ns = NEVER});
    (void)history_add_run(h, &(struct h_run){.id = "one", .told_ns = NEVER});
    for (size_t i = 0; i < 7; i++) {
        enum event_type type = i < 2   ? EVENT_RUN_STARTED
                               : i < 6 ? EVENT_UNKNOWN
                                       : EVENT_RUN_COMPLETED;
        (void)forge_event(h, i % 2, type, (int64_t)i / 2 + 1);
    }
    forge_start(h);
    struct h_read run = {
        .asked_ns = 5 * T + 600, .told_ns = 5 * T + 700, .run_seq = 3, .status = RUN_RUNNING};
    struct h_read page = {.run = 1,
                          .asked_ns = 4 * T + 600,
                          .told_ns = 6 * T + 100,
                          .run_seq = 3,
                          .is_page = true,
                          .after = 1,
                          .count = 2};
    for (size_t i = 3; i <= 5; i += 2)
        page.digest = digest_add(page.digest, h->records[i].id, h->records[i].run_seq,
                                 h->records[i].persisted_us);
    (void)history_add_read(h, &run);
    (void)history_add_read(h, &page);
    run.asked_ns = 20 * T;
    run.told_ns = 20 * T + 1;
    run.run_seq = 4;
    run.status = RUN_COMPLETED;
    (void)history_add_read(h, &run);
}

/* ---- lies ---- */

static void swap_records(struct history *h, size_t a, size_t b) {
    struct h_record was = h->records[a];
    h->records[a] = h->records[b];
    h->records[b] = was;
    h->records[b].seq = h->records[a].seq;
    h->records[a].seq = was.seq;
    h->records[b].persisted_us = h->records[a].persisted_us;
    h->records[a].persisted_us = was.persisted_us;
}

static void lie_lost(struct history *h) { h->record_count = 5; }
static void lie_twice(struct history *h) {
    struct h_record r = h->records[3];
    r.seq = (int64_t)h->record_count + 1;
    r.run_seq = 4;
    (void)history_add_record(h, &r);
}
static void lie_both_ids(struct history *h) {
    struct h_record r = h->records[3];
    const struct h_event *e = &h->events[3];
    r.id = uuid_eq(e->ids[0], r.id) ? e->ids[1] : e->ids[0];
    r.seq = (int64_t)h->record_count + 1;
    r.run_seq = 4;
    (void)history_add_record(h, &r);
}
static void lie_unasked(struct history *h) { h->records[4].id = uuid_v4(); }
static void lie_other_id(struct history *h) {
    struct h_event *e = &h->events[2];
    e->id = uuid_eq(e->ids[0], e->id) ? e->ids[1] : e->ids[0];
}
static void lie_run_seq(struct history *h) { h->events[2].run_seq = 3; }
static void lie_time(struct history *h) { h->events[2].persisted_us++; }
static void lie_two_new(struct history *h) { h->events[4].fresh = 2; }
static void lie_gap(struct history *h) { h->records[10].seq = 12; }
static void lie_back(struct history *h) { h->records[9].persisted_us = 1; }
static void lie_order(struct history *h) { /* of two runs, so that only real time shows it */
    swap_records(h, 2, 3);
    h->events[2].persisted_us = h->records[3].persisted_us;
    h->events[3].persisted_us = h->records[2].persisted_us;
}
static void lie_start_order(struct history *h) {
    h->runs[2].asked_ns = 0;
    h->runs[2].told_ns = 3 * T;
}
static void lie_run_gap(struct history *h) { h->records[4].run_seq = h->events[4].run_seq = 5; }
static void lie_two_starts(struct history *h) { h->records[8].type = EVENT_RUN_STARTED; }
static void lie_no_start(struct history *h) { h->record_count = 7; }
static void lie_two_winners(struct history *h) { h->runs[2].fresh = 2; }
static void lie_stale(struct history *h) {
    h->reads[2].run_seq = 3;
    h->reads[2].status = RUN_RUNNING;
}
static void lie_unknown_run(struct history *h) { h->reads[0].run_seq = 0; }
static void lie_future(struct history *h) {
    h->reads[0].run_seq = 4;
    h->reads[0].status = RUN_COMPLETED;
}
static void lie_status(struct history *h) { h->reads[2].status = RUN_RUNNING; }
static void lie_page(struct history *h) { h->reads[1].digest++; }
static void lie_short_page(struct history *h) { h->reads[1].count = 1; }
static void lie_backwards(struct history *h) { /* nobody was told of the last event of run 0, */
    h->events[6].acknowledged = false;
    h->events[6].told_ns = NEVER; /* but a reader saw it, and a later one did not */
    struct h_read r = {
        .asked_ns = 30 * T, .told_ns = 30 * T + 1, .run_seq = 3, .status = RUN_RUNNING};
    (void)history_add_read(h, &r);
}

static const struct lie {
    void (*tell)(struct history *h);
    const char *noticed;
} lies[] = {
    {lie_lost, "is lost"},
    {lie_twice, "is there twice"},
    {lie_both_ids, "is there twice"},
    {lie_unasked, "nobody asked for"},
    {lie_other_id, "not as it was acknowledged"},
    {lie_run_seq, "not as it was acknowledged"},
    {lie_time, "not as it was acknowledged"},
    {lie_two_new, "was new to 2 clients"},
    {lie_gap, "sequence number 12 follows"},
    {lie_back, "is older than"},
    {lie_order, "was answered before"},
    {lie_start_order, "was answered before"},
    {lie_run_gap, "runSeq 5 of zero follows 2"},
    {lie_two_starts, "started has 2 RunStarted"},
    {lie_no_start, "started has 0 RunStarted"},
    {lie_two_winners, "started was new to 2 clients"},
    {lie_stale, "misses what was acknowledged"},
    {lie_unknown_run, "misses what was acknowledged"},
    {lie_future, "shows the future"},
    {lie_status, "does not belong to its runSeq"},
    {lie_page, "other events than there are"},
    {lie_short_page, "other events than there are"},
    {lie_backwards, "shows less than an earlier one"},
};

static bool notices_lies(void) {
    struct history h;
    bool ok = true;
    forge_truth(&h);
    if (!history_check(&h)) {
        fprintf(stderr, "http checker: the truth is refused: %s\n", h.why);
        ok = false;
    }
    history_release(&h);
    for (size_t i = 0; i < COUNT_OF(lies); i++) {
        forge_truth(&h);
        lies[i].tell(&h);
        bool believed = history_check(&h);
        if (believed || !strstr(h.why, lies[i].noticed)) {
            fprintf(stderr, "http checker: lie %zu: want \"%s\", got \"%s\"\n", i, lies[i].noticed,
                    believed ? "believed" : h.why);
            ok = false;
        }
        history_release(&h);
    }
    printf("http checker: %zu lies\n", COUNT_OF(lies));
    return ok;
}
