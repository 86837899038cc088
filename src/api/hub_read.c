/* api/hub_read.c: topics, and who is read for when.
 *
 * A topic is idle, or waits for its turn, or is being read, or pauses after a failure; the same
 * holds for a reader that is behind. A page is read for the first in line; who needs another one
 * goes to the end of it, so all get on alike. */
#include "api/hub_impl.h"
#include "base/arena.h"
#include "base/log.h"

/* ---- topics ---- */

static void drop_block(struct hub_topic *t) {
    struct hub_block *b = t->first;
    size_t bytes = hub_block_bytes(b);
    t->first = b->next;
    *(b->next ? &b->next->prev : &t->last) = NULL;
    t->recent_after = b->frames[b->count - 1].pos;
    ASSERT(t->recent_bytes >= bytes);
    t->recent_bytes -= bytes;
    t->hub->recent_bytes -= bytes;
    hub_block_free(b);
}

void hub_topic_trim(struct hub_topic *t) {
    while (t->first &&
           (t->recent_bytes > HUB_RECENT_BYTES_MAX || t->hub->recent_bytes > HUB_RECENT_TOTAL_MAX))
        drop_block(t);
}

static void add_block(struct hub_topic *t, struct hub_block *b) {
    size_t bytes = hub_block_bytes(b);
    b->after = t->head_pos;
    b->prev = t->last;
    *(t->last ? &t->last->next : &t->first) = b;
    t->last = b;
    t->recent_bytes += bytes;
    t->hub->recent_bytes += bytes;
    t->head_pos = b->frames[b->count - 1].pos;
    t->frame_bytes = b->text[HUB_SSE].len / b->count;
}

void hub_topic_unused(struct hub_topic *t) {
    if (t->held || t->job || t->catching > 0 || hub_linked(&t->subs)) return;
    while (t->first)
        drop_block(t);
    hub_unlink(&t->turn);
    hub_unlink(&t->of_hub);
    map_del(t->tenant_feed ? &t->hub->tenants : &t->hub->runs, t->id);
    mem_free(t);
}

/* ---- beginning ---- */

static struct hub_job *free_job(struct hub *hub, bool catch_up) {
    size_t from = catch_up ? HUB_READS_MAX : 0;
    size_t to = catch_up ? HUB_READS_MAX + HUB_CATCHUPS_MAX : HUB_READS_MAX;
    for (size_t i = from; i < to; i++)
        if (!hub->jobs[i].busy) return &hub->jobs[i];
    return NULL;
}

/* So many events that their bytes are about bytes_max. */
static size_t page_limit(const struct hub_topic *t, size_t bytes_max) {
    size_t limit = bytes_max / (t->frame_bytes > 0 ? t->frame_bytes : 512) + 1;
    if (limit < HUB_PAGE_LEAST) limit = HUB_PAGE_LEAST;
    return limit < HUB_PAGE ? limit : HUB_PAGE;
}

static bool submit(struct hub *hub, struct hub_job *j) {
    struct error err = {0};
    if (readers_try(hub->readers, &j->job, &err) != ST_OK) return false; /* the tick tries again */
    j->busy = true;
    return true;
}

static void on_topic_read(struct reader_job *base);
static void on_caught_up(struct reader_job *base);

static bool begin_read(struct hub *hub, struct hub_topic *t) {
    struct hub_job *j = free_job(hub, false);
    if (!j) return false;
    *j = (struct hub_job){.job = {.work = hub_page_read, .done = on_topic_read},
                          .topic = t,
                          .number = t->reads_begun + 1,
                          .start = !t->started,
                          .ask_status = !t->status_known,
                          .pos = t->head_pos,
                          .seq = t->started ? t->head_seq : -1,
                          .limit = page_limit(t, HUB_RECENT_BYTES_MAX),
                          .bytes_max = HUB_RECENT_BYTES_MAX};
    if (!submit(hub, j)) return false;
    hub_unlink(&t->turn);
    t->job = j;
    t->dirty = false;
    t->reads_begun++;
    return true;
}

static bool begin_catch_up(struct hub *hub, struct hub_sub *sub) {
    struct hub_job *j = free_job(hub, true);
    if (!j) return false;
    *j = (struct hub_job){.job = {.work = hub_page_read, .done = on_caught_up},
                          .topic = sub->topic,
                          .sub = sub,
                          .catch_up = true,
                          .pos = sub->pos,
                          .seq = sub->seq,
                          .limit = page_limit(sub->topic, HUB_UNSENT_MAX),
                          .bytes_max = HUB_UNSENT_MAX};
    if (!submit(hub, j)) return false;
    hub_unlink(&sub->turn);
    sub->job = j;
    sub->topic->catching++;
    metric_add(hub->catchups_total, 1);
    return true;
}

void hub_pump(struct hub *hub) {
    if (hub->draining) return;
    while (hub_linked(&hub->reads) &&
           begin_read(hub, HUB_OWNER(hub->reads.next, struct hub_topic, turn))) {
    }
    while (hub_linked(&hub->catchups) &&
           begin_catch_up(hub, HUB_OWNER(hub->catchups.next, struct hub_sub, turn))) {
    }
}

void hub_topic_want(struct hub_topic *t) {
    t->dirty = true;
    if (t->job || hub_linked(&t->turn)) return;
    hub_link_last(&t->hub->reads, &t->turn);
    hub_pump(t->hub);
}

void hub_catch_up_want(struct hub_sub *sub) {
    ASSERT(!sub->job);
    if (hub_linked(&sub->turn)) return;
    hub_link_last(&sub->hub->catchups, &sub->turn);
    hub_pump(sub->hub);
}

/* ---- failing ---- */

static int64_t longer(int64_t pause_ms) {
    if (pause_ms == 0) return HUB_PAUSE_MS;
    return pause_ms * 2 < HUB_PAUSE_MAX_MS ? pause_ms * 2 : HUB_PAUSE_MAX_MS;
}

static void tell(const struct hub_topic *t, const struct reader_job *job) {
    LOG(LOG_WARN, "could not read events for a stream: trying again",
        LOG_S(t->tenant_feed ? "tenantId" : "runId", t->id), LOG_S("error", str_c(job->err.msg)));
}

static void pause_topic(struct hub_topic *t) {
    t->pause_ms = longer(t->pause_ms);
    t->retry_ms = (int64_t)uv_now(t->hub->loop) + t->pause_ms;
    hub_link_last(&t->hub->reads_paused, &t->turn);
}

static void pause_sub(struct hub_sub *sub) {
    sub->pause_ms = longer(sub->pause_ms);
    sub->retry_ms = (int64_t)uv_now(sub->hub->loop) + sub->pause_ms;
    hub_link_last(&sub->hub->catchups_paused, &sub->turn);
}

void hub_retry(struct hub *hub) {
    int64_t now = (int64_t)uv_now(hub->loop);
    struct hub_link *next;
    for (struct hub_link *l = hub->reads_paused.next; l != &hub->reads_paused; l = next) {
        next = l->next;
        if (HUB_OWNER(l, struct hub_topic, turn)->retry_ms <= now) hub_link_last(&hub->reads, l);
    }
    for (struct hub_link *l = hub->catchups_paused.next; l != &hub->catchups_paused; l = next) {
        next = l->next;
        if (HUB_OWNER(l, struct hub_sub, turn)->retry_ms <= now) hub_link_last(&hub->catchups, l);
    }
    hub_pump(hub);
}

/* ---- what was read ---- */

static void take_page(struct hub_topic *t, struct hub_job *j) {
    if (j->start) {
        t->started = true;
        t->head_pos = t->recent_after = j->pos;
    }
    t->head_seq = j->read_seq;
    t->reads_done = j->number;
    t->at_end = j->at_end;
    t->pause_ms = 0;
    if (j->asked && j->at_end) {
        t->status_known = true;
        t->status = j->status;
        t->over = t->over || j->over;
    } else if (j->asked) {
        t->status_known = false; /* something was committed meanwhile: asked again with that page */
    }
    if (j->block) add_block(t, j->block);
}

/* To everybody. What a reader does meanwhile (it ends, and its connection asks for the next stream)
 * changes the list only at that reader and at the end. */
static void serve_all(struct hub_topic *t) {
    struct hub_link *next;
    for (struct hub_link *l = t->subs.next; l != &t->subs; l = next) {
        struct hub_sub *sub = HUB_OWNER(l, struct hub_sub, of_topic);
        next = l->next;
        if (!sub->follow && sub->until < 0 && t->at_end && t->reads_done >= sub->joined)
            sub->until = t->head_pos;
        hub_deliver(sub);
    }
}

static void begin_all(struct hub_topic *t) {
    struct hub_link *next;
    for (struct hub_link *l = t->subs.next; l != &t->subs; l = next) {
        next = l->next;
        hub_begin(HUB_OWNER(l, struct hub_sub, of_topic));
    }
}

static void on_topic_read(struct reader_job *base) {
    struct hub_job *j = (struct hub_job *)base;
    struct hub_topic *t = j->topic;
    struct hub *hub = t->hub;
    t->job = NULL;
    t->held = true;
    if (base->code == ST_OK) {
        take_page(t, j);
        serve_all(t);
        hub_topic_trim(t);
        if ((t->dirty || !t->at_end) && !t->job && !hub_linked(&t->turn))
            hub_link_last(&hub->reads, &t->turn);
    } else {
        if (t->pause_ms == 0) tell(t, base);
        pause_topic(t);
        begin_all(t); /* who waits shall see that the stream is open */
    }
    j->busy = false; /* not before: others begin meanwhile */
    t->held = false;
    hub_topic_unused(t);
    hub_pump(hub);
}

static void serve_one(struct hub_sub *sub, struct hub_job *j) {
    if (j->job.code != ST_OK) {
        if (sub->pause_ms == 0) tell(sub->topic, &j->job);
        if (hub_begin(sub)) pause_sub(sub);
        return;
    }
    bool moved = j->read_seq > j->seq;
    if (j->block && !hub_send_block(sub, j->block)) return; /* blocked: goes on when writable */
    sub->seq = j->read_seq;
    if (moved) {
        sub->pause_ms = 0;
        hub_deliver(sub);
    } else {
        pause_sub(sub); /* what the topic has seen is not there (yet): no reason to hurry */
    }
}

static void on_caught_up(struct reader_job *base) {
    struct hub_job *j = (struct hub_job *)base;
    struct hub_topic *t = j->topic;
    struct hub *hub = t->hub;
    struct hub_block *block = j->block;
    struct hub_sub *sub = j->sub;
    t->held = true;
    t->catching--;
    if (sub) {
        sub->job = NULL;
        serve_one(sub, j);
    }
    j->busy = false; /* as above */
    hub_block_free(block);
    t->held = false;
    hub_topic_unused(t);
    hub_pump(hub);
}
