/* view/view.c: writing and reading any noun; and events, whose table is core's. */
#include "view/impl.h"

void view_members(const struct noun *noun, const void *object, struct buf *out) {
    members_write(noun->rows, noun->count, object, out);
}

void view_write(const struct noun *noun, const void *object, struct buf *out) {
    json_object_begin(out);
    view_members(noun, object, out);
    json_object_end(out);
}

void view_read(const struct noun *noun, yyjson_val *from, struct arena *arena, void *object) {
    memset(object, 0, noun->size);
    members_read(noun->rows, noun->count, from, arena, object);
}

void *view_read_all(const struct noun *noun, yyjson_val *from, struct arena *arena, size_t *count) {
    yyjson_val *item;
    size_t i;
    size_t max;
    *count = yyjson_arr_size(from);
    char *objects = arena_alloc(arena, (*count + 1) * noun->size);
    yyjson_arr_foreach(from, i, max, item) {
        view_read(noun, item, arena, objects + i * noun->size);
    }
    return objects;
}

const struct noun view_event = {"FeedRecord", event_members, EVENT_FEED_MEMBERS,
                                sizeof(struct event_record)};
const struct noun view_record = {"EventRecord", event_members, EVENT_RECORD_MEMBERS,
                                 sizeof(struct event_record)};
