/* core/liquid.h: the subset of Liquid that plans use. Pure.
 *
 * Output tags with dotted and indexed paths, literals and filters; if/unless/elsif/else, case/when,
 * for (limit, offset, reversed, range, forloop, break, continue), assign, capture, comment, raw;
 * whitespace control. Output is what liquidjs gives, case by case (tests). An undefined path is
 * empty. No includes, no I/O, no clock: the filter `date` formats the time it is given, in UTC.
 * Bounded: nesting, iterations and output have a maximum, so no template runs away. */
#pragma once

#include <yyjson.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/error.h"
#include "base/str.h"

enum { LIQUID_DEPTH_MAX = 32, LIQUID_STEPS_MAX = 100000 /* tags and iterations of one rendering */ };
#define LIQUID_OUTPUT_MAX ((size_t)1024 * 1024)

/* What a template sees. `root` is an object (or NULL); a first name that it lacks is asked of
 * `lazy`, with the second part of the path: steps.extract.output asks ("steps", "extract") and goes
 * on inside the value given back (NULL: undefined). So a large context need not be built. Of a path
 * with one part, steps, it is asked ("steps", STR_NONE), for the whole. */
struct liquid_scope {
    yyjson_val *root;
    yyjson_val *(*lazy)(void *context, str name, str key, struct arena *arena);
    void *context;
    /* For liquid_render_json(): the members of the outermost object, ending in NULL, inside which a
     * string that is exactly one output tag keeps the type of its value; elsewhere text stays text.
     * NULL: everywhere. */
    const char *const *typed;
};

/* Reasons: LIQUID_SYNTAX (where: "offset N"), LIQUID_FILTER_UNKNOWN, LIQUID_LIMIT; and, only while
 * rendering, LIQUID_VALUE: a filter cannot work on its value (bad base64, the date "now"). */
MUST_CHECK status liquid_check(str text, struct error *err);           /* a template: parses? */
MUST_CHECK status liquid_check_condition(str text, struct error *err); /* a condition: parses? */
bool liquid_is_plain(str text); /* holds no tag at all: rendering gives the text itself */
MUST_CHECK status liquid_render(str text, const struct liquid_scope *scope, struct arena *arena,
                                struct buf *out, struct error *err);
/* A condition as it stands in {% if ... %}. */
MUST_CHECK status liquid_condition(str text, const struct liquid_scope *scope, struct arena *arena,
                                   bool *out, struct error *err);
/* Renders every string inside `val` (not the keys) and writes the result as compact JSON. A string
 * that is exactly one output tag keeps the type of its value: "{{ steps.a.output.rows }}" may
 * become 42, null if undefined. */
MUST_CHECK status liquid_render_json(yyjson_val *val, const struct liquid_scope *scope,
                                     struct arena *arena, struct buf *out, struct error *err);
