#!/bin/bash
# The HTTP API of a real server: the document, a fuzzer that it judges, roles and tenants, and every route. The tests themselves are in tests/http/.
. "$(dirname "$0")/lib/e2e.sh"
. "$(dirname "$0")/lib/engine.sh"
. "$(dirname "$0")/lib/server.sh"
http=$repo/tests/http

# node_test FILE [ARGS...]: says what it says when it fails; 77 (no packages to be had) is a skip
node_test() {
    local rc=0
    node "$http/$1" "${@:2}" >said 2>&1 || rc=$?
    [ "$rc" != 77 ] || skip "$(tail -1 said)"
    [ "$rc" = 0 ] || fail "$(grep -A2 -E '^(FAILED|FAIL) ' said | head -60; tail -1 said)"
}
admin_key() { c key create admin --role admin --tenant '*' -o json | jq -r .key; }

test_the_document_is_sound() {
    need node npm
    node_test lint.mjs
}

test_the_judge_sees_mistakes() {
    need node npm
    node_test judge_test.mjs
}

db_test_no_request_surprises_the_server() {
    local requests
    need node npm
    requests=$(scaled 10000)
    if with_sanitizer; then requests=$(scaled 1500); fi
    start_server
    node_test fuzz.mjs --url "$server" --requests "$requests" --seed "${CAIRN_TEST_SEED:-20261116}"
    stop_server
    c ledger verify --state >/dev/null
}

# The same as an admin of one tenant, who must not do everything.
test_no_request_of_a_tenant_surprises_the_server() {
    local key requests
    need node npm
    requests=$(scaled 2000)
    if with_sanitizer; then requests=$(scaled 500); fi
    key=$(c key create admin --role admin --tenant acme -o json | jq -r .key)
    start_server --auth
    node_test fuzz.mjs --url "$server" --key "$key" --requests "$requests" --seed "${CAIRN_TEST_SEED:-20261116}"
    stop_server
}

db_test_roles_and_tenants() {
    local key
    need node npm
    key=$(admin_key)
    start_server --auth
    node_test roles.mjs --url "$server" --admin-key "$key"
    stop_server
}

# The events of the tenant "alerted" contradict their runs: over HTTP such are refused, so they are there before.
db_test_every_route() {
    local key
    need node npm
    node "$http/alerted.mjs" >alerted.ndjson || skip "$(tail -1 alerted.ndjson)"
    c ledger append --validation record alerted.ndjson >/dev/null
    key=$(admin_key)
    start_server --auth --log json:debug
    node_test api.mjs main --url "$server" --key "$key" --log "$PWD/serve.err"
    stop_server
    c ledger verify --state >/dev/null
}

test_without_authentication() {
    need node npm
    start_server
    node_test api.mjs open --url "$server"
    stop_server
}

test_the_rate_of_requests() {
    local key
    need node npm
    key=$(admin_key)
    start_server --auth --rate 5
    node_test api.mjs rate --url "$server" --key "$key"
    stop_server
}

db_test_open_requests_end_with_the_server() {
    need node npm
    start_server
    node_test api.mjs drain --url "$server" --pid "$server_pid"
    ends_with 0 "$server_pid"
    # the slow request was answered, so it is there
    same "$(c ledger events --tenant default -o ndjson | jq -r 'select(.runId | startswith("slow-")) | .eventType')" RunStarted
    c ledger verify --state >/dev/null
}

# One tenant has at most half of the queries that may be under way; the others go on.
pg_test_the_share_of_a_tenant() {
    local key
    need node npm psql
    key=$(admin_key)
    start_server --auth
    node_test api.mjs share --url "$server" --key "$key" --db "${store[1]}"
    stop_server
}

# A verify that would go on for hours ends with the server.
pg_test_a_verify_ends_with_the_server() {
    local begun asked
    need psql
    start_server
    psql -X -qAt -d "${store[1]}" -c "BEGIN; LOCK TABLE ledger_event IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(60)" >/dev/null 2>&1 &
    pids+=($!)
    until_true holds_a_lock
    curl -sS -X POST "$server/v1/admin/verify" -o body -w '%{http_code}' >status &
    asked=$!
    until_true waits_for_the_lock
    begun=$SECONDS
    stop_server
    wait "$asked"
    [ $((SECONDS - begun)) -lt 8 ] || fail "it took $((SECONDS - begun)) seconds"
    same "$(cat status) $(jq -r .code body)" "503 CLOSING"
}
holds_a_lock() { [ "$(postgres "$CAIRN_TEST_POSTGRES" -At -c "SELECT COUNT(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted")" -gt 0 ]; }
waits_for_the_lock() { [ "$(postgres "$CAIRN_TEST_POSTGRES" -At -c "SELECT COUNT(*) FROM pg_locks WHERE NOT granted")" -gt 0 ]; }

# Whatever was answered, or was not, before SIGKILL: the same request with the same key gets the same tasks, the same event, the same file.
keyed() { curl -sS "$server/v1/$1" -H "Idempotency-Key: $2" -H 'Content-Type: application/json' "${@:3}"; }
kill_server() { # as a crash would
    kill -9 "$server_pid"
    wait "$server_pid" 2>/dev/null || true
    rm serve.err # the next one writes its own
}
takes() { [ "$(keyed tasks/poll take -d "$1" | jq -c '[.items[].task] | sort')" = "$2" ]; }
db_test_repeated_requests_after_a_crash() {
    local poll='{"queue":"q","worker":"w","max":2,"leaseMs":600000,"waitMs":5000}' tasks checkpoint
    need curl jq
    plan p "$(step a task ',"queue":"q"'),$(step b task ',"queue":"q"')"
    start_server
    keyed plans put --data-binary @p.json >ref
    jq '{planRef: ., context: {runId: "r"}}' ref >start
    keyed runs start -d @start >/dev/null
    keyed tasks/poll take -d "$poll" >tasks
    tasks=$(jq -c '[.items[].task] | sort' tasks)
    checkpoint=$(keyed runs/r/checkpoints save -X POST)
    kill_server
    start_server
    until_true takes "$poll" "$tasks" # on PostgreSQL when the node has its runs again
    same "$(keyed runs/r/checkpoints save -X POST)" "$checkpoint"
    same "$(keyed tasks/poll take -d '{"queue":"other","worker":"w"}' | jq -r .code)" IDEMPOTENCY_KEY_REUSED
    jq -c '.items[] | {task, output: 1}' tasks >results
    curl -sS "$server/v1/tasks/results" -H 'Idempotency-Key: done' -H 'Content-Type: application/x-ndjson' --data-binary @results >first
    until_true status_is r COMPLETED
    kill_server
    start_server
    curl -sS "$server/v1/tasks/results" -H 'Idempotency-Key: done' -H 'Content-Type: application/x-ndjson' --data-binary @results >again
    cmp first again
    same "$(keyed tasks/poll take -d "$poll")" '{"items":[]}'
    stop_server
    c ledger verify --state >/dev/null
}

# The copy is complete, but the server ended before it could say so: the receipt of the answer is not there.
test_a_repeated_backup_after_a_crash() {
    local first
    need curl jq sqlite3
    start_server
    first=$(keyed admin/backup copy -d '{"file":"one.db"}')
    kill_server
    sql "DELETE FROM api_receipt WHERE body IS NOT NULL" >/dev/null
    start_server
    same "$(keyed admin/backup copy -d '{"file":"one.db"}')" "$first"
    kill_server
    sql "DELETE FROM api_receipt WHERE body IS NOT NULL" >/dev/null
    rm data/backups/one.db # or it was not complete
    start_server
    same "$(keyed admin/backup copy -d '{"file":"one.db"}' | jq -r .file)" one.db
    [ -s data/backups/one.db ]
    same "$(keyed admin/backup other -d '{"file":"one.db"}' | jq -r .code)" FILE_EXISTS
    stop_server
}

e2e_main "$@"
