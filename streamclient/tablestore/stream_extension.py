"""An extension of the Tablestore SDK: the stream setting of CreateTable and UpdateTable.

This module extends *copies* of a client and of its registries of encoders and decoders. The user's client, and every
other client, stays unchanged. A copy shares connections, credentials and signer with the user's client. The operations
on streams do not use the SDK: see ``streamclient.tablestore.signed_calls``.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from tablestore import OTSClient
from tablestore import __version__ as sdk_version
from tablestore.encoder import NativeEncodedBytes

from streamclient.base import checks
from streamclient.errors import ConfigurationError
from streamclient.wire import schema
from streamclient.wire.service_errors import telling_protocol

_SUPPORTED = "6.4"
_WRITES_WITH_STREAM = {"CreateTable": schema.CreateTableRequest, "UpdateTable": schema.UpdateTableRequest}
_RAW_ANSWERS = ("UpdateTable",)


def for_tables(client: OTSClient) -> OTSClient:
    """Return a copy of ``client`` whose CreateTable and UpdateTable take a stream setting.

    The copy keeps the client's retry policy.

    Raises:
        ConfigurationError: the client is not a ``tablestore.OTSClient`` of the supported version.
    """
    _check(client)
    extended = copy(client)
    protocol = extended.protocol = copy(telling_protocol(client.protocol))
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
        encoders, decoders = client.protocol.encoder.api_encode_map, client.protocol.decoder.api_decode_map
        lacking = _WRITES_WITH_STREAM.keys() - (encoders.keys() & decoders.keys())
    except (AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"tablestore {sdk_version} keeps its operations elsewhere ({error}); install tablestore {_SUPPORTED}"
        ) from error
    if lacking:
        names = ", ".join(sorted(lacking))
        raise ConfigurationError(
            f"the registries of tablestore {sdk_version} lack {names}; install tablestore {_SUPPORTED}"
        )


def _encoders(known: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    writes = {name: _with_stream(known[name], request) for name, request in _WRITES_WITH_STREAM.items()}
    return {**known, **writes}


def _encode_message(message: Any) -> NativeEncodedBytes:
    """Encode a message of this package's schema, wrapped in a class that the SDK does not write to its debug log."""
    return NativeEncodedBytes(message.SerializeToString())


def _with_stream(encode: Callable[..., Any], request: Any) -> Callable[..., NativeEncodedBytes]:
    """Return an encoder that adds the stream setting to the request that the SDK's ``encode`` makes.

    The encoder parses this request as the class ``request``, because the SDK's own class lacks the stream setting.
    """

    def encode_with_stream(stream_spec: Any, *args: Any, **kwargs: Any) -> NativeEncodedBytes:
        message = schema.parse(request, encode(*args, **kwargs).SerializeToString())
        if stream_spec is not None:
            message.stream_spec.CopyFrom(stream_spec)
        return _encode_message(message)

    return encode_with_stream


def _keep_raw(body: bytes, request_id: str) -> tuple[bytes, None]:
    """Return the undecoded body as the first element of a pair. The SDK returns this element to its caller."""
    return body, None
