#!/bin/bash
# Every command on a ledger: what it prints when all is well, and what it says when not.
. "$(dirname "$0")/lib/e2e.sh"
example=$repo/examples/ledger/orders.ndjson
completed=orders-2026-02-16-08h failed_run=orders-2026-02-16-09h running=orders-2026-02-16-10h

import() { c ledger append -q "$example" >results; }
field() { jq -r "$1"; } # FILTER: of the NDJSON on standard input

db_test_append_answers_each_event_in_order() {
    import
    same "$(wc -l <results)" 55
    same "$(jq -r .eventId results)" "$(jq -r .eventId "$example")" "event ids in input order"
    same "$(jq -rc 'keys_unsorted | join(",")' results | sort -u)" "eventId,runSeq,persistedAt,duplicate"
    same "$(jq -r .duplicate results | sort -u)" false
    c ledger append "$example" >again 2>talk
    same "$(jq -r .duplicate again | sort -u)" true
    same "$(jq -c '[.eventId,.runSeq,.persistedAt]' again)" "$(jq -c '[.eventId,.runSeq,.persistedAt]' results)" "metadata of duplicates"
    holds "$(cat talk)" "0 appended, 55 duplicates, 0 refused"
    same "$(c ledger append -q -o json "$example" | jq 'length')" 55
    same "$(c ledger append -q - <"$example" | jq -r .duplicate | sort -u)" true
    same "$(c ledger append -q <"$example" | jq -r .duplicate | sort -u)" true
    same "$(printf '\n  \n\r\n' | c ledger append -q)" "" "blank lines"
}

db_test_append_keeps_the_good_lines_of_a_bad_file() {
    { sed -n 1p "$example"; echo; echo '{"a":1}'; sed -n 2p "$example"; } >mixed
    local rc=0
    c ledger append mixed >results 2>talk || rc=$?
    same "$rc" 1
    same "$(jq -c '.runSeq // [.line, .error.code, .error.where]' results | tr '\n' ' ')" '1 [3,"FIELD_UNKNOWN","/a"] 2 '
    holds "$(cat talk)" "1 of 3 events were refused (LINES_REFUSED)"
    same "$(c ledger stats -o json | jq .events)" 2
}

db_test_append_actor_and_validation() {
    sed -n 1p "$example" | c ledger append -q --actor 'ana' >/dev/null
    same "$(c ledger events --tenant acme -o ndjson | jq -r .actor)" ana
    refused 2 "--actor must have 1 to 100 bytes" c ledger append --actor "$(printf 'x%.0s' {1..101})" "$example"
    refused 2 "--validation must be reject or record" c ledger append --validation maybe "$example"
    refused 2 "--group must be a whole number from 1 to 4096" c ledger append --group 0 "$example"
    refused 2 "not as a table" c ledger append -o table "$example"
    refused 3 INPUT_UNREADABLE c ledger append no-such-file
    refused 1 "INPUT_UNREADABLE" c ledger append .
    refused 1 "Is a directory" c ledger append <.
}

# RE-0-2: the store's query, the projectors' feed, the SQL view that consoles read and the audit export show one record.
db_test_all_readers_see_the_same_record() {
    sed -n 1p "$example" | c ledger append -q >results
    local want view
    want=$(jq -c '[.eventId,.runSeq,.persistedAt]' results)
    same "$(c ledger events --run $completed | jq -c '[.eventId,.runSeq,.persistedAt]')" "$want" "query"
    same "$(c ledger events --tenant acme | jq -c '[.eventId,.runSeq,.persistedAt]')" "$want" "feed"
    same "$(c ledger events --since 2026-01-01T00:00:00Z -o json | jq -c '.[] | [.eventId,.runSeq,.persistedAt]')" "$want" "export"
    view=$(sql 'SELECT "eventId", "runSeq", "persistedAt" FROM run_events')
    same "$view" "$(jq -r '"\(.eventId)|\(.runSeq)|\(.persistedAt)"' results)" "view"
}

db_test_events_of_a_run_are_exact_records() {
    import
    c ledger events --run $failed_run -o ndjson >records
    same "$(jq -r .runSeq records | tr '\n' ' ')" "1 2 3 4 5 6 7 8 9 10 "
    same "$(jq -cS 'del(.runSeq, .persistedAt)' records)" "$(jq -cS "select(.runId == \"$failed_run\")" "$example")" "what was written"
    c ledger events --run $failed_run -o table >table
    same "$(awk 'NR > 1 { print $3 }' table)" "$(jq -r .eventType records)" "the table's events"
    same "$(c ledger events --run $failed_run --limit 3 | wc -l)" 3
    c ledger checkpoint $failed_run >/dev/null
    same "$(c ledger events --run $failed_run | tail -1 | jq -r .eventType)" RunCheckpointCreated
    refused 3 RUN_NOT_FOUND c ledger events --run nobody
}

db_test_events_of_a_tenant_and_after() {
    import
    same "$(c ledger events --tenant acme | jq -r .sequenceNumber | tr '\n' ' ')" "$(seq -s ' ' 48) "
    same "$(c ledger events --tenant acme --after 46 | jq -r .sequenceNumber | tr '\n' ' ')" "47 48 "
    same "$(c ledger events --tenant acme --after 48)" ""
    same "$(c ledger events --tenant globex | jq -r .runId | sort -u)" backfill-2025
    refused 3 TENANT_NOT_FOUND c ledger events --tenant nobody
}

# RE-2.3-3: emittedAt of every example event lies on 2026-02-16; what counts is when it was persisted.
db_test_time_windows_select_by_persistedAt() {
    local before after
    before=$(date -u +%Y-%m-%dT%H:%M:%SZ)
    import
    sleep 1.1
    after=$(date -u +%Y-%m-%dT%H:%M:%SZ)
    same "$(c ledger events --since 2026-02-16T00:00:00Z --until 2026-02-17T00:00:00Z | wc -l)" 0
    same "$(c ledger events --since "$before" --until "$after" | wc -l)" 55
    same "$(c ledger events --since "$before" --until "$after" --tenant globex | wc -l)" 7
    same "$(c ledger events --until "$before" | wc -l)" 0
    same "$(c ledger events --since "$after" | wc -l)" 0
    local next
    events_pl runs=1 >later
    c ledger append -q later >results
    next=$(jq -r .persistedAt results | sort | sed -n 1p)
    same "$(c ledger events --until "$next" | wc -l)" 55 "until is exclusive"
    same "$(c ledger events --since "$next" | wc -l)" "$(wc -l <later)" "since is inclusive"
    refused 2 "--since must be RFC 3339 in UTC" c ledger events --since yesterday
}

# CE-6.1-3: the trace of one run, in order, and nothing of another.
db_test_events_of_a_trace() {
    import
    local id
    id=$(c run show $completed -o json | jq -r .correlationId)
    c ledger events --correlation "$id" >trace
    same "$(jq -r .eventId trace)" "$(jq -r "select(.runId == \"$completed\") | .eventId" "$example")"
    same "$(jq -r .sequenceNumber trace)" "$(jq -r .sequenceNumber trace | sort -n)"
    same "$(jq -r .correlationId trace | sort -u)" "$id"
    same "$(c ledger events --correlation "$id" --tenant globex -o json 2>/dev/null || true)" "[]"
    refused 3 CORRELATION_NOT_FOUND c ledger events --correlation 11111111-1111-4111-8111-111111111111
    refused 2 "must be a UUID" c ledger events --correlation x
}

db_test_events_selections_exclude_each_other() {
    import
    refused 2 "which events?" c ledger events
    refused 2 "select by one of" c ledger events --run $completed --since 2026-01-01T00:00:00Z
    refused 2 "leave --tenant out" c ledger events --run $completed --tenant acme
    refused 2 "--after counts in one tenant" c ledger events --run $completed --after 1
    refused 2 "leave --until out" c ledger events --until 2026-01-01T00:00:00Z --follow
}

db_test_events_follow() {
    head -20 "$example" | c ledger append -q >/dev/null
    "$cairn" ledger events --since 2026-01-01T00:00:00Z --follow "${store[@]}" >followed &
    local pid=$! n=0
    tail -n +21 "$example" | c ledger append -q >/dev/null
    until [ "$(wc -l <followed)" = 55 ]; do
        sleep 0.1
        [ $((n += 1)) -lt 100 ] || fail "only $(wc -l <followed) events were followed"
    done
    kill -INT $pid
    wait $pid
    same "$(jq -r .eventId followed | sort)" "$(jq -r .eventId "$example" | sort)"
    same "$(c ledger events --tenant acme --follow --limit 5 | wc -l)" 5
}

# RE-1.3-2: a type that nobody knows is shown as it is stored, its payload untouched.
db_test_unknown_types_are_shown_as_they_are() {
    local key
    key=$("$cairn" event key --run-id r --attempt 1 --type RunTeleported --plan-id p --plan-version 1)
    printf '{"eventId":"0d3c6a9e-4f0c-4a8e-9d5d-3d4c0f7dbb8a","eventType":"RunTeleported","emittedAt":"2026-02-16T08:00:00Z","runId":"r","tenantId":"t","projectId":"p","environmentId":"e","planId":"p","planVersion":"1","engineAttemptId":1,"logicalAttemptId":1,"idempotencyKey":"%s","payload":{"to":[1.50,"Größe"],"x":1e3}}\n' "$key" >event
    c ledger append -q event >/dev/null
    holds "$(c ledger events --run r -o table)" 'RunTeleported'
    holds "$(c ledger events --run r -o table)" '{"to":[1.50,"Größe"],"x":1e3}'
    holds "$(c ledger events --run r -o ndjson)" '"eventType":"RunTeleported"'
    holds "$(c ledger events --run r -o ndjson)" '"payload":{"to":[1.50,"Größe"],"x":1e3}'
    same "$(c run show r -o json | jq -r .state.status)" NEW
}

# CE-6.2-4: from the event to its root with depths 0, 1, 2, ...; also a chain of ten thousand.
db_test_causes() {
    ticks() { # N: events of one run, each caused by the one before
        perl -MDigest::SHA=sha256_hex -e '
            for my $n (1 .. shift) {
                my $key = sha256_hex("chain|RUN|$n|Ticked|p|1");
                printf qq({"eventId":"%08x-0000-4000-8000-000000000000","eventType":"Ticked","emittedAt":"2026-02-16T08:00:00Z","runId":"chain","tenantId":"t","projectId":"p","environmentId":"e","planId":"p","planVersion":"1","engineAttemptId":1,"logicalAttemptId":%d,"idempotencyKey":"%s"}\n), $n, $n, $key;
            }' "$1"
    }
    local n
    n=$(scaled 10000)
    [ "$n" -ge 5 ] || n=5
    ticks "$n" | c ledger append -q >/dev/null
    c ledger causes 00000005-0000-4000-8000-000000000000 -o ndjson >five
    same "$(jq -c '[.depth, .event.eventId[7:8]]' five | tr -d '\n')" '[0,"5"][1,"4"][2,"3"][3,"2"][4,"1"]'
    same "$(jq -r '.event.causationId' five | tail -1)" null "the root has no cause"
    c ledger causes "$(printf '%08x' "$n")-0000-4000-8000-000000000000" -o ndjson >all
    same "$(jq -r .depth all)" "$(seq 0 $((n - 1)))" "depths"
    same "$(jq -r .event.runSeq all)" "$(seq "$n" -1 1)" "positions"
    same "$(c ledger causes "$(printf '%08x' "$n")-0000-4000-8000-000000000000" --limit 3 -o json | jq length)" 3
    holds "$(c ledger causes 00000002-0000-4000-8000-000000000000 -o table)" "Ticked"
    refused 3 "there is no event" c ledger causes 11111111-1111-4111-8111-111111111111
    refused 2 "EVENT_ID must be a UUID" c ledger causes x
}

db_test_run_show_at_any_position() {
    import
    same "$(c run show $completed -o json | jq -c '[.runId,.tenantId,.planId,.planVersion,.state.status,.state.runSeq,.state.totalSteps]')" \
        "[\"$completed\",\"acme\",\"orders\",\"7\",\"COMPLETED\",16,6]"
    same "$(c run show $completed --at 1 -o json | jq -c '[.state.status,.startedAt,.completedAt]')" '["PENDING",null,null]'
    same "$(c run show $completed --at 7 -o json | jq -c '[.state.status,.state.openSteps,[.state.steps[].state]]')" \
        '["RUNNING",3,["SUCCESS","RUNNING","RUNNING","RUNNING"]]'
    same "$(c run show $completed --at 16 -o json | jq -cS .state)" "$(c run show $completed -o json | jq -cS .state)"
    c run show $failed_run >shown
    holds "$(cat shown)" "FAILED"
    same "$(awk '$1 == "load-eu" { print $2, $3 }' shown)" "FAILED 2"
    c ledger checkpoint $running >/dev/null
    same "$(c run show $running --at 3 -o json | jq -c '[.state.runSeq,[.state.steps[].stepId]]')" '[3,["extract"]]'
    refused 3 RUN_NOT_FOUND c run show nobody
    refused 3 POSITION_NOT_FOUND c run show $completed --at 17
    refused 2 "--at must be a whole number from 1" c run show $completed --at 0
    refused 2 "RUN is missing" c run show
}

db_test_run_list_filters_and_pages() {
    import
    same "$(c run list -o ndjson | jq -r .runId | tr '\n' ' ')" "$running backfill-2025 invoices-2026-02-16 $failed_run $completed "
    same "$(c run list --status FAILED -o ndjson | jq -r .runId)" $failed_run
    same "$(c run list --status COMPLETED -o json | jq length)" 2
    same "$(c run list --tenant globex -o ndjson | jq -r .runId)" backfill-2025
    same "$(c run list --plan invoices --project warehouse --environment production -o json | jq length)" 1
    same "$(c run list --project other -o json)" "[]"
    same "$(c run list --inconsistent -o ndjson)" ""
    c run list --limit 2 -o ndjson >first
    c run list --limit 3 --before "$(tail -1 first | jq .cursor)" -o ndjson >rest
    same "$(cat first rest | jq -r .runId)" "$(c run list -o ndjson | jq -r .runId)"
    holds "$(c run list --limit 2 2>&1 >/dev/null)" "there are more: --before"
    holds "$(c run list)" "CANCELLED"
    refused 2 "--status must be PENDING" c run list --status LOST
    refused 2 "--limit must be" c run list --limit x
}

db_test_run_resolve() {
    import
    same "$(c run resolve --provider temporal --workflow invoices --provider-run 8f1c2d34 -o json | jq -r .runId)" invoices-2026-02-16
    holds "$(c run resolve --provider temporal --workflow invoices --provider-run 8f1c2d34 --tenant acme)" invoices-2026-02-16
    refused 3 RUN_NOT_FOUND c run resolve --provider temporal --workflow invoices --provider-run 8f1c2d34 --tenant globex
    refused 3 RUN_NOT_FOUND c run resolve --provider temporal --workflow invoices --provider-run other
    refused 2 "--workflow ID is missing" c run resolve --provider temporal --provider-run x
}

one_event() { # RUN TYPE STEP|- ATTEMPT
    local option=() member=
    [ "$3" = - ] || { option=(--step-id "$3"); member=",\"stepId\":\"$3\""; }
    printf '{"eventId":"%s","eventType":"%s","emittedAt":"2026-02-16T08:00:00Z","runId":"%s","tenantId":"t","projectId":"p","environmentId":"e","planId":"plan","planVersion":"1","engineAttemptId":1,"logicalAttemptId":%d,"idempotencyKey":"%s"%s}\n' \
        "$(cat /proc/sys/kernel/random/uuid)" "$2" "$1" "$4" \
        "$("$cairn" event key --run-id "$1" "${option[@]}" --attempt "$4" --type "$2" --plan-id plan --plan-version 1)" "$member"
}

# RE-5.3.2-4, RE-5.3.2-6, RE-5.3.2-7: the same invalid append is refused the same way, by every process and in every
# store, and leaves no record.
db_test_invalid_transitions_are_refused_alike() {
    one_event r RunStarted - 1 | c ledger append -q >/dev/null
    one_event r StepCompleted a 1 >bad
    for _ in 1 2 3 4 5 6 7 8 9 10; do c ledger append -q bad >>refusals || same "$?" 1; done
    same "$(sort refusals | uniq -c | awk '{ print $1 }')" 10 "identical refusals"
    same "$(head -1 refusals | jq -r .error.code)" INVALID_TRANSITION
    same "$(c ledger stats -o json | jq -c '[.events,.rejections,.alerts]')" "[1,1,0]"
    one_event r RunStarted - 1 | "$cairn" ledger append -q --data other >/dev/null
    "$cairn" ledger append -q --data other bad >elsewhere || same "$?" 1
    same "$(cat elsewhere)" "$(head -1 refusals)" "refusal of a fresh store"
}

# RE-5.4-1, RE-5.4-2, RE-5.4-3, RE-5.4-4: a recorded one is one alert with everything it needs.
db_test_alerts() {
    { one_event r RunStarted - 1; one_event r StepCompleted a 1; one_event r RunCompleted - 1; } >events
    c ledger append -q --validation record events >results
    c ledger alerts -o ndjson >alerts
    same "$(wc -l <alerts)" 1
    same "$(jq -c '[.runId,.tenantId,.projectId,.environmentId,.code,.priorState,.attemptedState]' alerts)" \
        '["r","t","p","e","INVALID_TRANSITION","PENDING","SUCCESS"]'
    same "$(jq -c '[.eventId,.runSeq,.persistedAt]' alerts)" "$(sed -n 2p results | jq -c '[.eventId,.runSeq,.persistedAt]')"
    same "$(jq -r .eventType alerts)" StepCompleted
    same "$(c ledger alerts --run r -o json | jq length)" 1
    holds "$(c ledger alerts)" "StepCompleted"
    same "$(c run list --inconsistent -o ndjson | jq -c '[.runId,.status,.mark]')" '["r","COMPLETED","INCONSISTENT"]'
    refused 3 RUN_NOT_FOUND c ledger alerts --run nobody
}

db_test_checkpoint() {
    import
    same "$(c ledger checkpoint $running -o json | jq -c '[.runSeq,.duplicate]')" "[10,false]"
    holds "$(c ledger checkpoint $running)" "event 11 of the run"
    same "$(c ledger stats -o json | jq .checkpoints)" 2
    holds "$(c ledger verify --state)" "57 events of 5 runs"
    refused 3 RUN_NOT_FOUND c ledger checkpoint nobody
}

db_test_verify_names_the_first_bad_row() {
    import
    same "$(c ledger verify)" "verified: 55 events of 5 runs, hash chain and order"
    same "$(c ledger verify --state -o json)" '{"damaged":false,"events":55,"runs":5,"state":true}'
    local off on
    if [ "$store_kind" = sqlite ]; then
        off="DROP TRIGGER ledger_event_no_UPDATE;" on=
    else
        off="ALTER TABLE ledger_event DISABLE TRIGGER ALL;" on="ALTER TABLE ledger_event ENABLE TRIGGER ALL;"
    fi
    sql "$off UPDATE ledger_event SET logical_attempt = 9 WHERE pos = 1099511627776 + 7; $on"
    local rc=0
    c ledger verify >out 2>err || rc=$?
    same "$rc" 8
    same "$(cat out)" ""
    holds "$(cat err)" 'LEDGER_DAMAGED at tenant "acme" sequenceNumber 7'
    rc=0
    c ledger verify -o json >out 2>err || rc=$?
    same "$rc" 8
    same "$(jq -c '[.damaged,.tenantId,.sequenceNumber]' out)" '[true,"acme",7]'
    same "$(jq -r .error.code err)" LEDGER_DAMAGED
}

db_test_rebuild_repairs_projections() {
    import
    c run list -o ndjson >before
    sql "UPDATE state_run SET status = 6 WHERE run_no = 1"
    refused 8 "state row differs from the replay" c ledger verify --state
    c ledger verify >/dev/null # the truth itself is whole
    same "$(c ledger rebuild)" "rebuilt the projections of 5 runs"
    c ledger verify --state >/dev/null
    same "$(c run list -o ndjson)" "$(cat before)"
    same "$(c ledger rebuild -o json)" '{"runs":5}'
}

db_test_stats() {
    import
    same "$(c ledger stats -o json | jq -c '[.tenants,.runs,.openRuns,.events,.alerts,.rejections,.checkpoints,.bytes > 0]')" \
        "[2,5,1,55,0,0,0,true]"
    same "$(c ledger stats | awk '$1 == "events" { print $2 }')" 55
}

test_backup_is_a_ledger_of_its_own() {
    import
    holds "$(c ledger backup copy.db)" "backed up and verified: copy.db"
    mkdir other
    mv copy.db other/ledger.db
    same "$("$cairn" ledger verify --state --data other -o json | jq .events)" 55
    same "$(c ledger backup -o json again.db | jq -c .)" '{"file":"again.db","verified":true}'
    refused 4 FILE_EXISTS c ledger backup again.db
    refused 2 pg_dump "$cairn" ledger backup x.db --db postgresql://nowhere/x
    [ ! -e again.db.part ]
}

db_test_a_missing_ledger_is_explained() {
    for command in "ledger events --run r" "ledger verify" "ledger stats" "ledger alerts" "ledger rebuild" "run list" "run show r" \
        "ledger checkpoint r" "ledger causes 11111111-1111-4111-8111-111111111111"; do
        # shellcheck disable=SC2086
        refused 3 LEDGER_NOT_FOUND c $command
        holds "$(cat err)" 'make one with "cairn ledger append"'
    done
    [ ! -e data ] || fail "a reader made the folder"
}

# No password of a database address is ever shown.
test_passwords_stay_secret() {
    local rc=0
    "$cairn" run list --db 'postgresql://u:hush@127.0.0.1:1/x' >out 2>&1 || rc=$?
    same "$rc" 6
    if grep hush out; then fail "the password is shown"; fi
    "$cairn" doctor --db 'postgresql://u:hush@127.0.0.1:1/x?password=hush2' >out 2>&1 || true
    if grep hush out; then fail "the password is shown"; fi
}

e2e_main "$@"
