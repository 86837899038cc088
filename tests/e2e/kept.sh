#!/bin/bash
# What is kept of a plan and of secrets: every table, every file of the data folder and the log are searched for words that only they hold.
. "$(dirname "$0")/lib/e2e.sh"
. "$(dirname "$0")/lib/engine.sh"
. "$(dirname "$0")/lib/server.sh"
unset CAIRN_SERVER CAIRN_KEY_FILE

marker=MARKER-4711-ZEBRA
secret=hunter2-and-more-4711

# dump FILE...: everything that is kept, one line for each row or line, its table or file first. The server must have ended.
dump() {
    local table folder=data
    if [ "$store_kind" = sqlite ]; then
        for table in $(sqlite3 data/ledger.db "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1"); do
            sqlite3 -ascii data/ledger.db "SELECT * FROM \"$table\"" | tr '\036\037' '\n ' | sed "s/^/table $table: /"
        done
    else
        folder=folder
        for table in $(psql -X -qAt -d "${store[1]}" -c "SELECT tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1"); do
            # bytea as text, so that a word in it is seen
            psql -X -qAt -d "${store[1]}" -c "SET bytea_output = 'escape'" -c "SELECT t::text FROM \"$table\" t" | sed "s/^/table $table: /"
        done
    fi
    find "$folder" -type f ! -name 'ledger.db*' -print0 | while IFS= read -r -d '' file; do sed "s|^|file $file: |" <"$file"; done
    sed 's/^/log: /' serve.err
}
marked_plan() { # NAME: its words are in commands, the environment and a condition; the last step prints the secret
    plan "$1" "$(step a exec ',"command":["sh","-c","test -n \"$TOKEN\" && echo fine # '$marker'"],"env":{"WORD":"'$marker'","TOKEN":{"secret":"TOKEN"}}'),$(step no exec ',"command":["'$marker'"],"runIf":"steps.a.output == '"'$marker'"'","dependsOn":["a"]'),$(sh_step said "echo \$TOKEN" ',"env":{"TOKEN":{"secret":"TOKEN"}},"dependsOn":["a"]')"
}
serve_with_secrets() {
    mkdir -p secrets
    printf %s "$secret" >secrets/TOKEN
    start_server --secrets secrets --log json:debug "$@"
}
carry_out() { # RUN REFERENCE
    curl -sS --fail-with-body "$server/v1/runs" -H 'Content-Type: application/json' -H 'Idempotency-Key: k-1' -d "{\"planRef\":$2,\"context\":{\"runId\":\"$1\"}}" >answer || fail "$(cat answer)"
    until_true status_is "$1" COMPLETED
    curl -sSf -X POST "$server/v1/runs/$1/checkpoints" >/dev/null
    stop_server
    dump >kept
    grep -q "^table ledger_event: " kept # it looks where it should,
    grep -q "$1" kept
    grep -q '^log: .*"' kept
}

places() { { grep -a "$1" kept || true; } | cut -d: -f1 | sort -u; } # WORD: where it stands

# WE-1N-4: of a plan that is fetched from elsewhere its PlanRef is kept and nothing else, and of a secret nothing at all.
db_test_of_a_fetched_plan_only_the_reference_is_kept() {
    need python3 sqlite3
    [ "$store_kind" = sqlite ] || need psql
    marked_plan far
    mkdir www
    mv far.json www/
    python3 -m http.server --bind 127.0.0.1 --directory www 0 >web 2>&1 &
    pids+=($!)
    until_true grep -q 'port [0-9]' web
    local port ref
    port=$(grep -oE 'port [0-9]+' web | cut -d' ' -f2)
    ref=$("$cairn" plan ref www/far.json --uri "http://127.0.0.1:$port/far.json")
    serve_with_secrets --allow "http://127.0.0.1:$port"
    carry_out far "$ref"
    holds "$(grep -a '^table ledger_event: ' kept | tr -d '\\')" "$(jq -r .sha256 <<<"$ref")"
    same "$(places "$marker")" "" "places with words of the plan"
    same "$(places "$secret")" "" "places with the secret"
}

# WE-1N-4: a plan that is put into Cairn stands in the plan store alone: in no event, state, checkpoint, receipt, audit row or log.
db_test_a_plan_that_is_put_is_in_the_plan_store_alone() {
    need sqlite3
    [ "$store_kind" = sqlite ] || need psql
    marked_plan near
    serve_with_secrets
    local ref
    ref=$(curl -sSf "$server/v1/plans" -H 'Content-Type: application/json' --data-binary @near.json)
    carry_out near "$ref"
    same "$(places "$marker")" "table ledger_plan" "places with words of the plan"
    same "$(places "$secret")" "" "places with the secret"
}

e2e_main "$@"
