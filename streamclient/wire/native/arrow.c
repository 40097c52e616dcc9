/* Columns handed out through the C data interface of Apache Arrow; nothing is copied. */
#include "arrow.h"

#include <stdlib.h>
#include <string.h>

static const char *const ACTIONS[] = {"PUT", "UPDATE", "DELETE"};
static const char *const OPERATIONS[] = {"PUT", "DELETE_ONE_VERSION", "DELETE_ALL_VERSION"};

/* One node of the layout: what both structures of the interface are made from. */
struct part {
    const char *name, *format;
    const struct values *values; /* of a struct: whose validity it has, or NULL if it is never null */
    const char *const *words;
    size_t length, child_count;
    struct part *children;
};

static void free_parts(struct part *part)
{
    for (size_t child = 0; child < part->child_count; child++)
        free_parts(&part->children[child]);
    free(part->children);
}

static const char *format_of(uint8_t type)
{
    switch (type) {
    case TYPE_INTEGER:
        return "l";
    case TYPE_DOUBLE:
        return "g";
    case TYPE_BOOLEAN:
        return "b";
    case TYPE_STRING:
        return "u";
    case TYPE_BINARY:
        return "z";
    case TYPE_INDEX:
        return "c";
    case TYPE_LIST:
        return "+l";
    default:
        return "n";
    }
}

static struct part leaf(const char *name, const struct values *values, size_t length)
{
    return (struct part){.name = name, .format = format_of(values->type), .values = values, .length = length};
}

static struct part words_of(const char *name, const struct values *values, const char *const *words, size_t length)
{
    struct part part = leaf(name, values, length);
    part.words = words;
    return part;
}

/* A struct whose children are to be filled in; false if memory ran out. */
static bool structure(struct part *part, const char *name, const struct values *values, size_t length, size_t children)
{
    *part = (struct part){.name = name, .format = "+s", .values = values, .length = length};
    part->children = calloc(children + 1, sizeof *part->children);
    if (part->children == NULL)
        return false;
    part->child_count = children;
    return true;
}

static bool list_part(struct part *part, const char *name, const struct cell_list *list, size_t length)
{
    static const char *const NAMES[] = {"integer", "double", "boolean", "string", "binary"};
    struct part *item;
    *part = leaf(name, &list->lists, length);
    part->children = calloc(1, sizeof *part->children);
    if (part->children == NULL)
        return false;
    part->child_count = 1;
    item = part->children;
    if (!structure(item, "item", NULL, list->count, 3 + CELL_KINDS))
        return false;
    item->children[0] = leaf("name", &list->name, list->count);
    item->children[1] = words_of("operation", &list->operation, OPERATIONS, list->count);
    item->children[2] = leaf("timestamp_millis", &list->stamp, list->count);
    for (int kind = 0; kind < CELL_KINDS; kind++)
        item->children[3 + kind] = leaf(NAMES[kind], &list->kinds[kind], list->count);
    return true;
}

static bool columns_part(struct part *part, const struct batch *batch)
{
    size_t length = batch->row_count;
    if (!structure(part, "columns", NULL, length, batch->attribute_count))
        return false;
    for (size_t number = 0; number < batch->attribute_count; number++) {
        const struct attribute *attribute = &batch->attributes[number];
        struct part *own = &part->children[number];
        if (!structure(own, batch->names[batch->key_count + number], &attribute->operation, length, 3))
            return false;
        own->children[0] = words_of("operation", &attribute->operation, OPERATIONS, length);
        own->children[1] = leaf("value", &attribute->value, length);
        own->children[2] = leaf("timestamp_millis", &attribute->stamp, length);
    }
    return true;
}

static bool batch_parts(struct part *root, const struct batch *batch)
{
    size_t length = batch->row_count;
    if (!structure(root, "", NULL, length, 6))
        return false;
    struct part *children = root->children;
    children[0] = words_of("record_type", &batch->action, ACTIONS, length);
    if (!structure(&children[1], "sequence_info", NULL, length, 3) ||
        !structure(&children[2], "primary_key", NULL, length, batch->key_count) ||
        !columns_part(&children[3], batch) || !list_part(&children[4], "other_cells", &batch->others, length) ||
        !list_part(&children[5], "original_columns", &batch->originals, length))
        return false;
    children[1].children[0] = leaf("epoch", &batch->epoch, length);
    children[1].children[1] = leaf("timestamp_micros", &batch->timestamp_micros, length);
    children[1].children[2] = leaf("row_index", &batch->row_index, length);
    for (size_t key = 0; key < batch->key_count; key++)
        children[2].children[key] = leaf(batch->names[key], &batch->keys[key], length);
    return true;
}

/* ---- schemas ---- */

static void release_schema(struct ArrowSchema *schema)
{
    for (int64_t child = 0; child < schema->n_children; child++) {
        if (schema->children[child] != NULL && schema->children[child]->release != NULL)
            schema->children[child]->release(schema->children[child]);
        free(schema->children[child]);
    }
    if (schema->dictionary != NULL && schema->dictionary->release != NULL)
        schema->dictionary->release(schema->dictionary);
    free(schema->dictionary);
    free(schema->children);
    free(schema->private_data);
    schema->release = NULL;
}

static bool export_schema(const struct part *part, struct ArrowSchema *schema)
{
    *schema = (struct ArrowSchema){.format = part->format, .flags = ARROW_FLAG_NULLABLE, .release = release_schema};
    size_t size = strlen(part->name) + 1;
    char *name = malloc(size);
    if (name == NULL)
        return false;
    memcpy(name, part->name, size);
    schema->name = schema->private_data = name;
    schema->children = calloc(part->child_count + 1, sizeof *schema->children);
    if (schema->children == NULL)
        return false;
    schema->n_children = (int64_t)part->child_count;
    for (size_t child = 0; child < part->child_count; child++) {
        schema->children[child] = calloc(1, sizeof **schema->children);
        if (schema->children[child] == NULL || !export_schema(&part->children[child], schema->children[child]))
            return false;
    }
    if (part->words == NULL)
        return true;
    schema->dictionary = calloc(1, sizeof *schema->dictionary);
    struct part words = {.name = "", .format = "u"};
    return schema->dictionary != NULL && export_schema(&words, schema->dictionary);
}

bool schema_of(const struct batch *batch, struct ArrowSchema *schema)
{
    struct part root;
    bool done = batch_parts(&root, batch) && export_schema(&root, schema);
    free_parts(&root);
    return done;
}

/* ---- arrays ---- */

/* What a handed-out array keeps alive: all of its batch, as parts share nothing smaller. */
struct holder {
    struct batch *batch;
    const void *buffers[3];
    int32_t offsets[4]; /* of the words of a dictionary */
    char text[64];
};

static void release_array(struct ArrowArray *array)
{
    struct holder *holder = array->private_data;
    for (int64_t child = 0; child < array->n_children; child++) {
        if (array->children[child] != NULL && array->children[child]->release != NULL)
            array->children[child]->release(array->children[child]);
        free(array->children[child]);
    }
    if (array->dictionary != NULL && array->dictionary->release != NULL)
        array->dictionary->release(array->dictionary);
    free(array->dictionary);
    free(array->children);
    if (holder != NULL)
        batch_release(holder->batch);
    free(holder);
    array->release = NULL;
}

static bool begin_array(struct batch *batch, struct ArrowArray *array, size_t length, size_t children)
{
    *array = (struct ArrowArray){.length = (int64_t)length, .release = release_array};
    struct holder *holder = calloc(1, sizeof *holder);
    array->private_data = holder;
    if (holder == NULL)
        return false;
    holder->batch = batch;
    atomic_fetch_add(&batch->references, 1);
    array->buffers = holder->buffers;
    array->children = calloc(children + 1, sizeof *array->children);
    array->n_children = array->children == NULL ? 0 : (int64_t)children;
    return array->children != NULL;
}

static bool export_words(struct batch *batch, const char *const *words, struct ArrowArray *array)
{
    if (!begin_array(batch, array, 3, 0))
        return false;
    struct holder *holder = array->private_data;
    for (int word = 0; word < 3; word++) {
        size_t size = strlen(words[word]);
        memcpy(holder->text + holder->offsets[word], words[word], size);
        holder->offsets[word + 1] = holder->offsets[word] + (int32_t)size;
    }
    holder->buffers[1] = holder->offsets;
    holder->buffers[2] = holder->text;
    array->n_buffers = 3;
    return true;
}

static void set_buffers(const struct part *part, struct ArrowArray *array)
{
    const struct values *values = part->values;
    const void **buffers = array->buffers;
    array->n_buffers = 1;
    if (values != NULL) {
        array->null_count = (int64_t)(part->length - values->valid_count);
        buffers[0] = array->null_count ? values->valid : NULL;
    }
    switch (part->format[0]) {
    case 'n':
        array->n_buffers = 0;
        array->null_count = (int64_t)part->length;
        return;
    case 'u':
    case 'z':
        buffers[2] = values->data;
        array->n_buffers = 3;
        buffers[1] = values->offsets;
        return;
    case '+':
        if (part->format[1] == 'l') {
            buffers[1] = values->offsets;
            array->n_buffers = 2;
        }
        return;
    default:
        buffers[1] = values->data;
        array->n_buffers = 2;
    }
}

static bool export_array(struct batch *batch, const struct part *part, struct ArrowArray *array)
{
    if (!begin_array(batch, array, part->length, part->child_count))
        return false;
    set_buffers(part, array);
    for (size_t child = 0; child < part->child_count; child++) {
        array->children[child] = calloc(1, sizeof **array->children);
        if (array->children[child] == NULL || !export_array(batch, &part->children[child], array->children[child]))
            return false;
    }
    if (part->words == NULL)
        return true;
    array->dictionary = calloc(1, sizeof *array->dictionary);
    return array->dictionary != NULL && export_words(batch, part->words, array->dictionary);
}

bool array_of(struct batch *batch, struct ArrowArray *array)
{
    struct part root;
    bool done = batch_parts(&root, batch) && export_array(batch, &root, array);
    free_parts(&root);
    return done;
}
