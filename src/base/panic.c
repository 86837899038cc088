/* base/panic.c: the end of a broken assertion. Uses nothing that allocates or locks, so that it
 * works from any thread in any state. */
#include "base/base.h"

#include <unistd.h>

_Noreturn void panic(const char *file, int line, const char *what) {
    char text[512];
    int n = snprintf(text, sizeof text, "panic: %s:%d: %s\n", file, line, what);
    if (n > 0) {
        size_t len = (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
        text[len - 1] = '\n'; /* also when the text was cut */
        ssize_t written = write(STDERR_FILENO, text, len);
        UNUSED(written); /* nobody is left to tell */
    }
    abort();
}
