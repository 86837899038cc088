/* adapters/local/bench_test.h: a loop, an executor on it, and attempts that remember their answer.
 */
#pragma once

#include <uv.h>

#include "adapters/local/local.h"

struct bench {
    uv_loop_t loop;
    struct executor *ex;
    const char *dir; /* the data folder */
};
struct shot {
    struct plan_step step;
    struct attempt attempt;
    int answers;
    bool ok;
    char code[64];
    char *output, *message, *detail; /* NULL: none */
};

/* data_dir in the options is filled in with a fresh folder if it is empty. */
void bench_open(struct bench *b, struct local_options options);
/* Closes all, and checks that no descriptor, child or handle is left. */
void bench_close(struct bench *b);
/* An exec step of run "run-1", tenant "acme", environment "dev", attempt 1. Change it before it
 * starts. `body` must live as long as the shot. */
void shot_init(struct shot *s, const char *step_id, const char *body);
void shot_release(struct shot *s);
void shot_start(struct bench *b, struct shot *s);
void shot_wait(struct bench *b, struct shot *s); /* runs the loop until it is answered */
/* All of that: an exec step with this body and kind of output. */
void shot_exec(struct bench *b, struct shot *s, const char *body, enum plan_output output);
bool has(const char *text, const char *part);          /* NULL has nothing */
char *read_file_at(const char *dir, const char *path); /* NULL: there is none; to be freed */
