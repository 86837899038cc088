#include "adapters/temporal/events_test.h"

#include "test.h"

void events_init(struct events *e) {
    *e = (struct events){.next_id = 1};
    arena_init(&e->arena, 8192, (size_t)16 * 1024 * 1024);
    e->page = (Tp__History)TP__HISTORY__INIT;
    e->page.events = e->list;
}

void events_release(struct events *e) { arena_release(&e->arena); }

Tp__Event *events_add(struct events *e, int32_t type) {
    CHECK(e->page.n_events < COUNT_OF(e->list));
    Tp__Event *event = wire_new(&tp__event__descriptor, &e->arena);
    event->event_id = e->next_id++;
    event->event_type = type;
    e->list[e->page.n_events++] = event;
    return event;
}

/* The attributes are all pointers in one union. */
static void *attributes(struct events *e, Tp__Event *event, Tp__Event__AttributesCase has,
                        const ProtobufCMessageDescriptor *type) {
    event->attributes_case = has;
    event->started = wire_new(type, &e->arena);
    return event->started;
}

void events_started(struct events *e, const char *input, const char *continued) {
    Tp__ExecutionStarted *a = attributes(e, events_add(e, 1), TP__EVENT__ATTRIBUTES_STARTED,
                                         &tp__execution_started__descriptor);
    a->task_queue = wire_queue(STR("q.node"), &e->arena);
    a->input = wire_json_list(str_c(input), &e->arena);
    a->continued_run_id = wire_bytes(str_c(continued));
    a->first_run_id = wire_bytes(STR("first"));
}

void events_task(struct events *e, bool suggest) {
    (void)events_add(e, 5);
    Tp__TaskStarted *a = attributes(e, events_add(e, 6), TP__EVENT__ATTRIBUTES_TASK_STARTED,
                                    &tp__task_started__descriptor);
    a->suggest_continue_as_new = suggest;
    (void)events_add(e, 7);
}

int64_t events_scheduled(struct events *e, const char *id) {
    Tp__Event *event = events_add(e, 10);
    Tp__ActivityScheduled *a = attributes(e, event, TP__EVENT__ATTRIBUTES_ACTIVITY_SCHEDULED,
                                          &tp__activity_scheduled__descriptor);
    a->activity_id = wire_bytes(str_c(id));
    return event->event_id;
}

void events_activity_started(struct events *e, int64_t scheduled_id, int32_t attempt) {
    Tp__ActivityStarted *a =
        attributes(e, events_add(e, 11), TP__EVENT__ATTRIBUTES_ACTIVITY_STARTED,
                   &tp__activity_started__descriptor);
    a->scheduled_event_id = scheduled_id;
    a->attempt = attempt;
}

void events_completed(struct events *e, int64_t scheduled_id, const char *result) {
    Tp__ActivityCompleted *a =
        attributes(e, events_add(e, 12), TP__EVENT__ATTRIBUTES_ACTIVITY_COMPLETED,
                   &tp__activity_completed__descriptor);
    a->scheduled_event_id = scheduled_id;
    if (result) a->result = wire_json_list(str_c(result), &e->arena);
}

void events_failed(struct events *e, int64_t scheduled_id, Tp__Failure *failure) {
    Tp__ActivityFailed *a = attributes(e, events_add(e, 13), TP__EVENT__ATTRIBUTES_ACTIVITY_FAILED,
                                       &tp__activity_failed__descriptor);
    a->scheduled_event_id = scheduled_id;
    a->failure = failure;
}

void events_timed_out(struct events *e, int64_t scheduled_id, int32_t timeout_type) {
    Tp__ActivityTimedOut *a =
        attributes(e, events_add(e, 14), TP__EVENT__ATTRIBUTES_ACTIVITY_TIMED_OUT,
                   &tp__activity_timed_out__descriptor);
    a->scheduled_event_id = scheduled_id;
    a->failure = wire_new(&tp__failure__descriptor, &e->arena);
    a->failure->info_case = TP__FAILURE__INFO_TIMEOUT;
    a->failure->timeout = wire_new(&tp__timeout_failure__descriptor, &e->arena);
    a->failure->timeout->timeout_type = timeout_type;
}

void events_cancel_requested(struct events *e, int64_t scheduled_id) {
    Tp__ActivityCancelRequested *a =
        attributes(e, events_add(e, 15), TP__EVENT__ATTRIBUTES_ACTIVITY_CANCEL_REQUESTED,
                   &tp__activity_cancel_requested__descriptor);
    a->scheduled_event_id = scheduled_id;
}

void events_cancelled(struct events *e, int64_t scheduled_id) {
    Tp__ActivityCanceled *a =
        attributes(e, events_add(e, 16), TP__EVENT__ATTRIBUTES_ACTIVITY_CANCELED,
                   &tp__activity_canceled__descriptor);
    a->scheduled_event_id = scheduled_id;
}

void events_signal(struct events *e, const char *name, const char *json) {
    Tp__Signaled *a =
        attributes(e, events_add(e, 26), TP__EVENT__ATTRIBUTES_SIGNALED, &tp__signaled__descriptor);
    a->signal_name = wire_bytes(str_c(name));
    a->identity = wire_bytes(STR("ann"));
    if (json) a->input = wire_json_list(str_c(json), &e->arena);
}

void events_fold(struct events *e, struct history *out) {
    struct error err = {0};
    history_init(out, &e->arena);
    CHECK(history_add(out, &e->page, &err) == ST_OK, "%s", err.msg);
}
