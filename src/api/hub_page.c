/* api/hub_page.c: one page of events, read and rendered on a reader thread. */
#include "api/hub_impl.h"
#include "base/arena.h"

/* ---- blocks ---- */

void hub_block_free(struct hub_block *b) {
    if (!b) return;
    buf_release(&b->text[HUB_SSE]);
    buf_release(&b->text[HUB_NDJSON]);
    mem_free(b->frames);
    mem_free(b);
}

size_t hub_block_bytes(const struct hub_block *b) {
    return sizeof(*b) + b->count * sizeof(*b->frames) + b->text[HUB_SSE].cap +
           b->text[HUB_NDJSON].cap;
}

size_t hub_block_find(const struct hub_block *b, int64_t pos) {
    size_t low = 0;
    size_t high = b->count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (b->frames[mid].pos > pos)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

str hub_block_slice(const struct hub_block *b, enum hub_format format, size_t from, size_t to) {
    ASSERT(from <= to);
    ASSERT(to <= b->count);
    size_t start = from > 0 ? b->frames[from - 1].end[format] : 0;
    size_t end = to > 0 ? b->frames[to - 1].end[format] : 0;
    return str_n(b->text[format].ptr + start, end - start);
}

/* A frame for SSE ends in the JSON and two line ends: the JSON and one of them is the line. */
bool hub_block_ready(struct hub_block *b, enum hub_format format) {
    struct buf *out = &b->text[format];
    if (out->len > 0) return true;
    ASSERT(format == HUB_NDJSON);
    buf_init(out, b->frames[b->count - 1].end[format]);
    for (size_t i = 0; i < b->count; i++) {
        const struct hub_frame *f = &b->frames[i];
        buf_put(out, str_n(b->text[HUB_SSE].ptr + f->json, f->end[HUB_SSE] - 1 - f->json));
    }
    if (!out->full) return true;
    buf_release(out);
    return false;
}

/* ---- rendering ---- */

/* A name that could break the frame is shown in the data only. */
static bool one_line(str s) {
    for (size_t i = 0; i < s.len; i++)
        if ((unsigned char)s.ptr[i] < 0x20) return false;
    return true;
}

static void put_frame(struct hub_block *b, bool tenant_feed, const struct event_record *rec) {
    struct buf *out = &b->text[HUB_SSE];
    struct hub_frame *f = &b->frames[b->count];
    f->pos = tenant_feed ? rec->seq : rec->run_seq;
    f->seq = rec->seq;
    buf_put(out, STR("id: "));
    buf_put_int(out, f->pos);
    if (one_line(rec->event.type_name)) {
        buf_put(out, STR("\nevent: "));
        buf_put(out, rec->event.type_name);
    }
    buf_put(out, STR("\ndata: "));
    f->json = (uint32_t)out->len;
    if (tenant_feed)
        event_feed_json(rec, out);
    else
        event_record_json(rec, out);
    buf_put(out, STR("\n\n"));
    f->end[HUB_SSE] = (uint32_t)out->len;
    f->end[HUB_NDJSON] = (b->count > 0 ? b->frames[b->count - 1].end[HUB_NDJSON] : 0) +
                         (uint32_t)out->len - 1 - f->json;
    b->count++;
}

static struct hub_block *new_block(const struct hub_job *j, size_t frames) {
    struct hub_block *b = mem_alloc(sizeof(*b));
    if (!b) return NULL;
    b->frames = mem_alloc((frames > 0 ? frames : 1) * sizeof(*b->frames));
    buf_init(&b->text[HUB_SSE], j->bytes_max + (size_t)1024 * 1024); /* and one event more */
    if (b->frames) return b;
    hub_block_free(b);
    return NULL;
}

static bool is_terminal(enum event_type type) {
    return type == EVENT_RUN_COMPLETED || type == EVENT_RUN_FAILED || type == EVENT_RUN_CANCELLED;
}

/* Renders records up to bytes_max; *cut if some are left. */
static status render(struct hub_job *j, const struct event_page *page, bool *cut, bool *terminal,
                     struct error *err) {
    bool feed = j->topic->tenant_feed;
    struct hub_block *b = new_block(j, page->count);
    if (!b) return error_set(err, ST_RETRY, "stream: out of memory");
    for (size_t i = 0; i < page->count; i++) {
        const struct event_record *rec = &page->records[i];
        *cut = b->text[HUB_SSE].len >= j->bytes_max;
        if (*cut) break;
        j->read_seq = rec->seq;
        *terminal = *terminal || is_terminal(rec->event.type);
        if (feed || rec->run_seq > j->pos) put_frame(b, feed, rec); /* a fact has no runSeq */
    }
    if (b->text[HUB_SSE].full) {
        hub_block_free(b);
        return error_set(err, ST_RETRY, "stream: out of memory");
    }
    if (b->count > 0)
        j->block = b;
    else
        hub_block_free(b);
    return ST_OK;
}

/* ---- reading ---- */

/* Where the recent events begin, if that is asked, and where to read on. */
static status locate(struct hub_job *j, struct ledger *reader, struct arena *arena,
                     struct error *err) {
    int64_t newest = 0;
    status st = ST_OK;
    if (j->start && j->topic->tenant_feed) {
        st = ledger_seq_at(reader, j->topic->id, INT64_MAX, &newest, err);
        newest--; /* it is one past the last */
    } else if (j->start) {
        struct run_info info;
        st = ledger_find_run(reader, j->topic->id, arena, &info, err);
        if (st == ST_OK) newest = info.head.run_seq;
    }
    if (st != ST_OK) return st;
    if (j->start) j->pos = newest > HUB_PAGE ? newest - HUB_PAGE : 0;
    if (j->topic->tenant_feed)
        j->seq = j->pos;
    else if (j->seq < 0)
        st = ledger_run_position(reader, j->topic->id, j->pos, &j->seq, err);
    return st;
}

/* A page of large events may not fit into the arena: then fewer of them. One always does. */
static status read_records(struct hub_job *j, struct ledger *reader, struct arena *arena,
                           struct event_page *page, struct error *err) {
    while (true) {
        arena_reset(arena);
        status st =
            j->topic->tenant_feed
                ? ledger_read_tenant(reader, j->topic->id, j->seq, j->limit, arena, page, err)
                : ledger_read_run(reader, j->topic->id, j->seq, j->limit, arena, page, err);
        bool too_much = st == ST_RETRY && arena->used > HUB_ARENA_MAX / 2;
        if (!too_much || j->limit == 1) return st;
        j->limit = (j->limit + 7) / 8;
    }
}

/* Is the run over, and was everything of it read? */
static status ask_status(struct hub_job *j, struct ledger *reader, struct arena *arena,
                         struct error *err) {
    struct run_info info;
    arena_reset(arena);
    status st = ledger_find_run(reader, j->topic->id, arena, &info, err);
    if (st != ST_OK) return st;
    j->asked = true;
    j->status = info.head.status;
    if (info.head.last_seq > j->read_seq) j->at_end = false; /* committed since the page was read */
    j->over = j->at_end && run_is_final(j->status);
    return ST_OK;
}

static status read_and_render(struct hub_job *j, struct ledger *reader, struct arena *arena,
                              struct error *err) {
    struct event_page page = {0};
    bool cut = false;
    bool terminal = false;
    status st = locate(j, reader, arena, err);
    if (st != ST_OK) return st;
    j->read_seq = j->seq;
    st = read_records(j, reader, arena, &page, err);
    if (st == ST_OK) st = render(j, &page, &cut, &terminal, err);
    if (st != ST_OK) return st;
    j->at_end = !cut && page.count < j->limit;
    if (j->at_end && !j->topic->tenant_feed && !j->catch_up && (j->ask_status || terminal))
        st = ask_status(j, reader, arena, err);
    return st;
}

status hub_page_read(struct reader_job *base, struct ledger *reader, struct error *err) {
    struct hub_job *j = (struct hub_job *)base;
    struct arena arena;
    arena_init(&arena, 16384, HUB_ARENA_MAX);
    status st = read_and_render(j, reader, &arena, err);
    arena_release(&arena);
    if (st == ST_NOT_FOUND) { /* a tenant of which nothing was ever stored */
        if (j->start) j->pos = 0;
        if (j->seq < 0) j->seq = 0;
        j->read_seq = j->seq;
        j->at_end = true;
        st = ST_OK;
    }
    if (st != ST_OK) {
        hub_block_free(j->block);
        j->block = NULL;
    }
    return st;
}
