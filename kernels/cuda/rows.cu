// Broadcast add and multiply, column sums, rotary embedding.
// defines: ColumnMap, column_map, team_row, load_columns, store_columns
#include "rows.h"

// x[row] = x[row] + table[row % period], or x[row] * table[row % period].
extern "C" __global__ void __launch_bounds__(256) broadcast_rows(Run table, Run x, u64 rows, u64 period, u64 cols, u32 team, u32 times) {
    const u64 row = team_row(team);
    if (row >= rows) return;
    const ColumnMap map = column_map(cols, team, is_aligned16(table) && is_aligned16(x));
    const u64 from = row % period;
    for (u64 base = 0; base < cols; base += u64(team) * 8) {
        float v[8], t[8];
        load_columns(x, row, map, base, v);
        load_columns(table, from, map, base, t);
        UNROLL for (int j = 0; j < 8; j++) v[j] = times ? v[j] * t[j] : v[j] + t[j];
        store_columns(x, row, map, base, v);
    }
}
EXPORT(broadcast_rows)

// Sums over rows of dy; with x, of dy * x; with `rstds`, of dy * (x - mean) * rstd. Rows first, first + period, ... are added to row
// `first` of `into`. If they are split into several parts of `of_part` rows, the sums of a part go to
// into[part][min(period, rows)][cols], and sum_parts adds them up. A block has 256 columns of one part; each of its 8 warps takes
// every eighth row.
extern "C" __global__ void __launch_bounds__(256) column_sums(Run dy, Run x, Run means, Run rstds, Run into, u64 rows, u64 period,
        u64 cols, u64 parts, u64 of_part) {
    SHARED(float, sums, 8 * WARP_SIZE * 8);
    const u64 tiles = (cols + 255) / 256, tile = blockIdx.x % tiles, rest = blockIdx.x / tiles;
    const u64 firsts = period < rows ? period : rows, first = rest % firsts, part = rest / firsts;
    const u64 count = (rows - first + period - 1) / period;
    const u64 end = (part + 1) * of_part < count ? (part + 1) * of_part : count;
    const ColumnMap map = column_map(cols, WARP_SIZE, is_aligned16(dy) && is_aligned16(x) && is_aligned16(into));
    const u64 base = tile * 256;
    float all[8] = {};
    for (u64 i = part * of_part + warp_id(); i < end; i += 8) {
        const u64 row = first + i * period;
        float g[8], v[8];
        load_columns(dy, row, map, base, g);
        if (x.at) {
            load_columns(x, row, map, base, v);
            const float mean = means.at ? load(means, row) : 0, rstd = rstds.at ? load(rstds, row) : 1;
            UNROLL for (int j = 0; j < 8; j++) all[j] = fmaf(g[j], __fmul_rn(v[j] - mean, rstd), all[j]);
        } else {
            UNROLL for (int j = 0; j < 8; j++) all[j] = __fadd_rn(all[j], g[j]);
        }
    }
    UNROLL for (u32 j = 0; j < 8; j++) sums[(warp_id() * 8 + j) * WARP_SIZE + lane_id()] = all[j];
    __syncthreads();
    if (warp_id() != 0) return;
    UNROLL for (u32 j = 0; j < 8; j++)
        for (u32 w = 1; w < 8; w++) all[j] = __fadd_rn(all[j], sums[(w * 8 + j) * WARP_SIZE + lane_id()]);
    if (parts == 1) {
        float old[8];
        load_columns(into, first, map, base, old);
        UNROLL for (int j = 0; j < 8; j++) all[j] = __fadd_rn(all[j], old[j]);
    }
    store_columns(into, part * firsts + first, map, base, all);
}
EXPORT(column_sums)

// into[i] += the sum over parts of partials[part][i]. A block has 32 columns; each of its warps takes every sixteenth part.
extern "C" __global__ void __launch_bounds__(512) sum_parts(Run partials, Run into, u64 parts, u64 len) {
    SHARED(float, sums, 16 * WARP_SIZE);
    const u64 i = u64(blockIdx.x) * WARP_SIZE + lane_id();
    float sum = 0;
    if (i < len)
        for (u64 part = warp_id(); part < parts; part += 16) sum = __fadd_rn(sum, as<float>(partials)[part * len + i]);
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (warp_id() != 0 || i >= len) return;
    for (u32 w = 1; w < 16; w++) sum = __fadd_rn(sum, sums[w * WARP_SIZE + lane_id()]);
    store(into, i, __fadd_rn(load(into, i), sum));
}
EXPORT(sum_parts)

// Rotates the pairs (i, i + half) of each head by the angles of the row's position; `sign` -1 for the backward pass.
extern "C" __global__ void __launch_bounds__(256) rope(Run x, Run cos, Run sin, u64 rows, u64 seq, u32 heads, u32 half, u32 team,
        float sign) {
    const u64 row = team_row(team);
    if (row >= rows) return;
    const bool vectorized = half % 8 == 0 && is_aligned16(x) && is_aligned16(cos) && is_aligned16(sin);
    const u64 angles = row % seq * half;
    const u32 chunks = (half + 7) / 8;
    auto part = [&](Run run, u64 at, u32 count, float(&v)[8]) {
        if (vectorized) return load8(run, at, v);
        UNROLL for (u32 j = 0; j < 8; j++) v[j] = j < count ? load(run, at + j) : 0;
    };
    for (u32 c = threadIdx.x % team; c < heads * chunks; c += team) {
        const u32 head = c / chunks, i = c % chunks * 8, count = half - i < 8 ? half - i : 8;
        const u64 low = (row * heads + head) * 2 * half + i;
        float a[8], b[8], turn[8], rise[8];
        part(x, low, count, a);
        part(x, low + half, count, b);
        part(cos, angles + i, count, turn);
        part(sin, angles + i, count, rise);
        UNROLL for (int j = 0; j < 8; j++) {
            const float s = rise[j] * sign, p = a[j], q = b[j];
            a[j] = fmaf(p, turn[j], -__fmul_rn(q, s));
            b[j] = fmaf(q, turn[j], __fmul_rn(p, s));
        }
        if (vectorized) {
            store8(x, low, a);
            store8(x, low + half, b);
            continue;
        }
        for (u32 j = 0; j < count; j++) {
            store(x, low + j, a[j]);
            store(x, low + half + j, b[j]);
        }
    }
}
EXPORT(rope)
