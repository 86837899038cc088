#include "outbox/mime.h"

#include "test.h"

TEST(mime_addresses) {
    static const struct {
        const char *in, *name, *address, *domain; /* address NULL: none */
    } cases[] = {
        {"a@example.com", NULL, "a@example.com", "example.com"},
        {"a.b+c@x", NULL, "a.b+c@x", "x"},
        {"<a@b.c>", NULL, "a@b.c", "b.c"},
        {"Anna <a@b.c>", "Anna", "a@b.c", "b.c"},
        {"\"Doe, J\" <a@b.c>", "Doe, J", "a@b.c", "b.c"},
        {"\"a\\\"b\\\\\" <a@b.c>", "a\"b\\", "a@b.c", "b.c"},
        {"J\xC3\xB6rg <a@b.c>", "J\xC3\xB6rg", "a@b.c", "b.c"},
        {"x <y@z> <a@b.c>", "x <y@z>", "a@b.c", "b.c"}, /* the name is only shown, and quoted */
        {"", NULL, NULL, NULL},
        {"a", NULL, NULL, NULL},
        {"@b", NULL, NULL, NULL},
        {"a@", NULL, NULL, NULL},
        {"a@b@c", NULL, NULL, NULL},
        {"a@b.", NULL, NULL, NULL},
        {"a@.b", NULL, NULL, NULL},
        {"a@b..c", NULL, NULL, NULL},
        {"a@b-", NULL, NULL, NULL},
        {"a@-b", NULL, NULL, NULL},
        {"a@b-.c", NULL, NULL, NULL},
        {"a..b@c", NULL, NULL, NULL},
        {"a.@c", NULL, NULL, NULL},
        {"a b@c", NULL, NULL, NULL},
        {"a@b\r\n", NULL, NULL, NULL},
        {"x\ny <a@b>", NULL, NULL, NULL},
        {"x\x7f <a@b>", NULL, NULL, NULL},
        {"x\xFF <a@b>", NULL, NULL, NULL},
        {"x a@b>", NULL, NULL, NULL},
        {"<>", NULL, NULL, NULL},
        {">", NULL, NULL, NULL},
        {"\xC3\xB6@b", NULL, NULL, NULL},
        {"a@\xC3\xB6", NULL, NULL, NULL},
        {"\"a b\"@c", NULL, NULL, NULL},
        {"a@[127.0.0.1]", NULL, NULL, NULL},
        {"a@0123456789012345678901234567890123456789012345678901234567890123", NULL, NULL, NULL},
        {"01234567890123456789012345678901234567890123456789012345678901234@b", NULL, NULL, NULL},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct arena a;
        struct mime_address got = {0};
        arena_init(&a, 1024, 65536);
        bool ok = mime_address(str_c(cases[i].in), &a, &got);
        CHECK(ok == (cases[i].address != NULL), "case %zu: %s", i, cases[i].in);
        CHECK(!ok || str_eq(got.address, str_c(cases[i].address)), "case %zu", i);
        CHECK(!ok || str_eq(got.domain, str_c(cases[i].domain)), "case %zu", i);
        CHECK((got.name.ptr == NULL) == (cases[i].name == NULL), "case %zu", i);
        CHECK(!cases[i].name || str_eq(got.name, str_c(cases[i].name)), "case %zu: %.*s", i,
              STR_ARG(got.name));
        arena_release(&a);
    }
}

static void check_lines(str text, size_t max) {
    size_t column = 0;
    for (size_t i = 0; i < text.len; i++) {
        column = text.ptr[i] == '\n' ? 0 : column + 1;
        CHECK(column <= max + 1, "%.*s", STR_ARG(text)); /* and the \r */
        CHECK(text.ptr[i] != '\n' || (i > 0 && text.ptr[i - 1] == '\r'));
    }
}

TEST(mime_headers_are_folded_and_encoded) {
    static const struct {
        const char *in, *want;
    } cases[] = {
        {"plain text", "S: plain text\r\n"},
        {"", "S: \r\n"},
        {"=?", "S: =?UTF-8?B?PT8=?=\r\n"},
        {"\xC3\xA4", "S: =?UTF-8?B?w6Q=?=\r\n"},
        /* no character is cut: 44 bytes, and the two of the 45th and 46th in the next word */
        {"01234567890123456789012345678901234567890123\xC3\xA4",
         "S: =?UTF-8?B?MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM=?=\r\n "
         "=?UTF-8?B?w6Q=?=\r\n"},
    };
    struct buf out;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        buf_init(&out, 4096);
        mime_put_text(&out, "S", str_c(cases[i].in));
        CHECK(str_eq(buf_str(&out), str_c(cases[i].want)), "case %zu: %.*s", i,
              STR_ARG(buf_str(&out)));
        buf_release(&out);
    }
    static char long_text[MIME_HEADER_MAX + 1];
    memset(long_text, 'x', MIME_HEADER_MAX);
    CHECK(mime_is_header(str_n(long_text, MIME_HEADER_MAX)));
    CHECK(!mime_is_header(str_n(long_text, MIME_HEADER_MAX + 1)));
    buf_init(&out, 8192);
    mime_put_text(&out, "Subject", str_n(long_text, MIME_HEADER_MAX));
    check_lines(buf_str(&out), 84); /* the name of the header, and a word of 75 */
    buf_release(&out);
}

TEST(mime_date) {
    static const struct {
        int64_t at;
        const char *want;
    } cases[] = {
        {0, "Date: Thu, 1 Jan 1970 00:00:00 +0000\r\n"},
        {1771228800, "Date: Mon, 16 Feb 2026 08:00:00 +0000\r\n"},
        {951782399, "Date: Mon, 28 Feb 2000 23:59:59 +0000\r\n"},
        {951782400, "Date: Tue, 29 Feb 2000 00:00:00 +0000\r\n"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct buf out;
        buf_init(&out, 100);
        mime_put_date(&out, cases[i].at);
        CHECK(str_eq(buf_str(&out), str_c(cases[i].want)), "%.*s", STR_ARG(buf_str(&out)));
        buf_release(&out);
    }
}

TEST(mime_quoted_printable) {
    static const char head[] = "Content-Type: text/plain; charset=utf-8\r\n"
                               "Content-Transfer-Encoding: quoted-printable\r\n\r\n";
    static const struct {
        const char *in, *want;
    } cases[] = {
        {"", ""},
        {"a", "a\r\n"},
        {"a\nb\rc\r\n\r\nd", "a\r\nb\r\nc\r\n\r\nd\r\n"},
        {"a \t\nb\t", "a =09\r\nb=09\r\n"},
        {"1 = \xC3\xA4", "1 =3D =C3=A4\r\n"},
        {"\x01\x7f", "=01=7F\r\n"},
        {"0123456789012345678901234567890123456789012345678901234567890123456789012345",
         "012345678901234567890123456789012345678901234567890123456789012345678901234=\r\n5\r\n"},
        {"0123456789012345678901234567890123456789012345678901234567890123456789012=",
         "0123456789012345678901234567890123456789012345678901234567890123456789012=\r\n=3D\r\n"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct buf out;
        buf_init(&out, 4096);
        mime_put_part(&out, "text/plain", str_c(cases[i].in));
        CHECK(str_starts(buf_str(&out), STR(head)));
        str got = str_from(buf_str(&out), sizeof head - 1);
        CHECK(str_eq(got, str_c(cases[i].want)), "case %zu: %.*s", i, STR_ARG(got));
        check_lines(got, 76);
        buf_release(&out);
    }
}
