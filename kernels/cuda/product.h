// Matrix products: C = alpha op(A) op(B) (+ C), sums in f32 in one order. Also products of groups of rows, each with its own
// matrix, whose sizes only the device knows.
#pragma once
#include "prelude.h"

struct Product {
    Run a, b, c;
    u32 m, n, k;
    // 1: A is stored [k, m]; 2: B is stored [n, k].
    u32 trans;
    u32 accumulate;
    float alpha;
};
// Group g has rows offsets[g] to offsets[g + 1]. Either they are rows of A and C, and every group has a B of its own; or they are what
// sums go over (`inner`), and every group has a C of its own. No offsets: one product.
struct Groups {
    const u32 *offsets;
    u32 *faults;
    u32 rows, groups, inner, reserved;
};

// What one block computes: the product of its group, moved to where its operands begin, and where its tile is.
struct Part {
    Product p;
    u32 row, col;
    bool none;
};

DEVICE Run moved(Run run, u64 elements) {
    const u64 size = run.type == F32 ? 4 : 2;
    return Run{as<u8>(run) + elements * size, run.type, 0};
}

// Tiles of `high` rows by `wide` columns.
DEVICE Part part_of(Product p, const Groups &of, u32 high, u32 wide) {
    const u32 cols = (p.n + wide - 1) / wide;
    u32 tile = bid_x();
    if (!of.offsets) {
        // Blocks that run together share operands: eight rows of tiles, column by column.
        const u32 rows = (p.m + high - 1) / high, band = tile / (8 * cols) * 8, count = rows - band < 8 ? rows - band : 8;
        const u32 within = tile - band * cols;
        return Part{p, (band + within % count) * high, within / count * wide, false};
    }
    // What is no way to cut the rows is reported, and computed without leaving any operand.
    const u32 each = of.inner ? (p.m + high - 1) / high * cols : 1;
    const u32 wanted = of.inner ? tile / each : tile / cols;
    u32 before = 0, group = of.groups, start = 0, count = 0, local = 0, last = 0;
    for (u32 g = 0; g < of.groups; g++) {
        const u32 given = of.offsets[g + 1];
        u32 end = given < last ? last : given;
        end = end < of.rows ? end : of.rows;
        const bool bad = given != end || (g == 0 && of.offsets[0] != 0) || (g + 1 == of.groups && given != of.rows);
        if (bad && tile == 0 && tid() == 0) fault(of.faults, 5, g, given);
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
    if (group == of.groups) return Part{p, 0, 0, true};
    if (of.inner) {
        p.a = moved(p.a, u64(start) * p.m);
        p.b = moved(p.b, u64(start) * p.n);
        p.c = moved(p.c, u64(group) * p.m * p.n);
        p.k = count;
        tile -= group * each;
        return Part{p, tile / cols * high, tile % cols * wide, false};
    }
    p.a = moved(p.a, u64(start) * p.k);
    p.b = moved(p.b, u64(group) * p.k * p.n);
    p.c = moved(p.c, u64(start) * p.n);
    p.m = count;
    return Part{p, local * high, tile % cols * wide, false};
}
