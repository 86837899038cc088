#!/bin/bash
# Effects by hand: asked for, looked at, put back when they are dead; over the command line, in the ledger and through a server.
. "$(dirname "$0")/lib/e2e.sh"
. "$(dirname "$0")/lib/engine.sh"
. "$(dirname "$0")/lib/server.sh"
unset CAIRN_SERVER CAIRN_KEY_FILE
umask 077
example=$repo/examples/ledger/orders.ndjson
run=orders-2026-02-16-08h other=orders-2026-02-16-09h
nobody=00000000-0000-4000-8000-000000000000

import() { c ledger append -q "$example" >/dev/null; }
s() { "$cairn" "$@" --server "$server"; }
with() { "$cairn" "${@:2}" --server "$server" --key-file "$1"; } # KEY-FILE ARGS...
ids() { "$@" -o json | jq -r '.[].effectId'; } # COMMAND...
# dead RUN TYPE KEY...: makes dead letters and prints their ids; nobody else may have the ledger
dead() {
    local url=${store[1]}
    [ "$store_kind" = postgres ] || url=sqlite:$url/ledger.db
    "${CAIRN_BUILD:-$repo/build/test}/e2e/dead" "$url" "$@"
}
requeued() { c ledger events --tenant acme -o ndjson | jq -r 'select(.eventType == "EffectRetrying" and .payload.requeued) | .actor'; }

db_test_asked_for_once() {
    import
    echo '{"to":"ana","idempotency_key":"k1"}' >payload
    c effect request "$run" payload --type SEND_EMAIL --step-id load >id
    grep -qE '^[0-9a-f-]{36}$' id
    same "$(c effect request "$run" - --type SEND_EMAIL <payload 2>err)" "$(cat id)" "the same key"
    holds "$(cat err)" "there is an effect with this key already: it is PENDING"
    c effect request "$other" payload --type X -o json >again
    same "$(jq -c '[.effectId, .runId, .effectType, .existing]' again)" "[\"$(cat id)\",\"$run\",\"SEND_EMAIL\",true]"
    c effect request "$run" - --type API_CALL --actor ana -o json <<<'{}' >second
    same "$(jq -c '[.effectType, .status, .existing, .maxRetries, .baseDelayMs]' second)" '["API_CALL","PENDING",false,5,1000]'
    same "$(c effect list -o ndjson | jq -r .effectId)" "$(jq -r .effectId second; cat id)" "newest first"
    same "$(c effect list -o ndjson | sed -n 1p)" "$(jq -c 'del(.existing)' second)"
    same "$(c effect show "$(cat id)" -o json)" "$(c effect list --type SEND_EMAIL -o ndjson)"
    same "$(c effect show "$(cat id)" -o json | jq -c '[.stepId, .idempotencyKey, .payload.to]')" '["load","k1","ana"]'
    same "$(c audit -o json | jq -c '.[] | [.actor, .action, .target, .runId]')" \
        "[\"ana\",\"effect.request\",\"$(jq -r .effectId second)\",\"$run\"]
[\"local\",\"effect.request\",\"$(cat id)\",\"$run\"]" "what was there already changes nothing"
    same "$(c ledger stats -o json | jq -c '[.effectsWaiting, .effectsDead]')" "[2,0]"
    holds "$(c ledger stats)" "effectsWaiting            2"
    c ledger verify --state >/dev/null
}

db_test_lists_and_filters() {
    import
    same "$(c effect list 2>err)$(cat err)" "no effects"
    same "$(c effect list -o json)" "[]"
    local i
    for i in 1 2 3; do c effect request "$run" - --type A <<<"{\"n\":$i}" >/dev/null; done
    c effect request "$other" - --type B <<<'{}' >/dev/null
    n() { c effect list -o json "$@" | jq length; }
    same "$(n) $(n --limit 2) $(n --type A) $(n --run "$other") $(n --type A --run "$other")" "4 2 3 1 0"
    same "$(n --status pending) $(n --status DEAD_LETTER) $(n --tenant acme) $(n --tenant nobody) $(n --run nobody)" "4 0 4 0 0"
    same "$(c effect list --type A -o ndjson | jq -c .payload.n | tr '\n' ' ')" "3 2 1 "
    holds "$(c effect list --run "$other")" "PENDING"
    holds "$(c effect show "$(ids c effect list --type B)")" "retries       0 of 3"
}

db_test_what_cannot_be() {
    import
    echo '{}' >payload
    refused 2 "--type TYPE is missing" c effect request "$run" payload
    refused 2 "RUN FILE|- is missing" c effect request "$run" --type X
    refused 1 EFFECT_TYPE_INVALID c effect request "$run" payload --type 'two words'
    refused 3 RUN_NOT_FOUND c effect request nobody payload --type X
    refused 3 "could not open" c effect request "$run" no-such-file --type X
    echo '[]' >payload
    refused 1 EFFECT_PAYLOAD_INVALID c effect request "$run" payload --type X
    echo '{' >payload
    refused 1 "the payload: not JSON" c effect request "$run" payload --type X
    echo '{"headers":{"Authorization":"Bearer x"}}' >payload
    refused 1 EFFECT_SECRET_PLAIN c effect request "$run" payload --type X
    echo '{"idempotency_key":""}' >payload
    refused 1 EFFECT_KEY_INVALID c effect request "$run" payload --type X
    refused 2 "--actor must have" c effect request "$run" payload --type X --actor ''
    refused 2 "--status must be PENDING, PROCESSING, COMPLETED, FAILED or DEAD_LETTER" c effect list --status RUNNING
    refused 3 EFFECT_NOT_FOUND c effect show "$nobody"
    refused 3 EFFECT_NOT_FOUND c effect show nobody
    refused 2 "ID is missing, or --all" c effect requeue
    refused 2 "give one of them" c effect requeue "$nobody" --all
    refused 2 "--type goes with --all" c effect requeue "$nobody" --type X
    refused 2 "--limit must be a whole number from 1 to 1000" c effect requeue --all --limit 1001
    refused 3 EFFECT_NOT_FOUND c effect requeue "$nobody"
    same "$(c effect list -o json)" "[]"
}

db_test_dead_ones_are_put_back() {
    import
    local first rest
    dead "$run" WEBHOOK_CALL w1 w2 w3 w4 w5 >made
    dead "$other" SEND_EMAIL m1 >>made
    same "$(c ledger stats -o json | jq -c '[.effectsWaiting, .effectsDead]')" "[0,6]"
    holds "$(c doctor)" "0 waiting, 6 dead: cairn effect list --status DEAD_LETTER"
    holds "$(c effect list --status DEAD_LETTER)" HTTP_STATUS
    first=$(sed -n 1p made)
    same "$(c effect show "$first" -o json | jq -c '[.status, .executions, .retryCount, .error.code, .error.message, .error.stack]')" \
        '["DEAD_LETTER",1,1,"HTTP_STATUS","the answer is 503","no more to say"]'
    c effect show "$first" >shown
    grep -q '^error  *HTTP_STATUS$' shown
    holds "$(cat shown)" "the answer is 503"
    same "$(c effect requeue "$first" "$(sed -n 2p made)" --reason 'it is back' --actor ana -o json | jq -c '.[] | [.effectId, .status, .retryCount, .error]')" \
        "[\"$first\",\"PENDING\",0,null]
[\"$(sed -n 2p made)\",\"PENDING\",0,null]"
    refused 4 EFFECT_NOT_DEAD c effect requeue "$first"
    same "$(c effect requeue --all --type WEBHOOK_CALL --limit 2 -o json)" '{"requeued":2,"more":true}'
    rest=$(ids c effect list --status DEAD_LETTER --type WEBHOOK_CALL)
    same "$rest" "$(sed -n 3p made)" "the newest are first"
    same "$(c effect requeue --all --run "$run" -o json)" '{"requeued":1,"more":false}'
    same "$(c effect requeue --all --tenant nobody -o json)" '{"requeued":0,"more":false}'
    c effect requeue --all 2>err
    same "$(cat err)" "1 effect was put back"
    same "$(c ledger stats -o json | jq -c '[.effectsWaiting, .effectsDead]')" "[6,0]"
    same "$(requeued | sort | uniq -c | awk '{ print $1 $2 }' | tr '\n' ' ')" "2ana 4local "
    same "$(c audit -o json | jq -r 'map(select(.action == "effect.requeue")) | [length, (map(.target) | unique | length), (map(select(.reason == "it is back")) | length)] | @csv')" 6,6,2
    c ledger verify --state >/dev/null
}

# CE-7.2-5: whoever asks for it, and whether a server does it or the ledger is open here.
db_test_retries_as_the_operator_wants_them() {
    need curl jq
    import
    export CAIRN_EFFECT_RETRIES=API_CALL=2x150,FAX=0x7
    of() { "$@" effect request "$run" - --type "$type" -o json <<<'{}' | jq -c '[.maxRetries, .baseDelayMs]'; }
    local type=API_CALL
    same "$(of c)" "[2,150]" "in the ledger"
    type=FAX
    same "$(of c)" "[0,7]"
    type=SEND_EMAIL
    same "$(of c)" "[3,2000]" "what they do not name"
    CAIRN_EFFECT_RETRIES=FAX refused 2 "CAIRN_EFFECT_RETRIES must be" c effect request "$run" - --type FAX <<<'{}'
    start_server
    unset CAIRN_EFFECT_RETRIES # the server's rule, not the caller's
    type=API_CALL
    same "$(of s)" "[2,150]" "through a server"
    same "$(curl -sS "$server/v1/runs/$run/effects" -H 'Content-Type: application/json' -d '{"effectType":"FAX","maxRetries":1,"payload":{}}' | jq -c '[.maxRetries, .baseDelayMs]')" "[1,7]" "but for what the request says"
    stop_server
}

# Not only once a second: looked for that often, each of these would wait a second for the one before it.
test_the_outbox_is_told() {
    need curl jq
    import
    start_server
    local i start=$SECONDS id
    ended() { [ "$(curl -sS "$server/v1/effects/$id" | jq -r .status)" = DEAD_LETTER ]; }
    for i in 1 2 3 4 5 6 7 8; do
        id=$(curl -sS "$server/v1/runs/$run/effects" -H 'Content-Type: application/json' -d '{"effectType":"NONE","maxRetries":0,"payload":{}}' | jq -r .effectId)
        until_true ended
        curl -sS -X POST "$server/v1/effects/$id/requeue" -o /dev/null
        until_true ended
    done
    [ $((SECONDS - start)) -lt 10 ] || fail "16 executions took $((SECONDS - start)) seconds"
    stop_server
}

# Whether the outbox of the server tries them at once or not: what is answered is how they were then.
db_test_dead_ones_are_put_back_by_a_server() {
    need curl jq
    import
    dead "$run" A a1 a2 a3 >made
    dead "$other" B b1 b2 b3 b4 b5 b6 b7 b8 b9 b10 >>made
    start_server
    same "$(ids s effect list --status DEAD_LETTER | wc -l)" 13
    same "$(s effect show "$(sed -n 1p made)" -o json)" "$(c effect show "$(sed -n 1p made)" -o json)"
    post() { curl -sS -X POST "$server/v1/effects/$1" -H 'Content-Type: application/json' "${@:2}"; }
    post "$(sed -n 1p made)/requeue" -H 'Idempotency-Key: one' -d '{"reason":"it is back"}' >first
    same "$(jq -c '[.effectId, .status, .executions, .retryCount, .error]' first)" "[\"$(sed -n 1p made)\",\"PENDING\",1,0,null]"
    post "$(sed -n 1p made)/requeue" -H 'Idempotency-Key: one' -d '{"reason":"it is back"}' -D head >again
    grep -qi '^idempotent-replayed: true' head
    same "$(jq -r .effectId again)" "$(sed -n 1p made)"
    same "$(requeued | wc -l)" 1 "repeated, it is not put back twice"
    same "$(s effect requeue "$(sed -n 2p made)" -o json | jq -r '.[].status')" PENDING
    same "$(post requeue -H 'Idempotency-Key: all' -d '{"effectType":"B","limit":9,"reason":"all of them"}')" '{"requeued":9,"more":true}'
    same "$(post requeue -H 'Idempotency-Key: all' -d '{"effectType":"B","limit":9,"reason":"all of them"}')" '{"requeued":9,"more":true}'
    same "$(requeued | wc -l)" 11
    s effect requeue --all --run "$other" --type B --limit 1 2>err
    holds "$(cat err)" "1 effect was put back"
    same "$(curl -sS "$server/v1/audit?limit=100" | jq -c '[.items[] | select(.action == "effect.requeue" and .reason == "all of them")] | [length, (map(.target) | unique | length), (map(.runId) | unique), (map(.requestId) | unique | length)]')" \
        "[9,9,[\"$other\"],1]"
    stop_server
    c ledger verify --state >/dev/null
}

# A server that does it shows the same as a ledger that is looked at.
db_test_through_a_server() {
    local id
    import
    c key create op --role operator --tenant acme >op 2>/dev/null
    c key create eve --role operator --tenant evil >eve 2>/dev/null
    c key create reader --role viewer --tenant acme >reader 2>/dev/null
    start_server --auth
    echo '{"n":1,"idempotency_key":"k"}' >payload
    id=$(with op effect request "$run" payload --type A --step-id x)
    same "$(with op effect request "$run" - --type A -o json <payload | jq -c '[.effectId, .existing, .stepId, .payload.n]')" "[\"$id\",true,\"x\",1]"
    same "$(ids with reader effect list --type A --run "$run" --tenant acme)" "$id"
    same "$(with reader effect list --status COMPLETED -o json)" "[]"
    refused 7 FORBIDDEN with reader effect request "$run" payload --type A
    refused 7 FORBIDDEN with reader effect requeue "$id"
    refused 3 EFFECT_NOT_FOUND with eve effect show "$id"
    refused 3 EFFECT_NOT_FOUND with eve effect requeue "$id"
    refused 3 RUN_NOT_FOUND with eve effect request "$run" payload --type A
    refused 3 TENANT_NOT_FOUND with eve effect list --tenant acme
    refused 3 TENANT_NOT_FOUND with eve effect requeue --all --tenant acme
    same "$(with eve effect list -o json)" "[]"
    same "$(with eve effect requeue --all -o json)" '{"requeued":0,"more":false}'
    refused 1 EFFECT_TYPE_INVALID with op effect request "$run" payload --type 'a b'
    refused 2 "--actor" with op effect request "$run" payload --type A --actor me
    stop_server
    c ledger verify --state >/dev/null
}

# On SQLite the command finds the server by itself, and says who asks.
test_the_holder_is_told() {
    local id
    import
    start_server
    id=$(c effect request "$run" - --type A --actor ana <<<'{}')
    same "$(c effect list -o ndjson | jq -r .effectId)" "$id"
    same "$(c audit -o json | jq -c '.[0] | [.actor, .action, .target]')" "[\"ana\",\"effect.request\",\"$id\"]"
    stop_server
}

is_quiet() { # for three seconds
    wc -l <serve.err >lines
    sleep 3
    same "$(awk -v n="$(cat lines)" 'NR > n && /could not/' serve.err)" ""
}
# Its connections are cut: not only what writes makes new ones, so that runs and their effects go on.
pg_test_the_store_is_away_for_a_moment() {
    need psql jq
    echo '{"schemaVersion":"v1.3","metadata":{"planId":"p","planVersion":"1"},"steps":[{"stepId":"tell","type":"effect","effectType":"NONE","payload":{}}]}' >plan.json
    start_server
    s run plan.json --run-id before >/dev/null 2>&1
    postgres "${store[1]}" -c "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()" >/dev/null
    until_true s run plan.json --run-id after # the first that find out are refused, and may try again
    same "$(s run show after -o json | jq -r .state.status)" COMPLETED
    is_quiet || is_quiet || is_quiet || fail "it still says: $(tail -3 serve.err)"
    stop_server
}

# Repeated after a crash: one effect, and the same answer.
db_test_a_request_repeated_after_a_crash() {
    need curl jq
    import
    start_server
    ask() { curl -sS "$server/v1/runs/$run/effects" -H 'Idempotency-Key: once' -H 'Content-Type: application/json' -d '{"effectType":"X","payload":{"n":1}}' "$@"; }
    ask -o first -w '%{http_code}' >code
    same "$(cat code)" 201
    kill -9 "$server_pid"
    wait "$server_pid" 2>/dev/null || true
    start_server
    ask -o again -w '%{http_code}' >code
    same "$(cat code) $(jq -c '[.effectId, .existing]' again)" "201 $(jq -c '[.effectId, .existing]' first)"
    same "$(ids c effect list)" "$(jq -r .effectId first)"
    stop_server
}

e2e_main "$@"
