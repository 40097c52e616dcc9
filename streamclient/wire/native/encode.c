/* The encoding of rows from values. streamclient/wire/_writer.py does the same in Python, and has the error texts. */
#include "server.h"

#include <stdlib.h>
#include <string.h>

#define CHECKSUM_BYTES 2 /* tag and checksum, of a cell or a row */

struct written {
    uint8_t *bytes;
    size_t size, room;
    uint8_t row_crc;
};

/* Return memory for `count` more bytes of the row, or NULL with an error set. Earlier pointers may become invalid. */
static uint8_t *more(struct written *row, size_t count)
{
    if (row->room - row->size < count) {
        size_t room = 2 * row->room + count + 256;
        uint8_t *bytes = realloc(row->bytes, room);
        if (bytes == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        row->bytes = bytes;
        row->room = room;
    }
    uint8_t *at = row->bytes + row->size;
    row->size += count;
    return at;
}

static void write_little(uint8_t *at, uint64_t number, int count)
{
    for (; count; count--, number >>= 8)
        *at++ = (uint8_t)number;
}

static bool write_number(struct written *row, uint8_t type, uint64_t bits, int count)
{
    uint8_t *at = more(row, 6 + (size_t)count);
    if (at == NULL)
        return false;
    at[0] = TAG_CELL_VALUE;
    write_little(at + 1, 1 + (uint64_t)count, 4);
    at[5] = type;
    write_little(at + 6, bits, count);
    return true;
}

static bool write_bytes(struct written *row, uint8_t type, const char *bytes, Py_ssize_t size)
{
    uint8_t *at = bytes == NULL ? NULL : more(row, 10 + (size_t)size);
    if (at == NULL)
        return false;
    at[0] = TAG_CELL_VALUE;
    write_little(at + 1, 5 + (uint64_t)size, 4);
    at[5] = type;
    write_little(at + 6, (uint64_t)size, 4);
    memcpy(at + 10, bytes, (size_t)size);
    return true;
}

static bool write_value(struct written *row, PyObject *value)
{
    char *bytes;
    Py_ssize_t size;
    if (PyBool_Check(value))
        return write_number(row, TYPE_BOOLEAN, value == Py_True, 1);
    if (PyLong_Check(value)) {
        long long number = PyLong_AsLongLong(value);
        return !(number == -1 && PyErr_Occurred()) && write_number(row, TYPE_INTEGER, (uint64_t)number, 8);
    }
    if (PyFloat_Check(value)) {
        double number = PyFloat_AsDouble(value);
        uint64_t bits;
        memcpy(&bits, &number, 8);
        return write_number(row, TYPE_DOUBLE, bits, 8);
    }
    if (PyUnicode_Check(value)) {
        const char *text = PyUnicode_AsUTF8AndSize(value, &size);
        return write_bytes(row, TYPE_STRING, text, size);
    }
    if (PyByteArray_Check(value))
        return write_bytes(row, TYPE_BINARY, PyByteArray_AsString(value), PyByteArray_Size(value));
    return PyBytes_AsStringAndSize(value, &bytes, &size) == 0 && write_bytes(row, TYPE_BINARY, bytes, size);
}

static bool write_operation(struct written *row, uint8_t operation)
{
    uint8_t *at = more(row, 2);
    if (at == NULL)
        return false;
    at[0] = TAG_CELL_OPERATION;
    at[1] = operation;
    return true;
}

/* Write a cell. A cell of the key has no timestamp, and a deletion has no value. */
static bool write_cell(struct written *row, PyObject *name, PyObject *value, uint8_t operation, PyObject *stamp)
{
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(name, &size);
    uint8_t *at = text == NULL ? NULL : more(row, 6 + (size_t)size);
    if (at == NULL)
        return false;
    at[0] = TAG_CELL;
    at[1] = TAG_CELL_NAME;
    write_little(at + 2, (uint64_t)size, 4);
    memcpy(at + 6, text, (size_t)size);
    uint8_t crc = crc8(0, at + 6, (size_t)size);
    if (value != NULL) {
        size_t payload = row->size + 5;
        if (!write_value(row, value))
            return false;
        crc = crc8(crc, row->bytes + payload, row->size - payload);
    }
    if (operation && !write_operation(row, operation))
        return false;
    if (stamp != NULL) {
        long long millis = PyLong_AsLongLong(stamp);
        if ((millis == -1 && PyErr_Occurred()) || (at = more(row, 9)) == NULL)
            return false;
        at[0] = TAG_CELL_TIMESTAMP;
        write_little(at + 1, (uint64_t)millis, 8);
        crc = crc8(crc, at + 1, 8);
    }
    if (operation)
        crc = crc8(crc, &operation, 1); /* in the checksum after the timestamp, in the row before it */
    if ((at = more(row, CHECKSUM_BYTES)) == NULL)
        return false;
    at[0] = TAG_CELL_CHECKSUM;
    at[1] = crc;
    row->row_crc = crc8(row->row_crc, &crc, 1);
    return true;
}

static bool write_versions(struct written *row, PyObject *name, PyObject *versions)
{
    if (versions == NULL || !PyTuple_Check(versions))
        return false;
    Py_ssize_t count = PyTuple_Size(versions);
    for (Py_ssize_t place = 0; place < count; place++) {
        PyObject *version = PyTuple_GetItem(versions, place);
        if (!PyTuple_Check(version) || PyTuple_Size(version) != 2 ||
            !write_cell(row, name, PyTuple_GetItem(version, 1), PUT_CELL, PyTuple_GetItem(version, 0)))
            return false;
    }
    return true;
}

static bool write_tag(struct written *row, uint8_t tag)
{
    uint8_t *at = more(row, 1);
    if (at != NULL)
        *at = tag;
    return at != NULL;
}

static bool end_row(struct written *row, uint8_t is_deletion)
{
    uint8_t *at = !is_deletion || write_tag(row, TAG_DELETE_MARKER) ? more(row, CHECKSUM_BYTES) : NULL;
    if (at == NULL)
        return false;
    at[0] = TAG_ROW_CHECKSUM;
    at[1] = crc8(row->row_crc, &is_deletion, 1);
    return true;
}

static bool write_row(struct written *row, PyObject *names, PyObject *key, PyObject *columns, PyObject *sorted)
{
    Py_ssize_t key_count = PyTuple_Size(names), column_count = PyList_Size(sorted);
    if (PyTuple_Size(key) != key_count || !write_tag(row, TAG_ROW_KEY))
        return false;
    for (Py_ssize_t place = 0; place < key_count; place++)
        if (!write_cell(row, PyTuple_GetItem(names, place), PyTuple_GetItem(key, place), PUT_CELL, NULL))
            return false;
    if (column_count && !write_tag(row, TAG_ROW_DATA))
        return false;
    for (Py_ssize_t place = 0; place < column_count; place++) {
        PyObject *name = PyList_GetItem(sorted, place);
        if (!write_versions(row, name, PyDict_GetItemWithError(columns, name)))
            return false;
    }
    return end_row(row, false);
}

PyObject *row_of_parts(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *names, *key, *columns, *made = NULL;
    struct written row = {NULL, 0, 0, 0};
    if (!PyArg_ParseTuple(arguments, "O!O!O!:row_of_parts", &PyTuple_Type, &names, &PyTuple_Type, &key, &PyDict_Type,
                          &columns))
        return NULL;
    PyObject *sorted = PyDict_Keys(columns);
    if (sorted != NULL && PyList_Sort(sorted) == 0 && write_row(&row, names, key, columns, sorted))
        made = PyBytes_FromStringAndSize((const char *)row.bytes, (Py_ssize_t)row.size);
    else if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "these values make no row of the server");
    Py_XDECREF(sorted);
    free(row.bytes);
    return made;
}

/* ---- a row of a request or a record, from its cells ---- */

static bool is_plain(PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    return type == &PyUnicode_Type || type == &PyLong_Type || type == &PyBytes_Type || type == &PyByteArray_Type;
}

static bool write_key(struct written *row, PyObject *key)
{
    Py_ssize_t count = PyTuple_Size(key);
    for (Py_ssize_t place = 0; place < count; place++) {
        PyObject *cell = PyTuple_GetItem(key, place);
        if (!PyTuple_Check(cell) || PyTuple_Size(cell) != 2)
            return false;
        PyObject *name = PyTuple_GetItem(cell, 0), *value = PyTuple_GetItem(cell, 1);
        if (Py_TYPE(name) != &PyUnicode_Type || !is_plain(value) || !write_cell(row, name, value, PUT_CELL, NULL))
            return false;
    }
    return true;
}

static bool write_parts(struct written *row, PyObject *cell)
{
    if (!PyTuple_Check(cell) || PyTuple_Size(cell) != 4)
        return false;
    PyObject *name = PyTuple_GetItem(cell, 0), *value = PyTuple_GetItem(cell, 1), *stamp = PyTuple_GetItem(cell, 3);
    long operation = PyLong_AsLong(PyTuple_GetItem(cell, 2));
    bool has_value = value != Py_None, has_stamp = stamp != Py_None;
    if (Py_TYPE(name) != &PyUnicode_Type || operation < PUT_CELL || operation > INCREMENT ||
        !(has_value || operation) || (has_stamp && Py_TYPE(stamp) != &PyLong_Type))
        return false;
    if (has_value && !is_plain(value) && !PyBool_Check(value) && Py_TYPE(value) != &PyFloat_Type)
        return false;
    return write_cell(row, name, has_value ? value : NULL, (uint8_t)operation, has_stamp ? stamp : NULL);
}

static bool write_cells(struct written *row, PyObject *key, PyObject *cells, bool is_deletion)
{
    Py_ssize_t count = PyTuple_Size(cells);
    if (!write_tag(row, TAG_ROW_KEY) || !write_key(row, key) || (count && !write_tag(row, TAG_ROW_DATA)))
        return false;
    for (Py_ssize_t place = 0; place < count; place++)
        if (!write_parts(row, PyTuple_GetItem(cells, place)))
            return false;
    return end_row(row, is_deletion);
}

PyObject *row_of_cells(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    PyObject *key, *cells, *made = NULL;
    struct written row = {NULL, 0, 0, 0};
    int is_deletion;
    if (!PyArg_ParseTuple(arguments, "O!O!p:row_of_cells", &PyTuple_Type, &key, &PyTuple_Type, &cells, &is_deletion))
        return NULL;
    if (write_cells(&row, key, cells, is_deletion)) {
        made = PyBytes_FromStringAndSize((const char *)row.bytes, (Py_ssize_t)row.size);
    } else if (!PyErr_Occurred() || !PyErr_ExceptionMatches(PyExc_MemoryError)) {
        PyErr_Clear(); /* the writer in Python names the fault */
        Py_INCREF(made = Py_None);
    }
    free(row.bytes);
    return made;
}
