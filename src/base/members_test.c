#include "base/members.h"

#include "base/json_out.h"
#include "test.h"

struct thing {
    str text, json;
    int64_t number, span, us;
    char chars[4];
    bool flag;
    int word;
};

static const char *word(int value) {
    static const char *const words[] = {NULL, "ONE", "TWO"};
    return words[value];
}
static const struct member_words words = {1, 3, 0, word};

#define ROW(name, kind, optional, field)                                                           \
    { name, kind, optional, offsetof(struct thing, field), 0, NULL, NULL }
static const struct member_row rows[] = {
    ROW("text", MEMBER_TEXT, false, text),
    ROW("json", MEMBER_JSON, true, json),
    ROW("number", MEMBER_INT, true, number),
    ROW("span", MEMBER_SPAN, true, span),
    ROW("us", MEMBER_TIME, false, us),
    {"chars", MEMBER_CHARS, true, offsetof(struct thing, chars), 4, NULL, NULL},
    ROW("flag", MEMBER_BOOL, true, flag),
    {"word", MEMBER_WORD, false, offsetof(struct thing, word), 0, &words, NULL},
};

static void read_thing(const char *text, struct arena *arena, struct thing *out) {
    struct json_limits limits = {1000, 10};
    struct error err = {0};
    yyjson_val *root = NULL;
    CHECK(json_parse(str_c(text), limits, arena, &root, &err) == ST_OK, "%s", err.msg);
    *out = (struct thing){0};
    members_read(rows, COUNT_OF(rows), root, arena, out);
}

TEST(members_say_null_or_nothing_when_there_is_none) {
    struct thing t = {.span = -1};
    struct buf b;
    buf_init(&b, 1000);
    members_write(rows, COUNT_OF(rows), &t, &b);
    CHECK(str_eq(buf_str(&b), STR("\"text\":null,\"us\":null,\"word\":null")), "%.*s",
          STR_ARG(buf_str(&b)));
    buf_clear(&b);
    t = (struct thing){.text = STR(""),
                       .json = STR("[]"),
                       .number = -1,
                       .chars = "abc",
                       .flag = true,
                       .word = 2,
                       .us = 1000000};
    members_write(rows, COUNT_OF(rows), &t, &b);
    CHECK(str_eq(buf_str(&b), STR("\"text\":\"\",\"json\":[],\"number\":-1,\"span\":0,"
                                  "\"us\":\"1970-01-01T00:00:01.000000Z\",\"chars\":\"abc\","
                                  "\"flag\":true,\"word\":\"TWO\"")),
          "%.*s", STR_ARG(buf_str(&b)));
    buf_release(&b);
}

/* A newer server says more, a broken one less: neither is a reason to fall over. */
TEST(members_take_what_they_find) {
    struct arena arena;
    struct thing t;
    arena_init(&arena, 4096, 1 << 16);
    read_thing("{\"text\":7,\"number\":1.5,\"us\":\"yesterday\",\"chars\":\"abcdef\",\"flag\":1,"
               "\"word\":\"THREE\",\"more\":[]}",
               &arena, &t);
    CHECK(!t.text.ptr && t.number == 0 && t.us == 0 && !t.flag && t.word == 0);
    CHECK(strcmp(t.chars, "abc") == 0); /* what there is room for */
    CHECK(t.span == -1 && !t.json.ptr);
    read_thing("{\"word\":\"ONE\",\"span\":0,\"json\":{\"n\":1.50}}", &arena, &t);
    CHECK(t.word == 1 && t.span == 0 && str_eq(t.json, STR("{\"n\":1.50}")));
    read_thing("[]", &arena, &t);
    CHECK(!t.text.ptr && t.span == -1);
    arena_release(&arena);
}
