#!/bin/bash
# scripts/conformance: which failing tests break the contract, and which do not. The failures are real ones of the suite:
# unit tests that are told to fail, and tests of the program with a program that does nothing.
. "$(dirname "$0")/lib/e2e.sh"
unit=${CAIRN_BUILD:-$repo/build/test}/cairn-tests

# judged EXIT LAST COMMAND...: the log of what it prints must be judged so, with this last line; the report is in the file
# `said`. The log is one of some tests.
judged() {
    local want=$1 last=$2 rc=0
    shift 2
    "$@" >log 2>&1 || true # it may fail: that is what the report is about
    "$repo/scripts/conformance" --some log >said 2>&1 || rc=$?
    same "$rc" "$want" "exit code of conformance after $* ($(tail -5 said))"
    same "$(tail -1 said)" "$last" "last line of conformance after $*"
}
lists() { # LEVEL CLAUSE TEST
    grep -qE "^  $1 +$2 +$3(\[sqlite\])?$" said || fail "$1 $2 $3 is not in: $(sed -n '/^=== conformance/,$p' said)"
}

# RE-0-3: the suite with one failing MAY clause, and then with one failing MUST clause: only the second one counts. The
# suite itself fails both times.
test_only_must_decides() {
    local may=run_policy_b_stops_at_the_last_valid_event must=run_events_projector_checks_every_transition
    local some="run_polic run_events_projector"
    judged 0 "conformance: holds" "$unit" $some
    if "$unit" --fail $may $some >/dev/null 2>&1; then fail "the suite passes with a failing test"; fi
    judged 0 "conformance: holds; what failed does not decide it" "$unit" --fail $may $some
    lists MAY RE-5.3.3-6 $may
    same "$(sed -n '/^=== conformance/,$p' said | wc -l)" 3 "lines of the report"
    if "$unit" --fail $must $some >/dev/null 2>&1; then fail "the suite passes with a failing test"; fi
    judged 1 "conformance: broken" "$unit" --fail $must $some
    lists MUST RE-5.3.3-1 $must
}

# Each level on its own, and a test of two clauses, one of which decides.
test_levels() {
    judged 0 "conformance: holds; what failed does not decide it" "$unit" --fail producer_emits_nothing_when_the_state_is_unknown producer_emits
    lists SHOULD RE-5.3.1-5 producer_emits_nothing_when_the_state_is_unknown
    judged 1 "conformance: broken" "$unit" --fail run_events_invalid_events_do_not_corrupt_state run_events_invalid
    lists "MUST NOT" RE-5.3.3-3 run_events_invalid_events_do_not_corrupt_state
    judged 1 "conformance: broken" "$unit" --fail run_events_policy_a_marks_and_goes_on run_events_policy_a
    lists SHOULD RE-5.3.3-5 run_events_policy_a_marks_and_goes_on
    lists MUST RE-5.3.3-8 run_events_policy_a_marks_and_goes_on
}

# The tests of the program are found in their scripts.
test_scripts_are_judged_too() {
    export CAIRN=/bin/false
    judged 0 "conformance: holds; what failed does not decide it" "$repo/tests/e2e/cli.sh" version$
    lists DESCRIBED RE-0-1 test_version
    judged 1 "conformance: broken" "$repo/tests/e2e/cli.sh" event_key_renders_attempts
    lists MUST RE-3.1-8 test_event_key_renders_attempts
}

# What cannot be told to be harmless is not.
test_in_doubt_it_is_broken() {
    judged 1 "conformance: broken" "$unit" --fail run_policies_differ_only_after_an_invalid_event run_polic
    holds "$(cat said)" "run_policies_differ_only_after_an_invalid_event names no clause"
    judged 1 "conformance: broken" true
    judged 1 "conformance: broken" echo "x: 0 passed, 0 failed, 3 skipped"
    local may='[  FAILED  ] run_policy_b_stops_at_the_last_valid_event'
    judged 0 "conformance: holds; what failed does not decide it" sh -c "echo '$may'; echo 'unit: 1 passed, 1 failed, 0 skipped'; exit 1"
    judged 1 "conformance: broken" sh -c "echo '$may'; echo 'unit: 1 passed, 2 failed, 0 skipped'; exit 1"
    judged 1 "conformance: broken" sh -c "echo '$may'; exit 1"
    judged 1 "conformance: broken" sh -c "echo '$may'; echo 'unit: 1 passed, 1 failed, 0 skipped'; echo 'no space left'; exit 1"
    judged 1 "conformance: broken" sh -c "echo '$may'; echo 'x: failed with exit code 139'; echo '1 passed, 2 failed, 0 skipped'; exit 1"
    judged 1 "conformance: broken" sh -c "echo '${may}x'; echo 'unit: 1 passed, 1 failed, 0 skipped'; exit 1"
}

# A test that was skipped proves nothing, and one that did not run even less. The tree is one of its own, with three clauses.
test_skipped_and_missing_tests_hold_nothing() {
    local c=RE # in two pieces: here they are no names of clauses
    mkdir -p scripts src tests contracts
    cp "$repo/scripts/conformance" scripts
    printf 'id\tlevel\n%s\tMUST\n%s\tMUST\n%s\tMAY\n' $c-1-1 $c-1-2 $c-1-3 >contracts/levels.tsv
    printf '%s\n' "/* $c-1-1 */" 'TEST(one) {' '}' "/* $c-1-2 */" 'TEST(two) {' '}' "/* $c-1-2, $c-1-3 */" 'TEST(three) {' '}' >src/x_test.c
    report 0 "conformance: holds" '[       OK ] one' '[       OK ] two' '[       OK ] three'
    holds "$(head -1 said)" "3 held, 0 failed, 0 not tested"
    report 0 "conformance: holds" '[       OK ] one' '[  SKIPPED ] two' '[       OK ] three' # another test of the clause passed
    report 0 "conformance: holds where it was tested" '[       OK ] one[sqlite]' '[  SKIPPED ] one[postgres]' '[       OK ] two' '[  SKIPPED ] three'
    holds "$(head -1 said)" "2 held, 0 failed, 1 not tested"
    holds "$(cat said)" "$c-1-3        not tested: three was skipped"
    report 0 "conformance: holds where it was tested" 'ok one' '    ok two' 'skip three: no reason' # as scripts tell it
    report 1 "conformance: broken" '[       OK ] two' '[       OK ] three'
    holds "$(cat said)" "$c-1-1        not tested: one did not run"
    report 1 "conformance: broken" '[       OK ] one' '[       OK ] two' '[       OK ] three' 'no sum'
    report 0 "conformance: holds" '[       OK ] one' '[       OK ] two' '[       OK ] three'
    touch -d '+1 minute' src/x_test.c
    exits_with 1 scripts/conformance log
    holds "$(cat said)" "the log is older than src/x_test.c"
    exits_with 1 scripts/conformance no-log
}
report() { # EXIT LAST LINE...: a log with these lines and a sum
    local last=$2
    printf '%s\n' "${@:3}" >log
    case ${*: -1} in "no sum") ;; *) echo "3 passed, 0 failed, 0 skipped" >>log ;; esac
    touch -d '+1 second' log
    exits_with "$1" scripts/conformance log
    same "$(tail -1 said)" "$last" "last line of: $(cat said)"
}
exits_with() { # EXIT COMMAND...
    local want=$1 rc=0
    shift
    "$@" >said 2>&1 || rc=$?
    same "$rc" "$want" "exit code of $*: $(cat said)"
}

# In a tree of its own: a clause whose level nobody has written down, a comment that is not the test's, a clause in its body.
test_a_small_tree() {
    local known=RE new=RE test
    known+=-1-1 new+=-1-2 # in two pieces: here they are no names of clauses
    mkdir -p scripts src tests contracts
    cp "$repo/scripts/conformance" scripts
    printf 'id\tlevel\n%s\tMAY\n' $known >contracts/levels.tsv
    printf '%s\n' "/* $new: none. */" 'TEST(fresh) {' '}' "/* $known */" 'static int other;' 'TEST(bare) {' '}' \
        'TEST(body) {' "    /* $known */" '}' >src/x_test.c
    same "$(scripts/conformance --map | cut -f1-3 | tr '\t\n' ' ,')" "fresh $new unknown,bare - -,body $known MAY,"
    for test in fresh:1 bare:1 body:0; do
        printf '%s\n' "[  FAILED  ] ${test%:*}" '0 passed, 1 failed, 0 skipped' >log
        exits_with "${test#*:}" scripts/conformance --some log
    done
}

# Tests of the HTTP API run many at a time in one test of a script: those that failed stand for it, if all are told.
test_tests_inside_a_test() {
    local inner outer='FAIL test_every_route[sqlite] (exit code 1)'
    inner="    FAIL $(described_http_test)"
    judged 0 "conformance: holds; what failed does not decide it" sh -c "echo '$outer'; echo '$inner'; echo '    9 passed, 1 failed, 0 skipped'
        echo 'api: 1 passed, 1 failed, 0 skipped'; exit 1"
    judged 1 "conformance: broken" sh -c "echo '$outer'; echo '$inner'; echo '    9 passed, 2 failed, 0 skipped'
        echo 'api: 1 passed, 1 failed, 0 skipped'; exit 1"
    judged 1 "conformance: broken" sh -c "echo '$outer'; echo 'api: 1 passed, 1 failed, 0 skipped'; exit 1"
}
# (To the end of the map: who writes it would not survive a reader that leaves.)
described_http_test() { "$repo/scripts/conformance" --map | awk -F '\t' '$2 == "WE-2.1.3-14" && /mjs$/ && !n++ { print $1 }'; }

# Results are told by the name of a test alone.
test_names_are_unique() {
    same "$("$repo/scripts/conformance" --map | cut -f1,4 | sort -u | cut -f1 | uniq -d)" "" "names of two tests"
}

# No clause is named where the map does not find it, and each has a level.
test_every_named_clause_belongs_to_a_test() {
    "$repo/scripts/conformance" --map >map
    (cd "$repo" && find src tests -name '*_test.c' -o -path 'tests/*' -name '*.c' -o -path 'tests/*' -name '*.sh' -o -path 'tests/*' -name '*.mjs') |
        (cd "$repo" && xargs grep -ohE '\b(RE|ES|WE|CE|RK)-[A-Z0-9.]+-[0-9]+\b') | sort -u >named
    [ "$(wc -l <named)" -gt 300 ]
    cut -f2 map | grep -v '^-$' | sort -u | diff - named
    if awk -F '\t' '$3 == "unknown"' map | grep .; then fail "clauses without a level in contracts/levels.tsv"; fi
    same "$(cut -f1 "$repo/contracts/levels.tsv" | sort | uniq -d)" "" "clauses with two levels"
    same "$(awk -F '\t' 'NR > 1 && $2 !~ /^(MUST|MUST NOT|SHOULD|MAY|DESCRIBED)$/' "$repo/contracts/levels.tsv")" "" "levels"
}

# A reader who meets T17 or CANON in a comment finds in contracts/ what it means.
test_every_tension_that_is_cited_is_explained() {
    (cd "$repo" && grep -rohE --include='*.[ch]' --include='*.md' '\bT[0-9]{2}\b' src include docs tests ARCHITECTURE.md contracts | sort -u) >cited
    [ "$(wc -l <cited)" -ge 63 ]
    grep -oE '^- \*\*T[0-9]{2} ' "$repo/contracts/TENSIONS.md" | grep -oE 'T[0-9]{2}' | sort >explained
    same "$(uniq -d explained)" "" "explained twice"
    diff cited explained
    holds "$(cat "$repo/contracts/README.md")" "**CANON**"
}

e2e_main "$@"
