/* adapters/temporal/wire.c: building protobuf messages in an arena. */
#include "adapters/temporal/wire.h"

enum { QUEUE_NORMAL = 1 };

static void *alloc_in_arena(void *arena, size_t size) { return arena_try_raw(arena, size); }
static void free_nothing(void *arena, void *piece) {
    UNUSED(arena);
    UNUSED(piece);
}

void *wire_new(const ProtobufCMessageDescriptor *type, struct arena *arena) {
    void *message = arena_try_raw(arena, type->sizeof_message);
    if (message) protobuf_c_message_init(type, message);
    return message;
}

void *wire_list(size_t n, struct arena *arena) { return arena_try(arena, n * sizeof(void *)); }

status wire_unpack(const ProtobufCMessageDescriptor *type, str bytes, struct arena *arena,
                   void **out, struct error *err) {
    ProtobufCAllocator alloc = {alloc_in_arena, free_nothing, arena};
    static const uint8_t nothing; /* an empty message has no bytes, which is no mistake */
    const uint8_t *data = bytes.len > 0 ? (const uint8_t *)bytes.ptr : &nothing;
    void *message = protobuf_c_message_unpack(type, &alloc, bytes.len, data);
    if (!message)
        return error_set(err, ST_INVALID, "%zu bytes are no %s, or are too many for us", bytes.len,
                         type->short_name);
    *out = message;
    return ST_OK;
}

status wire_pack(const ProtobufCMessage *message, struct arena *arena, str *out,
                 struct error *err) {
    size_t size = protobuf_c_message_get_packed_size(message);
    if (size > WIRE_REQUEST_MAX)
        return error_set(err, ST_LIMIT, "a request of %zu bytes is more than a cluster takes",
                         size);
    uint8_t *bytes = arena_try_raw(arena, size);
    if (!bytes) return error_set(err, ST_RETRY, "out of memory");
    *out = str_n(bytes, protobuf_c_message_pack(message, bytes));
    return ST_OK;
}

Tp__Payload *wire_json(str json, struct arena *arena) {
    Tp__Payload *payload = wire_new(&tp__payload__descriptor, arena);
    Tp__Entry *entry = wire_new(&tp__entry__descriptor, arena);
    Tp__Entry **entries = wire_list(1, arena);
    if (!payload || !entry || !entries) return NULL;
    entry->key = wire_bytes(STR("encoding"));
    entry->value = wire_bytes(STR("json/plain"));
    entries[0] = entry;
    payload->metadata = entries;
    payload->n_metadata = 1;
    payload->data = wire_bytes(json);
    return payload;
}

Tp__Payloads *wire_json_list(str json, struct arena *arena) {
    Tp__Payloads *list = wire_new(&tp__payloads__descriptor, arena);
    Tp__Payload **payloads = wire_list(1, arena);
    Tp__Payload *payload = wire_json(json, arena);
    if (!list || !payloads || !payload) return NULL;
    payloads[0] = payload;
    list->payloads = payloads;
    list->n_payloads = 1;
    return list;
}

str wire_json_of(const Tp__Payloads *list) {
    if (!list || list->n_payloads == 0) return STR_NONE;
    const Tp__Payload *payload = list->payloads[0];
    for (size_t i = 0; i < payload->n_metadata; i++) {
        if (str_eq(wire_str(payload->metadata[i]->key), STR("encoding")) &&
            str_eq(wire_str(payload->metadata[i]->value), STR("json/plain")))
            return payload->data.len > 0 ? wire_str(payload->data) : STR_NONE;
    }
    return STR_NONE;
}

Tp__Type *wire_type(str name, struct arena *arena) {
    Tp__Type *type = wire_new(&tp__type__descriptor, arena);
    if (type) type->name = wire_bytes(name);
    return type;
}

Tp__Queue *wire_queue(str name, struct arena *arena) {
    Tp__Queue *queue = wire_new(&tp__queue__descriptor, arena);
    if (!queue) return NULL;
    queue->name = wire_bytes(name);
    queue->kind = QUEUE_NORMAL;
    return queue;
}

Tp__Duration *wire_ms(int64_t ms, struct arena *arena) {
    Tp__Duration *d = wire_new(&tp__duration__descriptor, arena);
    if (!d) return NULL;
    d->seconds = ms / 1000;
    d->nanos = (int32_t)(ms % 1000) * 1000000;
    return d;
}

Tp__Failure *wire_failure(str code, str message, str detail, bool retryable, struct arena *arena) {
    Tp__Failure *failure = wire_new(&tp__failure__descriptor, arena);
    Tp__ApplicationFailure *info = wire_new(&tp__application_failure__descriptor, arena);
    if (!failure || !info) return NULL;
    failure->message = wire_bytes(message);
    failure->source = wire_bytes(STR("cairn"));
    info->type = wire_bytes(code);
    info->non_retryable = !retryable;
    if (detail.ptr) {
        info->details = wire_json_list(detail, arena);
        if (!info->details) return NULL;
    }
    failure->info_case = TP__FAILURE__INFO_APPLICATION;
    failure->application = info;
    return failure;
}
