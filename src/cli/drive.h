/* cli/drive.h: an engine at work inside a command: the loop, the host, its HTTP API, progress and
 * Ctrl-C.
 *
 * On SQLite one process holds the folder. The first command to come is that process and answers on
 * the socket in it; a later one finds it there and asks it, as a command with --server asks that
 * server: then there is a peer, and no engine here.
 * Ctrl-C once ends politely: what runs is stopped, the run stays open. Twice ends at once. */
#pragma once

#include <uv.h>

#include "cli/cli.h"
#include "cli/live.h"
#include "cli/remote.h"
#include "server/server.h"

struct drive_options {
    bool passive; /* execute nothing: the process only signals */
    bool all;     /* drive every open run, not only what is asked for */
    bool quiet;   /* no progress */
    bool serve;   /* no progress either, but a log */
    str node;
};

enum { FOLLOW_EVENTS = 256 };
struct follow { /* the events of a run, as a server tells them */
    struct client *client;
    struct remote_stream *stream;
    struct live_event events[FOLLOW_EVENTS]; /* not shown yet */
    size_t count;
    struct arena arena; /* theirs */
    int64_t after;      /* runSeq of the newest */
    bool ended;         /* the stream has; `why` says how */
    status st;
    struct error why;
};

struct drive {
    struct cli *cli;
    struct drive_options options;
    str url, folder;
    bool postgres;
    uv_loop_t loop;
    struct server_settings settings;
    struct server *server;
    struct host *host; /* the server's; NULL: another process is at work, see peer */
    struct remote *peer;
    bool served;              /* the peer is the server of --server: nobody takes over from it */
    struct follow follow;     /* of a run that the peer carries out */
    int64_t effects_until_ns; /* how long the end of a run waits for them */
    uv_signal_t interrupt, terminate, reload;
    uv_timer_t draw, look;
    struct live *live;
    bool live_knows;   /* it was told where the steps stand */
    str run_id;        /* the run that is waited for, or STR_NONE */
    bool over;         /* it has ended */
    int64_t shown_seq; /* of the newest event shown, of a run that another node carries out */
    bool stop;         /* Ctrl-C */
    bool lost;         /* another node has our work */
    bool hopeless;     /* the run in the foreground cannot be written: `trouble` says why */
    struct error trouble;
};

/* Opens the engine, or finds the process that has the folder, or the server (d->peer). On ST_OK the
 * caller ends it with drive_close(). */
MUST_CHECK status drive_open(struct drive *d, struct cli *cli, const struct drive_options *options,
                             struct error *err);
void drive_close(struct drive *d);

/* Operations, by the engine in this process or by the one at the other end. Durable when they
 * return. `run_id` (ID_BYTES_MAX + 1 bytes) gets the run's id. */
MUST_CHECK status drive_start(struct drive *d, const struct start_request *request, char *run_id,
                              struct error *err);
MUST_CHECK status drive_signal(struct drive *d, str run_id, const struct signal *signal, str actor,
                               struct error *err);
/* Carries on with an open run. */
MUST_CHECK status drive_resume(struct drive *d, str run_id, struct error *err);
/* Waits until the run has ended, showing its progress; takes its work over when the process that
 * did it is gone. ST_OK also when interrupted: see d->stop. */
MUST_CHECK status drive_wait(struct drive *d, str run_id, struct error *err);
/* After Ctrl-C: how to go on. Sets the exit code. */
void drive_say_interrupted(struct drive *d, str run_id);
/* Until interrupted, or until `done` says so; asked a few times a second. */
MUST_CHECK status drive_until(struct drive *d, bool (*done)(struct drive *d), struct error *err);
