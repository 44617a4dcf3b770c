// GEMM: C = alpha op(A) op(B) (+ C), accumulated in f32 in a fixed order. Also grouped GEMM, whose group sizes only the device knows.
#pragma once
// defines: Run, as, report_fault
#include "prelude.h"

struct Product {
    Run a, b, c;
    u32 m, n, k;
    // 1: A is stored [k, m]; 2: B is stored [n, k].
    u32 trans;
    u32 accumulate;
    float alpha;
    // Elements from one row of A and of C, as stored, to the next.
    u32 pitch_a, pitch_c, reserved[2];
};
// Group g has rows offsets[g] to offsets[g + 1]: rows of A and C, and each group has its own B; or with `inner` the k dimension, and
// each group has its own C. Null offsets: one product.
struct Groups {
    const u32 *offsets;
    u32 *faults;
    u32 rows, groups, inner, reserved;
};

// What one block computes: its group's product, with operands advanced to the group, and the position of its tile.
struct Tile {
    Product p;
    u32 row, col;
    bool none;
};

__device__ inline Run advanced(Run run, u64 elements) {
    const u64 size = run.type == F32 ? 4 : 2;
    return Run{as<u8>(run) + elements * size, run.type, 0};
}

// Tiles of `high` rows by `wide` columns.
__device__ inline Tile tile_of(Product p, const Groups &of, u32 high, u32 wide) {
    const u32 cols = (p.n + wide - 1) / wide;
    u32 tile = blockIdx.x;
    if (!of.offsets) {
        // For reuse in L2, blocks go through eight rows of tiles column by column.
        const u32 rows = (p.m + high - 1) / high, band = tile / (8 * cols) * 8, count = rows - band < 8 ? rows - band : 8;
        const u32 within = tile - band * cols;
        return Tile{p, (band + within % count) * high, within / count * wide, false};
    }
    // Invalid offsets are reported, and clamped so that no access is out of bounds.
    const u32 each = of.inner ? (p.m + high - 1) / high * cols : 1;
    const u32 wanted = of.inner ? tile / each : tile / cols;
    u32 before = 0, group = of.groups, start = 0, count = 0, local = 0, last = 0;
    for (u32 g = 0; g < of.groups; g++) {
        const u32 given = of.offsets[g + 1];
        u32 end = given < last ? last : given;
        end = end < of.rows ? end : of.rows;
        const bool bad = given != end || (g == 0 && of.offsets[0] != 0) || (g + 1 == of.groups && given != of.rows);
        if (bad && tile == 0 && threadIdx.x == 0) report_fault(of.faults, 5, g, given);
        const u32 tiles = of.inner ? 1 : (end - last + high - 1) / high;
        if (wanted - before < tiles) {
            group = g;
            start = last;
            count = end - last;
            local = wanted - before;
        }
        before += tiles;
        last = end;
    }
    if (group == of.groups) return Tile{p, 0, 0, true};
    if (of.inner) {
        p.a = advanced(p.a, u64(start) * p.m);
        p.b = advanced(p.b, u64(start) * p.n);
        p.c = advanced(p.c, u64(group) * p.m * p.n);
        p.k = count;
        tile -= group * each;
        return Tile{p, tile / cols * high, tile % cols * wide, false};
    }
    p.a = advanced(p.a, u64(start) * p.k);
    p.b = advanced(p.b, u64(group) * p.k * p.n);
    p.c = advanced(p.c, u64(start) * p.n);
    p.m = count;
    return Tile{p, local * high, tile % cols * wide, false};
}
