// Attention in f32 arithmetic for heads of any size, backward: probabilities computed again from the log-sum-exp, or stored.
#include "plain.h"

// How much `row` takes of `key`: stored, or from the product of both.
template <bool stored> DEVICE float weight(const Attend &a, const Sight &sight, u64 line, float slope, float dot, i32 row, i32 key) {
    if (row >= sight.rows || key < first_key(sight, row) || key > last_key(sight, row)) return 0.0f;
    if (stored) return load(a.probs, (line + u64(row)) * a.keys + u64(key));
    return exp2_fast(fma1(dot, a.scale2, slope * float(key - row - sight.shift)) - a.lse[line + u64(row)] * LOG2E);
}

// Gradients of keys and values. Blocks: tiles of keys of a key head along x, columns of the head along y.
template <bool stored> DEVICE void plain_backward_keys(const Attend &a) {
    SHARED(float, room, 2 * STEP * (TILE + PAD));
    SHARED(float, p, TILE * (TILE + PAD));
    const u32 first = bid_y() * COLUMNS, group = a.heads / a.kv_heads;
    const Place at = place(tiles_of(a.keys, TILE), a.batch * a.kv_heads, a.section);
    const u32 b = at.head / a.kv_heads, kv = at.head % a.kv_heads;
    const i32 key = i32(at.tile * TILE), rows = i32(a.rows), keys = i32(a.keys);
    const Sight sight = sight_of(a, b);
    const i32 begin = larger_of(0, key - sight.shift) / i32(TILE) * i32(TILE);
    const i32 end = end_row(sight, smaller_of(key + i32(TILE), keys) - 1);
    const Rows k = key_rows(a, a.k, b, kv), v = key_rows(a, a.v, b, kv);
    float dk[4][8] = {}, dv[4][8] = {};
    for (u32 h = kv * group; h < (kv + 1) * group; h++) {
        const Rows q = query_rows(a, a.q, b, h), dout = query_rows(a, a.dout, b, h);
        const u64 line = line_of(a, b, h);
        const float slope = slope2(a, h);
        for (i32 row = begin; row < end; row += i32(TILE)) {
            const u32 depth = u32(smaller_of(i32(TILE), rows - row));
            float s[4][4] = {};
            if (!stored) plain_times(s, k, key, q, row, a.head_dim, room);
            UNROLL for (int i = 0; i < 4; i++)
                UNROLL for (int j = 0; j < 4; j++)
                    s[i][j] = weight<stored>(a, sight, line, slope, s[i][j], row + i32(own_column()) + j, key + i32(own_row()) + i);
            // Others may still read what was kept there last.
            sync_block();
            plain_keep(p, s);
            plain_add(dv, p, dout, row, depth, first, a.head_dim, room);
            plain_times(s, v, key, dout, row, a.head_dim, room);
            UNROLL for (int j = 0; j < 4; j++) {
                const i32 r = row + i32(own_column()) + j;
                const float delta = r < rows ? a.delta[line + u64(r)] : 0.0f;
                const four kept = load_four(p + (own_column() + j) * (TILE + PAD) + own_row());
                UNROLL for (int i = 0; i < 4; i++) s[i][j] = kept.x[i] * (s[i][j] - delta);
            }
            plain_keep(p, s);
            plain_add(dk, p, q, row, depth, first, a.head_dim, room);
        }
    }
    const float scale[4] = {a.scale, a.scale, a.scale, a.scale}, one[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    plain_store(dk, scale, key_rows(a, a.dk, b, kv), key, first, a.head_dim);
    plain_store(dv, one, key_rows(a, a.dv, b, kv), key, first, a.head_dim);
}

// Gradients of queries. Blocks: tiles of queries of a head along x, columns of the head along y. Or the sums `delta` of p * dp
// alone, where there is no output to make them from.
template <bool stored, bool sums> DEVICE void plain_backward_queries(const Attend &a) {
    SHARED(float, room, 2 * STEP * (TILE + PAD));
    SHARED(float, p, TILE * (TILE + PAD));
    const u32 tiles = tiles_of(a.rows, TILE), first = bid_y() * COLUMNS;
    const Place at = place(tiles, a.batch * a.heads, a.section);
    const u32 b = at.head / a.heads, h = at.head % a.heads, kv = h / (a.heads / a.kv_heads);
    const i32 row = i32((tiles - 1 - at.tile) * TILE), rows = i32(a.rows);
    const Sight sight = sight_of(a, b);
    const i32 end = last_key(sight, smaller_of(row + i32(TILE), rows) - 1) + 1;
    const Rows q = query_rows(a, a.q, b, h), dout = query_rows(a, a.dout, b, h);
    const Rows k = key_rows(a, a.k, b, kv), v = key_rows(a, a.v, b, kv);
    const u64 line = line_of(a, b, h);
    const float slope = slope2(a, h);
    float dq[4][8] = {}, sum[4] = {};
    for (i32 key = first_key(sight, row) / i32(TILE) * i32(TILE); key < end; key += i32(TILE)) {
        float s[4][4] = {}, dp[4][4];
        if (!stored) plain_times(s, q, row, k, key, a.head_dim, room);
        plain_times(dp, dout, row, v, key, a.head_dim, room);
        UNROLL for (int i = 0; i < 4; i++) {
            const i32 r = row + i32(own_row()) + i;
            const float delta = !sums && r < rows ? a.delta[line + u64(r)] : 0.0f;
            UNROLL for (int j = 0; j < 4; j++) {
                s[i][j] = weight<stored>(a, sight, line, slope, s[i][j], r, key + i32(own_column()) + j) * (dp[i][j] - delta);
                sum[i] += s[i][j];
            }
        }
        if (sums) continue;
        plain_keep(p, s);
        plain_add(dq, p, k, key, u32(smaller_of(i32(TILE), end - key)), first, a.head_dim, room);
    }
    if (sums) {
        UNROLL for (int i = 0; i < 4; i++) {
            sum[i] = row_sum(sum[i]);
            const i32 r = row + i32(own_row()) + i;
            if (own_column() == 0 && r < rows) a.delta[line + u64(r)] = sum[i];
        }
        return;
    }
    const float scale[4] = {a.scale, a.scale, a.scale, a.scale};
    plain_store(dq, scale, query_rows(a, a.dq, b, h), row, first, a.head_dim);
}

KERNEL(256, 1) plain_keys(Attend a) { plain_backward_keys<false>(a); }
EXPORT(plain_keys)
KERNEL(256) plain_queries(Attend a) { plain_backward_queries<false, false>(a); }
EXPORT(plain_queries)
KERNEL(256, 1) naive_delta(Attend a) { plain_backward_queries<true, true>(a); }
EXPORT(naive_delta)
KERNEL(256, 1) naive_keys(Attend a) { plain_backward_keys<true>(a); }
EXPORT(naive_keys)
KERNEL(256) naive_queries(Attend a) { plain_backward_queries<true, false>(a); }
EXPORT(naive_queries)
