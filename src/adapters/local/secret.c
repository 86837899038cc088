#include "adapters/local/secret.h"

#include "adapters/local/workspace.h"
#include "base/buf.h"
#include "base/os.h"

/* [A-Za-z0-9_.-]{1,100}, no leading dot */
static bool name_ok(str name) { return name.len <= SECRET_NAME_MAX && path_part_safe(name); }

static str without_newline(str s) {
    if (s.len > 0 && s.ptr[s.len - 1] == '\n') s.len--;
    return s;
}

/* ST_NOT_FOUND: look further. */
static status from_file(str dir, str environment, str name, struct arena *arena, str *out,
                        struct buf *looked, struct error *err) {
    struct buf path;
    buf_init(&path, 4096);
    buf_put(&path, dir);
    buf_put_char(&path, '/');
    if (environment.ptr) {
        buf_put(&path, environment);
        buf_put_char(&path, '/');
    }
    buf_put(&path, name);
    buf_printf(looked, "%sfile \"%.*s\"", looked->len ? ", " : "", STR_ARG(buf_str(&path)));
    /* one byte more, for the newline that a text editor adds */
    status st = file_read(buf_str(&path), SECRET_BYTES_MAX + 1, arena, out, err);
    buf_release(&path);
    if (st == ST_OK) *out = without_newline(*out);
    if (st == ST_LIMIT || (st == ST_OK && out->len > SECRET_BYTES_MAX)) {
        return error_at(err, REASON_SECRET_TOO_LARGE, "",
                        "the file of secret \"%.*s\" has more than %zu bytes", STR_ARG(name),
                        SECRET_BYTES_MAX);
    }
    if (st == ST_OK || st == ST_NOT_FOUND) return st;
    err->reason = REASON_SECRET_UNREADABLE;
    return error_wrap(err, "secret \"%.*s\"", STR_ARG(name));
}

static char variable_char(char c, bool upper) {
    if (c >= 'a' && c <= 'z' && upper) return (char)(c - 'a' + 'A');
    if (c >= 'a' && c <= 'z') return c;
    if ((c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) return c;
    return '_';
}

static void put_variable(struct buf *b, str part, bool upper) {
    for (size_t i = 0; i < part.len; i++)
        buf_put_char(b, variable_char(part.ptr[i], upper));
}

/* Two underscores in a row separate the environment from the name and stand nowhere else. So no
 * name that a plan of one environment chooses can spell a variable of another one. */
static bool variable_part_ok(str part) {
    char last = '_';
    for (size_t i = 0; i < part.len; i++) {
        char c = variable_char(part.ptr[i], false);
        if (c == '_' && last == '_') return false;
        last = c;
    }
    return part.len > 0 && last != '_';
}

static status from_variable(str environment, str name, struct arena *arena, str *out,
                            struct buf *looked, struct error *err) {
    if (!variable_part_ok(name)) return ST_NOT_FOUND;
    if (environment.ptr && !variable_part_ok(environment)) return ST_NOT_FOUND;
    char text[16 + 2 * 256];
    struct buf b;
    buf_init_fixed(&b, text, sizeof text - 1);
    buf_put_c(&b, "CAIRN_SECRET_");
    if (environment.ptr) {
        put_variable(&b, environment, true);
        buf_put_c(&b, "__");
    }
    put_variable(&b, name, false);
    if (b.full) return ST_NOT_FOUND;
    text[b.len] = '\0';
    buf_printf(looked, "%svariable %s", looked->len ? ", " : "", text);
    str value = str_c(getenv(text));
    if (!value.ptr) return ST_NOT_FOUND;
    if (value.len > SECRET_BYTES_MAX) {
        return error_at(err, REASON_SECRET_TOO_LARGE, "",
                        "the variable of secret \"%.*s\" has more than %zu bytes", STR_ARG(name),
                        SECRET_BYTES_MAX);
    }
    if (!arena_try_str(arena, value, out)) return error_set(err, ST_RETRY, "out of memory");
    return ST_OK;
}

status secret_resolve(str secrets_dir, str environment_id, str name, struct arena *arena, str *out,
                      struct error *err) {
    if (!name_ok(name)) {
        return error_at(err, REASON_SECRET_NAME_INVALID, "",
                        "the name of a secret has 1 to %d letters, digits, \"_\", \".\" or \"-\" "
                        "and does not begin with \".\"",
                        SECRET_NAME_MAX);
    }
    char places[ERROR_MSG_MAX];
    struct buf looked;
    buf_init_fixed(&looked, places, sizeof places);
    status st = ST_NOT_FOUND;
    bool own = environment_id.len > 0 && path_part_safe(environment_id);
    if (secrets_dir.len > 0 && own)
        st = from_file(secrets_dir, environment_id, name, arena, out, &looked, err);
    if (st == ST_NOT_FOUND && secrets_dir.len > 0)
        st = from_file(secrets_dir, STR_NONE, name, arena, out, &looked, err);
    if (st == ST_NOT_FOUND && environment_id.len > 0)
        st = from_variable(environment_id, name, arena, out, &looked, err);
    if (st == ST_NOT_FOUND) st = from_variable(STR_NONE, name, arena, out, &looked, err);
    if (st != ST_NOT_FOUND) return st;
    return error_at(err, REASON_SECRET_NOT_FOUND, "",
                    "secret \"%.*s\" was not found; looked at: %.*s", STR_ARG(name),
                    STR_ARG(buf_str(&looked)));
}
