/* The shared declarations of the parts that know Python. Only the stable interface of 3.10 is used. */
#ifndef STREAMCLIENT_NATIVE_H
#define STREAMCLIENT_NATIVE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030a0000
#include <Python.h>
#include <structmember.h>

#include "wire.h"

#define UNLOCK_FROM_BYTES 32768 /* below, releasing and taking the lock costs more than other threads gain */

/* The classes of which records are made. Shared by codecs, vocabularies and pages. */
struct classes {
    Py_ssize_t references;
    PyTypeObject *record, *column, *sequence;
    PyObject *record_types[DELETE_ROW + 1];     /* by action */
    PyObject *operations[DELETE_ONE_VERSION + 1]; /* by operation */
};

/* Names, each with its text. One page at a time adds to it. */
struct vocabulary {
    Py_ssize_t references;
    struct classes *classes;
    struct names names;
    uint32_t named; /* the number of names that have their text */
    struct page spare; /* the memory of an earlier page's index: new memory would cost as much as filling it */
};

struct record;

/* The source of records: a page with its index, or the part of it that one record has kept. */
struct source {
    Py_ssize_t references;
    struct classes *classes;
    struct vocabulary *vocabulary; /* the owner of the cells' names; NULL if they are in `names` */
    PyObject *body;                /* of a page */
    PyObject **names;              /* of a record that left its page */
    uint32_t name_count;
    struct record **living; /* of a page: the records in use, at their places; NULL before the first one */
    struct page page;
};

enum record_field { RECORD_TYPE, PRIMARY_KEY, COLUMNS, SEQUENCE_INFO, ORIGINAL_COLUMNS, RECORD_FIELDS };

/* A decoded record is a row of its source, whose values are made on access. One without source was made by hand. It
   holds nothing that could hold it, so the garbage collector need not know it. */
struct record {
    PyObject_HEAD
    PyObject *weak_references;
    struct source *source;
    PyObject *fields[RECORD_FIELDS]; /* values that were set by hand, or made on access and kept */
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
/* Return the record of a row of a page as a new reference: one that is still in use, or else a new one. */
PyObject *record_of(struct source *source, uint32_t row);
PyObject *sequence_of(const struct source *source, const struct row *row);
/* Return the write that repeats a record: its type, the bytes of its key, and those of the row. */
PyObject *write_of(const struct source *source, const struct row *row);
/* Let each record in use keep the part of the page that it still needs. If memory runs out, it keeps the page. */
void records_settle(struct source *source);
void source_release(struct source *source);
void index_end(struct page *page, struct vocabulary *vocabulary);
void classes_release(struct classes *classes);
void vocabulary_release(struct vocabulary *vocabulary);

/* capsules.c */
extern PyType_Spec columns_spec;
/* Return the rows of the page by column; None if the twin has to name the fault. */
PyObject *columns_of_page(PyTypeObject *type, const struct page *page, struct vocabulary *vocabulary, PyObject *schema,
                          bool is_values);

#endif
