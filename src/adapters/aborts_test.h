/* adapters/aborts_test.h: does a function break an assertion? */
#pragma once

#include <stdbool.h>

/* Calls it in a child, which says nothing; true if that died by abort(). */
bool test_aborts(void (*func)(void *context), void *context);
