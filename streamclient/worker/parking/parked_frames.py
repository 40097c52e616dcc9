"""The encoding of parked records and their keys, which every store uses, and the ids of records.

A record is stored as a GetStreamRecord answer that holds only this record, in the service's own format. So a program
that can read the service's answers can read a parking store. Numbers, bytes, versions and deletions stay unchanged.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

from streamclient.base.kept_formats import KeptFormat, parse_json
from streamclient.base.reasons import counted
from streamclient.errors import CodecError
from streamclient.records import KeyValue, PrimaryKey, SequenceInfo, StreamRecord
from streamclient.wire import schema
from streamclient.wire.record_decoding import default_codec

PARKED_FORMAT = KeptFormat("the parked record")
"""The version of the format in which every store keeps a parked record."""

_RECORD_ID = re.compile(r"(\d{10})-(\d{20})-(\d{10})-[0-9a-f]{12}", re.ASCII)

DIGEST_CHARACTERS = 12
"""The number of characters of the digest in a record id. These hold 48 bits. That is far more than enough, because the
digest has to differ only between records with the same position in the same shard."""


def frame_of(record: StreamRecord) -> bytes:
    """Return the record as bytes: an encoded GetStreamRecord answer that holds only this record.

    Raises:
        CodecError: a stream cannot hold such a record.
    """
    action, row, origin = default_codec().encode_record(record)
    message = schema.GetStreamRecordResponse()
    message.stream_records.add(action_type=action, record=row, **({} if origin is None else {"origin_record": origin}))
    return bytes(message.SerializeToString())


def record_of(frame: bytes) -> StreamRecord:
    """Return the record in a frame that ``frame_of`` made; raise ``CodecError`` for other bytes."""
    records = default_codec().decode_page(frame).records
    if len(records) != 1:
        raise CodecError(f"a parked frame holds {counted(len(records), 'record')}, expected exactly 1")
    return records[0]


def record_id(record: StreamRecord) -> str:
    """Return the record's id, which is its position in the shard and a digest of its content.

    The ids of a shard sort like its records. An id does not depend on the page, which may differ when a record is read
    again.
    """
    position = record.sequence_info
    digest = hashlib.sha256(frame_of(record)).hexdigest()[:DIGEST_CHARACTERS]
    return f"{position.epoch:010d}-{position.timestamp_micros:020d}-{position.row_index:010d}-{digest}"


def sequence_of(record_id: str) -> SequenceInfo:
    """Return the position in an id that ``record_id`` made.

    Raises:
        ValueError: the text is not such an id.
    """
    match = _RECORD_ID.fullmatch(record_id)
    if match is None:
        raise ValueError(
            f"{record_id!r} is not the id of a record, expected numbers and a digest as in "
            "0000000000-00001795302445848086-0000000000-7bb16a3a70e7; `streamclient explain SHARD` and `streamclient "
            "parked list` name such ids"
        )
    return SequenceInfo(*map(int, match.groups()))


def key_text(key: PrimaryKey) -> str:
    """Return a primary key as JSON: ``[["id", "k3"], ["part", {"base64": "AAE="}]]``. Equal keys give equal texts."""
    return json.dumps([[name, _plain(value)] for name, value in key], ensure_ascii=False)


def parse_key(text: str) -> PrimaryKey:
    """Return the key in a text that ``key_text`` made.

    Raises:
        ValueError: the text is not a key.
    """
    try:
        pairs: Any = parse_json(text)
        return tuple((_name(name), _value(value)) for name, value in pairs)
    except (TypeError, ValueError) as error:
        expected = '[["column", "text, whole number, or {"base64": "..."}"], ...]'
        raise ValueError(f"{text!r} is not a primary key, expected {expected}: {error}") from error


def _plain(value: KeyValue) -> Any:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"column name {name!r} is not a text")
    return name


def _value(value: Any) -> KeyValue:
    if isinstance(value, dict) and set(value) == {"base64"}:
        return base64.b64decode(value["base64"], validate=True)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"key value {value!r} is not a text, whole number or base64")
    return value
