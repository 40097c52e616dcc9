"""A parked record as a JSON document, for a line of a file, and for the command line's output with ``--json``."""

from __future__ import annotations

import base64
import json
from typing import Any

from streamclient.errors import CodecError
from streamclient.model import ParkedRecord
from streamclient.worker.parking.parked_frames import frame_of, key_text, record_of


def document_of(parked: ParkedRecord) -> dict[str, Any]:
    """Return a parked record as a document, with all its fields.

    ``frame`` holds the record itself; ``key``, ``change`` and ``time_micros`` repeat parts of the record for people. An
    earlier version writes no member ``fleet``, and ignores it.
    """
    return {
        "record_id": parked.record_id,
        "stream_id": parked.stream_id,
        "shard_id": parked.shard_id,
        "key": json.loads(key_text(parked.record.primary_key)),
        "change": parked.record.record_type.value,
        "time_micros": parked.record.sequence_info.timestamp_micros,
        "position": parked.position,
        "index": parked.index,
        "generation": parked.generation,
        "error": parked.error,
        "traceback": parked.traceback,
        "attempts": parked.attempts,
        "parked_micros": parked.parked_micros,
        "fleet": parked.fleet,
        "frame": base64.b64encode(frame_of(parked.record)).decode(),
    }


def parked_of(document: Any) -> ParkedRecord:
    """Return the parked record that a document of ``document_of`` describes.

    Raises:
        CodecError: the document does not describe a parked record.
    """
    try:
        return ParkedRecord(
            record=record_of(base64.b64decode(document["frame"], validate=True)),
            fleet=_typed(document.get("fleet", ""), str),
            **{name: _typed(document[name], kind) for name, kind in _FIELDS.items()},
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CodecError(f"not a parked record: {type(error).__name__}: {error}") from error


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} where a {kind.__name__} is expected")
    return value


_FIELDS: dict[str, type] = {
    "record_id": str,
    "stream_id": str,
    "shard_id": str,
    "position": str,
    "index": int,
    "generation": int,
    "error": str,
    "traceback": str,
    "attempts": int,
    "parked_micros": int,
}
