/* base/members.c: the one writer and the one reader of tables of members. */
#include "base/members.h"

#include <assert.h>

#include "base/json_out.h"
#include "base/time.h"

static_assert(sizeof(enum member_kind) == sizeof(int), "an enum is an int: MEMBER_WORD");

/* ---- writing ---- */

static void put_int(const struct member_row *m, const char *at, struct buf *out) {
    int64_t value;
    memcpy(&value, at, sizeof(value));
    if (m->kind == MEMBER_SPAN) {
        if (value >= 0) json_put_int(out, m->name, value);
    } else if (m->kind == MEMBER_TIME) {
        if (value > 0 || !m->optional) json_put_time(out, m->name, value);
    } else if (value != 0 || !m->optional) {
        json_put_int(out, m->name, value);
    }
}

static void put_text(const struct member_row *m, str value, struct buf *out) {
    if (value.ptr || !m->optional) json_put_text(out, m->name, value);
}

static void put_word(const struct member_row *m, const char *at, struct buf *out) {
    int value;
    memcpy(&value, at, sizeof(value));
    bool named = value >= 0 && value < m->words->end;
    put_text(m, named ? str_c(m->words->name(value)) : STR_NONE, out);
}

static void put_member(const struct member_row *m, const void *object, struct buf *out) {
    const char *at = (const char *)object + m->offset;
    str text = STR_NONE;
    bool flag;
    uuid id;
    switch (m->kind) {
    case MEMBER_TEXT:
        memcpy(&text, at, sizeof(text));
        put_text(m, text, out);
        break;
    case MEMBER_CHARS:
        put_text(m, at[0] ? str_c(at) : STR_NONE, out);
        break;
    case MEMBER_INT:
    case MEMBER_SPAN:
    case MEMBER_TIME:
        put_int(m, at, out);
        break;
    case MEMBER_BOOL:
        memcpy(&flag, at, sizeof(flag));
        if (flag || !m->optional) json_put_bool(out, m->name, flag);
        break;
    case MEMBER_UUID:
        memcpy(&id, at, sizeof(id));
        json_put_uuid(out, m->name, id);
        break;
    case MEMBER_JSON:
        memcpy(&text, at, sizeof(text));
        if (text.ptr || !m->optional) json_put_json(out, m->name, text);
        break;
    case MEMBER_WORD:
        put_word(m, at, out);
        break;
    case MEMBER_OWN:
        m->own->write(object, m->name, out);
        break;
    }
}

void members_write(const struct member_row *rows, size_t count, const void *object,
                   struct buf *out) {
    for (size_t i = 0; i < count; i++)
        put_member(&rows[i], object, out);
}

/* ---- reading ---- */

int64_t member_time_us(yyjson_val *value) {
    str text = STR_NONE;
    int64_t ns = 0;
    int digits = 0;
    return json_str(value, &text) && time_parse_utc(text, &ns, &digits) ? ns / 1000 : 0;
}

static int word_value(const struct member_words *words, str name) {
    for (int i = words->first; i < words->end; i++) {
        if (str_eq(name, str_c(words->name(i)))) return i;
    }
    return words->unknown;
}

static void take_text(const struct member_row *m, str text, char *at) {
    if (m->kind == MEMBER_TEXT) {
        memcpy(at, &text, sizeof(text));
    } else if (m->kind == MEMBER_CHARS) {
        size_t len = text.len < m->room ? text.len : m->room - 1;
        memcpy(at, text.ptr, len);
        at[len] = 0;
    } else if (m->kind == MEMBER_UUID) {
        uuid id;
        if (uuid_parse(text, &id)) memcpy(at, &id, sizeof(id));
    } else {
        int value = word_value(m->words, text);
        memcpy(at, &value, sizeof(value));
    }
}

static void take_member(const struct member_row *m, yyjson_val *value, struct arena *arena,
                        void *object) {
    char *at = (char *)object + m->offset;
    str text = STR_NONE;
    int64_t number = 0;
    bool flag = yyjson_is_true(value);
    switch (m->kind) {
    case MEMBER_TEXT:
    case MEMBER_CHARS:
    case MEMBER_UUID:
    case MEMBER_WORD:
        if (json_str(value, &text)) take_text(m, text, at);
        break;
    case MEMBER_INT:
    case MEMBER_SPAN:
        if (json_int(value, &number)) memcpy(at, &number, sizeof(number));
        break;
    case MEMBER_BOOL:
        memcpy(at, &flag, sizeof(flag));
        break;
    case MEMBER_TIME:
        number = member_time_us(value);
        memcpy(at, &number, sizeof(number));
        break;
    case MEMBER_JSON:
        *(str *)(void *)at = json_text(value, arena);
        break;
    case MEMBER_OWN:
        if (m->own->read) m->own->read(value, arena, object);
        break;
    }
}

/* What a text without this member says: nothing, where 0 would say something. */
static void take_none(const struct member_row *m, void *object) {
    char *at = (char *)object + m->offset;
    if (m->kind == MEMBER_SPAN) memcpy(at, &(int64_t){-1}, sizeof(int64_t));
    if (m->kind == MEMBER_WORD) memcpy(at, &m->words->unknown, sizeof(int));
}

void members_read(const struct member_row *rows, size_t count, yyjson_val *from,
                  struct arena *arena, void *object) {
    for (size_t i = 0; i < count; i++) {
        yyjson_val *value = json_member(from, rows[i].name);
        if (value)
            take_member(&rows[i], value, arena, object);
        else
            take_none(&rows[i], object);
    }
}
