"""The faults that a test plays in real fleets, the alerts that each fault fires, and the answers to probes.

The test compares alerts and answers with these tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import field, frozen


def _with_prefix(names: Iterable[str]) -> tuple[str, ...]:
    """Return the full names of alerts, with their prefix."""
    return tuple(f"Streamclient{name}" for name in names)


Statuses = tuple[int, ...]
"""The HTTP statuses of ``/live``, ``/ready`` and ``/health``."""

WELL: Statuses = (200, 200, 200)
UNHEALTHY: Statuses = (200, 200, 503)
"""The worker runs, and its health names a trouble."""
NO_ANSWER: Statuses = ()
"""No process answers a probe."""


@frozen
class Fault:
    """A fault that lasts for hours, and the alerts that it fires. Names of alerts are given without their prefix."""

    name: str
    played: str
    """A sentence that says what happens in the fault."""
    named: tuple[str, ...] = field(default=(), converter=_with_prefix)
    """The alerts that are meant for this fault."""
    also: tuple[str, ...] = field(default=(), converter=_with_prefix)
    """The alerts that consequences of the fault fire."""
    situations: tuple[str, ...] = ()
    """The situations, on the page on stuck shards, that occur during the fault."""
    probes: Statuses = WELL
    """The answers of the affected worker to probes, once the fault has lasted for a while."""


STILL = ("ShardStandsStill", "LagGrows")
"""The alerts that fire if a shard with unread records does not move for hours."""

FAULTS: tuple[Fault, ...] = (
    # --- nothing is wrong --------------------------------------------------------------------------------------------
    Fault("caught-up", "A worker has read everything there is.", situations=("caught-up",)),
    Fault("reading", "Records keep coming, and a worker keeps up with them.", situations=("reading",)),
    # --- the processor -----------------------------------------------------------------------------------------------
    Fault(
        "processor-fails",
        "`initialize` raises at each start.",
        ("ProcessorFails", "UserCodeFails"),
        situations=("processor-fails",),
    ),
    Fault(
        "record-fails",
        "A record fails, and the failure policy stops its shard.",
        ("ShardStopped",),
        STILL,
        ("record-fails",),
    ),
    Fault(
        "too-many-parked",
        "More records fail than the failure policy lets park.",
        ("ShardStopped",),
        ("RecordsParked", *STILL),
        ("too-many-parked",),
    ),
    Fault(
        "parking-fails",
        "A record fails, and so does the parking store.",
        ("ParkingFails", "UserCodeFails"),
        STILL,
        ("parking-fails",),
    ),
    Fault("no-checkpoint", "The processor never checkpoints.", ("NoCheckpoint",), situations=("no-checkpoint",)),
    Fault(
        "left-by-processor",
        "The processor is done with its shard (`mark_for_process_done`), and no other worker lives.",
        ("ShardUnowned",),
        situations=("left-by-processor",),
    ),
    Fault("user-code-runs", "A call does not return.", ("CallRuns",), STILL, ("user-code-runs",)),
    Fault(
        "end-not-stored",
        "The processor does not checkpoint the end of a split shard, whose children wait.",
        ("ProcessorFails", "UserCodeFails"),
        ("NoCheckpoint",),
        ("end-not-stored", "waits-for-parent"),
    ),
    Fault(
        "waits-for-thread",
        "The executor has one thread, a call keeps it, and another shard waits.",
        ("ThreadsShort", "CallRuns"),
        STILL,
        ("waits-for-thread",),
    ),
    Fault(
        "owner-says",
        "The processor is done with its shard, and its `shutdown` does not return.",
        ("ShardNotReleased",),
        STILL,
        ("owner-says",),
    ),
    Fault(
        "given-up",
        "A call exceeds its limit and never returns, and no other worker lives.",
        ("CallGivenUp", "ShardUnowned"),
        STILL,
        ("given-up",),
    ),
    Fault(
        "old-processor-runs",
        "A shard is rewound under a call that does not return.",
        ("ShardNotReleased",),
        STILL,
        ("old-processor-runs",),
    ),
    Fault("records-parked", "A record fails and is parked.", ("RecordsParked",), situations=("records-parked",)),
    Fault(
        "records-parked-at-once",
        "A worker starts, and parks a record before Prometheus asks it for the first time.",
        ("RecordsParked",),
    ),
    # --- pauses, hand-overs, names -----------------------------------------------------------------------------------
    Fault("paused", "An operator pauses a shard and forgets it.", ("PauseForgotten",), STILL, ("paused",)),
    Fault(
        "pause-pending",
        "An operator pauses a shard under a call that does not return.",
        ("ShardNotReleased",),
        STILL,
        ("pause-pending",),
    ),
    Fault(
        "paused-by-program",
        "The program pauses its worker and forgets it.",
        ("PauseForgotten",),
        STILL,
        ("paused-by-program",),
    ),
    Fault(
        "not-handed-over",
        "A shard is moved under a call that does not return.",
        ("ShardNotReleased",),
        STILL,
        ("not-handed-over",),
    ),
    Fault(
        "name-contested",
        "A second process starts under the name of a worker; the older one stays without leases.",
        ("WorkerUnhealthy",),
        situations=("name-contested",),
        probes=UNHEALTHY,
    ),
    # --- stream and service ------------------------------------------------------------------------------------------
    Fault(
        "reading-fails",
        "The service refuses all reads of the stream.",
        ("ReadsFail",),
        ("WorkerUnhealthy", *STILL),
        ("reading-fails",),
        probes=UNHEALTHY,
    ),
    Fault(
        "reading-fails-for-a-day",
        "The same for 20 hours, of a stream that keeps records for a day.",
        ("LossNear", "LossInSight"),
        ("ReadsFail", "WorkerUnhealthy", *STILL),
        probes=UNHEALTHY,
    ),
    Fault(
        "owner-unwell",
        "All scans of the status table fail.",
        ("ScansFail", "WorkerUnhealthy"),
        ("StatusTableThrottled",),
        ("owner-unwell",),
        probes=UNHEALTHY,
    ),
    Fault(
        "access-refused",
        "The service refuses a running worker's key.",
        ("WorkerUnhealthy",),
        ("ShardUnowned",),
        ("access-refused",),
        probes=UNHEALTHY,
    ),
    Fault(
        "throttled",
        "Three of ten requests to the status table are throttled.",
        ("StatusTableThrottled",),
        situations=("throttled",),
    ),
    Fault("stream-throttled", "Half of the reads of the stream are throttled.", ("StreamThrottled",)),
    Fault(
        "no-status-table",
        "The status table is deleted under a worker.",
        ("WorkerUnhealthy",),
        ("ShardUnowned",),
        ("no-status-table",),
        probes=UNHEALTHY,
    ),
    Fault(
        "stream-off",
        "The stream is turned off under a worker.",
        ("ReadsFail", "WorkerUnhealthy"),
        STILL,
        ("stream-off",),
        probes=UNHEALTHY,
    ),
    Fault(
        "stream-replaced",
        "The stream is turned off and on again under a worker.",
        ("ReadsFail", "WorkerUnhealthy"),
        STILL,
        ("stream-replaced",),
        probes=UNHEALTHY,
    ),
    Fault(
        "unreachable",
        "Nothing answers at the endpoint any more.",
        ("WorkerUnhealthy", "ScansFail"),
        ("ShardUnowned",),
        ("unreachable", "owner-cut-off"),
        probes=UNHEALTHY,
    ),
    Fault(
        "position-trimmed",
        "The records after the checkpoint are past retention.",
        ("RecordsLost",),
        situations=("position-trimmed",),
    ),
    Fault(
        "end-not-shown",
        "The service says that a shard has ended, and shows no child of it.",
        ("ServiceNotBelieved",),
        ("WorkerUnhealthy", *STILL),
        ("end-not-shown",),
        probes=UNHEALTHY,
    ),
    Fault(
        "no-progress",
        "The service gives the same page again and again.",
        ("ServiceNotBelieved",),
        ("WorkerUnhealthy", *STILL),
        ("no-progress",),
        probes=UNHEALTHY,
    ),
    Fault(
        "parent-circle",
        "The service lists the two children of a shard as each other's parents.",
        ("ServiceNotBelieved", "WorkerUnhealthy"),
        STILL,
        ("parent-circle",),
        probes=UNHEALTHY,
    ),
    Fault(
        "waits-for-table",
        "The epoch of a lease cannot be drawn.",
        ("ShardWaitsForTable",),
        ("WorkerUnhealthy", "StatusTableThrottled"),
        ("waits-for-table",),
        probes=UNHEALTHY,
    ),
    Fault(
        "tunnel-losses-suspected",
        "A tunnel is read again after more than the table's retention, and the service goes on with what is left.",
        ("TunnelLossSuspected",),
    ),
    Fault(
        "channel-given-up",
        "The service refuses to tell the checkpoint of a tunnel's channel.",
        ("ChannelGivenUp",),
        ("WorkerUnhealthy",),
        probes=UNHEALTHY,
    ),
    # --- processes, clocks, cost -------------------------------------------------------------------------------------
    Fault(
        "owner-frozen",
        "The only process is stopped (SIGSTOP).",
        ("NoWorker", "StreamWithoutWorker"),
        situations=("owner-frozen",),
        probes=NO_ANSWER,
    ),
    Fault(
        "owner-dead-alone",
        "The only process is killed (`kill -9`).",
        ("NoWorker", "StreamWithoutWorker"),
        situations=("owner-silent", "owner-dead-alone", "no-worker"),
        probes=NO_ANSWER,
    ),
    Fault("clock-slow", "A machine's clock is two minutes slow.", ("ClockSlow",)),
    Fault(
        "leases-lost",
        "Writes to the status table are throttled for longer than a lease, again and again.",
        ("LeasesLost",),
        ("StatusTableThrottled",),
    ),
    Fault("cost-doubled", "A fleet gets intervals a tenth of those of yesterday.", ("CostDoubled",)),
)
"""All faults, in the order of their table on the page about alerts."""

_FINE = "Nothing is wrong."
_JAVA = "Java workers have no metrics of this package; the stream's other alerts see only Python workers."
_COMMAND = "A command was given a wrong name. A worker that is given it ends at once: `StreamclientNoWorker`."

NOT_PLAYED: Mapping[str, str] = {
    "held": _FINE,
    "finished": _FINE,
    "changing-hands": _FINE,
    "free": "Nothing is wrong; if it stays so, `StreamclientShardUnowned` fires.",
    "no-row-yet": _FINE,
    "parent-has-no-row": "Rows are made parents first; if it stays so, `StreamclientShardWaitsForTable` fires.",
    "owner-dead": "Another worker takes the shards within a lease duration.",
    "not-picked-up": "The shard is taken within a lease duration; if not, `StreamclientShardUnowned` fires.",
    "owner-mute": _JAVA,
    "pause-not-obeyed": _JAVA,
    "malformed-row": "Workers leave the row out, as if it did not exist; their logs name it.",
    "unknown-format": "Workers of this version leave the row to those of the later one; their logs name it.",
    "left-stream": "The lease is deleted, and with it its metrics. `StreamclientLossNear` fired before.",
    "unknown-shard": _COMMAND,
    "no-data-table": _COMMAND,
    "clock-wrong": "It is the clock of the machine where the command runs; `StreamclientClockSlow` is for workers.",
    "not-a-status-table": _COMMAND,
}
"""The situations that no fault plays, because no alert names them, each with the reason."""
