"""What is concluded from an answer: what the text of an error decides, and whether an answer is believed at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tunnel_server import (
    INNER_ID,
    LOST,
    NEEDED,
    QUICK,
    TRIMMED_TEXT,
    VERBS,
    Reply,
    Server,
    call_of,
    page,
    refusal,
    without_end,
)

from streamclient.errors import DependencyException, ErrorKind
from streamclient.tablestore import Integrity, with_integrity
from streamclient.tunnel import (
    Channel,
    ChannelStatus,
    TunnelAnswerError,
    TunnelClient,
    TunnelExpiredError,
)
from streamclient.wire import schema

# --- what the text of an error decides -----------------------------------------------------------------------------

WRAPPER = "OTSTunnelServerUnavailable"


def test_the_text_of_a_lost_log_has_the_length_that_was_observed() -> None:
    assert len(LOST) == 117


@pytest.mark.parametrize("verb", ["readrecords", "getcheckpoint", "checkpoint", "heartbeat", "connect"])
@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (400, WRAPPER, LOST),
        (400, WRAPPER, f"OTSTrimmedDataAccess: {TRIMMED_TEXT}"),
        (400, WRAPPER, "OTSTrimmedDataAccess"),
        (404, "OTSTrimmedDataAccess", TRIMMED_TEXT),
        (400, "OTSTrimmedDataAccess", "no"),
        (400, "OTSParameterInvalid", TRIMMED_TEXT),
        (400, "OTSTunnelExpired", "The log is expired."),
        (400, WRAPPER, "OTSTunnelExpired the log is expired"),
    ],
)
def test_a_lost_log_is_final_however_it_is_told(
    serve: Callable[..., Server], status: int, code: str, text: str, verb: str
) -> None:
    server = serve(refusal(status, code, text=text))
    with pytest.raises(TunnelExpiredError) as caught:
        call_of(server.tunnels(), verb)()

    assert (caught.value.kind, caught.value.http_status) == (ErrorKind.PERMANENT, status)
    assert caught.value.request_id == "request-1"
    assert len(server.paths) == 1


@pytest.mark.parametrize(
    ("status", "text", "code", "kind"),
    [
        (503, LOST, WRAPPER, ErrorKind.TRANSIENT),
        (400, "the tunnel server is not available", WRAPPER, ErrorKind.TRANSIENT),
        (400, f"OTSServerBusy Server is busy. {INNER_ID}", "OTSServerBusy", ErrorKind.THROTTLED),
        (400, "OTSQuotaExhausted Too frequent table operations.", "OTSQuotaExhausted", ErrorKind.THROTTLED),
        (400, f"OTSPartitionUnavailable no {INNER_ID}", "OTSPartitionUnavailable", ErrorKind.TRANSIENT),
        (400, "OTSInternalServerError: no", "OTSInternalServerError", ErrorKind.TRANSIENT),
        (400, f"OTSObjectNotExist no such table {INNER_ID}", "OTSObjectNotExist", ErrorKind.PERMANENT),
        (400, "OTSParameterInvalid Invalid iterator.", "OTSParameterInvalid", ErrorKind.PERMANENT),
    ],
)
def test_an_error_of_the_table_service_in_the_text_counts_and_an_outage_stays_one(
    serve: Callable[..., Server], status: int, text: str, code: str, kind: ErrorKind
) -> None:
    server = serve(refusal(status, WRAPPER, text=text))
    with pytest.raises(DependencyException) as caught:
        server.tunnels().read_records("t", "c", "ch", "token")

    assert (caught.value.code, caught.value.kind, caught.value.http_status) == (code, kind, status)
    assert (len(server.paths) == 1) == (kind is ErrorKind.PERMANENT)


HTML = b"<html><head><title>429 Too Many Requests</title></head></html>"


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "reply",
    [
        refusal(429, "OTSFlowControl"),
        refusal(429, "OTSUnheardOf"),
        refusal(400, "OTSFlowControl"),
        refusal(400, WRAPPER, text="OTSFlowControl no"),
        (429, {}, HTML),
        (429, {}, b""),
        (429, {}, b'{"code": "Throttling", "message": "slow down"}'),
        without_end((429, {}, HTML)),
    ],
    ids=["flow control", "any code", "any status", "wrapped", "html", "empty", "json", "html without end"],
)
def test_throttling_is_told_as_such_on_every_call_whatever_the_body(
    serve: Callable[..., Server], reply: Reply, verb: str
) -> None:
    server = serve(reply)
    with pytest.raises(DependencyException) as caught:
        call_of(server.tunnels(), verb)()

    assert caught.value.kind is ErrorKind.THROTTLED


@pytest.mark.parametrize("verb", ["connect", "getcheckpoint", "readrecords", "list", "create"])
def test_one_throttled_answer_is_waited_out(serve: Callable[..., Server], verb: str) -> None:
    server = serve((429, {}, HTML), ANSWERS[verb])
    call_of(server.tunnels(), verb)()
    assert len(server.paths) == 2


INFO = schema.TunnelInfo(
    tunnel_id="t",
    tunnel_type="Stream",
    table_name="table",
    instance_name="inst",
    stream_id="s",
    stage="ProcessStream",
)
ANSWERS: dict[str, Reply] = {
    "connect": (200, NEEDED, schema.ConnectResponse(client_id="client-1").SerializeToString()),
    "heartbeat": (
        200,
        NEEDED,
        schema.HeartbeatResponse(channels=[schema.Channel(channel_id="a", version=1, status=1)]).SerializeToString(),
    ),
    "getcheckpoint": (
        200,
        NEEDED,
        schema.GetCheckpointResponse(checkpoint="finished", sequence_number=1).SerializeToString(),
    ),
    "checkpoint": (200, NEEDED, b""),
    "readrecords": page(),
    "list": (200, NEEDED, schema.ListTunnelResponse(tunnels=[INFO]).SerializeToString()),
    "describe": (200, NEEDED, schema.DescribeTunnelResponse(tunnel=INFO).SerializeToString()),
    "shutdown": (200, NEEDED, b""),
    "delete": (200, NEEDED, b""),
    "schedule": (200, NEEDED, b""),
    "create": (200, NEEDED, schema.CreateTunnelResponse(tunnel_id="t").SerializeToString()),
}


# --- whether an answer is whole ------------------------------------------------------------------------------------


def with_status(status: int, reply: Reply) -> Reply:
    assert reply is not None
    return status, reply[1], reply[2]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("harm", [without_end, lambda reply: with_status(202, reply)], ids=["without end", "202"])
def test_an_answer_that_may_be_a_part_of_one_is_not_believed(
    serve: Callable[..., Server], harm: Callable[[Reply], Reply], verb: str
) -> None:
    server = serve(harm(ANSWERS[verb]))
    with pytest.raises(TunnelAnswerError) as caught:
        call_of(server.tunnels(), verb)()

    assert caught.value.retriable


@pytest.mark.parametrize("integrity", [Integrity.MD5, Integrity.CHECKSUMS])
@pytest.mark.parametrize("verb", VERBS)
def test_an_answer_without_end_is_believed_with_its_digest(
    serve: Callable[..., Server], verb: str, integrity: Integrity
) -> None:
    server = serve(without_end(ANSWERS[verb], has_digest=True))
    tunnels = TunnelClient(with_integrity(server.client(), integrity), data_retry=QUICK)
    call_of(tunnels, verb)()

    assert len(server.paths) == 1


def test_a_refusal_without_end_that_cannot_be_read_is_no_refusal(serve: Callable[..., Server]) -> None:
    whole = schema.Error(code="OTSAuthFailed", message="no").SerializeToString()
    server = serve(without_end((403, NEEDED, whole[:5])))
    with pytest.raises(DependencyException) as caught:
        server.tunnels().get_checkpoint("t", "c", "ch")

    assert caught.value.retriable


@pytest.mark.parametrize(
    ("token", "number"), [("", 1), ("SHARD_END", 1), ("TRIM_HORIZON", 1), ("t", -1), ("t", 2**63 - 1)]
)
def test_a_checkpoint_that_none_can_be_is_an_error(serve: Callable[..., Server], token: str, number: int) -> None:
    message = schema.GetCheckpointResponse(checkpoint=token, sequence_number=number)
    server = serve((200, NEEDED, message.SerializeToString()))

    with pytest.raises(TunnelAnswerError, match="checkpoint"):
        server.tunnels().get_checkpoint("t", "c", "ch")


@pytest.mark.parametrize(("status", "version"), [(0, 1), (7, 1), (1, -1), (1, 2**63 - 1), (3, 2**62 + 1)])
def test_a_channel_that_a_heartbeat_cannot_mean_is_told_apart_from_the_others(
    serve: Callable[..., Server], status: int, version: int
) -> None:
    answer = schema.HeartbeatResponse()
    answer.channels.add(channel_id="a", version=3, status=1)
    answer.channels.add(channel_id="b", version=version, status=status)
    tunnels = serve((200, NEEDED, answer.SerializeToString())).tunnels()
    strange: dict[str, str] = {}

    assert tunnels.heartbeat("t", "c", [], strange=strange) == (Channel("a", 3, ChannelStatus.OPEN),)
    assert list(strange) == ["b"]
    assert str(status) in strange["b"]
    assert str(version) in strange["b"]
    with pytest.raises(TunnelAnswerError, match="channel b"):
        tunnels.heartbeat("t", "c", [])
