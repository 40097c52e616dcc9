"""What a worker tells operators about itself."""

from __future__ import annotations

import os
import socket

from streamclient.core.worker_info import ShardTrouble, WorkerInfo
from streamclient.model import ReasonKind, ShardState, ShardStatus
from streamclient.worker.health import WorkerHealth
from streamclient.worker.publication import Publication

WELL = WorkerHealth(is_healthy=True)


def status(reason: str, kind: ReasonKind) -> ShardStatus:
    return ShardStatus("s", ShardState.PROCESSING, "it", reason, reason_kind=kind)


def test_a_worker_says_where_it_runs_from_the_start() -> None:
    told = WorkerInfo.from_json(Publication(20_000, 5).text)

    assert (told.host, told.pid, told.started_micros) == (socket.gethostname(), os.getpid(), 5)
    assert told.lease_duration_millis == 20_000
    assert told.version


def test_only_shards_that_do_not_move_are_told_and_only_what_the_rows_do_not_show() -> None:
    publication = Publication(20_000, 5)
    text = publication.changed(
        {
            "moving": status("", ReasonKind.NONE),
            "finished": status("finished", ReasonKind.FINISHED),
            "child": status("parent p is not finished", ReasonKind.PARENTS),
            "failing": status("processor failed once", ReasonKind.PROCESSOR),
        },
        WELL,
        ["left"],
    )

    assert text is not None
    told = WorkerInfo.from_json(text)
    assert told.shards == {"failing": ShardTrouble("processor failed once", "processor")}
    assert told.left == ("left",)


def test_what_has_not_changed_is_not_told_again() -> None:
    publication = Publication(20_000, 5)
    failing = {"s": status("processor failed once", ReasonKind.PROCESSOR)}

    assert publication.changed({}, WELL, ()) is None
    assert publication.changed(failing, WELL, ()) is not None
    assert publication.changed(failing, WELL, ()) is None
    assert publication.changed({}, WorkerHealth(is_healthy=False, reason="no scan succeeded"), ()) is not None
    assert publication.changed({}, WELL, ()) == publication.text
