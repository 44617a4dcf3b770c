// FlashAttention backward on tensor cores, deterministic: scores are computed twice, once by blocks that own keys and loop over
// queries (dK, dV), once by blocks that own queries and loop over keys (dQ). So no sum needs atomics.
//   query_offset, key_offset
// defines: Attend, AttentionMask, mask_of, first_key, last_key, end_row, alibi_slope, TileIndex, tile_index, ceil_div, lse_offset,
//   query_offset, key_offset
#include "attention.h"
// defines: load_tile_async, store_tile, gemm_abt, gemm_pv, set_zero
#include "tiles.h"

// The log-sum-exp of a row for exp2; infinity for a row without keys or past the end, so that its probabilities are 0.
__device__ inline float lse_base(const Attend &a, u64 lse_at, i32 row) {
    if (row >= i32(a.rows)) return INFINITY;
    const float lse = a.lse[lse_at + u64(row)];
    return lse == -INFINITY ? INFINITY : lse * LOG2E;
}
__device__ inline float delta_of(const Attend &a, u64 lse_at, i32 row) { return row < i32(a.rows) ? a.delta[lse_at + u64(row)] : 0.0f; }

// Gradients of keys and values. A block has 128 keys of a key head, 16 * M for each warp, and loops over the query heads of the
// group and their queries in tiles of 64, PART at once. Scores are transposed (keys are rows), so that warps exchange nothing.
// Dynamic shared memory: (256 + 4 * 64) * D elements, then 2 * 3 * 64 words.
template <class T, int D, int M, int PART> __device__ inline void backward_keys(const Attend &a) {
    const int KEYS = 128, ROWS = 64, THREADS = KEYS / M * 2;
    T *shared = reinterpret_cast<T *>(dynamic_shared);
    T *ks = shared, *vs = ks + KEYS * D, *stages = vs + KEYS * D;
    float *scratch = reinterpret_cast<float *>(stages + 4 * ROWS * D);

    const TileIndex at = tile_index(ceil_div(a.keys, KEYS), a.batch * a.kv_heads, a.section);
    const u32 b = at.head / a.kv_heads, kv = at.head % a.kv_heads, group = a.heads / a.kv_heads;
    const i32 first_key_row = i32(at.tile * KEYS), rows = i32(a.rows), keys = i32(a.keys);
    const AttentionMask mask = mask_of(a, b);
    // Queries that attend to any of these keys.
    const i32 begin = max(0, first_key_row - mask.shift) / ROWS * ROWS;
    const i32 end = end_row(mask, min(first_key_row + KEYS, keys) - 1);
    const i32 count = begin < end ? (end - begin + ROWS - 1) / ROWS : 0, steps = count * i32(group);
    const u64 stride = u64(a.heads) * D, kv_stride = u64(a.kv_heads) * D;

    // Step i: tile i % count of query head i / count of the group.
    auto fetch = [&](i32 i) {
        const u64 head = query_offset(a, b, kv * group + u32(i / count));
        const i32 row = begin + i % count * ROWS;
        T *to = stages + i % 2 * 2 * ROWS * D;
        load_tile_async<T, D, ROWS, THREADS>(to, as<T>(a.q) + head, stride, row, rows);
        load_tile_async<T, D, ROWS, THREADS>(to + ROWS * D, as<T>(a.dout) + head, stride, row, rows);
        cp_async_commit();
    };
    // Per-row values are prefetched to registers, since the other stage is free only when a step begins.
    float base = 0.0f, delta = 0.0f;
    i32 first_seen = 0;
    auto fetch_rows = [&](i32 i) {
        if (threadIdx.x >= ROWS) return;
        const u64 lse_at = lse_offset(a, b, kv * group + u32(i / count));
        const i32 row = begin + i % count * ROWS + i32(threadIdx.x);
        base = lse_base(a, lse_at, row), delta = delta_of(a, lse_at, row), first_seen = first_key(mask, row);
    };
    auto keep_rows = [&](i32 i) {
        if (threadIdx.x >= ROWS) return;
        float *to = scratch + i % 2 * 3 * ROWS + threadIdx.x;
        to[0] = base, to[ROWS] = delta, to[2 * ROWS] = __uint_as_float(u32(first_seen));
    };

    const u32 g = lane_id() / 4, t = lane_id() % 4, own = warp_id() * 16 * M;
    const i32 first = first_key_row + i32(own), last = min(first + 16 * M, keys) - 1;
    float dk[M][D / 8][4], dv[M][D / 8][4];
    set_zero<M, D / 8>(dk);
    set_zero<M, D / 8>(dv);
    if (steps > 0) {
        load_tile_async<T, D, KEYS, THREADS>(ks, as<T>(a.k) + key_offset(a, b, kv), kv_stride, first_key_row, keys);
        load_tile_async<T, D, KEYS, THREADS>(vs, as<T>(a.v) + key_offset(a, b, kv), kv_stride, first_key_row, keys);
        fetch(0);
        fetch_rows(0);
        keep_rows(0);
    }
    for (i32 i = 0; i < steps; i++) {
        cp_async_wait<0>();
        // The tile has arrived for all threads, and all are done with the other stage.
        __syncthreads();
        if (i + 1 < steps) fetch(i + 1), fetch_rows(i + 1);
        const T *qs = stages + i % 2 * 2 * ROWS * D, *dos = qs + ROWS * D;
        const float *bases = scratch + i % 2 * 3 * ROWS, *deltas = bases + ROWS, *firsts = deltas + ROWS;
        const i32 row0 = begin + i % count * ROWS;
        const float slope = alibi_slope(a, kv * group + u32(i / count));
        auto first_of = [&](i32 row) { return i32(__float_as_uint(firsts[row])); };

        NO_UNROLL for (i32 part = 0; part < ROWS; part += PART) {
            const i32 row = row0 + part;
            if (row + PART - 1 + mask.shift < first || first_of(part) > last || row >= rows) continue;
            float s[M][PART / 8][4];
            gemm_abt<T, D, M, PART>(s, ks, own, qs, u32(part));
            const bool whole = row + mask.shift >= last && first_of(part + PART - 1) <= first;
            UNROLL for (int n = 0; n < PART / 8; n++)
                UNROLL for (int e = 0; e < 2; e++) {
                    const float row_base = bases[part + 8 * n + 2 * i32(t) + e];
                    UNROLL for (int k = 0; k < 2 * M; k++) {
                        float &x = s[k / 2][n][2 * (k % 2) + e];
                        x = fmaf(x, a.scale2, -row_base);
                    }
                }
            // This lane's first key minus the own key of its first query.
            const i32 ahead = first + i32(g) - (row + 2 * i32(t) + mask.shift);
            if (a.alibi_heads)
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
            gemm_pv<T, D, M, PART>(dv, s, dos, u32(part));
            float dp[M][PART / 8][4];
            gemm_abt<T, D, M, PART>(dp, vs, own, dos, u32(part));
            UNROLL for (int n = 0; n < PART / 8; n++)
                UNROLL for (int e = 0; e < 2; e++) {
                    const float row_delta = deltas[part + 8 * n + 2 * i32(t) + e];
                    UNROLL for (int k = 0; k < 2 * M; k++) {
                        const int at = 2 * (k % 2) + e;
                        s[k / 2][n][at] *= dp[k / 2][n][at] - row_delta;
                    }
                }
            gemm_pv<T, D, M, PART>(dk, s, qs, u32(part));
        }
        if (i + 1 < steps) keep_rows(i + 1);
    }
    // A warp overwrites only its own keys and values, but other warps loaded parts of them.
    __syncthreads();
    if (first >= keys) return;
    float scale[2 * M], one[2 * M];
    UNROLL for (int i = 0; i < 2 * M; i++) scale[i] = a.scale, one[i] = 1.0f;
    store_tile<T, D, M>(dk, scale, ks, own, as<T>(a.dk) + key_offset(a, b, kv), kv_stride, first, keys);
    store_tile<T, D, M>(dv, one, vs, own, as<T>(a.dv) + key_offset(a, b, kv), kv_stride, first, keys);
}

// Gradients of queries. A block has 128 queries of a head, 16 * M for each warp, and loops over keys in tiles of 64, PART at once.
// Dynamic shared memory: (256 + 4 * 64) * D elements.
template <class T, int D, int M, int PART> __device__ inline void backward_queries(const Attend &a) {
    const int ROWS = 128, KEYS = 64, THREADS = ROWS / M * 2;
    T *shared = reinterpret_cast<T *>(dynamic_shared);
    T *qs = shared, *dos = qs + ROWS * D, *stages = dos + ROWS * D;

    const u32 tiles = ceil_div(a.rows, ROWS);
    const TileIndex at = tile_index(tiles, a.batch * a.heads, a.section);
    const u32 b = at.head / a.heads, h = at.head % a.heads, kv = h / (a.heads / a.kv_heads);
    const i32 first_row = i32((tiles - 1 - at.tile) * ROWS), rows = i32(a.rows), keys = i32(a.keys);
    const AttentionMask mask = mask_of(a, b);
    const i32 begin = first_key(mask, first_row) / KEYS * KEYS;
    const i32 end = last_key(mask, min(first_row + ROWS, rows) - 1) + 1;
    const u64 stride = u64(a.heads) * D, kv_stride = u64(a.kv_heads) * D, lse_at = lse_offset(a, b, h);
    const T *k = as<T>(a.k) + key_offset(a, b, kv), *v = as<T>(a.v) + key_offset(a, b, kv);

    auto fetch = [&](i32 key, u32 stage) {
        T *to = stages + stage * 2 * KEYS * D;
        load_tile_async<T, D, KEYS, THREADS>(to, k, kv_stride, key, keys);
        load_tile_async<T, D, KEYS, THREADS>(to + KEYS * D, v, kv_stride, key, keys);
        cp_async_commit();
    };
    load_tile_async<T, D, ROWS, THREADS>(qs, as<T>(a.q) + query_offset(a, b, h), stride, first_row, rows);
    load_tile_async<T, D, ROWS, THREADS>(dos, as<T>(a.dout) + query_offset(a, b, h), stride, first_row, rows);
    cp_async_commit();
    if (begin < end) fetch(begin, 0);

    const u32 g = lane_id() / 4, t = lane_id() % 4, own = warp_id() * 16 * M;
    const i32 first = first_row + i32(own), last = min(first + 16 * M, rows) - 1;
    const i32 from = first_key(mask, first), to = first < rows ? last_key(mask, last) : -1;
    const i32 all_from = first_key(mask, last), all_to = last_key(mask, first);
    const float slope = alibi_slope(a, h);
    float base[2 * M], delta[2 * M];
    UNROLL for (int i = 0; i < 2 * M; i++) {
        const i32 row = first + 8 * i + i32(g);
        base[i] = lse_base(a, lse_at, row), delta[i] = delta_of(a, lse_at, row);
    }
    float dq[M][D / 8][4];
    set_zero<M, D / 8>(dq);
    u32 stage = 0;
    for (i32 key = begin; key < end; key += KEYS, stage ^= 1) {
        cp_async_wait<0>();
        __syncthreads();
        if (key + KEYS < end) fetch(key + KEYS, stage ^ 1);
        const T *ks = stages + stage * 2 * KEYS * D, *vs = ks + KEYS * D;
        NO_UNROLL for (i32 part = 0; part < KEYS; part += PART) {
            const i32 column0 = key + part;
            if (column0 > to || column0 + PART <= from) continue;
            float s[M][PART / 8][4], dp[M][PART / 8][4];
            gemm_abt<T, D, M, PART>(s, qs, own, ks, u32(part));
            const bool whole = column0 >= all_from && column0 + PART - 1 <= all_to;
            UNROLL for (int i = 0; i < 2 * M; i++) {
                const i32 row = first + 8 * i + i32(g);
                UNROLL for (int n = 0; n < PART / 8; n++)
                    UNROLL for (int e = 2 * (i % 2); e < 2 * (i % 2) + 2; e++)
                        s[i / 2][n][e] = fmaf(s[i / 2][n][e], a.scale2, -base[i]);
                if (a.alibi_heads)
                    UNROLL for (int n = 0; n < PART / 8; n++)
                        UNROLL for (int e = 0; e < 2; e++)
                            s[i / 2][n][2 * (i % 2) + e] += slope * float(column0 + 8 * n + 2 * i32(t) + e - row - mask.shift);
                UNROLL for (int n = 0; n < PART / 8; n++)
                    UNROLL for (int e = 2 * (i % 2); e < 2 * (i % 2) + 2; e++) s[i / 2][n][e] = exp2_fast(s[i / 2][n][e]);
                if (!whole) {
                    const i32 low = first_key(mask, row), high = last_key(mask, row);
                    UNROLL for (int n = 0; n < PART / 8; n++)
                        UNROLL for (int e = 0; e < 2; e++) {
                            const i32 column = column0 + 8 * n + 2 * i32(t) + e;
                            if (column < low || column > high) s[i / 2][n][2 * (i % 2) + e] = 0.0f;
                        }
                }
            }
            gemm_abt<T, D, M, PART>(dp, dos, own, vs, u32(part));
            UNROLL for (int i = 0; i < 2 * M; i++)
                UNROLL for (int n = 0; n < PART / 8; n++)
                    UNROLL for (int e = 2 * (i % 2); e < 2 * (i % 2) + 2; e++) s[i / 2][n][e] *= dp[i / 2][n][e] - delta[i];
            gemm_pv<T, D, M, PART>(dq, s, ks, u32(part));
        }
    }
    cp_async_wait<0>();
    __syncthreads();
    if (first >= rows) return;
    float scale[2 * M];
    UNROLL for (int i = 0; i < 2 * M; i++) scale[i] = a.scale;
    store_tile<T, D, M>(dq, scale, qs, own, as<T>(a.dq) + query_offset(a, b, h), stride, first, rows);
}

extern "C" __global__ void __launch_bounds__(128) flash_dkv_bf16_64(Attend a) { backward_keys<bf16, 64, 2, 32>(a); }
EXPORT(flash_dkv_bf16_64)
extern "C" __global__ void __launch_bounds__(256) flash_dkv_bf16_96(Attend a) { backward_keys<bf16, 96, 1, 32>(a); }
EXPORT(flash_dkv_bf16_96)
extern "C" __global__ void __launch_bounds__(256) flash_dkv_bf16_128(Attend a) { backward_keys<bf16, 128, 1, 32>(a); }
EXPORT(flash_dkv_bf16_128)
extern "C" __global__ void __launch_bounds__(128) flash_dkv_f16_64(Attend a) { backward_keys<f16, 64, 2, 32>(a); }
EXPORT(flash_dkv_f16_64)
extern "C" __global__ void __launch_bounds__(256) flash_dkv_f16_96(Attend a) { backward_keys<f16, 96, 1, 32>(a); }
EXPORT(flash_dkv_f16_96)
extern "C" __global__ void __launch_bounds__(256) flash_dkv_f16_128(Attend a) { backward_keys<f16, 128, 1, 32>(a); }
EXPORT(flash_dkv_f16_128)

extern "C" __global__ void __launch_bounds__(128) flash_dq_bf16_64(Attend a) { backward_queries<bf16, 64, 2, 32>(a); }
EXPORT(flash_dq_bf16_64)
extern "C" __global__ void __launch_bounds__(256) flash_dq_bf16_96(Attend a) { backward_queries<bf16, 96, 1, 64>(a); }
EXPORT(flash_dq_bf16_96)
extern "C" __global__ void __launch_bounds__(256) flash_dq_bf16_128(Attend a) { backward_queries<bf16, 128, 1, 64>(a); }
EXPORT(flash_dq_bf16_128)
extern "C" __global__ void __launch_bounds__(128) flash_dq_f16_64(Attend a) { backward_queries<f16, 64, 2, 32>(a); }
EXPORT(flash_dq_f16_64)
extern "C" __global__ void __launch_bounds__(256) flash_dq_f16_96(Attend a) { backward_queries<f16, 96, 1, 64>(a); }
EXPORT(flash_dq_f16_96)
extern "C" __global__ void __launch_bounds__(256) flash_dq_f16_128(Attend a) { backward_queries<f16, 128, 1, 64>(a); }
EXPORT(flash_dq_f16_128)
