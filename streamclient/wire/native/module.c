/* The Python module: the codec, which reads pages, and the classes of pages and their iterators. */
#include "native.h"
#include "server.h"

#include <stdlib.h>
#include <string.h>

#define IDLE_VOCABULARIES 4 /* the usual number of pages that threads decode at the same time */
#define KEPT_NAMES 4096     /* enough for several wide tables; a vocabulary with more names is not used again */

struct state {
    PyTypeObject *record_classes[3]; /* StreamRecord, RecordColumn, SequenceInfo */
    PyTypeObject *page_type, *iterator_type, *columns_type;
};

struct codec {
    PyObject_HEAD
    struct classes *classes;
    struct vocabulary *idle[IDLE_VOCABULARIES];
    int idle_count;
};

struct page_object {
    PyObject_HEAD
    struct source *source;
};

/* ---- pages ---- */

/* The chosen rows of a page. The caller in Python gives a range or a tuple of row numbers. */
struct choice {
    Py_ssize_t count;
    uint32_t *numbers; /* the row numbers, in memory that the owner of this struct frees */
};

static bool set_number(struct choice *choice, Py_ssize_t place, Py_ssize_t number, size_t row_count)
{
    if (number < 0 || (size_t)number >= row_count) {
        PyErr_Format(PyExc_IndexError, "record %zd of a page of %zu", number, row_count);
        return false;
    }
    choice->numbers[place] = (uint32_t)number;
    return true;
}

static bool number_attribute(PyObject *range, const char *name, Py_ssize_t *number)
{
    PyObject *value = PyObject_GetAttrString(range, name);
    *number = value == NULL ? -1 : PyLong_AsSsize_t(value);
    Py_XDECREF(value);
    return !PyErr_Occurred();
}

static bool choose_range(struct choice *choice, PyObject *range, size_t row_count)
{
    Py_ssize_t number, step;
    if (!number_attribute(range, "start", &number) || !number_attribute(range, "step", &step))
        return false;
    for (Py_ssize_t place = 0; place < choice->count; place++) {
        if (place)
            number += step; /* stays within the range, so it cannot overflow */
        if (!set_number(choice, place, number, row_count))
            return false;
    }
    return true;
}

static bool choose_listed(struct choice *choice, PyObject *listed, size_t row_count)
{
    for (Py_ssize_t place = 0; place < choice->count; place++) {
        Py_ssize_t number = PyLong_AsSsize_t(PyTuple_GetItem(listed, place));
        if ((number == -1 && PyErr_Occurred()) || !set_number(choice, place, number, row_count))
            return false;
    }
    return true;
}

static bool choose(struct choice *choice, PyObject *rows, size_t row_count)
{
    bool is_range = PyObject_TypeCheck(rows, &PyRange_Type);
    *choice = (struct choice){0, NULL};
    if (!is_range && !PyTuple_Check(rows)) {
        PyErr_SetString(PyExc_TypeError, "expected a range or a tuple of numbers of records");
        return false;
    }
    choice->count = PyObject_Size(rows);
    if (choice->count < 0)
        return false;
    if ((size_t)choice->count > SIZE_MAX / sizeof *choice->numbers - 1 ||
        (choice->numbers = malloc(((size_t)choice->count + 1) * sizeof *choice->numbers)) == NULL) {
        PyErr_NoMemory();
        return false;
    }
    if (is_range ? choose_range(choice, rows, row_count) : choose_listed(choice, rows, row_count))
        return true;
    free(choice->numbers);
    return false;
}

/* An iterator over the records of chosen rows. It keeps the page alive. */
struct iterator {
    PyObject_HEAD
    struct page_object *page;
    struct choice choice;
    Py_ssize_t place;
};

static PyObject *page_iterate(PyObject *self, PyObject *rows)
{
    struct state *state = PyType_GetModuleState(Py_TYPE(self));
    struct choice choice;
    if (state == NULL || !choose(&choice, rows, ((struct page_object *)self)->source->page.row_count))
        return NULL;
    struct iterator *iterator = PyObject_New(struct iterator, state->iterator_type);
    if (iterator == NULL) {
        free(choice.numbers);
        return NULL;
    }
    Py_INCREF(self);
    iterator->page = (struct page_object *)self;
    iterator->choice = choice;
    iterator->place = 0;
    return (PyObject *)iterator;
}

static PyObject *iterator_next(PyObject *self)
{
    struct iterator *iterator = (struct iterator *)self;
    if (iterator->place >= iterator->choice.count)
        return NULL;
    return record_of(iterator->page->source, iterator->choice.numbers[iterator->place++]);
}

static PyObject *iterator_itself(PyObject *self)
{
    Py_INCREF(self);
    return self;
}

static PyObject *iterator_left(PyObject *self, PyObject *Py_UNUSED(arguments))
{
    struct iterator *iterator = (struct iterator *)self;
    return PyLong_FromSsize_t(iterator->choice.count - iterator->place);
}

static void iterator_dealloc(PyObject *self)
{
    struct iterator *iterator = (struct iterator *)self;
    PyTypeObject *type = Py_TYPE(self);
    free(iterator->choice.numbers);
    Py_DECREF((PyObject *)iterator->page);
    PyObject_Free(self);
    Py_DECREF((PyObject *)type);
}

static PyMethodDef iterator_methods[] = {
    {"__length_hint__", iterator_left, METH_NOARGS, "How many records are left."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot iterator_slots[] = {
    {Py_tp_dealloc, iterator_dealloc},
    {Py_tp_iter, iterator_itself},
    {Py_tp_iternext, iterator_next},
    {Py_tp_methods, iterator_methods},
    {0, NULL},
};
static PyType_Spec iterator_spec = {
    .name = "streamclient.wire._native.RecordIterator",
    .basicsize = sizeof(struct iterator),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = iterator_slots,
};

/* Return the row with the given number, or NULL with an exception. */
static const struct row *row_at(struct page_object *object, PyObject *number, uint32_t *place)
{
    struct choice one = {1, place};
    Py_ssize_t asked = PyLong_AsSsize_t(number);
    if ((asked == -1 && PyErr_Occurred()) || !set_number(&one, 0, asked, object->source->page.row_count))
        return NULL;
    return &object->source->page.rows[*place];
}

static PyObject *page_record(PyObject *self, PyObject *number)
{
    struct page_object *object = (struct page_object *)self;
    uint32_t place;
    return row_at(object, number, &place) == NULL ? NULL : record_of(object->source, place);
}

static PyObject *page_sequence(PyObject *self, PyObject *number)
{
    struct page_object *object = (struct page_object *)self;
    uint32_t place;
    const struct row *row = row_at(object, number, &place);
    return row == NULL ? NULL : sequence_of(object->source, row);
}

static PyObject *page_size(PyObject *self, PyObject *rows)
{
    const struct page *page = &((struct page_object *)self)->source->page;
    struct choice choice;
    uint64_t size = 0;
    if (!choose(&choice, rows, page->row_count))
        return NULL;
    for (Py_ssize_t place = 0; place < choice.count; place++)
        size += page->rows[choice.numbers[place]].size;
    free(choice.numbers);
    return PyLong_FromUnsignedLongLong(size);
}

static PyObject *page_writes(PyObject *self, PyObject *rows)
{
    const struct source *source = ((struct page_object *)self)->source;
    struct choice choice;
    if (!choose(&choice, rows, source->page.row_count))
        return NULL;
    PyObject *writes = PyList_New(choice.count);
    for (Py_ssize_t place = 0; writes != NULL && place < choice.count; place++) {
        PyObject *write = write_of(source, &source->page.rows[choice.numbers[place]]);
        if (write == NULL)
            Py_CLEAR(writes);
        else
            PyList_SetItem(writes, place, write);
    }
    free(choice.numbers);
    return writes;
}

/* Restrict `page`, a copy that borrows the content of another page, to the chosen rows. Unless the rows are adjacent,
   copy them into the returned memory. */
static struct row *rows_chosen(struct page *page, const struct choice *choice)
{
    bool stand_together = true;
    struct row *rows = NULL;
    for (Py_ssize_t place = 1; place < choice->count; place++)
        stand_together &= choice->numbers[place] == choice->numbers[place - 1] + 1;
    if (choice->count && stand_together) {
        page->rows += choice->numbers[0];
    } else if (choice->count) {
        rows = malloc((size_t)choice->count * sizeof *rows);
        for (Py_ssize_t place = 0; rows != NULL && place < choice->count; place++)
            rows[place] = page->rows[choice->numbers[place]];
        page->rows = rows;
    }
    page->row_count = page->rows == NULL ? 0 : (size_t)choice->count;
    return rows;
}

static PyObject *some_columns(PyObject *self, PyObject *arguments, bool is_values)
{
    struct source *source = ((struct page_object *)self)->source;
    struct state *state = PyType_GetModuleState(Py_TYPE(self));
    PyObject *schema, *rows, *columns = NULL;
    struct choice choice;
    if (state == NULL || !PyArg_ParseTuple(arguments, "OO", &schema, &rows) ||
        !choose(&choice, rows, source->page.row_count))
        return NULL;
    struct page page = source->page;
    struct row *own_rows = rows_chosen(&page, &choice);
    if (choice.count && page.rows == NULL)
        PyErr_NoMemory();
    else
        columns = columns_of_page(state->columns_type, &page, source->vocabulary, schema, is_values);
    free(own_rows);
    free(choice.numbers);
    return columns;
}

static PyObject *page_columns(PyObject *self, PyObject *arguments) { return some_columns(self, arguments, false); }

static PyObject *page_values(PyObject *self, PyObject *arguments) { return some_columns(self, arguments, true); }

static PyObject *page_next(PyObject *self, void *Py_UNUSED(closure))
{
    struct page_object *object = (struct page_object *)self;
    const struct page *page = &object->source->page;
    const char *text = (const char *)page->body + page->next.offset;
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)page->next.size, NULL);
}

static PyObject *page_may_more(PyObject *self, void *Py_UNUSED(closure))
{
    int may_more = ((struct page_object *)self)->source->page.may_more;
    if (may_more < 0)
        Py_RETURN_NONE;
    return PyBool_FromLong(may_more);
}

static PyObject *page_read_units(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLong((int32_t)((struct page_object *)self)->source->page.read_units);
}

static PyObject *page_record_count(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSize_t(((struct page_object *)self)->source->page.row_count);
}

static bool is_after(const struct row *row, const struct row *before)
{
    if (row->epoch != before->epoch)
        return row->epoch > before->epoch;
    if (row->timestamp_micros != before->timestamp_micros)
        return row->timestamp_micros > before->timestamp_micros;
    return row->row_index > before->row_index;
}

static PyObject *page_disorder(PyObject *self, void *Py_UNUSED(closure))
{
    const struct page *page = &((struct page_object *)self)->source->page;
    size_t place = 1;
    while (place < page->row_count && is_after(&page->rows[place], &page->rows[place - 1]))
        place++;
    return PyLong_FromSize_t(place < page->row_count ? place : 0);
}

/* Let records that are still in use leave the page, so that no record keeps the whole page. */
static void page_dealloc(PyObject *self)
{
    struct page_object *object = (struct page_object *)self;
    PyTypeObject *type = Py_TYPE(self);
    records_settle(object->source);
    source_release(object->source);
    PyObject_Free(self);
    Py_DECREF((PyObject *)type);
}

static PyMethodDef page_methods[] = {
    {"records", page_iterate, METH_O,
     "records(rows, /)\n--\n\nReturn these records, given by a range or a tuple."},
    {"record", page_record, METH_O,
     "record(number, /)\n--\n\nReturn one record: an existing object that is still in use, or else a new one."},
    {"sequence", page_sequence, METH_O, "sequence(number, /)\n--\n\nReturn the SequenceInfo of one record."},
    {"size", page_size, METH_O, "size(rows, /)\n--\n\nReturn the bytes of these records on the wire."},
    {"writes", page_writes, METH_O,
     "writes(rows, /)\n--\n\nReturn these records as the writes that do the same: type, bytes of the key, row."},
    {"columns", page_columns, METH_VARARGS,
     "columns(schema, rows, /)\n--\n\nReturn the cells of these records by column, or None if the twin has to name the "
     "fault."},
    {"values", page_values, METH_VARARGS,
     "values(schema, rows, /)\n--\n\nReturn the values of these columns, keys or not, or None if they would be "
     "incomplete."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef page_getters[] = {
    {"next", page_next, NULL, "The iterator or token of the next page; empty without a next page.", NULL},
    {"may_more_record", page_may_more, NULL, "The service's hint, or None.", NULL},
    {"read_units", page_read_units, NULL, "The capacity units that the page has cost; 0 if it does not say.", NULL},
    {"record_count", page_record_count, NULL, "The number of records in the page.", NULL},
    {"disorder", page_disorder, NULL, "The first record that is not after the one before it; 0 if all are.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot page_slots[] = {
    {Py_tp_dealloc, page_dealloc},
    {Py_tp_methods, page_methods},
    {Py_tp_getset, page_getters},
    {0, NULL},
};
static PyType_Spec page_spec = {
    .name = "streamclient.wire._native.Page",
    .basicsize = sizeof(struct page_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = page_slots,
};

/* ---- the codec ---- */

static struct vocabulary *take_vocabulary(struct codec *codec)
{
    if (codec->idle_count)
        return codec->idle[--codec->idle_count];
    struct vocabulary *vocabulary = calloc(1, sizeof *vocabulary);
    if (vocabulary == NULL)
        return (struct vocabulary *)PyErr_NoMemory();
    vocabulary->references = 1;
    vocabulary->classes = codec->classes;
    codec->classes->references++;
    return vocabulary;
}

static void return_vocabulary(struct codec *codec, struct vocabulary *vocabulary)
{
    if (codec->idle_count < IDLE_VOCABULARIES && vocabulary->names.count <= KEPT_NAMES)
        codec->idle[codec->idle_count++] = vocabulary;
    else
        vocabulary_release(vocabulary);
}

/* Make the Python text of each new name. */
static int name_new_ones(struct vocabulary *vocabulary)
{
    for (; vocabulary->named < vocabulary->names.count; vocabulary->named++) {
        struct name *name = name_at(&vocabulary->names, vocabulary->named);
        name->object = PyUnicode_DecodeUTF8((const char *)name->bytes, (Py_ssize_t)name->size, NULL);
        if (name->object == NULL)
            return -1;
    }
    return 0;
}

/* Read all records, or only the last one if `record_count` is given. */
static enum verdict read_page(struct page *page, struct names *names, size_t *record_count)
{
    enum verdict verdict;
    if (page->size < UNLOCK_FROM_BYTES)
        return record_count == NULL ? page_read(page, names) : page_summarize(page, names, record_count);
    Py_BEGIN_ALLOW_THREADS
    verdict = record_count == NULL ? page_read(page, names) : page_summarize(page, names, record_count);
    Py_END_ALLOW_THREADS
    return verdict;
}

/* Return the Python object of a page, which takes over the page's index; NULL with an exception. */
static PyObject *page_of(PyTypeObject *page_type, PyObject *body, struct page *page, struct vocabulary *vocabulary)
{
    struct source *source = calloc(1, sizeof *source);
    struct page_object *object = source == NULL ? NULL : PyObject_New(struct page_object, page_type);
    if (object == NULL) {
        free(source);
        return PyErr_NoMemory();
    }
    source->references = 1;
    source->classes = vocabulary->classes;
    source->classes->references++;
    source->vocabulary = vocabulary;
    vocabulary->references++;
    Py_INCREF(source->body = body);
    source->page = *page;
    object->source = source;
    return (PyObject *)object;
}

/* Return the page of a response body, None for a declined body, or NULL with an exception. */
static PyObject *codec_read(PyObject *self, PyObject *body, enum page_kind kind, size_t *record_count)
{
    struct codec *codec = (struct codec *)self;
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(body, &bytes, &size) < 0)
        return NULL;
    struct state *state = PyType_GetModuleState(Py_TYPE(self));
    struct vocabulary *vocabulary = state == NULL ? NULL : take_vocabulary(codec);
    if (vocabulary == NULL)
        return NULL;
    struct page page = {.body = (const uint8_t *)bytes, .size = (size_t)size, .kind = kind};
    page_swap_memory(&page, &vocabulary->spare);
    enum verdict verdict = read_page(&page, &vocabulary->names, record_count);
    PyObject *result = NULL;
    if (verdict == OUT_OF_MEMORY)
        PyErr_NoMemory();
    else if (verdict == NOT_ACCEPTED)
        Py_INCREF(result = Py_None);
    else if (name_new_ones(vocabulary) == 0)
        result = page_of(state->page_type, body, &page, vocabulary);
    if (result == NULL || result == Py_None)
        index_end(&page, vocabulary);
    return_vocabulary(codec, vocabulary);
    return result;
}

static PyObject *codec_decode(PyObject *self, PyObject *arguments)
{
    PyObject *body;
    int is_tunnel;
    if (!PyArg_ParseTuple(arguments, "Sp:decode", &body, &is_tunnel))
        return NULL;
    return codec_read(self, body, is_tunnel ? TUNNEL_PAGE : STREAM_PAGE, NULL);
}

static PyObject *codec_summarize(PyObject *self, PyObject *body)
{
    size_t record_count = 0;
    PyObject *page = codec_read(self, body, STREAM_PAGE, &record_count);
    return page == NULL || page == Py_None ? page : Py_BuildValue("nN", (Py_ssize_t)record_count, page);
}

static struct classes *classes_from(struct state *state, PyObject *const record_types[3],
                                    PyObject *const operations[3])
{
    static const int actions[] = {PUT_ROW, UPDATE_ROW, DELETE_ROW};
    static const int numbers[] = {PUT_CELL, DELETE_ONE_VERSION, DELETE_ALL_VERSIONS};
    struct classes *classes = calloc(1, sizeof *classes);
    if (classes == NULL)
        return (struct classes *)PyErr_NoMemory();
    classes->references = 1;
    Py_INCREF((PyObject *)(classes->record = state->record_classes[0]));
    Py_INCREF((PyObject *)(classes->column = state->record_classes[1]));
    Py_INCREF((PyObject *)(classes->sequence = state->record_classes[2]));
    for (int place = 0; place < 3; place++) {
        Py_INCREF(classes->record_types[actions[place]] = record_types[place]);
        Py_INCREF(classes->operations[numbers[place]] = operations[place]);
    }
    return classes;
}

static PyObject *codec_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    PyObject *types[3], *operations[3];
    if (keywords != NULL && PyDict_Size(keywords) > 0) {
        PyErr_SetString(PyExc_TypeError, "Codec takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(arguments, "(OOO)(OOO):Codec", &types[0], &types[1], &types[2], &operations[0],
                          &operations[1], &operations[2]))
        return NULL;
    struct state *state = PyType_GetModuleState(type);
    struct classes *classes = state == NULL ? NULL : classes_from(state, types, operations);
    struct codec *codec = classes == NULL ? NULL : PyObject_New(struct codec, type);
    if (codec == NULL) {
        classes_release(classes);
        return NULL;
    }
    codec->classes = classes;
    codec->idle_count = 0;
    return (PyObject *)codec;
}

static void codec_dealloc(PyObject *self)
{
    struct codec *codec = (struct codec *)self;
    PyTypeObject *type = Py_TYPE(self);
    while (codec->idle_count)
        vocabulary_release(codec->idle[--codec->idle_count]);
    classes_release(codec->classes);
    PyObject_Free(self);
    Py_DECREF((PyObject *)type);
}

static PyMethodDef codec_methods[] = {
    {"decode", codec_decode, METH_VARARGS,
     "decode(body, is_tunnel, /)\n--\n\nReturn the page, or None if the decoder in Python has to read it or name its "
     "fault."},
    {"summarize", codec_summarize, METH_O,
     "summarize(body, /)\n--\n\nReturn the number of a page's records and a page of the last one; None as in decode."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot codec_slots[] = {
    {Py_tp_new, codec_new},
    {Py_tp_dealloc, codec_dealloc},
    {Py_tp_methods, codec_methods},
    {0, NULL},
};
static PyType_Spec codec_spec = {
    .name = "streamclient.wire._native.Codec",
    .basicsize = sizeof(struct codec),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = codec_slots,
};

/* ---- the module ---- */

static int add_type(PyObject *module, PyType_Spec *spec, const char *name, PyTypeObject **kept)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    int done = type == NULL ? -1 : PyModule_AddObjectRef(module, name, type);
    if (done == 0 && kept != NULL) {
        Py_INCREF(type);
        *kept = (PyTypeObject *)type;
    }
    Py_XDECREF(type);
    return done;
}

static int execute(PyObject *module)
{
    struct state *state = PyModule_GetState(module);
    checks_prepare();
    if (add_record_classes(module, state->record_classes) < 0 || add_type(module, &codec_spec, "Codec", NULL) < 0 ||
        add_type(module, &page_spec, "Page", &state->page_type) < 0 ||
        add_type(module, &iterator_spec, "RecordIterator", &state->iterator_type) < 0 ||
        add_type(module, &columns_spec, "Columns", &state->columns_type) < 0 ||
        add_type(module, &put_spec, "Put", NULL) < 0)
        return -1;
    return 0;
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    struct state *state = PyModule_GetState(module);
    if (state == NULL)
        return 0;
    for (int number = 0; number < 3; number++)
        Py_VISIT((PyObject *)state->record_classes[number]);
    Py_VISIT((PyObject *)state->page_type);
    Py_VISIT((PyObject *)state->iterator_type);
    Py_VISIT((PyObject *)state->columns_type);
    return 0;
}

static int clear(PyObject *module)
{
    struct state *state = PyModule_GetState(module);
    if (state == NULL)
        return 0;
    for (int number = 0; number < 3; number++)
        Py_CLEAR(state->record_classes[number]);
    Py_CLEAR(state->page_type);
    Py_CLEAR(state->iterator_type);
    Py_CLEAR(state->columns_type);
    return 0;
}

static void release(void *module) { clear((PyObject *)module); }

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_doc = "Pages of stream records, decoded in C; streamclient.wire.record_decoding describes them.",
    .m_size = sizeof(struct state),
    .m_methods = server_functions,
    .m_slots = module_slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = release,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
