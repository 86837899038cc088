#include "adapters/trace.h"

#include "base/buf.h"
#include "base/hash.h"

enum { SPAN_LEN = 8 };

bool trace_parent(uuid correlation, str run_id, str step_id, int64_t attempt,
                  char out[TRACE_PARENT_LEN]) {
    static const uuid none;
    uint8_t hash[SHA256_LEN];
    struct buf name;
    if (uuid_eq(correlation, none)) return false;
    buf_init(&name, run_id.len + step_id.len + 32);
    buf_put(&name, run_id);
    buf_put_char(&name, '\n');
    buf_put(&name, step_id);
    buf_put_char(&name, '\n');
    buf_put_int(&name, attempt);
    sha256_of(buf_str(&name), hash);
    bool ok = !name.full;
    buf_release(&name);
    struct buf text;
    buf_init_fixed(&text, out, TRACE_PARENT_LEN);
    buf_put_c(&text, "00-");
    buf_put_hex(&text, correlation.b, sizeof(correlation.b));
    buf_put_char(&text, '-');
    buf_put_hex(&text, hash, SPAN_LEN);
    buf_put_c(&text, "-01");
    return ok && !text.full;
}
