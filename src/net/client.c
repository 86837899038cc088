/* net/client.c: see the header.
 *
 * A transfer is one request with libcurl's easy handle; both ways of running it share all options
 * and the translation of its result. On a loop, libcurl's multi handle tells us which sockets to
 * watch and when to wake it: each watched socket is a uv_poll_t, the wake-up one uv_timer_t.
 *
 * HTTP/1.1 only: one request, one connection at a time, so that the address that was judged is the
 * address that is used; steps and plans have nothing to win from multiplexing. */
#include "net/client.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/buf.h"
#include "net/libcurl.h"

enum { SHOWN_BYTES_MAX = 160, METHOD_BYTES_MAX = 16, STALL_BYTES_PER_S = 1 };

struct transfer {
    CURL *easy;
    struct curl_slist *headers;
    struct buf body;
    bool (*may_connect)(void *context, const uint8_t *address, size_t len);
    bool (*chunk)(void *context, str bytes);
    void *context;
    int folder_fd; /* of a Unix socket whose path is too long for its address; or -1 */
    size_t header_bytes;
    CURLcode setup;                  /* the first option that failed */
    bool refused;                    /* an address was */
    bool too_large;                  /* the answer is */
    bool cuts, cut;                  /* its body may be, its body was */
    bool ended;                      /* by chunk() */
    char shown[SHOWN_BYTES_MAX + 1]; /* the URL in messages: a query may hold a secret */
    char detail[CURL_ERROR_SIZE];
};

/* ---- what libcurl asks us ---- */

static bool may_connect(struct transfer *t, const struct sockaddr *address) {
    bool ok = false;
    if (!t->may_connect) {
        ok = false;
    } else if (address->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, address, sizeof in);
        ok = t->may_connect(t->context, (const uint8_t *)&in.sin_addr, 4);
    } else if (address->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, address, sizeof in6);
        ok = t->may_connect(t->context, (const uint8_t *)&in6.sin6_addr, 16);
    }
    if (!ok) t->refused = true;
    return ok;
}

static curl_socket_t open_socket(void *context, curlsocktype purpose, struct curl_sockaddr *a) {
    struct transfer *t = context;
    bool local = a->family == AF_UNIX; /* only ever the path that the request names */
    if (purpose != CURLSOCKTYPE_IPCXN || (!local && !may_connect(t, &a->addr)))
        return CURL_SOCKET_BAD;
    return socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
}

/* Before each request, also on a connection that was opened for another one with other rules. */
/* NOLINTNEXTLINE(readability-non-const-parameter): libcurl's type */
static int before_request(void *context, char *remote, char *local, int remote_port,
                          int local_port) {
    struct transfer *t = context;
    UNUSED(local);
    UNUSED(remote_port);
    UNUSED(local_port);
    uint8_t address[16];
    bool ok =
        !t->may_connect ||
        (inet_pton(AF_INET, remote, address) == 1 && t->may_connect(t->context, address, 4)) ||
        (inet_pton(AF_INET6, remote, address) == 1 && t->may_connect(t->context, address, 16));
    if (!ok) t->refused = true;
    return ok ? CURL_PREREQFUNC_OK : CURL_PREREQFUNC_ABORT;
}

static bool give_chunk(struct transfer *t, str bytes) {
    if (!t->chunk(t->context, bytes)) t->ended = true;
    return !t->ended;
}

/* An answer that is a failure is for the caller, not for whoever reads the stream. */
static bool is_streamed(struct transfer *t) {
    long code = 0;
    return t->chunk &&
           curl->curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &code) == CURLE_OK &&
           code == 200;
}

static size_t take_body(char *bytes, size_t size, size_t count, void *context) {
    struct transfer *t = context;
    size_t n = size * count;
    if (is_streamed(t)) return give_chunk(t, str_n(bytes, n)) ? n : CURL_WRITEFUNC_ERROR;
    size_t room = t->body.max - t->body.len;
    if (n > room && t->cuts) {
        buf_put(&t->body, str_n(bytes, room));
        t->cut = !t->body.full;
        return CURL_WRITEFUNC_ERROR;
    }
    if (n > room) t->too_large = true;
    if (!t->too_large) buf_put(&t->body, str_n(bytes, n));
    return t->body.full || t->too_large ? CURL_WRITEFUNC_ERROR : n;
}

/* libcurl calls it about once a second, and whenever a signal came. */
static int take_time(void *context, curl_off_t total, curl_off_t now, curl_off_t up_total,
                     curl_off_t up_now) {
    struct transfer *t = context;
    UNUSED(total);
    UNUSED(now);
    UNUSED(up_total);
    UNUSED(up_now);
    return give_chunk(t, STR("")) ? 0 : 1;
}

/* libcurl remembers all header lines of an answer, however many there are. */
/* NOLINTNEXTLINE(readability-non-const-parameter): likewise */
static size_t take_header(char *bytes, size_t size, size_t count, void *context) {
    struct transfer *t = context;
    UNUSED(bytes);
    t->header_bytes += size * count;
    if (t->header_bytes > CLIENT_ANSWER_HEADER_BYTES_MAX) t->too_large = true;
    return t->too_large ? 0 : size * count;
}

/* ---- setting up ---- */

static status bad_request(struct error *err, const char *why) {
    return error_at(err, REASON_HTTP_REQUEST_INVALID, "", "HTTP request: %s", why);
}

/* Visible ASCII and nothing else. */
static bool is_visible(str s) {
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        if (c <= ' ' || c > '~') return false;
    }
    return true;
}

/* A token of RFC 9110. */
static bool is_token(str s) {
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        bool alnum = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!alnum && !str_has(STR("!#$%&'*+-.^_`|~"), c)) return false;
    }
    return s.len > 0;
}

/* A value: no line breaks or other control characters, but tabs and any byte above ASCII. */
static bool is_value(str s) {
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        if ((c < ' ' && c != '\t') || c == 0x7f) return false;
    }
    return true;
}

static bool same_name(str a, const char *b) {
    return a.len == strlen(b) && strncasecmp(a.ptr, b, a.len) == 0;
}

static void set_long(struct transfer *t, CURLoption option, long value) {
    if (t->setup == CURLE_OK) t->setup = curl->curl_easy_setopt(t->easy, option, value);
}

static void set_ptr(struct transfer *t, CURLoption option, const void *value) {
    if (t->setup == CURLE_OK) t->setup = curl->curl_easy_setopt(t->easy, option, value);
}

static void add_header(struct transfer *t, const char *line) {
    struct curl_slist *longer = curl->curl_slist_append(t->headers, line);
    if (!longer)
        t->setup = CURLE_OUT_OF_MEMORY;
    else
        t->headers = longer;
}

static status set_headers(struct transfer *t, const struct client_request *r, struct error *err) {
    if (r->header_count > CLIENT_HEADERS_MAX) return bad_request(err, "it has too many headers");
    bool typed = false;
    struct buf line;
    buf_init(&line, CLIENT_HEADER_BYTES_MAX);
    status st = ST_OK;
    for (size_t i = 0; i < r->header_count && st == ST_OK; i++) {
        str value = str_trim(r->headers[i].value);
        typed = typed || same_name(r->headers[i].name, "content-type");
        buf_clear(&line);
        buf_put(&line, r->headers[i].name);
        buf_put_c(&line, value.len > 0 ? ": " : ";"); /* libcurl's way to write an empty one */
        buf_put(&line, value);
        buf_put_char(&line, 0);
        if (!is_token(r->headers[i].name))
            st = bad_request(err, "a header's name has a character that names cannot have");
        else if (!is_value(value))
            st = bad_request(err, "a header's value has a control character");
        else if (line.full)
            st = bad_request(err, "a header is too long");
        else
            add_header(t, line.ptr);
    }
    buf_release(&line);
    /* What libcurl would add of its own accord. */
    add_header(t, "Expect:");
    if (!typed) add_header(t, "Content-Type:");
    set_ptr(t, CURLOPT_HTTPHEADER, t->headers);
    return st;
}

static status set_method(struct transfer *t, const struct client_request *r, struct error *err) {
    str method = r->method.ptr ? r->method : STR("GET");
    char text[METHOD_BYTES_MAX + 1] = "";
    bool upper = method.len > 0 && method.len <= METHOD_BYTES_MAX;
    for (size_t i = 0; i < method.len; i++)
        upper = upper && method.ptr[i] >= 'A' && method.ptr[i] <= 'Z';
    if (!upper) return bad_request(err, "its method is not a word in capitals");
    if (str_eq(method, STR("CONNECT"))) return bad_request(err, "CONNECT is for proxies");
    memcpy(text, method.ptr, method.len);
    bool sends =
        str_eq(method, STR("POST")) || str_eq(method, STR("PUT")) || str_eq(method, STR("PATCH"));
    if (r->body.ptr || sends) { /* these say "Content-Length: 0" if there is none */
        set_long(t, CURLOPT_POST, 1);
        if (t->setup == CURLE_OK) {
            t->setup = curl->curl_easy_setopt(t->easy, CURLOPT_POSTFIELDSIZE_LARGE,
                                              (curl_off_t)r->body.len);
        }
        set_ptr(t, CURLOPT_COPYPOSTFIELDS, r->body.ptr ? r->body.ptr : "");
    }
    if (str_eq(method, STR("HEAD")))
        set_long(t, CURLOPT_NOBODY, 1);
    else
        set_ptr(t, CURLOPT_CUSTOMREQUEST, text);
    return ST_OK;
}

static status set_url(struct transfer *t, const struct client_request *r, struct error *err) {
    char text[CLIENT_URL_BYTES_MAX + 1];
    if (r->url.len > CLIENT_URL_BYTES_MAX) return bad_request(err, "its URL is too long");
    if (r->url.len == 0 || !is_visible(r->url)) {
        return bad_request(err, "its URL is empty, or has a blank, a control character or a "
                                "character that is not ASCII");
    }
    memcpy(text, r->url.ptr, r->url.len);
    text[r->url.len] = 0;
    if (strncasecmp(text, "http://", 7) != 0 && strncasecmp(text, "https://", 8) != 0)
        return bad_request(err, "its URL is neither http nor https");
    set_ptr(t, CURLOPT_URL, text);
    str shown;
    str query;
    (void)str_split(r->url, '?', &shown, &query);
    (void)snprintf(t->shown, sizeof t->shown, "%.*s", STR_ARG(shown));
    return ST_OK;
}

/* (0 is "for ever" to libcurl.) */
static long timeout_of(int64_t ms, int64_t unset) {
    if (ms <= 0) return (long)unset;
    return (long)(ms < CLIENT_TIMEOUT_MS_MAX ? ms : CLIENT_TIMEOUT_MS_MAX);
}

static void set_limits(struct transfer *t, const struct client_request *r) {
    size_t bytes_max = r->bytes_max ? r->bytes_max : CLIENT_BYTES_MAX;
    buf_init(&t->body, bytes_max);
    set_long(t, CURLOPT_TIMEOUT_MS, timeout_of(r->timeout_ms, CLIENT_TIMEOUT_MS));
    set_long(t, CURLOPT_CONNECTTIMEOUT_MS,
             timeout_of(r->connect_timeout_ms, CLIENT_CONNECT_TIMEOUT_MS));
    if (r->stall_ms > 0) {
        set_long(t, CURLOPT_LOW_SPEED_LIMIT, STALL_BYTES_PER_S);
        set_long(t, CURLOPT_LOW_SPEED_TIME, (long)((r->stall_ms + 999) / 1000));
    }
    /* A length that is announced ends it at once; after HEAD it is only told. */
    if (t->setup == CURLE_OK && !str_eq(r->method, STR("HEAD")) && !r->chunk && !r->cuts) {
        t->setup =
            curl->curl_easy_setopt(t->easy, CURLOPT_MAXFILESIZE_LARGE, (curl_off_t)bytes_max);
    }
}

static void set_chunk(struct transfer *t) {
    if (!t->chunk) return;
    set_ptr(t, CURLOPT_XFERINFODATA, t);
    set_long(t, CURLOPT_NOPROGRESS, 0);
    set_long(t, CURLOPT_TCP_KEEPALIVE, 1); /* a stream may be silent for long */
    if (t->setup == CURLE_OK)
        t->setup = curl->curl_easy_setopt(t->easy, CURLOPT_XFERINFOFUNCTION, take_time);
}

/* The address of a Unix socket has room for 107 bytes; a path may be longer. /proc/self/fd names
 * its folder shortly. */
static status set_unix(struct transfer *t, str path, struct error *err) {
    char text[4096];
    size_t slash = path.len;
    if (!path.ptr) return ST_OK;
    t->may_connect = NULL;
    if (path.len == 0 || path.len >= sizeof text)
        return bad_request(err, "the path of its Unix socket is empty or too long");
    memcpy(text, path.ptr, path.len);
    text[path.len] = 0;
    while (slash > 0 && text[slash - 1] != '/')
        slash--;
    if (path.len >= sizeof(((struct sockaddr_un *)0)->sun_path) && slash > 0) {
        text[slash - 1] = 0;
        t->folder_fd = open(text, O_PATH | O_DIRECTORY | O_CLOEXEC);
        (void)snprintf(text, sizeof text, "/proc/self/fd/%d/%.*s", t->folder_fd,
                       STR_ARG(str_from(path, slash)));
    }
    set_ptr(t, CURLOPT_UNIX_SOCKET_PATH, text);
    return ST_OK;
}

static status set_ca_file(struct transfer *t, str path, struct error *err) {
    char text[4096];
    if (path.len >= sizeof text) return bad_request(err, "the name of its CA file is too long");
    if (!path.ptr) return ST_OK;
    memcpy(text, path.ptr, path.len);
    text[path.len] = 0;
    set_ptr(t, CURLOPT_CAINFO, text);
    return ST_OK;
}

static void set_safety(struct transfer *t) {
    set_ptr(t, CURLOPT_PROTOCOLS_STR, "http,https");
    set_long(t, CURLOPT_FOLLOWLOCATION, 0);
    set_long(t, CURLOPT_PATH_AS_IS, 1);
    set_long(t, CURLOPT_DISALLOW_USERNAME_IN_URL, 1);
    set_ptr(t, CURLOPT_PROXY, ""); /* "": not even one from the environment */
    set_ptr(t, CURLOPT_NOPROXY, "*");
    set_long(t, CURLOPT_NETRC, CURL_NETRC_IGNORED);
    set_long(t, CURLOPT_SSL_VERIFYPEER, 1);
    set_long(t, CURLOPT_SSL_VERIFYHOST, 2);
    set_long(t, CURLOPT_SSLVERSION, CURL_SSLVERSION_TLSv1_2);
    set_long(t, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
    set_long(t, CURLOPT_HTTP09_ALLOWED, 0);
    set_long(t, CURLOPT_NOSIGNAL, 1);
    set_ptr(t, CURLOPT_USERAGENT, "cairn");
    set_ptr(t, CURLOPT_ERRORBUFFER, t->detail);
    set_ptr(t, CURLOPT_OPENSOCKETDATA, t);
    set_ptr(t, CURLOPT_PREREQDATA, t);
    set_ptr(t, CURLOPT_WRITEDATA, t);
    set_ptr(t, CURLOPT_HEADERDATA, t);
    if (t->setup != CURLE_OK) return;
    CURLcode rc = curl->curl_easy_setopt(t->easy, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    if (!rc) rc = curl->curl_easy_setopt(t->easy, CURLOPT_PREREQFUNCTION, before_request);
    if (!rc) rc = curl->curl_easy_setopt(t->easy, CURLOPT_WRITEFUNCTION, take_body);
    if (!rc) rc = curl->curl_easy_setopt(t->easy, CURLOPT_HEADERFUNCTION, take_header);
    t->setup = rc;
#if LIBCURL_VERSION_NUM >= 0x075700
    /* Ending a request must not wait for its look-up. An older library at run time just waits. */
    (void)curl->curl_easy_setopt(t->easy, CURLOPT_QUICK_EXIT, 1L);
#endif
}

static void transfer_release(struct transfer *t) {
    if (t->easy) curl->curl_easy_cleanup(t->easy);
    if (t->headers) curl->curl_slist_free_all(t->headers);
    buf_release(&t->body);
    if (t->folder_fd >= 0) close(t->folder_fd);
}

/* *t must stay where it is: libcurl has its address. */
static status transfer_init(struct transfer *t, const struct client_request *r, struct error *err) {
    ASSERT(r->may_connect != NULL || r->unix_path.ptr != NULL);
    memset(t, 0, sizeof *t);
    t->folder_fd = -1;
    status st = libcurl_load(err);
    if (st != ST_OK) return st;
    t->may_connect = r->may_connect;
    t->chunk = r->chunk;
    t->cuts = r->cuts;
    t->context = r->context;
    t->easy = curl->curl_easy_init();
    if (!t->easy) return error_at(err, REASON_HTTP_FAILED, "", "HTTP request: out of memory");
    set_safety(t);
    set_limits(t, r);
    st = set_url(t, r, err);
    if (st == ST_OK) st = set_method(t, r, err);
    if (st == ST_OK) st = set_headers(t, r, err);
    if (st == ST_OK) st = set_ca_file(t, r->ca_file, err);
    if (st == ST_OK) st = set_unix(t, r->unix_path, err);
    set_chunk(t);
    if (st == ST_OK && t->setup != CURLE_OK) {
        st = error_at(err, REASON_HTTP_FAILED, "", "could not prepare a request for \"%s\": %s",
                      t->shown, curl->curl_easy_strerror(t->setup));
    }
    if (st != ST_OK) transfer_release(t);
    return st;
}

/* ---- results ---- */

static status transfer_failed(struct transfer *t, CURLcode rc, struct error *err) {
    status st = ST_RETRY;
    enum reason reason = REASON_HTTP_FAILED;
    const char *why = t->detail[0] ? t->detail : curl->curl_easy_strerror(rc);
    if (t->ended) {
        reason = REASON_HTTP_ENDED;
        why = "it was ended";
    } else if (rc == CURLE_OPERATION_TIMEDOUT) {
        reason = REASON_HTTP_TIMEOUT;
    } else if (t->too_large || rc == CURLE_FILESIZE_EXCEEDED) {
        st = ST_LIMIT;
        reason = REASON_HTTP_TOO_LARGE;
        why = "the answer is larger than allowed";
    } else if (t->refused && (rc == CURLE_COULDNT_CONNECT || rc == CURLE_ABORTED_BY_CALLBACK)) {
        st = ST_INVALID;
        reason = REASON_HTTP_REFUSED_ADDRESS;
        why = "the host has an address that may not be connected to";
    } else if (t->body.full) {
        why = "out of memory";
    } else if (rc == CURLE_URL_MALFORMAT || rc == CURLE_PEER_FAILED_VERIFICATION) {
        st = ST_INVALID;
    }
    return error_as(err, st, reason, "", "could not fetch \"%s\": %s", t->shown, why);
}

/* The answer, borrowed from the transfer. */
static status transfer_result(struct transfer *t, CURLcode rc, struct client_response *out,
                              struct error *err) {
    bool cut = t->cut && rc == CURLE_WRITE_ERROR;
    if (rc != CURLE_OK && !cut) return transfer_failed(t, rc, err);
    long code = 0;
    char *type = NULL;
    if (curl->curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &code) != CURLE_OK ||
        curl->curl_easy_getinfo(t->easy, CURLINFO_CONTENT_TYPE, &type) != CURLE_OK) {
        return error_at(err, REASON_HTTP_FAILED, "", "could not read the answer of \"%s\"",
                        t->shown);
    }
    *out = (struct client_response){
        .status = (int)code,
        .content_type = str_c(type),
        .body = t->body.len > 0 ? buf_str(&t->body) : STR(""),
        .cut = cut,
    };
    return ST_OK;
}

status client_fetch(const struct client_request *request, struct arena *arena,
                    struct client_response *out, struct error *err) {
    struct transfer t;
    status st = transfer_init(&t, request, err);
    if (st != ST_OK) return st;
    struct client_response got = {0};
    st = transfer_result(&t, curl->curl_easy_perform(t.easy), &got, err);
    if (st == ST_OK &&
        !(arena_try_str(arena, got.body, &got.body) &&
          (!got.content_type.ptr || arena_try_str(arena, got.content_type, &got.content_type)))) {
        st =
            error_at(err, REASON_HTTP_FAILED, "", "could not fetch \"%s\": out of memory", t.shown);
    }
    if (st == ST_OK) *out = got;
    transfer_release(&t);
    return st;
}

/* ---- on a loop ---- */

struct client_call {
    struct transfer transfer;
    struct client *client;
    struct client_call *next, *prev;
    client_done done;
    void *context;
};
struct watch { /* a socket that libcurl wants to hear of */
    uv_poll_t poll;
    struct client *client;
    struct watch *next, *prev;
    curl_socket_t fd;
};
struct client {
    uv_loop_t *loop;
    uv_timer_t timer;
    CURLM *multi;
    struct client_call *calls;
    struct watch *watches;
    size_t call_count;
    size_t handle_count; /* of the loop, not yet closed */
    bool closing;
};

static void handle_gone(struct client *client) {
    ASSERT(client->handle_count > 0);
    if (--client->handle_count == 0 && client->closing) mem_free(client);
}

static void on_timer_closed(uv_handle_t *handle) { handle_gone(handle->data); }

static void on_watch_closed(uv_handle_t *handle) {
    struct watch *watch = handle->data;
    handle_gone(watch->client);
    mem_free(watch);
}

static void watch_end(struct watch *watch) {
    if (watch->prev)
        watch->prev->next = watch->next;
    else
        watch->client->watches = watch->next;
    if (watch->next) watch->next->prev = watch->prev;
    uv_poll_stop(&watch->poll);
    uv_close((uv_handle_t *)&watch->poll, on_watch_closed);
}

static void call_unlink(struct client_call *call) {
    if (call->prev)
        call->prev->next = call->next;
    else
        call->client->calls = call->next;
    if (call->next) call->next->prev = call->prev;
    call->client->call_count--;
    (void)curl->curl_multi_remove_handle(call->client->multi, call->transfer.easy);
}

static void call_free(struct client_call *call) {
    transfer_release(&call->transfer);
    mem_free(call);
}

/* Tells those whose requests have ended. */
static void finish_calls(struct client *client) {
    int left;
    for (CURLMsg *msg; (msg = curl->curl_multi_info_read(client->multi, &left));) {
        if (msg->msg != CURLMSG_DONE) continue;
        char *private = NULL;
        CURLcode rc = msg->data.result; /* the message is gone with the handle */
        (void)curl->curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &private);
        struct client_call *call = (struct client_call *)(void *)private;
        ASSERT(call != NULL);
        struct error err = {0};
        struct client_response response = {0};
        status st = transfer_result(&call->transfer, rc, &response, &err);
        call_unlink(call);
        call->done(call->context, st, st == ST_OK ? &response : NULL, st == ST_OK ? NULL : &err);
        call_free(call);
    }
}

static void wake(struct client *client, curl_socket_t fd, int events) {
    int running;
    (void)curl->curl_multi_socket_action(client->multi, fd, events, &running);
    finish_calls(client);
}

static void on_timer(uv_timer_t *timer) { wake(timer->data, CURL_SOCKET_TIMEOUT, 0); }

static void on_socket(uv_poll_t *poll, int result, int events) {
    struct watch *watch = poll->data;
    int flags = result < 0 ? CURL_CSELECT_ERR : 0;
    if (events & UV_READABLE) flags |= CURL_CSELECT_IN;
    if (events & UV_WRITABLE) flags |= CURL_CSELECT_OUT;
    wake(watch->client, watch->fd, flags);
}

static int set_timer(CURLM *multi, long timeout_ms, void *context) {
    struct client *client = context;
    UNUSED(multi);
    if (timeout_ms < 0) {
        uv_timer_stop(&client->timer);
        return 0;
    }
    uv_update_time(client->loop); /* after a long callback the loop's clock is behind */
    uv_timer_start(&client->timer, on_timer, (uint64_t)timeout_ms, 0);
    return 0;
}

static struct watch *watch_new(struct client *client, curl_socket_t fd) {
    struct watch *watch = mem_alloc(sizeof *watch);
    if (!watch) return NULL;
    watch->client = client;
    watch->fd = fd;
    if (uv_poll_init_socket(client->loop, &watch->poll, fd) != 0) {
        mem_free(watch);
        return NULL;
    }
    watch->poll.data = watch;
    client->handle_count++;
    watch->next = client->watches;
    if (watch->next) watch->next->prev = watch;
    client->watches = watch;
    (void)curl->curl_multi_assign(client->multi, fd, watch);
    return watch;
}

/* An error told to libcurl here would end all requests, so without memory for one more watch its
 * request just ends by its timeout. */
static int watch_socket(CURL *easy, curl_socket_t fd, int what, void *context, void *socket_data) {
    struct client *client = context;
    struct watch *watch = socket_data;
    UNUSED(easy);
    if (what == CURL_POLL_REMOVE) {
        if (watch) watch_end(watch);
        (void)curl->curl_multi_assign(client->multi, fd, NULL);
        return 0;
    }
    if (!watch) watch = watch_new(client, fd);
    if (!watch) return 0;
    int events = 0;
    if (what & CURL_POLL_IN) events |= UV_READABLE;
    if (what & CURL_POLL_OUT) events |= UV_WRITABLE;
    (void)uv_poll_start(&watch->poll, events, on_socket);
    return 0;
}

static bool multi_setup(struct client *client) {
    CURLM *multi = client->multi;
    CURLMcode rc = curl->curl_multi_setopt(multi, CURLMOPT_SOCKETFUNCTION, watch_socket);
    if (!rc) rc = curl->curl_multi_setopt(multi, CURLMOPT_SOCKETDATA, client);
    if (!rc) rc = curl->curl_multi_setopt(multi, CURLMOPT_TIMERFUNCTION, set_timer);
    if (!rc) rc = curl->curl_multi_setopt(multi, CURLMOPT_TIMERDATA, client);
    if (!rc)
        rc = curl->curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, (long)CLIENT_CONNECTIONS_KEPT);
    return rc == CURLM_OK;
}

status client_open(uv_loop_t *loop, struct client **out, struct error *err) {
    status st = libcurl_load(err);
    if (st != ST_OK) return st;
    struct client *client = mem_alloc(sizeof *client);
    if (client) client->multi = curl->curl_multi_init();
    if (!client || !client->multi || !multi_setup(client)) {
        if (client && client->multi) (void)curl->curl_multi_cleanup(client->multi);
        mem_free(client);
        return error_set(err, ST_RETRY, "could not open an HTTP client: out of memory");
    }
    client->loop = loop;
    (void)uv_timer_init(loop, &client->timer); /* cannot fail */
    client->timer.data = client;
    client->handle_count = 1;
    *out = client;
    return ST_OK;
}

status client_start(struct client *client, const struct client_request *request, client_done done,
                    void *context, struct client_call **out, struct error *err) {
    if (client->call_count >= CLIENT_REQUESTS_MAX) {
        return error_at(err, REASON_HTTP_BUSY, "", "%d HTTP requests are under way already",
                        CLIENT_REQUESTS_MAX);
    }
    struct client_call *call = mem_alloc(sizeof *call);
    if (!call) return error_at(err, REASON_HTTP_FAILED, "", "HTTP request: out of memory");
    status st = transfer_init(&call->transfer, request, err);
    if (st != ST_OK) {
        mem_free(call);
        return st;
    }
    call->client = client;
    call->done = done;
    call->context = context;
    set_ptr(&call->transfer, CURLOPT_PRIVATE, call);
    CURLMcode rc = curl->curl_multi_add_handle(client->multi, call->transfer.easy);
    if (rc != CURLM_OK || call->transfer.setup != CURLE_OK) {
        st = error_at(err, REASON_HTTP_FAILED, "", "could not begin a request for \"%s\": %s",
                      call->transfer.shown, curl->curl_multi_strerror(rc));
        if (rc == CURLM_OK)
            (void)curl->curl_multi_remove_handle(client->multi, call->transfer.easy);
        call_free(call);
        return st;
    }
    call->next = client->calls;
    if (call->next) call->next->prev = call;
    client->calls = call;
    client->call_count++;
    *out = call;
    return ST_OK;
}

void client_cancel(struct client_call *call) {
    call_unlink(call);
    call_free(call);
}

size_t client_active(const struct client *client) { return client->call_count; }

void client_close(struct client *client) {
    if (!client) return;
    client->closing = true;
    while (client->calls)
        client_cancel(client->calls);
    /* The watches go before the sockets do. */
    (void)curl->curl_multi_setopt(client->multi, CURLMOPT_SOCKETFUNCTION, NULL);
    (void)curl->curl_multi_setopt(client->multi, CURLMOPT_TIMERFUNCTION, NULL);
    while (client->watches)
        watch_end(client->watches);
    (void)curl->curl_multi_cleanup(client->multi);
    uv_timer_stop(&client->timer);
    uv_close((uv_handle_t *)&client->timer, on_timer_closed);
}
