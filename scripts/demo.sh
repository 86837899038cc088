#!/bin/bash
# demo.sh: what `make run` shows: an example ledger is imported into a fresh data folder, looked at, and verified.
set -euo pipefail
cd "$(dirname "$0")/.."
cairn=${CAIRN:-build/cairn}
example=examples/ledger/orders.ndjson

data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT

show() { # prints the command as one would type it, then runs it
    printf '\n$ cairn'
    printf ' %s' "$@"
    printf '\n'
    "$cairn" "$@" --data "$data"
}

# Each event of the example is answered with its place in the ledger. Here the first and the last two are enough.
printf '$ cairn ledger append %s\n' "$example"
"$cairn" ledger append --data "$data" "$example" >"$data/results"
sed -n -e 1,2p -e '3s/.*/.../p' "$data/results"
tail -2 "$data/results"

show run list
show ledger events --run orders-2026-02-16-10h -o table
show run show orders-2026-02-16-09h --at 7
show ledger verify --state

printf '\nEverything above lived in a temporary folder. Your own ledger: cairn help\n'
