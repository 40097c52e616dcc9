"""Pages that lead nowhere, come again or go back: no record of them is used, and the same place is read again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tunnel_scene import Log, Scene
from tunnel_server import NEEDED, QUICK, Reply, Server, gateway

from streamclient.base.reasons import ReasonKind
from streamclient.model import ShardStatus
from streamclient.records import ColumnOperation, RecordColumn, RecordType, SequenceInfo, StreamRecord
from streamclient.server import LocalTablestore
from streamclient.server.engine import Engine
from streamclient.server.server_clock import Clock
from streamclient.server.server_limits import Limits
from streamclient.server.storage import open_storage
from streamclient.tunnel import TunnelAnswerError, TunnelType
from streamclient.tunnel.tunnel_order import ChannelOrder
from streamclient.wire import schema
from streamclient.wire.page_parts import FINISHED
from streamclient.wire.plainbuffer import Row, encode_row
from streamclient.wire.record_decoding import default_codec
from streamclient.wire.tunnel import Token
from tests.patience import until

CHANNEL = "ch"


def page(next_token: str, *records: StreamRecord) -> Reply:
    answer = schema.ReadRecordsResponse(next_token=next_token)
    for record in records:
        action, data, _ = default_codec().encode_record(record)
        answer.records.add(action_type=action, record=data)
    return 200, NEEDED, answer.SerializeToString()


def change(number: int, key: int = 1) -> StreamRecord:
    """A change, the later the greater its number."""
    cell = RecordColumn("value", ColumnOperation.PUT, number, 1)
    return StreamRecord(RecordType.PUT, (("id", key),), (cell,), SequenceInfo(1, 1_000 + number, 0))


def row(key: int) -> StreamRecord:
    """A row of full data."""
    cell = RecordColumn("value", ColumnOperation.PUT, key, 1)
    return StreamRecord(RecordType.PUT, (("id", key),), (cell,), SequenceInfo(0, 0, 0))


def changes(*numbers: int) -> Sequence[StreamRecord]:
    return [change(number) for number in numbers]


def rows(*keys: int) -> Sequence[StreamRecord]:
    return [row(key) for key in keys]


def key_token(key: int) -> str:
    return Token(primary_key=encode_row(Row((("id", key),)))).encode()


START = Token().encode()
STREAM = [Token(iterator=f"at {number}").encode() for number in range(9)]

IN_ORDER: dict[str, list[tuple[str, str, Sequence[StreamRecord]]]] = {
    "changes": [(STREAM[0], STREAM[1], changes(1, 2)), (STREAM[1], STREAM[2], changes(3, 4))],
    "no records and the same token": [(STREAM[0], STREAM[0], ()), (STREAM[0], STREAM[1], changes(1))],
    "no records and another token": [(STREAM[0], STREAM[1], changes(1)), (STREAM[1], STREAM[2], ())],
    "read again from before": [(STREAM[0], STREAM[1], changes(1, 2)), (STREAM[0], STREAM[1], changes(1, 2))],
    "a longer page at the same token": [(STREAM[0], STREAM[1], changes(1)), (STREAM[0], STREAM[2], changes(1, 2))],
    "an end": [(STREAM[0], FINISHED, changes(1, 2)), (FINISHED, FINISHED, ())],
    "full data": [(START, key_token(4), rows(1, 2, 3)), (key_token(4), FINISHED, rows(4, 5))],
    "full data whose rows are gone": [(key_token(2), key_token(4), ()), (key_token(4), FINISHED, rows(7))],
    "tokens of another make": [("one", "two", rows(3)), ("two", "three", rows(1))],
}

OUT_OF_ORDER: dict[str, list[tuple[str, str, Sequence[StreamRecord]]]] = {
    "changes and the same token": [(STREAM[0], STREAM[0], changes(1, 2))],
    "full data and the same token": [(key_token(4), key_token(4), rows(4, 5))],
    "full data from its beginning to its beginning": [(START, START, rows(1))],
    "no next token": [(STREAM[0], "", changes(1))],
    "the name of an end": [(STREAM[0], "SHARD_END", ())],
    "the name of a beginning": [(STREAM[0], "TRIM_HORIZON", changes(1))],
    "the same page again": [(STREAM[0], STREAM[1], changes(1, 2)), (STREAM[1], STREAM[2], changes(1, 2))],
    "a part of it again": [(STREAM[0], STREAM[1], changes(1, 2)), (STREAM[1], STREAM[2], changes(2, 3))],
    "an older page": [(STREAM[0], STREAM[1], changes(5, 6)), (STREAM[1], STREAM[2], changes(1, 2))],
    "changes that fall in the middle": [(STREAM[0], STREAM[1], changes(1, 3, 2, 4))],
    "an older page after an empty one": [
        (STREAM[0], STREAM[1], changes(5, 6)),
        (STREAM[1], STREAM[2], ()),
        (STREAM[2], STREAM[3], changes(6)),
    ],
    "an older page with an end": [(STREAM[0], STREAM[1], changes(5, 6)), (STREAM[1], FINISHED, changes(6))],
    "changes that fall": [(STREAM[0], STREAM[1], changes(2, 1))],
    "one change twice": [(STREAM[0], STREAM[1], changes(2, 2))],
    "full data that goes back": [(key_token(4), key_token(2), rows(4, 5))],
    "older rows": [(key_token(4), key_token(9), rows(1, 2, 3))],
    "older rows with an end": [(key_token(4), FINISHED, rows(1, 2, 3))],
    "rows of full data among changes": [(STREAM[0], STREAM[1], changes(1)), (STREAM[1], FINISHED, rows(1, 2))],
    "rows of full data where changes begin": [(STREAM[0], key_token(4), rows(1, 2))],
    "changes among full data": [(START, key_token(4), rows(1, 2)), (key_token(4), STREAM[1], changes(1, 2))],
    "changes where full data begins": [(START, FINISHED, changes(1, 2))],
}


@pytest.mark.parametrize("name", IN_ORDER)
def test_pages_in_order_are_read(serve: Callable[..., Server], name: str) -> None:
    pages, order = IN_ORDER[name], ChannelOrder()
    tunnels = serve(*(page(following, *records) for _, following, records in pages)).tunnels()

    for token, following, records in pages:
        read = tunnels.read_records("t", "c", CHANNEL, token, order=order)
        assert (read.next_token, tuple(read.records)) == (following, tuple(records))


@pytest.mark.parametrize("name", OUT_OF_ORDER)
def test_a_page_out_of_order_is_not_used_and_read_again(serve: Callable[..., Server], name: str) -> None:
    pages, order = OUT_OF_ORDER[name], ChannelOrder()
    server = serve(*(page(following, *records) for _, following, records in pages))
    tunnels, (token, _, _) = server.tunnels(), pages[-1]
    for earlier, *_ in pages[:-1]:
        tunnels.read_records("t", "c", CHANNEL, earlier, order=order)
    with pytest.raises(TunnelAnswerError):
        tunnels.read_records("t", "c", CHANNEL, token, order=order)
    assert len(server.paths) == len(pages) + QUICK.retries
    with pytest.raises(TunnelAnswerError):
        tunnels.read_records("t", "c", CHANNEL, token, order=order, raises_at_once=True)
    assert len(server.paths) == len(pages) + QUICK.retries + 1

    good = changes(8, 9) if token in STREAM else rows(8, 9)
    server.replies[:] = [page(FINISHED, *good)]
    assert tuple(tunnels.read_records("t", "c", CHANNEL, token, order=order).records) == tuple(good)


# --- through a worker ------------------------------------------------------------------------------------------------


def old_page(kept: list[Reply], request: Any, reply: Reply) -> Reply:
    """The first page with records, whatever is asked for."""
    assert reply is not None
    if not kept and schema.parse(schema.ReadRecordsResponse, reply[2]).records:
        kept.append(reply)
    return kept[0] if kept else reply


def same_token(kept: list[Reply], request: Any, reply: Reply) -> Reply:
    """The page that was asked for, and after it the same place."""
    assert reply is not None
    answer = schema.parse(schema.ReadRecordsResponse, reply[2])
    if answer.records:
        answer.next_token = request.token
    return reply[0], reply[1], answer.SerializeToString()


class PagesOfThree(LocalTablestore):
    """A server whose pages of changes are small."""

    def _open_engine(self) -> Engine:
        limits = Limits(tunnel_page_records=3)
        return Engine(clock=Clock(), storage=open_storage(None), instance_name=self.instance, limits=limits)


def back_once(kept: list[Reply], request: Any, reply: Reply) -> Reply:
    """The third page that was asked for, and after it the place of the first one; all others are honest."""
    assert reply is not None
    answer = schema.parse(schema.ReadRecordsResponse, reply[2])
    if not answer.records or len(kept) > 2:
        return reply
    kept.append(request.token)
    if len(kept) == 3:
        answer.next_token = kept[0]
    return reply[0], reply[1], answer.SerializeToString()


@pytest.mark.slow
@pytest.mark.parametrize("most_pages", [1, 4])
def test_a_worker_goes_on_after_one_page_whose_token_goes_back(most_pages: int) -> None:
    """The place of the last record that it took is read again: its token was right."""
    log, kept = Log(), list[Any]()
    with PagesOfThree() as local:
        scene = Scene(local)
        tunnel_id = scene.tunnel(TunnelType.STREAM)
        scene.put(*range(20))
        with gateway(local) as before:
            before.meddling["readrecords"] = lambda request, reply: back_once(kept, request, reply)
            scene.tunnels = before.tunnels()
            with scene.worker(tunnel_id, log, read_max_times_per_round=most_pages):
                until(lambda: log.values() == scene.written)
    assert len(kept) == 3
    assert len(log.records) == 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "kind"),
    [(old_page, TunnelType.STREAM), (same_token, TunnelType.STREAM), (same_token, TunnelType.BASE_DATA)],
)
def test_a_worker_names_a_service_that_makes_no_progress_and_delivers_nothing_twice(
    scene: Scene, harm: Callable[[list[Reply], Any, Reply], Reply], kind: TunnelType
) -> None:
    log, kept = Log(), list[Reply]()
    if kind is TunnelType.BASE_DATA:
        scene.put(*range(20))
    tunnel_id = scene.tunnel(kind)
    if kind is TunnelType.STREAM:
        scene.put(*range(20))
    with gateway(scene.local) as before:
        before.meddling["readrecords"] = lambda request, reply: harm(kept, request, reply)
        scene.tunnels = before.tunnels()
        with scene.worker(tunnel_id, log) as worker:
            until(lambda: any(named(status) for status in worker.channel_statuses().values()))
            before.meddling.clear()
            until(lambda: log.values() == scene.written)
    assert len(log.records) == 20


def named(status: ShardStatus) -> bool:
    return status.reason_kind is ReasonKind.READING and "the service makes no progress" in status.reason
