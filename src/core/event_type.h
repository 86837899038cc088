/* core/event_type.h: the catalogue of event types: one row each, and the numbers under which they
 * are stored.
 *
 * Eleven lifecycle types belong to the Run Events contract. The extension types are ours and
 * documented in docs/events.md. SIGNAL, EFFECT and TOOL facts belong to CANON only: they carry no
 * runSeq and only the store writes them. Any other name is unknown: accepted, opaque, never a
 * change of state. */
#pragma once

#include "base/buf.h"
#include "base/error.h"
#include "base/str.h"

#define RUN_EVENTS_CONTRACT_VERSION "2.0.1"

/* Stored in the ledger: a number is never reused or changed. */
enum event_type {
    EVENT_UNKNOWN = 0,
    EVENT_RUN_QUEUED = 1,
    EVENT_RUN_STARTED = 2,
    EVENT_STEP_STARTED = 3,
    EVENT_STEP_COMPLETED = 4,
    EVENT_STEP_FAILED = 5,
    EVENT_STEP_SKIPPED = 6,
    EVENT_RUN_PAUSED = 7,
    EVENT_RUN_RESUMED = 8,
    EVENT_RUN_COMPLETED = 9,
    EVENT_RUN_FAILED = 10,
    EVENT_RUN_CANCELLED = 11,
    /* extensions */
    EVENT_RUN_APPROVED = 12,
    EVENT_RUN_CHECKPOINT_CREATED = 13,
    EVENT_RUN_PROVIDER_LINKED = 14,
    EVENT_STEP_RETRIED = 15,
    EVENT_STEP_CORRECTED = 16,
    EVENT_RUN_RECOVERED = 17,
    /* facts of CANON only */
    EVENT_SIGNAL_RECEIVED = 20,
    EVENT_SIGNAL_PROCESSING_STARTED = 21,
    EVENT_SIGNAL_PROCESSED = 22,
    EVENT_SIGNAL_PROCESSING_FAILED = 23,
    EVENT_EFFECT_REQUESTED = 24,
    EVENT_EFFECT_EXECUTING = 25,
    EVENT_EFFECT_COMPLETED = 26,
    EVENT_EFFECT_FAILED = 27,
    EVENT_EFFECT_RETRYING = 28,
    EVENT_EFFECT_DEAD_LETTERED = 29,
    EVENT_TOOL_CALLED = 30,
    EVENT_TOOL_COMPLETED = 31,
    EVENT_TOOL_FAILED = 32,
    EVENT_TYPE_COUNT = 33,
    EVENT_TYPE_FIRST_FREE = 1000, /* unknown names are numbered from here, by each ledger */
};

enum event_family { FAMILY_RUN, FAMILY_STEP, FAMILY_SIGNAL, FAMILY_EFFECT, FAMILY_TOOL };

struct event_type_info {
    str name; /* PascalCase; empty in the unused rows of the table */
    enum event_family family;
    bool lifecycle;  /* one of the eleven of the Run Events contract */
    bool store_only; /* refused in a RunEventWrite */
};

/* The row of a type below EVENT_TYPE_COUNT; its name is empty for a number that is not in use. */
const struct event_type_info *event_type_info(enum event_type type);
enum event_type event_type_of(str name); /* EVENT_UNKNOWN for any name not in the catalogue */
/* A fact of CANON that is no event of the Run Events contract: SIGNAL, EFFECT, TOOL. */
bool event_type_is_fact(enum event_type type);
const char *event_family_name(enum event_family family); /* RUN STEP SIGNAL EFFECT TOOL */

/* RunStarted -> RUN_STARTED: an underscore before each inner capital, then upper case. */
void event_type_to_snake(str name, struct buf *out);
/* The inverse; false when the text is not of that form. */
bool event_type_from_snake(str snake, struct buf *out);
/* Whether a type may have this name (SCREAMING_SNAKE): past tense, by its last word. The two literals
 * of CANON that are not (T02) pass as they are. */
bool event_type_name_is_past(str snake);
/* Whether these rows may be the catalogue: each name is PascalCase, is there once, and is in the past
 * tense. ST_INVALID. Opening a ledger asserts it of ours: here types are declared, and a
 * name that was stored once cannot be mended. Names that others send are facts and are not judged. */
MUST_CHECK status event_types_check(const struct event_type_info *rows, size_t count,
                                    struct error *err);
