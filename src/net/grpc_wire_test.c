/* What a server may do wrong on the wire, and what only a server made for it does right. */
#include <netinet/in.h>
#include <unistd.h>

#include "base/time.h"
#include "net/grpc_peer_test.h"
#include "net/grpc_server_test.h"
#include "test.h"

struct scene {
    struct grpc_peer *peer;
    struct grpc_stage stage;
    struct grpc_told told;
};

static void scene_open(struct scene *s, peer_handler handler, const void *context,
                       const struct grpc_options *options) {
    s->peer = grpc_peer_open(handler, context);
    grpc_stage_open(&s->stage, grpc_peer_port(s->peer), options);
    grpc_told_init(&s->told, &s->stage);
}

static void scene_close(struct scene *s) {
    grpc_told_release(&s->told);
    grpc_stage_close(&s->stage);
    grpc_peer_close(s->peer);
}

static int run(struct scene *s, str body) {
    return grpc_stage_run(&s->stage, "/test/Echo", body, &s->told);
}

static bool says(const struct scene *s, const char *text) {
    const struct buf *m = &s->told.message;
    return !text[0] || (m->len >= strlen(text) && memmem(m->ptr, m->len, text, strlen(text)));
}

#define MESSAGE(s) STR_ARG(buf_str(&(s)->told.message))
#define GRPC_200 ":status: 200\ncontent-type: application/grpc\n"

/* ---- answers ---- */

/* One answer to the first request of a connection; those that follow get a good one. */
struct answer {
    const char *name;
    const char *headers; /* NULL: none */
    int header_flags;
    str data; /* STR_NONE: no DATA frame */
    int data_flags;
    const char *trailers;
    int rst; /* its code, or -1 */
    int code;
    const char *message, *body;
};

static void play_answer(struct grpc_peer *peer, int fd, int nth, const void *context) {
    const struct answer *a = context;
    UNUSED(peer);
    if (!peer_greet(fd)) return;
    int stream = peer_request(fd, true);
    if (nth == 0) {
        if (a->headers) (void)peer_headers(fd, a->header_flags, stream, a->headers);
        if (a->data.ptr) (void)peer_frame(fd, FRAME_DATA, a->data_flags, stream, a->data);
        if (a->trailers) (void)peer_headers(fd, FLAG_END_STREAM, stream, a->trailers);
        char code[4] = {0, 0, 0, (char)a->rst};
        if (a->rst >= 0) (void)peer_frame(fd, FRAME_RST, 0, stream, str_n(code, 4));
        stream = peer_request(fd, true);
    }
    for (; stream >= 0; stream = peer_request(fd, true))
        (void)peer_answer(fd, stream, "good");
}

#define WITHOUT_DATA {NULL, 0}, 0
#define DATA(text) STR_LIT(text), 0
#define LAST_DATA(text) STR_LIT(text), FLAG_END_STREAM
#define OK "grpc-status: 0\n"
#define ENDS FLAG_END_STREAM

static const struct answer answers[] = {
    {"good", GRPC_200, 0, DATA("\0\0\0\0\3abc"), OK, -1, GRPC_OK, "", "abc"},
    {"empty message", GRPC_200, 0, DATA("\0\0\0\0\0"), OK, -1, GRPC_OK, "", ""},
    {"type with a suffix", ":status: 200\ncontent-type: application/grpc+proto\n", 0,
     DATA("\0\0\0\0\1a"), OK, -1, GRPC_OK, "", "a"},
    {"unknown headers", GRPC_200 "x: y\n", 0, DATA("\0\0\0\0\1a"), "x-y: z\n" OK, -1, GRPC_OK, "",
     "a"},
    {"trailers only", GRPC_200 "grpc-status: 5\ngrpc-message: a%20b\n", ENDS, WITHOUT_DATA, NULL,
     -1, GRPC_NOT_FOUND, "a b", ""},
    {"status in the trailers wins", GRPC_200 OK, 0, DATA("\0\0\0\0\1a"), "grpc-status: 13\n", -1,
     GRPC_INTERNAL, "", ""},
    {"odd percent signs", GRPC_200 "grpc-status: 5\ngrpc-message: 1% %zz%C3%A4%ff%4\n", ENDS,
     WITHOUT_DATA, NULL, -1, GRPC_NOT_FOUND, "1% %zz\xC3\xA4?%4", ""},
    {"status of tomorrow", GRPC_200 "grpc-status: 77\n", ENDS, WITHOUT_DATA, NULL, -1, GRPC_UNKNOWN,
     "grpc-status 77", ""},
    {"status of tomorrow, with words", GRPC_200 "grpc-status: 77\ngrpc-message: new\n", ENDS,
     WITHOUT_DATA, NULL, -1, GRPC_UNKNOWN, "new", ""},
    {"status that is no number", GRPC_200 "grpc-status: abc\ngrpc-message: x\n", ENDS, WITHOUT_DATA,
     NULL, -1, GRPC_UNKNOWN, "x", ""},
    {"status below 0", GRPC_200 "grpc-status: -1\ngrpc-message: x\n", ENDS, WITHOUT_DATA, NULL, -1,
     GRPC_UNKNOWN, "x", ""},
    {"details that are no base64", GRPC_200 "grpc-status: 5\ngrpc-status-details-bin: a\n", ENDS,
     WITHOUT_DATA, NULL, -1, GRPC_NOT_FOUND, "", ""},
    {"OK without a message", GRPC_200 OK, ENDS, WITHOUT_DATA, NULL, -1, GRPC_INTERNAL,
     "it has no message", ""},
    {"cut off", GRPC_200, 0, DATA("\0\0\0\0\5abc"), OK, -1, GRPC_INTERNAL, "its message is cut off",
     ""},
    {"cut off in the prefix", GRPC_200, 0, DATA("\0\0\0"), OK, -1, GRPC_INTERNAL,
     "its message is cut off", ""},
    {"longer than it says", GRPC_200, 0, DATA("\0\0\0\0\2abc"), OK, -1, GRPC_INTERNAL,
     "more than one message", ""},
    {"two messages", GRPC_200, 0, DATA("\0\0\0\0\1a\0\0\0\0\1b"), OK, -1, GRPC_INTERNAL,
     "more than one message", ""},
    {"compressed", GRPC_200, 0, DATA("\1\0\0\0\1a"), OK, -1, GRPC_INTERNAL, "it is compressed", ""},
    {"4 GiB", GRPC_200, 0, DATA("\0\xff\xff\xff\xff"), OK, -1, GRPC_RESOURCE_EXHAUSTED,
     "its message is larger than allowed", ""},
    {"no trailers", GRPC_200, 0, LAST_DATA("\0\0\0\0\3abc"), NULL, -1, GRPC_UNKNOWN,
     "it ended without a grpc-status", ""},
    {"nothing at all", GRPC_200, ENDS, WITHOUT_DATA, NULL, -1, GRPC_UNKNOWN,
     "it ended without a grpc-status", ""},
    {"a page", ":status: 200\ncontent-type: text/html\n", 0, LAST_DATA("<html></html>"), NULL, -1,
     GRPC_UNKNOWN, "it ended without a grpc-status", ""},
    {"400", ":status: 400\n", ENDS, WITHOUT_DATA, NULL, -1, GRPC_INTERNAL, "HTTP status 400", ""},
    {"401", ":status: 401\n", ENDS, WITHOUT_DATA, NULL, -1, GRPC_UNAUTHENTICATED, "HTTP status 401",
     ""},
    {"403", ":status: 403\n", ENDS, WITHOUT_DATA, NULL, -1, GRPC_PERMISSION_DENIED,
     "HTTP status 403", ""},
    {"404", ":status: 404\n", 0, LAST_DATA("not found"), NULL, -1, GRPC_UNIMPLEMENTED,
     "HTTP status 404", ""},
    {"429", ":status: 429\n", ENDS, WITHOUT_DATA, NULL, -1, GRPC_UNAVAILABLE, "HTTP status 429",
     ""},
    {"503", ":status: 503\n", 0, LAST_DATA("<html>"), NULL, -1, GRPC_UNAVAILABLE, "HTTP status 503",
     ""},
    {"500", ":status: 500\n", ENDS, WITHOUT_DATA, NULL, -1, GRPC_UNKNOWN, "HTTP status 500", ""},
    {"503, but gRPC", ":status: 503\ncontent-type: application/grpc\ngrpc-status: 8\n", ENDS,
     WITHOUT_DATA, NULL, -1, GRPC_RESOURCE_EXHAUSTED, "", ""},
    {"no :status", "content-type: application/grpc\n", 0, WITHOUT_DATA, NULL, -1, GRPC_INTERNAL, "",
     ""},
    {"capitals in a name", GRPC_200 "X-Y: z\n", 0, WITHOUT_DATA, NULL, -1, GRPC_INTERNAL, "", ""},
    {"reset: CANCEL", NULL, 0, WITHOUT_DATA, NULL, 8, GRPC_CANCELLED, "CANCEL", ""},
    {"reset: ENHANCE_YOUR_CALM", GRPC_200, 0, WITHOUT_DATA, NULL, 11, GRPC_RESOURCE_EXHAUSTED,
     "ENHANCE_YOUR_CALM", ""},
    {"reset: INTERNAL_ERROR", GRPC_200, 0, DATA("\0\0\0\0\3a"), NULL, 2, GRPC_INTERNAL,
     "INTERNAL_ERROR", ""},
    {"reset: NO_ERROR", NULL, 0, WITHOUT_DATA, NULL, 0, GRPC_INTERNAL, "NO_ERROR", ""},
    {"reset: INADEQUATE_SECURITY", NULL, 0, WITHOUT_DATA, NULL, 12, GRPC_PERMISSION_DENIED, "", ""},
    {"refused once", NULL, 0, WITHOUT_DATA, NULL, 7, GRPC_OK, "", "good"},
};

TEST(grpc_answers_right_and_wrong) {
    for (size_t i = 0; i < COUNT_OF(answers); i++) {
        const struct answer *a = &answers[i];
        struct scene s;
        scene_open(&s, play_answer, a, NULL);
        CHECK(run(&s, STR("hello")) == a->code, "%s: %d %.*s", a->name, s.told.code, MESSAGE(&s));
        CHECK(says(&s, a->message), "%s: %.*s", a->name, MESSAGE(&s));
        CHECK(a->code != GRPC_OK || s.told.message.len == 0, "%s", a->name);
        CHECK(s.told.body.len == strlen(a->body) &&
                  (s.told.body.len == 0 || str_eq(buf_str(&s.told.body), str_c(a->body))),
              "%s: %.*s", a->name, STR_ARG(buf_str(&s.told.body)));
        CHECK(s.told.details.len == 0, "%s", a->name);
        /* The connection is none the worse for it. */
        CHECK(run(&s, STR("again")) == GRPC_OK, "%s: %.*s", a->name, MESSAGE(&s));
        CHECK(str_eq(buf_str(&s.told.body), STR("good")), "%s", a->name);
        CHECK(grpc_peer_connections(s.peer) == 1 && s.stage.grpc->bytes == 0, "%s", a->name);
        scene_close(&s);
    }
}

/* Many large ones at once would be too much for the machine. */
TEST(grpc_memory_of_all_calls_is_bounded) {
    struct scene s;
    struct error err = {0};
    scene_open(&s, play_answer, &answers[0], NULL);
    struct grpc_request request = {.path = STR("/test/Echo"), .body = STR("hello")};
    s.stage.grpc->bytes = GRPC_MEMORY_MAX - 4;
    CHECK(grpc_start(s.stage.grpc, &request, grpc_told_done, &s.told, NULL, &err) == ST_LIMIT);
    CHECK(err.reason == REASON_GRPC_BUSY);
    s.stage.grpc->bytes = GRPC_MEMORY_MAX - 12; /* the request and two bytes of the answer */
    CHECK(run(&s, STR("hello")) == GRPC_RESOURCE_EXHAUSTED, "%d", s.told.code);
    CHECK(says(&s, "there is no room for it beside the others"), "%.*s", MESSAGE(&s));
    s.stage.grpc->bytes -= GRPC_MEMORY_MAX - 12;
    CHECK(run(&s, STR("hello")) == GRPC_OK && s.stage.grpc->bytes == 0);
    scene_close(&s);
}

/* Each byte in a frame of its own, with 1xx and PINGs before and empty frames between. */
static void play_pieces(struct grpc_peer *peer, int fd, int nth, const void *context) {
    UNUSED(peer);
    UNUSED(nth);
    UNUSED(context);
    int stream = peer_greet(fd) ? peer_request(fd, true) : -1;
    static const char body[] = "\0\0\0\0\5hello";
    (void)peer_headers(fd, 0, stream, ":status: 103\nlink: x\n");
    (void)peer_frame(fd, FRAME_PING, 0, 0, STR("12345678"));
    (void)peer_headers(fd, 0, stream, GRPC_200);
    for (size_t i = 0; i < sizeof body - 1; i++) {
        (void)peer_frame(fd, FRAME_DATA, 0, stream, str_n(body + i, 1));
        (void)peer_frame(fd, FRAME_DATA, 0, stream, STR(""));
    }
    (void)peer_headers(fd, FLAG_END_STREAM, stream, OK);
    peer_drain(fd);
}

TEST(grpc_takes_answers_in_pieces) {
    struct scene s;
    scene_open(&s, play_pieces, NULL, NULL);
    CHECK(run(&s, STR("x")) == GRPC_OK, "%.*s", MESSAGE(&s));
    CHECK(str_eq(buf_str(&s.told.body), STR("hello")));
    scene_close(&s);
}

/* Headers without end. */
static void play_headers(struct grpc_peer *peer, int fd, int nth, const void *context) {
    UNUSED(peer);
    UNUSED(nth);
    UNUSED(context);
    int stream = peer_greet(fd) ? peer_request(fd, true) : -1;
    static const char name[] = {0, 1, 'x', 100}; /* not indexed; how long both are */
    static char block[16000];
    size_t len = 0;
    for (; len + 104 < sizeof block; len += 104) {
        memcpy(block + len, name, sizeof name);
        memset(block + len + 4, 'v', 100);
    }
    (void)peer_frame(fd, FRAME_HEADERS, 0, stream, STR("\x88")); /* :status 200 */
    for (int i = 0; i < 7; i++)
        (void)peer_frame(fd, FRAME_CONTINUATION, 0, stream, str_n(block, len));
    (void)peer_frame(fd, FRAME_CONTINUATION, FLAG_END_HEADERS, stream, STR(""));
    while ((stream = peer_request(fd, true)) >= 0)
        (void)peer_answer(fd, stream, "good");
}

TEST(grpc_headers_too_large) {
    struct scene s;
    scene_open(&s, play_headers, NULL, NULL);
    CHECK(run(&s, STR("x")) == GRPC_RESOURCE_EXHAUSTED, "%d %.*s", s.told.code, MESSAGE(&s));
    CHECK(says(&s, "its headers are larger than allowed"), "%.*s", MESSAGE(&s));
    CHECK(run(&s, STR("x")) == GRPC_OK && grpc_peer_connections(s.peer) == 1);
    scene_close(&s);
}

/* ---- connections ---- */

struct loss {
    const char *name;
    str first;  /* instead of SETTINGS; STR_NONE: none */
    str second; /* after a request */
    bool holds; /* does not close it */
    const char *message;
};

static void play_loss(struct grpc_peer *peer, int fd, int nth, const void *context) {
    const struct loss *l = context;
    UNUSED(peer);
    UNUSED(nth);
    if (l->first.ptr) {
        (void)peer_write(fd, l->first);
    } else if (peer_greet(fd) && peer_request(fd, true) >= 0) {
        (void)peer_write(fd, l->second);
    }
    if (l->holds) peer_drain(fd);
}

TEST(grpc_connections_that_go_wrong) {
    static const struct loss losses[] = {
        {"closed at once", STR_LIT(""), {NULL, 0}, false, "could not connect to 127.0.0.1:"},
        {"HTTP/1",
         STR_LIT("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
         {NULL, 0},
         true,
         "the server does not speak HTTP/2"},
        {"SSH",
         STR_LIT("SSH-2.0-OpenSSH_9.2\r\n"),
         {NULL, 0},
         true,
         "the server does not speak HTTP/2"},
        {"TLS", STR_LIT("\x15\3\1\0\2\2\x46"), {NULL, 0}, false, "could not connect to"},
        {"another frame first",
         STR_LIT("\0\0\x08\6\0\0\0\0\00012345678"),
         {NULL, 0},
         true,
         "the server does not speak HTTP/2"},
        {"half of the settings", STR_LIT("\0\0\0\4"), {NULL, 0}, false, "the server closed it"},
        {"says nothing", STR_LIT(""), {NULL, 0}, true, "connection timed out"},
        {"closed after the request", {NULL, 0}, STR_LIT(""), false, "was lost: "},
        {"cut in a frame's head", {NULL, 0}, STR_LIT("\0\0\5\0\0"), false, "was lost: "},
        {"cut in a frame", {NULL, 0}, STR_LIT("\0\0\x64\1\4\0\0\0\1\x88"), false, "was lost: "},
        {"garbage",
         {NULL, 0},
         STR_LIT("garbage garbage garbage garbage garbage garbage"),
         true,
         "was lost: "},
        {"bytes that no headers have",
         {NULL, 0},
         STR_LIT("\0\0\3\1\4\0\0\0\1\xff\xff\xff"),
         true,
         "was lost: "},
        {"data before headers", {NULL, 0}, STR_LIT("\0\0\1\0\0\0\0\0\1x"), true, "was lost: "},
        {"data of no stream", {NULL, 0}, STR_LIT("\0\0\1\0\0\0\0\0\x21x"), true, "was lost: "},
        {"settings that are none", {NULL, 0}, STR_LIT("\0\0\1\4\0\0\0\0\0x"), true, "was lost: "},
        {"a pushed stream",
         {NULL, 0},
         STR_LIT("\0\0\5\5\4\0\0\0\1\0\0\0\2\x82"),
         true,
         "was lost: "},
        {"a window of nothing",
         {NULL, 0},
         STR_LIT("\0\0\4\x08\0\0\0\0\0\0\0\0\0"),
         true,
         "was lost: "},
    };
    for (size_t i = 0; i < COUNT_OF(losses); i++) {
        struct scene s;
        scene_open(&s, play_loss, &losses[i], NULL);
        s.stage.grpc->connect_ms = 500;
        CHECK(run(&s, STR("x")) == GRPC_UNAVAILABLE, "%s: %d %.*s", losses[i].name, s.told.code,
              MESSAGE(&s));
        CHECK(says(&s, losses[i].message), "%s: %.*s", losses[i].name, MESSAGE(&s));
        CHECK(grpc_active(s.stage.grpc) == 0 && grpc_peer_connections(s.peer) == 1, "%s",
              losses[i].name);
        grpc_stage_turn(&s.stage, 2);
        CHECK(s.stage.grpc->current == NULL, "%s", losses[i].name);
        scene_close(&s);
    }
}

/* Bytes at random, after a proper beginning: nothing but answers may come of it. */
static void play_noise(struct grpc_peer *peer, int fd, int nth, const void *context) {
    const unsigned *seed = context;
    UNUSED(peer);
    unsigned x = *seed + (unsigned)nth * 7919U;
    int stream = peer_greet(fd) ? peer_request(fd, true) : -1;
    (void)peer_headers(fd, 0, stream, GRPC_200);
    for (int i = 0; i < 20; i++) {
        char payload[64];
        for (size_t k = 0; k < sizeof payload; k++) {
            x = x * 1103515245U + 12345U;
            payload[k] = (char)(x >> 16);
        }
        (void)peer_frame(fd, payload[0] & 15, payload[1], payload[2] & 1 ? stream : payload[3] & 7,
                         str_n(payload + 4, (size_t)payload[2] & 31));
    }
}

TEST(grpc_noise) {
    for (unsigned seed = 1; seed <= 150; seed++) {
        struct scene s;
        scene_open(&s, play_noise, &seed, NULL);
        for (int i = 0; i < 3; i++)
            (void)grpc_stage_start(&s.stage, "/test/Echo", STR("x"), 2000, &s.told);
        CHECK(grpc_told_wait(&s.told, 3), "seed %u", seed);
        CHECK(grpc_active(s.stage.grpc) == 0 && s.stage.grpc->bytes == 0);
        scene_close(&s);
    }
}

/* ---- time ---- */

/* Never answers; notes the code of a reset. */
static void play_silence(struct grpc_peer *peer, int fd, int nth, const void *context) {
    const bool *ponging = context;
    UNUSED(nth);
    struct peer_frame frame;
    if (!peer_greet(fd)) return;
    while (peer_read(fd, &frame)) {
        if (frame.type == FRAME_RST) grpc_peer_note(peer, frame.payload[3]);
        if (frame.type == FRAME_PING && *ponging)
            (void)peer_frame(fd, FRAME_PING, FLAG_ACK, 0, str_n(frame.payload, frame.len));
    }
}

TEST(grpc_deadline_of_our_own) {
    bool ponging = true;
    struct scene s;
    scene_open(&s, play_silence, &ponging, NULL);
    int64_t from = clock_mono_ns();
    (void)grpc_stage_start(&s.stage, "/test/Echo", STR("x"), 200, &s.told);
    CHECK(grpc_told_wait(&s.told, 1) && s.told.code == GRPC_DEADLINE_EXCEEDED, "%d", s.told.code);
    int64_t ms = (clock_mono_ns() - from) / 1000000;
    CHECK(ms >= 290 && ms < 5000, "%d", (int)ms);
    CHECK(says(&s, "in 200 ms"), "%.*s", MESSAGE(&s));
    grpc_stage_turn(&s.stage, 100);
    CHECK(grpc_peer_noted(s.peer) == 8, "%d", grpc_peer_noted(s.peer)); /* CANCEL */
    CHECK(grpc_peer_connections(s.peer) == 1 && s.stage.grpc->current != NULL);
    scene_close(&s);
}

/* A call need not wait as long as a connection may take. */
TEST(grpc_deadline_while_connecting) {
    static const struct loss silent = {"says nothing", STR_LIT(""), {NULL, 0}, true, ""};
    struct scene s;
    scene_open(&s, play_loss, &silent, NULL);
    (void)grpc_stage_start(&s.stage, "/test/Echo", STR("x"), 100, &s.told);
    CHECK(grpc_told_wait(&s.told, 1) && s.told.code == GRPC_DEADLINE_EXCEEDED);
    CHECK(says(&s, "could not take the call in 100 ms"), "%.*s", MESSAGE(&s));
    scene_close(&s);
}

/* An address that never answers: a socket whose queue is full. */
TEST(grpc_connect_takes_no_longer_than_allowed) {
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof in;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(listener >= 0 && bind(listener, (struct sockaddr *)&in, len) == 0);
    CHECK(listen(listener, 0) == 0 && getsockname(listener, (struct sockaddr *)&in, &len) == 0);
    int others[4];
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        others[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(others[i], (struct sockaddr *)&in, len);
    }
    struct grpc_stage stage;
    struct grpc_told told;
    grpc_stage_open(&stage, ntohs(in.sin_port), NULL);
    grpc_told_init(&told, &stage);
    stage.grpc->connect_ms = 300;
    CHECK(grpc_stage_run(&stage, "/test/Echo", STR("x"), &told) == GRPC_UNAVAILABLE);
    CHECK(str_ends(buf_str(&told.message), STR("connection timed out")), "%.*s",
          STR_ARG(buf_str(&told.message)));
    grpc_told_release(&told);
    grpc_stage_close(&stage);
    for (size_t i = 0; i < COUNT_OF(others); i++)
        close(others[i]);
    close(listener);
}

TEST(grpc_pings_while_calls_are_under_way) {
    for (int i = 0; i < 2; i++) {
        bool ponging = i == 0;
        struct scene s;
        scene_open(&s, play_silence, &ponging, NULL);
        s.stage.grpc->ping_ms = 50;
        s.stage.grpc->ping_timeout_ms = 300;
        (void)grpc_stage_start(&s.stage, "/test/Echo", STR("x"), 1000, &s.told);
        CHECK(grpc_told_wait(&s.told, 1));
        CHECK(s.told.code == (ponging ? GRPC_DEADLINE_EXCEEDED : GRPC_UNAVAILABLE), "%d: %.*s", i,
              MESSAGE(&s));
        CHECK(ponging || says(&s, "it did not answer a PING"), "%.*s", MESSAGE(&s));
        scene_close(&s);
    }
}

/* ---- goodbyes ---- */

static bool say_goodbye(int fd, int last) {
    char payload[8] = {0, 0, 0, (char)last};
    return peer_frame(fd, FRAME_GOAWAY, 0, 0, str_n(payload, sizeof payload));
}

/* The first connection takes the first call and sends the others away. */
static void play_goodbye(struct grpc_peer *peer, int fd, int nth, const void *context) {
    UNUSED(peer);
    UNUSED(context);
    if (!peer_greet(fd)) return;
    if (nth == 0) {
        int first = peer_request(fd, true);
        while (peer_request(fd, true) < 9)
            continue;
        (void)say_goodbye(fd, first);
        usleep(200000);
        (void)peer_answer(fd, first, "old");
        peer_drain(fd);
        return;
    }
    for (int stream; (stream = peer_request(fd, true)) >= 0;)
        (void)peer_answer(fd, stream, "new");
}

TEST(grpc_goodbye_with_calls_that_were_not_looked_at) {
    struct scene s;
    scene_open(&s, play_goodbye, NULL, NULL);
    struct grpc_told first;
    grpc_told_init(&first, &s.stage);
    (void)grpc_stage_start(&s.stage, "/test/Echo", STR("x"), 0, &first);
    for (int i = 0; i < 4; i++)
        (void)grpc_stage_start(&s.stage, "/test/Echo", STR("x"), 0, &s.told);
    for (int i = 1; i <= 4; i++) {
        CHECK(grpc_told_wait(&s.told, i) && s.told.code == GRPC_OK, "%.*s", MESSAGE(&s));
        CHECK(str_eq(buf_str(&s.told.body), STR("new")));
    }
    CHECK(grpc_told_wait(&first, 1) && first.code == GRPC_OK);
    CHECK(str_eq(buf_str(&first.body), STR("old")) && grpc_peer_connections(s.peer) == 2);
    grpc_stage_turn(&s.stage, 20);
    CHECK(s.stage.grpc->conns == s.stage.grpc->current && !s.stage.grpc->conns->next);
    grpc_told_release(&first);
    scene_close(&s);
}

/* Refuses whatever comes, by a reset or by a goodbye, or says goodbye before anything comes. */
static void play_refusal(struct grpc_peer *peer, int fd, int nth, const void *context) {
    const int *how = context;
    UNUSED(peer);
    UNUSED(nth);
    if (!peer_greet(fd)) return;
    if (*how == 2) (void)say_goodbye(fd, 0);
    for (int stream; (stream = peer_request(fd, true)) >= 0;) {
        if (*how == 0) (void)peer_frame(fd, FRAME_RST, 0, stream, STR("\0\0\0\7"));
        if (*how == 1) (void)say_goodbye(fd, 0);
    }
}

TEST(grpc_refused_again_and_again) {
    for (int how = 0; how < 3; how++) {
        struct scene s;
        scene_open(&s, play_refusal, &how, NULL);
        CHECK(run(&s, STR("x")) == GRPC_UNAVAILABLE, "%d: %d %.*s", how, s.told.code, MESSAGE(&s));
        CHECK(grpc_peer_connections(s.peer) <= 2, "%d: %d", how, grpc_peer_connections(s.peer));
        scene_close(&s);
    }
}

/* ---- requests ---- */

/* Answers a large request after its first frames, and never reads more of it. */
static void play_early(struct grpc_peer *peer, int fd, int nth, const void *context) {
    struct peer_frame frame;
    UNUSED(nth);
    UNUSED(context);
    if (!peer_greet(fd)) return;
    do {
        if (!peer_read(fd, &frame)) return;
    } while (frame.type != FRAME_DATA);
    (void)peer_headers(fd, FLAG_END_STREAM, frame.stream,
                       GRPC_200 "grpc-status: 8\ngrpc-message: too much\n");
    while (frame.type != FRAME_RST && peer_read(fd, &frame))
        continue;
    grpc_peer_note(peer, 100 + frame.payload[3]);
    (void)peer_frame(fd, FRAME_WINDOW, 0, 0, STR("\0\1\0\0")); /* the others may go on */
    for (int stream; (stream = peer_request(fd, true)) >= 0;)
        (void)peer_answer(fd, stream, "good");
}

TEST(grpc_answer_before_the_request_has_ended) {
    struct scene s;
    struct buf body;
    buf_init(&body, 3 << 20);
    while (!body.full)
        buf_put_c(&body, "0123456789");
    scene_open(&s, play_early, NULL, NULL);
    CHECK(run(&s, buf_str(&body)) == GRPC_RESOURCE_EXHAUSTED, "%.*s", MESSAGE(&s));
    CHECK(says(&s, "too much"));
    CHECK(run(&s, STR("x")) == GRPC_OK, "%.*s", MESSAGE(&s));
    CHECK(grpc_peer_noted(s.peer) == 100 && grpc_peer_connections(s.peer) == 1);
    buf_release(&body);
    scene_close(&s);
}

/* Notes how the header block of the n-th request writes the authorization. */
static void play_headers_seen(struct grpc_peer *peer, int fd, int nth, const void *context) {
    struct peer_frame frame;
    UNUSED(nth);
    UNUSED(context);
    int never = 0;
    if (!peer_greet(fd)) return;
    while (peer_read(fd, &frame)) {
        /* A literal that is never indexed, with the name at 23 of the static table. */
        if (frame.type == FRAME_HEADERS && memmem(frame.payload, frame.len, "\x1f\x08", 2)) never++;
        grpc_peer_note(peer, never);
        if (frame.flags & FLAG_END_STREAM && frame.type == FRAME_DATA)
            (void)peer_answer(fd, frame.stream, "good");
    }
}

TEST(grpc_authorization_is_never_indexed) {
    struct grpc_options options = {.authorization = STR("Bearer 0123456789")};
    struct scene s;
    scene_open(&s, play_headers_seen, NULL, &options);
    for (int i = 1; i <= 3; i++) {
        CHECK(run(&s, STR("x")) == GRPC_OK, "%.*s", MESSAGE(&s));
        CHECK(grpc_peer_noted(s.peer) == i, "%d", grpc_peer_noted(s.peer));
    }
    scene_close(&s);
}
