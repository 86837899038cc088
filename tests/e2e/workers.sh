#!/bin/bash
# The example workers, against a real server over HTTP: what they take, complete and fail, and that one may die.
. "$(dirname "$0")/lib/e2e.sh"
. "$(dirname "$0")/lib/engine.sh"
. "$(dirname "$0")/lib/server.sh"
workers=$repo/examples/workers

serve() { # and sets CAIRN_URL
    start_server
    export CAIRN_URL=$server
}
worker() { # NAME QUEUE: sets worker_pid
    "$workers/worker.$1" "$2" >>"worker.$1.log" 2>&1 &
    worker_pid=$!
    pids+=("$worker_pid")
}
post() { # PATH JSON
    curl -sS --max-time 60 -H 'Content-Type: application/json' --data-binary "$2" "$CAIRN_URL$1"
}
get() { curl -sS --max-time 60 "$CAIRN_URL$1"; }
start() { # RUN PLAN-FILE PARAMETERS-JSON
    local ref
    ref=$(curl -sS --max-time 60 -H 'Content-Type: application/jsonc' --data-binary "@$2" "$CAIRN_URL/v1/plans")
    holds "$ref" '"sha256"'
    post /v1/runs "{\"planRef\":$ref,\"context\":{\"runId\":\"$1\"},\"parameters\":$3}" >started
    same "$(jq -c '[.runId, .existing]' started)" "[\"$1\",false]" "$(cat started)"
}
is_now() { [ "$(get "/v1/runs/$1" | jq -r .status)" = "$2" ]; } # RUN STATUS
output() { get "/v1/runs/$1/steps?outputs=true" | jq -c --arg s "$2" '.items[] | select(.stepId == $s) | .output'; } # RUN STEP

db_test_both_workers_carry_out_the_example() {
    need curl python3
    serve
    start first "$workers/plan.json" '{"text":"three words only"}'
    worker py words
    worker sh shouts
    until_true is_now first COMPLETED || fail "$(get /v1/runs/first; cat worker.*.log)"
    same "$(output first count)" '{"words":3,"longest":"three"}'
    same "$(output first shout)" '{"text":"THREE","length":5}'
    same "$(output first recount)" '{"words":2,"longest":"THREE"}'
    c ledger verify --state >/dev/null
}

# work() of both raises on what is no text; the third attempt is the last.
db_test_what_a_worker_fails_is_tried_again_and_then_fails() {
    local kind
    need curl python3
    serve
    plan failing "$(step bad-py task ',"queue":"words","input":7,"onFailure":"continue"'),$(step bad-sh task ',"queue":"shouts","input":7')" \
        '"defaults":{"retry":{"maxAttempts":3,"initialMs":10}},'
    start failing failing.json '{}'
    worker py words
    worker sh shouts
    until_true is_now failing FAILED || fail "$(get /v1/runs/failing; cat worker.*.log)"
    get /v1/runs/failing/steps >steps
    for kind in py sh; do
        same "$(jq -c --arg s "bad-$kind" '.items[] | select(.stepId == $s) | [.state, .code, .logicalAttemptId]' steps)" \
            '["FAILED","WORK_FAILED",3]' "bad-$kind: $(cat steps)"
    done
    holds "$(jq -r '.items[] | select(.stepId == "bad-py") | .message' steps)" AttributeError
}

# A worker that is killed with a task in its hands loses it; another one does it.
test_a_worker_may_die() {
    local token
    need curl python3
    serve
    plan dying "$(step count task ',"queue":"words","input":"one two"')"
    start dying dying.json '{}'
    # this one takes the task for half a second, and is never heard of again
    post /v1/tasks/poll '{"queue":"words","worker":"dead","leaseMs":500,"waitMs":10000}' >taken
    token=$(jq -r '.items[0].task' taken)
    same "$(jq -c '.items | length' taken)" 1 "$(cat taken)"
    worker py words
    until_true is_now dying COMPLETED || fail "$(get /v1/runs/dying; cat worker.py.log)"
    same "$(output dying count)" '{"words":2,"longest":"one"}'
    post /v1/tasks/complete "{\"task\":\"$token\",\"output\":\"too late\"}" >late
    same "$(jq -r .code late)" LEASE_LOST "$(cat late)"
    same "$(output dying count)" '{"words":2,"longest":"one"}'
}

# The server goes away under the workers and comes back, on the same port: they go on by themselves.
test_workers_outlive_the_server() {
    local port
    need curl python3
    serve
    port=${CAIRN_URL##*:}
    worker py words
    worker sh shouts
    start before "$workers/plan.json" '{"text":"before it went"}'
    until_true is_now before COMPLETED || fail "$(cat worker.*.log)"
    kill -9 "${pids[0]}"
    wait "${pids[0]}" 2>/dev/null || true
    sleep 1
    : >serve.err # now: what the server before it said must not pass for its own words
    r_exec serve --listen "127.0.0.1:$port" 2>serve.err &
    pids+=($!)
    until_true grep -q "http://127\.0\.0\.1:$port" serve.err || fail "$(cat serve.err)"
    start after "$workers/plan.json" '{"text":"and after"}'
    until_true is_now after COMPLETED || fail "$(get /v1/runs/after; cat worker.*.log)"
    same "$(output after shout)" '{"text":"AFTER","length":5}'
}

# What README.md says to copy and paste does what it says.
test_the_readme_is_right() {
    need curl python3
    serve
    worker py words
    worker sh shouts
    (cd "$repo" && sed -n '/^    ref=/,$p' "$workers/README.md" | sed -n '/^    /s/^    //p' | sed "s|http://127.0.0.1:8420|$CAIRN_URL|g") >lines
    same "$(grep -c curl lines)" 3
    (cd "$repo" && bash -euo pipefail) <lines >said
    holds "$(cat said)" '"COMPLETED"'
    holds "$(cat said)" '"CAIRN"'
}

e2e_main "$@"
