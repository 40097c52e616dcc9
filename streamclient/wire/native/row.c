/* Rows. Before every read, the code checks that the read does not pass the end of the row's bytes. */
#include "row.h"

#include <stdlib.h>
#include <string.h>

static const uint8_t HEADER[4] = {0x75, 0x00, 0x00, 0x00};
#define SEQUENCE_BYTES 19 /* three tags, u32 epoch, i64 timestamp, u32 row index */

#define STEP(state, byte) crc8_after[0][(uint8_t)((state) ^ (byte))]

static bool grow_cells(struct page *page)
{
    size_t room = page->cell_room ? page->cell_room * 2 : page->size / 40 + 16; /* a small cell has 40 bytes */
    struct cell *cells = realloc(page->cells, room * sizeof *cells);
    if (cells == NULL)
        return false;
    page->cells = cells;
    page->cell_room = room;
    return true;
}

/* Return whether the bytes are the head of a cell with this name and a value. The bytes of a head can be read. */
static inline bool is_head(const struct name *name, const uint8_t *at)
{
    uint64_t differences = 0;
    for (int word = 0; word < HEAD_WORDS; word++)
        differences |= (read_u64(at + word * 8) ^ name->head[word]) & name->mask[word];
    return differences == 0 && name->mask[0] != 0;
}

/* Read the value at `at`, which has `size` bytes with its type. At least one more byte follows the value. */
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
    default: /* also the bounds of key ranges, which no record contains */
        return false;
    }
}

static inline uint8_t crc8_of_9(uint8_t state, const uint8_t *bytes)
{
    uint8_t sum = crc8_after[8][state ^ bytes[0]];
    for (int place = 1; place < 9; place++)
        sum ^= crc8_after[8 - place][bytes[place]];
    return sum;
}

static inline uint8_t stamp_crc(struct reader *reader, const uint8_t *bytes)
{
    uint64_t stamp = read_u64(bytes);
    if (stamp != reader->last_stamp) {
        reader->last_stamp = stamp;
        reader->last_stamp_crc = crc8(0, bytes, 8);
    }
    return reader->last_stamp_crc;
}

/* Read a cell of any form, from its tag on. On the wire the operation comes before the timestamp. In the checksum the
   order is reversed. */
static enum verdict read_any_cell(struct reader *reader, const uint8_t **from, const uint8_t *end, struct cell *cell,
                                  uint8_t *cell_crc)
{
    const uint8_t *at = *from, *body = reader->page->body;
    uint32_t number;
    if (end - at < 6 || at[1] != TAG_CELL_NAME)
        return NOT_ACCEPTED;
    uint32_t size = read_u32(at + 2);
    at += 6;
    if (size >= (size_t)(end - at))
        return NOT_ACCEPTED;
    enum verdict verdict = names_find(reader->names, at, size, &number);
    if (verdict != ACCEPTED)
        return verdict;
    at += size;
    *cell = (struct cell){.name = (uint16_t)number, .type = TYPE_NONE, .operation = PUT_CELL};
    uint8_t crc = name_at(reader->names, number)->crc;
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
        if (at[1] != DELETE_ALL_VERSIONS && at[1] != DELETE_ONE_VERSION) /* streams have no increments */
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

/* Return whether the Java SDK accepts the cell in a record of this kind. */
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

/* Read sequence information, from its tag on. No checksum covers it, so it must have exactly the known form. */
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

/* Read the extension: one entry of sequence information. Other entries are skipped by their length. */
static bool read_extension(const uint8_t **from, const uint8_t *end, struct row_facts *facts)
{
    static const uint8_t USUAL[10] = {TAG_EXTENSION, 5 + SEQUENCE_BYTES, 0, 0, 0, TAG_SEQUENCE, SEQUENCE_BYTES, 0, 0, 0};
    const uint8_t *at = *from;
    if (end - at < 5 || read_u32(at + 1) > (size_t)(end - at - 5))
        return false;
    end = at + 5 + read_u32(at + 1);
    if (end - at == 5 + 5 + SEQUENCE_BYTES && memcmp(at, USUAL, sizeof USUAL) == 0) {
        *from = end;
        return read_sequence(at + 5, end, facts);
    }
    for (at += 5; at < end; at += 5 + read_u32(at + 1)) {
        if (end - at < 5 || read_u32(at + 1) > (size_t)(end - at - 5))
            return false;
        if (*at == TAG_SEQUENCE && (facts->has_sequence || !read_sequence(at, end, facts)))
            return false;
    }
    *from = end;
    return facts->has_sequence;
}

/* Read the cell if it has the expected name and the usual form: a value and, except in a key, a timestamp. After false,
   the caller reads the cell with read_any_cell. */
static inline bool read_usual_cell(struct reader *reader, uint16_t guess, const uint8_t **from, const uint8_t *end,
                                   bool is_key, struct cell *cell, uint8_t *cell_crc)
{
    const uint8_t *at = *from, *body = reader->page->body;
    if (end - at < HEAD_WORDS * 8 || guess >= reader->names->count)
        return false;
    const struct name *name = name_at(reader->names, guess);
    if (!is_head(name, at))
        return false;
    at += name->size + 7;
    if (end - at < 4 + 9 + 11)
        return false;
    uint32_t size = read_u32(at);
    at += 4;
    uint8_t crc = name->crc, type = *at;
    uint32_t offset = (uint32_t)(at - body) + 1, content = 0;
    if (type <= TYPE_DOUBLE) {
        if (size != 9)
            return false;
        crc = crc8_of_9(crc, at);
    } else if (type == TYPE_STRING || type == TYPE_BINARY) {
        content = size - 5;
        if (size < 5 || size > (size_t)(end - at) - 11 || read_u32(at + 1) != content)
            return false;
        if (type == TYPE_STRING && !is_utf8_inside(at + 5, content))
            return false;
        crc = crc8_inside(crc, at, size); /* a header and a head come before the value */
        offset += 4;
    } else {
        if (type != TYPE_BOOLEAN || size != 2 || at[1] > 1)
            return false;
        crc = STEP(STEP(crc, TYPE_BOOLEAN), at[1]);
    }
    at += size;
    int64_t stamp = 0;
    if (!is_key) {
        stamp = read_i64(at + 1);
        if (*at != TAG_CELL_TIMESTAMP || stamp < 0)
            return false;
        crc = crc8_after[7][crc] ^ stamp_crc(reader, at + 1);
        at += 9;
    }
    if (at[0] != TAG_CELL_CHECKSUM || at[1] != crc || (is_key && (type == TYPE_DOUBLE || type == TYPE_BOOLEAN)))
        return false;
    *cell = (struct cell){.stamp = stamp,
                          .offset = offset,
                          .size = content,
                          .name = guess,
                          .type = type,
                          .operation = PUT_CELL,
                          .has_stamp = !is_key};
    *from = at + 2;
    *cell_crc = crc;
    return true;
}

/* Read all successive cells of the key, or of attribute columns. */
static inline enum verdict read_cells(struct reader *reader, const uint8_t **from, const uint8_t *end,
                                      uint16_t **guess, enum role role, bool is_key, uint32_t *count, uint8_t *row_crc)
{
    struct page *page = reader->page;
    size_t first = page->cell_count;
    const uint8_t *at = *from;
    uint8_t crc;
    for (; at < end && *at == TAG_CELL; page->cell_count++) {
        if (page->cell_count == page->cell_room && !grow_cells(page))
            return OUT_OF_MEMORY;
        struct cell *cell = &page->cells[page->cell_count];
        if (role == DELETE_ROLE && !is_key)
            return NOT_ACCEPTED;
        if (!read_usual_cell(reader, **guess, &at, end, is_key, cell, &crc)) {
            enum verdict verdict = read_any_cell(reader, &at, end, cell, &crc);
            if (verdict != ACCEPTED)
                return verdict;
            if (is_key ? !is_key_cell(cell) : !may_stand(cell, role))
                return NOT_ACCEPTED;
            **guess = cell->name;
        }
        *row_crc = STEP(*row_crc, crc);
        *guess = &name_at(reader->names, cell->name)->follower;
    }
    *count = (uint32_t)(page->cell_count - first);
    *from = at;
    return ACCEPTED;
}

enum verdict row_read(struct reader *reader, size_t offset, size_t size, enum role role, struct row_facts *facts)
{
    const uint8_t *at = reader->page->body + offset, *end = at + size;
    uint16_t *guess = &reader->names->first;
    uint8_t row_crc = 0;
    memset(facts, 0, sizeof *facts);
    if (size < 5 || memcmp(at, HEADER, 4) != 0 || at[4] != TAG_ROW_KEY)
        return NOT_ACCEPTED;
    at += 5;
    enum verdict verdict = read_cells(reader, &at, end, &guess, role, true, &facts->key_count, &row_crc);
    if (verdict != ACCEPTED)
        return verdict;
    if (at < end && *at == TAG_ROW_DATA) {
        at++;
        verdict = read_cells(reader, &at, end, &guess, role, false, &facts->cell_count, &row_crc);
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
