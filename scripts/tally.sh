# scripts/tally.sh, sourced: runs the parts of a test and adds up what they say.
#
# A part prints one or more lines `NAME: N passed, N failed, N skipped`; or it ends with a plain line
# `N passed, N failed, N skipped`, which is then the sum of all it printed before. A part that prints neither counts as
# one test; one that fails without saying so counts as one failure more.
#
# What a failed part said about its failures is said again at the end, each line behind "! ": the output of a long run is
# often kept only in part, and then its end. So are the reasons for what was skipped, each of them once.
#
# With CI=true a skipped test counts as a failed one unless the part gives a reason for it that is in tests/allowed-skips.
# A part that says that it ran no test at all counts as a failure, everywhere.

exec </dev/null
passed=0 failed=0 skipped=0 failed_parts=
tally_logs=$(mktemp -d)

# A part runs in a process group of its own: a signal to us ends all of it, and nothing else.
declare -A running=() # pid of a part -> its place in the lists below, or "now"
aside='' # pid of what runs meanwhile
stop_parts() {
    local pid
    for pid in "${!running[@]}" $aside; do kill -TERM -- "-$pid" 2>/dev/null || true; done
    rm -rf "$tally_logs"
}
trap stop_parts EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# why_skipped LOG: the reasons, as cairn-tests ("skipped: WHY") and the scripts ("skip NAME: WHY") give them, one a test.
why_skipped() { sed -n -e 's/^skipped: //p' -e 's/^skip\( [^ ]*\)\?: //p' "$1"; }

# Of the reasons that it reads, those that are in the list; with -v the others.
allowed_skips() { grep -xE "$@" -f <(grep -vE '^(#.*)?$' tests/allowed-skips) || [ $? = 1 ]; }

# told_again NAME LOG: the lines around each failure; or what it told again itself; or, if nothing looks like one, its end.
told_again() {
    if grep -q '^! ' "$2"; then grep '^! ' "$2" | head -200; return; fi
    awk -v name="$1" '
        { line[NR] = $0 }
        /^\[  FAILED  \] .*[^:]$|^FAIL(ED)? |Sanitizer|[Aa]ssert|: failed with exit code/ && !/^\[  FAILED  \] [0-9]+ test/ {
            for (i = NR - 25; i <= NR + 12; i++) if (i > 0) keep[i] = 1
            found = 1
        }
        END {
            for (i = 1; i <= NR; i++) {
                if (!(found ? i in keep : i > NR - 40) || line[i] ~ /^\[ +(RUN|OK) +\] |^ *ok /) continue
                if (++told > 100) exit
                print "! " name ": " line[i]
            }
        }' "$2"
}

# timed LOG COMMAND...: runs it, and leaves the processor time that it and its children took in LOG.time, in seconds. (What
# a server did for it is not in it.)
timed() {
    local log=$1 TIMEFORMAT='%U %S' rc=0
    shift
    { time "$@" 2>&3; } 3>&2 2>"$log.time" || rc=$?
    return "$rc"
}

# refuse_skips NAME: makes failures of the skips whose reasons, in the file "why", are not allowed. (p, f and s are those of
# count_part. A part that tallies has done this itself: its sum has no such skip any more.)
refuse_skips() {
    local good
    good=$(allowed_skips <"$tally_logs/why" | wc -l)
    [ "$good" -lt "$s" ] || return 0
    {
        echo "$1: $((s - good)) skipped without a reason that is in tests/allowed-skips"
        allowed_skips -v <"$tally_logs/why" | sort -u | sed "s|^|$1: not a reason to skip: |"
    } >"$tally_logs/refused"
    cat "$tally_logs/refused"
    sed 's/^/! /' "$tally_logs/refused" >>"$tally_logs/failures"
    f=$((f + s - good)) s=$good
}

# count_part NAME EXIT_CODE SECONDS LOG
count_part() {
    local name=$1 rc=$2 p f s n
    read -r p f s n < <(awk '
        function add() { p += $(NF - 5); f += $(NF - 3); s += $(NF - 1); n++ }
        /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { p = f = s = 0; add(); next }
        /^[A-Za-z0-9_.\/ -]+: [0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { add() }
        END { print p + 0, f + 0, s + 0, n + 0 }' "$4")
    if [ "$rc" = 0 ] && [ "$n" = 0 ]; then p=1; fi
    if [ $((p + f + s)) = 0 ]; then
        echo "$name: ran no test"
        echo "! $name: ran no test" >>"$tally_logs/failures"
        f=1
    fi
    if [ "$rc" != 0 ] && [ "$f" = 0 ]; then
        echo "$name: failed with exit code $rc"
        f=1
    fi
    why_skipped "$4" >"$tally_logs/why"
    cat "$tally_logs/why" >>"$tally_logs/skips"
    if [ "$f" != 0 ]; then told_again "$name" "$4" >>"$tally_logs/failures"; fi
    if [ "${CI:-}" = true ]; then refuse_skips "$name"; fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if [ "$f" != 0 ]; then failed_parts+=" $name"; fi
    echo "=== $name took $3 s, computed for $(awk '{ t = $1 + $2 } END { printf "%.0f", t }' "$4.time") s"
}

# part NAME COMMAND...: runs it now, and shows what it prints as it comes.
part() {
    local name=$1 rc=0 start=$SECONDS pid
    shift
    set -m
    (set +m -o pipefail; timed "$tally_logs/now" "$@" 2>&1 | tee "$tally_logs/now") &
    pid=$! running[$!]=now
    set +m
    wait "$pid" || rc=$?
    unset "running[$pid]"
    count_part "$name" "$rc" $((SECONDS - start)) "$tally_logs/now"
}

# later NAME COMMAND...: keeps it for `together N`, which runs N at a time and shows each when it has ended.
later_names=() later_commands=()
later() {
    later_names+=("$1")
    shift
    later_commands+=("$(printf '%q ' "$@")")
}
together() {
    local next=0 i pid rc starts=()
    while [ "$next" -lt "${#later_names[@]}" ] || [ "${#running[@]}" -gt 0 ]; do
        if [ "$next" -lt "${#later_names[@]}" ] && [ "${#running[@]}" -lt "$1" ]; then
            set -m
            (set +m; eval "timed \"\$tally_logs/$next\" ${later_commands[next]}") >"$tally_logs/$next" 2>&1 &
            running[$!]=$next starts[next]=$SECONDS
            set +m
            next=$((next + 1))
            continue
        fi
        rc=0
        wait -n -p pid "${!running[@]}" || rc=$?
        i=${running[$pid]}
        unset "running[$pid]"
        cat "$tally_logs/$i"
        count_part "${later_names[i]}" "$rc" $((SECONDS - starts[i])) "$tally_logs/$i"
    done
    later_names=() later_commands=()
}

# meanwhile COMMAND...: runs it in the background, until meanwhile_over, which shows what it has printed.
meanwhile() {
    set -m
    (set +m; "$@") >"$tally_logs/meanwhile" 2>&1 &
    aside=$!
    set +m
}
meanwhile_over() {
    wait "$aside" || true
    aside=''
    cat "$tally_logs/meanwhile"
}

# Prints the sum, alone on the last line, and returns 1 if anything failed.
tally() {
    if [ -n "$failed_parts" ]; then
        cat "$tally_logs/failures"
        echo "failed:$failed_parts"
    fi
    if [ -s "$tally_logs/skips" ]; then sort -u "$tally_logs/skips" | sed 's/^/why skipped: /'; fi
    if [ $((passed + failed + skipped)) = 0 ]; then
        echo "nothing ran"
        failed=1
    fi
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
}
