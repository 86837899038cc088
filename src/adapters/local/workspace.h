/* adapters/local/workspace.h: names of files and folders that come from ids, and what they may be.
 */
#pragma once

#include "base/buf.h"
#include "base/error.h"
#include "base/str.h"

enum { PATH_PART_MAX = 100 };
/* What is ours in a workspace. A run id that is no safe part is in the file, since the name of the
 * workspace does not tell it. */
#define WORKSPACE_OWN ".cairn"
#define WORKSPACE_RUN "run"

/* [A-Za-z0-9._-]{1,100} that does not begin with a dot: one part of a path and nothing else. */
bool path_part_safe(str part);
/* The id itself, or "~" and a hash of it: "~" begins no safe part, so the two never meet. */
void path_part_put(struct buf *out, str id);
/* Does a relative path stay below the folder it starts from? By its text: "a/../b" does, ".." not.
 */
bool path_stays_inside(str path);
