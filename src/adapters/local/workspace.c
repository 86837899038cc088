/* adapters/local/workspace.c: safe names for workspaces and logs. */
#include "adapters/local/workspace.h"

#include "adapters/local/local.h"
#include "base/hash.h"

bool path_part_safe(str part) {
    if (part.len == 0 || part.len > PATH_PART_MAX || part.ptr[0] == '.') return false;
    for (size_t i = 0; i < part.len; i++) {
        char c = part.ptr[i];
        bool ok = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '_' || c == '-';
        if (!ok) return false;
    }
    return true;
}

void path_part_put(struct buf *out, str id) {
    if (path_part_safe(id)) {
        buf_put(out, id);
        return;
    }
    uint8_t digest[SHA256_LEN];
    sha256_of(id, digest);
    buf_put_char(out, '~');
    buf_put_hex(out, digest, SHA256_LEN / 2);
}

bool path_stays_inside(str path) {
    if (path.len > 0 && path.ptr[0] == '/') return false;
    int64_t depth = 0;
    for (str rest = path, part; rest.len > 0;) {
        if (!str_split(rest, '/', &part, &rest)) rest = STR_NONE;
        if (part.len == 0 || str_eq(part, STR("."))) continue;
        depth += str_eq(part, STR("..")) ? -1 : 1;
        if (depth < 0) return false;
    }
    return true;
}

void local_workspace_path(str data_dir, str run_id, struct buf *out) {
    buf_put(out, data_dir);
    buf_put_c(out, "/work/");
    path_part_put(out, run_id);
}

void local_log_path(str data_dir, str run_id, str step_id, int64_t attempt, bool is_stderr,
                    struct buf *out) {
    local_workspace_path(data_dir, run_id, out);
    buf_put_c(out, "/.cairn/logs/");
    path_part_put(out, step_id);
    buf_put_char(out, '.');
    buf_put_int(out, attempt);
    buf_put_c(out, is_stderr ? ".err" : ".out");
}
