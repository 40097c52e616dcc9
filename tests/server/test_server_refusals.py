"""Every refusal of the table, provoked with the official Python SDK: its status, its code, its words."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from attrs import evolve
from refusal_cases import (
    AND,
    AUTO,
    DATED_DELETION,
    DELETION,
    HIGH,
    IS_1,
    LOW,
    MARKED,
    MEGABYTE,
    NOT,
    OPTIONS,
    TIMES,
    VALUED_DELETION,
    Case,
    Stage,
    apart,
    asked,
    batch_get,
    batch_write,
    by_the_sdk,
    closed_shard,
    compressed,
    conditional,
    conditional_put,
    create_table,
    defined_value,
    delete_row,
    describe_stream,
    ended_transaction,
    export,
    generated,
    get_range,
    get_row,
    import_row,
    in_transaction,
    iterator,
    large_batch_get,
    large_row,
    long_name,
    lost_log,
    many_tables,
    new_tunnel,
    no_stream,
    odd_token,
    of_unknown_key_type,
    of_unknown_option,
    on_rows,
    on_table,
    on_tunnel,
    other_place,
    other_range,
    put_row,
    rule,
    schedule,
    second_transaction,
    sequence,
    split_past_64_bits,
    split_points,
    stream,
    transactions_of,
    trimmed,
    trimmed_checkpoint,
    two_sessions,
    update_row,
    update_table,
    with_capacity,
    with_columns,
    with_partitions,
    without_transactions,
)
from server_state_driver import (
    GENERATED_KEY,
    PUT,
    UPDATE,
    batch_row,
    batch_table,
    combined,
    creation,
    frame,
    increment,
    pagination,
    put,
    wrapped,
)

from streamclient.server import LocalTablestore
from streamclient.server.engine import Engine
from streamclient.server.http_service import DEFAULT_ERRORS
from streamclient.server.refusals import REFUSALS
from streamclient.server.server_errors import RefusalSource, ServiceError, ServiceRefusal
from streamclient.server.server_limits import Limits
from streamclient.server.storage_memory import MemoryStorage
from streamclient.wire import schema
from streamclient.wire.plainbuffer import Cell, KeyBound, encode_value
from streamclient.wire.schema import FilterType, RowExistenceExpectation
from tests.named_tests import ROOT, defined_tests, table_rows
from tests.service_under_test import real_service

EXPECT_EXIST = schema.Condition(row_existence=RowExistenceExpectation.EXPECT_EXIST)
EXPECT_NOT_EXIST = schema.Condition(row_existence=RowExistenceExpectation.EXPECT_NOT_EXIST)
X_IS_1 = schema.Condition(row_existence=0, column_condition=IS_1)

CASES: Mapping[str, list[Case]] = {
    "BODY_TOO_LARGE": [Case(lambda stage: stage.send("ListTable", bytes(6 * MEGABYTE)))],
    "HOST": [Case(lambda stage: stage.send("ListTable", Host="evil.example"), {"host": "evil.example"})],
    "WEB_PAGE": [Case(lambda stage: stage.send("ListTable", Origin="http://a"), {"origin": "http://a"})],
    "HEADER_MISSING": [Case(lambda stage: stage.send("ListTable", x_ots_date=None), {"name": "x-ots-date"})],
    "API_VERSION": [
        Case(lambda stage: stage.send("ListTable", x_ots_apiversion="2014-08-08"), {"version": "2014-08-08"})
    ],
    "DATE": [Case(lambda stage: stage.send("ListTable", x_ots_date="today"), {"date": "today"})],
    "CLOCK": [
        Case(
            lambda stage: stage.send("ListTable", x_ots_date="2020-01-01T00:00:00.000Z"),
            {"date": "2020-01-01T00:00:00.000Z"},
        )
    ],
    "KEY_DAY": [
        Case(
            lambda stage: stage.send(
                "ListTable", x_ots_signaturev4="s", x_ots_signdate="20200101", x_ots_signregion="r"
            ),
            {"date": "20200101"},
        )
    ],
    "REGION": [Case(lambda stage: stage.client(region="*").execute("ListTable", b""), {"region": "*"})],
    "OPERATION": [Case(lambda stage: stage.send("CreateIndex"), {"operation": "CreateIndex"})],
    "DIGEST": [Case(lambda stage: stage.send("ListTable", x_ots_contentmd5="x"))],
    "ACCESS_KEY": [Case(lambda stage: stage.client(access_key_id="other").execute("ListTable", b""))],
    "SIGNATURE": [Case(lambda stage: stage.client(access_key_secret="other").execute("ListTable", b""))],
    "INSTANCE": [Case(lambda stage: stage.client(instance_name="other").execute("ListTable", b""))],
    "TUNNEL_INSTANCE": [Case(lambda stage: stage.client(instance_name="other").execute("tunnel/list", b""))],
    "COMPRESSION": [compressed(b"", {"kind": "gzip"}, x_ots_request_compress_type="gzip")],
    "COMPRESSED_BODY": [compressed(b"\xff\xff\xff", x_ots_request_compress_type="deflate")],
    "COMPRESSED_SIZE": [
        compressed(zlib.compress(b""), x_ots_request_compress_type="deflate", x_ots_request_compress_size="5")
    ],
    "MESSAGE": [Case(lambda stage: stage.send("GetRow", b"\xff\xff\xff"))],
    "WORK": [on_table(rule(regex=".{0,500}x"), before=put_row(put("x", "v" * 200_000)))],
    "TABLE_NAME": [
        asked(create_table(table_meta=schema.TableMeta(table_name="1x")), name="1x"),
        asked(("DescribeTable", {"table_name": ""}), name=""),
        asked(("ListStream", {"table_name": "-"}), name="-"),
    ],
    "COLUMN_NAME": [
        asked(create_table(("p-k", "STRING")), name="p-k"),
        asked(put_row(put("#", 1)), name="#"),
        asked(put_row(put("#公司", 1)), name="#公司"),
        asked(put_row(put("", 1)), name=""),
        asked(put_row(put("公" * 86, 1)), name="公" * 86),
        asked(put_row(put("n" * 256, 1)), name="n" * 256),
        asked(get_row(columns_to_get=["x", "# "]), name="# "),
        asked(create_table(stream_spec=stream(columns_to_get=["#o"])), name="#o"),
    ],
    "KEY_COLUMNS": [asked(create_table(*[(f"k{n}", "STRING") for n in range(5)]), limit=4)],
    "KEY_EMPTY": [
        asked(put_row(key=())),
        asked(update_row(put("x", 1), key=())),
        asked(delete_row(key=())),
        asked(get_row(primary_key=frame(()))),
    ],
    "KEY_COLUMN_TYPE": [
        asked(of_unknown_key_type(4), type="DOUBLE"),
        asked(of_unknown_key_type(5), type="BOOLEAN"),
        asked(of_unknown_key_type(9), type="9"),
        asked(put_row(key=(("pk", LOW),)), type="VT_INF_MIN"),
        asked(get_row(primary_key=frame((("pk", HIGH),))), type="VT_INF_MAX"),
    ],
    "KEY_COLUMN_TWICE": [
        asked(create_table(("a", "STRING"), ("a", "STRING")), name="a"),
        asked(put_row(key=(("pk", "a"), ("pk", "b"))), name="pk"),
    ],
    "KEY_VALUE_LENGTH": [asked(put_row(key="k" * 1025), name="pk", limit=1024, size=1025)],
    "KEY_SIZE": [asked(put_row(key=(("pk", "a"), ("sk", "b"))), given=2, expected=1)],
    "KEY_NAME": [asked(put_row(key=(("other", "a"),)), given="other", expected="pk")],
    "KEY_TYPE": [
        asked(put_row(key=(("pk", 1),)), given="VT_INTEGER", expected="VT_STRING"),
        asked(put_row(key=(("pk", KeyBound.AUTO_INCREMENT),)), given="VT_AUTO_INCREMENT", expected="VT_STRING"),
    ],
    "ATTRIBUTE_IS_KEY": [asked(put_row(put("pk", 1)), name="pk")],
    "ATTRIBUTE_TYPE": [asked(put_row(Cell("x", KeyBound.INF_MIN)), type="VT_INF_MIN")],
    "ATTRIBUTE_LENGTH": [asked(put_row(put("c", "v" * 2097153)), name="c", limit=2097152, size=2097153)],
    "ATTRIBUTE_COLUMNS": [asked(put_row(*[put(f"c{n}", 1) for n in range(1025)]), limit=1024, count=1025)],
    "REQUESTED_COLUMNS": [asked(get_row(columns_to_get=[f"c{n}" for n in range(1025)]), limit=1024, count=1025)],
    "NOT_A_NUMBER": [asked(put_row(put("x", float("nan"))))],
    "INFINITE": [asked(put_row(put("x", float("-inf"))))],
    "TIMESTAMP": [asked(put_row(put("x", 1, -1))), asked(put_row(put("x", 1, (2**63 - 1) // 1000)))],
    "CELL_DATA": [asked(put_row(row=b"\x01\x02\x03"))],
    "TABLE_MISSING": [asked(get_row(table_name="u")), asked(("DeleteTable", {"table_name": "u"}))],
    "TABLE_EXISTS": [asked(("CreateTable", creation("t")))],
    "TABLES_FULL": [Case(many_tables, {"limit": 64})],
    "INDEXES": [asked(create_table(index_metas=[schema.IndexMeta(name="i", index_update_mode=0, index_type=0)]))],
    "GENERATED_TWICE": [
        asked(create_table(("a", "STRING"), ("b", "INTEGER", "AUTO"), ("c", "INTEGER", "AUTO"))),
    ],
    "GENERATED_FIRST": [asked(create_table(("a", "INTEGER", "AUTO")), table="new")],
    "GENERATED_TYPE": [asked(create_table(("a", "STRING"), ("b", "STRING", "AUTO")))],
    "GENERATED_WITH_TRANSACTIONS": [asked(create_table(*GENERATED_KEY, enable_local_txn=True))],
    "KEY_OPTION": [asked(of_unknown_option(2), name="pk")],
    "DEFINED_COLUMNS": [asked(with_columns(*[(f"c{n}", 1) for n in range(33)]), limit=32)],
    "DEFINED_TWICE": [asked(with_columns(("c", 1), ("c", 1)), name="c"), asked(with_columns(("pk", 1)), name="pk")],
    "DEFINED_TYPE": [asked(with_columns(("c", 6)), name="c")],
    "DEFINED_VALUE": [Case(defined_value, {"name": "c", "expected": "INTEGER", "given": "BOOLEAN"})],
    "TIME_TO_LIVE_MISSING": [asked(create_table(options={"time_to_live": None}))],
    "TIME_TO_LIVE": [
        asked(create_table(options={"time_to_live": 0})),
        asked(create_table(options={"time_to_live": -2})),
    ],
    "TIME_TO_LIVE_SHORT": [asked(create_table(options={"time_to_live": 86399}), least=86400)],
    "MAX_VERSIONS_MISSING": [asked(create_table(options={"max_versions": None}))],
    "MAX_VERSIONS": [asked(create_table(options={"max_versions": 0}))],
    "DEVIATION": [
        asked(create_table(options={"deviation_cell_version_in_sec": -1})),
        asked(update_table(table_options=OPTIONS(deviation_cell_version_in_sec=2**63 // 1_000_000 + 1))),
    ],
    "CAPACITY_HALF": [asked(with_capacity(read=1)), asked(with_capacity(write=1)), asked(with_capacity())],
    "CAPACITY": [asked(with_capacity(read=-1, write=0), name="read", limit=100000)],
    "OPTIONS_EMPTY": [asked(update_table(table_options=OPTIONS()))],
    "UPDATE_EMPTY": [asked(update_table())],
    "FULL_ROW_FIXED": [asked(update_table(table_options=OPTIONS(update_full_row=True)))],
    "PARTITIONS": [asked(with_partitions("STRING", *"abcdefghij"), limit=10)],
    "PARTITION_NUMBER": [asked(with_partitions("INTEGER", 0, 2**63 - 1))],
    "PARTITION_EMPTY": [
        asked(with_partitions("STRING", ""), type="string"),
        asked(with_partitions("BINARY", b""), type="binary"),
    ],
    "PARTITION_LENGTH": [asked(with_partitions("BINARY", b"x" * 65), limit=64, size=65)],
    "PARTITION_TYPE": [asked(with_partitions("INTEGER", "1"))],
    "PARTITION_VALUE": [asked(create_table(partitions=[schema.PartitionRange(begin=b"\xff", end=encode_value(HIGH))]))],
    "PARTITION_GAPS": [asked(with_partitions("STRING", "b", "a"))],
    "SPLIT_SIZE": [asked(split_points(split_size=0))],
    "SPLIT_UNIT": [asked(split_points(split_size=1000, split_size_unit_in_byte=0), least=1048576)],
    "SPLIT_LIMIT": [asked(split_points(split_size=1, split_point_limit=0))],
    "CONDITION_FAILED": [asked(put_row(condition=EXPECT_EXIST)), asked(put_row(condition=X_IS_1))],
    "EXPECTATION": [asked(put_row(condition=schema.Condition(row_existence=3)), given=3)],
    "PUT_MARKER": [asked(put_row(row=frame("a", delete_marker=True))), asked(update_row(row_change=MARKED))],
    "PUT_OPERATION": [asked(put_row(increment("x", 1)), name="x")],
    "UPDATE_EMPTY_ROW": [asked(update_row())],
    "UPDATE_EMPTY_BATCH_ROW": [
        asked(batch_write(batch_table([batch_row(UPDATE, "a")]))),
        Case(import_row(UPDATE)),
    ],
    "UPDATE_NOT_ALLOWED": [on_table(update_row(put("x", 1)), allow_update=False)],
    "DELETE_MARKER": [asked(delete_row(is_marked=False))],
    "DELETE_CELLS": [asked(delete_row(put("x", 1)))],
    "INCREMENT_VALUE": [asked(update_row(increment("x", "1")), name="x")],
    "INCREMENT_TIMESTAMP": [asked(update_row(evolve(increment("x", 1), timestamp_millis=5)))],
    "INCREMENT_COLUMN": [
        on_table(update_row(increment("x", 1)), before=put_row(put("x", "text"))),
    ],
    "INCREMENT_OVERFLOW": [on_table(update_row(increment("x", 2**63 - 1)), before=put_row(put("x", 1)))],
    "DELETION_VALUE": [asked(update_row(VALUED_DELETION))],
    "DELETION_UNDATED": [asked(update_row(DELETION))],
    "DELETION_DATED": [asked(update_row(DATED_DELETION))],
    "CELL_DEVIATION": [asked(put_row(put("old", 1, 5)), name="old")],
    "GENERATED_DELETE": [generated(delete_row(key=AUTO))],
    "GENERATED_EXPECTATION": [
        evolve(generated(put_row(key=AUTO, condition=EXPECT_NOT_EXIST)), values={"given": "EXPECT_NOT_EXIST"}),
    ],
    "GENERATED_CONDITION": [generated(put_row(key=AUTO, condition=X_IS_1))],
    "GENERATED_ROW": [
        evolve(
            generated(put_row(key=(("pk", "a"), ("id", 1)), condition=EXPECT_NOT_EXIST)),
            values={"given": "EXPECT_NOT_EXIST"},
        ),
    ],
    "RETURN_TYPE": [asked(put_row(return_content=schema.ReturnContent(return_type=9)), given=9)],
    "RETURN_NAMES": [
        asked(
            update_row(put("x", 1), return_content=schema.ReturnContent(return_type=1, return_column_names=["x"])),
            type="PK",
        ),
    ],
    "RETURN_COLUMN": [
        asked(
            update_row(put("x", 1), return_content=schema.ReturnContent(return_type=2, return_column_names=["x"])),
            name="x",
        ),
    ],
    "REQUEST_SIZE": [
        asked(
            put_row(*[put(f"c{n}", "v" * 2097152) for n in range(2)]), operation="PutRow", limit=4194304, size=4194311
        ),
        asked(
            batch_write(batch_table([batch_row(PUT, key, put("c", "v" * 2097152)) for key in "ab"])),
            operation="BatchWriteRow",
            limit=4194304,
            size=4194312,
        ),
    ],
    "ROW_SIZE": [Case(large_row, {"limit": 16777216})],
    "BATCH_WRITE_EMPTY": [asked(batch_write())],
    "BATCH_TABLE_EMPTY": [
        asked(batch_write(batch_table([])), name="t"),
        asked(("BulkImport", {"table_name": "t"}), name="t"),
    ],
    "BATCH_TABLE_TWICE": [
        asked(batch_write(batch_table([conditional()]), batch_table([conditional()])), name="t"),
        asked(("BatchGetRow", {"tables": batch_get(frame("a"), max_versions=1)[1]["tables"] * 2}), name="t"),
    ],
    "BATCH_ROWS": [
        asked(batch_write(batch_table([conditional()] * 201)), limit=200),
        asked(batch_get(*[frame("a")] * 101, max_versions=1), limit=100),
    ],
    "BATCH_MODIFY_TYPE": [Case(import_row(4))],
    "REPEATED_EXPECTATION": [asked(batch_write(batch_table([conditional(), conditional(2)])))],
    "REPEATED_CONDITION": [asked(batch_write(batch_table([conditional(), conditional(column_condition=IS_1)])))],
    "ATOMIC_TABLES": [
        asked(batch_write(batch_table([conditional()]), batch_table([conditional()], "u"), is_atomic=True)),
    ],
    "ATOMIC_SCOPE": [
        asked(batch_write(batch_table([batch_row(PUT, "a"), batch_row(PUT, "b")]), is_atomic=True), own="a", given="b"),
    ],
    "BATCH_GET_EMPTY": [asked(("BatchGetRow", {}))],
    "BATCH_GET_SIZE": [Case(large_batch_get, limits={"batch_get_bytes": 150})],
    "READ_CELLS": [asked(get_row(primary_key=frame("a", put("x", 1))))],
    "READ_MARKER": [asked(get_row(primary_key=frame("a", delete_marker=True)))],
    "READ_GENERATED": [asked(get_row(primary_key=frame(AUTO)))],
    "VERSIONS_MISSING": [
        asked(get_row(max_versions=None)),
        asked(get_range("a", "b", max_versions=None)),
    ],
    "VERSIONS_MISSING_IN_BATCH": [asked(batch_get(frame("a")))],
    "READ_VERSIONS": [asked(get_row(max_versions=0), given=0)],
    "TIME_RANGE_HALF": [asked(get_row(time_range=TIMES(start_time=1)))],
    "TIME_RANGE": [asked(get_row(time_range=TIMES(start_time=2, end_time=2)))],
    "TIME_AND_ALL": [asked(get_row(time_range=TIMES(specific_time=1, start_time=1, end_time=2)))],
    "TIME_AND_RANGE": [asked(get_row(max_versions=None, time_range=TIMES(specific_time=1, start_time=1, end_time=2)))],
    "TIME_AND_VERSIONS": [asked(get_row(time_range=TIMES(specific_time=1)))],
    "DIRECTION": [asked(get_range("a", "b", direction=2), given=2)],
    "LIMIT": [asked(get_range("a", "b", limit=0))],
    "RANGE_FORWARD": [asked(get_range("b", "b"))],
    "RANGE_BACKWARD": [asked(get_range("a", "b", direction=1))],
    "BLOCK_TYPE": [asked(export(data_block_type_hint=7), given=7)],
    "MATRIX_COLUMNS": [asked(export())],
    "FILTER_NODES": [asked(conditional_put(combined(AND, *[IS_1] * 32)), limit=32)],
    "FILTER_TYPE": [
        asked(get_row(filter=schema.Filter(type=9, filter=b"").SerializeToString()), role="filter", given=9),
    ],
    "FILTER_BROKEN": [
        asked(conditional_put(b"\x08\x01\x12\x01\xff"), kind="relation filter"),
        asked(get_row(filter=b"\xff"), kind="filter"),
    ],
    "FILTER_COMPARATOR": [
        asked(
            get_row(
                filter=wrapped(
                    FilterType.SINGLE_COLUMN_VALUE,
                    schema.SingleColumnValueFilter(
                        comparator=99,
                        column_name="x",
                        column_value=b"\x00" + bytes(8),
                        filter_if_missing=False,
                        latest_version_only=True,
                    ),
                )
            ),
            given=99,
        ),
    ],
    "FILTER_NOT": [asked(conditional_put(combined(NOT, IS_1, IS_1)))],
    "FILTER_AND_OR": [asked(conditional_put(combined(AND, IS_1)))],
    "PAGINATION_OFFSET": [asked(get_row(filter=pagination(-1, 1)))],
    "PAGINATION_LIMIT": [asked(get_row(filter=pagination(0, 0)))],
    "PAGINATION_CONDITION": [asked(conditional_put(pagination(0, 1)))],
    "REGEX_LENGTH": [asked(rule(regex="x" * 257), limit=256, size=257)],
    "REGEX": [asked(rule(regex="("), reason="missing ): (")],
    "REGEX_GROUPS": [asked(rule(regex="()" * 33), count=33, limit=32)],
    "TRANSACTION_KEY": [
        asked(("StartLocalTransaction", {"table_name": "t", "key": frame((("pk", "a"), ("sk", 1)))})),
    ],
    "TRANSACTIONS_OFF": [Case(without_transactions)],
    "TRANSACTION_ID": [
        asked(("CommitTransaction", {"transaction_id": ""})),
        asked(put_row(transaction_id="not existed transaction id")),
    ],
    "TRANSACTION_OVER": [Case(ended_transaction)],
    "TRANSACTION_SCOPE": [Case(in_transaction("b"), {"what": "PartKey", "own": "a", "given": "b"})],
    "TRANSACTION_ROW": [
        Case(on_rows(lambda driver, key, name: driver.put(key, table="pairs", transaction_id=name)), {"given": "a,2"}),
        Case(on_rows(lambda driver, key, name: driver.get(key, "pairs", transaction_id=name)), {"given": "a,2"}),
    ],
    "TRANSACTION_RANGE": [
        Case(
            on_rows(
                lambda driver, key, name: driver.range_page((key[0], ("sk", LOW)), key, "pairs", transaction_id=name)
            )
        ),
    ],
    "TRANSACTION_ROWS": [
        asked(
            ("StartLocalTransaction", {"table_name": "t", "key": frame("a"), "row_keys": [frame("a")] * 201}),
            limit=200,
            count=201,
        ),
    ],
    "TRANSACTION_SIZE": [
        Case(in_transaction(*["a"] * 3, size=2 * MEGABYTE), {"limit": 4194304}),
    ],
    "ROW_CONFLICT": [Case(second_transaction)],
    "TRANSACTIONS_FULL": [Case(transactions_of("a", "b", "c"), {"limit": 2}, {"open_transactions": 2})],
    "TRANSACTIONS_LARGE": [Case(in_transaction("a", "a", size=500), limits={"open_transaction_bytes": 1500})],
    "RETENTION": [
        asked(create_table(stream_spec=stream(expiration_time=0)), limit=168),
        asked(create_table(stream_spec=stream(expiration_time=169)), limit=168),
    ],
    "RETENTION_FIXED": [asked(update_table(stream_spec=stream(expiration_time=48)), present=24, given=48)],
    "ORIGIN_TWICE": [asked(create_table(stream_spec=stream(columns_to_get=["a", "a"])))],
    "ORIGIN_FIXED": [asked(update_table(stream_spec=stream(columns_to_get=["a"])))],
    "STREAM_MISSING": [asked(("DescribeStream", {"stream_id": "t_1"}))],
    "SHARD_MISSING": [Case(iterator(shard_id="other"))],
    "STREAM_ID": [asked(("DescribeStream", {"stream_id": ""})), Case(iterator(stream_id=""))],
    "STREAM_ID_LENGTH": [Case(long_name)],
    "SHARD_ID": [Case(iterator(shard_id=""))],
    "SHARD_LIMIT": [Case(describe_stream(shard_limit=0))],
    "SHARD_TOKEN": [Case(iterator(token="other"))],
    "ITERATOR_TIMESTAMP": [Case(iterator(timestamp=-1))],
    "ITERATOR": [asked(("GetStreamRecord", {"shard_iterator": "?"}), reason="it is not base64 text")],
    "TRIMMED": [Case(trimmed)],
    "TUNNEL_NAME": [
        asked(new_tunnel(tunnel_name=name), name=name) for name in ("", "1a", "a-b", "a b", "日", "n" * 256)
    ],
    "TUNNEL_TYPE": [asked(new_tunnel(tunnel_type=9), given=9)],
    "TUNNELS_FULL": [Case(lambda stage: [stage.tunnel(name=name) for name in "abc"], {"limit": 2}, {"tunnels": 2})],
    "TUNNEL_EXISTS": [Case(lambda stage: [stage.tunnel() for _ in range(2)], {"name": "n"})],
    "TUNNEL_MISSING": [
        asked(("tunnel/delete", {"table_name": "t", "tunnel_name": "n"}), name="n"),
        asked(("tunnel/describe", {"table_name": "t", "tunnel_name": "n"}), name="n"),
        asked(("tunnel/connect", {"tunnel_id": "i"}), name="i"),
    ],
    "TUNNEL_TABLE_MISSING": [asked(new_tunnel(table_name="u"), name="u")],
    "TUNNEL_EXPIRED": [Case(lambda stage: lost_log(stage, then="checkpoint"))],
    "TUNNEL_LOG_LOST": [Case(lost_log)],
    "START_FLAG": [asked(new_tunnel(config={"flag": 7}), given=7)],
    "START_OFFSET": [asked(new_tunnel(config={"start_offset": 5_000}), given=5_000)],
    "END_OFFSET": [
        asked(new_tunnel(config={"start_offset": 7, "end_offset": end}), end=end, start=7) for end in (6, 7)
    ],
    "SESSION_TIMEOUT": [
        Case(on_tunnel("connect", client_config=schema.TunnelClientConfig(timeout=-1)), {"given": -1, "limit": 86400}),
    ],
    "SESSION_TAG": [
        Case(on_tunnel("connect", client_config=schema.TunnelClientConfig(client_tag="x" * 256)), {"limit": 255}),
    ],
    "SESSIONS_FULL": [Case(two_sessions, {"limit": 1}, {"tunnel_sessions": 1})],
    "SESSION_GONE": [Case(on_tunnel("heartbeat", client_id="nobody"), {"client": "nobody"})],
    "CHANNEL_MISSING": [Case(on_tunnel("getcheckpoint", client_id="c", channel_id="other"), {"channel": "other"})],
    "CHANNEL_OVER": [Case(schedule(4, 1))],
    "CHANNEL_STATUS": [Case(schedule(3), {"given": 3})],
    "COUNT": [
        Case(
            lambda stage: stage.store(tunnel := stage.tunnel(), stage.token(tunnel), 2**40), {"name": "sequence number"}
        ),
    ],
    "SEQUENCE_NUMBER": [Case(sequence, {"given": 4, "expected": 5})],
    "TOKEN": [Case(lambda stage: stage.read(stage.tunnel(), "?"))],
    "TOKEN_CHANNEL": [Case(odd_token(2, other_place))],
    "TOKEN_TIME": [Case(odd_token(2, lambda token, _: evolve(token, timestamp=2**62)), {"given": 2**62})],
    "TOKEN_COUNT": [Case(odd_token(2, lambda token, _: evolve(token, total_count=99)), {"given": 99})],
    "TOKEN_TRIMMED": [Case(trimmed_checkpoint)],
    "TOKEN_OF_STREAM": [Case(odd_token(1, lambda token, _: evolve(token, iterator="x")))],
    "TOKEN_NUMBERS": [Case(odd_token(1, lambda token, _: evolve(token, timestamp=5)), {"time": 5, "count": 0})],
    "TOKEN_KEY": [Case(odd_token(1, lambda token, _: evolve(token, primary_key=b"?")), {"table": "t"})],
    "TOKEN_RANGE": [Case(other_range)],
    "CONTROL_NO_STREAM": [Case(no_stream, {"table": "plain"})],
    "CONTROL_CLOSED": [Case(closed_shard)],
    "CONTROL_SPLIT_KEY": [
        Case(lambda stage: [stage.service.split("t", at=("m",)), stage.service.split("t", at=("m",))])
    ],
    "CONTROL_SPLIT_COLUMNS": [Case(lambda stage: stage.service.split("t", at=("m", 1)), {"given": 2, "expected": 1})],
    "CONTROL_SPLIT_TYPE": [
        Case(lambda stage: stage.service.split("t", at=(1,)), {"name": "pk", "type": "VT_STRING", "given": "1"}),
    ],
    "CONTROL_SPLIT_VALUE": [
        Case(lambda stage: stage.service.split("t", at=("\ud800",)), {"name": "pk", "given": r"'\ud800'"}),
        Case(split_past_64_bits, {"name": "n", "expected": "integers of 64 bits", "given": 2**63}),
    ],
    "CONTROL_SPLIT_ROWS": [Case(lambda stage: stage.service.split("t"), {"count": 0})],
    "CONTROL_MERGE": [Case(apart)],
    "CONTROL_KEEP": [Case(lambda stage: stage.service.trim("t", keep_last=-1), {"given": -1})],
}
"""By the name of the refusal, what provokes it."""

ELSEWHERE: Mapping[str, str] = {
    "NOT_HTTP": "test_server_http_robustness.py::test_what_is_no_http_gets_a_protocol_error_with_a_request_id",
    "BODY_NOT_HTTP": "test_server_http_robustness.py::test_what_is_no_http_gets_a_protocol_error_with_a_request_id",
    "METHOD": "test_server_http_transport.py::test_only_post_is_allowed",
    "BODY_LATE": "test_server_http_plain.py::test_a_body_that_does_not_come_is_not_waited_for",
    "HEADER_TWICE": "test_server_http_robustness.py::test_a_header_that_counts_must_not_come_twice",
    "SERVER_FAILED": "test_server_http_transport.py::test_a_broken_engine_answers_with_an_internal_error",
    "CLOSED": "test_server_state_tables.py::test_a_closed_engine_refuses_and_says_so",
    "STORAGE_FAILED": "test_server_state_storage.py::test_after_a_failed_commit_everything_is_refused",
    "STORAGE_FAILED_BEFORE": "test_server_state_storage.py::test_after_a_failed_commit_everything_is_refused",
}
"""Refusals that no client of the SDK can provoke, and the tests that do, below ``tests/server``."""


class _Lowered(LocalTablestore):
    """A server with lower limits."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        super().__init__()
        self._limits = limits

    def _open_engine(self) -> Engine:
        return Engine(clock=self._clock, storage=MemoryStorage(), limits=Limits(**self._limits))


@contextmanager
def _stage(local: Any, case: Case) -> Iterator[Stage]:
    if case.limits and real_service() is not None:
        pytest.skip("a real service has limits of its own")
    if not case.limits:
        yield Stage(local, by_the_sdk(local))
        return
    with _Lowered(case.limits) as lowered:
        yield Stage(lowered, by_the_sdk(lowered))


def _refusal(act: Any, stage: Stage) -> tuple[int, str, str]:
    """The refusal in which the act ends; of a batch, that of a row."""
    try:
        answer = act(stage)
    except ServiceError as error:
        return error.http_status, error.code, error.message
    rows = (
        answer if isinstance(answer, list) else [row for table in getattr(answer, "tables", ()) for row in table.rows]
    )
    rows = rows or list(getattr(answer, "rows", ()))
    for row in rows:
        if not getattr(row, "is_ok", True):
            return 0, row.error.code, row.error.message
    raise AssertionError(f"nothing was refused: {answer}")


def _pattern(refusal: ServiceRefusal, values: Mapping[str, object]) -> str:
    parts = re.split(r"\{(\w+)\}", refusal.words)
    texts = [re.escape(part) for part in parts[::2]]
    given = [re.escape(str(values[name])) if name in values else ".+" for name in parts[1::2]]
    return "".join(text + value for text, value in zip(texts, [*given, ""], strict=True))


@pytest.mark.parametrize("name", CASES)
def test_each_refusal_has_its_code_and_its_words(local: LocalTablestore, name: str) -> None:
    refusal = REFUSALS[name]
    for case in CASES[name]:
        with _stage(local, case) as stage:
            stage.driver.create_with_stream()
            status, code, text = _refusal(case.act, stage)
            for table in stage.driver.tables():
                stage.driver.call("DeleteTable", table_name=table)

        assert (status or refusal.http_status, code) == (refusal.http_status, refusal.code), text
        assert re.fullmatch(_pattern(refusal, case.values), text, re.DOTALL), text


def test_every_refusal_is_provoked_by_a_test() -> None:
    named = {name: where.partition("::") for name, where in ELSEWHERE.items()}

    assert CASES.keys() | ELSEWHERE.keys() == REFUSALS.keys()
    assert not CASES.keys() & ELSEWHERE.keys()
    for name, (file, _, test) in named.items():
        assert test in defined_tests(ROOT / "tests" / "server" / file), name


def test_an_injected_error_has_the_status_of_the_refusals_with_its_code() -> None:
    """Of a lost log, the service says that it is unavailable with a status that it has for nothing else."""
    others = [refusal for name, refusal in REFUSALS.items() if name != "TUNNEL_LOG_LOST"]
    statuses = {refusal.code: refusal.http_status for refusal in others}

    assert {code: DEFAULT_ERRORS[code][0] for code in statuses} == statuses
    assert all(refusal.http_status == statuses[refusal.code] for refusal in others)


def test_no_module_makes_an_error_beside_the_table() -> None:
    """But that which injects the faults of a rule, in whatever words the rule gives."""
    sources = (ROOT / "streamclient" / "server").rglob("*.py")
    makers = {path.name for path in sources if re.search(r"\bServiceError\(\D", path.read_text(encoding="utf-8"))}

    assert makers == {"server_errors.py", "http_service.py"}


def test_the_page_explains_each_source() -> None:
    page = (ROOT / "docs" / "refusals.md").read_text(encoding="utf-8")
    explained = {row[0]: row[-1] for row in table_rows(page, ("From",))}

    assert explained.keys() == {source.value for source in RefusalSource}
    assert {name for name, confirmed in explained.items() if confirmed == "yes"} == {
        source.value for source in RefusalSource if source.is_confirmed
    }
