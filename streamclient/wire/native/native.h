/* The shared declarations of the files that use Python's C interface. They use only the stable interface of 3.10. */
#ifndef STREAMCLIENT_NATIVE_H
#define STREAMCLIENT_NATIVE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030a0000
#include <Python.h>
#include <structmember.h>

#include "wire.h"

#define UNLOCK_FROM_BYTES 32768 /* for smaller bodies, releasing the GIL costs more than other threads gain */

/* The Python classes of records and their parts. Codecs, vocabularies and pages share them. */
struct classes {
    Py_ssize_t references;
    PyTypeObject *record, *column, *sequence;
    PyObject *record_types[DELETE_ROW + 1];     /* by action */
    PyObject *operations[DELETE_ONE_VERSION + 1]; /* by operation */
};

/* Column names, each with its Python text. Pages share a vocabulary, but one page at a time adds names to it. */
struct vocabulary {
    Py_ssize_t references;
    struct classes *classes;
    struct names names;
    uint32_t named; /* the number of names that have their text */
    struct page spare; /* the memory of an earlier page's index: new memory would cost as much as filling it */
};

struct record;

/* The source of records: a page with its index, or the part of a page that one record keeps. */
struct source {
    Py_ssize_t references;
    struct classes *classes;
    struct vocabulary *vocabulary; /* the owner of the cells' names; NULL if they are in `names` */
    PyObject *body;                /* for a page: the response body */
    PyObject **names;              /* for a record that left its page: the texts of its names */
    uint32_t name_count;
    struct record **living; /* for a page: by row, the record object that is in use; NULL before the first record */
    struct page page;
};

enum record_field { RECORD_TYPE, PRIMARY_KEY, COLUMNS, SEQUENCE_INFO, ORIGINAL_COLUMNS, RECORD_FIELDS };

/* A record. A decoded record is a row of its source, and its values are made on access. A record without a source was
   made from values. A record refers to nothing that could refer to it, so the garbage collector need not track it. */
struct record {
    PyObject_HEAD
    PyObject *weak_references;
    struct source *source;
    PyObject *fields[RECORD_FIELDS]; /* values that were given, or made on access and kept */
    uint32_t row;
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
/* Return the record of a row of a page, as a new reference. If its object is still in use, return that object. */
PyObject *record_of(struct source *source, uint32_t row);
PyObject *sequence_of(const struct source *source, const struct row *row);
/* Return a write with a record's effect on another table: the record's type, its encoded key, and its encoded row. */
PyObject *write_of(const struct source *source, const struct row *row);
/* Let each record in use keep its own part of the page. If memory runs out, the record keeps the whole page. */
void records_settle(struct source *source);
void source_release(struct source *source);
void index_end(struct page *page, struct vocabulary *vocabulary);
void classes_release(struct classes *classes);
void vocabulary_release(struct vocabulary *vocabulary);

/* capsules.c */
extern PyType_Spec columns_spec;
/* Return the rows of the page by column; None if the code in Python has to name a fault. */
PyObject *columns_of_page(PyTypeObject *type, const struct page *page, struct vocabulary *vocabulary, PyObject *schema,
                          bool is_values);

#endif
