/* base/uuid.h: UUIDs as 16 bytes. v4 for everything that producers and runs are named by; v7 (time
 * ordered, so that an index over it stays near-sequential) for ids that only the store makes up;
 * v5 for showing a text id where a document wants a UUID. */
#pragma once

#include "base/base.h"
#include "base/error.h"
#include "base/str.h"

typedef struct uuid { uint8_t b[16]; } uuid;
enum { UUID_TEXT_LEN = 36 };

/* Random bytes come from getrandom(2), buffered per thread and dropped after fork. */
uuid uuid_v4(void);
uuid uuid_v7(int64_t unix_ms);
uuid uuid_v5(uuid space, str name);
/* Canonical text, either case; nothing else (no braces, no urn:). */
bool uuid_parse(str text, uuid *out);
void uuid_format(uuid u, char out[UUID_TEXT_LEN]); /* lower case, no NUL */
int uuid_version(uuid u); /* the version nibble if the variant bits are 10, else -1 */
bool uuid_eq(uuid a, uuid b);
void random_bytes(void *out, size_t n); /* from the same source */
