/* net/grpc_peer_test.h: an HTTP/2 server for tests, made of plain sockets: it sends the frames that
 * it is told, right or wrong. On 127.0.0.1, a thread a connection. */
#pragma once

#include "base/str.h"

enum {
    FRAME_DATA = 0,
    FRAME_HEADERS = 1,
    FRAME_RST = 3,
    FRAME_SETTINGS = 4,
    FRAME_PUSH = 5,
    FRAME_PING = 6,
    FRAME_GOAWAY = 7,
    FRAME_WINDOW = 8,
    FRAME_CONTINUATION = 9,
    FLAG_END_STREAM = 1,
    FLAG_ACK = 1,
    FLAG_END_HEADERS = 4,
};

struct grpc_peer;
/* The connection is closed when it returns. No CHECK() in it. `nth` counts connections from 0. */
typedef void (*peer_handler)(struct grpc_peer *peer, int fd, int nth, const void *context);

struct grpc_peer *grpc_peer_open(peer_handler handler, const void *context);
void grpc_peer_close(struct grpc_peer *peer); /* ends all connections, waits for their threads */
int grpc_peer_port(const struct grpc_peer *peer);
int grpc_peer_connections(struct grpc_peer *peer);
/* A number that handlers share with the test. */
void grpc_peer_note(struct grpc_peer *peer, int number);
int grpc_peer_noted(struct grpc_peer *peer);

/* For handlers; all block, and are false when the other side has gone. */
bool peer_write(int fd, str bytes);
bool peer_frame(int fd, int type, int flags, int stream, str payload);
bool peer_greet(int fd); /* takes the client's preface, sends SETTINGS */
/* Headers as "name: value\n" lines. */
bool peer_headers(int fd, int flags, int stream, const char *lines);
struct peer_frame {
    int type, flags, stream;
    size_t len;
    uint8_t payload[1 << 16]; /* its beginning */
};
bool peer_read(int fd, struct peer_frame *frame);
/* Reads frames until a request has ended: its stream, or -1. Answers PINGs if `ponging`. */
int peer_request(int fd, bool ponging);
/* A whole answer with this message. */
bool peer_answer(int fd, int stream, const char *text);
/* Waits until the client goes. */
void peer_drain(int fd);
