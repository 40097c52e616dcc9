"""One channel that the service does not know, or talks nonsense of, is given up alone; what ends all ends a worker."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from tunnel_scene import TABLE, Log, Scene, quick
from tunnel_server import LOST, NEEDED, Gateway, Reply, Server, gateway, refusal, without_end

from streamclient import WorkerFailedError, WorkerStatus
from streamclient.model import ShardStatus
from streamclient.server import Fail, FaultRule
from streamclient.tunnel import (
    TunnelAnswerError,
    TunnelDaemon,
    TunnelExpiredError,
    TunnelType,
    TunnelWorker,
)
from streamclient.tunnel.tunnel_pages import ChannelPages
from streamclient.wire import schema
from tests.patience import PATIENCE_SECONDS, until

HTML: Reply = (404, {}, b"<html>no such page</html>")
UNKNOWN = refusal(400, "OTSParameterInvalid", text="channel not exist")

Harm = Callable[[Reply], Reply]
"""What becomes of the answer to a call for the bad channel."""


def damaged(reply: Reply) -> Reply:
    """With the digest of other bytes."""
    assert reply is not None
    other = base64.b64encode(hashlib.md5(b"other").digest()).decode()
    return reply[0], {**reply[1], "x-ots-contentmd5": other}, reply[2]


def cut(reply: Reply) -> Reply:
    """Without its second half, and without an end."""
    assert reply is not None
    return without_end((reply[0], reply[1], reply[2][: len(reply[2]) // 2]))


def checkpoint(token: str, number: int) -> Reply:
    return 200, NEEDED, schema.GetCheckpointResponse(checkpoint=token, sequence_number=number).SerializeToString()


HARMS: dict[str, tuple[str, Harm]] = {
    "lookup: unknown": ("getcheckpoint", lambda _: UNKNOWN),
    "lookup: html": ("getcheckpoint", lambda _: HTML),
    "lookup: no message": ("getcheckpoint", lambda _: (200, NEEDED, b"\xff\xff")),
    "lookup: no token": ("getcheckpoint", lambda _: checkpoint("", 1)),
    "lookup: the name of an end": ("getcheckpoint", lambda _: checkpoint("SHARD_END", 1)),
    "lookup: no number": ("getcheckpoint", lambda _: checkpoint("token", -1)),
    "lookup: 204": ("getcheckpoint", lambda _: (204, NEEDED, b"")),
    "lookup: gone": (
        "getcheckpoint",
        lambda _: refusal(400, "OTSTunnelServerUnavailable", text="OTSObjectNotExist no"),
    ),
    "read: unknown": ("readrecords", lambda _: UNKNOWN),
    "read: html": ("readrecords", lambda _: HTML),
    "read: no message": ("readrecords", lambda _: (200, NEEDED, b"\xff\xff")),
    "read: nothing": ("readrecords", lambda _: (200, NEEDED, b"")),
    "read: damaged": ("readrecords", damaged),
    "read: without end": ("readrecords", without_end),
    "read: cut": ("readrecords", cut),
    "read: 202": ("readrecords", lambda reply: None if reply is None else (202, reply[1], reply[2])),
    "checkpoint: unknown": ("checkpoint", lambda _: UNKNOWN),
    "checkpoint: html": ("checkpoint", lambda _: HTML),
}
LISTINGS = {"status": (9, None), "no status": (0, None), "version": (1, 2**63 - 1), "negative version": (1, -1)}
"""Status and version with which a heartbeat lists the bad channel."""


def two_channels(scene: Scene) -> tuple[str, str, str]:
    """A tunnel, its channel with the keys below 100, and the one with the others."""
    lower, upper = scene.local.split(TABLE, at=100)
    return scene.tunnel(TunnelType.STREAM), lower, upper


def for_channel(channel_id: str, harm: Harm) -> Callable[[Any, Reply], Reply]:
    return lambda request, reply: harm(reply) if request.channel_id == channel_id else reply


def listed_as(channel_id: str, status: int, version: int | None) -> Callable[[Any, Reply], Reply]:
    def meddle(request: Any, reply: Reply) -> Reply:
        assert reply is not None
        answer = schema.parse(schema.HeartbeatResponse, reply[2])
        for channel in answer.channels:
            if channel.channel_id == channel_id:
                channel.status, channel.version = status, channel.version if version is None else version
        return reply[0], reply[1], answer.SerializeToString()

    return meddle


def is_named(worker: TunnelWorker, channel_id: str) -> bool:
    status: ShardStatus | None = worker.channel_statuses().get(channel_id)
    return status is not None and bool(status.reasons) and bool(status.reason)


def consume(scene: Scene, before: Gateway, verb: str, channels: tuple[str, str, str], meddle: Any) -> Log:
    """Have the good channel read while the other one is bad, and then both."""
    tunnel_id, bad, good = channels
    log = Log()
    scene.tunnels = before.tunnels()
    before.meddling[verb] = meddle
    scene.put(*range(200))
    upper = {key: values for key, values in scene.written.items() if key >= 100}
    with scene.worker(tunnel_id, log, client_config=quick()) as worker:
        until(lambda: upper.items() <= log.values().items())
        until(lambda: is_named(worker, bad))
        scene.put(150)
        until(lambda: log.values().get(150) == scene.written[150])
        assert worker.worker_status is WorkerStatus.RUNNING
        assert not is_named(worker, good)
        before.meddling.clear()
        until(lambda: log.values() == scene.written)
        until(lambda: worker.health.is_healthy and not is_named(worker, bad))
    return log


@pytest.mark.slow
@pytest.mark.parametrize("name", HARMS)
def test_a_bad_channel_is_given_up_alone_and_named_and_tried_again(scene: Scene, name: str) -> None:
    verb, harm = HARMS[name]
    channels = two_channels(scene)
    with gateway(scene.local) as before:
        log = consume(scene, before, verb, channels, for_channel(channels[1], harm))
    if verb != "checkpoint":  # records are delivered again after a checkpoint that was refused
        assert len(log.records) == 201


@pytest.mark.slow
@pytest.mark.parametrize("name", LISTINGS)
def test_a_channel_that_is_listed_with_what_nobody_knows_is_given_up_alone(scene: Scene, name: str) -> None:
    channels = two_channels(scene)
    with gateway(scene.local) as before:
        log = consume(scene, before, "heartbeat", channels, listed_as(channels[1], *LISTINGS[name]))
    assert len(log.records) == 201


@pytest.mark.slow
def test_a_bad_channel_makes_a_worker_unhealthy_after_a_while_and_is_named_in_it(scene: Scene) -> None:
    tunnel_id, bad, _ = two_channels(scene)
    limit = quick(max_duration_before_last_successful_renew_or_take_lease=200)
    for verb, says in (("getcheckpoint", "is given up for "), ("readrecords", "was not read for ")):
        with gateway(scene.local) as before:
            before.meddling[verb] = for_channel(bad, lambda _: UNKNOWN)
            scene.tunnels = before.tunnels()
            with scene.worker(tunnel_id, Log(), client_config=limit) as worker:
                until(lambda says=says, worker=worker: f"channel {bad} {says}" in worker.health.reason)  # type: ignore[misc]
                before.meddling.clear()
                until(lambda worker=worker: worker.health.is_healthy)  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.parametrize("harm", [lambda reply: (200, reply[1], b""), cut, damaged], ids=["empty", "cut", "damaged"])
def test_a_heartbeat_that_lacks_channels_closes_none_for_good(scene: Scene, harm: Harm) -> None:
    channels = two_channels(scene)
    answers = list[int]()

    def once(request: Any, reply: Reply) -> Reply:
        answers.extend([1] * bool(request.channels))
        return harm(reply) if request.channels and len(answers) == 1 else reply

    log = Log()
    with gateway(scene.local) as before:
        before.meddling["heartbeat"] = once
        scene.tunnels = before.tunnels()
        with scene.worker(channels[0], log) as worker:
            until(lambda: len(answers) > 2)
            scene.put(*range(200))
            until(lambda: log.values() == scene.written)
            assert worker.worker_status is WorkerStatus.RUNNING
    assert not [request for verb, request in before.asked if verb == "heartbeat" and closes(request)]


def closes(request: Any) -> bool:
    return any(channel.status == schema.ChannelStatusNumber.TERMINATED for channel in request.channels)


@pytest.mark.slow
def test_a_channel_whose_processor_cannot_be_made_is_named_and_the_others_go_on(scene: Scene) -> None:
    tunnel_id, bad, _ = two_channels(scene)
    made, log, is_bad = list[str](), Log(), [True]

    def consume_all(records: Any, channel_id: str) -> None:
        made.append(channel_id)
        if channel_id == bad and is_bad:
            raise RuntimeError("no")
        log(records)

    scene.put(*range(200))
    with scene.worker(tunnel_id, consume_all) as worker:
        until(lambda: is_named(worker, bad) and len(log.values()) == 100)
        is_bad.clear()
        until(lambda: log.values() == scene.written)


def test_a_damaged_page_is_told_by_its_first_error(serve: Callable[..., Server]) -> None:
    page: Reply = (200, NEEDED, schema.ReadRecordsResponse(next_token="finished").SerializeToString())
    for reply in (damaged(page), without_end(page), (202, NEEDED, b"")):
        server, told = serve(reply), list[Any]()
        pages = ChannelPages(
            client=server.tunnels(),
            tunnel_id="t",
            client_id="c",
            channel_id="ch",
            most_pages=3,
            most_bytes=1_000,
            answered=told.append,
        )
        with pytest.raises(TunnelAnswerError):
            pages.get_stream_record("token")
        assert len(server.paths) == 1
        assert [type(error) for error in told] == [TunnelAnswerError]


LOSSES = {
    "wrapped": Fail("OTSTunnelServerUnavailable", LOST, 400),
    "expired": Fail("OTSTunnelExpired"),
    "bare": Fail("OTSTrimmedDataAccess"),
    "bare, 400": Fail("OTSTrimmedDataAccess", http_status=400),
}


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["readrecords", "getcheckpoint", "heartbeat", "connect", "checkpoint"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_lost_log_ends_worker_and_daemon_whichever_call_says_so(
    scene: Scene, tunnel_id: str, name: str, verb: str
) -> None:
    scene.put(1)
    scene.local.add_fault(FaultRule(f"tunnel/{verb}", LOSSES[name]))
    worker = scene.worker(tunnel_id, Log())
    with pytest.raises(WorkerFailedError), worker:
        worker.wait(PATIENCE_SECONDS)
    assert isinstance(worker.exception, TunnelExpiredError)
    assert worker.is_refused

    with pytest.raises(WorkerFailedError):
        TunnelDaemon(tunnel_id, scene.tunnels, Log()).run()


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["readrecords", "getcheckpoint", "heartbeat", "connect", "checkpoint"])
@pytest.mark.parametrize(
    "fail",
    [
        Fail("OTSTunnelServerUnavailable", LOST, 503),
        Fail("OTSFlowControl", http_status=429),
        Fail("OTSUnheardOf", http_status=429),
        Fail("OTSTunnelServerUnavailable", "OTSServerBusy Server is busy.", 400),
    ],
    ids=["outage", "flow control", "429", "wrapped busy"],
)
def test_what_passes_is_waited_out_from_the_first_call_on(scene: Scene, fail: Fail, verb: str) -> None:
    tunnel_id, log = scene.tunnel(TunnelType.STREAM), Log()
    scene.put(1)
    scene.local.add_fault(FaultRule(f"tunnel/{verb}", fail, times=1))
    with scene.worker(tunnel_id, log) as worker:
        until(lambda: scene.local.faults()[0].struck == 1)
        until(lambda: log.values() == scene.written)
        until(lambda: [each.record_count for each in scene.tunnels.describe_tunnel(TABLE, "t").channels] == [1])
        assert worker.worker_status is WorkerStatus.RUNNING
