#!/bin/bash
# scripts/tally.sh and scripts/test-all: what is skipped, missing or empty does not pass for tested. Each test has a small
# tree of its own, with parts that print what our tests print.
. "$(dirname "$0")/lib/e2e.sh"

small_tree() {
    mkdir -p scripts tests/e2e tests/crash build/some
    cp "$repo/scripts/"{tally.sh,test-all} scripts
    printf '%s\n' '# why' 'no moon( today)?' '' 'a registry' >tests/allowed-skips
}
# tallied CI EXIT LAST TEXT...: parts that print these texts and end well; what is said is in the file `said`
tallied() {
    local ci=$1 want=$2 last=$3 rc=0
    shift 3
    CI=$ci bash -uo pipefail -c '. scripts/tally.sh; for text in "$@"; do part "part" printf "%b\n" "$text"; done; tally' - "$@" >said 2>&1 || rc=$?
    same "$rc $(tail -1 said)" "$want $last" "$(cat said)"
}

# The reasons are those of cairn-tests and those of scripts, and each must be the whole line of the list.
test_a_skip_needs_a_reason() {
    small_tree
    local unit='skipped: no moon today\nunit: 1 passed, 0 failed, 1 skipped' script='skip test_x[sqlite]: a registry\nx: 0 passed, 0 failed, 1 skipped'
    tallied true 0 "1 passed, 0 failed, 2 skipped" "$unit" "$script"
    tallied true 1 "1 passed, 1 failed, 0 skipped" 'skipped: no moon today, either\nunit: 1 passed, 0 failed, 1 skipped'
    holds "$(cat said)" "! part: not a reason to skip: no moon today, either"
    tallied false 0 "1 passed, 0 failed, 1 skipped" 'skipped: no moon today, either\nunit: 1 passed, 0 failed, 1 skipped'
    tallied true 1 "1 passed, 1 failed, 1 skipped" 'skipped: no moon\nunit: 1 passed, 0 failed, 2 skipped' # one has none
    tallied true 1 "0 passed, 1 failed, 0 skipped" '# why\nskip: # why\nx: 0 passed, 0 failed, 1 skipped'
    rm tests/allowed-skips
    tallied true 1 "1 passed, 1 failed, 0 skipped" "$unit"
}

# A part that tallies itself, as `make test` does in .ci/run, has made failures of its skips: they are counted once.
test_a_tally_of_tallies() {
    small_tree
    local inner='skipped: rain\nskipped: no moon\nunit: 3 passed, 0 failed, 2 skipped\n3 passed, 1 failed, 1 skipped'
    tallied true 1 "3 passed, 1 failed, 1 skipped" "$inner"
}

test_nothing_is_no_success() {
    small_tree
    tallied false 1 "0 passed, 1 failed, 0 skipped" 'x: 0 passed, 0 failed, 0 skipped'
    holds "$(cat said)" "part: ran no test"
    tallied false 1 "0 passed, 1 failed, 0 skipped"
    holds "$(cat said)" "nothing ran"
}

# A script that is not executable, a program that was not built, no script at all.
test_what_cannot_run_fails() {
    small_tree
    : >tests/crash/gone.c
    printf '#!/bin/sh\necho "good: 1 passed, 0 failed, 0 skipped"\n' >tests/e2e/good.sh
    chmod +x tests/e2e/good.sh
    all 0 "1 passed, 0 failed, 0 skipped" e2e
    cp tests/e2e/good.sh tests/e2e/plain.sh
    chmod -x tests/e2e/plain.sh
    all 1 "1 passed, 1 failed, 0 skipped" e2e
    holds "$(cat said)" "failed: tests/e2e/plain.sh"
    all 1 "0 passed, 1 failed, 0 skipped" crash
    holds "$(cat said)" "failed: crash/gone"
    rm tests/e2e/*.sh
    all 1 "0 passed, 1 failed, 0 skipped" e2e
}
all() { # EXIT LAST PART
    local rc=0
    env -u CAIRN_TEST_POSTGRES scripts/test-all build/some "$3" >said 2>&1 || rc=$?
    same "$rc $(tail -1 said)" "$1 $2" "$(cat said)"
}

e2e_main "$@"
