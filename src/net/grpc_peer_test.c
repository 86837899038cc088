#include "net/grpc_peer_test.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "test.h"

enum { CONNECTIONS_MAX = 256, PREFACE_BYTES = 24 };

struct connection {
    pthread_t thread;
    struct grpc_peer *peer;
    int fd, nth;
};
struct grpc_peer {
    peer_handler handler;
    const void *context;
    pthread_t thread;
    int fd, port;
    pthread_mutex_t lock; /* guards the rest */
    int note, connection_count;
    struct connection connections[CONNECTIONS_MAX];
};

static void *serve(void *arg) {
    struct connection *c = arg;
    c->peer->handler(c->peer, c->fd, c->nth, c->peer->context);
    shutdown(c->fd, SHUT_RDWR); /* closed at the end: until then nobody else gets its number */
    return NULL;
}

static void *accept_all(void *arg) {
    struct grpc_peer *p = arg;
    for (;;) {
        int fd = accept4(p->fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) return NULL;
        int on = 1; /* frames are sent in small pieces */
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        pthread_mutex_lock(&p->lock);
        struct connection *c = &p->connections[p->connection_count];
        bool ok = p->connection_count < CONNECTIONS_MAX - 1;
        if (ok) {
            *c = (struct connection){.peer = p, .fd = fd, .nth = p->connection_count};
            ok = pthread_create(&c->thread, NULL, serve, c) == 0;
        }
        if (ok)
            p->connection_count++;
        else
            close(fd);
        pthread_mutex_unlock(&p->lock);
    }
}

struct grpc_peer *grpc_peer_open(peer_handler handler, const void *context) {
    struct grpc_peer *p = calloc(1, sizeof *p);
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof in;
    CHECK(p != NULL);
    p->handler = handler;
    p->context = context;
    p->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(p->fd >= 0 && bind(p->fd, (struct sockaddr *)&in, sizeof in) == 0);
    CHECK(listen(p->fd, 128) == 0 && getsockname(p->fd, (struct sockaddr *)&in, &len) == 0);
    p->port = ntohs(in.sin_port);
    CHECK(pthread_mutex_init(&p->lock, NULL) == 0);
    CHECK(pthread_create(&p->thread, NULL, accept_all, p) == 0);
    return p;
}

void grpc_peer_close(struct grpc_peer *p) {
    shutdown(p->fd, SHUT_RDWR); /* accept() returns */
    pthread_join(p->thread, NULL);
    close(p->fd);
    for (int i = 0; i < p->connection_count; i++) {
        shutdown(p->connections[i].fd, SHUT_RDWR);
        pthread_join(p->connections[i].thread, NULL);
        close(p->connections[i].fd);
    }
    pthread_mutex_destroy(&p->lock);
    free(p);
}

int grpc_peer_port(const struct grpc_peer *p) { return p->port; }

int grpc_peer_connections(struct grpc_peer *p) {
    pthread_mutex_lock(&p->lock);
    int n = p->connection_count;
    pthread_mutex_unlock(&p->lock);
    return n;
}

void grpc_peer_note(struct grpc_peer *p, int number) {
    pthread_mutex_lock(&p->lock);
    p->note = number;
    pthread_mutex_unlock(&p->lock);
}

int grpc_peer_noted(struct grpc_peer *p) {
    pthread_mutex_lock(&p->lock);
    int n = p->note;
    pthread_mutex_unlock(&p->lock);
    return n;
}

/* ---- frames ---- */

bool peer_write(int fd, str bytes) {
    while (bytes.len > 0) {
        ssize_t n = send(fd, bytes.ptr, bytes.len, MSG_NOSIGNAL);
        if (n <= 0) return false;
        bytes = str_from(bytes, (size_t)n);
    }
    return true;
}

bool peer_frame(int fd, int type, int flags, int stream, str payload) {
    uint8_t head[9] = {(uint8_t)(payload.len >> 16),
                       (uint8_t)(payload.len >> 8),
                       (uint8_t)payload.len,
                       (uint8_t)type,
                       (uint8_t)flags,
                       (uint8_t)(stream >> 24),
                       (uint8_t)(stream >> 16),
                       (uint8_t)(stream >> 8),
                       (uint8_t)stream};
    return peer_write(fd, str_n(head, sizeof head)) && peer_write(fd, payload);
}

static bool read_all(int fd, void *out, size_t len) {
    for (size_t done = 0; done < len;) {
        ssize_t n = recv(fd, (char *)out + done, len - done, 0);
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

bool peer_greet(int fd) {
    char preface[PREFACE_BYTES];
    return read_all(fd, preface, sizeof preface) && peer_frame(fd, FRAME_SETTINGS, 0, 0, STR(""));
}

/* HPACK at its plainest: names and values written out, shorter than 127 or with one more byte. */
static size_t put_text(uint8_t *out, str text) {
    size_t n = 0;
    if (text.len < 127) {
        out[n++] = (uint8_t)text.len;
    } else {
        out[n++] = 127;
        size_t rest = text.len - 127;
        for (; rest >= 128; rest >>= 7)
            out[n++] = (uint8_t)(128 | (rest & 127));
        out[n++] = (uint8_t)rest;
    }
    memcpy(out + n, text.ptr, text.len);
    return n + text.len;
}

bool peer_headers(int fd, int flags, int stream, const char *lines) {
    uint8_t block[16384];
    size_t len = 0;
    str rest = str_c(lines);
    for (str line; str_split(rest, '\n', &line, &rest);) {
        size_t colon = 1; /* a name may begin with one */
        while (colon < line.len && line.ptr[colon] != ':')
            colon++;
        str value = str_trim(str_from(line, colon + 1));
        if (len + line.len + 16 > sizeof block) return false;
        block[len++] = 0; /* literal, not indexed, with its name */
        len += put_text(block + len, str_n(line.ptr, colon));
        len += put_text(block + len, value);
    }
    return peer_frame(fd, FRAME_HEADERS, flags | FLAG_END_HEADERS, stream, str_n(block, len));
}

bool peer_read(int fd, struct peer_frame *frame) {
    uint8_t head[9];
    if (!read_all(fd, head, sizeof head)) return false;
    frame->len = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
    frame->type = head[3];
    frame->flags = head[4];
    frame->stream = (head[5] & 127) << 24 | head[6] << 16 | head[7] << 8 | head[8];
    return frame->len <= sizeof frame->payload && read_all(fd, frame->payload, frame->len);
}

int peer_request(int fd, bool ponging) {
    static const char window[] = {0, 1, 0, 0};
    struct peer_frame frame;
    while (peer_read(fd, &frame)) {
        bool ack = frame.flags & FLAG_ACK;
        if (frame.type == FRAME_SETTINGS && !ack)
            (void)peer_frame(fd, FRAME_SETTINGS, FLAG_ACK, 0, STR(""));
        if (frame.type == FRAME_PING && !ack && ponging)
            (void)peer_frame(fd, FRAME_PING, FLAG_ACK, 0, str_n(frame.payload, frame.len));
        bool asks = frame.type == FRAME_HEADERS || frame.type == FRAME_DATA;
        if (asks && frame.flags & FLAG_END_STREAM) return frame.stream;
        if (frame.type == FRAME_DATA) {
            (void)peer_frame(fd, FRAME_WINDOW, 0, 0, str_n(window, 4));
            (void)peer_frame(fd, FRAME_WINDOW, 0, frame.stream, str_n(window, 4));
        }
    }
    return -1;
}

bool peer_answer(int fd, int stream, const char *text) {
    str message = str_c(text);
    char prefix[5] = {0, 0, 0, 0, (char)message.len};
    return peer_headers(fd, 0, stream, ":status: 200\ncontent-type: application/grpc\n") &&
           peer_frame(fd, FRAME_DATA, 0, stream, str_n(prefix, sizeof prefix)) &&
           peer_frame(fd, FRAME_DATA, 0, stream, message) &&
           peer_headers(fd, FLAG_END_STREAM, stream, "grpc-status: 0\n");
}

void peer_drain(int fd) {
    char bytes[4096];
    while (recv(fd, bytes, sizeof bytes, 0) > 0)
        continue;
}
