/* Any bytes as Temporal's answer to a poll: a history that is folded, and what is answered to it.
 * Whatever the cluster says, nothing breaks, no attempt is scheduled twice, and what is answered can
 * be sent. */
#include "adapters/temporal/commands.h"
#include "adapters/temporal/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ARENA_BYTES ((size_t)256 * 1024 * 1024)

static void check_commands(const struct history *h, enum run_status close, struct arena *arena) {
    static const struct plan_step steps[] = {{.id = STR_LIT("a")}, {.id = STR_LIT("b")}};
    struct attempt attempts[2];
    struct wanted_attempt wanted[2];
    struct commands commands;
    struct error err = {0};
    for (size_t i = 0; i < 2; i++) {
        attempts[i] = (struct attempt){.step = &steps[i],
                                       .run_id = STR("r"),
                                       .number = 1,
                                       .body = STR("{}"),
                                       .plan_ref = STR("{}")};
        wanted[i] = (struct wanted_attempt){.attempt = &attempts[i],
                                            .id = i == 0 ? STR("a#1") : STR("b#1"),
                                            .stop = i == 1};
    }
    struct commands_want want = {.history = h,
                                 .attempts = wanted,
                                 .attempt_count = 2,
                                 .close = close,
                                 .may_continue = true,
                                 .activity_queue = STR("q"),
                                 .workflow_queue = STR("q.n"),
                                 .heartbeat_ms = 20000};
    if (commands_make(&want, arena, &commands, &err) != ST_OK) return;
    Tp__TaskCompletedRequest request = TP__TASK_COMPLETED_REQUEST__INIT;
    request.commands = commands.items;
    request.n_commands = commands.count;
    str bytes;
    ASSERT(wire_pack(&request.base, arena, &bytes, &err) == ST_OK);
    for (size_t i = 0; i < 2; i++)
        ASSERT(wanted[i].due != WANTED_SCHEDULED || !history_find(h, wanted[i].id));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct arena arena;
    struct error err = {0};
    void *message = NULL;
    struct history h;
    arena_init(&arena, 4096, ARENA_BYTES);
    if (wire_unpack(&tp__task_response__descriptor, str_n(data, size), &arena, &message, &err) ==
        ST_OK) {
        const Tp__TaskResponse *task = message;
        history_init(&h, &arena);
        if (history_add(&h, task->history, &err) == ST_OK) {
            struct outcome outcome;
            for (uint32_t i = 0; i < h.activity_count; i++)
                history_outcome(&h.activities[i], i % 2 == 0, &arena, &outcome);
            check_commands(&h, RUN_NEW, &arena);
            check_commands(&h, RUN_FAILED, &arena);
        }
    }
    arena_release(&arena);
    return 0;
}
