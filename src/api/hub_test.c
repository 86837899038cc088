/* Streams over a real server, real sockets and a real ledger. */
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/hub_fixture_test.h"
#include "base/log.h"
#include "ledger/access/access.h"
#include "test.h"

/* RE-1.3-4, RE-1.3-5: a consumer that comes again with its watermark N goes on at N + 1, and the
 * watermark follows runSeq, whatever the producer's clock says: from any position, in both formats,
 * while the run is being written, each reader gets exactly the rest, in order (see take_event()).
 */
TEST_DB(hub_gives_exactly_the_rest_from_any_position) {
    static const int64_t from[] = {0, 1, 17, 199, 250, 449, 450, 451, 460, 0, 300, 450};
    enum { READERS = COUNT_OF(from), OLD = 450, COMMITS = 60, EACH = 5 };
    struct hub_reader r[READERS];
    struct hub_bed b;
    struct hub_author author;
    hub_bed_open(&b, url);
    hub_bed_put(&b, "RunStarted", "R", NULL, NULL);
    hub_bed_put_steps(&b, "R", 1, OLD - 1, STR_NONE);
    hub_author_start(&author, &b, "R", OLD, COMMITS, EACH);
    for (int i = 0; i < READERS; i++) {
        hub_reader_open(&b, &r[i], i % 2 ? "/r/R?nd=1" : "/r/R", from[i]);
        server_fixture_wait(&b.f, 3);
    }
    CHECK(hub_readers_at(&b, r, READERS, OLD + COMMITS * EACH));
    hub_author_join(&author);
    CHECK(hub_bed_metric(&b, "cairn_stream_catchups_total") > 0);
    hub_bed_put(&b, "RunCompleted", "R", NULL, NULL);
    CHECK(hub_readers_at(&b, r, READERS, -1));
    for (int i = 0; i < READERS; i++) {
        CHECK(r[i].code == 200 && r[i].last == OLD + COMMITS * EACH + 1, "reader %d", i);
        CHECK(r[i].events == r[i].last - from[i] && r[i].over == !r[i].nd, "reader %d", i);
    }
    CHECK(hub_bed_streams_are(&b, 0) && b.ended == READERS);
    for (int i = 0; i < READERS; i++)
        hub_reader_end(&r[i]);
    hub_bed_close(&b);
}

/* RE-1.3-4: one consumer stops at every few events and comes again; another is never interrupted.
 * Both have the same bytes in the end. */
TEST_DB(hub_resumed_consumer_ends_where_an_uninterrupted_one_does) {
    struct hub_bed b;
    struct hub_author author;
    struct hub_reader whole;
    struct hub_reader part;
    struct buf joined;
    hub_bed_open(&b, url);
    buf_init(&joined, (size_t)16 << 20);
    hub_bed_put(&b, "RunStarted", "R", NULL, NULL);
    hub_author_start(&author, &b, "R", 1, 100, 3);
    hub_reader_open(&b, &whole, "/r/R?nd=1", 0);
    int64_t watermark = 0;
    while (watermark < 301) {
        hub_reader_open(&b, &part, "/r/R?nd=1", watermark);
        CHECK(hub_readers_at(&b, &part, 1, watermark + 1));
        watermark = part.last;
        buf_put(&joined, str_n(part.body.ptr, part.seen));
        hub_reader_end(&part);
    }
    hub_author_join(&author);
    CHECK(hub_readers_at(&b, &whole, 1, 301) && watermark == 301);
    CHECK(str_eq(buf_str(&joined), buf_str(&whole.body)));
    hub_reader_end(&whole);
    CHECK(hub_bed_streams_are(&b, 0));
    buf_release(&joined);
    hub_bed_close(&b);
}

/* RE-1.3-1, RE-1.3-2: a type that nobody knows is shown as it is stored, payload untouched, and the
 * events after it come. */
TEST_DB(hub_shows_unknown_types_as_they_are) {
    struct hub_bed b;
    struct hub_reader r[3];
    hub_bed_open(&b, url);
    hub_bed_put(&b, "RunStarted", "R", NULL, NULL);
    hub_reader_open(&b, &r[0], "/r/R", 0);
    hub_reader_open(&b, &r[1], "/t/acme", 0);
    CHECK(hub_readers_at(&b, r, 2, 1));
    hub_bed_put(&b, "RunTeleported", "R", NULL, "{\"to\":\"Mars\",\"n\":[1,2e3,{\"x\":null}]}");
    hub_bed_put(&b, "StepStarted", "R", "a", NULL);
    CHECK(hub_readers_at(&b, r, 2, 3));
    hub_reader_open(&b, &r[2], "/r/R?nd=1", 0);
    CHECK(hub_readers_at(&b, r, 3, 3));
    for (int i = 0; i < 3; i++) {
        CHECK(hub_reader_has(&r[i], "\"eventType\":\"RunTeleported\""));
        CHECK(hub_reader_has(&r[i], "{\"to\":\"Mars\",\"n\":[1,2e3,{\"x\":null}]}"));
        CHECK(i == 2 || hub_reader_has(&r[i], "id: 2\nevent: RunTeleported\ndata: {"));
        hub_reader_end(&r[i]);
    }
    CHECK(hub_bed_streams_are(&b, 0));
    hub_bed_close(&b);
}

/* The second commit comes when the read for the first is done, but not yet known to be: nobody else
 * will tell of it. */
TEST_DB(hub_sees_a_commit_during_a_read) {
    struct hub_bed b;
    struct hub_reader r[2];
    hub_bed_open(&b, url);
    hub_bed_put(&b, "RunStarted", "R", NULL, NULL);
    hub_reader_open(&b, &r[0], "/r/R", 0);
    hub_reader_open(&b, &r[1], "/t/acme", 0);
    CHECK(hub_readers_at(&b, r, 2, 1));
    for (int i = 0; i < 10; i++) {
        hub_bed_put_steps(&b, "R", 1 + 2 * i, 1, STR_NONE);
        usleep(10000); /* the loop stands still */
        hub_bed_put_steps(&b, "R", 2 + 2 * i, 1, STR_NONE);
        CHECK(hub_readers_at(&b, r, 2, 3 + 2 * i));
    }
    hub_reader_end(&r[0]);
    hub_reader_end(&r[1]);
    hub_bed_close(&b);
}

/* Two hundred readers share one read and one rendering of each commit. */
TEST_DB(hub_gives_many_readers_every_event_once) {
    enum { READERS = 200, COMMITS = 40 };
    static struct hub_reader r[READERS];
    struct hub_bed b;
    hub_bed_open(&b, url);
    hub_bed_put(&b, "RunStarted", "R", NULL, NULL);
    for (int i = 0; i < READERS; i++)
        hub_reader_open(&b, &r[i], i % 4 ? "/r/R" : "/r/R?nd=1", 0);
    CHECK(hub_readers_at(&b, r, READERS, 1) && hub_streams(b.hub) == READERS);
    int64_t reads = hub_bed_metric(&b, "cairn_reads_total");
    for (int i = 0; i < COMMITS; i++) {
        hub_bed_put_steps(&b, "R", 1 + i * 2, 2, STR_NONE);
        CHECK(hub_readers_at(&b, r, READERS, 3 + i * 2));
    }
    CHECK(hub_bed_metric(&b, "cairn_reads_total") - reads <= COMMITS + 2); /* (of their coming) */
    hub_bed_put(&b, "RunFailed", "R", NULL, NULL);
    CHECK(hub_readers_at(&b, r, READERS, -1));
    CHECK(hub_bed_metric(&b, "cairn_stream_catchups_total") == 0);
    CHECK(hub_bed_metric(&b, "cairn_stream_events_total") == (int64_t)READERS * (2 + 2 * COMMITS));
    for (int i = 0; i < READERS; i++) {
        CHECK(r[i].events == 2 + 2 * COMMITS);
        CHECK(r[i].nd || hub_reader_has(&r[i], "id: 82\nevent: end\ndata: "
                                               "{\"runId\":\"R\",\"status\":\"FAILED\"}\n\n"));
        hub_reader_end(&r[i]);
    }
    CHECK(b.ended == READERS);
    CHECK(sizeof(struct hub_sub) <= 320, "%zu", sizeof(struct hub_sub));
    hub_bed_close(&b);
}

static str large_payload(struct hub_bed *b, size_t bytes) {
    struct buf text;
    buf_init(&text, bytes);
    buf_put(&text, STR("{\"t\":\""));
    while (text.len < bytes - 2)
        buf_put_char(&text, 'x');
    buf_put(&text, STR("\"}"));
    str kept = arena_str(&b->arena, buf_str(&text));
    buf_release(&text);
    return kept;
}

static void small_window(struct peer *p) {
    int bytes = 4096;
    setsockopt(p->fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
}

/* One that takes nothing holds up nobody and holds little; when it reads again it misses nothing.
 */
TEST_DB(hub_lets_a_stalled_reader_fall_behind_and_catch_up) {
    enum { EVENTS = 160, QUICK = 2 };
    struct hub_bed b;
    struct hub_reader r[QUICK + 1];
    hub_bed_open(&b, url);
    hub_bed_put(&b, "RunStarted", "R", NULL, NULL);
    for (int i = 0; i <= QUICK; i++)
        hub_reader_open(&b, &r[i], i % 2 ? "/r/R" : "/r/R?nd=1", 0);
    CHECK(hub_readers_at(&b, r, QUICK + 1, 1));
    str payload = large_payload(&b, 100000); /* 16 MB in all: more than the machine's buffers */
    size_t most = 0;
    for (int i = 0; i < EVENTS; i++) {
        hub_bed_put_steps(&b, "R", 1 + i, 1, payload);
        CHECK(hub_readers_at(&b, r, QUICK, 2 + i));
        for (struct hub_link *l = b.hub->subs.next; l != &b.hub->subs; l = l->next) {
            size_t unsent = http_stream_unsent(HUB_OWNER(l, struct hub_sub, of_hub)->exchange);
            if (unsent > most) most = unsent;
        }
    }
    CHECK(most > HUB_UNSENT_MAX && most < HUB_UNSENT_MAX + 300000, "%zu", most);
    CHECK(b.hub->recent_bytes <= HUB_RECENT_BYTES_MAX);
    CHECK(hub_readers_at(&b, r, QUICK + 1, 1 + EVENTS)); /* now it reads */
    CHECK(hub_bed_metric(&b, "cairn_stream_catchups_total") > 0);
    hub_bed_put(&b, "RunCancelled", "R", NULL, NULL);
    CHECK(hub_readers_at(&b, r, QUICK + 1, -1));
    for (int i = 0; i <= QUICK; i++) {
        CHECK(r[i].events == EVENTS + 2);
        hub_reader_end(&r[i]);
    }
    CHECK(stats_of(&b.f).slow_readers_total == 0 && hub_bed_streams_are(&b, 0));
    /* Whoever comes now finds no recent events, and more than fits into one read. */
    hub_reader_open(&b, &r[0], "/r/R", 0);
    CHECK(hub_readers_at(&b, r, 1, -1) && r[0].events == EVENTS + 2 && r[0].over);
    hub_reader_end(&r[0]);
    hub_bed_close(&b);
}

TEST(hub_forgets_a_reader_that_stalls_too_long_or_goes_away) {
    struct http_options options = {.write_stall_ms = 300};
    struct hub_bed b;
    struct hub_reader r[4];
    str url = test_db_url("sqlite");
    hub_bed_open_empty(&b, url, false, &options);
    hub_bed_ledger(&b, url);
    hub_bed_put(&b, "RunStarted", "R", NULL, NULL);
    str payload = large_payload(&b, 100000);
    for (int i = 0; i < 4; i++)
        hub_reader_open(&b, &r[i], "/r/R", 0);
    small_window(&r[0].peer);
    CHECK(hub_readers_at(&b, r, 4, 1));
    struct linger reset = {1, 0};
    setsockopt(r[1].peer.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    for (int i = 0; i < 100; i++) {
        hub_bed_put_steps(&b, "R", 1 + i, 1, payload);
        if (i == 30) hub_reader_end(&r[1]); /* in the middle of what is being written to it */
        if (i == 60) hub_reader_end(&r[2]);
        CHECK(hub_readers_at(&b, &r[3], 1, 2 + i));
        if (i < 30) CHECK(hub_readers_at(&b, &r[1], 1, 2 + i));
        if (i < 60) CHECK(hub_readers_at(&b, &r[2], 1, 2 + i));
    }
    CHECK(hub_bed_streams_are(&b, 1) && b.ended == 3 && stats_of(&b.f).stalled_total == 1);
    hub_reader_end(&r[0]);
    hub_reader_end(&r[3]);
    CHECK(hub_bed_streams_are(&b, 0) && b.ended == 4);
    hub_bed_close(&b);
}

static void check_body(struct hub_bed *b, const char *target, int64_t after, int code,
                       const char *body) {
    struct hub_reader r;
    hub_reader_open(b, &r, target, after);
    CHECK(hub_readers_at(b, &r, 1, -1), "%s after %lld", target, (long long)after);
    CHECK(r.code == code && str_eq(buf_str(&r.body), str_c(body)), "%s after %lld: %d %.*s", target,
          (long long)after, r.code, STR_ARG(buf_str(&r.body)));
    CHECK(memmem(r.peer.in.ptr, r.peer.in.len, "X-Request-Id: ", 14));
    hub_reader_end(&r);
}

/* The end of a run is its status, not its last event: facts and late events may follow it. */
TEST_DB(hub_ends_with_the_run) {
    struct hub_bed b;
    struct hub_reader r[2];
    hub_bed_open(&b, url);
    hub_bed_put(&b, "RunStarted", "R", NULL, NULL);
    hub_bed_put(&b, "RunStarted", "other", NULL, NULL);
    for (int i = 0; i < 2; i++)
        hub_reader_open(&b, &r[i], i ? "/r/R?nd=1" : "/r/R", 0);
    CHECK(hub_readers_at(&b, r, 2, 1));
    hub_bed_put(&b, "RunStarted", "third", NULL, NULL);
    hub_bed_put_fact(&b, "R", 1);
    hub_bed_put(&b, "RunCompleted", "R", NULL, NULL);
    CHECK(hub_readers_at(&b, r, 2, -1));
    for (int i = 0; i < 2; i++) {
        CHECK(r[i].events == 2 && r[i].over == !i);
        hub_reader_end(&r[i]);
    }
    hub_bed_put_fact(&b, "R", 2);
    hub_bed_put(&b, "NoteAdded", "R", NULL, NULL);
    hub_bed_put_fact(&b, "R", 3);
    for (int i = 0; i < 4; i++) {
        int64_t after = i < 2 ? 0 : 2;
        hub_reader_open(&b, &r[0], i % 2 ? "/r/R?nd=1" : "/r/R?once=1", after);
        CHECK(hub_readers_at(&b, r, 1, -1) && r[0].code == 200);
        CHECK(r[0].last == 3 && r[0].events == 3 - after && r[0].over == !r[0].nd);
        hub_reader_end(&r[0]);
    }
    /* Nothing more, or not even so much: an EventSource must not come again. */
    check_body(&b, "/r/R", 3, 204, "");
    check_body(&b, "/r/R", 99, 204, "");
    check_body(&b, "/r/R", INT64_C(9007199254740991), 204, "");
    check_body(&b, "/r/R?once=1", 3, 204, "");
    check_body(&b, "/r/R?nd=1", 3, 200, "");
    check_body(&b, "/r/R?nd=1", 99, 200, "");
    CHECK(hub_bed_streams_are(&b, 0));
    hub_bed_close(&b);
}

TEST_DB(hub_without_follow_ends_at_what_is_there) {
    struct hub_bed b;
    struct hub_author author;
    struct hub_reader r;
    hub_bed_open(&b, url);
    hub_bed_put(&b, "RunStarted", "R", NULL, NULL);
    hub_bed_put_steps(&b, "R", 1, 299, STR_NONE);
    check_body(&b, "/r/R?once=1", 300, 200, "retry: 2000\n\n");
    check_body(&b, "/r/R?once=1&nd=1", 700, 200, "");
    check_body(&b, "/t/acme?once=1&nd=1", 300, 200, "");
    hub_author_start(&author, &b, "R", 300, 40, 5);
    for (int64_t i = 0; i < 20; i++) {
        hub_reader_open(&b, &r, i % 2 ? "/r/R?once=1&nd=1" : "/t/acme?once=1", i * 13);
        CHECK(hub_readers_at(&b, &r, 1, -1));
        CHECK(r.code == 200 && !r.over && r.last >= 300 && r.events == r.last - i * 13);
        hub_reader_end(&r);
    }
    hub_author_join(&author);
    CHECK(hub_bed_streams_are(&b, 0) && b.ended == b.asked);
    hub_bed_close(&b);
}

/* A tenant's feed has its facts, too; it begins before the tenant has anything, and never ends. */
TEST_DB(hub_follows_a_tenant) {
    struct hub_bed b;
    struct hub_reader r[3];
    hub_bed_open(&b, url);
    check_body(&b, "/t/acme?once=1&nd=1", 0, 200, "");
    hub_reader_open(&b, &r[0], "/t/acme", 0);
    hub_reader_open(&b, &r[1], "/t/acme?nd=1", 2);
    hub_reader_open(&b, &r[2], "/t/other", 0);
    CHECK(hub_bed_streams_are(&b, 3));
    hub_bed_put(&b, "RunStarted", "R", NULL, NULL);
    hub_bed_put_fact(&b, "R", 1);
    hub_bed_put(&b, "RunCompleted", "R", NULL, NULL);
    hub_bed_put(&b, "RunStarted", "S", NULL, NULL);
    CHECK(hub_readers_at(&b, r, 2, 4));
    CHECK(r[0].events == 4 && r[1].events == 2 && !r[0].whole && !r[1].whole);
    CHECK(hub_reader_has(&r[0], "id: 2\nevent: SignalReceived\ndata: {"));
    CHECK(hub_reader_answered(&b, &r[2]) && r[2].events == 0);
    hub_bed_put_steps(&b, "S", 1, 1000, STR_NONE);
    CHECK(hub_readers_at(&b, r, 2, 1004));
    for (int i = 0; i < 3; i++)
        hub_reader_end(&r[i]);
    CHECK(hub_bed_streams_are(&b, 0));
    hub_bed_close(&b);
}

TEST_DB(hub_polls_for_events_of_other_processes) {
    struct hub_bed b;
    struct hub_reader r[2];
    hub_bed_open_empty(&b, url, true, NULL);
    hub_bed_ledger(&b, url);
    b.tell = false;
    hub_bed_put(&b, "RunStarted", "R", NULL, NULL);
    hub_reader_open(&b, &r[0], "/r/R", 0);
    hub_reader_open(&b, &r[1], "/t/acme", 0);
    CHECK(hub_readers_at(&b, r, 2, 1));
    hub_bed_put_steps(&b, "R", 1, 5, STR_NONE);
    CHECK(hub_readers_at(&b, r, 2, 6));
    hub_bed_put(&b, "RunCompleted", "R", NULL, NULL);
    CHECK(hub_readers_at(&b, r, 1, -1) && r[0].last == 7);
    CHECK(hub_readers_at(&b, r, 2, 7));
    hub_reader_end(&r[0]);
    hub_reader_end(&r[1]);
    CHECK(hub_bed_streams_are(&b, 0));
    hub_bed_close(&b);
}

/* A read that fails is tried again; the stream is open meanwhile, and misses nothing. */
TEST_DB(hub_stays_open_while_the_ledger_cannot_be_read) {
    struct hub_bed b;
    struct hub_reader r[2];
    hub_bed_open_empty(&b, url, false, NULL);
    log_setup(2, false, LOG_OFF);
    hub_reader_open(&b, &r[0], "/r/R", 0);
    hub_reader_open(&b, &r[1], "/t/acme?nd=1", 0);
    CHECK(hub_reader_answered(&b, &r[0]) && hub_reader_answered(&b, &r[1]) &&
          hub_streams(b.hub) == 2);
    hub_bed_ledger(&b, url);
    hub_bed_put(&b, "RunStarted", "R", NULL, NULL);
    CHECK(hub_readers_at(&b, r, 2, 1));
    hub_bed_put(&b, "RunCompleted", "R", NULL, NULL);
    CHECK(hub_readers_at(&b, r, 2, 2) && hub_readers_at(&b, r, 1, -1) && r[0].over);
    hub_reader_end(&r[0]);
    hub_reader_end(&r[1]);
    hub_bed_close(&b);
}

TEST(hub_drain_ends_every_stream_and_refuses_others) {
    struct hub_bed b;
    struct hub_reader r[4];
    str url = test_db_url("sqlite");
    hub_bed_open(&b, url);
    hub_bed_put(&b, "RunStarted", "R", NULL, NULL);
    for (int i = 0; i < 3; i++)
        hub_reader_open(&b, &r[i], i == 1 ? "/t/acme" : "/r/R?nd=1", 0);
    CHECK(hub_readers_at(&b, r, 3, 1));
    hub_reader_open(&b, &r[3], "/r/R", 0);
    for (int i = 0; i < 10000 && b.asked < 4; i++)
        uv_run(&b.f.loop, UV_RUN_NOWAIT);
    hub_drain(b.hub); /* the last one perhaps before its first read */
    CHECK(hub_streams(b.hub) == 0 && b.ended == 4);
    CHECK(hub_readers_at(&b, r, 4, -1));
    for (int i = 0; i < 4; i++) {
        CHECK(r[i].code == 200 && !r[i].over);
        hub_reader_end(&r[i]);
    }
    hub_reader_open(&b, &r[0], "/r/R", 0);
    CHECK(hub_readers_at(&b, r, 1, -1) && r[0].code == 503);
    CHECK(b.refused == ST_RETRY && strcmp(b.reason, "NOT_READY") == 0);
    hub_reader_end(&r[0]);
    hub_bed_close(&b);
}

TEST(hub_refuses_too_many_streams) {
    struct hub_bed b;
    struct hub_reader r;
    hub_bed_open(&b, test_db_url("sqlite"));
    b.hub->streams = HUB_STREAMS_MAX;
    hub_reader_open(&b, &r, "/r/R", 0);
    CHECK(hub_readers_at(&b, &r, 1, -1) && r.code == 503);
    CHECK(b.refused == ST_LIMIT && strcmp(b.reason, "STREAMS_TOO_MANY") == 0);
    b.hub->streams = 0;
    hub_reader_end(&r);
    hub_bed_close(&b);
}

/* Streams behind one another on one connection: the end of one begins the next, of the same topic,
 * in the middle of serving it. */
TEST(hub_serves_pipelined_streams) {
    struct hub_bed b;
    struct peer c;
    str url = test_db_url("sqlite");
    hub_bed_open(&b, url);
    hub_bed_put(&b, "RunStarted", "R", NULL, NULL);
    peer_open(&b.f, &c);
    for (int i = 0; i < 3; i++) {
        CHECK(peer_send(&b.f, &c, GET("/r/R?nd=1&once=1")));
        CHECK(peer_send(&b.f, &c, GET("/r/R?after=7&once=1")));
    }
    struct answer a;
    for (int i = 0; i < 6; i++) {
        CHECK(answer_next(&b.f, &c, false, 10000, &a) && a.code == 200, "%d", i);
        CHECK((memmem(a.body.ptr, a.body.len, "RunStarted", 10) != NULL) == (i % 2 == 0));
    }
    peer_end(&c);
    CHECK(hub_bed_streams_are(&b, 0) && b.ended == 6);
    hub_bed_close(&b);
}

TEST(hub_keeps_quiet_streams_alive) {
    struct hub_bed b;
    struct hub_reader r[2];
    str url = test_db_url("sqlite");
    hub_bed_open(&b, url);
    hub_bed_put(&b, "RunStarted", "R", NULL, NULL);
    hub_reader_open(&b, &r[0], "/r/R", 0);
    hub_reader_open(&b, &r[1], "/r/R?nd=1", 0);
    CHECK(hub_readers_at(&b, r, 2, 1));
    for (int i = 1; i <= 2; i++) {
        for (struct hub_link *l = b.hub->subs.next; l != &b.hub->subs; l = l->next)
            HUB_OWNER(l, struct hub_sub, of_hub)->written_ms -= HUB_KEEPALIVE_MS;
        for (int k = 0; k < 5000 && !(r[0].comments == i && r[1].comments == i); k++) {
            server_fixture_wait(&b.f, 1);
            hub_reader_poll(&r[0]);
            hub_reader_poll(&r[1]);
        }
        CHECK(r[0].comments == i && r[1].comments == i);
    }
    server_fixture_wait(&b.f, 600); /* and no sooner than that */
    hub_reader_poll(&r[0]);
    CHECK(r[0].comments == 2);
    hub_reader_end(&r[0]);
    hub_reader_end(&r[1]);
    hub_bed_close(&b);
}

/* ---- who may still read ---- */

static struct api_key make_key(struct hub_bed *b, const char *id) {
    struct api_key key = {.key_id = str_c(id),
                          .tenant_id = STR("acme"),
                          .name = STR("x"),
                          .created_by = STR("local"),
                          .roles = 1,
                          .created_us = 1,
                          .version = 1};
    struct error err = {0};
    CHECK(api_key_create(b->ledger, &key, NULL, &err) == ST_OK, "%s", err.msg);
    return key;
}

/* As if HUB_RECHECK_MS had passed. */
static void keys_are_due(struct hub_bed *b) {
    for (struct hub_link *l = b->hub->owner_list.next; l != &b->hub->owner_list; l = l->next)
        HUB_OWNER(l, struct hub_owner, of_hub)->checked_ms -= HUB_RECHECK_MS;
}

/* Also where nobody else writes: a key may be revoked while its caller is on the way in, when there
 * is no stream yet that hub_owner_changed() could end. */
TEST_DB(hub_ends_streams_of_keys_that_were_changed) {
    struct hub_bed b;
    struct hub_reader r[5];
    struct error err = {0};
    hub_bed_open_empty(&b, url, str_starts(url, STR("postgres")), NULL);
    hub_bed_ledger(&b, url);
    hub_bed_put(&b, "RunStarted", "R", NULL, NULL);
    struct api_key revoked = make_key(&b, "aaaaaaaaaaaaaaaa");
    struct api_key changed = make_key(&b, "bbbbbbbbbbbbbbbb");
    (void)make_key(&b, "cccccccccccccccc");
    hub_reader_open(&b, &r[0], "/r/R?owner=key:aaaaaaaaaaaaaaaa&version=1", 0);
    hub_reader_open(&b, &r[1], "/r/R?owner=key:bbbbbbbbbbbbbbbb&version=1", 0);
    hub_reader_open(&b, &r[2], "/r/R?owner=key:bbbbbbbbbbbbbbbb&version=2", 0); /* came again */
    hub_reader_open(&b, &r[3], "/r/R?owner=key:cccccccccccccccc&version=1", 0);
    hub_reader_open(&b, &r[4], "/r/R?owner=jwt:alice", 0);
    CHECK(hub_readers_at(&b, r, 5, 1));
    revoked.revoked_us = 2;
    changed.roles = 8;
    CHECK(api_key_update(b.ledger, &revoked, NULL, &err) == ST_OK, "%s", err.msg);
    CHECK(api_key_update(b.ledger, &changed, NULL, &err) == ST_OK, "%s", err.msg);
    server_fixture_wait(&b.f, (int64_t)3 * HUB_POLL_MS);
    CHECK(hub_streams(b.hub) == 5); /* it is not looked at all the time */
    keys_are_due(&b);
    CHECK(hub_readers_at(&b, r, 2, -1));
    CHECK(hub_bed_streams_are(&b, 3) && b.hub->owners.count == 3);
    keys_are_due(&b);
    server_fixture_wait(&b.f, (int64_t)3 * HUB_POLL_MS); /* the others are as they were */
    CHECK(hub_streams(b.hub) == 3);
    hub_owner_changed(b.hub, STR("key:bbbbbbbbbbbbbbbb")); /* what this process changes: at once */
    CHECK(hub_streams(b.hub) == 2);
    for (int i = 0; i < 5; i++)
        hub_reader_end(&r[i]);
    CHECK(hub_bed_streams_are(&b, 0) && b.hub->owners.count == 0);
    hub_bed_close(&b);
}

/* Marks up to 100 are those of keys that sign. */
static bool signs_up_to_100(void *context, int64_t mark) {
    ++*(int *)context;
    return mark <= 100;
}

/* The key that signed a token may leave the key set long before the token ends. */
TEST_DB(hub_ends_streams_of_tokens_whose_key_is_gone) {
    struct hub_bed b;
    struct hub_reader r[5];
    int asked = 0;
    hub_bed_open(&b, url);
    hub_bed_put(&b, "RunStarted", "R", NULL, NULL);
    hub_reader_open(&b, &r[0], "/r/R?owner=jwt:alice&version=101", 0);
    hub_reader_open(&b, &r[1], "/r/R?owner=jwt:alice&version=102", 0);
    hub_reader_open(&b, &r[2], "/r/R?owner=jwt:alice&version=7", 0);
    hub_reader_open(&b, &r[3], "/r/R?owner=jwt:bob", 0);
    hub_reader_open(&b, &r[4], "/r/R?owner=anonymous&version=103", 0);
    CHECK(hub_readers_at(&b, r, 5, 1));
    hub_tokens_changed(b.hub); /* nobody to ask */
    CHECK(hub_streams(b.hub) == 5);
    hub_ask_of_tokens(b.hub, signs_up_to_100, &asked);
    hub_tokens_changed(b.hub);
    CHECK(hub_streams(b.hub) == 3 && asked == 3);
    CHECK(hub_readers_at(&b, r, 2, -1));
    /* Let in with the old keys, and there only now. */
    hub_reader_end(&r[0]);
    hub_reader_open(&b, &r[0], "/r/R?owner=jwt:carol&version=104", 0);
    CHECK(hub_readers_at(&b, r, 1, 1));
    server_fixture_wait(&b.f, (int64_t)3 * HUB_POLL_MS);
    CHECK(hub_streams(b.hub) == 4 && asked == 3); /* it is not asked all the time */
    keys_are_due(&b);
    CHECK(hub_readers_at(&b, r, 1, -1));
    CHECK(hub_bed_streams_are(&b, 3) && b.hub->owners.count == 3);
    for (int i = 0; i < 5; i++)
        hub_reader_end(&r[i]);
    CHECK(hub_bed_streams_are(&b, 0) && b.hub->owners.count == 0);
    hub_bed_close(&b);
}
