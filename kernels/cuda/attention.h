// Common to all attention kernels: arguments, the mask, and which block works on which tile.
#pragma once
// defines: Run, exp2_fast
#include "prelude.h"

// The arguments, laid out as in flash.rs. A kernel ignores those it does not need.
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
    // How many keys a query attends to, its own the last.
    i32 window;
    // The number of the first query head in the model, and the model's query heads; 0 without ALiBi.
    u32 alibi_first, alibi_heads;
    // Positions of the first query and of the first key: they differ where a sequence is split over ranks.
    i32 q_offset, k_offset;
    // Factor on the scores; and that times log2(e), for exp2.
    float scale, scale2;
    // Number of heads whose blocks run together, so that their keys and values stay in the L2 cache.
    u32 section;
};

static const float LOG2E = 1.44269504088896341f, LN2 = 0.693147180559945309f;

// Which keys the queries of one sequence attend to. The first and the last key never decrease from one row to the next.
struct AttentionMask {
    const u32 *starts;
    // Query `row` has the same position as key `row + shift`.
    i32 shift, window, q_offset, k_offset, rows, keys;
};
__device__ inline AttentionMask mask_of(const Attend &a, u32 b) {
    return AttentionMask{a.starts ? a.starts + u64(b) * a.rows : nullptr, a.q_offset - a.k_offset, a.window, a.q_offset, a.k_offset,
                 i32(a.rows), i32(a.keys)};
}
__device__ inline i32 first_key(const AttentionMask &s, i32 row) {
    i32 first = max(0, row + s.shift + 1 - s.window);
    if (!s.starts) return first;
    row = min(row, s.rows - 1);
    // check_document_starts reports a start behind its token; here it must only do no harm.
    return max(first, min(i32(s.starts[row]), row + s.q_offset) - s.k_offset);
}
__device__ inline i32 last_key(const AttentionMask &s, i32 row) { return min(row + s.shift, s.keys - 1); }
// One past the last row that attends to the key or to any key before it.
__device__ inline i32 end_row(const AttentionMask &s, i32 key) {
    // Within a window: row `key + window - shift` is the first that no longer attends to `key`.
    const i32 far = key - s.shift;
    i32 end = far > s.rows - s.window ? s.rows : max(0, far + s.window);
    if (!s.starts) return end;
    // Starts never decrease: binary search for the first row whose document starts behind `key`.
    i32 low = 0;
    while (low < end) {
        const i32 middle = low + (end - low) / 2;
        if (first_key(s, middle) > key) end = middle;
        else low = middle + 1;
    }
    return low;
}

// The ALiBi slope of a head (Press et al. 2022), times log2(e).
__device__ inline float alibi_slope(const Attend &a, u32 head) {
    if (!a.alibi_heads) return 0.0f;
    head += a.alibi_first;
    u32 below = 1;
    while (2 * below <= a.alibi_heads) below *= 2;
    const float power = head < below ? -8.0f * float(head + 1) / float(below) : -4.0f * float(2 * (head - below) + 1) / float(below);
    return exp2_fast(power) * LOG2E;
}

// Which tile of which head a block works on. Heads are grouped in sections; within one, the first tiles of all heads come first.
struct TileIndex { u32 tile, head; };
__device__ inline TileIndex tile_index(u32 tiles, u32 heads, u32 section) {
    const u32 before = blockIdx.x / (section * tiles), rest = blockIdx.x % (section * tiles);
    const u32 left = heads - before * section, size = section < left ? section : left;
    return TileIndex{rest / size, before * section + rest % size};
}

__device__ inline u32 ceil_div(u32 rows, u32 tile) { return (rows + tile - 1) / tile; }
__device__ inline u64 lse_offset(const Attend &a, u32 b, u32 h) { return (u64(b) * a.heads + h) * a.rows; }
// Offset of head `h` of a sequence in q and in k, in elements; rows are `heads * head_dim` apart.
__device__ inline u64 query_offset(const Attend &a, u32 b, u32 h) { return (u64(b) * a.rows * a.heads + h) * a.head_dim; }
__device__ inline u64 key_offset(const Attend &a, u32 b, u32 h) { return (u64(b) * a.keys * a.kv_heads + h) * a.head_dim; }
