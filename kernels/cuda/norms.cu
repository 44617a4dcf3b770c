// RMSNorm and LayerNorm.
// defines: ColumnMap, column_map, team_row, load_columns, store_columns, team_sum
#include "rows.h"

// y = w * (x - mean) / sqrt(variance + eps) (+ b), and saves mean and rstd. RMSNorm: `means` is null and the mean 0. The variance
// comes from differences, since E[x^2] - mean^2 would cancel. The row is read three times; the later reads hit the L1 cache.
extern "C" __global__ void __launch_bounds__(256) norm_forward(Run x, Run w, Run b, Run y, Run means, Run rstds, u64 rows, u64 cols,
        u32 team, float eps) {
    SHARED(float, scratch, 32);
    const u64 row = team_row(team);
    if (row >= rows) return;
    const ColumnMap map = column_map(cols, team, is_aligned16(x) && is_aligned16(w) && is_aligned16(b) && is_aligned16(y));
    const u64 step = u64(team) * 8;
    float v[8], mean = 0;
    if (means.at) {
        for (u64 base = 0; base < cols; base += step) {
            load_columns(x, row, map, base, v);
            UNROLL for (int j = 0; j < 8; j++) mean = __fadd_rn(mean, v[j]);
        }
        mean = team_sum(mean, team, scratch) / float(cols);
    }
    float sum = 0;
    for (u64 base = 0; base < cols; base += step) {
        // Beyond the end of the row the difference is 0.
        load_columns(x, row, map, base, v, mean);
        UNROLL for (int j = 0; j < 8; j++) sum = fmaf(v[j] - mean, v[j] - mean, sum);
    }
    const float rstd = 1 / __fsqrt_rn(team_sum(sum, team, scratch) / float(cols) + eps);
    for (u64 base = 0; base < cols; base += step) {
        float other[8];
        load_columns(x, row, map, base, v);
        load_columns(w, 0, map, base, other);
        UNROLL for (int j = 0; j < 8; j++) v[j] = __fmul_rn(__fmul_rn(v[j] - mean, rstd), other[j]);
        if (b.at) {
            load_columns(b, 0, map, base, other);
            UNROLL for (int j = 0; j < 8; j++) v[j] = __fadd_rn(v[j], other[j]);
        }
        store_columns(y, row, map, base, v);
    }
    if (threadIdx.x % team == 0) {
        if (means.at) store(means, row, mean);
        store(rstds, row, rstd);
    }
}
EXPORT(norm_forward)

// With n = (x - mean) * rstd: dx += rstd * (dy * w - mean(dy * w) - n * mean(dy * w * n)), the middle term only with `means`. With
// `partials`, a block also sums dy * n (and dy if `sums` is 2) over its rows, to partials[sum][block][cols]. Teams keep their sums in
// shared memory; each column belongs to one thread, so no barrier is needed.
extern "C" __global__ void __launch_bounds__(256) norm_backward(Run x, Run w, Run means, Run rstds, Run dy, Run dx, Run partials, u64 rows,
        u64 cols, u64 rows_of_block, u32 team, u32 sums) {
    SHARED(float, scratch, 32);
    float *kept = reinterpret_cast<float *>(dynamic_shared);
    const bool aligned = is_aligned16(x) && is_aligned16(w) && is_aligned16(dy) && is_aligned16(dx) && is_aligned16(partials);
    const ColumnMap map = column_map(cols, team, aligned);
    const u64 step = u64(team) * 8, first = blockIdx.x * rows_of_block;
    const u64 end = first + rows_of_block < rows ? first + rows_of_block : rows;
    const u32 teams = blockDim.x / team, me = threadIdx.x % team;
    // Of eight columns the first four lie in one half, the others in the other half: no bank conflicts.
    const u64 chunks = (cols + step - 1) / step * team;
    float *own = kept + threadIdx.x / team * sums * chunks * 8;
    auto slot = [&](u32 sum, u64 base, u32 j) -> float & {
        return own[sum * chunks * 8 + (j / 4 * chunks + base / 8 + me) * 4 + j % 4];
    };
    if (partials.at)
        for (u64 base = 0; base < cols; base += step)
            for (u32 s = 0; s < sums; s++)
                UNROLL for (u32 j = 0; j < 8; j++) slot(s, base, j) = 0;
    for (u64 row = first + threadIdx.x / team; row < end; row += teams) {
        const float mean = means.at ? load(means, row) : 0, rstd = load(rstds, row);
        float v[8], g[8], factor[8], plain = 0, along = 0;
        for (u64 base = 0; base < cols; base += step) {
            load_columns(x, row, map, base, v);
            load_columns(dy, row, map, base, g);
            load_columns(w, 0, map, base, factor);
            UNROLL for (u32 j = 0; j < 8; j++) {
                const float n = __fmul_rn(v[j] - mean, rstd), through = __fmul_rn(g[j], factor[j]);
                plain = __fadd_rn(plain, through);
                along = fmaf(through, n, along);
                if (partials.at) {
                    slot(0, base, j) = fmaf(g[j], n, slot(0, base, j));
                    if (sums == 2) slot(1, base, j) = __fadd_rn(slot(1, base, j), g[j]);
                }
            }
        }
        along = team_sum(along, team, scratch) / float(cols);
        plain = means.at ? team_sum(plain, team, scratch) / float(cols) : 0;
        for (u64 base = 0; base < cols; base += step) {
            float d[8];
            load_columns(x, row, map, base, v);
            load_columns(dy, row, map, base, g);
            load_columns(w, 0, map, base, factor);
            load_columns(dx, row, map, base, d);
            UNROLL for (u32 j = 0; j < 8; j++) {
                const float n = __fmul_rn(v[j] - mean, rstd), through = __fadd_rn(__fmul_rn(g[j], factor[j]), -plain);
                d[j] = fmaf(fmaf(-n, along, through), rstd, d[j]);
            }
            store_columns(dx, row, map, base, d);
        }
    }
    if (!partials.at) return;
    __syncthreads();
    if (threadIdx.x >= team) return;
    for (u32 s = 0; s < sums; s++)
        for (u64 base = 0; base < cols; base += step) {
            float all[8] = {};
            own = kept;
            for (u32 t = 0; t < teams; t++, own += sums * chunks * 8)
                UNROLL for (u32 j = 0; j < 8; j++) all[j] = __fadd_rn(all[j], slot(s, base, j));
            store_columns(partials, u64(s) * gridDim.x + blockIdx.x, map, base, all);
        }
}
EXPORT(norm_backward)

// s[row] = 1 / |x[row]|
extern "C" __global__ void __launch_bounds__(256) inverse_norms(Run x, Run s, u64 rows, u64 cols, u32 team) {
    SHARED(float, scratch, 32);
    const u64 row = team_row(team);
    if (row >= rows) return;
    const ColumnMap map = column_map(cols, team, is_aligned16(x));
    float sum = 0, v[8];
    for (u64 base = 0; base < cols; base += u64(team) * 8) {
        load_columns(x, row, map, base, v);
        UNROLL for (int j = 0; j < 8; j++) sum = fmaf(v[j], v[j], sum);
    }
    sum = team_sum(sum, team, scratch);
    if (threadIdx.x % team == 0) store(s, row, 1 / __fsqrt_rn(sum));
}
EXPORT(inverse_norms)
