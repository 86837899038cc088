/* core/role.h: what a caller may do, by name. A key holds the bits, the API checks them. */
#pragma once

#include "base/buf.h"
#include "base/str.h"

enum role {
    ROLE_VIEWER = 1,
    ROLE_OPERATOR = 2,
    ROLE_PRODUCER = 4,
    ROLE_WORKER = 8,
    ROLE_ADMIN = 16,
    ROLE_ALL = 31,
};
/* "viewer" ...; 0 for an unknown name. */
unsigned role_of(str name);
/* ["viewer","admin"], in the order above. */
void roles_json(unsigned roles, struct buf *out);
