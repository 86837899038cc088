# tests/e2e/lib/e2e.sh, sourced by the e2e tests.
#
# A test is a function. test_NAME runs once, on SQLite; db_test_NAME runs on SQLite and, when CAIRN_TEST_POSTGRES names a
# server, on PostgreSQL; pg_test_NAME on PostgreSQL only. Each time the store is fresh and empty.
# A test runs in a subshell with `set -e` in a folder of its own: any command that fails is a failure. Not so behind `!`, `||`
# or `&&`, where the shell looks away: there say `|| fail`. At the end: `e2e_main`.
set -uo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
cairn=${CAIRN:?names the program to test}
name=$(basename "$0" .sh)
scale=${CAIRN_TEST_SCALE:-100}
work=$(mktemp -d)
store_kind=sqlite store=() store_count=0
unset CAIRN_DATA CAIRN_DB
trap 'rm -rf "$work"' EXIT

events_pl() { perl "$repo/tests/e2e/lib/events.pl" "$@"; }
scaled() { # N: at full size, less when the tests are scaled down
    local n=$(($1 * scale / 100))
    echo $((n > 0 ? n : 1))
}
with_sanitizer() { case ${CAIRN_BUILD:-} in */san | */tsan) return 0 ;; esac; return 1; }

# c ARGS...: the program, on this test's store
c() { "$cairn" "$@" "${store[@]}"; }

fail() {
    echo "$*" >&2
    return 1
}

same() { # GOT WANT [WHAT]
    [ "$1" = "$2" ] || fail "${3:-value}: got \"$1\", want \"$2\""
}

holds() { # TEXT PART
    case $1 in *"$2"*) ;; *) fail "\"$2\" is not in: $1" ;; esac
}

# refused EXIT CODE COMMAND...: it must end with this exit code and tell this error code, and nothing on standard output
refused() {
    local want=$1 code=$2 rc=0 out
    shift 2
    out=$("$@" 2>err) || rc=$?
    same "$rc" "$want" "exit code of $* ($(cat err))"
    holds "$(cat err)" "$code"
    same "$out" "" "standard output of $*"
}

postgres() { psql -X -q -v ON_ERROR_STOP=1 -d "$@"; }

fresh_store() { # KIND FOLDER
    store_kind=$1
    if [ "$1" = sqlite ]; then
        store=(--data "$2/data")
        return
    fi
    local database="e2e_${name//[^a-z0-9]/_}_$$_$((++store_count))"
    postgres "$CAIRN_TEST_POSTGRES" -c "CREATE DATABASE $database" || return 1
    store=(--db "${CAIRN_TEST_POSTGRES%/*}/$database")
}

drop_store() {
    [ "$store_kind" = postgres ] || return 0
    postgres "$CAIRN_TEST_POSTGRES" -c "DROP DATABASE ${store[1]##*/} WITH (FORCE)" || true
}

# sql QUERY: straight to the store
sql() {
    if [ "$store_kind" = sqlite ]; then sqlite3 "${store[1]}/ledger.db" "$1"; else postgres "${store[1]}" -At -c "$1"; fi
}

passed=0 failed=0 skipped=0
one() { # FUNCTION KIND LABEL
    local folder="$work/$3" rc begun=$SECONDS
    mkdir -p "$folder"
    if ! fresh_store "$2" "$folder"; then # never on the store of another test
        failed=$((failed + 1))
        echo "FAIL $3 (no fresh store)"
        return
    fi
    (
        set -e
        cd "$folder"
        trap 'echo "  at ${FUNCNAME[0]}, line $LINENO: $BASH_COMMAND"' ERR
        set -E
        "$1"
    ) >"$folder.log" 2>&1
    rc=$?
    drop_store
    if [ "$rc" = 0 ]; then
        passed=$((passed + 1))
        echo "ok $3"
        sed -n 's/^ok /    ok /p' "$folder.log"
    elif [ "$rc" = 77 ]; then
        skipped=$((skipped + 1))
        echo "skip $3: $(tail -1 "$folder.log")"
    else
        failed=$((failed + 1))
        echo "FAIL $3 (exit code $rc)"
        sed 's/^/    /' "$folder.log" | cut -c1-2000 | tail -40
    fi
    rm -rf "$folder"
    if [ $((SECONDS - begun)) -ge ${SLOW:-10} ]; then echo "$3 took $((SECONDS - begun)) s"; fi
}

# skip WHY: only for what is missing on this machine. With CI=true the reason must be in tests/allowed-skips.
skip() {
    echo "$*"
    exit 77
}

need() { # PROGRAM...
    local program
    for program in "$@"; do command -v "$program" >/dev/null || skip "there is no $program"; done
}

# node_script FILE [ARGS...]: must end with 0; what it says is in the file `said`. 77 (the registry of its packages did not
# answer) is a skip. The tests inside it that passed are told to those who read our log, as "ok NAME".
node_script() {
    local rc=0
    node "$repo/$1" "${@:2}" >said 2>&1 || rc=$?
    [ "$rc" != 77 ] || skip "$(tail -1 said)"
    [ "$rc" = 0 ] || fail "$(grep -A2 -E '^(FAILED|FAIL) ' said | head -60; tail -20 said)"
    sed -n '/^ok /p' said
}

on_postgres() { # FUNCTION LABEL
    if [ -n "${CAIRN_TEST_POSTGRES:-}" ]; then
        one "$1" postgres "$2"
    else
        skipped=$((skipped + 1))
        echo "skip $2: CAIRN_TEST_POSTGRES names no server"
    fi
}

e2e_main() { # [SUBSTRING]: only tests whose name contains it
    local function
    for function in $(declare -F | awk '{ print $3 }' | grep -E "^(db_|pg_)?test_.*${1:-}"); do
        case $function in
        db_*)
            one "$function" sqlite "${function#db_}[sqlite]"
            on_postgres "$function" "${function#db_}[postgres]"
            ;;
        pg_*) on_postgres "$function" "${function#pg_}[postgres]" ;;
        *) one "$function" sqlite "$function" ;;
        esac
    done
    if [ $((passed + failed + skipped)) = 0 ]; then
        echo "FAIL no test is named *${1:-}*"
        failed=1
    fi
    echo "$name: $passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
}
