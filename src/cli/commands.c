/* cli/commands.c: every command there is. Dispatch, help and completion read this table. */
#include "cli/cli.h"

#define B(opt) OPT_BIT(OPT_##opt)

const struct command commands[] = {
    {"ledger", "append", "[FILE|-]", 0, 1, USES_LEDGER | STREAMS | WORD_IS_PATH,
     B(VALIDATION) | B(ACCEPT_V1_UNTIL) | B(ACTOR) | B(GROUP) | B(WAIT) | B(QUIET), 0,
     cmd_ledger_append, "append events, one RunEventWrite object a line",
     "Reads a file or standard input and prints one result for each event, in order and only after "
     "it is durable:\n"
     "  {\"eventId\":...,\"runSeq\":...,\"persistedAt\":...,\"duplicate\":false}   or\n"
     "  {\"line\":N,\"error\":{\"code\":...,\"where\":...,\"message\":...}}\n"
     "An event that is there already is a duplicate: it succeeds, with the first record's "
     "metadata, so appending\n"
     "a file again after any failure is safe. Blank lines are skipped; a refused line does not "
     "stop the others.\n"
     "Exit code 1 if a line was refused; 6 or 8 if a commit failed: the lines it leaves "
     "unacknowledged are named."},
    {"ledger", "events", "", 0, 0, USES_LEDGER | STREAMS,
     B(RUN) | B(TENANT) | B(AFTER) | B(CORRELATION) | B(SINCE) | B(UNTIL) | B(FOLLOW) | B(LIMIT), 0,
     cmd_ledger_events, "show events of a run, a tenant, a trace or a time",
     "Select with one of\n"
     "  --run RUN                            its RunEventRecords, by runSeq\n"
     "  --tenant ID [--after SEQ]            the tenant's feed, by sequenceNumber\n"
     "  --correlation UUID [--tenant ID]     one trace, by sequenceNumber\n"
     "  --since TIME --until TIME [--tenant ID]   what was persisted from TIME on, before TIME; "
     "either may be left out.\n"
     "                                       Without --tenant every tenant, one after the other\n"
     "Other than --run prints sequenceNumber, correlationId, causationId and actor as well, and "
     "the facts without runSeq."},
    {"ledger", "causes", "EVENT_ID", 1, 1, USES_LEDGER, B(LIMIT), 0, cmd_ledger_causes,
     "show what caused an event, and what caused that",
     "The event itself has depth 0; the last one shown is the root."},
    {"ledger", "alerts", "", 0, 0, USES_LEDGER, B(RUN) | B(LIMIT), 0, cmd_ledger_alerts,
     "show events that the state of their run forbade",
     "Newest run first. Alerts exist for events that were recorded (--validation record)."},
    {"ledger", "checkpoint", "RUN", 1, 1, USES_LEDGER, B(WAIT), 0, cmd_ledger_checkpoint,
     "save a run's state, so that replay starts there",
     "Appends RunCheckpointCreated in the same transaction and prints its metadata."},
    {"ledger", "verify", "", 0, 0, USES_LEDGER, B(STATE) | B(QUIET), 0, cmd_ledger_verify,
     "check the hash chain, contiguity and order of everything",
     "With --state every run is replayed and compared with its projections. Names the first bad "
     "row. Exit code 8 if damaged."},
    {"ledger", "rebuild", "", 0, 0, USES_LEDGER, B(WAIT) | B(QUIET), 0, cmd_ledger_rebuild,
     "make all projections again from the events",
     "In one transaction: readers see the old state or the new."},
    {"ledger", "stats", "", 0, 0, USES_LEDGER, 0, 0, cmd_ledger_stats,
     "count what is in the ledger", ""},
    {"ledger", "backup", "FILE", 1, 1, USES_LEDGER | WORD_IS_PATH, 0, 0, cmd_ledger_backup,
     "copy a SQLite ledger while it is in use",
     "The copy is verified before it gets its name. On PostgreSQL use pg_dump."},
    {"ledger", "types", "", 0, 0, 0, 0, 0, cmd_ledger_types, "list the known event types",
     "Any other type is accepted, stored and shown as it is, and changes no state."},
    {"run", "list", "", 0, 0, USES_LEDGER,
     B(STATUS) | B(TENANT) | B(PROJECT) | B(ENVIRONMENT) | B(PLAN) | B(INCONSISTENT) | B(LIMIT) |
         B(BEFORE),
     0, cmd_run_list, "list runs, newest first",
     "50 unless --limit says otherwise. --before takes the \"cursor\" of the last run seen."},
    {"run", "show", "RUN", 1, 1, USES_LEDGER, B(AT), 0, cmd_run_show,
     "show a run and its steps, now or at any event",
     "--at N shows the state right after the event with runSeq N."},
    {"run", "resolve", "", 0, 0, USES_LEDGER,
     B(PROVIDER) | B(WORKFLOW) | B(PROVIDER_RUN) | B(TENANT),
     B(PROVIDER) | B(WORKFLOW) | B(PROVIDER_RUN), cmd_run_resolve,
     "find the run that a provider knows by its own ids", ""},
    {"event", "key", "", 0, 0, 0,
     B(RUN_ID) | B(STEP_ID) | B(ATTEMPT) | B(TYPE) | B(PLAN_ID) | B(PLAN_VERSION) | B(PREIMAGE),
     B(RUN_ID) | B(ATTEMPT) | B(TYPE) | B(PLAN_ID) | B(PLAN_VERSION), cmd_event_key,
     "derive the idempotency key of an event",
     "SHA-256 of runId|stepId|logicalAttemptId|eventType|planId|planVersion, with RUN for the step "
     "of a run-level event."},
    {"doctor", "", "", 0, 0, USES_LEDGER, 0, 0, cmd_doctor,
     "check versions, folder, disk, clock and database",
     "Each check is ok, warn or fail; the exit code is not 0 if one fails. Changes nothing."},
    {"version", "", "", 0, 0, 0, 0, 0, cmd_version, "print the versions of program and contract",
     ""},
    {"completion", "", "bash", 1, 1, 0, 0, 0, cmd_completion,
     "print a completion script for the shell", "source <(cairn completion bash)"},
    {"help", "", "[COMMAND]", 0, 2, 0, 0, 0, cmd_help, "explain a command", ""},
};
const size_t command_count = COUNT_OF(commands);

const struct command *command_find(const str *words, size_t count, size_t *used) {
    *used = 0;
    for (size_t i = 0; i < command_count && count > 0; i++) {
        const struct command *c = &commands[i];
        if (!str_eq(str_c(c->noun), words[0])) continue;
        if (c->verb[0] && (count < 2 || !str_eq(str_c(c->verb), words[1]))) continue;
        *used = c->verb[0] ? 2 : 1;
        return c;
    }
    return NULL;
}

bool command_is_noun(str word) {
    for (size_t i = 0; i < command_count; i++) {
        if (str_eq(str_c(commands[i].noun), word)) return true;
    }
    return false;
}

uint64_t command_options(const struct command *c) {
    uint64_t common = B(HELP) | B(OUTPUT);
    return c->options | common | (c->traits & USES_LEDGER ? B(DATA) | B(DB) : 0);
}
