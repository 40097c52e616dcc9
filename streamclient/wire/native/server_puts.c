/* The rows of PutRow and of puts in batches. The code reads the bytes of a row once, into an index of its cells. From
   this index it writes the row that the server stores, or the stream record, without making Python values.

   The code reads puts of the usual form: stored values in distinct columns, within the service's limits. It declines
   all other puts with None, faulty or only unusual. Then the server reads them in Python
   (streamclient/server/validation/row_writes.py), which also has the error texts. */
#include "server.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t HEADER[4] = {0x75, 0x00, 0x00, 0x00};

#define HEAD_BYTES 6      /* tags of cell and name, length of the name */
#define VALUE_HEAD_BYTES 5 /* tag and length of the value */
#define STAMP_BYTES 9     /* tag and timestamp */
#define CHECKSUM_BYTES 2  /* tag and checksum, of a cell or a row */
#define EXTENSION_BYTES 29 /* an extension with sequence information, with its tag and length */
#define MOST_CELLS 1024   /* columns that the service accepts, so few that sorting the cells is cheap */

struct cell_place {
    const uint8_t *at; /* the tag of the cell */
    const uint8_t *value; /* after the value's tag and length */
    int64_t stamp;
    uint32_t name_size;
    uint32_t value_size; /* the number of bytes of the value, including its type */
    uint8_t crc;   /* the checksum over name and value */
    bool is_dated;
};

/* A verified put. `frame` owns the bytes to which all pointers lead. */
struct put {
    PyObject_HEAD
    PyObject *frame;
    const uint8_t *key_end; /* the first byte after the cells of the key */
    Py_ssize_t size_bytes;  /* the size of names and values, by the service's rule */
    Py_ssize_t dated;       /* the number of cells to which the client gave a timestamp */
    uint32_t key_count, cell_count;
    uint8_t key_crc; /* the row's checksum after the key */
    struct cell_place *cells; /* cells of the key in key order, followed by the other cells by name */
};

struct limits {
    Py_ssize_t key_columns, key_value_bytes, name_bytes, value_bytes, columns;
    long long end_millis; /* the first timestamp that is too large */
};

static uint8_t step(uint8_t state, uint8_t byte) { return crc8(state ^ byte, (const uint8_t[]){0}, 1); }

static void write_u32(uint8_t *at, uint32_t value)
{
    for (int place = 0; place < 4; place++, value >>= 8)
        at[place] = (uint8_t)value;
}

static void write_u64(uint8_t *at, uint64_t value)
{
    for (int place = 0; place < 8; place++, value >>= 8)
        at[place] = (uint8_t)value;
}

static const uint8_t *name_of(const struct cell_place *cell) { return cell->at + HEAD_BYTES; }

static int by_name(const void *left, const void *right)
{
    const struct cell_place *one = left, *two = right;
    uint32_t size = one->name_size < two->name_size ? one->name_size : two->name_size;
    int order = memcmp(name_of(one), name_of(two), size);
    return order ? order : (one->name_size > two->name_size) - (one->name_size < two->name_size);
}

/* ---- reading ---- */

/* Return the size of a value by the service's rule; -1 for a value that no row can store. */
static Py_ssize_t value_bytes(const uint8_t *value, uint32_t size)
{
    uint64_t bits;
    double number;
    if (size == 0)
        return -1;
    switch (value[0]) {
    case TYPE_INTEGER:
        return size == 9 ? 8 : -1;
    case TYPE_DOUBLE:
        bits = size == 9 ? read_u64(value + 1) : 0;
        memcpy(&number, &bits, 8);
        return size == 9 && isfinite(number) ? 8 : -1;
    case TYPE_BOOLEAN:
        return size == 2 && value[1] <= 1 ? 1 : -1;
    case TYPE_STRING:
    case TYPE_BINARY:
        if (size < 5 || read_u32(value + 1) != size - 5)
            return -1;
        return value[0] == TYPE_BINARY || is_utf8(value + 5, size - 5) ? (Py_ssize_t)size - 5 : -1;
    default:
        return -1;
    }
}

/* Read one cell that puts a value, from its tag on; leave `from` after it. False for any other cell. */
static bool read_cell(const uint8_t **from, const uint8_t *end, struct cell_place *cell, uint8_t *row_crc)
{
    const uint8_t *at = *from;
    if (end - at < HEAD_BYTES || at[1] != TAG_CELL_NAME)
        return false;
    cell->at = at;
    cell->name_size = read_u32(at + 2);
    at += HEAD_BYTES;
    if (cell->name_size > (size_t)(end - at))
        return false;
    cell->crc = crc8(0, at, cell->name_size);
    at += cell->name_size;
    if (end - at < VALUE_HEAD_BYTES || *at != TAG_CELL_VALUE)
        return false;
    cell->value_size = read_u32(at + 1);
    at += VALUE_HEAD_BYTES;
    if (cell->value_size > (size_t)(end - at))
        return false;
    cell->value = at;
    cell->crc = crc8(cell->crc, at, cell->value_size);
    at += cell->value_size;
    uint8_t crc = cell->crc;
    cell->is_dated = end - at >= STAMP_BYTES && *at == TAG_CELL_TIMESTAMP;
    if (cell->is_dated) {
        cell->stamp = read_i64(at + 1);
        crc = crc8(crc, at + 1, 8);
        at += STAMP_BYTES;
    }
    if (end - at < CHECKSUM_BYTES || at[0] != TAG_CELL_CHECKSUM || at[1] != crc)
        return false;
    *row_crc = step(*row_crc, crc);
    *from = at + CHECKSUM_BYTES;
    return true;
}

static bool is_key_cell(const struct cell_place *cell, Py_ssize_t size, const struct limits *limits)
{
    bool is_sized = cell->value[0] == TYPE_STRING || cell->value[0] == TYPE_BINARY;
    return !cell->is_dated && (cell->value[0] == TYPE_INTEGER || is_sized) &&
           (!is_sized || size <= limits->key_value_bytes);
}

static bool is_attribute_cell(const struct cell_place *cell, Py_ssize_t size, const struct limits *limits)
{
    bool is_sized = cell->value[0] == TYPE_STRING || cell->value[0] == TYPE_BINARY;
    return cell->name_size > 0 && *name_of(cell) != '#' && cell->name_size <= (size_t)limits->name_bytes &&
           (!is_sized || size <= limits->value_bytes) &&
           (!cell->is_dated || (cell->stamp >= 0 && cell->stamp < limits->end_millis));
}

/* Read all cells of the key, or all other cells. Return false if a cell does not have the usual form. */
static bool read_cells(struct put *put, const uint8_t **at, const uint8_t *end, const struct limits *limits,
                       bool is_key, struct cell_place *cells, uint8_t *row_crc)
{
    uint32_t *count = is_key ? &put->key_count : &put->cell_count;
    Py_ssize_t most = is_key ? limits->key_columns : limits->columns;
    for (; *at < end && **at == TAG_CELL; ++*count) {
        struct cell_place *cell = &cells[*count];
        if ((Py_ssize_t)*count >= most || !read_cell(at, end, cell, row_crc) ||
            !is_utf8(name_of(cell), cell->name_size))
            return false;
        Py_ssize_t size = value_bytes(cell->value, cell->value_size);
        if (size < 0 || !(is_key ? is_key_cell(cell, size, limits) : is_attribute_cell(cell, size, limits)))
            return false;
        put->size_bytes += (Py_ssize_t)cell->name_size + size;
        put->dated += cell->is_dated;
    }
    return true;
}

static bool has_distinct_names(const struct put *put)
{
    const struct cell_place *cells = put->cells + put->key_count;
    for (uint32_t place = 1; place < put->cell_count; place++)
        if (by_name(&cells[place - 1], &cells[place]) == 0)
            return false;
    for (uint32_t place = 0; place < put->key_count; place++) {
        for (uint32_t other = 0; other < place; other++)
            if (by_name(&put->cells[place], &put->cells[other]) == 0)
                return false;
        if (put->cell_count && bsearch(&put->cells[place], cells, put->cell_count, sizeof *cells, by_name) != NULL)
            return false;
    }
    return true;
}

static void sort_cells(struct put *put)
{
    struct cell_place *cells = put->cells + put->key_count;
    for (uint32_t place = 1; place < put->cell_count; place++)
        if (by_name(&cells[place - 1], &cells[place]) > 0) {
            qsort(cells, put->cell_count, sizeof *cells, by_name);
            return;
        }
}

/* Read the frame as a put, with its cells in the memory at `put->cells`. */
static bool read_frame(struct put *put, const uint8_t *at, size_t size, const struct limits *limits)
{
    const uint8_t *end = at + size;
    uint8_t row_crc = 0;
    if (size < 5 || memcmp(at, HEADER, 4) != 0 || at[4] != TAG_ROW_KEY)
        return false;
    at += 5;
    if (!read_cells(put, &at, end, limits, true, put->cells, &row_crc) || put->key_count == 0)
        return false;
    put->key_end = at;
    put->key_crc = row_crc;
    if (at < end && *at == TAG_ROW_DATA) {
        at++;
        if (!read_cells(put, &at, end, limits, false, put->cells + put->key_count, &row_crc))
            return false;
    }
    if (end - at != CHECKSUM_BYTES || at[0] != TAG_ROW_CHECKSUM || at[1] != step(row_crc, 0))
        return false;
    sort_cells(put);
    return has_distinct_names(put);
}

static PyObject *new_put(PyObject *module, PyObject *frame, const struct put *read)
{
    PyObject *type = PyObject_GetAttrString(module, "Put");
    struct put *put = type == NULL ? NULL : PyObject_New(struct put, (PyTypeObject *)type);
    Py_XDECREF(type);
    if (put == NULL)
        return NULL;
    size_t size = (read->key_count + read->cell_count) * sizeof *read->cells;
    put->frame = NULL;
    put->cells = malloc(size);
    if (put->cells == NULL) {
        Py_DECREF((PyObject *)put);
        return PyErr_NoMemory();
    }
    memcpy(put->cells, read->cells, size);
    put->key_end = read->key_end;
    put->size_bytes = read->size_bytes;
    put->dated = read->dated;
    put->key_count = read->key_count;
    put->cell_count = read->cell_count;
    put->key_crc = read->key_crc;
    Py_INCREF(frame);
    put->frame = frame;
    return (PyObject *)put;
}

static PyObject *read_put(PyObject *module, PyObject *arguments)
{
    struct cell_place some[64], *cells = some;
    struct put put;
    struct limits limits;
    PyObject *frame, *result;
    char *bytes;
    Py_ssize_t size;
    memset(&put, 0, sizeof put);
    if (!PyArg_ParseTuple(arguments, "S(nnnnnL):read_put", &frame, &limits.key_columns, &limits.key_value_bytes,
                          &limits.name_bytes, &limits.value_bytes, &limits.columns, &limits.end_millis) ||
        PyBytes_AsStringAndSize(frame, &bytes, &size) < 0)
        return NULL;
    if (limits.columns > MOST_CELLS || limits.key_columns > MOST_CELLS)
        Py_RETURN_NONE;
    /* A cell has 15 bytes at least, so all cells of a small frame fit in `some`. */
    if (size / 15 >= (Py_ssize_t)(sizeof some / sizeof *some)) {
        cells = malloc((size_t)(limits.key_columns + limits.columns) * sizeof *cells);
        if (cells == NULL)
            return PyErr_NoMemory();
    }
    put.cells = cells;
    if (size <= INT32_MAX && read_frame(&put, (const uint8_t *)bytes, (size_t)size, &limits))
        result = new_put(module, frame, &put);
    else
        Py_INCREF(result = Py_None);
    if (cells != some)
        free(cells);
    return result;
}

/* ---- writing ---- */

static size_t cells_bytes(const struct put *put)
{
    size_t size = put->cell_count != 0; /* the tag before the cells */
    for (uint32_t place = put->key_count; place < put->key_count + put->cell_count; place++)
        size += HEAD_BYTES + VALUE_HEAD_BYTES + STAMP_BYTES + CHECKSUM_BYTES + put->cells[place].name_size +
                put->cells[place].value_size;
    return size;
}

static size_t key_bytes(const struct put *put)
{
    return (size_t)(put->key_end - put->cells[0].at) + 1; /* including the tag before the key */
}

static void write_stamp(uint8_t *at, int64_t stamp)
{
    at[0] = TAG_CELL_TIMESTAMP;
    write_u64(at + 1, (uint64_t)stamp);
}

/* Write the key and the cells, each cell with a timestamp; leave `to` after them. Return the row's checksum. */
static uint8_t write_cells(const struct put *put, int64_t now_millis, uint8_t **to)
{
    uint8_t now[STAMP_BYTES], *at = *to, row_crc = put->key_crc;
    write_stamp(now, now_millis);
    memcpy(at, put->cells[0].at - 1, key_bytes(put));
    at += key_bytes(put);
    if (put->cell_count)
        *at++ = TAG_ROW_DATA;
    for (uint32_t place = put->key_count; place < put->key_count + put->cell_count; place++) {
        const struct cell_place *cell = &put->cells[place];
        size_t size = HEAD_BYTES + VALUE_HEAD_BYTES + cell->name_size + cell->value_size;
        memcpy(at, cell->at, size);
        at += size;
        if (cell->is_dated)
            write_stamp(at, cell->stamp);
        else
            memcpy(at, now, STAMP_BYTES);
        uint8_t crc = crc8(cell->crc, at + 1, 8);
        at += STAMP_BYTES;
        *at++ = TAG_CELL_CHECKSUM;
        *at++ = crc;
        row_crc = step(row_crc, crc);
    }
    *to = at;
    return step(row_crc, 0);
}

static uint8_t *write_end(uint8_t *at, uint8_t row_crc)
{
    at[0] = TAG_ROW_CHECKSUM;
    at[1] = row_crc;
    return at + CHECKSUM_BYTES;
}

static uint8_t *write_extension(uint8_t *at, uint32_t epoch, uint64_t timestamp, uint32_t row_index)
{
    at[0] = TAG_EXTENSION;
    write_u32(at + 1, EXTENSION_BYTES - 5);
    at[5] = TAG_SEQUENCE;
    write_u32(at + 6, EXTENSION_BYTES - 10);
    at[10] = TAG_SEQUENCE_EPOCH;
    write_u32(at + 11, epoch);
    at[15] = TAG_SEQUENCE_TIMESTAMP;
    write_u64(at + 16, timestamp);
    at[24] = TAG_SEQUENCE_ROW_INDEX;
    write_u32(at + 25, row_index);
    return at + EXTENSION_BYTES;
}

static size_t varint_bytes(size_t value)
{
    size_t size = 1;
    while (value >>= 7)
        size++;
    return size;
}

static uint8_t *write_varint(uint8_t *at, size_t value)
{
    for (; value >= 0x80; value >>= 7)
        *at++ = (uint8_t)(value | 0x80);
    *at++ = (uint8_t)value;
    return at;
}

static PyObject *put_row(PyObject *self, PyObject *argument)
{
    struct put *put = (struct put *)self;
    long long now_millis = PyLong_AsLongLong(argument);
    if (now_millis == -1 && PyErr_Occurred())
        return NULL;
    PyObject *row = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(key_bytes(put) + cells_bytes(put) + CHECKSUM_BYTES));
    if (row == NULL)
        return NULL;
    uint8_t *at = (uint8_t *)PyBytes_AsString(row);
    uint8_t row_crc = write_cells(put, now_millis, &at);
    write_end(at, row_crc);
    return row;
}

/* Return the stream record of the put, as an element of GetStreamRecord's response: 1 {1: action, 2: record}. */
static PyObject *put_record(PyObject *self, PyObject *arguments)
{
    struct put *put = (struct put *)self;
    long long now_millis;
    unsigned long epoch, row_index;
    unsigned long long timestamp;
    if (!PyArg_ParseTuple(arguments, "LkKk:record", &now_millis, &epoch, &timestamp, &row_index))
        return NULL;
    size_t record = sizeof HEADER + key_bytes(put) + cells_bytes(put) + EXTENSION_BYTES + CHECKSUM_BYTES;
    size_t entry = 3 + varint_bytes(record) + record;
    PyObject *element = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(1 + varint_bytes(entry) + entry));
    if (element == NULL)
        return NULL;
    uint8_t *at = (uint8_t *)PyBytes_AsString(element);
    *at++ = 1 << 3 | 2;
    at = write_varint(at, entry);
    *at++ = 1 << 3;
    *at++ = PUT_ROW;
    *at++ = 2 << 3 | 2;
    at = write_varint(at, record);
    memcpy(at, HEADER, sizeof HEADER);
    at += sizeof HEADER;
    uint8_t row_crc = write_cells(put, now_millis, &at);
    write_end(write_extension(at, (uint32_t)epoch, timestamp, (uint32_t)row_index), row_crc);
    return element;
}

/* ---- the methods of a put ---- */

static PyObject *key_value(const struct cell_place *cell)
{
    const char *bytes = (const char *)cell->value;
    if (bytes[0] == TYPE_INTEGER)
        return PyLong_FromLongLong(read_i64(cell->value + 1));
    if (bytes[0] == TYPE_STRING)
        return PyUnicode_DecodeUTF8(bytes + 5, (Py_ssize_t)cell->value_size - 5, NULL);
    return PyBytes_FromStringAndSize(bytes + 5, (Py_ssize_t)cell->value_size - 5);
}

static PyObject *put_key(PyObject *self, void *Py_UNUSED(closure))
{
    struct put *put = (struct put *)self;
    PyObject *key = PyTuple_New(put->key_count);
    for (uint32_t place = 0; key != NULL && place < put->key_count; place++) {
        const struct cell_place *cell = &put->cells[place];
        PyObject *name = PyUnicode_DecodeUTF8((const char *)name_of(cell), (Py_ssize_t)cell->name_size, NULL);
        PyObject *value = key_value(cell);
        PyObject *pair = name == NULL || value == NULL ? NULL : PyTuple_Pack(2, name, value);
        Py_XDECREF(name);
        Py_XDECREF(value);
        if (pair == NULL || PyTuple_SetItem(key, place, pair) < 0)
            Py_CLEAR(key);
    }
    return key;
}

/* Encode the key in the order of streamclient/server/keys.py. */
static size_t write_sortable(const struct cell_place *cell, uint8_t *at)
{
    uint8_t *begin = at;
    if (cell->value[0] == TYPE_INTEGER) {
        *at++ = 0x10;
        for (int place = 8; place; place--)
            *at++ = cell->value[place];
        begin[1] ^= 0x80;
        return 9;
    }
    *at++ = cell->value[0] == TYPE_STRING ? 0x11 : 0x12;
    for (uint32_t place = 5; place < cell->value_size; place++) {
        *at++ = cell->value[place];
        if (cell->value[place] == 0)
            *at++ = 0xff;
    }
    *at++ = 0;
    *at++ = 0;
    return (size_t)(at - begin);
}

static PyObject *put_encoded_key(PyObject *self, void *Py_UNUSED(closure))
{
    struct put *put = (struct put *)self;
    uint8_t some[256] = {0}, *bytes = some;
    size_t room = 0, size = 0;
    for (uint32_t place = 0; place < put->key_count; place++)
        room += 2 * (size_t)put->cells[place].value_size + 3;
    if (room > sizeof some && (bytes = malloc(room)) == NULL)
        return PyErr_NoMemory();
    for (uint32_t place = 0; place < put->key_count; place++)
        size += write_sortable(&put->cells[place], bytes + size);
    PyObject *key = PyBytes_FromStringAndSize((const char *)bytes, (Py_ssize_t)size);
    if (bytes != some)
        free(bytes);
    return key;
}

/* Return whether the key has a form. A form has, for each key column, the type, the length of the name in two bytes,
   and the name. */
static PyObject *put_has_form(PyObject *self, PyObject *form)
{
    struct put *put = (struct put *)self;
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(form, &bytes, &size) < 0)
        return NULL;
    const uint8_t *at = (const uint8_t *)bytes, *end = at + size;
    for (uint32_t place = 0; place < put->key_count; place++) {
        const struct cell_place *cell = &put->cells[place];
        if ((size_t)(end - at) < 3 + (size_t)cell->name_size || at[0] != cell->value[0] ||
            ((uint32_t)at[1] | (uint32_t)at[2] << 8) != cell->name_size ||
            memcmp(at + 3, name_of(cell), cell->name_size) != 0)
            Py_RETURN_FALSE;
        at += 3 + cell->name_size;
    }
    return PyBool_FromLong(at == end);
}

/* Return the oldest and the newest timestamp of the row. For a row without cells, both are the given time. */
static PyObject *put_versions(PyObject *self, PyObject *argument)
{
    struct put *put = (struct put *)self;
    long long now_millis = PyLong_AsLongLong(argument);
    if (now_millis == -1 && PyErr_Occurred())
        return NULL;
    int64_t oldest = put->cell_count ? INT64_MAX : now_millis, newest = put->cell_count ? INT64_MIN : now_millis;
    for (uint32_t place = put->key_count; place < put->key_count + put->cell_count; place++) {
        int64_t stamp = put->cells[place].is_dated ? put->cells[place].stamp : now_millis;
        oldest = stamp < oldest ? stamp : oldest;
        newest = stamp > newest ? stamp : newest;
    }
    return Py_BuildValue("LL", (long long)oldest, (long long)newest);
}

static PyObject *put_frame(PyObject *self, void *Py_UNUSED(closure))
{
    PyObject *frame = ((struct put *)self)->frame;
    Py_INCREF(frame);
    return frame;
}

static PyObject *put_size_bytes(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(((struct put *)self)->size_bytes);
}

static PyObject *put_dated(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(((struct put *)self)->dated);
}

static PyObject *put_cell_count(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLong(((struct put *)self)->cell_count);
}

static void put_dealloc(PyObject *self)
{
    struct put *put = (struct put *)self;
    PyTypeObject *type = Py_TYPE(self);
    free(put->cells);
    Py_XDECREF(put->frame);
    PyObject_Free(self);
    Py_DECREF((PyObject *)type);
}

static PyMethodDef put_methods[] = {
    {"row", put_row, METH_O, "row(now_millis, /)\n--\n\nReturn the stored row, without the format's header."},
    {"record", put_record, METH_VARARGS,
     "record(now_millis, epoch, timestamp_micros, row_index, /)\n--\n\n"
     "Return the stream record, as an element of an answer."},
    {"has_form", put_has_form, METH_O, "has_form(form, /)\n--\n\nReturn whether the key has these columns."},
    {"versions", put_versions, METH_O,
     "versions(now_millis, /)\n--\n\nReturn the oldest and the newest version of the row."},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef put_getters[] = {
    {"frame", put_frame, NULL, "What was read.", NULL},
    {"key", put_key, NULL, "Names and values of the key.", NULL},
    {"encoded_key", put_encoded_key, NULL, "The key in the form that sorts.", NULL},
    {"size_bytes", put_size_bytes, NULL, "What names and values take.", NULL},
    {"dated", put_dated, NULL, "Cells that came with a timestamp.", NULL},
    {"cell_count", put_cell_count, NULL, "Cells besides those of the key.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot put_slots[] = {
    {Py_tp_dealloc, put_dealloc},
    {Py_tp_methods, put_methods},
    {Py_tp_getset, put_getters},
    {0, NULL},
};
PyType_Spec put_spec = {
    .name = "streamclient.wire._native.Put",
    .basicsize = sizeof(struct put),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = put_slots,
};

PyMethodDef server_functions[] = {
    {"read_put", read_put, METH_VARARGS,
     "read_put(frame, limits, /)\n--\n\nReturn the put in a frame, or None if it has to be read in Python."},
    {"rows_of", rows_of, METH_O,
     "rows_of(forms, /)\n--\n\nReturn the rows of these stored bytes, back to back after one header."},
    {"read_parts", read_parts, METH_O,
     "read_parts(form, /)\n--\n\nReturn the values of the key, and the versions by column."},
    {"row_of_parts", row_of_parts, METH_VARARGS,
     "row_of_parts(names, key, columns, /)\n--\n\nReturn the row of these parts, without the format's header."},
    {"row_of_cells", row_of_cells, METH_VARARGS,
     "row_of_cells(key, cells, is_deletion, /)\n--\n\nReturn the row of these cells, without the format's header, or "
     "None if Python has to write it or to name the fault."},
    {"read_head", read_head, METH_O,
     "read_head(data, /)\n--\n\nReturn status and headers of an HTTP answer, and the beginning of its body, or None if "
     "Python has to read them."},
    {NULL, NULL, 0, NULL},
};
