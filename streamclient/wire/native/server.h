/* The module's functions. Most are the local server's: rows of puts, from a request's frame to the stored row and its
   record. */
#ifndef STREAMCLIENT_SERVER_H
#define STREAMCLIENT_SERVER_H

#include "native.h"

extern PyType_Spec put_spec;
extern PyMethodDef server_functions[];

/* server_rows.c */
PyObject *rows_of(PyObject *module, PyObject *forms);
PyObject *read_parts(PyObject *module, PyObject *form);

/* head.c */
PyObject *read_head(PyObject *module, PyObject *data);

/* encode.c */
PyObject *row_of_parts(PyObject *module, PyObject *arguments);
PyObject *row_of_cells(PyObject *module, PyObject *arguments);

#endif
