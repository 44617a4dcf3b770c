// Attention forward in f32 arithmetic for any head size: with an online softmax, and with stored probabilities.
// defines: Rows, query_rows, key_rows, tile_abt, add_pb, store_transposed, store_rows, group_sum, group_max, own_row, own_column
#include "plain.h"

// A score scaled for exp2; -infinity for a masked key.
__device__ inline float score_exponent(const Attend &a, const AttentionMask &mask, float slope, float dot, i32 row, i32 key) {
    if (key < first_key(mask, row) || key > last_key(mask, row)) return -INFINITY;
    return fmaf(dot, a.scale2, slope * float(key - row - mask.shift));
}

// Grid: x query tiles of all heads, y column chunks of the head. `outputs` 0: computes the log-sum-exp only.
extern "C" __global__ void __launch_bounds__(256) plain_attention(Attend a, u32 outputs) {
    SHARED(float, scratch, 2 * STEP * (TILE + PAD));
    SHARED(float, p, TILE * (TILE + PAD));
    const u32 tiles = ceil_div(a.rows, TILE), first = blockIdx.y * COLUMNS;
    const TileIndex at = tile_index(tiles, a.batch * a.heads, a.section);
    const u32 b = at.head / a.heads, h = at.head % a.heads, kv = h / (a.heads / a.kv_heads);
    const i32 row = i32((tiles - 1 - at.tile) * TILE), rows = i32(a.rows);
    const AttentionMask mask = mask_of(a, b);
    const i32 end = last_key(mask, min(row + i32(TILE), rows) - 1) + 1;
    const Rows q = query_rows(a, a.q, b, h), k = key_rows(a, a.k, b, kv), v = key_rows(a, a.v, b, kv);
    const float slope = alibi_slope(a, h);
    float o[4][8] = {}, row_max[4], row_sum[4];
    for (int i = 0; i < 4; i++) row_max[i] = -INFINITY, row_sum[i] = 0.0f;
    for (i32 key = first_key(mask, row) / i32(TILE) * i32(TILE); key < end; key += i32(TILE)) {
        float s[4][4];
        tile_abt(s, q, row, k, key, a.head_dim, scratch);
        UNROLL for (int i = 0; i < 4; i++) {
            float new_max = row_max[i];
            UNROLL for (int j = 0; j < 4; j++) {
                s[i][j] = score_exponent(a, mask, slope, s[i][j], row + i32(own_row()) + i, key + i32(own_column()) + j);
                new_max = fmaxf(new_max, s[i][j]);
            }
            new_max = group_max(new_max);
            const float base = new_max == -INFINITY ? 0.0f : new_max, rescale = exp2_fast(row_max[i] - base);
            row_max[i] = new_max;
            float part = 0.0f;
            UNROLL for (int j = 0; j < 4; j++) s[i][j] = exp2_fast(s[i][j] - base), part += s[i][j];
            row_sum[i] = row_sum[i] * rescale + part;
            UNROLL for (int j = 0; j < 8; j++) o[i][j] *= rescale;
        }
        if (!outputs) continue;
        store_transposed(p, s);
        add_pb(o, p, v, key, u32(min(i32(TILE), end - key)), first, a.head_dim, scratch);
    }
    float inverse_sum[4];
    UNROLL for (int i = 0; i < 4; i++) {
        row_sum[i] = group_sum(row_sum[i]);
        inverse_sum[i] = row_sum[i] > 0.0f ? 1.0f / row_sum[i] : 0.0f;
        const i32 r = row + i32(own_row()) + i;
        if (first == 0 && own_column() == 0 && r < rows)
            a.lse[lse_offset(a, b, h) + u64(r)] = row_sum[i] > 0.0f ? (row_max[i] + log2_fast(row_sum[i])) * LN2 : -INFINITY;
    }
    if (outputs) store_rows(o, inverse_sum, query_rows(a, a.out, b, h), row, first, a.head_dim);
}
EXPORT(plain_attention)

// Stores probabilities, computed from the log-sum-exp and rounded to their type, and the output from them. Grid as above.
extern "C" __global__ void __launch_bounds__(256) naive_attention(Attend a) {
    SHARED(float, scratch, 2 * STEP * (TILE + PAD));
    SHARED(float, p, TILE * (TILE + PAD));
    const u32 tiles = ceil_div(a.rows, TILE), first = blockIdx.y * COLUMNS;
    const TileIndex at = tile_index(tiles, a.batch * a.heads, a.section);
    const u32 b = at.head / a.heads, h = at.head % a.heads, kv = h / (a.heads / a.kv_heads);
    const i32 row = i32((tiles - 1 - at.tile) * TILE), rows = i32(a.rows), keys = i32(a.keys);
    const AttentionMask mask = mask_of(a, b);
    const i32 begin = first_key(mask, row), end = last_key(mask, min(row + i32(TILE), rows) - 1) + 1;
    const Rows q = query_rows(a, a.q, b, h), k = key_rows(a, a.k, b, kv), v = key_rows(a, a.v, b, kv);
    const u64 lse_at = lse_offset(a, b, h);
    const float slope = alibi_slope(a, h);
    float o[4][8] = {};
    for (i32 key = 0; key < keys; key += i32(TILE)) {
        // All queries mask these keys: zeros.
        const bool seen = key < end && key + i32(TILE) > begin;
        if (!seen && first > 0) continue;
        float s[4][4] = {};
        if (seen) tile_abt(s, q, row, k, key, a.head_dim, scratch);
        UNROLL for (int i = 0; i < 4; i++) {
            const i32 r = row + i32(own_row()) + i;
            const float base = r < rows ? a.lse[lse_at + u64(r)] * LOG2E : 0.0f;
            UNROLL for (int j = 0; j < 4; j++) {
                const i32 c = key + i32(own_column()) + j;
                if (seen) s[i][j] = round_to(a.probs.type, exp2_fast(score_exponent(a, mask, slope, s[i][j], r, c) - base));
                if (first == 0 && r < rows && c < keys) store(a.probs, (lse_at + u64(r)) * a.keys + u64(c), s[i][j]);
            }
        }
        if (!seen) continue;
        store_transposed(p, s);
        add_pb(o, p, v, key, u32(min(i32(TILE), end - key)), first, a.head_dim, scratch);
    }
    const float one[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    store_rows(o, one, query_rows(a, a.out, b, h), row, first, a.head_dim);
}
EXPORT(naive_attention)
