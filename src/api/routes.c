/* api/routes.c: from method and path to the route. */
#include "api/impl.h"

static const struct route_table *const tables[] = {
    &event_routes, &run_routes,    &step_routes, &signal_routes, &task_routes,
    &plan_routes,  &effect_routes, &key_routes,  &admin_routes,  &meta_routes};

size_t route_count(void) {
    size_t n = 0;
    for (size_t i = 0; i < COUNT_OF(tables); i++)
        n += tables[i]->count;
    return n;
}

const struct route *route_at(size_t at) {
    for (size_t i = 0; i < COUNT_OF(tables); i++) {
        if (at < tables[i]->count) return &tables[i]->routes[at];
        at -= tables[i]->count;
    }
    return NULL;
}

size_t route_index(const struct route *route) {
    size_t before = 0;
    for (size_t i = 0; i < COUNT_OF(tables); i++) {
        const struct route *first = tables[i]->routes;
        if (route >= first && route < first + tables[i]->count)
            return before + (size_t)(route - first);
        before += tables[i]->count;
    }
    return 0;
}

/* Matches segment by segment; *args gets what stands in the braces, as sent. */
static bool path_matches(str path, str pattern, str args[PATH_ARGS_MAX]) {
    size_t n = 0;
    while (pattern.len > 0 && path.len > 0) {
        str want;
        str have;
        if (pattern.ptr[0] != '/' || path.ptr[0] != '/') return false;
        bool more_pattern = str_split(str_from(pattern, 1), '/', &want, &pattern);
        bool more_path = str_split(str_from(path, 1), '/', &have, &path);
        if (more_pattern != more_path) return false;
        if (want.len > 0 && want.ptr[0] == '{') {
            if (have.len == 0) return false;
            args[n++] = have;
        } else if (!str_eq(want, have)) {
            return false;
        }
        if (!more_path) return true;
        pattern = str_n(pattern.ptr - 1, pattern.len + 1); /* with its slash again */
        path = str_n(path.ptr - 1, path.len + 1);
    }
    return false;
}

static bool decode_args(struct arena *arena, str args[PATH_ARGS_MAX]) {
    for (size_t i = 0; i < PATH_ARGS_MAX && args[i].ptr; i++) {
        struct buf text;
        buf_init(&text, 1024);
        size_t bad = 0;
        bool good = http_unescape(args[i], false, &text) && !text.full && text.len > 0 &&
                    str_utf8(buf_str(&text), &bad) && !memchr(text.ptr, 0, text.len);
        if (good) args[i] = arena_str(arena, buf_str(&text));
        buf_release(&text);
        if (!good) return false;
    }
    return true;
}

const struct route *route_find(str method, str path, struct arena *arena, str args[PATH_ARGS_MAX],
                               struct buf *allow) {
    bool head = str_eq(method, STR("HEAD"));
    for (size_t i = 0; i < COUNT_OF(tables); i++) {
        for (size_t k = 0; k < tables[i]->count; k++) {
            const struct route *r = &tables[i]->routes[k];
            str found[PATH_ARGS_MAX] = {STR_NONE, STR_NONE};
            if (!path_matches(path, str_c(r->path), found)) continue;
            bool get = strcmp(r->method, "GET") == 0;
            if (str_eq(method, str_c(r->method)) || (head && get)) {
                if (!decode_args(arena, found)) return NULL;
                memcpy(args, found, sizeof(found));
                return r;
            }
            if (allow->len > 0) buf_put_c(allow, ", ");
            buf_put_c(allow, r->method);
            if (get) buf_put_c(allow, ", HEAD");
        }
    }
    return NULL;
}
