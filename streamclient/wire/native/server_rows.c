/* Rows as the local server stores them: a row alone, or the stream record with the row. The server wrote these bytes
   itself. Even so, the code checks every read against their end. streamclient/wire/puts.py does the same in Python. */
#include "server.h"

#include <stdlib.h>
#include <string.h>

#define EXTENSION_BYTES 29
#define CHECKSUM_BYTES 2

static const uint8_t HEADER[4] = {0x75, 0x00, 0x00, 0x00};

/* The beginning and end of a row's cells in stored bytes. The last two bytes are the row's checksum with its tag. */
struct kept {
    const uint8_t *begin, *end, *checksum;
};

static const uint8_t *after_varint(const uint8_t *at, const uint8_t *end)
{
    while (at < end && *at & 0x80)
        at++;
    return at < end ? at + 1 : NULL;
}

static bool find_row(const uint8_t *at, size_t size, struct kept *kept)
{
    const uint8_t *end = at + size;
    if (size < 4)
        return false;
    kept->begin = at;
    kept->checksum = end - CHECKSUM_BYTES;
    kept->end = kept->checksum;
    if (at[0] == 0x01)
        return true;
    at = after_varint(at + 1, end);
    if (at == NULL || end - at < 3 || (at = after_varint(at + 3, end)) == NULL ||
        (size_t)(end - at) < sizeof HEADER + EXTENSION_BYTES + CHECKSUM_BYTES)
        return false;
    kept->begin = at + sizeof HEADER;
    kept->end = kept->checksum - EXTENSION_BYTES;
    return true;
}

static bool find_row_in(PyObject *form, struct kept *kept)
{
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(form, &bytes, &size) < 0)
        return false;
    if (find_row((const uint8_t *)bytes, (size_t)size, kept))
        return true;
    PyErr_SetString(PyExc_ValueError, "these bytes hold no row of the server");
    return false;
}

PyObject *rows_of(PyObject *Py_UNUSED(module), PyObject *forms)
{
    struct kept kept;
    Py_ssize_t size = sizeof HEADER, count = PyList_Size(forms);
    if (count < 0)
        return NULL;
    for (Py_ssize_t place = 0; place < count; place++) {
        if (!find_row_in(PyList_GetItem(forms, place), &kept))
            return NULL;
        size += kept.end - kept.begin + CHECKSUM_BYTES;
    }
    PyObject *rows = PyBytes_FromStringAndSize(NULL, size);
    if (rows == NULL)
        return NULL;
    uint8_t *at = (uint8_t *)PyBytes_AsString(rows);
    memcpy(at, HEADER, sizeof HEADER);
    at += sizeof HEADER;
    for (Py_ssize_t place = 0; place < count; place++) {
        if (!find_row_in(PyList_GetItem(forms, place), &kept)) {
            Py_DECREF(rows);
            return NULL;
        }
        memcpy(at, kept.begin, (size_t)(kept.end - kept.begin));
        at += kept.end - kept.begin;
        memcpy(at, kept.checksum, CHECKSUM_BYTES);
        at += CHECKSUM_BYTES;
    }
    return rows;
}

/* ---- values ---- */

struct kept_cell {
    const uint8_t *name, *value;
    uint32_t name_size, value_size;
    int64_t stamp;
};

/* Read one cell, from its tag on. Do not verify its checksum again, which was verified when the row arrived. */
static bool read_kept_cell(const uint8_t **from, const uint8_t *end, struct kept_cell *cell)
{
    const uint8_t *at = *from;
    if (end - at < 6)
        return false;
    cell->name_size = read_u32(at + 2);
    cell->name = at += 6;
    if (cell->name_size > (size_t)(end - at))
        return false;
    at += cell->name_size;
    if (end - at < 5)
        return false;
    cell->value_size = read_u32(at + 1);
    cell->value = at += 5;
    if (cell->value_size > (size_t)(end - at))
        return false;
    at += cell->value_size;
    cell->stamp = 0;
    if (end - at >= 9 && *at == 0x07) {
        cell->stamp = read_i64(at + 1);
        at += 9;
    }
    if (end - at < CHECKSUM_BYTES)
        return false;
    *from = at + CHECKSUM_BYTES;
    return true;
}

static PyObject *value_of(const struct kept_cell *cell)
{
    const char *text = (const char *)cell->value + 5;
    double number;
    uint64_t bits;
    uint8_t type = cell->value_size ? cell->value[0] : TYPE_NONE;
    if ((type == TYPE_STRING || type == TYPE_BINARY) && cell->value_size >= 5)
        return type == TYPE_STRING ? PyUnicode_DecodeUTF8(text, (Py_ssize_t)cell->value_size - 5, NULL)
                                   : PyBytes_FromStringAndSize(text, (Py_ssize_t)cell->value_size - 5);
    if (type == TYPE_INTEGER && cell->value_size == 9)
        return PyLong_FromLongLong(read_i64(cell->value + 1));
    if (type == TYPE_BOOLEAN && cell->value_size == 2)
        return PyBool_FromLong(cell->value[1]);
    if (type == TYPE_DOUBLE && cell->value_size == 9) {
        bits = read_u64(cell->value + 1);
        memcpy(&number, &bits, 8);
        return PyFloat_FromDouble(number);
    }
    PyErr_SetString(PyExc_ValueError, "these bytes hold no row of the server");
    return NULL;
}

/* The adjacent versions of one column. In a stored row all versions of a column are adjacent. */
struct run {
    const uint8_t *name;
    uint32_t name_size;
    PyObject *versions; /* a list, or NULL before the first cell */
};

static int end_run(struct run *run, PyObject *columns)
{
    if (run->versions == NULL)
        return 0;
    int done = -1;
    PyObject *name = PyUnicode_DecodeUTF8((const char *)run->name, (Py_ssize_t)run->name_size, NULL);
    PyObject *found = name == NULL ? NULL : PyList_AsTuple(run->versions), *all = NULL;
    if (found != NULL) {
        PyObject *earlier = PyDict_GetItemWithError(columns, name);
        if (earlier != NULL)
            all = PySequence_Concat(earlier, found);
        else if (!PyErr_Occurred())
            Py_INCREF(all = found);
        if (all != NULL)
            done = PyDict_SetItem(columns, name, all);
    }
    Py_XDECREF(name);
    Py_XDECREF(found);
    Py_XDECREF(all);
    Py_CLEAR(run->versions);
    return done;
}

/* Append a version to its column, or begin the next column. */
static int add_version(struct run *run, const struct kept_cell *cell, PyObject *columns)
{
    bool is_same = run->name_size == cell->name_size && run->versions != NULL &&
                   memcmp(run->name, cell->name, cell->name_size) == 0;
    if (!is_same) {
        if (end_run(run, columns) < 0 || (run->versions = PyList_New(0)) == NULL)
            return -1;
        run->name = cell->name;
        run->name_size = cell->name_size;
    }
    PyObject *stamp = PyLong_FromLongLong(cell->stamp), *value = value_of(cell);
    PyObject *version = stamp == NULL || value == NULL ? NULL : PyTuple_Pack(2, stamp, value);
    int done = version == NULL ? -1 : PyList_Append(run->versions, version);
    Py_XDECREF(stamp);
    Py_XDECREF(value);
    Py_XDECREF(version);
    return done;
}

static int read_key(const uint8_t **at, const uint8_t *end, PyObject *key)
{
    struct kept_cell cell;
    for (++*at; *at < end && **at == 0x03;) {
        PyObject *value = read_kept_cell(at, end, &cell) ? value_of(&cell) : NULL;
        int done = value == NULL ? -1 : PyList_Append(key, value);
        Py_XDECREF(value);
        if (done < 0)
            return -1;
    }
    return 0;
}

static int read_columns(const uint8_t *at, const uint8_t *end, PyObject *columns)
{
    struct kept_cell cell;
    struct run run = {NULL, 0, NULL};
    if (at < end && *at == TAG_ROW_DATA)
        at++;
    while (at < end && *at == TAG_CELL)
        if (!read_kept_cell(&at, end, &cell) || add_version(&run, &cell, columns) < 0) {
            Py_CLEAR(run.versions);
            return -1;
        }
    return end_run(&run, columns) == 0 && at == end ? 0 : -1;
}

PyObject *read_parts(PyObject *Py_UNUSED(module), PyObject *form)
{
    struct kept kept;
    if (!find_row_in(form, &kept))
        return NULL;
    const uint8_t *at = kept.begin;
    PyObject *key = PyList_New(0), *columns = PyDict_New(), *parts = NULL, *values = NULL;
    if (key != NULL && columns != NULL && read_key(&at, kept.end, key) == 0 &&
        read_columns(at, kept.end, columns) == 0)
        values = PyList_AsTuple(key);
    else if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "these bytes hold no row of the server");
    if (values != NULL)
        parts = PyTuple_Pack(2, values, columns);
    Py_XDECREF(values);
    Py_XDECREF(key);
    Py_XDECREF(columns);
    return parts;
}
