/* core/event_type.c: the catalogue of event types, and how a type is named. */
#include "core/event_type.h"

#include "base/limits.h"

static const struct event_type_info catalogue[EVENT_TYPE_COUNT] = {
    [EVENT_RUN_QUEUED] = {STR_LIT("RunQueued"), FAMILY_RUN, true, false},
    [EVENT_RUN_STARTED] = {STR_LIT("RunStarted"), FAMILY_RUN, true, false},
    [EVENT_STEP_STARTED] = {STR_LIT("StepStarted"), FAMILY_STEP, true, false},
    [EVENT_STEP_COMPLETED] = {STR_LIT("StepCompleted"), FAMILY_STEP, true, false},
    [EVENT_STEP_FAILED] = {STR_LIT("StepFailed"), FAMILY_STEP, true, false},
    [EVENT_STEP_SKIPPED] = {STR_LIT("StepSkipped"), FAMILY_STEP, true, false},
    [EVENT_RUN_PAUSED] = {STR_LIT("RunPaused"), FAMILY_RUN, true, false},
    [EVENT_RUN_RESUMED] = {STR_LIT("RunResumed"), FAMILY_RUN, true, false},
    [EVENT_RUN_COMPLETED] = {STR_LIT("RunCompleted"), FAMILY_RUN, true, false},
    [EVENT_RUN_FAILED] = {STR_LIT("RunFailed"), FAMILY_RUN, true, false},
    [EVENT_RUN_CANCELLED] = {STR_LIT("RunCancelled"), FAMILY_RUN, true, false},
    [EVENT_RUN_APPROVED] = {STR_LIT("RunApproved"), FAMILY_RUN, false, false},
    [EVENT_RUN_CHECKPOINT_CREATED] = {STR_LIT("RunCheckpointCreated"), FAMILY_RUN, false, true},
    [EVENT_RUN_PROVIDER_LINKED] = {STR_LIT("RunProviderLinked"), FAMILY_RUN, false, false},
    [EVENT_STEP_RETRIED] = {STR_LIT("StepRetried"), FAMILY_STEP, false, false},
    [EVENT_STEP_CORRECTED] = {STR_LIT("StepCorrected"), FAMILY_STEP, false, false},
    [EVENT_RUN_RECOVERED] = {STR_LIT("RunRecovered"), FAMILY_RUN, false, false},
    [EVENT_SIGNAL_RECEIVED] = {STR_LIT("SignalReceived"), FAMILY_SIGNAL, false, true},
    [EVENT_SIGNAL_PROCESSING_STARTED] = {STR_LIT("SignalProcessingStarted"), FAMILY_SIGNAL, false,
                                         true},
    [EVENT_SIGNAL_PROCESSED] = {STR_LIT("SignalProcessed"), FAMILY_SIGNAL, false, true},
    [EVENT_SIGNAL_PROCESSING_FAILED] = {STR_LIT("SignalProcessingFailed"), FAMILY_SIGNAL, false,
                                        true},
    [EVENT_EFFECT_REQUESTED] = {STR_LIT("EffectRequested"), FAMILY_EFFECT, false, true},
    [EVENT_EFFECT_EXECUTING] = {STR_LIT("EffectExecuting"), FAMILY_EFFECT, false, true},
    [EVENT_EFFECT_COMPLETED] = {STR_LIT("EffectCompleted"), FAMILY_EFFECT, false, true},
    [EVENT_EFFECT_FAILED] = {STR_LIT("EffectFailed"), FAMILY_EFFECT, false, true},
    [EVENT_EFFECT_RETRYING] = {STR_LIT("EffectRetrying"), FAMILY_EFFECT, false, true},
    [EVENT_EFFECT_DEAD_LETTERED] = {STR_LIT("EffectDeadLettered"), FAMILY_EFFECT, false, true},
    [EVENT_TOOL_CALLED] = {STR_LIT("ToolCalled"), FAMILY_TOOL, false, true},
    [EVENT_TOOL_COMPLETED] = {STR_LIT("ToolCompleted"), FAMILY_TOOL, false, true},
    [EVENT_TOOL_FAILED] = {STR_LIT("ToolFailed"), FAMILY_TOOL, false, true},
};

const struct event_type_info *event_type_info(enum event_type type) {
    ASSERT(type < EVENT_TYPE_COUNT);
    return &catalogue[type];
}

enum event_type event_type_of(str name) {
    if (name.len == 0) return EVENT_UNKNOWN;
    for (int i = 1; i < EVENT_TYPE_COUNT; i++) {
        if (str_eq(catalogue[i].name, name)) return (enum event_type)i;
    }
    return EVENT_UNKNOWN;
}

bool event_type_is_fact(enum event_type type) {
    return type >= EVENT_SIGNAL_RECEIVED && type < EVENT_TYPE_COUNT;
}

const char *event_family_name(enum event_family family) {
    switch (family) {
    case FAMILY_RUN:
        return "RUN";
    case FAMILY_STEP:
        return "STEP";
    case FAMILY_SIGNAL:
        return "SIGNAL";
    case FAMILY_EFFECT:
        return "EFFECT";
    case FAMILY_TOOL:
        return "TOOL";
    }
    return "RUN";
}

static bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
static bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
static char to_upper(char c) { return (char)(is_lower(c) ? c - 'a' + 'A' : c); }
static char to_lower(char c) { return (char)(is_upper(c) ? c - 'A' + 'a' : c); }

void event_type_to_snake(str name, struct buf *out) {
    for (size_t i = 0; i < name.len; i++) {
        char c = name.ptr[i];
        if (i > 0 && is_upper(c)) buf_put_char(out, '_');
        buf_put_char(out, to_upper(c));
    }
}

bool event_type_from_snake(str snake, struct buf *out) {
    bool word_starts = true;
    for (size_t i = 0; i < snake.len; i++) {
        char c = snake.ptr[i];
        if (c == '_') {
            if (word_starts) return false;
            word_starts = true;
            continue;
        }
        if (is_lower(c)) return false;
        if (word_starts && i > 0 && !is_upper(c))
            return false; /* an underscore comes from a capital */
        if (!word_starts) c = to_lower(c);
        buf_put_char(out, c);
        word_starts = false;
    }
    return !word_starts;
}

bool event_type_name_is_past(str snake) {
    static const str literals[] = {STR_LIT("EFFECT_EXECUTING"), STR_LIT("EFFECT_RETRYING")};
    static const str irregular[] = {STR_LIT("SENT"),  STR_LIT("BEGUN"),   STR_LIT("LOST"),
                                    STR_LIT("FOUND"), STR_LIT("SET"),     STR_LIT("PUT"),
                                    STR_LIT("READ"),  STR_LIT("WRITTEN"), STR_LIT("TAKEN")};
    char mem[EVENT_TYPE_SNAKE_MAX];
    struct buf name;
    buf_init_fixed(&name, mem, sizeof(mem));
    if (!event_type_from_snake(snake, &name) || name.full) return false;
    for (size_t i = 0; i < COUNT_OF(literals); i++) {
        if (str_eq(snake, literals[i])) return true;
    }
    size_t start = snake.len; /* of the last word */
    while (start > 0 && snake.ptr[start - 1] != '_')
        start--;
    str last = str_from(snake, start);
    for (size_t i = 0; i < COUNT_OF(irregular); i++) {
        if (str_eq(last, irregular[i])) return true;
    }
    return last.len > 2 && str_ends(last, STR("ED"));
}

status event_types_check(const struct event_type_info *rows, size_t count, struct error *err) {
    for (size_t i = 0; i < count; i++) {
        char mem[EVENT_TYPE_SNAKE_MAX];
        struct buf snake;
        str name = rows[i].name;
        if (name.len == 0) continue; /* a number that is not in use */
        buf_init_fixed(&snake, mem, sizeof(mem));
        event_type_to_snake(name, &snake);
        if (!is_upper(name.ptr[0]) || snake.full || !event_type_name_is_past(buf_str(&snake)))
            return error_set(err, ST_INVALID,
                             "no type may be called \"%.*s\": a name is PascalCase and in the past "
                             "tense",
                             STR_ARG(name));
        for (size_t k = 0; k < i; k++) {
            if (str_eq(rows[k].name, name))
                return error_set(err, ST_INVALID, "two types are called \"%.*s\"", STR_ARG(name));
        }
    }
    return ST_OK;
}
