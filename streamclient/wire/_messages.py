"""The protobuf messages of the table, row and stream operations, as text.

The messages here have the fields of three SDKs, whose schemas have different ages: Java 5.17, Go 4.0 and Python 6.4.
Each line is one message: ``Name: field=number type, ...``. A ``!`` after a number makes the field required, and a ``*``
makes the field repeated. Names of messages and packages never appear on the wire.

Fields with enumerations are declared ``int32``, which has the same encoding. In a proto2 enumeration, protobuf would
drop an unknown value, and the field would read as the *first* value. So an unknown action of a record would become
PUT_ROW.
"""

MESSAGES = """
Error: code=1! string, message=2 string, access_denied_detail=3 AccessDeniedDetail
AccessDeniedDetail: auth_action=1 string, auth_principal_type=2 string, auth_principal_owner_id=3 string, \
auth_principal_display_name=4 string, policy_type=5 string, no_permission_type=6 string, \
encoded_diagnostic_message=7 string
PrimaryKeySchema: name=1! string, type=2! int32, option=3 int32
DefinedColumnSchema: name=1! string, type=2! int32
TableOptions: time_to_live=1 int32, max_versions=2 int32, bloom_filter_type=3 int32, block_size=4 int32, \
deviation_cell_version_in_sec=5 int64, allow_update=6 bool, update_full_row=7 bool
TableMeta: table_name=1! string, primary_key=2* PrimaryKeySchema, defined_column=3* DefinedColumnSchema, \
index_meta=4* bytes, table_id=5 string, global_table_id=6 string
CapacityUnit: read=1 int32, write=2 int32
CapacityDataSize: read_size=1 int64, write_size=2 int64
ReservedThroughput: capacity_unit=1! CapacityUnit
ReservedThroughputDetails: capacity_unit=1! CapacityUnit, last_increase_time=2! int64, last_decrease_time=3 int64
ConsumedCapacity: capacity_unit=1! CapacityUnit, capacity_data_size=2 CapacityDataSize
StreamSpecification: enable_stream=1! bool, expiration_time=2 int32, columns_to_get=3* string
StreamDetails: enable_stream=1! bool, stream_id=2 string, expiration_time=3 int32, last_enable_time=4 int64, \
columns_to_get=5* string
SSESpecification: enable=1! bool, key_type=2 int32, key_id=3 bytes, role_arn=4 bytes
SSEDetails: enable=1! bool, key_type=2 int32, key_id=3 bytes, role_arn=4 bytes
PartitionRange: begin=1! bytes, end=2! bytes
IndexMeta: name=1! string, primary_key=2* string, defined_column=3* string, index_update_mode=4! int32, \
index_type=5! int32, index_sync_phase=6 int32
TimeRange: start_time=1 int64, end_time=2 int64, specific_time=3 int64
Condition: row_existence=1! int32, column_condition=2 bytes
ReturnContent: return_type=1 int32, return_column_names=2* string

CreateTableRequest: table_meta=1! TableMeta, reserved_throughput=2! ReservedThroughput, table_options=3 TableOptions, \
partitions=4* PartitionRange, stream_spec=5 StreamSpecification, sse_spec=6 SSESpecification, \
index_metas=7* IndexMeta, enable_local_txn=8 bool
CreateTableResponse:
UpdateTableRequest: table_name=1! string, reserved_throughput=2 ReservedThroughput, table_options=3 TableOptions, \
stream_spec=4 StreamSpecification
UpdateTableResponse: reserved_throughput_details=1! ReservedThroughputDetails, table_options=2! TableOptions, \
stream_details=3 StreamDetails
DescribeTableRequest: table_name=1! string
DescribeTableResponse: table_meta=1! TableMeta, reserved_throughput_details=2! ReservedThroughputDetails, \
table_options=3! TableOptions, table_status=4 int32, stream_details=5 StreamDetails, shard_splits=6* bytes, \
sse_details=7 SSEDetails, index_metas=8* IndexMeta, creation_time=9 int64
ListTableRequest:
ListTableResponse: table_names=1* string
DeleteTableRequest: table_name=1! string
DeleteTableResponse:

GetRowRequest: table_name=1! string, primary_key=2! bytes, columns_to_get=3* string, time_range=4 TimeRange, \
max_versions=5 int32, cache_blocks=6 bool, filter=7 bytes, start_column=8 string, end_column=9 string, token=10 bytes, \
transaction_id=11 string
GetRowResponse: consumed=1! ConsumedCapacity, row=2! bytes, next_token=3 bytes
PutRowRequest: table_name=1! string, row=2! bytes, condition=3! Condition, return_content=4 ReturnContent, \
transaction_id=5 string
PutRowResponse: consumed=1! ConsumedCapacity, row=2 bytes
UpdateRowRequest: table_name=1! string, row_change=2! bytes, condition=3! Condition, return_content=4 ReturnContent, \
transaction_id=5 string
UpdateRowResponse: consumed=1! ConsumedCapacity, row=2 bytes
DeleteRowRequest: table_name=1! string, primary_key=2! bytes, condition=3! Condition, return_content=4 ReturnContent, \
transaction_id=5 string
DeleteRowResponse: consumed=1! ConsumedCapacity, row=2 bytes
TableInBatchGetRowRequest: table_name=1! string, primary_key=2* bytes, token=3* bytes, columns_to_get=4* string, \
time_range=5 TimeRange, max_versions=6 int32, cache_blocks=7 bool, filter=8 bytes, start_column=9 string, \
end_column=10 string
BatchGetRowRequest: tables=1* TableInBatchGetRowRequest
RowInBatchGetRowResponse: is_ok=1! bool, error=2 Error, consumed=3 ConsumedCapacity, row=4 bytes, next_token=5 bytes
TableInBatchGetRowResponse: table_name=1! string, rows=2* RowInBatchGetRowResponse
BatchGetRowResponse: tables=1* TableInBatchGetRowResponse
RowInBatchWriteRowRequest: type=1! int32, row_change=2! bytes, condition=3! Condition, return_content=4 ReturnContent
TableInBatchWriteRowRequest: table_name=1! string, rows=2* RowInBatchWriteRowRequest
BatchWriteRowRequest: tables=1* TableInBatchWriteRowRequest, transaction_id=2 string, is_atomic=3 bool
RowInBatchWriteRowResponse: is_ok=1! bool, error=2 Error, consumed=3 ConsumedCapacity, row=4 bytes
TableInBatchWriteRowResponse: table_name=1! string, rows=2* RowInBatchWriteRowResponse
BatchWriteRowResponse: tables=1* TableInBatchWriteRowResponse
GetRangeRequest: table_name=1! string, direction=2! int32, columns_to_get=3* string, time_range=4 TimeRange, \
max_versions=5 int32, limit=6 int32, inclusive_start_primary_key=7! bytes, exclusive_end_primary_key=8! bytes, \
cache_blocks=9 bool, filter=10 bytes, start_column=11 string, end_column=12 string, token=13 bytes, \
transaction_id=14 string, data_block_type_hint=15 int32, return_entire_primary_keys=16 bool, compress_type_hint=17 int32
GetRangeResponse: consumed=1! ConsumedCapacity, rows=2! bytes, next_start_primary_key=3 bytes, next_token=4 bytes, \
data_block_type=5 int32, compress_type=6 int32

Filter: type=1! int32, filter=2! bytes
ValueTransferRule: regex=1! string, cast_type=2 int32
SingleColumnValueFilter: comparator=1! int32, column_name=2! string, column_value=3! bytes, filter_if_missing=4! bool, \
latest_version_only=5! bool, value_trans_rule=6 ValueTransferRule
CompositeColumnValueFilter: combinator=1! int32, sub_filters=2* Filter
ColumnPaginationFilter: offset=1! int32, limit=2! int32

ListStreamRequest: table_name=1 string
Stream: stream_id=1! string, table_name=2! string, creation_time=3! int64
ListStreamResponse: streams=1* Stream
DescribeStreamRequest: stream_id=1! string, inclusive_start_shard_id=2 string, shard_limit=3 int32, \
support_timeseries_data_table=4 bool
StreamShard: shard_id=1! string, parent_id=2 string, parent_sibling_id=3 string
DescribeStreamResponse: stream_id=1! string, expiration_time=2! int32, table_name=3! string, creation_time=4! int64, \
stream_status=5! int32, shards=6* StreamShard, next_shard_id=7 string, is_timeseries_data_table=8 bool
GetShardIteratorRequest: stream_id=1! string, shard_id=2! string, timestamp=3 int64, token=4 string
GetShardIteratorResponse: shard_iterator=1! string, next_token=2 string
GetStreamRecordRequest: shard_iterator=1! string, limit=2 int32, table_name=3 string
StreamRecord: action_type=1! int32, record=2! bytes, origin_record=3 bytes
GetStreamRecordResponse: stream_records=1* StreamRecord, next_shard_iterator=2 string, consumed=3 ConsumedCapacity, \
may_more_record=4 bool

ComputeSplitPointsBySizeRequest: table_name=1! string, split_size=2! int64, split_size_unit_in_byte=3 int64, \
split_point_limit=4 int32
SplitLocation: location=1! string, repeat=2! sint64
ComputeSplitPointsBySizeResponse: consumed=1! ConsumedCapacity, schema=2* PrimaryKeySchema, split_points=3* bytes, \
locations=4* SplitLocation
StartLocalTransactionRequest: table_name=1! string, key=2! bytes, row_keys=3* bytes
StartLocalTransactionResponse: transaction_id=1! string
CommitTransactionRequest: transaction_id=1! string
CommitTransactionResponse:
AbortTransactionRequest: transaction_id=1! string
AbortTransactionResponse:

RowInBulkImportRequest: type=1! int32, row_change=2! bytes
BulkImportRequest: table_name=1! string, rows=2* RowInBulkImportRequest
RowInBulkImportResponse: is_ok=1! bool, error=2 Error, consumed=3 ConsumedCapacity
BulkImportResponse: table_name=1! string, rows=2* RowInBulkImportResponse
BulkExportRequest: table_name=1! string, columns_to_get=2* string, inclusive_start_primary_key=3! bytes, \
exclusive_end_primary_key=4! bytes, filter=5 bytes, data_block_type_hint=6 int32
BulkExportResponse: consumed=1! ConsumedCapacity, rows=2! bytes, next_start_primary_key=3 bytes, data_block_type=4 int32

ListSearchIndexRequest: table_name=1 string
IndexInfo: table_name=1 string, index_name=2 string
ListSearchIndexResponse: indices=1* IndexInfo
ListTimeseriesTableRequest:
ListTimeseriesTableResponse: table_metas=1* bytes
"""
