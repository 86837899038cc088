/* api/hub_send.c: one stream: what it is given, and its end. */
#include "api/hub_impl.h"
#include "base/arena.h"

/* ---- the answer ---- */

enum { OWN_HEADERS = 3 };

static void begin_answer(struct hub_sub *sub) {
    struct http_header headers[OWN_HEADERS + HUB_HEADERS_MAX] = {
        {STR("Content-Type"),
         sub->format == HUB_SSE ? STR("text/event-stream") : STR("application/x-ndjson")},
        {STR("Cache-Control"), STR("no-store")},
        {STR("X-Accel-Buffering"), STR("no")}, /* proxies shall pass events on at once */
    };
    for (size_t i = 0; i < sub->header_count; i++)
        headers[OWN_HEADERS + i] = sub->headers[i];
    http_stream_begin(sub->exchange, 200, headers, OWN_HEADERS + sub->header_count);
    sub->begun = true;
    mem_free(sub->headers);
    sub->headers = NULL;
}

bool hub_write(struct hub_sub *sub, str bytes) {
    struct hub *hub = sub->hub;
    if (!http_stream_write(sub->exchange, bytes)) {
        hub_end(sub);
        return false;
    }
    sub->written_ms = (int64_t)uv_now(hub->loop);
    hub_link_last(&hub->subs, &sub->of_hub);
    return true;
}

bool hub_begin(struct hub_sub *sub) {
    if (sub->begun) return true;
    begin_answer(sub);
    return sub->format != HUB_SSE || hub_write(sub, STR("retry: 2000\n\n"));
}

/* Nothing there, and nothing will come: an EventSource that is answered so does not ask again. */
static void answer_nothing(struct hub_sub *sub) {
    struct http_header headers[1 + HUB_HEADERS_MAX] = {{STR("Cache-Control"), STR("no-store")}};
    for (size_t i = 0; i < sub->header_count; i++)
        headers[1 + i] = sub->headers[i];
    http_respond(sub->exchange, 204, headers, 1 + sub->header_count, STR(""));
}

/* Everything that leads to the reader is cut first: giving the exchange up may bring the next
 * request of the connection, which may be a stream of the same topic. */
static void finish(struct hub_sub *sub, bool nothing) {
    struct hub *hub = sub->hub;
    hub_unlink(&sub->of_topic);
    hub_unlink(&sub->of_hub);
    hub_unlink(&sub->turn);
    if (sub->job) sub->job->sub = NULL;
    hub_owner_drop(hub, sub->owner);
    ASSERT(hub->streams > 0);
    hub->streams--;
    metric_set(hub->streams_now, (int64_t)hub->streams);
    hub_topic_unused(sub->topic);
    if (nothing) {
        answer_nothing(sub);
    } else {
        if (!sub->begun) begin_answer(sub);
        http_stream_end(sub->exchange);
    }
    if (sub->ended) sub->ended(sub->context);
    mem_free(sub->headers);
    mem_free(sub);
}

void hub_end(struct hub_sub *sub) { finish(sub, false); }

/* All of a run that has ended was given. */
static void end_over(struct hub_sub *sub) {
    const struct hub_topic *t = sub->topic;
    struct buf text;
    if (sub->format == HUB_NDJSON || !sub->begun) {
        finish(sub, sub->format == HUB_SSE);
        return;
    }
    buf_init(&text, 2048 + 6 * t->id.len);
    buf_printf(&text, "id: %lld\nevent: end\ndata: {\"runId\":", (long long)sub->pos);
    buf_put_json_str(&text, t->id);
    buf_printf(&text, ",\"status\":\"%s\"}\n\n", run_status_name(t->status));
    bool alive = hub_write(sub, buf_str(&text));
    buf_release(&text);
    if (alive) hub_end(sub);
}

/* ---- events ---- */

/* Frames from `from` on that go out in one write. */
static size_t slice_end(const struct hub_sub *sub, const struct hub_block *b, size_t from) {
    size_t to = from;
    while (
        to < b->count && (sub->until < 0 || b->frames[to].pos <= sub->until) &&
        (to == from || hub_block_slice(b, sub->format, from, to + 1).len <= (size_t)HUB_UNSENT_MAX))
        to++;
    return to;
}

bool hub_send_block(struct hub_sub *sub, struct hub_block *b) {
    if (!hub_begin(sub)) return false;
    if (!hub_block_ready(b, sub->format)) { /* no memory: it comes again */
        hub_end(sub);
        return false;
    }
    size_t from = hub_block_find(b, sub->pos);
    size_t to;
    for (; (to = slice_end(sub, b, from)) > from; from = to) {
        if (http_stream_unsent(sub->exchange) > HUB_UNSENT_MAX) return false;
        if (!hub_write(sub, hub_block_slice(b, sub->format, from, to))) return false;
        metric_add(sub->hub->events, (int64_t)(to - from));
        sub->pos = b->frames[to - 1].pos;
        sub->seq = b->frames[to - 1].seq;
    }
    if (from < b->count && sub->pos < sub->until) sub->pos = sub->until; /* it lies in a gap */
    return true;
}

/* The oldest block with something after `pos`; mostly the newest one. */
static struct hub_block *block_after(const struct hub_topic *t, int64_t pos) {
    struct hub_block *b = t->last;
    if (!b || b->frames[b->count - 1].pos <= pos) return NULL;
    while (b->prev && b->after > pos)
        b = b->prev;
    return b;
}

static bool has_all(const struct hub_sub *sub) { return sub->until >= 0 && sub->pos >= sub->until; }

/* It has all that was read: is that the end? */
static void settle(struct hub_sub *sub) {
    const struct hub_topic *t = sub->topic;
    bool fresh = t->at_end && t->reads_done >= sub->joined;
    if (fresh && t->over && sub->pos >= t->head_pos)
        end_over(sub);
    else if ((has_all(sub) || fresh) && hub_begin(sub) && has_all(sub))
        hub_end(sub);
}

void hub_deliver(struct hub_sub *sub) {
    struct hub_topic *t = sub->topic;
    if (!t->started || sub->job || hub_linked(&sub->turn)) return; /* it gets there otherwise */
    while (!has_all(sub)) {
        if (http_stream_unsent(sub->exchange) > HUB_UNSENT_MAX) return; /* until it is writable */
        if (sub->pos < t->recent_after) {
            hub_catch_up_want(sub);
            return;
        }
        struct hub_block *b = block_after(t, sub->pos);
        if (!b) break;
        size_t before = hub_block_bytes(b);
        hub_block_ready(b, sub->format); /* (hub_send_block() sees whether it worked) */
        t->recent_bytes += hub_block_bytes(b) - before;
        t->hub->recent_bytes += hub_block_bytes(b) - before;
        if (!hub_send_block(sub, b)) return;
    }
    settle(sub);
}
