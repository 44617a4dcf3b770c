// What all attention kernels have in common: their operands, which keys a query sees, and which block does what.
#pragma once
#include "prelude.h"

// As the launcher lays it out. A kernel leaves alone what it has no use for.
struct Attend {
    // q, out, dout, dq [batch * rows, heads * head_dim]; k, v, dk, dv [batch * keys, kv_heads * head_dim];
    // probs [batch, heads, rows, keys].
    Run q, k, v, out, dout, dq, dk, dv, probs;
    // [batch, heads, rows]: the log-sum-exp of a row's scores, and the sum of dout * out over a head.
    float *lse, *delta;
    // [batch, rows]: where a query's document starts, as a position. None: each sequence is one document.
    const u32 *starts;
    u32 batch, heads, kv_heads, head_dim;
    // Queries and keys of a sequence.
    u32 rows, keys;
    // How many keys a query sees, its own the last.
    i32 window;
    u32 alibi;
    // Positions of the first query and of the first key: they differ where a sequence is split over ranks.
    i32 q_offset, k_offset;
    // Factor on the scores; and times log2(e), for powers of two.
    float scale, scale2;
    // Heads whose blocks run side by side, so that what they read stays in the cache.
    u32 section;
};

static const float LOG2E = 1.44269504088896341f, LN2 = 0.693147180559945309f;
DEVICE float minus_infinity() { return bits_to_float(0xff800000); }
DEVICE float infinity() { return bits_to_float(0x7f800000); }
DEVICE i32 smaller_of(i32 a, i32 b) { return a < b ? a : b; }
DEVICE i32 larger_of(i32 a, i32 b) { return a > b ? a : b; }

// Which keys the queries of one sequence see. Neither the first nor the last ever falls from one row to the next.
struct Sight {
    const u32 *starts;
    // The key in row `row + shift` is the query's own.
    i32 shift, window, q_offset, k_offset, rows, keys;
};
DEVICE Sight sight_of(const Attend &a, u32 b) {
    return Sight{a.starts ? a.starts + u64(b) * a.rows : nullptr, a.q_offset - a.k_offset, a.window, a.q_offset, a.k_offset,
                 i32(a.rows), i32(a.keys)};
}
DEVICE i32 first_key(const Sight &s, i32 row) {
    i32 first = larger_of(0, row + s.shift + 1 - s.window);
    if (!s.starts) return first;
    row = smaller_of(row, s.rows - 1);
    // A start behind its token is a fault that another kernel reports; here it must only do no harm.
    return larger_of(first, smaller_of(i32(s.starts[row]), row + s.q_offset) - s.k_offset);
}
DEVICE i32 last_key(const Sight &s, i32 row) { return smaller_of(row + s.shift, s.keys - 1); }
// The row behind the last one that sees the key, or any before it.
DEVICE i32 end_row(const Sight &s, i32 key) {
    // Of a window: the row whose first key is behind `key` is `key + window - shift`.
    const i32 far = key - s.shift;
    i32 end = far > s.rows - s.window ? s.rows : larger_of(0, far + s.window);
    if (!s.starts) return end;
    // Starts never fall: the first row of a document that starts behind `key`.
    i32 low = 0;
    while (low < end) {
        const i32 middle = low + (end - low) / 2;
        if (first_key(s, middle) > key) end = middle;
        else low = middle + 1;
    }
    return low;
}

// The slope of a head (Press et al. 2022), times log2(e).
DEVICE float slope2(const Attend &a, u32 head) {
    if (!a.alibi) return 0.0f;
    u32 below = 1;
    while (2 * below <= a.heads) below *= 2;
    const float power = head < below ? -8.0f * float(head + 1) / float(below) : -4.0f * float(2 * (head - below) + 1) / float(below);
    return exp2_fast(power) * LOG2E;
}

// Which tile of which head a block has. Heads go in sections; within one all heads' first tiles come first.
struct Place { u32 tile, head; };
DEVICE Place place(u32 tiles, u32 heads, u32 section) {
    const u32 before = bid_x() / (section * tiles), rest = bid_x() % (section * tiles);
    const u32 left = heads - before * section, size = section < left ? section : left;
    return Place{rest / size, before * section + rest % size};
}

DEVICE u32 tiles_of(u32 rows, u32 tile) { return (rows + tile - 1) / tile; }
DEVICE u64 line_of(const Attend &a, u32 b, u32 h) { return (u64(b) * a.heads + h) * a.rows; }
// Where head `h` of a sequence begins in q and in k, in elements; rows are `heads * head_dim` apart.
DEVICE u64 query_head(const Attend &a, u32 b, u32 h) { return (u64(b) * a.rows * a.heads + h) * a.head_dim; }
DEVICE u64 key_head(const Attend &a, u32 b, u32 h) { return (u64(b) * a.keys * a.kv_heads + h) * a.head_dim; }
