/* One row of the PlainBuffer format, appended to the index of a page. */
#ifndef STREAMCLIENT_ROW_H
#define STREAMCLIENT_ROW_H

#include "wire.h"

/* The role of a row, which decides the cells that it may have. */
enum role { PUT_ROLE, UPDATE_ROLE, DELETE_ROLE, ORIGIN_ROLE };

struct reader {
    struct page *page;
    struct names *names;
    uint64_t last_stamp; /* cells of one write mostly share their version: its checksum is kept */
    uint8_t last_stamp_crc;
};

/* A row that was read; its cells are the last key_count + cell_count ones of the page. */
struct row_facts {
    int64_t timestamp_micros;
    uint32_t key_count;
    uint32_t cell_count;
    uint32_t epoch;
    uint32_t row_index;
    bool is_deleted;
    bool has_sequence;
};

enum verdict row_read(struct reader *reader, size_t offset, size_t size, enum role role, struct row_facts *facts);

#endif
