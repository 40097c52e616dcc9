/* The outer message of a page: a protobuf message of entries, each with an action and one or two rows. */
#include "row.h"

#include <stdlib.h>
#include <string.h>

enum wire_type { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

struct field {
    uint64_t number; /* the number of the field in its message */
    uint64_t value;  /* the value of a varint field */
    size_t offset;   /* the offset in the body at which a field of bytes begins */
    size_t size;
    uint8_t wire_type;
};

static inline bool read_varint(const uint8_t **from, const uint8_t *end, uint64_t *value)
{
    const uint8_t *at = *from;
    if (end - at >= 2 && at[0] < 0x80) { /* most numbers have one byte, most lengths two */
        *value = at[0];
        *from = at + 1;
        return true;
    }
    if (end - at >= 2 && at[1] < 0x80) {
        *value = (uint64_t)(at[0] & 0x7f) | (uint64_t)at[1] << 7;
        *from = at + 2;
        return true;
    }
    *value = 0;
    for (int shift = 0; shift < 63 && at < end; shift += 7, at++) {
        *value |= (uint64_t)(*at & 0x7f) << shift;
        if (*at < 0x80) {
            *from = at + 1;
            return true;
        }
    }
    return false; /* a varint of ten bytes is a negative number, which no field here may have */
}

enum step { FIELD, END, BROKEN };

static enum step next_field(const uint8_t *body, const uint8_t **at, const uint8_t *end, struct field *field)
{
    uint64_t tag;
    if (*at == end)
        return END;
    if (!read_varint(at, end, &tag) || tag >> 3 == 0 || tag > UINT32_MAX)
        return BROKEN;
    *field = (struct field){.number = tag >> 3, .wire_type = tag & 7};
    switch (field->wire_type) {
    case VARINT:
        return read_varint(at, end, &field->value) ? FIELD : BROKEN;
    case FIXED64:
        field->size = 8;
        break;
    case FIXED32:
        field->size = 4;
        break;
    case BYTES:
        if (!read_varint(at, end, &tag) || tag > (size_t)(end - *at))
            return BROKEN;
        field->size = (size_t)tag;
        break;
    default:
        return BROKEN;
    }
    if (field->size > (size_t)(end - *at))
        return BROKEN;
    field->offset = (size_t)(*at - body);
    *at += field->size;
    return FIELD;
}

/* Read a message with at most two varints, such as a part of the consumed capacity. `first` gets field 1, if any. */
static bool read_number_pair(const uint8_t *body, const struct field *outer, uint32_t *first)
{
    const uint8_t *at = body + outer->offset, *end = at + outer->size;
    struct field field;
    enum step step;
    while ((step = next_field(body, &at, end, &field)) == FIELD) {
        if (field.number <= 2 && field.wire_type != VARINT)
            return false;
        if (field.number == 1)
            *first = (uint32_t)field.value;
    }
    return step == END;
}

/* Read the consumed capacity. Its first part, the units, is required. */
static bool read_consumed(const uint8_t *body, const struct field *outer, uint32_t *read_units)
{
    uint32_t size; /* the first number of the second part, which is not used */
    const uint8_t *at = body + outer->offset, *end = at + outer->size;
    struct field field;
    enum step step;
    bool has_unit = false;
    while ((step = next_field(body, &at, end, &field)) == FIELD) {
        if (field.number <= 2 &&
            (field.wire_type != BYTES || !read_number_pair(body, &field, field.number == 1 ? read_units : &size)))
            return false;
        has_unit |= field.number == 1;
    }
    return step == END && has_unit;
}

static enum verdict add_row(struct page *page, struct row **row)
{
    if (page->row_count == page->row_room) {
        size_t room = page->row_room ? page->row_room * 2 : page->size / 100 + 16;
        struct row *rows = realloc(page->rows, room * sizeof *rows);
        if (rows == NULL)
            return OUT_OF_MEMORY;
        page->rows = rows;
        page->row_room = room;
    }
    *row = &page->rows[page->row_count++];
    return ACCEPTED;
}

static bool is_same_key_cell(const uint8_t *body, const struct cell *left, const struct cell *right)
{
    size_t size = left->type == TYPE_INTEGER ? 8 : left->size;
    return left->name == right->name && left->type == right->type && left->size == right->size &&
           memcmp(body + left->offset, body + right->offset, size) == 0;
}

/* Read the row with the previous cells. The row may lack a key. If it has a key, it must be the record's key. */
static enum verdict read_origin(struct reader *reader, size_t offset, size_t size, struct row *row)
{
    struct page *page = reader->page;
    struct row_facts facts;
    size_t first = page->cell_count;
    enum verdict verdict = row_read(reader, offset, size, ORIGIN_ROLE, &facts);
    if (verdict != ACCEPTED)
        return verdict;
    if (facts.is_deleted || (facts.key_count != 0 && facts.key_count != row->key_count))
        return NOT_ACCEPTED;
    for (uint32_t place = 0; place < facts.key_count; place++)
        if (!is_same_key_cell(page->body, &page->cells[row->first_cell + place], &page->cells[first + place]))
            return NOT_ACCEPTED;
    memmove(page->cells + first, page->cells + first + facts.key_count, facts.cell_count * sizeof *page->cells);
    page->cell_count -= facts.key_count;
    row->has_origin = true;
    row->origin_count = facts.cell_count;
    return ACCEPTED;
}

/* One record of the message. */
struct entry {
    uint64_t action;
    struct field record, origin;
};

static bool is_action(uint64_t number) { return number >= PUT_ROW && number <= DELETE_ROW; }

static enum verdict read_record(struct reader *reader, const struct entry *entry)
{
    const struct field *record = &entry->record, *origin = &entry->origin;
    const uint64_t action = entry->action;
    struct page *page = reader->page;
    struct row_facts facts;
    struct row *row;
    if (!is_action(action))
        return NOT_ACCEPTED;
    enum verdict verdict = add_row(page, &row);
    if (verdict != ACCEPTED)
        return verdict;
    memset(row, 0, sizeof *row);
    row->first_cell = page->cell_count;
    verdict = row_read(reader, record->offset, record->size, (enum role)(action - PUT_ROW), &facts);
    if (verdict != ACCEPTED)
        return verdict;
    if (facts.key_count == 0 || (facts.is_deleted && action != DELETE_ROW) ||
        (!facts.has_sequence && page->kind == STREAM_PAGE))
        return NOT_ACCEPTED;
    row->action = (uint8_t)action;
    row->size = (uint32_t)(record->size + origin->size);
    row->frame_offset = (uint32_t)record->offset;
    row->frame_size = (uint32_t)record->size;
    row->key_count = facts.key_count;
    row->cell_count = facts.cell_count;
    row->epoch = facts.epoch;
    row->timestamp_micros = facts.timestamp_micros;
    row->row_index = facts.row_index;
    return origin->size ? read_origin(reader, origin->offset, origin->size, row) : ACCEPTED;
}

/* Read an entry of the usual form: an action of one byte, a record, and nothing else. Return false for other forms. */
static inline bool is_usual_entry(const uint8_t *body, const uint8_t *at, const uint8_t *end, struct field *record)
{
    uint64_t size;
    if (end - at < 4 || at[0] != 0x08 || at[1] >= 0x80 || at[2] != 0x12)
        return false;
    at += 3;
    if (!read_varint(&at, end, &size) || size != (uint64_t)(end - at))
        return false;
    record->offset = (size_t)(at - body);
    record->size = (size_t)size;
    return true;
}

static bool read_entry(const uint8_t *body, const struct field *outer, struct entry *entry)
{
    const uint8_t *at = body + outer->offset, *end = at + outer->size;
    struct field field;
    enum step step;
    *entry = (struct entry){0};
    if (is_usual_entry(body, at, end, &entry->record)) {
        entry->action = at[1];
        return true;
    }
    while ((step = next_field(body, &at, end, &field)) == FIELD) {
        if (field.number == 1 && field.wire_type == VARINT)
            entry->action = field.value;
        else if (field.number == 2 && field.wire_type == BYTES)
            entry->record = field;
        else if (field.number == 3 && field.wire_type == BYTES)
            entry->origin = field;
        else if (field.number <= 3)
            return false;
    }
    return step == END;
}

/* The field numbers of GetStreamRecordResponse and ReadRecordsResponse. */
enum { RECORDS_FIELD = 1, NEXT_FIELD = 2, CONSUMED_FIELD = 3, MORE_FIELD = 4, TUNNEL_MORE_FIELD = 3 };

struct message {
    struct reader reader;
    struct entry last; /* the entry that was read last */
    size_t entry_count;
    bool is_summary; /* whether only the last record is read */
    bool has_next;
};

static enum verdict take_entry(struct message *message, const struct field *field)
{
    struct entry *entry = &message->last;
    if (field->wire_type != BYTES || !read_entry(message->reader.page->body, field, entry))
        return NOT_ACCEPTED;
    message->entry_count++;
    if (message->is_summary) /* both parts are required, so the code in Python refuses a page without one of them */
        return is_action(entry->action) && entry->record.size ? ACCEPTED : NOT_ACCEPTED;
    return read_record(&message->reader, entry);
}

static enum verdict read_field(struct message *message, const struct field *field)
{
    struct page *page = message->reader.page;
    bool is_stream = page->kind == STREAM_PAGE;
    if (field->number == RECORDS_FIELD)
        return take_entry(message, field);
    if (field->number == NEXT_FIELD) {
        page->next.offset = field->offset;
        page->next.size = field->size;
        message->has_next = true;
        return field->wire_type == BYTES ? ACCEPTED : NOT_ACCEPTED;
    }
    if (field->number == (is_stream ? MORE_FIELD : TUNNEL_MORE_FIELD)) {
        page->may_more = field->value != 0;
        return field->wire_type == VARINT ? ACCEPTED : NOT_ACCEPTED;
    }
    if (is_stream && field->number == CONSUMED_FIELD)
        return field->wire_type == BYTES && read_consumed(page->body, field, &page->read_units) ? ACCEPTED : NOT_ACCEPTED;
    return ACCEPTED; /* ignore a field of a later version of the service */
}

static enum verdict read_message(struct message *message)
{
    struct page *page = message->reader.page;
    const uint8_t *at = page->body, *end = at + page->size;
    struct field field;
    enum step step;
    page->may_more = -1;
    page->read_units = 0;
    if (page->size > INT32_MAX)
        return NOT_ACCEPTED;
    while ((step = next_field(page->body, &at, end, &field)) == FIELD) {
        enum verdict verdict = read_field(message, &field);
        if (verdict != ACCEPTED)
            return verdict;
    }
    if (step != END || !is_utf8(page->body + page->next.offset, page->next.size))
        return NOT_ACCEPTED;
    return message->has_next || page->kind == STREAM_PAGE ? ACCEPTED : NOT_ACCEPTED; /* a tunnel's token is required */
}

enum verdict page_read(struct page *page, struct names *names)
{
    struct message message = {.reader = {.page = page, .names = names}};
    return read_message(&message);
}

enum verdict page_summarize(struct page *page, struct names *names, size_t *record_count)
{
    struct message message = {.reader = {.page = page, .names = names}, .is_summary = true};
    enum verdict verdict = read_message(&message);
    *record_count = message.entry_count;
    return verdict == ACCEPTED && message.entry_count ? read_record(&message.reader, &message.last) : verdict;
}

void page_clear(struct page *page)
{
    free(page->rows);
    free(page->cells);
    page->rows = NULL;
    page->cells = NULL;
    page->row_count = page->row_room = page->cell_count = page->cell_room = 0;
}

void page_swap_memory(struct page *page, struct page *other)
{
    struct page before = *page;
    page->rows = other->rows;
    page->row_room = other->row_room;
    page->cells = other->cells;
    page->cell_room = other->cell_room;
    other->rows = before.rows;
    other->row_room = before.row_room;
    other->cells = before.cells;
    other->cell_room = before.cell_room;
}
