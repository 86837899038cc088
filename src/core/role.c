/* core/role.c: the names of the roles. */
#include "core/role.h"

#include "base/json_out.h"

static const struct {
    const char *name;
    unsigned bit;
} role_names[] = {{"viewer", ROLE_VIEWER},
                  {"operator", ROLE_OPERATOR},
                  {"producer", ROLE_PRODUCER},
                  {"worker", ROLE_WORKER},
                  {"admin", ROLE_ADMIN}};

unsigned role_of(str name) {
    for (size_t i = 0; i < COUNT_OF(role_names); i++) {
        if (str_eq(name, str_c(role_names[i].name))) return role_names[i].bit;
    }
    return 0;
}

void roles_json(unsigned roles, struct buf *out) {
    json_array_begin(out);
    for (size_t i = 0; i < COUNT_OF(role_names); i++) {
        if (roles & role_names[i].bit) json_add_text(out, str_c(role_names[i].name));
    }
    json_array_end(out);
}
