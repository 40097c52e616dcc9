"""The tags, types and lengths of the PlainBuffer format (``PlainBufferConsts`` in the Tablestore Java SDK)."""

HEADER = b"\x75\x00\x00\x00"

TAG_ROW_KEY = 0x01
TAG_ROW_DATA = 0x02
TAG_CELL = 0x03
TAG_CELL_NAME = 0x04
TAG_CELL_VALUE = 0x05
TAG_CELL_OPERATION = 0x06
TAG_CELL_TIMESTAMP = 0x07
TAG_DELETE_MARKER = 0x08
TAG_ROW_CHECKSUM = 0x09
TAG_CELL_CHECKSUM = 0x0A
TAG_EXTENSION = 0x0B
TAG_SEQUENCE = 0x0C
TAG_SEQUENCE_EPOCH = 0x0D
TAG_SEQUENCE_TIMESTAMP = 0x0E
TAG_SEQUENCE_ROW_INDEX = 0x0F

TYPE_INTEGER = 0x00
TYPE_DOUBLE = 0x01
TYPE_BOOLEAN = 0x02
TYPE_STRING = 0x03
TYPE_BLOB = 0x07

SEQUENCE_BYTES = 19
"""The length, in bytes, of sequence information: three tags, u32 epoch, i64 timestamp, u32 row index."""
EXTENSION_BYTES = 24
"""The length, in bytes, of the usual content of a row's extension: sequence information with its tag and its length."""

CACHED_NAME_BYTES = 255
"""The length, in bytes, of the longest column name that the service accepts. The codec does not cache longer names, so
that its caches stay small."""
CACHED_NAMES = 4096
"""The largest number of column names that the codec caches. It is enough for several wide tables, and takes at most a
few megabytes."""
CACHED_STAMPS = 1024
"""The largest number of timestamps that the codec caches. All cells of one write usually have the same timestamp."""
