/* core/plan_impl.h: what the files of the plan parser share; for core/plan*.c only.
 *
 * Objects are read along tables of struct field: one row says what a member is called, from which
 * minor version on it exists, what it must be, and where its value goes. What is wrong is noted
 * with the value it is about; pointers, lines and columns are worked out at the end, and only then.
 */
#pragma once

#include "core/plan.h"

struct finding {
    enum reason code;
    yyjson_val *at;
    str member; /* of the object `at`, which lacks it; or STR_NONE */
    str message;
};

struct parse {
    str text;
    yyjson_val *root;
    struct arena *arena;
    struct plan *plan;
    int minor;                /* of the plan's schemaVersion */
    struct plan_retry *retry; /* of `defaults` */
    int64_t timeout_ms;       /* and this */
    yyjson_val **depends;     /* for each step its dependsOn, or NULL */
    int64_t dep_count;        /* of all of them */
    bool in_step;             /* findings are about a step: */
    uint32_t step;            /* this one */
    const char *prefix;       /* of the members being read: "retry." */
    bool lenient;             /* unknown members are none of our business */
    bool no_memory;
    struct finding findings[PLAN_ERRORS_MAX];
    size_t count;
    bool more;
};

enum field_kind {
    FIELD_ANY,    /* any JSON; Liquid in its strings */
    FIELD_OBJECT, /* an object; Liquid in its strings */
    FIELD_TEXT,   /* a string, perhaps empty; Liquid */
    FIELD_WORDS,  /* a string, not empty; Liquid */
    FIELD_PLAIN,  /* a string that means nothing to us */
    FIELD_ID,     /* an id: see plan_take_id() */
    FIELD_INT,    /* a whole number from min to max */
    FIELD_BOOL,
    FIELD_CHOICE, /* one of `names` */
    FIELD_CUSTOM, /* whatever `read` says */
};
enum { FIELDS_MAX = 32, NOWHERE = -1 };

struct field {
    str name;
    enum field_kind kind;
    int since; /* the minor version that brought it */
    bool required;
    int into; /* offset of a str (TEXT, WORDS, ID), int64_t (INT), bool or enum (CHOICE); or NOWHERE
               */
    int64_t min, max;
    const char *const *names; /* ends in NULL; its index is the value of the enum */
    void (*read)(struct parse *p, yyjson_val *val, void *into);
};

/* ---- plan_problem.c: what is wrong, and where ---- */

/* Notes a problem. */
void plan_complain(struct parse *p, enum reason code, yyjson_val *at, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* The same, with what it is about in front. Inside a step REASON_NONE and PLAN_FIELD_* become
 * INVALID_STEP_SCHEMA. */
void plan_refuse(struct parse *p, enum reason code, yyjson_val *at, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
void plan_refuse_missing(struct parse *p, yyjson_val *object, str member);
/* Puts the findings into document order and fills in pointers, lines and columns. */
MUST_CHECK status plan_report(struct parse *p, struct plan_problems *out, struct error *err);
/* The one problem of a text that is not JSON. */
MUST_CHECK status plan_report_json(str text, size_t bad_at, struct arena *arena,
                                   struct plan_problems *out, struct error *err);
/* At most 64 bytes of `s`, cut between characters, to be shown in a message. */
str plan_shown(str s);

/* ---- plan_field.c: reading members ---- */

struct field_list {
    const struct field *items;
    size_t count;
};
#define FIELD_LIST(array) ((struct field_list){(array), COUNT_OF(array)})
#define FIELD_LIST_NONE ((struct field_list){0})
/* Reads the members that the two lists name into `into`. */
void plan_read_fields(struct parse *p, yyjson_val *object, struct field_list fields,
                      struct field_list more, void *into);
const char *plan_kind_of(yyjson_val *val); /* "a string", "a number" ... */
bool plan_take_str(struct parse *p, yyjson_val *val, const char *name, str *out);
/* 1..255 bytes of UTF-8 without '|', control characters and Liquid. */
bool plan_take_id(struct parse *p, yyjson_val *val, const char *name, str *out);
/* As ids go: false with the reason in *why. */
bool plan_id_ok(str id, const char **why);
bool plan_take_int(struct parse *p, yyjson_val *val, const char *name, int64_t min, int64_t max,
                   int64_t *out);
bool plan_take_number(struct parse *p, yyjson_val *val, const char *name, double min, double max,
                      double *out);
bool plan_take_object(struct parse *p, yyjson_val *val, const char *name);
/* An array of ids; in the arena. */
bool plan_take_ids(struct parse *p, yyjson_val *val, const char *name, const str **out,
                   uint32_t *count);
bool plan_check_template(struct parse *p, yyjson_val *val, const char *name);
void plan_check_templates(struct parse *p, yyjson_val *val, const char *name);
/* A number of any form as a double; false if it is none. */
bool plan_number(yyjson_val *val, double *out);
void *plan_alloc(struct parse *p, size_t size); /* NULL: no_memory is set */

/* ---- the parts of a plan ---- */

extern const struct plan_retry plan_retry_none; /* what holds when nothing is said */
void plan_read_retry(struct parse *p, yyjson_val *val, const struct plan_retry *base,
                     struct plan_retry *out);                       /* plan_retry.c */
void plan_read_steps(struct parse *p, yyjson_val *val);             /* plan_step.c */
extern const struct field *const plan_type_fields[PLAN_TYPE_COUNT]; /* plan_type.c */
extern const size_t plan_type_field_count[PLAN_TYPE_COUNT];
void plan_link(struct parse *p);                                 /* plan_graph.c */
void plan_check_parameters(struct parse *p, yyjson_val *schema); /* plan_params.c */
