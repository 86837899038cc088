#!/bin/bash
# The HTTP API of a real server: the document, a fuzzer that it judges, roles and tenants, and every route. The tests themselves are in tests/http/.
. "$(dirname "$0")/lib/e2e.sh"
. "$(dirname "$0")/lib/engine.sh"
. "$(dirname "$0")/lib/server.sh"

node_test() { node_script "tests/http/$1" "${@:2}"; } # FILE [ARGS...]
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
    node_test alerted.mjs
    c ledger append --validation record said >/dev/null
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
    one_receipt_for_an_append
    stop_server
    c ledger verify --state >/dev/null
}

one_receipt_for_an_append() { # however often it is repeated
    local i before
    before=$(sql "SELECT COUNT(*) FROM api_receipt")
    events_pl runs=1 >events
    for i in 1 2 3; do
        curl -sS "$server/v1/events" -H 'Idempotency-Key: append' -H 'Content-Type: application/x-ndjson' --data-binary @events >said
    done
    same "$(jq -r .duplicate said | sort -u)" true
    same "$(sql "SELECT COUNT(*) FROM api_receipt")" $((before + 1))
}

# The copy is complete, but the server ended before it could say so: the receipt of the answer is not there.
test_a_repeated_backup_after_a_crash() {
    local first
    need curl jq sqlite3
    start_server
    first=$(keyed admin/backup copy -d '{"file":"one.db"}')
    kill_server
    forget_the_answer
    start_server
    same "$(keyed admin/backup copy -d '{"file":"one.db"}')" "$first"
    kill_server
    forget_the_answer
    rm data/backups/one.db # or it was not complete
    start_server
    same "$(keyed admin/backup copy -d '{"file":"one.db"}' | jq -r .file)" one.db
    [ -s data/backups/one.db ]
    same "$(keyed admin/backup other -d '{"file":"one.db"}' | jq -r .code)" FILE_EXISTS
    kill_server
    forget_the_answer
    rm data/backups/one.db
    start_server
    same "$(keyed admin/backup third -d '{"file":"one.db"}' | jq -r .file)" one.db
    same "$(keyed admin/backup copy -d '{"file":"one.db"}' | jq -r .code)" FILE_EXISTS # it is the third's
    same "$(sql "SELECT COUNT(*) FROM ledger_audit WHERE action = 'admin.backup'")" 1
    stop_server
}
forget_the_answer() { # and what was committed with it
    local trigger
    trigger=$(sql "SELECT sql FROM sqlite_master WHERE name = 'ledger_audit_no_DELETE'")
    sql "DROP TRIGGER ledger_audit_no_DELETE; DELETE FROM ledger_audit WHERE action = 'admin.backup'; $trigger;
         DELETE FROM api_receipt WHERE body IS NOT NULL" >/dev/null
}

# Requests that are still at the ledger when the last connection is gone: host, engine and writer end while these come back. A
# writer from outside holds them there until then.
holds_the_ledger() { # sets descriptor 9; closing it lets go
    if [ "$store_kind" = sqlite ]; then
        exec 9> >(exec sqlite3 "${store[1]}/ledger.db" >held 2>&1)
        echo "BEGIN IMMEDIATE; SELECT 'held';" >&9
    else
        exec 9> >(exec psql -X -qAt -d "${store[1]}" >held 2>&1)
        echo "BEGIN; LOCK TABLE ledger_audit, ledger_event, api_receipt IN SHARE MODE; SELECT 'held';" >&9
    fi
    until_true grep -q held held || fail "$(cat held)"
}
# resets PORT FILE...: sends each, waits until its own input ends, and then resets the connections
resets() {
    python3 -c '
import socket, struct, sys, time
at = ("127.0.0.1", int(sys.argv[1]))
open_ones = []
for name in sys.argv[2:]:
    s = socket.create_connection(at)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with open(name, "rb") as file:
        s.sendall(file.read())
    open_ones.append(s)
    time.sleep(0.1)
sys.stdin.read()
' "$@"
}
raw() { # PATH TYPE BODY [HEADER]: a request, byte by byte
    printf 'POST /v1/%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\n%bContent-Length: %s\r\n\r\n%s' "$1" "$2" "${4:+$4\\r\\n}" "${#3}" "$3"
}
requests_are() { [ "$(curl -sS "$server/v1/admin/status" | jq .requests)" = "$1" ]; }
db_test_requests_come_back_while_the_server_ends() {
    local json=application/json lines=application/x-ndjson run first second
    need curl jq python3
    [ "$store_kind" = postgres ] || need sqlite3
    plan p "$(step a task ',"queue":"q"'),$(step b task ',"queue":"q"')"
    start_server
    keyed plans put --data-binary @p.json >ref
    for run in first second third; do jq -c --arg r "$run" '{planRef: ., context: {runId: $r}}' ref >"$run"; done
    keyed runs first -d @first >/dev/null
    keyed runs second -d @second >/dev/null
    keyed tasks/poll take -d '{"queue":"q","worker":"w","max":4,"leaseMs":600000,"waitMs":5000}' >tasks
    readarray -t first < <(jq -c '.items[] | select(.runId == "first") | {task}' tasks)
    readarray -t second < <(jq -c '.items[] | select(.runId == "second") | {task}' tasks)
    same "${#first[@]} ${#second[@]}" "2 2"
    keyed tasks/complete told -d "${first[0]}" >/dev/null
    raw admin/archive "$json" '{}' 'Idempotency-Key: archive' >1
    raw 'tasks/results?poll=q&worker=w' "$lines" "${first[0]}" 'Idempotency-Key: again' >2
    raw tasks/complete "$json" "${second[0]}" 'Idempotency-Key: one' >3
    raw 'tasks/results?poll=q&worker=w' "$lines" "${first[0]}"$'\n'"${second[1]}" 'Idempotency-Key: both' >4 # waits for the commit of 3
    raw runs "$json" "$(cat first)" 'Idempotency-Key: exists' >5
    raw runs "$json" "$(cat third)" 'Idempotency-Key: new' >6
    holds_the_ledger
    mkfifo until
    resets "${server##*:}" 1 2 3 4 5 6 <until &
    exec 8>until
    until_true requests_are 7 # one of them asks
    kill "$server_pid"
    sleep 0.3
    exec 8>&-
    sleep 0.5 # it has seen the resets, and waits for the ledger
    exec 9>&-
    ends_with 0 "$server_pid" || fail "$(head -c 3000 serve.err)"
    ! grep -E 'Sanitizer|runtime error|without an answer' serve.err || fail "$(cat serve.err)"
    c ledger verify --state >/dev/null
}

# The next request is there when the first is answered, and finds nothing of the first in its way.
db_test_pipelined_requests_with_one_key() {
    local what
    need curl
    start_server
    for what in admin/verify admin/archive; do
        raw "$what" application/json '{}' "Idempotency-Key: $what" >three
        raw "$what" application/json '{}' "Idempotency-Key: $what" >>three
        raw "$what" application/json '{}' 'Connection: close' >>three
        exec 7<>"/dev/tcp/127.0.0.1/${server##*:}"
        cat three >&7
        timeout 20 cat <&7 >answers
        exec 7>&-
        same "$(grep -aoE 'HTTP/1.1 [0-9]+' answers | tr '\n' ' ')" "HTTP/1.1 200 HTTP/1.1 200 HTTP/1.1 200 " "$(cat answers)"
        same "$(grep -ac '^Idempotent-Replayed: true' answers)" 1
    done
    stop_server
}

# When a key is forgotten, it may be used for another request: that is another run. For the same request it is the same run.
db_test_a_key_that_is_used_again_after_a_day() {
    local first other
    need curl jq
    [ "$store_kind" = postgres ] || need sqlite3
    plan p "$(step a noop)"
    start_server
    keyed plans put --data-binary @p.json >ref
    jq -c '{planRef: .}' ref >start
    jq -c '{planRef: ., parameters: {n: 2}}' ref >other
    first=$(keyed runs daily -d @start | jq -r .runId)
    same "$(keyed runs daily -d @other | jq -r .code)" IDEMPOTENCY_KEY_REUSED
    sql "DELETE FROM api_receipt" >/dev/null
    other=$(keyed runs daily -d @other | jq -r 'select(.existing == false) | .runId')
    [ -n "$other" ] && [ "$other" != "$first" ] || fail "\"$other\" after \"$first\""
    sql "DELETE FROM api_receipt" >/dev/null
    same "$(keyed runs daily -d @start | jq -r '[.runId, .existing] | @csv')" "\"$first\",true"
    stop_server
}

e2e_main "$@"
