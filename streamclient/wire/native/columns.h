/* The cells of a page by column, in the memory layout of Apache Arrow. Knows nothing of Python. */
#ifndef STREAMCLIENT_COLUMNS_H
#define STREAMCLIENT_COLUMNS_H

#include <stdatomic.h>

#include "wire.h"

#define TYPE_INDEX 0xfe /* one byte, into a fixed list of words */
#define TYPE_LIST 0xfd  /* offsets alone, into cells beside */

/* One array: of numbers, of bits, or of text or bytes with their offsets. */
struct array {
    uint8_t *valid; /* bits */
    uint8_t *data;
    int32_t *offsets; /* of text, bytes and lists */
    size_t length;
    size_t null_count;
    size_t used; /* bytes of data that are filled; of lists, how many cells */
    uint8_t type;
};

struct text {
    const uint8_t *bytes;
    size_t size;
};

/* A column of the table: the effect of each record on it. */
struct attribute {
    struct text name;
    uint32_t *shown; /* by record: the number of the cell that is shown, plus one */
    size_t bytes;    /* that its text or bytes need at most */
    uint8_t type;    /* TYPE_NONE if no value of it is known */
    struct array operation, value, stamp;
};

struct key {
    struct text name;
    uint16_t number; /* of the name */
    size_t bytes;
    struct array value;
};

enum { INTEGER_CELL, DOUBLE_CELL, BOOLEAN_CELL, STRING_CELL, BINARY_CELL, CELL_KINDS };

/* Cells in a list per record: any column, any type, any number of them. */
struct cell_list {
    struct array lists; /* valid where the record has a list */
    const struct cell **cells;
    uint32_t *ends; /* by record: the number of cells before the next record's */
    size_t count, room;
    size_t name_bytes, string_bytes, binary_bytes;
    struct array name, operation, stamp, kinds[CELL_KINDS];
};

/* The whole batch, which lives as long as any of its parts. */
struct batch {
    atomic_long references;
    bool is_values; /* at most one value per record and wanted column, keys among these, and nothing else of cells */
    uint8_t *memory; /* of all arrays, and of the names */
    size_t row_count;
    struct array action, epoch, timestamp_micros, row_index;
    struct key *keys;
    size_t key_count;
    struct attribute *attributes;
    size_t attribute_count, attribute_room;
    struct cell_list others, originals;
};

/* A wanted column. */
struct wanted {
    struct text name;
    uint8_t type;
};

/* Make a batch without content, with one reference; NULL if memory ran out. */
struct batch *batch_new(void);

/* Fill an empty batch, with the wanted columns, or with those of the page if `wanted` is NULL. All names of the
   page are below `name_count`; others may be added meanwhile. Not accepted: records of
   different key columns, a key that Arrow cannot hold, or more than an offset can count; and for a batch of values,
   a record that puts two into one wanted column, or one of another type. */
enum verdict batch_fill(struct batch *batch, const struct page *page, const struct names *names, size_t name_count,
                        const struct wanted *wanted, size_t wanted_count);

void batch_release(struct batch *batch);

#endif
