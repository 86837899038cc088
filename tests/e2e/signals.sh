#!/bin/bash
# Telling a run what to do, from another process; cairn serve.
. "$(dirname "$0")/lib/e2e.sh"
. "$(dirname "$0")/lib/engine.sh"
. "$(dirname "$0")/lib/server.sh"

ask() { # METHOD PATH [JSON]: one request on the socket in the data folder
    local folder=data
    [ "$store_kind" = sqlite ] || folder=folder
    curl -sS --max-time 60 --unix-socket $folder/cairn.sock -X "$1" -H 'Content-Type: application/json' \
        ${3:+--data-binary "$3"} "http://localhost$2"
}

db_test_cancel_ends_with_11() {
    plan p "$(sh_step a 'sleep 60')"
    r_exec run p.json --run-id c >out 2>err &
    local pid=$!
    until_true step_is c a RUNNING
    r run cancel c --reason 'not today' --actor ann
    ends_with 11 $pid
    holds "$(cat out)" "status  CANCELLED"
    grep -q 'run cancelled after' err
    c ledger events --run c -o ndjson | jq -e 'select(.eventType == "RunCancelled") | .payload.reason == "not today"' >/dev/null
    r run cancel c # again: nothing to do
    refused 4 RUN_FINISHED r run pause c
    refused 3 RUN_NOT_FOUND r run cancel nobody
}

# WE-2.1.1-3, WE-2.1.1-4, WE-2.1.1-5: commands that take a RUN take its EngineRunRef, too, with what its provider needs and for that run only.
db_test_a_run_is_named_by_its_reference() {
    plan p "$(step w wait ',"signal":"go"'),$(sh_step a 'sleep 60' ',"dependsOn":["w"]')"
    r_exec run p.json --run-id x -q >/dev/null &
    local pid=$! verb name
    until_true step_is x w RUNNING
    local ref='{"provider":"local","workflowId":"x","runId":"x"}'
    same "$(c run show "$ref" -o json | jq -r '[.runId, .state.status] | join(" ")')" "x RUNNING"
    for verb in 'c run show' 'r run cancel' 'r run signal'; do
        name=$([ "$verb" = 'r run signal' ] && echo go || true)
        refused 1 RUN_REF_INVALID $verb '{"provider":"local","workflowId":"x"}' $name
        refused 1 RUN_REF_INVALID $verb '{"provider":"temporal","workflowId":"x","runId":"x"}' $name
        refused 1 RUN_REF_INVALID $verb '{"provider":"conductor","workflowId":"x","runId":"x"}' $name
        refused 4 RUN_REF_MISMATCH $verb '{"provider":"temporal","namespace":"n","workflowId":"x","runId":"x"}' $name
        refused 3 RUN_NOT_FOUND $verb '{"provider":"local","workflowId":"nobody","runId":"nobody"}' $name
    done
    same "$(events_of x)" "RunStarted StepStarted "
    r run signal "$ref" go
    until_true step_is x a RUNNING
    r run cancel "$ref"
    ends_with 11 $pid
}

db_test_approve_from_a_second_process() {
    plan p "$(step gate approval),$(sh_step a 'echo through' ',"dependsOn":["gate"]')"
    r_exec run p.json --run-id a -o json >out 2>err &
    local pid=$!
    until_true step_is a gate RUNNING
    holds "$(cat err)" "waits for approval: cairn run approve a gate"
    r run approve a gate --actor bob --payload '{"ticket":7}'
    ends_with 0 $pid
    same "$(jq -c '.steps[0].output | [.decision,.by,.payload.ticket]' out)" '["approved","bob",7]'
    same "$(jq -r '.steps[1].output' out)" through
}

db_test_reject_fails_the_step() {
    plan p "$(step gate approval)"
    r_exec run p.json --run-id a -q -o json >out &
    local pid=$!
    until_true step_is a gate RUNNING
    r run reject a
    ends_with 10 $pid
    same "$(jq -r '.steps[0].error.code' out)" APPROVAL_REJECTED
}

test_a_run_waits_for_approval() {
    plan p "$(sh_step a 'echo go')"
    r_exec run p.json --run-id a --approval -q -o json >out &
    local pid=$!
    until_true status_is a PENDING
    r run approve a
    ends_with 0 $pid
    r_exec run p.json --run-id b --approval -q >/dev/null &
    pid=$!
    until_true status_is b PENDING
    r run reject b
    ends_with 11 $pid
}

# A step that ends when the test has made the file `go`, so that a slow machine changes nothing.
gated() { echo "until [ -e $PWD/go ]; do sleep 0.05; done"; }
was_paused() { case "$(events_of "$1")" in *RunPaused*) ;; *) return 1 ;; esac; }

db_test_pause_and_resume() {
    plan p "$(sh_step a "$(gated)"),$(sh_step b 'echo done' ',"dependsOn":["a"]')"
    r_exec run p.json --run-id p -o json >out 2>err &
    local pid=$!
    until_true step_is p a RUNNING
    r run pause p
    until_true was_paused p
    touch go
    until_true step_is p a SUCCESS
    sleep 0.5
    status_is p PAUSED
    step_is p b "" # it has not begun
    refused 4 SIGNAL_NOT_APPLICABLE r run pause p
    r run resume p
    ends_with 0 $pid
    same "$(jq -r .status out)" COMPLETED
    holds "$(events_of p)" "RunPaused StepCompleted RunResumed StepStarted"
    exits 0 c run watch p >shown 2>err # from the beginning, although it is over
    holds "$(cat shown)" "status  COMPLETED"
    grep -q "run paused" err
}

test_a_paused_run_goes_on_without_its_process() {
    plan p "$(sh_step a "$(gated)"),$(sh_step b 'echo done' ',"dependsOn":["a"]')"
    r_exec run p.json --run-id p -q >/dev/null 2>&1 &
    local pid=$!
    until_true step_is p a RUNNING
    r run pause p
    until_true was_paused p
    touch go
    until_true step_is p a SUCCESS
    kill -9 $pid
    ends_with 137 $pid
    same "$(r run resume p -o json 2>/dev/null | jq -r '.steps[1].output')" "done"
}

db_test_a_named_signal() {
    plan p "$(step w wait ',"signal":"files-there"'),$(sh_step a 'echo {{ steps.w.output.count }}' ',"dependsOn":["w"]')"
    r_exec run p.json --run-id w -q -o json >out &
    local pid=$!
    until_true step_is w w RUNNING
    r run signal w files-there --payload '{"count":3}' --signal-id s-1
    r run signal w files-there --payload '{"count":4}' --signal-id s-1 || true # the same again: no effect, or too late
    ends_with 0 $pid
    same "$(jq -r '.steps[1].output' out)" 3
    refused 1 JSON_SYNTAX r run signal w x --payload '{'
}

test_retry_a_failed_step() {
    plan p "$(sh_step a 'test -e ../../now' ',"retry":{"maxAttempts":2,"initialMs":60000,"maxMs":60000}')"
    r_exec run p.json --run-id r -q -o json >out &
    local pid=$!
    until_true step_is r a FAILED
    touch data/now
    r run retry r a
    ends_with 0 $pid
    refused 2 'RUN STEP is missing' r run retry r
}

test_signals_without_a_process() {
    plan p "$(step gate approval),$(sh_step a 'echo on' ',"dependsOn":["gate"]')"
    r_exec run p.json --run-id a -q >/dev/null 2>&1 &
    local pid=$!
    until_true step_is a gate RUNNING
    kill -INT $pid
    ends_with 130 $pid
    r run approve a 2>err
    holds "$(cat err)" "cairn run resume a"
    same "$(r run resume a -o json -q | jq -r '.steps[1].output')" on
    r_exec run p.json --run-id b -q >/dev/null 2>&1 &
    pid=$!
    until_true step_is b gate RUNNING
    kill -9 $pid
    ends_with 137 $pid
    r run cancel b -o json >out
    same "$(jq -r .signal out)" CANCEL
    status_is b CANCELLED
    refused 3 LEDGER_NOT_FOUND "$cairn" run cancel b --data nowhere
    [ ! -e nowhere/ledger.db ]
}

test_resume_all() {
    plan p "$(sh_step a "$(gated)"),$(step s sleep ',"durationMs":300,"dependsOn":["a"]')"
    plan q "$(step gate approval)"
    local i pid
    for i in 1 2 3; do
        r_exec run p.json --run-id "p$i" -q >/dev/null 2>&1 &
        pid=$!
        until_true step_is "p$i" a RUNNING
        kill -9 $pid
        ends_with 137 $pid
    done
    r_exec run q.json --run-id q -q >/dev/null 2>&1 &
    pid=$!
    until_true step_is q gate RUNNING
    kill -INT $pid
    ends_with 130 $pid
    touch go
    r run resume --all
    for i in 1 2 3; do status_is "p$i" COMPLETED; done
    status_is q RUNNING # it waits for somebody
    refused 2 'give one of them' r run resume q --all
    refused 2 'or --all' r run resume
}

test_serve_carries_out_what_others_start() {
    need curl
    r_exec serve --listen 127.0.0.1:0 2>log &
    local pid=$!
    until_true grep -qE '^cairn [0-9.]+ ready: ledger .*, node local, 0 open runs, listening on http://127.0.0.1:[0-9]+ ' log
    plan p "$(sh_step a 'echo by the server')"
    same "$(r run p.json --run-id p -q -o json | jq -r '.steps[0].output')" "by the server"
    local ref
    ref=$(c plan put p.json)
    same "$(ask POST /v1/runs "{\"planRef\":$ref,\"context\":{\"tenantId\":\"t\",\"runId\":\"direct\"}}" | jq -r .runId)" direct
    until_true status_is direct COMPLETED
    same "$(ask GET /v1/admin/status | jq -c '[.node,.pid]')" "[\"local\",$pid]"
    exits 4 r serve --listen 127.0.0.1:0 2>err
    holds "$(cat err)" FOLDER_IN_USE
    kill -TERM $pid
    ends_with 0 $pid
    [ ! -e data/cairn.sock ]
}

test_a_worker_takes_tasks_through_the_socket() {
    need curl
    plan p "$(step t task ',"queue":"resize","input":{"file":"{{ parameters.file }}"}'),$(sh_step a 'echo {{ steps.t.output.size }}' ',"dependsOn":["t"]')"
    r_exec run p.json --run-id t --input file=cat.png -q -o json >out &
    local pid=$! task
    until_true step_is t t RUNNING
    same "$(ask POST /v1/tasks/poll '{"tenantId":"default","queue":"other","worker":"w","leaseMs":5000,"waitMs":10}')" '{"items":[]}'
    task=$(ask POST /v1/tasks/poll '{"tenantId":"default","queue":"resize","worker":"w","leaseMs":5000,"waitMs":2000}')
    same "$(jq -c '.items[0] | [.runId,.stepId,.attempt,.lease,.input.file]' <<<"$task")" '["t","t",1,1,"cat.png"]'
    task=$(jq -c '.items[0].task' <<<"$task")
    ask POST /v1/tasks/heartbeat "{\"task\":$task,\"leaseMs\":9000}" | jq -e .leaseUntil >/dev/null
    ask POST /v1/tasks/complete '{"task":"another","output":{"size":1}}' | jq -e '.status >= 400' >/dev/null
    same "$(ask POST /v1/tasks/complete "{\"task\":$task,\"output\":{\"size\":12}}")" '{}'
    ends_with 0 $pid
    same "$(jq -r '.steps[1].output' out)" 12
}

test_serve_goes_on_after_a_kill() {
    plan p "$(sh_step a "$(gated)"),$(step s sleep ',"durationMs":500,"dependsOn":["a"]')"
    r_exec serve --listen 127.0.0.1:0 2>log &
    local pid=$!
    until_true grep -q ready log
    r_exec run p.json --run-id p -q >/dev/null &
    local watcher=$!
    until_true step_is p a RUNNING
    kill -9 $pid # the watcher goes on
    ends_with 137 $pid
    touch go
    ends_with 0 $watcher
    status_is p COMPLETED
    rm go
    r_exec run p.json --run-id q -q >/dev/null 2>&1 &
    pid=$!
    until_true step_is q a RUNNING
    kill -9 $pid
    ends_with 137 $pid
    touch go
    r_exec serve --listen 127.0.0.1:0 2>log &
    pid=$!
    until_true grep -q 'ready.*1 open runs' log
    until_true status_is q COMPLETED
    kill -INT $pid
    ends_with 0 $pid
}

test_runs_wait_for_admission() {
    plan p "$(sh_step a "$(gated)")"
    r_exec serve --listen 127.0.0.1:0 --max-runs-per-tenant 1 2>log &
    local pid=$!
    until_true grep -q ready log
    r run p.json --run-id one -q >/dev/null &
    until_true step_is one a RUNNING
    r_exec run p.json --run-id two >/dev/null 2>err &
    local second=$!
    until_true grep -q "run waits until others end" err
    touch go
    ends_with 0 $second
    holds "$(events_of two)" "RunQueued RunStarted"
    kill $pid
    wait
}

# One serve is killed: another takes over within ten seconds.
pg_test_serve_takes_over() {
    plan p "$(sh_step a 'sleep 1; echo a'),$(step s sleep ',"durationMs":500,"dependsOn":["a"]'),$(sh_step b 'echo b' ',"dependsOn":["s"]')"
    need curl
    r_exec serve --listen 127.0.0.1:0 --node one 2>log1 &
    local one=$!
    until_true grep -q 'ready.*node one' log1
    same "$(ls -A folder | grep -c cairn.sock)" 1
    ask POST /v1/runs "{\"planRef\":$("$cairn" plan put p.json --data folder),\"context\":{\"tenantId\":\"t\",\"runId\":\"x\"}}"
    until_true step_is x a RUNNING
    r_exec serve --listen 127.0.0.1:0 --node two 2>log2 &
    local two=$!
    until_true grep -q 'ready.*node two' log2
    exits 4 r serve --listen 127.0.0.1:0 --node two 2>err
    holds "$(cat err)" NODE_ALIVE
    kill -9 $one
    ends_with 137 $one
    local start=$SECONDS
    until_true status_is x COMPLETED
    [ $((SECONDS - start)) -le 12 ]
    holds "$(events_of x)" RunRecovered
    kill $two
    ends_with 0 $two
    c ledger verify --state
}

# Started by one process, watched by another, told by a third.
pg_test_three_processes() {
    plan p "$(step gate approval),$(sh_step a 'echo x' ',"dependsOn":["gate"]')"
    r_exec run p.json --run-id x -q -o json >one &
    local one=$!
    until_true step_is x gate RUNNING
    r_exec run p.json --run-id x -q -o json >two &
    local two=$!
    sleep 0.5
    r run approve x
    ends_with 0 $one
    ends_with 0 $two
    same "$(cat one)" "$(cat two)"
}

e2e_main "$@"
