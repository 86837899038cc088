#include "engine/engine.h"
#include "test.h"

/* What is written is read: ids may have dots, blanks and more than ASCII in them. */
TEST(task_ref_there_and_back) {
    char mem[TASK_REF_MAX];
    char longest[ID_BYTES_MAX];
    memset(longest, 'x', sizeof longest);
    str full = str_n(longest, sizeof longest);
    const struct task_ref refs[] = {
        {.run_id = STR("r"), .step_id = STR("s"), .attempt = 1, .lease = 1},
        {.run_id = STR("a.b 7"), .step_id = STR("1.2"), .attempt = 12, .lease = 345},
        {.run_id = STR("r\xc3\xa9"), .step_id = STR("\xc3\xa9"), .attempt = 2, .lease = 3},
        {.run_id = full, .step_id = full, .attempt = INT64_MAX, .lease = INT64_MAX},
    };
    for (size_t i = 0; i < COUNT_OF(refs); i++) {
        struct task_ref back = {0};
        struct buf text;
        buf_init_fixed(&text, mem, sizeof mem);
        task_ref_write(&text, &refs[i]);
        CHECK(!text.full && task_ref_read(buf_str(&text), &back), "case %zu", i);
        CHECK(str_eq(back.run_id, refs[i].run_id) && str_eq(back.step_id, refs[i].step_id));
        CHECK(back.attempt == refs[i].attempt && back.lease == refs[i].lease);
        CHECK(!back.tenant_id.ptr);
    }
}

TEST(task_ref_refuses_what_is_none) {
    const char *const bad[] = {"",
                               "17",
                               "t1.",
                               "t2.1.1.1.rs",
                               "t1.1.1.1",
                               "t1.1.1.1.r",
                               "t1.1.1.0.rs",
                               "t1.1.1.-1.rs",
                               "t1.x.1.1.rs",
                               "t1.1.1.9.rs",
                               "t1.1.1.1.r\xff"};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct task_ref ref = {.attempt = 77};
        CHECK(!task_ref_read(str_c(bad[i]), &ref) && ref.attempt == 77, "\"%s\"", bad[i]);
    }
}
