"""All refusals of the local Tablestore, each with its status, its code, its words, and the source of code and words.

The documentation's page of refusals is made from these constants, and a test provokes each refusal. The server raises a
refusal with the values for its words: ``raise refusals.TABLE_NAME(name=name)``. If the service's words are unknown, the
words are this package's own, in the service's tone. The texts keep the service's spelling, including its mistakes. The
service's list of error codes ends every text with a full stop, but test suites show that some texts have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from streamclient.server.server_errors import RefusalSource, ServiceRefusal

SUITE, SEEN, DOCUMENTED, CODE, OWN = (
    RefusalSource.SUITE,
    RefusalSource.SEEN,
    RefusalSource.DOCUMENTED,
    RefusalSource.CODE,
    RefusalSource.OWN,
)


def _invalid(words: str, source: RefusalSource) -> ServiceRefusal:
    """Return a refusal with 400 ``OTSParameterInvalid``, for a request that can never succeed."""
    return ServiceRefusal(400, "OTSParameterInvalid", words, source)


def _auth(words: str, source: RefusalSource) -> ServiceRefusal:
    """Return a refusal with 403 ``OTSAuthFailed``, for a caller or an origin that is not accepted."""
    return ServiceRefusal(403, "OTSAuthFailed", words, source)


def _key(words: str, source: RefusalSource) -> ServiceRefusal:
    """Return a refusal with 400 ``OTSInvalidPK``, for a key without the columns of the table's schema."""
    return ServiceRefusal(400, "OTSInvalidPK", words, source)


def _missing(words: str, source: RefusalSource) -> ServiceRefusal:
    """Return a refusal with 404 ``OTSObjectNotExist``, for a table, stream or shard that does not exist."""
    return ServiceRefusal(404, "OTSObjectNotExist", words, source)


def _busy(words: str) -> ServiceRefusal:
    """Return a refusal with 503 ``OTSServerBusy``, for a request whose resources are in use at present.

    Clients repeat such a request, because it can succeed later.
    """
    return ServiceRefusal(503, "OTSServerBusy", f"Server is busy: {words}.", CODE)


def _failed(words: str, source: RefusalSource) -> ServiceRefusal:
    """Return a refusal with 500 ``OTSInternalServerError``, for a failure of the server."""
    return ServiceRefusal(500, "OTSInternalServerError", words, source)


def _full(words: str, source: RefusalSource) -> ServiceRefusal:
    """Return a refusal with 403 ``OTSQuotaExhausted``, for a request beyond a limit on the number of objects."""
    return ServiceRefusal(403, "OTSQuotaExhausted", words, source)


# --- HTTP and the envelope -----------------------------------------------------------------------------------------

NOT_HTTP: Final = _invalid("The request is not valid HTTP: {message}.", OWN)
BODY_NOT_HTTP: Final = _invalid("The request's body is not valid HTTP.", OWN)
METHOD: Final = ServiceRefusal(405, "OTSMethodNotAllowed", "Only POST method for requests is supported.", SUITE)
BODY_TOO_LARGE: Final = ServiceRefusal(413, "OTSRequestBodyTooLarge", "The size of POST data is too large.", DOCUMENTED)
BODY_LATE: Final = ServiceRefusal(408, "OTSRequestTimeout", "Request timeout.", DOCUMENTED)
HOST: Final = _auth(
    "The host '{host}' is not one of this server's names. Use an IP address or localhost, or start the server with "
    "--allowed-host {name} (allowed_hosts= in Python).",
    OWN,
)
WEB_PAGE: Final = _auth("Requests from web pages are refused; this one is from '{origin}'.", OWN)
HEADER_TWICE: Final = _invalid("Duplicate header: {name}.", OWN)
HEADER_MISSING: Final = _invalid("Missing header: {name}.", DOCUMENTED)
API_VERSION: Final = _invalid("Unsupported API version: {version}, expected: {expected}.", OWN)
DATE: Final = _invalid("Invalid date format: {date}.", DOCUMENTED)
CLOCK: Final = _auth("Mismatch between system time and x-ots-date: {date}.", DOCUMENTED)
KEY_DAY: Final = _auth("Mismatch between x-ots-date and x-ots-signdate: {date}.", OWN)
REGION: Final = _invalid("Invalid region: {region}.", OWN)
OPERATION: Final = _invalid("Unsupported operation: {operation}.", DOCUMENTED)
DIGEST: Final = _auth("Mismatch between MD5 value of request body and x-ots-contentmd5 in header.", DOCUMENTED)
ACCESS_KEY: Final = _auth("The AccessKeyID does not exist.", DOCUMENTED)
SIGNATURE: Final = _auth("Signature mismatch.", DOCUMENTED)
INSTANCE: Final = _auth("The instance is not found.", DOCUMENTED)
TUNNEL_INSTANCE: Final = ServiceRefusal(403, "OTSPermissionDenied", "Instance not found.", SEEN)
"""The refusal of an unknown instance in requests about tunnels, as the Terraform provider receives it. The service's
text has more words, which are unknown."""
COMPRESSION: Final = _invalid("Unsupported request compress type: {kind}.", OWN)
COMPRESSED_BODY: Final = _invalid("Cannot decompress the request data.", OWN)
COMPRESSED_SIZE: Final = _invalid(
    "The size of the decompressed request data does not match x-ots-request-compress-size.", OWN
)
MESSAGE: Final = _invalid("Cannot deserialize the request data: {error}.", DOCUMENTED)
WORK: Final = _invalid(
    "{step}: that exceeds the work of one request, which is {work}. Use fewer rows, shorter values, fewer filters, or "
    "an expression with fewer repetitions.",
    OWN,
)
SERVER_FAILED: Final = _failed("Internal server error.", DOCUMENTED)
CLOSED: Final = _failed("The server was closed.", OWN)
STORAGE_FAILED: Final = _failed("The storage failed: {error}.", OWN)
STORAGE_FAILED_BEFORE: Final = _failed("The storage failed earlier: {error}; restart the server.", OWN)

# --- names, keys, values -------------------------------------------------------------------------------------------

TABLE_NAME: Final = _invalid("Invalid table name: '{name}'.", SUITE)
COLUMN_NAME: Final = _invalid("Invalid column name: '{name}'.", SUITE)
KEY_COLUMNS: Final = _invalid("The number of primary key columns must be in range: [1, {limit}].", SUITE)
KEY_EMPTY: Final = _invalid("Cell data broken, empty PK.", SUITE)
KEY_COLUMN_TYPE: Final = _invalid("{type} is an invalid type for the primary key.", SUITE)
KEY_COLUMN_TWICE: Final = _invalid("Duplicated primary key name: '{name}'.", DOCUMENTED)
KEY_VALUE_LENGTH: Final = _invalid(
    "The length of primary key column: '{name}' exceeds the MaxLength:{limit} with CurrentLength:{size}.", SUITE
)
KEY_SIZE: Final = _key("Validate PK size fail. Input: {given}, Meta: {expected}.", SUITE)
KEY_NAME: Final = _key("Validate PK name fail. Input: {given}, Meta: {expected}.", SUITE)
KEY_TYPE: Final = _key("Validate PK type fail. Input: {given}, Meta: {expected}.", SUITE)
ATTRIBUTE_IS_KEY: Final = _invalid("Duplicated attribute column name with primary key column: '{name}'.", DOCUMENTED)
ATTRIBUTE_TYPE: Final = _invalid("{type} is an invalid type for the attribute column.", DOCUMENTED)
ATTRIBUTE_LENGTH: Final = _invalid(
    "The length of attribute column: '{name}' exceeds the MaxLength:{limit} with CurrentLength:{size}.", SUITE
)
ATTRIBUTE_COLUMNS: Final = _invalid(
    "The number of attribute columns exceeds the limit, limit count: {limit}, column count: {count}.", SUITE
)
REQUESTED_COLUMNS: Final = _invalid(
    "The number of columns from the request exceeds the limit, limit count: {limit}, column count: {count}.", SUITE
)
NOT_A_NUMBER: Final = _invalid("NaN can't be set to double value.", DOCUMENTED)
INFINITE: Final = _invalid("Infinity can't be set to double value.", DOCUMENTED)
TIMESTAMP: Final = _invalid("Timestamp must be in range [0, INT64_MAX/1000).", SUITE)
CELL_DATA: Final = _invalid("Cell data broken, {error}.", DOCUMENTED)
"""The words before ``{error}`` are the service's. The values of ``error`` are this package's."""

# --- tables --------------------------------------------------------------------------------------------------------

TABLE_MISSING: Final = _missing("Requested table does not exist.", SUITE)
TABLE_EXISTS: Final = ServiceRefusal(409, "OTSObjectAlreadyExist", "Requested table already exists.", SUITE)
TABLES_FULL: Final = _full("Number of tables exceeds the quota:{limit}.", SUITE)
INDEXES: Final = _invalid("The local Tablestore does not support secondary indexes (index_metas in CreateTable).", OWN)
"""The code is ``OTSParameterInvalid``, because no client repeats a request after this code. After an unknown code, some
clients repeat the request for minutes or for ever."""
GENERATED_TWICE: Final = _invalid("AUTO_INCREMENT primary key count must <= 1", SUITE)
GENERATED_FIRST: Final = _invalid("First primary key can't be auto increment, table: {table}.", DOCUMENTED)
GENERATED_TYPE: Final = _invalid("AUTO_INCREMENT primary key must be integer.", DOCUMENTED)
GENERATED_WITH_TRANSACTIONS: Final = _invalid(
    "A table with an AUTO_INCREMENT primary key column can't have local transactions.", CODE
)
KEY_OPTION: Final = _invalid("Invalid option of primary key column: '{name}'.", OWN)
DEFINED_COLUMNS: Final = _invalid("The number of defined columns must be in range: [0, {limit}].", SUITE)
DEFINED_TWICE: Final = _invalid("Duplicated defined column name: '{name}'.", OWN)
DEFINED_TYPE: Final = _invalid("Invalid type of defined column: '{name}'.", OWN)
DEFINED_VALUE: Final = _invalid(
    "Invalid column type for column {name} expect VT_{expected} actual VT_{given}",
    SUITE,
)
TIME_TO_LIVE_MISSING: Final = _invalid("Time-to-live is missing while creating table.", DOCUMENTED)
TIME_TO_LIVE: Final = _invalid("TimeToLive cannot be 0 or less than -1.", DOCUMENTED)
TIME_TO_LIVE_SHORT: Final = _invalid("TimeToLive must be -1 or at least {least} seconds.", CODE)
MAX_VERSIONS_MISSING: Final = _invalid("MaxVersions is missing while creating table.", DOCUMENTED)
MAX_VERSIONS: Final = _invalid("The maximum versions cannot be less than or equal to 0", DOCUMENTED)
DEVIATION: Final = _invalid("The maximum deviation must be in range [0, INT64_MAX/1000000].", DOCUMENTED)
CAPACITY_HALF: Final = _invalid("Both read and write capacity unit are required to create table.", SUITE)
CAPACITY: Final = _invalid("The {name} capacity unit must be in range: [0, {limit}].", CODE)
OPTIONS_EMPTY: Final = _invalid("No parameter is specified in table options.", DOCUMENTED)
UPDATE_EMPTY: Final = _invalid("No parameter is specified in the request of UpdateTable.", CODE)
FULL_ROW_FIXED: Final = _invalid(
    "The table options of UpdateTable cannot contain updateFullRow: it is fixed at creation.", CODE
)
"""An official test suite expects the words ``contain updateFullRow`` in this text."""
PARTITIONS: Final = _invalid("The count of partitions cannot be greater than {limit}", SUITE)
PARTITION_NUMBER: Final = _invalid("The value of partition range can not be INT64_MIN or INT64_MAX.", SUITE)
PARTITION_EMPTY: Final = _invalid("The value of partition range can not be empty {type}.", SUITE)
PARTITION_LENGTH: Final = _invalid(
    "The value of partition range exceeds the MaxLength:{limit} with CurrentLength:{size}.", SUITE
)
PARTITION_TYPE: Final = _invalid("The value type of partition does not match with primary key.", SUITE)
PARTITION_VALUE: Final = _invalid("Invalid partition range: {error}.", OWN)
PARTITION_GAPS: Final = _invalid(
    "Invalid partition range: ranges must ascend, adjoin, and reach from INF_MIN to INF_MAX.", OWN
)
SPLIT_SIZE: Final = _invalid("The split_size should be greater than 0.", SUITE)
SPLIT_UNIT: Final = _invalid("The split_size_unit_in_byte should be greater equal than: {least}", SUITE)
SPLIT_LIMIT: Final = _invalid("The split point limit must be greater than 0.", OWN)

# --- writes --------------------------------------------------------------------------------------------------------

CONDITION_FAILED: Final = ServiceRefusal(403, "OTSConditionCheckFail", "Condition check failed.", SUITE)
EXPECTATION: Final = _invalid("Invalid row-existence expectation: {given}.", DOCUMENTED)
PUT_MARKER: Final = _invalid("Invalid request of put/update row: unexpected RowDeleteMarker in request.", DOCUMENTED)
PUT_OPERATION: Final = _invalid("OpType cannot be given for column name: {name} in PutRow.", DOCUMENTED)
UPDATE_EMPTY_ROW: Final = _invalid("Attribute column is missing.", SUITE)
UPDATE_EMPTY_BATCH_ROW: Final = _invalid("Invalid update row request: missing cells in request.", SUITE)
UPDATE_NOT_ALLOWED: Final = _invalid("Update operation is not allowed in this table", SUITE)
DELETE_MARKER: Final = _invalid("Invalid request of delete row: missing RowDeleteMarker in request", DOCUMENTED)
DELETE_CELLS: Final = _invalid("Invalid delete row request: unexpected cells in request", DOCUMENTED)
INCREMENT_VALUE: Final = _invalid("Column value must be an INTEGER when type is INCREMENT, column name: {name}.", OWN)
INCREMENT_TIMESTAMP: Final = _invalid("Timestamp cannot be given when type is INCREMENT.", OWN)
INCREMENT_COLUMN: Final = _invalid("Increment needs an INTEGER column, but column '{name}' holds another type.", OWN)
INCREMENT_OVERFLOW: Final = _invalid("Increment of column '{name}' overflows a 64-bit integer.", OWN)
DELETION_VALUE: Final = _invalid(
    "Column value cannot be given when type is DELETE_ONE_VERSION, DELETE_ALL_VERSION.", DOCUMENTED
)
DELETION_UNDATED: Final = _invalid("Timestamp must be given when type is DELETE_ONE_VERSION.", DOCUMENTED)
DELETION_DATED: Final = _invalid("Timestamp cannot be given when type is DELETE_ALL_VERSION.", DOCUMENTED)
CELL_DEVIATION: Final = _invalid("Invalid timestamp. Cell:{name}.", DOCUMENTED)
GENERATED_DELETE: Final = _invalid("Invalid row to delete which with pk auto increment.", DOCUMENTED)
GENERATED_EXPECTATION: Final = _invalid("Invalid expect:{given} when modify row with pk auto increment.", SEEN)
GENERATED_CONDITION: Final = _invalid("Can't set condition when modify row with pk auto increment.", DOCUMENTED)
GENERATED_ROW: Final = _invalid(
    "Invalid expect: {given} when modify a specific row for table with pk auto increment.", DOCUMENTED
)
RETURN_TYPE: Final = _invalid("Invalid return type: {given}.", DOCUMENTED)
RETURN_NAMES: Final = _invalid("Return column names cannot be given when return type is {type}.", CODE)
RETURN_COLUMN: Final = _invalid("Return column '{name}' must be an increment column of the request.", CODE)
REQUEST_SIZE: Final = _invalid(
    "The total data size of {operation} request exceeds the limit, limit size: {limit}, data size: {size}.", SUITE
)
ROW_SIZE: Final = _invalid(
    "The total data size of the row exceeds the limit, limit size: {limit}, data size: {size}. Delete columns or "
    "versions of it first.",
    OWN,
)

# --- batches -------------------------------------------------------------------------------------------------------

BATCH_WRITE_EMPTY: Final = _invalid("No row is specified in BatchWriteRow.", DOCUMENTED)
BATCH_TABLE_EMPTY: Final = _invalid("No operation is specified for table: '{name}'.", SUITE)
BATCH_TABLE_TWICE: Final = _invalid("Duplicated table name: '{name}'.", DOCUMENTED)
BATCH_ROWS: Final = _invalid("Rows count exceeds the upper limit: {limit}.", SUITE)
BATCH_MODIFY_TYPE: Final = _invalid("The modify type is invalid.", DOCUMENTED)
REPEATED_EXPECTATION: Final = _invalid(
    "Repeated rows do not support row exist expectation check in BatchModify.", DOCUMENTED
)
REPEATED_CONDITION: Final = _invalid("Repeated rows do not support row condition check in BatchModify.", DOCUMENTED)
ATOMIC_TABLES: Final = _invalid("An atomic BatchWriteRow can only write to one table.", OWN)
ATOMIC_SCOPE: Final = ServiceRefusal(
    400, "OTSDataOutOfRange", "Data out of scope of atomic. Atomic PartKey:{own}. Data PartKey:{given}", SUITE
)
BATCH_GET_EMPTY: Final = _invalid("No row specified in the request of BatchGetRow.", DOCUMENTED)
BATCH_GET_SIZE: Final = _invalid(
    "The total data size of the rows of BatchGetRow exceeds the limit, limit size: {limit}, data size: {size}. Ask for "
    "fewer rows in one request.",
    OWN,
)

# --- reads ---------------------------------------------------------------------------------------------------------

READ_CELLS: Final = _invalid("Attribute column cannot be given while reading data.", DOCUMENTED)
READ_MARKER: Final = _invalid("Delete marker cannot be given.", DOCUMENTED)
READ_GENERATED: Final = _invalid("PKAutoIncr can't be used for read operations.", DOCUMENTED)
VERSIONS_MISSING: Final = _invalid("No version condition is specified.", SUITE)
VERSIONS_MISSING_IN_BATCH: Final = _invalid("No version condition is specified while querying row.", SUITE)
READ_VERSIONS: Final = _invalid("Invalid max versions: {given}. Reason: Max versions must be positive.", DOCUMENTED)
TIME_RANGE_HALF: Final = _invalid("Start and end time must be given at the same time.", DOCUMENTED)
TIME_RANGE: Final = _invalid("The start time must be less than the end time.", OWN)
TIME_AND_ALL: Final = _invalid(
    "Specific timestamp, time range and max versions cannot be given at the same time.", DOCUMENTED
)
TIME_AND_RANGE: Final = _invalid("Specific tiemstamp and time range cannot be given at the same time.", DOCUMENTED)
TIME_AND_VERSIONS: Final = _invalid("Specific tiemstamp and max versions cannot be given at the same time.", DOCUMENTED)
DIRECTION: Final = _invalid("Invalid direction: {given}.", OWN)
LIMIT: Final = _invalid("The limit must be greater than 0.", DOCUMENTED)
RANGE_FORWARD: Final = _invalid("Begin key must less than end key in FORWARD", SUITE)
RANGE_BACKWARD: Final = _invalid("Begin key must more than end key in BACKWARD", DOCUMENTED)
BLOCK_TYPE: Final = _invalid("Invalid data block type: {given}.", OWN)
MATRIX_COLUMNS: Final = _invalid("DBT_SIMPLE_ROW_MATRIX need at least one column to get.", SUITE)

# --- filters -------------------------------------------------------------------------------------------------------

FILTER_NODES: Final = _invalid("The count of filter exceeds the max: {limit}.", SUITE)
FILTER_TYPE: Final = _invalid("Invalid type of {role}: {given}.", DOCUMENTED)
FILTER_BROKEN: Final = _invalid("Deserialize {kind} failed.", DOCUMENTED)
FILTER_COMPARATOR: Final = _invalid("Invalid relation operator: {given}.", DOCUMENTED)
FILTER_NOT: Final = _invalid("Invalid NOT operator: the number of sub-filters must be 1.", SUITE)
FILTER_AND_OR: Final = _invalid("Invalid AND/OR operator: the number of sub-filters must be more than 1.", SUITE)
PAGINATION_OFFSET: Final = _invalid("Offset in ColumnPaginationFilter must be greater than or equal to 0.", DOCUMENTED)
PAGINATION_LIMIT: Final = _invalid("Limit in ColumnPaginationFilter must be greater than 0.", DOCUMENTED)
PAGINATION_CONDITION: Final = _invalid("ColumnPaginationFilter can't be used as the condition of a write.", OWN)
REGEX_LENGTH: Final = _invalid(
    "The length of regex in value transfer rule must be from 1 to {limit}, but it is {size}.", OWN
)
REGEX: Final = _invalid("Invalid regex in value transfer rule: {reason}.", OWN)
REGEX_GROUPS: Final = _invalid("Invalid regex in value transfer rule: {count} groups exceed the max: {limit}.", OWN)

# --- local transactions --------------------------------------------------------------------------------------------

TRANSACTION_KEY: Final = _invalid("StartLocalTransaction support only one primary key.", SUITE)
TRANSACTIONS_OFF: Final = _invalid(
    "Try to call method using explicit transaction on explicit-transaction-disabled table.", SUITE
)
TRANSACTION_ID: Final = _invalid("TransactionID is invalid.", SUITE)
TRANSACTION_OVER: Final = ServiceRefusal(404, "OTSSessionNotExist", "Session not exist or may be timeout.", SUITE)
"""An official test suite expects this code and these words. The HTTP status is this package's choice."""
TRANSACTION_SCOPE: Final = ServiceRefusal(
    400,
    "OTSDataOutOfRange",
    "Data out of scope of transaction. Transaction {what}:{own}. Data {what}:{given}",
    SEEN,
)
TRANSACTION_ROW: Final = ServiceRefusal(
    400,
    "OTSDataOutOfRange",
    "Data out of scope of transaction. Data PrimaryKey:{given} is not among the row keys of the transaction.",
    CODE,
)
TRANSACTION_RANGE: Final = ServiceRefusal(
    400,
    "OTSDataOutOfRange",
    "Data out of scope of transaction. A transaction with row keys can't read a range. Read its rows with GetRow, or "
    "start the transaction without row keys.",
    CODE,
)
TRANSACTION_ROWS: Final = _invalid(
    "The number of row keys in StartLocalTransaction exceeds the limit, limit count: {limit}, row count: {count}.", OWN
)
TRANSACTION_SIZE: Final = ServiceRefusal(
    400, "OTSOutOfTransactionDataSizeLimit", "The data size of the transaction exceeds the limit: {limit}.", CODE
)
ROW_CONFLICT: Final = ServiceRefusal(
    409, "OTSRowOperationConflict", "Data is being modified by the other request.", SUITE
)
TRANSACTIONS_FULL: Final = _busy("{limit} local transactions are open; abandoned ones end when their time is over")
TRANSACTIONS_LARGE: Final = _busy("the open local transactions hold {size} bytes; they end by commit, abort or time")

# --- streams -------------------------------------------------------------------------------------------------------

RETENTION: Final = _invalid("The expiration time of stream must be in range: [1, {limit}] hours.", CODE)
RETENTION_FIXED: Final = _invalid(
    "The expiration time of an enabled stream can't be changed, current: {present}, input: {given}. Disable the stream "
    "first.",
    OWN,
)
ORIGIN_TWICE: Final = _invalid("Duplicated column name in columns_to_get of stream specification.", OWN)
ORIGIN_FIXED: Final = _invalid(
    "The columns_to_get of an enabled stream can't be changed. Disable the stream first.", OWN
)
STREAM_MISSING: Final = _missing("Requested stream does not exist.", OWN)
SHARD_MISSING: Final = _missing("Requested shard does not exist.", OWN)
STREAM_ID: Final = _invalid("Invalid stream id: it is empty.", OWN)
STREAM_ID_LENGTH: Final = _invalid("Invalid stream id: it is too long or its length is wrong.", OWN)
"""The refusal of an iterator that is cut off, or that belongs to a stream with a very long name."""
SHARD_ID: Final = _invalid("Invalid shard id: it is empty.", OWN)
SHARD_LIMIT: Final = _invalid("The shard limit must be greater than 0.", OWN)
SHARD_TOKEN: Final = _invalid("Invalid token: it was not issued by this server.", OWN)
ITERATOR_TIMESTAMP: Final = _invalid("The timestamp must be greater than or equal to 0.", OWN)
ITERATOR: Final = _invalid("Invalid shard iterator: {reason}.", OWN)
TRIMMED: Final = ServiceRefusal(
    404, "OTSTrimmedDataAccess", "Requested stream data is already trimmed or does not exist.", DOCUMENTED
)
"""The refusal of an iterator whose position is trimmed. The client can go on with a new iterator at the oldest retained
record."""

# --- tunnels -------------------------------------------------------------------------------------------------------

TUNNEL_NAME: Final = _invalid("Invalid tunnel name: '{name}'.", CODE)
TUNNEL_TYPE: Final = _invalid("Invalid tunnel type: {given}.", CODE)
TUNNELS_FULL: Final = _full("Number of tunnels exceeds the max: {limit}.", OWN)
TUNNEL_EXISTS: Final = ServiceRefusal(409, "OTSTunnelExist", "The tunnel '{name}' already exists.", CODE)
TUNNEL_MISSING: Final = _invalid("tunnel not exist: '{name}'.", SEEN)
"""The Terraform provider looks for the words ``tunnel not exist``. All other words are this package's."""
TUNNEL_TABLE_MISSING: Final = _invalid("The table '{name}' does not exist.", CODE)
TUNNEL_EXPIRED: Final = ServiceRefusal(
    400, "OTSTunnelExpired", "The incremental log of tunnel '{tunnel}' is expired.", CODE
)
TUNNEL_LOG_LOST: Final = ServiceRefusal(
    400,
    "OTSTunnelServerUnavailable",
    "OTSTrimmedDataAccess Requested stream data is already trimmed or does not exist. {request}",
    SEEN,
)
"""The Tunnel Service puts the error of the table service, as text, into its own error."""
START_FLAG: Final = _invalid("Invalid start offset flag: {given}.", CODE)
START_OFFSET: Final = _invalid(
    "The start offset {given} is outside of the log: [{oldest}, {newest}] microseconds.", CODE
)
END_OFFSET: Final = _invalid("The end offset {end} must be after the start offset {start}.", CODE)
SESSION_TIMEOUT: Final = _invalid("Invalid timeout: {given}, expected 1 to {limit} seconds.", CODE)
SESSION_TAG: Final = _invalid("Invalid client tag: it is longer than {limit} bytes.", CODE)
SESSIONS_FULL: Final = _full("Number of sessions of the tunnel exceeds the max: {limit}.", OWN)
SESSION_GONE: Final = ServiceRefusal(410, "OTSResourceGone", "The client '{client}' has no session.", CODE)
CHANNEL_MISSING: Final = _invalid("The channel '{channel}' does not exist.", CODE)
CHANNEL_OVER: Final = _invalid("The channel {channel} is terminated.", OWN)
CHANNEL_STATUS: Final = _invalid("Invalid channel status: {given}.", CODE)
COUNT: Final = _invalid("Invalid {name}: {given}, expected a number from 0 to {limit}.", CODE)
SEQUENCE_NUMBER: Final = ServiceRefusal(
    400, "OTSSequenceNumberNotMatch", "The sequence number {given} does not match {expected}.", CODE
)
TOKEN: Final = _invalid("Invalid token: {error}.", CODE)
TOKEN_CHANNEL: Final = _invalid("Invalid token: it has no position in channel {channel}.", CODE)
TOKEN_TIME: Final = _invalid("Invalid token: its time {given} is not from 0 to {latest} microseconds.", CODE)
TOKEN_COUNT: Final = _invalid("Invalid token: {given} records do not lie before position {position}.", CODE)
TOKEN_TRIMMED: Final = _invalid("Invalid token: the next records of channel {channel} are past retention.", CODE)
TOKEN_OF_STREAM: Final = _invalid("Invalid token: it is for a stream channel, but {channel} holds full data.", CODE)
TOKEN_NUMBERS: Final = _invalid("Invalid token: a token of full data cannot have time {time} and {count} rows.", CODE)
TOKEN_KEY: Final = _invalid("Invalid token: it holds no key of table '{table}': {error}.", CODE)
TOKEN_RANGE: Final = _invalid("Invalid token: its key is not in the range of channel {channel}.", CODE)

# --- control, which the service does not have ----------------------------------------------------------------------

CONTROL_NO_STREAM: Final = _invalid("The table '{table}' has no stream: enable it first.", OWN)
CONTROL_CLOSED: Final = _invalid("The shard '{shard}' is closed; only open shards can be split or merged.", OWN)
CONTROL_SPLIT_KEY: Final = _invalid("The key {key} does not split {range}: it must be strictly inside.", OWN)
CONTROL_SPLIT_COLUMNS: Final = _invalid(
    "A place to split is a key or its leading columns: got {given} of {expected} columns.", OWN
)
CONTROL_SPLIT_TYPE: Final = _invalid("The key column '{name}' is {type}: got {given}.", OWN)
CONTROL_SPLIT_VALUE: Final = _invalid("The key column '{name}' takes only {expected}: got {given}.", OWN)
CONTROL_SPLIT_ROWS: Final = _invalid(
    "The shard '{shard}' holds {count} rows, which have no median: give the key to split at.", OWN
)
CONTROL_MERGE: Final = _invalid("The shards '{first}' and '{second}' do not adjoin: {ranges}.", OWN)
CONTROL_KEEP: Final = _invalid("The number of records to keep must be 0 or more: got {given}.", OWN)

REFUSALS: Final[Mapping[str, ServiceRefusal]] = MappingProxyType(
    {name: value for name, value in list(globals().items()) if isinstance(value, ServiceRefusal)}
)
"""All refusals by name, in the order of this module."""
