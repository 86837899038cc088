/* cli/serve.c: cairn serve: the engine, until somebody ends it. */
#include "base/log.h"
#include "cairn.h"
#include "cli/drive.h"

static status say_ready(struct drive *d, struct error *err) {
    struct ledger_stats stats;
    status st = ledger_stats(host_reader(d->host), &stats, err);
    if (st != ST_OK) return st;
    str ledger = store_shown(d->cli, d->url);
    str node = d->options.node;
    cli_say("cairn " CAIRN_VERSION " ready: ledger %.*s%s%.*s, %lld open runs", STR_ARG(ledger),
            node.ptr ? ", node " : "", STR_ARG(node), (long long)stats.open_runs);
    return ST_OK;
}

status cmd_serve(struct cli *cli, struct error *err) {
    struct drive d;
    struct drive_options options = {.all = true, .serve = true, .node = cli->args.values[OPT_NODE]};
    status st = args_int(&cli->args, OPT_MAX_RUNS_PER_TENANT, 1, INT64_MAX, 0,
                         &options.tenant_active_max, err);
    if (st == ST_OK)
        st = args_int(&cli->args, OPT_MAX_RUNS_PER_PLAN, 1, INT64_MAX, 0, &options.plan_active_max,
                      err);
    if (st == ST_OK) st = drive_open(&d, cli, &options, err);
    if (st != ST_OK) return st;
    if (d.peer)
        st =
            error_at(err, ST_CONFLICT, "FOLDER_IN_USE", "",
                     "another process carries out the runs of \"%.*s\" already", STR_ARG(d.folder));
    if (st == ST_OK) st = say_ready(&d, err);
    if (st == ST_OK) st = drive_until(&d, NULL, err);
    drive_close(&d);
    return st;
}
