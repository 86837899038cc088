# tests/e2e/lib/engine.sh, sourced by the tests of the engine's commands after e2e.sh.

# Workspaces and plans belong to the test's own folder, also when the ledger is on PostgreSQL.
r() { if [ "$store_kind" = sqlite ]; then c "$@"; else c "$@" --data folder; fi; }
r_exec() { # the same, as the process itself: for `&` and then kill $!
    if [ "$store_kind" = sqlite ]; then exec "$cairn" "$@" "${store[@]}"; else exec "$cairn" "$@" "${store[@]}" --data folder; fi
}

plan() { # NAME STEPS-JSON [MORE-MEMBERS]: writes NAME.json
    printf '{"schemaVersion":"v1.3","metadata":{"planId":"%s","planVersion":"1"},%s"steps":[%s]}\n' "$1" "${3:-}" "$2" >"$1.json"
}
step() { # ID TYPE [MORE-MEMBERS]
    printf '{"stepId":"%s","type":"%s"%s}' "$1" "$2" "${3:-}"
}
sh_step() { # ID SCRIPT [MORE-MEMBERS]: one exec step
    step "$1" exec ",\"command\":[\"sh\",\"-c\",$(jq -Rs . <<<"$2")]${3:-}"
}

exits() { # WANT COMMAND...
    local want=$1 rc=0
    shift
    "$@" || rc=$?
    same "$rc" "$want" "exit code of $*"
}
ends_with() { # WANT PID
    local rc=0
    wait "$2" || rc=$?
    same "$rc" "$1" "exit code of process $2"
}
until_true() { # COMMAND...: tried for a minute: only a failure takes so long
    local i
    for ((i = 0; i < 1200; i++)); do
        if "$@" >/dev/null 2>&1; then return 0; fi
        sleep 0.05
    done
    fail "never true: $*"
}
status_is() { [ "$(c run show "$1" -o json | jq -r .state.status)" = "$2" ]; } # RUN STATUS
step_is() { # RUN STEP STATE
    [ "$(c run show "$1" -o json | jq -r --arg s "$2" '.state.steps[] | select(.stepId == $s) | .state')" = "$3" ]
}
events_of() { c ledger events --run "$1" -o ndjson | jq -r .eventType | tr '\n' ' '; } # RUN
