/* append_and_read.c: a small run, emitted with libcairn and read back.
 *
 *     cc -std=c17 append_and_read.c $(pkg-config --cflags --libs cairn) -o append_and_read
 *     ./append_and_read ledger.db ids.db
 *
 * The first file is the ledger, the second keeps the producer's event ids. Run it twice: the second
 * time every event is a duplicate, with the ids of the first time, and nothing is added. */
#include <cairn.h>
#include <stdio.h>
#include <stdlib.h>

static void must(cairn_status status, const cairn_error *err) {
    if (status == CAIRN_OK) return;
    fprintf(stderr, "append_and_read: %s %s %s\n", err->message, err->reason, err->where);
    exit(1);
}

static void emit(cairn_producer *producer, const char *type, const char *step_id,
                 const char *payload) {
    cairn_event event = {0};
    cairn_result result;
    cairn_error err;
    event.event_type = type;
    event.run_id = "orders-2026-02-16";
    event.tenant_id = "acme";
    event.project_id = "shop";
    event.environment_id = "production";
    event.plan_id = "orders";
    event.plan_version = "7";
    event.step_id = step_id;
    event.payload = payload;
    event.logical_attempt_id = 1;
    event.actor = "append_and_read";
    must(cairn_producer_emit(producer, &event, &result, &err), &err);
    printf("%lld %-13s %s%s\n", (long long)result.run_seq, type, result.event_id,
           result.duplicate ? " (was there)" : "");
}

static bool print_record(void *context, const cairn_record *record) {
    int *count = context;
    ++*count;
    printf("%s\n", record->json);
    return true; /* go on */
}

int main(int argc, char **argv) {
    cairn_store *store = NULL;
    cairn_producer *producer = NULL;
    cairn_error err;
    cairn_run run;
    int count = 0;
    if (argc != 3) {
        fprintf(stderr, "usage: append_and_read LEDGER IDS\n");
        return 2;
    }
    must(cairn_open(argv[1], NULL, &store, &err), &err);
    must(cairn_producer_open(store, argv[2], &producer, &err), &err);

    emit(producer, "RunStarted", NULL, NULL);
    emit(producer, "StepStarted", "extract", NULL);
    emit(producer, "StepCompleted", "extract", "{\"rows\": 1204}");
    emit(producer, "StepSkipped", "mail", "{\"reason\": \"nobody subscribed\"}");
    emit(producer, "RunCompleted", NULL, NULL);

    must(cairn_read_run(store, "orders-2026-02-16", 0, 0, print_record, &count, &err), &err);
    must(cairn_find_run(store, "orders-2026-02-16", &run, &err), &err);
    printf("%d events, the run is %s\n", count, run.status);

    cairn_producer_close(producer);
    cairn_close(store);
    return 0;
}
