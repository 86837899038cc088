/* view/view.h: every noun that the API speaks of, as JSON, once.
 *
 * A noun is a struct and the table of its members (base/members.h). The API and the CLI write with
 * view_write(); whoever gets the answer reads it with view_read() into the same struct, so that
 * what a server answers is shown by the same code as what a ledger says. A new member is one row
 * here, and one property of the schema in contracts/openapi.json: a test compares the two.
 *
 * Objects are passed as pointers to the struct named next to the noun below. */
#pragma once

#include "base/members.h"
#include "engine/engine.h"
#include "engine/status.h"
#include "ledger/access/access.h"
#include "ledger/ledger.h"
#include "outbox/outbox.h"

struct noun {
    const char *schema; /* its name in contracts/openapi.json; or NULL */
    const struct member_row *rows;
    size_t count;
    size_t size; /* of the struct */
};

/* ---- nouns ---- */

extern const struct noun view_run;      /* struct run_info; read, it has no run_no */
enum { RUN_IDENTITY_ROWS = 7 };         /* the first ones of a run: what never changes */
extern const struct noun view_snapshot; /* struct run_snapshot; no schema: it is a part of others */
extern const struct noun view_explanation; /* struct explanation */
extern const struct noun view_wait;        /* struct wait */
extern const struct noun view_step;        /* struct step_shown */
extern const struct noun view_event;       /* struct event_record: a record of a feed */
extern const struct noun view_record;      /* struct event_record: a RunEventRecord */
extern const struct noun view_result;      /* struct append_result */
extern const struct noun view_checkpoint;  /* the same of a checkpoint, which is no duplicate */
extern const struct noun view_alert;       /* struct alert */
extern const struct noun view_stats;       /* struct ledger_stats */
extern const struct noun view_report;      /* struct verify_report */
extern const struct noun view_effect;      /* struct effect_info */
extern const struct noun view_key;         /* struct api_key; not its hash and version */
extern const struct noun view_audit;       /* struct audit_entry */
extern const struct noun view_task;        /* struct task */
extern const struct noun view_node;        /* struct node_shown */

struct step_shown { /* a step, as of a moment */
    struct step_view step;
    int64_t duration_ms; /* so far, if it is running; -1: it has not begun, or nobody knows */
    str output;          /* JSON; STR_NONE: none, or not asked for */
};
void step_show(const struct step_view *step, int64_t now_us, struct step_shown *out);

struct node_shown { /* a server */
    str version, node;
    int64_t pid;
    int64_t runs, attempts, tasks, polls; /* of its engine */
    int64_t connections, requests, streams;
};

/* ---- the two directions ---- */

/* One JSON object. */
void view_write(const struct noun *noun, const void *object, struct buf *out);
/* Its members without the braces: the caller adds others. */
void view_members(const struct noun *noun, const void *object, struct buf *out);
/* Lenient, see base/members.h: what the text does not say is 0 or STR_NONE. Texts live as long as
 * `from`, those of JSON values as long as the arena. */
void view_read(const struct noun *noun, yyjson_val *from, struct arena *arena, void *object);
/* The elements of an array; anything else is an empty one. In the arena, never NULL. */
void *view_read_all(const struct noun *noun, yyjson_val *from, struct arena *arena, size_t *count);
