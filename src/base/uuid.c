/* base/uuid.c: UUIDs (RFC 9562) and random bytes.
 *
 * getrandom(2) costs some 300 ns whether it gives 16 bytes or 1,000, so each thread takes a page
 * and hands it out piece by piece, wiping what it gave. A child of fork() would hand out the same
 * bytes as its parent; pthread_atfork() empties the page of the one thread that the child has. */
#include "base/uuid.h"

#include <errno.h>
#include <pthread.h>
#include <sys/random.h>

#include "base/hash.h"

enum { POOL_BYTES = 1024 };
static _Thread_local struct {
    uint8_t bytes[POOL_BYTES];
    size_t left;
} pool; /* the last `left` are unused */
static pthread_once_t pool_once = PTHREAD_ONCE_INIT;

static void pool_drop(void) { pool.left = 0; }

static void pool_prepare(void) {
    int rc = pthread_atfork(NULL, NULL, pool_drop);
    ASSERT(rc == 0);
}

static void kernel_random(uint8_t *out, size_t n) {
    while (n > 0) {
        ssize_t got = getrandom(out, n, 0);
        if (got < 0 && errno == EINTR) continue;
        ASSERT(got > 0); /* every kernel we run on has it, and flags of 0 never fail otherwise */
        out += got;
        n -= (size_t)got;
    }
}

void random_bytes(void *out, size_t n) {
    if (n > POOL_BYTES) {
        kernel_random(out, n);
        return;
    }
    if (n > pool.left) {
        pthread_once(&pool_once, pool_prepare);
        kernel_random(pool.bytes, POOL_BYTES);
        pool.left = POOL_BYTES;
    }
    if (n == 0) return;
    uint8_t *piece = pool.bytes + (POOL_BYTES - pool.left);
    memcpy(out, piece, n);
    memset(piece, 0, n);
    pool.left -= n;
}

static void set_version(uuid *u, int version) {
    u->b[6] = (uint8_t)((u->b[6] & 0x0F) | version << 4);
    u->b[8] = (uint8_t)((u->b[8] & 0x3F) | 0x80);
}

uuid uuid_v4(void) {
    uuid u;
    random_bytes(u.b, sizeof u.b);
    set_version(&u, 4);
    return u;
}

uuid uuid_v7(int64_t unix_ms) {
    ASSERT(unix_ms >= 0 && unix_ms < INT64_C(1) << 48);
    uuid u;
    random_bytes(u.b, sizeof u.b);
    for (int i = 0; i < 6; i++)
        u.b[i] = (uint8_t)(unix_ms >> (40 - 8 * i));
    set_version(&u, 7);
    return u;
}

uuid uuid_v5(uuid space, str name) {
    uint8_t digest[SHA1_LEN];
    sha1_of(str_n(space.b, sizeof space.b), name, digest);
    uuid u;
    memcpy(u.b, digest, sizeof u.b);
    set_version(&u, 5);
    return u;
}

/* A hex digit's value plus one; 0 for any other byte. */
static const uint8_t digit_value[256] = {
    ['0'] = 1,  ['1'] = 2,  ['2'] = 3,  ['3'] = 4,  ['4'] = 5,  ['5'] = 6,  ['6'] = 7,  ['7'] = 8,
    ['8'] = 9,  ['9'] = 10, ['a'] = 11, ['b'] = 12, ['c'] = 13, ['d'] = 14, ['e'] = 15, ['f'] = 16,
    ['A'] = 11, ['B'] = 12, ['C'] = 13, ['D'] = 14, ['E'] = 15, ['F'] = 16};
/* Where each byte's two digits stand in the text. */
static const uint8_t digit_place[16] = {0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34};
static const uint8_t dash_place[4] = {8, 13, 18, 23};

bool uuid_parse(str text, uuid *out) {
    if (text.len != UUID_TEXT_LEN) return false;
    for (size_t i = 0; i < COUNT_OF(dash_place); i++) {
        if (text.ptr[dash_place[i]] != '-') return false;
    }
    uuid u;
    for (size_t i = 0; i < sizeof u.b; i++) {
        unsigned high = digit_value[(uint8_t)text.ptr[digit_place[i]]];
        unsigned low = digit_value[(uint8_t)text.ptr[digit_place[i] + 1]];
        if (high == 0 || low == 0) return false;
        u.b[i] = (uint8_t)((high - 1) << 4 | (low - 1));
    }
    *out = u;
    return true;
}

void uuid_format(uuid u, char out[UUID_TEXT_LEN]) {
    for (size_t i = 0; i < sizeof u.b; i++)
        hex_encode(&u.b[i], 1, out + digit_place[i]);
    for (size_t i = 0; i < COUNT_OF(dash_place); i++)
        out[dash_place[i]] = '-';
}

int uuid_version(uuid u) { return (u.b[8] & 0xC0) == 0x80 ? u.b[6] >> 4 : -1; }

bool uuid_eq(uuid a, uuid b) { return memcmp(a.b, b.b, sizeof a.b) == 0; }
