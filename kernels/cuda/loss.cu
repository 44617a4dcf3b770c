// Softmax cross entropy, forward and backward in one pass: the gradient takes the place of the logits.
// defines: ColumnMap, column_map, load_columns, store_columns
#include "rows.h"

// State of an online softmax: the maximum, and the sum of e^(x - maximum). Empty: -infinity and 0.
struct SoftmaxSum { float top, sum; };

// e^(x - top). If all is -infinity, top counts as 0: -infinity - -infinity would be NaN.
__device__ inline float exp_minus_max(float x, float top) { return exp2_fast(__fmul_rn(x - (top == -INFINITY ? 0 : top), 1.44269504f)); }
// Commutative to the bit.
__device__ inline SoftmaxSum merge(SoftmaxSum a, SoftmaxSum b) {
    const float top = larger(a.top, b.top);
    return SoftmaxSum{top, __fadd_rn(__fmul_rn(a.sum, exp_minus_max(a.top, top)), __fmul_rn(b.sum, exp_minus_max(b.top, top)))};
}

// One block per row. Rows of logits and of the gradient lie `pitch` elements apart; the gradient is 0 between them. losses[row] = log(sum of e^x) - x[target]; the logits become scale * (softmax - one_hot), or zeros where
// the target is ~0. Row r of a 16-bit gradient overlaps row r / 2 of the f32 logits, so rows are launched in waves (see rows.rs)
// such that no block overwrites what a block still reads. Row 0 overlaps itself: it is written front to back, each `8 * blockDim.x`
// columns after they were read.
extern "C" __global__ void __launch_bounds__(1024) cross_entropy(Run logits, Run gradient, Run targets, Run losses, u64 first, u64 vocab,
        u64 pitch, float scale, u32 *faults) {
    SHARED(SoftmaxSum, scratch, 32);
    const u64 row = first + blockIdx.x;
    const u32 target = as<u32>(targets)[row];
    const bool two_bytes = gradient.type != F32;
    const ColumnMap map = column_map(pitch, blockDim.x, is_aligned16(logits));
    const u64 step = u64(blockDim.x) * 8;
    float v[8];
    // A target out of range is reported and ignored.
    if (target >= vocab) {
        if (threadIdx.x == 0) {
            if (target != ~0u) report_fault(faults, 2, u32(row), target);
            store(losses, row, 0);
        }
        UNROLL for (int j = 0; j < 8; j++) v[j] = 0;
        for (u64 base = 0; base < pitch; base += step) store_columns(gradient, row, map, base, v);
        return;
    }
    const float target_logit = load(logits, row * pitch + target);
    SoftmaxSum all = {-INFINITY, 0};
    // What is no logit counts as one of -infinity, whose gradient is 0.
    auto load_logits = [&](u64 base) {
        load_columns(logits, row, map, base, v, -INFINITY);
        UNROLL for (u32 j = 0; j < 8; j++)
            if (base + map.start + u64(j) * map.stride >= vocab) v[j] = -INFINITY;
    };
    for (u64 base = 0; base < pitch; base += step) {
        load_logits(base);
        float top = all.top;
        UNROLL for (int j = 0; j < 8; j++) top = larger(top, v[j]);
        all.sum = __fmul_rn(all.sum, exp_minus_max(all.top, top));
        UNROLL for (int j = 0; j < 8; j++) all.sum = __fadd_rn(all.sum, exp_minus_max(v[j], top));
        all.top = top;
    }
    UNROLL for (u32 mask = 16; mask > 0; mask /= 2)
        all = merge(all, SoftmaxSum{__shfl_xor_sync(~0u, all.top, mask), __shfl_xor_sync(~0u, all.sum, mask)});
    if (lane_id() == 0) scratch[warp_id()] = all;
    __syncthreads();
    all = scratch[0];
    for (u32 i = 1; i < blockDim.x / WARP_SIZE; i++) all = merge(all, scratch[i]);
    if (threadIdx.x == 0) store(losses, row, float(double(all.top) + log(double(all.sum)) - double(target_logit)));
    const float factor = scale / all.sum;
    for (u64 base = 0; base < pitch; base += step) {
        load_logits(base);
        UNROLL for (u32 j = 0; j < 8; j++) {
            v[j] = __fmul_rn(exp_minus_max(v[j], all.top), factor);
            if (base + map.start + u64(j) * map.stride == target) v[j] = __fadd_rn(v[j], -scale);
        }
        if (two_bytes && row == 0) __syncthreads();
        store_columns(gradient, row, map, base, v);
    }
}
EXPORT(cross_entropy)
