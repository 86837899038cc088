#!/bin/bash
# Liquid: what our cases expect is still what liquidjs renders, and cairn template render.
. "$(dirname "$0")/lib/e2e.sh"

test_cases_are_what_liquidjs_renders() {
    need node npm
    node_script tests/liquid/compare.mjs
}

test_render_prints_the_text() {
    printf '{"user":{"name":"Ada"},"rows":[1,2,3]}' >context.json
    printf 'Hello {{ user.name }}:{%% for r in rows %%} {{ r | times: 2 }}{%% endfor %%}\n' >template.txt
    same "$("$cairn" template render template.txt --context context.json)" "Hello Ada: 2 4 6"
    same "$("$cairn" template render - --context context.json <template.txt)" "Hello Ada: 2 4 6" "from standard input"
    same "$("$cairn" template render template.txt --context - <context.json)" "Hello Ada: 2 4 6" "its context from there"
    same "$(echo '[{{ user.name }}]' | "$cairn" template render -)" "[]" "without a context"
    same "$("$cairn" template render template.txt --context context.json -o json)" '{"text":"Hello Ada: 2 4 6\n"}'
}

test_mistakes_have_line_and_column() {
    printf 'a\nżó {{ x | shout }}\n' >template.txt
    refused 1 "LIQUID_FILTER_UNKNOWN at line 2, column 11" "$cairn" template render template.txt
    printf '{%% if x %%}\n{%% endfor %%}' >template.txt
    refused 1 "LIQUID_SYNTAX at line 2, column 1" "$cairn" template render template.txt
    printf '{%% for i in (1..999999) %%}{%% endfor %%}' >template.txt
    refused 5 "LIQUID_LIMIT at line 1, column 1" "$cairn" template render template.txt
    printf 'now {{ x | date }}' >template.txt
    printf '{"x":"now"}' >context.json
    refused 1 "LIQUID_VALUE at line 1, column 5" "$cairn" template render template.txt --context context.json
}

test_bad_files_are_told() {
    echo x >template.txt
    echo '[1]' >context.json
    refused 1 CONTEXT_INVALID "$cairn" template render template.txt --context context.json
    echo '{"a":1' >context.json
    refused 1 JSON_SYNTAX "$cairn" template render template.txt --context context.json
    refused 3 NOT_FOUND "$cairn" template render missing.txt
}

e2e_main "$@"
