// Attention in f32 arithmetic for heads of any size, forward: with an online softmax, and with stored probabilities.
#include "plain.h"

// A score as a power of two's exponent; minus infinity of a key that the row does not see.
DEVICE float exponent(const Attend &a, const Sight &sight, float slope, float dot, i32 row, i32 key) {
    if (key < first_key(sight, row) || key > last_key(sight, row)) return minus_infinity();
    return fma1(dot, a.scale2, slope * float(key - row - sight.shift));
}

// Blocks: tiles of queries of a head along x, columns of the head along y. `outputs` 0: the log-sum-exp alone.
KERNEL(256) plain_attention(Attend a, u32 outputs) {
    SHARED(float, room, 2 * STEP * (TILE + PAD));
    SHARED(float, p, TILE * (TILE + PAD));
    const u32 tiles = tiles_of(a.rows, TILE), first = bid_y() * COLUMNS;
    const Place at = place(tiles, a.batch * a.heads, a.section);
    const u32 b = at.head / a.heads, h = at.head % a.heads, kv = h / (a.heads / a.kv_heads);
    const i32 row = i32((tiles - 1 - at.tile) * TILE), rows = i32(a.rows);
    const Sight sight = sight_of(a, b);
    const i32 end = last_key(sight, smaller_of(row + i32(TILE), rows) - 1) + 1;
    const Rows q = query_rows(a, a.q, b, h), k = key_rows(a, a.k, b, kv), v = key_rows(a, a.v, b, kv);
    const float slope = slope2(a, h);
    float o[4][8] = {}, top[4], sum[4];
    for (int i = 0; i < 4; i++) top[i] = minus_infinity(), sum[i] = 0.0f;
    for (i32 key = first_key(sight, row) / i32(TILE) * i32(TILE); key < end; key += i32(TILE)) {
        float s[4][4];
        plain_times(s, q, row, k, key, a.head_dim, room);
        UNROLL for (int i = 0; i < 4; i++) {
            float new_top = top[i];
            UNROLL for (int j = 0; j < 4; j++) {
                s[i][j] = exponent(a, sight, slope, s[i][j], row + i32(own_row()) + i, key + i32(own_column()) + j);
                new_top = max_of(new_top, s[i][j]);
            }
            new_top = row_max(new_top);
            const float base = new_top == minus_infinity() ? 0.0f : new_top, shrink = exp2_fast(top[i] - base);
            top[i] = new_top;
            float part = 0.0f;
            UNROLL for (int j = 0; j < 4; j++) s[i][j] = exp2_fast(s[i][j] - base), part += s[i][j];
            sum[i] = sum[i] * shrink + part;
            UNROLL for (int j = 0; j < 8; j++) o[i][j] *= shrink;
        }
        if (!outputs) continue;
        plain_keep(p, s);
        plain_add(o, p, v, key, u32(smaller_of(i32(TILE), end - key)), first, a.head_dim, room);
    }
    float over[4];
    UNROLL for (int i = 0; i < 4; i++) {
        sum[i] = row_sum(sum[i]);
        over[i] = sum[i] > 0.0f ? 1.0f / sum[i] : 0.0f;
        const i32 r = row + i32(own_row()) + i;
        if (first == 0 && own_column() == 0 && r < rows)
            a.lse[line_of(a, b, h) + u64(r)] = sum[i] > 0.0f ? (top[i] + log2_fast(sum[i])) * LN2 : minus_infinity();
    }
    if (outputs) plain_store(o, over, query_rows(a, a.out, b, h), row, first, a.head_dim);
}
EXPORT(plain_attention)

// Probabilities from the log-sum-exp, rounded to their type, and the output from what was stored. Blocks as above.
KERNEL(256) naive_attention(Attend a) {
    SHARED(float, room, 2 * STEP * (TILE + PAD));
    SHARED(float, p, TILE * (TILE + PAD));
    const u32 tiles = tiles_of(a.rows, TILE), first = bid_y() * COLUMNS;
    const Place at = place(tiles, a.batch * a.heads, a.section);
    const u32 b = at.head / a.heads, h = at.head % a.heads, kv = h / (a.heads / a.kv_heads);
    const i32 row = i32((tiles - 1 - at.tile) * TILE), rows = i32(a.rows), keys = i32(a.keys);
    const Sight sight = sight_of(a, b);
    const i32 begin = first_key(sight, row), end = last_key(sight, smaller_of(row + i32(TILE), rows) - 1) + 1;
    const Rows q = query_rows(a, a.q, b, h), k = key_rows(a, a.k, b, kv), v = key_rows(a, a.v, b, kv);
    const u64 line = line_of(a, b, h);
    const float slope = slope2(a, h);
    float o[4][8] = {};
    for (i32 key = 0; key < keys; key += i32(TILE)) {
        // Nobody here sees these keys: zeros.
        const bool seen = key < end && key + i32(TILE) > begin;
        if (!seen && first > 0) continue;
        float s[4][4] = {};
        if (seen) plain_times(s, q, row, k, key, a.head_dim, room);
        UNROLL for (int i = 0; i < 4; i++) {
            const i32 r = row + i32(own_row()) + i;
            const float base = r < rows ? a.lse[line + u64(r)] * LOG2E : 0.0f;
            UNROLL for (int j = 0; j < 4; j++) {
                const i32 c = key + i32(own_column()) + j;
                if (seen) s[i][j] = rounded(a.probs.type, exp2_fast(exponent(a, sight, slope, s[i][j], r, c) - base));
                if (first == 0 && r < rows && c < keys) store(a.probs, (line + u64(r)) * a.keys + u64(c), s[i][j]);
            }
        }
        if (!seen) continue;
        plain_keep(p, s);
        plain_add(o, p, v, key, u32(smaller_of(i32(TILE), end - key)), first, a.head_dim, room);
    }
    const float one[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    plain_store(o, one, query_rows(a, a.out, b, h), row, first, a.head_dim);
}
EXPORT(naive_attention)
