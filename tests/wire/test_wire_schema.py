from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st
from tablestore.protobuf import table_store_filter_pb2, table_store_pb2

from streamclient.errors import CodecError
from streamclient.wire import bounded, schema
from streamclient.wire.plainbuffer import encode_value

SDK_MESSAGES: dict[str, Any] = {
    name: descriptor
    for module in (table_store_pb2, table_store_filter_pb2)
    for name, descriptor in module.DESCRIPTOR.message_types_by_name.items()
}
SDK_ENUMS: dict[str, Any] = {
    name: descriptor
    for module in (table_store_pb2, table_store_filter_pb2)
    for name, descriptor in module.DESCRIPTOR.enum_types_by_name.items()
}
SHARED = sorted(set(SDK_MESSAGES) & set(schema._CLASSES))
ENUM, INT32 = 14, 5


def test_condition_bytes_of_the_other_sdks() -> None:
    """Row must exist and c == 1; fail if c is missing; latest version only."""
    single = schema.SingleColumnValueFilter(
        comparator=schema.ComparatorType.EQUAL,
        column_name="c",
        column_value=encode_value(1),
        filter_if_missing=True,
        latest_version_only=True,
    )
    whole = schema.Filter(type=schema.FilterType.SINGLE_COLUMN_VALUE, filter=single.SerializeToString())
    condition = schema.Condition(
        row_existence=schema.RowExistenceExpectation.EXPECT_EXIST, column_condition=whole.SerializeToString()
    )

    assert condition.SerializeToString().hex(" ") == (
        "08 01 12 18 08 01 12 14 08 01 12 01 63 1a 09 00 01 00 00 00 00 00 00 00 20 01 28 01"
    )


def test_stream_request_bytes_of_the_other_sdks() -> None:
    record = schema.GetStreamRecordRequest(shard_iterator="it", limit=100)
    iterator = schema.GetShardIteratorRequest(stream_id="s", shard_id="h", timestamp=1_700_000_000_123_456)

    assert record.SerializeToString().hex(" ") == "0a 02 69 74 10 64"
    assert iterator.SerializeToString().hex(" ").endswith("18 c0 c4 80 c1 c1 c4 82 03")


@pytest.mark.parametrize("name", SHARED)
def test_messages_contain_the_sdk_bundled_ones(name: str) -> None:
    """Same number, label and type for every field that the SDK's older schema has; enumerations count as int32."""
    ours = {field.name: field for field in getattr(schema, name).DESCRIPTOR.fields}
    for field in SDK_MESSAGES[name].fields:
        known = ours[field.name]
        expected_type = INT32 if field.type == ENUM else field.type
        assert (known.number, known.label, known.type) == (field.number, field.label, expected_type), field.name
        if field.message_type is not None:
            assert known.message_type.name == field.message_type.name


def test_the_comparison_with_the_sdk_covers_most_messages() -> None:
    assert len(SHARED) > 50


@pytest.mark.parametrize("name", sorted({*SDK_ENUMS} & {*vars(schema)}))
def test_enumerations_contain_the_sdk_bundled_ones(name: str) -> None:
    ours = {int(value) for value in getattr(schema, name)}
    bundled = {value.number for value in SDK_ENUMS[name].values}
    if name == "PrimaryKeyType":
        bundled.discard(5)  # BOOLEAN keys exist in the Python SDK alone; the service has none
    assert bundled <= ours


def test_every_operation_has_its_two_messages() -> None:
    for name, operation in schema.OPERATIONS.items():
        assert operation.name == name
        assert operation.request is getattr(schema, f"{name}Request")
        assert operation.response is getattr(schema, f"{name}Response")


def test_the_process_wide_pool_is_left_to_the_sdk() -> None:
    assert schema.StreamSpecification.DESCRIPTOR.file.pool is not table_store_pb2.DESCRIPTOR.pool
    assert schema.StreamSpecification.DESCRIPTOR.fields_by_name["columns_to_get"].number == 3
    assert "columns_to_get" not in table_store_pb2.StreamSpecification.DESCRIPTOR.fields_by_name


def test_a_missing_required_field_is_refused() -> None:
    with pytest.raises(CodecError, match="GetStreamRecordRequest message lacks required fields: shard_iterator"):
        schema.parse(schema.GetStreamRecordRequest, b"")


def test_an_error_names_few_of_the_fields_that_are_missing() -> None:
    """A message of five megabytes can lack millions."""
    with pytest.raises(CodecError) as caught:
        schema.parse(schema.BatchWriteRowRequest, bytes.fromhex("0a 02 12 00") * 50_000)

    assert str(caught.value) == (
        "a BatchWriteRowRequest message lacks required fields: tables[0].table_name, tables[0].rows[0].type, "
        "tables[0].rows[0].row_change, ..."
    )


@given(st.binary(max_size=60), st.integers(1, 20))
def test_counting_fields_takes_any_bytes(data: bytes, most: int) -> None:
    """And what it lets through has not more, as the parser sees it."""
    for message_class in (schema.BatchWriteRowRequest, schema.Filter, schema.HeartbeatRequest):
        try:
            bounded.require_few_fields(message_class, data, most)
        except CodecError as error:
            assert "holds more than" in str(error)  # noqa: PT017
            continue
        try:
            message = message_class.FromString(data)
        except DecodeError:
            continue
        assert known_fields(message) <= most


def known_fields(message: Any) -> int:
    count = 0
    for field, value in message.ListFields():
        values = value if field.label == field.LABEL_REPEATED else [value]
        count += len(values) + (sum(map(known_fields, values)) if field.message_type is not None else 0)
    return count


def test_a_missing_required_field_of_an_inner_message_is_refused() -> None:
    with pytest.raises(CodecError, match="type"):
        schema.parse(schema.TableMeta, bytes.fromhex("0a 01 74 12 03 0a 01 6b"))


@pytest.mark.parametrize(
    ("message", "data"),
    [
        (schema.DeleteTableRequest, "0a 02 ff fe"),
        (schema.ListTableResponse, "0a 01 61 0a 01 ff"),
        (schema.CreateTableRequest, "0a 03 0a 01 ff 12 02 0a 00"),
    ],
)
def test_text_that_is_not_utf_8_is_refused(message: Any, data: str) -> None:
    with pytest.raises(CodecError, match=r"UTF-8|utf-8"):
        schema.parse(message, bytes.fromhex(data))


def test_unknown_fields_are_ignored_as_by_every_sdk() -> None:
    parsed = schema.parse(schema.DeleteTableRequest, bytes.fromhex("0a 01 74 fa 3f 02 68 69"))
    assert parsed.table_name == "t"


def test_an_unknown_enumeration_value_is_seen_as_its_number() -> None:
    """A closed enumeration would read as its first value: an unknown action as PUT_ROW."""
    assert schema.parse(schema.StreamRecord, bytes.fromhex("08 63 12 00")).action_type == 99


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(sorted(schema._CLASSES)), st.binary(max_size=60))
def test_any_bytes_give_a_message_or_a_codec_error(name: str, data: bytes) -> None:
    with suppress(CodecError):
        assert isinstance(schema.parse(getattr(schema, name), data), Message)


def test_an_unknown_name_is_named() -> None:
    with pytest.raises(AttributeError, match="PutRowRequst"):
        schema.PutRowRequst  # noqa: B018
