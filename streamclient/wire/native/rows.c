/* Records as Python values: cheap to make, and what is seen of them is made when it is asked for. */
#include "native.h"

#include <stdlib.h>
#include <string.h>

/* ---- what records share ---- */

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

static void layout_release(struct layout *layout)
{
    if (--layout->references)
        return;
    struct vocabulary *vocabulary = layout->vocabulary;
    struct layout **kept = &vocabulary->layouts[layout->hash % KEPT_LAYOUTS];
    if (*kept == layout)
        *kept = NULL;
    free(layout);
    vocabulary_release(vocabulary);
}

static bool is_layout_of(const struct layout *layout, const struct cell *cells, uint32_t key_count,
                         uint32_t cell_count, uint8_t action, bool has_one_stamp)
{
    if (layout == NULL || layout->key_count != key_count || layout->cell_count != cell_count ||
        layout->action != action || layout->has_one_stamp != has_one_stamp)
        return false;
    for (uint32_t place = 0; place < key_count + cell_count; place++)
        if (layout->cells[place].name != cells[place].name || layout->cells[place].operation != cells[place].operation)
            return false;
    return true;
}

/* The layout of these cells, as a new reference: that of the row before, one that a living record has, or a new one.
   Whether a cell has a stamp follows from its operation and from being a key. */
static struct layout *layout_for(struct vocabulary *vocabulary, struct layout *before, const struct cell *cells,
                                 uint32_t key_count, uint32_t cell_count, uint8_t action, bool has_one_stamp)
{
    struct layout *layout = before;
    if (!is_layout_of(before, cells, key_count, cell_count, action, has_one_stamp)) {
        uint32_t count = key_count + cell_count;
        uint32_t hash = (count * 31 + action) * 2 + has_one_stamp;
        for (uint32_t place = 0; place < count; place++)
            hash = (hash ^ (cells[place].name | (uint32_t)cells[place].operation << 16)) * 0x9e3779b1u;
        hash ^= hash >> 15;
        struct layout **kept = &vocabulary->layouts[hash % KEPT_LAYOUTS];
        layout = *kept;
        if (!is_layout_of(layout, cells, key_count, cell_count, action, has_one_stamp)) {
            layout = malloc(sizeof *layout + count * sizeof layout->cells[0]);
            if (layout == NULL)
                return NULL;
            *layout = (struct layout){.references = 0,
                                      .vocabulary = vocabulary,
                                      .hash = hash,
                                      .key_count = key_count,
                                      .cell_count = cell_count,
                                      .action = action,
                                      .has_one_stamp = has_one_stamp};
            for (uint32_t place = 0; place < count; place++) {
                layout->cells[place].name = cells[place].name;
                layout->cells[place].operation = cells[place].operation;
                layout->cells[place].has_stamp = cells[place].has_stamp;
            }
            vocabulary->references++;
            *kept = layout;
        }
    }
    layout->references++;
    return layout;
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

/* An object without the first step of the allocator, which would clear what is filled in at once. */
static void *allocate(PyTypeObject *type, size_t size)
{
    PyObject *object = PyObject_Malloc(size);
    return object == NULL ? (void *)PyErr_NoMemory() : (void *)PyObject_Init(object, type);
}

/* A record of these cells. The layout comes in as a reference and goes into the record, or is released. */
static struct record *record_of(const uint8_t *body, struct layout *layout, const struct cell *cells, int64_t stamp)
{
    size_t count = (size_t)layout->key_count + layout->cell_count;
    size_t slot_count = layout->has_one_stamp ? count : count + layout->cell_count;
    struct record *record =
        allocate(layout->vocabulary->classes->record, sizeof *record + slot_count * sizeof record->slots[0]);
    if (record == NULL) {
        layout_release(layout);
        return NULL;
    }
    record->weak_references = NULL;
    record->layout = layout;
    record->made = NULL;
    record->timestamp_micros = 0;
    record->epoch = record->row_index = 0;
    record->stamp = stamp;
    for (size_t place = 0; place < count; place++) {
        PyObject *value = value_of(body, &cells[place]);
        if (value == NULL) {
            while (place--)
                Py_DECREF(record->slots[place].value);
            record->layout = NULL;
            layout_release(layout);
            Py_DECREF((PyObject *)record);
            return NULL;
        }
        record->slots[place].value = value;
    }
    if (!layout->has_one_stamp)
        for (size_t place = 0; place < layout->cell_count; place++)
            record->slots[count + place].stamp = cells[layout->key_count + place].stamp;
    return record;
}

static struct made *made_of(struct record *record)
{
    if (record->made == NULL) {
        record->made = calloc(1, sizeof *record->made);
        if (record->made == NULL)
            PyErr_NoMemory();
    }
    return record->made;
}

static int add_origin(struct record *record, const struct page *page, struct vocabulary *vocabulary,
                      const struct row *row, struct layout **before)
{
    const struct cell *cells = page->cells + row->first_cell + row->key_count + row->cell_count;
    struct layout *layout =
        layout_for(vocabulary, *before, cells, 0, row->origin_count, UPDATE_ROW, row->origin_has_one_stamp);
    if (layout == NULL || made_of(record) == NULL) {
        if (layout != NULL)
            layout_release(layout);
        PyErr_NoMemory();
        return -1;
    }
    *before = layout;
    record->made->origin = record_of(page->body, layout, cells, row->origin_stamp);
    return record->made->origin == NULL ? -1 : 0;
}

PyObject *records_of(const struct page *page, struct vocabulary *vocabulary)
{
    struct layout *before = NULL, *origin_before = NULL; /* borrowed: the records made so far hold them */
    PyObject *records = PyTuple_New((Py_ssize_t)page->row_count);
    if (records == NULL)
        return NULL;
    for (size_t number = 0; number < page->row_count; number++) {
        const struct row *row = &page->rows[number];
        const struct cell *cells = page->cells + row->first_cell;
        struct record *record = NULL;
        before = layout_for(vocabulary, before, cells, row->key_count, row->cell_count, row->action,
                            row->has_one_stamp);
        if (before == NULL)
            PyErr_NoMemory();
        else
            record = record_of(page->body, before, cells, row->stamp);
        if (record == NULL) {
            Py_DECREF(records);
            return NULL;
        }
        record->epoch = row->epoch;
        record->timestamp_micros = row->timestamp_micros;
        record->row_index = row->row_index;
        PyTuple_SetItem(records, (Py_ssize_t)number, (PyObject *)record);
        if (row->has_origin && add_origin(record, page, vocabulary, row, &origin_before) < 0) {
            Py_DECREF(records);
            return NULL;
        }
    }
    return records;
}

/* ---- what is seen of a record ---- */

static PyObject *key_of(struct record *record)
{
    struct layout *layout = record->layout;
    PyObject *key = PyTuple_New((Py_ssize_t)layout->key_count);
    for (uint32_t place = 0; key != NULL && place < layout->key_count; place++) {
        PyObject *name = name_at(&layout->vocabulary->names, layout->cells[place].name)->object;
        PyObject *pair = PyTuple_Pack(2, name, record->slots[place].value);
        if (pair == NULL)
            Py_CLEAR(key);
        else
            PyTuple_SetItem(key, (Py_ssize_t)place, pair);
    }
    return key;
}

static PyObject *stamp_of(struct record *record, uint32_t place, PyObject *common)
{
    struct layout *layout = record->layout;
    if (!layout->cells[layout->key_count + place].has_stamp)
        Py_RETURN_NONE;
    if (!layout->has_one_stamp)
        return PyLong_FromLongLong(record->slots[layout->key_count + layout->cell_count + place].stamp);
    Py_INCREF(common);
    return common;
}

static PyObject *column_of(struct record *record, uint32_t place, PyObject *common)
{
    struct layout *layout = record->layout;
    struct classes *classes = layout->vocabulary->classes;
    uint32_t slot = layout->key_count + place;
    PyObject *stamp = stamp_of(record, place, common);
    struct column *column = stamp == NULL ? NULL : allocate(classes->column, sizeof *column);
    if (column == NULL) {
        Py_XDECREF(stamp);
        return NULL;
    }
    column->weak_references = NULL;
    column->fields[0] = name_at(&layout->vocabulary->names, layout->cells[slot].name)->object;
    column->fields[1] = classes->operations[layout->cells[slot].operation];
    column->fields[2] = record->slots[slot].value;
    column->fields[3] = stamp;
    for (int field = 0; field < 3; field++)
        Py_INCREF(column->fields[field]);
    return (PyObject *)column;
}

static PyObject *columns_of(struct record *record)
{
    uint32_t count = record->layout->cell_count;
    PyObject *common = PyLong_FromLongLong(record->stamp);
    PyObject *columns = common == NULL ? NULL : PyTuple_New((Py_ssize_t)count);
    for (uint32_t place = 0; columns != NULL && place < count; place++) {
        PyObject *column = column_of(record, place, common);
        if (column == NULL)
            Py_CLEAR(columns);
        else
            PyTuple_SetItem(columns, (Py_ssize_t)place, column);
    }
    Py_XDECREF(common);
    return columns;
}

static PyObject *sequence_of(struct record *record)
{
    struct sequence *sequence = allocate(record->layout->vocabulary->classes->sequence, sizeof *sequence);
    if (sequence == NULL)
        return NULL;
    sequence->weak_references = NULL;
    sequence->fields[0] = PyLong_FromUnsignedLong(record->epoch);
    sequence->fields[1] = PyLong_FromLongLong(record->timestamp_micros);
    sequence->fields[2] = PyLong_FromUnsignedLong(record->row_index);
    for (int field = 0; field < SEQUENCE_FIELDS; field++)
        if (sequence->fields[field] == NULL) {
            Py_DECREF((PyObject *)sequence);
            return NULL;
        }
    return (PyObject *)sequence;
}

static PyObject *build(struct record *record, enum record_field field)
{
    switch (field) {
    case PRIMARY_KEY:
        return key_of(record);
    case COLUMNS:
        return columns_of(record);
    case SEQUENCE_INFO:
        return sequence_of(record);
    case ORIGINAL_COLUMNS:
        if (record->made->origin != NULL)
            return columns_of(record->made->origin);
        /* fall through */
    default:
        Py_RETURN_NONE;
    }
}

static const char *const FIELD_NAMES[] = {"record_type", "primary_key", "columns", "sequence_info",
                                          "original_columns"};

static PyObject *record_get(PyObject *self, void *closure)
{
    struct record *record = (struct record *)self;
    enum record_field field = (enum record_field)(intptr_t)closure;
    PyObject *value = record->made == NULL ? NULL : record->made->fields[field];
    if (value == NULL && record->layout == NULL) {
        PyErr_SetString(PyExc_AttributeError, FIELD_NAMES[field]);
        return NULL;
    }
    if (value == NULL && field == RECORD_TYPE)
        value = record->layout->vocabulary->classes->record_types[record->layout->action];
    else if (value == NULL) {
        if (made_of(record) == NULL)
            return NULL;
        value = build(record, field);
        if (value == NULL)
            return NULL;
        /* Allocating may have run other code, which asked for the same. */
        if (record->made->fields[field] == NULL)
            record->made->fields[field] = value;
        else
            Py_DECREF(value);
        value = record->made->fields[field];
    }
    Py_INCREF(value);
    return value;
}

/* The class forbids assignment; this is what its constructor and unpickling use. */
static int record_set(PyObject *self, PyObject *value, void *closure)
{
    struct record *record = (struct record *)self;
    enum record_field field = (enum record_field)(intptr_t)closure;
    if (value == NULL && (record->made == NULL || record->made->fields[field] == NULL)) {
        PyErr_SetString(PyExc_AttributeError, FIELD_NAMES[field]);
        return -1;
    }
    if (made_of(record) == NULL)
        return -1;
    PyObject *old = record->made->fields[field];
    Py_XINCREF(value);
    record->made->fields[field] = value;
    Py_XDECREF(old);
    return 0;
}

/* ---- the classes: the package adds everything to them that is not storage ---- */

static void release_object(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free); /* another one in subclasses that are collected */
    release(self);
    Py_DECREF((PyObject *)type);
}

static void record_dealloc(PyObject *self)
{
    struct record *record = (struct record *)self;
    if (record->weak_references != NULL)
        PyObject_ClearWeakRefs(self);
    if (record->made != NULL) {
        for (int field = 0; field < RECORD_FIELDS; field++)
            Py_XDECREF(record->made->fields[field]);
        Py_XDECREF((PyObject *)record->made->origin);
        free(record->made);
    }
    if (record->layout != NULL) {
        size_t count = (size_t)record->layout->key_count + record->layout->cell_count;
        for (size_t slot = 0; slot < count; slot++)
            Py_DECREF(record->slots[slot].value);
        layout_release(record->layout);
    }
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
