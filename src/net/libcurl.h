/* net/libcurl.h: libcurl, loaded when the first request is made. For net/ only.
 *
 * As with libpq (db/libpq.h): linked in the ordinary way it would bring thirty libraries, a second
 * TLS stack and Kerberos among them, into every start of the program. */
#pragma once

#include <curl/curl.h>

#include "base/error.h"

/* These are macros around the functions, and would stand in the way of members of the same name. */
#undef curl_easy_getinfo
#undef curl_easy_setopt
#undef curl_multi_setopt

/* clang-format off */
#define LIBCURL_FUNCTIONS(X)                                                                       \
    X(curl_easy_cleanup) X(curl_easy_getinfo) X(curl_easy_init) X(curl_easy_perform)               \
    X(curl_easy_setopt) X(curl_easy_strerror) X(curl_global_init) X(curl_multi_add_handle)         \
    X(curl_multi_assign) X(curl_multi_cleanup) X(curl_multi_info_read) X(curl_multi_init)          \
    X(curl_multi_remove_handle) X(curl_multi_setopt) X(curl_multi_socket_action)                   \
    X(curl_multi_strerror) X(curl_slist_append) X(curl_slist_free_all) X(curl_version_info)

struct libcurl {
#define X(name) __typeof__(&name) name; /* NOLINT(bugprone-macro-parentheses): a declaration */
    LIBCURL_FUNCTIONS(X)
#undef X
};
/* clang-format on */
extern const struct libcurl *const curl; /* filled by libcurl_load(), and then never changed */
/* Loads it, once; safe from any thread. ST_INVALID when it is not installed or too old. */
MUST_CHECK status libcurl_load(struct error *err);
