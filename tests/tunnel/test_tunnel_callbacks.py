"""A plain function as processor: with its channel, if it asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from streamclient.errors import ConfigurationError
from streamclient.records import RecordType, StreamRecord
from streamclient.tunnel import ChannelRecordsInput, TunnelDaemon, TunnelWorker
from streamclient.tunnel.channel_processors import CallbackProcessor

RECORDS = (StreamRecord(RecordType.DELETE, (("id", "a"),)),)
told: list[Any] = []


def only_records(records: Sequence[StreamRecord]) -> None:
    told.append((records, None))


def with_channel(records: Sequence[StreamRecord], channel_id: str) -> None:
    told.append((records, channel_id))


def with_a_default(records: Sequence[StreamRecord], sink: list[Any] = told) -> None:
    sink.append((records, None))


def with_a_keyword(records: Sequence[StreamRecord], *, channel_id: str = "none") -> None:
    told.append((records, None))


class Method:
    """Its ``self`` is no second parameter."""

    def take(self, records: Sequence[StreamRecord], channel_id: str) -> None:
        told.append((records, channel_id))


@pytest.mark.parametrize(
    ("callback", "channel"),
    [
        (only_records, None),
        (with_channel, "c1"),
        (with_a_default, None),
        (with_a_keyword, None),
        (Method().take, "c1"),
        (lambda records, channel: told.append((records, channel)), "c1"),
    ],
)
def test_a_callback_gets_its_channel_if_it_takes_it(callback: Any, channel: str | None) -> None:
    told.clear()
    CallbackProcessor(callback).process(ChannelRecordsInput(RECORDS, "c1"))
    assert told == [(RECORDS, channel)]


@pytest.mark.parametrize("kind", [TunnelWorker, TunnelDaemon])
def test_worker_and_daemon_take_their_arguments_in_one_order(kind: Any, local: Any) -> None:
    kind("tunnel-1", local.client(), only_records)
    with pytest.raises(ConfigurationError, match="tunnel_id must be a non-empty string"):
        kind(local.client(), "tunnel-1", only_records)
