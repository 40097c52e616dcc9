"""One channel at the client: the cases that the Java and Go clients' own tests name, and the merge of lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamclient.core.tunnel.channel_states import Channel, ChannelStatus, merged
from streamclient.core.tunnel.tunnel_connection import ChannelConnection, ConnectionState, Step

OPEN, CLOSING, CLOSE, TERMINATED = (
    ChannelStatus.OPEN,
    ChannelStatus.CLOSING,
    ChannelStatus.CLOSE,
    ChannelStatus.TERMINATED,
)


def channel(text: str) -> Channel:
    status, _, version = text.partition("@")
    return Channel("c", int(version), ChannelStatus(status))


def told(*texts: str) -> ChannelConnection:
    """A connection that was told one state after the other; its reader, if any, still runs."""
    connection = ChannelConnection("c")
    for text in texts:
        connection.notify(channel(text))
    return connection


def shown(connection: ChannelConnection) -> str:
    assert connection.latest is not None
    return f"{connection.latest.status.value}@{connection.latest.version} {connection.state.value}"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("OPEN@0",), "OPEN@0 RUNNING"),
        (("CLOSE@0",), "CLOSE@0 CLOSED"),
        (("CLOSING@0",), "CLOSE@1 CLOSED"),
        (("TERMINATED@0",), "TERMINATED@0 CLOSED"),
        (("CLOSE@1", "CLOSE@1"), "CLOSE@1 CLOSED"),
        (("CLOSE@1", "CLOSING@1"), "CLOSE@2 CLOSED"),
        (("CLOSE@1", "OPEN@1"), "CLOSE@2 CLOSED"),
        (("CLOSE@1", "TERMINATED@1"), "TERMINATED@1 CLOSED"),
        (("OPEN@1", "CLOSE@1"), "CLOSE@1 CLOSED"),
        (("OPEN@1", "CLOSING@1"), "CLOSING@1 CLOSING"),
        (("OPEN@1", "OPEN@1"), "OPEN@1 RUNNING"),
        (("OPEN@1", "TERMINATED@1"), "TERMINATED@1 CLOSED"),
        (("OPEN@1", "CLOSING@0"), "OPEN@1 RUNNING"),
        (("TERMINATED@1", "CLOSE@1"), "CLOSE@1 CLOSED"),
        (("TERMINATED@1", "CLOSING@1"), "TERMINATED@2 CLOSED"),
        (("TERMINATED@1", "OPEN@1"), "TERMINATED@2 CLOSED"),
        (("TERMINATED@1", "TERMINATED@1"), "TERMINATED@1 CLOSED"),
        (("TERMINATED@1", "CLOSING@0"), "TERMINATED@1 CLOSED"),
    ],
)
def test_connection_answers_what_it_is_told(texts: tuple[str, ...], expected: str) -> None:
    assert shown(told(*texts)) == expected


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("OPEN@0", "CLOSING@1"), "CLOSE@2 CLOSED"),
        (("OPEN@0", "CLOSING@1", "CLOSE@1"), "CLOSE@2 CLOSED"),
        (("OPEN@0", "CLOSING@1", "CLOSING@1"), "CLOSE@2 CLOSED"),
        (("OPEN@0", "CLOSING@1", "OPEN@1"), "CLOSE@2 CLOSED"),
        (("OPEN@0", "CLOSING@1", "TERMINATED@1"), "TERMINATED@2 CLOSED"),
        (("OPEN@0", "CLOSING@1", "CLOSING@0"), "CLOSE@2 CLOSED"),
        (("OPEN@1", "CLOSE@1"), "CLOSE@2 CLOSED"),
        (("OPEN@1", "TERMINATED@1"), "TERMINATED@2 CLOSED"),
    ],
)
def test_connection_reports_once_its_reader_has_ended(texts: tuple[str, ...], expected: str) -> None:
    connection = told(*texts)
    connection.reader_ended(is_finished=False)
    assert shown(connection) == expected


@pytest.mark.parametrize("late", ["CLOSE@1", "CLOSING@1", "OPEN@1", "TERMINATED@1"])
def test_what_is_older_than_the_report_changes_nothing(late: str) -> None:
    connection = told("OPEN@0", "CLOSING@1")
    connection.reader_ended(is_finished=False)
    connection.notify(channel(late))

    assert shown(connection) == "CLOSE@2 CLOSED"


def test_steps_of_a_life() -> None:
    connection = ChannelConnection("c")

    assert connection.notify(channel("OPEN@0")) is Step.START
    assert connection.notify(channel("OPEN@0")) is None
    assert connection.notify(channel("CLOSING@1")) is Step.LET_GO
    assert connection.notify(channel("CLOSING@1")) is None
    assert connection.notify(channel("CLOSE@1")) is Step.DROP
    assert connection.notify(channel("CLOSE@1")) is None


def test_failure_is_reported_as_let_go_and_the_end_as_terminated() -> None:
    failed, finished = told("OPEN@0"), told("OPEN@0")
    failed.reader_ended(is_finished=False)
    finished.reader_ended(is_finished=True)

    assert (shown(failed), shown(finished)) == ("CLOSE@1 CLOSED", "TERMINATED@1 CLOSED")
    assert failed.state is ConnectionState.CLOSED


CHANNELS = st.builds(
    Channel,
    st.sampled_from("abcd"),
    st.integers(0, 4),
    st.sampled_from([OPEN, CLOSING, CLOSE, TERMINATED]),
)


@given(st.lists(CHANNELS), st.lists(CHANNELS, unique_by=lambda each: each.channel_id))
def test_merge_keeps_the_answers_channels_each_in_its_newer_state(local: list[Channel], answer: list[Channel]) -> None:
    known = {each.channel_id: each for each in local}
    result = merged(known, answer)

    assert list(result) == [each.channel_id for each in answer]
    for each in answer:
        own = known.get(each.channel_id)
        newer = own is not None and own.version > each.version
        assert result[each.channel_id] == (own if newer else each)
