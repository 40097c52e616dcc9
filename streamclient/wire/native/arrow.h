/* The C data interface of Apache Arrow, https://arrow.apache.org/docs/format/CDataInterface.html */
#ifndef STREAMCLIENT_ARROW_H
#define STREAMCLIENT_ARROW_H

#include "columns.h"

#define ARROW_FLAG_NULLABLE 2

struct ArrowSchema {
    const char *format;
    const char *name;
    const char *metadata;
    int64_t flags;
    int64_t n_children;
    struct ArrowSchema **children;
    struct ArrowSchema *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

struct ArrowArray {
    int64_t length;
    int64_t null_count;
    int64_t offset;
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

/* Both functions return false if memory ran out. Then the caller has nothing to release. */
bool schema_of(const struct batch *batch, struct ArrowSchema *schema);
bool array_of(struct batch *batch, struct ArrowArray *array);

#endif
