#include "core/event_type.h"

#include "base/limits.h"
#include "test.h"

/* The catalogue once more, by hand: numbers are stored, so a change here must be a decision. */
static const struct {
    int number;
    const char *name, *snake, *family;
    bool lifecycle, store_only;
} rows[] = {
    {1, "RunQueued", "RUN_QUEUED", "RUN", true, false},
    {2, "RunStarted", "RUN_STARTED", "RUN", true, false},
    {3, "StepStarted", "STEP_STARTED", "STEP", true, false},
    {4, "StepCompleted", "STEP_COMPLETED", "STEP", true, false},
    {5, "StepFailed", "STEP_FAILED", "STEP", true, false},
    {6, "StepSkipped", "STEP_SKIPPED", "STEP", true, false},
    {7, "RunPaused", "RUN_PAUSED", "RUN", true, false},
    {8, "RunResumed", "RUN_RESUMED", "RUN", true, false},
    {9, "RunCompleted", "RUN_COMPLETED", "RUN", true, false},
    {10, "RunFailed", "RUN_FAILED", "RUN", true, false},
    {11, "RunCancelled", "RUN_CANCELLED", "RUN", true, false},
    {12, "RunApproved", "RUN_APPROVED", "RUN", false, false},
    {13, "RunCheckpointCreated", "RUN_CHECKPOINT_CREATED", "RUN", false, true},
    {14, "RunProviderLinked", "RUN_PROVIDER_LINKED", "RUN", false, false},
    {15, "StepRetried", "STEP_RETRIED", "STEP", false, false},
    {16, "StepCorrected", "STEP_CORRECTED", "STEP", false, false},
    {17, "RunRecovered", "RUN_RECOVERED", "RUN", false, false},
    {20, "SignalReceived", "SIGNAL_RECEIVED", "SIGNAL", false, true},
    {21, "SignalProcessingStarted", "SIGNAL_PROCESSING_STARTED", "SIGNAL", false, true},
    {22, "SignalProcessed", "SIGNAL_PROCESSED", "SIGNAL", false, true},
    {23, "SignalProcessingFailed", "SIGNAL_PROCESSING_FAILED", "SIGNAL", false, true},
    {24, "EffectRequested", "EFFECT_REQUESTED", "EFFECT", false, true},
    {25, "EffectExecuting", "EFFECT_EXECUTING", "EFFECT", false, true},
    {26, "EffectCompleted", "EFFECT_COMPLETED", "EFFECT", false, true},
    {27, "EffectFailed", "EFFECT_FAILED", "EFFECT", false, true},
    {28, "EffectRetrying", "EFFECT_RETRYING", "EFFECT", false, true},
    {29, "EffectDeadLettered", "EFFECT_DEAD_LETTERED", "EFFECT", false, true},
    {30, "ToolCalled", "TOOL_CALLED", "TOOL", false, true},
    {31, "ToolCompleted", "TOOL_COMPLETED", "TOOL", false, true},
    {32, "ToolFailed", "TOOL_FAILED", "TOOL", false, true},
};

static str to_snake(str name, char mem[200]) {
    struct buf b;
    buf_init_fixed(&b, mem, 200);
    event_type_to_snake(name, &b);
    CHECK(!b.full);
    return buf_str(&b);
}

/* STR_NONE when it is not of that form. */
static str from_snake(str snake, char mem[200]) {
    struct buf b;
    buf_init_fixed(&b, mem, 200);
    return event_type_from_snake(snake, &b) ? buf_str(&b) : STR_NONE;
}

TEST(event_type_catalogue_is_what_was_agreed) {
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct event_type_info *info = event_type_info((enum event_type)rows[i].number);
        CHECK(str_eq(info->name, str_c(rows[i].name)), "number %d", rows[i].number);
        CHECK(strcmp(event_family_name(info->family), rows[i].family) == 0, "%s", rows[i].name);
        CHECK(info->lifecycle == rows[i].lifecycle && info->store_only == rows[i].store_only, "%s",
              rows[i].name);
        CHECK((int)event_type_of(info->name) == rows[i].number, "%s", rows[i].name);
        CHECK(event_type_is_fact((enum event_type)rows[i].number) == (rows[i].number >= 20), "%s",
              rows[i].name);
    }
}

TEST(event_type_numbers_not_in_use_have_no_name) {
    size_t named = 0;
    for (int i = 0; i < EVENT_TYPE_COUNT; i++) {
        named += event_type_info((enum event_type)i)->name.len > 0;
    }
    CHECK(named == COUNT_OF(rows), "%zu", named);
    CHECK(!event_type_info(EVENT_UNKNOWN)->store_only);
}

TEST(event_type_of_is_exact) {
    static const str unknown[] = {STR_LIT(""),
                                  STR_LIT("runStarted"),
                                  STR_LIT("RunStarted "),
                                  STR_LIT("RUN_STARTED"),
                                  STR_LIT("RunStart"),
                                  STR_LIT("RunStartedX"),
                                  STR_LIT("RunTeleported"),
                                  STR_LIT("SignalAccepted")};
    for (size_t i = 0; i < COUNT_OF(unknown); i++) {
        CHECK(event_type_of(unknown[i]) == EVENT_UNKNOWN, "%.*s", STR_ARG(unknown[i]));
    }
    CHECK(event_type_of(STR_NONE) == EVENT_UNKNOWN);
}

TEST(event_type_snake_form_of_the_catalogue_goes_both_ways) {
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        char there[200];
        char back[200];
        str snake = to_snake(str_c(rows[i].name), there);
        CHECK(str_eq(snake, str_c(rows[i].snake)), "%.*s", STR_ARG(snake));
        CHECK(str_eq(from_snake(snake, back), str_c(rows[i].name)), "%s", rows[i].name);
    }
}

TEST(event_type_snake_form_of_other_names) {
    static const struct {
        str name, snake;
    } cases[] = {
        {STR_LIT("RunTeleported"), STR_LIT("RUN_TELEPORTED")},
        {STR_LIT("A"), STR_LIT("A")},
        {STR_LIT("AB"), STR_LIT("A_B")},
        {STR_LIT("Step2Done"), STR_LIT("STEP2_DONE")},
        {STR_LIT("2Fa"), STR_LIT("2_FA")},
        {STR_LIT("Caf\xC3\xA9Opened"), STR_LIT("CAF\xC3\xA9_OPENED")},
        {STR_LIT("Run.Started"), STR_LIT("RUN._STARTED")},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char there[200];
        char back[200];
        str snake = to_snake(cases[i].name, there);
        CHECK(str_eq(snake, cases[i].snake), "case %zu: %.*s", i, STR_ARG(snake));
        CHECK(str_eq(from_snake(snake, back), cases[i].name), "case %zu", i);
    }
}

TEST(event_type_from_snake_refuses_what_no_name_gives) {
    static const str bad[] = {STR_LIT(""),
                              STR_LIT("_"),
                              STR_LIT("_RUN"),
                              STR_LIT("RUN_"),
                              STR_LIT("A__B"),
                              STR_LIT("run_started"),
                              STR_LIT("RUN_started"),
                              STR_LIT("RunStarted"),
                              STR_LIT("STEP_2_DONE"),
                              STR_LIT("A_.B")};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        char mem[200];
        str got = from_snake(bad[i], mem);
        CHECK(got.ptr == NULL, "\"%.*s\" gave \"%.*s\"", STR_ARG(bad[i]), STR_ARG(got));
    }
}

/* Whatever from_snake() accepts, to_snake() gives back. All texts of up to six of these letters. */
TEST(event_type_from_snake_is_the_inverse) {
    static const char letters[] = {'A', 'B', '_', '7', 'z'};
    size_t accepted = 0;
    for (size_t n = 0; n < 15625; n++) {
        char text[6];
        size_t len = 0;
        for (size_t left = n; left > 0; left /= COUNT_OF(letters)) {
            text[len++] = letters[left % COUNT_OF(letters)];
        }
        char there[200];
        char back[200];
        str name = from_snake(str_n(text, len), there);
        if (name.ptr == NULL) continue;
        accepted++;
        CHECK(str_eq(to_snake(name, back), str_n(text, len)), "%.*s", (int)len, text);
    }
    CHECK(accepted > 1000, "%zu", accepted);
}

/* CE-2.1-8: names are in the past tense; the literals of the taxonomy pass (T02). */
TEST(event_type_names_are_past_tense_CE_2_1_8) {
    static const struct {
        str snake;
        bool past;
    } cases[] = {
        {STR_LIT("STEP_COMPLETED"), true},
        {STR_LIT("STEP_COMPLETE"), false},
        {STR_LIT("RUN_TELEPORTED"), true},
        {STR_LIT("RUN_TELEPORTING"), false},
        {STR_LIT("INVOICE_SENT"), true},
        {STR_LIT("INVOICE_SEND"), false},
        {STR_LIT("LEASE_LOST"), true},
        {STR_LIT("FILE_WRITTEN"), true},
        {STR_LIT("VALUE_SET"), true},
        {STR_LIT("WORK_BEGUN"), true},
        {STR_LIT("KEY_FOUND"), true},
        {STR_LIT("OBJECT_PUT"), true},
        {STR_LIT("PAGE_READ"), true},
        {STR_LIT("LEASE_TAKEN"), true},
        {STR_LIT("SENT_MAIL"), false},
        {STR_LIT("COMPLETED"), true},
        {STR_LIT("STEP_ED"), false},
        {STR_LIT("ED"), false},
        {STR_LIT(""), false},
        {STR_LIT("step_completed"), false},
        {STR_LIT("STEP__COMPLETED"), false},
        {STR_LIT("STEP_COMPLETED_"), false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        CHECK(event_type_name_is_past(cases[i].snake) == cases[i].past, "%.*s",
              STR_ARG(cases[i].snake));
    }
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        CHECK(event_type_name_is_past(str_c(rows[i].snake)), "%s", rows[i].snake);
    }
}

/* CE-2.1-8: a type is declared by a row of the catalogue, and a row named StepComplete is refused
 * there, as any that is not in the past tense; the catalogue with the literals of the taxonomy
 * passes, and what passes is what ledger_open() asserts. */
TEST(event_type_catalogue_takes_no_name_that_is_not_past) {
    struct event_type_info all[EVENT_TYPE_COUNT + 1];
    struct error err = {0};
    for (int i = 0; i < EVENT_TYPE_COUNT; i++)
        all[i] = *event_type_info((enum event_type)i);
    CHECK(event_types_check(all, EVENT_TYPE_COUNT, &err) == ST_OK, "%s", err.msg);
    static const struct {
        str name;
        bool good;
    } cases[] = {{STR_LIT("StepComplete"), false},  {STR_LIT("StepCompleting"), false},
                 {STR_LIT("RunTeleport"), false},   {STR_LIT("EffectExecute"), false},
                 {STR_LIT("runTeleported"), false}, {STR_LIT("Run_Teleported"), false},
                 {STR_LIT("StepCompleted"), false}, /* it is there */
                 {STR_LIT("RunTeleported"), true},  {STR_LIT("MailSent"), true}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        all[EVENT_TYPE_COUNT] = (struct event_type_info){.name = cases[i].name};
        err = (struct error){0};
        status st = event_types_check(all, EVENT_TYPE_COUNT + 1, &err);
        CHECK(st == (cases[i].good ? ST_OK : ST_INVALID), "%.*s: %s", STR_ARG(cases[i].name),
              err.msg);
    }
}

TEST(event_type_past_tense_check_bounds_the_name) {
    char text[EVENT_TYPE_SNAKE_MAX + 1];
    memset(text, 'A', sizeof text);
    text[EVENT_TYPE_SNAKE_MAX - 2] = 'E';
    text[EVENT_TYPE_SNAKE_MAX - 1] = 'D';
    CHECK(event_type_name_is_past(str_n(text, EVENT_TYPE_SNAKE_MAX)));
    text[EVENT_TYPE_SNAKE_MAX - 1] = 'E';
    text[EVENT_TYPE_SNAKE_MAX] = 'D';
    CHECK(!event_type_name_is_past(str_n(text, EVENT_TYPE_SNAKE_MAX + 1)));
}
