"""The named situations in which a shard can be, each with advice for the operator."""

from __future__ import annotations

from attrs import frozen


@frozen
class Situation:
    """A situation in which a shard can be. The documentation page on stuck shards has one row for each situation."""

    name: str
    """The situation's name. It never changes, so programs may compare it."""
    advice: str
    """The operator's next step, as one or two sentences."""
    moves: bool = False
    """True if the shard makes progress, or has nothing left to do."""
    is_finished: bool = False
    """True if every record of the shard was processed, and no further record can come."""


# --- nothing is wrong ---------------------------------------------------------------------------------------------

CAUGHT_UP = Situation("caught-up", "Nothing.", moves=True)
READING = Situation(
    "reading", "Nothing; add workers or speed up the processor if the shard does not catch up.", moves=True
)
HELD = Situation(
    "held", "Nothing is known to be wrong; `explain SHARD` also reads the record at its checkpoint.", moves=True
)
FINISHED = Situation("finished", "Nothing: the shard is closed and was read to its end.", moves=True, is_finished=True)
NEW_OWNER = Situation(
    "changing-hands", "Nothing: a worker takes the shard soon. Ask again if that does not happen.", moves=True
)

# --- service and stream -------------------------------------------------------------------------------------------

NO_STATUS_TABLE = Situation("no-status-table", "Check the name; or start a worker, which creates the table.")
NOT_A_STATUS_TABLE = Situation(
    "not-a-status-table", "Name the fleet's status table with --status-table; workers refuse this one, too."
)
REFUSED = Situation(
    "access-refused",
    "Check endpoint, instance, key and policy. A worker that starts ends with this error. A running worker goes on "
    "asking: its leases run out meanwhile, and it takes leases again once the service admits it.",
)
CLOCK_WRONG = Situation(
    "clock-wrong",
    "Set this machine's clock, for example by NTP. A worker here that starts ends with this error. A running worker "
    "goes on by itself once the clock is right.",
)
THROTTLED = Situation(
    "throttled", "Give the table more capacity, or let other users of it pause. Workers go on by themselves."
)
UNREACHABLE = Situation("unreachable", "Check endpoint and network. Workers go on by themselves.")
NO_DATA_TABLE = Situation("no-data-table", "With --data-table, name the table that the fleet reads.")
STREAM_OFF = Situation(
    "stream-off", "Enable the stream again; that makes a new stream with new shards. Records of the old one are gone."
)
STREAM_REPLACED = Situation(
    "stream-replaced", "Restart the workers: they still ask for the former stream, whose records are gone."
)
UNKNOWN_SHARD = Situation("unknown-shard", "Check the id; `leases list` names all shards.")
LEFT_STREAM = Situation(
    "left-stream", "Nothing can be done: the unread records are lost. The leading worker deletes the row."
)

# --- rows ---------------------------------------------------------------------------------------------------------

MALFORMED_ROW = Situation(
    "malformed-row", "Repair or delete the row. While it is there, every scan of a Java worker fails."
)
UNKNOWN_FORMAT = Situation(
    "unknown-format", "Upgrade: workers and commands of the version that wrote the row, or of a later one, can read it."
)
NO_ROW = Situation(
    "no-row-yet", "Nothing: a worker creates the row within a sync interval. Ask again if that does not happen."
)
PARENT_HAS_NO_ROW = Situation("parent-has-no-row", "See why the parent has no row. Rows are created parents first.")
PARENT_CIRCLE = Situation(
    "parent-circle",
    "Report to the service that it lists these shards as each other's parents: no command can mend that. Other shards "
    "are read.",
)
WAITS_FOR_PARENT = Situation("waits-for-parent", "Deal with the shard that the first line names.")

# --- owners -------------------------------------------------------------------------------------------------------

NO_WORKER = Situation("no-worker", "Start a worker.")
FREE = Situation("free", "Nothing: a worker takes the shard at its next scan. Ask again if that does not happen.")
OWNER_SILENT = Situation("owner-silent", "Wait until the lease expires, or bring the worker back under its name.")
OWNER_FROZEN = Situation(
    "owner-frozen", "Continue the process (kill -CONT), or kill it. After the lease duration other workers take over."
)
OWNER_CUT_OFF = Situation(
    "owner-cut-off",
    "See that process's log: its key may be refused, the service out of its reach, or its clock wrong. Another worker "
    "takes the shard after the lease duration. If no other worker lives, mend the cause: this worker then goes on by "
    "itself.",
)
OWNER_DEAD = Situation("owner-dead", "Nothing: another worker takes the shard. Ask again if that does not happen.")
OWNER_DEAD_ALONE = Situation("owner-dead-alone", "Start a worker.")
OWNER_UNWELL = Situation("owner-unwell", "See the error; the worker goes on by itself once its calls succeed.")
NAME_CONTESTED = Situation(
    "name-contested", "Stop one of the two processes, or give one of them another worker identifier."
)
NOT_HANDED_OVER = Situation(
    "not-handed-over",
    "See why the owner does not stop reading. A Java worker that was restarted may keep a marked lease for ever: "
    "stop it for longer than the lease duration.",
)
NOT_PICKED_UP = Situation("not-picked-up", "Nothing within a scan interval; after that, see whether that worker lives.")
GIVEN_UP = Situation(
    "given-up", "See the log of that worker for the stack of the call; restart the worker if the call never returns."
)
LEFT_BY_PROCESSOR = Situation(
    "left-by-processor",
    "Start another worker if the shard is to be read on; the worker that left it will not take it again.",
)

# --- pauses -------------------------------------------------------------------------------------------------------

PAUSED = Situation("paused", "`leases resume` ends the pause.")
PAUSE_PENDING = Situation("pause-pending", "Wait until the running call of the processor returns.")
PAUSE_IGNORED = Situation(
    "pause-not-obeyed", "Only Python workers of this version obey pauses: move the shard to one, or stop that worker."
)
PAUSED_BY_PROGRAM = Situation("paused-by-program", "The worker's own program has to call `resume`.")

# --- reasons that the owner publishes -----------------------------------------------------------------------------

PROCESSOR_FAILS = Situation(
    "processor-fails", "Mend the processor or its destination; the processor starts again by itself."
)
USER_CODE_RUNS = Situation("user-code-runs", "See the worker's log for the stack of the call.")
READING_FAILS = Situation("reading-fails", "See the service's error; reading goes on by itself once a read succeeds.")
POSITION_TRIMMED = Situation(
    "position-trimmed",
    "The records are lost. Accept the loss: `worker.accept_loss`, or `leases rewind SHARD --to oldest --pause`.",
)
END_NOT_SHOWN = Situation(
    "end-not-shown",
    "Nothing at first: the shard goes on once the list of shards shows a child. If you know that the shard is closed "
    "and has no child, accept its end: `leases accept-end SHARD`, or `worker.accept_end`.",
)
NO_PROGRESS = Situation(
    "no-progress",
    "Report the text of `explain SHARD` to the service: the service, or a gateway before it, repeats a page or sends "
    "pages of another shard. The worker reads from the last record again until that is over, then goes on by itself; "
    "nothing is delivered twice.",
)
RECORD_FAILS = Situation(
    "record-fails",
    "Mend the processor, then pause and resume the shard. Or let it go on without the record: `leases park SHARD "
    "--parking-table NAME` keeps it for a replay, `leases skip SHARD --record ID` drops it.",
)
PARKED_TOO_MANY = Situation(
    "too-many-parked",
    "Find out why the records fail, mend the cause, replay the parked records, then restart the shard.",
)
PARKING_FAILS = Situation(
    "parking-fails", "See the error of the parking store; the shard goes on by itself once the store works."
)
END_NOT_STORED = Situation(
    "end-not-stored", "Call `checkpointer.checkpoint()` in `shutdown` when the reason is TERMINATE."
)
OLD_PROCESSOR_RUNS = Situation(
    "old-processor-runs",
    "The previous processor's call must return before the shard is read again; the log has its stack.",
)
WAITS_FOR_THREAD = Situation(
    "waits-for-thread",
    "Give the worker an executor with more threads; if the fetch pool has no free thread, other reads hang: see their "
    "stacks in the log.",
)
WAITS_FOR_TABLE = Situation("waits-for-table", "Nothing at first. If the situation lasts, see the worker's health.")
OWNER_SAYS = Situation("owner-says", "See the cause that the worker names; its log has more.")

# --- troubles of a worker, not of a shard -------------------------------------------------------------------------

RECORDS_PARKED = Situation(
    "records-parked",
    "`streamclient parked list` names the parked records. Mend the cause, then run `streamclient parked replay`.",
    moves=True,
)

# --- owners that name no obstacle ---------------------------------------------------------------------------------

NO_CHECKPOINT = Situation(
    "no-checkpoint",
    "Let the processor call `checkpointer.checkpoint()`; after a crash all records since the last checkpoint are "
    "delivered again.",
)
OWNER_MUTE = Situation(
    "owner-mute", "See that worker's own log: it is a Java worker, or an older one, and publishes nothing."
)
