#!/bin/bash
# TLS: certificates at the start and at a reload.
. "$(dirname "$0")/lib/e2e.sh"
. "$(dirname "$0")/lib/engine.sh"
. "$(dirname "$0")/lib/server.sh"

certificate() { # NAME: NAME.pem and NAME.key, self-signed, of 127.0.0.1
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "/CN=$1" \
        -addext subjectAltName=IP:127.0.0.1 -keyout "$1.key" -out "$1.pem" 2>openssl.err || fail "$(cat openssl.err)"
}
serve_tls() { # [ARGS...]: with one.pem as server.pem
    certificate one
    certificate two
    cp one.pem server.pem
    cp one.key server.key
    start_server --tls-cert server.pem --tls-key server.key --log json "$@"
    holds "$server" https://
}
get() { curl -sS --max-time 20 --cacert "$1.pem" "$server$2"; } # CERTIFICATE PATH
shown() { openssl s_client -connect "${server#https://}" </dev/null 2>/dev/null | openssl x509 -noout -subject; }
shows() { [ "$(shown)" = "$(openssl x509 -noout -subject -in "$1.pem")" ]; } # CERTIFICATE
append() { # RUN: its start
    local line
    line=$(events_pl run="$1" tenant=default runs=1 steps=0 | head -1)
    curl -sS --max-time 20 -k -H 'Content-Type: application/x-ndjson' --data-binary "$line" "$server/v1/events"
}

test_https_works() {
    need openssl curl
    serve_tls
    same "$(get one /livez)" '{"status":"ok"}'
    holds "$(append over-tls)" '"runSeq":1'
    holds "$(get one /v1/runs/over-tls-1)" '"status":"RUNNING"'
    # a client that does not know the certificate is not fooled
    exits 60 curl -sS --max-time 20 "$server/livez"
    # a body of some size, both ways
    head -c 900000 /dev/zero | tr '\0' x >large
    same "$(curl -sS --max-time 20 --cacert one.pem -H 'Content-Type: application/x-ndjson' --data-binary @large "$server/v1/events" | jq -r .error.code)" JSON_TOO_LARGE
    get one /openapi.json | cmp - "$repo/contracts/openapi.json"
    stop_server
}

test_what_is_not_tls_ends_cleanly() {
    local port rc=0
    need openssl curl
    serve_tls
    port=${server##*:}
    curl -sS --max-time 20 "http://127.0.0.1:$port/livez" >plain 2>&1 || rc=$?
    [ "$rc" != 0 ] && [ "$rc" != 28 ] || fail "curl ended with $rc: $(cat plain)"
    printf '\x16\x03\x01\xff\xffgarbage' >"/dev/tcp/127.0.0.1/$port" || true
    : >"/dev/tcp/127.0.0.1/$port" || true # connected, and gone
    rc=0
    curl -sSk --max-time 20 --tls-max 1.1 --ciphers 'DEFAULT:@SECLEVEL=0' "$server/livez" >old 2>&1 || rc=$?
    [ "$rc" != 0 ] || fail "TLS 1.1 is taken"
    same "$(get one /livez)" '{"status":"ok"}'
    stop_server
}

# New connections see the new certificate; a stream that is open goes on.
test_sighup_loads_a_new_certificate() {
    need openssl curl
    serve_tls
    append before >/dev/null
    curl -sSkN --max-time 60 -H 'Accept: application/x-ndjson' "$server/v1/events?tenantId=default" >stream 2>stream.err &
    pids+=($!)
    until_true grep -q before-1 stream
    shows one
    cp two.pem server.pem
    cp two.key server.key
    shows one # nobody said so yet
    kill -HUP "$server_pid"
    until_true shows two || fail "$(cat serve.err)"
    same "$(get two /livez)" '{"status":"ok"}'
    exits 60 get one /livez
    append after >/dev/null
    until_true grep -q after-1 stream || fail "$(cat stream stream.err)"
    stop_server
}

test_a_bad_file_at_a_reload_keeps_the_old_certificate() {
    need openssl curl
    serve_tls
    reload_fails() { # WHAT
        kill -HUP "$server_pid"
        until_true grep -q "the certificate stays as it was" serve.err || fail "$1: $(cat serve.err)"
        shows one
        same "$(get one /livez)" '{"status":"ok"}'
        : >serve.err
    }
    echo nonsense >server.pem
    reload_fails "a file that is no certificate"
    cp two.pem server.pem # and the key of the first
    reload_fails "a certificate with another key"
    rm server.pem
    reload_fails "no file"
    cp two.pem server.pem
    cp two.key server.key
    kill -HUP "$server_pid"
    until_true shows two
    stop_server
}

test_bad_files_at_the_start_are_told() {
    need openssl
    certificate one
    certificate two
    echo nonsense >bad.pem
    refused 1 TLS_INVALID c serve --listen 127.0.0.1:0 --tls-cert none.pem --tls-key one.key
    refused 1 TLS_INVALID c serve --listen 127.0.0.1:0 --tls-cert one.pem --tls-key none.key
    refused 1 TLS_INVALID c serve --listen 127.0.0.1:0 --tls-cert bad.pem --tls-key one.key
    refused 1 TLS_INVALID c serve --listen 127.0.0.1:0 --tls-cert one.pem --tls-key bad.pem
    refused 1 TLS_INVALID c serve --listen 127.0.0.1:0 --tls-cert one.pem --tls-key two.key
    refused 2 "belong together" c serve --listen 127.0.0.1:0 --tls-cert one.pem
}

e2e_main "$@"
