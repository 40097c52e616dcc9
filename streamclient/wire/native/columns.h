/* The cells of a page by column, in the memory layout of Apache Arrow. This code does not use Python. */
#ifndef STREAMCLIENT_COLUMNS_H
#define STREAMCLIENT_COLUMNS_H

#include <stdatomic.h>

#include "wire.h"

#define TYPE_INDEX 0xfe /* one byte, into a fixed list of words */
#define TYPE_LIST 0xfd  /* only offsets, into an array of cells */

/* One array: of numbers, of bits, or of text or bytes with their offsets. */
struct array {
    uint8_t *valid; /* one bit for each element: whether the element is not null */
    uint8_t *data;
    int32_t *offsets; /* for text, bytes and lists: the beginning of each element */
    size_t length;
    size_t null_count;
    size_t used; /* the number of filled bytes of data; for lists, the number of cells */
    uint8_t type;
};

struct text {
    const uint8_t *bytes;
    size_t size;
};

/* An attribute column of the table, with the cell of each record. */
struct attribute {
    struct text name;
    uint32_t *shown; /* by record: the number of the cell that is shown, plus one */
    size_t bytes;    /* the most bytes that its text or bytes need */
    uint8_t type;    /* the type of the column; TYPE_NONE if no value of the column is known */
    struct array operation, value, stamp;
};

struct key {
    struct text name;
    uint16_t number; /* the number of the column's name among the page's names */
    size_t bytes;
    struct array value;
};

enum { INTEGER_CELL, DOUBLE_CELL, BOOLEAN_CELL, STRING_CELL, BINARY_CELL, CELL_KINDS };

/* Lists of cells, one list for each record: cells of any column and any type, in any number. */
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
    bool is_values; /* whether the batch has only one value for each record and wanted column, key columns included */
    uint8_t *memory; /* the block that holds all arrays and the names */
    size_t row_count;
    struct array action, epoch, timestamp_micros, row_index;
    struct key *keys;
    size_t key_count;
    struct attribute *attributes;
    size_t attribute_count, attribute_room;
    struct cell_list others, originals;
};

/* A column of the requested schema. */
struct wanted {
    struct text name;
    uint8_t type;
};

/* Make a batch without content, with one reference; NULL if memory ran out. */
struct batch *batch_new(void);

/* Fill an empty batch with the wanted columns. If `wanted` is NULL, fill it with the columns of the page. All names of
   the page have numbers below `name_count`; other pages may add names meanwhile. Not accepted: records with different
   key columns, a key that Arrow cannot represent, or more bytes than an offset can count. For a batch of values also
   not accepted: a record that puts two values, or a value of another type, into a wanted column. */
enum verdict batch_fill(struct batch *batch, const struct page *page, const struct names *names, size_t name_count,
                        const struct wanted *wanted, size_t wanted_count);

void batch_release(struct batch *batch);

#endif
