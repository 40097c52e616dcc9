"""Numbers of the PlainBuffer format (Tablestore Java SDK: ``PlainBufferConsts``)."""

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
"""The length of the sequence: three tags, u32 epoch, i64 timestamp, u32 row index."""
EXTENSION_BYTES = 24
"""The length of the sequence with its own tag and length. No other content was ever seen in an extension."""

CACHED_NAME_BYTES = 255
"""The length of the longest column name that the service accepts. Longer names are not cached, so the caches stay
small."""
CACHED_NAMES = 4096
"""The largest number of cached names. It suffices for the columns of several wide tables, and takes at most a few
MB."""
CACHED_STAMPS = 1024
"""The largest number of cached versions. Each write has one version, so repeated versions are usually in the same
page."""
