#include "base/base64.h"

#include "test.h"

TEST(base64url_has_one_text_for_every_value) {
    static const struct {
        const char *bytes, *text;
    } cases[] = {{"", ""},           {"f", "Zg"},          {"fo", "Zm8"},           {"foo", "Zm9v"},
                 {"foob", "Zm9vYg"}, {"fooba", "Zm9vYmE"}, {"\xff\xfe\xfb", "__77"}};
    static const char *const bad[] = {"Z", "Zg==", "Zh", "Zm9v!", "Zm 9v", "Zm+v", "Zm9vY"};
    struct arena arena;
    struct buf b;
    str back = STR_NONE;
    arena_init(&arena, 1024, 1 << 16);
    buf_init(&b, 100);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        buf_clear(&b);
        base64url_write(&b, cases[i].bytes, strlen(cases[i].bytes));
        CHECK(str_eq(buf_str(&b), str_c(cases[i].text)), "case %zu", i);
        CHECK(base64url_read(str_c(cases[i].text), &arena, &back) &&
                  str_eq(back, str_c(cases[i].bytes)),
              "case %zu", i);
    }
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        CHECK(!base64url_read(str_c(bad[i]), &arena, &back), "case %zu", i);
    buf_release(&b);
    arena_release(&arena);
}
