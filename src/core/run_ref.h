/* core/run_ref.h: an EngineRunRef: how a caller names a run to cancel, query or signal it. Pure.
 *
 * Each provider has its own variant, and a reference has the members of that variant and no others:
 *     {"provider":"local","workflowId":...,"runId":...}
 *     {"provider":"temporal","namespace":...,"workflowId":...,"runId":...,"taskQueue":...}
 *     {"provider":"conductor","workflowId":...,"runId":...,"conductorUrl":...}
 * runId is the ledger's id of the run, whoever executes it; taskQueue is optional. */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/json.h"
#include "core/capability.h"

#define RUN_REF_BYTES_MAX ((size_t)16 * 1024)

struct engine_run_ref {
    enum adapter_kind provider;
    str namespace; /* temporal */
    str workflow_id, run_id;
    str task_queue;    /* temporal; or STR_NONE */
    str conductor_url; /* conductor */
};

/* Strict: an unknown, missing, foreign or malformed member is ST_INVALID with RUN_REF_INVALID and
 * its JSON pointer; text that is no JSON has json_parse()'s reasons. The texts live in the arena.
 */
MUST_CHECK status run_ref_parse(str json, struct arena *arena, struct engine_run_ref *out,
                                struct error *err);
/* The same of a value in a document: pointers begin at the value. */
MUST_CHECK status run_ref_read(yyjson_val *value, struct engine_run_ref *out, struct error *err);
/* Checks one that C code filled: what its provider needs is there, and nothing else is. */
MUST_CHECK status run_ref_check(const struct engine_run_ref *ref, struct error *err);
/* The reference to a run of the local engine. */
struct engine_run_ref run_ref_local(str run_id);
void run_ref_json(const struct engine_run_ref *ref, struct buf *out);
