/* Rows. Every read is checked against the end of the row's bytes before it happens. */
#include "row.h"

#include <stdlib.h>
#include <string.h>

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

static const uint8_t HEADER[4] = {0x75, 0x00, 0x00, 0x00};
#define SEQUENCE_BYTES 19 /* three tags, u32 epoch, i64 timestamp, u32 row index */

#define STEP(state, byte) crc8_after[0][(uint8_t)((state) ^ (byte))]

static enum verdict add_cell(struct page *page, struct cell **cell)
{
    if (page->cell_count == page->cell_room) {
        size_t room = page->cell_room ? page->cell_room * 2 : page->size / 40 + 16; /* a small cell has 40 bytes */
        struct cell *cells = realloc(page->cells, room * sizeof *cells);
        if (cells == NULL)
            return OUT_OF_MEMORY;
        page->cells = cells;
        page->cell_room = room;
    }
    *cell = &page->cells[page->cell_count++];
    return ACCEPTED;
}

/* memcmp without the call, for what is mostly a few bytes. */
static inline bool is_name(const struct name *name, const uint8_t *bytes, uint32_t size)
{
    if (name->size != size)
        return false;
    const uint8_t *own = size <= sizeof name->head ? name->head : name->bytes;
    for (; size >= 8; size -= 8, own += 8, bytes += 8)
        if (read_u64(own) != read_u64(bytes))
            return false;
    if (size >= 4) {
        if (read_u32(own) != read_u32(bytes))
            return false;
        own += 4, bytes += 4, size -= 4;
    }
    while (size--)
        if (*own++ != *bytes++)
            return false;
    return true;
}

/* The number of the name; `guess` is where the guess stands, and is corrected. */
static inline enum verdict number_of(struct names *names, const uint8_t *bytes, uint32_t size, uint16_t *guess)
{
    if (*guess < names->count && is_name(name_at(names, *guess), bytes, size))
        return ACCEPTED;
    uint32_t number;
    enum verdict verdict = names_find(names, bytes, size, &number);
    if (verdict == ACCEPTED)
        *guess = (uint16_t)number;
    return verdict;
}

/* The value at `at`, which has `size` bytes in all; at least one more byte follows it. */
static bool read_value(struct cell *cell, const uint8_t *body, const uint8_t *at, uint32_t size)
{
    if (size == 0)
        return false;
    cell->type = at[0];
    cell->offset = (uint32_t)(at + 1 - body);
    switch (at[0]) {
    case TYPE_INTEGER:
    case TYPE_DOUBLE:
        return size == 9;
    case TYPE_BOOLEAN:
        return size == 2 && at[1] <= 1;
    case TYPE_STRING:
    case TYPE_BINARY:
        if (size < 5 || read_u32(at + 1) != size - 5)
            return false;
        cell->offset += 4;
        cell->size = size - 5;
        return at[0] == TYPE_BINARY || is_utf8(at + 5, size - 5);
    default: /* among them the bounds of key ranges, which no record holds */
        return false;
    }
}

static uint8_t stamp_crc(struct reader *reader, const uint8_t *stamp)
{
    if (memcmp(reader->last_stamp, stamp, 8) != 0) {
        memcpy(reader->last_stamp, stamp, 8);
        reader->last_stamp_crc = crc8(0, stamp, 8);
    }
    return reader->last_stamp_crc;
}

/* One cell from its tag on. The checksum takes the operation after the timestamp; on the wire it stands before. */
static enum verdict read_cell(struct reader *reader, const uint8_t **from, const uint8_t *end, uint16_t *guess,
                              struct cell *cell, uint8_t *cell_crc)
{
    const uint8_t *at = *from, *body = reader->page->body;
    if (end - at < 6 || at[1] != TAG_CELL_NAME)
        return NOT_ACCEPTED;
    uint32_t size = read_u32(at + 2);
    at += 6;
    if (size >= (size_t)(end - at))
        return NOT_ACCEPTED;
    enum verdict verdict = number_of(reader->names, at, size, guess);
    if (verdict != ACCEPTED)
        return verdict;
    at += size;
    cell->name = *guess;
    cell->type = TYPE_NONE;
    cell->operation = PUT_CELL;
    cell->has_stamp = false;
    cell->stamp = 0;
    cell->size = 0;
    cell->offset = 0;
    uint8_t crc = name_at(reader->names, *guess)->crc;
    if (*at == TAG_CELL_VALUE) {
        if (end - at < 6)
            return NOT_ACCEPTED;
        size = read_u32(at + 1);
        at += 5;
        if (size >= (size_t)(end - at) || !read_value(cell, body, at, size))
            return NOT_ACCEPTED;
        crc = crc8(crc, at, size);
        at += size;
    }
    if (*at == TAG_CELL_OPERATION) {
        if (end - at < 3)
            return NOT_ACCEPTED;
        cell->operation = at[1];
        if (at[1] != DELETE_ALL_VERSIONS && at[1] != DELETE_ONE_VERSION) /* streams hold no increments */
            return NOT_ACCEPTED;
        at += 2;
    }
    if (*at == TAG_CELL_TIMESTAMP) {
        if (end - at < 10)
            return NOT_ACCEPTED;
        cell->has_stamp = true;
        cell->stamp = read_i64(at + 1);
        crc = crc8_after[7][crc] ^ stamp_crc(reader, at + 1);
        at += 9;
    }
    if (cell->operation)
        crc = STEP(crc, cell->operation);
    if (end - at < 2 || at[0] != TAG_CELL_CHECKSUM || at[1] != crc)
        return NOT_ACCEPTED;
    *from = at + 2;
    *cell_crc = crc;
    return ACCEPTED;
}

static bool is_key_cell(const struct cell *cell)
{
    return !cell->has_stamp && cell->operation == PUT_CELL &&
           (cell->type == TYPE_INTEGER || cell->type == TYPE_STRING || cell->type == TYPE_BINARY);
}

/* What the Java SDK accepts in a record of each kind. */
static bool may_stand(const struct cell *cell, enum role role)
{
    if (role == DELETE_ROLE)
        return false;
    if (cell->operation == PUT_CELL)
        return cell->type != TYPE_NONE && cell->has_stamp && cell->stamp >= 0;
    if (role != UPDATE_ROLE || cell->type != TYPE_NONE)
        return false;
    return cell->operation == DELETE_ALL_VERSIONS ? !cell->has_stamp : cell->has_stamp && cell->stamp >= 0;
}

/* Sequence information from its tag on. No checksum covers it, so its form must be exactly the known one. */
static bool read_sequence(const uint8_t *at, const uint8_t *end, struct row_facts *facts)
{
    if (end - at < 5 + SEQUENCE_BYTES || read_u32(at + 1) != SEQUENCE_BYTES || at[5] != TAG_SEQUENCE_EPOCH ||
        at[10] != TAG_SEQUENCE_TIMESTAMP || at[19] != TAG_SEQUENCE_ROW_INDEX)
        return false;
    facts->epoch = read_u32(at + 6);
    facts->timestamp_micros = read_i64(at + 11);
    facts->row_index = read_u32(at + 20);
    facts->has_sequence = true;
    return facts->timestamp_micros >= 0;
}

/* The extension: one sequence information, among entries that are skipped by their length. */
static bool read_extension(const uint8_t **from, const uint8_t *end, struct row_facts *facts)
{
    const uint8_t *at = *from;
    if (end - at < 5 || read_u32(at + 1) > (size_t)(end - at - 5))
        return false;
    end = at + 5 + read_u32(at + 1);
    for (at += 5; at < end; at += 5 + read_u32(at + 1)) {
        if (end - at < 5 || read_u32(at + 1) > (size_t)(end - at - 5))
            return false;
        if (*at == TAG_SEQUENCE && (facts->has_sequence || !read_sequence(at, end, facts)))
            return false;
    }
    *from = end;
    return facts->has_sequence;
}

static void note_stamp(struct row_facts *facts, const struct cell *cell, bool *has_stamp)
{
    if (!cell->has_stamp)
        return;
    if (!*has_stamp) {
        *has_stamp = true;
        facts->stamp = cell->stamp;
    } else if (cell->stamp != facts->stamp) {
        facts->has_one_stamp = false;
    }
}

/* Key or attribute cells, as long as there are any. */
static enum verdict read_cells(struct reader *reader, const uint8_t **at, const uint8_t *end, uint16_t **guess,
                               enum role role, bool is_key, struct row_facts *facts, uint8_t *row_crc)
{
    bool has_stamp = false;
    uint32_t count = 0;
    for (; *at < end && **at == TAG_CELL; count++) {
        struct cell *cell;
        uint8_t crc;
        enum verdict verdict = add_cell(reader->page, &cell);
        if (verdict != ACCEPTED)
            return verdict;
        verdict = read_cell(reader, at, end, *guess, cell, &crc);
        if (verdict != ACCEPTED)
            return verdict;
        if (is_key ? !is_key_cell(cell) : !may_stand(cell, role))
            return NOT_ACCEPTED;
        note_stamp(facts, cell, &has_stamp);
        *row_crc = STEP(*row_crc, crc);
        *guess = &name_at(reader->names, cell->name)->follower;
    }
    *(is_key ? &facts->key_count : &facts->cell_count) = count;
    return ACCEPTED;
}

enum verdict row_read(struct reader *reader, size_t offset, size_t size, enum role role, struct row_facts *facts)
{
    const uint8_t *at = reader->page->body + offset, *end = at + size;
    uint16_t *guess = &reader->names->first;
    uint8_t row_crc = 0;
    memset(facts, 0, sizeof *facts);
    facts->has_one_stamp = true;
    if (size < 5 || memcmp(at, HEADER, 4) != 0 || at[4] != TAG_ROW_KEY)
        return NOT_ACCEPTED;
    at += 5;
    enum verdict verdict = read_cells(reader, &at, end, &guess, role, true, facts, &row_crc);
    if (verdict != ACCEPTED)
        return verdict;
    if (at < end && *at == TAG_ROW_DATA) {
        at++;
        verdict = read_cells(reader, &at, end, &guess, role, false, facts, &row_crc);
        if (verdict != ACCEPTED)
            return verdict;
    }
    if (at < end && *at == TAG_DELETE_MARKER) {
        facts->is_deleted = true;
        at++;
    }
    if (at < end && *at == TAG_EXTENSION && !read_extension(&at, end, facts))
        return NOT_ACCEPTED;
    row_crc = STEP(row_crc, facts->is_deleted);
    return end - at == 2 && at[0] == TAG_ROW_CHECKSUM && at[1] == row_crc ? ACCEPTED : NOT_ACCEPTED;
}
