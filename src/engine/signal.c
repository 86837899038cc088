/* engine/signal.c: a signal to a run. A run that is not in memory is read first; what one that is finished
 * answers is in load.c. */
#include "base/limits.h"
#include "engine/impl.h"

void engine_signal(struct engine *eng, str run_id, const struct signal *given,
                   const struct engine_caller *caller) {
    struct error err = {0};
    struct signal signal = *given;
    struct engine_run *r = NULL;
    struct news *n = NULL;
    status st = signal_validate(&signal, &err);
    if (st == ST_OK && caller->actor.len > ACTOR_BYTES_MAX)
        st = error_at(&err, REASON_SIGNAL_INVALID, "/actor", "an actor has at most %d bytes",
                      ACTOR_BYTES_MAX);
    if (st == ST_OK) {
        uuid id = signal.signal_id.ptr ? signal_uuid(run_id, signal.signal_id) : engine_uuid(eng);
        n = news_new(&(struct news){.kind = NEWS_SIGNAL,
                                    .signal = {.id = id, .signal = signal, .actor = caller->actor},
                                    .riders = caller->riders,
                                    .done = caller->done,
                                    .context = caller->context});
        if (!n) st = no_memory(&err);
    }
    if (st == ST_OK) st = run_want(eng, run_id, false, &r, &err);
    if (st == ST_OK) {
        run_push(r, n);
        return;
    }
    mem_free(n);
    if (caller->done) caller->done(caller->context, st, &err);
}
