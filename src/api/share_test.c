/* What one tenant may have under way. */
#include "api/share.h"

#include "api/api.h"
#include "api/hub.h"
#include "test.h"

static size_t take_all(struct shares *s, str tenant, enum share_kind kind, struct share **last,
                       const char *reason) {
    struct error err = {0};
    struct share *one = NULL;
    size_t n = 0;
    for (; n < 100000 && share_take(s, tenant, kind, &one, &err) == ST_OK; n++)
        *last = one;
    CHECK(n == 100000 ||
          (err.code == ST_LIMIT && strcmp(reason_name(err.reason), reason) == 0 && !one));
    return n;
}

/* One tenant gets half of each thing, whatever it has of the others, and leaves half to others. */
TEST(share_of_one_tenant_is_half) {
    static const struct {
        const char *reason;
        size_t want;
    } cases[SHARE_KINDS] = {{"TENANT_QUERIES_TOO_MANY", API_QUEUE_MAX / 2},
                            {"TENANT_STREAMS_TOO_MANY", HUB_STREAMS_MAX / 2},
                            {"TENANT_WAITS_TOO_MANY", 5000},
                            {"TENANT_POLLS_TOO_MANY", 5000}};
    struct shares s;
    struct share *a = NULL;
    struct share *b = NULL;
    struct share *other = NULL;
    struct error err = {0};
    shares_init(&s);
    for (int k = 0; k < SHARE_KINDS; k++) {
        enum share_kind kind = (enum share_kind)k;
        CHECK(take_all(&s, STR("a"), kind, &a, cases[k].reason) == cases[k].want);
        CHECK(share_take(&s, STR("b"), kind, &b, &err) == ST_OK && b && b != a);
        share_give(a, kind);
        CHECK(share_take(&s, STR("a"), kind, &other, &err) == ST_OK && other == a);
        CHECK(share_take(&s, STR("a"), kind, &other, &err) == ST_LIMIT);
    }
    CHECK(s.tenants.count == 2);
    for (int k = 0; k < SHARE_KINDS; k++) {
        share_give(b, (enum share_kind)k);
        for (size_t i = 0; i < cases[k].want; i++)
            share_give(a, (enum share_kind)k);
    }
    CHECK(s.tenants.count == 0); /* nothing is kept of who has nothing */
    CHECK(take_all(&s, STR("*"), SHARE_QUERIES, &a, "") == 100000 && s.tenants.count == 0);
    share_give(NULL, SHARE_QUERIES);
    shares_release(&s);
}
