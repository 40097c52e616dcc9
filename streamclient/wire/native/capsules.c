/* Columns as a Python object that any Arrow library takes in: it has the methods of the PyCapsule interface. */
#include "arrow.h"
#include "native.h"

#include <stdlib.h>
#include <string.h>

struct columns_object {
    PyObject_HEAD
    struct batch *batch;
};

/* ---- which columns ---- */

static bool is_c_text(const struct name *name) { return memchr(name->bytes, 0, name->size) == NULL; }

static char *copy_text(const void *bytes, size_t size)
{
    char *text = malloc(size + 1);
    if (text != NULL) {
        memcpy(text, bytes, size);
        text[size] = 0;
    }
    return text;
}

/* The columns that were found, but for those whose names Arrow cannot hold: those stay without a place. */
static enum verdict keep_found(struct batch *batch, const struct names *names, uint32_t *places)
{
    size_t kept = 0;
    batch->names = calloc(batch->key_count + batch->attribute_count + 1, sizeof *batch->names);
    if (batch->names == NULL)
        return OUT_OF_MEMORY;
    for (size_t number = 0; number < batch->attribute_count; number++) {
        struct attribute *attribute = &batch->attributes[number];
        const struct name *name = name_at(names, attribute->name);
        places[attribute->name] = 0;
        if (!is_c_text(name))
            continue;
        char *text = batch->names[batch->key_count + kept] = copy_text(name->bytes, name->size);
        if (text == NULL)
            return OUT_OF_MEMORY;
        batch->attributes[kept] = *attribute;
        places[attribute->name] = (uint32_t)++kept;
    }
    batch->attribute_count = kept;
    return ACCEPTED;
}

/* The columns of a schema, a tuple of pairs of name and type, in its order. What it lacks has no place. */
static enum verdict arrange(struct batch *batch, const struct names *names, uint32_t *places, PyObject *schema)
{
    Py_ssize_t count = PyTuple_Size(schema);
    struct attribute *arranged = calloc((size_t)count + 1, sizeof *arranged);
    PyObject *order = PyDict_New();
    enum verdict verdict = ACCEPTED;
    batch->names = calloc(batch->key_count + (size_t)count + 1, sizeof *batch->names);
    if (arranged == NULL || order == NULL || batch->names == NULL)
        verdict = OUT_OF_MEMORY;
    for (Py_ssize_t place = 0; verdict == ACCEPTED && place < count; place++) {
        PyObject *name;
        int type;
        Py_ssize_t size;
        PyObject *pair = PyTuple_GetItem(schema, place);
        if (!PyTuple_Check(pair) || !PyArg_ParseTuple(pair, "Ui", &name, &type)) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_TypeError, "expected pairs of name and type in a schema");
            verdict = OUT_OF_MEMORY; /* an exception is set */
            break;
        }
        PyObject *number = PyLong_FromSsize_t(place);
        const char *text = PyUnicode_AsUTF8AndSize(name, &size);
        if (number == NULL || text == NULL || PyDict_SetItem(order, name, number) < 0)
            verdict = OUT_OF_MEMORY;
        else if ((batch->names[batch->key_count + (size_t)place] = copy_text(text, (size_t)size)) == NULL)
            verdict = OUT_OF_MEMORY;
        Py_XDECREF(number);
        arranged[place].type = (uint8_t)type;
    }
    for (size_t found = 0; verdict == ACCEPTED && found < batch->attribute_count; found++) {
        uint16_t name = batch->attributes[found].name;
        PyObject *number = PyDict_GetItemWithError(order, name_at(names, name)->object);
        if (number == NULL && PyErr_Occurred())
            verdict = OUT_OF_MEMORY;
        places[name] = number == NULL ? 0 : (uint32_t)PyLong_AsLong(number) + 1;
    }
    Py_XDECREF(order);
    if (verdict == ACCEPTED) {
        free(batch->attributes);
        batch->attributes = arranged;
        batch->attribute_count = (size_t)count;
    } else {
        free(arranged);
    }
    return verdict;
}

static enum verdict name_keys(struct batch *batch, const struct page *page, const struct names *names)
{
    for (size_t key = 0; key < batch->key_count; key++) {
        const struct name *name = name_at(names, page->cells[page->rows[0].first_cell + key].name);
        if (!is_c_text(name))
            return NOT_ACCEPTED;
        for (size_t other = 0; other < key; other++)
            if (page->cells[page->rows[0].first_cell + other].name == page->cells[page->rows[0].first_cell + key].name)
                return NOT_ACCEPTED;
        if ((batch->names[key] = copy_text(name->bytes, name->size)) == NULL)
            return OUT_OF_MEMORY;
    }
    return ACCEPTED;
}

/* The lock is given up for what takes long: looking at each cell, twice. Names are only added meanwhile, never moved. */
static enum verdict build(struct batch *batch, const struct page *page, const struct names *names, uint32_t *places,
                          PyObject *schema)
{
    enum verdict verdict;
    size_t bad;
    batch->key_count = page->row_count ? page->rows[0].key_count : 0;
    Py_BEGIN_ALLOW_THREADS
    verdict = batch_survey(batch, page, places);
    Py_END_ALLOW_THREADS
    if (verdict == ACCEPTED)
        verdict = schema == Py_None ? keep_found(batch, names, places) : arrange(batch, names, places, schema);
    if (verdict == ACCEPTED)
        verdict = name_keys(batch, page, names);
    if (verdict != ACCEPTED)
        return verdict;
    Py_BEGIN_ALLOW_THREADS
    verdict = batch_fill(batch, page, names, places, &bad);
    Py_END_ALLOW_THREADS
    return verdict;
}

PyObject *columns_of_page(PyTypeObject *type, const struct page *page, struct vocabulary *vocabulary, PyObject *schema)
{
    if (schema != Py_None && !PyTuple_Check(schema)) {
        PyErr_SetString(PyExc_TypeError, "expected None or a tuple of pairs of name and type");
        return NULL;
    }
    uint32_t *places = calloc(vocabulary->named + 1, sizeof *places);
    struct batch *batch = calloc(1, sizeof *batch);
    enum verdict verdict = OUT_OF_MEMORY;
    if (batch != NULL)
        atomic_init(&batch->references, 1);
    if (places != NULL && batch != NULL)
        verdict = build(batch, page, &vocabulary->names, places, schema);
    free(places);
    struct columns_object *columns = verdict == ACCEPTED ? PyObject_New(struct columns_object, type) : NULL;
    if (columns != NULL) {
        columns->batch = batch;
        return (PyObject *)columns;
    }
    batch_release(batch);
    if (verdict == NOT_ACCEPTED)
        Py_RETURN_NONE;
    return PyErr_Occurred() ? NULL : PyErr_NoMemory();
}

/* ---- handing them out ---- */

static void schema_capsule_destroyed(PyObject *capsule)
{
    struct ArrowSchema *schema = PyCapsule_GetPointer(capsule, "arrow_schema");
    if (schema->release != NULL)
        schema->release(schema);
    free(schema);
}

static void array_capsule_destroyed(PyObject *capsule)
{
    struct ArrowArray *array = PyCapsule_GetPointer(capsule, "arrow_array");
    if (array->release != NULL)
        array->release(array);
    free(array);
}

static PyObject *columns_schema(PyObject *self, PyObject *Py_UNUSED(arguments))
{
    struct ArrowSchema *schema = calloc(1, sizeof *schema);
    PyObject *capsule = NULL;
    if (schema == NULL)
        return PyErr_NoMemory();
    if (!schema_of(((struct columns_object *)self)->batch, schema))
        PyErr_NoMemory();
    else
        capsule = PyCapsule_New(schema, "arrow_schema", schema_capsule_destroyed);
    if (capsule == NULL) {
        if (schema->release != NULL)
            schema->release(schema);
        free(schema);
    }
    return capsule;
}

static PyObject *array_capsule(struct batch *batch)
{
    struct ArrowArray *array = calloc(1, sizeof *array);
    PyObject *capsule = NULL;
    if (array == NULL)
        return PyErr_NoMemory();
    if (!array_of(batch, array))
        PyErr_NoMemory();
    else
        capsule = PyCapsule_New(array, "arrow_array", array_capsule_destroyed);
    if (capsule == NULL) {
        if (array->release != NULL)
            array->release(array);
        free(array);
    }
    return capsule;
}

static PyObject *columns_array(PyObject *self, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"requested_schema", NULL};
    PyObject *requested = Py_None; /* a wish, which a producer need not follow */
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "|O:__arrow_c_array__", names, &requested))
        return NULL;
    PyObject *schema = columns_schema(self, NULL);
    PyObject *array = schema == NULL ? NULL : array_capsule(((struct columns_object *)self)->batch);
    PyObject *both = array == NULL ? NULL : PyTuple_Pack(2, schema, array);
    Py_XDECREF(schema);
    Py_XDECREF(array);
    return both;
}

static void columns_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    batch_release(((struct columns_object *)self)->batch);
    PyObject_Free(self);
    Py_DECREF((PyObject *)type);
}

static PyMethodDef columns_methods[] = {
    {"__arrow_c_schema__", columns_schema, METH_NOARGS, "The schema as a capsule."},
    {"__arrow_c_array__", (PyCFunction)(void (*)(void))columns_array, METH_VARARGS | METH_KEYWORDS,
     "Schema and one struct array as capsules."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot columns_slots[] = {
    {Py_tp_dealloc, columns_dealloc},
    {Py_tp_methods, columns_methods},
    {0, NULL},
};
PyType_Spec columns_spec = {
    .name = "streamclient.wire._native.Columns",
    .basicsize = sizeof(struct columns_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = columns_slots,
};
