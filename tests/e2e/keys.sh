#!/bin/bash
# API keys: made, used, ended; and the audit trail.
. "$(dirname "$0")/lib/e2e.sh"
. "$(dirname "$0")/lib/engine.sh"
. "$(dirname "$0")/lib/server.sh"
unset CAIRN_SERVER CAIRN_KEY_FILE
umask 077

with() { "$cairn" "${@:2}" --server "$server" --key-file "$1"; } # KEY-FILE ARGS...

# Before there is a server, or a ledger.
db_test_the_first_key_is_made_offline() {
    c key create first --role admin --tenant '*' >key 2>err
    grep -qE '^cairn_[a-z0-9]{16}_[A-Za-z0-9_-]{43}$' key
    holds "$(cat err)" "shown this once"
    local id
    id=$(cut -d_ -f2 key)
    same "$(c key list -o json | jq -c '.[] | [.keyId, .name, .tenantId, .roles, .createdBy, .expiresAt, .revokedAt]')" \
        "[\"$id\",\"first\",\"*\",[\"admin\"],\"local\",null,null]"
    same "$(c key show "$id" -o json)" "$(c key list -o ndjson)"
    holds "$(c key list)" valid
    same "$(c audit -o json | jq -c '.[] | [.actor, .action, .target, .outcome]')" "[\"local\",\"key.create\",\"$id\",\"done\"]"
    start_server --auth
    with key run list -o json >out
    same "$(cat out)" "[]"
}

db_test_roles_and_times_are_checked() {
    refused 2 "--role takes" c key create x --role king
    refused 2 "--role ROLE is missing" c key create x
    refused 2 "NAME must have" c key create '' --role viewer
    refused 2 "--until" c key create x --role viewer --until tomorrow
    refused 1 TIME_IN_THE_PAST c key create x --role viewer --until 2020-01-01T00:00:00Z
    refused 3 KEY_NOT_FOUND c key show nobody
    refused 3 KEY_NOT_FOUND c key revoke nobody
    same "$(c key list -o json)" "[]"
    c key create both --role viewer --role producer -o json >made
    same "$(jq -c '[(.key | startswith("cairn_" + $id)), .roles, .tenantId]' --arg id "$(jq -r .keyId made)" made)" '[true,["viewer","producer"],"default"]'
    same "$(jq -c 'del(.key)' made)" "$(c key list -o ndjson)"
}

# Through the process that holds the folder, through HTTP, and after it has gone.
db_test_a_revoked_key_stops_at_once() {
    c key create admin --role admin --tenant '*' >admin 2>/dev/null
    start_server --auth
    with admin key create reader --role viewer >reader 2>/dev/null
    with reader run list >/dev/null
    local id
    id=$(cut -d_ -f2 reader)
    until_true used "$id"
    with admin key revoke "$id"
    refused 7 UNAUTHENTICATED with reader run list
    with admin key revoke "$id" # again: it is
    same "$(c key show "$id" -o json | jq -r '.revokedAt != null')" true
    holds "$(with admin key list)" revoked
    same "$(with admin audit -o json | jq -c '[.[].action] | contains(["key.create","key.revoke"])')" true
    refused 7 FORBIDDEN with_role_viewer audit
}
used() { [ "$(with admin key show "$1" -o json | jq -r .lastUsedAt)" != null ]; }
with_role_viewer() {
    [ -s viewer ] || with admin key create viewer --role viewer >viewer 2>/dev/null
    with viewer "$@"
}

# On SQLite the command finds the server by itself: what it changes holds there at once.
test_the_holder_of_the_lock_is_told() {
    c key create admin --role admin --tenant '*' >admin 2>/dev/null
    start_server --auth
    c key create reader --role viewer >reader 2>/dev/null
    with reader run list >/dev/null
    c key revoke "$(cut -d_ -f2 reader)"
    refused 7 UNAUTHENTICATED with reader run list
}

db_test_a_key_expires() {
    c key create admin --role admin --tenant '*' >admin 2>/dev/null
    start_server --auth
    with admin key create brief --role viewer --until "$(date -u -d '+3 seconds' +%FT%TZ)" >brief 2>/dev/null
    with brief run list >/dev/null
    until_true has_ended brief
    refused 7 UNAUTHENTICATED with brief run list
    holds "$(with admin key list)" expired
    same "$(with admin key list -o json)" "$(c key list -o json)"
}

has_ended() { [ "$(with admin key list | awk -v n="$1" '$2 == n { print $5 }')" = expired ]; }

# Another process that shares the database revokes the key: the server looks at the keys of open streams every fifteen seconds.
pg_test_a_stream_ends_when_its_key_is_revoked_elsewhere() {
    local id other
    c key create reader --role viewer >reader 2>/dev/null
    c key create other --role viewer >other 2>/dev/null
    start_server --auth
    for other in reader other; do
        curl -sSN "$server/v1/events?tenantId=default" -H "Authorization: Bearer $(cat $other)" -H 'Accept: text/event-stream' >"$other.sse" &
        pids+=($!)
        until_true grep -q retry: "$other.sse"
    done
    id=$(cut -d_ -f2 reader)
    c key revoke "$id"
    ends_in_time 60 "${pids[-2]}"
    kill -0 "${pids[-1]}" || fail "the other stream has ended, too"
}
ends_in_time() { # SECONDS PID
    local i
    for ((i = 0; i < $1 * 10; i++)); do
        kill -0 "$2" 2>/dev/null || return 0
        sleep 0.1
    done
    fail "process $2 goes on after $1 seconds"
}

# Nobody gives what they have not.
db_test_an_admin_of_one_tenant() {
    c key create admin --role admin --tenant '*' >admin 2>/dev/null
    start_server --auth
    with admin key create a --role admin --tenant a >a 2>/dev/null
    same "$(with a key create b --role viewer -o json | jq -r .tenantId)" a
    refused 7 FORBIDDEN with a key create c --role viewer --tenant '*'
    same "$(with a key list -o json | jq -r '.[].tenantId' | sort -u)" a
    refused 7 FORBIDDEN with a ledger stats
}

e2e_main "$@"
