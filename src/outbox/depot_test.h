/* outbox/depot_test.h: a deliverer on a loop of its own, with an HTTP server beside it. */
#pragma once

#include <pthread.h>
#include <uv.h>

#include "base/arena.h"
#include "net/fake_server_test.h"
#include "outbox/deliver.h"

enum { DEPOT_TEXT_MAX = 512 * 1024, DEPOT_NOW_S = 1771228800 }; /* 2026-02-16T08:00:00Z */

#define DEPOT_EFFECT "5f0c1c1e-6a4b-4c7d-8e2f-0123456789ab"

/* What the server answers is said by the path: /json, /empty, /text, /big, /bigjson, /deep, /echo
 * (its own head, as text), /echojson, /echotwice, /CODE (with a body), /silent. */
struct depot {
    uv_loop_t loop;
    struct deliverer *deliverer;
    struct fake_server *server;
    struct guard guard;
    struct guard_rule rule;
    struct arena arena;
    pthread_mutex_t lock; /* guards the request: the newest that came, whole */
    char head[32 * 1024], body[32 * 1024];
    /* The newest answer. */
    int ended;
    bool ok;
    char code[64];
    const char *result, *message;
};

/* `options` may be changed before depot_open(): it has the guard, the secrets, sor_url. */
struct deliverer_options depot_options(struct depot *b);
void depot_open(struct depot *b, const struct deliverer_options *options);
void depot_close(struct depot *b);
/* A text with the server's port in place of its one %d. */
str depot_text(struct depot *b, const char *fmt);
struct delivery depot_delivery(struct depot *b, const char *type, str spec);
/* Delivers, with %d in `spec` as in depot_text(), and waits for the answer. */
void depot_run(struct depot *b, const char *type, const char *spec);
void depot_wait(struct depot *b, int ended);
/* Has the newest request this line among its headers? Names as they are written. */
bool depot_has_header(struct depot *b, const char *line);
void depot_done(struct delivery *delivery, bool ok, str result, enum reason code, str message);
