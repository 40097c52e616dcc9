"""A client of the Tunnel Service, with its operations on tunnels, sessions and data."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from threading import Event
from typing import Any, TypeVar

from streamclient.base import checks
from streamclient.base.times import MICROS_PER_HOUR
from streamclient.errors import DependencyException, ErrorKind
from streamclient.tablestore.read_retry import ReadRetry, Repeater
from streamclient.tablestore.stream_operations import TablestoreStreamApi
from streamclient.tunnel.tunnel_errors import TunnelAnswerError
from streamclient.tunnel.tunnel_model import (
    Channel,
    ChannelCheckpoint,
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
from streamclient.tunnel.tunnel_order import ChannelOrder, is_token
from streamclient.tunnel.tunnel_transport import TunnelTransport
from streamclient.wire import schema
from streamclient.wire.page_parts import TunnelPage
from streamclient.wire.tunnel import decode_tunnel_page

_NANOS_PER_MICRO = 1_000

ReadT = TypeVar("ReadT")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
tunnel_name_check = checks.Check(
    "1 to 255 letters, digits and underscores that do not begin with a digit",
    lambda value: isinstance(value, str) and _NAME.fullmatch(value) is not None,
)
"""The check of the name of a new tunnel. The service has the same rule for names."""

LARGEST_NUMBER = 2**62
"""The upper limit of versions and checkpoint numbers. This number, and any larger number, counts as an error. Versions
and checkpoint numbers count changes of one channel, so no correct one is that large. A client that received the largest
number of 64 bits could not send the next number."""

MANAGEMENT_RETRY = ReadRetry(retries=20, shortest_pause_millis=100, longest_pause_millis=2_000, total_millis=35_000)
"""The retries of all calls except ReadRecords, as in the Go client: pauses from 100 ms to 2 s, 35 s in all."""

DATA_RETRY = ReadRetry(retries=60, shortest_pause_millis=16, longest_pause_millis=3_000, total_millis=75_000)
"""The retries of ReadRecords, as in the Go client: pauses from 16 ms to 3 s, 75 s in all."""


@checks.explains_names
class TunnelClient:
    """A client for the tunnels of one instance. It sends requests over a user's ``OTSClient``. Thread-safe.

    V2 and V4 signatures and security tokens work as in the ``OTSClient``. Reads (list, describe, get_checkpoint,
    read_records) are repeated after throttling, temporary refusals and network errors. Calls that change something are
    repeated only after an answer that says that nothing was done.

    If the service refuses a call, every method raises the subclass of ``TunnelError`` for the service's code. Without a
    usable answer, a method raises ``DependencyException``, or ``TunnelAnswerError`` if the answer is damaged or
    unreadable.
    """

    def __init__(
        self,
        client: Any,
        *,
        retry: ReadRetry = MANAGEMENT_RETRY,
        data_retry: ReadRetry = DATA_RETRY,
        stop: Event | None = None,
    ) -> None:
        """Make a client. When ``stop`` is set, a call that pauses between attempts raises the last attempt's error.

        Raises:
            ConfigurationError: the client is not a ``tablestore.OTSClient``.
        """
        checks.instance(ReadRetry).require("retry", retry)
        checks.instance(ReadRetry).require("data_retry", data_retry)
        checks.optional(checks.instance(Event)).require("stop", stop)
        self._transport = TunnelTransport(client)
        self._client = client
        self._calls = Repeater(retry, stop)
        self._data = Repeater(data_retry, stop)

    # --- tunnels -------------------------------------------------------------------------------------------------

    def create_tunnel(
        self, table_name: str, tunnel_name: str, tunnel_type: TunnelType, config: StreamTunnelConfig | None = None
    ) -> str:
        """Make a tunnel, and return its id. A tunnel for changes also switches the table's stream on if it is off.

        Raises:
            ConfigurationError: an argument is invalid; nothing was sent.
            TunnelExistsError: the table has a tunnel of that name.
            TunnelParameterInvalidError: the table does not exist, or the start is outside of the log.
        """
        checks.identifier.require("table_name", table_name)
        checks.identifier.require("tunnel_name", tunnel_name)
        tunnel_name_check.require("tunnel_name", tunnel_name)
        tunnel_type = checks.choice("tunnel_type", TunnelType, tunnel_type)
        checks.optional(checks.instance(StreamTunnelConfig)).require("config", config)
        tunnel = schema.Tunnel(
            table_name=table_name, tunnel_name=tunnel_name, tunnel_type=int(_TYPE_NUMBERS[tunnel_type])
        )
        if config is not None:
            tunnel.stream_tunnel_config.CopyFrom(_config_message(config))
        request = schema.CreateTunnelRequest(tunnel=tunnel)
        return str(self._change("create", request, schema.CreateTunnelResponse).tunnel_id)

    def list_tunnel(self, table_name: str | None = None) -> Sequence[TunnelInfo]:
        """Return the tunnels of one table; without a table name, return all tunnels of the instance."""
        request = schema.ListTunnelRequest(table_name=table_name or "")
        return tuple(_info(entry) for entry in self._read("list", request, schema.ListTunnelResponse).tunnels)

    def describe_tunnel(self, table_name: str, tunnel_name: str) -> TunnelDescription:
        """Return a tunnel with its channels, and the time up to which it was consumed."""
        request = schema.DescribeTunnelRequest(table_name=table_name, tunnel_name=tunnel_name)
        answer = self._read("describe", request, schema.DescribeTunnelResponse)
        return TunnelDescription(
            _info(answer.tunnel),
            tuple(_channel_info(channel) for channel in answer.channels),
            answer.tunnel_rpo // _NANOS_PER_MICRO,
        )

    def retention_micros(self, table_name: str) -> int | None:
        """Return the time for which the table's stream keeps records, in microseconds; ``None`` without a stream.

        The request is DescribeTable, which needs the permission for that operation. It is sent only once.

        Raises:
            StreamClientError: the table does not exist, or the service refused or did not answer.
        """
        once = TablestoreStreamApi(self._client, retry=ReadRetry(retries=0))
        hours = once.describe_table(table_name).stream.expiration_time_hours
        return None if hours is None else hours * MICROS_PER_HOUR

    def delete_tunnel(self, table_name: str, tunnel_name: str) -> None:
        """Delete a tunnel. The workers that consume this tunnel then end."""
        request = schema.DeleteTunnelRequest(table_name=table_name, tunnel_name=tunnel_name)
        self._change("delete", request, schema.DeleteTunnelResponse)

    def schedule(self, tunnel_id: str, channels: Iterable[tuple[str, ChannelStatus | str]]) -> None:
        """Suspend (CLOSING), resume (OPEN) or end (TERMINATED) channels by hand.

        Each of ``channels`` is a pair of a channel's id and its new status, or the name of that status.

        Raises:
            ConfigurationError: a status is unknown, or a channel is not a pair of id and status; nothing was sent.
        """
        request = schema.ScheduleRequest(tunnel_id=tunnel_id)
        for channel in channels:
            channel_id, status = _pair.require("channels", channel)
            status = checks.choice("the status of a channel", ChannelStatus, status)
            request.channels.append(_channel_message(Channel(channel_id, 0, status)))
        self._change("schedule", request, schema.ScheduleResponse)

    # --- sessions ------------------------------------------------------------------------------------------------

    def connect(self, tunnel_id: str, *, timeout_seconds: int, client_tag: str) -> str:
        """Begin a session that lives while heartbeats come within the time-out; return its client id."""
        request = schema.ConnectRequest(tunnel_id=tunnel_id)
        request.client_config.timeout = timeout_seconds
        request.client_config.client_tag = client_tag
        return str(self._change("connect", request, schema.ConnectResponse).client_id)

    def heartbeat(
        self,
        tunnel_id: str,
        client_id: str,
        channels: Iterable[Channel],
        *,
        strange: MutableMapping[str, str] | None = None,
    ) -> Sequence[Channel]:
        """Report the held channels, and return the channels to hold from now on. The request is sent only once.

        If a channel has an unknown status or version, ``strange`` gets a text with both values, under the channel's id.

        Raises:
            TunnelSessionGoneError: the session ended; connect again.
            TunnelAnswerError: a channel has an unknown status or version, and ``strange`` is ``None``.
        """
        request = schema.HeartbeatRequest(tunnel_id=tunnel_id, client_id=client_id)
        for channel in channels:
            request.channels.append(_channel_message(channel))
        answer = self._transport.ask("heartbeat", request, schema.HeartbeatResponse, write=True)
        return tuple(_heard_channels(answer.channels, strange))

    def shutdown(self, tunnel_id: str, client_id: str) -> None:
        """End a session. Its channels become free immediately."""
        request = schema.ShutdownRequest(tunnel_id=tunnel_id, client_id=client_id)
        self._change("shutdown", request, schema.ShutdownResponse)

    # --- data ----------------------------------------------------------------------------------------------------

    def get_checkpoint(
        self, tunnel_id: str, client_id: str, channel_id: str, *, raises_at_once: bool = False
    ) -> ChannelCheckpoint:
        """Return the position at which a channel is read next. Needs no session.

        If an answer is damaged or has invalid values, the request is repeated. With ``raises_at_once``, the first such
        answer raises an error instead.
        """
        request = schema.GetCheckpointRequest(tunnel_id=tunnel_id, client_id=client_id, channel_id=channel_id)
        answer = self._read("getcheckpoint", request, schema.GetCheckpointResponse, raises_at_once=raises_at_once)
        if not is_token(answer.checkpoint) or not 0 <= answer.sequence_number < LARGEST_NUMBER:
            raise TunnelAnswerError(
                f"channel {channel_id} has the checkpoint {answer.checkpoint[:60]!r} with the number "
                f"{answer.sequence_number}; expected a token and a number from 0 to {LARGEST_NUMBER - 1}"
            )
        return ChannelCheckpoint(answer.checkpoint, answer.sequence_number)

    def read_records(
        self,
        tunnel_id: str,
        client_id: str,
        channel_id: str,
        token: str,
        *,
        order: ChannelOrder | None = None,
        raises_at_once: bool = False,
    ) -> TunnelPage:
        """Return the page at ``token``. Needs no session.

        ``order`` compares the page with the page that was read before it. A page that is damaged or out of order is
        read again, as after a network error. With ``raises_at_once``, the first such page raises an error instead.

        Raises:
            TunnelAnswerError: the page is incomplete or damaged, has no next token, or does not follow the page before.
        """
        request = schema.ReadRecordsRequest(
            tunnel_id=tunnel_id, client_id=client_id, channel_id=channel_id, token=token
        )
        kept = ChannelOrder() if order is None else order

        def attempt() -> TunnelPage:
            page = self._transport.page("readrecords", request, decode_tunnel_page)
            kept.follow(channel_id, token, page)
            return page

        return _repeated(self._data, "readrecords", attempt, raises_at_once=raises_at_once)

    def checkpoint(self, tunnel_id: str, client_id: str, channel_id: str, token: str, sequence_number: int) -> None:
        """Store the token up to which a channel was consumed. The request is sent only once.

        The token ``finished`` ends the channel.

        Raises:
            SequenceNumberNotMatchError: a later checkpoint is stored, or the channel went to another client.
        """
        request = schema.CheckpointRequest(
            tunnel_id=tunnel_id,
            client_id=client_id,
            channel_id=channel_id,
            checkpoint=token,
            sequence_number=sequence_number,
        )
        self._transport.send("checkpoint", request, write=True)

    # --- repetition of requests ----------------------------------------------------------------------------------

    def _read(self, verb: str, request: Any, response_class: Any, *, raises_at_once: bool = False) -> Any:
        def attempt() -> Any:
            return self._transport.ask(verb, request, response_class, write=False)

        return _repeated(self._calls, verb, attempt, raises_at_once=raises_at_once)

    def _change(self, verb: str, request: Any, response_class: Any) -> Any:
        """Send a change, and repeat it only after an answer that says that nothing was done.

        If an error leaves the outcome unknown, raise the error.
        """

        def attempt() -> Any:
            try:
                return self._transport.ask(verb, request, response_class, write=True)
            except DependencyException as error:
                if error.kind is ErrorKind.AMBIGUOUS:
                    return error
                raise

        answer = self._calls.call(verb, attempt)
        if isinstance(answer, DependencyException):
            raise answer
        return answer


def _repeated(repeater: Repeater, verb: str, read: Callable[[], ReadT], *, raises_at_once: bool) -> ReadT:
    """Repeat a read; with ``raises_at_once``, raise the first ``TunnelAnswerError`` instead of repeating the read."""

    def attempt() -> ReadT | TunnelAnswerError:
        try:
            return read()
        except TunnelAnswerError as error:
            if raises_at_once:
                return error
            raise

    answer = repeater.call(verb, attempt)
    if isinstance(answer, TunnelAnswerError):
        raise answer
    return answer


_pair = checks.Check(
    "pairs of a channel's id and its status",
    lambda value: isinstance(value, tuple | list) and len(value) == 2 and checks.text.fits(value[0]),
)

_HEARD_STATUSES = {int(number): ChannelStatus(number.name) for number in schema.ChannelStatusNumber}

_TYPE_NUMBERS = {
    TunnelType.BASE_DATA: schema.TunnelTypeNumber.BASE_DATA,
    TunnelType.STREAM: schema.TunnelTypeNumber.STREAM,
    TunnelType.BASE_AND_STREAM: schema.TunnelTypeNumber.BASE_AND_STREAM,
}


def _config_message(config: StreamTunnelConfig) -> Any:
    """Return the message for ``config``. As in the Java and Go clients, a start time replaces the start flag."""
    message = schema.StreamTunnelConfig()
    if config.start_micros is not None:
        message.start_offset = config.start_micros * _NANOS_PER_MICRO
    else:
        message.flag = int(schema.StartOffsetFlag[config.start.name])
    if config.end_micros is not None:
        message.end_offset = config.end_micros * _NANOS_PER_MICRO
    return message


def _info(message: Any) -> TunnelInfo:
    return TunnelInfo(
        tunnel_id=message.tunnel_id,
        tunnel_name=message.tunnel_name,
        tunnel_type=_named(TunnelType, message.tunnel_type),
        table_name=message.table_name,
        instance_name=message.instance_name,
        stream_id=message.stream_id,
        stage=_named(TunnelStage, message.stage),
        is_expired=message.expired,
        create_time_micros=message.create_time // _NANOS_PER_MICRO,
        config=_config(message.stream_tunnel_config) if message.HasField("stream_tunnel_config") else None,
    )


def _config(message: Any) -> StreamTunnelConfig:
    return StreamTunnelConfig(
        StartOffset(_start_flag(message.flag)),
        message.start_offset // _NANOS_PER_MICRO or None,
        message.end_offset // _NANOS_PER_MICRO or None,
    )


def _start_flag(number: int) -> str:
    flags = {int(flag): flag.name for flag in schema.StartOffsetFlag}
    if number not in flags:
        raise TunnelAnswerError(f"start offset flag {number} is unknown, expected one of {sorted(flags)}")
    return flags[number]


def _channel_info(message: Any) -> ChannelInfo:
    return ChannelInfo(
        message.channel_id,
        _named(ChannelType, message.channel_type),
        _named(ChannelStatus, message.channel_status),
        message.client_id,
        message.channel_rpo // _NANOS_PER_MICRO,
        message.channel_count,
    )


def _channel_message(channel: Channel) -> Any:
    number = schema.ChannelStatusNumber[channel.status.name]
    return schema.Channel(channel_id=channel.channel_id, version=channel.version, status=int(number))


def _heard_channels(channels: Iterable[Any], strange: MutableMapping[str, str] | None) -> Iterator[Channel]:
    for message in channels:
        status = _HEARD_STATUSES.get(message.status)
        if status is not None and 0 <= message.version < LARGEST_NUMBER:
            yield Channel(message.channel_id, message.version, status)
            continue
        told = f"status {message.status} and version {message.version}"
        if strange is None:
            raise TunnelAnswerError(
                f"channel {message.channel_id} is listed with {told}; expected a status from 1 to 4, and a version "
                f"from 0 to {LARGEST_NUMBER - 1}"
            )
        strange[message.channel_id] = told


def _named(kind: Any, text: str) -> Any:
    try:
        return kind(text)
    except ValueError as error:
        known = ", ".join(repr(member.value) for member in kind)
        raise TunnelAnswerError(f"{kind.__name__} {text!r} is unknown, expected one of {known}") from error
