/* One row of the PlainBuffer format, appended to the index of a page. */
#ifndef STREAMCLIENT_ROW_H
#define STREAMCLIENT_ROW_H

#include "wire.h"

/* The role of a row, which decides the cells that it may have. */
enum role { PUT_ROLE, UPDATE_ROLE, DELETE_ROLE, ORIGIN_ROLE };

struct reader {
    struct page *page;
    struct names *names;
    uint64_t last_stamp; /* the last timestamp: cells of one write usually share it, so its checksum is kept */
    uint8_t last_stamp_crc;
};

/* The facts of a row that was read. Its cells are the last key_count + cell_count cells of the page. */
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
