/* The columns of a page, made in three steps: find the place of each cell, allocate one block of memory for all arrays,
   and copy the cells. The cells are copied column by column, for as many rows at a time as the nearest cache holds. */
#include "columns.h"

#include <stdlib.h>
#include <string.h>

#define ROWS_AT_A_TIME 64 /* bits of a word; the data of these rows fit the cache in all but the widest tables */
#define NO_PLACE UINT32_MAX

static const uint8_t OPERATION_INDEX[] = {0, 2, 0, 1}; /* by operation: put, delete all, -, delete one */

static bool is_sized(uint8_t type) { return type == TYPE_STRING || type == TYPE_BINARY; }

struct batch *batch_new(void)
{
    struct batch *batch = calloc(1, sizeof *batch);
    if (batch != NULL)
        atomic_init(&batch->references, 1);
    return batch;
}

/* Free the memory that is needed only until the arrays are filled. */
static void free_scratch(struct batch *batch)
{
    for (size_t number = 0; number < batch->attribute_count; number++) {
        free(batch->attributes[number].shown);
        batch->attributes[number].shown = NULL;
    }
    struct cell_list *const lists[] = {&batch->others, &batch->originals};
    for (int number = 0; number < 2; number++) {
        free(lists[number]->cells);
        free(lists[number]->ends);
        lists[number]->cells = NULL;
        lists[number]->ends = NULL;
    }
}

void batch_release(struct batch *batch)
{
    if (batch == NULL || atomic_fetch_sub(&batch->references, 1) != 1)
        return;
    free_scratch(batch);
    free(batch->keys);
    free(batch->attributes);
    free(batch->memory);
    free(batch);
}

/* ---- where each cell goes ---- */

struct placing {
    struct batch *batch;
    const struct page *page;
    const struct names *names;
    bool has_schema;
    uint32_t *places;    /* by name: the place of its column plus one; NO_PLACE without a column; 0 if not yet known */
    size_t next_wanted;  /* the place where the search for a name begins: columns mostly have the schema's order */
};

static bool has_nul(const struct name *name) { return memchr(name->bytes, 0, name->size) != NULL; }

static struct attribute *add_attribute(struct batch *batch, struct text name, uint8_t type)
{
    if (batch->attribute_count == batch->attribute_room) {
        size_t room = batch->attribute_room ? batch->attribute_room * 2 : 32;
        struct attribute *attributes = realloc(batch->attributes, room * sizeof *attributes);
        if (attributes == NULL)
            return NULL;
        batch->attributes = attributes;
        batch->attribute_room = room;
    }
    uint32_t *shown = calloc(batch->row_count + 1, sizeof *shown);
    if (shown == NULL)
        return NULL;
    struct attribute *attribute = &batch->attributes[batch->attribute_count++];
    *attribute = (struct attribute){.name = name, .type = type, .shown = shown};
    return attribute;
}

static uint32_t wanted_place(struct placing *placing, const struct name *name)
{
    size_t count = placing->batch->attribute_count;
    for (size_t tried = 0; tried < count; tried++) {
        size_t place = (placing->next_wanted + tried) % count;
        const struct text *wanted = &placing->batch->attributes[place].name;
        if (wanted->size == name->size && memcmp(wanted->bytes, name->bytes, name->size) == 0) {
            placing->next_wanted = place + 1;
            return (uint32_t)place + 1;
        }
    }
    return NO_PLACE;
}

/* Return the place of a name that occurs for the first time; 0 if memory ran out. A name with a NUL gets no column,
   because Arrow cannot represent it. */
static uint32_t new_place(struct placing *placing, uint16_t number)
{
    const struct name *name = name_at(placing->names, number);
    if (placing->has_schema)
        return wanted_place(placing, name);
    if (has_nul(name))
        return NO_PLACE;
    if (add_attribute(placing->batch, (struct text){name->bytes, name->size}, TYPE_NONE) == NULL)
        return 0;
    return (uint32_t)placing->batch->attribute_count;
}

static bool add_listed(struct cell_list *list, const struct names *names, const struct cell *cell)
{
    if (list->count == list->room) {
        size_t room = list->room ? list->room * 2 : 64;
        const struct cell **cells = realloc(list->cells, room * sizeof *cells);
        if (cells == NULL)
            return false;
        list->cells = cells;
        list->room = room;
    }
    list->cells[list->count++] = cell;
    list->name_bytes += name_at(names, cell->name)->size;
    if (cell->type == TYPE_STRING)
        list->string_bytes += cell->size;
    else if (cell->type == TYPE_BINARY)
        list->binary_bytes += cell->size;
    return true;
}

static bool fits(const struct attribute *attribute, const struct cell *cell)
{
    return cell->type == TYPE_NONE || cell->type == attribute->type;
}

/* Return whether a later cell of a record replaces the cell that its column shows. The column shows the put with the
   latest timestamp, and the first such put if timestamps are equal. Without a put, it shows the first cell. */
static bool is_shown_before(const struct cell *cell, const struct cell *shown)
{
    return cell->operation == PUT_CELL && (shown->operation != PUT_CELL || cell->stamp > shown->stamp);
}

/* List the cells that their columns do not show completely, in their order in the record. */
static bool list_others(struct placing *placing, size_t number, const struct cell *cell, const struct cell *end)
{
    for (; cell < end; cell++) {
        uint32_t place = placing->places[cell->name];
        const struct attribute *attribute = place == NO_PLACE ? NULL : &placing->batch->attributes[place - 1];
        bool is_whole = attribute != NULL &&
                        attribute->shown[number] == (uint32_t)(cell - placing->page->cells) + 1 &&
                        fits(attribute, cell);
        if (!is_whole && !add_listed(&placing->batch->others, placing->names, cell))
            return false;
    }
    return true;
}

static bool place_row(struct placing *placing, size_t number)
{
    const struct cell *cells = placing->page->cells;
    const struct row *row = &placing->page->rows[number];
    const struct cell *first = cells + row->first_cell + row->key_count, *end = first + row->cell_count;
    bool has_others = false;
    for (const struct cell *cell = first; cell < end; cell++) {
        uint32_t *place = &placing->places[cell->name];
        if (*place == 0 && (*place = new_place(placing, cell->name)) == 0)
            return false;
        if (*place == NO_PLACE) {
            has_others = true;
            continue;
        }
        struct attribute *attribute = &placing->batch->attributes[*place - 1];
        uint32_t *shown = &attribute->shown[number];
        if (attribute->type == TYPE_NONE && !placing->has_schema)
            attribute->type = cell->type;
        has_others |= *shown != 0 || !fits(attribute, cell);
        attribute->bytes += cell->size;
        if (*shown == 0 || is_shown_before(cell, &cells[*shown - 1]))
            *shown = (uint32_t)(cell - cells) + 1;
    }
    return !has_others || list_others(placing, number, first, end);
}

/* Place the values of one record. Key columns are treated like other columns. A deletion leaves its column empty. */
static enum verdict place_values(struct placing *placing, size_t number)
{
    const struct cell *cells = placing->page->cells;
    const struct row *row = &placing->page->rows[number];
    const struct cell *cell = cells + row->first_cell, *end = cell + row->key_count + row->cell_count;
    for (; cell < end; cell++) {
        uint32_t *place = &placing->places[cell->name];
        if (*place == 0)
            *place = wanted_place(placing, name_at(placing->names, cell->name));
        if (*place == NO_PLACE || cell->operation != PUT_CELL)
            continue;
        struct attribute *attribute = &placing->batch->attributes[*place - 1];
        if (attribute->shown[number] != 0 || cell->type != attribute->type)
            return NOT_ACCEPTED;
        attribute->shown[number] = (uint32_t)(cell - cells) + 1;
        attribute->bytes += cell->size;
    }
    return ACCEPTED;
}

/* Return whether a row has the key columns of the first row. If not, the page does not belong to one table. */
static bool has_keys_of_first(const struct page *page, const struct row *row)
{
    const struct row *first = &page->rows[0];
    if (row->key_count != first->key_count)
        return false;
    for (uint32_t place = 0; place < row->key_count; place++) {
        const struct cell *own = &page->cells[row->first_cell + place], *other = &page->cells[first->first_cell + place];
        if (own->name != other->name || own->type != other->type)
            return false;
    }
    return true;
}

static enum verdict begin_keys(struct batch *batch, const struct page *page, const struct names *names)
{
    const struct row *first = &page->rows[0];
    batch->keys = calloc((size_t)first->key_count + 1, sizeof *batch->keys);
    if (batch->keys == NULL)
        return OUT_OF_MEMORY;
    batch->key_count = first->key_count;
    for (size_t place = 0; place < batch->key_count; place++) {
        const struct cell *cell = &page->cells[first->first_cell + place];
        const struct name *name = name_at(names, cell->name);
        if (has_nul(name))
            return NOT_ACCEPTED;
        for (size_t other = 0; other < place; other++)
            if (batch->keys[other].number == cell->name)
                return NOT_ACCEPTED;
        batch->keys[place] = (struct key){.name = {name->bytes, name->size}, .number = cell->name};
        batch->keys[place].value.type = cell->type;
    }
    return ACCEPTED;
}

static enum verdict place_all(struct placing *placing)
{
    struct batch *batch = placing->batch;
    const struct page *page = placing->page;
    enum verdict verdict = page->row_count ? begin_keys(batch, page, placing->names) : ACCEPTED;
    if (batch->is_values)
        batch->key_count = 0; /* values of key columns go to the wanted columns */
    for (size_t number = 0; verdict == ACCEPTED && number < page->row_count; number++) {
        const struct row *row = &page->rows[number];
        const struct cell *cell = page->cells + row->first_cell;
        if (!has_keys_of_first(page, row))
            return NOT_ACCEPTED;
        if (batch->is_values) {
            verdict = place_values(placing, number);
            continue;
        }
        for (size_t key = 0; key < batch->key_count; key++)
            batch->keys[key].bytes += cell[key].size;
        if (!place_row(placing, number))
            return OUT_OF_MEMORY;
        cell += row->key_count + row->cell_count;
        for (const struct cell *end = cell + row->origin_count; cell < end; cell++)
            if (!add_listed(&batch->originals, placing->names, cell))
                return OUT_OF_MEMORY;
        batch->others.ends[number] = (uint32_t)batch->others.count;
        batch->originals.ends[number] = (uint32_t)batch->originals.count;
    }
    return verdict;
}

/* ---- memory ---- */

/* An allocator of pieces of one block. A first pass without memory computes the size of the block. */
struct taker {
    uint8_t *memory;
    size_t used;
    bool is_too_much;
};

#define SHORT_COPY 16 /* the bytes of a copy of fixed size for short content; each array ends with spare bytes for it */
#define ALIGNMENT 64  /* as Arrow recommends */

static void *take(struct taker *taker, size_t count, size_t width)
{
    size_t begin = (taker->used + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (begin < taker->used || (count && width > (SIZE_MAX / 2 - begin) / count)) {
        taker->is_too_much = true;
        return NULL;
    }
    taker->used = begin + count * width;
    return taker->memory == NULL ? NULL : taker->memory + begin;
}

static void take_array(struct taker *taker, struct array *array, size_t length, size_t bytes)
{
    array->length = length;
    array->valid = take(taker, (length + 63) / 64, 8);
    if (is_sized(array->type) || array->type == TYPE_LIST)
        array->offsets = take(taker, length + 1, sizeof(int32_t));
    if (array->offsets != NULL)
        array->offsets[0] = 0;
    if (is_sized(array->type)) {
        taker->is_too_much |= bytes > INT32_MAX;
        array->data = take(taker, bytes + SHORT_COPY, 1);
    } else if (array->type == TYPE_BOOLEAN) {
        array->data = take(taker, (length + 63) / 64, 8);
    } else if (array->type != TYPE_LIST && array->type != TYPE_NONE) {
        array->data = take(taker, length, array->type == TYPE_INDEX ? 1 : 8);
    }
}

static void take_name(struct taker *taker, struct text *name)
{
    char *text = take(taker, name->size + 1, 1);
    if (text == NULL)
        return;
    memcpy(text, name->bytes, name->size);
    text[name->size] = 0;
    name->bytes = (const uint8_t *)text;
}

static const uint8_t KINDS[] = {TYPE_INTEGER, TYPE_DOUBLE, TYPE_BOOLEAN, TYPE_STRING, TYPE_BINARY};

static void take_list(struct taker *taker, struct cell_list *list, size_t row_count)
{
    const size_t bytes[] = {0, 0, 0, list->string_bytes, list->binary_bytes};
    list->lists.type = TYPE_LIST;
    list->name.type = TYPE_STRING;
    list->operation.type = TYPE_INDEX;
    list->stamp.type = TYPE_INTEGER;
    taker->is_too_much |= list->count > INT32_MAX;
    take_array(taker, &list->lists, row_count, 0);
    take_array(taker, &list->name, list->count, list->name_bytes);
    take_array(taker, &list->operation, list->count, 0);
    take_array(taker, &list->stamp, list->count, 0);
    for (int kind = 0; kind < CELL_KINDS; kind++) {
        list->kinds[kind].type = KINDS[kind];
        take_array(taker, &list->kinds[kind], list->count, bytes[kind]);
    }
}

static void take_all(struct taker *taker, struct batch *batch)
{
    size_t count = batch->row_count;
    struct array *const numbers[] = {&batch->epoch, &batch->timestamp_micros, &batch->row_index};
    batch->action.type = TYPE_INDEX;
    take_array(taker, &batch->action, count, 0);
    for (int number = 0; number < 3; number++) {
        numbers[number]->type = TYPE_INTEGER;
        take_array(taker, numbers[number], count, 0);
    }
    for (size_t place = 0; place < batch->key_count; place++) {
        take_name(taker, &batch->keys[place].name);
        take_array(taker, &batch->keys[place].value, count, batch->keys[place].bytes);
    }
    for (size_t place = 0; place < batch->attribute_count; place++) {
        struct attribute *attribute = &batch->attributes[place];
        attribute->operation.type = TYPE_INDEX;
        attribute->value.type = attribute->type;
        attribute->stamp.type = TYPE_INTEGER;
        take_name(taker, &attribute->name);
        take_array(taker, &attribute->value, count, attribute->bytes);
        if (batch->is_values)
            continue;
        take_array(taker, &attribute->operation, count, 0);
        take_array(taker, &attribute->stamp, count, 0);
    }
    if (batch->is_values)
        return;
    take_list(taker, &batch->others, count);
    take_list(taker, &batch->originals, count);
}

static enum verdict take_memory(struct batch *batch)
{
    struct taker taker = {NULL, 0, false};
    take_all(&taker, batch);
    if (taker.is_too_much)
        return NOT_ACCEPTED;
    /* Arrow needs addresses aligned to eight bytes; malloc aligns to sixteen. */
    batch->memory = taker.memory = malloc(taker.used + 1);
    taker.used = 0;
    if (batch->memory == NULL)
        return OUT_OF_MEMORY;
    take_all(&taker, batch);
    return ACCEPTED;
}

/* ---- the cells ---- */

/* Set the 64 bits of successive rows as one word of little-endian bytes. */
static void set_word(uint8_t *bits, size_t row, uint64_t word) 
{
    for (int byte = 0; byte < 8; byte++)
        bits[row / 8 + (size_t)byte] = (uint8_t)(word >> byte * 8);
}

static size_t ones_in(uint64_t word)
{
    word -= word >> 1 & 0x5555555555555555u;
    word = (word & 0x3333333333333333u) + (word >> 2 & 0x3333333333333333u);
    return (size_t)(((word + (word >> 4)) & 0x0f0f0f0f0f0f0f0fu) * 0x0101010101010101u >> 56);
}

static void set_valid(struct array *array, size_t row, size_t count, uint64_t word)
{
    set_word(array->valid, row, word);
    array->null_count += count - ones_in(word);
}

/* Copy few bytes. If SHORT_COPY bytes can be read, copy as many, because memcpy with a variable size is a call. */
static inline void copy_bytes(uint8_t *to, const uint8_t *from, size_t size, const uint8_t *end)
{
    if (size <= SHORT_COPY && end - from >= SHORT_COPY)
        memcpy(to, from, SHORT_COPY);
    else
        memcpy(to, from, size);
}

/* Fill an array for successive rows, given by their cells. NULL is a row without a value of the array's type. */
static inline void fill_values(struct array *array, const struct page *page, const struct cell *const *cells,
                               size_t row, size_t count, uint8_t type)
{
    uint64_t valid = 0, bits = 0;
    for (size_t place = 0; place < count; place++) {
        const struct cell *cell = cells[place];
        bool has_value = cell != NULL && cell->type == type;
        const uint8_t *at = has_value ? page->body + cell->offset : NULL;
        valid |= (uint64_t)has_value << place;
        if (type == TYPE_INTEGER || type == TYPE_DOUBLE) {
            int64_t number = has_value ? read_i64(at) : 0;
            memcpy(array->data + (row + place) * 8, &number, 8);
        } else if (type == TYPE_BOOLEAN) {
            bits |= (uint64_t)(has_value && *at) << place;
        } else {
            array->offsets[row + place] = (int32_t)array->used;
            if (has_value) {
                copy_bytes(array->data + array->used, at, cell->size, page->body + page->size);
                array->used += cell->size;
            }
        }
    }
    if (type == TYPE_BOOLEAN)
        set_word(array->data, row, bits);
    if (is_sized(type))
        array->offsets[row + count] = (int32_t)array->used;
    set_valid(array, row, count, valid);
}

static void fill_array(struct array *array, const struct page *page, const struct cell *const *cells, size_t row,
                       size_t count)
{
    switch (array->type) { /* each case is compiled for its type */
    case TYPE_INTEGER:
        fill_values(array, page, cells, row, count, TYPE_INTEGER);
        break;
    case TYPE_DOUBLE:
        fill_values(array, page, cells, row, count, TYPE_DOUBLE);
        break;
    case TYPE_BOOLEAN:
        fill_values(array, page, cells, row, count, TYPE_BOOLEAN);
        break;
    case TYPE_STRING:
        fill_values(array, page, cells, row, count, TYPE_STRING);
        break;
    case TYPE_BINARY:
        fill_values(array, page, cells, row, count, TYPE_BINARY);
        break;
    default: /* no value is known */
        array->null_count += count;
    }
}

static void fill_stamps(struct array *operation, struct array *stamp, const struct cell *const *cells, size_t row,
                        size_t count)
{
    uint64_t valid = 0, stamped = 0;
    for (size_t place = 0; place < count; place++) {
        const struct cell *cell = cells[place];
        int64_t number = cell == NULL ? 0 : cell->stamp;
        operation->data[row + place] = cell == NULL ? 0 : OPERATION_INDEX[cell->operation];
        memcpy(stamp->data + (row + place) * 8, &number, 8);
        valid |= (uint64_t)(cell != NULL) << place;
        stamped |= (uint64_t)(cell != NULL && cell->has_stamp) << place;
    }
    set_valid(operation, row, count, valid);
    set_valid(stamp, row, count, stamped);
}

static void fill_names(struct array *array, const struct names *names, const struct cell *const *cells, size_t row,
                       size_t count)
{
    for (size_t place = 0; place < count; place++) {
        const struct name *name = name_at(names, cells[place]->name);
        array->offsets[row + place] = (int32_t)array->used;
        memcpy(array->data + array->used, name->bytes, name->size);
        array->used += name->size;
    }
    array->offsets[row + count] = (int32_t)array->used;
}

static void fill_list(struct cell_list *list, const struct page *page, const struct names *names)
{
    for (size_t from = 0; from < list->count; from += ROWS_AT_A_TIME) {
        size_t count = list->count - from < ROWS_AT_A_TIME ? list->count - from : ROWS_AT_A_TIME;
        const struct cell *const *cells = list->cells + from;
        fill_names(&list->name, names, cells, from, count);
        fill_stamps(&list->operation, &list->stamp, cells, from, count);
        for (int kind = 0; kind < CELL_KINDS; kind++)
            fill_array(&list->kinds[kind], page, cells, from, count);
    }
}

static void fill_attributes(struct batch *batch, const struct page *page, size_t row, size_t count)
{
    const struct cell *cells[ROWS_AT_A_TIME];
    for (size_t number = 0; number < batch->attribute_count; number++) {
        struct attribute *attribute = &batch->attributes[number];
        for (size_t place = 0; place < count; place++) {
            uint32_t shown = attribute->shown[row + place];
            cells[place] = shown ? &page->cells[shown - 1] : NULL;
        }
        fill_array(&attribute->value, page, cells, row, count);
        if (!batch->is_values)
            fill_stamps(&attribute->operation, &attribute->stamp, cells, row, count);
    }
}

static void fill_keys(struct batch *batch, const struct page *page, size_t row, size_t count)
{
    const struct cell *cells[ROWS_AT_A_TIME];
    for (size_t key = 0; key < batch->key_count; key++) {
        for (size_t place = 0; place < count; place++)
            cells[place] = &page->cells[page->rows[row + place].first_cell + key];
        fill_array(&batch->keys[key].value, page, cells, row, count);
    }
}

static void put_number(struct array *array, size_t row, int64_t number) { memcpy(array->data + row * 8, &number, 8); }

static void fill_records(struct batch *batch, const struct page *page, size_t row, size_t count)
{
    uint64_t with_origin = 0;
    for (size_t place = 0; place < count; place++) {
        const struct row *one = &page->rows[row + place];
        batch->action.data[row + place] = (uint8_t)(one->action - PUT_ROW);
        put_number(&batch->epoch, row + place, one->epoch);
        put_number(&batch->timestamp_micros, row + place, one->timestamp_micros);
        put_number(&batch->row_index, row + place, one->row_index);
        if (batch->is_values)
            continue;
        batch->others.lists.offsets[row + place + 1] = (int32_t)batch->others.ends[row + place];
        batch->originals.lists.offsets[row + place + 1] = (int32_t)batch->originals.ends[row + place];
        with_origin |= (uint64_t)one->has_origin << place;
    }
    if (!batch->is_values)
        set_valid(&batch->originals.lists, row, count, with_origin);
}

static void fill_all(struct batch *batch, const struct page *page, const struct names *names)
{
    for (size_t row = 0; row < batch->row_count; row += ROWS_AT_A_TIME) {
        size_t count = batch->row_count - row < ROWS_AT_A_TIME ? batch->row_count - row : ROWS_AT_A_TIME;
        fill_records(batch, page, row, count);
        fill_keys(batch, page, row, count);
        fill_attributes(batch, page, row, count);
    }
    fill_list(&batch->others, page, names);
    fill_list(&batch->originals, page, names);
}

enum verdict batch_fill(struct batch *batch, const struct page *page, const struct names *names, size_t name_count,
                        const struct wanted *wanted, size_t wanted_count)
{
    struct placing placing = {.batch = batch, .page = page, .names = names, .has_schema = wanted != NULL};
    enum verdict verdict = OUT_OF_MEMORY;
    batch->row_count = page->row_count;
    placing.places = calloc(name_count + 1, sizeof *placing.places);
    batch->others.ends = malloc((page->row_count + 1) * sizeof *batch->others.ends);
    batch->originals.ends = malloc((page->row_count + 1) * sizeof *batch->originals.ends);
    bool has_room = placing.places != NULL && batch->others.ends != NULL && batch->originals.ends != NULL;
    for (size_t number = 0; has_room && wanted != NULL && number < wanted_count; number++)
        has_room = add_attribute(batch, wanted[number].name, wanted[number].type) != NULL;
    if (has_room)
        verdict = place_all(&placing);
    free(placing.places);
    if (verdict == ACCEPTED)
        verdict = take_memory(batch);
    if (verdict == ACCEPTED)
        fill_all(batch, page, names);
    free_scratch(batch);
    return verdict;
}
