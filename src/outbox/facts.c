/* outbox/facts.c: the facts of an effect, one after the other, until they are an append request.
 * change.c and request.c say what stands in them. */
#include "base/json_out.h"
#include "base/limits.h"
#include "outbox/outbox_impl.h"

status outbox_no_memory(struct error *err) {
    return error_set(err, ST_RETRY, "outbox: out of memory");
}

static struct event ids_of(const struct effect_info *i) {
    return (struct event){.run_id = i->run_id,
                          .tenant_id = i->tenant_id,
                          .project_id = i->project_id,
                          .environment_id = i->environment_id,
                          .plan_id = i->plan_id,
                          .plan_version = i->plan_version,
                          .engine_attempt = i->engine_attempt};
}

status facts_begin(struct facts *f, const struct outbox_maker *maker, const struct event *ids,
                   uuid effect_id, size_t room, struct error *err) {
    char text[UUID_TEXT_LEN];
    uuid_format(effect_id, text);
    *f = (struct facts){.ids = *ids, .room = room, .maker = maker};
    buf_init(&f->data, EVENT_BYTES_MAX);
    f->items = arena_try(maker->arena, room * sizeof(*f->items));
    bool ok = f->items && arena_try_str(maker->arena, str_n(text, sizeof(text)), &f->subject);
    return ok ? ST_OK : outbox_no_memory(err);
}

status facts_begin_of(struct facts *f, const struct outbox_maker *maker,
                      const struct effect_info *info, size_t room, struct error *err) {
    struct event ids = ids_of(info);
    status st = facts_begin(f, maker, &ids, info->effect.id, room, err);
    if (st == ST_OK) {
        uuid *cause = arena_try(maker->arena, sizeof(*cause));
        if (!cause) return outbox_no_memory(err);
        *cause = info->request_id;
        f->cause = cause;
    }
    return st;
}

/* ---- the data of one ---- */

void facts_head(struct facts *f, uuid id, str run_uuid, str type) {
    json_object_begin(&f->data);
    json_put_uuid(&f->data, "effect_id", id);
    json_put_text(&f->data, "run_id", run_uuid);
    json_put_text(&f->data, "effect_type", type);
}

void facts_execution(struct facts *f, const struct effect_info *i) {
    facts_head(f, i->effect.id, i->run_uuid, i->effect.type);
    json_put_int(&f->data, "execution", i->effect.executions);
}

status facts_add(struct facts *f, enum event_type type, int64_t occurrence, struct error *err) {
    struct buf *b = &f->data;
    str data = STR_NONE;
    ASSERT(f->count < f->room);
    struct append_item *item = &f->items[f->count];
    json_object_end(b);
    if (b->full && b->cap < b->max) return outbox_no_memory(err); /* it did not grow */
    if (b->full)
        return error_as(err, ST_LIMIT, REASON_EFFECT_PAYLOAD_INVALID, "/payload",
                        "the data of an effect's event has more than %zu bytes", EVENT_BYTES_MAX);
    if (!arena_try_str(f->maker->arena, buf_str(b), &data)) return outbox_no_memory(err);
    buf_clear(b);
    status st = ledger_fact(&f->ids, type, f->subject, occurrence, data, item, err);
    item->actor = f->maker->actor;
    item->cause = f->cause;
    if (st == ST_OK) f->count++;
    return st;
}

status facts_end(struct facts *f, status st, struct outbox_change *out, struct error *err) {
    struct append_result *results = NULL;
    buf_release(&f->data);
    if (st != ST_OK) return st;
    ASSERT(f->count > 0);
    results = arena_try(f->maker->arena, f->count * sizeof(*results));
    if (!results) return outbox_no_memory(err);
    out->request = (struct append_request){.items = f->items,
                                           .count = f->count,
                                           .atomic = true,
                                           .results = results,
                                           .arena = f->maker->arena};
    return ST_OK;
}
