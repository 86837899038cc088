#!/bin/bash
# make install: what it puts where, that it works from there, and that it can be taken away again.
# (tests/e2e/library.sh compiles and links against what is installed.)
. "$(dirname "$0")/lib/e2e.sh"
build=$(dirname "${CAIRN_BUILD:-$repo/build/test}")
build=${build#"$repo"/} # as `make` was called, or it would build everything again
version=$(sed -n 's/^#define CAIRN_VERSION "\(.*\)"/\1/p' "$repo/include/cairn.h")

install_below() { # DESTDIR PREFIX
    # (library.sh does the same, and may be doing it now: two makes in one folder get in each other's way)
    env -u MAKEFLAGS -u MAKELEVEL flock "$repo" make -C "$repo" BUILD="$build" DESTDIR="$1" PREFIX="$2" install >install.log 2>&1 ||
        fail "$(cat install.log)"
}
listed() { (cd "$1" && find . ! -type d | sed 's|^\./||' | LC_ALL=C sort); } # FOLDER: its files

test_everything_is_there_and_works() {
    local root=$PWD/root/opt/cairn file
    umask 077 # others must be able to use it, too
    install_below "$PWD/root" /opt/cairn
    for file in bin/cairn include/cairn.h lib/libcairn.a "lib/libcairn.so.$version" lib/libcairn.so lib/pkgconfig/cairn.pc \
        share/man/man1/cairn.1 share/bash-completion/completions/cairn lib/systemd/system/cairn.service \
        lib/systemd/system/cairn.socket share/doc/cairn/{LICENSE,README.md,CHANGELOG.md,cairn.env} \
        share/doc/cairn/docs/{cli,plans,errors}.md share/doc/cairn/examples/workers/worker.py; do
        [ -s "$root/$file" ] || fail "$file was not installed"
    done
    same "$(find root -name '*.o' -o -name '*_test*' -o -name '.*')" ""
    same "$(find root/opt -type f ! -perm -444)" "" "files that not everybody can read"
    same "$(find root/opt/cairn -mindepth 1 -type d ! -perm -555)" "" "folders that not everybody can enter"
    same "$(find root/opt -type f -perm /022)" "" "files that others can write"
    same "$(cd root && ls)" opt "what stands outside of the prefix"

    # the program, from there, without anything of the build folder
    same "$(env -i "$root/bin/cairn" version | head -1)" "cairn $version"
    env -i "$root/bin/cairn" run "$root/share/doc/cairn/examples/orders/plan.json" --data data --run-id r --quiet -o json >result
    same "$(jq -r '.status' result)" COMPLETED "$(cat result)"
    readelf -d "$root/bin/cairn" >dynamic
    grep -q NEEDED dynamic
    same "$(grep -E 'R(UN)?PATH' dynamic | grep "$repo" || true)" "" "paths into the build folder"
    [ -x "$root/share/doc/cairn/examples/workers/worker.py" ] || fail "worker.py cannot be executed"
}

test_completion_scripts_work() {
    local root=$PWD/root/usr
    install_below "$PWD/root" /usr
    bash -n "$root/share/bash-completion/completions/cairn"
    same "$(bash -c '. "$1"; COMP_WORDS=(cairn led) COMP_CWORD=1; _cairn; echo "${COMPREPLY[*]}"' - \
        "$root/share/bash-completion/completions/cairn")" ledger
    if [ -f "$root/share/zsh/site-functions/_cairn" ]; then
        same "$(head -1 "$root/share/zsh/site-functions/_cairn" | cut -c1-14)" "#compdef cairn"
        if command -v zsh >/dev/null; then zsh -n "$root/share/zsh/site-functions/_cairn"; fi
    fi
    if [ -f "$root/share/fish/vendor_completions.d/cairn.fish" ]; then
        holds "$(cat "$root/share/fish/vendor_completions.d/cairn.fish")" "complete -c cairn"
        if command -v fish >/dev/null; then fish -n "$root/share/fish/vendor_completions.d/cairn.fish"; fi
    fi
}

test_units_name_the_installed_program() {
    local root=$PWD/root/opt/cairn unit
    install_below "$PWD/root" /opt/cairn
    same "$(sed -n 's/^ExecStart=\([^ ]*\) .*/\1/p' "$root/lib/systemd/system/cairn.service")" /opt/cairn/bin/cairn
    same "$(grep -c '/usr/local/bin' "$root/lib/systemd/system/cairn.service" || true)" 0
    for unit in "$root"/lib/systemd/system/cairn.{service,socket}; do # a line is a comment, a section, or NAME=VALUE
        [ -s "$unit" ]
        same "$(grep -vnE '^(#.*|\[[A-Z][a-z]+\]|[A-Z][A-Za-z]+=.*|)$' "$unit" || true)" "" "$unit"
    done
    command -v systemd-analyze >/dev/null || skip "there is no systemd-analyze to look at the units"
    mkdir units
    cp "$root"/lib/systemd/system/* units
    sed -i "s|/opt/cairn/bin/cairn|$root/bin/cairn|" units/cairn.service
    systemd-analyze verify --man=no units/cairn.service units/cairn.socket >verified 2>&1 || fail "$(cat verified)"
    same "$(grep units/ verified || true)" ""
}

# Everything in the settings is a comment: a fresh installation behaves as if it was not there.
test_settings_are_all_defaults() {
    [ -s "$repo/packaging/cairn.env" ]
    same "$(grep -vE '^(#.*)?$' "$repo/packaging/cairn.env" || true)" ""
    same "$(sed -n 's/^#\([A-Z]\)/\1/p' "$repo/packaging/cairn.env" | grep -vcE '^[A-Z_]+=' || true)" 0
}

test_the_manual_page_is_clean() {
    command -v man >/dev/null || skip "there is no man"
    same "$(LC_ALL=C.UTF-8 MANROFFSEQ=t man --warnings -E UTF-8 -l -Tutf8 -Z "$repo/man/cairn.1" 2>&1 >/dev/null)" ""
}

test_what_was_installed_can_be_removed() {
    local root=$PWD/root/usr/local
    mkdir -p "$root/bin" "$root/share/doc/cairn"
    echo mine >"$root/bin/other"
    echo mine >"$root/share/doc/cairn/notes"
    install_below "$PWD/root" /usr/local
    listed "$root" >before
    [ "$(wc -l <before)" -gt 20 ]
    install_below "$PWD/root" /usr/local # twice is fine
    same "$(listed "$root")" "$(cat before)"
    "$repo/scripts/install" --remove "$root" >removed
    same "$(listed "$root")" "$(printf 'bin/other\nshare/doc/cairn/notes')"
    if "$repo/scripts/install" --remove "$root" 2>err; then fail "it was there twice"; fi
    holds "$(cat err)" "nothing was installed"
}

e2e_main "$@"
