// Attention on the tensor cores, backward, in a fixed order of sums. Scores are computed twice: once by blocks that own keys
// and go through the queries that see them, once by blocks that own queries and go through the keys they see.
#include "attention.h"
#include "tiles.h"

// A row's log-sum-exp for powers of two; of a row that sees nothing, or is none, such that all its weights are 0.
DEVICE float base_of(const Attend &a, u64 line, i32 row) {
    if (row >= i32(a.rows)) return infinity();
    const float lse = a.lse[line + u64(row)];
    return lse == minus_infinity() ? infinity() : lse * LOG2E;
}
DEVICE float delta_of(const Attend &a, u64 line, i32 row) { return row < i32(a.rows) ? a.delta[line + u64(row)] : 0.0f; }

// Gradients of keys and values. A block has 128 keys of a key head, 16 * M for each warp, and goes through the query heads
// that read it, and of each through queries in tiles of 64, of which it works on PART at once. Scores lie with keys as rows,
// so that nothing has to change between warps.
// Dynamic shared memory: (256 + 4 * 64) * D elements, then 2 * 3 * 64 words.
template <class T, int D, int M, int PART> DEVICE void backward_keys(const Attend &a) {
    const int KEYS = 128, ROWS = 64, THREADS = KEYS / M * 2;
    DYNAMIC(T, shared);
    T *ks = shared, *vs = ks + KEYS * D, *stages = vs + KEYS * D;
    float *aside = reinterpret_cast<float *>(stages + 4 * ROWS * D);

    const Place at = place(tiles_of(a.keys, KEYS), a.batch * a.kv_heads, a.section);
    const u32 b = at.head / a.kv_heads, kv = at.head % a.kv_heads, group = a.heads / a.kv_heads;
    const i32 first_key_ = i32(at.tile * KEYS), rows = i32(a.rows), keys = i32(a.keys);
    const Sight sight = sight_of(a, b);
    // Queries that see any of these keys.
    const i32 begin = larger_of(0, first_key_ - sight.shift) / ROWS * ROWS;
    const i32 end = end_row(sight, smaller_of(first_key_ + KEYS, keys) - 1);
    const i32 count = begin < end ? (end - begin + ROWS - 1) / ROWS : 0, turns = count * i32(group);
    const u64 stride = u64(a.heads) * D, kv_stride = u64(a.kv_heads) * D;

    // Turn i: tile i % count of the group's query head i / count.
    auto fetch = [&](i32 i) {
        const u64 head = query_head(a, b, kv * group + u32(i / count));
        const i32 row = begin + i % count * ROWS;
        T *to = stages + i % 2 * 2 * ROWS * D;
        tile_in<T, D, ROWS, THREADS>(to, as<T>(a.q) + head, stride, row, rows);
        tile_in<T, D, ROWS, THREADS>(to + ROWS * D, as<T>(a.dout) + head, stride, row, rows);
        cp_async_commit();
    };
    // What belongs to a row, on its way in registers: the other stage is free only when a turn begins.
    float base = 0.0f, delta = 0.0f;
    i32 seen = 0;
    auto fetch_rows = [&](i32 i) {
        if (tid() >= ROWS) return;
        const u64 line = line_of(a, b, kv * group + u32(i / count));
        const i32 row = begin + i % count * ROWS + i32(tid());
        base = base_of(a, line, row), delta = delta_of(a, line, row), seen = first_key(sight, row);
    };
    auto keep_rows = [&](i32 i) {
        if (tid() >= ROWS) return;
        float *to = aside + i % 2 * 3 * ROWS + tid();
        to[0] = base, to[ROWS] = delta, to[2 * ROWS] = bits_to_float(u32(seen));
    };

    const u32 g = lane() / 4, t = lane() % 4, own = warp() * 16 * M;
    const i32 first = first_key_ + i32(own), last = smaller_of(first + 16 * M, keys) - 1;
    float dk[M][D / 8][4], dv[M][D / 8][4];
    clear<M, D / 8>(dk);
    clear<M, D / 8>(dv);
    if (turns > 0) {
        tile_in<T, D, KEYS, THREADS>(ks, as<T>(a.k) + key_head(a, b, kv), kv_stride, first_key_, keys);
        tile_in<T, D, KEYS, THREADS>(vs, as<T>(a.v) + key_head(a, b, kv), kv_stride, first_key_, keys);
        fetch(0);
        fetch_rows(0);
        keep_rows(0);
    }
    for (i32 i = 0; i < turns; i++) {
        cp_async_wait<0>();
        // Everyone's copies are there, and everyone is done with the other stage.
        sync_block();
        if (i + 1 < turns) fetch(i + 1), fetch_rows(i + 1);
        const T *qs = stages + i % 2 * 2 * ROWS * D, *dos = qs + ROWS * D;
        const float *bases = aside + i % 2 * 3 * ROWS, *deltas = bases + ROWS, *firsts = deltas + ROWS;
        const i32 row0 = begin + i % count * ROWS;
        const float slope = slope2(a, kv * group + u32(i / count));
        auto first_of = [&](i32 row) { return i32(float_to_bits(firsts[row])); };

        ROLLED for (i32 part = 0; part < ROWS; part += PART) {
            const i32 row = row0 + part;
            if (row + PART - 1 + sight.shift < first || first_of(part) > last || row >= rows) continue;
            float s[M][PART / 8][4];
            times_rows<T, D, M, PART>(s, ks, own, qs, u32(part));
            const bool whole = row + sight.shift >= last && first_of(part + PART - 1) <= first;
            UNROLL for (int n = 0; n < PART / 8; n++)
                UNROLL for (int e = 0; e < 2; e++) {
                    const float row_base = bases[part + 8 * n + 2 * i32(t) + e];
                    UNROLL for (int k = 0; k < 2 * M; k++) {
                        float &x = s[k / 2][n][2 * (k % 2) + e];
                        x = fma1(x, a.scale2, -row_base);
                    }
                }
            // How far this lane's first key lies before the own key of its first query.
            const i32 ahead = first + i32(g) - (row + 2 * i32(t) + sight.shift);
            if (a.alibi)
                UNROLL for (int n = 0; n < PART / 8; n++)
                    UNROLL for (int e = 0; e < 2; e++)
                        UNROLL for (int k = 0; k < 2 * M; k++)
                            s[k / 2][n][2 * (k % 2) + e] += slope * float(ahead + 8 * k - 8 * n - e);
            UNROLL for (int m = 0; m < M; m++)
                UNROLL for (int n = 0; n < PART / 8; n++)
                    UNROLL for (int e = 0; e < 4; e++) s[m][n][e] = exp2_fast(s[m][n][e]);
            if (!whole)
                UNROLL for (int n = 0; n < PART / 8; n++)
                    UNROLL for (int e = 0; e < 2; e++) {
                        const i32 low = first_of(part + 8 * n + 2 * i32(t) + e);
                        UNROLL for (int k = 0; k < 2 * M; k++)
                            if (ahead + 8 * k - 8 * n - e > 0 || first + 8 * k + i32(g) < low) s[k / 2][n][2 * (k % 2) + e] = 0.0f;
                    }
            add_weighted<T, D, M, PART>(dv, s, dos, u32(part));
            float dp[M][PART / 8][4];
            times_rows<T, D, M, PART>(dp, vs, own, dos, u32(part));
            UNROLL for (int n = 0; n < PART / 8; n++)
                UNROLL for (int e = 0; e < 2; e++) {
                    const float row_delta = deltas[part + 8 * n + 2 * i32(t) + e];
                    UNROLL for (int k = 0; k < 2 * M; k++) {
                        const int at = 2 * (k % 2) + e;
                        s[k / 2][n][at] *= dp[k / 2][n][at] - row_delta;
                    }
                }
            add_weighted<T, D, M, PART>(dk, s, qs, u32(part));
        }
        if (i + 1 < turns) keep_rows(i + 1);
    }
    // A warp writes over its own keys and values only, but others' copies may have brought them.
    sync_block();
    if (first >= keys) return;
    float scale[2 * M], one[2 * M];
    UNROLL for (int i = 0; i < 2 * M; i++) scale[i] = a.scale, one[i] = 1.0f;
    tile_out<T, D, M>(dk, scale, ks, own, as<T>(a.dk) + key_head(a, b, kv), kv_stride, first, keys);
    tile_out<T, D, M>(dv, one, vs, own, as<T>(a.dv) + key_head(a, b, kv), kv_stride, first, keys);
}

// Gradients of queries. A block has 128 queries of a head, 16 * M for each warp, and goes through the keys they see
// in tiles of 64, of which it works on PART at once.
// Dynamic shared memory: (256 + 4 * 64) * D elements.
template <class T, int D, int M, int PART> DEVICE void backward_queries(const Attend &a) {
    const int ROWS = 128, KEYS = 64, THREADS = ROWS / M * 2;
    DYNAMIC(T, shared);
    T *qs = shared, *dos = qs + ROWS * D, *stages = dos + ROWS * D;

    const u32 tiles = tiles_of(a.rows, ROWS);
    const Place at = place(tiles, a.batch * a.heads, a.section);
    const u32 b = at.head / a.heads, h = at.head % a.heads, kv = h / (a.heads / a.kv_heads);
    const i32 first_row = i32((tiles - 1 - at.tile) * ROWS), rows = i32(a.rows), keys = i32(a.keys);
    const Sight sight = sight_of(a, b);
    const i32 begin = first_key(sight, first_row) / KEYS * KEYS;
    const i32 end = last_key(sight, smaller_of(first_row + ROWS, rows) - 1) + 1;
    const u64 stride = u64(a.heads) * D, kv_stride = u64(a.kv_heads) * D, line = line_of(a, b, h);
    const T *k = as<T>(a.k) + key_head(a, b, kv), *v = as<T>(a.v) + key_head(a, b, kv);

    auto fetch = [&](i32 key, u32 stage) {
        T *to = stages + stage * 2 * KEYS * D;
        tile_in<T, D, KEYS, THREADS>(to, k, kv_stride, key, keys);
        tile_in<T, D, KEYS, THREADS>(to + KEYS * D, v, kv_stride, key, keys);
        cp_async_commit();
    };
    tile_in<T, D, ROWS, THREADS>(qs, as<T>(a.q) + query_head(a, b, h), stride, first_row, rows);
    tile_in<T, D, ROWS, THREADS>(dos, as<T>(a.dout) + query_head(a, b, h), stride, first_row, rows);
    cp_async_commit();
    if (begin < end) fetch(begin, 0);

    const u32 g = lane() / 4, t = lane() % 4, own = warp() * 16 * M;
    const i32 first = first_row + i32(own), last = smaller_of(first + 16 * M, rows) - 1;
    const i32 from = first_key(sight, first), to = first < rows ? last_key(sight, last) : -1;
    const i32 all_from = first_key(sight, last), all_to = last_key(sight, first);
    const float slope = slope2(a, h);
    float base[2 * M], delta[2 * M];
    UNROLL for (int i = 0; i < 2 * M; i++) {
        const i32 row = first + 8 * i + i32(g);
        base[i] = base_of(a, line, row), delta[i] = delta_of(a, line, row);
    }
    float dq[M][D / 8][4];
    clear<M, D / 8>(dq);
    u32 stage = 0;
    for (i32 key = begin; key < end; key += KEYS, stage ^= 1) {
        cp_async_wait<0>();
        sync_block();
        if (key + KEYS < end) fetch(key + KEYS, stage ^ 1);
        const T *ks = stages + stage * 2 * KEYS * D, *vs = ks + KEYS * D;
        ROLLED for (i32 part = 0; part < KEYS; part += PART) {
            const i32 column0 = key + part;
            if (column0 > to || column0 + PART <= from) continue;
            float s[M][PART / 8][4], dp[M][PART / 8][4];
            times_rows<T, D, M, PART>(s, qs, own, ks, u32(part));
            const bool whole = column0 >= all_from && column0 + PART - 1 <= all_to;
            UNROLL for (int i = 0; i < 2 * M; i++) {
                const i32 row = first + 8 * i + i32(g);
                UNROLL for (int n = 0; n < PART / 8; n++)
                    UNROLL for (int e = 2 * (i % 2); e < 2 * (i % 2) + 2; e++)
                        s[i / 2][n][e] = fma1(s[i / 2][n][e], a.scale2, -base[i]);
                if (a.alibi)
                    UNROLL for (int n = 0; n < PART / 8; n++)
                        UNROLL for (int e = 0; e < 2; e++)
                            s[i / 2][n][2 * (i % 2) + e] += slope * float(column0 + 8 * n + 2 * i32(t) + e - row - sight.shift);
                UNROLL for (int n = 0; n < PART / 8; n++)
                    UNROLL for (int e = 2 * (i % 2); e < 2 * (i % 2) + 2; e++) s[i / 2][n][e] = exp2_fast(s[i / 2][n][e]);
                if (!whole) {
                    const i32 low = first_key(sight, row), high = last_key(sight, row);
                    UNROLL for (int n = 0; n < PART / 8; n++)
                        UNROLL for (int e = 0; e < 2; e++) {
                            const i32 column = column0 + 8 * n + 2 * i32(t) + e;
                            if (column < low || column > high) s[i / 2][n][2 * (i % 2) + e] = 0.0f;
                        }
                }
            }
            times_rows<T, D, M, PART>(dp, dos, own, vs, u32(part));
            UNROLL for (int i = 0; i < 2 * M; i++)
                UNROLL for (int n = 0; n < PART / 8; n++)
                    UNROLL for (int e = 2 * (i % 2); e < 2 * (i % 2) + 2; e++) s[i / 2][n][e] *= dp[i / 2][n][e] - delta[i];
            add_weighted<T, D, M, PART>(dq, s, ks, u32(part));
        }
    }
    cp_async_wait<0>();
    sync_block();
    if (first >= rows) return;
    float scale[2 * M];
    UNROLL for (int i = 0; i < 2 * M; i++) scale[i] = a.scale;
    tile_out<T, D, M>(dq, scale, qs, own, as<T>(a.dq) + query_head(a, b, h), stride, first, rows);
}

KERNEL(128) flash_keys_bf16_64(Attend a) { backward_keys<bf16, 64, 2, 32>(a); }
EXPORT(flash_keys_bf16_64)
KERNEL(256) flash_keys_bf16_96(Attend a) { backward_keys<bf16, 96, 1, 32>(a); }
EXPORT(flash_keys_bf16_96)
KERNEL(256) flash_keys_bf16_128(Attend a) { backward_keys<bf16, 128, 1, 32>(a); }
EXPORT(flash_keys_bf16_128)
KERNEL(128) flash_keys_f16_64(Attend a) { backward_keys<f16, 64, 2, 32>(a); }
EXPORT(flash_keys_f16_64)
KERNEL(256) flash_keys_f16_96(Attend a) { backward_keys<f16, 96, 1, 32>(a); }
EXPORT(flash_keys_f16_96)
KERNEL(256) flash_keys_f16_128(Attend a) { backward_keys<f16, 128, 1, 32>(a); }
EXPORT(flash_keys_f16_128)

KERNEL(128) flash_queries_bf16_64(Attend a) { backward_queries<bf16, 64, 2, 32>(a); }
EXPORT(flash_queries_bf16_64)
KERNEL(256) flash_queries_bf16_96(Attend a) { backward_queries<bf16, 96, 1, 64>(a); }
EXPORT(flash_queries_bf16_96)
KERNEL(256) flash_queries_bf16_128(Attend a) { backward_queries<bf16, 128, 1, 64>(a); }
EXPORT(flash_queries_bf16_128)
KERNEL(128) flash_queries_f16_64(Attend a) { backward_queries<f16, 64, 2, 32>(a); }
EXPORT(flash_queries_f16_64)
KERNEL(256) flash_queries_f16_96(Attend a) { backward_queries<f16, 96, 1, 64>(a); }
EXPORT(flash_queries_f16_96)
KERNEL(256) flash_queries_f16_128(Attend a) { backward_queries<f16, 128, 1, 64>(a); }
EXPORT(flash_queries_f16_128)
