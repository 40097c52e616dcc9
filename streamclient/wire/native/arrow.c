/* Columns exported through the C data interface of Apache Arrow; only names are copied. */
#include "arrow.h"

#include <stdlib.h>
#include <string.h>

/* ---- the tree of the layout, from which both structures of the interface are made ---- */

struct node {
    const char *name, *format;
    const struct array *values; /* for a struct: the array whose validity it has, or NULL if it is never null */
    const struct words *words;  /* the words of an array of words */
    size_t length;
    size_t first_child, child_count; /* in the list of all nodes */
    size_t dictionary;               /* in the list of all nodes, for an array of indices into it; 0 without one */
};

struct words {
    const char *text;
    int32_t offsets[4];
};

static const struct words ACTIONS = {"PUTUPDATEDELETE", {0, 3, 9, 15}};
static const struct words OPERATIONS = {"PUTDELETE_ONE_VERSIONDELETE_ALL_VERSION", {0, 3, 21, 39}};

struct tree {
    struct node *nodes;
    size_t count;
};

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

/* Reserve `count` successive nodes for the children of a node. */
static struct node *add_children(struct tree *tree, struct node *parent, size_t count)
{
    parent->first_child = tree->count;
    parent->child_count = count;
    tree->count += count;
    return &tree->nodes[parent->first_child];
}

static struct node structure(const char *name, const struct array *validity, size_t length)
{
    return (struct node){.name = name, .format = "+s", .values = validity, .length = length};
}

static struct node leaf(const char *name, const struct array *values)
{
    return (struct node){
        .name = name, .format = format_of(values->type), .values = values, .length = values->length};
}

static void set_words(struct tree *tree, struct node *node, const char *name, const struct array *values,
                      const struct words *words)
{
    *node = leaf(name, values);
    node->dictionary = tree->count++;
    tree->nodes[node->dictionary] = (struct node){.name = "", .format = "u", .words = words, .length = 3};
}

static void set_list(struct tree *tree, struct node *node, const char *name, const struct cell_list *list)
{
    static const char *const NAMES[] = {"integer", "double", "boolean", "string", "binary"};
    *node = leaf(name, &list->lists);
    struct node *item = add_children(tree, node, 1);
    *item = structure("item", NULL, list->count);
    struct node *children = add_children(tree, item, 3 + CELL_KINDS);
    children[0] = leaf("name", &list->name);
    set_words(tree, &children[1], "operation", &list->operation, &OPERATIONS);
    children[2] = leaf("timestamp_millis", &list->stamp);
    for (int kind = 0; kind < CELL_KINDS; kind++)
        children[3 + kind] = leaf(NAMES[kind], &list->kinds[kind]);
}

static void set_attributes(struct tree *tree, struct node *node, const struct batch *batch)
{
    *node = structure("columns", NULL, batch->row_count);
    struct node *columns = add_children(tree, node, batch->attribute_count);
    for (size_t number = 0; number < batch->attribute_count; number++) {
        const struct attribute *attribute = &batch->attributes[number];
        columns[number] = structure((const char *)attribute->name.bytes, &attribute->operation, batch->row_count);
        struct node *children = add_children(tree, &columns[number], 3);
        set_words(tree, &children[0], "operation", &attribute->operation, &OPERATIONS);
        children[1] = leaf("value", &attribute->value);
        children[2] = leaf("timestamp_millis", &attribute->stamp);
    }
}

/* Set the nodes of a batch of values. */
static void set_values(struct tree *tree, struct node *node, const struct batch *batch)
{
    *node = structure("columns", NULL, batch->row_count);
    struct node *columns = add_children(tree, node, batch->attribute_count);
    for (size_t number = 0; number < batch->attribute_count; number++) {
        const struct attribute *attribute = &batch->attributes[number];
        columns[number] = leaf((const char *)attribute->name.bytes, &attribute->value);
    }
}

/* Return the largest number of nodes. They are the root, record_type and its words, the sequence information and its
   three parts, the keys; for each column the struct, its three parts and their words; and the two lists of cells, each
   with its item, the item's parts and their words. A batch of values has fewer nodes. */
static size_t node_count(const struct batch *batch)
{
    return 1 + 6 + 1 + 3 + batch->key_count + 5 * batch->attribute_count + 2 * (1 + 3 + CELL_KINDS + 1);
}

/* Make the tree of a batch; return false if memory ran out. The caller frees the nodes. */
static bool tree_of(struct tree *tree, const struct batch *batch)
{
    static const char *const NUMBERS[] = {"epoch", "timestamp_micros", "row_index"};
    const struct array *const numbers[] = {&batch->epoch, &batch->timestamp_micros, &batch->row_index};
    *tree = (struct tree){.nodes = calloc(node_count(batch), sizeof *tree->nodes), .count = 1};
    if (tree->nodes == NULL)
        return false;
    tree->nodes[0] = structure("", NULL, batch->row_count);
    struct node *parts = add_children(tree, &tree->nodes[0], batch->is_values ? 3 : 6);
    set_words(tree, &parts[0], "record_type", &batch->action, &ACTIONS);
    parts[1] = structure("sequence_info", NULL, batch->row_count);
    struct node *children = add_children(tree, &parts[1], 3);
    for (int number = 0; number < 3; number++)
        children[number] = leaf(NUMBERS[number], numbers[number]);
    if (batch->is_values) {
        set_values(tree, &parts[2], batch);
        return true;
    }
    parts[2] = structure("primary_key", NULL, batch->row_count);
    children = add_children(tree, &parts[2], batch->key_count);
    for (size_t key = 0; key < batch->key_count; key++)
        children[key] = leaf((const char *)batch->keys[key].name.bytes, &batch->keys[key].value);
    set_attributes(tree, &parts[3], batch);
    set_list(tree, &parts[4], "other_cells", &batch->others);
    set_list(tree, &parts[5], "original_columns", &batch->originals);
    return true;
}

/* ---- schemas: the whole tree in one block, which is freed with the last node that is released ---- */

struct schema_block {
    atomic_long references;
    struct ArrowSchema **pointers;
    char *names;
    struct ArrowSchema nodes[];
};

static void release_schema(struct ArrowSchema *schema)
{
    struct schema_block *block = schema->private_data;
    for (int64_t child = 0; child < schema->n_children; child++)
        if (schema->children[child]->release != NULL)
            schema->children[child]->release(schema->children[child]);
    if (schema->dictionary != NULL && schema->dictionary->release != NULL)
        schema->dictionary->release(schema->dictionary);
    schema->release = NULL;
    if (atomic_fetch_sub(&block->references, 1) == 1)
        free(block);
}

static struct schema_block *new_schema_block(const struct tree *tree)
{
    struct schema_block *block;
    size_t names = 0;
    for (size_t number = 0; number < tree->count; number++)
        names += strlen(tree->nodes[number].name) + 1;
    block = malloc(sizeof *block + tree->count * (sizeof block->nodes[0] + sizeof *block->pointers) + names);
    if (block == NULL)
        return NULL;
    atomic_init(&block->references, (long)tree->count);
    block->pointers = (struct ArrowSchema **)&block->nodes[tree->count];
    block->names = (char *)&block->pointers[tree->count];
    return block;
}

bool schema_of(const struct batch *batch, struct ArrowSchema *schema)
{
    struct tree tree;
    struct schema_block *block = tree_of(&tree, batch) ? new_schema_block(&tree) : NULL;
    for (size_t number = 0, used = 0; block != NULL && number < tree.count; number++) {
        const struct node *node = &tree.nodes[number];
        size_t size = strlen(node->name) + 1;
        block->pointers[number] = number ? &block->nodes[number] : schema;
        *block->pointers[number] = (struct ArrowSchema){
            .format = node->format,
            .name = memcpy(block->names + used, node->name, size),
            .flags = ARROW_FLAG_NULLABLE,
            .n_children = (int64_t)node->child_count,
            .children = &block->pointers[node->first_child],
            .dictionary = node->dictionary ? &block->nodes[node->dictionary] : NULL,
            .release = release_schema,
            .private_data = block,
        };
        used += size;
    }
    free(tree.nodes);
    return block != NULL;
}

/* ---- arrays: also the whole tree in one block, which keeps the batch ---- */

struct array_node {
    struct ArrowArray array;
    const void *buffers[3];
};

struct array_block {
    atomic_long references;
    struct batch *batch;
    struct ArrowArray **pointers;
    struct array_node nodes[];
};

static void release_array(struct ArrowArray *array)
{
    struct array_block *block = array->private_data;
    for (int64_t child = 0; child < array->n_children; child++)
        if (array->children[child]->release != NULL)
            array->children[child]->release(array->children[child]);
    if (array->dictionary != NULL && array->dictionary->release != NULL)
        array->dictionary->release(array->dictionary);
    array->release = NULL;
    if (atomic_fetch_sub(&block->references, 1) != 1)
        return;
    batch_release(block->batch);
    free(block);
}

/* Return the number of buffers of the node. */
static int64_t set_buffers(const struct node *node, const void *buffers[3])
{
    const struct array *values = node->values;
    buffers[0] = values != NULL && values->null_count ? values->valid : NULL;
    buffers[1] = buffers[2] = NULL;
    switch (node->format[0]) {
    case 'n':
        return 0;
    case 'u':
    case 'z':
        buffers[1] = node->words != NULL ? node->words->offsets : values->offsets;
        buffers[2] = node->words != NULL ? (const void *)node->words->text : values->data;
        return 3;
    case '+':
        if (node->format[1] == 's')
            return 1;
        buffers[1] = values->offsets;
        return 2;
    default:
        buffers[1] = values->data;
        return 2;
    }
}

static void set_array(const struct node *node, struct array_block *block, struct array_node *own,
                      struct ArrowArray *array)
{
    *array = (struct ArrowArray){
        .length = (int64_t)node->length,
        .null_count = node->values == NULL ? 0 : (int64_t)node->values->null_count,
        .n_children = (int64_t)node->child_count,
        .buffers = own->buffers,
        .children = &block->pointers[node->first_child],
        .dictionary = node->dictionary ? &block->nodes[node->dictionary].array : NULL,
        .release = release_array,
        .private_data = block,
    };
    array->n_buffers = set_buffers(node, own->buffers);
}

bool array_of(struct batch *batch, struct ArrowArray *array)
{
    struct tree tree;
    struct array_block *block = NULL;
    if (tree_of(&tree, batch))
        block = malloc(sizeof *block + tree.count * (sizeof block->nodes[0] + sizeof *block->pointers));
    if (block != NULL) {
        atomic_init(&block->references, (long)tree.count);
        atomic_fetch_add(&batch->references, 1);
        block->batch = batch;
        block->pointers = (struct ArrowArray **)&block->nodes[tree.count];
    }
    for (size_t number = 0; block != NULL && number < tree.count; number++) {
        struct array_node *own = &block->nodes[number];
        block->pointers[number] = number ? &own->array : array;
        set_array(&tree.nodes[number], block, own, block->pointers[number]);
    }
    free(tree.nodes);
    return block != NULL;
}
