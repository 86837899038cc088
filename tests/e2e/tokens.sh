#!/bin/bash
# JSON Web Tokens instead of API keys: which are taken, and that the others learn nothing.
. "$(dirname "$0")/lib/e2e.sh"
. "$(dirname "$0")/lib/engine.sh"
. "$(dirname "$0")/lib/server.sh"

token() { node "$repo/tests/http/token.mjs" sign "$@"; } # SET ALG CLAIMS [HEADER]
ask() { # TOKEN PATH [CURL-ARGS...]: the body; the status is in the file "status", the headers in "headers"
    curl -sS --max-time 20 -D headers -o body -w '%{http_code}' -H "Authorization: Bearer $1" "${@:3}" "$server$2" >status
    cat body
}
serve_tokens() { # [ARGS...]: with the key set "one" in server.jwks
    need node curl
    node "$repo/tests/http/token.mjs" keys one
    cp one.jwks server.jwks
    start_server --auth --jwks server.jwks --log json "$@"
}
taken() { # TOKEN TENANT ROLES-JSON
    same "$(ask "$1" /v1/me | jq -c '[.tenantId, .roles]')" "[\"$2\",$3]" "$(cat status body)"
}
# not_taken TOKEN CODE: 401 that says how to ask and nothing about the reason, which is in the log
not_taken() {
    local said
    said=$(ask "$1" /v1/me)
    same "$(cat status)" 401 "$said"
    grep -qi '^www-authenticate: bearer' headers || fail "no WWW-Authenticate: $(cat headers)"
    same "$(jq -c '[.code, .status, has("errors")]' <<<"$said")" '["UNAUTHENTICATED",401,false]' "$said"
    same "$(jq -r .detail <<<"$said")" 'send "Authorization: Bearer" with an API key or token that is valid' "$said"
    ! grep -qiE 'JWT_|expire|audience|signature|issuer' body headers || fail "it tells why: $said $(cat headers)"
    until_true grep -q "\"code\":\"$2\"" serve.err || fail "$2 is not in the log: $(tail -5 serve.err)"
}

test_the_four_algorithms_are_taken() {
    local alg
    serve_tokens
    for alg in HS256 RS256 ES256 EdDSA; do
        taken "$(token one $alg '{"tenant":"acme","roles":["viewer","producer"]}')" acme '["viewer","producer"]'
        taken "$(token one $alg '{"tenant":"other","roles":["operator","unheard-of"]}')" other '["operator"]'
    done
    # what the caller is called, and when it ends
    same "$(ask "$(token one ES256 '{"sub":"bob","exp":4000000000}')" /v1/me | jq -c '[.name, .expiresAt]')" '["jwt:bob","2096-10-02T07:06:40.000000Z"]'
    stop_server
}

test_roles_and_tenants_of_tokens_count() {
    local viewer producer line
    serve_tokens
    viewer=$(token one RS256 '{}')
    producer=$(token one EdDSA '{"sub":"loader","roles":"producer worker"}')
    line=$(events_pl run=r tenant=acme runs=1 steps=0 | head -1)
    holds "$(ask "$viewer" /v1/events -H 'Content-Type: application/x-ndjson' --data-binary "$line")" FORBIDDEN
    holds "$(ask "$producer" /v1/events -H 'Content-Type: application/x-ndjson' --data-binary "$line")" '"runSeq":1'
    holds "$(ask "$viewer" /v1/runs/r-1)" '"status":"RUNNING"'
    holds "$(ask "$(token one RS256 '{"tenant":"other"}')" /v1/runs/r-1)" RUN_NOT_FOUND
    same "$(ask "$viewer" '/v1/events?limit=1' | jq -r '.items[0].actor')" "jwt:loader@127.0.0.1"
    holds "$(ask "$(token one RS256 '{"roles":[]}')" /v1/runs)" FORBIDDEN
    stop_server
}

test_bad_tokens_learn_nothing() {
    local now good
    serve_tokens --jwt-audience cairn --jwt-issuer https://issuer.example
    now=$(date +%s)
    good='"aud":["other","cairn"],"iss":"https://issuer.example"'
    taken "$(token one RS256 "{$good}")" acme '["viewer"]'
    not_taken "$(token one RS256 "{$good,\"exp\":$((now - 120))}")" JWT_EXPIRED
    not_taken "$(token one RS256 "{$good,\"nbf\":$((now + 120))}")" JWT_NOT_YET_VALID
    not_taken "$(token one RS256 '{"iss":"https://issuer.example","aud":"other"}')" JWT_AUDIENCE
    not_taken "$(token one RS256 '{"iss":"https://issuer.example"}')" JWT_AUDIENCE
    not_taken "$(token one RS256 '{"aud":"cairn","iss":"https://issuer.example.evil"}')" JWT_ISSUER
    not_taken "$(token one none "{$good}")" JWT_ALGORITHM
    not_taken "$(token one confused "{$good}")" JWT_ALGORITHM
    not_taken "$(token one HS256 "{$good}" '{"kid":"rs256-one"}')" JWT_ALGORITHM
    not_taken "$(token one RS256 "{$good}" '{"kid":"es256-one"}')" JWT_ALGORITHM
    not_taken "$(token one RS256 "{$good}" '{"kid":"nobody"}')" JWT_KEY_UNKNOWN
    not_taken "$(token one RS256 "{$good,\"tenant\":null}")" JWT_CLAIMS
    not_taken "$(token one RS256 "{$good}" '{"jku":"https://evil.example/keys"}')" JWT_MALFORMED
    stop_server
}

test_a_changed_token_is_not_taken() {
    local good head rest
    serve_tokens
    good=$(token one ES256 '{}')
    taken "$good" acme '["viewer"]'
    IFS=. read -r head _ rest <<<"$good"
    not_taken "$head.$(printf '{"sub":"ann","tenant":"acme","roles":["admin"],"exp":4000000000}' | base64 -w0 | tr '+/' '-_' | tr -d =).$rest" JWT_SIGNATURE
    not_taken "${good%.*}." JWT_SIGNATURE
    node "$repo/tests/http/token.mjs" keys two
    not_taken "$(token two ES256 '{}' '{"kid":"es256-one"}')" JWT_SIGNATURE
    stop_server
}

# Nothing that is not in the file counts any more; a bad file changes nothing.
test_sighup_rotates_the_keys() {
    local old new
    serve_tokens
    node "$repo/tests/http/token.mjs" keys two
    old=$(token one RS256 '{}')
    new=$(token two RS256 '{}')
    taken "$old" acme '["viewer"]'
    not_taken "$new" JWT_KEY_UNKNOWN
    jq -s '{keys: map(.keys[])}' one.jwks two.jwks >server.jwks
    kill -HUP "$server_pid"
    until_true grep -q reloaded serve.err
    taken "$old" acme '["viewer"]'
    taken "$new" acme '["viewer"]'
    echo '{"keys":[{"kty":"oct","k":"c2hvcnQ","kid":"x"}]}' >server.jwks
    kill -HUP "$server_pid"
    until_true grep -q 'the keys of tokens stay as they were' serve.err
    taken "$old" acme '["viewer"]'
    cp two.jwks server.jwks
    kill -HUP "$server_pid"
    gone() { ask "$old" /v1/me >/dev/null; [ "$(cat status)" = 401 ]; }
    until_true gone
    taken "$new" acme '["viewer"]'
    stop_server
}

# A stream ends with the key that signed its token, long before the token does; one of a key that stays goes on.
test_streams_end_with_the_key_of_their_token() {
    local gone stays
    serve_tokens
    node "$repo/tests/http/token.mjs" keys two
    jq -s '{keys: map(.keys[])}' one.jwks two.jwks >server.jwks
    kill -HUP "$server_pid"
    until_true grep -q reloaded serve.err
    events_pl run=r tenant=acme runs=1 steps=0 | head -1 |
        ask "$(token one RS256 '{"roles":["producer"]}')" /v1/events -H 'Content-Type: application/x-ndjson' --data-binary @- >/dev/null
    follow() { curl -sSN --max-time 120 -H "Authorization: Bearer $1" -H 'Accept: text/event-stream' "$server/v1/runs/r-1/events" >"$2"; }
    follow "$(token one ES256 '{}')" gone.sse &
    gone=$!
    follow "$(token two ES256 '{}')" stays.sse &
    stays=$!
    pids+=("$gone" "$stays")
    until_true grep -q RunStarted gone.sse
    until_true grep -q RunStarted stays.sse
    kill -HUP "$server_pid" # nothing has changed
    until_true sh -c '[ "$(grep -c reloaded serve.err)" = 2 ]'
    sleep 0.3
    kill -0 "$gone" || fail "a stream ended for no reason"
    cp two.jwks server.jwks
    kill -HUP "$server_pid"
    ends_with 0 "$gone" # the answer is complete, so whoever reads comes again, and is refused
    ! grep -q 'event: end' gone.sse || fail "it says that the run is over"
    not_taken "$(token one ES256 '{}')" JWT_KEY_UNKNOWN
    kill -0 "$stays" || fail "a stream of a key that stays has ended"
    stop_server
    ends_with 0 "$stays"
}

# Twenty from one address, and then what fails is 429; a good token still passes, for others may share the address. Who brings nothing
# guesses nothing.
test_too_many_failures_of_an_address() {
    local i good
    serve_tokens
    good=$(token one RS256 '{}')
    for ((i = 0; i < 25; i++)); do
        same "$(curl -sS -o /dev/null -w '%{http_code}' "$server/v1/me")" 401
    done
    for ((i = 0; i < 20; i++)); do
        ask nonsense.nonsense.nonsense /v1/me >/dev/null
        same "$(cat status)" 401 "attempt $((i + 1))"
    done
    ask nonsense.nonsense.nonsense /v1/me >/dev/null
    same "$(cat status)" 429
    grep -qiE '^retry-after: [1-9][0-9]?' headers || fail "$(cat headers)"
    same "$(jq -c '[.code, .retryable]' body)" '["RATE_LIMITED",true]'
    ask "$good" /v1/me >/dev/null
    same "$(cat status)" 200
    for ((i = 0; i < 30; i++)); do # as fast as it goes: not all of them are looked at
        ask "$good"x /v1/me >/dev/null
        same "$(cat status)" 429
    done
    ask "$good" /v1/me >/dev/null # it was seen to be good
    same "$(cat status)" 200
    same "$(curl -sS -o /dev/null -w '%{http_code}' "$server/v1/me")" 401
    holds "$(curl -sS "$server/livez")" ok
    grep -q 'too many failed attempts' serve.err
    stop_server
}

test_a_bad_key_set_at_the_start_is_told() {
    echo '{"keys":[{"kty":"oct","k":"c2hvcnQ","kid":"x"}]}' >bad.jwks
    refused 1 JWKS_INVALID c serve --listen 127.0.0.1:0 --auth --jwks bad.jwks
    echo 'nonsense' >bad.jwks
    refused 1 JWKS_INVALID c serve --listen 127.0.0.1:0 --auth --jwks bad.jwks
    exits 3 c serve --listen 127.0.0.1:0 --auth --jwks none.jwks 2>err
    holds "$(cat err)" none.jwks
}

e2e_main "$@"
