/* tests/conformance/provider_helper.h: a bed whose host knows a real Temporal or Conductor cluster,
 * named by CAIRN_TEST_TEMPORAL and CAIRN_TEST_CONDUCTOR (scripts/with-temporal, with-conductor).
 * Without it a test is skipped. The clusters outlive the tests, so run ids and queues are new each
 * time. */
#pragma once

#include "adapters/conductor/conductor.h"
#include "adapters/temporal/temporal.h"
#include "conformance/engine_tools.h"

struct cluster {
    struct bed bed;
    const char *adapter; /* "temporal" or "conductor" */
    struct temporal_options temporal;
    struct conductor_options conductor;
    char queue[40];
    char run[64]; /* a run id of this test */
};

void cluster_temporal(struct cluster *c, str url);  /* not opened yet */
void cluster_conductor(struct cluster *c, str url); /* likewise */
void cluster_open(struct cluster *c);
void cluster_release(struct cluster *c);
/* Starts c->run; the answer must be ST_OK. */
void cluster_start(struct cluster *c, const char *plan);
enum run_status cluster_end(struct cluster *c); /* turns the loop until the run is over */
/* What `temporal ARGS --address ...` prints, while the loop turns; the words are of the test. */
str temporal_says(struct cluster *c, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* The body of a request to Conductor's own API, while the loop turns. */
str conductor_says(struct cluster *c, const char *method, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Turns the loop until the text of temporal_says("workflow describe") or of Conductor's workflow
 * holds the word. */
void cluster_until_shows(struct cluster *c, const char *word);
/* A member of the payload of the run's newest RunProviderLinked. */
str cluster_link(struct cluster *c, const char *member);
/* The first record of that type carries the run's own tenant, project, environment and run. */
void cluster_has_ids(struct cluster *c, enum event_type type);
