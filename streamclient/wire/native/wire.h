/* Pages of stream records, from bytes to an index of their cells. This code does not use Python and needs no GIL.

   The code checks a page once: the outer message, the form of each row, the checksums of cells and rows, the text, and
   the cells that a record may have. Later readers of the index may trust each offset in it. If the code does not accept
   a page, the decoder in Python names the fault. The decoder in Python also reads valid pages that are too unusual here
   (groups in the outer message, fields with a wrong type, more than 65,535 different column names). */
#ifndef STREAMCLIENT_WIRE_H
#define STREAMCLIENT_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The tags of the parts of a row. */
enum tag {
    TAG_ROW_KEY = 0x01,
    TAG_ROW_DATA = 0x02,
    TAG_CELL = 0x03,
    TAG_CELL_NAME = 0x04,
    TAG_CELL_VALUE = 0x05,
    TAG_CELL_OPERATION = 0x06,
    TAG_CELL_TIMESTAMP = 0x07,
    TAG_DELETE_MARKER = 0x08,
    TAG_ROW_CHECKSUM = 0x09,
    TAG_CELL_CHECKSUM = 0x0a,
    TAG_EXTENSION = 0x0b,
    TAG_SEQUENCE = 0x0c,
    TAG_SEQUENCE_EPOCH = 0x0d,
    TAG_SEQUENCE_TIMESTAMP = 0x0e,
    TAG_SEQUENCE_ROW_INDEX = 0x0f,
};

enum value_type {
    TYPE_INTEGER = 0x00,
    TYPE_DOUBLE = 0x01,
    TYPE_BOOLEAN = 0x02,
    TYPE_STRING = 0x03,
    TYPE_BINARY = 0x07,
    TYPE_NONE = 0xff, /* the cell carries no value */
};

enum operation { PUT_CELL = 0, DELETE_ALL_VERSIONS = 1, DELETE_ONE_VERSION = 3, INCREMENT = 4 };

enum action { PUT_ROW = 1, UPDATE_ROW = 2, DELETE_ROW = 3 };

/* The head of a usual cell: its tag, the tag and length of its name, the name, and the tag of its value. A reader that
   expects a name compares all of these in one step. */
#define HEAD_WORDS 4
#define LONGEST_HEAD_NAME (HEAD_WORDS * 8 - 7)

/* A column name that occurred in a page. `object` is its Python text, which the layer above sets and releases. */
struct name {
    uint64_t head[HEAD_WORDS], mask[HEAD_WORDS]; /* the head of a cell with this name; the mask is 0 for a long name */
    uint16_t follower; /* the name that last came after this name: a guess for the next cell */
    uint8_t crc;
    uint32_t size;
    uint8_t *bytes;
    void *object;
    uint64_t hash;
};

#define NAMES_PER_CHUNK 256
#define MOST_CHUNKS 256
#define MOST_NAMES (NAMES_PER_CHUNK * MOST_CHUNKS - 1)

/* Column names by number. Chunks never move, so names may be read while one owner adds others. */
struct names {
    struct name *chunks[MOST_CHUNKS];
    uint32_t count;
    uint32_t *slots; /* hash table of numbers + 1, twice as large as needed */
    uint32_t slot_count;
    uint16_t first; /* the name that began the last row */
};

static inline struct name *name_at(const struct names *names, uint32_t number)
{
    return &names->chunks[number / NAMES_PER_CHUNK][number % NAMES_PER_CHUNK];
}

enum verdict { ACCEPTED, NOT_ACCEPTED, OUT_OF_MEMORY };

/* Find the number of a name; add the name if it is new. Invalid UTF-8 and too many names are not accepted. */
enum verdict names_find(struct names *names, const uint8_t *bytes, uint32_t size, uint32_t *number);
void names_clear(struct names *names);

struct cell {
    int64_t stamp;   /* version in milliseconds, if has_stamp */
    uint32_t offset; /* the offset of the value in the body, after its type and length */
    uint32_t size;   /* the number of bytes of a text or of bytes */
    uint16_t name;
    uint8_t type;
    uint8_t operation;
    bool has_stamp;
};

struct row {
    int64_t timestamp_micros;
    size_t first_cell; /* key cells, then attribute cells, then those of the origin row */
    uint32_t key_count;
    uint32_t cell_count;
    uint32_t origin_count;
    uint32_t epoch;
    uint32_t row_index;
    uint32_t size; /* the number of bytes of the row and of the row with its previous cells */
    uint32_t frame_offset, frame_size; /* where the row with its header is in the body */
    uint8_t action;
    bool has_origin;
};

enum page_kind { STREAM_PAGE = 0, TUNNEL_PAGE = 1 };

struct page {
    const uint8_t *body;
    size_t size;
    enum page_kind kind;
    struct row *rows;
    size_t row_count, row_room;
    struct cell *cells;
    size_t cell_count, cell_room;
    struct {
        size_t offset, size;
    } next; /* the text of the next iterator or token; the size is 0 if the text is absent or empty */
    int may_more; /* the service's hint whether more records wait; -1 if absent */
    uint32_t read_units; /* the capacity units that the read has cost; 0 if absent */
};

/* Index a page whose body, size and kind are set. The caller clears the page afterwards, whatever the verdict is. */
enum verdict page_read(struct page *page, struct names *names);
/* Index only the last record of a page, and count all records. */
enum verdict page_summarize(struct page *page, struct names *names, size_t *record_count);
void page_clear(struct page *page);

/* Exchange the memory of two pages' indexes. */
void page_swap_memory(struct page *page, struct page *other);

/* Compute the tables of the checksum and of the UTF-8 check. Call this first; repeated calls do no harm. */
void checks_prepare(void);
extern uint8_t crc8_after[16][256]; /* [k][b]: the checksum of byte b with k zero bytes after it */
bool is_utf8(const uint8_t *bytes, size_t size);
uint8_t crc8(uint8_t state, const uint8_t *bytes, size_t size);

/* The same two checks, if the sixteen bytes before `bytes` can be read, too. The checksum needs at least one byte. */
bool is_utf8_inside(const uint8_t *bytes, size_t size);
uint8_t crc8_inside(uint8_t state, const uint8_t *bytes, size_t size);

static inline uint32_t read_u32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static inline uint64_t read_u64(const uint8_t *bytes)
{
    return (uint64_t)read_u32(bytes) | (uint64_t)read_u32(bytes + 4) << 32;
}

static inline int64_t read_i64(const uint8_t *bytes) { return (int64_t)read_u64(bytes); }

#endif
