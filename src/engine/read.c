/* engine/read.c: questions to the store, on their way and back. What an answer means for a run is in
 * load.c, for the engine as a whole in engine.c. */
#include "base/limits.h"
#include "engine/impl.h"

#define READ_PAGE_BYTES ((size_t)16 * 1024 * 1024)  /* then the next row begins another page */
#define READ_ARENA_MAX ((size_t)256 * 1024 * 1024) /* such a page, with the largest row and its list grown */
enum { READ_ROWS_FIRST = 32 };

struct engine_read *read_new(struct engine *eng, enum read_kind kind, struct error *err) {
    struct engine_read *read = mem_alloc(sizeof(*read));
    if (!read) {
        (void)no_memory(err);
        return NULL;
    }
    read->kind = kind;
    arena_init(&read->arena, 4096, READ_ARENA_MAX);
    read->next = eng->reads;
    read->link = &eng->reads;
    if (read->next) read->next->link = &read->next;
    eng->reads = read;
    return read;
}

void read_free(struct engine_read *read) {
    *read->link = read->next;
    if (read->next) read->next->link = read->link;
    arena_release(&read->arena);
    mem_free(read);
}

static void ask(struct engine *eng, struct engine_read *read) {
    read->code = ST_OK;
    read->err = (struct error){0};
    read->rows = NULL;
    read->row_count = 0;
    read->more = false;
    if (read->run) eng->load_count++;
    read->counts_wanted = read->run && read->run->wanted;
    if (read->counts_wanted) eng->wanted_count++;
    eng->ports.read(eng->ports.context, read);
}

void load_over(struct engine *eng, struct engine_read *read) {
    eng->load_count--;
    if (read->counts_wanted) eng->wanted_count--;
    read->counts_wanted = false;
}

bool engine_ask_due(struct engine *eng, enum read_kind kind, const struct lease_range *range) {
    struct error ignored;
    struct engine_read *read = read_new(eng, kind, &ignored);
    if (!read) return false;
    read->range = *range;
    read->pass = eng->recover_pass;
    ask(eng, read);
    return true;
}

status run_ask(struct engine_run *r, int64_t after_seq, struct error *err) {
    const struct engine_options *o = &r->eng->options;
    struct engine_read *read = read_new(r->eng, READ_RUN, err);
    ASSERT(!r->read);
    if (!read) return ST_RETRY;
    const str *ids[] = {&r->run_id, r->starts ? &r->starts->request.tenant_id : &r->ids.tenant_id,
                        r->starts ? &r->starts->request.ref.plan_id : &r->ids.plan_id};
    str *to[] = {&read->run_id, &read->tenant_id, &read->plan_id};
    for (size_t i = 0; i < COUNT_OF(ids); i++) { /* the run may be dropped meanwhile */
        if (!ids[i]->ptr || arena_try_str(&read->arena, *ids[i], to[i])) continue;
        read_free(read);
        return no_memory(err);
    }
    read->wants_counts = (o->tenant_active_max > 0 || o->plan_active_max > 0) && read->tenant_id.ptr;
    read->after_seq = after_seq;
    read->kept = arena_mark(&read->arena);
    read->run = r;
    r->read = read;
    r->counts_no = r->eng->start_no;
    r->stale = false; /* what others write from now on is told again */
    ask(r->eng, read);
    return ST_OK;
}

void run_ask_more(struct engine_run *r, struct engine_read *read) {
    ASSERT(read->more && read->row_count > 0 && !r->read);
    read->after_seq = read->rows[read->row_count - 1].seq;
    arena_rewind(&read->arena, read->kept); /* the page is applied */
    read->run = r;
    r->read = read;
    ask(r->eng, read);
}

static bool grow(struct engine_read *read) {
    size_t count = read->row_count;
    if (count > 0 && (count < READ_ROWS_FIRST || (count & (count - 1)) != 0)) return true;
    size_t room = count == 0 ? READ_ROWS_FIRST : 2 * count;
    struct event_record *rows = arena_try_raw(&read->arena, room * sizeof(*rows));
    if (!rows) return false;
    if (count > 0) memcpy(rows, read->rows, count * sizeof(*rows));
    read->rows = rows;
    return true;
}

status engine_read_row(void *context, const struct event_record *rec, bool *stop,
                       struct error *err) {
    struct engine_read *read = context;
    if (read->row_count == READ_ROWS_MAX ||
        (read->row_count > 0 && read->arena.used > READ_PAGE_BYTES)) {
        *stop = read->more = true;
        return ST_OK;
    }
    if (!grow(read)) return no_memory(err);
    struct event_record *to = &read->rows[read->row_count];
    *to = *rec;
    struct event *e = &to->event;
    e->run_id = e->tenant_id = e->project_id = e->environment_id = STR_NONE;
    e->plan_id = e->plan_version = STR_NONE; /* the run's own are in `loaded` */
    str *texts[] = {&e->type_name, &e->subject, &e->payload, &to->actor};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        if (texts[i]->ptr && !arena_try_str(&read->arena, *texts[i], texts[i])) return no_memory(err);
    }
    read->row_count++;
    return ST_OK;
}

void engine_read_done(struct engine *eng, struct engine_read *read) {
    struct engine_run *r = read->run;
    switch (read->kind) {
    case READ_DUE:
    case READ_UNDER_WAY:
        if (!eng->lost) engine_due_read(eng, read);
        break;
    case READ_RUN:
        if (!r) break;
        ASSERT(r->read == read);
        r->read = NULL;
        read->run = NULL;
        load_over(eng, read);
        if (eng->lost) {
            struct error gone = {0};
            error_at(&gone, REASON_LEASE_LOST, "", "this node no longer carries out the run");
            gone.code = ST_RETRY;
            run_drop(r, ST_RETRY, &gone);
        } else {
            run_was_read(r, read);
        }
        break;
    }
    if (!read->run) read_free(read); /* else it was asked again, for the next page */
    if (!eng->lost) engine_arm(eng);
}
