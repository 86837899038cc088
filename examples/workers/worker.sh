#!/bin/bash
# worker.sh QUEUE: a worker for Cairn in bash, with curl and jq. See README.md.
set -uo pipefail
url=${CAIRN_URL:-http://127.0.0.1:8420}/v1/tasks queue=${1:?names the queue}

# Your own work goes here. It gets the input of the step as JSON, and what it prints, as JSON, becomes the step's output.
work() { jq -ce '{ text: (.text | ascii_upcase), length: (.text | length) }' <<<"$1"; }

stop= # on SIGTERM the task at hand is finished first
trap 'stop=1' TERM INT

call() { # VERB BODY: sets answer. Asks again while the server is away or busy: saying the same thing twice does no harm
    local key=() code
    [ -z "${CAIRN_KEY:-}" ] || key=(-H "Authorization: Bearer $CAIRN_KEY")
    until
        answer=$(curl -sS --max-time 60 -w '\n%{http_code}' -H 'Content-Type: application/json' "${key[@]}" \
            --data-binary @- "$url/$1" <<<"$2") || answer=$'\n503'
        code=${answer##*$'\n'} answer=${answer%$'\n'*}
        [ -n "$stop" ] || [[ $code != 429 && $code != 5?? ]]
    do sleep 1; done
    [ "$code" = 200 ]
}

while [ -z "$stop" ]; do
    # No heartbeats here: the lease is longer than the work takes.
    call poll "$(jq -nc --arg q "$queue" --arg w "$HOSTNAME-$$" '{ queue: $q, worker: $w, waitMs: 20000, leaseMs: 300000 }')" ||
        { [ -n "$stop" ] && exit; echo "worker.sh: $answer" >&2; exit 1; }
    while IFS= read -r task; do
        if output=$(work "$(jq -c .input <<<"$task")" 2>&1); then
            call complete "$(jq -c --argjson o "$output" '{ task, output: $o }' <<<"$task")"
        else # the plan says whether it is tried again
            call fail "$(jq -c --arg m "$output" '{ task, code: "WORK_FAILED", message: $m }' <<<"$task")"
        fi || echo "worker.sh: $answer" >&2
    done < <(jq -c '.items[]' <<<"$answer")
done
