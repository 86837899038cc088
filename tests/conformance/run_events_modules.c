/* Run Events appendix A: who may do what, as far as it can be read from the sources: they are all
 * there is to link. */
#include "conformance/fixture.h"

#include <ftw.h>
#include <sys/wait.h>

#include "base/os.h"

/* ---- the product's sources ---- */

enum { SOURCES_MAX = 600 };
struct source {
    str path, text;
};
static struct {
    struct arena arena;
    struct source files[SOURCES_MAX];
    size_t count;
} sources; /* filled through nftw(), which passes no context */

static int take_source(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    UNUSED(st);
    UNUSED(ftw);
    str name = str_c(path);
    if (type != FTW_F || str_ends(name, STR("_test.c"))) return 0;
    if (!str_ends(name, STR(".c")) && !str_ends(name, STR(".h"))) return 0;
    struct error err = {0};
    struct source *s = &sources.files[sources.count];
    CHECK(sources.count < SOURCES_MAX);
    s->path = arena_str(&sources.arena, name);
    CHECK(file_read(name, (size_t)4 << 20, &sources.arena, &s->text, &err) == ST_OK, "%s", err.msg);
    sources.count++;
    return 0;
}

static void sources_open(void) {
    arena_init(&sources.arena, 65536, (size_t)64 << 20);
    sources.count = 0;
    CHECK(nftw("src", take_source, 16, FTW_PHYS) == 0,
          "the tests run from the top of the repository");
    CHECK(sources.count > 20);
}

static void sources_close(void) { arena_release(&sources.arena); }

/* RE-A.2-2: one function derives keys. Nobody else joins fields with '|' and hashes them, and every
 * path that makes an event calls it. */
TEST(run_events_one_function_derives_keys) {
    sources_open();
    size_t definitions = 0;
    size_t callers = 0;
    for (size_t i = 0; i < sources.count; i++) {
        const struct source *s = &sources.files[i];
        bool hashes = text_has(s->text, "sha256_of(") || text_has(s->text, "sha256_add(");
        bool joins = text_has(s->text, "'|'") || text_has(s->text, "\"|\"");
        bool home = text_is(s->path, "src/core/event.c");
        CHECK(!hashes || !joins || home, "%.*s derives keys of its own", STR_ARG(s->path));
        bool defines =
            str_ends(s->path, STR(".c")) && text_has(s->text, "\nvoid event_key_derive(");
        CHECK(!defines || home, "%.*s", STR_ARG(s->path));
        definitions += defines;
        callers += !home && str_ends(s->path, STR(".c")) && text_has(s->text, "event_key_derive(");
    }
    CHECK(definitions == 1 && callers >= 3, "%zu definitions, %zu callers", definitions, callers);
    sources_close();
}

/* A key that the ledger made for an event of its own is the derived one too. */
TEST_DB(run_events_the_ledgers_own_events_have_derived_keys) {
    struct fixture c;
    fixture_open_as(&c, url, LEDGER_REJECT);
    fixture_program(&c, "r", "RunStarted");
    struct append_result result;
    struct error err = {0};
    CHECK(ledger_checkpoint(c.ledger, STR("r"), &result, &c.arena, &err) == ST_OK, "%s", err.msg);
    struct event made = fixture_read(&c, "r").records[1].event;
    uint8_t stored[SHA256_LEN];
    memcpy(stored, made.key, SHA256_LEN);
    event_key_derive(&made, made.key);
    CHECK(made.type == EVENT_RUN_CHECKPOINT_CREATED && memcmp(stored, made.key, SHA256_LEN) == 0);
    fixture_close(&c);
}

/* ---- responsibilities ---- */

static int layers_says(const char *src) {
    char command[600];
    snprintf(command, sizeof command, "scripts/layers '%s' >/dev/null", src);
    int rc = system(command);
    CHECK(rc != -1 && WIFEXITED(rc));
    return WEXITSTATUS(rc);
}

/* scripts/layers on a tree that holds one file, in one folder, with one include. */
static int layers_says_about(const char *folder, const char *include) {
    const char *dir = test_dir();
    char src[400];
    char path[500];
    char text[200];
    struct error err = {0};
    snprintf(src, sizeof src, "%s/src", dir);
    snprintf(path, sizeof path, "%s/%s", src, folder);
    CHECK(dir_make(str_c(path), &err) == ST_OK, "%s", err.msg);
    snprintf(path, sizeof path, "%s/%s/plan.c", src, folder);
    snprintf(text, sizeof text, "#include \"%s\"\n", include);
    CHECK(file_replace(str_c(path), str_c(text), &err) == ST_OK, "%s", err.msg);
    return layers_says(src);
}

/* RE-A.1-1, for the modules that exist: planning belongs to core/, which cannot reach append; only
 * ledger/ writes records; and the check that every build makes would refuse a planner that appends,
 * a store that decides by asking the engine, or an engine that asks the API. */
TEST(run_events_responsibilities_stay_apart) {
    sources_open();
    static const char *const writes[] = {"INSERT INTO ledger_", "UPDATE ledger_",
                                         "DELETE FROM ledger_", "\"ledger_event\""};
    for (size_t i = 0; i < sources.count; i++) {
        const struct source *s = &sources.files[i];
        bool store = str_starts(s->path, STR("src/ledger/"));
        for (size_t w = 0; w < COUNT_OF(writes); w++)
            CHECK(store || !text_has(s->text, writes[w]), "%.*s: %s", STR_ARG(s->path), writes[w]);
        bool core = str_starts(s->path, STR("src/core/"));
        CHECK(!core ||
                  !(text_has(s->text, "#include \"ledger/") || text_has(s->text, "#include \"db/")),
              "%.*s", STR_ARG(s->path));
    }
    sources_close();
    CHECK(layers_says("src") == 0);
    CHECK(layers_says_about("core", "core/event.h") == 0);
    CHECK(layers_says_about("core", "ledger/ledger.h") == 1);
    CHECK(layers_says_about("ledger", "engine/engine.h") == 1);
    CHECK(layers_says_about("engine", "api/routes.h") == 1);
}
