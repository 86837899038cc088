/* Any bytes as what an HTTP/2 server says to three gRPC calls, cut into pieces by the input itself:
 * each call is told once, and only what an answer may be. No socket is ever connected. */
#include "net/grpc_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CALLS = 3, BYTES_MAX = 4096, PIECE_MAX = 64 };

static void on_done(void *context, const struct grpc_answer *answer) {
    int *told = context;
    size_t bad;
    ++*told;
    ASSERT(answer->code >= GRPC_OK && answer->code <= GRPC_UNAUTHENTICATED);
    ASSERT(answer->body.len <= BYTES_MAX);
    ASSERT(answer->code == GRPC_OK || answer->body.len == 0);
    ASSERT(str_utf8(answer->message, &bad));
}

/* What would be sent is thrown away. */
static void drain(struct grpc_conn *conn) {
    const uint8_t *bytes;
    while (nghttp2_session_mem_send(conn->session, &bytes) > 0)
        continue;
}

static struct grpc_conn *conn_new(struct grpc *grpc) {
    struct grpc_conn *conn = mem_alloc(sizeof *conn);
    ASSERT(conn != NULL);
    conn->grpc = grpc;
    conn->state = CONN_SETTINGS;
    conn->tcp_open = true;
    ASSERT(uv_tcp_init(grpc->loop, &conn->tcp) == 0);
    conn->tcp.data = conn;
    grpc->conns = grpc->current = conn;
    grpc->handles++;
    ASSERT(grpc_session_open(conn));
    return conn;
}

static void play(struct grpc *grpc, struct grpc_conn *conn, str bytes) {
    ASSERT(grpc_session_take(conn, STR("\0\0\0\4\0\0\0\0\0")) && conn->state == CONN_READY);
    while (grpc->waiting.first)
        ASSERT(grpc_session_submit(conn, grpc->waiting.first));
    drain(conn);
    while (bytes.len > 0) {
        size_t n = 1 + (unsigned char)bytes.ptr[0] % PIECE_MAX;
        if (n > bytes.len) n = bytes.len;
        if (!grpc_session_take(conn, str_n(bytes.ptr, n))) break;
        bytes = str_from(bytes, n);
        drain(conn);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uv_loop_t loop;
    struct grpc *grpc = NULL;
    struct error err;
    int told = 0;
    struct grpc_options options = {.target = STR("127.0.0.1:1")};
    struct grpc_request request = {
        .path = STR("/a/B"), .body = STR("hello"), .bytes_max = BYTES_MAX};
    ASSERT(uv_loop_init(&loop) == 0);
    ASSERT(grpc_open(&loop, &options, &grpc, &err) == ST_OK);
    for (int i = 0; i < CALLS; i++)
        ASSERT(grpc_start(grpc, &request, on_done, &told, NULL, &err) == ST_OK);
    struct grpc_conn *conn = conn_new(grpc);
    grpc->retry_ms = UINT64_MAX; /* nobody connects */
    play(grpc, conn, str_n(data, size));
    grpc_conn_lost(conn, "that was all");
    for (int i = 0; i < 3; i++)
        uv_run(&loop, UV_RUN_NOWAIT);
    ASSERT(told == CALLS && grpc_active(grpc) == 0 && grpc->bytes == 0);
    grpc_close(grpc);
    uv_run(&loop, UV_RUN_DEFAULT);
    ASSERT(uv_loop_close(&loop) == 0);
    return 0;
}
