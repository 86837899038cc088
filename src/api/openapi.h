/* api/openapi.h: contracts/openapi.json, inside the program. */
#pragma once

#include <stddef.h>

extern const char openapi_json[];
size_t openapi_json_len(void);
