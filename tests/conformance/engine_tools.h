/* tests/conformance/engine_tools.h: what the tests of the engine share beyond engine_helper.h:
 * plans in few words, looking at what was written, waiting for a condition. Functions check what
 * they do. */
#pragma once

#include "conformance/engine_helper.h"
#include "engine/status.h"

/* Up to six steps, joined by commas. */
#define JOIN_1(a) a
#define JOIN_2(a, b) a "," b
#define JOIN_3(a, b, c) JOIN_2(a, b) "," c
#define JOIN_4(a, b, c, d) JOIN_3(a, b, c) "," d
#define JOIN_5(a, b, c, d, e) JOIN_4(a, b, c, d) "," e
#define JOIN_6(a, b, c, d, e, f) JOIN_5(a, b, c, d, e) "," f
#define JOIN_PICK(a, b, c, d, e, f, name, ...) name
#define JOIN(...)                                                                                  \
    JOIN_PICK(__VA_ARGS__, JOIN_6, JOIN_5, JOIN_4, JOIN_3, JOIN_2, JOIN_1, )(__VA_ARGS__)
#define PLAN_META(meta, more, ...)                                                                 \
    "{\"schemaVersion\":\"v1.3\",\"metadata\":{\"planId\":\"p\",\"planVersion\":\"1\"" meta        \
    "}," more "\"steps\":[" JOIN(__VA_ARGS__) "]}"
#define PLAN(...) PLAN_META("", "", __VA_ARGS__)
/* `more`: ",\"dependsOn\":[\"a\"]" and the like. Scripts hold no quotes. */
#define STEP(id, type, more) "{\"stepId\":\"" id "\",\"type\":\"" type "\"" more "}"
#define NOOP(id, more) STEP(id, "noop", more)
#define SH(id, script, more) STEP(id, "exec", ",\"command\":[\"sh\",\"-c\",\"" script "\"]" more)
#define AFTER(id) ",\"dependsOn\":[\"" id "\"]"

bool is(str s, const char *want);
bool holds(str s, const char *part);
/* The run's events, facts left out, are exactly these words. */
void check_history(struct bed *bed, const char *run_id, const char *want);
/* Every row of the run, facts included, in the bed's arena. */
struct event_page all_rows(struct bed *bed, const char *run_id);
/* The n-th (0, 1, ...) row of that type and, unless NULL, that step; fails if there is none. */
const struct event_record *find_row(struct bed *bed, const char *run_id, enum event_type type,
                                    const char *step, size_t n);
/* From the n-th row of one type to the m-th of another, of that step, by the engine's own time:
 * when each was durable depends on the disk. */
int64_t ms_between(struct bed *bed, const char *run_id, const char *step, enum event_type from,
                   size_t n, enum event_type to, size_t m);
size_t count_rows(struct bed *bed, const char *run_id, enum event_type type);
struct run_snapshot snapshot(struct bed *bed, const char *run_id);
/* "RUNNING", or "PAUSED/DRAINING" */
str shown(struct bed *bed, const char *run_id);
struct explanation explained(struct bed *bed, const char *run_id);

/* Starts; the answer must be ST_OK. */
void start(struct bed *bed, const char *plan, const char *run_id);
/* The answer must be an error with this reason. */
void start_refused(struct bed *bed, const struct start_request *request, const char *reason);
void tell(struct bed *bed, const char *run_id, const char *name, const char *signal_id);
void tell_step(struct bed *bed, const char *run_id, const char *name, const char *step,
               const char *signal_id);
void tell_refused(struct bed *bed, const char *run_id, const char *name, const char *step,
                  const char *reason);
/* Turns the loop until the run has `count` rows of the type. */
void until_rows(struct bed *bed, const char *run_id, enum event_type type, size_t count);
void until_status(struct bed *bed, const char *run_id, enum run_status want);
/* Turns the loop until the file is there, in the bed's folder. */
void until_file(struct bed *bed, const char *name);
bool file_there(struct bed *bed, const char *name);
/* A path in the bed's folder. */
str path_in(struct bed *bed, const char *name);
/* The first value of a query with one text parameter, as text; STR_NONE: no row, or NULL. */
str ask(struct bed *bed, const char *sql, const char *parameter);
/* A plan whose text has %s for the bed's folder. */
const char *with_folder(struct bed *bed, const char *plan);
