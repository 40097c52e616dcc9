/* Filling columns, row by row. */
#include "columns.h"

#include <stdlib.h>
#include <string.h>

static const uint8_t OPERATION_INDEX[] = {0, 2, 0, 1}; /* by operation: put, delete all, -, delete one */

static size_t width_of(uint8_t type)
{
    return type == TYPE_INTEGER || type == TYPE_DOUBLE ? 8 : type == TYPE_INDEX ? 1 : 0;
}

static bool is_sized(uint8_t type) { return type == TYPE_STRING || type == TYPE_BINARY; }

static bool has_offsets(uint8_t type) { return is_sized(type) || type == TYPE_LIST; }

/* Memory of `size` bytes in place of `old`, the part behind `used` cleared. */
static bool grow(void *place, size_t used, size_t size)
{
    uint8_t **old = place, *now = realloc(*old, size ? size : 1);
    if (now == NULL)
        return false;
    memset(now + used, 0, size - used);
    *old = now;
    return true;
}

static bool reserve(struct values *values, size_t room)
{
    size_t before = values->room;
    if (room <= before && values->valid != NULL)
        return true;
    if (before && room < before * 2)
        room = before * 2;
    size_t width = width_of(values->type);
    if (!grow(&values->valid, (before + 7) / 8, (room + 7) / 8))
        return false;
    if (width && !grow(&values->data, before * width, room * width))
        return false;
    if (values->type == TYPE_BOOLEAN && !grow(&values->data, (before + 7) / 8, (room + 7) / 8))
        return false;
    if (has_offsets(values->type) &&
        !grow(&values->offsets, before ? (before + 1) * sizeof(int32_t) : 0, (room + 1) * sizeof(int32_t)))
        return false;
    values->room = room;
    return true;
}

static bool reserve_data(struct values *values, size_t size)
{
    if (size <= values->data_room && values->data != NULL)
        return true;
    size_t room = values->data_room * 2 < size ? size + values->room * 8 : values->data_room * 2;
    uint8_t *data = realloc(values->data, room ? room : 1);
    if (data == NULL)
        return false;
    values->data = data;
    values->data_room = room;
    return true;
}

static inline void set_valid(struct values *values, size_t row)
{
    values->valid[row / 8] |= (uint8_t)(1u << row % 8);
    values->valid_count++;
}

static inline void put_i64(struct values *values, size_t row, int64_t number)
{
    memcpy(values->data + row * 8, &number, 8);
    set_valid(values, row);
}

static inline void put_index(struct values *values, size_t row, uint8_t index)
{
    values->data[row] = index;
    set_valid(values, row);
}

static void fill_offsets(struct values *values, size_t until)
{
    for (; values->filled < until; values->filled++)
        values->offsets[values->filled + 1] = (int32_t)values->data_used;
}

static bool put_sized(struct values *values, size_t row, const uint8_t *bytes, size_t size)
{
    fill_offsets(values, row);
    if (!reserve_data(values, values->data_used + size))
        return false;
    memcpy(values->data + values->data_used, bytes, size);
    values->data_used += size;
    fill_offsets(values, row + 1);
    set_valid(values, row);
    return true;
}

/* The value of a cell whose type is that of the values. There is room for the row. */
static inline bool put_cell(struct values *values, size_t row, const uint8_t *body, const struct cell *cell)
{
    const uint8_t *at = body + cell->offset;
    switch (cell->type) {
    case TYPE_INTEGER:
    case TYPE_DOUBLE:
        put_i64(values, row, read_i64(at));
        return true;
    case TYPE_BOOLEAN:
        values->data[row / 8] |= (uint8_t)(*at << row % 8);
        set_valid(values, row);
        return true;
    default:
        return put_sized(values, row, at, cell->size);
    }
}

static bool finish(struct values *values, size_t length)
{
    values->length = length;
    if (!reserve(values, length) || (is_sized(values->type) && !reserve_data(values, values->data_used)))
        return false;
    if (has_offsets(values->type))
        fill_offsets(values, length);
    return true;
}

/* ---- lists of cells ---- */

static const uint8_t KINDS[] = {TYPE_INTEGER, TYPE_DOUBLE, TYPE_BOOLEAN, TYPE_STRING, TYPE_BINARY};

static struct values *kind_of(struct cell_list *list, uint8_t type)
{
    for (int kind = 0; kind < CELL_KINDS; kind++)
        if (KINDS[kind] == type)
            return &list->kinds[kind];
    return NULL;
}

static bool begin_list(struct cell_list *list, size_t row_count)
{
    list->name.type = TYPE_STRING;
    list->operation.type = TYPE_INDEX;
    list->stamp.type = TYPE_INTEGER;
    list->lists.type = TYPE_LIST;
    for (int kind = 0; kind < CELL_KINDS; kind++)
        list->kinds[kind].type = KINDS[kind];
    return reserve(&list->lists, row_count);
}

static bool list_cell(struct cell_list *list, const struct page *page, const struct names *names,
                      const struct cell *cell)
{
    const struct name *name = name_at(names, cell->name);
    struct values *value = cell->type == TYPE_NONE ? NULL : kind_of(list, cell->type);
    size_t place = list->count++;
    if (!reserve(&list->name, place + 1) || !reserve(&list->operation, place + 1) ||
        !reserve(&list->stamp, place + 1) || !put_sized(&list->name, place, name->bytes, name->size))
        return false;
    put_index(&list->operation, place, OPERATION_INDEX[cell->operation]);
    if (cell->has_stamp)
        put_i64(&list->stamp, place, cell->stamp);
    return value == NULL || (reserve(value, place + 1) && put_cell(value, place, page->body, cell));
}

static bool finish_list(struct cell_list *list, size_t row_count)
{
    for (int kind = 0; kind < CELL_KINDS; kind++)
        if (!finish(&list->kinds[kind], list->count))
            return false;
    return finish(&list->name, list->count) && finish(&list->operation, list->count) &&
           finish(&list->stamp, list->count) && finish(&list->lists, row_count);
}

/* ---- columns ---- */

enum verdict batch_survey(struct batch *batch, const struct page *page, uint32_t *places)
{
    size_t room = 0;
    for (size_t number = 0; number < page->row_count; number++) {
        const struct row *row = &page->rows[number];
        const struct cell *cell = page->cells + row->first_cell + row->key_count;
        for (const struct cell *end = cell + row->cell_count; cell < end; cell++) {
            uint32_t place = places[cell->name];
            if (place && batch->attributes[place - 1].type != TYPE_NONE)
                continue;
            if (!place) {
                if (batch->attribute_count == room) {
                    room = room ? room * 2 : 32;
                    struct attribute *attributes = realloc(batch->attributes, room * sizeof *attributes);
                    if (attributes == NULL)
                        return OUT_OF_MEMORY;
                    batch->attributes = attributes;
                }
                batch->attributes[batch->attribute_count] = (struct attribute){.name = cell->name, .type = TYPE_NONE};
                place = places[cell->name] = (uint32_t)++batch->attribute_count;
            }
            batch->attributes[place - 1].type = cell->type;
        }
    }
    return ACCEPTED;
}

static bool begin_attribute(struct attribute *attribute, size_t row_count)
{
    attribute->operation.type = TYPE_INDEX;
    attribute->stamp.type = TYPE_INTEGER;
    attribute->value.type = attribute->type;
    return reserve(&attribute->operation, row_count) && reserve(&attribute->stamp, row_count) &&
           (attribute->type == TYPE_NONE || reserve(&attribute->value, row_count));
}

static enum verdict begin(struct batch *batch, const struct page *page)
{
    size_t count = batch->row_count = page->row_count;
    batch->action.type = TYPE_INDEX;
    batch->epoch.type = batch->timestamp_micros.type = batch->row_index.type = TYPE_INTEGER;
    batch->keys = calloc(batch->key_count + 1, sizeof *batch->keys);
    batch->key_names = calloc(batch->key_count + 1, sizeof *batch->key_names);
    if (batch->keys == NULL || batch->key_names == NULL || !reserve(&batch->action, count) ||
        !reserve(&batch->epoch, count) || !reserve(&batch->timestamp_micros, count) ||
        !reserve(&batch->row_index, count) || !begin_list(&batch->others, count) ||
        !begin_list(&batch->originals, count))
        return OUT_OF_MEMORY;
    for (size_t key = 0; key < batch->key_count; key++) {
        const struct cell *cell = &page->cells[page->rows[0].first_cell + key];
        batch->keys[key].type = cell->type;
        batch->key_names[key] = cell->name;
        if (!reserve(&batch->keys[key], count))
            return OUT_OF_MEMORY;
    }
    for (size_t number = 0; number < batch->attribute_count; number++)
        if (!begin_attribute(&batch->attributes[number], count))
            return OUT_OF_MEMORY;
    return ACCEPTED;
}

static enum verdict fill_key(struct batch *batch, const struct page *page, size_t number)
{
    const struct row *row = &page->rows[number];
    const struct cell *cells = page->cells + row->first_cell;
    if (row->key_count != batch->key_count)
        return NOT_ACCEPTED;
    for (size_t key = 0; key < batch->key_count; key++) {
        if (cells[key].name != batch->key_names[key] || cells[key].type != batch->keys[key].type)
            return NOT_ACCEPTED;
        if (!put_cell(&batch->keys[key], number, page->body, &cells[key]))
            return OUT_OF_MEMORY;
    }
    return ACCEPTED;
}

/* Of several cells of one column, the put with the newest version is shown, the first of equals; without a put, the
   first cell. */
static void choose(struct attribute *attribute, const struct cell *cell)
{
    const struct cell *shown = attribute->shown;
    if (cell->operation == PUT_CELL && (shown->operation != PUT_CELL || cell->stamp > shown->stamp))
        attribute->shown = cell;
}

/* The cells of a record: each either shown in its column or listed beside, and listed too if its value does not fit. */
static bool fill_cells(struct batch *batch, const struct page *page, const struct names *names,
                       const uint32_t *places, size_t number)
{
    const struct row *row = &page->rows[number];
    const struct cell *first = page->cells + row->first_cell + row->key_count, *end = first + row->cell_count;
    for (const struct cell *cell = first; cell < end; cell++) {
        if (!places[cell->name])
            continue;
        struct attribute *attribute = &batch->attributes[places[cell->name] - 1];
        if (attribute->seen_in == number + 1) {
            choose(attribute, cell);
        } else {
            attribute->seen_in = number + 1;
            attribute->shown = cell;
        }
    }
    for (const struct cell *cell = first; cell < end; cell++) {
        uint32_t place = places[cell->name];
        struct attribute *attribute = place ? &batch->attributes[place - 1] : NULL;
        if (attribute == NULL || attribute->shown != cell) {
            if (!list_cell(&batch->others, page, names, cell))
                return false;
            continue;
        }
        put_index(&attribute->operation, number, OPERATION_INDEX[cell->operation]);
        if (cell->has_stamp)
            put_i64(&attribute->stamp, number, cell->stamp);
        if (cell->type == TYPE_NONE)
            continue;
        if (cell->type == attribute->type ? !put_cell(&attribute->value, number, page->body, cell)
                                          : !list_cell(&batch->others, page, names, cell))
            return false;
    }
    return true;
}

static void end_list(struct cell_list *list, size_t number, bool is_valid)
{
    list->lists.data_used = list->count;
    fill_offsets(&list->lists, number + 1);
    if (is_valid)
        set_valid(&list->lists, number);
}

static bool fill_lists(struct batch *batch, const struct page *page, const struct names *names, size_t number)
{
    const struct row *row = &page->rows[number];
    const struct cell *cell = page->cells + row->first_cell + row->key_count + row->cell_count;
    for (const struct cell *end = cell + row->origin_count; cell < end; cell++)
        if (!list_cell(&batch->originals, page, names, cell))
            return false;
    end_list(&batch->others, number, true);
    end_list(&batch->originals, number, row->has_origin);
    return true;
}

static bool finish_all(struct batch *batch)
{
    size_t count = batch->row_count;
    for (size_t key = 0; key < batch->key_count; key++)
        if (!finish(&batch->keys[key], count))
            return false;
    for (size_t number = 0; number < batch->attribute_count; number++) {
        struct attribute *attribute = &batch->attributes[number];
        if (!finish(&attribute->operation, count) || !finish(&attribute->stamp, count) ||
            (attribute->type != TYPE_NONE && !finish(&attribute->value, count)))
            return false;
    }
    return finish(&batch->action, count) && finish(&batch->epoch, count) && finish(&batch->timestamp_micros, count) &&
           finish(&batch->row_index, count) && finish_list(&batch->others, count) &&
           finish_list(&batch->originals, count);
}

enum verdict batch_fill(struct batch *batch, const struct page *page, const struct names *names,
                        const uint32_t *places, size_t *bad)
{
    enum verdict verdict = begin(batch, page);
    for (size_t number = 0; verdict == ACCEPTED && number < page->row_count; number++) {
        const struct row *row = &page->rows[number];
        put_index(&batch->action, number, (uint8_t)(row->action - PUT_ROW));
        put_i64(&batch->epoch, number, row->epoch);
        put_i64(&batch->timestamp_micros, number, row->timestamp_micros);
        put_i64(&batch->row_index, number, row->row_index);
        *bad = number;
        verdict = fill_key(batch, page, number);
        if (verdict == ACCEPTED && (!fill_cells(batch, page, names, places, number) ||
                                    !fill_lists(batch, page, names, number)))
            verdict = OUT_OF_MEMORY;
    }
    return verdict == ACCEPTED && !finish_all(batch) ? OUT_OF_MEMORY : verdict;
}

static void free_values(struct values *values)
{
    free(values->valid);
    free(values->data);
    free(values->offsets);
}

static void free_list(struct cell_list *list)
{
    free_values(&list->name);
    free_values(&list->operation);
    free_values(&list->stamp);
    free_values(&list->lists);
    for (int kind = 0; kind < CELL_KINDS; kind++)
        free_values(&list->kinds[kind]);
}

void batch_release(struct batch *batch)
{
    if (batch == NULL || atomic_fetch_sub(&batch->references, 1) != 1)
        return;
    free_values(&batch->action);
    free_values(&batch->epoch);
    free_values(&batch->timestamp_micros);
    free_values(&batch->row_index);
    for (size_t key = 0; batch->keys != NULL && key < batch->key_count; key++)
        free_values(&batch->keys[key]);
    for (size_t number = 0; number < batch->attribute_count; number++) {
        free_values(&batch->attributes[number].operation);
        free_values(&batch->attributes[number].value);
        free_values(&batch->attributes[number].stamp);
    }
    for (char **name = batch->names; name != NULL && *name != NULL; name++)
        free(*name);
    free(batch->names);
    free(batch->keys);
    free(batch->key_names);
    free(batch->attributes);
    free_list(&batch->others);
    free_list(&batch->originals);
    free(batch);
}
