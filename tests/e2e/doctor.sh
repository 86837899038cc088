#!/bin/bash
# cairn doctor: each check says ok, warn or fail, and the exit code follows.
. "$(dirname "$0")/lib/e2e.sh"
example=$repo/examples/ledger/orders.ndjson

result() { jq -r --arg c "$1" '.[] | select(.check == $c) | .result' report; } # CHECK
detail() { jq -r --arg c "$1" '.[] | select(.check == $c) | .detail' report; }

durable_server() { # a test server may be started without fsync, and then the doctor rightly complains
    [ "$store_kind" = sqlite ] || [ "$(sql 'SHOW fsync')" = on ] || skip "this PostgreSQL runs with fsync=off"
}

db_test_all_is_well() {
    durable_server
    c ledger append -q "$example" >/dev/null
    c doctor -o json >report
    same "$(jq -r '.[].result' report | sort -u)" ok "$(cat report)"
    holds "$(detail ledger)" "schema version 2"
    same "$(detail sqlite)" "$(detail sqlite | grep -E '^3\.[0-9]+\.[0-9]+')"
    holds "$(detail openssl)" OpenSSL
    if [ "$store_kind" = sqlite ]; then
        same "$(detail "journal mode")" wal
        holds "$(detail fsync)" works
        holds "$(detail "free space")" MiB
        same "$(ls -A data | grep -c doctor || true)" 0 "left-overs"
    else
        same "$(detail synchronous_commit)" on
        same "$(detail fsync)" on
    fi
    holds "$(c doctor)" "ok      clock"
}

# SQLite before 3.51.3 needs one connection that writes and checkpoints; the doctor says so.
test_old_sqlite_is_noted() {
    "$cairn" doctor --data none -o json >report
    local version
    version=$(detail sqlite | grep -oE '^3\.[0-9]+\.[0-9]+')
    if [ "$(printf '3.51.3\n%s\n' "$version" | sort -V | head -1)" = 3.51.3 ]; then
        same "$(detail sqlite)" "$version"
    else
        holds "$(detail sqlite)" "one connection that writes and checkpoints"
    fi
}

db_test_nothing_there_yet_is_a_warning() {
    durable_server
    c doctor -o json >report
    same "$(result ledger)" warn
    [ ! -e data ] || fail "the doctor made the folder"
}

test_damage_and_foreign_files_fail() {
    mkdir data
    head -c 8192 /dev/urandom >data/ledger.db
    local rc=0
    c doctor -o json >report 2>err || rc=$?
    same "$rc" 8
    same "$(result ledger)" fail
    same "$(jq -r .error.code err)" DOCTOR_FAILED
}

test_a_newer_schema_fails() {
    c ledger append -q "$example" >/dev/null
    sql "UPDATE ledger_meta SET value = '99' WHERE name = 'schema_version'"
    local rc=0
    c doctor -o json >report 2>err || rc=$?
    same "$rc" 1
    holds "$(detail ledger)" "schema version 99"
    refused 1 SCHEMA_VERSION c run list
    refused 1 SCHEMA_VERSION c ledger append "$example"
}

test_a_folder_that_cannot_be_written_fails() {
    printf x >data # a file, not a folder
    local rc=0
    c doctor -o json >report 2>err || rc=$?
    same "$rc" 6
    same "$(result "data folder")" fail
}

test_an_unreachable_server_fails() {
    local rc=0
    "$cairn" doctor --db postgresql://127.0.0.1:1/x -o json >report 2>err || rc=$?
    same "$rc" 6
    same "$(result postgresql)" fail
}

db_test_a_clock_behind_the_ledger_is_a_warning() {
    durable_server
    c ledger append -q "$example" >/dev/null
    sql "UPDATE ledger_tenant SET persisted_us = persisted_us + 3600000000"
    c doctor -o json >report
    same "$(result "newest event")" warn
    holds "$(detail "newest event")" "ahead of this machine's clock"
}

e2e_main "$@"
