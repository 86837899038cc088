/* Mails to a real server. */
#include "net/mail.h"

#include <sys/socket.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/json.h"
#include "base/time.h"
#include "net/fake_server_test.h"
#include "net/mail_server_test.h"
#include "test.h"

#define MESSAGE                                                                                    \
    "From: a@example.com\r\nTo: b@example.com\r\nSubject: hello\r\n\r\n.one\r\n..two\r\n.\r\n"

struct bench {
    uv_loop_t loop;
    struct mailer *mailer;
    int ended;
    status st;
    struct error err;
};

static void bench_open(struct bench *b) {
    memset(b, 0, sizeof *b);
    CHECK(uv_loop_init(&b->loop) == 0);
    CHECK(mailer_open(&b->loop, &b->mailer, &b->err) == ST_OK, "%s", b->err.msg);
}

static void bench_close(struct bench *b) {
    mailer_close(b->mailer);
    uv_run(&b->loop, UV_RUN_DEFAULT);
    CHECK(uv_loop_close(&b->loop) == 0);
}

static void on_done(void *context, status st, const struct error *err) {
    struct bench *b = context;
    b->ended++;
    b->st = st;
    b->err = err ? *err : (struct error){0};
}

static status bench_send(struct bench *b, const struct mail *mail) {
    struct mail_call *call;
    int before = b->ended;
    status st = mailer_send(b->mailer, mail, on_done, b, &call, &b->err);
    if (st != ST_OK) return st;
    CHECK(b->ended == before); /* never before it returns */
    while (b->ended == before)
        uv_run(&b->loop, UV_RUN_ONCE);
    return b->st;
}

static str text_of(yyjson_val *mail, const char *name) {
    str text = STR_NONE;
    CHECK(json_str(json_member(mail, name), &text), "%s", name);
    return text;
}

TEST(mail_is_sent_as_it_is) {
    struct mail_server *server = mail_server_open("");
    struct bench b;
    struct arena a;
    arena_init(&a, 4096, (size_t)16 << 20);
    bench_open(&b);
    const str to[] = {STR_LIT("b@example.com"), STR_LIT("c@example.com")};
    struct mail mail = {.url = str_c(mail_server_url(server)),
                        .plain = true,
                        .from = STR("a@example.com"),
                        .to = to,
                        .to_count = 2,
                        .message = STR(MESSAGE)};
    CHECK(bench_send(&b, &mail) == ST_OK, "%s", b.err.msg);
    CHECK(bench_send(&b, &mail) == ST_OK, "%s", b.err.msg); /* the connection is a new one */
    CHECK(mail_server_count(server) == 2);
    yyjson_val *got = mail_server_mail(server, 1, &a);
    CHECK(str_eq(text_of(got, "from"), STR("a@example.com")));
    CHECK(yyjson_arr_size(json_member(got, "to")) == 2);
    CHECK(str_eq(text_of(got, "source"), STR(MESSAGE)));
    bench_close(&b);
    arena_release(&a);
    mail_server_close(server);
}

TEST(mail_failures_have_reasons) {
    struct mail_server *server = mail_server_open("");
    static const struct {
        const char *to;
        bool plain;
        status want;
        const char *reason, *has;
    } cases[] = {
        {"refuse@example.com", true, ST_INVALID, "SMTP_REJECTED", "550 5.1.1 no such user here"},
        {"bad@example.com", true, ST_INVALID, "SMTP_REJECTED", "554 5.6.0"},
        {"later@example.com", true, ST_RETRY, "SMTP_FAILED", "451 4.7.1"},
        {"stall@example.com", true, ST_RETRY, "SMTP_TIMEOUT", "127.0.0.1"},
        {"b@example.com", false, ST_RETRY, "SMTP_FAILED", "127.0.0.1"}, /* it has no STARTTLS */
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bench b;
        bench_open(&b);
        str to = str_c(cases[i].to);
        struct mail mail = {.url = str_c(mail_server_url(server)),
                            .plain = cases[i].plain,
                            .from = STR("a@example.com"),
                            .to = &to,
                            .to_count = 1,
                            .message = STR(MESSAGE),
                            .timeout_ms = strstr(cases[i].to, "stall") ? 500 : 20000};
        status st = bench_send(&b, &mail);
        CHECK(st == cases[i].want, "case %zu: %s %s", i, status_name(st), b.err.msg);
        CHECK(strcmp(reason_name(b.err.reason), cases[i].reason) == 0, "case %zu: %s", i,
              reason_name(b.err.reason));
        CHECK(strstr(b.err.msg, cases[i].has) != NULL, "case %zu: %s", i, b.err.msg);
        bench_close(&b);
    }
    CHECK(mail_server_count(server) == 0);
    mail_server_close(server);
}

TEST(mail_goes_over_tls_and_logs_in) {
    struct mail_server *server = mail_server_open("tls auth");
    struct arena a;
    arena_init(&a, 4096, (size_t)16 << 20);
    static const struct {
        const char *password;
        bool trusted;
        status want;
        const char *reason, *has;
    } cases[] = {
        {"p%ss word-1", true, ST_OK, "", ""},
        {"wrong", true, ST_INVALID, "SMTP_REJECTED", "535"},
        {"p%ss word-1", false, ST_RETRY, "SMTP_FAILED", "certificate"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct bench b;
        bench_open(&b);
        str to = STR("b@example.com");
        struct mail mail = {.url = str_c(mail_server_url(server)),
                            .user = STR("cairn"),
                            .password = str_c(cases[i].password),
                            .from = STR("a@example.com"),
                            .to = &to,
                            .to_count = 1,
                            .message = STR(MESSAGE),
                            .ca_file = cases[i].trusted ? mail_server_ca(server) : STR_NONE,
                            .timeout_ms = 20000};
        status st = bench_send(&b, &mail);
        CHECK(st == cases[i].want, "case %zu: %s %s", i, status_name(st), b.err.msg);
        if (st != ST_OK)
            CHECK(strcmp(reason_name(b.err.reason), cases[i].reason) == 0, "case %zu: %s", i,
                  b.err.msg);
        CHECK(strstr(b.err.msg, cases[i].has) != NULL, "case %zu: %s", i, b.err.msg);
        bench_close(&b);
    }
    CHECK(mail_server_count(server) == 1);
    yyjson_val *got = mail_server_mail(server, 1, &a);
    CHECK(yyjson_is_true(json_member(got, "tls")) && str_eq(text_of(got, "user"), STR("cairn")));
    arena_release(&a);
    mail_server_close(server);
}

/* Nothing waits for what a server says at the end, least of all the loop. */
TEST(mail_waits_for_no_goodbye) {
    struct mail_server *server = mail_server_open("tls");
    struct bench b;
    bench_open(&b);
    str to = STR("hang@example.com");
    struct mail mail = {.url = str_c(mail_server_url(server)),
                        .from = STR("a@example.com"),
                        .to = &to,
                        .to_count = 1,
                        .message = STR(MESSAGE),
                        .ca_file = mail_server_ca(server)};
    int64_t start = clock_mono_ns();
    CHECK(bench_send(&b, &mail) == ST_OK, "%s", b.err.msg);
    mail.plain = true;
    CHECK(bench_send(&b, &mail) == ST_OK, "%s", b.err.msg);
    bench_close(&b);
    CHECK(clock_mono_ns() - start < (int64_t)20 * 1000000000, "it waited");
    mail_server_close(server);
}

TEST(mail_is_cancelled) {
    struct mail_server *server = mail_server_open("");
    struct bench b;
    bench_open(&b);
    str to = STR("stall@example.com");
    struct mail mail = {.url = str_c(mail_server_url(server)),
                        .plain = true,
                        .from = STR("a@example.com"),
                        .to = &to,
                        .to_count = 1,
                        .message = STR(MESSAGE)};
    struct mail_call *one;
    struct mail_call *two;
    CHECK(mailer_send(b.mailer, &mail, on_done, &b, &one, &b.err) == ST_OK);
    CHECK(mailer_send(b.mailer, &mail, on_done, &b, &two, &b.err) == ST_OK);
    int64_t start = clock_mono_ns();
    while (clock_mono_ns() - start < (int64_t)300 * 1000000)
        uv_run(&b.loop, UV_RUN_NOWAIT);
    mailer_cancel(one);
    bench_close(&b); /* and so the other one */
    CHECK(b.ended == 0 && clock_mono_ns() - start < (int64_t)20 * 1000000000);
    mail_server_close(server);
}

/* More than have a thread: the others have their turn, or their time ends before it comes. */
TEST(mail_many_wait_for_their_turn) {
    struct mail_server *server = mail_server_open("");
    struct bench b;
    bench_open(&b);
    str to = STR("b@example.com");
    struct mail mail = {.url = str_c(mail_server_url(server)),
                        .plain = true,
                        .from = STR("a@example.com"),
                        .to = &to,
                        .to_count = 1,
                        .message = STR(MESSAGE)};
    struct mail_call *call;
    int n = 3 * MAIL_THREADS_MAX;
    for (int i = 0; i < n; i++)
        CHECK(mailer_send(b.mailer, &mail, on_done, &b, &call, &b.err) == ST_OK);
    mailer_cancel(call); /* one that waits */
    uv_run(&b.loop, UV_RUN_DEFAULT);
    CHECK(b.ended == n - 1 && b.st == ST_OK, "%d %s", b.ended, b.err.msg);
    CHECK(mail_server_count(server) == n - 1);

    to = STR("stall@example.com");
    mail.timeout_ms = 500;
    for (int i = 0; i <= MAIL_THREADS_MAX; i++)
        CHECK(mailer_send(b.mailer, &mail, on_done, &b, &call, &b.err) == ST_OK);
    b.ended = 0;
    uv_run(&b.loop, UV_RUN_DEFAULT);
    CHECK(b.ended == MAIL_THREADS_MAX + 1 && b.err.reason == REASON_SMTP_TIMEOUT);
    for (int i = 0; i < MAILS_MAX; i++)
        CHECK(mailer_send(b.mailer, &mail, on_done, &b, &call, &b.err) == ST_OK);
    CHECK(mailer_send(b.mailer, &mail, on_done, &b, &call, &b.err) == ST_LIMIT);
    bench_close(&b);
    mail_server_close(server);
}

TEST(mail_refuses_what_cannot_be_sent) {
    static const struct {
        const char *url, *from, *to;
        const char *reason;
    } cases[] = {
        {"http://127.0.0.1:1", "a@b", "c@d", "SMTP_REQUEST_INVALID"},
        {"smtp://127.0.0.1:1/a b", "a@b", "c@d", "SMTP_REQUEST_INVALID"},
        {"smtp://127.0.0.1:1", "", "c@d", "SMTP_REQUEST_INVALID"},
        {"smtp://127.0.0.1:1", "a@b", "c@d>\r\nDATA", "SMTP_REQUEST_INVALID"},
        {"smtp://127.0.0.1:1", "a@b", "c@d> SIZE=1", "SMTP_REQUEST_INVALID"},
        {"smtp://127.0.0.1:1", "a@b>", "c@d", "SMTP_REQUEST_INVALID"},
        {"smtp://127.0.0.1:1", "a@b", "c@d", "SMTP_FAILED"}, /* nobody is there */
        {"smtp://u:p@127.0.0.1:1", "a@b", "c@d", "SMTP_FAILED"},
    };
    struct bench b;
    bench_open(&b);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        str to = str_c(cases[i].to);
        struct mail mail = {.url = str_c(cases[i].url),
                            .from = str_c(cases[i].from),
                            .to = &to,
                            .to_count = 1,
                            .message = STR(MESSAGE)};
        CHECK(bench_send(&b, &mail) != ST_OK, "case %zu", i);
        CHECK(strcmp(reason_name(b.err.reason), cases[i].reason) == 0, "case %zu: %s", i,
              b.err.msg);
    }
    bench_close(&b);
}
