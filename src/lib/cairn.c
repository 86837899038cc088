/* lib/cairn.c: stores and reading from them. The public interface is a thin shell in three files.
 */
#include "cairn.h"

#include <assert.h>

#include "base/limits.h"
#include "base/log.h"
#include "ledger/reference.h"
#include "lib/convert.h"
#include "lib/producer.h"
#include "lib/store.h"

#define STATE_BYTES_MAX ((size_t)1024 * 1024 * 1024) /* a million steps as JSON */

const char *cairn_version(void) { return CAIRN_VERSION; }
const char *cairn_run_events_version(void) { return RUN_EVENTS_CONTRACT_VERSION; }
const char *cairn_status_name(cairn_status st) { return status_name((status)st); }
void cairn_free(void *memory) { mem_free(memory); }

static_assert((int)CAIRN_LOG_DEBUG == (int)LOG_DEBUG && (int)CAIRN_LOG_OFF == (int)LOG_OFF,
              "one scale");
void cairn_log_setup(int fd, bool json, cairn_log_level at_least) {
    log_setup(fd, json, (enum log_level)at_least);
}

/* ---- a store ---- */

static status open_writer(cairn_store *s, const cairn_options *o, struct error *err) {
    struct ledger *ledger = NULL;
    struct ledger_options options = {.validation =
                                         o->record_invalid ? LEDGER_RECORD : LEDGER_REJECT,
                                     .lock_wait_ms = o->lock_wait_ms};
    status st = ledger_open(str_c(s->url), &options, &ledger, err);
    return st == ST_OK ? writer_open(ledger, NULL, &s->writer, err) : st;
}

status store_reader_take(cairn_store *s, struct ledger **out, struct error *err) {
    pthread_mutex_lock(&s->lock);
    status st = s->reader ? ST_OK : ledger_open_reader(str_c(s->url), &s->reader, err);
    if (st == ST_OK) *out = s->reader;
    return st;
}

void store_reader_done(cairn_store *s, status st) {
    if (st == ST_RETRY || st == ST_CORRUPT) {
        ledger_close(s->reader);
        s->reader = NULL;
    }
    pthread_mutex_unlock(&s->lock);
}

static status check_reader(cairn_store *s, struct error *err) {
    struct ledger *ignored = NULL;
    status st = store_reader_take(s, &ignored, err);
    store_reader_done(s, st);
    return st;
}

cairn_status cairn_open(const char *url, const cairn_options *options, cairn_store **out,
                        cairn_error *give) {
    static const cairn_options none = {0};
    struct error err = {0};
    str text = str_c(url);
    cairn_store *s = mem_alloc(sizeof(*s));
    if (!s) return give_status(error_set(&err, ST_RETRY, "out of memory"), &err, give);
    pthread_mutex_init(&s->lock, NULL);
    if (!options) options = &none;
    status st = ST_OK;
    if (text.len == 0)
        st = error_set(&err, ST_INVALID, "the database address is empty");
    else if (text.len >= sizeof(s->url)) {
        st = error_set(&err, ST_LIMIT, "the database address has over %zu bytes",
                       sizeof(s->url) - 1);
    } else {
        memcpy(s->url, text.ptr, text.len);
        st = options->read_only ? check_reader(s, &err) : open_writer(s, options, &err);
    }
    if (st == ST_OK)
        *out = s;
    else
        cairn_close(s);
    return give_status(st, &err, give);
}

void cairn_close(cairn_store *s) {
    if (!s) return;
    writer_close(s->writer);
    ledger_close(s->reader);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

status store_append(cairn_store *s, struct append_request *request, struct error *err) {
    if (!s->writer) {
        return error_at(err, REASON_STORE_READ_ONLY, "", "the store was opened read-only");
    }
    return request->count > 0 ? producer_append_writer(s->writer, request, err) : ST_OK;
}

/* ---- reading ---- */

typedef status (*read_page)(struct ledger *l, str id, int64_t after, size_t limit,
                            struct arena *arena, struct event_page *page, struct error *err);

struct reading {
    cairn_store *store;
    read_page read;
    str id;
    int64_t after;
    size_t left;
    cairn_on_record on_record;
    void *context;
};

/* Reads a page under the lock and shows it without: the callback may use the store. */
static status read_some(struct reading *r, struct arena *arena, struct buf *json, bool *more,
                        struct error *err) {
    struct ledger *ledger = NULL;
    struct event_page page = {0};
    status st = store_reader_take(r->store, &ledger, err);
    if (st == ST_OK) st = r->read(ledger, r->id, r->after, r->left, arena, &page, err);
    store_reader_done(r->store, st);
    *more = st == ST_OK && page.count > 0;
    for (size_t i = 0; i < page.count && *more && st == ST_OK; i++) {
        struct shown_record shown;
        st = show_record(&page.records[i], json, &shown, err);
        if (st != ST_OK) break;
        r->after = page.records[i].seq;
        r->left--;
        *more = r->on_record(r->context, &shown.record) && r->left > 0;
    }
    return st;
}

static cairn_status read_all(struct reading r, cairn_error *give) {
    struct arena arena;
    struct buf json;
    struct error err = {0};
    status st = ST_OK;
    if (r.left == 0) r.left = SIZE_MAX;
    arena_init(&arena, (size_t)64 * 1024, CALL_BYTES_MAX);
    buf_init(&json, 8 * EVENT_BYTES_MAX);
    for (bool more = true; more && st == ST_OK;) {
        arena_reset(&arena);
        st = read_some(&r, &arena, &json, &more, &err);
    }
    buf_release(&json);
    arena_release(&arena);
    return give_status(st, &err, give);
}

cairn_status cairn_read_run(cairn_store *s, const char *run_id, int64_t after, size_t limit,
                            cairn_on_record on_record, void *context, cairn_error *give) {
    return read_all(
        (struct reading){s, ledger_read_run, str_c(run_id), after, limit, on_record, context},
        give);
}

cairn_status cairn_read_tenant(cairn_store *s, const char *tenant_id, int64_t after, size_t limit,
                               cairn_on_record on_record, void *context, cairn_error *give) {
    return read_all(
        (struct reading){s, ledger_read_tenant, str_c(tenant_id), after, limit, on_record, context},
        give);
}

cairn_status cairn_find_run(cairn_store *s, const char *run_id, cairn_run *out, cairn_error *give) {
    struct arena arena;
    struct ledger *ledger = NULL;
    struct run_info run;
    struct error err = {0};
    arena_init(&arena, 1024, CALL_BYTES_MAX);
    status st = store_reader_take(s, &ledger, &err);
    if (st == ST_OK) st = ledger_find_run(ledger, str_c(run_id), &arena, &run, &err);
    store_reader_done(s, st);
    if (st == ST_OK) give_run(&run, out);
    arena_release(&arena);
    return give_status(st, &err, give);
}

static status state_text(const struct run *run, char **out, struct error *err) {
    struct buf json;
    buf_init(&json, STATE_BYTES_MAX);
    run_state_json(run, &json);
    buf_put_char(&json, 0);
    char *copy = json.full ? NULL : mem_alloc(json.len);
    if (copy) memcpy(copy, json.ptr, json.len);
    buf_release(&json);
    if (!copy) return error_set(err, ST_RETRY, "out of memory for the state of a run");
    *out = copy;
    return ST_OK;
}

cairn_status cairn_run_state(cairn_store *s, const char *run_id, int64_t at, char **json,
                             cairn_error *give) {
    struct arena arena;
    struct ledger *ledger = NULL;
    struct run run;
    struct error err = {0};
    arena_init(&arena, (size_t)16 * 1024, CALL_BYTES_MAX);
    status st = store_reader_take(s, &ledger, &err);
    if (st == ST_OK) st = ledger_replay(ledger, str_c(run_id), at, true, &arena, &run, NULL, &err);
    store_reader_done(s, st);
    if (st == ST_OK) st = state_text(&run, json, &err);
    arena_release(&arena);
    return give_status(st, &err, give);
}

/* ---- by reference ---- */

static str text_or_none(const char *text) { return text ? str_c(text) : STR_NONE; }

static status check_ref(cairn_store *s, const cairn_run_ref *in, cairn_run *out,
                        struct error *err) {
    struct engine_run_ref ref = {.run_id = text_or_none(in->run_id),
                                 .workflow_id = text_or_none(in->workflow_id),
                                 .namespace = text_or_none(in->temporal_namespace),
                                 .task_queue = text_or_none(in->task_queue),
                                 .conductor_url = text_or_none(in->conductor_url)};
    struct arena arena;
    struct ledger *ledger = NULL;
    struct run_info run;
    if (!in->provider || !adapter_of(str_c(in->provider), &ref.provider))
        ref.provider = ADAPTER_COUNT;
    status st = run_ref_check(&ref, err);
    if (st != ST_OK) return st;
    arena_init(&arena, 1024, CALL_BYTES_MAX);
    st = store_reader_take(s, &ledger, err);
    if (st == ST_OK) st = run_ref_resolve(ledger, &ref, &arena, &run, err);
    store_reader_done(s, st);
    if (st == ST_OK && out) give_run(&run, out);
    arena_release(&arena);
    return st;
}

cairn_status cairn_find_run_ref(cairn_store *s, const cairn_run_ref *ref, cairn_run *out,
                                cairn_error *give) {
    struct error err = {0};
    return give_status(check_ref(s, ref, out, &err), &err, give);
}

cairn_status cairn_run_ref_state(cairn_store *s, const cairn_run_ref *ref, int64_t at, char **json,
                                 cairn_error *give) {
    struct error err = {0};
    status st = check_ref(s, ref, NULL, &err);
    return st == ST_OK ? cairn_run_state(s, ref->run_id, at, json, give)
                       : give_status(st, &err, give);
}

cairn_status cairn_read_run_ref(cairn_store *s, const cairn_run_ref *ref, int64_t after,
                                size_t limit, cairn_on_record on_record, void *context,
                                cairn_error *give) {
    struct error err = {0};
    status st = check_ref(s, ref, NULL, &err);
    return st == ST_OK ? cairn_read_run(s, ref->run_id, after, limit, on_record, context, give)
                       : give_status(st, &err, give);
}

cairn_status cairn_verify(cairn_store *s, bool state, cairn_verification *out, cairn_error *give) {
    struct arena arena;
    struct ledger *ledger = NULL; /* its own: this takes long, and nobody should wait for it */
    struct verify_report report = {0};
    struct error err = {0};
    arena_init(&arena, (size_t)64 * 1024, CALL_BYTES_MAX);
    status st = ledger_open_reader(str_c(s->url), &ledger, &err);
    if (st == ST_OK) st = ledger_verify(ledger, state, NULL, NULL, &arena, &report, &err);
    if (st == ST_OK) give_verification(&report, out);
    ledger_close(ledger);
    arena_release(&arena);
    return give_status(st, &err, give);
}
