/* api/limit.c: token buckets, a fixed number of them. */
#include "api/impl.h"

enum { BUCKETS = 8192, PROBES = 8 };

struct bucket {
    uint64_t who; /* hash; 0: free */
    int64_t filled_ns, missed;
    double tokens;
};
struct limiter {
    double rate, burst;
    uint64_t seed;
    struct bucket buckets[BUCKETS];
};

status limiter_open(double rate, double burst, struct limiter **out, struct error *err) {
    struct limiter *l = mem_alloc(sizeof(*l));
    if (!l) return error_set(err, ST_RETRY, "out of memory");
    l->rate = rate;
    l->burst = burst;
    random_bytes(&l->seed, sizeof(l->seed));
    *out = l;
    return ST_OK;
}

void limiter_close(struct limiter *l) { mem_free(l); }

static void refill(struct limiter *l, struct bucket *b, int64_t now_ns) {
    double add = (double)(now_ns - b->filled_ns) / 1e9 * l->rate;
    b->tokens = b->tokens + add > l->burst ? l->burst : b->tokens + add;
    b->filled_ns = now_ns;
}

/* The caller's own, or the one whose owner was quiet longest. */
static struct bucket *find(struct limiter *l, uint64_t who, int64_t now_ns) {
    struct bucket *oldest = NULL;
    for (size_t i = 0; i < PROBES; i++) {
        struct bucket *b = &l->buckets[(who + i) % BUCKETS];
        if (b->who == who) return b;
        if (!oldest || b->who == 0 || (oldest->who != 0 && b->filled_ns < oldest->filled_ns))
            oldest = b;
    }
    *oldest = (struct bucket){.who = who, .filled_ns = now_ns, .tokens = l->burst};
    return oldest;
}

static struct bucket *bucket_of(struct limiter *l, str who, int64_t now_ns) {
    return find(l, str_hash(who, l->seed) | 1, now_ns);
}

bool limiter_take(struct limiter *l, str who, int64_t now_ns, int64_t *left, int64_t *reset_s) {
    struct bucket *b = bucket_of(l, who, now_ns);
    refill(l, b, now_ns);
    bool good = b->tokens >= 1;
    b->tokens -= good ? 1 : 0;
    b->missed += good ? 0 : 1;
    *left = (int64_t)b->tokens;
    *reset_s = (int64_t)(l->burst / l->rate); /* that fills it, however empty */
    return good;
}

int64_t limiter_missed(struct limiter *l, str who, int64_t now_ns) {
    struct bucket *b = bucket_of(l, who, now_ns);
    int64_t missed = b->missed;
    b->missed = 0;
    return missed;
}
