/* cli/event.c: cairn event ... */
#include "base/limits.h"
#include "cli/cli.h"

/* Passes the event through the one door for everything but its key and its attempt: a key may be
 * asked for attempt 0, too, which no event has. */
static status check(const struct event *e, struct error *err) {
    struct event copy = *e;
    copy.tenant_id = copy.project_id = copy.environment_id = STR("any");
    copy.engine_attempt = copy.logical_attempt = 1;
    copy.event_id = uuid_v4();
    status st = event_validate(&copy, err);
    if (st == ST_INVALID && err->reason == REASON_KEY_MISMATCH) return ST_OK;
    return st;
}

static void print_key(struct cli *cli, const struct event *e) {
    uint8_t key[SHA256_LEN];
    struct buf *out = &cli->out.buf;
    bool preimage = args_has(&cli->args, OPT_PREIMAGE);
    event_key_derive(e, key);
    if (cli->format == OUT_TABLE) {
        if (preimage)
            event_key_preimage(e, out);
        else
            buf_put_hex(out, key, sizeof(key));
        buf_put_char(out, '\n');
        return;
    }
    char hex[SHA256_HEX_LEN];
    char mem[8 * ID_BYTES_MAX];
    struct buf text;
    hex_encode(key, sizeof(key), hex);
    buf_init_fixed(&text, mem, sizeof(mem));
    event_key_preimage(e, &text);
    json_object_begin(out);
    json_put_text(out, "idempotencyKey", str_n(hex, sizeof(hex)));
    json_put_text(out, "preimage", buf_str(&text));
    buf_put_c(out, "}\n");
}

status cmd_event_key(struct cli *cli, struct error *err) {
    const str *v = cli->args.values;
    struct event e = {.run_id = v[OPT_RUN_ID],
                      .subject = v[OPT_STEP_ID],
                      .type_name = v[OPT_TYPE],
                      .plan_id = v[OPT_PLAN_ID],
                      .plan_version = v[OPT_PLAN_VERSION]};
    status st = args_int(&cli->args, OPT_ATTEMPT, 0, INT64_MAX, 0, &e.logical_attempt, err);
    if (st == ST_OK) st = check(&e, err);
    if (st != ST_OK) return st;
    e.type = event_type_of(e.type_name);
    print_key(cli, &e);
    return ST_OK;
}
