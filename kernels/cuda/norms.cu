// Normalisation of rows: by their root mean square, or their mean and deviation.
#include "rows.h"

// y = w * (x - mean) / sqrt(variance + eps) (+ b); without `means` the mean counts as 0. Saves mean and reciprocal deviation.
// The variance is that of differences: the mean square less the squared mean would cancel. What a row is read for again
// comes from the nearest cache.
KERNEL(256) norm_forward(Run x, Run w, Run b, Run y, Run means, Run rstds, u64 rows, u64 cols, u32 team, float eps) {
    SHARED(float, aside, 32);
    const u64 row = row_of(team);
    if (row >= rows) return;
    const Walk way = walk(cols, team, is_wide(x) && is_wide(w) && is_wide(b) && is_wide(y));
    const u64 step = u64(team) * 8;
    float v[8], mean = 0;
    if (means.at) {
        for (u64 base = 0; base < cols; base += step) {
            take(x, row, way, base, v);
            UNROLL for (int j = 0; j < 8; j++) mean = add_rn(mean, v[j]);
        }
        mean = team_sum(mean, team, aside) / float(cols);
    }
    float sum = 0;
    for (u64 base = 0; base < cols; base += step) {
        // Where the row has ended there is no difference.
        take(x, row, way, base, v, mean);
        UNROLL for (int j = 0; j < 8; j++) sum = fma1(v[j] - mean, v[j] - mean, sum);
    }
    const float rstd = 1 / sqrt_rn(team_sum(sum, team, aside) / float(cols) + eps);
    for (u64 base = 0; base < cols; base += step) {
        float other[8];
        take(x, row, way, base, v);
        take(w, 0, way, base, other);
        UNROLL for (int j = 0; j < 8; j++) v[j] = mul_rn(mul_rn(v[j] - mean, rstd), other[j]);
        if (b.at) {
            take(b, 0, way, base, other);
            UNROLL for (int j = 0; j < 8; j++) v[j] = add_rn(v[j], other[j]);
        }
        give(y, row, way, base, v);
    }
    if (tid() % team == 0) {
        if (means.at) store(means, row, mean);
        store(rstds, row, rstd);
    }
}
EXPORT(norm_forward)

// With n = (x - mean) * rstd: dx += rstd * (dy * w - mean(dy * w) - n * mean(dy * w * n)), the middle term only with `means`. Where
// there are `partials`, a block also sums dy * n, and dy if `sums` is 2, over its rows: to partials[sum][block][cols]. A team
// keeps its sums in shared memory, where a thread's columns are its own, so nobody waits for anybody.
KERNEL(256) norm_backward(Run x, Run w, Run means, Run rstds, Run dy, Run dx, Run partials, u64 rows, u64 cols, u64 rows_of_block,
                          u32 team, u32 sums) {
    SHARED(float, aside, 32);
    DYNAMIC(float, kept);
    const bool aligned = is_wide(x) && is_wide(w) && is_wide(dy) && is_wide(dx) && is_wide(partials);
    const Walk way = walk(cols, team, aligned);
    const u64 step = u64(team) * 8, first = bid_x() * rows_of_block;
    const u64 end = first + rows_of_block < rows ? first + rows_of_block : rows;
    const u32 teams = threads() / team, me = tid() % team;
    // Of each run of eight columns the first four lie in one half, the others in the other: threads side by side read
    // words side by side.
    const u64 chunks = (cols + step - 1) / step * team;
    float *own = kept + tid() / team * sums * chunks * 8;
    auto slot = [&](u32 sum, u64 base, u32 j) -> float & {
        return own[sum * chunks * 8 + (j / 4 * chunks + base / 8 + me) * 4 + j % 4];
    };
    if (partials.at)
        for (u64 base = 0; base < cols; base += step)
            for (u32 s = 0; s < sums; s++)
                UNROLL for (u32 j = 0; j < 8; j++) slot(s, base, j) = 0;
    for (u64 row = first + tid() / team; row < end; row += teams) {
        const float mean = means.at ? load(means, row) : 0, rstd = load(rstds, row);
        float v[8], g[8], factor[8], plain = 0, along = 0;
        for (u64 base = 0; base < cols; base += step) {
            take(x, row, way, base, v);
            take(dy, row, way, base, g);
            take(w, 0, way, base, factor);
            UNROLL for (u32 j = 0; j < 8; j++) {
                const float n = mul_rn(v[j] - mean, rstd), through = mul_rn(g[j], factor[j]);
                plain = add_rn(plain, through);
                along = fma1(through, n, along);
                if (partials.at) {
                    slot(0, base, j) = fma1(g[j], n, slot(0, base, j));
                    if (sums == 2) slot(1, base, j) = add_rn(slot(1, base, j), g[j]);
                }
            }
        }
        along = team_sum(along, team, aside) / float(cols);
        plain = means.at ? team_sum(plain, team, aside) / float(cols) : 0;
        for (u64 base = 0; base < cols; base += step) {
            float d[8];
            take(x, row, way, base, v);
            take(dy, row, way, base, g);
            take(w, 0, way, base, factor);
            take(dx, row, way, base, d);
            UNROLL for (u32 j = 0; j < 8; j++) {
                const float n = mul_rn(v[j] - mean, rstd), through = add_rn(mul_rn(g[j], factor[j]), -plain);
                d[j] = fma1(fma1(-n, along, through), rstd, d[j]);
            }
            give(dx, row, way, base, d);
        }
    }
    if (!partials.at) return;
    sync_block();
    if (tid() >= team) return;
    for (u32 s = 0; s < sums; s++)
        for (u64 base = 0; base < cols; base += step) {
            float all[8] = {};
            own = kept;
            for (u32 t = 0; t < teams; t++, own += sums * chunks * 8)
                UNROLL for (u32 j = 0; j < 8; j++) all[j] = add_rn(all[j], slot(s, base, j));
            give(partials, u64(s) * blocks_x() + bid_x(), way, base, all);
        }
}
EXPORT(norm_backward)

// s[row] = 1 / |x[row]|
KERNEL(256) inverse_norms(Run x, Run s, u64 rows, u64 cols, u32 team) {
    SHARED(float, aside, 32);
    const u64 row = row_of(team);
    if (row >= rows) return;
    const Walk way = walk(cols, team, is_wide(x));
    float sum = 0, v[8];
    for (u64 base = 0; base < cols; base += u64(team) * 8) {
        take(x, row, way, base, v);
        UNROLL for (int j = 0; j < 8; j++) sum = fma1(v[j], v[j], sum);
    }
    sum = team_sum(sum, team, aside);
    if (tid() % team == 0) store(s, row, 1 / sqrt_rn(sum));
}
EXPORT(inverse_norms)
