# shellcheck shell=bash disable=SC2154
# scripts/with-fetched-server.sh, sourced by with-temporal and with-conductor: runs a command while a server runs that is
# fetched once.
#
# `server_name`, `registry`, `version`, `variable` and `command` are set before. Where the server cannot be had, without() runs the
# command without it, and tells why on stderr and in ${variable}_WHY, in one line.

cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/cairn
fetch_limit=${CAIRN_TEST_FETCH_LIMIT:-720} # seconds
# --fetch, instead of a command: starts nothing, and prints why the server cannot be had, if so.
fetch_only=no
if [ "${command[0]}" = --fetch ]; then fetch_only=yes command=(printenv "${variable}_WHY"); fi
given=${variable}_WHY
if [ -n "${!variable:-}${!given:-}" ]; then exec "${command[@]}"; fi

without() { # WHY
    local why
    why=$(tr -s '[:space:][:cntrl:]' ' ' <<<"$1" | cut -c 1-300)
    why=${why% }
    echo "with-${server_name,,}: $why; going on without $server_name" >&2
    trap - EXIT INT TERM HUP
    if [ -n "$folder" ]; then rm -rf "$folder"; fi
    export "${variable}_WHY=$why"
    exec "${command[@]}"
}

folder='' server='' child='' # the pids of what ends with us
# shellcheck disable=SC2317,SC2329 # by the trap
finish() {
    trap '' INT TERM HUP
    if [ -n "$child" ]; then
        kill -TERM -- "-$child" || true
        wait "$child" || true
    fi
    stop
    if [ -n "$folder" ]; then rm -rf "$folder"; fi
} 2>/dev/null
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

stop() { # what it has stored goes with it: it need not end in order
    [ -n "$server" ] || return 0
    kill -KILL "$server" || true
    wait "$server" || true
    server=''
} 2>/dev/null

# foreground COMMAND...: its exit code is in rc. A process group of its own, so that a signal to us ends all of it.
foreground() {
    set -m
    "$@" <&0 &
    child=$!
    set +m
    rc=0
    wait "$child" || rc=$?
    child=''
}

# obtain FILE TOOL: FILE is in the cache afterwards. If it is not there yet, make_it makes it, as FILE in the folder
# $making, with the tool; two at once do it only once. What else is in that folder stays for the next try if this one fails.
obtain() {
    local file=$1 tool=$2 lock
    [ ! -e "$cache/$file" ] || return 0
    [ "${CAIRN_TEST_FETCH:-yes}" != no ] || without "$file is not in $cache, and CAIRN_TEST_FETCH=no"
    command -v "$tool" >/dev/null || without "no $registry on this machine to fetch $file with"
    making=$cache/making-$file
    mkdir -p "$making" 2>/dev/null || without "cannot write to $cache"
    exec {lock}>"$cache/$file.lock"
    until flock -n "$lock"; do
        [ "$SECONDS" -lt "$fetch_limit" ] || without "the $registry registry did not answer: somebody else has waited for $file for more than $fetch_limit s"
        sleep 1
    done
    if [ ! -e "$cache/$file" ]; then
        echo "with-${server_name,,}: fetching $file into $cache, once; this takes some minutes" >&2
        mkdir -p "$making"
        export -f make_it
        foreground env making="$making" version="$version" sha256="${sha256:-}" setpriv --pdeathsig TERM \
            timeout -k 10 "$fetch_limit" bash -euc make_it {lock}>&- </dev/null >"$making/log" 2>&1
        export -nf make_it
        case $rc in
        0) mv "$making/$file" "$cache/$file" ;;
        124 | 137) without "the $registry registry did not answer: $file is not there after $fetch_limit s" ;;
        *)
            if unanswered "$making/log"; then without "the $registry registry did not answer: $(reason "$making/log")"; fi
            without "could not make $file: $(reason "$making/log")"
            ;;
        esac
        rm -rf "$making"
    fi
    exec {lock}>&-
}

# unanswered LOG: it failed because a server of packages did not answer, or did not have them, and for no reason of ours.
unanswered() {
    grep -qiE 'dial tcp|no such host|unknown ?host|i/o timeout|timed? ?out|no answer in|connection (refused|reset)|TLS handshake|unexpected EOF|network is unreachable|could not transfer|(status|code|:) ?(403|404|410|429|50[0-9])|(403|404|410|429|50[0-9]) [A-Z]' "$1"
}

# reason LOG: the line that tells most about a failure.
reason() {
    sed -e 's/\x1b\[[0-9;]*m//g' "$1" | awk '/[Ee]rror|ERROR/ { print; found = 1; exit } { last = $0 } END { if (!found) print last }'
}

# serve SECONDS: starts the server on a free port of 127.0.0.1, in the fresh folder $folder; $port is its port. It is
# started by launch PORT, which ends in the server's exec, and is there when ready PORT says so.
serve() {
    local limit=$1 until
    if [ $fetch_only = yes ]; then exit 0; fi
    folder=$(mktemp -d "${TMPDIR:-/tmp}/cairn-${server_name,,}.XXXXXX")
    for _ in 1 2 3; do # a port may be taken between choosing and using it
        port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
        if (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then continue; fi
        (cd "$folder" && launch "$port") >>"$folder/server.log" 2>&1 </dev/null &
        server=$!
        until=$((SECONDS + limit))
        while [ "$SECONDS" -lt "$until" ] && kill -0 "$server" 2>/dev/null; do
            if ready "$port"; then return 0; fi
            sleep 0.2
        done
        stop
        if [ "$SECONDS" -ge "$until" ]; then break; fi
    done
    tail -40 "$folder/server.log" >&2
    without "could not start $server_name in $limit s"
}
