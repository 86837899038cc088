#include "engine/status.h"

#include "test.h"

/* WE-2.1.2-6, WE-2.1.2-11, WE-2.1.2-12: five canonical words, or <adapter>/<VALUE>; a canonical
 * word is never given an adapter. */
TEST(substatus_is_canonical_or_scoped_to_an_adapter) {
    static const struct {
        const char *text;
        bool good;
    } cases[] = {{"DRAINING", true},
                 {"RETRYING", true},
                 {"CONTINUE_AS_NEW", true},
                 {"WAITING_APPROVAL", true},
                 {"RECOVERING", true},
                 {"temporal/WORKFLOW_TASK_BACKLOG", true},
                 {"conductor/Zed_42", true},
                 {"mock/X", true},
                 {"BACKLOG", false},
                 {"draining", false},
                 {"", false},
                 {"nomad/X", false},
                 {"local/X", false},
                 {"temporal/", false},
                 {"temporal/A B", false},
                 {"/X", false},
                 {"conductor/DRAINING", false},
                 {"temporal/CONTINUE_AS_NEW", false}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct error err = {0};
        bool good = substatus_check(str_c(cases[i].text), &err) == ST_OK;
        CHECK(good == cases[i].good, "%s", cases[i].text);
        CHECK(good || err.reason == REASON_SUBSTATUS_INVALID);
    }
}
