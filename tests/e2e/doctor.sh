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
    ulimit -Sn 4096 || skip "too few files may be open at once: the test needs 4096"
    c ledger append -q "$example" >/dev/null
    c doctor -o json >report
    # (Where the tests themselves run on a network's file system, it rightly says so.)
    same "$(jq -r '.[] | select(.check != "file system") | .result' report | sort -u)" ok "$(cat report)"
    holds "$(detail ledger)" "schema version 4"
    same "$(detail sqlite)" "$(detail sqlite | grep -E '^3\.[0-9]+\.[0-9]+')"
    holds "$(detail openssl)" OpenSSL
    same "$(detail libcurl)" "$(detail libcurl | grep -E '^[78]\.[0-9]+\.[0-9]+')"
    same "$(detail "open files")" "at most 4096"
    if [ "$store_kind" = sqlite ]; then
        same "$(detail "journal mode")" wal
        holds "$(detail fsync)" works
        holds "$(detail "free space")" MiB
        same "$(detail permissions)" 0700
        same "$(find data -name '*doctor*')" "" "left-overs"
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

test_few_open_files_are_a_warning() {
    ulimit -Sn 4095 || skip "too few files may be open at once: the test needs 4096"
    c doctor -o json >report
    same "$(result "open files")" warn
    holds "$(detail "open files")" "at most 4095, few for a server"
}

test_a_folder_that_others_can_write_is_a_warning() {
    local mode
    mkdir data
    for mode in 0720 0702 1777; do
        chmod "$mode" data
        c doctor -o json >report
        same "$(result permissions)" warn "mode $mode"
        holds "$(detail permissions)" "$mode: others can replace the ledger"
    done
    for mode in 0700 0750 0755; do
        chmod "$mode" data
        c doctor -o json >report
        same "$(result permissions) $(detail permissions)" "ok $mode"
    done
}

# A library that is put before the C library makes every file system what F_TYPE says.
test_a_file_system_of_the_network_is_a_warning() {
    with_sanitizer && skip "a sanitizer wants to be the first library"
    local type name
    cat >statfs.c <<'C'
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
static int lie(void *fs, size_t size) {
    memset(fs, 0, size);
    ((struct statfs *)fs)->f_type = (long)strtoul(getenv("F_TYPE"), NULL, 16);
    return 0;
}
int statfs(const char *path, struct statfs *fs) { return (void)path, lie(fs, sizeof(*fs)); }
int statfs64(const char *path, struct statfs64 *fs) { return (void)path, lie(fs, sizeof(*fs)); }
C
    cc -shared -fPIC -D_GNU_SOURCE -o statfs.so statfs.c
    mkdir -m 700 data
    while read -r type name; do
        F_TYPE=$type LD_PRELOAD=$PWD/statfs.so "$cairn" doctor --data data -o json >report
        same "$(result "file system")" warn "$name"
        holds "$(detail "file system")" "$name: "
    done <<'TYPES'
6969 NFS
ff534d42 CIFS
fe534d42 SMB
517b SMB
1021997 9P
c36400 Ceph
65735546 FUSE
TYPES
    for type in ef53 58465342 9123683e 1021994 794c7630; do # ext4, XFS, btrfs, tmpfs, overlay
        F_TYPE=$type LD_PRELOAD=$PWD/statfs.so "$cairn" doctor --data data -o json >report
        same "$(result "file system")" ok "$type"
    done
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
