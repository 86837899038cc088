/* lib/producer_stage_test.h: what the tests of producers stand on: a real ledger, a registry,
 * and between the ledger and the producer an Append Authority that remembers what it was sent and
 * fails on demand.
 *
 * The ledger is opened with LEDGER_RECORD: layer 2 is off, so what is not in it was kept out by the
 * producer. */
#pragma once

#include "base/arena.h"
#include "lib/producer.h"

extern struct error test_err; /* of the newest call */

/* The call must succeed; it must be ST_CONFLICT with that reason. Functions do the work, for a
 * macro with branches in it makes every test look complicated. */
#define OK(call) stage_check_ok((call), __FILE__, __LINE__)
#define REFUSED(call, reason) stage_check_refused((call), (reason), __FILE__, __LINE__)
void stage_check_ok(status st, const char *file, int line);
void stage_check_refused(status st, const char *reason, const char *file, int line);

enum { SENT_MAX = 64 };
struct authority {
    struct ledger *ledger;
    int failures; /* so many calls fail, */
    bool after;   /* with their work done and their answer lost */
    int calls;
    struct event sent[SENT_MAX]; /* the newest, in a ring; texts borrowed */
};
struct loader {
    struct ledger *ledger;
    bool broken;
};

struct stage {
    struct ledger *ledger;
    struct registry *registry;
    struct authority authority;
    struct loader loader;
    struct producer *producer;
    struct arena arena; /* of what is read */
};

/* With STR_NONE for ids_url the registry is in memory. */
void stage_open(struct stage *s, str url, str ids_url);
void stage_close(struct stage *s);
str stage_ids_url(
    str url); /* where a registry for the ledger at `url` may be: never in its SQLite file */
struct ledger *stage_ledger(str url);
struct producer *stage_producer(struct stage *s, struct registry *registry); /* one more */
void stage_restart(struct stage *s); /* the producer, as if its process had ended and begun again */

struct append_item stage_item(const char *run_id, const char *type, const char *step_id,
                              int64_t attempt);
status stage_try(struct stage *s, const char *run_id, const char *type, const char *step_id,
                 int64_t attempt, struct append_result *result);
struct append_result stage_emit(struct stage *s, const char *run_id, const char *type,
                                const char *step_id);     /* must succeed */
void stage_emit_all(struct stage *s, const char *run_id); /* a whole run of seven events */
/* Must be refused by the guard, without an append. */
void stage_refuse(struct stage *s, const char *run_id, const char *type, const char *step_id,
                  int64_t attempt);
/* producer_report_invalid() of that event. Was something emitted? */
bool stage_report(struct stage *s, const char *run_id, const char *type, const char *step_id,
                  int64_t attempt);
const struct event *stage_sent(const struct stage *s); /* the newest */

struct event_page stage_records(struct stage *s, const char *run_id);
size_t stage_count(struct stage *s, const char *run_id, const char *type);
/* What the registry says of the event; the pair must be new to it, or not. */
uuid stage_id_of(struct registry *r, const struct append_item *item, bool want_fresh);
