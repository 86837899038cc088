#!/bin/bash
# The program itself: help, options, output formats, exit codes, and manners towards terminals and pipes.
. "$(dirname "$0")/lib/e2e.sh"
example=$repo/examples/ledger/orders.ndjson

# The words of every command, from the program's own help.
command_names() { "$cairn" help | sed -n 's/^  \([a-z]*\( [a-z]*\)\{0,1\}\) .*/\1/p' | sed 's/ bash$//; s/ *$//'; }

# RE-0-1: the version of the contract, equal to the one in the name of its vectors file.
test_version() {
    holds "$("$cairn" version)" "run events contract 2.0.1"
    holds "$("$cairn" version)" "engine contract 1.1.1" # WE-CL-1: beside the other one
    same "$("$cairn" version -o json | jq -r .contractVersion)" 2.0.1
    same "$(basename "$repo"/contracts/run-events/RunEvents.v*.idempotency_vectors.json)" \
        "RunEvents.v$("$cairn" version -o json | jq -r .contractVersion).idempotency_vectors.json"
    same "$("$cairn" --version)" "$("$cairn" version)"
    if [ -e "$repo/include/cairn.h" ]; then
        same "$("$cairn" version -o json | jq -r .version)" "$(sed -n 's/^#define CAIRN_VERSION "\(.*\)"/\1/p' "$repo/include/cairn.h")"
    fi
}

# It opens no database: a start takes at most 10 ms of processor time, which is the same on a busy machine.
test_version_starts_quickly() {
    if with_sanitizer; then skip "a sanitizer starts slowly"; fi
    perl -e '
        open STDOUT, ">", "/dev/null";
        for (1 .. 50) { system(@ARGV) == 0 or die }
        my (undef, undef, $user, $system) = times;
        my $ms = ($user + $system) * 1000 / 50;
        printf STDERR "%.1f ms each\n", $ms;
        exit($ms > 10)' "$cairn" version
}

test_help_explains_every_command() {
    local command
    [ "$(command_names | wc -l)" -ge 18 ]
    command_names | while read -r command; do
        # shellcheck disable=SC2086
        "$cairn" help $command >text
        holds "$(cat text)" "usage: cairn $command"
        holds "$(cat text)" "Exit codes:"
        # shellcheck disable=SC2086
        same "$("$cairn" $command --help)" "$(cat text)" "--help of $command"
    done
    holds "$("$cairn" help ledger)" "ledger append"
    same "$("$cairn" --help)" "$("$cairn" help)"
    refused 2 'there is no command "nothing"' "$cairn" help nothing
    refused 2 'there is no command "ledger nothing"' "$cairn" help ledger nothing
}

# What is documented is what there is.
test_manual_and_docs_name_every_command_and_option() {
    local command option
    for file in "$repo/man/cairn.1" "$repo/docs/cli.md"; do
        sed 's/\\-/-/g' "$file" >text
        command_names | while read -r command; do
            grep -q "cairn $command" "$file" || fail "$file does not mention \"cairn $command\""
        done
        command_names | while read -r command; do
            # shellcheck disable=SC2086
            "$cairn" help $command | sed -n 's/^  .*\(--[a-z-]*\).*/\1/p'
        done | sort -u | while read -r option; do
            grep -q -- "$option" text || fail "$file does not mention $option"
        done
        for code in 0 1 2 3 4 5 6 7 8 10 11 70 130; do
            grep -qE "(^|[^0-9])$code([^0-9]|$)" text || fail "$file does not mention exit code $code"
        done
    done
}

test_wrong_usage_is_named_precisely() {
    refused 2 'unknown option "--nonsense"' "$cairn" run list --nonsense
    holds "$(cat err)" "try: cairn help run list"
    refused 2 'unknown option "-x"' "$cairn" run list -x
    refused 2 'cairn run list has no option --state' "$cairn" run list --state
    refused 2 '--limit needs a value, N' "$cairn" run list --limit
    refused 2 '--state takes no value' "$cairn" ledger verify --state=yes
    refused 2 '--limit is given twice' "$cairn" run list --limit 1 --limit 2
    refused 2 'there is no command "fly"' "$cairn" fly
    holds "$(cat err)" "try: cairn help"
    refused 2 'there is no command "ledger fly"' "$cairn" ledger fly
    holds "$(cat err)" "try: cairn help ledger"
    refused 2 'which command?' "$cairn" ledger
    refused 2 'what shall be done?' "$cairn"
    refused 2 'one word too many: "b"' "$cairn" run show a b
    refused 2 'give one of them' "$cairn" run list --data a --db postgresql://b
    refused 2 '--db must begin with postgresql://' "$cairn" run list --db b
    refused 2 '--output must be table, json or ndjson' "$cairn" run list -o xml
    refused 2 'bash, zsh and fish' "$cairn" completion tcsh
}

test_options_may_stand_anywhere() {
    "$cairn" --data=d ledger append -q "$example" >/dev/null
    same "$("$cairn" -ojson run --data d list --limit=1 | jq length)" 1
    same "$("$cairn" run list --data d --limit 1 --output json | jq length)" 1
    cp "$example" ./-odd
    same "$("$cairn" ledger append -q --data d -- -odd | wc -l)" 55
}

test_environment_names_the_ledger() {
    CAIRN_DATA=e "$cairn" ledger append -q "$example" >/dev/null
    same "$(CAIRN_DATA=e "$cairn" run list -o json | jq length)" 5
    same "$(CAIRN_DB=postgresql://127.0.0.1:1/x "$cairn" run list --data e -o json | jq length)" 5
    refused 6 "" env CAIRN_DB=postgresql://127.0.0.1:1/x CAIRN_DATA=e "$cairn" run list
    "$cairn" ledger append -q "$example" >/dev/null
    [ -f cairn-data/ledger.db ]
    same "$(stat -c %a cairn-data)" 700 "mode of the folder"
}

test_errors_are_json_when_asked_for() {
    refused 3 LEDGER_NOT_FOUND "$cairn" run list -o json
    same "$(jq -r '.error | keys | join(",")' err)" "code,message,where"
    same "$(jq -r .error.code err)" LEDGER_NOT_FOUND
    refused 3 LEDGER_NOT_FOUND "$cairn" run list -o ndjson
    jq -e .error.message err >/dev/null
    refused 3 INPUT_UNREADABLE "$cairn" ledger append -o json $'no-\xff'
    jq -e .error.message err >/dev/null # valid JSON, although the path is not UTF-8
    "$cairn" event key --run-id 'a|b' --attempt 1 --type X --plan-id p --plan-version 1 -o json 2>err || same "$?" 1
    same "$(jq -c '[.error.code,.error.where]' err)" '["DELIMITER_IN_FIELD","/runId"]'
}

# RE-3.1-1, RE-3.3-5, RE-3.3-7: digests and preimages of all vectors in the contract folder.
test_event_key_derives_the_vectors() {
    local n=0 vector
    while read -r vector; do
        local step=() args
        field() { jq -r "$1" <<<"$vector"; }
        [ "$(field '.stepId // ""')" = "" ] || step=(--step-id "$(field .stepId)")
        args=(--run-id "$(field .runId)" "${step[@]}" --attempt "$(field .logicalAttemptId)" --type "$(field .eventType)"
            --plan-id "$(field .planId)" --plan-version "$(field .planVersion)")
        same "$("$cairn" event key "${args[@]}")" "$(field .expectedSha256Hex)" "key"
        same "$("$cairn" event key "${args[@]}" --preimage)" "$(field .preimage)" "preimage"
        same "$("$cairn" event key "${args[@]}" -o json | jq -r .idempotencyKey)" "$(field .expectedSha256Hex)"
        n=$((n + 1))
    done < <(jq -c '.[]' "$repo"/contracts/run-events/RunEvents.v2.0.1.idempotency_vectors.json)
    [ "$n" -ge 15 ] || fail "only $n vectors"
}

# RE-3.1-8: the attempt in base 10, without leading zeros.
test_event_key_renders_attempts() {
    local n
    for n in 0 7 10 4294967296; do
        same "$("$cairn" event key --run-id r --attempt "$n" --type RunStarted --plan-id p --plan-version 1 --preimage)" "r|RUN|$n|RunStarted|p|1"
    done
    same "$("$cairn" event key --run-id r --attempt 007 --type RunStarted --plan-id p --plan-version 1 --preimage)" "r|RUN|7|RunStarted|p|1"
}

test_types_lists_the_catalogue() {
    same "$("$cairn" ledger types -o ndjson | jq -r 'select(.kind == "lifecycle") | .eventType' | sort | tr '\n' ' ')" \
        "RunCancelled RunCompleted RunFailed RunPaused RunQueued RunResumed RunStarted StepCompleted StepFailed StepSkipped StepStarted "
    same "$("$cairn" ledger types -o json | jq -r '.[] | select(.eventType == "StepRetried") | [.canonType,.aggregateType,.kind,.writtenBy] | join(" ")')" \
        "STEP_RETRIED STEP extension producer"
    holds "$("$cairn" ledger types)" "EFFECT_DEAD_LETTERED"
}

test_pipes_may_close_early() {
    events_pl runs=500 >events
    "$cairn" ledger append -q --data d events >/dev/null
    local codes
    set +e
    "$cairn" ledger events --tenant t --data d 2>err | head -1 >/dev/null
    codes="${PIPESTATUS[*]}"
    set -e
    same "$codes" "141 0"
    same "$(cat err)" "" "complaints"
    # also where the parent ignores SIGPIPE
    (trap '' PIPE; set +o pipefail; "$cairn" ledger events --tenant t --data d 2>err | head -1 >/dev/null)
    same "$(cat err)" ""
}

test_a_full_disk_under_the_output_is_an_error() {
    events_pl runs=50 >events
    local rc=0
    "$cairn" ledger append -q --data d events >/dev/full 2>err || rc=$?
    same "$rc" 6
    holds "$(cat err)" "could not write standard output"
    rc=0
    "$cairn" ledger types >/dev/full 2>err || rc=$?
    same "$rc" 6
}

# Started with its standard descriptors closed, it must not write results into the ledger's own files.
test_closed_descriptors_are_errors() {
    local rc=0
    "$cairn" ledger append -q --data d "$example" >&- 2>err || rc=$?
    same "$rc" 6
    holds "$(cat err)" "could not write standard output"
    rc=0
    "$cairn" ledger append -q --data d <&- 2>err || rc=$?
    same "$rc" 6
    "$cairn" ledger append -q --data d "$example" 2>&- >results
    same "$(wc -l <results)" 55
    "$cairn" ledger verify --state --data d >/dev/null
    same "$(grep -c eventId d/ledger.db.lock || true)" 0
}

# Names that try to talk to the terminal: what is shown has no control character but the line ends.
test_tables_and_errors_show_no_control_characters() {
    local key evil=$'r\e]0;owned\a\e[31m\xc2\x9b2J\xe2\x80\xae'
    key=$("$cairn" event key --run-id "$evil" --attempt 1 --type $'Bad\tType' --plan-id $'p\e[2J' --plan-version 1)
    jq -nc --arg r "$evil" --arg k "$key" '{eventId:"0d3c6a9e-4f0c-4a8e-9d5d-3d4c0f7dbb8a",eventType:"Bad\tType",emittedAt:"2026-02-16T08:00:00Z",runId:$r,tenantId:"t",projectId:"p",environmentId:"e",planId:"p\u001b[2J",planVersion:"1",engineAttemptId:1,logicalAttemptId:1,idempotencyKey:$k,payload:{"x\u001b":"\u007f"}}' >event
    "$cairn" ledger append -q --data d event >/dev/null
    for command in "run list" "ledger events --tenant t" "ledger causes 0d3c6a9e-4f0c-4a8e-9d5d-3d4c0f7dbb8a"; do
        # shellcheck disable=SC2086
        "$cairn" $command --data d -o table >table
        holds "$(cat table)" '\x1b'
        if LC_ALL=C.UTF-8 grep -P '[\x00-\x1f\x7f\x{80}-\x9f\x{202e}]' table; then fail "a control character in: $command"; fi
    done
    "$cairn" run show "$evil" --data d >table
    if LC_ALL=C.UTF-8 grep -P '[\x00-\x1f\x7f\x{80}-\x9f\x{202e}]' table; then fail "a control character in run show"; fi
    "$cairn" run show "$evil!" --data d 2>err || same "$?" 3
    if LC_ALL=C.UTF-8 grep -P '[\x00-\x1f\x7f\x{80}-\x9f\x{202e}]' err; then fail "a control character in an error"; fi
    holds "$(cat err)" RUN_NOT_FOUND
    same "$("$cairn" ledger events --run "$evil" --data d | jq -r .runId)" "$evil" "JSON keeps it as it is"
}

on_terminal() { # COMMAND: what it shows on a terminal, both outputs
    SHELL=/bin/sh TERM=xterm script -qec "$1" /dev/null </dev/null
}

test_terminals_get_tables_colours_and_progress() {
    "$cairn" ledger append -q --data d "$example" >/dev/null
    on_terminal "'$cairn' run list --data d" >shown
    holds "$(cat shown)" $'\e[31mFAILED\e[0m'
    on_terminal "NO_COLOR=1 '$cairn' run list --data d" >shown
    if grep -q $'\e' shown; then fail "colours in spite of NO_COLOR"; fi
    on_terminal "'$cairn' ledger events --run orders-2026-02-16-08h --data d" >shown
    holds "$(cat shown)" "PERSISTED AT" # a table on a terminal,
    holds "$("$cairn" ledger events --run orders-2026-02-16-08h --data d | head -1)" '{"eventId"' # ndjson elsewhere
    events_pl runs=200 >events
    on_terminal "'$cairn' ledger append --data d events >results" >shown
    holds "$(cat shown)" "appending ["
    holds "$(cat shown)" "2000 appended"
    on_terminal "'$cairn' ledger append --data d events -q >results" >shown
    same "$(cat shown)" "" "talk in spite of --quiet"
    on_terminal "'$cairn' ledger append --data d <events >results 2>talk" >shown
    if grep -q "appending \[" talk; then fail "a progress bar in a file"; fi
}

test_columns_are_aligned_by_what_is_shown() {
    local key run i=0
    for run in plain Größe 日本語 e$'\xcc\x81'clair; do
        key=$("$cairn" event key --run-id "$run" --attempt 1 --type RunStarted --plan-id p --plan-version 1)
        printf '{"eventId":"%s","eventType":"RunStarted","emittedAt":"2026-02-16T08:00:00Z","runId":"%s","tenantId":"t","projectId":"p","environmentId":"e","planId":"p","planVersion":"1","engineAttemptId":1,"logicalAttemptId":1,"idempotencyKey":"%s"}\n' \
            "0000000$((i += 1))-0000-4000-8000-000000000000" "$run" "$key"
    done | "$cairn" ledger append -q --data d >/dev/null
    "$cairn" run list --data d >table
    # columns before RUNNING, counting wide characters twice and the accent not at all
    perl -CSD -ne 'next unless /^(.*?)RUNNING/; $_ = $1; s/\p{Mn}//g; $wide = () = /\p{Han}/g; print length($_) + $wide, "\n"' table | sort -u >widths
    same "$(wc -l <widths)" 1 "different columns: $(cat table)"
}

test_completion_knows_commands_and_options() {
    "$cairn" completion bash >completion
    bash -n completion
    complete_words() { # WORD...: what is offered for the last one
        bash -c '. ./completion; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _cairn; echo "${COMPREPLY[*]}"' - "$@"
    }
    same "$(complete_words cairn le)" ledger
    holds "$(complete_words cairn ledger '')" "append events causes"
    holds "$(complete_words cairn ledger append --v)" "--validation"
    same "$(complete_words cairn ledger append --validation re)" "reject record"
    same "$(complete_words cairn run list -o n)" ndjson
    "$cairn" completion zsh >zsh
    "$cairn" completion fish >fish
    same "$(head -1 zsh)" "#compdef cairn"
    command_names | while read -r command; do
        grep -qF "\"$command" zsh || fail "zsh does not know $command"
        grep -qF "__cairn_at $command'" fish || fail "fish does not know $command"
    done
    if command -v zsh >/dev/null; then zsh -n zsh; fi
    if command -v fish >/dev/null; then fish -n fish; fi
}

test_the_example_is_what_its_script_makes() {
    CAIRN=$cairn "$repo/scripts/example-ledger" >made
    cmp made "$example"
}

test_the_demo_runs() {
    CAIRN=$cairn "$repo/scripts/demo.sh" >shown 2>&1
    holds "$(cat shown)" "load-asia failed (EXIT_CODE), retry 2"
    holds "$(cat shown)" "run completed in"
    holds "$(cat shown)" '{"date":"2026-02-16","orders":5850,"regions":4}'
    holds "$(cat shown)" "every projection equals the replay of its events"
}

e2e_main "$@"
