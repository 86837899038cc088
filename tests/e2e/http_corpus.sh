#!/bin/bash
# The HTTP corpus: what our server takes and refuses is compared with Node's own server.
# (The unit tests give the same file, tests/http/corpus.json, to ours.)
. "$(dirname "$0")/lib/e2e.sh"

test_node_agrees_or_is_less_strict() {
    need node
    node_script tests/http/compare.mjs
}

test_corpus_is_large_enough() {
    [ "$(jq length "$repo/tests/http/corpus.json")" -ge 100 ]
    same "$(jq -r '[.[] | .name] | length - (unique | length)' "$repo/tests/http/corpus.json")" 0 "names used twice"
}

e2e_main "$@"
