"""How far a tunnel was read, by what the service says of it: nothing is told that it does not say."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamclient.cli.tunnels_command import KIND_WORDS
from streamclient.tunnel import (
    ChannelInfo,
    ChannelStatus,
    ChannelType,
    StartOffset,
    StreamTunnelConfig,
    TunnelDescription,
    TunnelInfo,
    TunnelStage,
    TunnelType,
)
from streamclient.tunnel.tunnel_progress import (
    KINDS,
    STARTS,
    are_changes_finished,
    channel_lag_seconds,
    description_document,
    holders,
    stage_word,
    tunnel_document,
    tunnel_lag_seconds,
)

NOON = 1_767_268_800_000_000
FULL, CHANGES = ChannelType.BASE_DATA, ChannelType.STREAM
OPEN, WAIT, TERMINATED = ChannelStatus.OPEN, ChannelStatus.WAIT, ChannelStatus.TERMINATED


def tunnel(
    kind: TunnelType = TunnelType.BASE_AND_STREAM,
    stage: TunnelStage = TunnelStage.PROCESS_STREAM,
    config: StreamTunnelConfig | None = None,
) -> TunnelInfo:
    return TunnelInfo("id", "name", kind, "orders", "instance", "stream", stage, False, NOON, config)


def described(channels: Sequence[ChannelInfo], point: int = 0) -> TunnelDescription:
    return TunnelDescription(tunnel(), tuple(channels), point)


channels = st.builds(
    ChannelInfo,
    st.uuids().map(str),
    st.sampled_from(ChannelType),
    st.sampled_from(ChannelStatus),
    st.sampled_from(["", "a", "b"]),
    st.sampled_from([0, NOON - 5_000_000, NOON, NOON + 5_000_000]),
    st.integers(0, 2**40),
)
descriptions = st.builds(
    TunnelDescription,
    st.builds(tunnel, st.sampled_from(TunnelType), st.sampled_from(TunnelStage)),
    st.lists(channels, max_size=5).map(tuple),
    st.sampled_from([0, NOON - 5_000_000, NOON, NOON + 5_000_000]),
)


@given(channels)
def test_a_lag_is_the_age_of_a_consume_point_and_known_only_where_there_is_one(channel: ChannelInfo) -> None:
    lag = channel_lag_seconds(channel, NOON)
    is_open = channel.channel_type is CHANGES and channel.status is not TERMINATED

    assert (lag is not None) == (is_open and channel.consume_point_micros > 0)
    assert lag in (None, 0.0, 5.0), "a point of the future, by another clock, is no lag below zero"
    assert lag != 5.0 or channel.consume_point_micros < NOON


@given(descriptions)
def test_a_description_becomes_a_document_that_adds_up(whole: TunnelDescription) -> None:
    document = json.loads(json.dumps(description_document(whole, NOON)))

    assert document["records"] == sum(each["records"] for each in document["channels"])
    assert [each["channel"] for each in document["channels"]] == [each.channel_id for each in whole.channels]
    assert sum(each["channels"] for each in document["clients"]) == sum(bool(each.client_id) for each in whole.channels)
    assert {each["client"] for each in document["clients"]} == {
        each["client"] for each in document["channels"] if each["client"] is not None
    }
    assert document["backlog_records"] is None, "the service does not tell it"
    assert (document["consumed_micros"] or 0) == whole.consume_point_micros
    assert document["lag_seconds"] in (None, 0.0, 5.0)


def test_the_lag_of_a_tunnel_is_unknown_without_a_point_and_over_with_its_last_channel() -> None:
    read, left = ChannelInfo("1", CHANGES, TERMINATED, "", NOON, 7), ChannelInfo("2", CHANGES, OPEN, "", 0, 0)
    rows = ChannelInfo("3", FULL, TERMINATED, "", 0, 9)

    assert tunnel_lag_seconds(described([rows, read, left], NOON - 1_500_000), NOON) == 1.5
    assert tunnel_lag_seconds(described([rows, read, left]), NOON) is None
    assert tunnel_lag_seconds(described([rows, read], NOON - 1_500_000), NOON) is None


@pytest.mark.parametrize(
    ("listed", "is_finished"),
    [
        ([], False),
        ([ChannelInfo("1", FULL, TERMINATED, "", 0, 0)], False),
        ([ChannelInfo("1", CHANGES, TERMINATED, "", 0, 0)], True),
        ([ChannelInfo("1", CHANGES, TERMINATED, "", 0, 0), ChannelInfo("2", CHANGES, WAIT, "", 0, 0)], False),
        ([ChannelInfo("1", CHANGES, TERMINATED, "", 0, 0), ChannelInfo("2", FULL, OPEN, "", 0, 0)], True),
    ],
)
def test_changes_are_finished_if_the_service_lists_such_channels_and_all_are_over(
    listed: list[ChannelInfo], is_finished: bool
) -> None:
    assert are_changes_finished(described(listed)) == is_finished


def test_holders_are_the_clients_of_channels_in_order() -> None:
    held = [ChannelInfo(str(number), CHANGES, OPEN, client, 0, 0) for number, client in enumerate(["b", "", "a", "b"])]

    assert list(holders(described(held)).items()) == [("a", 1), ("b", 2)]


@pytest.mark.parametrize(
    ("kind", "stage", "word"),
    [
        (TunnelType.BASE_AND_STREAM, TunnelStage.INIT, "starting"),
        (TunnelType.BASE_AND_STREAM, TunnelStage.PROCESS_BASE_DATA, "full"),
        (TunnelType.BASE_AND_STREAM, TunnelStage.PROCESS_STREAM, "incremental"),
        (TunnelType.STREAM, TunnelStage.PROCESS_STREAM, "incremental"),
        (TunnelType.BASE_DATA, TunnelStage.PROCESS_BASE_DATA, "full"),
        (TunnelType.BASE_DATA, TunnelStage.PROCESS_STREAM, "finished"),
    ],
)
def test_a_stage_is_one_word_and_full_data_alone_comes_to_an_end(
    kind: TunnelType, stage: TunnelStage, word: str
) -> None:
    assert stage_word(tunnel(kind, stage)) == word


@pytest.mark.parametrize(
    ("config", "extent"),
    [
        (None, (None, None, None)),
        (StreamTunnelConfig(), ("latest", None, None)),
        (StreamTunnelConfig(StartOffset.EARLIEST, end_micros=NOON), ("oldest", None, NOON)),
        (StreamTunnelConfig(start_micros=NOON), (None, NOON, None)),
    ],
)
def test_a_tunnel_tells_which_changes_it_delivers(
    config: StreamTunnelConfig | None, extent: tuple[str | None, int | None, int | None]
) -> None:
    document = tunnel_document(tunnel(config=config))

    assert (document["from"], document["from_micros"], document["until_micros"]) == extent


def test_every_kind_and_start_has_its_word() -> None:
    """The command line names them without the SDK."""
    assert tuple(KINDS) == KIND_WORDS
    assert {*KINDS.values()} == {*TunnelType}
    assert {*STARTS.values()} == {*StartOffset}
