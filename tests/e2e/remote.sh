#!/bin/bash
# Every command that takes --server, against a server: the same output, exit codes and errors as on the ledger itself.
. "$(dirname "$0")/lib/e2e.sh"
. "$(dirname "$0")/lib/engine.sh"
. "$(dirname "$0")/lib/server.sh"
unset CAIRN_SERVER CAIRN_KEY_FILE

# A server that asks for keys, and the key of somebody who may do everything. `umask` as a careful person has it.
serve() {
    umask 077
    c key create everything --role admin --tenant '*' >key 2>/dev/null
    start_server --auth "$@"
}
s() { "$cairn" "$@" --server "$server" --key-file key; }
s_exec() { exec "$cairn" "$@" --server "$server" --key-file key; } # for `&` and then kill $!
both() { # ARGS...: as a table and as JSON, byte for byte
    local format
    for format in table json ndjson; do
        c "$@" -o $format >here 2>here.err
        s "$@" -o $format >there 2>there.err
        cmp here there || fail "cairn $* -o $format"
        cmp here.err there.err || fail "what cairn $* -o $format says"
    done
}
key_of() { # NAME ROLE...: makes one, in a file of that name
    local name=$1 role roles=()
    shift
    for role; do roles+=(--role "$role"); done
    s key create "$name" "${roles[@]}" >"$name" 2>/dev/null
}
mixed_plan() {
    plan mixed "$(sh_step good 'echo fine'),$(sh_step bad 'exit 3' ',"retry":{"maxAttempts":2,"initialMs":50}'),$(sh_step late 'echo x' ',"dependsOn":["bad"]')"
}

db_test_reading_is_the_same() {
    serve
    mixed_plan
    exits 10 s run mixed.json --run-id mixed -o json >out 2>err
    grep -q 'bad failed (EXIT_CODE), retry 2 in' err
    grep -q 'run failed after' err
    same "$(jq -c '[.status, .steps[0].output, .steps[1].state]' out)" '["FAILED","fine","FAILED"]'
    plan open "$(step gate approval)"
    s_exec run open.json --run-id open -q >/dev/null 2>&1 &
    local open=$! id
    pids+=("$open")
    until_true step_is open gate RUNNING
    for id in mixed open; do
        both run show "$id"
        both run show "$id" --at 2
        both ledger events --run "$id"
    done
    both run show '{"provider":"local","workflowId":"mixed","runId":"mixed"}'
    refused 4 RUN_REF_MISMATCH s run show '{"provider":"local","workflowId":"open","runId":"mixed"}'
    both run steps mixed
    both explain mixed
    both explain open
    both ledger events --tenant default
    both ledger events --tenant default --after 4 --limit 3
    both ledger events --run mixed --limit 2
    both ledger events --correlation "$(c run list -o json | jq -r '.[] | select(.runId == "mixed").correlationId')"
    both ledger causes "$(c ledger events --run mixed -o ndjson | tail -1 | jq -r .eventId)"
    both ledger causes "$(c ledger events --run mixed -o ndjson | tail -1 | jq -r .eventId)" --limit 2
    both ledger alerts
    both ledger verify --state
    both key list
    both audit
    same "$(s run list -o json | jq -c .)" "$(c run list -o json | jq -c 'map(del(.cursor))')"
    same "$(s run list)" "$(c run list)"
    same "$(s run list --status FAILED -o ndjson | jq -r .runId)" mixed
    same "$(s ledger stats -o json | jq -c 'del(.bytes)')" "$(c ledger stats -o json | jq -c 'del(.bytes)')"
    exits 10 s run watch mixed -o json >watched 2>/dev/null
    cmp out watched
    exits 10 c run watch mixed -o json >watched 2>/dev/null
    cmp out watched
    s run cancel open
    ends_with 11 $open
}

db_test_pages_of_runs() {
    serve
    plan p "$(step a noop)"
    for id in one two three; do s run p.json --run-id $id -q >/dev/null; done
    same "$(s run list --limit 2 2>err | awk 'NR > 1 { print $1 }' | tr '\n' ' ')" "three two "
    same "$(s run list --limit 2 --before "$(sed -n 's/.*--before //p' err)" -o json | jq -r '.[].runId')" one
    refused 1 CURSOR_INVALID s run list --before nonsense
}

db_test_appending_is_the_same() {
    serve
    events_pl runs=2 >events.ndjson
    { head -3 events.ndjson; echo; echo nonsense; tail -n +4 events.ndjson; head -1 events.ndjson; } >in
    exits 1 s ledger append in >there 2>there.err
    same "$(jq -c '[.line, .error.code, .duplicate]' there | sort | uniq -c | awk '{ print $2 }' | tr '\n' ' ')" \
        '[5,"JSON_SYNTAX",null] [null,null,false] [null,null,true] '
    holds "$(cat there.err)" "1 refused"
    same "$(wc -l <there)" "$(grep -c . in)"
    mkdir other
    exits 1 "$cairn" ledger append in --data other/data >here 2>here.err
    same "$(jq -c '[.line, .error, .duplicate, .runSeq]' there)" "$(jq -c '[.line, .error, .duplicate, .runSeq]' here)"
    cmp here.err there.err
    key_of reader viewer
    exits 7 "$cairn" ledger append events.ndjson --server "$server" --key-file reader >out 2>err
    holds "$(cat err)" FORBIDDEN
}

db_test_resolve_and_checkpoint() {
    serve
    events_pl runs=1 >events.ndjson
    s ledger append events.ndjson -q >/dev/null
    local run
    run=$(s run list -o json | jq -r '.[0].runId')
    same "$(s ledger checkpoint "$run" -o json | jq -c 'keys_unsorted')" '["eventId","runSeq","persistedAt","duplicate"]'
    refused 3 RUN_NOT_FOUND s ledger checkpoint nobody
    refused 3 RUN_NOT_FOUND s run resolve --provider p --workflow w --provider-run r
}

db_test_signals() {
    serve
    plan p "$(step gate approval),$(step w wait ',"signal":"go","dependsOn":["gate"]'),$(sh_step bad 'test -e flag' ',"dependsOn":["w"]')"
    s_exec run p.json --run-id p -o json >out 2>err &
    local pid=$!
    pids+=("$pid")
    until_true step_is p gate RUNNING
    same "$(s run pause p --signal-id 1 -o json)" '{"runId":"p","signal":"PAUSE","signalId":"1"}'
    until_true status_is p PAUSED
    s run resume p
    until_true status_is p RUNNING
    s run approve p gate --payload '{"n":1}' --reason 'looks good'
    until_true step_is p w RUNNING
    refused 4 SIGNAL_NOT_APPLICABLE s run retry p gate
    s run signal p go --payload '[1,2]'
    ends_with 10 $pid
    same "$(jq -c '[.steps[0].output.payload.n, .steps[1].output, .steps[2].state]' out)" '[1,[1,2],"FAILED"]'
    refused 4 RUN_FINISHED s run resume p
    s run cancel p # a finished run: nothing to do
    plan q "$(step gate approval)"
    s_exec run q.json --run-id q -q >/dev/null 2>&1 &
    pid=$!
    pids+=("$pid")
    until_true step_is q gate RUNNING
    s run reject q gate
    ends_with 10 $pid
}

db_test_resume() {
    serve
    plan p "$(step gate approval)"
    s_exec run p.json --run-id p -q >/dev/null 2>&1 &
    local pid=$!
    pids+=("$pid")
    until_true step_is p gate RUNNING
    kill -INT $pid
    ends_with 130 $pid
    holds "$(s run resume --all 2>&1)" "the server goes on with them"
    s_exec run resume p -q -o json >out &
    pid=$!
    pids+=("$pid")
    sleep 0.3
    s run approve p
    ends_with 0 $pid
    same "$(jq -r .status out)" COMPLETED
    events_pl runs=1 | head -2 | s ledger append -q >/dev/null
    refused 4 RUN_NOT_MANAGED s run resume r-1
}

db_test_following_events() {
    serve
    plan p "$(step gate approval)"
    s_exec run p.json --run-id p -q >/dev/null 2>&1 &
    pids+=("$!")
    until_true step_is p gate RUNNING
    s_exec ledger events --tenant default --follow -o json >feed &
    local feed=$!
    pids+=("$feed")
    s_exec ledger events --run p --follow >run.ndjson & # which ends with the run
    local run=$!
    pids+=("$run")
    until_true grep -q StepStarted run.ndjson
    s run approve p
    ends_with 0 $run
    same "$(tail -1 run.ndjson | jq -r .eventType)" RunCompleted
    until_true grep -q RunCompleted feed
    kill -INT $feed
    ends_with 0 $feed
    same "$(jq -c 'map(.sequenceNumber)' feed)" "$(c ledger events --tenant default -o json | jq -c 'map(.sequenceNumber)')"
    refused 2 "--since is not served" s ledger events --since 2026-01-01T00:00:00Z
    refused 2 "--until is not served" s ledger events --until 2026-01-01T00:00:00Z
    refused 3 CORRELATION_NOT_FOUND s ledger events --correlation 00000000-0000-4000-8000-000000000000
}

db_test_plans() {
    serve
    plan p "$(step a noop)"
    same "$(s plan put p.json)" "$("$cairn" plan put p.json --data other)"
    s plan put p.json >ref.json
    same "$(s run ref.json -q -o json | jq -r .status)" COMPLETED
    echo '{"schemaVersion":"v1.3"}' >bad.json
    exits 1 s run bad.json 2>there
    exits 1 "$cairn" run bad.json --data other 2>here
    cmp here there
    plan params "$(step a noop)" '"parameters":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]},'
    exits 1 s run params.json -o json 2>there
    exits 1 "$cairn" run params.json --data other -o json 2>here
    same "$(jq -r .error.code there)" "$(jq -r .error.code here)"
}

test_backup_is_a_name_on_the_server() {
    serve
    same "$(s ledger backup one.db -o json)" '{"file":"one.db","verified":true}'
    [ -s data/backups/one.db ]
    refused 4 FILE_EXISTS s ledger backup one.db
    refused 1 FILE_NAME_INVALID s ledger backup ../two.db
}

db_test_archive() {
    serve
    plan done "$(step a noop)"
    plan open "$(step gate approval)"
    s run done.json --run-id one -q >/dev/null 2>&1
    s run done.json --run-id two -q >/dev/null 2>&1
    s_exec run open.json --run-id three -q >/dev/null 2>&1 &
    pids+=($!)
    until_true step_is three gate RUNNING
    s ledger events --run one >before
    same "$(s ledger archive --run one -o json | jq -c .runs)" 1
    same "$(s ledger archive --until 2020-01-01T00:00:00Z -o json | jq -c .)" '{"runs":0,"events":0}'
    holds "$(c ledger archive)" "of 1 runs" # on SQLite it is the server that does it
    same "$(s ledger archive -o json | jq -c .)" '{"runs":0,"events":0}'
    s ledger events --run one >after
    cmp before after
    refused 4 RUN_NOT_FINISHED s ledger archive --run three
    refused 3 RUN_NOT_FOUND s ledger archive --run nobody
    s run approve three
    until_true status_is three COMPLETED
    same "$(s ledger archive -o json | jq -c .runs)" 1
    s ledger verify --state >/dev/null
}

test_what_is_not_served_is_said() {
    serve
    refused 1 LOGS_NOT_SERVED s run logs p
    refused 2 "has no option --server" "$cairn" ledger rebuild --server "$server"
    refused 2 "leave it out with --server" s run p.json --secrets .
    refused 2 "leave it out with --server" s ledger append in --validation record
    refused 2 "a server knows you by your key" s run cancel p --actor ann
    refused 2 "--server and --data" s run list --data data
    refused 2 "--server and --db" s run list --db postgresql://x/y
    for url in ftp://x http:// https:// unix: nonsense 'http://x?y'; do
        refused 2 "--server takes" "$cairn" run list --server "$url"
    done
}

db_test_errors_and_exit_codes() {
    serve
    refused 3 RUN_NOT_FOUND s run show nobody
    refused 3 RUN_NOT_FOUND s run steps nobody
    refused 3 RUN_NOT_FOUND s explain nobody
    refused 3 RUN_NOT_FOUND s run cancel nobody
    refused 3 RUN_NOT_FOUND s run watch nobody
    refused 3 RUN_NOT_FOUND s ledger events --run nobody
    refused 3 EVENT_NOT_FOUND s ledger causes 00000000-0000-4000-8000-000000000000
    refused 3 RUN_NOT_FOUND s ledger alerts --run nobody
    refused 3 KEY_NOT_FOUND s key show nobody
    exits 3 s run show nobody -o json 2>there
    exits 3 c run show nobody -o json 2>here
    cmp here there
    # no key, a wrong one, one that may not, one that others can read
    refused 7 UNAUTHENTICATED "$cairn" run list --server "$server"
    echo cairn_aaaaaaaaaaaaaaaa_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA >wrong
    refused 7 UNAUTHENTICATED "$cairn" run list --server "$server" --key-file wrong
    plan p "$(step gate approval)"
    s_exec run p.json --run-id p -q >/dev/null 2>&1 &
    local pid=$!
    pids+=("$pid")
    until_true step_is p gate RUNNING
    key_of reader viewer
    same "$("$cairn" run list --server "$server" --key-file reader -o json | jq -r '.[].runId')" p
    refused 7 FORBIDDEN "$cairn" run cancel p --server "$server" --key-file reader
    refused 7 FORBIDDEN "$cairn" ledger stats --server "$server" --key-file reader
    chmod 644 key
    refused 1 KEY_FILE_OPEN_TO_OTHERS s run list
    chmod 600 key
    refused 3 KEY_FILE_UNREADABLE "$cairn" run list --server "$server" --key-file nowhere
    : >empty
    refused 1 KEY_FILE_UNREADABLE "$cairn" run list --server "$server" --key-file empty
    # it goes down while somebody watches
    stop_server
    ends_with 6 $pid
    refused 6 SERVER_UNREACHABLE s run list
    refused 6 SERVER_UNREACHABLE s run p.json
    refused 6 SERVER_UNREACHABLE s run cancel p
    refused 6 SERVER_UNREACHABLE "$cairn" run list --server unix:nowhere.sock
}

test_somebody_else_answers_there() {
    need python3
    mkdir www
    python3 -c '
import http.server, sys
h = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print(h.server_port, flush=True)
h.serve_forever()' >port 2>/dev/null &
    pids+=("$!")
    trap stop_all EXIT
    until_true test -s port
    refused 3 SERVER_ANSWER_INVALID "$cairn" run list --server "http://127.0.0.1:$(cat port)"
}

# A tenant's own key sees that tenant, and need not name it.
db_test_a_key_of_one_tenant() {
    serve
    s key create a --role operator --tenant a >a.key 2>/dev/null
    plan p "$(step n noop)"
    same "$("$cairn" run p.json -q -o json --server "$server" --key-file a.key | jq -r .tenantId)" a
    s run p.json --run-id other -q >/dev/null
    same "$("$cairn" run list -o json --server "$server" --key-file a.key | jq -r '.[].tenantId')" a
    refused 3 RUN_NOT_FOUND "$cairn" run show other --server "$server" --key-file a.key
}

test_the_environment_names_the_server_too() {
    serve
    plan p "$(step n noop)"
    export CAIRN_SERVER=$server CAIRN_KEY_FILE=$PWD/key
    same "$("$cairn" run p.json --run-id p -q -o json | jq -r .status)" COMPLETED
    same "$("$cairn" run list -o json | jq -r '.[].runId')" p
    refused 3 LEDGER_NOT_FOUND "$cairn" run list --data elsewhere # an option beats the environment
}

# The socket in the data folder needs no key: who can open it owns the folder.
test_over_the_socket() {
    serve
    u() { "$cairn" "$@" --server unix:data/cairn.sock; }
    plan p "$(step gate approval)"
    (exec "$cairn" run p.json --run-id p -q -o json --server unix:data/cairn.sock) >out &
    local pid=$!
    pids+=("$pid")
    until_true step_is p gate RUNNING
    same "$(u run list -o json | jq -r '.[].status')" RUNNING
    u run approve p --actor ann
    ends_with 0 $pid
    holds "$(jq -r '.steps[0].output.by' out)" ann
    same "$(u ledger verify -o json)" "$(c ledger verify -o json)"
    events_pl runs=1 | u ledger append -q >/dev/null
    same "$(u run show p -o json)" "$(c run show p -o json)"
}

# What changes a SQLite ledger goes through the process that holds the folder, without being told.
test_the_holder_of_the_folder_is_asked() {
    serve
    events_pl runs=1 >events.ndjson
    c ledger append events.ndjson -q >out
    same "$(jq -c .duplicate out | sort -u)" false
    c ledger append events.ndjson -q | jq -e .duplicate >/dev/null
    c ledger checkpoint "$(c run list -o json | jq -r '.[0].runId')" >/dev/null
    c key create more --role viewer >more 2>/dev/null
    same "$("$cairn" run list --server "$server" --key-file more -o json | jq length)" "$(c run list --tenant default -o json | jq length)"
}

test_tls() {
    need openssl
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost \
        -addext subjectAltName=IP:127.0.0.1 -keyout tls.key -out tls.pem 2>/dev/null
    serve --tls-cert tls.pem --tls-key tls.key
    same "${server%%:*}" https
    SSL_CERT_FILE=$PWD/tls.pem s run list -o json >out
    same "$(cat out)" "[]"
    refused 1 HTTP_FAILED s run list # nobody vouches for it
}

e2e_main "$@"
