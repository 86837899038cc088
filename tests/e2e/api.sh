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

e2e_main "$@"
