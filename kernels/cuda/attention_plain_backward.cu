// Attention backward in f32 arithmetic for any head size: probabilities are recomputed from the log-sum-exp, or read (`stored`).
// defines: Rows, query_rows, key_rows, tile_abt, add_pb, store_transposed, store_rows, group_sum, own_row, own_column
#include "plain.h"

// The probability of `key` for `row`: stored, or recomputed from the score.
template <bool stored>
__device__ inline float probability(const Attend &a, const AttentionMask &mask, u64 lse_at, float slope, float dot, i32 row, i32 key) {
    if (row >= mask.rows || key < first_key(mask, row) || key > last_key(mask, row)) return 0.0f;
    if (stored) return load(a.probs, (lse_at + u64(row)) * a.keys + u64(key));
    return exp2_fast(fmaf(dot, a.scale2, slope * float(key - row - mask.shift)) - a.lse[lse_at + u64(row)] * LOG2E);
}

// Gradients of keys and values. Grid: x key tiles of all key heads, y column chunks of the head.
template <bool stored> __device__ inline void plain_backward_keys(const Attend &a) {
    SHARED(float, scratch, 2 * STEP * (TILE + PAD));
    SHARED(float, p, TILE * (TILE + PAD));
    const u32 first = blockIdx.y * COLUMNS, group = a.heads / a.kv_heads;
    const TileIndex at = tile_index(ceil_div(a.keys, TILE), a.batch * a.kv_heads, a.section);
    const u32 b = at.head / a.kv_heads, kv = at.head % a.kv_heads;
    const i32 key = i32(at.tile * TILE), rows = i32(a.rows), keys = i32(a.keys);
    const AttentionMask mask = mask_of(a, b);
    const i32 begin = max(0, key - mask.shift) / i32(TILE) * i32(TILE);
    const i32 end = end_row(mask, min(key + i32(TILE), keys) - 1);
    const Rows k = key_rows(a, a.k, b, kv), v = key_rows(a, a.v, b, kv);
    float dk[4][8] = {}, dv[4][8] = {};
    for (u32 h = kv * group; h < (kv + 1) * group; h++) {
        const Rows q = query_rows(a, a.q, b, h), dout = query_rows(a, a.dout, b, h);
        const u64 lse_at = lse_offset(a, b, h);
        const float slope = alibi_slope(a, h);
        for (i32 row = begin; row < end; row += i32(TILE)) {
            const u32 depth = u32(min(i32(TILE), rows - row));
            float s[4][4] = {};
            if (!stored) tile_abt(s, k, key, q, row, a.head_dim, scratch);
            UNROLL for (int i = 0; i < 4; i++)
                UNROLL for (int j = 0; j < 4; j++)
                    s[i][j] = probability<stored>(a, mask, lse_at, slope, s[i][j], row + i32(own_column()) + j, key + i32(own_row()) + i);
            // Other threads may still read the previous tile.
            __syncthreads();
            store_transposed(p, s);
            add_pb(dv, p, dout, row, depth, first, a.head_dim, scratch);
            tile_abt(s, v, key, dout, row, a.head_dim, scratch);
            UNROLL for (int j = 0; j < 4; j++) {
                const i32 r = row + i32(own_column()) + j;
                const float delta = r < rows ? a.delta[lse_at + u64(r)] : 0.0f;
                const Float4 kept = load_float4(p + (own_column() + j) * (TILE + PAD) + own_row());
                UNROLL for (int i = 0; i < 4; i++) s[i][j] = kept.x[i] * (s[i][j] - delta);
            }
            store_transposed(p, s);
            add_pb(dk, p, q, row, depth, first, a.head_dim, scratch);
        }
    }
    const float scale[4] = {a.scale, a.scale, a.scale, a.scale}, one[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    store_rows(dk, scale, key_rows(a, a.dk, b, kv), key, first, a.head_dim);
    store_rows(dv, one, key_rows(a, a.dv, b, kv), key, first, a.head_dim);
}

// Gradients of queries. Grid: x query tiles of all heads, y column chunks of the head. With `sums`, only delta = sum of p * dp, for
// where there is no output to compute it from.
template <bool stored, bool sums> __device__ inline void plain_backward_queries(const Attend &a) {
    SHARED(float, scratch, 2 * STEP * (TILE + PAD));
    SHARED(float, p, TILE * (TILE + PAD));
    const u32 tiles = ceil_div(a.rows, TILE), first = blockIdx.y * COLUMNS;
    const TileIndex at = tile_index(tiles, a.batch * a.heads, a.section);
    const u32 b = at.head / a.heads, h = at.head % a.heads, kv = h / (a.heads / a.kv_heads);
    const i32 row = i32((tiles - 1 - at.tile) * TILE), rows = i32(a.rows);
    const AttentionMask mask = mask_of(a, b);
    const i32 end = last_key(mask, min(row + i32(TILE), rows) - 1) + 1;
    const Rows q = query_rows(a, a.q, b, h), dout = query_rows(a, a.dout, b, h);
    const Rows k = key_rows(a, a.k, b, kv), v = key_rows(a, a.v, b, kv);
    const u64 lse_at = lse_offset(a, b, h);
    const float slope = alibi_slope(a, h);
    float dq[4][8] = {}, sum[4] = {};
    for (i32 key = first_key(mask, row) / i32(TILE) * i32(TILE); key < end; key += i32(TILE)) {
        float s[4][4] = {}, dp[4][4];
        if (!stored) tile_abt(s, q, row, k, key, a.head_dim, scratch);
        tile_abt(dp, dout, row, v, key, a.head_dim, scratch);
        UNROLL for (int i = 0; i < 4; i++) {
            const i32 r = row + i32(own_row()) + i;
            const float delta = !sums && r < rows ? a.delta[lse_at + u64(r)] : 0.0f;
            UNROLL for (int j = 0; j < 4; j++) {
                s[i][j] = probability<stored>(a, mask, lse_at, slope, s[i][j], r, key + i32(own_column()) + j) * (dp[i][j] - delta);
                sum[i] += s[i][j];
            }
        }
        if (sums) continue;
        store_transposed(p, s);
        add_pb(dq, p, k, key, u32(min(i32(TILE), end - key)), first, a.head_dim, scratch);
    }
    if (sums) {
        UNROLL for (int i = 0; i < 4; i++) {
            sum[i] = group_sum(sum[i]);
            const i32 r = row + i32(own_row()) + i;
            if (own_column() == 0 && r < rows) a.delta[lse_at + u64(r)] = sum[i];
        }
        return;
    }
    const float scale[4] = {a.scale, a.scale, a.scale, a.scale};
    store_rows(dq, scale, query_rows(a, a.dq, b, h), row, first, a.head_dim);
}

extern "C" __global__ void __launch_bounds__(256, 1) plain_dkv(Attend a) { plain_backward_keys<false>(a); }
EXPORT(plain_dkv)
extern "C" __global__ void __launch_bounds__(256) plain_dq(Attend a) { plain_backward_queries<false, false>(a); }
EXPORT(plain_dq)
extern "C" __global__ void __launch_bounds__(256, 1) naive_delta(Attend a) { plain_backward_queries<true, true>(a); }
EXPORT(naive_delta)
extern "C" __global__ void __launch_bounds__(256, 1) naive_dkv(Attend a) { plain_backward_keys<true>(a); }
EXPORT(naive_dkv)
extern "C" __global__ void __launch_bounds__(256) naive_dq(Attend a) { plain_backward_queries<true, false>(a); }
EXPORT(naive_dq)
