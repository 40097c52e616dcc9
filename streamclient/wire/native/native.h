/* What the parts that know Python share. Only the stable interface of 3.10 is used. */
#ifndef STREAMCLIENT_NATIVE_H
#define STREAMCLIENT_NATIVE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030a0000
#include <Python.h>
#include <structmember.h>

#include "wire.h"

/* What records are made of. Shared by codecs, vocabularies and pages. */
struct classes {
    Py_ssize_t references;
    PyTypeObject *record, *column, *sequence;
    PyObject *record_types[DELETE_ROW + 1];     /* by action */
    PyObject *operations[DELETE_ONE_VERSION + 1]; /* by operation */
};

#define KEPT_LAYOUTS 256

/* Names, each with its text, and the layouts of living records. One page at a time adds names to it. */
struct vocabulary {
    Py_ssize_t references;
    struct classes *classes;
    struct names names;
    uint32_t named; /* how many names have their text */
    struct layout *layouts[KEPT_LAYOUTS]; /* borrowed: a layout leaves when its last record does */
    struct page spare; /* the memory of an earlier page's index: new memory would cost as much as filling it */
};

/* What equal rows share: the columns, in their order, with what was done to them. */
struct layout {
    Py_ssize_t references;
    struct vocabulary *vocabulary;
    uint32_t hash;
    uint32_t key_count, cell_count;
    uint8_t action;
    bool has_one_stamp;
    struct {
        uint16_t name;
        uint8_t operation;
        bool has_stamp;
    } cells[]; /* key cells first */
};

union slot {
    PyObject *value;
    int64_t stamp;
};

enum record_field { RECORD_TYPE, PRIMARY_KEY, COLUMNS, SEQUENCE_INFO, ORIGINAL_COLUMNS, RECORD_FIELDS };

/* What was set by hand, or was asked for and is kept. */
struct made {
    PyObject *fields[RECORD_FIELDS];
    struct record *origin; /* holds the previous cells */
};

/* A record as decoded; without layout, one that was made by hand. It holds nothing that could hold it, so the garbage
   collector need not know it. Slots lie behind what the type calls its size, which subclasses made by hand may extend:
   only records without a layout are theirs. */
struct record {
    PyObject_HEAD
    PyObject *weak_references;
    struct layout *layout;
    struct made *made;
    int64_t timestamp_micros;
    int64_t stamp; /* of all cells, if they have one */
    uint32_t epoch;
    uint32_t row_index;
    union slot slots[]; /* a value per cell; behind them, a stamp per cell unless they have one */
};

#define COLUMN_FIELDS 4
#define SEQUENCE_FIELDS 3

struct column {
    PyObject_HEAD
    PyObject *weak_references;
    PyObject *fields[COLUMN_FIELDS]; /* name, operation, value, timestamp_millis */
};

struct sequence {
    PyObject_HEAD
    PyObject *weak_references;
    PyObject *fields[SEQUENCE_FIELDS]; /* epoch, timestamp_micros, row_index */
};

/* rows.c */
int add_record_classes(PyObject *module, PyTypeObject *classes[3]);
PyObject *records_of(const struct page *page, struct vocabulary *vocabulary);
void classes_release(struct classes *classes);
void vocabulary_release(struct vocabulary *vocabulary);

/* capsules.c */
extern PyType_Spec columns_spec;
PyObject *columns_of_page(PyTypeObject *type, const struct page *page, struct vocabulary *vocabulary, PyObject *schema);

#endif
