/* engine/signal.c: a signal to a run, in memory or not, open or finished. */
#include "base/limits.h"
#include "engine/impl.h"

static void answer(const struct engine_caller *caller, status code, const struct error *err) {
    if (caller->done) caller->done(caller->context, code, err);
}

struct seeking {
    char id[UUID_TEXT_LEN];
    bool found;
};

static status seek_signal(void *context, const struct event_record *rec, bool *stop,
                          struct error *err) {
    struct seeking *s = context;
    UNUSED(err);
    *stop = s->found = rec->event.type == EVENT_SIGNAL_RECEIVED &&
                       str_eq(rec->event.subject, str_n(s->id, sizeof(s->id)));
    return ST_OK;
}

/* One that the run took while it was open is answered as it was then; any other comes too late. */
static status signal_of_finished(struct engine *eng, str run_id, const struct signal *signal,
                                 struct error *err) {
    struct engine_loaded loaded = {0};
    struct seeking s = {0};
    struct arena_mark mark = arena_mark(&eng->scratch);
    status st = signal->signal_id.ptr ? run_find(eng, run_id, &loaded, err) : ST_OK;
    if (st == ST_OK && signal->signal_id.ptr) {
        uuid_format(signal_uuid(run_id, signal->signal_id), s.id);
        st = eng->ports.walk(eng->ports.context, &loaded, 0, seek_signal, &s, err);
    }
    arena_rewind(&eng->scratch, mark);
    if (st != ST_OK || s.found) return st;
    return error_at(err, REASON_RUN_FINISHED, "", "the run is finished");
}

void engine_signal(struct engine *eng, str run_id, const struct signal *given,
                   const struct engine_caller *caller) {
    struct error err = {0};
    struct news *n = NULL;
    struct signal signal = *given;
    status st = signal_validate(&signal, &err);
    if (st == ST_OK && caller->actor.len > ACTOR_BYTES_MAX)
        st = error_at(&err, REASON_SIGNAL_INVALID, "/actor", "an actor has at most %d bytes",
                      ACTOR_BYTES_MAX);
    struct engine_run *r = st == ST_OK ? engine_resident(eng, run_id) : NULL;
    if (st == ST_OK && !r) {
        st = run_load(eng, run_id, &r, &err);
        if (st == ST_OK && !r) { /* finished: cancelling it again changes nothing */
            if (signal.kind != SIGNAL_CANCEL) st = signal_of_finished(eng, run_id, &signal, &err);
            answer(caller, st, &err);
            return;
        }
    }
    if (st == ST_OK) {
        uuid id = signal.signal_id.ptr ? signal_uuid(run_id, signal.signal_id) : engine_uuid(eng);
        n = news_new(&(struct news){.kind = NEWS_SIGNAL,
                                    .signal = {.id = id, .signal = signal, .actor = caller->actor},
                                    .riders = caller->riders,
                                    .done = caller->done,
                                    .context = caller->context});
        if (!n) st = no_memory(&err);
    }
    if (n) run_push(r, n);
    else answer(caller, st, &err);
}
