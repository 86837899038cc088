#include "net/grpc.h"

#include "base/time.h"
#include "net/fake_server_test.h"
#include "net/grpc_server_test.h"
#include "test.h"

TEST(grpc_echo) {
    struct grpc_server *server = grpc_server_open(0, "");
    struct grpc_stage s;
    struct grpc_told told;
    grpc_stage_open(&s, grpc_server_port(server), NULL);
    grpc_told_init(&told, &s);
    CHECK(grpc_stage_run(&s, "/test/Echo", STR("hello"), &told) == GRPC_OK, "%.*s",
          STR_ARG(buf_str(&told.message)));
    CHECK(str_eq(buf_str(&told.body), STR("hello")) && told.message.len == 0);
    CHECK(grpc_active(s.grpc) == 0);
    grpc_told_release(&told);
    grpc_stage_close(&s);
    grpc_server_close(server);
}
