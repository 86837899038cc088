#!/bin/bash
# tests/sim/bugs.sh [BUILD_OF_A_KIND] [NAME_PART]: would the simulator notice, or the tests that a patch names?
#
# Each patch in tests/sim/bugs plants one plausible mistake into a copy of src/. Only the patched files are compiled
# again; the rest comes from libcairn.a (build/test unless the first argument says otherwise). Seeds are run until an
# invariant breaks, an assertion fails, or the program crashes. A mistake that nobody notices within SEEDS or within
# SECONDS_EACH is a failure, and so is a patch that no longer applies: then the source has changed, and the patch must
# follow. A patch about what the simulator does not hold begins with "Tests: PATTERN...": those unit tests, on SQLite,
# must pass without it and fail with it.
set -euo pipefail
cd "$(dirname "$0")/../.."
kind=${1:-build/test}
part=${2:-}
SEEDS=${SEEDS:-3000}
SECONDS_EACH=${SECONDS_EACH:-100}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

flags=(-std=c17 -O1 -g -w -D_GNU_SOURCE -pthread -Iinclude -Itests)
read -r -a deps <<<"$(sed -n 's/^DEP_CFLAGS := //p' build/deps.mk)"
read -r -a libs <<<"$(sed -n 's/^DEP_LIBS := //p' build/deps.mk) -ldl -lm"
rpath=-Wl,-rpath,$PWD/build/deps/usr/lib/$(uname -m)-linux-gnu

[ -f "$kind/libcairn.a" ] || { echo "bugs: there is no $kind/libcairn.a: make it first"; exit 2; }
gcc "${flags[@]}" -Isrc "${deps[@]}" -c tests/sim/main.c -o "$work/main.o"

# Without a bug there must be nothing to notice.
gcc -pthread -o "$work/sim" "$work/main.o" "$kind/parts.a" "$kind/libcairn.a" "$rpath" "${libs[@]}"
if ! "$work/sim" 1 "$SEEDS" >"$work/good" 2>&1; then
    echo "bugs: the sources themselves are broken: $(tail -n 1 "$work/good")"
    exit 1
fi

# What the unit tests are linked from: see TEST_C in the Makefile.
test_objects() {
    find src -name '*_test.c' -o -path 'src/cli/*.c' ! -name main.c
    ls tests/test.c tests/conformance/*.c tests/model/*.c
}
test_objects | sort -u | sed "s,\(.*\)\.c$,$kind/obj/\1.o," >"$work/test-objects"
named=$(sed -n 's/^Tests: //p' tests/sim/bugs/*"$part"*.patch | tr '\n' ' ')
if [ -n "$named" ]; then
    # shellcheck disable=SC2086 # several patterns
    if ! env -u CAIRN_TEST_POSTGRES "$kind/cairn-tests" $named >"$work/good" 2>&1; then
        echo "bugs: the tests fail without a bug: $(tail -n 1 "$work/good")"
        exit 1
    fi
fi

# unit DIR TESTS OBJECT...: runs these tests of the program with the patched objects.
unit() {
    local dir=$1 tests=$2
    shift 2
    gcc -pthread -o "$dir/tests" "$@" @"$work/test-objects" "$kind/parts.a" "$kind/libcairn.a" "$rpath" -lcmocka -lpq "${libs[@]}" 2>"$dir/log" || return 2
    # shellcheck disable=SC2086 # several patterns
    timeout "$SECONDS_EACH" env -u CAIRN_TEST_POSTGRES "$dir/tests" $tests 2>&1
}

plant() { # PATCH: prints one line, "passed", "failed" or "skipped" first
    local patch=$1 name dir file objects=() log out rc tests
    name=$(basename "$patch" .patch)
    dir=$work/$name
    mkdir -p "$dir"
    cp -r src "$dir/src"
    if ! log=$(patch -s -p1 -d "$dir" --no-backup-if-mismatch -r - <"$patch" 2>&1); then
        echo "failed $name: the patch no longer applies: $(tr '\n' ' ' <<<"$log")"
        return
    fi
    while read -r file; do
        if ! gcc "${flags[@]}" "-I$dir/src" "${deps[@]}" -c "$dir/$file" -o "$dir/$(basename "$file").o" 2>"$dir/log"; then
            echo "failed $name: $file does not compile: $(head -n 1 "$dir/log")"
            return
        fi
        objects+=("$dir/$(basename "$file").o")
    done < <(sed -n 's,^+++ b/\([^[:space:]]*\).*,\1,p' "$patch")
    tests=$(sed -n 's/^Tests: //p' "$patch")
    if [ -n "$tests" ]; then
        rc=0
        out=$(unit "$dir" "$tests" "${objects[@]}") || rc=$?
        case $rc in
        0) echo "failed $name: $tests did not notice" ;;
        1) echo "passed $name: $(grep -a ' failed: ' <<<"$out" | head -n 1 | cut -c 1-150)" ;;
        2) echo "failed $name: it does not link: $(grep -m 1 error "$dir/log" || head -n 1 "$dir/log")" ;;
        124) echo "failed $name: nobody noticed in $SECONDS_EACH s: a run that takes too long proves nothing" ;;
        134) echo "passed $name: $(grep -a assert <<<"$out" | head -n 1 | cut -c 1-150)" ;;
        139) echo "passed $name: it crashes" ;;
        *) echo "failed $name: the program could not run: $(tail -n 1 <<<"$out" | cut -c 1-150)" ;;
        esac
        rm -rf "$dir"
        return
    fi
    if ! gcc -pthread -o "$dir/sim" "$work/main.o" "${objects[@]}" "$kind/parts.a" "$kind/libcairn.a" "$rpath" "${libs[@]}" 2>"$dir/log"; then
        echo "failed $name: it does not link: $(head -n 1 "$dir/log")"
        return
    fi
    rc=0
    out=$(timeout "$SECONDS_EACH" "$dir/sim" 1 "$SEEDS" 2>&1) || rc=$?
    rm -rf "$dir"
    case $rc in
    0) echo "failed $name: nobody noticed in $SEEDS seeds" ;;
    1) echo "passed $name: $(tail -n 1 <<<"$out" | cut -c 1-150)" ;;
    124) echo "failed $name: nobody noticed in $SECONDS_EACH s: a run that takes too long proves nothing" ;;
    134) echo "passed $name: $(tail -n 1 <<<"$out" | cut -c 1-150)" ;; # an assertion
    139) echo "passed $name: it crashes" ;;
    *) echo "failed $name: the program could not run: $(tail -n 1 <<<"$out" | cut -c 1-150)" ;;
    esac
}
export -f plant unit
export work kind SEEDS SECONDS_EACH rpath
# Arrays cannot be exported: their words go through text.
export FLAGS_TEXT="${flags[*]}" DEPS_TEXT="${deps[*]}" LIBS_TEXT="${libs[*]}"

find tests/sim/bugs -name "*$part*.patch" | sort >"$work/list"
xargs -P "$(nproc)" -I{} bash -c '
    set -uo pipefail
    read -r -a flags <<<"$FLAGS_TEXT"; read -r -a deps <<<"$DEPS_TEXT"; read -r -a libs <<<"$LIBS_TEXT"
    plant "$1"' _ {} <"$work/list" | tee "$work/results" | sed 's/^/  /'
passed=$(grep -c '^passed' "$work/results" || true)
failed=$(($(wc -l <"$work/list") - passed))
echo "bugs: $passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
