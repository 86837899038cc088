# scripts/tally.sh, sourced: runs the parts of a test and adds up what they say.
#
# A part prints one or more lines `NAME: N passed, N failed, N skipped`; or it ends with a plain line
# `N passed, N failed, N skipped`, which is then the sum of all it printed before. A part that prints neither counts as
# one test; one that fails without saying so counts as one failure more.

exec </dev/null
passed=0 failed=0 skipped=0 failed_parts=
tally_log=$(mktemp)

# A part runs in a process group of its own: a signal to us ends all of it, and nothing else.
current=
trap '[ -z "$current" ] || kill -TERM -- "-$current" 2>/dev/null || true; rm -f "$tally_log"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# part NAME COMMAND...
part() {
    local name=$1 rc=0 start=$SECONDS p f s n
    shift
    set -m
    (set +m -o pipefail; "$@" 2>&1 | tee "$tally_log") &
    current=$!
    set +m
    wait "$current" || rc=$?
    current=
    read -r p f s n < <(awk '
        function add() { p += $(NF - 5); f += $(NF - 3); s += $(NF - 1); n++ }
        /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { p = f = s = 0; add(); next }
        /^[A-Za-z0-9_.\/ -]+: [0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { add() }
        END { print p + 0, f + 0, s + 0, n + 0 }' "$tally_log")
    if [ "$rc" = 0 ] && [ "$n" = 0 ]; then p=1; fi
    if [ "$rc" != 0 ] && [ "$f" = 0 ]; then
        echo "$name: failed with exit code $rc"
        f=1
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if [ "$f" != 0 ]; then failed_parts+=" $name"; fi
    echo "=== $name took $((SECONDS - start)) s"
}

# Prints the sum, alone on the last line, and returns 1 if anything failed.
tally() {
    [ -z "$failed_parts" ] || echo "failed:$failed_parts"
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
}
