/* The head of an HTTP response. The code parses a usual head in one pass. It leaves any other head to Python:
   another version, lines that end or continue differently, bytes beyond ASCII, too many lines, too long names. */
#include <string.h>

#include "native.h"
#include "server.h"

#define LONGEST_NAME 64
#define MOST_LINES 100 /* with the status line, as in Python's reader */

static bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }

/* Return the end of a line of printable ASCII that ends with CR LF, or NULL for any other line. */
static const char *line_end(const char *at, const char *end)
{
    while (at < end && *at >= 0x20 && *at < 0x7f)
        at++;
    return end - at >= 2 && at[0] == '\r' && at[1] == '\n' ? at : NULL;
}

static bool add_header(PyObject *headers, const char *at, const char *end)
{
    char name[LONGEST_NAME];
    Py_ssize_t size = 0;
    for (; at < end && *at != ':' && size < LONGEST_NAME; at++)
        name[size++] = *at >= 'A' && *at <= 'Z' ? (char)(*at | 0x20) : *at;
    if (at == end || *at != ':')
        return false;
    for (at++; at < end && *at == ' ';)
        at++;
    while (end > at && end[-1] == ' ')
        end--;
    PyObject *key = PyUnicode_FromStringAndSize(name, size), *value = PyUnicode_FromStringAndSize(at, end - at);
    bool is_added = key != NULL && value != NULL && PyDict_SetItem(headers, key, value) == 0;
    Py_XDECREF(key);
    Py_XDECREF(value);
    return is_added;
}

/* Add the headers to the dictionary; return the beginning of the body, or NULL. */
static const char *read_lines(PyObject *headers, const char *at, const char *end)
{
    for (int lines = 1; lines <= MOST_LINES; lines++) {
        const char *stop = line_end(at, end);
        if (stop == NULL)
            return NULL;
        if (stop == at)
            return at + 2;
        if (lines == MOST_LINES || !add_header(headers, at, stop))
            return NULL;
        at = stop + 2;
    }
    return NULL;
}

PyObject *read_head(PyObject *Py_UNUSED(module), PyObject *data)
{
    static const char version[] = "HTTP/1.1 ";
    const Py_ssize_t known = sizeof version - 1, status_size = 3;
    if (!PyBytes_Check(data))
        Py_RETURN_NONE;
    const char *start = PyBytes_AsString(data), *end = start + PyBytes_Size(data), *at = start + known;
    if (end - start < known + status_size + 1 || memcmp(start, version, (size_t)known) != 0 || !is_digit(at[0]) ||
        !is_digit(at[1]) || !is_digit(at[2]) || (at[3] != ' ' && at[3] != '\r'))
        Py_RETURN_NONE;
    int status = (at[0] - '0') * 100 + (at[1] - '0') * 10 + (at[2] - '0');
    at = line_end(at, end);
    if (at == NULL)
        Py_RETURN_NONE;
    PyObject *headers = PyDict_New();
    at = headers == NULL ? NULL : read_lines(headers, at + 2, end);
    if (at != NULL)
        return Py_BuildValue("(iNn)", status, headers, (Py_ssize_t)(at - start));
    Py_XDECREF(headers);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}
