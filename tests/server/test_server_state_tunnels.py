"""Tunnels against clients that err: what does not fit is refused and leaves nothing, and what is consumed counts."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import define, evolve
from server_state_driver import HOUR_SECONDS, Disk, Driver, refusal_of, stream_driver

from streamclient.server.server_clock import LATEST_MICROS, Clock
from streamclient.wire import schema
from streamclient.wire.page_parts import FINISHED
from streamclient.wire.plainbuffer import KeyBound, Row, encode_row
from streamclient.wire.schema import ChannelStatusNumber, TunnelTypeNumber
from streamclient.wire.tunnel import decode_token

INT64_MAX = 2**63 - 1
STREAM_TUNNEL = {"table_name": "t", "tunnel_name": "n", "tunnel_type": 2}
INVALID = (400, "OTSParameterInvalid")


@define
class Scene:
    """One tunnel, its client and the channel that is looked at."""

    driver: Driver
    tunnel_id: str
    client_id: str
    channel_id: str

    @property
    def ids(self) -> dict[str, str]:
        return {"tunnel_id": self.tunnel_id, "client_id": self.client_id, "channel_id": self.channel_id}

    def call(self, verb: str, **fields: Any) -> Any:
        return self.driver.call(f"tunnel/{verb}", **fields)

    def refused(self, verb: str, **fields: Any) -> tuple[int, str]:
        """Status and code of a refusal that changes nothing, neither in memory nor for those who come after."""
        before = self.everything()
        status, code, _ = refusal_of(self.call, verb, **fields)
        assert self.everything() == before
        return status, code

    def everything(self) -> Any:
        tunnel = self.driver.engine._state.tunnels[self.tunnel_id]
        parts = [part.to_json() for part in (*tunnel.channels.values(), *tunnel.clients.values())]
        described = self.call("describe", table_name="t", tunnel_name="n").SerializeToString()
        return parts, described, self.call("getrpo", tunnel_id=self.tunnel_id).SerializeToString()

    @property
    def token(self) -> str:
        return str(self.call("getcheckpoint", **self.ids).checkpoint)

    def read(self, token: str) -> Any:
        return self.call("readrecords", **self.ids, token=token)

    def checkpoint(self, token: str, number: int = 1) -> None:
        self.call("checkpoint", **self.ids, checkpoint=token, sequence_number=number)

    def channel(self, channel_id: str | None = None) -> Any:
        described = self.call("describe", table_name="t", tunnel_name="n")
        (found,) = (channel for channel in described.channels if channel.channel_id == (channel_id or self.channel_id))
        return found

    def report(self, version: int, status: ChannelStatusNumber, channel_id: str | None = None) -> Any:
        return schema.Channel(channel_id=channel_id or self.channel_id, version=version, status=int(status))


def scene(kind: TunnelTypeNumber = TunnelTypeNumber.STREAM, rows: str = "") -> Scene:
    driver = stream_driver()
    before, after = (rows, "") if kind is TunnelTypeNumber.BASE_DATA else ("", rows)
    driver.put_each(before)
    tunnel = schema.Tunnel(table_name="t", tunnel_name="n", tunnel_type=int(kind))
    tunnel_id = driver.call("tunnel/create", tunnel=tunnel).tunnel_id
    driver.put_each(after)
    client_id = driver.call("tunnel/connect", tunnel_id=tunnel_id).client_id
    (channel,) = driver.call("tunnel/heartbeat", tunnel_id=tunnel_id, client_id=client_id).channels
    return Scene(driver, tunnel_id, client_id, channel.channel_id)


# --- nothing that does not fit is stored


@pytest.mark.parametrize("version", [INT64_MAX, 2**40, -1, -(2**63)])
@pytest.mark.parametrize(
    "status", [ChannelStatusNumber.CLOSE, ChannelStatusNumber.TERMINATED, ChannelStatusNumber.OPEN]
)
def test_a_version_that_leaves_no_room_is_refused(version: int, status: ChannelStatusNumber) -> None:
    it = scene()
    whose = {"tunnel_id": it.tunnel_id, "client_id": it.client_id}

    assert it.refused("heartbeat", **whose, channels=[it.report(version, status)]) == INVALID
    good = it.report(1, ChannelStatusNumber.CLOSE)
    assert it.refused("heartbeat", **whose, channels=[good, it.report(version, status, "another")]) == INVALID
    (channel,) = it.call("heartbeat", **whose, channels=[good]).channels
    assert channel.version == 2


@pytest.mark.parametrize("number", [INT64_MAX, 2**40])
def test_a_checkpoint_number_that_leaves_no_room_is_refused(number: int) -> None:
    it = scene()

    assert it.refused("checkpoint", **it.ids, checkpoint=it.token, sequence_number=number) == INVALID
    it.checkpoint(it.token, 1)


@pytest.mark.parametrize("verb", ["checkpoint", "readrecords"])
@pytest.mark.parametrize(
    "change",
    [
        {"timestamp": 1_700_000_000_000_000_000},
        {"timestamp": INT64_MAX},
        {"timestamp": -1},
        {"total_count": INT64_MAX},
        {"total_count": -1},
        {"total_count": 3},
        {"iterator": "nonsense"},
        {"iterator": ""},
        {"iterator": "", "primary_key": b"broken"},
    ],
    ids=str,
)
def test_a_token_that_this_server_never_made_is_refused(verb: str, change: dict[str, Any]) -> None:
    """The first is a time in nanoseconds."""
    it = scene(rows="ab")
    token = it.read(it.token).next_token
    bent = evolve(decode_token(token), **change).encode()
    fields = {"checkpoint": bent, "sequence_number": 1} if verb == "checkpoint" else {"token": bent}

    assert it.refused(verb, **it.ids, **fields) == INVALID
    it.checkpoint(token)
    assert it.channel().channel_count == 2


@pytest.mark.parametrize("text", ["", "nonsense", "AAAA", "é" * 1000, "FINISHED"])
def test_a_checkpoint_that_is_no_token_is_refused(text: str) -> None:
    it = scene()

    assert it.refused("checkpoint", **it.ids, checkpoint=text, sequence_number=1) == INVALID


KEYS = {
    "broken": b"\x75\x00\x00\x00\x01\x03",
    "empty": encode_row(Row(())),
    "another name": encode_row(Row((("other", "a"),))),
    "another type": encode_row(Row((("pk", 1),))),
    "two columns": encode_row(Row((("pk", "a"), ("q", "b")))),
    "a bound": encode_row(Row((("pk", KeyBound.INF_MAX),))),
}


@pytest.mark.parametrize("verb", ["checkpoint", "readrecords"])
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_a_broken_key_in_a_token_is_refused(verb: str, key: bytes) -> None:
    it = scene(TunnelTypeNumber.BASE_DATA, "abc")
    bent = evolve(decode_token(it.token), primary_key=key).encode()
    fields = {"checkpoint": bent, "sequence_number": 1} if verb == "checkpoint" else {"token": bent}

    assert it.refused(verb, **it.ids, **fields) == INVALID
    assert len(it.read(it.token).records) == 3


def test_a_token_of_another_channel_is_refused() -> None:
    it = scene(rows="a")
    token = it.read(it.token).next_token
    it.driver.engine.split_shard("t", at=["m"])
    it.checkpoint(FINISHED, 1)
    child = evolve(it, channel_id=it.driver.engine.shards("t")[-1].shard_id)
    child.call("describe", table_name="t", tunnel_name="n")

    assert child.refused("checkpoint", **child.ids, checkpoint=token, sequence_number=1) == INVALID


def test_a_checkpoint_before_what_is_retained_does_not_expire_the_tunnel() -> None:
    """It would be one call by which a client takes the tunnel from all others."""
    it = scene(rows="abc")
    first = it.token
    it.checkpoint(it.read(first).next_token)
    it.driver.engine.trim("t")

    assert it.refused("checkpoint", **it.ids, checkpoint=first, sequence_number=2) == INVALID
    it.read(it.token)


@pytest.mark.parametrize(
    "config",
    [{"timeout": -1}, {"timeout": 86_401}, {"timeout": INT64_MAX}, {"client_tag": "é" * 128}],
    ids=["no time", "more than a day", "for ever", "a tag to store things in"],
)
def test_a_session_without_an_end_or_with_a_long_tag_is_refused(config: dict[str, Any]) -> None:
    it = scene()
    asked = schema.TunnelClientConfig(**config)

    assert it.refused("connect", tunnel_id=it.tunnel_id, client_config=asked) == INVALID


def test_sessions_of_one_tunnel_are_bounded() -> None:
    it = scene()
    for _ in range(999):
        it.call("connect", tunnel_id=it.tunnel_id)

    assert it.refused("connect", tunnel_id=it.tunnel_id) == (403, "OTSQuotaExhausted")


# --- all or nothing


def test_scheduling_is_all_or_nothing() -> None:
    it = scene()
    good = it.report(0, ChannelStatusNumber.CLOSING)
    for bad in (
        [good, it.report(0, ChannelStatusNumber.CLOSE)],
        [good, it.report(0, ChannelStatusNumber.OPEN, "no such channel")],
        [it.report(0, ChannelStatusNumber.TERMINATED), it.report(0, ChannelStatusNumber.OPEN)],
    ):
        assert it.refused("schedule", tunnel_id=it.tunnel_id, channels=bad) == INVALID

    it.call("schedule", tunnel_id=it.tunnel_id, channels=[good])
    assert it.channel().channel_status == "CLOSING"


# --- suspended and resumed


def schedule_all(driver: Driver, tunnel_id: str, status: ChannelStatusNumber) -> list[str]:
    """The states of all channels, after an operator scheduled all that have not ended."""
    described = driver.call("tunnel/describe", table_name="t", tunnel_name="n").channels
    live = [channel.channel_id for channel in described if channel.channel_status != "TERMINATED"]
    channels = [schema.Channel(channel_id=channel_id, version=0, status=int(status)) for channel_id in live]
    driver.call("tunnel/schedule", tunnel_id=tunnel_id, channels=channels)
    return states(driver)


def states(driver: Driver) -> list[str]:
    described = driver.call("tunnel/describe", table_name="t", tunnel_name="n").channels
    return [channel.channel_status for channel in described]


def finish(driver: Driver, tunnel_id: str, *, at: int) -> list[str]:
    """The states of all channels, after a client finished the channel at a place of the description."""
    channel = driver.call("tunnel/describe", table_name="t", tunnel_name="n").channels[at]
    ids = {"tunnel_id": tunnel_id, "client_id": "c", "channel_id": channel.channel_id}
    driver.call("tunnel/checkpoint", **ids, checkpoint=FINISHED, sequence_number=1)
    return states(driver)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        (TunnelTypeNumber.BASE_AND_STREAM, ["OPEN", "WAIT"], ["TERMINATED", "OPEN"]),
        (TunnelTypeNumber.STREAM, ["OPEN", "WAIT", "WAIT"], ["TERMINATED", "OPEN", "OPEN"]),
    ],
)
def test_what_waited_before_it_was_suspended_waits_when_it_is_resumed(
    disk: Disk, kind: TunnelTypeNumber, before: list[str], after: list[str], restarts: bool
) -> None:
    """Else changes come before the full data, or children before their parents."""
    driver = disk.with_stream()
    driver.put("a")
    tunnel = schema.Tunnel(**{**STREAM_TUNNEL, "tunnel_type": int(kind)})
    tunnel_id = driver.call("tunnel/create", tunnel=tunnel).tunnel_id
    if kind is TunnelTypeNumber.STREAM:
        states(driver)  # the shard has a channel before it is split
        driver.engine.split_shard("t", at=["m"])
    assert states(driver) == before

    assert schedule_all(driver, tunnel_id, ChannelStatusNumber.CLOSING) == ["CLOSING"] * len(before)
    driver = disk.opened() if restarts else driver
    assert schedule_all(driver, tunnel_id, ChannelStatusNumber.OPEN) == before
    assert finish(driver, tunnel_id, at=0) == after


def test_what_is_suspended_while_its_parent_ends_opens_when_it_is_resumed() -> None:
    it = scene()
    it.driver.engine.split_shard("t", at=["m"])
    schedule_all(it.driver, it.tunnel_id, ChannelStatusNumber.CLOSING)
    assert finish(it.driver, it.tunnel_id, at=0) == ["TERMINATED", "CLOSING", "CLOSING"]

    assert schedule_all(it.driver, it.tunnel_id, ChannelStatusNumber.OPEN) == ["TERMINATED", "OPEN", "OPEN"]


def test_an_operator_opens_what_waits_and_resumes_what_a_client_holds() -> None:
    """The client that got it too early still has it, and a client cannot hold what waits."""
    it = scene()
    it.driver.engine.split_shard("t", at=["m"])
    whose = {"tunnel_id": it.tunnel_id, "client_id": it.client_id}

    assert schedule_all(it.driver, it.tunnel_id, ChannelStatusNumber.OPEN) == ["OPEN", "OPEN", "OPEN"]
    assert len(it.call("heartbeat", **whose).channels) == 3
    assert schedule_all(it.driver, it.tunnel_id, ChannelStatusNumber.CLOSING) == ["CLOSING"] * 3
    assert schedule_all(it.driver, it.tunnel_id, ChannelStatusNumber.OPEN) == ["OPEN", "OPEN", "OPEN"]
    assert len(it.call("heartbeat", **whose).channels) == 3


# --- what is consumed counts


def test_a_finished_checkpoint_of_full_data_counts_its_last_page() -> None:
    it = scene(TunnelTypeNumber.BASE_DATA, "abc")
    page = it.read(it.token)
    assert (page.next_token, len(page.records)) == (FINISHED, 3)

    it.checkpoint(FINISHED)

    assert it.channel().channel_count == 3


@pytest.mark.parametrize("by_heartbeat", [False, True])
def test_a_finished_checkpoint_of_changes_counts_its_last_page(by_heartbeat: bool) -> None:
    it = scene(rows="abc")
    page = it.read(it.token)
    it.checkpoint(page.next_token)
    it.driver.put("d")
    it.driver.put("e")
    it.driver.engine.split_shard("t", at=["m"])
    last = it.read(page.next_token)
    assert (last.next_token, len(last.records)) == (FINISHED, 2)
    record = it.driver.engine._state.streams[it.driver.stream_id()].shards[it.channel_id].newest
    assert record is not None

    if by_heartbeat:
        report = it.report(1, ChannelStatusNumber.TERMINATED)
        it.call("heartbeat", tunnel_id=it.tunnel_id, client_id=it.client_id, channels=[report])
    else:
        it.checkpoint(FINISHED, 2)

    channel = it.channel()
    assert (channel.channel_count, channel.channel_status) == (5, "TERMINATED")
    assert channel.channel_rpo == record.timestamp_micros * 1_000


def test_a_channel_that_an_operator_ended_counts_what_was_consumed() -> None:
    it = scene(TunnelTypeNumber.BASE_DATA, "abc")
    it.read(it.token)
    it.call("schedule", tunnel_id=it.tunnel_id, channels=[it.report(0, ChannelStatusNumber.TERMINATED)])

    assert it.channel().channel_count == 0


# --- names that are missing


@pytest.mark.parametrize(
    ("verb", "fields"),
    [
        ("create", {"tunnel": schema.Tunnel(table_name="none", tunnel_name="n", tunnel_type=2)}),
        ("delete", {"table_name": "none", "tunnel_name": "n"}),
        ("describe", {"table_name": "none", "tunnel_name": "n"}),
        ("list", {"table_name": "none"}),
        ("delete", {"table_name": "t", "tunnel_name": "none"}),
        ("describe", {"table_name": "t", "tunnel_name": "none"}),
        ("delete", {"table_name": "t", "tunnel_name": "n", "tunnel_id": "another"}),
        ("connect", {"tunnel_id": "none"}),
        ("getrpo", {"tunnel_id": "none"}),
    ],
)
def test_a_missing_table_or_tunnel_is_an_invalid_parameter(verb: str, fields: dict[str, Any]) -> None:
    """The documented meaning of this code; clients stop at it instead of trying again for ever."""
    assert scene().refused(verb, **fields) == INVALID


# --- the log


def test_records_that_expire_before_anybody_asked_expire_the_tunnel() -> None:
    driver = stream_driver()
    tunnel = schema.Tunnel(table_name="t", tunnel_name="n", tunnel_type=2)
    driver.call("tunnel/create", tunnel=tunnel)
    driver.put("a")
    driver.engine.advance_clock(25 * HOUR_SECONDS)
    driver.put("b")

    assert driver.call("tunnel/describe", table_name="t", tunnel_name="n").tunnel.expired


# --- a chain of splits


@pytest.mark.parametrize("by_heartbeat", [False, True])
def test_each_generation_of_a_chain_of_splits_takes_one_heartbeat(by_heartbeat: bool) -> None:
    """A client learns of children from the answer to the heartbeat after their parents ended, and not one later."""
    it = scene()
    whose = {"tunnel_id": it.tunnel_id, "client_id": it.client_id}
    generations = 8
    for number in range(generations):
        it.driver.engine.split_shard("t", at=[f"{number}"])
    held: dict[str, Any] = {it.channel_id: it.report(0, ChannelStatusNumber.OPEN)}
    seen = set(held)
    for _ in range(generations):
        reports = []
        for channel_id, channel in held.items():
            if not it.driver.engine._state.streams[it.driver.stream_id()].shards[channel_id].is_open:
                if not by_heartbeat:
                    ids = {**it.ids, "channel_id": channel_id}
                    it.call("checkpoint", **ids, checkpoint=FINISHED, sequence_number=1)
                reports.append(it.report(channel.version + 1, ChannelStatusNumber.TERMINATED, channel_id))
            else:
                reports.append(it.report(channel.version, ChannelStatusNumber.OPEN, channel_id))
        answer = it.call("heartbeat", **whose, channels=reports)
        held = {channel.channel_id: channel for channel in answer.channels}
        assert len(set(held) - seen) == 2
        seen |= set(held)
    assert len(seen) == 1 + 2 * generations


def test_a_tunnel_may_be_found_in_its_first_stage_a_few_times() -> None:
    driver = Driver(tunnel_init_calls=3)
    driver.create_with_stream()
    tunnel_id = driver.call("tunnel/create", tunnel=schema.Tunnel(**STREAM_TUNNEL)).tunnel_id
    client_id = driver.call("tunnel/connect", tunnel_id=tunnel_id).client_id
    early = driver.call("tunnel/describe", table_name="t", tunnel_name="n")
    first = driver.call("tunnel/heartbeat", tunnel_id=tunnel_id, client_id=client_id)
    second = driver.call("tunnel/heartbeat", tunnel_id=tunnel_id, client_id=client_id)
    late = driver.call("tunnel/describe", table_name="t", tunnel_name="n")

    assert (early.tunnel.stage, list(early.channels)) == ("InitBaseDataAndStreamShard", [])
    assert (len(first.channels), len(second.channels)) == (0, 1)
    assert (late.tunnel.stage, len(late.channels)) == ("ProcessStream", 1)


def test_a_tunnel_is_described_at_the_end_of_all_time() -> None:
    driver = Driver(clock=Clock(lambda: LATEST_MICROS + 1))
    driver.create_with_stream()
    driver.call("tunnel/create", tunnel=schema.Tunnel(**STREAM_TUNNEL))
    driver.put("a")
    tunnel_id = driver.call("tunnel/list", table_name="t").tunnels[0].tunnel_id
    (channel,) = driver.call("tunnel/describe", table_name="t", tunnel_name="n").channels
    ids = {"tunnel_id": tunnel_id, "client_id": "c", "channel_id": channel.channel_id}
    token = driver.call("tunnel/getcheckpoint", **ids).checkpoint
    following = driver.call("tunnel/readrecords", **ids, token=token).next_token
    driver.call("tunnel/checkpoint", **ids, checkpoint=following, sequence_number=1)
    described = driver.call("tunnel/describe", table_name="t", tunnel_name="n")

    assert LATEST_MICROS * 1_000 <= described.tunnel_rpo < 2**63
    assert b"RpoTime" in driver.call("tunnel/getrpo", tunnel_id=tunnel_id).rpo_infos


def test_a_tunnel_that_skips_what_it_lost_goes_on_with_what_is_left() -> None:
    driver = Driver(tunnels_skip_lost_log=True)
    driver.create_with_stream()
    tunnel_id = driver.call("tunnel/create", tunnel=schema.Tunnel(**STREAM_TUNNEL)).tunnel_id
    (channel,) = driver.call("tunnel/describe", table_name="t", tunnel_name="n").channels
    ids = {"tunnel_id": tunnel_id, "client_id": "c", "channel_id": channel.channel_id}
    token = driver.call("tunnel/getcheckpoint", **ids).checkpoint
    driver.put("lost")
    driver.clock.advance(25 * HOUR_SECONDS)
    driver.put("left")
    page = driver.call("tunnel/readrecords", **ids, token=token)

    assert len(page.records) == 1
    assert not driver.call("tunnel/describe", table_name="t", tunnel_name="n").tunnel.expired
    driver.call("tunnel/checkpoint", **ids, checkpoint=page.next_token, sequence_number=1)
