/* The cells of a page by column, in the memory layout of Apache Arrow. Knows nothing of Python. */
#ifndef STREAMCLIENT_COLUMNS_H
#define STREAMCLIENT_COLUMNS_H

#include <stdatomic.h>

#include "wire.h"

#define TYPE_INDEX 0xfe /* one byte, into a fixed list of words */
#define TYPE_LIST 0xfd  /* offsets alone, into cells beside */

/* One array: of numbers, of text or bytes with their offsets, or of bits. Grows, and clears what it grows by. */
struct values {
    uint8_t *valid; /* bits */
    uint8_t *data;
    int32_t *offsets; /* of text, bytes and lists */
    size_t room;      /* entries that fit */
    size_t data_used, data_room; /* of text and bytes; of lists, how many cells */
    size_t filled;    /* entries whose offsets are set */
    size_t length;
    size_t valid_count;
    uint8_t type;
};

/* A column of the table: what each record did to it. */
struct attribute {
    uint16_t name;
    uint8_t type; /* TYPE_NONE where no value of it is known */
    struct values operation, value, stamp;
    size_t seen_in; /* number of the last row that has it, plus one */
    const struct cell *shown;
};

enum { INTEGER_CELL, DOUBLE_CELL, BOOLEAN_CELL, STRING_CELL, BINARY_CELL, CELL_KINDS };

/* Cells in a list per record: any column, any type, any number of them. */
struct cell_list {
    struct values name, operation, stamp, kinds[CELL_KINDS];
    struct values lists; /* valid where the record has a list */
    size_t count;
};

/* All of it, alive as long as one part was handed out. */
struct batch {
    atomic_long references;
    size_t row_count;
    struct values action, epoch, timestamp_micros, row_index;
    struct values *keys;
    uint16_t *key_names;
    size_t key_count;
    struct attribute *attributes;
    size_t attribute_count;
    struct cell_list others, originals;
    char **names; /* of keys, then of attributes, for the schema */
};

/* Which columns the page has, in order of appearance, with the type of their first value. Fills `attributes` and
   `places`, which has a place for each name: that of its attribute plus one. */
enum verdict batch_survey(struct batch *batch, const struct page *page, uint32_t *places);

/* Not accepted: record `*bad` has other key columns than the first one. */
enum verdict batch_fill(struct batch *batch, const struct page *page, const struct names *names,
                        const uint32_t *places, size_t *bad);

void batch_release(struct batch *batch);

#endif
