/* core/plan_version.c: which versions of the plan language are accepted. */
#include "core/plan_schema.h"

#include <assert.h>

static const struct plan_schema_version versions[] = {
    {"v1.0", 0, "2026-09-30"},
    {"v1.1", 1, "none"},
    {"v1.2", 2, "none"},
    {"v1.3", 3, "none"},
};
static_assert(COUNT_OF(versions) == PLAN_SCHEMA_MINORS_BACK + 1, "each accepted version has a row");

const struct plan_schema_version *plan_schema_versions(size_t *count) {
    *count = COUNT_OF(versions);
    return versions;
}

/* Decimal, without a sign and leading zeros, so that a version has one spelling. */
static bool take_part(str *s, int64_t *out) {
    bool zero = s->len > 1 && s->ptr[0] == '0' && s->ptr[1] >= '0' && s->ptr[1] <= '9';
    return !zero && str_take_int(s, out);
}

static bool parse_version(str version, int64_t *major, int64_t *minor) {
    if (version.len == 0 || version.ptr[0] != 'v') return false;
    str rest = str_from(version, 1);
    if (!take_part(&rest, major) || rest.len == 0 || rest.ptr[0] != '.') return false;
    rest = str_from(rest, 1);
    return take_part(&rest, minor) && rest.len == 0;
}

static int oldest(int minor) {
    return minor > PLAN_SCHEMA_MINORS_BACK ? minor - PLAN_SCHEMA_MINORS_BACK : 0;
}

status plan_schema_window(str version, int major, int minor, int *out_minor, struct error *err) {
    int64_t its_major = 0;
    int64_t its_minor = 0;
    str shown = version.len > 32 ? str_n(version.ptr, 32) : version;
    size_t bad = shown.len;
    if (!str_utf8(shown, &bad)) shown.len = bad;
    if (!parse_version(version, &its_major, &its_minor) || its_major != major ||
        its_minor > minor || its_minor < oldest(minor)) {
        return error_at(err, REASON_PLAN_SCHEMA_VERSION_UNSUPPORTED, "/schemaVersion",
                        "plan: schemaVersion \"%.*s\" is not supported; v%d.%d to v%d.%d are",
                        STR_ARG(shown), major, oldest(minor), major, minor);
    }
    *out_minor = (int)its_minor;
    return ST_OK;
}

status plan_schema_check(str version, bool *deprecated, struct error *err) {
    int minor = 0;
    status st = plan_schema_window(version, PLAN_SCHEMA_MAJOR, PLAN_SCHEMA_MINOR, &minor, err);
    if (st != ST_OK) return st;
    for (size_t i = 0; i < COUNT_OF(versions); i++) {
        if (versions[i].minor == minor)
            *deprecated = strcmp(versions[i].deprecated_after, "none") != 0;
    }
    return ST_OK;
}
