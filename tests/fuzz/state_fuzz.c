/* Any bytes as a stored run state. Damage is ST_CORRUPT; what is accepted reads back the same, and
 * the reducer can go on from it. */
#include "base/limits.h"
#include "core/run.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define STATE_BYTES_MAX ((size_t)16 * 1024 * 1024)

static void state_of(const struct run *run, struct buf *out) {
    buf_init(out, STATE_BYTES_MAX);
    run_state_json(run, out);
    ASSERT(!out->full);
}

static void check_same(const struct run *run, str want) {
    struct buf json;
    state_of(run, &json);
    ASSERT(str_eq(buf_str(&json), want));
    buf_release(&json);
}

/* One more event of each kind, and back. */
static void check_goes_on(struct run *run, str before, struct arena *arena) {
    static const char *const types[] = {"RunStarted",    "RunPaused",   "RunCompleted",
                                        "RunTeleported", "StepStarted", "StepCompleted",
                                        "StepFailed",    "StepSkipped", "StepCorrected"};
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        struct event_record rec = {.seq = run->head.last_seq + 1, .run_seq = run->head.run_seq + 1};
        rec.event = (struct event){.type_name = str_c(types[i]),
                                   .type = event_type_of(str_c(types[i])),
                                   .engine_attempt = 1,
                                   .logical_attempt = 1 + (int64_t)i % 2};
        if (i > 3) rec.event.subject = run->step_count > 0 ? run->steps[0].id : STR("step");
        struct transition bad;
        struct run_undo undo;
        struct error err = {0};
        status st = run_apply(run, &rec, arena, &bad, &undo, &err);
        ASSERT(st == ST_OK || st == ST_CONFLICT);
        run_undo(run, &undo);
        check_same(run, before);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct arena arena;
    struct run run;
    struct run again;
    struct error err = {0};
    arena_init(&arena, 4096, (size_t)256 * 1024 * 1024);
    status st = run_state_parse(str_n(data, size), &arena, &run, &err);
    ASSERT(st == ST_OK || st == ST_CORRUPT);
    if (st == ST_OK) {
        struct buf json;
        state_of(&run, &json);
        st = run_state_parse(buf_str(&json), &arena, &again, &err);
        ASSERT(st == ST_OK);
        check_same(&again, buf_str(&json));
        check_goes_on(&again, buf_str(&json), &arena);
        buf_release(&json);
    }
    arena_release(&arena);
    return 0;
}
