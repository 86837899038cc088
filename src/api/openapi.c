#include "api/openapi.h"

/* The assembler reads the file as it is: make runs the compiler at the root of the repository, and
 * knows that this object depends on it. */
__asm__(".section .rodata\n"
        ".global openapi_json\n"
        ".hidden openapi_json\n"
        "openapi_json:\n"
        ".incbin \"contracts/openapi.json\"\n"
        "openapi_json_end:\n"
        ".byte 0\n"
        ".previous\n");
extern const char openapi_json_end[];

/* cppcheck-suppress comparePointers ; two labels of the same bytes */
size_t openapi_json_len(void) { return (size_t)(openapi_json_end - openapi_json); }
