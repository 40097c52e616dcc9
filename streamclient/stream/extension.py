"""Teaching the Tablestore SDK the operations that it lacks.

The SDK 6.4 sends whatever its instance registries name: a list of operations, a table of encoders and one of decoders.
We extend *copies* of a client and of its registries. The user's client, and every other one, stays exactly as it was;
connections, credentials and signer are shared. The copies for reads never repeat a call: the SDK's loop would sleep up
to a minute where nobody can stop it, and ours would multiply with it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from tablestore import NoRetryPolicy, OTSClient
from tablestore import __version__ as sdk_version
from tablestore.encoder import NativeEncodedBytes

from streamclient import checks
from streamclient.errors import ConfigurationError
from streamclient.wire import schema

STREAM_OPERATIONS = ("ListStream", "DescribeStream", "GetShardIterator", "GetStreamRecord")

_SUPPORTED = "6.4"
_WRITES_WITH_STREAM = {"CreateTable": schema.CreateTableRequest, "UpdateTable": schema.UpdateTableRequest}
_RAW_ANSWERS = (*STREAM_OPERATIONS, "DescribeTable", "UpdateTable")


def for_reads(client: OTSClient) -> OTSClient:
    """A client like the given one that also knows the stream operations, and makes each call once."""
    extended = _extended(client)
    extended.retry_policy = NoRetryPolicy()
    return extended


def for_tables(client: OTSClient) -> OTSClient:
    """A client like the given one, with its retry policy, whose CreateTable and UpdateTable take a stream setting."""
    return _extended(client)


def _extended(client: OTSClient) -> OTSClient:
    _check(client)
    extended = copy(client)
    protocol = extended.protocol = copy(client.protocol)
    protocol.api_list = [*client.protocol.api_list, *STREAM_OPERATIONS]
    protocol.encoder, protocol.decoder = copy(client.protocol.encoder), copy(client.protocol.decoder)
    protocol.encoder.api_encode_map = _encoders(client.protocol.encoder.api_encode_map)
    protocol.decoder.api_decode_map = {
        **client.protocol.decoder.api_decode_map,
        **dict.fromkeys(_RAW_ANSWERS, _keep_raw),
    }
    return extended


def _check(client: Any) -> None:
    checks.client.require("client", client)
    try:
        operations = client.protocol.api_list
        encoders, decoders = client.protocol.encoder.api_encode_map, client.protocol.decoder.api_decode_map
        known = {*operations, *encoders, *decoders}
        changed = not {*_WRITES_WITH_STREAM, "DescribeTable"} <= encoders.keys() & decoders.keys()
    except (AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"tablestore {sdk_version} keeps its operations elsewhere ({error}); install tablestore {_SUPPORTED}"
        ) from error
    present = known.intersection(STREAM_OPERATIONS)
    if present or changed:
        what = f"already has {', '.join(sorted(present))}" if present else "lacks CreateTable or its relatives"
        raise ConfigurationError(f"the registries of tablestore {sdk_version} {what}; expected those of {_SUPPORTED}")


def _encoders(known: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    writes = {name: _with_stream(known[name], request) for name, request in _WRITES_WITH_STREAM.items()}
    return {**known, **writes, **dict.fromkeys(STREAM_OPERATIONS, _encode_message)}


def _encode_message(message: Any) -> NativeEncodedBytes:
    """Encode a message of our schema. The wrapper keeps the SDK from rendering it as text for its debug log."""
    return NativeEncodedBytes(message.SerializeToString())


def _with_stream(encode: Callable[..., Any], request: Any) -> Callable[..., NativeEncodedBytes]:
    """Encode as the SDK does, read the result with our schema, and add what the SDK's schema lacks."""

    def encode_with_stream(stream_spec: Any, *args: Any, **kwargs: Any) -> NativeEncodedBytes:
        message = schema.parse(request, encode(*args, **kwargs).SerializeToString())
        if stream_spec is not None:
            message.stream_spec.CopyFrom(stream_spec)
        return _encode_message(message)

    return encode_with_stream


def _keep_raw(body: bytes, request_id: str) -> tuple[bytes, None]:
    """Leave the answer to us; the SDK hands the first element to the caller."""
    return body, None
