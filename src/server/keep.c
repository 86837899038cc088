/* server/keep.c: parsing $CAIRN_KEEP_WORKSPACES. */
#include "server/keep.h"

#include "host/host.h"

static status bad(str text, struct error *err) {
    return error_at(err, REASON_USAGE, "",
                    "CAIRN_KEEP_WORKSPACES must be a time such as 7d, 12h, 30m or 45s (at most "
                    "%dd), 0 or forever, found \"%.*s\"",
                    KEEP_DAYS_MAX, STR_ARG(text));
}

status keep_parse(str text, int64_t *keep_us, struct error *err) {
    static const struct {
        str name;
        int64_t seconds;
    } units[] = {
        {STR_LIT("s"), 1}, {STR_LIT("m"), 60}, {STR_LIT("h"), 3600}, {STR_LIT("d"), 86400}};
    int64_t n = 0;
    str unit = text;
    *keep_us = KEEP_DEFAULT_US;
    if (!text.ptr) return ST_OK;
    if (str_eq(text, STR("forever"))) {
        *keep_us = 0;
        return ST_OK;
    }
    if (!str_take_int(&unit, &n) || n < 0) return bad(text, err);
    if (n == 0 && unit.len == 0) {
        *keep_us = HOST_KEEP_NOT;
        return ST_OK;
    }
    for (size_t i = 0; i < COUNT_OF(units); i++) {
        if (!str_eq(unit, units[i].name)) continue;
        if (n > (int64_t)KEEP_DAYS_MAX * 86400 / units[i].seconds) return bad(text, err);
        *keep_us = n == 0 ? HOST_KEEP_NOT : n * units[i].seconds * 1000000;
        return ST_OK;
    }
    return bad(text, err);
}
