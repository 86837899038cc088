/* cli/archive.c: cairn ledger archive. */
#include "cli/progress.h"
#include "cli/source.h"

static void print_report(struct cli *cli, const struct archive_report *report) {
    struct buf *out = &cli->out.buf;
    if (cli->format == OUT_TABLE) {
        buf_printf(out, "archived %lld events of %lld runs\n", (long long)report->events,
                   (long long)report->runs);
        return;
    }
    json_object_begin(out);
    json_put_int(out, "runs", report->runs);
    json_put_int(out, "events", report->events);
    buf_put_c(out, "}\n");
}

status cmd_ledger_archive(struct cli *cli, struct error *err) {
    struct source *source = NULL;
    struct progress progress;
    struct archive_request request = {.run_id = cli->args.values[OPT_RUN]};
    struct archive_report report = {0};
    size_t bad = 0;
    status st = args_time(&cli->args, OPT_UNTIL, 0, &request.until_us, err);
    if (args_has(&cli->args, OPT_UNTIL) && request.until_us == 0) request.until_us = 1; /* 0: any */
    if (st == ST_OK) st = args_int(&cli->args, OPT_LIMIT, 1, INT64_MAX, 0, &request.runs_max, err);
    if (st == ST_OK && request.run_id.ptr && !str_utf8(request.run_id, &bad))
        st = cli_usage(err, "--run is not UTF-8");
    if (st == ST_OK) st = source_open(cli, SOURCE_CHANGE, &source, err);
    if (st != ST_OK) return st;
    progress_start(&progress, "archiving", !args_has(&cli->args, OPT_QUIET));
    st = source->ops->archive(source, &request, progress_tick, &progress, &report, err);
    progress_end(&progress);
    source_close(source);
    /* What was moved before a failure stays moved: it is told, too. */
    if (st == ST_OK || report.runs > 0) print_report(cli, &report);
    return st;
}
