#!/bin/bash
# Bad input: each kind has its own code, place and message, on the right line, and nothing is written.
. "$(dirname "$0")/lib/e2e.sh"

# Cases are made by perl: a code, a JSON pointer ("-" for any place), and the line's exact bytes.
cases() {
    perl -MDigest::SHA=sha256_hex -e '
        use strict;
        my @order = qw(eventId eventType emittedAt runId tenantId projectId environmentId planId planVersion engineAttemptId
                       logicalAttemptId idempotencyKey stepId payload);
        my %good = (eventId => q("0d3c6a9e-4f0c-4a8e-9d5d-3d4c0f7dbb8a"), eventType => q("StepStarted"),
                    emittedAt => q("2026-02-16T08:00:00Z"), runId => q("r"), tenantId => q("t"), projectId => q("p"),
                    environmentId => q("e"), planId => q("plan"), planVersion => q("1"), engineAttemptId => 1,
                    logicalAttemptId => 1, stepId => q("s"));
        sub key { # of an event with these values, as JSON
            my %e = @_;
            my @parts = map { my $v = $e{$_} // q("RUN"); $v =~ s/^"(.*)"$/$1/s; $v } qw(runId stepId logicalAttemptId eventType planId planVersion);
            return sha256_hex(join "|", @parts);
        }
        sub event { # changes to a good event; undef leaves a member out; the key fits unless given
            my %e = (%good, @_);
            $e{idempotencyKey} = q(") . key(%e) . q(") unless exists $e{idempotencyKey};
            my @names = grep { defined $e{$_} } @order, grep { my $n = $_; !grep { $n eq $_ } @order } sort keys %e;
            return "{" . join(",", map { qq("$_":$e{$_}) } @names) . "}";
        }
        my $n = 0;
        sub bad { my ($code, $where, $line) = @_; print STDERR ++$n, "\t$code\t$where\n"; print "$line\n" }

        # too much
        bad "LINE_TOO_LONG", "-", event(payload => q({"x":") . "x" x (1024 * 1024) . q("}));
        bad "JSON_TOO_LARGE", "-", event(payload => q({"x":") . "x" x (256 * 1024) . q("}));
        bad "JSON_DEPTH", "-", event(payload => q({"x":) . "[" x 100000 . "]" x 100000 . "}");
        bad "JSON_DEPTH", "-", event(payload => q({"a":) x 64 . "1" . "}" x 64);
        bad "FIELD_TOO_LONG", "/runId", event(runId => q(") . "r" x 256 . q("));
        bad "FIELD_TOO_LONG", "/eventType", event(eventType => q(") . "Ab" x 40 . q("), stepId => undef);

        # not JSON, or not all of it
        bad "JSON_SYNTAX", "-", "hello";
        bad "JSON_SYNTAX", "-", substr(event(), 0, -1);
        bad "JSON_SYNTAX", "-", event() . event();
        bad "JSON_UTF8", "-", event(tenantId => qq("\xc3\x28"));
        bad "JSON_UTF8", "-", event(tenantId => qq("\xed\xa0\x80"));
        bad "JSON_SURROGATE", "-", event(tenantId => q("\ud800"));
        bad "JSON_SURROGATE", "-", event(payload => q({"x":"\udc00\ud800"}));
        bad "JSON_NUL", "-", event(payload => qq({"x":"a\0b"}));
        bad "JSON_NUL", "/payload/x", event(payload => q({"x":"a\u0000b"}));
        bad "JSON_DUPLICATE_KEY", "/runId", q({"runId":"x",) . substr(event(), 1);
        bad "JSON_DUPLICATE_KEY", "/payload/a/b", event(payload => q({"a":{"b":1,"c":2,"b":3}}));
        bad "EVENT_NOT_OBJECT", "", "[]";
        bad "EVENT_NOT_OBJECT", "", q("x");

        # fields: missing, empty, surplus, reserved, of another type
        bad "FIELD_MISSING", "/$_", event($_ => undef) for @order[0 .. 11];
        bad "FIELD_EMPTY", "/$_", event($_ => q("")) for qw(eventType runId tenantId projectId environmentId planId planVersion stepId);
        bad "FIELD_UNKNOWN", "/colour", event(colour => q("red"));
        bad "FIELD_RESERVED", "/$_->[0]", event(@$_) for ["runSeq", 1], ["persistedAt", q("2026-02-16T08:00:00Z")], ["occurredAt", q("x")];
        bad "FIELD_TYPE", "/$_", event($_ => q("1")) for qw(engineAttemptId logicalAttemptId);
        bad "FIELD_TYPE", "/$_", event($_ => 1) for qw(eventId eventType emittedAt runId tenantId projectId environmentId planId planVersion stepId idempotencyKey);
        bad "FIELD_TYPE", "/runId", event(runId => "null");
        bad "PAYLOAD_NOT_OBJECT", "/payload", event(payload => $_) for "[]", "1", q("x"), "null";
        bad "NUMBER_NOT_INTEGER", "/logicalAttemptId", event(logicalAttemptId => $_) for "1.0", "1e3", "9223372036854775808";
        bad "ATTEMPT_OUT_OF_RANGE", "/$_", event($_ => 0) for qw(engineAttemptId logicalAttemptId);

        # the delimiter
        bad "DELIMITER_IN_FIELD", "/$_", event($_ => q("a|b")) for qw(runId eventType planId planVersion stepId);

        # ids, keys, clocks
        bad "EVENT_ID_NOT_UUID_V4", "/eventId", event(eventId => qq("$_"))
            for "x", "", "0d3c6a9e-4f0c-5a8e-9d5d-3d4c0f7dbb8a", "{0d3c6a9e-4f0c-4a8e-9d5d-3d4c0f7dbb8a}";
        bad "KEY_MISMATCH", "/idempotencyKey", event(idempotencyKey => q(") . "0" x 64 . q("));
        bad "KEY_MALFORMED", "/idempotencyKey", event(idempotencyKey => q(") . uc(key(%good)) . q("));
        bad "KEY_MALFORMED", "/idempotencyKey", event(idempotencyKey => q("abc"));
        bad "TIME_NOT_RFC3339_UTC", "/emittedAt", event(emittedAt => qq("$_"))
            for "yesterday", "2026-02-16T10:00:00+02:00", "2026-02-16T08:00:00", "2026-02-16 08:00:00Z", "2026-02-30T08:00:00Z",
                "2026-02-16t08:00:00z", "2026-02-16T08:00:00.1234567890Z", "1771228800";

        # types and steps
        bad "STEP_ID_REQUIRED", "/stepId", event(eventType => qq("$_"), stepId => undef) for qw(StepStarted StepCompleted StepFailed StepSkipped);
        bad "FIELD_EMPTY", "/stepId", event(eventType => qq("$_"), stepId => q("")) for qw(StepStarted StepCompleted StepFailed StepSkipped);
        bad "STEP_ID_FORBIDDEN", "/stepId", event(eventType => qq("$_")) for qw(RunQueued RunStarted RunPaused RunResumed RunCompleted RunFailed RunCancelled);
        bad "STEP_ID_RESERVED", "/stepId", event(eventType => q("Teleported"), stepId => q("RUN"));
        bad "EVENT_TYPE_RESERVED", "/eventType", event(eventType => q("EffectRequested"), stepId => undef);
    '
}

# RE-2.1-11, RE-2.2-1, RE-2.2-2, RE-3.1-13, RE-3.1-14 are among the cases (with the good one of RE-2.1-11 in the next test).
db_test_each_bad_line_has_its_code_and_nothing_is_written() {
    cases >lines 2>want
    local rc=0
    c ledger append -q lines >results 2>talk || rc=$?
    same "$rc" 1
    same "$(wc -l <results)" "$(wc -l <want)" "one answer for each line"
    jq -r '[.line, .error.code, .error.where] | @tsv' results >got
    # "-" stands for any place
    paste got want | awk -F'\t' '
        $1 != $4 || $2 != $5 || ($6 != "-" && $3 != $6) { print "got", $1, $2, $3, "want", $4, $5, $6; bad = 1 }
        END { exit bad }'
    same "$(jq -r 'select(.error.message == "" or .error.message == null) | .line' results)" "" "lines without a message"
    # a code has a message of its own: no two codes share one
    same "$(jq -r '.error.code + "\t" + .error.message' results | sort -u | cut -f2 | sort | uniq -d)" ""
    same "$(c ledger stats -o json | jq -c '[.events,.runs,.tenants,.rejections,.alerts]')" "[0,0,0,0,0]"
    c ledger verify --state >/dev/null
}

db_test_the_good_event_beside_them_is_taken() {
    local key
    key=$("$cairn" event key --run-id r --step-id s --attempt 1 --type StepStarted --plan-id plan --plan-version 1)
    cases 2>/dev/null | sed -n 1,40p >lines
    printf '{"eventId":"0d3c6a9e-4f0c-4a8e-9d5d-3d4c0f7dbb8a","eventType":"StepStarted","emittedAt":"2026-02-16T08:00:00Z","runId":"r","tenantId":"t","projectId":"p","environmentId":"e","planId":"plan","planVersion":"1","engineAttemptId":1,"logicalAttemptId":1,"idempotencyKey":"%s","stepId":"s"}\n' "$key" >>lines
    c ledger append -q lines >results 2>/dev/null || same "$?" 1
    same "$(tail -1 results | jq -c '[.eventId,.runSeq,.duplicate]')" '["0d3c6a9e-4f0c-4a8e-9d5d-3d4c0f7dbb8a",1,false]'
    same "$(c ledger stats -o json | jq .events)" 1
}

# A line without its end is a line; one that is cut off is an error; a file of zeros or noise ends in refusals, not in a crash.
db_test_strange_files() {
    printf '%s' '{"a":' >cut
    c ledger append -q cut >results 2>/dev/null || same "$?" 1
    same "$(jq -c '[.line,.error.code]' results)" '[1,"JSON_SYNTAX"]'
    head -c 3000000 /dev/zero >zeros
    c ledger append -q zeros >results 2>/dev/null || same "$?" 1
    same "$(jq -c '[.line,.error.code]' results)" '[1,"LINE_TOO_LONG"]'
    head -c 200000 /dev/urandom >noise
    local rc=0
    c ledger append -q noise >results 2>/dev/null || rc=$?
    same "$rc" 1
    same "$(jq -r 'select(.error == null)' results)" ""
    : >empty
    same "$(c ledger append -q empty)" ""
    same "$(c ledger stats -o json | jq .events)" 0
}

# `event key` refuses what the ledger would refuse, with the same codes.
test_event_key_refuses_alike() {
    key() { "$cairn" event key --run-id "${1-r}" --step-id "${2-s}" --attempt "${3-1}" --type "${4-StepStarted}" --plan-id "${5-p}" --plan-version "${6-1}"; }
    refused 1 'DELIMITER_IN_FIELD at /runId' key 'a|b'
    refused 1 'DELIMITER_IN_FIELD at /stepId' key r 'a|b'
    refused 1 'DELIMITER_IN_FIELD at /eventType' key r s 1 'a|b'
    refused 1 'DELIMITER_IN_FIELD at /planId' key r s 1 StepStarted 'a|b'
    refused 1 'DELIMITER_IN_FIELD at /planVersion' key r s 1 StepStarted p 'a|b'
    refused 1 'FIELD_EMPTY at /runId' key ''
    refused 1 'FIELD_EMPTY at /stepId' key r ''
    refused 1 'FIELD_TOO_LONG at /planId' key r s 1 StepStarted "$(printf 'x%.0s' {1..256})"
    refused 1 'STEP_ID_FORBIDDEN at /stepId' key r s 1 RunStarted
    refused 1 'EVENT_TYPE_RESERVED at /eventType' key r s 1 EffectRequested
    refused 2 'not valid UTF-8' key $'\xff'
    refused 2 '--attempt must be a whole number from 0' key r s -1
    refused 2 '--attempt must be a whole number from 0' key r s 01x
}

e2e_main "$@"
