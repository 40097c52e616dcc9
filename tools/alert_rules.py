"""The alerting rules for a fleet. Their metrics, labels and causes come from the tables of the package."""

from __future__ import annotations

from enum import Enum

from attrs import frozen

from streamclient.base.reasons import Cause, ReasonKind
from streamclient.metrics import metric_table as t
from streamclient.metrics.metric_table import WORKER_LABELS
from streamclient.metrics.request_metrics import OK
from streamclient.model import ShardState
from tools.promql import (
    STREAM,
    STREAM_AND_SHARD,
    WITH_CAUSE,
    doubled,
    grew,
    increase,
    rate,
    retention_left,
    series,
    shards,
    stands,
    throttled_share,
    waits,
    worst,
)


class Severity(Enum):
    """The urgency of an alert."""

    PAGE = "page"
    """A person must act now, because records wait or will be lost."""
    TICKET = "ticket"
    """A person must act within days. No record is lost until then."""


@frozen(kw_only=True)
class Rule:
    """One alerting rule of Prometheus."""

    name: str
    severity: Severity
    expression: str
    labels: tuple[str, ...]
    """The labels of the alert, without ``severity``."""
    wait: str
    """The time for which the expression must hold before the alert fires, in Prometheus' notation."""
    why_wait: str
    title: str
    when: str
    """A sentence that says what fires the alert."""
    action: str
    """A sentence that says what the person should do."""
    runbook: str
    """The page of the documentation that says more, without its suffix, and the anchor of a heading on it."""
    value: str = "humanize"
    """The function of Prometheus' templates that formats the value in the alert's text."""


RETRIES = "Workers try again by themselves; a trouble of the service that lasts a minute or two mends itself."

PAUSED = ShardState.PAUSED.value.lower()
"""The label ``state`` of a shard whose reading is paused. A shard that is to be paused has another state, but already
the reason ``paused``."""

RULES: tuple[Rule, ...] = (
    # --- is anything there? ------------------------------------------------------------------------------------------
    Rule(
        name="StreamclientNoWorker",
        severity=Severity.PAGE,
        expression=f"absent({series(t.UNHEALTHY)})",
        labels=(),
        wait="5m",
        why_wait="Longer than a restart of all processes; a lease lasts 20 s, and the stream keeps records for hours.",
        title="No worker is scraped",
        when="No worker of any stream answers Prometheus: all are dead, frozen or cut off, or none is scraped.",
        action="Look at the processes and at Prometheus' targets; start a worker.",
        runbook="stuck#workers",
    ),
    Rule(
        name="StreamclientStreamWithoutWorker",
        severity=Severity.PAGE,
        expression=f"count by (stream) (last_over_time({series(t.UNHEALTHY, '1d')}))\n"
        f"unless on (stream) count by (stream) ({series(t.UNHEALTHY)})",
        labels=STREAM,
        wait="5m",
        why_wait="Longer than a restart of all processes. It ends by itself a day after the last worker.",
        title="A stream has lost all its workers",
        when="The stream had a worker within a day, and none answers Prometheus now.",
        action="Look at the processes of the fleet; start a worker. Silence the alert if the fleet was retired.",
        runbook="stuck#workers",
    ),
    Rule(
        name="StreamclientWorkerUnhealthy",
        severity=Severity.PAGE,
        expression=f"{worst(t.UNHEALTHY, WORKER_LABELS)} > 0",
        labels=WORKER_LABELS,
        wait="5m",
        why_wait="A worker says it after a minute of failing calls by default; five more outlast a short outage.",
        title="A worker is unhealthy",
        when="A kind of call has not succeeded for longer than the worker's limit, a shard cannot be believed, or the "
        "worker has failed.",
        action="Read Worker.health or /health, which names the call and its error.",
        runbook="operations#is-a-worker-well",
    ),
    Rule(
        name="StreamclientShardUnowned",
        severity=Severity.PAGE,
        expression=f"{worst(t.UNOWNED_SHARDS, STREAM, 'min')} > 0",
        labels=STREAM,
        wait="5m",
        why_wait="A free shard is taken within a scan, that of a dead worker within a lease duration: 20 s by default.",
        title="Shards have no owner",
        when="Unfinished shards have no worker although workers live, so they are not read.",
        action="`streamclient explain` names the shards and why; restart a worker, or start another one.",
        runbook="stuck#workers",
    ),
    # --- how far? ----------------------------------------------------------------------------------------------------
    Rule(
        name="StreamclientLossNear",
        severity=Severity.PAGE,
        expression=retention_left(0.25),
        labels=STREAM_AND_SHARD,
        wait="5m",
        why_wait="Three quarters of the retention are gone; five minutes only outlast a restart.",
        title="Records will be lost soon",
        when="The oldest unread record of a shard has less than a quarter of the stream's retention left.",
        action="Mend what holds the shard up, add workers, or raise the stream's retention now.",
        runbook="retention#lag-and-time-to-loss",
        value="humanizePercentage",
    ),
    Rule(
        name="StreamclientLossInSight",
        severity=Severity.TICKET,
        expression=retention_left(0.5),
        labels=STREAM_AND_SHARD,
        wait="30m",
        why_wait="Half of the retention is left, so there is time to see whether the fleet catches up.",
        title="Records will be lost if nothing changes",
        when="The oldest unread record of a shard has less than half of the stream's retention left.",
        action="See what holds the shard up; add workers or speed up the processor.",
        runbook="retention#lag-and-time-to-loss",
        value="humanizePercentage",
    ),
    Rule(
        name="StreamclientShardStandsStill",
        severity=Severity.PAGE,
        expression=f"{worst(t.LAG_SECONDS, STREAM_AND_SHARD)} > 600\n"
        f"and delta(({worst(t.LAG_SECONDS, STREAM_AND_SHARD)})[10m:1m]) > 300",
        labels=STREAM_AND_SHARD,
        wait="10m",
        why_wait="No usual call takes that long, and a burst is read faster than it came.",
        title="A shard does not move",
        when="The lag of a shard is above ten minutes and grows at more than half the pace of time.",
        action="`streamclient explain SHARD` says why. A pause does this, too: silence the alert for its shard.",
        runbook="stuck#all-situations",
        value="humanizeDuration",
    ),
    Rule(
        name="StreamclientLagGrows",
        severity=Severity.TICKET,
        expression=f"{worst(t.LAG_SECONDS, STREAM)} > 3600\nand delta(({worst(t.LAG_SECONDS, STREAM)})[1h:5m]) > 0",
        labels=STREAM,
        wait="30m",
        why_wait="A nightly burst makes a lag, too; one that still grows after so long will not go by itself.",
        title="The lag grows",
        when="The longest lag of the stream is above an hour, and longer than an hour ago.",
        action="Add workers if there are more shards than workers, else speed up the processor.",
        runbook="operations#why-does-a-shard-not-move",
        value="humanizeDuration",
    ),
    # --- what fails? -------------------------------------------------------------------------------------------------
    Rule(
        name="StreamclientRecordsLost",
        severity=Severity.PAGE,
        expression=stands(Cause.LOSS),
        labels=WITH_CAUSE,
        wait="1m",
        why_wait="It does not go by itself; a minute outlasts a sample of a shard that has just been let go.",
        title="Records were lost",
        when="A shard stopped because the records after its checkpoint are past the stream's retention.",
        action="Accept the loss: `worker.accept_loss`, or `leases rewind SHARD --to oldest --pause`.",
        runbook="retention#records-that-were-lost",
    ),
    Rule(
        name="StreamclientShardStopped",
        severity=Severity.PAGE,
        expression=stands(Cause.FAILING_RECORD, Cause.PARKED_SHARE),
        labels=WITH_CAUSE,
        wait="1m",
        why_wait="It does not go by itself; a minute outlasts a sample of a shard that has just been let go.",
        title="A shard stopped for a decision",
        when="A shard stopped by its failure policy: at a failing record, or because too many are parked.",
        action="Mend the processor, or park or skip the record, then restart the shard.",
        runbook="failing-records#stop-at-the-record",
    ),
    Rule(
        name="StreamclientRecordsParked",
        severity=Severity.TICKET,
        expression=grew(t.RECORDS_PARKED, "1h", WORKER_LABELS),
        labels=WORKER_LABELS,
        wait="0m",
        why_wait="A record that was parked stays so until it is replayed: there is nothing to wait for.",
        title="Records were parked",
        when="Records were put into the parking store within an hour.",
        action="`streamclient parked list` shows them with their errors; mend the cause, then replay them.",
        runbook="failing-records#replay",
    ),
    Rule(
        name="StreamclientParkingFails",
        severity=Severity.PAGE,
        expression=stands(Cause.PARKING_FAILED),
        labels=WITH_CAUSE,
        wait="5m",
        why_wait=RETRIES,
        title="The parking store fails",
        when="A shard waits for the parking store, whose calls raise.",
        action="See the error of the store; the shard goes on by itself once the store works.",
        runbook="failing-records#park-the-record",
    ),
    Rule(
        name="StreamclientUserCodeFails",
        severity=Severity.TICKET,
        expression=f"{increase(t.USER_CODE_FAILURES, '10m', (*WORKER_LABELS, 'call'))} > 0",
        labels=(*WORKER_LABELS, "call"),
        wait="15m",
        why_wait="One failure is repeated and forgotten; after 15 minutes repeating has not helped.",
        title="User code fails",
        when="Calls into user code raise again and again; call names them, end_not_stored an end without checkpoint.",
        action="Mend the processor or its destination; the processor starts again by itself.",
        runbook="stuck#the-processor",
    ),
    Rule(
        name="StreamclientProcessorFails",
        severity=Severity.PAGE,
        expression=stands(Cause.PROCESSOR_FAILED, Cause.END_NOT_STORED),
        labels=WITH_CAUSE,
        wait="15m",
        why_wait="Restarts are a minute apart at most, so this is more than a dozen that all failed.",
        title="A shard's processor fails at each start",
        when="A shard waits for the next start of its processor, which failed or did not checkpoint the shard's end.",
        action="Mend the processor or its destination; the processor starts again by itself.",
        runbook="stuck#the-processor",
    ),
    Rule(
        name="StreamclientCallRuns",
        severity=Severity.TICKET,
        expression=waits(Cause.CALL_RUNS, Cause.BATCH_OUT, Cause.BATCH_WAITS, Cause.PARKING_RUNS),
        labels=WITH_CAUSE,
        wait="15m",
        why_wait="A call is told after 30 s and given up after 10 minutes: this one has no limit, or there are many.",
        title="Calls of user code run long",
        when="Shards wait for a call of user code, of a loop's body or of the parking store that does not return.",
        action="See the worker's log for the stack of the call.",
        runbook="failing-records#a-call-that-does-not-return",
    ),
    Rule(
        name="StreamclientCallGivenUp",
        severity=Severity.TICKET,
        expression=f"{increase(t.STALLS, '1h', WORKER_LABELS)} > 0",
        labels=WORKER_LABELS,
        wait="0m",
        why_wait="Each one is an event: a lease was let run out, and its records come again elsewhere.",
        title="A call exceeded its limit",
        when="A worker let a lease run out because a call or a read exceeded its limit.",
        action="See the worker's log for the stack of the call; restart the worker if the call never returns.",
        runbook="failing-records#a-call-that-does-not-return",
    ),
    Rule(
        name="StreamclientThreadsShort",
        severity=Severity.TICKET,
        expression=waits(Cause.CALL_QUEUED, Cause.READ_QUEUED, Cause.PARKING_QUEUED),
        labels=WITH_CAUSE,
        wait="15m",
        why_wait="A burst fills all threads for a while; a quarter of an hour is more than a burst.",
        title="Too few threads",
        when="Calls or reads have waited for a free thread for more than a second.",
        action="Give the worker an executor with more threads; if the fetch pool has no free thread, other reads hang.",
        runbook="stuck#the-processor",
    ),
    Rule(
        name="StreamclientShardNotReleased",
        severity=Severity.TICKET,
        expression=f"{waits(Cause.ASKED_FOR, Cause.GIVEN_AWAY, Cause.CLOSING, Cause.PREVIOUS_PROCESSOR)}\n"
        f"or {shards(reason=ReasonKind.PAUSED.value, state=f'!={PAUSED}')}",
        labels=WITH_CAUSE,
        wait="10m",
        why_wait="A hand-over takes a second, and as long as the running call; ten minutes is the limit of a call.",
        title="A processor does not let its shard go",
        when="A shard was asked for, paused, rewound or is done, and a call of its processor has not returned.",
        action="See the worker's log for the stack of the call; restart the worker if the call never returns.",
        runbook="stuck#workers",
    ),
    Rule(
        name="StreamclientNoCheckpoint",
        severity=Severity.TICKET,
        expression=f"{increase(t.RECORDS_PROCESSED, '30m', WORKER_LABELS)} > 0\n"
        f"unless {increase(t.CHECKPOINTS, '30m', WORKER_LABELS, outcome='stored')} > 0",
        labels=WORKER_LABELS,
        wait="30m",
        why_wait="Processors may checkpoint rarely on purpose; after an hour without one, too much would come again.",
        title="Nothing is checkpointed",
        when="A worker processes records, and has stored no checkpoint for half an hour.",
        action="Let the processor call `checkpointer.checkpoint()`; after a crash all since the last one comes again.",
        runbook="stuck#the-processor",
    ),
    Rule(
        name="StreamclientPauseForgotten",
        severity=Severity.TICKET,
        expression=shards(reason=ReasonKind.PAUSED.value, state=PAUSED),
        labels=WITH_CAUSE,
        wait="4h",
        why_wait="Maintenance takes an hour or two; a pause that outlasts a shift is likely forgotten.",
        title="Shards are paused for long",
        when="Shards have been paused by an operator, or by the worker's program, for four hours.",
        action="`streamclient leases list` names who paused them; `leases resume`, or the program's `resume`, ends it.",
        runbook="stuck#pauses",
    ),
    # --- stream, service, status table -------------------------------------------------------------------------------
    Rule(
        name="StreamclientReadsFail",
        severity=Severity.PAGE,
        expression=stands(Cause.READING_FAILED),
        labels=WITH_CAUSE,
        wait="5m",
        why_wait=RETRIES,
        title="Reads fail",
        when="The stream's answers are errors, so that a shard is not read.",
        action="`streamclient explain SHARD` has the service's error; reading goes on by itself once a read succeeds.",
        runbook="stuck#stream-and-service",
    ),
    Rule(
        name="StreamclientServiceNotBelieved",
        severity=Severity.PAGE,
        expression=stands(Cause.END_NOT_SHOWN, Cause.NO_PROGRESS, Cause.PARENT_CIRCLE),
        labels=WITH_CAUSE,
        wait="5m",
        why_wait="A list of shards may be late by a minute or two after a split.",
        title="The service's answers cannot be true",
        when="A shard stands still because of contradictions: end_not_shown, no_progress or parent_circle.",
        action="Report the text of `streamclient explain SHARD` to the service; accept an end only if you know of it.",
        runbook="stuck#stream-and-service",
    ),
    Rule(
        name="StreamclientStreamThrottled",
        severity=Severity.TICKET,
        expression=f"{throttled_share(t.STREAM_REQUESTS)} > 0.05",
        labels=STREAM,
        wait="15m",
        why_wait="The service throttles while it moves a partition, too, for some minutes.",
        title="Reads are throttled",
        when="More than a twentieth of the requests to the stream are throttled.",
        action="Give the table more capacity, or let other users of it pause.",
        runbook="stuck#stream-and-service",
        value="humanizePercentage",
    ),
    Rule(
        name="StreamclientStatusTableThrottled",
        severity=Severity.TICKET,
        expression=f"{throttled_share(t.STATUS_TABLE_REQUESTS)} > 0.05",
        labels=STREAM,
        wait="15m",
        why_wait="The service throttles while it moves a partition, too, for some minutes.",
        title="The status table is throttled",
        when="More than a twentieth of the requests to the status table are throttled.",
        action="Give the table more capacity, or lengthen the intervals of the workers.",
        runbook="operations#what-the-status-table-is-asked",
        value="humanizePercentage",
    ),
    Rule(
        name="StreamclientScansFail",
        severity=Severity.PAGE,
        expression=f"{rate(t.STATUS_TABLE_REQUESTS, '5m', WORKER_LABELS, operation='GetRange', result=f'!={OK}')} > 0\n"
        f"unless {rate(t.STATUS_TABLE_REQUESTS, '5m', WORKER_LABELS, operation='GetRange', result=OK)} > 0",
        labels=WORKER_LABELS,
        wait="5m",
        why_wait=RETRIES,
        title="Scans of the status table fail",
        when="No scan of the status table succeeds, so that the worker takes no shard and sees no order.",
        action="See the error in Worker.health; check endpoint, key, policy and the table.",
        runbook="stuck#workers",
    ),
    Rule(
        name="StreamclientShardWaitsForTable",
        severity=Severity.TICKET,
        expression=waits(
            Cause.EPOCH,
            Cause.LOOK,
            Cause.ROW_GONE,
            Cause.PARENT_ROW_MISSING,
            Cause.HAND_OVER_IN_DOUBT,
            Cause.LEAVING_PAUSE,
            Cause.CHECKPOINT,
            Cause.PREVIOUS_CHECKPOINT,
        ),
        labels=WITH_CAUSE,
        wait="5m",
        why_wait="Each of these steps takes one answer of the status table: a second, or a scan interval.",
        title="A shard waits for the status table",
        when="A shard waits for an answer of the status table: its epoch, its row, a checkpoint.",
        action="See the worker's health and `streamclient explain SHARD`.",
        runbook="stuck#stream-and-service",
    ),
    Rule(
        name="StreamclientTunnelLossSuspected",
        severity=Severity.TICKET,
        expression=grew(t.SUSPECTED_LOSSES, "1d", WITH_CAUSE),
        labels=WITH_CAUSE,
        wait="0m",
        why_wait="A suspicion is told once, and what may be lost stays so: there is nothing to wait for.",
        title="A tunnel may have lost records",
        when="Within a day a channel of a tunnel was opened, or read on, from a position past the table's retention.",
        action="The worker's log names channel and times; if something was written then, copy the table anew.",
        runbook="tunnels#records-that-a-tunnel-may-have-lost",
    ),
    Rule(
        name="StreamclientChannelGivenUp",
        severity=Severity.PAGE,
        expression=stands(Cause.CHANNEL_GIVEN_UP),
        labels=WITH_CAUSE,
        wait="5m",
        why_wait=RETRIES,
        title="A tunnel's channel is given up",
        when="A channel of a tunnel is not read, because the service does not tell its checkpoint.",
        action="Worker.health has the service's error; the channel is read once its checkpoint can be read.",
        runbook="tunnels#a-channel-that-is-given-up",
    ),
    # --- leases, clocks, cost ----------------------------------------------------------------------------------------
    Rule(
        name="StreamclientLeasesLost",
        severity=Severity.TICKET,
        expression=f"{increase(t.LEASE_MOVES, '1h', STREAM, move='lost')} > 3",
        labels=STREAM,
        wait="0m",
        why_wait="The window is the wait: more than three in an hour are more than a worker that crashed.",
        title="Leases are lost often",
        when="More than three leases were lost within an hour, so that records came again and shards moved.",
        action="See the logs of the workers: calls over their limit, a slow status table, a busy machine.",
        runbook="operations#intervals",
    ),
    Rule(
        name="StreamclientClockSlow",
        severity=Severity.TICKET,
        expression=f"{worst(t.CLOCK_SLOW_SECONDS, WORKER_LABELS)} > 30",
        labels=WORKER_LABELS,
        wait="10m",
        why_wait="A clock that is being set right takes a while; the service refuses requests only from 15 minutes on.",
        title="A machine's clock is slow",
        when="Records are newer than the clock of the worker's machine by more than half a minute.",
        action="Set the clock right (NTP): pauses end late, and the service refuses clocks that are far off.",
        runbook="retention#lag-and-time-to-loss",
        value="humanizeDuration",
    ),
    Rule(
        name="StreamclientCostDoubled",
        severity=Severity.TICKET,
        expression=f"({doubled(t.STREAM_UNITS, t.STATUS_TABLE_UNITS)})\n"
        f"or\n({doubled(t.STREAM_REQUESTS, t.STATUS_TABLE_REQUESTS)})",
        labels=STREAM,
        wait="1h",
        why_wait="Catching up is expensive for an hour or so, and cheaper than not catching up.",
        title="The fleet costs twice as much as yesterday",
        when="Capacity units or requests in an hour are more than twice those of the same hour yesterday.",
        action="See which figure grew on the board's row on cost; compare workers, shards and intervals.",
        runbook="operations#what-the-fleet-says-that-it-costs",
    ),
)
"""All rules, in the order of their table on the page about alerts."""
