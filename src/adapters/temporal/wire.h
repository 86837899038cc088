/* adapters/temporal/wire.h: Temporal's messages in an arena, and the values inside them.
 *
 * A text in a message is bytes with a length (see temporal.proto), so a str goes in and comes out
 * without a copy. Pure. */
#pragma once

#include <temporal.pb-c.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/str.h"

/* Of one value in a command; the cluster ends a run whose command has 2 MiB in one. */
#define WIRE_PAYLOAD_MAX ((size_t)1900 * 1024)
#define WIRE_REQUEST_MAX ((size_t)3800 * 1024) /* of one request; the cluster takes 4 MiB */

static inline ProtobufCBinaryData wire_bytes(str s) {
    union { /* protobuf-c has no bytes that cannot be written to; it only reads ours */
        const char *text;
        uint8_t *bytes;
    } p = {s.ptr};
    return (ProtobufCBinaryData){s.len, p.bytes};
}
static inline str wire_str(ProtobufCBinaryData b) { return str_n(b.data, b.len); }

/* A message with all defaults in the arena; NULL when memory is out. */
void *wire_new(const ProtobufCMessageDescriptor *type, struct arena *arena);
/* Room for a list of n messages: n pointers. NULL when memory is out. */
void *wire_list(size_t n, struct arena *arena);
/* Reads a message. It lives in the arena, its texts too. ST_INVALID when the bytes are none. */
MUST_CHECK status wire_unpack(const ProtobufCMessageDescriptor *type, str bytes,
                              struct arena *arena, void **out, struct error *err);
/* The bytes of a message, in the arena. ST_LIMIT when they are more than WIRE_REQUEST_MAX. */
MUST_CHECK status wire_pack(const ProtobufCMessage *message, struct arena *arena, str *out,
                            struct error *err);

/* One value, a JSON text, which is borrowed. NULL when memory is out. */
Tp__Payload *wire_json(str json, struct arena *arena);
Tp__Payloads *wire_json_list(str json, struct arena *arena);
/* The first value if it is JSON, else STR_NONE. The text is not checked. */
str wire_json_of(const Tp__Payloads *list);
Tp__Type *wire_type(str name, struct arena *arena);
Tp__Queue *wire_queue(str name, struct arena *arena); /* of the ordinary kind */
Tp__Duration *wire_ms(int64_t ms, struct arena *arena);
/* A failure of type `code`. `detail` is JSON, or STR_NONE. */
Tp__Failure *wire_failure(str code, str message, str detail, bool retryable, struct arena *arena);
