#!/bin/bash
# A ledger written by an earlier version, killed with open runs and effects under way: this version opens it, finds every
# event as it was, and finishes the work. tests/fixtures/*/make.sh says how each was written.
. "$(dirname "$0")/lib/e2e.sh"
. "$(dirname "$0")/lib/engine.sh"
. "$(dirname "$0")/lib/server.sh"
unset CAIRN_SERVER CAIRN_KEY_FILE
fixture=$repo/tests/fixtures/ledger-0.1.0

restore() {
    if [ "$store_kind" = sqlite ]; then
        mkdir -p data
        chmod 700 data
        zcat "$fixture/sqlite.db.gz" >data/ledger.db
    else
        zcat "$fixture/postgres.sql.gz" | postgres "${store[1]}" >/dev/null
    fi
}
events() { local tenant; for tenant in acme globex; do c ledger events --tenant $tenant -o ndjson; done; }
s() { "$cairn" "$@" --server "$server"; }
take_everything() { # a system of record that accepts whatever comes; sets sor
    python3 -c '
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"])); self.send_response(200); self.end_headers()
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()' >port &
    pids+=($!)
    until_true test -s port
    sor=http://127.0.0.1:$(cat port)
}
effects_done() { [ "$(s effect list --status COMPLETED -o json | jq length)" = 3 ]; }
work_on_task() { # the lease of the worker that the old server had is long over
    curl -sSf -H 'Content-Type: application/json' -d '{"tenantId":"acme","queue":"q","worker":"w2","waitMs":2000}' "$server/v1/tasks/poll" >polled
    jq -ce '.items[0] | {task, output: {n: 2}}' polled |
        curl -sSf -H 'Content-Type: application/json' -d @- "$server/v1/tasks/complete"
}

db_test_an_old_ledger_is_what_it_was() {
    restore
    same "$(events | sha256sum)" "$(sha256sum <"$fixture/$store_kind.events.ndjson")" "every event, byte for byte"
    c ledger verify --state >/dev/null
    c ledger rebuild >/dev/null
    c ledger verify --state >/dev/null
    same "$(events | sha256sum)" "$(sha256sum <"$fixture/$store_kind.events.ndjson")" "and after a rebuild"
}

db_test_an_old_ledger_is_finished() {
    restore
    need python3 curl jq
    take_everything
    export CAIRN_SOR_URL=$sor/
    start_server --node fixture --allow "$sor"
    s run signal waiting go
    s run resume paused
    s run signal paused go
    s run approve approval gate
    s run approve queued
    until_true work_on_task
    until_true effects_done
    local run
    for run in waiting paused approval queued sleeping task effect; do until_true status_is $run COMPLETED; done
    same "$(s effect list -o json | jq -c '[.[].status] | sort')" '["COMPLETED","COMPLETED","COMPLETED","DEAD_LETTER"]'
    stop_server
    c ledger verify --state >/dev/null
    local count
    for tenant in acme globex; do # the old events stand before the new ones, unchanged
        jq -c "select(.tenantId == \"$tenant\")" "$fixture/$store_kind.events.ndjson" >old
        count=$(wc -l <old)
        c ledger events --tenant $tenant -o ndjson >now
        same "$(jq -c . now | sed -n "1,${count}p" | sha256sum)" "$(sha256sum <old)"
    done
}

e2e_main "$@"
