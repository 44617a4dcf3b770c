// What attention needs besides its products.
#include "attention.h"

// delta = the sum of dout * out over each head of each query: a warp for one, in strides.
KERNEL(256) attention_delta(Attend a) {
    const u64 count = u64(a.batch) * a.rows * a.heads, step = u64(blocks_x()) * (threads() / WARP);
    const u32 dim = a.head_dim;
    const bool wide = dim % 8 == 0 && is_wide(a.out) && is_wide(a.dout);
    for (u64 i = u64(bid_x()) * (threads() / WARP) + warp(); i < count; i += step) {
        float sum = 0.0f;
        for (u32 j = 8 * lane(); j < dim; j += 8 * WARP) {
            float x[8], y[8];
            if (wide) {
                load8(a.out, i * dim + j, x);
                load8(a.dout, i * dim + j, y);
            } else {
                UNROLL for (u32 k = 0; k < 8; k++) {
                    x[k] = j + k < dim ? load(a.out, i * dim + j + k) : 0.0f;
                    y[k] = j + k < dim ? load(a.dout, i * dim + j + k) : 0.0f;
                }
            }
            UNROLL for (int k = 0; k < 8; k++) sum = fma1(x[k], y[k], sum);
        }
        sum = warp_sum(sum);
        const u64 token = i / a.heads;
        if (lane() == 0) a.delta[line_of(a, u32(token / a.rows), u32(i % a.heads)) + token % a.rows] = sum;
    }
}
EXPORT(attention_delta)

// Where documents cannot start where they are said to: behind their token, or before the document of the token before it.
// Fault 3; of several the host hears of one.
KERNEL(256) attention_starts(const u32 *starts, u64 count, u32 rows, u32 *faults) {
    for (u64 i = u64(bid_x()) * threads() + tid(); i < count; i += u64(blocks_x()) * threads()) {
        const u32 row = u32(i % rows), start = starts[i];
        if (start <= row && (row == 0 || starts[i - 1] <= start)) continue;
        if (atomic_or(faults, 0) == 0 && atomic_or(faults, 3) == 0) faults[1] = row, faults[2] = start;
    }
}
EXPORT(attention_starts)
