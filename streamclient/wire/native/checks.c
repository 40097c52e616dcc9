/* Checksum and text: the two checks that look at each byte. */
#include "wire.h"

#include <string.h>

/* The checksum is linear: that of eight bytes is the sum of eight entries, which do not wait for one another as steps
   of one byte do. */
uint8_t crc8_after[16][256];

void crc8_prepare(void)
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

uint8_t crc8(uint8_t state, const uint8_t *bytes, size_t size)
{
    while (size >= 16) {
        uint64_t low = read_u64(bytes) ^ state, high = read_u64(bytes + 8);
        state = 0;
        for (int place = 0; place < 8; place++, low >>= 8, high >>= 8)
            state ^= crc8_after[15 - place][low & 0xff] ^ crc8_after[7 - place][high & 0xff];
        bytes += 16;
        size -= 16;
    }
    if (size == 0)
        return state;
    uint8_t sum = crc8_after[--size][*bytes ^ state];
    while (size)
        sum ^= crc8_after[--size][*++bytes];
    return sum;
}

static bool is_continuation(uint8_t byte) { return (byte & 0xc0) == 0x80; }

/* UTF-8 as Python's strict decoder takes it: shortest forms only, no surrogates, nothing above U+10FFFF. */
bool is_utf8(const uint8_t *bytes, size_t size)
{
    const uint8_t *end = bytes + size;
    uint64_t eight;
    while (bytes < end) {
        if (end - bytes >= 8 && (memcpy(&eight, bytes, 8), (eight & 0x8080808080808080u) == 0)) {
            bytes += 8;
            continue;
        }
        uint8_t lead = *bytes;
        ptrdiff_t left = end - bytes;
        if (lead < 0x80) {
            bytes += 1;
        } else if (lead < 0xc2) {
            return false;
        } else if (lead < 0xe0) {
            if (left < 2 || !is_continuation(bytes[1]))
                return false;
            bytes += 2;
        } else if (lead < 0xf0) {
            if (left < 3 || !is_continuation(bytes[1]) || !is_continuation(bytes[2]))
                return false;
            if ((lead == 0xe0 && bytes[1] < 0xa0) || (lead == 0xed && bytes[1] >= 0xa0))
                return false;
            bytes += 3;
        } else if (lead < 0xf5) {
            if (left < 4 || !is_continuation(bytes[1]) || !is_continuation(bytes[2]) || !is_continuation(bytes[3]))
                return false;
            if ((lead == 0xf0 && bytes[1] < 0x90) || (lead == 0xf4 && bytes[1] >= 0x90))
                return false;
            bytes += 4;
        } else {
            return false;
        }
    }
    return true;
}
