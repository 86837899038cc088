/* server/provider_env.c: the variables of the providers become options. */
#include "server/provider_env.h"

#include <stdlib.h>

#include "adapters/conductor/conductor.h"
#include "adapters/temporal/temporal.h"
#include "base/os.h"

enum { KEY_BYTES_MAX = 16 * 1024 };

static str variable(const char *name, struct arena *arena) {
    const char *value = getenv(name);
    return value && value[0] ? arena_str(arena, str_c(value)) : STR_NONE;
}

static status bad(const char *name, const char *expected, str found, struct error *err) {
    return error_at(err, REASON_USAGE, "", "%s must be %s, found \"%.*s\"", name, expected,
                    STR_ARG(found));
}

static status read_slots(const char *name, int max, struct arena *arena, int *out,
                         struct error *err) {
    str text = variable(name, arena);
    int64_t n = 0;
    if (!text.ptr) return ST_OK;
    if (!str_to_int(text, &n) || n < 1 || n > max)
        return error_at(err, REASON_USAGE, "", "%s must be a number from 1 to %d, found \"%.*s\"",
                        name, max, STR_ARG(text));
    *out = (int)n;
    return ST_OK;
}

/* The key is in a file, never in the environment, which other processes of the user can read. */
static status read_key(struct arena *arena, str *out, struct error *err) {
    str path = variable("CAIRN_TEMPORAL_API_KEY_FILE", arena);
    if (!path.ptr) return ST_OK;
    status st = file_read(path, KEY_BYTES_MAX, arena, out, err);
    if (st != ST_OK) return error_wrap(err, "CAIRN_TEMPORAL_API_KEY_FILE");
    *out = str_trim(*out);
    if (out->len == 0) return bad("CAIRN_TEMPORAL_API_KEY_FILE", "a file with a key", path, err);
    return ST_OK;
}

static status read_temporal(struct host_options *options, struct arena *arena, struct error *err) {
    str target = variable("CAIRN_TEMPORAL", arena);
    str tls = variable("CAIRN_TEMPORAL_TLS", arena);
    if (!target.ptr) return ST_OK;
    struct temporal_options *t = ARENA_NEW(arena, struct temporal_options);
    *t = (struct temporal_options){
        .target = target,
        .ns = variable("CAIRN_TEMPORAL_NAMESPACE", arena),
        .queue = variable("CAIRN_TEMPORAL_QUEUE", arena),
        .ca_file = variable("CAIRN_TEMPORAL_CA", arena),
        .cert_file = variable("CAIRN_TEMPORAL_CERT", arena),
        .key_file = variable("CAIRN_TEMPORAL_KEY", arena),
        .server_name = variable("CAIRN_TEMPORAL_SERVER_NAME", arena),
    };
    if (tls.ptr && !str_eq(tls, STR("1")) && !str_eq(tls, STR("0")))
        return bad("CAIRN_TEMPORAL_TLS", "1 or 0", tls, err);
    if (!str_has(target, ':')) return bad("CAIRN_TEMPORAL", "HOST:PORT", target, err);
    status st = read_slots("CAIRN_TEMPORAL_SLOTS", TEMPORAL_SLOTS_MAX, arena, &t->slots, err);
    if (st == ST_OK) st = read_key(arena, &t->api_key, err);
    if (st != ST_OK) return st;
    /* A key, a certificate or an authority make sense with TLS only, and a key must not travel
     * without it. */
    t->tls = str_eq(tls, STR("1")) || t->api_key.ptr || t->ca_file.ptr || t->cert_file.ptr;
    if (t->tls && str_eq(tls, STR("0")))
        return error_at(err, REASON_USAGE, "",
                        "CAIRN_TEMPORAL_TLS is 0, but a key or certificate is named, which needs "
                        "TLS");
    options->temporal = t;
    return ST_OK;
}

static status read_conductor(struct host_options *options, struct arena *arena, struct error *err) {
    str url = variable("CAIRN_CONDUCTOR", arena);
    if (!url.ptr) return ST_OK;
    struct conductor_options *c = ARENA_NEW(arena, struct conductor_options);
    *c = (struct conductor_options){.url = url};
    if (!str_starts(url, STR("http://")) && !str_starts(url, STR("https://")))
        return bad("CAIRN_CONDUCTOR", "an http or https URL", url, err);
    status st = read_slots("CAIRN_CONDUCTOR_SLOTS", CONDUCTOR_SLOTS_MAX, arena, &c->slots, err);
    if (st == ST_OK) options->conductor = c;
    return st;
}

status provider_env(struct host_options *options, struct arena *arena, struct error *err) {
    status st = read_temporal(options, arena, err);
    return st == ST_OK ? read_conductor(options, arena, err) : st;
}
