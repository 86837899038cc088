/* cli/key.c: cairn key create, list, show, revoke; cairn audit.
 *
 * A key is made where the ledger is: by this process, by the one that holds the data folder, or by
 * a server. The key itself is printed once, and kept nowhere. */
#include "api/auth.h"
#include "base/limits.h"
#include "cli/source.h"

enum { KEYS_PAGE = 200, AUDIT_PAGE = 200, AUDIT_DEFAULT = 50 };
#define PAGE_BYTES_MAX ((size_t)16 * 1024 * 1024)

/* ---- showing ---- */

/* "operator, producer" */
static str roles_text(char mem[128], unsigned roles) {
    struct buf json;
    char text[128];
    size_t n = 0;
    buf_init_fixed(&json, text, sizeof(text));
    roles_json(roles, &json);
    for (size_t i = 0; i < json.len && n + 2 < 128; i++) {
        if (text[i] == ',') {
            mem[n++] = ',';
            mem[n++] = ' ';
        } else if (text[i] >= 'a' && text[i] <= 'z') {
            mem[n++] = text[i];
        }
    }
    return str_n(mem, n);
}

static const char *state_of(const struct api_key *k) {
    if (k->revoked_us > 0) return "revoked";
    return k->expires_us > 0 && k->expires_us <= clock_wall_us() ? "expired" : "valid";
}

static const struct column key_columns[] = {
    {"KEY", false, 0},   {"NAME", false, 32},   {"TENANT", false, 20},   {"ROLES", false, 0},
    {"STATE", false, 0}, {"EXPIRES", false, 0}, {"LAST USED", false, 0}, {"CREATED BY", false, 32}};

static void print_key(struct list *list, const struct api_key *k) {
    if (!list_is_table(list)) {
        view_write(&view_key, k, list_json(list));
        list_json_end(list);
        return;
    }
    char roles[128];
    char expires[TIME_TEXT_MAX];
    char used[TIME_TEXT_MAX];
    const char *state = state_of(k);
    list_row(list, (struct cell[]){{k->key_id, TONE_PLAIN},
                                   {k->name, TONE_PLAIN},
                                   {k->tenant_id, TONE_PLAIN},
                                   {roles_text(roles, k->roles), TONE_PLAIN},
                                   {str_c(state), state[0] == 'v' ? TONE_GOOD : TONE_WARN},
                                   {time_text(expires, k->expires_us, 0), TONE_DIM},
                                   {time_text(used, k->used_us, 0), TONE_DIM},
                                   {k->created_by, TONE_PLAIN}});
}

static void print_one(struct cli *cli, const struct api_key *k) {
    if (cli->format != OUT_TABLE) {
        view_write(&view_key, k, &cli->out.buf);
        buf_put_char(&cli->out.buf, '\n');
        return;
    }
    struct list list;
    list_open(&list, &cli->out, OUT_TABLE, key_columns, COUNT_OF(key_columns), cli->colour);
    print_key(&list, k);
    list_close(&list);
}

/* ---- create ---- */

static status read_roles(struct cli *cli, unsigned *roles, struct error *err) {
    str name;
    for (size_t at = 0; args_each(&cli->args, OPT_ROLE, &at, &name);) {
        unsigned role = role_of(name);
        if (!role)
            return cli_usage(err,
                             "--role takes viewer, operator, producer, worker or admin, not "
                             "\"%.*s\"",
                             STR_ARG(name));
        *roles |= role;
    }
    return ST_OK;
}

static status read_key(struct cli *cli, struct api_key *key, struct error *err) {
    const str *v = cli->args.values;
    *key = (struct api_key){.name = cli->args.words[0],
                            .tenant_id = v[OPT_TENANT].ptr ? v[OPT_TENANT] : STR("default")};
    if (key->name.len == 0 || key->name.len > KEY_NAME_MAX)
        return cli_usage(err, "NAME must have 1 to %d bytes", KEY_NAME_MAX);
    if (key->tenant_id.len == 0 || key->tenant_id.len > ID_BYTES_MAX)
        return cli_usage(err, "--tenant must have 1 to %d bytes", ID_BYTES_MAX);
    status st = read_roles(cli, &key->roles, err);
    return st == ST_OK ? args_time(&cli->args, OPT_UNTIL, 0, &key->expires_us, err) : st;
}

status cmd_key_create(struct cli *cli, struct error *err) {
    struct source *source = NULL;
    struct api_key key;
    struct buf *out = &cli->out.buf;
    str text = STR_NONE;
    status st = read_key(cli, &key, err);
    if (st == ST_OK) st = source_open(cli, SOURCE_CREATE, &source, err);
    if (st == ST_OK) st = source->ops->key_create(source, &key, &cli->arena, &text, err);
    source_close(source);
    if (st != ST_OK) return st;
    if (cli->format == OUT_TABLE) {
        buf_put(out, text);
        buf_put_char(out, '\n');
        out_flush(&cli->out); /* before the talk about it */
        cli_say("key %.*s of tenant %.*s: it is shown this once; keep it in a file that only you "
                "can read",
                STR_ARG(key.key_id), STR_ARG(key.tenant_id));
        return ST_OK;
    }
    json_object_begin(out);
    json_put_text(out, "key", text);
    view_members(&view_key, &key, out);
    buf_put_c(out, "}\n");
    return ST_OK;
}

/* ---- the others ---- */

status cmd_key_list(struct cli *cli, struct error *err) {
    struct source *source = NULL;
    struct arena arena;
    struct list list;
    struct page page = {.limit = KEYS_PAGE};
    status st = source_open(cli, SOURCE_READ, &source, err);
    if (st != ST_OK) return st;
    arena_init(&arena, (size_t)64 * 1024, PAGE_BYTES_MAX);
    list_open(&list, &cli->out, cli->format, key_columns, COUNT_OF(key_columns), cli->colour);
    do {
        struct api_key *keys = NULL;
        arena_reset(&arena);
        st = source->ops->key_list(source, cli->args.values[OPT_TENANT], &page, &arena, &keys, err);
        for (size_t i = 0; i < page.count && st == ST_OK; i++)
            print_key(&list, &keys[i]);
    } while (st == ST_OK && page.cursor.ptr);
    bool none = list.count == 0;
    list_close(&list);
    arena_release(&arena);
    source_close(source);
    if (st == ST_OK && none && cli->format == OUT_TABLE) cli_say("no keys");
    return st;
}

status cmd_key_show(struct cli *cli, struct error *err) {
    struct source *source = NULL;
    struct api_key key;
    status st = source_open(cli, SOURCE_READ, &source, err);
    if (st == ST_OK) st = source->ops->key_find(source, cli->args.words[0], &cli->arena, &key, err);
    source_close(source);
    if (st == ST_OK) print_one(cli, &key);
    return st;
}

status cmd_key_revoke(struct cli *cli, struct error *err) {
    struct source *source = NULL;
    struct api_key key;
    str id = cli->args.words[0];
    status st = source_open(cli, SOURCE_CHANGE, &source, err);
    if (st == ST_OK) st = source->ops->key_revoke(source, id, err);
    if (st == ST_OK) st = source->ops->key_find(source, id, &cli->arena, &key, err);
    source_close(source);
    if (st != ST_OK) return st;
    if (cli->format == OUT_TABLE)
        cli_say("key %.*s is revoked", STR_ARG(id));
    else
        print_one(cli, &key);
    return ST_OK;
}

/* ---- audit ---- */

static const struct column audit_columns[] = {
    {"AT", false, 0},      {"ACTOR", false, 32},  {"FROM", false, 24},  {"ACTION", false, 0},
    {"TARGET", false, 40}, {"OUTCOME", false, 0}, {"REASON", false, 40}};

static void print_audit(struct list *list, const struct audit_entry *e) {
    if (!list_is_table(list)) {
        view_write(&view_audit, e, list_json(list));
        list_json_end(list);
        return;
    }
    char at[TIME_TEXT_MAX];
    bool refused = !str_eq(e->outcome, STR("done"));
    list_row(list,
             (struct cell[]){{time_text(at, e->at_us, 0), TONE_DIM},
                             {e->actor, TONE_PLAIN},
                             {e->remote, TONE_PLAIN},
                             {e->action, TONE_PLAIN},
                             {e->target, TONE_PLAIN},
                             {e->code.ptr ? e->code : e->outcome, refused ? TONE_WARN : TONE_PLAIN},
                             {e->reason, TONE_PLAIN}});
}

status cmd_audit(struct cli *cli, struct error *err) {
    struct source *source = NULL;
    struct arena arena;
    struct list list;
    struct page page = {0};
    int64_t left = 0;
    status st = args_int(&cli->args, OPT_LIMIT, 1, INT64_MAX, AUDIT_DEFAULT, &left, err);
    if (st == ST_OK) st = source_open(cli, SOURCE_READ, &source, err);
    if (st != ST_OK) return st;
    arena_init(&arena, (size_t)64 * 1024, PAGE_BYTES_MAX);
    list_open(&list, &cli->out, cli->format, audit_columns, COUNT_OF(audit_columns), cli->colour);
    do {
        struct audit_entry *entries = NULL;
        arena_reset(&arena);
        page.limit = left < AUDIT_PAGE ? (size_t)left : AUDIT_PAGE;
        st = source->ops->audit(source, cli->args.values[OPT_TENANT], &page, &arena, &entries, err);
        for (size_t i = 0; i < page.count && st == ST_OK; i++)
            print_audit(&list, &entries[i]);
        left -= (int64_t)page.count;
    } while (st == ST_OK && page.cursor.ptr && left > 0);
    bool none = list.count == 0;
    list_close(&list);
    arena_release(&arena);
    source_close(source);
    if (st == ST_OK && none && cli->format == OUT_TABLE) cli_say("nothing is written down yet");
    return st;
}
