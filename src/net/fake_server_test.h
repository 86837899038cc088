/* net/fake_server_test.h: an HTTP server for tests, on 127.0.0.1, a thread a connection. It counts
 * who came, and a handler of the test's own says what they get. */
#pragma once

#include "base/str.h"

struct fake_server;
struct fake_request {
    str method, target; /* as in the request line */
    const char *head;   /* request line and headers, NUL-terminated */
    str body;
};
/* Answers one request on `fd`, on a thread of the server's (so no CHECK() in it). true: the
 * connection may have another one. */
typedef bool (*fake_handler)(void *context, int fd, const struct fake_request *request);

struct fake_server *fake_server_open(fake_handler handler, void *context);
/* Ends all connections, waits for their threads. */
void fake_server_close(struct fake_server *server);
int fake_server_port(const struct fake_server *server);
int fake_server_connections(struct fake_server *server); /* so far */
int fake_server_requests(struct fake_server *server);
/* For handlers. false when the other side has gone. */
bool fake_send(int fd, str bytes);
bool fake_answer(int fd, int status, const char *headers, str body);
/* A port on which nobody listens. */
int fake_free_port(void);
