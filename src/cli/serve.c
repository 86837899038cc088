/* cli/serve.c: cairn serve: the engine, until somebody ends it. */
#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "cairn.h"
#include "cli/drive.h"
#include "net/systemd.h"

static status say_ready(struct drive *d, struct error *err) {
    struct ledger_stats stats;
    status st = ledger_stats(host_reader(d->host), &stats, err);
    if (st != ST_OK) return st;
    str ledger = store_shown(d->cli, d->url);
    str node = server_node(d->server);
    str where = server_addresses(d->server);
    cli_say("cairn " CAIRN_VERSION
            " ready: ledger %.*s, node %.*s, %lld open runs, listening on %.*s",
            STR_ARG(ledger), STR_ARG(node), (long long)stats.open_runs, STR_ARG(where));
    systemd_notify("READY=1");
    return ST_OK;
}

/* Every connection, process and file of a step needs a descriptor: as many as we may have. */
static void raise_file_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        LOG(LOG_WARN, "the limit of open files stays as it was",
            LOG_S("error", str_c(strerror(errno))));
}

/* "json", "text:debug" ... */
static status set_log(struct cli *cli, struct error *err) {
    static const char *const levels[] = {"debug", "info", "warn", "error"};
    str text = cli->args.values[OPT_LOG];
    str format = STR("text");
    str level = STR("info");
    if (text.ptr && !str_split(text, ':', &format, &level)) level = STR("info");
    bool json = str_eq(format, STR("json"));
    for (size_t i = 0; i < COUNT_OF(levels); i++) {
        if (!str_eq(level, str_c(levels[i])) || (!json && !str_eq(format, STR("text")))) continue;
        log_setup(STDERR_FILENO, json, (enum log_level)(LOG_DEBUG + i));
        return ST_OK;
    }
    return cli_usage(err, "--log takes text or json, and perhaps :debug, :info, :warn or :error");
}

static void on_watchdog(uv_timer_t *timer) {
    UNUSED(timer);
    systemd_notify("WATCHDOG=1");
}

/* Says that the loop turns: a loop that hangs says nothing, and systemd starts us again. */
static void start_watchdog(struct drive *d, uv_timer_t *timer) {
    int64_t ms = systemd_watchdog_ms();
    (void)uv_timer_init(&d->loop, timer);
    if (ms > 0) uv_timer_start(timer, on_watchdog, 0, (uint64_t)(ms / 2 > 0 ? ms / 2 : 1));
}

status cmd_serve(struct cli *cli, struct error *err) {
    struct drive d;
    struct drive_options options = {.all = true, .serve = true, .node = cli->args.values[OPT_NODE]};
    status st = set_log(cli, err);
    if (st == ST_OK) raise_file_limit();
    if (st == ST_OK) st = drive_open(&d, cli, &options, err);
    if (st != ST_OK) return st;
    uv_timer_t watchdog;
    start_watchdog(&d, &watchdog);
    if (d.peer)
        st =
            error_at(err, REASON_FOLDER_IN_USE, "",
                     "another process carries out the runs of \"%.*s\" already", STR_ARG(d.folder));
    if (st == ST_OK) st = say_ready(&d, err);
    if (st == ST_OK) st = drive_until(&d, NULL, err);
    systemd_notify("STOPPING=1");
    uv_close((uv_handle_t *)&watchdog, NULL);
    drive_close(&d);
    return st;
}
