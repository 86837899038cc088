/* net/grpc_server_test.h: a real gRPC server for tests: Debian's python3-grpcio, as
 * tests/grpc/server.py starts it (see there for its methods), and a channel on a loop. */
#pragma once

#include "net/grpc_impl.h"

struct grpc_server;

/* `words`: see the script. `port` 0: any. The test is skipped when grpcio is not installed. */
struct grpc_server *grpc_server_open(int port, const char *words);
void grpc_server_close(struct grpc_server *server);
int grpc_server_port(const struct grpc_server *server);
/* The name of a file in its folder, such as "ca.crt". Lives as long as the server. */
str grpc_server_file(struct grpc_server *server, const char *name);

struct grpc_stage {
    uv_loop_t loop;
    struct grpc *grpc;
    char target[64];
};
/* A channel to 127.0.0.1, or to what `options` say. */
void grpc_stage_open(struct grpc_stage *s, int port, const struct grpc_options *options);
void grpc_stage_close(struct grpc_stage *s); /* checks that all handles went away */
void grpc_stage_turn(struct grpc_stage *s, int64_t ms);

struct grpc_told { /* what a call was told */
    int count;     /* how often */
    int code;
    struct buf message, details, body;
    struct grpc_stage *stage;
    struct grpc_call *victim;        /* cancelled from inside `done` */
    const struct grpc_request *then; /* started from inside `done`, `times` times in a row */
    int times;
};
void grpc_told_init(struct grpc_told *told, struct grpc_stage *stage);
void grpc_told_release(struct grpc_told *told);
void grpc_told_done(void *context, const struct grpc_answer *answer);
/* Turns the loop until it was told so often; false after 30 s. */
bool grpc_told_wait(struct grpc_told *told, int count);
/* Starts a call that is told to `told`. */
struct grpc_call *grpc_stage_start(struct grpc_stage *s, const char *path, str body,
                                   int64_t timeout_ms, struct grpc_told *told);
/* Starts it and waits: its code. */
int grpc_stage_run(struct grpc_stage *s, const char *path, str body, struct grpc_told *told);
