/* tests/crash/http_history.h: what clients asked and were told, what the ledger holds, and whether
 * the two agree. For http.c.
 *
 * The ledger is the witness: its order is the order in which appends and starts took effect, so
 * nothing has to be searched for. history_check() goes through the records by sequence number and
 * says whether
 *  - sequences are 1, 2, 3, ... in the tenant and in each run, and time does not run backwards;
 *  - everything acknowledged is there once, as it was acknowledged, and nothing else is;
 *  - what was answered before something else was asked for stands before it;
 *  - at most one answer says that an event is new, at most one that a run was not there;
 *  - every run that was started has one RunStarted;
 *  - what a read showed was true at some moment between question and answer: nothing acknowledged
 *    before is missing, nothing is there that was asked for only later, and no read shows less than
 *    another that had ended before. */
#pragma once

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/time.h"
#include "core/run.h"

enum { RUN_ID_BYTES = 48, AROUND = 4, IDS_MAX = 2 };
#define NEVER INT64_MAX

struct h_run {
    char id[RUN_ID_BYTES]; /* "": nobody was told yet */
    bool by_engine;        /* started with POST /v1/runs; else its events are our own */
    int64_t asked_ns;      /* engine: when the first of its starts was sent */
    int64_t told_ns;       /* and when the first one was answered; NEVER */
    int fresh;             /* answers that say that it was not there before */
    size_t first, count;   /* filled by the check: its records in history.by_run */
};

struct h_event { /* what is the same to the ledger: one run, step, type */
    size_t run;
    enum event_type type;
    int64_t number;    /* makes its step */
    uuid ids[IDS_MAX]; /* whoever appends it uses one of these; the first to land stays */
    int64_t asked_ns, told_ns;
    bool acknowledged;
    int fresh; /* answers without "duplicate" */
    uuid id;   /* as acknowledged, and so are these: */
    int64_t run_seq, persisted_us;
};

struct h_read {
    size_t run;
    int64_t asked_ns, told_ns;
    int64_t run_seq;        /* the newest event that it showed; 0: it knew no such run */
    enum run_status status; /* of a run */
    bool is_page;           /* else a run */
    int64_t after;          /* of a page */
    size_t count;
    bool more;       /* the page was full, so there may be more */
    uint64_t digest; /* of its records, see digest_add() */
};

struct h_record { /* a row of the ledger */
    uuid id;
    size_t run; /* SIZE_MAX: nobody asked for such a run */
    enum event_type type;
    int64_t seq, run_seq, persisted_us;
    size_t event; /* filled by the check: in history.events, or SIZE_MAX */
};

struct history {
    struct h_run *runs;
    struct h_event *events;
    struct h_read *reads;
    struct h_record *records; /* by sequence number */
    size_t run_count, event_count, read_count, record_count;
    size_t run_cap, event_cap, read_cap, record_cap;
    size_t *by_run; /* record numbers, by run and then runSeq */
    char why[512];
    bool quiet; /* says nothing of what stands around a mistake */
};

/* ---- memory ---- */

static inline void *history_more(void *old, size_t *cap, size_t count, size_t size) {
    if (count < *cap) return old;
    *cap = *cap ? *cap * 2 : 1024;
    void *more = realloc(old, *cap * size);
    if (!more) abort();
    return more;
}

static inline size_t history_add_run(struct history *h, const struct h_run *r) {
    h->runs = history_more(h->runs, &h->run_cap, h->run_count, sizeof(*r));
    h->runs[h->run_count] = *r;
    return h->run_count++;
}

static inline size_t history_add_event(struct history *h, const struct h_event *e) {
    h->events = history_more(h->events, &h->event_cap, h->event_count, sizeof(*e));
    h->events[h->event_count] = *e;
    return h->event_count++;
}

static inline size_t history_add_read(struct history *h, const struct h_read *r) {
    h->reads = history_more(h->reads, &h->read_cap, h->read_count, sizeof(*r));
    h->reads[h->read_count] = *r;
    return h->read_count++;
}

static inline size_t history_add_record(struct history *h, const struct h_record *r) {
    h->records = history_more(h->records, &h->record_cap, h->record_count, sizeof(*r));
    h->records[h->record_count] = *r;
    return h->record_count++;
}

static inline void history_release(struct history *h) {
    free(h->runs);
    free(h->events);
    free(h->reads);
    free(h->records);
    free(h->by_run);
    *h = (struct history){0};
}

static inline uint64_t digest_add(uint64_t digest, uuid id, int64_t run_seq, int64_t us) {
    struct {
        uint64_t before;
        uuid id;
        int64_t run_seq, us;
    } all = {digest, id, run_seq, us};
    return str_hash(str_n(&all, sizeof(all)), 7);
}

/* ---- saying what is wrong ---- */

static double in_ms(int64_t ns) { return ns == NEVER ? -1 : (double)(ns % 10000000000000) / 1e6; }

static void show_record(const struct history *h, size_t i, bool here) {
    const struct h_record *r = &h->records[i];
    char id[UUID_TEXT_LEN];
    uuid_format(r->id, id);
    fprintf(stderr, "%s %8" PRId64 " %.8s %-20s runSeq %-5" PRId64 " type %d", here ? "->" : "  ",
            r->seq, id, r->run == SIZE_MAX ? "?" : h->runs[r->run].id, r->run_seq, (int)r->type);
    if (r->event < h->event_count) {
        const struct h_event *e = &h->events[r->event];
        fprintf(stderr, " asked %.3f answered %.3f ms", in_ms(e->asked_ns), in_ms(e->told_ns));
    }
    fprintf(stderr, "\n");
}

__attribute__((format(printf, 3, 4))) static bool wrong(struct history *h, size_t record,
                                                        const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(h->why, sizeof(h->why), fmt, args);
    va_end(args);
    if (h->quiet || record >= h->record_count) return false;
    size_t from = record > AROUND ? record - AROUND : 0;
    for (size_t i = from; i < h->record_count && i <= record + AROUND; i++)
        show_record(h, i, i == record);
    return false;
}

static bool wrong_read(struct history *h, const struct h_read *r, const char *what) {
    const struct h_run *run = &h->runs[r->run];
    int64_t at = r->run_seq > 0 ? r->run_seq - 1 : 0;
    if (!h->quiet) {
        fprintf(stderr,
                "read of %s: runSeq %" PRId64 ", status %d, page %d after %" PRId64
                " with %zu, asked %.3f answered %.3f ms; the run has %zu\n",
                run->id, r->run_seq, (int)r->status, r->is_page, r->after, r->count,
                in_ms(r->asked_ns), in_ms(r->told_ns), run->count);
        for (size_t i = at > AROUND ? (size_t)at - AROUND : 0;
             i < run->count && i <= (size_t)at + AROUND; i++)
            show_record(h, h->by_run[run->first + i], (int64_t)i + 1 == r->run_seq);
    }
    return wrong(h, SIZE_MAX, "a read of %s %s", run->id, what);
}

/* ---- events against records ---- */

struct by_id {
    uuid id;
    size_t event;
};

static int compare_ids(const void *a, const void *b) {
    return memcmp(&((const struct by_id *)a)->id, &((const struct by_id *)b)->id, sizeof(uuid));
}

/* Each record finds the event that it is; each event at most one record. */
static bool match_records(struct history *h) {
    size_t count = h->event_count * IDS_MAX;
    struct by_id *ids = calloc(count + 1, sizeof(*ids));
    size_t *record_of = calloc(h->event_count + 1, sizeof(size_t)); /* plus 1; 0: none yet */
    bool ok = true;
    if (!ids || !record_of) abort();
    for (size_t i = 0; i < count; i++)
        ids[i] = (struct by_id){h->events[i / IDS_MAX].ids[i % IDS_MAX], i / IDS_MAX};
    qsort(ids, count, sizeof(*ids), compare_ids);
    for (size_t i = 0; ok && i < h->record_count; i++) {
        struct h_record *r = &h->records[i];
        struct by_id key = {.id = r->id};
        const struct by_id *found = bsearch(&key, ids, count, sizeof(*ids), compare_ids);
        r->event = found ? found->event : SIZE_MAX;
        if (r->run == SIZE_MAX || (!found && !h->runs[r->run].by_engine))
            ok = wrong(h, i, "nobody asked for event %" PRId64, r->seq);
        else if (found && record_of[found->event]++ > 0)
            ok = wrong(h, i, "event %" PRId64 " is there twice", r->seq);
    }
    for (size_t i = 0; ok && i < h->event_count; i++) {
        if (h->events[i].acknowledged && record_of[i] == 0)
            ok = wrong(h, SIZE_MAX, "acknowledged event %zu of %s (runSeq %" PRId64 ") is lost", i,
                       h->runs[h->events[i].run].id, h->events[i].run_seq);
    }
    free(ids);
    free(record_of);
    return ok;
}

static bool check_as_acknowledged(struct history *h) {
    for (size_t i = 0; i < h->record_count; i++) {
        const struct h_record *r = &h->records[i];
        if (r->event == SIZE_MAX) continue;
        const struct h_event *e = &h->events[r->event];
        if (e->run != r->run || e->type != r->type)
            return wrong(h, i, "event %" PRId64 " is another than was sent", r->seq);
        if (e->fresh > 1)
            return wrong(h, i, "event %" PRId64 " was new to %d clients", r->seq, e->fresh);
        if (!e->acknowledged) continue;
        if (!uuid_eq(e->id, r->id) || e->run_seq != r->run_seq ||
            e->persisted_us != r->persisted_us)
            return wrong(h, i, "event %" PRId64 " is not as it was acknowledged", r->seq);
    }
    return true;
}

/* ---- order ---- */

static void times_of(const struct history *h, const struct h_record *r, int64_t *asked,
                     int64_t *told) {
    const struct h_run *run = &h->runs[r->run];
    *asked = run->asked_ns; /* the engine's own events come some time after the start */
    *told = NEVER;
    if (r->event != SIZE_MAX) {
        *asked = h->events[r->event].asked_ns;
        *told = h->events[r->event].told_ns;
    } else if (r->run_seq == 1) {
        *told = run->told_ns;
    }
}

/* Whoever stands before an event was not asked for after that was answered. */
static bool check_order(struct history *h) {
    int64_t latest = 0;
    int64_t persisted = 0;
    for (size_t i = 0; i < h->record_count; i++) {
        const struct h_record *r = &h->records[i];
        int64_t asked = 0;
        int64_t told = 0;
        if (r->seq != (int64_t)i + 1)
            return wrong(h, i, "sequence number %" PRId64 " follows %zu", r->seq, i);
        if (r->persisted_us < persisted)
            return wrong(h, i, "event %" PRId64 " is older than the one before it", r->seq);
        persisted = r->persisted_us;
        times_of(h, r, &asked, &told);
        if (told < latest)
            return wrong(h, i,
                         "event %" PRId64 " was answered before one that stands before it "
                         "was asked for",
                         r->seq);
        if (asked > latest) latest = asked;
    }
    return true;
}

static const struct history *sorting;

static int compare_by_run(const void *a, const void *b) {
    const struct h_record *x = &sorting->records[*(const size_t *)a];
    const struct h_record *y = &sorting->records[*(const size_t *)b];
    if (x->run != y->run) return x->run < y->run ? -1 : 1;
    return x->seq < y->seq ? -1 : x->seq > y->seq;
}

/* The records of each run in a row, facts left out; their numbers must be 1, 2, 3, ... */
static bool check_runs(struct history *h) {
    size_t count = 0;
    free(h->by_run);
    h->by_run = calloc(h->record_count + 1, sizeof(size_t));
    if (!h->by_run) abort();
    for (size_t i = 0; i < h->run_count; i++)
        h->runs[i].count = 0;
    for (size_t i = 0; i < h->record_count; i++) {
        if (h->records[i].run_seq > 0) h->by_run[count++] = i;
    }
    sorting = h;
    qsort(h->by_run, count, sizeof(size_t), compare_by_run);
    for (size_t i = 0; i < count; i++) {
        struct h_run *run = &h->runs[h->records[h->by_run[i]].run];
        if (run->count++ == 0) run->first = i;
        if (h->records[h->by_run[i]].run_seq != (int64_t)run->count)
            return wrong(h, h->by_run[i], "runSeq %" PRId64 " of %s follows %zu",
                         h->records[h->by_run[i]].run_seq, run->id, run->count - 1);
    }
    return true;
}

static bool check_starts(struct history *h) {
    for (size_t i = 0; i < h->run_count; i++) {
        const struct h_run *run = &h->runs[i];
        size_t started = 0;
        size_t at = run->count > 0 ? h->by_run[run->first] : SIZE_MAX;
        for (size_t k = 0; k < run->count; k++)
            started += h->records[h->by_run[run->first + k]].type == EVENT_RUN_STARTED;
        bool told = run->by_engine ? run->told_ns != NEVER : run->count > 0;
        if (started > 1 || (told && started != 1))
            return wrong(h, at, "%s has %zu RunStarted", run->id, started);
        if (run->fresh > 1) return wrong(h, at, "%s was new to %d clients", run->id, run->fresh);
    }
    return true;
}

/* ---- reads ---- */

static enum run_status status_after(enum run_status before, enum event_type type) {
    if (type == EVENT_RUN_STARTED || type == EVENT_RUN_RESUMED) return RUN_RUNNING;
    if (type == EVENT_RUN_PAUSED) return RUN_PAUSED;
    if (type == EVENT_RUN_COMPLETED) return RUN_COMPLETED;
    return before;
}

static bool check_shown(struct history *h, const struct h_read *r) {
    const struct h_run *run = &h->runs[r->run];
    enum run_status is = RUN_PENDING;
    uint64_t digest = 0;
    size_t count = 0;
    if (r->run_seq > (int64_t)run->count) return wrong_read(h, r, "shows what is not there");
    for (size_t i = 0; i < (size_t)r->run_seq; i++) {
        const struct h_record *rec = &h->records[h->by_run[run->first + i]];
        is = status_after(is, rec->type);
        if (rec->run_seq <= r->after) continue;
        digest = digest_add(digest, rec->id, rec->run_seq, rec->persisted_us);
        count++;
    }
    if (r->is_page && (count != r->count || digest != r->digest))
        return wrong_read(h, r, "shows other events than there are");
    if (!r->is_page && r->run_seq > 0 && is != r->status)
        return wrong_read(h, r, "shows a status that does not belong to its runSeq");
    return true;
}

static bool check_read(struct history *h, const struct h_read *r) {
    const struct h_run *run = &h->runs[r->run];
    for (size_t i = 0; i < run->count; i++) {
        const struct h_record *rec = &h->records[h->by_run[run->first + i]];
        int64_t asked = 0;
        int64_t told = 0;
        bool shown = rec->run_seq <= r->run_seq;
        times_of(h, rec, &asked, &told);
        if (shown && asked > r->told_ns) return wrong_read(h, r, "shows the future");
        if (!shown && told < r->asked_ns && !r->more)
            return wrong_read(h, r, "misses what was acknowledged before");
    }
    return check_shown(h, r);
}

static int compare_reads(const void *a, const void *b) {
    const struct h_read *x = a;
    const struct h_read *y = b;
    if (x->run != y->run) return x->run < y->run ? -1 : 1;
    return x->asked_ns < y->asked_ns ? -1 : x->asked_ns > y->asked_ns;
}

/* Sorts the reads. */
static bool check_reads(struct history *h) {
    qsort(h->reads, h->read_count, sizeof(*h->reads), compare_reads);
    for (size_t i = 0; i < h->read_count; i++) {
        const struct h_read *r = &h->reads[i];
        if (!check_read(h, r)) return false;
        for (size_t k = i; k > 0 && h->reads[k - 1].run == r->run && !r->more; k--) {
            const struct h_read *before = &h->reads[k - 1];
            if (before->told_ns < r->asked_ns && before->run_seq > r->run_seq)
                return wrong_read(h, r, "shows less than an earlier one");
        }
    }
    return true;
}

/* h->why says what is wrong. */
static bool history_check(struct history *h) {
    for (size_t i = 0; i < h->record_count; i++)
        h->records[i].event = SIZE_MAX;
    return match_records(h) && check_as_acknowledged(h) && check_order(h) && check_runs(h) &&
           check_starts(h) && check_reads(h);
}
