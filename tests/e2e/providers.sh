#!/bin/bash
# Runs that a real Temporal or Conductor dispatches, from the command line and over HTTP, with nodes that die.
# scripts/with-temporal and with-conductor name the servers; without one its tests are skipped.
. "$(dirname "$0")/lib/e2e.sh"
. "$(dirname "$0")/lib/engine.sh"
. "$(dirname "$0")/lib/server.sh"
unset CAIRN_SERVER CAIRN_KEY_FILE

temporal() { # the test's own queue: the server is shared
    [ -n "${CAIRN_TEST_TEMPORAL:-}" ] || skip "${CAIRN_TEST_TEMPORAL_WHY:-CAIRN_TEST_TEMPORAL names no server}"
    export CAIRN_TEMPORAL=$CAIRN_TEST_TEMPORAL CAIRN_TEMPORAL_QUEUE=q-$$-$RANDOM
    id=t-$$-$RANDOM$RANDOM
}
conductor() {
    [ -n "${CAIRN_TEST_CONDUCTOR:-}" ] || skip "${CAIRN_TEST_CONDUCTOR_WHY:-CAIRN_TEST_CONDUCTOR names no server}"
    export CAIRN_CONDUCTOR=$CAIRN_TEST_CONDUCTOR
    id=c-$$-$RANDOM$RANDOM
}
chain() { plan chain "$(sh_step a "echo '{\"n\":1}'" ',"output":"json"'),$(sh_step b 'echo {{ steps.a.output.n }}' ',"dependsOn":["a"]'),$(step c noop ',"dependsOn":["b"]')"; }
started() { curl -sS "$server/v1/runs" -H 'Content-Type: application/json' -d "$1"; }
reference() { r plan put "$1.json"; }
link() { c ledger events --run "$1" -o ndjson | jq -r 'select(.eventType == "RunProviderLinked") | .payload | [.workflowId, .providerRunId] | join(" ")' | tail -1; }
again() { sh_step a "echo x >>$PWD/a; test -e $PWD/again || exec sleep 120"; } # executed twice: it waits only the first time

db_test_temporal_from_the_command_line() {
    temporal
    chain
    r run chain.json --provider temporal --run-id "$id" -q -o json >result
    same "$(jq -r .status result)" COMPLETED
    same "$(events_of "$id")" "RunQueued RunProviderLinked RunStarted StepStarted StepCompleted StepStarted StepCompleted StepStarted StepCompleted RunCompleted "
    read -r workflow run < <(link "$id")
    same "$workflow" "$id"
    same "$(c run resolve --provider temporal --workflow "$workflow" --provider-run "$run" -o json | jq -r .runId)" "$id"
    c ledger verify --state >/dev/null
    until_true "${CAIRN_TEMPORAL_CLI:?}" workflow result -w "$id" --address "$CAIRN_TEMPORAL"
    # The same run again is no second one; with another adapter it is something else.
    r run chain.json --provider temporal --run-id "$id" -q -o json >result
    same "$(jq -r .status result)" COMPLETED
    refused 4 RUN_ID_TAKEN r run chain.json --run-id "$id" -q
}

db_test_temporal_node_is_killed() {
    temporal
    plan twice "$(again),$(sh_step b 'true' ',"dependsOn":["a"]')"
    start_server
    started "{\"planRef\":$(curl -sS "$server/v1/plans" -H 'Content-Type: application/json' --data-binary @twice.json),\"context\":{\"runId\":\"$id\",\"targetAdapter\":\"temporal\"}}" >answer
    same "$(jq -c .engineRunRef answer)" "{\"provider\":\"temporal\",\"namespace\":\"default\",\"workflowId\":\"$id\",\"runId\":\"$id\",\"taskQueue\":\"$CAIRN_TEMPORAL_QUEUE\"}"
    until_true test -e a
    same "$(curl -sS "$server/v1/runs/$id" | jq -r .engineRunRef.provider)" temporal
    holds "$(c explain "$id")" temporal
    kill -9 "$server_pid"
    wait "$server_pid" || true
    touch again
    start_server
    until_true status_is "$id" COMPLETED
    same "$(wc -l <a)" 2 "times that a was executed"
    same "$(c ledger events --run "$id" -o ndjson | jq -c 'select(.eventType == "StepStarted") | [.stepId, .logicalAttemptId]' | tr '\n' ' ')" '["a",1] ["b",1] '
    holds "$(c ledger events --run "$id" -o ndjson | jq -c 'select(.eventType == "RunRecovered") | .payload')" workerLost
    holds "$(curl -sS "$server/metrics")" 'cairn_provider_workers_lost_total{provider="temporal"} 1'
    c ledger verify --state >/dev/null
}

test_temporal_workflow_of_somebody_else() {
    temporal
    local there=(--address "$CAIRN_TEMPORAL" -w "$id")
    "${CAIRN_TEMPORAL_CLI:?}" workflow start "${there[@]}" --type Other --task-queue "$CAIRN_TEMPORAL_QUEUE.other" >/dev/null
    chain
    exits 10 r run chain.json --provider temporal --run-id "$id" -q -o json >result
    holds "$(c ledger events --run "$id" -o ndjson | jq -c 'select(.eventType == "RunFailed") | .payload')" PROVIDER_FAILED
    same "$(events_of "$id")" "RunQueued RunFailed "
    # Neither signalled nor polled nor ended by us.
    same "$("$CAIRN_TEMPORAL_CLI" workflow show "${there[@]}" -o json | jq -c '[.events[].eventType]')" \
        '["EVENT_TYPE_WORKFLOW_EXECUTION_STARTED","EVENT_TYPE_WORKFLOW_TASK_SCHEDULED"]'
    "$CAIRN_TEMPORAL_CLI" workflow terminate "${there[@]}" >/dev/null
    # It is over, and its id still is not free.
    exits 10 "$cairn" run chain.json --provider temporal --run-id "$id" -q --data again
    c ledger verify --state >/dev/null
}

test_temporal_run_of_another_ledger() {
    temporal
    plan wait "$(sh_step a "echo x >>$PWD/a"),$(step b wait ',"signal":"GO","dependsOn":["a"]')"
    start_server
    started "{\"planRef\":$(curl -sS "$server/v1/plans" -H 'Content-Type: application/json' --data-binary @wait.json),\"context\":{\"runId\":\"$id\",\"targetAdapter\":\"temporal\"}}" >answer
    until_true step_is "$id" b RUNNING
    # The same id and plan from elsewhere: what the first run did there is no result of the second.
    exits 10 "$cairn" run wait.json --provider temporal --run-id "$id" -q -o json --data other >result
    same "$("$cairn" ledger events --run "$id" -o ndjson --data other | jq -r .eventType | tr '\n' ' ')" "RunQueued RunFailed "
    curl -sSf "$server/v1/runs/$id/signals" -H 'Content-Type: application/json' -d '{"signal":"GO"}' >/dev/null
    until_true status_is "$id" COMPLETED
    same "$(wc -l <a)" 1 "times that a was executed"
    until_true "${CAIRN_TEMPORAL_CLI:?}" workflow result -w "$id" --address "$CAIRN_TEMPORAL"
    c ledger verify --state >/dev/null
}

two_ledgers() { # PROVIDER: neither takes what belongs to the other
    local i steps
    for i in 1 2; do
        steps=$(sh_step a "echo $i"),$(sh_step b "echo $i" ',"dependsOn":["a"]'),$(sh_step c "echo $i" ',"dependsOn":["b"]')
        plan "of$i" "$steps"
        "$cairn" run "of$i.json" --provider "$1" --run-id "$id-$i" -q -o json --data "folder$i" >"result$i" &
        pids+=($!)
    done
    for i in 1 2; do
        ends_with 0 "${pids[i - 1]}"
        same "$(jq -r .status "result$i")" COMPLETED
    done
}
test_temporal_serves_two_ledgers() { temporal; two_ledgers temporal; }
test_conductor_serves_two_ledgers() { conductor; two_ledgers conductor; }

db_test_conductor_from_the_command_line() {
    conductor
    chain
    r run chain.json --provider conductor --run-id "$id" -q -o json >result
    same "$(jq -r .status result)" COMPLETED
    read -r workflow run < <(link "$id")
    same "$(c run resolve --provider conductor --workflow "$workflow" --provider-run "$run" -o json | jq -r .runId)" "$id"
    done_there() { [ "$(curl -sS "$CAIRN_CONDUCTOR/api/workflow/$workflow?includeTasks=false" | jq -r '[.status, .correlationId] | join(" ")')" = "COMPLETED $id" ]; }
    until_true done_there
    c ledger verify --state >/dev/null
}

test_conductor_node_is_killed() {
    conductor
    plan twice "$(again),$(sh_step b 'true' ',"dependsOn":["a"]')"
    start_server
    started "{\"planRef\":$(curl -sS "$server/v1/plans" -H 'Content-Type: application/json' --data-binary @twice.json),\"context\":{\"runId\":\"$id\",\"targetAdapter\":\"conductor\"}}" >answer
    same "$(jq -r .engineRunRef.provider answer)" conductor
    until_true test -e a
    kill -9 "$server_pid"
    wait "$server_pid" || true
    touch again
    start_server
    until_true status_is "$id" COMPLETED
    same "$(wc -l <a)" 2 "times that a was executed"
    same "$(curl -sS "$server/v1/runs/$id" | jq -r .engineRunRef.workflowId)" "$(link "$id" | cut -d' ' -f1)"
    c ledger verify --state >/dev/null
}

test_a_cluster_that_is_away() {
    export CAIRN_TEMPORAL=127.0.0.1:1
    chain
    start_server
    started "{\"planRef\":$(curl -sS "$server/v1/plans" -H 'Content-Type: application/json' --data-binary @chain.json),\"context\":{\"runId\":\"r\",\"targetAdapter\":\"temporal\"}}" >answer
    until_true status_is r PENDING
    holds "$(c explain r)" "temporal"
    same "$(curl -sS "$server/v1/runs/r/explain" | jq -r '.waits[0] | [.kind, .on] | join(" ")')" "provider temporal"
    curl -sSf -X POST "$server/v1/runs/r/cancel" >/dev/null
    until_true status_is r CANCELLED
    holds "$(cat serve.err)" "127.0.0.1:1"
    rc=0
    c doctor >said || rc=$?
    holds "$(cat said)" "connection refused"
    [ "$rc" != 0 ]
}

test_bad_settings() {
    chain
    refused 1 ADAPTER_UNAVAILABLE r run chain.json --provider temporal -q
    refused 1 CONTEXT_INVALID r run chain.json --provider nomad -q
    CAIRN_TEMPORAL=nowhere refused 2 "CAIRN_TEMPORAL must be HOST:PORT" r run chain.json -q
    CAIRN_TEMPORAL=a:1 CAIRN_TEMPORAL_TLS=yes refused 2 "CAIRN_TEMPORAL_TLS must be 1 or 0" r run chain.json -q
    CAIRN_TEMPORAL=a:1 CAIRN_TEMPORAL_SLOTS=0 refused 2 "CAIRN_TEMPORAL_SLOTS" r run chain.json -q
    CAIRN_TEMPORAL=a:1 CAIRN_TEMPORAL_API_KEY_FILE=/none refused 3 "CAIRN_TEMPORAL_API_KEY_FILE" r run chain.json -q
    CAIRN_CONDUCTOR=ftp://x refused 2 "CAIRN_CONDUCTOR must be" r run chain.json -q
}

e2e_main "$@"
