"""The first requests of each consumer among answers that say nothing: beside what chance chooses, whatever it chose."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streamclient.tablestore import Integrity
from tests.hostile.play import play
from tests.hostile.table import (
    ANSWERS,
    CONNECT,
    DATA_TABLE,
    MIRROR,
    PLAIN,
    REPLICATE,
    ROW,
    RULES,
    SHARDS,
    SOURCE,
    STATUS_TABLE,
    STREAMS,
    TAIL,
    TUNNEL,
    TUNNEL_REPLICATE,
    TUNNEL_STATE,
    WORKER,
    Case,
    Connection,
    ConsumerKind,
    Lasting,
    Place,
)
from tests.rings import every

UNREADABLE = ("error with 200",)
DAMAGED = ("cut body", "no length, cut", "empty body", "wrong digest")
"""Of the refusal that says that there is no status table yet."""

STARTS: list[tuple[ConsumerKind, Place, tuple[str, ...]]] = [
    (WORKER, STREAMS, UNREADABLE),
    (WORKER, SHARDS, UNREADABLE),
    (WORKER, STATUS_TABLE, UNREADABLE + DAMAGED),
    (WORKER, ROW, UNREADABLE),
    (MIRROR, DATA_TABLE, UNREADABLE),
    (MIRROR, STATUS_TABLE, UNREADABLE + DAMAGED[:1]),
    (MIRROR, ROW, UNREADABLE),
    (REPLICATE, DATA_TABLE, UNREADABLE),
    (REPLICATE, STATUS_TABLE, UNREADABLE + DAMAGED[:1]),
    (REPLICATE, ROW, UNREADABLE),
    (TAIL, STREAMS, UNREADABLE),
    (TAIL, SHARDS, UNREADABLE),
    (SOURCE, STREAMS, UNREADABLE),
    (TUNNEL, CONNECT, UNREADABLE),
    (TUNNEL_REPLICATE, TUNNEL_STATE, UNREADABLE),
]


def _cases() -> Iterator[Case]:
    for consumer, place, names in STARTS:
        for answer in ANSWERS:
            if answer.name in names:
                yield Case(consumer, place, answer, Connection(PLAIN, Integrity.MD5), Lasting.THRICE)


def test_each_of_them_is_in_the_table() -> None:
    assert all(holds(case) for case in _cases() for _, holds in RULES)


@pytest.mark.slow
@pytest.mark.parametrize("case", every(2, _cases()), ids=str)
def test_a_start_outlives_it(case: Case) -> None:
    outcome = play(case)

    assert outcome.findings == [], str(outcome)
