/* cli/store.c: which ledger a command works on, and opening it. */
#include "base/os.h"
#include "cli/cli.h"
#include "db/db.h"

enum { LOCK_WAIT_SECONDS = 30, LOCK_WAIT_SECONDS_MAX = 86400 };

static str from_env(const char *name) {
    const char *value = getenv(name);
    return value && value[0] ? str_c(value) : STR_NONE;
}

str store_folder(const struct cli *cli) {
    str given = cli->args.values[OPT_DATA];
    if (given.ptr) return given;
    str data = from_env("CAIRN_DATA");
    return data.ptr ? data : STR("./cairn-data");
}

status store_wait_ms(struct cli *cli, int64_t *ms, struct error *err) {
    int64_t seconds = 0;
    status st =
        args_int(&cli->args, OPT_WAIT, 0, LOCK_WAIT_SECONDS_MAX, LOCK_WAIT_SECONDS, &seconds, err);
    *ms = seconds * 1000;
    return st;
}

/* An option beats the environment, whichever of the two it is about. */
status store_url(struct cli *cli, str *url, struct error *err) {
    str db = cli->args.values[OPT_DB];
    str data = cli->args.values[OPT_DATA];
    bool both = cli->command && (cli->command->traits & USES_FOLDER);
    if (db.ptr && data.ptr && !both)
        return cli_usage(err, "--data and --db name two ledgers: give one of them");
    if (!db.ptr && !data.ptr) db = from_env("CAIRN_DB");
    if (db.ptr) {
        if (!db_url_is_postgres(db))
            return cli_usage(err,
                             "--db must begin with postgresql://; a folder is named with --data");
        *url = arena_str(&cli->arena, db);
        return ST_OK;
    }
    data = store_folder(cli);
    if (data.len == 0) return cli_usage(err, "--data must not be empty");
    *url = cli_text(cli, "sqlite:%.*s/ledger.db", STR_ARG(data));
    return ST_OK;
}

/* postgresql://user:password@host/name?... -> postgresql://user:***@host/name?... A query may hold
 * a password, too, and a careless password a '?': what stands before the last '@' is never shown.
 */
str store_shown(struct cli *cli, str url) {
    if (!db_url_is_postgres(url)) return str_from(url, 7);
    str rest = str_from(url, str_starts(url, STR("postgresql://")) ? 13 : 11);
    str query = STR_NONE;
    size_t at = rest.len;
    while (at > 0 && rest.ptr[at - 1] != '@')
        at--;
    str host = STR_NONE;
    const char *more = str_split(str_from(rest, at), '?', &host, &query) ? "?..." : "";
    if (at == 0) return cli_text(cli, "postgresql://%.*s%s", STR_ARG(host), more);
    str user = STR_NONE;
    str password = STR_NONE;
    bool secret = str_split(str_n(rest.ptr, at - 1), ':', &user, &password);
    return cli_text(cli, "postgresql://%.*s%s@%.*s%s", STR_ARG(user), secret ? ":***" : "",
                    STR_ARG(host), more);
}

status store_read(struct cli *cli, struct ledger **out, struct error *err) {
    str url = STR_NONE;
    status st = store_url(cli, &url, err);
    if (st != ST_OK) return st;
    st = ledger_open_reader(url, out, err);
    if (st != ST_NOT_FOUND) return st;
    str shown = store_shown(cli, url);
    return error_at(err, REASON_LEDGER_NOT_FOUND, "",
                    "there is no ledger at \"%.*s\": make one with \"cairn ledger append\", or "
                    "name another with --data or --db",
                    STR_ARG(shown));
}

static str folder_of(str url) {
    str path = str_from(url, 7);
    return str_n(path.ptr, path.len - STR("/ledger.db").len);
}

status store_write(struct cli *cli, enum ledger_validation validation, struct ledger **out,
                   struct error *err) {
    int64_t wait_ms = 0;
    str url = STR_NONE;
    status st = store_wait_ms(cli, &wait_ms, err);
    if (st == ST_OK) st = store_url(cli, &url, err);
    if (st == ST_OK && !db_url_is_postgres(url)) st = dir_make(folder_of(url), err);
    if (st != ST_OK) return st;
    struct ledger_options options = {.validation = validation, .lock_wait_ms = wait_ms};
    return ledger_open(url, &options, out, err);
}

status store_change(struct cli *cli, struct ledger **out, struct error *err) {
    struct ledger *reader = NULL;
    status st = store_read(cli, &reader, err);
    ledger_close(reader);
    return st == ST_OK ? store_write(cli, LEDGER_REJECT, out, err) : st;
}
