/* server/settings.h: what a server is told at its start, by the command line or by whoever embeds
 * it.
 *
 * Texts are as the user wrote them: the modules that need them parse them, and say which setting is
 * wrong. */
#pragma once

#include "base/str.h"

enum { SETTINGS_LIST_MAX = 64 };

struct setting_list {
    str items[SETTINGS_LIST_MAX];
    size_t count;
};

struct server_settings {
    struct setting_list listen; /* HOST:PORT or unix:PATH; none: FRONT_ADDRESS */
    bool auth;                  /* callers must say who they are, also on this machine */
    str tls_cert, tls_key;      /* files; both or neither */
    str jwks, jwt_issuer, jwt_audience;
    int64_t rate; /* requests a second of one caller; 0: no limit */

    str secrets_dir;               /* STR_NONE: secrets come from the environment alone */
    struct setting_list allow;     /* rules for the addresses that plans and steps may reach */
    struct setting_list endpoints; /* "s3=https://{bucket}.s3.example/{key}" */
    int64_t tenant_active_max, plan_active_max; /* runs at a time; 0: no limit */
};
