# tests/e2e/lib/server.sh, sourced by the tests of the HTTP API after e2e.sh and engine.sh.
pids=()

stop_all() { # what the test started; by id, never by name
    kill "${pids[@]}" 2>/dev/null || true
    wait "${pids[@]}" 2>/dev/null || true
}
# start_server [ARGS...]: on any free port of this machine; sets server (its URL) and server_pid. It ends with the test.
start_server() {
    trap stop_all EXIT
    : >serve.err # now: what the server before it said must not pass for its own words
    r_exec serve --listen 127.0.0.1:0 "$@" 2>serve.err &
    server_pid=$!
    pids+=("$server_pid")
    until_true grep -q ' ready: ' serve.err || fail "$(cat serve.err)"
    server=$(grep -oE 'https?://127\.0\.0\.1:[0-9]+' serve.err | head -1)
}
stop_server() { # and it must end well
    kill "$server_pid"
    ends_with 0 "$server_pid"
}
