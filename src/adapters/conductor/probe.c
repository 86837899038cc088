/* adapters/conductor/probe.c: does the cluster answer? For cairn doctor. */
#include "adapters/conductor/conductor.h"
#include "base/buf.h"
#include "net/client.h"

enum { PROBE_MS = 5000, URL_MAX = 4096 };

static bool any_address(void *context, const uint8_t *address, size_t len) {
    (void)context;
    (void)address;
    (void)len;
    return true; /* the operator named it */
}

status conductor_probe(const struct conductor_options *o, struct arena *arena, struct error *err) {
    char text[URL_MAX];
    struct buf url;
    struct client_response response = {0};
    str base = o->url;
    while (str_ends(base, STR("/")))
        base.len--;
    if (str_ends(base, STR("/api"))) base.len -= 4;
    buf_init_fixed(&url, text, sizeof(text));
    buf_printf(&url, "%.*s/health", STR_ARG(base));
    if (url.full) return error_set(err, ST_INVALID, "the URL is too long");
    struct client_request request = {
        .url = buf_str(&url), .may_connect = any_address, .timeout_ms = PROBE_MS};
    status st = client_fetch(&request, arena, &response, err);
    if (st == ST_OK && response.status != 200)
        st = error_set(err, ST_RETRY, "%.*s answers with status %d", STR_ARG(buf_str(&url)),
                       response.status);
    return st;
}
