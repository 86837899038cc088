/* Who gets in: against a real ledger, its thread, readers and a loop. */
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <pthread.h>
#include <unistd.h>

#include "api/auth_impl.h"
#include "base/log.h"
#include "base/os.h"
#include "test.h"

#define NOW_US (INT64_C(1800000000) * 1000000)
#define SECONDS(n) ((int64_t)(n)*1000000)

struct rig {
    uv_loop_t loop;
    struct metrics *metrics;
    struct writer *writer;
    uv_async_t async; /* what the ledger thread has answered is delivered */
    struct bridge *bridge;
    struct readers *readers;
    struct auth *auth;
    struct arena arena;
    int log_fd;
    char log_file[256];
};

struct ask { /* one check */
    struct auth_check check;
    int answers;
};

static void on_answer(struct auth_check *check) { ((struct ask *)(void *)check)->answers++; }

static void wake_loop(void *context) {
    struct rig *r = context;
    CHECK(uv_async_send(&r->async) == 0);
}

static void on_async(uv_async_t *async) {
    struct rig *r = async->data;
    bridge_deliver(r->bridge);
    readers_deliver(r->readers);
}

static void open_readers(struct rig *r, str url, size_t queue_max) {
    struct error err = {0};
    struct readers_options options = {.url = url,
                                      .threads = 1,
                                      .queue_max = queue_max,
                                      .wake = wake_loop,
                                      .context = r,
                                      .metrics = r->metrics};
    CHECK(readers_open(&options, &r->readers, &err) == ST_OK, "%s", err.msg);
}

/* Until every lookup is answered. */
static void turn(struct rig *r) {
    while (readers_under_way(r->readers) > 0)
        CHECK(uv_run(&r->loop, UV_RUN_ONCE) >= 0);
}

static void rig_open(struct rig *r, str url, size_t queue_max, struct jwks *jwks) {
    struct error err = {0};
    struct ledger *ledger = NULL;
    memset(r, 0, sizeof(*r));
    arena_init(&r->arena, (size_t)16 * 1024, SIZE_MAX);
    snprintf(r->log_file, sizeof(r->log_file), "%s/log", test_dir());
    r->log_fd = open(r->log_file, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    CHECK(r->log_fd >= 0);
    log_setup(r->log_fd, true, LOG_DEBUG);
    CHECK(uv_loop_init(&r->loop) == 0);
    CHECK(metrics_open(&r->metrics, &err) == ST_OK);
    CHECK(ledger_open(url, NULL, &ledger, &err) == ST_OK, "%s", err.msg);
    CHECK(writer_open(ledger, r->metrics, &r->writer, &err) == ST_OK, "%s", err.msg);
    CHECK(uv_async_init(&r->loop, &r->async, on_async) == 0);
    r->async.data = r;
    CHECK(bridge_open(r->writer, wake_loop, r, &r->bridge, &err) == ST_OK, "%s", err.msg);
    open_readers(r, url, queue_max);
    struct auth_options options = {.readers = r->readers,
                                   .bridge = r->bridge,
                                   .loop = &r->loop,
                                   .jwks = jwks,
                                   .metrics = r->metrics};
    CHECK(auth_open(&options, &r->auth, &err) == ST_OK, "%s", err.msg);
}

static void rig_close(struct rig *r) {
    readers_halt(r->readers);
    auth_flush(r->auth);
    bridge_halt(r->bridge);
    writer_close(r->writer); /* as the host does: what is under way is stored, and answered */
    bridge_close(r->bridge);
    auth_close(r->auth);
    readers_close(r->readers);
    uv_close((uv_handle_t *)&r->async, NULL);
    CHECK(uv_run(&r->loop, UV_RUN_DEFAULT) == 0);
    CHECK(uv_loop_close(&r->loop) == 0);
    metrics_close(r->metrics);
    log_setup(STDERR_FILENO, false, LOG_INFO);
    close(r->log_fd);
    arena_release(&r->arena);
}

static bool start(struct rig *r, struct ask *a, const char *header, const char *remote,
                  int64_t now_us) {
    memset(a, 0x5A, sizeof(*a)); /* as memory that was used before */
    a->answers = 0;
    a->check.done = on_answer;
    a->check.arena = &r->arena;
    return auth_check(r->auth, &a->check, str_c(header), str_c(remote), now_us);
}

static status ask(struct rig *r, struct ask *a, const char *header, const char *remote,
                  int64_t now_us) {
    if (start(r, a, header, remote, now_us)) {
        CHECK(a->answers == 0);
        return a->check.code;
    }
    while (a->answers == 0)
        CHECK(uv_run(&r->loop, UV_RUN_ONCE) >= 0);
    CHECK(a->answers == 1);
    return a->check.code;
}

static bool says(const struct ask *a, const char *reason) {
    return a->check.err.reason && strcmp(reason_name(a->check.err.reason), reason) == 0;
}

static int64_t lookups(struct rig *r) { return metric_value(r->auth->m_lookups); }

static bool logged(struct rig *r, const char *text) {
    struct error err = {0};
    str log;
    CHECK(file_read(str_c(r->log_file), (size_t)1 << 20, &r->arena, &log, &err) == ST_OK);
    return memmem(log.ptr, log.len, text, strlen(text)) != NULL;
}

/* ---- keys in the ledger ---- */

struct made {
    char key_id[KEY_ID_LEN];
    char text[KEY_TEXT_LEN + 1];
    char header[8 + KEY_TEXT_LEN];
    struct api_key key;
};

static status do_create(struct ledger *ledger, void *context, struct error *err) {
    return api_key_create(ledger, context, NULL, err);
}
static status do_update(struct ledger *ledger, void *context, struct error *err) {
    return api_key_update(ledger, context, NULL, err);
}
static status do_nothing(struct ledger *ledger, void *context, struct error *err) {
    UNUSED(ledger);
    UNUSED(context);
    UNUSED(err);
    return ST_OK;
}

static void on_ledger(struct rig *r, status (*task)(struct ledger *, void *, struct error *),
                      void *context) {
    struct writer_call call = {.task = task, .task_context = context};
    struct error err = {0};
    CHECK(writer_append(r->writer, &call, 10000, &err) == ST_OK, "%s", err.msg);
}

static void make_key(struct rig *r, struct made *m, const char *tenant, unsigned roles,
                     int64_t expires_us) {
    memset(m, 0, sizeof(*m));
    m->key = (struct api_key){.tenant_id = str_c(tenant),
                              .name = STR("test"),
                              .created_by = STR("local"),
                              .roles = roles,
                              .created_us = NOW_US,
                              .expires_us = expires_us,
                              .version = 1};
    auth_key_make(m->key_id, m->key.hash, m->text);
    m->key.key_id = str_n(m->key_id, KEY_ID_LEN);
    snprintf(m->header, sizeof(m->header), "Bearer %s", m->text);
    on_ledger(r, do_create, &m->key);
}

static void revoke_key(struct rig *r, struct made *m) {
    m->key.revoked_us = NOW_US;
    on_ledger(r, do_update, &m->key);
    m->key.version++;
}

static int64_t stored_use(struct rig *r, str url, const struct made *m) {
    struct ledger *reader = NULL;
    struct api_key key;
    struct error err = {0};
    on_ledger(r, do_nothing, NULL); /* what was submitted before is done */
    CHECK(ledger_open_reader(url, &reader, &err) == ST_OK, "%s", err.msg);
    CHECK(api_key_find(reader, str_n(m->key_id, KEY_ID_LEN), &r->arena, &key, &err) == ST_OK);
    ledger_close(reader);
    return key.used_us;
}

/* The header of a key that nobody made. */
static void stranger(char header[8 + KEY_TEXT_LEN]) {
    char key_id[KEY_ID_LEN];
    uint8_t hash[SHA256_LEN];
    char text[KEY_TEXT_LEN + 1];
    auth_key_make(key_id, hash, text);
    snprintf(header, 8 + KEY_TEXT_LEN, "Bearer %s", text);
}

/* ---- without a ledger ---- */

TEST(auth_roles_and_principals) {
    static const char *const names[] = {"viewer", "operator", "producer", "worker", "admin"};
    struct buf out;
    buf_init(&out, 200);
    for (unsigned i = 0; i < COUNT_OF(names); i++)
        CHECK(role_of(str_c(names[i])) == 1U << i);
    CHECK(role_of(STR("Admin")) == 0 && role_of(STR("")) == 0 && role_of(STR("admins")) == 0);
    roles_json(ROLE_ALL, &out);
    CHECK(
        str_eq(buf_str(&out), STR("[\"viewer\",\"operator\",\"producer\",\"worker\",\"admin\"]")));
    buf_clear(&out);
    roles_json(0, &out);
    CHECK(str_eq(buf_str(&out), STR("[]")));
    buf_release(&out);
    struct principal p = {.tenant = "acme", .roles = ROLE_VIEWER};
    CHECK(principal_sees(&p, STR("acme")) && !principal_sees(&p, STR("acm")));
    CHECK(!principal_sees(&p, STR("*")) && !principal_sees(&p, STR("acme2")));
    CHECK(principal_may(&p, ROLE_VIEWER) && principal_may(&p, ROLE_VIEWER | ROLE_ADMIN));
    CHECK(!principal_may(&p, ROLE_OPERATOR) && !principal_may(&p, 0));
    p.roles = ROLE_OPERATOR;
    CHECK(principal_may(&p, ROLE_VIEWER) && !principal_may(&p, ROLE_WORKER | ROLE_ADMIN));
    p.roles = ROLE_ADMIN;
    CHECK(principal_may(&p, ROLE_WORKER) && !principal_sees(&p, STR("other")));
    p = (struct principal){.tenant = "*"};
    CHECK(principal_sees(&p, STR("anything")) && !principal_may(&p, ROLE_ALL));
}

TEST(auth_keys_are_made_as_documented) {
    char id[2][KEY_ID_LEN];
    uint8_t hash[2][SHA256_LEN];
    uint8_t want[SHA256_LEN];
    char text[2][KEY_TEXT_LEN + 1];
    for (int i = 0; i < 2; i++)
        auth_key_make(id[i], hash[i], text[i]);
    CHECK(strlen(text[0]) == 66 && strncmp(text[0], "cairn_", 6) == 0 && text[0][22] == '_');
    CHECK(memcmp(text[0] + 6, id[0], KEY_ID_LEN) == 0);
    CHECK(strspn(text[0] + 6, "abcdefghijklmnopqrstuvwxyz0123456789") == KEY_ID_LEN);
    sha256_of(str_n(text[0] + 23, KEY_SECRET_LEN), want);
    CHECK(memcmp(hash[0], want, SHA256_LEN) == 0);
    CHECK(memcmp(id[0], id[1], KEY_ID_LEN) != 0 && memcmp(hash[0], hash[1], SHA256_LEN) != 0);
}

TEST(auth_open_mode_takes_everybody) {
    uv_loop_t loop;
    struct auth *auth = NULL;
    struct error err = {0};
    struct ask a = {.check.done = on_answer};
    CHECK(uv_loop_init(&loop) == 0);
    struct auth_options options = {.open = true, .loop = &loop};
    CHECK(auth_open(&options, &auth, &err) == ST_OK);
    CHECK(auth_check(auth, &a.check, STR("Bearer nonsense"), STR("10.0.0.1"), NOW_US));
    CHECK(a.check.code == ST_OK && strcmp(a.check.principal.name, "anonymous") == 0);
    CHECK(strcmp(a.check.principal.tenant, "*") == 0 && a.check.principal.expires_us == 0);
    CHECK(principal_may(&a.check.principal, ROLE_ADMIN));
    auth_flush(auth);
    auth_close(auth);
    auth_flush(NULL);
    auth_close(NULL);
    CHECK(uv_run(&loop, UV_RUN_DEFAULT) == 0 && uv_loop_close(&loop) == 0);
}

TEST(auth_failures_are_counted_by_address) {
    static const struct {
        const char *first, *second;
        bool same;
    } cases[] = {
        {"10.0.0.1", "10.0.0.1", true},
        {"10.0.0.1", "10.0.0.2", false},
        {"2001:db8:1:2::1", "2001:db8:1:2:ffff::9", true}, /* one customer's network */
        {"2001:db8:1:2::1", "2001:db8:1:3::1", false},
        {"::ffff:10.0.0.1", "10.0.0.1", true},
        {"::ffff:10.0.0.1", "::ffff:10.0.0.2", false},
        {"unix", "unix", true},
        {"unix", "10.0.0.1", false},
        {"", "unix", false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct failures *f = mem_alloc(sizeof(*f));
        for (int n = 1; n <= AUTH_FAILURES_MAX; n++) {
            CHECK(failures_wait_s(f, str_c(cases[i].first), NOW_US + n) == 0);
            bool last = failures_add(f, str_c(cases[i].first), NOW_US + n);
            CHECK(last == (n == AUTH_FAILURES_MAX), "case %zu, failure %d", i, n);
        }
        int64_t wait = failures_wait_s(f, str_c(cases[i].second), NOW_US + SECONDS(10));
        CHECK(wait == (cases[i].same ? 51 : 0), "case %zu: %d", i, (int)wait);
        CHECK(failures_wait_s(f, str_c(cases[i].first), NOW_US + SECONDS(61)) == 0);
        CHECK(failures_wait_s(f, str_c(cases[i].first), NOW_US - SECONDS(61)) == 0);
        mem_free(f);
    }
}

/* However many addresses there are, one that is refused now stays so. */
TEST(auth_failures_of_many_addresses_are_bounded) {
    struct failures *f = mem_alloc(sizeof(*f));
    char remote[32];
    for (int n = 0; n < AUTH_FAILURES_MAX; n++)
        (void)failures_add(f, STR("10.0.0.1"), NOW_US);
    for (int i = 0; i < 20000; i++) {
        snprintf(remote, sizeof(remote), "11.%d.%d.1", i / 250, i % 250);
        (void)failures_add(f, str_c(remote), NOW_US + i);
    }
    CHECK(failures_wait_s(f, STR("10.0.0.1"), NOW_US + 20000) > 0);
    mem_free(f);
}

/* ---- keys ---- */

TEST_DB(auth_key_is_looked_up_once_and_believed) {
    struct rig r;
    struct ask a;
    struct made key;
    rig_open(&r, url, 100, NULL);
    make_key(&r, &key, "acme", ROLE_PRODUCER | ROLE_VIEWER, NOW_US + SECONDS(3600));
    CHECK(ask(&r, &a, key.header, "10.0.0.1", NOW_US) == ST_OK, "%s", a.check.err.msg);
    struct principal *p = &a.check.principal;
    CHECK(strncmp(p->name, "key:", 4) == 0 && memcmp(p->name + 4, key.key_id, KEY_ID_LEN) == 0);
    CHECK(strlen(p->name) == 4 + KEY_ID_LEN && strcmp(p->tenant, "acme") == 0);
    CHECK(p->roles == (ROLE_PRODUCER | ROLE_VIEWER));
    CHECK(p->expires_us == NOW_US + SECONDS(3600));
    CHECK(lookups(&r) == 1);
    key.header[0] = 'b'; /* the scheme's case does not matter, nor how many blanks follow */
    CHECK(start(&r, &a, key.header, "10.0.0.1", NOW_US + SECONDS(4)) && a.check.code == ST_OK);
    char wide[100];
    snprintf(wide, sizeof(wide), "BEARER   %s", key.text);
    CHECK(start(&r, &a, wide, "10.0.0.1", NOW_US) && a.check.code == ST_OK);
    CHECK(lookups(&r) == 1);
    CHECK(ask(&r, &a, key.header, "10.0.0.1", NOW_US + SECONDS(5)) == ST_OK);
    CHECK(lookups(&r) == 2); /* it was not believed any longer */
    CHECK(ask(&r, &a, key.header, "10.0.0.1", NOW_US) == ST_OK);
    CHECK(lookups(&r) == 3); /* nor when the clock was set back */
    CHECK(metric_value(r.auth->m_ok) == 5);
    rig_close(&r);
}

/* The caller hears the same for all of them, the log knows better, and no secret is in it. */
TEST_DB(auth_bad_keys_are_refused_in_one_voice) {
    struct rig r;
    struct ask a;
    struct made revoked;
    struct made expired;
    struct made other;
    char header[8 + KEY_TEXT_LEN];
    rig_open(&r, url, 100, NULL);
    make_key(&r, &revoked, "acme", ROLE_ADMIN, 0);
    make_key(&r, &expired, "acme", ROLE_ADMIN, NOW_US);
    make_key(&r, &other, "acme", ROLE_ADMIN, 0);
    revoke_key(&r, &revoked);
    char mixed[8 + KEY_TEXT_LEN]; /* one key's id with the secret of another */
    memcpy(mixed, expired.header, sizeof(mixed));
    memcpy(mixed, other.header, 30);
    stranger(header);
    const struct {
        const char *header, *why;
    } cases[] = {{revoked.header, "the key is revoked"},
                 {expired.header, "the key has expired"},
                 {mixed, "the secret is wrong"},
                 {header, "there is no such key"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        CHECK(!logged(&r, cases[i].why));
        for (int again = 0; again < 2; again++) { /* from the ledger, and from memory */
            CHECK(ask(&r, &a, cases[i].header, "10.0.0.1", NOW_US) == ST_INVALID, "case %zu", i);
            CHECK(says(&a, "UNAUTHENTICATED") && a.check.err.code == ST_INVALID);
            CHECK(strcmp(a.check.err.msg, "the API key is not valid") == 0, "%s", a.check.err.msg);
        }
        CHECK(logged(&r, cases[i].why), "case %zu", i);
        CHECK(!logged(&r, cases[i].header + 30), "case %zu", i);
    }
    CHECK(lookups(&r) == 4);
    CHECK(ask(&r, &a, other.header, "10.0.0.1", NOW_US) == ST_OK); /* its own secret is good */
    rig_close(&r);
}

TEST_DB(auth_headers_of_another_form_are_refused) {
    struct rig r;
    struct ask a;
    struct made key;
    rig_open(&r, url, 100, NULL);
    make_key(&r, &key, "acme", ROLE_ADMIN, 0);
    const char *t = key.text;
    str headers[] = {
        STR(""),
        STR("Bearer"),
        STR("Bearer "),
        STR("Bearer      "),
        str_c(t),
        STR("Basic YWxhZGRpbjpvcGVuc2VzYW1l"),
        STR("Bearer cairn_"),
        STR("Bearer x"),
    };
    const char *formats[] = {"Basic %s",   "Bearer%s",          "Bearer\t%s",
                             "Bearer %s ", "Bearer %s %s",      "Bearer %s,%s",
                             " Bearer %s", "Bearer \"%s\"",     "Bearer %sA",
                             "Bearer %s=", "Bearer key=\"%s\"", "Bearer Bearer %s"};
    int n = 0;
    char remote[32];
    for (size_t i = 0; i < COUNT_OF(headers) + COUNT_OF(formats); i++) {
        char text[200];
        str header = i < COUNT_OF(headers) ? headers[i] : STR_NONE;
        if (!header.ptr) {
            struct buf out;
            buf_init_fixed(&out, text, sizeof(text));
            for (const char *f = formats[i - COUNT_OF(headers)]; *f; f++) {
                if (f[0] != '%')
                    buf_put_char(&out, *f);
                else
                    buf_put_c(&out, (f++, t));
            }
            header = buf_str(&out);
        }
        snprintf(remote, sizeof(remote), "10.0.1.%d", n++);
        a = (struct ask){.check.done = on_answer, .check.arena = &r.arena};
        CHECK(auth_check(r.auth, &a.check, header, str_c(remote), NOW_US), "%.*s", STR_ARG(header));
        CHECK(a.check.code == ST_INVALID && says(&a, "UNAUTHENTICATED"), "%.*s", STR_ARG(header));
    }
    for (size_t at = 0; at < KEY_TEXT_LEN; at++) { /* each character of a key is looked at */
        char bad[8 + KEY_TEXT_LEN];
        snprintf(bad, sizeof(bad), "%s", key.header);
        bad[7 + at] = '~';
        snprintf(remote, sizeof(remote), "10.0.2.%d", n++);
        CHECK(start(&r, &a, bad, remote, NOW_US) && a.check.code == ST_INVALID, "%zu", at);
    }
    CHECK(lookups(&r) == 0); /* none of them was worth a question */
    rig_close(&r);
}

TEST_DB(auth_revoked_keys_end_in_time) {
    struct rig r;
    struct ask a;
    struct made here;
    struct made elsewhere;
    rig_open(&r, url, 100, NULL);
    make_key(&r, &here, "acme", ROLE_ADMIN, 0);
    make_key(&r, &elsewhere, "acme", ROLE_ADMIN, 0);
    CHECK(ask(&r, &a, here.header, "10.0.0.1", NOW_US) == ST_OK);
    CHECK(ask(&r, &a, elsewhere.header, "10.0.0.1", NOW_US) == ST_OK);
    revoke_key(&r, &here);
    auth_forget(r.auth, str_n(here.key_id, KEY_ID_LEN)); /* as this node does it */
    revoke_key(&r, &elsewhere);                          /* another node did */
    CHECK(ask(&r, &a, here.header, "10.0.0.1", NOW_US) == ST_INVALID);
    CHECK(ask(&r, &a, elsewhere.header, "10.0.0.1", NOW_US + SECONDS(4)) == ST_OK);
    CHECK(ask(&r, &a, elsewhere.header, "10.0.0.1", NOW_US + SECONDS(5)) == ST_INVALID);
    auth_forget(r.auth, STR("neverheardofthis"));
    rig_close(&r);
}

TEST_DB(auth_checks_of_one_key_wait_for_one_lookup) {
    struct rig r;
    struct ask many[50];
    struct ask late;
    struct made key;
    rig_open(&r, url, 100, NULL);
    make_key(&r, &key, "acme", ROLE_ADMIN, 0);
    for (size_t i = 0; i < COUNT_OF(many); i++) {
        char header[8 + KEY_TEXT_LEN];
        snprintf(header, sizeof(header), "%s", key.header);
        if (i % 10 == 9) header[40] = header[40] == 'x' ? 'y' : 'x'; /* some guess */
        CHECK(!start(&r, &many[i], header, "10.0.0.1", NOW_US));
    }
    CHECK(lookups(&r) == 1);
    /* What is forgotten now is asked for again, by those who come now. */
    auth_forget(r.auth, str_n(key.key_id, KEY_ID_LEN));
    CHECK(!start(&r, &late, key.header, "10.0.0.1", NOW_US));
    CHECK(lookups(&r) == 2);
    turn(&r);
    for (size_t i = 0; i < COUNT_OF(many); i++) {
        CHECK(many[i].answers == 1);
        CHECK(many[i].check.code == (i % 10 == 9 ? ST_INVALID : ST_OK), "check %zu", i);
    }
    CHECK(late.answers == 1 && late.check.code == ST_OK);
    CHECK(r.auth->keys.count == 1 && r.auth->known.count == 1);
    rig_close(&r);
}

/* ---- bounds ---- */

TEST_DB(auth_limits_failures_of_an_address) {
    struct rig r;
    struct ask a;
    struct made key;
    char header[8 + KEY_TEXT_LEN];
    rig_open(&r, url, 100, NULL);
    make_key(&r, &key, "acme", ROLE_ADMIN, 0);
    for (int i = 0; i < 30; i++) { /* who brings nothing is not counted */
        CHECK(start(&r, &a, NULL, "10.0.0.1", NOW_US) && says(&a, "UNAUTHENTICATED"));
    }
    for (int i = 0; i < AUTH_FAILURES_MAX; i++) {
        stranger(header);
        CHECK(ask(&r, &a, header, "10.0.0.1", NOW_US) == ST_INVALID, "failure %d", i);
        CHECK(ask(&r, &a, key.header, "10.0.0.1", NOW_US) == ST_OK); /* resets nothing */
    }
    const char *const brought[] = {header, "Bearer x", "Basic eDp5"};
    for (size_t i = 0; i < COUNT_OF(brought); i++) {
        CHECK(ask(&r, &a, brought[i], "10.0.0.1", NOW_US + SECONDS(15)) == ST_LIMIT);
        CHECK(says(&a, "RATE_LIMITED"), "case %zu", i);
        CHECK(a.check.retry_after_s == 45, "%d", (int)a.check.retry_after_s);
    }
    CHECK(start(&r, &a, NULL, "10.0.0.1", NOW_US + SECONDS(15)) && says(&a, "UNAUTHENTICATED"));
    stranger(header);
    CHECK(ask(&r, &a, header, "10.0.0.2", NOW_US + SECONDS(15)) == ST_INVALID); /* another */
    stranger(header);
    CHECK(ask(&r, &a, header, "10.0.0.1", NOW_US + SECONDS(60)) == ST_INVALID); /* it is over */
    CHECK(logged(&r, "the address is over its limit"));
    rig_close(&r);
}

/* One broken client behind an address does not lock the others out, and guessing stays cheap. */
TEST_DB(auth_lets_good_keys_pass_from_an_address_over_its_limit) {
    struct rig r;
    struct ask a;
    struct made known;
    struct made fresh;
    char header[8 + KEY_TEXT_LEN];
    rig_open(&r, url, 100, NULL);
    make_key(&r, &known, "acme", ROLE_ADMIN, 0);
    make_key(&r, &fresh, "acme", ROLE_ADMIN, 0);
    CHECK(ask(&r, &a, known.header, "10.0.0.1", NOW_US) == ST_OK);
    for (int i = 0; i < AUTH_FAILURES_MAX; i++) {
        stranger(header);
        CHECK(ask(&r, &a, header, "10.0.0.1", NOW_US) == ST_INVALID);
    }
    int64_t now = NOW_US + SECONDS(10); /* the known one is not fresh any more */
    int64_t before = lookups(&r);
    for (int i = 0; i < 5 * AUTH_TRIES_MAX; i++) {
        stranger(header);
        CHECK(ask(&r, &a, header, "10.0.0.1", now) == ST_LIMIT && says(&a, "RATE_LIMITED"));
        CHECK(a.check.retry_after_s == (i < AUTH_TRIES_MAX ? 50 : 1));
        CHECK(ask(&r, &a, known.header, "10.0.0.1", now) == ST_OK);
    }
    CHECK(lookups(&r) - before == AUTH_TRIES_MAX + 1); /* the tries, and the known one */
    CHECK(ask(&r, &a, fresh.header, "10.0.0.1", now) == ST_LIMIT); /* who could know? */
    CHECK(ask(&r, &a, fresh.header, "10.0.0.1", now + SECONDS(1)) == ST_OK);
    rig_close(&r);
}

/* Guesses that come all at once do not get more answers than those that come one by one. */
TEST_DB(auth_limits_failures_under_way) {
    struct rig r;
    struct ask many[60];
    int refused = 0;
    int limited = 0;
    rig_open(&r, url, 100, NULL);
    for (size_t i = 0; i < COUNT_OF(many); i++) {
        char header[8 + KEY_TEXT_LEN];
        stranger(header);
        CHECK(!start(&r, &many[i], header, "unix", NOW_US));
    }
    turn(&r);
    for (size_t i = 0; i < COUNT_OF(many); i++) {
        refused += many[i].check.code == ST_INVALID;
        limited += many[i].check.code == ST_LIMIT && many[i].check.retry_after_s > 0;
    }
    CHECK(refused == AUTH_FAILURES_MAX && limited == (int)COUNT_OF(many) - refused);
    rig_close(&r);
}

TEST_DB(auth_unknown_keys_are_remembered_but_not_without_bound) {
    struct rig r;
    struct ask a;
    struct made key;
    char first[8 + KEY_TEXT_LEN];
    char header[8 + KEY_TEXT_LEN];
    char remote[32];
    rig_open(&r, url, 100, NULL);
    make_key(&r, &key, "acme", ROLE_ADMIN, 0);
    CHECK(ask(&r, &a, key.header, "10.0.0.1", NOW_US) == ST_OK);
    stranger(first);
    CHECK(ask(&r, &a, first, "10.0.0.1", NOW_US) == ST_INVALID);
    CHECK(start(&r, &a, first, "10.0.0.1", NOW_US)); /* remembered */
    for (int i = 0; i < KEY_UNKNOWN_MAX; i++) {
        stranger(header);
        snprintf(remote, sizeof(remote), "11.%d.%d.1", i / 250, i % 250);
        CHECK(ask(&r, &a, header, remote, NOW_US) == ST_INVALID);
    }
    CHECK(r.auth->unknown.count == KEY_UNKNOWN_MAX && r.auth->known.count == 1);
    CHECK(r.auth->keys.count == KEY_UNKNOWN_MAX + 1);
    CHECK(start(&r, &a, key.header, "10.0.0.1", NOW_US) && a.check.code == ST_OK); /* still there */
    CHECK(!start(&r, &a, first, "10.0.0.1", NOW_US)); /* thrown out: it is asked for again */
    turn(&r);
    rig_close(&r);
}

struct gate_job {
    struct reader_job job;
    pthread_mutex_t lock;
};
static status gate_work(struct reader_job *job, struct ledger *reader, struct error *err) {
    struct gate_job *gate = (struct gate_job *)(void *)job;
    UNUSED(reader);
    UNUSED(err);
    pthread_mutex_lock(&gate->lock);
    pthread_mutex_unlock(&gate->lock);
    return ST_OK;
}
static void gate_done(struct reader_job *job) { UNUSED(job); }

TEST_DB(auth_says_when_the_readers_are_busy) {
    struct rig r;
    struct ask a[4];
    struct error err = {0};
    struct gate_job gate = {.job = {.work = gate_work, .done = gate_done},
                            .lock = PTHREAD_MUTEX_INITIALIZER};
    char header[8 + KEY_TEXT_LEN];
    rig_open(&r, url, 1, NULL);
    pthread_mutex_lock(&gate.lock);
    CHECK(readers_try(r.readers, &gate.job, &err) == ST_OK);
    size_t n = 0;
    for (bool answered = false; !answered; n++) { /* one at work, one in the queue, then no more */
        CHECK(n < COUNT_OF(a));
        stranger(header);
        answered = start(&r, &a[n], header, "10.0.0.1", NOW_US);
    }
    CHECK(a[n - 1].check.code == ST_LIMIT && says(&a[n - 1], "QUEUE_FULL"));
    CHECK(a[n - 1].check.retry_after_s == 1);
    pthread_mutex_unlock(&gate.lock);
    turn(&r);
    CHECK(r.auth->keys.count == n - 1); /* the one that was not asked for is not believed unknown */
    pthread_mutex_destroy(&gate.lock);
    rig_close(&r);
}

/* Closing while checks wait: each is answered once. */
TEST_DB(auth_closes_while_checks_wait) {
    for (int auth_first = 0; auth_first < 2; auth_first++) {
        struct rig r;
        struct ask a[3];
        struct made key;
        rig_open(&r, url, 100, NULL);
        make_key(&r, &key, "acme", ROLE_ADMIN, 0);
        CHECK(!start(&r, &a[0], key.header, "10.0.0.1", NOW_US));
        CHECK(!start(&r, &a[1], key.header, "10.0.0.1", NOW_US));
        char header[8 + KEY_TEXT_LEN];
        stranger(header);
        CHECK(!start(&r, &a[2], header, "10.0.0.1", NOW_US));
        if (auth_first) {
            auth_close(r.auth);
            readers_halt(r.readers);
            r.auth = NULL;
        }
        rig_close(&r);
        for (size_t i = 0; i < COUNT_OF(a); i++) {
            CHECK(a[i].answers == 1, "check %zu", i);
            CHECK(a[i].check.code == ST_RETRY || a[i].check.code == (i < 2 ? ST_OK : ST_INVALID));
        }
    }
}

/* A ledger that cannot be asked is no reason to call a key unknown. */
TEST(auth_without_a_ledger_says_retry) {
    struct rig r;
    struct ask a;
    char header[8 + KEY_TEXT_LEN];
    rig_open(&r, test_db_url("sqlite"), 100, NULL);
    readers_close(r.readers);
    open_readers(&r, STR("/nonexistent/ledger.db"), 10);
    r.auth->options.readers = r.readers;
    stranger(header);
    for (int i = 0; i < AUTH_FAILURES_MAX + 5; i++) {
        CHECK(ask(&r, &a, header, "10.0.0.1", NOW_US) == ST_RETRY, "%s", a.check.err.msg);
        CHECK(a.check.err.code == ST_RETRY && a.check.retry_after_s == 1);
    }
    CHECK(r.auth->keys.count == 0);
    rig_close(&r);
}

/* ---- last use ---- */

TEST_DB(auth_last_use_is_written_once_a_minute_and_at_the_end) {
    struct rig r;
    struct ask a;
    struct made key;
    rig_open(&r, url, 100, NULL);
    make_key(&r, &key, "acme", ROLE_ADMIN, 0);
    CHECK(ask(&r, &a, key.header, "10.0.0.1", NOW_US) == ST_OK);
    CHECK(r.auth->use_count == 1);
    auth_flush(r.auth);
    CHECK(r.auth->use_count == 0 && stored_use(&r, url, &key) == NOW_US);
    CHECK(ask(&r, &a, key.header, "10.0.0.1", NOW_US + SECONDS(59)) == ST_OK);
    CHECK(r.auth->use_count == 0);
    CHECK(ask(&r, &a, key.header, "10.0.0.1", NOW_US + SECONDS(60)) == ST_OK);
    CHECK(r.auth->use_count == 1);
    CHECK(ask(&r, &a, key.header, "10.0.0.1", NOW_US + SECONDS(61)) == ST_OK);
    CHECK(r.auth->use_count == 1);
    uv_sleep(USES_FLUSH_MS + 20); /* then the timer writes it, */
    uv_ref((uv_handle_t *)&r.auth->timer);
    CHECK(uv_run(&r.loop, UV_RUN_ONCE) >= 0);
    uv_unref((uv_handle_t *)&r.auth->timer);
    CHECK(r.auth->use_count == 0 && stored_use(&r, url, &key) == NOW_US + SECONDS(60));
    auth_flush(r.auth); /* and the end what came after it */
    CHECK(stored_use(&r, url, &key) == NOW_US + SECONDS(61));
    auth_flush(r.auth); /* nothing is left */
    auth_forget(r.auth, str_n(key.key_id, KEY_ID_LEN));
    CHECK(ask(&r, &a, key.header, "10.0.0.1", NOW_US + SECONDS(90)) == ST_OK);
    CHECK(r.auth->use_count == 0); /* the ledger told when it was written last */
    auth_forget(r.auth, str_n(key.key_id, KEY_ID_LEN));
    CHECK(r.auth->use_count == 1); /* what would be lost is gathered */
    rig_close(&r);
}

/* ---- tokens ---- */

static str base64url(struct arena *arena, str bytes) {
    char *out = arena_alloc(arena, bytes.len * 4 / 3 + 8);
    int n = EVP_EncodeBlock((unsigned char *)out, (const unsigned char *)bytes.ptr, (int)bytes.len);
    for (; n > 0 && out[n - 1] == '='; n--)
        continue;
    for (int i = 0; i < n; i++) {
        if (out[i] == '+') out[i] = '-';
        if (out[i] == '/') out[i] = '_';
    }
    return str_n(out, (size_t)n);
}

static const char secret[] = "0123456789abcdef0123456789abcdef";

static const char *token(struct rig *r, const char *sub, const char *rest) {
    static char text[4096];
    char payload[2048];
    uint8_t mac[SHA256_LEN];
    unsigned len = 0;
    snprintf(payload, sizeof(payload), "{\"sub\":\"%s\",\"exp\":1800000600,%s}", sub, rest);
    str head = base64url(&r->arena, STR("{\"alg\":\"HS256\"}"));
    str body = base64url(&r->arena, str_c(payload));
    int n = snprintf(text, sizeof(text), "Bearer %.*s.%.*s", STR_ARG(head), STR_ARG(body));
    CHECK(HMAC(EVP_sha256(), secret, 32, (uint8_t *)text + 7, (size_t)n - 7, mac, &len) != NULL);
    str sign = base64url(&r->arena, str_n(mac, sizeof(mac)));
    snprintf(text + n, sizeof(text) - (size_t)n, ".%.*s", STR_ARG(sign));
    return text;
}

static struct jwks *key_set(void) {
    struct jwks *set = NULL;
    struct error err = {0};
    CHECK(jwks_parse(STR("{\"keys\":[{\"kty\":\"oct\",\"k\":"
                         "\"MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY\"}]}"),
                     &set, &err) == ST_OK,
          "%s", err.msg);
    return set;
}

TEST(auth_tokens_become_principals) {
    static const char acme[] = "\"tenant\":\"acme\",\"roles\":[\"viewer\",\"root\",\"worker\"]";
    struct rig r;
    struct ask a;
    rig_open(&r, test_db_url("sqlite"), 10, NULL);
    CHECK(start(&r, &a, token(&r, "alice", acme), "10.0.0.1", NOW_US));
    CHECK(a.check.code == ST_INVALID && says(&a, "UNAUTHENTICATED")); /* no keys: no tokens */
    auth_set_jwks(r.auth, key_set());
    CHECK(start(&r, &a, token(&r, "alice", acme), "10.0.0.1", NOW_US));
    CHECK(a.check.code == ST_OK, "%s", a.check.err.msg);
    CHECK(strcmp(a.check.principal.name, "jwt:alice") == 0);
    CHECK(strcmp(a.check.principal.tenant, "acme") == 0);
    CHECK(a.check.principal.roles == (ROLE_VIEWER | ROLE_WORKER));
    CHECK(a.check.principal.expires_us == NOW_US + SECONDS(600));
    CHECK(start(&r, &a, token(&r, "bob", "\"tenant\":\"t\",\"roles\":[]"), "10.0.0.1", NOW_US));
    CHECK(a.check.code == ST_OK && a.check.principal.roles == 0);
    CHECK(start(&r, &a, token(&r, "alice", acme), "10.0.0.1", NOW_US + SECONDS(700)));
    CHECK(a.check.code == ST_INVALID && says(&a, "JWT_EXPIRED") && logged(&r, "JWT_EXPIRED"));
    CHECK(start(&r, &a, "Bearer e30.e30.", "10.0.0.1", NOW_US));
    CHECK(a.check.code == ST_INVALID && says(&a, "JWT_MALFORMED"));
    auth_set_jwks(r.auth, key_set());
    CHECK(start(&r, &a, token(&r, "alice", acme), "10.0.0.1", NOW_US) && a.check.code == ST_OK);
    rig_close(&r);
}

/* Receipts and limits go by the name: two subjects never share one. */
TEST(auth_long_subjects_keep_names_of_their_own) {
    static const char rest[] = "\"tenant\":\"acme\",\"roles\":\"viewer\"";
    struct rig r;
    struct ask a[2];
    char sub[2][200];
    rig_open(&r, test_db_url("sqlite"), 10, key_set());
    for (int i = 0; i < 2; i++) {
        memset(sub[i], 'x', 150);
        memcpy(sub[i] + 57, "\xc3\xb6\xc3\xb6", 4); /* the cut goes through a character */
        sub[i][149] = (char)('a' + i);
        sub[i][150] = '\0';
        CHECK(start(&r, &a[i], token(&r, sub[i], rest), "10.0.0.1", NOW_US));
        CHECK(a[i].check.code == ST_OK, "%s", a[i].check.err.msg);
        str name = str_c(a[i].check.principal.name);
        size_t bad;
        CHECK(name.len > 70 && name.len <= PRINCIPAL_NAME_MAX && str_utf8(name, &bad));
    }
    CHECK(strcmp(a[0].check.principal.name, a[1].check.principal.name) != 0);
    memset(sub[0], 'x', 76);
    sub[0][76] = '\0';
    CHECK(start(&r, &a[0], token(&r, sub[0], rest), "10.0.0.1", NOW_US));
    CHECK(strcmp(a[0].check.principal.name + 4, sub[0]) == 0); /* the longest that is not cut */
    rig_close(&r);
}

TEST(auth_forged_tokens_are_counted_as_failures) {
    struct rig r;
    struct ask a;
    rig_open(&r, test_db_url("sqlite"), 10, key_set());
    for (int i = 0; i < AUTH_FAILURES_MAX; i++) {
        CHECK(start(&r, &a, "Bearer eyJhbGciOiJub25lIn0.e30.", "10.0.0.1", NOW_US));
        CHECK(a.check.code == ST_INVALID && says(&a, "JWT_ALGORITHM"), "%s", a.check.err.msg);
    }
    /* The signatures of others are checked, but not of as many as one likes: those that were good
     * before come first. */
    static const char claims[] = "\"tenant\":\"acme\",\"roles\":[]";
    CHECK(start(&r, &a, token(&r, "alice", claims), "10.0.0.1", NOW_US) && a.check.code == ST_OK);
    for (int i = 0; i < 3 * AUTH_TRIES_MAX; i++) {
        char sub[16];
        snprintf(sub, sizeof(sub), "forged-%d", i);
        char forged[4096];
        snprintf(forged, sizeof(forged), "%sx", token(&r, sub, claims));
        CHECK(start(&r, &a, forged, "10.0.0.1", NOW_US) && says(&a, "RATE_LIMITED"));
        CHECK((a.check.retry_after_s == 1) == (i >= AUTH_TRIES_MAX - 1), "%d", i);
        CHECK(start(&r, &a, token(&r, "alice", claims), "10.0.0.1", NOW_US));
        CHECK(a.check.code == ST_OK);
    }
    CHECK(start(&r, &a, token(&r, "bob", claims), "10.0.0.1", NOW_US) && says(&a, "RATE_LIMITED"));
    CHECK(start(&r, &a, token(&r, "bob", claims), "10.0.0.2", NOW_US) && a.check.code == ST_OK);
    CHECK(start(&r, &a, token(&r, "bob", claims), "10.0.0.1", NOW_US) && a.check.code == ST_OK);
    rig_close(&r);
}
