/* adapters/provider_runs_test.c: the records of runs, with a provider that only counts. */
#include "adapters/provider_runs.h"

#include <string.h>

#include "test.h"

enum { RETRY_FIRST_MS = 10, RETRY_LONGEST_MS = 35 };

struct fake_run {
    struct tracked_run tracked;
    struct fake *fake;
    int steps;
    bool drops;       /* with its next step */
    bool soon_again;  /* asks for another step from inside of one */
    uint64_t next_at; /* 0: never */
};
struct fake {
    uv_loop_t loop;
    struct provider_ports ports;
    struct provider_runs runs;
    int released, checked, closed;
    /* what the ledger has: one run */
    const char *ledger_run;
    status find_status;
    struct provider_found found;
};
struct fake_attempt {
    struct attempt attempt;
    struct fake *fake;
    int answers;
    char code[32];
    bool drops_run, leaves_other; /* what the engine does when it is answered */
    struct fake_attempt *other;
};

static struct fake_run *of(const struct tracked_run *run) { return (struct fake_run *)run; }

static void fake_step(struct tracked_run *run) {
    CHECK(run->inside == 1, "steps are taken by whoever leaves last");
    CHECK(run->state == TRACKED_RESTS, "the wish for a step is fulfilled by it");
    of(run)->steps++;
    if (of(run)->next_at <= uv_now(&of(run)->fake->loop)) of(run)->next_at = 0;
    if (of(run)->soon_again) tracked_soon(run);
    of(run)->soon_again = false;
    if (of(run)->drops) tracked_drop(run);
}

static uint64_t fake_next(const struct tracked_run *run) {
    return of(run)->next_at > 0 ? of(run)->next_at : PROVIDER_NEVER;
}

static void fake_release(struct tracked_run *run) {
    of(run)->fake->released++;
    for (struct wanted *w = wanted_first(run); w; w = wanted_first(run))
        wanted_detach(w); /* as a provider does whose attempts are executed here */
}

static void fake_check(const struct tracked_run *run) {
    CHECK(run->inside == 0);
    of(run)->fake->checked++;
}

static void fake_closed(struct provider_runs *runs) {
    struct fake *f = (struct fake *)((char *)runs - offsetof(struct fake, runs));
    f->closed++;
}

static const struct provider_runs_ops ops = {fake_step, fake_next, fake_release, fake_check,
                                             fake_closed};

static status fake_find(void *context, str run_id, str step_id, struct arena *arena,
                        struct provider_found *out, struct error *err) {
    struct fake *f = context;
    UNUSED(step_id);
    UNUSED(arena);
    if (f->find_status != ST_OK) return error_set(err, f->find_status, "the ledger says no");
    if (!f->ledger_run || !str_eq(run_id, str_c(f->ledger_run)))
        return error_set(err, ST_NOT_FOUND, "no such run");
    *out = f->found;
    return ST_OK;
}

static void fake_open(struct fake *f) {
    *f = (struct fake){.ports = {.find = fake_find}};
    CHECK(uv_loop_init(&f->loop) == 0);
    f->ports.context = f;
    f->runs = (struct provider_runs){.loop = &f->loop,
                                     .ops = &ops,
                                     .ports = &f->ports,
                                     .runs_max = 3,
                                     .retry_ms_first = RETRY_FIRST_MS,
                                     .retry_ms_max = RETRY_LONGEST_MS};
    provider_runs_open(&f->runs);
}

static void fake_close(struct fake *f) {
    if (!f->runs.closing) provider_runs_close(&f->runs);
    CHECK(uv_run(&f->loop, UV_RUN_DEFAULT) == 0);
    provider_runs_release(&f->runs);
    CHECK(uv_loop_close(&f->loop) == 0);
}

static struct fake_run *add(struct fake *f, const char *run_id) {
    struct fake_run *r = of(provider_runs_add(&f->runs, str_c(run_id), sizeof *r));
    if (r) r->fake = f;
    return r;
}

static void on_done(struct attempt *attempt, const struct outcome *outcome) {
    struct fake_attempt *a = attempt->context;
    CHECK(!attempt->executor_data, "an answered attempt has no record");
    a->answers++;
    snprintf(a->code, sizeof a->code, "%.*s", STR_ARG(outcome->code));
    struct tracked_run *run = provider_runs_find(&a->fake->runs, STR("a"));
    if (a->leaves_other) wanted_forget(a->other->attempt.executor_data);
    if (a->drops_run && run) tracked_drop(run);
}

static struct wanted *want(struct fake_run *r, struct fake_attempt *a) {
    *a = (struct fake_attempt){.fake = r->fake};
    a->attempt.context = a;
    a->attempt.done = on_done;
    return tracked_want(&r->tracked, &a->attempt, sizeof(struct wanted));
}

TEST(provider_runs_finds_a_run_by_its_id_until_it_is_dropped) {
    struct fake f;
    fake_open(&f);
    char id[] = "a";
    struct fake_run *r = add(&f, id);
    id[0] = 'x'; /* the record has its own copy */
    CHECK(r && provider_runs_find(&f.runs, STR("a")) == &r->tracked);
    CHECK(str_eq(r->tracked.run_id, STR("a")));
    CHECK(!provider_runs_find(&f.runs, STR("b")));
    tracked_enter(&r->tracked);
    tracked_drop(&r->tracked);
    tracked_drop(&r->tracked); /* twice is once */
    CHECK(f.released == 0, "somebody is inside");
    CHECK(!provider_runs_find(&f.runs, STR("a")));
    struct fake_run *second = add(&f, "a"); /* while the first one is still there */
    CHECK(second && provider_runs_find(&f.runs, STR("a")) == &second->tracked);
    tracked_exit(&r->tracked);
    CHECK(f.released == 1);
    CHECK(provider_runs_find(&f.runs, STR("a")) == &second->tracked,
          "the end of the first does not hide the second");
    fake_close(&f);
    CHECK(f.released == 2 && f.closed == 1);
}

TEST(provider_runs_keeps_no_more_than_it_may) {
    struct fake f;
    fake_open(&f);
    struct fake_run *first = add(&f, "a");
    CHECK(first && add(&f, "b") && add(&f, "c"));
    CHECK(!add(&f, "d") && f.runs.crowded);
    tracked_drop(&first->tracked);
    CHECK(!f.runs.crowded && add(&f, "d"));
    fake_close(&f);
}

TEST(provider_runs_closes_without_a_run) {
    struct fake f;
    fake_open(&f);
    provider_runs_close(&f.runs);
    CHECK(f.runs.handles == 0 && f.closed == 0);
    fake_close(&f);
}

TEST(provider_runs_steps_when_the_last_one_leaves) {
    struct fake f;
    fake_open(&f);
    struct fake_run *r = add(&f, "a");
    tracked_enter(&r->tracked);
    tracked_enter(&r->tracked); /* a port called the engine, and the engine called back */
    tracked_exit(&r->tracked);
    CHECK(r->steps == 0 && f.checked == 0);
    tracked_exit(&r->tracked);
    CHECK(r->steps == 1 && f.checked == 1);
    /* What the engine calls never steps: the loop does, and once. */
    tracked_soon(&r->tracked);
    tracked_soon(&r->tracked);
    CHECK(r->steps == 1);
    CHECK(uv_run(&f.loop, UV_RUN_DEFAULT) == 0);
    CHECK(r->steps == 2);
    /* A step that asks for another gets it in the loop's next turn, not by nesting. */
    r->soon_again = true;
    tracked_enter(&r->tracked);
    tracked_exit(&r->tracked);
    CHECK(r->steps == 3);
    CHECK(uv_run(&f.loop, UV_RUN_DEFAULT) == 0);
    CHECK(r->steps == 4);
    r->drops = true;
    tracked_enter(&r->tracked);
    tracked_exit(&r->tracked);
    CHECK(f.released == 1 && f.checked == 4, "a dropped run is freed and not checked");
    fake_close(&f);
}

TEST(provider_runs_sets_the_timer_for_what_is_due_next) {
    struct fake f;
    fake_open(&f);
    struct fake_run *r = add(&f, "a");
    uv_update_time(&f.loop);
    uint64_t at = uv_now(&f.loop) + 20;
    r->next_at = at;
    provider_runs_all_soon(&f.runs);
    CHECK(uv_timer_get_due_in(&r->tracked.timer) == 0, "a step soon comes first");
    tracked_enter(&r->tracked);
    tracked_exit(&r->tracked);
    CHECK(r->steps == 1 && uv_timer_get_due_in(&r->tracked.timer) == 20);
    CHECK(uv_run(&f.loop, UV_RUN_DEFAULT) == 0);
    CHECK(r->steps == 2 && uv_now(&f.loop) >= at);
    CHECK(!uv_is_active((uv_handle_t *)&r->tracked.timer), "nothing more is due");
    fake_close(&f);
}

TEST(provider_runs_pauses_longer_after_each_failure) {
    struct fake f;
    fake_open(&f);
    struct fake_run *r = add(&f, "a");
    const int64_t want_ms[] = {10, 20, 35, 35};
    for (size_t i = 0; i < COUNT_OF(want_ms); i++)
        CHECK(tracked_pause(&r->tracked) == want_ms[i], "failure %zu", i + 1);
    CHECK(r->tracked.retry_at == 0);
    tracked_failed(&r->tracked);
    CHECK(r->tracked.retry_at == uv_now(&f.loop) + RETRY_LONGEST_MS);
    tracked_worked(&r->tracked);
    CHECK(r->tracked.retry_at == 0 && tracked_pause(&r->tracked) == RETRY_FIRST_MS);
    fake_close(&f);
}

TEST(provider_runs_answers_each_wanted_attempt_once) {
    struct fake f;
    fake_open(&f);
    struct fake_run *r = add(&f, "a");
    struct fake_attempt a[3];
    for (size_t i = 0; i < COUNT_OF(a); i++)
        CHECK(want(r, &a[i]) == a[i].attempt.executor_data);
    CHECK(r->tracked.wanted_count == 3);
    a[0].leaves_other = true; /* the engine gives another one up while it is answered */
    a[0].other = &a[1];
    struct outcome good = {.ok = true};
    tracked_enter(&r->tracked);
    size_t seen = 0;
    for (struct wanted *w = wanted_first(&r->tracked); w; w = wanted_after(w)) {
        seen++;
        if (w->attempt == &a[0].attempt)
            wanted_answer(w, &good);
        else
            wanted_cancelled(w, STR("stopped"));
    }
    CHECK(seen == 2, "the one that was given up is not met");
    CHECK(!TAILQ_EMPTY(&r->tracked.wanted), "nothing is freed under a walk");
    tracked_exit(&r->tracked);
    CHECK(TAILQ_EMPTY(&r->tracked.wanted) && r->tracked.wanted_count == 0);
    CHECK(a[0].answers == 1 && a[1].answers == 0 && a[2].answers == 1);
    CHECK(strcmp(a[0].code, "") == 0 && strcmp(a[2].code, "CANCELLED") == 0);
    fake_close(&f);
}

TEST(provider_runs_may_be_dropped_by_an_answer) {
    struct fake f;
    fake_open(&f);
    struct fake_run *r = add(&f, "a");
    struct fake_attempt a;
    struct wanted *w = want(r, &a);
    a.drops_run = true;
    tracked_enter(&r->tracked);
    wanted_cancelled(w, STR("stopped"));
    CHECK(a.answers == 1 && f.released == 0, "it is freed when it is left");
    CHECK(r->steps == 0);
    tracked_exit(&r->tracked);
    CHECK(f.released == 1);
    fake_close(&f);
}

TEST(provider_runs_attempts_outlive_their_run) {
    struct fake f;
    fake_open(&f);
    struct fake_run *r = add(&f, "a");
    struct fake_attempt a;
    struct fake_attempt b;
    struct wanted *executed = want(r, &a);
    struct wanted *given_up = want(r, &b);
    tracked_drop(&r->tracked); /* fake_release() detaches both */
    CHECK(!executed->run && a.attempt.executor_data == executed);
    wanted_cancelled(executed, STR("it ended later"));
    CHECK(a.answers == 1);
    wanted_forget(given_up);
    CHECK(b.answers == 0 && !b.attempt.executor_data);
    mem_free(executed);
    mem_free(given_up);
    fake_close(&f);
}

TEST(provider_runs_close_answers_nobody) {
    struct fake f;
    fake_open(&f);
    struct fake_run *r = add(&f, "a");
    struct fake_run *entered = add(&f, "b");
    struct fake_attempt a;
    struct fake_attempt b;
    (void)want(r, &a);
    (void)want(entered, &b);
    tracked_enter(&entered->tracked);
    provider_runs_close(&f.runs);
    CHECK(f.released == 1 && f.runs.handles == 2);
    CHECK(uv_run(&f.loop, UV_RUN_DEFAULT) == 0);
    CHECK(f.closed == 0 && f.runs.handles == 1, "one is still entered");
    tracked_exit(&entered->tracked);
    CHECK(entered->steps == 0);
    CHECK(a.answers == 0 && b.answers == 0);
    CHECK(!a.attempt.executor_data && !b.attempt.executor_data, "they may be freed now");
    CHECK(uv_run(&f.loop, UV_RUN_DEFAULT) == 0);
    CHECK(f.closed == 1);
    fake_close(&f);
}

TEST(provider_runs_claims_are_the_ledgers) {
    static const struct {
        status find;
        const char *run;
        enum run_status status;
        bool ours;
        enum run_claim want;
        bool left_over;
    } cases[] = {
        {ST_OK, "a", RUN_RUNNING, true, CLAIM_OURS, false},
        {ST_OK, "a", RUN_RUNNING, false, CLAIM_ELSEWHERE, false},
        {ST_OK, "a", RUN_PAUSED, true, CLAIM_OURS, false},
        {ST_OK, "a", RUN_COMPLETED, false, CLAIM_OVER, true},
        {ST_OK, "a", RUN_CANCELLED, true, CLAIM_OVER, true},
        {ST_OK, "b", RUN_RUNNING, true, CLAIM_UNKNOWN, false},
        {ST_NOT_FOUND, "a", RUN_RUNNING, true, CLAIM_UNKNOWN, false},
        {ST_RETRY, "a", RUN_COMPLETED, true, CLAIM_UNSURE, false},
        {ST_CORRUPT, "a", RUN_COMPLETED, true, CLAIM_UNSURE, false},
    };
    struct fake f;
    struct arena arena;
    struct error err;
    struct provider_found found;
    fake_open(&f);
    arena_init(&arena, 64, 4096);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        f.find_status = cases[i].find;
        f.ledger_run = cases[i].run;
        f.found = (struct provider_found){.status = cases[i].status, .ours = cases[i].ours};
        enum run_claim claim =
            provider_runs_claim(&f.runs, STR("a"), STR_NONE, &arena, &found, &err);
        CHECK(claim == cases[i].want, "case %zu: %d", i, (int)claim);
        if (claim == CLAIM_UNSURE) CHECK(err.code == cases[i].find, "case %zu", i);
        CHECK(provider_runs_left_over(&f.runs, STR("a"), &arena, &found) == cases[i].left_over,
              "case %zu", i);
    }
    f.find_status = ST_OK;
    f.ledger_run = "a";
    f.found = (struct provider_found){.status = RUN_COMPLETED};
    CHECK(provider_runs_left_over(&f.runs, STR("a"), &arena, &found));
    struct fake_run *r = add(&f, "a"); /* somebody is at it already */
    CHECK(r && !provider_runs_left_over(&f.runs, STR("a"), &arena, &found));
    CHECK(!provider_runs_left_over(&f.runs, STR(""), &arena, &found));
    arena_release(&arena);
    fake_close(&f);
}

TEST(provider_runs_sweep_turns_pages) {
    struct provider_sweep s = {.every_ms = 1000, .pages_max = 3};
    CHECK(sweep_is_due(&s, 1), "the first one at once");
    CHECK(sweep_next_page(&s, true, true, 5) && s.page == 1 && sweep_is_due(&s, 5));
    CHECK(sweep_next_page(&s, true, true, 6) && s.page == 2);
    CHECK(!sweep_next_page(&s, true, true, 7) && s.page == 0, "no more than it may");
    CHECK(!sweep_is_due(&s, 1006) && sweep_is_due(&s, 1007));
    CHECK(!sweep_next_page(&s, true, false, 2000) && s.at == 3000, "there was only one");
    CHECK(!sweep_next_page(&s, false, true, 3000) && s.at == 3100, "a failure is tried again soon");
}
