/* cli/selftest.c: cairn selftest: the engine in simulated worlds, one for each seed.
 *
 * Several seeds are shared out among as many processes as there are processors. A process tells the
 * seed before it begins: one that dies (an assertion of the engine) leaves its name. A seed that
 * breaks an invariant is run once more here, for its trace: the same seed is the same world. */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/cli.h"
#include "sim/sim.h"

enum { PROCESSES_MAX = 64, FAILURES_TOLD_MAX = 10 };
#define SEEDS_MAX INT64_C(100000000)

struct seed_note { /* through the pipe: smaller than PIPE_BUF, so never mixed with another's */
    uint64_t seed;
    uint32_t process;
    bool begins, ok;
    int64_t runs, events, faults;
    uint8_t hash[SHA256_LEN];
};

struct selftest {
    struct cli *cli;
    uint64_t first;
    int64_t count, done, failed, runs, events, faults;
    uint64_t at[PROCESSES_MAX]; /* the seed that each process is at */
    uint8_t hash[SHA256_LEN];   /* all seeds' together: their exclusive or, for any order */
};

static void run_one(uint64_t seed, uint32_t process, struct sim_result *r, struct seed_note *out) {
    sim_run(seed, NULL, r);
    *out = (struct seed_note){.seed = seed,
                              .process = process,
                              .ok = r->ok,
                              .runs = r->runs,
                              .events = r->events,
                              .faults = r->faults};
    bool good = hex_decode(str_c(r->hash), out->hash, SHA256_LEN);
    ASSERT(good);
}

static bool tell(int fd, const struct seed_note *note) {
    ssize_t n = 0;
    do {
        n = write(fd, note, sizeof(*note));
    } while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof(*note);
}

static _Noreturn void process_main(const struct selftest *t, uint32_t process, uint32_t processes,
                                   int fd) {
    static struct sim_result r;
    for (int64_t i = process; i < t->count; i += processes) {
        struct seed_note note = {
            .seed = t->first + (uint64_t)i, .process = process, .begins = true};
        if (!tell(fd, &note)) break;
        run_one(note.seed, process, &r, &note);
        if (!tell(fd, &note)) break;
    }
    _exit(0);
}

/* With its trace, if that is wanted: then nobody else writes to standard output. */
static void tell_failure(struct selftest *t, uint64_t seed) {
    static struct sim_result r;
    struct buf *out = &t->cli->out.buf;
    if (t->failed++ >= FAILURES_TOLD_MAX) return;
    sim_run(seed, NULL, &r);
    buf_printf(out, "%s\nseed %llu breaks %s: %s\n", r.tail, (unsigned long long)seed, r.invariant,
               r.what);
    out_more(&t->cli->out);
}

static void take_note(struct selftest *t, const struct seed_note *note) {
    if (note->process < PROCESSES_MAX) t->at[note->process] = note->seed;
    if (note->begins) return;
    t->done++;
    t->runs += note->runs;
    t->events += note->events;
    t->faults += note->faults;
    for (size_t i = 0; i < SHA256_LEN; i++)
        t->hash[i] ^= note->hash[i];
    if (!note->ok) tell_failure(t, note->seed);
}

static void take_notes(struct selftest *t, int fd) {
    struct seed_note note;
    ssize_t n = 0;
    while ((n = read(fd, &note, sizeof(note))) != 0) {
        if (n < 0 && errno == EINTR) continue;
        if (n != (ssize_t)sizeof(note)) return;
        take_note(t, &note);
    }
}

static void wait_for(struct selftest *t, const pid_t *pids, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        int state = 0;
        while (waitpid(pids[i], &state, 0) < 0 && errno == EINTR) {
        }
        if (WIFEXITED(state) && WEXITSTATUS(state) == 0) continue;
        buf_printf(&t->cli->out.buf, "seed %llu ends the process, with signal %d\n",
                   (unsigned long long)t->at[i], WIFSIGNALED(state) ? WTERMSIG(state) : 0);
        t->failed++;
    }
}

static status run_shared(struct selftest *t, uint32_t processes, struct error *err) {
    int fds[2];
    pid_t pids[PROCESSES_MAX];
    uint32_t started = 0;
    if (pipe(fds) != 0) return error_set(err, ST_RETRY, "could not make a pipe");
    out_flush(&t->cli->out); /* or every process would write it */
    for (; started < processes; started++) {
        pids[started] = fork();
        if (pids[started] == 0) {
            close(fds[0]);
            process_main(t, started, processes, fds[1]);
        }
        if (pids[started] < 0) break;
    }
    close(fds[1]);
    if (started < processes) { /* a part of the seeds would be missing */
        for (uint32_t i = 0; i < started; i++)
            kill(pids[i], SIGKILL);
        close(fds[0]);
        for (uint32_t i = 0; i < started; i++)
            waitpid(pids[i], NULL, 0);
        return error_set(err, ST_RETRY, "could not start process %u of %u", started + 1, processes);
    }
    take_notes(t, fds[0]);
    close(fds[0]);
    wait_for(t, pids, started);
    return ST_OK;
}

static void run_alone(struct selftest *t) {
    static struct sim_result r;
    FILE *trace = getenv("CAIRN_SIM_TRACE") ? stderr : NULL;
    struct seed_note note;
    if (trace) sim_run(t->first, trace, &r);
    run_one(t->first, 0, &r, &note);
    take_note(t, &note);
}

static void print_summary(struct selftest *t) {
    struct buf *out = &t->cli->out.buf;
    char hash[SHA256_HEX_LEN];
    hex_encode(t->hash, SHA256_LEN, hash);
    if (t->cli->format == OUT_TABLE) {
        buf_printf(out, "%s %llu", t->count == 1 ? "seed" : "seeds from",
                   (unsigned long long)t->first);
        if (t->count > 1) buf_printf(out, ": %lld worlds", (long long)t->done);
        buf_printf(out, ", %lld runs, %lld events, %lld faults, trace %.*s: %s\n",
                   (long long)t->runs, (long long)t->events, (long long)t->faults, SHA256_HEX_LEN,
                   hash, t->failed == 0 ? "ok" : "FAILED");
        return;
    }
    json_object_begin(out);
    json_put_int(out, "seed", (int64_t)t->first);
    json_put_int(out, "worlds", t->done);
    json_put_int(out, "runs", t->runs);
    json_put_int(out, "events", t->events);
    json_put_int(out, "faults", t->faults);
    json_put_text(out, "traceSha256", str_n(hash, sizeof(hash)));
    json_put_int(out, "failed", t->failed);
    buf_put_c(out, "}\n");
}

/* Runs `count` seeds from `first` on. ST_CORRUPT with SELFTEST_FAILED if one of them fails. */
static status selftest_seeds(struct cli *cli, int64_t first, int64_t count, struct error *err) {
    struct selftest t = {.cli = cli, .first = (uint64_t)first, .count = count};
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    int64_t processes = processors < 1               ? 1
                        : processors < PROCESSES_MAX ? processors
                                                     : PROCESSES_MAX;
    if (processes > count) processes = count;
    log_setup(STDERR_FILENO, false,
              LOG_OFF); /* in these worlds an engine has a lot to complain of */
    status st = ST_OK;
    if (count == 1)
        run_alone(&t);
    else
        st = run_shared(&t, (uint32_t)processes, err);
    if (st != ST_OK) return st;
    print_summary(&t);
    if (t.failed == 0 && t.done == t.count) return ST_OK;
    return error_at(err, REASON_SELFTEST_FAILED, "", "%lld of %lld worlds failed",
                    (long long)(t.failed > 0 ? t.failed : t.count - t.done), (long long)t.count);
}

status cmd_selftest(struct cli *cli, struct error *err) {
    int64_t first = 0;
    int64_t count = 0;
    bool many = args_has(&cli->args, OPT_SEEDS);
    status st = args_int(&cli->args, OPT_SEED, 0, INT64_MAX - SEEDS_MAX, 1, &first, err);
    if (st == ST_OK) st = args_int(&cli->args, OPT_SEEDS, 1, SEEDS_MAX, 1, &count, err);
    if (st == ST_OK && !many && !args_has(&cli->args, OPT_SEED)) count = 1000;
    return st == ST_OK ? selftest_seeds(cli, first, count, err) : st;
}
