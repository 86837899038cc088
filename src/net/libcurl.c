#include "net/libcurl.h"

#include <dlfcn.h>
#include <pthread.h>

enum { VERSION_MIN = 0x075500 }; /* 7.85, the first with CURLOPT_PROTOCOLS_STR */

static struct libcurl functions;
const struct libcurl *const curl = &functions;
static const char *missing; /* what could not be found; NULL: all is there */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void *find(void *library, const char *name) {
    void *address = dlsym(library, name);
    if (!address) missing = name;
    return address;
}

static void load(void) {
    void *library = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    missing = library ? NULL : "libcurl.so.4";
    if (!library) return;
    void *address;
    /* (memcpy: ISO C converts no object pointer to a function.) */
#define X(name)                                                                                    \
    address = find(library, #name);                                                                \
    memcpy(&functions.name, &address, sizeof(address));
    LIBCURL_FUNCTIONS(X)
#undef X
    if (missing) return;
    if (curl->curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        missing = "its TLS library";
        return;
    }
    /* A look-up in the loop's own thread would stop everything else for its length. */
    const curl_version_info_data *info = curl->curl_version_info(CURLVERSION_NOW);
    if (info->version_num < VERSION_MIN) missing = "a new enough one";
    if ((info->features & CURL_VERSION_SSL) == 0) missing = "TLS in it";
    if ((info->features & CURL_VERSION_ASYNCHDNS) == 0) missing = "asynchronous look-ups in it";
}

status libcurl_load(struct error *err) {
    pthread_once(&once, load);
    if (missing)
        return error_at(err, REASON_LIBCURL_MISSING, "",
                        "HTTP needs libcurl 7.85 or newer: could not find %s", missing);
    return ST_OK;
}
