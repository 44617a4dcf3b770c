// Rows changed by rows of a table, sums over rows, rotary embedding.
#include "rows.h"

// x[row] = x[row] + table[row % period], or times it.
KERNEL(256) change_rows(Run table, Run x, u64 rows, u64 period, u64 cols, u32 team, u32 times) {
    const u64 row = row_of(team);
    if (row >= rows) return;
    const Walk way = walk(cols, team, is_wide(table) && is_wide(x));
    const u64 from = row % period;
    for (u64 base = 0; base < cols; base += u64(team) * 8) {
        float v[8], t[8];
        take(x, row, way, base, v);
        take(table, from, way, base, t);
        UNROLL for (int j = 0; j < 8; j++) v[j] = times ? v[j] * t[j] : v[j] + t[j];
        give(x, row, way, base, v);
    }
}
EXPORT(change_rows)

// Sums over rows: of dy; if there is an x, of dy * x; if there are `rstds`, of dy * (x - mean) * rstd. Rows `first`, `first +
// period`, ... are summed to row `first` of `into`, which they are added to. Where they are cut into several parts of `of_part`
// rows, a part's sums go to into[part][min(period, rows)][cols] instead, for sum_parts. A block has 256 columns of one
// part of one `first`; each of its warps takes every eighth row.
KERNEL(256) column_sums(Run dy, Run x, Run means, Run rstds, Run into, u64 rows, u64 period, u64 cols, u64 parts, u64 of_part) {
    SHARED(float, sums, 8 * WARP * 8);
    const u64 tiles = (cols + 255) / 256, tile = bid_x() % tiles, rest = bid_x() / tiles;
    const u64 firsts = period < rows ? period : rows, first = rest % firsts, part = rest / firsts;
    const u64 count = (rows - first + period - 1) / period;
    const u64 end = (part + 1) * of_part < count ? (part + 1) * of_part : count;
    const Walk way = walk(cols, WARP, is_wide(dy) && is_wide(x) && is_wide(into));
    const u64 base = tile * 256;
    float all[8] = {};
    for (u64 i = part * of_part + warp(); i < end; i += 8) {
        const u64 row = first + i * period;
        float g[8], v[8];
        take(dy, row, way, base, g);
        if (x.at) {
            take(x, row, way, base, v);
            const float mean = means.at ? load(means, row) : 0, rstd = rstds.at ? load(rstds, row) : 1;
            UNROLL for (int j = 0; j < 8; j++) all[j] = fma1(g[j], mul_rn(v[j] - mean, rstd), all[j]);
        } else {
            UNROLL for (int j = 0; j < 8; j++) all[j] = add_rn(all[j], g[j]);
        }
    }
    UNROLL for (u32 j = 0; j < 8; j++) sums[(warp() * 8 + j) * WARP + lane()] = all[j];
    sync_block();
    if (warp() != 0) return;
    UNROLL for (u32 j = 0; j < 8; j++)
        for (u32 w = 1; w < 8; w++) all[j] = add_rn(all[j], sums[(w * 8 + j) * WARP + lane()]);
    if (parts == 1) {
        float old[8];
        take(into, first, way, base, old);
        UNROLL for (int j = 0; j < 8; j++) all[j] = add_rn(all[j], old[j]);
    }
    give(into, part * firsts + first, way, base, all);
}
EXPORT(column_sums)

// into[i] += the sum over parts of partials[part][i]. A block has 32 columns; each of its warps takes every sixteenth part.
KERNEL(512) sum_parts(Run partials, Run into, u64 parts, u64 len) {
    SHARED(float, sums, 16 * WARP);
    const u64 i = u64(bid_x()) * WARP + lane();
    float sum = 0;
    if (i < len)
        for (u64 part = warp(); part < parts; part += 16) sum = add_rn(sum, as<float>(partials)[part * len + i]);
    sums[tid()] = sum;
    sync_block();
    if (warp() != 0 || i >= len) return;
    for (u32 w = 1; w < 16; w++) sum = add_rn(sum, sums[w * WARP + lane()]);
    store(into, i, add_rn(load(into, i), sum));
}
EXPORT(sum_parts)

// Turns each head's pairs (i, i + half) by the angles of the row's position; `sign` is -1 to turn back.
KERNEL(256) rope(Run x, Run cos, Run sin, u64 rows, u64 seq, u32 heads, u32 half, u32 team, float sign) {
    const u64 row = row_of(team);
    if (row >= rows) return;
    const bool wide = half % 8 == 0 && is_wide(x) && is_wide(cos) && is_wide(sin);
    const u64 angles = row % seq * half;
    const u32 chunks = (half + 7) / 8;
    auto part = [&](Run run, u64 at, u32 count, float(&v)[8]) {
        if (wide) return load8(run, at, v);
        UNROLL for (u32 j = 0; j < 8; j++) v[j] = j < count ? load(run, at + j) : 0;
    };
    for (u32 c = tid() % team; c < heads * chunks; c += team) {
        const u32 head = c / chunks, i = c % chunks * 8, count = half - i < 8 ? half - i : 8;
        const u64 low = (row * heads + head) * 2 * half + i;
        float a[8], b[8], turn[8], rise[8];
        part(x, low, count, a);
        part(x, low + half, count, b);
        part(cos, angles + i, count, turn);
        part(sin, angles + i, count, rise);
        UNROLL for (int j = 0; j < 8; j++) {
            const float s = rise[j] * sign, p = a[j], q = b[j];
            a[j] = fma1(p, turn[j], -mul_rn(q, s));
            b[j] = fma1(q, turn[j], mul_rn(p, s));
        }
        if (wide) {
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
