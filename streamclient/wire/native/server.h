/* The functions of the module. Most of them are for the local server: the rows of puts, from the bytes of a request to
   the stored row and its stream record. */
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
