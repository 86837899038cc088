#!/bin/bash
# library.sh: the library as its users get it: installed below a folder, found with pkg-config, and linked by the example
# program in C, by a C++ program, and statically.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(dirname "${CAIRN_BUILD:-$PWD/build/test}")
build=${build#"$PWD"/} # as `make` was called, or it would build everything again
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
checks=0
fail() {
    echo "library.sh: $*" >&2
    exit 1
}
is() { # WHAT ACTUAL EXPECTED
    [ "$2" = "$3" ] || fail "$1: \"$2\", expected \"$3\""
    checks=$((checks + 1))
}

# ---- make install ----
# (one at a time, as in install.sh)
env -u MAKEFLAGS -u MAKELEVEL flock . make BUILD="$build" DESTDIR="$folder/root" PREFIX=/usr/local install >"$folder/install.log" 2>&1 ||
    { cat "$folder/install.log" >&2; fail "make install failed"; }
root=$folder/root/usr/local
version=$(sed -n 's/^#define CAIRN_VERSION "\(.*\)"/\1/p' include/cairn.h)
for file in bin/cairn include/cairn.h lib/libcairn.a "lib/libcairn.so.$version" lib/pkgconfig/cairn.pc; do
    [ -f "$root/$file" ] || fail "$file was not installed"
done
is "libcairn.so" "$(readlink -f "$root/lib/libcairn.so")" "$(readlink -f "$root/lib/libcairn.so.$version")"
strange=$(nm -D --defined-only "$root/lib/libcairn.so" | awk '$3 !~ /^cairn_/ { print $3 }')
is "exported beside cairn_*" "$strange" ""
declared=$(grep -o '\bcairn_[a-z_]*(' "$root/include/cairn.h" | tr -d '(' | sort -u)
# The library is base, core, db, ledger and lib: whoever links it gets no loop, no network and no simulator.
is "needs" "$(readelf -d "$root/lib/libcairn.so" | sed -n 's/.*(NEEDED).*\[\(.*\)\.so\..*\]/\1/p' | grep -Ev '^(libc|libm|libdl|libpthread|ld-linux.*)$' | sort | tr '\n' ' ')" \
    "libcrypto libsqlite3 libyyjson "
is "what the library must not hold" "$(nm "$build/release/libcairn.a" 2>/dev/null | grep -cE ' [Tt] (sim|host|http_server|grpc|engine|uv)_' || true)" 0
is "exported as declared" "$(nm -D --defined-only "$root/lib/libcairn.so" | awk '{ print $3 }' | sort)" "$declared"

# ---- the example, with the line from its header ----
export PKG_CONFIG_PATH=$root/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$folder/root LD_LIBRARY_PATH=$root/lib
is "pkg-config version" "$(pkg-config --modversion cairn)" "$version"
cp examples/c/append_and_read.c "$folder"
cd "$folder"
line=$(sed -n 's/^ \* *\(cc .*pkg-config.*\)$/\1/p' append_and_read.c)
eval "${line/cc /cc -Wall -Wextra -Wpedantic -Werror }"
is "needs libcairn" "$(readelf -d append_and_read | grep -c 'NEEDED.*libcairn.so.0')" 1

./append_and_read ledger.db ids.db >first
is "events read" "$(grep -c '"persistedAt":' first)" 5
is "the last line" "$(tail -1 first)" "5 events, the run is COMPLETED"
is "in order" "$(sed -n 's/.*"eventType":"\([A-Za-z]*\)".*"runSeq":\([0-9]*\).*/\2\1/p' first | tr '\n' ' ')" \
    "1RunStarted 2StepStarted 3StepCompleted 4StepSkipped 5RunCompleted "
./append_and_read ledger.db ids.db >second
is "duplicates" "$(grep -c '(was there)$' second)" 5
is "the same records" "$(grep '^{' second)" "$(grep '^{' first)"
if ./append_and_read /no/such/folder/x.db ids.db 2>error; then fail "a missing folder was not noticed"; fi
grep -q 'could not open' error || fail "no reason was given: $(cat error)"

# ---- C++, and statically ----
cat >version.cc <<'CC'
#include <cairn.h>
#include <cstdio>
int main() {
    cairn_event event{};
    char key[65];
    event.event_type = "RunStarted";
    event.run_id = "0d3c6a9e-4f0c-4a8e-9d5d-3d4c0f7dbb8a";
    event.plan_id = "plan_abc";
    event.plan_version = "2";
    event.logical_attempt_id = 1;
    if (cairn_event_key(&event, key, nullptr) != CAIRN_OK) return 1;
    std::printf("%s %s %s\n", cairn_version(), cairn_run_events_version(), key);
}
CC
want="$version 2.0.1 204197f81e5dc1a8491d8e411c440a730c51a741cd48a74863d3e5c4c452640d"
c++ -Wall -Wextra -Wpedantic -Werror version.cc $(pkg-config --cflags --libs cairn) -o version
is "C++" "$(./version)" "$want"
static=$(pkg-config --static --libs cairn)
c++ version.cc $(pkg-config --cflags cairn) ${static/-lcairn/-l:libcairn.a} -o static
is "static" "$(./static)" "$want"
readelf -d static >dynamic
grep -q NEEDED dynamic || fail "readelf tells nothing of the static program"
is "static needs no libcairn" "$(grep -c 'NEEDED.*libcairn' dynamic || true)" 0

echo "library: $checks passed, 0 failed, 0 skipped"
