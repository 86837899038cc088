/* core/plan_type.c: what each type of step adds to the common fields. */
#include "base/json.h"
#include "base/time.h"
#include "core/liquid.h"
#include "core/plan_impl.h"

enum { COMMAND_WORDS_MAX = 10000, STATUS_CODES_MAX = 100 };

static const char *const exec_outputs[] = {"text", "json", "none", NULL};
static const char *const methods[] = {"GET",   "HEAD",   "POST",    "PUT",
                                      "PATCH", "DELETE", "OPTIONS", NULL};
static const char *const ensures[] = {"present", "absent", NULL};

/* ---- readers ---- */

/* A non-empty array of strings, or one string for the shell. */
static void read_words(struct parse *p, yyjson_val *val, const char *name) {
    if (yyjson_is_str(val)) {
        if (yyjson_get_len(val) == 0)
            plan_refuse(p, REASON_NONE, val, "\"%s\" must not be empty", name);
        else
            (void)plan_check_template(p, val, name);
        return;
    }
    if (!yyjson_is_arr(val)) {
        plan_refuse(p, REASON_NONE, val, "\"%s\" must be an array of strings or a string, found %s",
                    name, plan_kind_of(val));
        return;
    }
    size_t count = yyjson_arr_size(val);
    if (count == 0) plan_refuse(p, REASON_NONE, val, "\"%s\" must not be empty", name);
    if (count > COMMAND_WORDS_MAX) {
        plan_refuse(p, REASON_NONE, val, "\"%s\" has more than %d words", name, COMMAND_WORDS_MAX);
        return;
    }
    yyjson_arr_iter it = yyjson_arr_iter_with(val);
    for (yyjson_val *v = yyjson_arr_iter_next(&it); v; v = yyjson_arr_iter_next(&it))
        (void)plan_check_template(p, v, name);
}

static void read_command(struct parse *p, yyjson_val *val, void *into) {
    UNUSED(into);
    read_words(p, val, "command");
    yyjson_val *program = yyjson_arr_get_first(val);
    if (yyjson_is_str(program) && yyjson_get_len(program) == 0)
        plan_refuse(p, REASON_NONE, program, "\"command\" must begin with the name of a program");
}

static void read_check(struct parse *p, yyjson_val *val, void *into) {
    UNUSED(into);
    read_words(p, val, "check");
}

/* {"secret":"NAME"} */
static void read_secret(struct parse *p, yyjson_val *val, const char *name) {
    str secret = STR_NONE;
    yyjson_val *inner = json_member(val, "secret");
    if (inner == NULL || yyjson_obj_size(val) != 1) {
        plan_refuse(p, REASON_NONE, val, "\"%s\": an object here must be {\"secret\":\"NAME\"}",
                    name);
        return;
    }
    (void)plan_take_id(p, inner, "secret", &secret);
}

static bool is_env_name(str name) { return name.len > 0 && !str_has(name, '='); }

static bool is_header_name(str name) { /* a token of HTTP */
    static const char others[] = "!#$%&'*+-.^_`~";
    for (size_t i = 0; i < name.len; i++) {
        char c = name.ptr[i];
        bool alnum = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
        if (!alnum && memchr(others, c, sizeof others - 1) == NULL) return false;
    }
    return name.len > 0;
}

static bool is_header_value(str value) { return !str_has(value, '\r') && !str_has(value, '\n'); }

/* An object whose values are strings or secrets. */
static void read_pairs(struct parse *p, yyjson_val *val, const char *what,
                       bool (*name_ok)(str name), bool (*value_ok)(str value)) {
    if (!plan_take_object(p, val, what)) return;
    yyjson_obj_iter it = yyjson_obj_iter_with(val);
    for (yyjson_val *key = yyjson_obj_iter_next(&it); key; key = yyjson_obj_iter_next(&it)) {
        str name = str_n(yyjson_get_str(key), yyjson_get_len(key));
        yyjson_val *v = yyjson_obj_iter_get_val(key);
        str text = STR_NONE;
        if (!name_ok(name)) {
            plan_refuse(p, REASON_NONE, v, "\"%s\": \"%.*s\" is not a name that can be used here",
                        what, STR_ARG(plan_shown(name)));
        }
        if (yyjson_is_obj(v)) {
            read_secret(p, v, what);
        } else if (!json_str(v, &text)) {
            plan_refuse(p, REASON_NONE, v,
                        "\"%s\" must hold strings or {\"secret\":\"NAME\"}, found %s", what,
                        plan_kind_of(v));
        } else if (!value_ok(text)) {
            plan_refuse(p, REASON_NONE, v, "\"%s\": the value of \"%.*s\" has a line break", what,
                        STR_ARG(plan_shown(name)));
        } else {
            (void)plan_check_template(p, v, what);
        }
    }
}

static bool any_value(str value) {
    UNUSED(value);
    return true;
}

static void read_env(struct parse *p, yyjson_val *val, void *into) {
    UNUSED(into);
    read_pairs(p, val, "env", is_env_name, any_value);
}

static void read_headers(struct parse *p, yyjson_val *val, void *into) {
    UNUSED(into);
    read_pairs(p, val, "headers", is_header_name, is_header_value);
}

static void read_url(struct parse *p, yyjson_val *val, void *into) {
    str url = STR_NONE;
    UNUSED(into);
    if (!plan_check_template(p, val, "url")) return;
    if (!json_str(val, &url) || !liquid_is_plain(url)) return; /* looked at once it is rendered */
    if (!str_starts(url, STR("http://")) && !str_starts(url, STR("https://")))
        plan_refuse(p, REASON_NONE, val, "\"url\" must begin with http:// or https://");
}

static void read_expect_status(struct parse *p, yyjson_val *val, void *into) {
    UNUSED(into);
    size_t count = yyjson_arr_size(val);
    if (!yyjson_is_arr(val) || count == 0 || count > STATUS_CODES_MAX) {
        plan_refuse(p, REASON_NONE, val,
                    "\"expectStatus\" must be an array of 1 to %d whole numbers", STATUS_CODES_MAX);
        return;
    }
    int64_t code = 0;
    yyjson_arr_iter it = yyjson_arr_iter_with(val);
    for (yyjson_val *v = yyjson_arr_iter_next(&it); v; v = yyjson_arr_iter_next(&it))
        (void)plan_take_int(p, v, "expectStatus", 100, 599, &code);
}

static void read_until(struct parse *p, yyjson_val *val, void *into) {
    struct plan_step *step = into;
    str until = STR_NONE;
    int64_t ns = 0;
    int digits = 0;
    if (!plan_check_template(p, val, "until") || !json_str(val, &until)) return;
    if (liquid_is_plain(until) && !time_parse_utc(until, &ns, &digits)) {
        plan_refuse(p, REASON_NONE, val,
                    "\"until\" must be RFC 3339 in UTC, such as 2026-02-16T08:00:00Z");
        return;
    }
    step->until = until;
}

static void read_roles(struct parse *p, yyjson_val *val, void *into) {
    struct plan_step *step = into;
    (void)plan_take_ids(p, val, "roles", &step->roles, &step->role_count);
}

/* ---- the tables ---- */

#define INTO(member) .into = (int)offsetof(struct plan_step, member)
#define DELAY .kind = FIELD_INT, .max = PLAN_DELAY_MS_MAX

static const struct field exec_fields[] = {
    {.name = STR_LIT("command"), .kind = FIELD_CUSTOM, .required = true, .read = read_command},
    {.name = STR_LIT("env"), .kind = FIELD_CUSTOM, .read = read_env},
    {.name = STR_LIT("cwd"), .kind = FIELD_WORDS, .into = NOWHERE},
    {.name = STR_LIT("stdin"), .kind = FIELD_TEXT, .into = NOWHERE},
    {.name = STR_LIT("output"), .kind = FIELD_CHOICE, .names = exec_outputs, INTO(output)},
};
static const struct field http_fields[] = {
    {.name = STR_LIT("url"), .kind = FIELD_CUSTOM, .required = true, .read = read_url},
    {.name = STR_LIT("method"), .kind = FIELD_CHOICE, .names = methods, .into = NOWHERE},
    {.name = STR_LIT("headers"), .kind = FIELD_CUSTOM, .read = read_headers},
    {.name = STR_LIT("body"), .kind = FIELD_ANY, .into = NOWHERE},
    {.name = STR_LIT("output"), .kind = FIELD_CHOICE, .names = exec_outputs, INTO(output)},
    {.name = STR_LIT("expectStatus"), .kind = FIELD_CUSTOM, .read = read_expect_status},
};
static const struct field task_fields[] = {
    {.name = STR_LIT("queue"), .kind = FIELD_ID, .required = true, INTO(queue)},
    {.name = STR_LIT("input"), .kind = FIELD_ANY, .into = NOWHERE},
    {.name = STR_LIT("leaseMs"), DELAY, .min = 1, INTO(lease_ms)},
};
static const struct field effect_fields[] = {
    {.name = STR_LIT("effectType"), .kind = FIELD_ID, .required = true, INTO(effect_type)},
    {.name = STR_LIT("payload"), .kind = FIELD_OBJECT, .required = true, .into = NOWHERE},
    {.name = STR_LIT("wait"), .kind = FIELD_BOOL, INTO(wait)},
};
static const struct field sleep_fields[] = {
    {.name = STR_LIT("durationMs"), DELAY, INTO(duration_ms)},
    {.name = STR_LIT("until"), .kind = FIELD_CUSTOM, .read = read_until},
};
static const struct field wait_fields[] = {
    {.name = STR_LIT("signal"), .kind = FIELD_ID, .required = true, INTO(signal)},
    {.name = STR_LIT("expiresInMs"), DELAY, .min = 1, INTO(expires_in_ms)},
};
static const struct field approval_fields[] = {
    {.name = STR_LIT("roles"), .kind = FIELD_CUSTOM, .read = read_roles},
    {.name = STR_LIT("expiresInMs"), DELAY, .min = 1, INTO(expires_in_ms)},
    {.name = STR_LIT("message"), .kind = FIELD_TEXT, .into = NOWHERE},
};
static const struct field package_fields[] = {
    {.name = STR_LIT("name"), .kind = FIELD_WORDS, .required = true, .into = NOWHERE},
    {.name = STR_LIT("version"), .kind = FIELD_WORDS, .into = NOWHERE},
    {.name = STR_LIT("ensure"), .kind = FIELD_CHOICE, .names = ensures, .into = NOWHERE},
    {.name = STR_LIT("check"), .kind = FIELD_CUSTOM, .read = read_check},
};

const struct field *const plan_type_fields[PLAN_TYPE_COUNT] = {
    [PLAN_EXEC] = exec_fields,         [PLAN_HTTP] = http_fields,       [PLAN_TASK] = task_fields,
    [PLAN_EFFECT] = effect_fields,     [PLAN_SLEEP] = sleep_fields,     [PLAN_WAIT] = wait_fields,
    [PLAN_APPROVAL] = approval_fields, [PLAN_PACKAGE] = package_fields, [PLAN_NOOP] = NULL,
};
const size_t plan_type_field_count[PLAN_TYPE_COUNT] = {
    [PLAN_EXEC] = COUNT_OF(exec_fields),
    [PLAN_HTTP] = COUNT_OF(http_fields),
    [PLAN_TASK] = COUNT_OF(task_fields),
    [PLAN_EFFECT] = COUNT_OF(effect_fields),
    [PLAN_SLEEP] = COUNT_OF(sleep_fields),
    [PLAN_WAIT] = COUNT_OF(wait_fields),
    [PLAN_APPROVAL] = COUNT_OF(approval_fields),
    [PLAN_PACKAGE] = COUNT_OF(package_fields),
    [PLAN_NOOP] = 0,
};
