/* host/sweep.c: the thread that removes old workspaces. */
#include "host/sweep.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "adapters/local/sweep.h"
#include "base/log.h"
#include "base/os.h"
#include "base/time.h"
#include "ledger/ledger.h"

struct ended {
    struct ended *next;
    size_t len;
    char id[];
};

struct host_sweep {
    struct host_sweep_options options;
    struct sweep *sweep;
    struct ledger *reader; /* NULL: not asked in this pass yet */
    struct arena arena;
    bool mute; /* the ledger could not be asked: nothing more is, in this pass */
    pthread_t thread;
    atomic_bool stop;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;
    struct ended *ended;
    int ended_count;
};

/* ---- on the thread ---- */

static bool ask_ledger(void *context, str run_id, int64_t *ended_us) {
    struct host_sweep *s = context;
    struct error err = {0};
    struct run_info info;
    if (s->mute) return false;
    status st = ST_OK;
    if (!s->reader) {
        st = ledger_open_reader(s->options.url, &s->reader, &err);
        if (st == ST_OK) ledger_stop_on(s->reader, &s->stop);
    }
    arena_reset(&s->arena);
    if (st == ST_OK) st = ledger_find_run(s->reader, run_id, &s->arena, &info, &err);
    if (st == ST_OK) {
        *ended_us = info.ended_us > 0 ? info.ended_us : info.updated_us;
        return run_is_final(info.head.status);
    }
    if (st == ST_NOT_FOUND && s->reader) return false; /* of another ledger, or somebody else's */
    s->mute = true;
    if (!atomic_load(&s->stop))
        LOG(LOG_WARN, "could not ask which workspaces are no longer needed",
            LOG_S("error", str_c(err.msg)));
    return false;
}

static void pass_over(struct host_sweep *s, const struct sweep_count *count) {
    ledger_close(s->reader);
    s->reader = NULL;
    s->mute = false;
    arena_release(&s->arena);
    if (count->removed > 0)
        LOG(LOG_INFO, "removed workspaces of finished runs", LOG_N("workspaces", count->removed));
    if (count->failed > 0)
        LOG(LOG_WARN, "could not remove everything of finished runs",
            LOG_N("workspaces", count->failed), LOG_S("first", str_c(count->first)),
            LOG_S("error", str_c(strerrordesc_np(count->first_error))));
}

/* false: a pass has to remove the rest. */
static bool remove_ended(struct host_sweep *s, int max) {
    pthread_mutex_lock(&s->lock);
    struct ended *list = s->ended;
    s->ended = NULL;
    s->ended_count = 0;
    pthread_mutex_unlock(&s->lock);
    bool whole = true;
    for (int n = 0; list; n++) {
        struct ended *e = list;
        list = e->next;
        whole &= sweep_run(s->sweep, str_n(e->id, e->len), n < max);
        mem_free(e);
    }
    return whole;
}

/* Until then, unless there is something to do before. */
static void sleep_until(struct host_sweep *s, int64_t us) {
    struct timespec until = {.tv_sec = (time_t)(us / 1000000),
                             .tv_nsec = (long)(us % 1000000) * 1000};
    pthread_mutex_lock(&s->lock);
    int timed_out = 0;
    while (!atomic_load(&s->stop) && !s->ended && timed_out == 0)
        timed_out = pthread_cond_timedwait(&s->wake, &s->lock, &until);
    pthread_mutex_unlock(&s->lock);
}

static int64_t period_us(const struct host_sweep *s) {
    int64_t us = s->options.keep_us / 10;
    if (s->options.period_us > 0) return s->options.period_us;
    if (us < SWEEP_PERIOD_MIN_US) return SWEEP_PERIOD_MIN_US;
    return us < SWEEP_PERIOD_MAX_US ? us : SWEEP_PERIOD_MAX_US;
}

static void *thread_main(void *context) {
    struct host_sweep *s = context;
    struct sweep_count count;
    int64_t next_us = 0; /* when to go on with a pass, or begin one */
    while (!atomic_load(&s->stop)) {
        int64_t now = clock_mono_ns() / 1000;
        if (now >= next_us) {
            bool over = sweep_slice(s->sweep, clock_wall_us(), &count);
            if (over) pass_over(s, &count);
            next_us = now + (over ? period_us(s) : (int64_t)SWEEP_PAUSE_MS * 1000);
        }
        sleep_until(s, next_us);
        if (!remove_ended(s, atomic_load(&s->stop) ? SWEEP_CLOSE_MAX : SWEEP_ENDED_MAX))
            next_us = 0;
    }
    (void)remove_ended(s, SWEEP_CLOSE_MAX); /* what was told since, */
    sweep_left(s->sweep);                   /* and what the stop cut short */
    return NULL;
}

/* ---- on the host's ---- */

void host_sweep_ended(struct host_sweep *s, str run_id) {
    if (!s || s->options.keep_us != HOST_KEEP_NOT) return;
    struct ended *e = mem_alloc(sizeof(*e) + run_id.len);
    if (!e) return; /* a pass will find it */
    memcpy(e->id, run_id.ptr, run_id.len);
    e->len = run_id.len;
    pthread_mutex_lock(&s->lock);
    bool room = s->ended_count < SWEEP_ENDED_MAX;
    if (room) {
        e->next = s->ended;
        s->ended = e;
        s->ended_count++;
        pthread_cond_signal(&s->wake);
    }
    pthread_mutex_unlock(&s->lock);
    if (!room) mem_free(e);
}

static bool wake_init(pthread_cond_t *wake) {
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr) != 0) return false;
    bool made = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 &&
                pthread_cond_init(wake, &attr) == 0;
    pthread_condattr_destroy(&attr);
    return made;
}

status host_sweep_open(const struct host_sweep_options *options, struct host_sweep **out,
                       struct error *err) {
    ASSERT(options->keep_us > 0 || options->keep_us == HOST_KEEP_NOT);
    struct host_sweep *s = mem_alloc(sizeof(*s));
    if (!s) return error_set(err, ST_RETRY, "sweep: out of memory");
    s->options = *options;
    struct sweep_options sweep = {.data_dir = options->data_dir,
                                  .keep_us = options->keep_us > 0 ? options->keep_us : 0,
                                  .ended = ask_ledger,
                                  .context = s,
                                  .stop = &s->stop};
    status st = sweep_open(&sweep, &s->sweep, err);
    if (st != ST_OK) goto no_sweep;
    arena_init(&s->arena, 4096, (size_t)1024 * 1024);
    if (!wake_init(&s->wake)) {
        st = error_set(err, ST_RETRY, "sweep: out of memory");
        goto no_wake;
    }
    pthread_mutex_init(&s->lock, NULL);
    if (pthread_create(&s->thread, NULL, thread_main, s) == 0) {
        *out = s;
        return ST_OK;
    }
    st = error_set(err, ST_RETRY, "sweep: could not start a thread");
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->wake);
no_wake:
    sweep_close(s->sweep);
no_sweep:
    mem_free(s);
    return st;
}

void host_sweep_close(struct host_sweep *s) {
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    atomic_store(&s->stop, true);
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    ledger_close(s->reader);
    sweep_close(s->sweep);
    arena_release(&s->arena);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}
