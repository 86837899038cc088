/* core/event.h: one event: its envelope, its idempotency key, its JSON. Pure.
 *
 * A RunEventWrite is what a producer sends; a RunEventRecord is the same plus what the Append
 * Authority assigned. Writes are strict: every known field has one form, and a surplus field is
 * refused. Unknown event types are accepted and opaque. event_validate() is the one door: JSON and
 * C callers both pass it. */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/members.h"
#include "base/str.h"
#include "base/uuid.h"
#include "core/event_type.h"

struct event {
    enum event_type type;
    str type_name; /* PascalCase; verbatim for unknown types */
    str run_id, tenant_id, project_id, environment_id, plan_id, plan_version;
    str subject; /* the step of a step-level event, the signal or effect of such a fact, else
                    STR_NONE */
    int64_t engine_attempt, logical_attempt;
    uuid event_id;
    uint8_t key[SHA256_LEN]; /* the idempotency key */
    int64_t emitted_ns;      /* the producer's clock, */
    int emitted_digits;      /* with the number of fraction digits it wrote */
    str payload;             /* compact JSON object, or STR_NONE */
};

struct event_record {
    struct event event;
    int64_t seq;     /* sequence_number: 1, 2, 3, ... in the tenant */
    int64_t run_seq; /* runSeq: 1, 2, 3, ... in the run; 0 for a fact outside the contract */
    int64_t persisted_us;
    int64_t cause_seq; /* sequence_number of the event that caused this one; 0 for a root */
    uuid correlation_id;
    uuid cause_id; /* eventId of the cause, when cause_seq is set */
    str actor;     /* or STR_NONE */
    uint8_t hash[SHA256_LEN];
};

/* Parses and validates one RunEventWrite. Strings live in the arena. On failure err->reason is one
 * of the codes in docs/errors.md, err->where the JSON pointer of the field. */
MUST_CHECK status event_parse(str json, struct arena *arena, struct event *out, struct error *err);
/* Checks an event that a C caller filled, and sets `type` from `type_name`. The key must be the
 * derived one. */
MUST_CHECK status event_validate(struct event *event, struct error *err);

/* The six fields joined by '|':
 * runId|stepIdNormalized|logicalAttemptId|eventType|planId|planVersion. For the facts outside the
 * contract: |aggregateType|aggregateId|eventType|occurrence, which no event can equal, for no runId
 * is empty. */
void event_key_preimage(const struct event *event, struct buf *out);
/* SHA-256 of the preimage. The only derivation in the program. */
void event_key_derive(const struct event *event, uint8_t out[SHA256_LEN]);

/* The members of a struct event_record as JSON, for writing and reading: those of a RunEventWrite
 * first, then those that a RunEventRecord adds, then those of the tenant feed. Read, a record's seq
 * is its runSeq if the text has no sequenceNumber. */
enum { EVENT_WRITE_MEMBERS = 14, EVENT_RECORD_MEMBERS = 16, EVENT_FEED_MEMBERS = 22 };
extern const struct member_row event_members[EVENT_FEED_MEMBERS];
/* {"eventId":...,"persistedAt":...}: the members of a RunEventRecord, in the contract's order. */
void event_record_json(const struct event_record *rec, struct buf *out);
/* The same without runSeq and persistedAt. */
void event_write_json(const struct event *event, struct buf *out);
/* The record's members plus sequenceNumber, aggregateType, aggregateId, correlationId, causationId,
 * actor: the tenant feed. Facts, which have no runSeq, lack that member. */
void event_feed_json(const struct event_record *rec, struct buf *out);

/* Unknown types: STEP with a subject, else RUN. */
enum event_family event_family_of(const struct event *event);

/* The UUID that CANON's columns show for a text id: the id itself if it is a UUID, else v5 within
 * `space`. */
uuid event_uuid_of(uuid space, str id);
uuid event_tenant_uuid(str tenant_id);
