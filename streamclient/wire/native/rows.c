/* Records as Python objects. They are cheap to make, because their parts are made on access. */
#include "native.h"

#include <stdlib.h>
#include <string.h>

#define KEPT_CELLS 65536 /* a vocabulary keeps an index of at most 1.5 MB for its next page, with */
#define KEPT_ROWS 16384  /* at most 1.2 MB of rows */

/* ---- shared by records ---- */

void classes_release(struct classes *classes)
{
    if (classes == NULL || --classes->references)
        return;
    Py_XDECREF((PyObject *)classes->record);
    Py_XDECREF((PyObject *)classes->column);
    Py_XDECREF((PyObject *)classes->sequence);
    for (int action = 0; action <= DELETE_ROW; action++)
        Py_XDECREF(classes->record_types[action]);
    for (int operation = 0; operation <= DELETE_ONE_VERSION; operation++)
        Py_XDECREF(classes->operations[operation]);
    free(classes);
}

void vocabulary_release(struct vocabulary *vocabulary)
{
    if (vocabulary == NULL || --vocabulary->references)
        return;
    for (uint32_t number = 0; number < vocabulary->named; number++)
        Py_DECREF((PyObject *)name_at(&vocabulary->names, number)->object);
    names_clear(&vocabulary->names);
    page_clear(&vocabulary->spare);
    classes_release(vocabulary->classes);
    free(vocabulary);
}

/* End an index. Keep its memory for the next page, unless the vocabulary has such memory already or it is too large. */
void index_end(struct page *page, struct vocabulary *vocabulary)
{
    if (vocabulary->spare.cells == NULL && page->cell_room <= KEPT_CELLS && page->row_room <= KEPT_ROWS)
        page_swap_memory(page, &vocabulary->spare);
    page_clear(page);
}

void source_release(struct source *source)
{
    if (source == NULL || --source->references)
        return;
    if (source->vocabulary != NULL)
        index_end(&source->page, source->vocabulary);
    for (uint32_t number = 0; number < source->name_count; number++)
        Py_DECREF(source->names[number]);
    Py_XDECREF(source->body);
    vocabulary_release(source->vocabulary);
    classes_release(source->classes);
    free(source->living);
    free(source);
}

static PyObject *name_of(const struct source *source, const struct cell *cell)
{
    return source->vocabulary == NULL ? source->names[cell->name]
                                      : (PyObject *)name_at(&source->vocabulary->names, cell->name)->object;
}

/* ---- records as writes ---- */

/* Return the end of successive verified cells that begin at `at`. */
static const uint8_t *after_cells(const uint8_t *at)
{
    while (*at == TAG_CELL) {
        at += 6 + read_u32(at + 2);
        if (*at == TAG_CELL_VALUE)
            at += 5 + read_u32(at + 1);
        if (*at == TAG_CELL_OPERATION)
            at += 2;
        if (*at == TAG_CELL_TIMESTAMP)
            at += 9;
        at += 2;
    }
    return at;
}

/* Return the bytes of the write's row: the record's row without its sequence information, which the checksum does not
   cover, and for a deletion with a delete marker. The row is empty if the write would change nothing. */
static PyObject *row_bytes(const struct row *row, const uint8_t *frame, const uint8_t *key_end)
{
    bool has_data = *key_end == TAG_ROW_DATA, deletes = row->action == DELETE_ROW;
    const uint8_t *end = row->cell_count ? after_cells(key_end + 1) : key_end;
    bool is_marked = *(row->cell_count ? end : key_end + has_data) == TAG_DELETE_MARKER;
    uint8_t crc = frame[row->frame_size - 1];
    size_t size = (size_t)(end - frame);
    if (row->action == UPDATE_ROW && row->cell_count == 0)
        return PyBytes_FromStringAndSize(NULL, 0);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(size + deletes + 2));
    uint8_t *to = bytes == NULL ? NULL : (uint8_t *)PyBytes_AsString(bytes);
    if (to == NULL)
        return bytes;
    memcpy(to, frame, size);
    to += size;
    if (deletes)
        *to++ = TAG_DELETE_MARKER;
    if (deletes && !is_marked)
        crc ^= crc8_after[0][1]; /* the last byte that the checksum covers is 1 with a delete marker, otherwise 0 */
    to[0] = TAG_ROW_CHECKSUM;
    to[1] = crc;
    return bytes;
}

PyObject *write_of(const struct source *source, const struct row *row)
{
    const uint8_t *frame = source->page.body + row->frame_offset, *key = frame + 5, *key_end = after_cells(key);
    PyObject *bytes = row_bytes(row, frame, key_end);
    return bytes == NULL ? NULL : Py_BuildValue("(Oy#N)", source->classes->record_types[row->action], (const char *)key,
                                                (Py_ssize_t)(key_end - key), bytes);
}

/* ---- making records ---- */

static PyObject *value_of(const uint8_t *body, const struct cell *cell)
{
    const uint8_t *at = body + cell->offset;
    double number;
    switch (cell->type) {
    case TYPE_INTEGER:
        return PyLong_FromLongLong(read_i64(at));
    case TYPE_DOUBLE: {
        uint64_t bits = read_u64(at);
        memcpy(&number, &bits, sizeof number);
        return PyFloat_FromDouble(number);
    }
    case TYPE_BOOLEAN:
        return PyBool_FromLong(*at);
    case TYPE_STRING:
        return PyUnicode_DecodeUTF8((const char *)at, (Py_ssize_t)cell->size, NULL);
    case TYPE_BINARY:
        return PyBytes_FromStringAndSize((const char *)at, (Py_ssize_t)cell->size);
    default:
        Py_RETURN_NONE;
    }
}

/* Allocate an object without clearing its memory. The caller fills the memory immediately. */
static void *allocate(PyTypeObject *type, size_t size)
{
    PyObject *object = PyObject_Malloc(size);
    return object == NULL ? (void *)PyErr_NoMemory() : (void *)PyObject_Init(object, type);
}

/* Return the page's place for the record of a row, or NULL with an exception. */
static struct record **place_of(struct source *source, uint32_t row)
{
    if (source->living == NULL)
        source->living = calloc(source->page.row_count, sizeof *source->living);
    if (source->living == NULL)
        PyErr_NoMemory();
    return source->living == NULL ? NULL : &source->living[row];
}

/* The page does not own its records. A record that is no longer in use is freed immediately, and the next record gets
   its memory while this memory is in the cache. So a loop over a page touches the memory of one record only. */
PyObject *record_of(struct source *source, uint32_t row)
{
    struct record **place = place_of(source, row);
    if (place == NULL)
        return NULL;
    if (*place != NULL) {
        Py_INCREF((PyObject *)*place);
        return (PyObject *)*place;
    }
    struct record *record = allocate(source->classes->record, sizeof *record);
    if (record == NULL)
        return NULL;
    *place = record;
    record->weak_references = NULL;
    record->source = source;
    source->references++;
    memset(record->fields, 0, sizeof record->fields);
    record->row = row;
    return (PyObject *)record;
}

/* ---- the attributes of a record ---- */

/* Untrack a tuple whose items the garbage collector does not track. The collector would do this at a higher cost. */
static PyObject *plain(PyObject *tuple)
{
    if (tuple != NULL)
        PyObject_GC_UnTrack(tuple);
    return tuple;
}

static PyObject *key_of(const struct source *source, const struct row *row)
{
    PyObject *key = PyTuple_New((Py_ssize_t)row->key_count);
    for (uint32_t place = 0; key != NULL && place < row->key_count; place++) {
        const struct cell *cell = &source->page.cells[row->first_cell + place];
        PyObject *value = value_of(source->page.body, cell);
        PyObject *pair = value == NULL ? NULL : plain(PyTuple_Pack(2, name_of(source, cell), value));
        Py_XDECREF(value);
        if (pair == NULL)
            Py_CLEAR(key);
        else
            PyTuple_SetItem(key, (Py_ssize_t)place, pair);
    }
    return plain(key);
}

/* Return the timestamp of a cell, as a new reference. Successive cells usually share a timestamp, so `*last` keeps the
   object for `*last_stamp`. */
static PyObject *stamp_of(const struct cell *cell, int64_t *last_stamp, PyObject **last)
{
    if (!cell->has_stamp)
        Py_RETURN_NONE;
    if (*last == NULL || cell->stamp != *last_stamp) {
        PyObject *stamp = PyLong_FromLongLong(cell->stamp);
        if (stamp == NULL)
            return NULL;
        Py_XDECREF(*last);
        *last = stamp;
        *last_stamp = cell->stamp;
    }
    Py_INCREF(*last);
    return *last;
}

static PyObject *column_of(const struct source *source, const struct cell *cell, int64_t *last_stamp, PyObject **last)
{
    PyObject *value = value_of(source->page.body, cell);
    PyObject *stamp = value == NULL ? NULL : stamp_of(cell, last_stamp, last);
    struct column *column = stamp == NULL ? NULL : allocate(source->classes->column, sizeof *column);
    if (column == NULL) {
        Py_XDECREF(value);
        Py_XDECREF(stamp);
        return NULL;
    }
    column->weak_references = NULL;
    Py_INCREF(column->fields[0] = name_of(source, cell));
    Py_INCREF(column->fields[1] = source->classes->operations[cell->operation]);
    column->fields[2] = value;
    column->fields[3] = stamp;
    return (PyObject *)column;
}

static PyObject *columns_of(const struct source *source, size_t first_cell, uint32_t count)
{
    PyObject *columns = PyTuple_New((Py_ssize_t)count), *last = NULL;
    int64_t last_stamp = 0;
    for (uint32_t place = 0; columns != NULL && place < count; place++) {
        PyObject *column = column_of(source, &source->page.cells[first_cell + place], &last_stamp, &last);
        if (column == NULL)
            Py_CLEAR(columns);
        else
            PyTuple_SetItem(columns, (Py_ssize_t)place, column);
    }
    Py_XDECREF(last);
    return plain(columns);
}

PyObject *sequence_of(const struct source *source, const struct row *row)
{
    struct sequence *sequence = allocate(source->classes->sequence, sizeof *sequence);
    if (sequence == NULL)
        return NULL;
    sequence->weak_references = NULL;
    sequence->fields[0] = PyLong_FromUnsignedLong(row->epoch);
    sequence->fields[1] = PyLong_FromLongLong(row->timestamp_micros);
    sequence->fields[2] = PyLong_FromUnsignedLong(row->row_index);
    for (int field = 0; field < SEQUENCE_FIELDS; field++)
        if (sequence->fields[field] == NULL) {
            Py_DECREF((PyObject *)sequence);
            return NULL;
        }
    return (PyObject *)sequence;
}

static PyObject *build(const struct source *source, const struct row *row, enum record_field field)
{
    PyObject *type;
    switch (field) {
    case RECORD_TYPE:
        Py_INCREF(type = source->classes->record_types[row->action]);
        return type;
    case PRIMARY_KEY:
        return key_of(source, row);
    case COLUMNS:
        return columns_of(source, row->first_cell + row->key_count, row->cell_count);
    case SEQUENCE_INFO:
        return sequence_of(source, row);
    default:
        if (!row->has_origin)
            Py_RETURN_NONE;
        return columns_of(source, row->first_cell + row->key_count + row->cell_count, row->origin_count);
    }
}

/* ---- leaving a page ---- */

static size_t payload_size(const struct cell *cell)
{
    switch (cell->type) {
    case TYPE_INTEGER:
    case TYPE_DOUBLE:
        return 8;
    case TYPE_BOOLEAN:
        return 1;
    default: /* text and bytes; the size is 0 without a value */
        return cell->size;
    }
}

/* Return a source with one row, as one block of memory: the row, its cells, the objects of names, and payloads. */
static struct source *source_of_row(const struct source *from, const struct row *row)
{
    size_t count = (size_t)row->key_count + row->cell_count + row->origin_count, bytes = 0;
    const struct cell *cells = from->page.cells + row->first_cell;
    if (count > UINT16_MAX) /* a cell numbers its name with 16 bits; the service allows 1,024 columns */
        return NULL;
    for (size_t place = 0; place < count; place++)
        bytes += payload_size(&cells[place]);
    struct source *own = malloc(sizeof *own + sizeof *row + count * (sizeof *cells + sizeof *own->names) + bytes);
    if (own == NULL)
        return NULL;
    struct row *own_row = (struct row *)(own + 1);
    struct cell *own_cells = (struct cell *)(own_row + 1);
    PyObject **names = (PyObject **)(own_cells + count);
    uint8_t *body = (uint8_t *)(names + count);
    *own = (struct source){.references = 1, .classes = from->classes, .names = names, .name_count = (uint32_t)count};
    own->page = (struct page){.body = body, .rows = own_row, .row_count = 1, .cells = own_cells, .cell_count = count};
    from->classes->references++;
    *own_row = *row;
    own_row->first_cell = 0;
    for (size_t place = 0, used = 0; place < count; place++) {
        size_t size = payload_size(&cells[place]);
        own_cells[place] = cells[place];
        own_cells[place].name = (uint16_t)place;
        own_cells[place].offset = (uint32_t)used;
        Py_INCREF(names[place] = name_of(from, &cells[place]));
        memcpy(body + used, from->page.body + cells[place].offset, size);
        used += size;
    }
    return own;
}

static void settle(struct record *record, struct source *from)
{
    struct source *own = source_of_row(from, &from->page.rows[record->row]);
    if (own == NULL)
        return;
    from->living[record->row] = NULL;
    record->source = own;
    record->row = 0;
    source_release(from);
}

void records_settle(struct source *source)
{
    for (size_t row = 0; source->living != NULL && row < source->page.row_count; row++)
        if (source->living[row] != NULL)
            settle(source->living[row], source);
}

/* ---- the classes' attributes ---- */

static const char *const FIELD_NAMES[] = {"record_type", "primary_key", "columns", "sequence_info",
                                          "original_columns"};

static PyObject *record_get(PyObject *self, void *closure)
{
    struct record *record = (struct record *)self;
    enum record_field field = (enum record_field)(intptr_t)closure;
    struct source *source = record->source;
    if (record->fields[field] == NULL) {
        if (source == NULL) {
            PyErr_SetString(PyExc_AttributeError, FIELD_NAMES[field]);
            return NULL;
        }
        /* An allocation may run other code, which may read the same attribute, or let the record leave the page. */
        source->references++;
        PyObject *value = build(source, &source->page.rows[record->row], field);
        source_release(source);
        if (value == NULL)
            return NULL;
        if (record->fields[field] == NULL)
            record->fields[field] = value;
        else
            Py_DECREF(value);
    }
    Py_INCREF(record->fields[field]);
    return record->fields[field];
}

/* Set an attribute for the constructor and for unpickling; the class forbids assignment. */
static int record_set(PyObject *self, PyObject *value, void *closure)
{
    struct record *record = (struct record *)self;
    enum record_field field = (enum record_field)(intptr_t)closure;
    PyObject *old = record->fields[field];
    if (value == NULL && old == NULL) {
        PyErr_SetString(PyExc_AttributeError, FIELD_NAMES[field]);
        return -1;
    }
    Py_XINCREF(value);
    record->fields[field] = value;
    Py_XDECREF(old);
    return 0;
}

/* ---- the classes: they only store values, and the package adds all other methods ---- */

static void release_object(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (PyType_GetFlags(type) & Py_TPFLAGS_HAVE_GC) /* a subclass */
        PyObject_GC_Del(self);
    else
        PyObject_Free(self);
    Py_DECREF((PyObject *)type);
}

static void record_dealloc(PyObject *self)
{
    struct record *record = (struct record *)self;
    if (record->source != NULL && record->source->living != NULL)
        record->source->living[record->row] = NULL; /* first, because the rest may run code that reads the record */
    if (record->weak_references != NULL)
        PyObject_ClearWeakRefs(self);
    for (int field = 0; field < RECORD_FIELDS; field++)
        Py_XDECREF(record->fields[field]);
    source_release(record->source);
    release_object(self);
}

static void column_dealloc(PyObject *self)
{
    struct column *column = (struct column *)self;
    if (column->weak_references != NULL)
        PyObject_ClearWeakRefs(self);
    for (int field = 0; field < COLUMN_FIELDS; field++)
        Py_XDECREF(column->fields[field]);
    release_object(self);
}

static void sequence_dealloc(PyObject *self)
{
    struct sequence *sequence = (struct sequence *)self;
    if (sequence->weak_references != NULL)
        PyObject_ClearWeakRefs(self);
    for (int field = 0; field < SEQUENCE_FIELDS; field++)
        Py_XDECREF(sequence->fields[field]);
    release_object(self);
}

static PyObject *first_weak_reference(PyObject *self, void *offset)
{
    PyObject *first = *(PyObject **)((char *)self + (intptr_t)offset);
    if (first == NULL)
        Py_RETURN_NONE;
    Py_INCREF(first);
    return first;
}

#define WEAK_LIST(structure) \
    {"__weaklistoffset__", T_PYSSIZET, offsetof(struct structure, weak_references), READONLY, NULL}
#define WEAK_GETTER(structure) \
    {"__weakref__", first_weak_reference, NULL, NULL, (void *)offsetof(struct structure, weak_references)}
#define RECORD_FIELD(name, field) {name, record_get, record_set, NULL, (void *)(intptr_t)(field)}

static PyMemberDef record_members[] = {WEAK_LIST(record), {NULL, 0, 0, 0, NULL}};
static PyGetSetDef record_getters[] = {
    WEAK_GETTER(record),
    RECORD_FIELD("record_type", RECORD_TYPE),
    RECORD_FIELD("primary_key", PRIMARY_KEY),
    RECORD_FIELD("columns", COLUMNS),
    RECORD_FIELD("sequence_info", SEQUENCE_INFO),
    RECORD_FIELD("original_columns", ORIGINAL_COLUMNS),
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot record_slots[] = {
    {Py_tp_dealloc, record_dealloc},
    {Py_tp_members, record_members},
    {Py_tp_getset, record_getters},
    {0, NULL},
};
static PyType_Spec record_spec = {
    .name = "streamclient.records.StreamRecord",
    .basicsize = sizeof(struct record),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = record_slots,
};

#define OBJECT_FIELD(structure, name, number) \
    {name, T_OBJECT_EX, offsetof(struct structure, fields) + (number) * sizeof(PyObject *), 0, NULL}

static PyMemberDef column_members[] = {
    WEAK_LIST(column),
    OBJECT_FIELD(column, "name", 0),
    OBJECT_FIELD(column, "operation", 1),
    OBJECT_FIELD(column, "value", 2),
    OBJECT_FIELD(column, "timestamp_millis", 3),
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef column_getters[] = {WEAK_GETTER(column), {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot column_slots[] = {
    {Py_tp_getset, column_getters},
    {Py_tp_dealloc, column_dealloc},
    {Py_tp_members, column_members},
    {0, NULL},
};
static PyType_Spec column_spec = {
    .name = "streamclient.records.RecordColumn",
    .basicsize = sizeof(struct column),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = column_slots,
};

static PyMemberDef sequence_members[] = {
    WEAK_LIST(sequence),
    OBJECT_FIELD(sequence, "epoch", 0),
    OBJECT_FIELD(sequence, "timestamp_micros", 1),
    OBJECT_FIELD(sequence, "row_index", 2),
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef sequence_getters[] = {WEAK_GETTER(sequence), {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot sequence_slots[] = {
    {Py_tp_getset, sequence_getters},
    {Py_tp_dealloc, sequence_dealloc},
    {Py_tp_members, sequence_members},
    {0, NULL},
};
static PyType_Spec sequence_spec = {
    .name = "streamclient.records.SequenceInfo",
    .basicsize = sizeof(struct sequence),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = sequence_slots,
};

static PyTypeObject *add_class(PyObject *module, PyType_Spec *spec)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    if (type != NULL && PyModule_AddObjectRef(module, strrchr(spec->name, '.') + 1, type) < 0)
        Py_CLEAR(type);
    return (PyTypeObject *)type;
}

int add_record_classes(PyObject *module, PyTypeObject *classes[3])
{
    PyType_Spec *const specs[] = {&record_spec, &column_spec, &sequence_spec};
    for (int number = 0; number < 3; number++)
        if ((classes[number] = add_class(module, specs[number])) == NULL)
            return -1;
    return 0;
}
