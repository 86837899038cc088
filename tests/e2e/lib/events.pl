#!/usr/bin/perl
# events.pl [NAME=VALUE...]: events for the e2e tests, as NDJSON on standard output.
#   runs=10 steps=4     so many runs, each RunStarted, Started and Completed of each step, RunCompleted
#   active=100          so many of them interleaved at a time
#   run=r tenant=t      run ids are PREFIX-NUMBER
#   first=1             number of the first run
#   pad=0               bytes of padding in the payload of StepCompleted
#   id=fresh            fresh: random event ids; fixed: derived from the key, the same in every process
use strict;
use warnings;
use Digest::SHA qw(sha256_hex);

my %o = (runs => 10, steps => 4, active => 100, run => 'r', tenant => 't', first => 1, pad => 0, id => 'fresh');
for (@ARGV) { /^(\w+)=(.*)$/ && exists $o{$1} or die "events.pl: what is \"$_\"?\n"; $o{$1} = $2 }
my $padding = 'x' x $o{pad};

sub uuid {
    my $h = $o{id} eq 'fixed' ? shift : sha256_hex(rand() . $$ . shift);
    return sprintf '%s-%s-4%s-a%s-%s', substr($h, 0, 8), substr($h, 8, 4), substr($h, 13, 3), substr($h, 17, 3), substr($h, 20, 12);
}

sub event {
    my ($run, $type, $step, $payload) = @_;
    my $key = sha256_hex(join '|', $run, $step // 'RUN', 1, $type, 'plan', '1');
    my $json = sprintf '{"eventId":"%s","eventType":"%s","emittedAt":"2026-02-16T08:00:00Z","runId":"%s","tenantId":"%s",'
        . '"projectId":"p","environmentId":"e","planId":"plan","planVersion":"1","engineAttemptId":1,"logicalAttemptId":1,'
        . '"idempotencyKey":"%s"', uuid($key), $type, $run, $o{tenant}, $key;
    $json .= qq(,"stepId":"$step") if defined $step;
    $json .= qq(,"payload":$payload) if defined $payload;
    print "$json}\n";
}

sub nth { # the n-th event of a run; false when there are no more
    my ($run, $n) = @_;
    if ($n == 0) { event($run, 'RunStarted') }
    elsif ($n <= 2 * $o{steps}) {
        my $step = 's' . int(($n + 1) / 2);
        if ($n % 2) { event($run, 'StepStarted', $step) }
        else { event($run, 'StepCompleted', $step, qq({"output":{"rows":$n,"pad":"$padding"}})) }
    }
    elsif ($n == 2 * $o{steps} + 1) { event($run, 'RunCompleted') }
    else { return 0 }
    return 1;
}

for (my $at = $o{first}; $at < $o{first} + $o{runs}; $at += $o{active}) {
    my $end = $at + $o{active};
    $end = $o{first} + $o{runs} if $end > $o{first} + $o{runs};
    my $more = 1;
    for (my $n = 0; $more; $n++) {
        for my $i ($at .. $end - 1) { $more = nth("$o{run}-$i", $n) }
    }
}
