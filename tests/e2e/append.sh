#!/bin/bash
# cairn ledger append under stress: prompt answers, killed imports, many writers, little memory.
. "$(dirname "$0")/lib/e2e.sh"

runs_are_contiguous() { # each run's runSeq is 1, 2, 3, ... in the order of the tenant's sequence
    c ledger events --since 2020-01-01T00:00:00Z | jq -r '[.runId, .runSeq] | @tsv' >positions
    awk -F'\t' '$2 != ++last[$1] { print "run " $1 ": runSeq " $2 " where " last[$1] " was due"; bad = 1 } END { exit bad }' positions
}

wait_for_lines() { # FILE N
    local n=0
    until [ "$(wc -l <"$1")" -ge "$2" ]; do
        sleep 0.02
        [ $((n += 1)) -lt 3000 ] || fail "$1 has $(wc -l <"$1") lines, not $2"
    done
}

# A producer that waits for the acknowledgement of each event gets it at once, while its pipe stays open.
db_test_answers_come_while_the_input_is_open() {
    events_pl runs=2 >events
    mkfifo pipe
    "$cairn" ledger append -q "${store[@]}" <pipe >results &
    local pid=$! n=0 line
    exec 7>pipe
    while read -r line; do
        printf '%s\n' "$line" >&7
        wait_for_lines results $((n += 1))
    done <events
    printf '%s' '{"half":' >&7 # half a line keeps nobody waiting
    same "$(wc -l <results)" 20
    exec 7>&-
    wait $pid || same "$?" 1
    same "$(tail -1 results | jq -c '[.line,.error.code]')" '[21,"JSON_SYNTAX"]'
    same "$(head -20 results | jq -r .runSeq | sort -n | uniq -c | awk '{ print $1 }' | sort -u)" 2
}

# SIGKILL in the middle of an import: all that was acknowledged is there, and a second import adds the rest.
db_test_a_killed_import_is_resumed_by_importing_again() {
    local total cycle acknowledged
    total=$(($(scaled 500) * 10))
    [ "$total" -ge 1000 ] || total=1000
    events_pl runs=$((total / 10)) run=k >events
    : >acknowledged
    for cycle in 1 2 3; do # small groups, so that it takes a while
        "$cairn" ledger append -q --group 8 "${store[@]}" events >results 2>/dev/null &
        local pid=$!
        wait_for_lines results $((total * cycle / 8))
        kill -KILL $pid
        wait $pid 2>/dev/null || same "$?" 137
        [ "$(wc -l <results)" -lt "$total" ] || fail "the import was over before it could be killed"
        head -n "$(wc -l <results)" results | jq -c 'select(.eventId) | [.eventId,.runSeq,.persistedAt]' >>acknowledged
    done
    c ledger append -q events >results
    same "$(wc -l <results)" "$total"
    acknowledged=$(sort -u acknowledged | wc -l)
    [ "$acknowledged" -gt 0 ]
    jq -c '[.eventId,.runSeq,.persistedAt]' results | sort >final
    same "$(sort -u acknowledged | comm -23 - final | wc -l)" 0 "acknowledged events that changed or are gone"
    [ "$(jq -r .duplicate results | grep -c true)" -ge "$acknowledged" ]
    c ledger append -q events >again
    same "$(jq -r .duplicate again | sort | uniq -c | awk '{ print $1, $2 }')" "$total true" "a third import"
    same "$(c ledger stats -o json | jq .events)" "$total"
    runs_are_contiguous
    c ledger verify --state >/dev/null
}

test_a_second_writer_of_a_folder_is_told_who_has_it() {
    mkfifo pipe
    events_pl runs=1 >events
    "$cairn" ledger append -q "${store[@]}" <pipe >results &
    local pid=$!
    exec 7>pipe
    head -1 events >&7
    wait_for_lines results 1
    refused 6 "the ledger is being written by another process" c ledger append --wait 0 events
    holds "$(cat err)" "is locked by process $pid"
    refused 6 "locked by process $pid" c ledger rebuild --wait 0
    refused 6 "locked by process $pid" c ledger checkpoint r-1 --wait 0
    same "$(c run list -o json | jq length)" 1 "readers go on"
    c ledger verify --state >/dev/null
    (sleep 0.5; exec 7>&-) &
    exec 7>&-
    c ledger append -q --wait 20 events >results2 # waits, then has it
    same "$(wc -l <results2)" 10
    wait $pid
}

# RE-A.2-3: eight processes append at once: to runs of their own, to shared runs, and the same events all of them.
db_test_eight_processes_append_to_shared_and_own_runs() {
    local p pids=() n
    n=$(scaled 200)
    ticks() { # PROCESS: events of one type in three shared runs, told apart by their attempt
        perl -MDigest::SHA=sha256_hex -e '
            my ($p, $n) = @ARGV;
            for my $i (1 .. $n) {
                for my $run ("shared-1", "shared-2", "shared-3") {
                    my $attempt = $p * 1000000 + $i;
                    my $key = sha256_hex("$run|RUN|$attempt|Ticked|plan|1");
                    printf qq({"eventId":"%08x-%04x-4%03x-8000-%s","eventType":"Ticked","emittedAt":"2026-02-16T08:00:00Z","runId":"$run","tenantId":"t","projectId":"p","environmentId":"e","planId":"plan","planVersion":"1","engineAttemptId":1,"logicalAttemptId":$attempt,"idempotencyKey":"$key"}\n), $i, $p, substr($run, -1), substr($key, 0, 12);
                }
            }' "$1" "$n"
    }
    events_pl runs=20 run=same id=fixed >common
    for p in 1 2 3 4 5 6 7 8; do
        paste -d '\n' <(ticks $p) <(events_pl runs=20 run="own$p") | sed '/^$/d' >"events$p"
        cat common >>"events$p"
    done
    for p in 1 2 3 4 5 6 7 8; do
        "$cairn" ledger append -q --group 50 "${store[@]}" "events$p" >"results$p" 2>"talk$p" &
        pids+=($!)
    done
    for p in 1 2 3 4 5 6 7 8; do
        wait "${pids[p - 1]}" || fail "process $p ended with $?: $(cat "talk$p"; grep error "results$p" | head -3)"
    done
    # nothing twice, nothing missing: the shared ticks, the own runs, and one of each common event
    same "$(c ledger stats -o json | jq .events)" $((8 * 3 * n + 8 * 200 + 200))
    same "$(jq -r 'select(.duplicate | not) | .eventId' results? | sort | uniq -d | wc -l)" 0
    same "$(jq -r 'select(.duplicate) | .eventId' results? | wc -l)" $((7 * 200)) "duplicates of the common events"
    # contiguous in every run, and in the order in which each process was answered
    runs_are_contiguous
    for p in 1 2 3 4 5 6 7 8; do
        paste <(jq -r .runId "events$p") <(jq -r '[.runSeq, .duplicate] | @tsv' "results$p") |
            awk -F'\t' -v p=$p '$3 == "false" && $2 <= last[$1] { print "process " p ", run " $1 ": " $2 " after " last[$1]; bad = 1 } $3 == "false" { last[$1] = $2 } END { exit bad }'
    done
    same "$(c ledger events --run shared-1 | wc -l)" $((8 * n))
    c ledger verify --state >/dev/null
}

# Memory does not grow with the input: neither with the number of events nor with their size.
memory_of_import() { # FILE: peak resident KiB of an import
    mkfifo pipe
    "$cairn" ledger append -q "${store[@]}" <pipe >results &
    local pid=$!
    exec 7>pipe
    cat "$1" >&7
    wait_for_lines results "$(wc -l <"$1")"
    sed -n 's/^VmHWM:[^0-9]*\([0-9]*\).*/\1/p' /proc/$pid/status
    exec 7>&-
    wait $pid
    rm pipe
}

db_test_memory_is_bounded() {
    if with_sanitizer; then skip "a sanitizer needs more memory"; fi
    events_pl runs=10000 active=1000 pad=120 >many
    events_pl runs=60 active=60 pad=200000 steps=2 run=big >large
    local kib
    kib=$(memory_of_import many)
    [ "$kib" -le 65536 ] || fail "$kib KiB for 100000 events"
    kib=$(memory_of_import large)
    [ "$kib" -le 65536 ] || fail "$kib KiB for large events"
}

# A disk that is full: what was acknowledged stays, the lines that were not are named, and appending again completes it.
test_a_full_disk_leaves_named_lines_unacknowledged() {
    events_pl runs=400 pad=2000 >events
    local rc=0
    (
        trap '' XFSZ # a write beyond the limit is then an error, like one to a full disk
        ulimit -f 2000
        "$cairn" ledger append --group 100 "${store[@]}" events 2>&3 3>&- | cat >results
        exit "${PIPESTATUS[0]}"
    ) 3>talk || rc=$?
    same "$rc" 6 "$(cat talk)"
    jq -c 'select(.eventId) | [.eventId,.runSeq,.persistedAt]' results | sort >acknowledged
    [ "$(wc -l <acknowledged)" -ge 100 ]
    same "$(jq -r 'select(.error) | .error.code' results | sort -u)" NOT_ACKNOWLEDGED
    holds "$(cat talk)" "are not acknowledged and reading stopped after line $(wc -l <results)"
    holds "$(cat talk)" "lines $(jq -s 'map(select(.error).line) | "\(min) to \(max)"' -r results)"
    c ledger verify --state >/dev/null
    c ledger append -q events >again
    jq -c 'select(.duplicate) | [.eventId,.runSeq,.persistedAt]' again | sort >duplicates
    same "$(comm -23 acknowledged duplicates | wc -l)" 0 "acknowledged events that changed or are gone"
    same "$(c ledger stats -o json | jq .events)" 4000
    c ledger verify --state >/dev/null
}

# The same when a server goes away.
pg_test_a_lost_server_leaves_named_lines_unacknowledged() {
    events_pl runs=4 >events
    mkfifo pipe
    "$cairn" ledger append "${store[@]}" <pipe >results 2>talk &
    local pid=$! rc=0
    exec 7>pipe
    head -10 events >&7
    wait_for_lines results 10
    postgres "$CAIRN_TEST_POSTGRES" -c "ALTER DATABASE ${store[1]##*/} ALLOW_CONNECTIONS false" \
        -c "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '${store[1]##*/}'" >/dev/null
    tail -n +11 events >&7 || true
    exec 7>&-
    wait $pid || rc=$?
    same "$rc" 6 "$(cat talk)"
    holds "$(cat talk)" "are not acknowledged"
    holds "$(cat talk)" "lines 11 to"
    same "$(tail -n +11 results | jq -r .error.code | sort -u)" NOT_ACKNOWLEDGED
    postgres "$CAIRN_TEST_POSTGRES" -c "ALTER DATABASE ${store[1]##*/} ALLOW_CONNECTIONS true"
    c ledger append -q events >again
    same "$(c ledger stats -o json | jq .events)" 40
    same "$(head -10 again | jq -r .duplicate | sort -u)" true
}

e2e_main "$@"
