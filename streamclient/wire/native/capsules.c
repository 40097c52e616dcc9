/* The Python object for the columns of a page. It has the methods of the Arrow PyCapsule interface. */
#include "arrow.h"
#include "native.h"

#include <stdlib.h>
#include <string.h>

struct columns_object {
    PyObject_HEAD
    struct batch *batch;
};

/* Return the columns of a schema, which is a tuple of pairs of name and type; NULL with an exception. The tuple owns
   the texts of the names. */
static struct wanted *wanted_of(PyObject *schema, Py_ssize_t count)
{
    struct wanted *wanted = calloc((size_t)count + 1, sizeof *wanted);
    if (wanted == NULL)
        return (struct wanted *)PyErr_NoMemory();
    for (Py_ssize_t place = 0; place < count; place++) {
        PyObject *name, *pair = PyTuple_GetItem(schema, place);
        Py_ssize_t size;
        int type;
        const char *text = NULL;
        if (!PyTuple_Check(pair))
            PyErr_SetString(PyExc_TypeError, "expected pairs of name and type in a schema");
        else if (PyArg_ParseTuple(pair, "Ui", &name, &type)) {
            if (type < 0 || type > TYPE_BINARY || (type > TYPE_STRING && type < TYPE_BINARY))
                PyErr_Format(PyExc_TypeError, "expected the number of a type in a schema, got %d", type);
            else
                text = PyUnicode_AsUTF8AndSize(name, &size);
        }
        if (text == NULL) {
            free(wanted);
            return NULL;
        }
        wanted[place] = (struct wanted){{(const uint8_t *)text, (size_t)size}, (uint8_t)type};
    }
    return wanted;
}

static enum verdict fill(struct batch *batch, const struct page *page, const struct vocabulary *vocabulary,
                         const struct wanted *wanted, size_t count)
{
    enum verdict verdict;
    uint32_t named = vocabulary->named;
    if (page->size < UNLOCK_FROM_BYTES)
        return batch_fill(batch, page, &vocabulary->names, named, wanted, count);
    Py_BEGIN_ALLOW_THREADS
    verdict = batch_fill(batch, page, &vocabulary->names, named, wanted, count);
    Py_END_ALLOW_THREADS
    return verdict;
}

PyObject *columns_of_page(PyTypeObject *type, const struct page *page, struct vocabulary *vocabulary, PyObject *schema,
                          bool is_values)
{
    struct wanted *wanted = NULL;
    size_t count = 0;
    if (schema != Py_None || is_values) {
        if (!PyTuple_Check(schema)) {
            PyErr_SetString(PyExc_TypeError, "expected None or a tuple of pairs of name and type");
            return NULL;
        }
        count = (size_t)PyTuple_Size(schema);
        wanted = wanted_of(schema, (Py_ssize_t)count);
        if (wanted == NULL)
            return NULL;
    }
    struct batch *batch = batch_new();
    if (batch != NULL)
        batch->is_values = is_values;
    enum verdict verdict = batch == NULL ? OUT_OF_MEMORY : fill(batch, page, vocabulary, wanted, count);
    free(wanted);
    struct columns_object *columns = NULL;
    if (verdict == ACCEPTED)
        columns = PyObject_New(struct columns_object, type);
    else if (verdict == OUT_OF_MEMORY)
        PyErr_NoMemory();
    if (columns != NULL) {
        columns->batch = batch;
        return (PyObject *)columns;
    }
    batch_release(batch);
    if (verdict == NOT_ACCEPTED)
        Py_RETURN_NONE;
    return NULL;
}

/* ---- export ---- */

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
    PyObject *requested = Py_None; /* a schema that the producer may ignore */
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
