#!/bin/bash
# /metrics is what Prometheus' own checker accepts.
. "$(dirname "$0")/lib/e2e.sh"
. "$(dirname "$0")/lib/engine.sh"
. "$(dirname "$0")/lib/server.sh"

# promtool comes with Debian's prometheus package, which would also start a server: only the one program is taken out.
find_promtool() {
    command -v promtool && return 0
    local folder=$repo/build/promtool
    if [ ! -x "$folder/usr/bin/promtool" ]; then
        mkdir -p "$folder" && (cd "$folder" && apt-get download -qq prometheus && dpkg -x prometheus_*.deb . &&
            rm -f prometheus_*.deb) >/dev/null 2>&1 || return 1
    fi
    echo "$folder/usr/bin/promtool"
}

test_metrics_pass_promtool() {
    local promtool
    promtool=$(find_promtool) || skip "Debian's prometheus package could not be downloaded"
    start_server
    curl -sS "$server/v1/runs" >/dev/null
    curl -sS "$server/v1/runs/none" >/dev/null
    curl -sS "$server/metrics" >metrics
    stop_server
    "$promtool" check metrics <metrics >said 2>&1 || fail "$(cat said)"
    [ ! -s said ] || fail "$(cat said)"
    grep -q '^cairn_http_requests_total{' metrics || fail "no request was counted"
    ! grep -Eq '(runId=|tenantId=|[0-9a-f]{8}-[0-9a-f]{4}-)' metrics || fail "an id is a label"
}

e2e_main "$@"
