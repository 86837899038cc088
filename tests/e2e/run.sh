#!/bin/bash
# cairn run PLAN: from a plan to a result, whatever happens in between.
. "$(dirname "$0")/lib/e2e.sh"
. "$(dirname "$0")/lib/engine.sh"
example=$repo/examples/orders/plan.json

db_test_the_example_completes() {
    r run "$example" --run-id orders-1 -o json >out 2>err
    same "$(jq -c '[.runId,.status,.planId,.planVersion,.engineRunRef]' out)" \
        '["orders-1","COMPLETED","orders","1",{"provider":"local","workflowId":"orders-1","runId":"orders-1"}]'
    same "$(jq -c '.steps | length' out)" 12
    same "$(jq -c '.steps[] | select(.stepId == "summary") | .output' out)" '{"date":"2026-02-16","orders":5850,"regions":4}'
    same "$(jq -c '.steps[] | select(.stepId == "load-asia") | [.state,.attempt]' out)" '["SUCCESS",2]'
    same "$(jq -c '.steps[] | select(.stepId == "notify") | [.state,.reason]' out)" '["SKIPPED","CONDITION_FALSE"]'
    same "$(wc -l <out)" 1 "documents on standard output"
    grep -qE '^[0-9:]{8} load-asia failed \(EXIT_CODE\), retry 2 in [0-9.]+s$' err
    grep -qE '^[0-9:]{8} extract completed in [0-9.]+s$' err
    grep -qE '^[0-9:]{8} notify skipped: CONDITION_FALSE$' err
    grep -qE '^[0-9:]{8} run completed in [0-9.]+s$' err
    c ledger verify --state
}

db_test_a_finished_run_is_not_started_again() {
    plan once "$(sh_step a 'echo x >>"$CAIRN_WORKSPACE/../../count"; echo done')"
    r run once.json --run-id one -q -o json >first
    r run once.json --run-id one -q -o json >second 2>err
    same "$(cat second)" "$(cat first)"
    same "$(cat err)" "" "standard error of a quiet run"
    same "$(jq -c '.steps[0].output' first)" '"done"'
    same "$(sql "SELECT count(*) FROM run_events WHERE \"eventType\" = 'RunStarted'")" 1
}

workspaces() { if [ "$store_kind" = sqlite ]; then echo data/work; else echo folder/work; fi; }
db_test_workspaces_go_when_their_time_is_over() {
    mkdir outside
    echo x >outside/precious
    plan files "$(sh_step a 'mkdir -p d/e; echo x >d/e/f; ln -s ../../../outside link; chmod 500 d; echo out')"
    plan waiting "$(sh_step a 'echo x >f'),$(step b wait ',"signal":"go","dependsOn":["a"]')"
    r run files.json --run-id kept -q >/dev/null
    [ -e "$(workspaces)/kept/d/e/f" ] || fail "a workspace is not kept for long enough"
    r run logs kept >out
    holds "$(cat out)" out
    CAIRN_KEEP_WORKSPACES=0 r run files.json --run-id a/b -q >/dev/null
    CAIRN_KEEP_WORKSPACES=0 r run files.json --run-id none -q >/dev/null
    same "$(find "$(workspaces)" -mindepth 1 -maxdepth 1 ! -name kept)" "" "workspaces that are kept not at all"
    exits 2 env CAIRN_KEEP_WORKSPACES=soon "$cairn" run files.json "${store[@]}" 2>err
    holds "$(cat err)" "CAIRN_KEEP_WORKSPACES must be a time"

    # What a kill left of a removal, a workspace of an open run, one that nobody knows, one of long ago.
    r run files.json --run-id old -q >/dev/null
    r_exec run waiting.json --run-id open -q >/dev/null 2>&1 &
    local pid=$!
    until_true step_is open a SUCCESS
    kill -KILL $pid
    ends_with 137 $pid
    mkdir -p "$(workspaces)/.gone-x/y" "$(workspaces)/mine"
    touch -d '10 days ago' "$(workspaces)/old" "$(workspaces)/open" "$(workspaces)/mine"
    sleep 2.1
    plan slow "$(sh_step a 'sleep 1')"
    CAIRN_KEEP_WORKSPACES=2s r run slow.json --run-id now -q >/dev/null
    same "$(ls -A "$(workspaces)" | tr '\n' ' ')" "mine now open " "workspaces that are left"
    [ -e "$(workspaces)/open/f" ] || fail "the workspace of an open run was touched"
    [ -e outside/precious ] || fail "a link was followed"
    r run logs old 2>err
    holds "$(cat err)" "or its time is over"
}

db_test_a_failing_plan_ends_with_10() {
    plan bad "$(sh_step ok true),$(sh_step boom 'echo oops >&2; exit 3'),$(sh_step after true ',"dependsOn":["boom"]')"
    exits 10 r run bad.json --run-id b -o json >out 2>err
    same "$(jq -c '[.status,.error.code,.error.stepId]' out)" '["FAILED","STEP_FAILED","boom"]'
    same "$(jq -c '.steps[] | select(.stepId == "boom") | [.state,.error.code,.error.detail.exitCode]' out)" '["FAILED","EXIT_CODE",3]'
    grep -q 'boom failed (EXIT_CODE)' err
    exits 10 r run bad.json --run-id b >out
    holds "$(cat out)" "status  FAILED"
}

test_a_bad_plan_is_named_line_by_line() {
    printf '{\n "schemaVersion": "v1.3",\n "metadata": {"planId": "p", "planVersion": "1"},\n "steps": [\n  {"stepId": "a", "type": "noop", "dependsOn": ["b"]},\n  {"stepId": "a", "type": "fly"}\n ]\n}\n' >plan.json
    exits 1 r run plan.json 2>err >out
    same "$(cat out)" ""
    same "$(grep -cE '^plan\.json:[0-9]+:[0-9]+: [A-Z_]+ /steps' err)" "$(grep -c '^plan.json:' err)"
    [ "$(grep -c '^plan.json:' err)" -ge 2 ]
    holds "$(tail -1 err)" "is not a valid plan"
    refused 1 PLAN_UNKNOWN_DEPENDENCY r run plan.json -o json
    jq -e .error.code err >/dev/null
    refused 3 PLAN_NOT_FOUND r run nothing.json
    refused 3 'nor a command "cairn run fly"' r run fly
    refused 2 'PLAN|- is missing' r run
    [ ! -e data/ledger.db ] || fail "a bad plan made a ledger"
}

test_input_is_json_or_text() {
    plan in '{"stepId":"a","type":"exec","output":"json","command":["printf","%s","{{ parameters | json }}"]}' \
        '"parameters":{"type":"object","properties":{"text":{"type":"string"},"n":{"type":"integer"},"list":{"type":"array"},"any":{},"late":{}}},'
    echo '{"n": 1, "late": {"deep": [1.50]}} // a comment' >more.json
    r run in.json -q -o json --input text=12 --input @more.json --input n=7 --input 'list=[1,"b"]' --input any=plain >out
    same "$(jq -cS '.steps[0].output' out)" '{"any":"plain","late":{"deep":[1.5]},"list":[1,"b"],"n":7,"text":"12"}'
    refused 1 PARAMETERS_INVALID r run in.json --input n=many
    refused 2 'expected NAME=VALUE' r run in.json --input n
    refused 2 'must hold a JSON object' r run in.json --input @<(echo '[]')
}

test_secrets_are_masked() {
    mkdir secrets
    printf 'hunter2-and-more' >secrets/TOKEN
    plan sec '{"stepId":"a","type":"exec","env":{"T":{"secret":"TOKEN"}},"command":["sh","-c","echo the token is $T; echo $T >&2"]}'
    r run sec.json --secrets secrets --run-id s -o json >out 2>err
    holds "$(jq -r '.steps[0].output' out)" "the token is ***"
    if grep -rq hunter2 out err data; then fail "the secret is somewhere: $(grep -rl hunter2 out err data)"; fi
    exits 10 r run sec.json --run-id s2 -q -o json >out
    same "$(jq -r '.steps[0].error.code' out)" SECRET_NOT_FOUND
}

test_a_plan_from_standard_input_and_a_reference() {
    plan p "$(sh_step a 'echo hi')"
    same "$(r run - -q -o json <p.json | jq -r .status)" COMPLETED
    c plan put p.json >ref.json
    same "$(r run ref.json --run-id by-ref -q -o json | jq -r '.steps[0].output')" hi
    jq '.sha256 = ("0" * 64)' ref.json >wrong.json
    refused 1 "" r run wrong.json -q
    same "$(r run list -o json | jq length)" 2
}

test_run_ids_belong_to_one_plan() {
    plan p "$(sh_step a true)"
    plan q "$(sh_step a true)"
    r run p.json --run-id same -q >/dev/null
    refused 4 RUN_ID_TAKEN r run q.json --run-id same
    refused 4 RUN_ID_TAKEN r run p.json --run-id same --tenant other
    refused 1 CONTEXT_INVALID r run p.json --run-id 'a|b'
}

# DESIGN: killed at any moment, and the plan still completes.
db_test_killed_and_run_again_it_completes() {
    plan k "$(sh_step a 'echo a >>../../log'),$(sh_step b 'sleep 1; echo b >>../../log' ',"dependsOn":["a"]'),$(step c sleep ',"durationMs":300,"dependsOn":["b"]')"
    r_exec run k.json --run-id k -q >/dev/null 2>&1 &
    local pid=$!
    until_true step_is k b RUNNING
    kill -9 $pid
    wait $pid 2>/dev/null || true
    status_is k RUNNING
    if [ "$store_kind" = postgres ]; then sleep 6.5; fi # until its lease has ended
    same "$(r run k.json --run-id k -o json 2>err | jq -r .status)" COMPLETED
    holds "$(cat err)" "goes on after an interruption"
    same "$(sort "$(find . -name log)" | tr -d '\n')" ab "each step took effect once"
    same "$(sql "SELECT count(*) FROM run_events WHERE \"eventType\" = 'RunStarted'")" 1
    c ledger verify --state
}

# CE-8.2-4: a long run with a checkpoint is killed in its middle and resumed: the steps that are left run, in their order;
# those that had ended before the checkpoint, or after it, do not run again.
db_test_a_long_run_is_resumed_where_it_crashed() {
    local steps="" want="" script i pid
    for i in {1..24}; do # the 9th and the 17th wait for their file
        case $i in 9 | 17) script="echo s$i >>$PWD/begun; until [ -e $PWD/go$i ]; do sleep 0.05; done; " ;; *) script="" ;; esac
        steps+="${steps:+,}$(sh_step "s$i" "${script}echo s$i >>$PWD/log" "$([ "$i" = 1 ] || echo ",\"dependsOn\":[\"s$((i - 1))\"]")")"
        want+="s$i "
    done
    plan long "$steps"
    r_exec run long.json --run-id long -q >/dev/null 2>&1 &
    pid=$!
    until_true grep -qx s9 begun
    c ledger checkpoint long
    touch go9
    until_true grep -qx s17 begun
    kill -9 $pid
    wait $pid 2>/dev/null || true
    same "$(tr '\n' ' ' <log)" "${want%s17 *}" "what ran before the crash"
    same "$(sql "SELECT count(*) FROM run_checkpoints WHERE run_id = 'long'")" 1
    touch go17
    if [ "$store_kind" = postgres ]; then sleep 6.5; fi # until its lease has ended
    same "$(r run resume long -o json 2>/dev/null | jq -r .status)" COMPLETED
    same "$(tr '\n' ' ' <log)" "$want" "what ran in all"
    same "$(tr '\n' ' ' <begun)" "s9 s17 s17 " "only the step that was cut off began again"
    same "$(sql "SELECT count(*) FROM run_events WHERE \"eventType\" = 'StepStarted'")" 24
    same "$(sql "SELECT count(*) FROM run_events WHERE \"eventType\" = 'StepCompleted'")" 24
    c ledger verify --state
}

test_ctrl_c_leaves_the_run_open() {
    plan i "$(sh_step a 'sleep 0.3'),$(sh_step b 'sleep 1' ',"dependsOn":["a"]')"
    r_exec run i.json --run-id i >out 2>err &
    local pid=$! rc=0
    until_true step_is i b RUNNING
    kill -INT $pid
    wait $pid || rc=$?
    same "$rc" 130
    holds "$(cat err)" "cairn run resume i"
    status_is i RUNNING
    same "$(r run resume i -o json 2>/dev/null | jq -r .status)" COMPLETED
    refused 4 RUN_FINISHED r run resume i
}

test_two_processes_on_one_folder() {
    plan long "$(sh_step a 'sleep 1.5; echo long')"
    plan short "$(sh_step a 'sleep 0.2; echo short')"
    r_exec run long.json --run-id long -q -o json >long.out &
    local pid=$!
    until_true step_is long a RUNNING
    r run short.json --run-id short -o json >short.out 2>short.err
    same "$(jq -r '.steps[0].output' short.out)" short
    grep -q 'a completed in' short.err
    exits 10 r run <(sed 's/sleep 0.2; echo short/exit 4/; s/"short"/"shorter"/' short.json) --run-id f -q >/dev/null
    status_is long RUNNING
    wait $pid
    same "$(jq -r '.steps[0].output' long.out)" long
    [ ! -e data/cairn.sock ] || fail "the socket is still there"
}

# The process that had the folder ends first: whoever watched goes on.
test_a_watcher_takes_over() {
    plan first "$(sh_step a 'sleep 0.6')"
    plan second "$(sh_step a 'sleep 0.1'),$(sh_step b 'sleep 1; echo there' ',"dependsOn":["a"]')"
    r_exec run first.json --run-id first -q >/dev/null &
    local pid=$!
    until_true step_is first a RUNNING
    same "$(r run second.json --run-id second -q -o json | jq -r '.steps[1].output')" there
    wait $pid
    r_exec run first.json --run-id killed -q >/dev/null 2>&1 &
    pid=$!
    until_true step_is killed a RUNNING
    (sleep 0.3; kill -9 $pid) &
    same "$(r run second.json --run-id third -q -o json | jq -r .status)" COMPLETED
    wait
    c ledger verify --state
}

test_an_importer_holds_the_folder() {
    plan p "$(sh_step a true)"
    mkfifo pipe
    c ledger append -q pipe >/dev/null &
    exec 9>pipe
    local pid=$!
    until_true test -e data/ledger.db.lock
    until_true grep -q . data/ledger.db.lock
    refused 6 "is locked by process" r run p.json --wait 0
    exec 9>&-
    wait $pid
    r run p.json -q >/dev/null
}

test_a_long_path_has_a_socket_too() {
    local deep=$PWD/$(printf 'd%.0s' {1..90})/$(printf 'e%.0s' {1..90})
    plan p "$(sh_step a 'sleep 5')" # cancelled long before
    "$cairn" run p.json --data "$deep" --run-id p -q >/dev/null &
    until_true test -S "$deep/cairn.sock"
    same "$(stat -c %a "$deep/cairn.sock")" 600
    "$cairn" run cancel p --data "$deep" || true
    wait || true
}

# A bucket is reached through the endpoint that the configuration names, and only if the bucket itself is allowed.
test_a_plan_in_a_bucket() {
    need python3
    local port=$((20000 + RANDOM % 20000)) server ok
    mkdir -p srv/bucket
    plan buck '{"stepId":"a","type":"noop"}'
    cp buck.json srv/bucket/p.json
    python3 -m http.server "$port" --bind 127.0.0.1 --directory srv >/dev/null 2>&1 &
    server=$!
    until_true listens_on "$port"
    "$cairn" plan ref buck.json --uri s3://bucket/p.json >ref.json
    exits 1 r run ref.json -q 2>err
    holds "$(cat err)" PLAN_URI_NOT_ALLOWED
    exits 1 r run ref.json -q --allow s3://bucket 2>err
    holds "$(cat err)" "no endpoint is configured"
    ok=0
    r run ref.json -q --allow s3://bucket --allow "http://127.0.0.1:$port" \
        --endpoint "s3=http://127.0.0.1:$port/{bucket}/{key}" || ok=$?
    kill "$server"
    same "$ok" 0
    exits 2 r run ref.json --endpoint ftp=x 2>err
}
listens_on() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

test_the_help_of_run() {
    "$cairn" help run >text
    holds "$(cat text)" "usage: cairn run PLAN|-"
    holds "$(cat text)" "run approve RUN [STEP]"
    "$cairn" run --help | cmp - text
    "$cairn" help run cancel | grep -q -- --reason
}

e2e_main "$@"
