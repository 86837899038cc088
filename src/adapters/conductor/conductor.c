/* adapters/conductor/conductor.c: see the header. */
#include "adapters/conductor/conductor.h"

status conductor_open(uv_loop_t *loop, const struct conductor_options *options,
                      const struct provider_ports *ports, struct provider **out,
                      struct error *err) {
    UNUSED(loop);
    UNUSED(options);
    UNUSED(ports);
    UNUSED(out);
    return error_at(err, ST_INVALID, "CONDUCTOR_URL_INVALID", "conductor",
                    "the Conductor provider is not built yet");
}
