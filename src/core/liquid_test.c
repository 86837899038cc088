/* What liquidjs does is compared case by case in tests/conformance/liquid_cases.c; here is what is
 * ours: errors and their places, bounds, types in JSON, conditions, and the differences. */
#include "core/liquid.h"

#include "base/json.h"
#include "test.h"

#define ARENA_MAX ((size_t)256 * 1024 * 1024)

struct fixture {
    struct arena arena;
    struct buf out;
    struct error err;
    struct liquid_scope scope;
};

static yyjson_val *parse(struct fixture *f, const char *json) {
    yyjson_val *root = NULL;
    struct json_limits limits = {.bytes_max = (size_t)8 * 1024 * 1024, .depth_max = 64};
    CHECK(json_parse(str_c(json), limits, &f->arena, &root, &f->err) == ST_OK, "%s", f->err.msg);
    return root;
}

static void fixture_open(struct fixture *f, const char *context) {
    *f = (struct fixture){.err = {.code = ST_OK}};
    arena_init(&f->arena, 4096, ARENA_MAX);
    buf_init(&f->out, 4 * LIQUID_OUTPUT_MAX);
    if (context != NULL) f->scope.root = parse(f, context);
}

static void fixture_close(struct fixture *f) {
    buf_release(&f->out);
    arena_release(&f->arena);
}

static status render(struct fixture *f, const char *template) {
    buf_clear(&f->out);
    return liquid_render(str_c(template), &f->scope, &f->arena, &f->out, &f->err);
}

static void check_renders(struct fixture *f, const char *template, const char *want) {
    CHECK(render(f, template) == ST_OK, "%s: %s", template, f->err.msg);
    CHECK(str_eq(buf_str(&f->out), str_c(want)), "%s: got \"%.*s\", want \"%s\"", template,
          STR_ARG(buf_str(&f->out)), want);
}

/* ---- errors ---- */

TEST(liquid_check_says_what_is_wrong_and_where) {
    static const struct {
        const char *template, *reason, *where;
    } cases[] = {
        {"{{ a", "LIQUID_SYNTAX", "offset 0"},
        {"ab {% if a", "LIQUID_SYNTAX", "offset 3"},
        {"{{ 'a }}", "LIQUID_SYNTAX", "offset 0"},
        {"{{ }}", "LIQUID_SYNTAX", "offset 3"},
        {"{{}}", "LIQUID_SYNTAX", "offset 2"},
        {"{{ a b }}", "LIQUID_SYNTAX", "offset 5"},
        {"{{ a == }}", "LIQUID_SYNTAX", "offset 8"},
        {"{{ == a }}", "LIQUID_SYNTAX", "offset 3"},
        {"{{ a not b }}", "LIQUID_SYNTAX", "offset 5"},
        {"{{ a == not b }}", "LIQUID_SYNTAX", "offset 8"},
        {"{{ a. }}", "LIQUID_SYNTAX", "offset 4"},
        {"{{ a[ }}", "LIQUID_SYNTAX", "offset 6"},
        {"{{ a[1 }}", "LIQUID_SYNTAX", "offset 7"},
        {"{{ (1..) }}", "LIQUID_SYNTAX", "offset 7"},
        {"{{ (1) }}", "LIQUID_SYNTAX", "offset 5"},
        {"{{ a | }}", "LIQUID_SYNTAX", "offset 7"},
        {"{{ a | shout }}", "LIQUID_FILTER_UNKNOWN", "offset 7"},
        {"{{ a | append }}", "LIQUID_SYNTAX", "offset 7"},
        {"{{ a | upcase: 1 }}", "LIQUID_SYNTAX", "offset 7"},
        {"{{ a | append: }}", "LIQUID_SYNTAX", "offset 14"},
        {"{{ a | append: 'x' 'y' }}", "LIQUID_SYNTAX", "offset 19"},
        {"{{ a | default: 1, other: 2 }}", "LIQUID_SYNTAX", "offset 7"},
        {"{{ 'now' | date: '%Y' }}", "LIQUID_SYNTAX", "offset 3"},
        {"{{ \"today\" | date }}", "LIQUID_SYNTAX", "offset 3"},
        {"{% %}", "LIQUID_SYNTAX", "offset 0"},
        {"{% dance %}", "LIQUID_SYNTAX", "offset 0"},
        {"{% include 'x' %}", "LIQUID_SYNTAX", "offset 0"},
        {"a{% if x %}b", "LIQUID_SYNTAX", "offset 1"},
        {"{% if x %}{% endfor %}", "LIQUID_SYNTAX", "offset 10"},
        {"{% endif %}", "LIQUID_SYNTAX", "offset 0"},
        {"{% else %}", "LIQUID_SYNTAX", "offset 0"},
        {"{% if x %}{% else %}{% else %}{% endif %}", "LIQUID_SYNTAX", "offset 20"},
        {"{% if x %}{% else %}{% elsif y %}{% endif %}", "LIQUID_SYNTAX", "offset 20"},
        {"{% if x %}{% when 1 %}{% endif %}", "LIQUID_SYNTAX", "offset 10"},
        {"{% capture x %}{% else %}{% endcapture %}", "LIQUID_SYNTAX", "offset 15"},
        {"{% if %}{% endif %}", "LIQUID_SYNTAX", "offset 6"},
        {"{% if x %}{% endif x %}", "LIQUID_SYNTAX", "offset 19"},
        {"{% for x of y %}{% endfor %}", "LIQUID_SYNTAX", "offset 11"},
        {"{% for x in %}{% endfor %}", "LIQUID_SYNTAX", "offset 11"},
        {"{% for x in y cols:2 %}{% endfor %}", "LIQUID_SYNTAX", "offset 14"},
        {"{% for x in y limit %}{% endfor %}", "LIQUID_SYNTAX", "offset 20"},
        {"{% case x %}{% when %}{% endcase %}", "LIQUID_SYNTAX", "offset 20"},
        {"{% case x %}{% when 1 2 %}{% endcase %}", "LIQUID_SYNTAX", "offset 22"},
        {"{% assign x 1 %}", "LIQUID_SYNTAX", "offset 12"},
        {"{% assign = 1 %}", "LIQUID_SYNTAX", "offset 10"},
        {"{% comment %}", "LIQUID_SYNTAX", "offset 0"},
        {"{% raw %}{% endra %}", "LIQUID_SYNTAX", "offset 0"},
        {"a\xFF{{ b }}", "LIQUID_SYNTAX", "offset 1"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct error err = {0};
        status st = liquid_check(str_c(cases[i].template), &err);
        CHECK(st == ST_INVALID, "%s", cases[i].template);
        CHECK(strcmp(reason_name(err.reason), cases[i].reason) == 0, "%s: %s", cases[i].template,
              reason_name(err.reason));
        CHECK(strcmp(err.where, cases[i].where) == 0, "%s: %s: %s", cases[i].template, err.where,
              err.msg);
        CHECK(err.msg[0] != '\0');
    }
}

TEST(liquid_values_may_be_refused_while_rendering) {
    static const char *const templates[] = {"{{ a | date: '%Y' }}", "{{ '%zz' | url_decode }}",
                                            "{{ '%ff' | url_decode }}", "{{ '?' | base64_decode }}",
                                            "{{ 'a' | base64_decode }}"};
    struct fixture f;
    fixture_open(&f, "{\"a\":\"now\"}");
    for (size_t i = 0; i < COUNT_OF(templates); i++) {
        CHECK(liquid_check(str_c(templates[i]), &f.err) == ST_OK);
        CHECK(render(&f, templates[i]) == ST_INVALID, "%s", templates[i]);
        CHECK(f.err.reason == REASON_LIQUID_VALUE && strcmp(f.err.where, "offset 0") == 0);
    }
    fixture_close(&f);
}

/* ---- bounds ---- */

static void repeat(struct buf *out, const char *part, int n) {
    for (int i = 0; i < n; i++)
        buf_put_c(out, part);
}

/* The last that is allowed, and the first that is not. */
TEST(liquid_nesting_has_a_bound) {
    static const struct {
        const char *before, *open, *middle, *close;
    } kinds[] = {{"", "{% if a %}", "x", "{% endif %}"},
                 {"", "{% for i in (1..2) %}", "x", "{% endfor %}"},
                 {"", "{% capture a %}", "x", "{% endcapture %}"}};
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        for (int over = 0; over < 2; over++) {
            struct buf text;
            struct error err = {0};
            buf_init(&text, LIQUID_OUTPUT_MAX);
            repeat(&text, kinds[i].open, LIQUID_DEPTH_MAX + over);
            buf_put_c(&text, kinds[i].middle);
            repeat(&text, kinds[i].close, LIQUID_DEPTH_MAX + over);
            status st = liquid_check(buf_str(&text), &err);
            CHECK(st == (over ? ST_LIMIT : ST_OK), "%s: %s", kinds[i].open, err.msg);
            CHECK(!over || err.reason == REASON_LIQUID_LIMIT);
            buf_release(&text);
        }
    }
}

TEST(liquid_brackets_have_a_bound) {
    struct buf text;
    struct error err = {0};
    buf_init(&text, LIQUID_OUTPUT_MAX);
    buf_put_c(&text, "{{ ");
    repeat(&text, "a[", 100000);
    CHECK(liquid_check(buf_str(&text), &err) == ST_INVALID); /* not closed: found first */
    buf_put_c(&text, " }}");
    CHECK(liquid_check(buf_str(&text), &err) == ST_LIMIT);
    buf_clear(&text);
    buf_put_c(&text, "{{ a");
    repeat(&text, " or a", 31);
    buf_put_c(&text, " }}");
    CHECK(liquid_check(buf_str(&text), &err) == ST_OK, "%s", err.msg);
    buf_clear(&text);
    buf_put_c(&text, "{{ a");
    repeat(&text, " or a", 32);
    buf_put_c(&text, " }}");
    CHECK(liquid_check(buf_str(&text), &err) == ST_LIMIT);
    buf_release(&text);
}

TEST(liquid_no_template_runs_away) {
    static const char *const templates[] = {
        "{% for a in (1..99999) %}{% for b in (1..99999) %}x{% endfor %}{% endfor %}",
        "{% for a in (1..1000000) %}x{% endfor %}",
        "{% for a in (1..1000000000000000000000) %}x{% endfor %}",
        "{% assign s = 'xxxxxxxx' %}{% for a in (1..99) %}{% assign s = s | append: s %}{% endfor "
        "%}",
        "{% assign s = 'ab' %}{% for a in (1..19) %}{% assign s = s | append: s %}{% endfor %}"
        "{% for a in (1..9999) %}{% if s contains 'c' %}x{% endif %}{% endfor %}",
        "{% assign s = 'ab' %}{% for a in (1..19) %}{% assign s = s | append: s %}{% endfor %}"
        "{% for a in (1..9) %}{{ s }}{% endfor %}",
        "{% assign s = 'ab' %}{% for a in (1..18) %}{% assign s = s | append: s %}{% endfor %}"
        "{% for a in (1..99) %}{% assign b = s | split: '' | sort | uniq %}{% endfor %}",
        "{{ 0 | date: '%99999Y' }}",
        "{{ 0 | date: '%99999999999999999999Y' }}",
        "{% assign s = (1..90000) | join: ' ' %}{% assign t = s | replace: ' ', s %}{{ t }}",
        "{% for a in (1..99) %}{% capture b %}{{ b }}{{ b }}xxxxxxxxxxxxxxxx{% endcapture %}"
        "{% endfor %}",
    };
    struct fixture f;
    for (size_t i = 0; i < COUNT_OF(templates); i++) {
        fixture_open(&f, "{}");
        CHECK(render(&f, templates[i]) == ST_LIMIT, "%s: %s", templates[i], f.err.msg);
        CHECK(f.err.reason == REASON_LIQUID_LIMIT, "%s", reason_name(f.err.reason));
        fixture_close(&f);
    }
}

TEST(liquid_long_templates_are_refused_or_quick) {
    struct buf text;
    struct error err = {0};
    static const char *const parts[] = {"{%",          "{{",        "{{a}}",
                                        "{%raw%}",     "{% endraw", "{%-",
                                        " ",           "{",         "{% if a %}{% endif %}",
                                        "{%comment%}", "'",         "\\"};
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        buf_init(&text, LIQUID_OUTPUT_MAX);
        repeat(&text, parts[i], (int)(LIQUID_OUTPUT_MAX / strlen(parts[i])));
        status st = liquid_check(buf_str(&text), &err);
        CHECK(st == ST_OK || st == ST_INVALID || st == ST_LIMIT);
        buf_release(&text);
    }
    buf_init(&text, LIQUID_OUTPUT_MAX + 1);
    repeat(&text, "a", (int)LIQUID_OUTPUT_MAX);
    CHECK(liquid_check(buf_str(&text), &err) == ST_OK);
    buf_put_char(&text, 'a');
    CHECK(liquid_check(buf_str(&text), &err) == ST_LIMIT);
    buf_release(&text);
}

TEST(liquid_output_and_memory_run_out_gently) {
    struct fixture f;
    char mem[4];
    struct buf small;
    struct arena tiny;
    fixture_open(&f, "{}");
    buf_init_fixed(&small, mem, sizeof mem);
    CHECK(liquid_render(STR("12345"), &f.scope, &f.arena, &small, &f.err) == ST_LIMIT);
    for (size_t cap = 0; cap < 4096; cap += 64) { /* the cap is reached, then malloc fails */
        arena_init(&tiny, 256, cap);
        if (cap >= 2048) mem_fail_at((int64_t)(cap - 2048) / 64);
        buf_clear(&f.out);
        status st = liquid_render(STR("{% assign a = 'b,c' | split: ',' %}{% for i in a %}"
                                      "{{ i | append: 'x\\n' | upcase }}{% endfor %}"),
                                  &f.scope, &tiny, &f.out, &f.err);
        mem_fail_at(-1);
        CHECK(st == ST_OK || (st == ST_LIMIT && f.err.reason == REASON_LIQUID_LIMIT));
        arena_release(&tiny);
    }
    fixture_close(&f);
}

/* ---- differences from liquidjs ---- */

TEST(liquid_differs_where_it_says) {
    struct fixture f;
    fixture_open(&f,
                 "{\"o\":{\"b\":1,\"a\":[1.50,\"x\"]},\"id\":12345678901234567890,"
                 "\"id2\":12345678901234567891,\"ids\":[12345678901234567890,"
                 "12345678901234567891,12345678901234567890],\"l\":[1,{\"k\":null}],\"one\":1.0}");
    check_renders(&f, "{{ o }}", "{\"b\":1,\"a\":[1.5,\"x\"]}");
    check_renders(&f, "{{ l }}", "1{\"k\":null}");
    check_renders(&f, "{{ l | join: ',' }}", "1,{\"k\":null}");
    check_renders(&f, "{{ id }} {{ id | json }} {{ one }}",
                  "12345678901234567890 12345678901234567890 1");
    check_renders(&f, "{{ id == id2 }}{{ id == id }}{{ id == 12345678901234567890 }}",
                  "falsetruetrue");
    check_renders(&f, "{{ ids | uniq | join }}", "12345678901234567890 12345678901234567891");
    check_renders(&f, "{% raw %} {{ a }} {%- endraw -%} b", " {{ a }} b");
    check_renders(&f, "{% raw %}a{%-endraw-%} b", "ab");
    check_renders(&f, "{{ nil | json }}{{ empty | json }}", "null\"\"");
    check_renders(&f, "{{ '1' | date: '%c' }}", "%c");
    fixture_close(&f);
}

/* ---- plain text, conditions ---- */

TEST(liquid_knows_plain_text) {
    CHECK(liquid_is_plain(STR("")) && liquid_is_plain(STR("a { b } %} }}")));
    CHECK(liquid_is_plain(STR("{")) && liquid_is_plain(STR("{ {")));
    CHECK(!liquid_is_plain(STR("a {{")) && !liquid_is_plain(STR("{% x %}")));
}

TEST(liquid_conditions) {
    static const struct {
        const char *text;
        bool want;
    } cases[] = {{"n == 2", true},
                 {"n > 2", false},
                 {"missing", false},
                 {"s", true},
                 {"s contains 'b' and n", true},
                 {"l.size == 0 or n < 0", true},
                 {"s | size | minus: 3 | at_least: 0", true},
                 {" not n ", false}};
    static const char *const bad[] = {"", " ", "n ==", "{{ n }}", "n | shout", "n n", "'"};
    struct fixture f;
    bool got;
    fixture_open(&f, "{\"n\":2,\"s\":\"abc\",\"l\":[]}");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        CHECK(liquid_check_condition(str_c(cases[i].text), &f.err) == ST_OK, "%s", f.err.msg);
        CHECK(liquid_condition(str_c(cases[i].text), &f.scope, &f.arena, &got, &f.err) == ST_OK);
        CHECK(got == cases[i].want, "%s", cases[i].text);
    }
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        CHECK(liquid_check_condition(str_c(bad[i]), &f.err) == ST_INVALID, "%s", bad[i]);
        CHECK(liquid_condition(str_c(bad[i]), &f.scope, &f.arena, &got, &f.err) == ST_INVALID);
        CHECK(strncmp(f.err.where, "offset ", 7) == 0);
    }
    fixture_close(&f);
}

/* ---- the lazy part of the scope ---- */

struct asked {
    struct fixture *f;
    int calls;
    char last[64];
};

static yyjson_val *lazy(void *context, str name, str key, struct arena *arena) {
    struct asked *a = context;
    UNUSED(arena);
    a->calls++;
    str shown = key.ptr == NULL ? STR("none") : key;
    (void)snprintf(a->last, sizeof a->last, "%.*s/%.*s", STR_ARG(name), STR_ARG(shown));
    if (!str_eq(name, STR("steps"))) return NULL;
    if (key.ptr == NULL) return parse(a->f, "[1,2]");
    return str_eq(key, STR("extract")) ? parse(a->f, "{\"output\":{\"rows\":42}}") : NULL;
}

TEST(liquid_asks_for_what_the_context_lacks) {
    static const struct {
        const char *template, *want, *asked;
    } cases[] = {{"{{ steps.extract.output.rows }}", "42", "steps/extract"},
                 {"{{ steps['extract'].output.rows | plus: 1 }}", "43", "steps/extract"},
                 {"{% assign k = 'extract' %}{{ steps[k].output.rows }}", "42", "steps/extract"},
                 {"{{ steps.other.output.rows }}", "", "steps/other"},
                 {"{{ steps.extract.output.rows.x.y }}", "", "steps/extract"},
                 {"{{ steps }}", "12", "steps/none"},
                 {"{{ unknown.a.b }}", "", "unknown/a"}};
    struct fixture f;
    struct asked asked = {.f = &f};
    fixture_open(&f, "{\"known\":{\"x\":1}}");
    f.scope.lazy = lazy;
    f.scope.context = &asked;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        check_renders(&f, cases[i].template, cases[i].want);
        CHECK(strcmp(asked.last, cases[i].asked) == 0, "%s: %s", cases[i].template, asked.last);
    }
    asked.calls = 0;
    check_renders(&f, "{{ known.x }}{{ known.y }}{% assign steps = 'a' %}{{ steps }}", "1a");
    CHECK(asked.calls == 0);
    f.scope = (struct liquid_scope){.root = NULL};
    check_renders(&f, "[{{ a.b }}]", "[]");
    fixture_close(&f);
}

/* ---- JSON ---- */

TEST(liquid_render_json_keeps_types) {
    static const struct {
        const char *in, *want;
    } cases[] = {
        {"\"{{ n }}\"", "42"},
        {"\"{{- n -}}\"", "42"},
        {"\" {{ n }}\"", "\" 42\""},
        {"\"{{ n }}{{ n }}\"", "\"4242\""},
        {"\"{{ s }}\"", "\"a\\\"b\""},
        {"\"x{{ s }}\"", "\"xa\\\"b\""},
        {"\"{{ o }}\"", "{\"k\":[1.50,null]}"},
        {"\"{{ o.k }}\"", "[1.50,null]"},
        {"\"{{ o.k[0] }}\"", "1.50"},
        {"\"{{ t }}\"", "true"},
        {"\"{{ nul }}\"", "null"},
        {"\"{{ missing }}\"", "null"},
        {"\"x{{ missing }}\"", "\"x\""},
        {"\"{{ big }}\"", "12345678901234567890"},
        {"\"{{ n | plus: 0.5 }}\"", "42.5"},
        {"\"{{ n | divided_by: 0 }}\"", "null"},
        {"\"{{ 'a,b' | split: ',' }}\"", "[\"a\",\"b\"]"},
        {"\"{{ n > 1 }}\"", "true"},
        {"\"{{ n | append: '' }}\"", "\"42\""},
        {"\"{% if t %}{{ n }}{% endif %}\"", "\"42\""},
        {"\"{% comment %}{% endcomment %}{{ n }}\"", "\"42\""},
        {"\"plain {\"", "\"plain {\""},
        {"{\"{{ n }}\":[\"{{ n }}\",1.0,true,null,{\"a\":\"b{{ n }}\"}],\"e\":{}}",
         "{\"{{ n }}\":[42,1.0,true,null,{\"a\":\"b42\"}],\"e\":{}}"},
        {"[\"{% assign x = 1 %}{{ x }}\",\"{{ x }}\"]", "[\"1\",null]"},
    };
    struct fixture f;
    fixture_open(&f, "{\"n\":42,\"s\":\"a\\\"b\",\"o\":{\"k\":[1.50,null]},\"t\":true,\"nul\":null,"
                     "\"big\":12345678901234567890}");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        buf_clear(&f.out);
        status st = liquid_render_json(parse(&f, cases[i].in), &f.scope, &f.arena, &f.out, &f.err);
        CHECK(st == ST_OK, "%s: %s", cases[i].in, f.err.msg);
        CHECK(str_eq(buf_str(&f.out), str_c(cases[i].want)), "%s: %.*s", cases[i].in,
              STR_ARG(buf_str(&f.out)));
    }
    buf_clear(&f.out);
    yyjson_val *bad = parse(&f, "{\"a\":{\"b\":[\"ok\",\"{{ x | shout }}\"]}}");
    CHECK(liquid_render_json(bad, &f.scope, &f.arena, &f.out, &f.err) == ST_INVALID);
    CHECK(f.err.reason == REASON_LIQUID_FILTER_UNKNOWN);
    CHECK(strstr(f.err.msg, "\"a\": \"b\": ") == f.err.msg, "%s", f.err.msg);
    fixture_close(&f);
}
