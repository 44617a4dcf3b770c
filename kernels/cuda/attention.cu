// Attention: row sums for the backward pass, and the check of document starts.
// defines: Attend, lse_offset
#include "attention.h"

// delta = sum of dout * out over the head dimension; one warp per head and query.
extern "C" __global__ void __launch_bounds__(256) attention_delta(Attend a) {
    const u64 count = u64(a.batch) * a.rows * a.heads, step = u64(gridDim.x) * (blockDim.x / WARP_SIZE);
    const u32 dim = a.head_dim;
    const bool vectorized = dim % 8 == 0 && is_aligned16(a.out) && is_aligned16(a.dout);
    for (u64 i = u64(blockIdx.x) * (blockDim.x / WARP_SIZE) + warp_id(); i < count; i += step) {
        float sum = 0.0f;
        for (u32 j = 8 * lane_id(); j < dim; j += 8 * WARP_SIZE) {
            float x[8], y[8];
            if (vectorized) {
                load8(a.out, i * dim + j, x);
                load8(a.dout, i * dim + j, y);
            } else {
                UNROLL for (u32 k = 0; k < 8; k++) {
                    x[k] = j + k < dim ? load(a.out, i * dim + j + k) : 0.0f;
                    y[k] = j + k < dim ? load(a.dout, i * dim + j + k) : 0.0f;
                }
            }
            UNROLL for (int k = 0; k < 8; k++) sum = fmaf(x[k], y[k], sum);
        }
        sum = warp_sum(sum);
        const u64 token = i / a.heads;
        if (lane_id() == 0) a.delta[lse_offset(a, u32(token / a.rows), u32(i % a.heads)) + token % a.rows] = sum;
    }
}
EXPORT(attention_delta)

// Reports (check 3) a document that starts behind its token, or before the document of the previous token.
extern "C" __global__ void __launch_bounds__(256) check_document_starts(const u32 *starts, u64 count, u32 rows, u32 *faults) {
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += u64(gridDim.x) * blockDim.x) {
        const u32 row = u32(i % rows), start = starts[i];
        if (start <= row && (row == 0 || starts[i - 1] <= start)) continue;
        if (atomicOr(faults, 0) == 0 && atomicOr(faults, 3) == 0) faults[1] = row, faults[2] = start;
    }
}
EXPORT(check_document_starts)
