/* server/front.c: the HTTP front of a host: listeners, certificates, the local socket, and their end. */
#include "server/front.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "cairn.h"
#include "net/systemd.h"

enum { DRAIN_MS = 10000, LISTEN_MAX = 16, SOCKET_MODE = 0600 };

struct front {
    struct front_options options;
    struct arena arena;
    struct api *api;
    struct http_server *world, *local;
    bool authenticates; /* callers must say who they are */
    bool tls;
    struct buf addresses;
    int draining;  /* servers that have not ended yet */
    int folder_fd; /* for a socket whose path is too long for its address; or -1 */
};

/* ---- where to listen ---- */

struct address {
    str host;
    int port;
    str path; /* of a Unix socket */
};

static bool is_loopback(str host) {
    struct in_addr v4;
    struct in6_addr v6;
    char text[64];
    if (str_eq(host, STR("localhost"))) return true;
    if (!host.ptr || host.len >= sizeof(text)) return false;
    memcpy(text, host.ptr, host.len);
    text[host.len] = 0;
    if (inet_pton(AF_INET, text, &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
    return inet_pton(AF_INET6, text, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

static status parse_address(str text, struct address *out, struct error *err) {
    *out = (struct address){0};
    if (str_starts(text, STR("unix:"))) {
        out->path = str_from(text, 5);
        return out->path.len > 0 ? ST_OK
                                 : error_at(err, REASON_USAGE, "", "--listen unix: needs a path");
    }
    size_t colon = text.len;
    while (colon > 0 && text.ptr[colon - 1] != ':')
        colon--;
    int64_t port = -1;
    if (colon < 2 || !str_to_int(str_from(text, colon), &port) || port < 0 || port > 65535)
        return error_at(err, REASON_USAGE, "",
                        "--listen takes HOST:PORT or unix:PATH, not \"%.*s\"", STR_ARG(text));
    out->host = str_n(text.ptr, colon - 1);
    if (out->host.ptr[0] == '[' && str_ends(out->host, STR("]")))
        out->host = str_n(out->host.ptr + 1, out->host.len - 2);
    out->port = (int)port;
    return ST_OK;
}

static status read_addresses(struct front *f, struct address *out, size_t *count,
                             struct error *err) {
    const struct setting_list *listen = &f->options.settings->listen;
    for (size_t i = 0; i < listen->count; i++) {
        if (*count == LISTEN_MAX)
            return error_at(err, REASON_USAGE, "", "at most %d --listen", LISTEN_MAX);
        status st = parse_address(listen->items[i], &out[(*count)++], err);
        if (st != ST_OK) return st;
    }
    if (*count > 0) return ST_OK;
    *count = 1;
    return parse_address(STR(FRONT_ADDRESS), &out[0], err);
}

/* ---- opening ---- */

static status read_jwks(struct front *f, struct jwks **out, struct error *err) {
    str file = f->options.settings->jwks;
    return file.ptr ? jwks_load(file, out, err) : ST_OK;
}

static status load_tls(struct front *f, struct error *err) {
    str cert = f->options.settings->tls_cert;
    str key = f->options.settings->tls_key;
    if (!cert.ptr != !key.ptr)
        return error_at(err, REASON_USAGE, "", "--tls-cert and --tls-key belong together");
    f->tls = cert.ptr != NULL;
    return f->tls ? http_tls_load(f->world, cert, key, err) : ST_OK;
}

static status open_api(struct front *f, struct error *err) {
    const struct front_options *o = &f->options;
    const struct server_settings *settings = o->settings;
    struct api_options options = {
        .loop = o->loop,
        .host = o->host,
        .url = o->url,
        .data_dir = o->folder,
        .node = o->node,
        .version = STR(CAIRN_VERSION),
        .metrics = o->metrics,
        .open = !f->authenticates,
        .policy = {.issuer = settings->jwt_issuer, .audience = settings->jwt_audience},
        .rate = settings->rate,
        .other_writers = o->postgres,
    };
    status st = read_jwks(f, &options.jwks, err);
    return st == ST_OK ? api_open(&options, &f->api, err) : st;
}

static void add_address(struct front *f, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void add_address(struct front *f, const char *fmt, ...) {
    char text[300];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (f->addresses.len > 0) buf_put_c(&f->addresses, ", ");
    buf_put_c(&f->addresses, text);
}

static status listen_at(struct front *f, const struct address *a, struct error *err) {
    int port = 0;
    if (a->path.ptr) {
        add_address(f, "unix:%.*s", STR_ARG(a->path));
        return http_listen_unix(f->world, a->path, SOCKET_MODE, err);
    }
    status st = http_listen_tcp(f->world, a->host, a->port, f->tls, &port, err);
    bool v6 = str_has(a->host, ':');
    if (st == ST_OK)
        add_address(f, "%s://%s%.*s%s:%d", f->tls ? "https" : "http", v6 ? "[" : "",
                    STR_ARG(a->host), v6 ? "]" : "", port);
    return st;
}

/* Sockets that systemd opened are as public as it likes: they always want a key. */
static status listen_world(struct front *f, const struct address *addresses, size_t count,
                           const int *fds, size_t fd_count, struct error *err) {
    status st = ST_OK;
    for (size_t i = 0; i < fd_count && st == ST_OK; i++) {
        add_address(f, "socket %d of systemd", fds[i]);
        st = http_listen_fd(f->world, fds[i], f->tls, err);
    }
    for (size_t i = 0; i < count && st == ST_OK && fd_count == 0; i++)
        st = listen_at(f, &addresses[i], err);
    return st;
}

static status open_world(struct front *f, struct error *err) {
    struct address addresses[LISTEN_MAX];
    int fds[LISTEN_MAX];
    size_t count = 0;
    struct http_options http = {.problem = api_problem};
    status st = read_addresses(f, addresses, &count, err);
    if (st != ST_OK) return st;
    size_t fd_count = systemd_listen_fds(fds, LISTEN_MAX);
    f->authenticates = f->options.settings->auth || fd_count > 0;
    for (size_t i = 0; i < count; i++)
        f->authenticates |= !addresses[i].path.ptr && !is_loopback(addresses[i].host);
    st = open_api(f, err);
    if (st == ST_OK)
        st = http_server_open(f->options.loop, &http, api_handle, f->api, &f->world, err);
    if (st == ST_OK) st = load_tls(f, err);
    if (st == ST_OK) st = listen_world(f, addresses, count, fds, fd_count, err);
    if (st != ST_OK) return st;
    if (!f->authenticates) buf_put_c(&f->addresses, " (no authentication: this machine only)");
    api_http_server(f->api, f->world);
    return ST_OK;
}

/* The address of a socket has room for 107 bytes; a folder's path may be longer. /proc/self/fd
 * names it shortly. */
static str socket_path(struct front *f) {
    char path[PATH_MAX];
    str folder = arena_str(&f->arena, f->options.folder);
    int n = snprintf(path, sizeof(path), "%s/" FRONT_SOCKET, folder.ptr);
    if (n < 0 || (size_t)n >= sizeof(((struct sockaddr_un *)0)->sun_path)) {
        f->folder_fd = open(folder.ptr, O_PATH | O_DIRECTORY | O_CLOEXEC);
        n = snprintf(path, sizeof(path), "/proc/self/fd/%d/" FRONT_SOCKET, f->folder_fd);
    }
    return arena_str(&f->arena, str_n(path, (size_t)n));
}

static status open_local(struct front *f, struct error *err) {
    struct http_options http = {.problem = api_problem, .connections_max = 1000};
    status st =
        http_server_open(f->options.loop, &http, api_handle_trusted, f->api, &f->local, err);
    return st == ST_OK ? http_listen_unix(f->local, socket_path(f), SOCKET_MODE, err) : st;
}

status front_open(const struct front_options *options, struct front **out, struct error *err) {
    struct front *f = mem_alloc(sizeof(*f));
    if (!f) return error_set(err, ST_RETRY, "out of memory");
    f->options = *options;
    f->folder_fd = -1;
    arena_init(&f->arena, 4096, (size_t)1024 * 1024);
    buf_init(&f->addresses, (size_t)16 * 1024);
    *out = f;
    status st = options->world ? open_world(f, err) : open_api(f, err);
    if (st == ST_OK && options->local) st = open_local(f, err);
    return st;
}

str front_addresses(const struct front *f) { return buf_str(&f->addresses); }

void front_reload(struct front *f) {
    struct error err = {0};
    struct jwks *jwks = NULL;
    systemd_notify("RELOADING=1");
    bool tls = !f->tls || load_tls(f, &err) == ST_OK;
    if (!tls) LOG(LOG_ERROR, "the certificate stays as it was", LOG_S("error", str_c(err.msg)));
    if (f->options.settings->jwks.ptr) {
        if (read_jwks(f, &jwks, &err) == ST_OK)
            api_set_jwks(f->api, jwks);
        else
            LOG(LOG_ERROR, "the keys of tokens stay as they were", LOG_S("error", str_c(err.msg)));
    }
    log_write(LOG_INFO, "reloaded", NULL, 0);
    systemd_notify("READY=1");
}

/* ---- the end ---- */

static void on_drained(void *context) {
    struct front *f = context;
    f->draining--;
}

void front_drain(struct front *f) {
    if (!f || !f->api) return;
    api_drain(f->api);
    struct http_server *servers[] = {f->world, f->local};
    for (size_t i = 0; i < COUNT_OF(servers); i++) {
        if (!servers[i]) continue;
        f->draining++;
        http_server_drain(servers[i], DRAIN_MS, on_drained, f);
    }
    while (f->draining > 0)
        (void)uv_run(f->options.loop, UV_RUN_ONCE);
    http_server_close(f->world, NULL, NULL);
    http_server_close(f->local, NULL, NULL);
    f->world = f->local = NULL;
    (void)uv_run(f->options.loop, UV_RUN_NOWAIT);
    api_halt(f->api); /* the host closes next; connections are over, but some calls may not be */
}

void front_close(struct front *f) {
    if (!f) return;
    http_server_close(f->world, NULL, NULL);
    http_server_close(f->local, NULL, NULL);
    api_close(f->api);
    if (f->folder_fd >= 0) close(f->folder_fd);
    buf_release(&f->addresses);
    arena_release(&f->arena);
    mem_free(f);
}
