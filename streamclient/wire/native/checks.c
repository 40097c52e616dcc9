/* The two checks that read each byte: the checksum, and the check that text is UTF-8. */
#include "wire.h"

#include <string.h>

/* The checksum is linear. So the checksum of eight bytes is the sum of eight table entries. Unlike eight steps of one
   byte, these look-ups do not wait for one another. */
uint8_t crc8_after[16][256];

static void crc8_prepare(void)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        unsigned value = byte;
        for (int bit = 0; bit < 8; bit++)
            value = (value << 1) ^ ((value & 0x80) ? 0x107 : 0); /* x^8 + x^2 + x + 1 */
        crc8_after[0][byte] = (uint8_t)value;
    }
    for (int zeros = 1; zeros < 16; zeros++)
        for (unsigned byte = 0; byte < 256; byte++)
            crc8_after[zeros][byte] = crc8_after[0][crc8_after[zeros - 1][byte]];
}

static inline uint8_t crc8_of_16(uint64_t low, uint64_t high)
{
    uint8_t sum = 0;
    for (int place = 0; place < 8; place++, low >>= 8, high >>= 8)
        sum ^= crc8_after[15 - place][low & 0xff] ^ crc8_after[7 - place][high & 0xff];
    return sum;
}

uint8_t crc8(uint8_t state, const uint8_t *bytes, size_t size)
{
    for (; size >= 16; bytes += 16, size -= 16)
        state = crc8_of_16(read_u64(bytes) ^ state, read_u64(bytes + 8));
    if (size == 0)
        return state;
    uint8_t sum = crc8_after[--size][*bytes ^ state];
    while (size)
        sum ^= crc8_after[--size][*++bytes];
    return sum;
}

/* Leading zeros do not change a checksum. So the last bytes are read as a block of sixteen bytes whose first bytes are
   set to zero. Then no branch depends on the size of a short text; the processor would predict such a branch wrong. */
uint8_t crc8_inside(uint8_t state, const uint8_t *bytes, size_t size)
{
    for (; size > 16; bytes += 16, size -= 16)
        state = crc8_of_16(read_u64(bytes) ^ state, read_u64(bytes + 8));
    uint64_t low = read_u64(bytes + size - 16), high = read_u64(bytes + size - 8);
    unsigned bits = (unsigned)(16 - size) * 8;
    if (bits < 64)
        return crc8_of_16((low >> bits << bits) ^ (uint64_t)state << bits, high);
    bits -= 64;
    return crc8_of_16(0, (high >> bits << bits) ^ (uint64_t)state << bits);
}

/* ---- text ---- */

/* UTF-8 as Python's strict decoder takes it: shortest forms only, no surrogates, nothing above U+10FFFF.

   The automaton takes one step for each byte without a branch, because the processor would predict a branch for each
   byte of mixed text wrong. The state is a number of bits. The table has a row of bits for each byte. Shifted right by
   the state, the row begins with the next state. */
enum text_state {
    WHOLE = 0,      /* between two characters */
    WRONG = 6,      /* for ever */
    ONE_MORE = 12,  /* one continuation byte must follow; in the next two states two and three bytes */
    TWO_MORE = 18,
    THREE_MORE = 24,
    AFTER_E0 = 30,  /* bytes a0 to bf: others would be a longer form than needed */
    AFTER_ED = 36,  /* bytes 80 to 9f: others would be surrogates */
    AFTER_F0 = 42,  /* bytes 90 to bf: others would be a longer form than needed */
    AFTER_F4 = 48,  /* bytes 80 to 8f: others would be above U+10FFFF */
};

static uint64_t text_after[256];

static enum text_state text_state_after(enum text_state state, unsigned byte)
{
    if (state == WHOLE) {
        if (byte < 0x80)
            return WHOLE;
        if (byte < 0xc2 || byte > 0xf4)
            return WRONG;
        if (byte < 0xe0)
            return ONE_MORE;
        if (byte < 0xf0)
            return byte == 0xe0 ? AFTER_E0 : byte == 0xed ? AFTER_ED : TWO_MORE;
        return byte == 0xf0 ? AFTER_F0 : byte == 0xf4 ? AFTER_F4 : THREE_MORE;
    }
    if (state == WRONG || byte < 0x80 || byte > 0xbf)
        return WRONG;
    switch (state) {
    case ONE_MORE:
        return WHOLE;
    case TWO_MORE:
        return ONE_MORE;
    case THREE_MORE:
        return TWO_MORE;
    case AFTER_E0:
        return byte >= 0xa0 ? ONE_MORE : WRONG;
    case AFTER_ED:
        return byte < 0xa0 ? ONE_MORE : WRONG;
    case AFTER_F0:
        return byte >= 0x90 ? TWO_MORE : WRONG;
    default:
        return byte < 0x90 ? TWO_MORE : WRONG;
    }
}

static void text_prepare(void)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        uint64_t row = 0;
        for (int state = WHOLE; state <= AFTER_F4; state += 6)
            row |= (uint64_t)text_state_after((enum text_state)state, byte) << state;
        text_after[byte] = row;
    }
}

bool is_utf8(const uint8_t *bytes, size_t size)
{
    const uint8_t *end = bytes + size;
    uint64_t state = WHOLE, high_bits = 0;
    size_t place = 0;
    for (; place + 8 <= size; place += 8)
        high_bits |= read_u64(bytes + place);
    for (; place < size; place++)
        high_bits |= bytes[place];
    if ((high_bits & 0x8080808080808080u) == 0)
        return true;
    for (; bytes < end; bytes++)
        state = text_after[*bytes] >> (state & 63);
    return (state & 63) == WHOLE;
}

bool is_utf8_inside(const uint8_t *bytes, size_t size)
{
    uint64_t high_bits = 0;
    if (size == 0)
        return true;
    for (size_t place = 0; place + 8 < size; place += 8)
        high_bits |= read_u64(bytes + place);
    high_bits |= size >= 8 ? read_u64(bytes + size - 8) : read_u64(bytes + size - 8) >> (8 - size) * 8;
    return (high_bits & 0x8080808080808080u) == 0 || is_utf8(bytes, size);
}

void checks_prepare(void)
{
    crc8_prepare();
    text_prepare();
}
