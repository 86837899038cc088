/* host/plans.h: the plans that a host keeps in memory, and those on their way.
 *
 * At most HOST_PLANS_MAX; the one that was not used for the longest time makes room, unless a run
 * has it. Of those that runs have, HOST_TENANT_PLANS_MAX are one tenant's: whose run was the first
 * to have it. Knowing a plan's hash gives nobody the plan: a tenant is served one that is kept if a
 * source had it for that tenant, or if it lies in the operator's folder, which is everybody's.
 * A remote plan is fetched with the loop's own HTTP client; remote ones and large local ones are
 * read on a thread of libuv's pool, which sees nothing but the fetch's own memory: so a fetch under
 * way can be left alone when the host closes. The store is asked by a reader thread. Only a small
 * file in the operator's folder is read where it is asked for.
 * Threads: all calls on the loop's thread. */
#pragma once

#include "host/host.h"
#include "ledger/readers.h"

struct host_plans;

/* `source` is borrowed. */
MUST_CHECK status host_plans_open(uv_loop_t *loop, const struct plan_source *source,
                                  struct readers *readers, struct host_plans **out,
                                  struct error *err);
/* The tenant's plan, kept until as many host_plans_done(). One that is not there yet is fetched,
 * and waited for. ST_LIMIT with PLANS_TOO_MANY: runs have all that can be kept; or with
 * TENANT_PLANS_TOO_MANY: the tenant's have its share. */
MUST_CHECK status host_plans_get(struct host_plans *plans, str tenant_id,
                                 const struct plan_ref *ref, const struct plan **out,
                                 struct error *err);
void host_plans_done(struct host_plans *plans, const struct plan *plan);
/* As host_prefetch(). */
void host_plans_prefetch(struct host_plans *plans, str tenant_id, const struct plan_ref *ref,
                         host_fetched done, void *context);
/* Ends and answers every fetch; later ones are answered at once. NULL is fine. */
void host_plans_halt(struct host_plans *plans);
/* Not before the last plan was given back. NULL is fine. */
void host_plans_close(struct host_plans *plans);
