/* lib/convert.h: between the structs of cairn.h and ours. */
#pragma once

#include "base/arena.h"
#include "base/error.h"
#include "cairn.h"
#include "ledger/ledger.h"

/* Copies the error if `out` is not NULL, and returns its code. */
cairn_status give_error(const struct error *err, cairn_error *out);
/* CAIRN_OK, or what give_error() says. */
cairn_status give_status(status st, const struct error *err, cairn_error *out);
/* For an event that was answered; `out` may be NULL. Its line stays as it is. */
void give_result(const struct append_result *res, cairn_result *out);
/* For an event that was not. */
void give_failure(const struct error *err, cairn_result *out);
void give_run(const struct run_info *run, cairn_run *out);
void give_verification(const struct verify_report *report, cairn_verification *out);

/* Everything but id and key, which are for take_event(), and without validation. Strings are
 * borrowed, the rest lives in the arena. */
MUST_CHECK status take_fields(const cairn_event *in, struct arena *arena, struct append_item *item,
                              struct error *err);
/* A complete, valid item. */
MUST_CHECK status take_event(const cairn_event *in, struct arena *arena, struct append_item *item,
                             struct error *err);

/* The texts of one record that is being shown. */
struct shown_record {
    cairn_record record;
    char event_id[37], key[65], emitted_at[32], persisted_at[32], cause[37], correlation[37];
};
/* `json` is overwritten with the record's text. ST_RETRY when memory is out. */
MUST_CHECK status show_record(const struct event_record *rec, struct buf *json,
                              struct shown_record *out, struct error *err);
