/* cli/commands.c: every command there is. Dispatch, help and completion read this table. */
#include "cli/cli.h"

#define B(opt) OPT_BIT(OPT_##opt)
#define ENGINE_OPTIONS                                                                             \
    (B(SECRETS) | B(ALLOW) | B(ENDPOINT) | B(WAIT)) /* of whoever carries out steps */
#define SIGNAL_OPTIONS (B(REASON) | B(SIGNAL_ID) | B(ACTOR) | B(WAIT))

const struct command commands[] = {
    {"ledger", "append", "[FILE|-]", 0, 1, USES_LEDGER | USES_SERVER | STREAMS | WORD_IS_PATH,
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
    {"ledger", "events", "", 0, 0, USES_LEDGER | USES_SERVER | STREAMS,
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
    {"ledger", "causes", "EVENT_ID", 1, 1, USES_LEDGER | USES_SERVER, B(LIMIT), 0,
     cmd_ledger_causes, "show what caused an event, and what caused that",
     "The event itself has depth 0; the last one shown is the root."},
    {"ledger", "alerts", "", 0, 0, USES_LEDGER | USES_SERVER, B(RUN) | B(LIMIT), 0,
     cmd_ledger_alerts, "show events that the state of their run forbade",
     "Newest run first. Alerts exist for events that were recorded (--validation record)."},
    {"ledger", "checkpoint", "RUN", 1, 1, USES_LEDGER | USES_SERVER, B(WAIT), 0,
     cmd_ledger_checkpoint, "save a run's state, so that replay starts there",
     "Appends RunCheckpointCreated in the same transaction and prints its metadata."},
    {"ledger", "verify", "", 0, 0, USES_LEDGER | USES_SERVER, B(STATE) | B(QUIET), 0,
     cmd_ledger_verify, "check the hash chain, contiguity and order of everything",
     "With --state every run is replayed and compared with its projections. Names the first bad "
     "row. Exit code 8 if damaged."},
    {"ledger", "rebuild", "", 0, 0, USES_LEDGER, B(WAIT) | B(QUIET), 0, cmd_ledger_rebuild,
     "make all projections again from the events",
     "In one transaction: readers see the old state or the new."},
    {"ledger", "stats", "", 0, 0, USES_LEDGER | USES_SERVER, 0, 0, cmd_ledger_stats,
     "count what is in the ledger", ""},
    {"ledger", "backup", "FILE", 1, 1, USES_LEDGER | USES_SERVER | WORD_IS_PATH, 0, 0,
     cmd_ledger_backup, "copy a SQLite ledger while it is in use",
     "The copy is verified before it gets its name. With --server FILE is a plain name, and the "
     "copy "
     "is in the folder\n"
     "backups of the server's data. On PostgreSQL use pg_dump."},
    {"ledger", "archive", "", 0, 0, USES_LEDGER | USES_SERVER,
     B(RUN) | B(UNTIL) | B(LIMIT) | B(WAIT) | B(QUIET), 0, cmd_ledger_archive,
     "move the events of finished runs to the archive",
     "--until: only runs that ended before that instant. --limit: so many runs at most. Nothing "
     "is\n"
     "deleted and no answer changes: the archive is a second tier that every query reads."},
    {"ledger", "types", "", 0, 0, 0, 0, 0, cmd_ledger_types, "list the known event types",
     "Any other type is accepted, stored and shown as it is, and changes no state."},
    {"run", "list", "", 0, 0, USES_LEDGER | USES_SERVER,
     B(STATUS) | B(TENANT) | B(PROJECT) | B(ENVIRONMENT) | B(PLAN) | B(INCONSISTENT) | B(LIMIT) |
         B(BEFORE),
     0, cmd_run_list, "list runs, newest first",
     "50 unless --limit says otherwise. --before takes the \"cursor\" of the last run seen."},
    {"run", "show", "RUN", 1, 1, USES_LEDGER | USES_SERVER, B(AT), 0, cmd_run_show,
     "show a run and its steps, now or at any event",
     "--at N shows the state right after the event with runSeq N."},
    {"run", "resolve", "", 0, 0, USES_LEDGER | USES_SERVER,
     B(PROVIDER) | B(WORKFLOW) | B(PROVIDER_RUN) | B(TENANT),
     B(PROVIDER) | B(WORKFLOW) | B(PROVIDER_RUN), cmd_run_resolve,
     "find the run that a provider knows by its own ids", ""},
    {"run", "steps", "RUN", 1, 1, USES_LEDGER | USES_SERVER, 0, 0, cmd_run_steps,
     "show the steps of a run: state, attempt, times, failure", ""},
    {"run", "logs", "RUN [STEP]", 1, 2, USES_LEDGER | USES_SERVER | USES_FOLDER, B(ATTEMPT), 0,
     cmd_run_logs, "show what the programs of a run's steps have written",
     "All attempts, or the one of --attempt. Of one step and attempt the bytes as they are; else "
     "each line with its step,\n"
     "\" | \" for standard output and \" ! \" for standard error. The files are in the data "
     "folder."},
    {"run", "watch", "RUN", 1, 1, USES_LEDGER | USES_SERVER, B(QUIET), 0, cmd_run_watch,
     "show a run as it happens, whoever carries it out",
     "Ends with the run; output and exit code are then those of \"cairn run PLAN\"."},
    {"run", "pause", "RUN", 1, 1, USES_LEDGER | USES_SERVER | USES_FOLDER, SIGNAL_OPTIONS, 0,
     cmd_run_pause, "let a run finish what it has begun, and start nothing more",
     "Steps that run go on to their end; timers start no new work until \"cairn run resume\"."},
    {"run", "resume", "[RUN]", 0, 1, USES_LEDGER | USES_SERVER | USES_FOLDER,
     /* NOLINTNEXTLINE(misc-redundant-expression): a union of two sets, which both have --wait */
     SIGNAL_OPTIONS | ENGINE_OPTIONS | B(ALL) | B(QUIET), 0, cmd_run_resume,
     "go on with a run that is paused, or was interrupted",
     "A PAUSED run is told to go on. A run that nobody carries out, because its process ended, is "
     "carried out in this\n"
     "one until it ends; output and exit code are those of \"cairn run PLAN\". --all goes on with "
     "every open run of the\n"
     "data folder until what is left waits for people."},
    {"run", "cancel", "RUN", 1, 1, USES_LEDGER | USES_SERVER | USES_FOLDER, SIGNAL_OPTIONS, 0,
     cmd_run_cancel, "end a run: what runs is stopped, nothing more starts",
     "Processes get SIGTERM and, five seconds later, SIGKILL. Cancelling a finished run changes "
     "nothing."},
    {"run", "retry", "RUN STEP", 2, 2, USES_LEDGER | USES_SERVER | USES_FOLDER, SIGNAL_OPTIONS, 0,
     cmd_run_retry, "try a failed step again, now",
     "As long as the run is open and nothing was done on the strength of the failure."},
    {"run", "approve", "RUN [STEP]", 1, 2, USES_LEDGER | USES_SERVER | USES_FOLDER,
     SIGNAL_OPTIONS | B(PAYLOAD), 0, cmd_run_approve, "let a run, or its approval step, go on",
     "STEP is needed where several wait."},
    {"run", "reject", "RUN [STEP]", 1, 2, USES_LEDGER | USES_SERVER | USES_FOLDER,
     SIGNAL_OPTIONS | B(PAYLOAD), 0, cmd_run_reject, "refuse an approval",
     "A run that waits for approval is cancelled; a step fails with APPROVAL_REJECTED."},
    {"run", "signal", "RUN NAME", 2, 2, USES_LEDGER | USES_SERVER | USES_FOLDER,
     SIGNAL_OPTIONS | B(PAYLOAD), 0, cmd_run_signal, "send a named signal, for a step of type wait",
     "Kept until a step waits for it. The payload becomes the step's output."},
    {"run", "", "PLAN|-", 1, 1, USES_LEDGER | USES_SERVER | USES_FOLDER | WORD_IS_PATH,
     ENGINE_OPTIONS | B(INPUT) | B(RUN_ID) | B(TENANT) | B(PROJECT) | B(ENVIRONMENT) | B(ACTOR) |
         B(APPROVAL) | B(QUIET) | B(PROVIDER),
     0, cmd_run_plan, "carry out a plan until it ends",
     "PLAN is a file with a plan (JSON, comments allowed), or with a reference to one: an object "
     "with uri and sha256.\n"
     "Progress goes to standard error, the result to standard output; -o json prints one "
     "document.\n"
     "The same --run-id again never starts a run twice: an open run is gone on with, of a finished "
     "one the result is\n"
     "printed. --input NAME=VALUE gives a parameter: JSON if it reads as JSON and the plan does "
     "not "
     "ask for a string.\n"
     "When another process holds the data folder the run is carried out there, and watched from "
     "here.\n"
     "--provider temporal or conductor has that cluster dispatch the steps; it is named by "
     "CAIRN_TEMPORAL=HOST:PORT or\n"
     "CAIRN_CONDUCTOR=URL. Without it the plan's targetAdapter decides, else they run here.\n"
     "Ctrl-C ends politely: the run stays open. A second one ends at once.\n"
     "Exit code 0 if the run COMPLETED, 10 if it FAILED, 11 if it was CANCELLED, 130 when "
     "interrupted.\n"
     "A plan file named like a command is written ./list."},
    {"plan", "validate", "FILE|-", 1, 1, WORD_IS_PATH, 0, 0, cmd_plan_validate,
     "check a plan, and say all that is wrong with it",
     "Each problem is FILE:LINE:COLUMN: CODE /pointer message. Also tells whether the adapter can "
     "do what the plan needs."},
    {"plan", "graph", "FILE|-", 1, 1, WORD_IS_PATH, 0, 0, cmd_plan_graph,
     "show the steps and what depends on what",
     "In the language of Graphviz: cairn plan graph plan.json | dot -Tsvg. -o json gives nodes and "
     "edges."},
    {"plan", "schema", "", 0, 0, 0, 0, 0, cmd_plan_schema,
     "print the JSON Schema of the plan language", ""},
    {"plan", "ref", "FILE|-", 1, 1, WORD_IS_PATH, B(URI), 0, cmd_plan_ref,
     "print the reference of a plan: uri, sha256, size, ids", ""},
    {"plan", "put", "FILE|-", 1, 1, WORD_IS_PATH | USES_SERVER, B(DATA) | B(TENANT), 0,
     cmd_plan_put, "keep a plan in the data folder or on a server, and print its reference",
     "The reference, plan:sha256:..., is known there only. --tenant is for a server."},
    {"plan", "capabilities", "", 0, 0, 0, 0, 0, cmd_plan_capabilities,
     "list what plans may require, and which adapter can do it", ""},
    {"template", "render", "TEMPLATE|-", 1, 1, WORD_IS_PATH, B(CONTEXT), 0, cmd_template_render,
     "render a Liquid template, to try one", ""},
    {"effect", "list", "", 0, 0, USES_LEDGER | USES_SERVER,
     B(STATUS) | B(TYPE) | B(RUN) | B(TENANT) | B(LIMIT), 0, cmd_effect_list,
     "list the effects that were asked for, newest first",
     "50 unless --limit says otherwise. --status is PENDING, PROCESSING, COMPLETED, FAILED (it is "
     "tried again) or\n"
     "DEAD_LETTER (it was given up)."},
    {"effect", "show", "EFFECT_ID", 1, 1, USES_LEDGER | USES_SERVER, 0, 0, cmd_effect_show,
     "show an effect: how far it is, its payload, result or newest failure", ""},
    {"effect", "request", "RUN FILE|-", 2, 2, USES_LEDGER | USES_SERVER | WORD_IS_PATH,
     B(TYPE) | B(STEP_ID) | B(ACTOR) | B(WAIT), B(TYPE), cmd_effect_request,
     "ask for an effect in the name of a run, and print its id",
     "The file holds the payload, a JSON object. If it has an \"idempotency_key\", there is one "
     "effect of that key in\n"
     "the tenant: whoever asks again gets the first one. Credentials are named, "
     "{\"secret\":\"NAME\"}, not written down.\n"
     "Who delivers it is \"cairn serve\"."},
    {"effect", "requeue", "[ID...]", 0, 6, USES_LEDGER | USES_SERVER,
     B(ALL) | B(TYPE) | B(RUN) | B(TENANT) | B(LIMIT) | B(REASON) | B(ACTOR) | B(WAIT), 0,
     cmd_effect_requeue, "put effects back that were given up",
     "Up to six by their ids; or with --all every DEAD_LETTER that --type, --run and --tenant "
     "leave, 1000 at a time."},
    {"key", "create", "NAME", 1, 1, USES_LEDGER | USES_SERVER,
     B(ROLE) | B(TENANT) | B(UNTIL) | B(WAIT), B(ROLE), cmd_key_create,
     "make an API key, and print it this once",
     "viewer reads; operator reads, starts and signals runs, and puts plans; producer appends "
     "events; worker takes\n"
     "tasks; admin does everything. The key is of the tenant \"default\" unless --tenant says "
     "otherwise, \"*\" is every\n"
     "tenant; --until ends it. A ledger that is not there yet is made."},
    {"key", "list", "", 0, 0, USES_LEDGER | USES_SERVER, B(TENANT), 0, cmd_key_list,
     "list the API keys, those that have ended too", ""},
    {"key", "show", "KEY_ID", 1, 1, USES_LEDGER | USES_SERVER, 0, 0, cmd_key_show,
     "show an API key: roles, times, who made it; never the key itself", ""},
    {"key", "revoke", "KEY_ID", 1, 1, USES_LEDGER | USES_SERVER, B(WAIT), 0, cmd_key_revoke,
     "end an API key, now and for good",
     "At once on the server that does it; within five seconds on others of the same ledger."},
    {"audit", "", "", 0, 0, USES_LEDGER | USES_SERVER, B(TENANT) | B(LIMIT), 0, cmd_audit,
     "show who changed what over the API, newest first", "50 unless --limit says otherwise."},
    {"serve", "", "", 0, 0, USES_LEDGER | USES_FOLDER,
     ENGINE_OPTIONS | B(NODE) | B(MAX_RUNS_PER_TENANT) | B(MAX_RUNS_PER_PLAN) | B(LISTEN) |
         B(TLS_CERT) | B(TLS_KEY) | B(AUTH) | B(JWKS) | B(JWT_ISSUER) | B(JWT_AUDIENCE) | B(RATE) |
         B(LOG),
     0, cmd_serve, "carry out all open runs and answer over HTTP, until ended",
     "Says on standard error when it is ready, and where it listens. On this machine's own "
     "addresses nobody is asked\n"
     "who they are, unless --auth is given; on any other everybody is: \"cairn key create\" makes "
     "the first key.\n"
     "SIGTERM or SIGINT end it: what runs is stopped and goes on with the next start. SIGHUP reads "
     "certificate and\n"
     "token keys again. Several may share a PostgreSQL ledger; one takes over from another that "
     "died."},
    {"explain", "", "RUN", 1, 1, USES_LEDGER | USES_SERVER, 0, 0, cmd_explain,
     "say why a run waits, on whom, since when, and when it wakes", ""},
    {"selftest", "", "", 0, 0, 0, B(SEED) | B(SEEDS), 0, cmd_selftest,
     "try the engine in simulated worlds full of faults",
     "Each seed is a world: crashes, lost and repeated replies, slow disks, dying workers, two "
     "nodes. "
     "The same seed is\n"
     "the same world, with the same hash of all that happened. 1000 seeds unless --seed or --seeds "
     "say otherwise."},
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
    {"completion", "", "bash|zsh|fish", 1, 1, 0, 0, 0, cmd_completion,
     "print a completion script for the shell",
     "source <(cairn completion bash); cairn completion fish | source; for zsh a file _cairn in "
     "$fpath."},
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

bool command_has_verbs(str noun) {
    for (size_t i = 0; i < command_count; i++) {
        if (str_eq(str_c(commands[i].noun), noun) && commands[i].verb[0]) return true;
    }
    return false;
}

uint64_t command_options(const struct command *c) {
    uint64_t common = B(HELP) | B(OUTPUT);
    if (c->traits & USES_LEDGER) common |= B(DATA) | B(DB);
    if (c->traits & USES_SERVER) common |= B(SERVER) | B(KEY_FILE);
    return c->options | common;
}
