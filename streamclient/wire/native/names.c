/* The column names that occurred in pages, by number. */
#include "wire.h"

#include <stdlib.h>
#include <string.h>

static uint64_t hash_of(const uint8_t *bytes, size_t size)
{
    uint64_t hash = size * 0x9e3779b97f4a7c15u, part;
    for (; size >= 8; size -= 8, bytes += 8) {
        memcpy(&part, bytes, 8);
        hash = (hash ^ part) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
    }
    part = 0;
    memcpy(&part, bytes, size);
    hash = (hash ^ part) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

static bool grow_slots(struct names *names)
{
    uint32_t slot_count = names->slot_count ? names->slot_count * 2 : 64;
    uint32_t *slots = calloc(slot_count, sizeof *slots);
    if (slots == NULL)
        return false;
    for (uint32_t number = 0; number < names->count; number++) {
        uint32_t slot = (uint32_t)name_at(names, number)->hash & (slot_count - 1);
        while (slots[slot])
            slot = (slot + 1) & (slot_count - 1);
        slots[slot] = number + 1;
    }
    free(names->slots);
    names->slots = slots;
    names->slot_count = slot_count;
    return true;
}

static void set_head(struct name *name)
{
    uint8_t head[HEAD_WORDS * 8] = {TAG_CELL, TAG_CELL_NAME}, mask[HEAD_WORDS * 8] = {0};
    if (name->size > LONGEST_HEAD_NAME)
        return;
    for (int byte = 0; byte < 4; byte++)
        head[2 + byte] = (uint8_t)(name->size >> byte * 8);
    memcpy(head + 6, name->bytes, name->size);
    head[6 + name->size] = TAG_CELL_VALUE;
    memset(mask, 0xff, name->size + 7);
    for (int word = 0; word < HEAD_WORDS; word++) {
        name->head[word] = read_u64(head + word * 8);
        name->mask[word] = read_u64(mask + word * 8);
    }
}

static enum verdict add(struct names *names, uint64_t hash, const uint8_t *bytes, uint32_t size, uint32_t *number)
{
    if (names->count >= MOST_NAMES || !is_utf8(bytes, size))
        return NOT_ACCEPTED;
    struct name **chunk = &names->chunks[names->count / NAMES_PER_CHUNK];
    if (*chunk == NULL && (*chunk = calloc(NAMES_PER_CHUNK, sizeof **chunk)) == NULL)
        return OUT_OF_MEMORY;
    if (names->slot_count < 2 * (names->count + 1) && !grow_slots(names))
        return OUT_OF_MEMORY;
    struct name *name = name_at(names, names->count);
    name->bytes = malloc(size ? size : 1);
    if (name->bytes == NULL)
        return OUT_OF_MEMORY;
    memcpy(name->bytes, bytes, size);
    name->size = size;
    set_head(name);
    name->hash = hash;
    name->crc = crc8(0, bytes, size);
    uint32_t slot = (uint32_t)hash & (names->slot_count - 1);
    while (names->slots[slot])
        slot = (slot + 1) & (names->slot_count - 1);
    *number = names->count;
    names->slots[slot] = ++names->count;
    return ACCEPTED;
}

enum verdict names_find(struct names *names, const uint8_t *bytes, uint32_t size, uint32_t *number)
{
    uint64_t hash = hash_of(bytes, size);
    if (names->slot_count) {
        for (uint32_t slot = (uint32_t)hash & (names->slot_count - 1); names->slots[slot];
             slot = (slot + 1) & (names->slot_count - 1)) {
            struct name *name = name_at(names, names->slots[slot] - 1);
            if (name->hash == hash && name->size == size && memcmp(name->bytes, bytes, size) == 0) {
                *number = names->slots[slot] - 1;
                return ACCEPTED;
            }
        }
    }
    return add(names, hash, bytes, size, number);
}

void names_clear(struct names *names)
{
    for (uint32_t number = 0; number < names->count; number++)
        free(name_at(names, number)->bytes);
    for (size_t chunk = 0; chunk < MOST_CHUNKS && names->chunks[chunk]; chunk++)
        free(names->chunks[chunk]);
    free(names->slots);
    memset(names, 0, sizeof *names);
}
