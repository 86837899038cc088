/* adapters/local/secret.h: where secret values come from: files and the environment, read when an
 * attempt starts and kept no longer than it. */
#pragma once

#include "base/arena.h"
#include "base/error.h"
#include "base/str.h"

enum { SECRET_NAME_MAX = 100 };
#define SECRET_BYTES_MAX ((size_t)64 * 1024)

/* The value of `name` for an environment. Looks, in this order, at the files
 * <secrets_dir>/<environment_id>/<name> and <secrets_dir>/<name> (not when secrets_dir is
 * STR_NONE), and the variables CAIRN_SECRET_<ENVIRONMENT>__<NAME> and CAIRN_SECRET_<NAME>. *out is
 * in the arena. Reasons: SECRET_NOT_FOUND (says where it looked), SECRET_NAME_INVALID,
 * SECRET_TOO_LARGE, SECRET_UNREADABLE. No message holds a value. */
MUST_CHECK status secret_resolve(str secrets_dir, str environment_id, str name, struct arena *arena,
                                 str *out, struct error *err);
