/* The manual says what is so: the queries of docs/sql.md are run as they stand there, on both
 * databases; the catalogue of events and the list of error codes are compared with the program. */

#include "base/os.h"
#include "conformance/fixture.h"
#include "ledger/access/access.h"

/* The runs that the page speaks of. */
static void fill(struct fixture *c) {
    struct append_result res;
    struct error err = {0};
    fixture_put(c, fixture_item("RunStarted", "orders-1", NULL, 1));
    fixture_put(
        c,
        fixture_item_with(
            "RunProviderLinked", "orders-1", NULL, 1,
            "{\"provider\":\"temporal\",\"workflowId\":\"orders/1\",\"providerRunId\":\"p-1\"}"));
    fixture_put(c, fixture_item("StepStarted", "orders-1", "load", 1));
    fixture_put(
        c, fixture_item_with("StepCompleted", "orders-1", "load", 1, "{\"output\":{\"rows\":5}}"));
    CHECK(ledger_checkpoint(c->ledger, STR("orders-1"), &res, &c->arena, &err) == ST_OK, "%s",
          err.msg);
    fixture_put(c, fixture_item("RunCompleted", "orders-1", NULL, 1));
    fixture_put(c, fixture_item("RunStarted", "orders-2", NULL, 1));
    for (int64_t attempt = 1; attempt <= 2; attempt++) {
        fixture_put(c, fixture_item("StepStarted", "orders-2", "load", attempt));
        fixture_put(c, fixture_item_with("StepFailed", "orders-2", "load", attempt,
                                         "{\"error\":\"disk full\"}"));
    }
    fixture_put(c, fixture_item("RunFailed", "orders-2", NULL, 1));
    fixture_put(c, fixture_item("RunPaused", "orders-2", NULL, 1));  /* too late: an alert */
    fixture_put(c, fixture_item("RunStarted", "orders-3", NULL, 1)); /* stays open */
    struct audit_entry audit = {.tenant_id = STR("acme"),
                                .actor = STR("alice"),
                                .action = STR("run.signal"),
                                .target = STR("orders-2"),
                                .run_id = STR("orders-2"),
                                .outcome = STR("done"),
                                .reason = STR("stuck")};
    struct append_rider rider = {.audit = &audit};
    CHECK(access_ride(c->ledger, &rider, &err) == ST_OK, "%s", err.msg);
    fixture_put(
        c, fixture_fact(EVENT_EFFECT_REQUESTED, "orders-2", fixture_uuid_text(uuid_v4()), 1, "{}"));
}

/* The next block between "```sql" and "```", without its semicolon. */
static bool next_block(str *page, str *sql) {
    static const char begin[] = "```sql\n";
    static const char end[] = "```\n";
    const char *at = memmem(page->ptr, page->len, begin, sizeof(begin) - 1);
    if (!at) return false;
    at += sizeof(begin) - 1;
    size_t rest = page->len - (size_t)(at - page->ptr);
    const char *stop = memmem(at, rest, end, sizeof(end) - 1);
    CHECK(stop, "a block is not closed");
    *sql = str_trim(str_n(at, (size_t)(stop - at)));
    CHECK(str_ends(*sql, STR(";")), "%.*s", STR_ARG(*sql));
    sql->len--;
    *page = str_from(*page, (size_t)(stop - page->ptr));
    return true;
}

TEST_DB(care_the_queries_of_the_manual_work) {
    struct fixture c;
    struct error err = {0};
    str page;
    str sql;
    int queries = 0;
    CHECK(path_exists(STR("docs/sql.md")), "run the tests from the top of the repository");
    fixture_open_as(&c, url, LEDGER_RECORD);
    fill(&c);
    CHECK(file_read(STR("docs/sql.md"), (size_t)1024 * 1024, &c.arena, &page, &err) == ST_OK, "%s",
          err.msg);
    for (; next_block(&page, &sql); queries++) {
        struct db_stmt *q = NULL;
        bool row = false;
        const char *text = fixture_fmt("%.*s", STR_ARG(sql));
        CHECK(db_prepare(ledger_db(c.ledger), text, &q, &err) == ST_OK, "%s: %s", text, err.msg);
        CHECK(db_step(q, &row, &err) == ST_OK, "%s: %s", text, err.msg);
        CHECK(row, "found nothing: %s", text);
        db_reset(q);
    }
    CHECK(queries >= 10, "only %d", queries);
    fixture_close(&c);
}

/* Each column that a view has is listed in its section. */
static void check_columns(struct fixture *c, str page, const char *view) {
    const char *begin = fixture_fmt("\n## %s\n", view);
    const char *at = memmem(page.ptr, page.len, begin, strlen(begin));
    CHECK(at, "no section for %s", view);
    const char *stop = strstr(at + strlen(begin), "\n## ");
    str section = str_n(at, stop ? (size_t)(stop - at) : strlen(at));
    str names = fixture_lines(
        c, db_is_postgres(ledger_db(c->ledger))
               ? fixture_fmt("SELECT column_name FROM information_schema.columns WHERE"
                             " table_schema = current_schema() AND table_name = '%s'",
                             view)
               : fixture_fmt("SELECT name FROM pragma_table_info('%s')", view));
    CHECK(names.len > 0, "no view %s", view);
    while (names.len > 0) {
        str name;
        CHECK(str_split(names, '\n', &name, &names));
        const char *plain = fixture_fmt("`%.*s`", STR_ARG(name));
        const char *quoted = fixture_fmt("`\"%.*s\"`", STR_ARG(name));
        CHECK(memmem(section.ptr, section.len, plain, strlen(plain)) ||
                  memmem(section.ptr, section.len, quoted, strlen(quoted)),
              "%s.%.*s is not documented", view, STR_ARG(name));
    }
}

TEST_DB(care_every_column_is_in_the_manual) {
    static const char *const views[] = {
        "run_events", "orchestration_events", "runs",          "steps",
        "alerts",     "run_checkpoints",      "provider_refs", "tenants",
        "audit",      "outbox_events",        "effects"};
    struct fixture c;
    struct error err = {0};
    str page;
    CHECK(path_exists(STR("docs/sql.md")), "run the tests from the top of the repository");
    fixture_open(&c, url);
    CHECK(file_read(STR("docs/sql.md"), (size_t)1024 * 1024, &c.arena, &page, &err) == ST_OK, "%s",
          err.msg);
    for (size_t i = 0; i < COUNT_OF(views); i++)
        check_columns(&c, page, views[i]);
    fixture_close(&c);
}

/* ---- docs/events.md ---- */

static str read_page(struct arena *arena, const char *path) {
    struct error err = {0};
    str page;
    CHECK(path_exists(str_c(path)), "run the tests from the top of the repository");
    CHECK(file_read(str_c(path), (size_t)4 * 1024 * 1024, arena, &page, &err) == ST_OK, "%s",
          err.msg);
    return page;
}

static bool page_has(str page, const char *text) {
    return memmem(page.ptr, page.len, text, strlen(text)) != NULL;
}

TEST(care_every_type_is_in_the_manual) {
    struct arena arena;
    arena_init(&arena, 4096, SIZE_MAX);
    str page = read_page(&arena, "docs/events.md");
    for (int i = 1; i < EVENT_TYPE_COUNT; i++) {
        str name = event_type_info((enum event_type)i)->name;
        const char *row = fixture_fmt("\n| %d | `%.*s` |", i, STR_ARG(name));
        CHECK(name.len == 0 || page_has(page, row), "%d %.*s", i, STR_ARG(name));
        CHECK(name.len > 0 || !page_has(page, fixture_fmt("\n| %d | ", i)), "%d is not in use", i);
    }
    arena_release(&arena);
}

/* ---- docs/errors.md ---- */

/* Every code of the table is in the page; the general ones stand beside their status. */
TEST(care_every_code_is_in_the_manual) {
    struct arena arena;
    arena_init(&arena, 4096, SIZE_MAX);
    str page = read_page(&arena, "docs/errors.md");
    for (int i = REASON_NONE + 1; i < REASON_COUNT; i++) {
        const char *name = reason_name((enum reason)i);
        CHECK(page_has(page, fixture_fmt("`%s`", name)), "%s", name);
    }
    arena_release(&arena);
}

static bool is_code_char(char c) {
    return c == '_' || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* Words in capitals that are no codes of failures: nouns of the API. */
static bool is_noun(str word) {
    static const char *const nouns[] = {"API_CALL",         "CONTINUE_AS_NEW", "DEAD_LETTER",
                                        "RETRY_STEP",       "SEND_EMAIL",      "SOR_UPDATE",
                                        "WAITING_APPROVAL", "WEBHOOK_CALL"};
    for (size_t i = 0; i < COUNT_OF(nouns); i++) {
        if (str_eq(word, str_c(nouns[i]))) return true;
    }
    return false;
}

/* Every code that the description of the API names is one that the program has. */
TEST(care_every_code_of_the_api_is_in_the_table) {
    struct arena arena;
    int seen = 0;
    arena_init(&arena, 4096, SIZE_MAX);
    str page = read_page(&arena, "contracts/openapi.json");
    for (size_t at = 0; at < page.len;) {
        size_t end = at;
        while (end < page.len && is_code_char(page.ptr[end]))
            end++;
        str word = str_n(page.ptr + at, end - at);
        bool alone = at == 0 || !strchr("abcdefghijklmnopqrstuvwxyz/$-", page.ptr[at - 1]);
        if (word.len > 3 && alone && memchr(word.ptr + 1, '_', word.len - 2) && !is_noun(word)) {
            CHECK(reason_find(word) != REASON_NONE, "%.*s", STR_ARG(word));
            seen++;
        }
        at = end + 1;
    }
    CHECK(seen > 40, "only %d", seen);
    arena_release(&arena);
}
