/* core/url_guard_test.c: what passes, what does not, and every spelling of it we could think of. */
#include "core/url_guard.h"

#include "base/buf.h"
#include "test.h"

static struct arena arena_make(void) {
    struct arena a;
    arena_init(&a, 4096, (size_t)1 << 20);
    return a;
}

/* The URL against the rules, each written as in a configuration; "" ends them. */
static status judge(const char *const *rules, bool allow_private, str text, struct url *url,
                    struct error *err) {
    static struct arena arena; /* what the last call gave back lives until the next */
    static struct guard_rule parsed[16];
    arena_release(&arena);
    arena = arena_make();
    struct guard guard = {.rules = parsed, .allow_private = allow_private};
    for (; rules[guard.rule_count] != NULL; guard.rule_count++) {
        CHECK(guard_rule_parse(str_c(rules[guard.rule_count]), &arena, &parsed[guard.rule_count],
                               err) == ST_OK,
              "%s: %s", rules[guard.rule_count], err->msg);
    }
    return guard_url(&guard, text, &arena, url, err);
}

TEST(url_parse_takes_urls_apart) {
    static const struct {
        const char *in, *scheme, *host, *path;
        int port;
        bool has_user;
    } cases[] = {
        {"https://plans.example.com/a/b?c=d", "https", "plans.example.com", "/a/b?c=d", 443, false},
        {"HTTP://Plans.Example.COM", "http", "plans.example.com", "", 80, false},
        {"http://h:8080/", "http", "h", "/", 8080, false},
        {"http://h:65535/", "http", "h", "/", 65535, false},
        {"http://a_b.c-d.e/", "http", "a_b.c-d.e", "/", 80, false},
        {"http://[::1]:81/x", "http", "::1", "/x", 81, false},
        {"http://[0:0:0:0:0:0:0:1]", "http", "::1", "", 80, false},
        {"http://[2001:DB8::A]/", "http", "2001:db8::a", "/", 80, false},
        {"http://0x7f.1/", "http", "127.0.0.1", "/", 80, false},
        {"http://1.1/", "http", "1.0.0.1", "/", 80, false},
        {"http://u:p@h/", "http", "h", "/", 80, true},
        {"http://h/@scope/pkg", "http", "h", "/@scope/pkg", 80, false},
        {"s3://Bucket.2024/key", "s3", "bucket.2024", "/key", 0, false},
        {"ftp://h/x", "ftp", "h", "/x", 0, false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct arena a = arena_make();
        struct url url = {0};
        struct error err = {0};
        CHECK(url_parse(str_c(cases[i].in), &a, &url, &err) == ST_OK, "case %zu: %s", i, err.msg);
        CHECK(str_eq(url.scheme, str_c(cases[i].scheme)), "case %zu", i);
        CHECK(str_eq(url.host, str_c(cases[i].host)), "case %zu: %.*s", i, STR_ARG(url.host));
        CHECK(str_eq(url.path, str_c(cases[i].path)), "case %zu", i);
        CHECK(url.port == cases[i].port && url.has_user == cases[i].has_user, "case %zu", i);
        arena_release(&a);
    }
}

TEST(url_parse_says_what_is_wrong) {
    static const struct {
        const char *in, *why;
    } cases[] = {
        {"", "scheme"},
        {"plans.example.com", "scheme"},
        {"//plans.example.com/", "scheme"},
        {"https:/plans.example.com", "scheme"},
        {"https:plans.example.com", "scheme"},
        {"1http://h/", "scheme"},
        {"ht_tp://h/", "scheme"},
        {"https://", "no host"},
        {"https:///x", "no host"},
        {"https://:80/", "no host"},
        {"http://h /", "blanks"},
        {" http://h/", "blanks"},
        {"http://h/\n", "blanks"},
        {"http://h\t/", "blanks"},
        {"http://h/\x7f", "blanks"},
        {"http://good.example\\@evil.org/", "backslash"},
        {"http://h/{x}", "blanks"},
        {"http://h\xC3\xA9/", "ASCII"},
        {"http://h/\xC3\xA9", "ASCII"},
        {"http://\xEF\xBC\x91\xEF\xBC\x92\xEF\xBC\x97.0.0.1/", "ASCII"}, /* fullwidth 127 */
        {"http://h\xE3\x80\x82"
         "example/",
         "ASCII"}, /* ideographic full stop */
        {"http://h/%zz", "hexadecimal"},
        {"http://h/%4", "hexadecimal"},
        {"http://h/#x", "fragment"},
        {"http://good.example#@evil.org/", "fragment"},
        {"http://good.example?@evil.org/", "missing between"},
        {"http://a@b@c/", "more than one @"},
        {"http://%31%32%37.0.0.1/", "character other"},
        {"http://h%2eexample/", "character other"},
        {"http://h,g/", "character other"},
        {"http://*.example.com/", "character other"},
        {"http://h./", "ends in a dot"},
        {"http://127.0.0.1./", "ends in a dot"},
        {"http://.h/", "empty label"},
        {"http://a..b/", "empty label"},
        {"http://h:/", "port"},
        {"http://h:0/", "port"},
        {"http://h:65536/", "port"},
        {"http://h:000080/", "port"},
        {"http://h:-1/", "port"},
        {"http://h:80:81/", "port"},
        {"http://[::1/", "no ]"},
        {"http://[::1]x/", "between ]"},
        {"http://[::g]/", "IPv6"},
        {"http://[127.0.0.1]/", "IPv6"},
        {"http://[]/", "IPv6"},
        {"http://[fe80::1%25eth0]/", "zone"},
        {"http://::1/", "no host"},
        {"http://1.2.3.4.5/", "looks like an IPv4"},
        {"http://256.1.1.1/", "looks like an IPv4"},
        {"http://1.2.3.256/", "looks like an IPv4"},
        {"http://1.16777216/", "looks like an IPv4"},
        {"http://4294967296/", "looks like an IPv4"},
        {"http://99999999999999999999999/", "looks like an IPv4"},
        {"http://08.1.1.1/", "looks like an IPv4"},
        {"http://0x/", "looks like an IPv4"},
        {"http://name.1/", "looks like an IPv4"},
        {"s3://bucket:80/key", "no port"},
        {"s3://[::1]/key", "not an address"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct arena a = arena_make();
        struct url url = {0};
        struct error err = {0};
        CHECK(url_parse(str_c(cases[i].in), &a, &url, &err) == ST_INVALID, "case %zu", i);
        CHECK(err.reason == REASON_URL_INVALID, "case %zu: %s", i, reason_name(err.reason));
        CHECK(strstr(err.msg, cases[i].why) != NULL, "case %zu: %s", i, err.msg);
        CHECK(url.host.ptr == NULL, "case %zu", i);
        arena_release(&a);
    }
}

TEST(url_parse_has_a_longest_url) {
    static char text[URL_BYTES_MAX + 1];
    memset(text, 'x', sizeof text);
    (void)memcpy(text, "http://h/", sizeof "http://h/" - 1); /* NOLINT: not a C string */
    struct arena a = arena_make();
    struct url url;
    struct error err = {0};
    CHECK(url_parse(str_n(text, URL_BYTES_MAX), &a, &url, &err) == ST_OK, "%s", err.msg);
    CHECK(url_parse(str_n(text, URL_BYTES_MAX + 1), &a, &url, &err) == ST_LIMIT);
    memset(text + 7, 'x', 254);
    text[7 + 254] = '/';
    CHECK(url_parse(str_n(text, 300), &a, &url, &err) == ST_INVALID);
    text[7] = '\0';
    CHECK(url_parse(str_n(text, 300), &a, &url, &err) == ST_INVALID);
    arena_release(&a);
}

/* WE-3.1.1-1 WE-3.1.1-2: schemes and locations are compared with a list. */
TEST(url_guard_lets_pass_what_is_on_the_list) {
    static const char *const rules[] = {
        "https://plans.example.com",
        "https://files.example.com/team/a",
        "http://h.example:8080",
        "https://*.tenants.example.com",
        "s3://bucket/plans",
        "azure://account/container",
        NULL,
    };
    static const struct {
        const char *url;
        bool allowed, exact;
        const char *part; /* what the refusal names */
    } cases[] = {
        {"https://plans.example.com/x.json", true, true, ""},
        {"https://PLANS.example.com:443/x.json", true, true, ""},
        {"HTTPS://plans.example.com", true, true, ""},
        {"http://plans.example.com/x.json", false, false, "host"},
        {"https://plans.example.com:8443/", false, false, "port"},
        {"https://plans.example.com.evil.org/", false, false, "host"},
        {"https://evil.org/plans.example.com", false, false, "host"},
        {"https://xplans.example.com/", false, false, "host"},
        {"https://example.com/", false, false, "host"},
        {"https://plans.example.com@evil.org/", false, false, "user"},
        {"https://user@evil.org/", false, false, "user"},
        {"https://user:pw@plans.example.com/", false, false, "user"},
        {"https://@plans.example.com/", false, false, "user"},
        {"https://evil.org\\@plans.example.com/", false, false, "backslash"},
        {"https://evil.org#@plans.example.com/", false, false, "fragment"},
        {"https://plans.example.com./", false, false, "dot"},
        {"https://files.example.com/team/a", true, true, ""},
        {"https://files.example.com/team/a?x=../..", true, true, ""},
        {"https://files.example.com/team/a/b.json", true, true, ""},
        {"https://files.example.com/team/ab", false, false, "path"},
        {"https://files.example.com/team", false, false, "path"},
        {"https://files.example.com", false, false, "path"},
        {"https://files.example.com/team/a/../b", false, false, "path"},
        {"https://files.example.com/team/a/..", false, false, "path"},
        {"https://files.example.com/team/a/./b", false, false, "path"},
        {"https://files.example.com/team/a/%2e%2E/b", false, false, "path"},
        {"https://files.example.com/team/a/.%2e%2fb", false, false, "path"},
        {"https://files.example.com/team/a/..%5cb", false, false, "path"},
        {"https://files.example.com/team/a/...", true, true, ""},
        {"https://files.example.com/team/a/.hidden", true, true, ""},
        {"https://files.example.com//team/a", false, false, "path"},
        {"http://h.example:8080/", true, true, ""},
        {"http://h.example/", false, false, "port"},
        {"https://x.tenants.example.com/", true, false, ""},
        {"https://x.y.tenants.example.com/", true, false, ""},
        {"https://tenants.example.com/", false, false, "host"},
        {"https://xtenants.example.com/", false, false, "host"},
        {"s3://bucket/plans/1.json", true, true, ""},
        {"s3://bucket/other/1.json", false, false, "path"},
        {"s3://bucket/plans/../1.json", false, false, "path"},
        {"s3://bucket/plans/%2e./1.json", false, false, "path"},
        {"s3://bucket/plans/1.json?versionId=2", false, false, "path"},
        {"s3://bucket2/plans/1.json", false, false, "host"},
        {"gs://bucket/plans/1.json", false, false, "scheme"},
        {"azure://account/container/1.json", true, true, ""},
        {"azure://account/other/1.json", false, false, "path"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct url url = {0};
        struct error err = {0};
        status st = judge(rules, false, str_c(cases[i].url), &url, &err);
        CHECK((st == ST_OK) == cases[i].allowed, "%s: %s", cases[i].url, err.msg);
        if (st == ST_OK) {
            CHECK(url.exact == cases[i].exact, "%s", cases[i].url);
            continue;
        }
        CHECK(st == ST_INVALID, "%s", cases[i].url);
        CHECK(strstr(err.msg, cases[i].part) != NULL, "%s: %s", cases[i].url, err.msg);
    }
}

/* WE-3.1.1-1: with https alone on the list, every other scheme is refused, and with nothing, all.
 */
TEST(url_guard_refuses_without_a_rule) {
    static const char *const https[] = {"https://*", NULL};
    static const char *const none[] = {NULL};
    struct url url;
    struct error err = {0};
    CHECK(judge(https, false, STR("s3://bucket/x"), &url, &err) == ST_INVALID);
    CHECK(err.reason == REASON_URL_NOT_ALLOWED && strstr(err.msg, "scheme") != NULL);
    CHECK(judge(https, false, STR("http://example.com/"), &url, &err) == ST_INVALID);
    CHECK(judge(https, false, STR("https://example.com/"), &url, &err) == ST_OK && !url.exact);
    CHECK(judge(none, true, STR("https://example.com/"), &url, &err) == ST_INVALID);
}

/* WE-3.1.1-4: never, in any case of letters, also when the configuration lists them. */
TEST(url_guard_never_takes_dangerous_schemes) {
    static const char *const urls[] = {
        "file:///etc/passwd",
        "FILE:///etc/passwd",
        "FiLe:///etc/passwd",
        "file:/etc/passwd",
        "file://localhost/x",
        "ftp://plans.example.com/",
        "FTP://h/",
        "gopher://h/",
        "GoPher://h:70/_x",
        "dict://h/",
        "ldap://h/",
        "ftps://h/",
        "sftp://h/",
        "tftp://h/",
        "smb://h/",
        "telnet://h/",
        "javascript:alert(1)",
        "data:,x",
        "jar:http://h!/",
        "ws://h/",
        "unix:///run/x",
        "plan:sha256:00",
        "netdoc:///etc/x",
        "httpx://h/",
    };
    for (size_t i = 0; i < COUNT_OF(urls); i++) {
        struct arena a = arena_make();
        struct error err = {0};
        struct guard_rule rule;
        CHECK(guard_rule_parse(str_c(urls[i]), &a, &rule, &err) != ST_OK, "%s", urls[i]);
        /* Rules that somebody made by hand: the very scheme, any host. */
        str scheme;
        str rest;
        CHECK(str_split(str_c(urls[i]), ':', &scheme, &rest));
        struct guard_rule rules[] = {
            {.scheme = scheme, .host = STR_LIT("*")},
            {.scheme = STR_LIT("file"), .host = STR_LIT("*")},
            {.scheme = STR_LIT("ftp"), .host = STR_LIT("*")},
            {.scheme = STR_LIT("gopher"), .host = STR_LIT("*"), .port = 70}};
        struct guard guard = {rules, COUNT_OF(rules), true};
        struct url url;
        CHECK(guard_url(&guard, str_c(urls[i]), &a, &url, &err) == ST_INVALID, "%s", urls[i]);
        CHECK(err.reason == REASON_URL_NOT_ALLOWED, "%s: %s", urls[i], reason_name(err.reason));
        CHECK(strstr(err.msg, "never fetched") != NULL, "%s: %s", urls[i], err.msg);
        arena_release(&a);
    }
}

/* Link-local, metadata and their like, in every spelling. */
static const char *const forbidden_hosts[] = {
    "169.254.169.254",
    "2852039166",
    "0xa9fea9fe",
    "0XA9FEA9FE",
    "0251.0376.0251.0376",
    "0251.254.0xa9.254",
    "169.254.43518",
    "169.16689662",
    "0xa9.0xfe.0xa9fe",
    "0000251.00376.000251.0376",
    "025177524776",
    "169.254.0.23",
    "169.254.170.2",
    "169.254.1",
    "[::ffff:169.254.169.254]",
    "[::ffff:a9fe:a9fe]",
    "[::FFFF:A9FE:A9FE]",
    "[0:0:0:0:0:ffff:a9fe:a9fe]",
    "[::169.254.169.254]",
    "[::a9fe:a9fe]",
    "[::ffff:0:169.254.169.254]",
    "[64:ff9b::a9fe:a9fe]",
    "[64:ff9b::169.254.169.254]",
    "[64:ff9b:1::a9fe:a9fe]",
    "[64:ff9b:1:a9fe:a9:fe00::]",
    "[2002:a9fe:a9fe::]",
    "[2002:a9fe:a9fe::1]",
    "[2001:0:a9fe:a9fe::1]",
    "[2001:db8::5efe:a9fe:a9fe]",
    "[2001:db8::200:5efe:169.254.169.254]",
    "[fe80::1]",
    "[FE80::1]",
    "[febf::1]",
    "[fe80::1%25eth0]",
    "[fe80::1%eth0]",
    "[fe80::5efe:10.0.0.1]",
    "[fd00:ec2::254]",
    "[fd00:0ec2:0:0:0:0:0:0254]",
    "[fd20:ce::254]",
    "100.100.100.200",
    "0x64646464c8",
    "0x646464c8",
    "1684301000",
    "168.63.129.16",
    "0xa83f8110",
    "192.0.0.192",
    "0.0.0.0",
    "0",
    "0x0",
    "00",
    "0.0.0.1",
    "0.1",
    "[::]",
    "[::ffff:0.0.0.0]",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "4294967295",
    "0xffffffff",
    "[ff02::1]",
    "[ff0e::1]",
    "[100::1]",
    "metadata",
    "METADATA",
    "metadata.google.internal",
    "Metadata.Google.Internal",
    "metadata.google.internal.",
    "x.metadata.google.internal",
    "metadata.goog",
    "metadata.azure.internal",
    "instance-data",
    "instance-data.ec2.internal",
    "169.254.169.254.",
    "%31%36%39.254.169.254",
    "169%2e254.169.254",
    "\xEF\xBC\x91\xEF\xBC\x96\xEF\xBC\x99.254.169.254",
    "a@169.254.169.254",
    "example.com@169.254.169.254",
    "a@[fe80::1]",
    "example.com@metadata",
    "169.254.169.254:80",
    "[::ffff:169.254.169.254]:80",
};

/* WE-3.1.1-5: link-local, metadata and their like never pass, in any spelling, whatever is listed
 * and allowed. */
TEST(url_guard_never_takes_metadata) {
    static const char *const rules[] = {"http://*", "https://*", NULL};
    for (size_t i = 0; i < COUNT_OF(forbidden_hosts); i++) {
        char text[128];
        struct url url;
        struct error err = {0};
        (void)snprintf(text, sizeof text, "http://%s/latest/meta-data", forbidden_hosts[i]);
        CHECK(judge(rules, true, str_c(text), &url, &err) == ST_INVALID, "%s", text);
        struct arena a = arena_make();
        struct guard_rule rule;
        (void)snprintf(text, sizeof text, "http://%s", forbidden_hosts[i]);
        CHECK(guard_rule_parse(str_c(text), &a, &rule, &err) != ST_OK, "%s", text);
        /* A rule made by hand that names the host as the URL has it. */
        rule = (struct guard_rule){.scheme = STR("http"), .host = str_c(forbidden_hosts[i])};
        struct guard guard = {&rule, 1, true};
        CHECK(guard_url(&guard, str_c(text), &a, &url, &err) == ST_INVALID, "%s", text);
        arena_release(&a);
    }
}

TEST(url_guard_private_hosts_need_a_setting_and_a_name) {
    static const char *const hosts[] = {
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "017700000001",
        "127.9.9.9",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "10.0.0.1",
        "10.255.255.255",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.0.1",
        "100.64.0.1",
        "100.127.255.255",
        "[fc00::1]",
        "[fd12:3456::1]",
        "[fec0::1]",
        "[64:ff9b::10.0.0.1]",
        "[2002:a00:1::]",
        "localhost",
        "LOCALHOST",
        "x.localhost",
        "198.18.0.1",
        "[::10.0.0.1]",
    };
    for (size_t i = 0; i < COUNT_OF(hosts); i++) {
        char text[128];
        struct url url;
        struct error err = {0};
        (void)snprintf(text, sizeof text, "http://%s", hosts[i]);
        const char *any[] = {"http://*", NULL};
        const char *named[] = {"http://*", text, NULL};
        const char *below[] = {"http://*.localhost", NULL};
        CHECK(judge(any, false, str_c(text), &url, &err) == ST_INVALID, "%s", text);
        CHECK(judge(any, true, str_c(text), &url, &err) == ST_INVALID, "%s", text);
        CHECK(judge(below, true, str_c(text), &url, &err) == ST_INVALID, "%s", text);
        CHECK(judge(named, false, str_c(text), &url, &err) == ST_INVALID, "%s", text);
        CHECK(err.reason == REASON_URL_NOT_ALLOWED, "%s", text);
        CHECK(judge(named, true, str_c(text), &url, &err) == ST_OK, "%s: %s", text, err.msg);
        CHECK(url.exact, "%s", text);
    }
}

TEST(url_guard_public_addresses_pass_by_number) {
    static const char *const hosts[] = {
        "8.8.8.8",           "134744072",
        "0x08080808",        "010.010.010.010",
        "9.255.255.255",     "11.0.0.0",
        "172.15.0.1",        "172.32.0.1",
        "192.167.1.1",       "192.169.1.1",
        "169.253.1.1",       "169.255.1.1",
        "100.63.0.1",        "100.128.0.1",
        "126.1.1.1",         "128.0.0.1",
        "223.255.255.255",   "[2606:4700::1111]",
        "[::ffff:8.8.8.8]",  "[64:ff9b::8.8.8.8]",
        "[fbff::1]",         "1.0.0.0",
        "198.17.0.1",        "198.20.0.1",
        "192.0.1.1",         "metadata.example.com",
        "localhost.example", "mymetadata",
        "xlocalhost",
    };
    static const char *const rules[] = {"http://*", NULL};
    for (size_t i = 0; i < COUNT_OF(hosts); i++) {
        char text[128];
        struct url url;
        struct error err = {0};
        (void)snprintf(text, sizeof text, "http://%s/", hosts[i]);
        CHECK(judge(rules, false, str_c(text), &url, &err) == ST_OK, "%s: %s", text, err.msg);
    }
}

TEST(url_guard_rules_are_read_strictly) {
    static const struct {
        const char *in, *host, *prefix;
        int port;
    } good[] = {
        {"https://plans.example.com/team", "plans.example.com", "/team", 443},
        {"https://plans.example.com/team/", "plans.example.com", "/team", 443},
        {"https://plans.example.com/", "plans.example.com", NULL, 443},
        {"HTTP://127.0.0.1:8080", "127.0.0.1", NULL, 8080},
        {"s3://bucket", "bucket", NULL, 0},
        {"https://*.Example.com", "*.example.com", NULL, 443},
        {"https://*:8443", "*", NULL, 8443},
    };
    static const char *const bad[] = {
        "",
        "example.com",
        "https://",
        "https://*.",
        "https://a.*.b",
        "https://**",
        "https://*x.com",
        "https://*.1.2.3",
        "https://u@h/",
        "https://h/x?y",
        "https://h/../x",
        "https://h/a/%2e",
        "*://h/",
        "file:///",
        "https://h:0",
    };
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        struct arena a = arena_make();
        struct guard_rule rule;
        struct error err = {0};
        CHECK(guard_rule_parse(str_c(good[i].in), &a, &rule, &err) == ST_OK, "%zu: %s", i, err.msg);
        CHECK(str_eq(rule.host, str_c(good[i].host)) && rule.port == good[i].port, "case %zu", i);
        CHECK(str_eq(rule.prefix, str_c(good[i].prefix)), "case %zu", i);
        arena_release(&a);
    }
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct arena a = arena_make();
        struct guard_rule rule;
        struct error err = {0};
        CHECK(guard_rule_parse(str_c(bad[i]), &a, &rule, &err) == ST_INVALID, "%s", bad[i]);
        CHECK(strstr(err.msg, "allowed location") != NULL, "%s: %s", bad[i], err.msg);
        arena_release(&a);
    }
}

/* ---- the address that a name turned out to have ---- */

TEST(url_guard_judges_the_address_of_a_socket) {
    static const struct {
        uint8_t address[16];
        size_t len;
        bool always,
            named; /* reachable by any rule; by one that names the host, if private may be */
    } cases[] = {
        {{8, 8, 8, 8}, 4, true, true},
        {{127, 0, 0, 1}, 4, false, true},
        {{10, 1, 2, 3}, 4, false, true},
        {{169, 254, 169, 254}, 4, false, false},
        {{0, 0, 0, 0}, 4, false, false},
        {{255, 255, 255, 255}, 4, false, false},
        {{[15] = 1}, 16, false, true},
        {{0}, 16, false, false},
        {{0xfe, 0x80, [15] = 1}, 16, false, false},
        {{[10] = 0xff, 0xff, 169, 254, 169, 254}, 16, false, false},
        {{[10] = 0xff, 0xff, 10, 0, 0, 1}, 16, false, true},
        {{[10] = 0xff, 0xff, 8, 8, 8, 8}, 16, true, true},
        {{0x26, 6, 0x47, [15] = 1}, 16, true, true},
        {{8, 8, 8, 8}, 5, false, false},
        {{8, 8, 8, 8}, 0, false, false},
    };
    struct guard open = {NULL, 0, true};
    struct guard closed = {NULL, 0, false};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const uint8_t *address = cases[i].address;
        CHECK(guard_address(&closed, true, address, cases[i].len) == cases[i].always, "%zu", i);
        CHECK(guard_address(&closed, false, address, cases[i].len) == cases[i].always, "%zu", i);
        CHECK(guard_address(&open, false, address, cases[i].len) == cases[i].always, "%zu", i);
        CHECK(guard_address(&open, true, address, cases[i].len) == cases[i].named, "%zu", i);
    }
}

/* ---- random spellings ---- */

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(*state >> 33);
}

static void put_number(struct buf *b, uint32_t n, uint64_t *seed) {
    static const char *const zeros[] = {"", "0", "00", "000000"};
    const char *pad = zeros[next_random(seed) % 4];
    switch (next_random(seed) % 4) {
    case 0:
        buf_printf(b, "%u", n);
        break;
    case 1:
        buf_printf(b, "0%s%o", pad, n);
        break;
    case 2:
        buf_printf(b, "0x%s%x", pad, n);
        break;
    default:
        buf_printf(b, "0X%s%X", pad, n);
        break;
    }
}

/* One to four parts, each in any base; or inside an IPv6 address. */
static void put_spelling(struct buf *b, uint32_t address, uint64_t *seed) {
    static const char *const carriers[] = {
        "::ffff:",         "::",         "64:ff9b::",        "::ffff:0:",
        "0:0:0:0:0:ffff:", "0:0::ffff:", "64:FF9B:0:0:0:0:", "0064:ff9b::0:"};
    uint32_t pick = next_random(seed) % 8;
    if (pick == 0) {
        const char *carrier = carriers[next_random(seed) % COUNT_OF(carriers)];
        buf_printf(b, "[%s%x:%x]", carrier, address >> 16, address & 0xffff);
    } else if (pick == 1) {
        const char *carrier = carriers[next_random(seed) % COUNT_OF(carriers)];
        buf_printf(b, "[%s%u.%u.%u.%u]", carrier, address >> 24, address >> 16 & 255,
                   address >> 8 & 255, address & 255);
    } else if (pick == 2) {
        buf_printf(b, "[2002:%x:%X::%x]", address >> 16, address & 0xffff,
                   next_random(seed) & 0xff);
    } else {
        uint32_t parts = 1 + next_random(seed) % 4;
        for (uint32_t i = 0; i + 1 < parts; i++) {
            put_number(b, address >> (24 - 8 * i) & 255, seed);
            buf_put_char(b, '.');
        }
        put_number(b, parts == 1 ? address : address & (UINT32_MAX >> (8 * (parts - 1))), seed);
    }
}

/* WE-3.1.1-5: whatever a forbidden address is written like, it is refused; a private one needs its
 * rule, and that rule finds it in every spelling. */
TEST(url_guard_random_spellings_of_addresses) {
    static const uint32_t forbidden[] = {0xa9fea9fe, 0x646464c8, 0xa83f8110, 0xa9fe0017, 0xc00000c0,
                                         0xffffffff, 0xe0000001, 0xa9fe0000, 0xa9feffff};
    static const char *const rules[] = {"http://*", "http://127.0.0.1", NULL};
    for (uint64_t round = 0; round < 20000; round++) {
        uint64_t seed = round;
        (void)next_random(&seed);
        char text[160];
        struct buf b;
        buf_init_fixed(&b, text, sizeof text);
        buf_put_c(&b, "http://");
        bool loopback = round % 10 == 0;
        put_spelling(&b, loopback ? 0x7f000001 : forbidden[round % COUNT_OF(forbidden)], &seed);
        buf_put_c(&b, "/x");
        CHECK(!b.full);
        struct url url;
        struct error err = {0};
        status st = judge(rules, true, buf_str(&b), &url, &err);
        if (loopback && !str_has(buf_str(&b), '['))
            CHECK(st == ST_OK && url.exact, "round %d: %.*s", (int)round, STR_ARG(buf_str(&b)));
        else
            CHECK(st == ST_INVALID, "round %d: %.*s", (int)round, STR_ARG(buf_str(&b)));
        CHECK(st == ST_OK || err.reason == REASON_URL_NOT_ALLOWED, "%.*s: %s", STR_ARG(buf_str(&b)),
              err.msg);
    }
}
