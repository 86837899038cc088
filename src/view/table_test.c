/* view/table_test.c: walks every table of members, whatever rows it has.
 *
 * An object is filled by its rows, each with a value of its own, written, read back and compared
 * row by row in both directions; and the rows are compared with the noun's schema. So a new member
 * needs no new test, and a row that is wrong, missing in the schema or not read is found. */
#include "base/json_out.h"
#include "base/limits.h"
#include "base/os.h"
#include "core/role.h"
#include "test.h"
#include "view/view.h"

enum { OBJECT_MAX = 4096, VALUE_MAX = 64 };
#define FIRST_US 1771228800000000

/* What rows with functions of their own need to have something to write. Several variants if no one
 * object has every member. */
typedef void (*prepare)(void *object, int variant);

static void prepare_run(void *object, int variant) {
    UNUSED(variant);
    ((struct run_info *)object)->head.inconsistent = true;
}

static void prepare_step(void *object, int variant) {
    struct step_shown *s = object;
    UNUSED(variant);
    s->step.retried_us = s->step.retry_us = FIRST_US - 1;
}

static void prepare_explanation(void *object, int variant) {
    static struct wait waits[] = {{.kind = WAIT_APPROVAL, .step = STR_LIT("gate")},
                                  {.kind = WAIT_NOBODY, .until_us = FIRST_US - 2}};
    struct explanation *x = object;
    x->waits = waits;
    x->count = COUNT_OF(waits);
    x->alive = true;
    x->wakes = true;
    x->wake_us = variant == 0 ? 0 : FIRST_US - 3;
}

static void prepare_event(void *object, int variant) {
    struct event_record *rec = object;
    rec->event.type_name = variant == 0 ? STR("StepFailed") : STR("EffectRequested");
    rec->event.type = event_type_of(rec->event.type_name);
    rec->event.subject = STR("subject");
    rec->event.emitted_ns = (FIRST_US - 4) * 1000 + 700;
    rec->event.emitted_digits = 7;
    memset(rec->event.key, 0xa7, sizeof(rec->event.key));
    rec->run_seq = variant == 0 ? 777 : 0;
    if (variant == 0) rec->cause_seq = 1;
    rec->cause_id = uuid_v4();
}

static void prepare_key(void *object, int variant) {
    UNUSED(variant);
    ((struct api_key *)object)->roles = ROLE_OPERATOR | ROLE_WORKER;
}

static void prepare_effect(void *object, int variant) {
    struct effect *e = &((struct effect_info *)object)->effect;
    e->status = variant == 0 ? OUTBOX_FAILED : OUTBOX_PROCESSING;
    e->due_us = FIRST_US - 5;
}

static void prepare_task(void *object, int variant) {
    UNUSED(variant);
    ((struct task *)object)->correlation = uuid_v4();
}

static const struct subject {
    const struct noun *noun;
    const char *name;
    prepare prepare;
    int variants;
} subjects[] = {
    {&view_run, "run", prepare_run, 1},
    {&view_step, "step", prepare_step, 1},
    {&view_snapshot, "snapshot", NULL, 1},
    {&view_explanation, "explanation", prepare_explanation, 2},
    {&view_wait, "wait", NULL, 1},
    {&view_event, "event", prepare_event, 2},
    {&view_record, "record", prepare_event, 2},
    {&view_result, "result", NULL, 1},
    {&view_checkpoint, "checkpoint", NULL, 1},
    {&view_alert, "alert", NULL, 1},
    {&view_stats, "stats", NULL, 1},
    {&view_report, "report", NULL, 1},
    {&view_effect, "effect", prepare_effect, 2},
    {&view_key, "key", prepare_key, 1},
    {&view_audit, "audit", NULL, 1},
    {&view_task, "task", prepare_task, 1},
    {&view_node, "node", NULL, 1},
};

/* ---- filling ---- */

static size_t size_of(const struct member_row *m) {
    switch (m->kind) {
    case MEMBER_TEXT:
    case MEMBER_JSON:
        return sizeof(str);
    case MEMBER_CHARS:
        return m->room;
    case MEMBER_INT:
    case MEMBER_SPAN:
    case MEMBER_TIME:
        return sizeof(int64_t);
    case MEMBER_BOOL:
        return sizeof(bool);
    case MEMBER_UUID:
        return sizeof(uuid);
    case MEMBER_WORD:
        return sizeof(int);
    case MEMBER_OWN:
        return 0;
    }
    return 0;
}

/* Gives row `i` a value that no other row has (but for booleans and words, which have few), and the
 * JSON text that it must become. */
static void fill(const struct member_row *m, size_t i, struct arena *arena, char *object,
                 struct buf *want) {
    char *at = object + m->offset;
    char mem[VALUE_MAX];
    int64_t number = m->kind == MEMBER_TIME ? FIRST_US + (int64_t)i : 1000 + (int64_t)i;
    snprintf(mem, sizeof(mem), m->kind == MEMBER_JSON ? "{\"n\":%zu.50}" : "value %zu", i);
    str text = arena_str(arena, str_c(mem));
    uuid id = uuid_v4();
    bool flag = true;
    int word = m->kind == MEMBER_WORD ? m->words->first + 1 : 0;
    switch (m->kind) {
    case MEMBER_TEXT:
        memcpy(at, &text, sizeof(text));
        json_put_text(want, m->name, text);
        break;
    case MEMBER_JSON:
        memcpy(at, &text, sizeof(text));
        json_put_json(want, m->name, text);
        break;
    case MEMBER_CHARS:
        CHECK(m->room > text.len);
        memcpy(at, text.ptr, text.len);
        json_put_text(want, m->name, text);
        break;
    case MEMBER_INT:
    case MEMBER_SPAN:
        memcpy(at, &number, sizeof(number));
        json_put_int(want, m->name, number);
        break;
    case MEMBER_TIME:
        memcpy(at, &number, sizeof(number));
        json_put_time(want, m->name, number);
        break;
    case MEMBER_BOOL:
        memcpy(at, &flag, sizeof(flag));
        json_put_bool(want, m->name, true);
        break;
    case MEMBER_UUID:
        memcpy(at, &id, sizeof(id));
        json_put_uuid(want, m->name, id);
        break;
    case MEMBER_WORD:
        memcpy(at, &word, sizeof(word));
        json_put_text(want, m->name, str_c(m->words->name(word)));
        break;
    case MEMBER_OWN:
        break;
    }
}

static yyjson_val *parsed(str text, struct arena *arena) {
    struct json_limits limits = {LINE_BYTES_MAX, JSON_DEPTH_MAX};
    struct error err = {0};
    yyjson_val *root = NULL;
    CHECK(json_parse(text, limits, arena, &root, &err) == ST_OK, "%s: %.*s", err.msg,
          STR_ARG(text));
    return root;
}

/* ---- both directions ---- */

static void check_row(const struct subject *s, const struct member_row *m, const char *object,
                      const char *back, yyjson_val *sent, yyjson_val *want, struct arena *arena) {
    yyjson_val *value = json_member(sent, m->name);
    CHECK(value, "%s: \"%s\" is not written", s->name, m->name);
    if (m->kind == MEMBER_OWN) return;
    str text = json_text(value, arena);
    str wanted = json_text(json_member(want, m->name), arena);
    /* (A prepared field, like a status, may stand in a row of its own.) */
    if (m->kind != MEMBER_WORD)
        CHECK(str_eq(text, wanted), "%s: \"%s\" is written as %.*s, not %.*s", s->name, m->name,
              STR_ARG(text), STR_ARG(wanted));
    str a = STR_NONE;
    str b = STR_NONE;
    if (m->kind == MEMBER_TEXT || m->kind == MEMBER_JSON) {
        memcpy(&a, object + m->offset, sizeof(a));
        memcpy(&b, back + m->offset, sizeof(b));
        CHECK(str_eq(a, b), "%s: \"%s\" is read as %.*s", s->name, m->name, STR_ARG(b));
    } else {
        CHECK(memcmp(object + m->offset, back + m->offset, size_of(m)) == 0,
              "%s: \"%s\" is not read as it was", s->name, m->name);
    }
}

static void check_subject(const struct subject *s, int variant, bool *seen) {
    static char object[OBJECT_MAX];
    static char back[OBJECT_MAX];
    const struct noun *n = s->noun;
    struct arena arena;
    struct buf want;
    struct buf sent;
    struct buf again;
    CHECK(n->size <= sizeof(object), "%s", s->name);
    memset(object, 0, sizeof(object));
    memset(back, 0x5a, sizeof(back)); /* view_read() must not rely on zeroes */
    arena_init(&arena, 4096, (size_t)1 << 20);
    buf_init(&want, LINE_BYTES_MAX);
    buf_init(&sent, LINE_BYTES_MAX);
    buf_init(&again, LINE_BYTES_MAX);
    json_object_begin(&want);
    for (size_t i = 0; i < n->count; i++)
        fill(&n->rows[i], i, &arena, object, &want);
    json_object_end(&want);
    if (s->prepare) s->prepare(object, variant);
    view_write(n, object, &sent);
    yyjson_val *root = parsed(buf_str(&sent), &arena);
    view_read(n, root, &arena, back);
    view_write(n, back, &again);
    CHECK(str_eq(buf_str(&sent), buf_str(&again)), "%s:\n%.*s\n%.*s", s->name,
          STR_ARG(buf_str(&sent)), STR_ARG(buf_str(&again)));
    yyjson_val *wanted = parsed(buf_str(&want), &arena);
    for (size_t i = 0; i < n->count; i++) {
        const struct member_row *m = &n->rows[i];
        bool there = json_member(root, m->name) != NULL;
        seen[i] = seen[i] || there;
        if (there || !m->optional) check_row(s, m, object, back, root, wanted, &arena);
    }
    buf_release(&want);
    buf_release(&sent);
    buf_release(&again);
    arena_release(&arena);
}

TEST(view_writes_and_reads_every_member) {
    for (size_t k = 0; k < COUNT_OF(subjects); k++) {
        const struct subject *s = &subjects[k];
        bool seen[64] = {false};
        CHECK(s->noun->count <= COUNT_OF(seen));
        for (int v = 0; v < s->variants; v++)
            check_subject(s, v, seen);
        for (size_t i = 0; i < s->noun->count; i++)
            CHECK(seen[i], "%s: \"%s\" is never written", s->name, s->noun->rows[i].name);
    }
}

/* Of an object of zeroes, what is not optional is there, null or 0, and nothing else is. */
TEST(view_leaves_out_what_is_optional_and_nothing_else) {
    static const char zeroes[OBJECT_MAX];
    for (size_t k = 0; k < COUNT_OF(subjects); k++) {
        const struct noun *n = subjects[k].noun;
        static char object[OBJECT_MAX];
        struct arena arena;
        struct buf b;
        arena_init(&arena, 4096, (size_t)1 << 20);
        buf_init(&b, LINE_BYTES_MAX);
        view_read(n, NULL, &arena, object); /* (an absent span is -1) */
        for (size_t i = 0; i < n->count; i++) {
            if (n->rows[i].kind == MEMBER_WORD)
                memcpy(object + n->rows[i].offset, zeroes, sizeof(int));
        }
        view_write(n, object, &b);
        yyjson_val *root = parsed(buf_str(&b), &arena);
        for (size_t i = 0; i < n->count; i++) {
            const struct member_row *m = &n->rows[i];
            CHECK((json_member(root, m->name) != NULL) == !m->optional, "%s: \"%s\" in %.*s",
                  subjects[k].name, m->name, STR_ARG(buf_str(&b)));
        }
        buf_release(&b);
        arena_release(&arena);
    }
}

/* ---- the schemas ---- */

static bool lists(yyjson_val *array, const char *name) {
    yyjson_val *item;
    size_t i;
    size_t max;
    yyjson_arr_foreach(array, i, max, item) {
        if (yyjson_equals_str(item, name)) return true;
    }
    return false;
}

static const struct member_row *row_named(const struct noun *n, str name) {
    for (size_t i = 0; i < n->count; i++) {
        if (str_eq(name, str_c(n->rows[i].name))) return &n->rows[i];
    }
    return NULL;
}

static void check_schema(const struct subject *s, yyjson_val *schema) {
    const struct noun *n = s->noun;
    yyjson_val *properties = json_member(schema, "properties");
    yyjson_val *required = json_member(schema, "required");
    yyjson_val *name;
    yyjson_val *property;
    size_t i;
    size_t max;
    CHECK(yyjson_is_obj(properties), "%s: there is no schema %s", s->name, n->schema);
    for (size_t k = 0; k < n->count; k++)
        CHECK(json_member(properties, n->rows[k].name), "%s: schema %s has no \"%s\"", s->name,
              n->schema, n->rows[k].name);
    yyjson_obj_foreach(properties, i, max, name, property) {
        const struct member_row *m = row_named(n, str_c(yyjson_get_str(name)));
        CHECK(m, "%s: schema %s has \"%s\", which no row writes", s->name, n->schema,
              yyjson_get_str(name));
        if (n == &view_record) continue; /* facts, which have no runSeq, are in the feed only */
        CHECK(lists(required, m->name) == !m->optional,
              "%s: \"%s\" is %s, which schema %s does not say", s->name, m->name,
              m->optional ? "optional" : "always there", n->schema);
    }
}

/* contracts/openapi.json and the tables name the same members, and leave out the same ones. */
TEST(view_tables_have_what_the_schemas_have) {
    struct json_limits limits = {(size_t)4 << 20, 64};
    struct arena arena;
    struct error err = {0};
    yyjson_val *root = NULL;
    str text = STR_NONE;
    arena_init(&arena, (size_t)1 << 16, (size_t)32 << 20);
    CHECK(file_read(STR("contracts/openapi.json"), limits.bytes_max, &arena, &text, &err) == ST_OK,
          "%s", err.msg);
    CHECK(json_parse(text, limits, &arena, &root, &err) == ST_OK, "%s", err.msg);
    yyjson_val *schemas = json_member(json_member(root, "components"), "schemas");
    for (size_t k = 0; k < COUNT_OF(subjects); k++) {
        const struct noun *n = subjects[k].noun;
        if (n->schema) check_schema(&subjects[k], json_member(schemas, n->schema));
    }
    arena_release(&arena);
}
