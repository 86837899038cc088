/* base/base.h: the few macros that every module may use. Knows nothing of workflows.
 *
 * This is not a header that includes everything: it includes banned.h (functions that must not
 * compile here) and the three standard headers whose types stand in all of our signatures. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/banned.h"

#define MUST_CHECK __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt_index, args_index) __attribute__((format(printf, fmt_index, args_index)))
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
/* The struct that has *ptr as its `member`. */
#define CONTAINER_OF(ptr, type, member) ((type *)(void *)((char *)(ptr) - offsetof(type, member)))
#define UNUSED(x) ((void)(x))

/* An assertion states what only a bug of ours can break. On in release. Input is never asserted. */
#define ASSERT(cond) ((cond) ? (void)0 : panic(__FILE__, __LINE__, #cond))

/* Prints the broken condition to stderr and aborts. (cppcheck understands the attribute, not
 * _Noreturn.) */
__attribute__((noreturn)) void panic(const char *file, int line, const char *what);
