#include "adapters/temporal/temporal.h"

#include <temporal.pb-c.h>

status temporal_open(uv_loop_t *loop, const struct temporal_options *options,
                     const struct provider_ports *ports, struct provider **out, struct error *err) {
    UNUSED(loop);
    UNUSED(options);
    UNUSED(ports);
    UNUSED(out);
    return error_at(err, ST_INVALID, "TEMPORAL_UNAVAILABLE", "", "temporal is not built in yet");
}
