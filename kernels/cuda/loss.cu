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

// What is no logit counts as one of -infinity, whose gradient is 0.
__device__ inline void load_logits(Run logits, u64 row, const ColumnMap &map, u64 base, u64 valid, float (&v)[8]) {
    load_columns(logits, row, map, base, v, -INFINITY);
    UNROLL for (u32 j = 0; j < 8; j++)
        if (base + map.start + u64(j) * map.stride >= valid) v[j] = -INFINITY;
}

// The softmax's state of a row of `valid` logits, on all threads of its block. `scratch` has 32 elements of shared memory.
__device__ inline SoftmaxSum row_softmax(Run logits, u64 row, const ColumnMap &map, u64 valid, SoftmaxSum *scratch) {
    float v[8];
    SoftmaxSum all = {-INFINITY, 0};
    for (u64 base = 0; base < map.cols; base += u64(blockDim.x) * 8) {
        load_logits(logits, row, map, base, valid, v);
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
    return all;
}

__device__ inline float row_loss(SoftmaxSum all, float target_logit) {
    return float(double(all.top) + log(double(all.sum)) - double(target_logit));
}

// The logits of a row become scale * (softmax - one_hot). Row r of a 16-bit gradient overlaps row r / 2 of the f32 logits, so rows
// are launched in waves (see loss.rs) such that no block overwrites what a block still reads. Row 0 overlaps itself: it is written
// front to back, each `8 * blockDim.x` columns after they were read. No column is the `target` ~0.
__device__ inline void row_gradient(Run logits, Run gradient, u64 row, const ColumnMap &map, u64 valid, SoftmaxSum all, float scale,
        u32 target) {
    const bool two_bytes = gradient.type != F32;
    const float factor = scale / all.sum;
    float v[8];
    for (u64 base = 0; base < map.cols; base += u64(blockDim.x) * 8) {
        load_logits(logits, row, map, base, valid, v);
        UNROLL for (u32 j = 0; j < 8; j++) {
            v[j] = __fmul_rn(exp_minus_max(v[j], all.top), factor);
            if (base + map.start + u64(j) * map.stride == target) v[j] = __fadd_rn(v[j], -scale);
        }
        if (two_bytes && row == 0) __syncthreads();
        store_columns(gradient, row, map, base, v);
    }
}

// A row without a target has no loss and no gradient. A target out of range is reported, by the number of the check, and ignored.
__device__ inline void row_without_target(Run gradient, Run losses, u64 row, const ColumnMap &map, u32 target, u32 *faults, u32 check) {
    if (threadIdx.x == 0) {
        if (target != ~0u) report_fault(faults, check, u32(row), target);
        store(losses, row, 0);
    }
    const float zeros[8] = {};
    for (u64 base = 0; base < map.cols; base += u64(blockDim.x) * 8) store_columns(gradient, row, map, base, zeros);
}

// One block per row. Rows of logits and of the gradient lie `pitch` elements apart; the gradient is 0 between them.
// losses[row] = log(sum of e^x) - x[target].
extern "C" __global__ void __launch_bounds__(1024) cross_entropy(Run logits, Run gradient, Run targets, Run losses, u64 first, u64 vocab,
        u64 pitch, float scale, u32 *faults) {
    SHARED(SoftmaxSum, scratch, 32);
    const u64 row = first + blockIdx.x;
    const u32 target = as<u32>(targets)[row];
    const ColumnMap map = column_map(pitch, blockDim.x, is_aligned16(logits));
    if (target >= vocab) return row_without_target(gradient, losses, row, map, target, faults, 2);
    const float target_logit = load(logits, row * pitch + target);
    const SoftmaxSum all = row_softmax(logits, row, map, vocab, scratch);
    if (threadIdx.x == 0) store(losses, row, row_loss(all, target_logit));
    row_gradient(logits, gradient, row, map, vocab, all, scale, target);
}
EXPORT(cross_entropy)

// Where ranks share a vocabulary of `words` words, a rank's columns are those from `start` on, the first `valid` of them words. Per
// row: the softmax's state of these, and the target's logit, or 0 if another rank has it.
extern "C" __global__ void __launch_bounds__(1024) loss_parts(Run logits, Run targets, Run statistics, u64 start, u64 valid, u64 words,
        u64 pitch, u32 *faults) {
    SHARED(SoftmaxSum, scratch, 32);
    const u64 row = blockIdx.x;
    const u32 target = as<u32>(targets)[row];
    const ColumnMap map = column_map(pitch, blockDim.x, is_aligned16(logits));
    const SoftmaxSum all = row_softmax(logits, row, map, valid, scratch);
    if (threadIdx.x != 0) return;
    if (target != ~0u && target >= words) report_fault(faults, 6, u32(row), target);
    store(statistics, 3 * row, all.top);
    store(statistics, 3 * row + 1, all.sum);
    // Unsigned: a word before the first column is far behind the last one.
    store(statistics, 3 * row + 2, target - start < valid ? load(logits, row * pitch + (target - start)) : 0.0f);
}
EXPORT(loss_parts)

// The statistics of all ranks are merged in the order of ranks, with the same bits on all of them.
extern "C" __global__ void __launch_bounds__(1024) loss_of_parts(Run logits, Run gradient, Run targets, Run statistics, Run losses, u64 first,
        u64 rows, u32 ranks, u64 start, u64 valid, u64 words, u64 pitch, float scale, u32 *faults) {
    const u64 row = first + blockIdx.x;
    const u32 target = as<u32>(targets)[row];
    const ColumnMap map = column_map(pitch, blockDim.x, is_aligned16(logits));
    if (target >= words) return row_without_target(gradient, losses, row, map, target, faults, 7);
    SoftmaxSum all = {-INFINITY, 0};
    float target_logit = 0;
    for (u32 rank = 0; rank < ranks; rank++) all.top = larger(all.top, load(statistics, 3 * (rank * rows + row)));
    for (u32 rank = 0; rank < ranks; rank++) {
        const u64 at = 3 * (rank * rows + row);
        all.sum = __fadd_rn(all.sum, __fmul_rn(load(statistics, at + 1), exp_minus_max(load(statistics, at), all.top)));
        target_logit = __fadd_rn(target_logit, load(statistics, at + 2));
    }
    if (threadIdx.x == 0) store(losses, row, row_loss(all, target_logit));
    // Padding may have a column by the number of another rank's target.
    row_gradient(logits, gradient, row, map, valid, all, scale, target - start < valid ? u32(target - start) : ~0u);
}
EXPORT(loss_of_parts)
