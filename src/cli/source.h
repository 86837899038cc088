/* cli/source.h: where a command finds what it shows or changes: a ledger that it opens itself, or a
 * server that has one. The commands do not know which.
 *
 * source_ledger.c and source_remote.c are the two. Lists come in pages, newest first. Everything
 * lives in the arena that was given, cursors in the command's. */
#pragma once

#include "cli/cli.h"
#include "core/run_ref.h"
#include "view/view.h"

/* A page of a list: which one, and what came. */
struct page {
    str cursor;   /* where it begins, STR_NONE: at the first; then where to go on, STR_NONE: no more
                   */
    size_t limit; /* no more things than this */
    size_t count; /* how many came */
};

struct source;
struct source_ops {
    status (*find_run)(struct source *s, str run_id, struct arena *arena, struct run_info *out,
                       struct error *err);
    status (*list_runs)(struct source *s, const struct run_filter *filter, struct page *page,
                        struct arena *arena, struct run_info **runs, struct error *err);
    status (*resolve)(struct source *s, str tenant_id, str provider, str workflow_id,
                      str provider_run_id, struct arena *arena, struct run_info *out,
                      struct error *err);
    /* The run of a reference that is well-formed. RUN_REF_MISMATCH */
    status (*resolve_ref)(struct source *s, const struct engine_run_ref *ref, struct arena *arena,
                          struct run_info *out, struct error *err);
    /* The run right after the event with this runSeq; 0: now. */
    status (*replay)(struct source *s, str run_id, int64_t at, struct arena *arena, struct run *out,
                     struct error *err);
    /* The run's events in order, borrowed. A server gives no facts, and their runSeq as seq. */
    status (*walk)(struct source *s, const struct run_info *run, ledger_walk walk, void *context,
                   struct error *err);
    status (*steps)(struct source *s, str run_id, struct arena *arena, struct step_shown **steps,
                    size_t *count, struct error *err);
    status (*explain)(struct source *s, str run_id, struct arena *arena, struct explanation *out,
                      struct error *err);
    status (*causes)(struct source *s, uuid event_id, size_t limit, struct arena *arena,
                     struct event_page *page, bool *more, struct error *err);
    status (*alerts)(struct source *s, str run_id, struct page *page, struct arena *arena,
                     struct alert **alerts, struct error *err);
    status (*stats)(struct source *s, struct ledger_stats *out, struct error *err);
    status (*verify)(struct source *s, bool state, ledger_progress progress, void *context,
                     struct arena *arena, struct verify_report *out, struct error *err);
    status (*checkpoint)(struct source *s, str run_id, struct arena *arena,
                         struct append_result *out, struct error *err);
    status (*backup)(struct source *s, str file, struct error *err);
    /* What was moved before a failure stays moved, and is in *out. */
    status (*archive)(struct source *s, const struct archive_request *request,
                      ledger_progress progress, void *context, struct archive_report *out,
                      struct error *err);
    /* Fills what the maker decides: id, times, creator. *text is the key itself, shown once. */
    status (*key_create)(struct source *s, struct api_key *key, struct arena *arena, str *text,
                         struct error *err);
    status (*key_find)(struct source *s, str key_id, struct arena *arena, struct api_key *out,
                       struct error *err);
    status (*key_list)(struct source *s, str tenant_id, struct page *page, struct arena *arena,
                       struct api_key **keys, struct error *err);
    status (*key_revoke)(struct source *s, str key_id, struct error *err);
    status (*audit)(struct source *s, str tenant_id, struct page *page, struct arena *arena,
                    struct audit_entry **entries, struct error *err);
    status (*effect_list)(struct source *s, const struct outbox_filter *filter, struct page *page,
                          struct arena *arena, struct effect_info **items, struct error *err);
    status (*effect_find)(struct source *s, uuid id, struct arena *arena, struct effect_info *out,
                          struct error *err);
    status (*effect_request)(struct source *s, const struct effect_request *request,
                             struct arena *arena, struct effect_info *out, bool *existing,
                             struct error *err);
    status (*effect_requeue)(struct source *s, uuid id, str actor, str reason, struct arena *arena,
                             struct effect_info *out, struct error *err);
    /* As outbox_requeue_lot(); its riders are the source's. */
    status (*effect_requeue_all)(struct source *s, struct requeue_lot *lot, struct error *err);
    void (*close)(struct source *s);
};
struct source {
    const struct source_ops *ops;
    struct cli *cli;
};

enum source_use {
    SOURCE_READ,
    SOURCE_CHANGE, /* a ledger that must be there */
    SOURCE_CREATE, /* one that is made if there is none */
};
/* The server that --server names; or the ledger of --data and --db. To change a SQLite ledger whose
 * folder another process holds, that process is asked. The caller ends it with source_close(). */
MUST_CHECK status source_open(struct cli *cli, enum source_use use, struct source **out,
                              struct error *err);
void source_close(struct source *s); /* NULL is fine */

/* Where a command takes a RUN it may be named by its EngineRunRef, as JSON: then the word becomes
 * its id, if the reference is well-formed and one to that run. RUN_REF_INVALID, RUN_REF_MISMATCH */
MUST_CHECK status source_run_word(struct cli *cli, str *word, struct error *err);

struct remote;
/* Over what is open already, which stays the caller's. In cli->arena. */
struct source *source_of_ledger(struct cli *cli, struct ledger *ledger);
struct source *source_of_remote(struct cli *cli, struct remote *remote);
