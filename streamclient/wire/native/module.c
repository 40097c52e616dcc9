/* The module: a codec that reads pages, and the pages it has read. */
#include "native.h"

#include <stdlib.h>
#include <string.h>

#define IDLE_VOCABULARIES 4 /* as many pages as are usually decoded at the same time */
#define KEPT_NAMES 4096     /* the columns of several wide tables; with more, a vocabulary is not used again */
#define KEPT_CELLS 65536    /* 1.5 MB of index that a vocabulary keeps for its next page */
#define UNLOCK_FROM_BYTES 32768 /* below, giving the lock up and getting it back costs more than it gives others */

struct state {
    PyTypeObject *record_classes[3]; /* StreamRecord, RecordColumn, SequenceInfo */
    PyTypeObject *page_type, *columns_type;
};

struct codec {
    PyObject_HEAD
    struct classes *classes;
    struct vocabulary *idle[IDLE_VOCABULARIES];
    int idle_count;
};

struct page_object {
    PyObject_HEAD
    PyObject *body;
    PyObject *records; /* made when first asked for */
    struct vocabulary *vocabulary;
    struct page page;
};

/* ---- pages ---- */

static PyObject *page_records(PyObject *self, PyObject *Py_UNUSED(arguments))
{
    struct page_object *object = (struct page_object *)self;
    if (object->records == NULL) {
        PyObject *records = records_of(&object->page, object->vocabulary);
        if (records == NULL)
            return NULL;
        if (object->records == NULL) /* allocating may have run other code, which asked for the same */
            object->records = records;
        else
            Py_DECREF(records);
    }
    Py_INCREF(object->records);
    return object->records;
}

static PyObject *page_columns(PyObject *self, PyObject *schema)
{
    struct page_object *object = (struct page_object *)self;
    struct state *state = PyType_GetModuleState(Py_TYPE(self));
    return state == NULL ? NULL : columns_of_page(state->columns_type, &object->page, object->vocabulary, schema);
}

static PyObject *page_next(PyObject *self, void *Py_UNUSED(closure))
{
    struct page_object *object = (struct page_object *)self;
    const char *text = (const char *)object->page.body + object->page.next.offset;
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)object->page.next.size, NULL);
}

static PyObject *page_may_more(PyObject *self, void *Py_UNUSED(closure))
{
    int may_more = ((struct page_object *)self)->page.may_more;
    if (may_more < 0)
        Py_RETURN_NONE;
    return PyBool_FromLong(may_more);
}

static PyObject *page_record_count(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSize_t(((struct page_object *)self)->page.row_count);
}

/* The end of an index: its memory serves the next page, unless that has some already or this is uncommonly much. */
static void end_index(struct page *page, struct vocabulary *vocabulary)
{
    if (vocabulary->spare.cells == NULL && page->cell_room <= KEPT_CELLS)
        page_swap_memory(page, &vocabulary->spare);
    page_clear(page);
}

static void page_dealloc(PyObject *self)
{
    struct page_object *object = (struct page_object *)self;
    PyTypeObject *type = Py_TYPE(self);
    end_index(&object->page, object->vocabulary);
    vocabulary_release(object->vocabulary);
    Py_XDECREF(object->records);
    Py_XDECREF(object->body);
    PyObject_Free(self);
    Py_DECREF((PyObject *)type);
}

static PyMethodDef page_methods[] = {
    {"records", page_records, METH_NOARGS, "The records as a tuple, made at the first call."},
    {"columns", page_columns, METH_O,
     "columns(schema, /)\n--\n\nThe cells by column, or None where the twin has to say what is wrong."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef page_getters[] = {
    {"next", page_next, NULL, "Iterator or token of the next page; empty where there is none.", NULL},
    {"may_more_record", page_may_more, NULL, "The service's hint, or None.", NULL},
    {"record_count", page_record_count, NULL, "How many records the page holds.", NULL},
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

/* Give each new name its text. */
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

static enum verdict read_page(struct page *page, struct names *names)
{
    enum verdict verdict;
    if (page->size < UNLOCK_FROM_BYTES)
        return page_read(page, names);
    Py_BEGIN_ALLOW_THREADS
    verdict = page_read(page, names);
    Py_END_ALLOW_THREADS
    return verdict;
}

static PyObject *page_of(PyTypeObject *page_type, PyObject *body, struct page *page, struct vocabulary *vocabulary)
{
    struct page_object *object = PyObject_New(struct page_object, page_type);
    if (object == NULL) {
        return NULL;
    }
    Py_INCREF(body);
    object->body = body;
    object->records = NULL;
    object->vocabulary = vocabulary;
    vocabulary->references++;
    object->page = *page;
    return (PyObject *)object;
}

static PyObject *codec_decode(PyObject *self, PyObject *arguments)
{
    struct codec *codec = (struct codec *)self;
    PyObject *body;
    int is_tunnel;
    char *bytes;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(arguments, "Sp:decode", &body, &is_tunnel) || PyBytes_AsStringAndSize(body, &bytes, &size) < 0)
        return NULL;
    struct state *state = PyType_GetModuleState(Py_TYPE(self));
    struct vocabulary *vocabulary = state == NULL ? NULL : take_vocabulary(codec);
    if (vocabulary == NULL)
        return NULL;
    struct page page = {
        .body = (const uint8_t *)bytes, .size = (size_t)size, .kind = is_tunnel ? TUNNEL_PAGE : STREAM_PAGE};
    page_swap_memory(&page, &vocabulary->spare);
    enum verdict verdict = read_page(&page, &vocabulary->names);
    PyObject *result = NULL;
    if (verdict == OUT_OF_MEMORY)
        PyErr_NoMemory();
    else if (verdict == NOT_ACCEPTED)
        Py_INCREF(result = Py_None);
    else if (name_new_ones(vocabulary) == 0)
        result = page_of(state->page_type, body, &page, vocabulary);
    if (result == NULL || result == Py_None)
        end_index(&page, vocabulary);
    return_vocabulary(codec, vocabulary);
    return result;
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
     "decode(body, is_tunnel, /)\n--\n\nThe page, or None where the decoder in Python has to read it or to say what is "
     "wrong."},
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
    crc8_prepare();
    if (add_record_classes(module, state->record_classes) < 0 || add_type(module, &codec_spec, "Codec", NULL) < 0 ||
        add_type(module, &page_spec, "Page", &state->page_type) < 0 ||
        add_type(module, &columns_spec, "Columns", &state->columns_type) < 0)
        return -1;
    return 0;
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    struct state *state = PyModule_GetState(module);
    for (int number = 0; state != NULL && number < 3; number++)
        Py_VISIT((PyObject *)state->record_classes[number]);
    if (state != NULL)
        Py_VISIT((PyObject *)state->page_type);
    if (state != NULL)
        Py_VISIT((PyObject *)state->columns_type);
    return 0;
}

static int clear(PyObject *module)
{
    struct state *state = PyModule_GetState(module);
    for (int number = 0; state != NULL && number < 3; number++)
        Py_CLEAR(state->record_classes[number]);
    if (state != NULL)
        Py_CLEAR(state->page_type);
    if (state != NULL)
        Py_CLEAR(state->columns_type);
    return 0;
}

static void release(void *module) { clear((PyObject *)module); }

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_doc = "Pages of stream records, decoded in C; streamclient.wire.records says what they mean.",
    .m_size = sizeof(struct state),
    .m_slots = module_slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = release,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
