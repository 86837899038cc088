#!/bin/bash
# demo.sh: what `make run` shows: the example plan is carried out in a fresh data folder, then looked at, and verified.
set -euo pipefail
cd "$(dirname "$0")/.."
cairn=${CAIRN:-build/cairn}

data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT

show() { # prints the command as one would type it, then runs it
    printf '\n$ cairn'
    printf ' %s' "$@"
    printf '\n'
    "$cairn" "$@" --data "$data"
}

show run examples/orders/plan.json --run-id orders-2026-02-16
show run show orders-2026-02-16
show ledger verify --state

printf '\nEverything above lived in a temporary folder. Your own: cairn run examples/orders/plan.json; more: cairn help\n'
