/* base/hash.h: SHA-256 and SHA-1 (for UUID v5 only) through libcrypto's EVP, with the digest fetched once and
 * the context reused; hex. One struct sha256 belongs to one thread. */
#pragma once

#include "base/base.h"
#include "base/error.h"
#include "base/str.h"

enum { SHA256_LEN = 32, SHA256_HEX_LEN = 64, SHA1_LEN = 20 };

struct sha256; /* a reusable hasher */
MUST_CHECK status sha256_open(struct sha256 **out, struct error *err);
void sha256_close(struct sha256 *h);
/* Start, feed any number of times, finish; then it can start again. */
void sha256_start(struct sha256 *h);
void sha256_add(struct sha256 *h, const void *bytes, size_t n);
void sha256_done(struct sha256 *h, uint8_t out[SHA256_LEN]);
/* The digest of one piece. Uses a hasher kept per thread. */
void sha256_of(str bytes, uint8_t out[SHA256_LEN]);
/* SHA-1 of two pieces in a row, for uuid_v5() only: the standard demands it there. */
void sha1_of(str first, str second, uint8_t out[SHA1_LEN]);

void hex_encode(const uint8_t *bytes, size_t n, char *out); /* 2n lower-case characters, no NUL */
/* Strict: lower case only, exactly 2n characters. */
bool hex_decode(str text, uint8_t *out, size_t n);
