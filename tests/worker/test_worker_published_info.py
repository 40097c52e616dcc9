"""What a worker tells operators about itself."""

from __future__ import annotations

import os
import socket

from streamclient.core.worker_info import ShardTrouble, WorkerInfo
from streamclient.model import ShardState, ShardStatus
from streamclient.processes import process_space
from streamclient.reasons import Cause, Reason
from streamclient.worker.health import WorkerHealth
from streamclient.worker.statuses import PublishedInfo, because

WELL = WorkerHealth(is_healthy=True)


FAILED_ONCE = Reason(Cause.PROCESSOR_FAILED, "process_records", "once: process_records: ValueError: parent p")


def status(*reasons: Reason) -> ShardStatus:
    return because(ShardStatus("s", ShardState.PROCESSING, "it"), reasons)


def test_a_worker_says_where_it_runs_from_the_start() -> None:
    told = WorkerInfo.from_json(PublishedInfo(20_000, 5).text)

    assert (told.host, told.pid, told.started_micros) == (socket.gethostname(), os.getpid(), 5)
    assert told.space == process_space()
    assert told.lease_duration_millis == 20_000
    assert told.version


def test_only_shards_that_do_not_move_are_told_and_only_what_the_rows_do_not_show() -> None:
    published = PublishedInfo(20_000, 5)
    text = published.changed(
        {
            "moving": status(),
            "finished": status(Reason(Cause.FINISHED)),
            "child": status(Reason(Cause.PARENT, "p", "is not finished")),
            "failing": status(FAILED_ONCE),
        },
        WELL,
        ["left"],
    )

    assert text is not None
    told = WorkerInfo.from_json(text)
    text = "processor failed once: process_records: ValueError: parent p"
    assert told.shards == {"failing": ShardTrouble(text, "processor", (FAILED_ONCE,))}
    assert told.left == ("left",)


def test_what_has_not_changed_is_not_told_again() -> None:
    published = PublishedInfo(20_000, 5)
    failing = {"s": status(FAILED_ONCE)}

    assert published.changed({}, WELL, ()) is None
    assert published.changed(failing, WELL, ()) is not None
    assert published.changed(failing, WELL, ()) is None
    assert published.changed({}, WorkerHealth(is_healthy=False, reason="no scan succeeded"), ()) is not None
    assert published.changed({}, WELL, ()) == published.text
