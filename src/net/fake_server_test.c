#include "net/fake_server_test.h"

#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "test.h"

enum { CONNECTIONS_MAX = 1024, REQUEST_BYTES_MAX = 1 << 20 };

struct connection {
    pthread_t thread;
    struct fake_server *server;
    int fd;
};
struct fake_server {
    fake_handler handler;
    void *context;
    pthread_t thread;
    pthread_mutex_t lock; /* guards the rest */
    int fd, port, requests;
    int connection_count;
    struct connection connections[CONNECTIONS_MAX];
};

bool fake_send(int fd, str bytes) {
    while (bytes.len > 0) {
        ssize_t n = send(fd, bytes.ptr, bytes.len, MSG_NOSIGNAL);
        if (n <= 0) return false;
        bytes = str_from(bytes, (size_t)n);
    }
    return true;
}

bool fake_answer(int fd, int status, const char *headers, str body) {
    char head[4096]; /* not a buf: tests make the memory of those fail */
    int n = snprintf(head, sizeof head, "HTTP/1.1 %d Whatever\r\nContent-Length: %zu\r\n%s\r\n",
                     status, body.len, headers);
    return fake_send(fd, str_n(head, (size_t)n)) && fake_send(fd, body);
}

static size_t content_length(const char *head) {
    const char *line = strcasestr(head, "\r\ncontent-length:");
    if (line == NULL) return 0;
    str rest = str_trim(str_c(line + strlen("\r\ncontent-length:")));
    int64_t n = 0;
    return str_take_int(&rest, &n) ? (size_t)n : 0;
}

/* Reads one whole request to the front of `text`; what comes after it is not expected. */
static bool read_request(int fd, char *text, struct fake_request *out) {
    size_t len = 0;
    const char *end = NULL;
    size_t body = 0;
    do {
        ssize_t n = recv(fd, text + len, REQUEST_BYTES_MAX - len, 0);
        if (n <= 0) return false;
        len += (size_t)n;
        text[len] = 0;
        end = strstr(text, "\r\n\r\n");
        body = end ? content_length(text) : 0;
    } while (end == NULL || len < (size_t)(end - text) + 4 + body);
    size_t head = (size_t)(end - text) + 4;
    str rest;
    str version;
    (void)str_split(str_n(text, len), ' ', &out->method, &rest);
    (void)str_split(rest, ' ', &out->target, &version);
    out->head = text;
    out->body = str_n(text + head, len - head);
    return true;
}

static void *serve(void *arg) {
    struct connection *c = arg;
    char *text = malloc(REQUEST_BYTES_MAX + 1);
    struct fake_request request;
    bool more = text != NULL;
    while (more && read_request(c->fd, text, &request)) {
        pthread_mutex_lock(&c->server->lock);
        c->server->requests++;
        pthread_mutex_unlock(&c->server->lock);
        more = c->server->handler(c->server->context, c->fd, &request);
    }
    free(text);
    shutdown(c->fd, SHUT_RDWR); /* closed at the end: until then nobody else gets its number */
    return NULL;
}

static void *accept_all(void *arg) {
    struct fake_server *s = arg;
    for (;;) {
        int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) return NULL;
        pthread_mutex_lock(&s->lock);
        struct connection *c = &s->connections[s->connection_count];
        *c = (struct connection){.server = s, .fd = fd};
        bool ok = s->connection_count < CONNECTIONS_MAX - 1 &&
                  pthread_create(&c->thread, NULL, serve, c) == 0;
        if (ok)
            s->connection_count++;
        else
            close(fd);
        pthread_mutex_unlock(&s->lock);
    }
}

static int listen_somewhere(int *port) {
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof in;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK(bind(fd, (struct sockaddr *)&in, sizeof in) == 0 && listen(fd, 128) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&in, &len) == 0);
    *port = ntohs(in.sin_port);
    return fd;
}

int fake_free_port(void) {
    int port;
    close(listen_somewhere(&port));
    return port;
}

struct fake_server *fake_server_open(fake_handler handler, void *context) {
    struct fake_server *s = calloc(1, sizeof *s);
    CHECK(s != NULL);
    s->handler = handler;
    s->context = context;
    s->fd = listen_somewhere(&s->port);
    CHECK(pthread_mutex_init(&s->lock, NULL) == 0);
    CHECK(pthread_create(&s->thread, NULL, accept_all, s) == 0);
    return s;
}

void fake_server_close(struct fake_server *s) {
    shutdown(s->fd, SHUT_RDWR); /* accept() returns */
    pthread_join(s->thread, NULL);
    close(s->fd);
    for (int i = 0; i < s->connection_count; i++) {
        shutdown(s->connections[i].fd, SHUT_RDWR);
        pthread_join(s->connections[i].thread, NULL);
        close(s->connections[i].fd);
    }
    pthread_mutex_destroy(&s->lock);
    free(s);
}

int fake_server_port(const struct fake_server *s) { return s->port; }

int fake_server_connections(struct fake_server *s) {
    pthread_mutex_lock(&s->lock);
    int n = s->connection_count;
    pthread_mutex_unlock(&s->lock);
    return n;
}

int fake_server_requests(struct fake_server *s) {
    pthread_mutex_lock(&s->lock);
    int n = s->requests;
    pthread_mutex_unlock(&s->lock);
    return n;
}
