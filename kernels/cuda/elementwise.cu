// Traffic: what an element becomes depends on that element alone.
#include "prelude.h"

// dst[i] = value
KERNEL(256) fill(Run dst, u64 len, float value) {
    const u64 step = u64(blocks_x()) * threads() * 8, first = (u64(bid_x()) * threads() + tid()) * 8;
    const bool wide = is_wide(dst);
    float x[8];
    UNROLL for (int j = 0; j < 8; j++) x[j] = value;
    for (u64 i = first; i < len; i += step) {
        if (wide && i + 8 <= len) store8(dst, i, x);
        else for (u64 j = i; j < i + 8 && j < len; j++) store(dst, j, value);
    }
}
EXPORT(fill)
