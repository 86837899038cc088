/* cli/parse.h: the API's JSON, back in the structs that it was made from, so that what a server
 * answers is shown by the same code as what a ledger does.
 *
 * Lenient on purpose: a newer server may say more than we know, and what it leaves out stays 0 or
 * STR_NONE. Texts live as long as the JSON value, whose arena the caller chooses. */
#pragma once

#include <yyjson.h>

#include "engine/status.h"
#include "ledger/access/access.h"
#include "ledger/ledger.h"
#include "outbox/outbox.h"

void parse_run(yyjson_val *obj, struct run_info *out); /* without run_no */
/* A RunEventRecord, or a record of a feed. Of the former, seq is its runSeq. The payload's text is
 * in the arena. */
void parse_event(yyjson_val *obj, struct arena *arena, struct event_record *out);
void parse_alert(yyjson_val *obj, struct alert *out);
void parse_step(yyjson_val *obj, struct step_view *out);
void parse_explanation(yyjson_val *obj, struct arena *arena, struct explanation *out);
void parse_stats(yyjson_val *obj, struct ledger_stats *out);
void parse_report(yyjson_val *obj, struct verify_report *out);
void parse_result(yyjson_val *obj, struct append_result *out);
void parse_key(yyjson_val *obj, struct api_key *out);
void parse_audit(yyjson_val *obj, struct audit_entry *out);
/* Payload, result and error are texts in the arena. */
void parse_effect(yyjson_val *obj, struct arena *arena, struct effect_info *out);
