/* api/auth_failures.c: who failed too often.
 *
 * Counted are addresses: IPv4 as it is, IPv6 by its first 64 bits, which is what one customer has.
 * With AUTH_FAILURES_MAX failures within a window the address is over its limit until the window's
 * end. */
#include "api/auth_impl.h"

#define WINDOW_US ((int64_t)AUTH_FAILURE_WINDOW_S * 1000000)

static void address_of(str remote, uint8_t out[FAILURE_ADDRESS_LEN]) {
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
    char text[64];
    uint8_t bytes[16];
    snprintf(text, sizeof(text), "%.*s", (int)(remote.len < 64 ? remote.len : 63), remote.ptr);
    memset(out, 0, FAILURE_ADDRESS_LEN);
    if (uv_inet_pton(AF_INET, text, bytes) == 0) {
        out[0] = 4;
        memcpy(out + 1, bytes, 4);
    } else if (uv_inet_pton(AF_INET6, text, bytes) == 0) {
        bool four = memcmp(bytes, mapped, sizeof(mapped)) == 0;
        out[0] = four ? 4 : 6;
        memcpy(out + 1, four ? bytes + sizeof(mapped) : bytes, four ? 4 : 8);
    } else {
        uint8_t hash[SHA256_LEN];
        sha256_of(remote, hash);
        out[0] = 1;
        memcpy(out + 1, hash, FAILURE_ADDRESS_LEN - 1);
    }
}

/* A clock that was set back must not lock anybody out: then the window is over. */
static bool is_over(const struct failure *one, int64_t now_us) {
    return now_us < one->since_us || now_us - one->since_us >= WINDOW_US;
}

/* The address's own place, or the one to be given up for it. */
static struct failure *place_of(struct failures *f, const uint8_t *address, int64_t now_us) {
    uint64_t hash = str_hash(str_n(address, FAILURE_ADDRESS_LEN), f->seed);
    struct failure *set = f->sets[hash % FAILURE_SETS];
    struct failure *least = NULL;
    for (size_t i = 0; i < FAILURE_WAYS; i++) {
        if (memcmp(set[i].address, address, FAILURE_ADDRESS_LEN) == 0) return &set[i];
        if (is_over(&set[i], now_us)) set[i].count = 0;
        if (least == NULL || set[i].count < least->count) least = &set[i];
    }
    return least;
}

/* Of an address that is over its limit; else NULL. */
static struct failure *find_over(struct failures *f, str remote, int64_t now_us) {
    uint8_t address[FAILURE_ADDRESS_LEN];
    address_of(remote, address);
    struct failure *one = place_of(f, address, now_us);
    if (memcmp(one->address, address, sizeof(address)) != 0) return NULL;
    return one->count < AUTH_FAILURES_MAX || is_over(one, now_us) ? NULL : one;
}

int64_t failures_wait_s(struct failures *f, str remote, int64_t now_us) {
    const struct failure *one = find_over(f, remote, now_us);
    return one ? (one->since_us + WINDOW_US - now_us + 999999) / 1000000 : 0;
}

bool failures_may_try(struct failures *f, str remote, int64_t now_us) {
    struct failure *one = find_over(f, remote, now_us);
    if (!one) return true;
    if (now_us < one->tries_us || now_us - one->tries_us >= 1000000) {
        one->tries = 0;
        one->tries_us = now_us;
    }
    if (one->tries == AUTH_TRIES_MAX) return false;
    one->tries++;
    return true;
}

bool failures_add(struct failures *f, str remote, int64_t now_us) {
    uint8_t address[FAILURE_ADDRESS_LEN];
    address_of(remote, address);
    struct failure *one = place_of(f, address, now_us);
    if (memcmp(one->address, address, sizeof(address)) != 0 || is_over(one, now_us)) {
        *one = (struct failure){.since_us = now_us};
        memcpy(one->address, address, sizeof(address));
    }
    if (one->count < AUTH_FAILURES_MAX) one->count++;
    return one->count == AUTH_FAILURES_MAX;
}
