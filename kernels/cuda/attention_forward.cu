// FlashAttention-2 forward on tensor cores: a block has 128 queries of a head, 32 for each of its four warps; keys and values are
// loaded in tiles of 64, double buffered; scores stay in registers.
//   query_offset, key_offset
// defines: Attend, AttentionMask, mask_of, first_key, last_key, alibi_slope, TileIndex, tile_index, ceil_div, lse_offset,
//   query_offset, key_offset
#include "attention.h"
// defines: load_tile_async, store_tile, gemm_abt, gemm_pv, load_a, load_b, set_zero
#include "tiles.h"

// Scales scores and adds the ALiBi bias; `ahead` is the first column minus the first row's own key.
template <int M, int N> __device__ inline void apply_alibi(float (&s)[M][N / 8][4], float scale2, float slope, i32 ahead) {
    ahead += 2 * i32(lane_id() % 4) - i32(lane_id() / 4);
    UNROLL for (int m = 0; m < M; m++)
        UNROLL for (int n = 0; n < N / 8; n++)
            UNROLL for (int e = 0; e < 4; e++)
                s[m][n][e] = fmaf(s[m][n][e], scale2, slope * float(ahead + 8 * n + e % 2 - 16 * m - e / 2 * 8));
}

// Sets the scores of masked keys to -infinity.
template <int M, int N> __device__ inline void apply_mask(float (&s)[M][N / 8][4], const AttentionMask &mask, i32 row0, i32 column0) {
    UNROLL for (int i = 0; i < 2 * M; i++) {
        const i32 row = row0 + 8 * i + i32(lane_id() / 4), low = first_key(mask, row), high = last_key(mask, row);
        UNROLL for (int n = 0; n < N / 8; n++)
            UNROLL for (int e = 0; e < 2; e++) {
                const i32 column = column0 + 8 * n + 2 * i32(lane_id() % 4) + e;
                if (column < low || column > high) s[i / 2][n][2 * (i % 2) + e] = -INFINITY;
            }
    }
}

// Dynamic shared memory: (128 + 4 * 64) * D elements. PART keys of a tile are processed at once.
template <class T, int D, int PART> __device__ inline void forward(const Attend &a) {
    const int M = 2, ROWS = 128, KEYS = 64, THREADS = 128;
    // Query fragments fit into registers for small heads.
    constexpr bool q_in_registers = D == 64;
    T *shared = reinterpret_cast<T *>(dynamic_shared);
    T *queries = shared, *stages = shared + ROWS * D;

    const u32 tiles = ceil_div(a.rows, ROWS);
    const TileIndex at = tile_index(tiles, a.batch * a.heads, a.section);
    const u32 b = at.head / a.heads, h = at.head % a.heads, kv = h / (a.heads / a.kv_heads);
    // Later queries attend to more keys, so their blocks start first.
    const i32 first_row = i32((tiles - 1 - at.tile) * ROWS), rows = i32(a.rows), keys = i32(a.keys);
    const AttentionMask mask = mask_of(a, b);
    const i32 last_row = min(first_row + ROWS, rows) - 1;
    const i32 begin = first_key(mask, first_row) / KEYS * KEYS, end = last_key(mask, last_row) + 1;
    const u64 stride = u64(a.heads) * D, kv_stride = u64(a.kv_heads) * D;
    const T *q = as<T>(a.q) + query_offset(a, b, h), *k = as<T>(a.k) + key_offset(a, b, kv), *v = as<T>(a.v) + key_offset(a, b, kv);

    auto fetch = [&](i32 key, u32 stage) {
        T *to = stages + stage * 2 * KEYS * D;
        load_tile_async<T, D, KEYS, THREADS>(to, k, kv_stride, key, keys);
        load_tile_async<T, D, KEYS, THREADS>(to + KEYS * D, v, kv_stride, key, keys);
        cp_async_commit();
    };
    load_tile_async<T, D, ROWS, THREADS>(queries, q, stride, first_row, rows);
    cp_async_commit();
    if (begin < end) fetch(begin, 0);

    const u32 g = lane_id() / 4, t = lane_id() % 4, own = warp_id() * 16 * M;
    const i32 first = first_row + i32(own), last = min(first + 16 * M, rows) - 1;
    // This warp's queries attend to no key outside of from..to, and to every key in all_from..all_to.
    const i32 from = first_key(mask, first), to = first < rows ? last_key(mask, last) : -1;
    const i32 all_from = first_key(mask, last), all_to = last_key(mask, first);
    float row_max[2 * M], row_sum[2 * M];
    UNROLL for (int i = 0; i < 2 * M; i++) row_max[i] = -INFINITY, row_sum[i] = 0.0f;
    const float slope = alibi_slope(a, h);
    // Scaling is folded into the exponent, unless a negative factor would turn the maximum into a minimum.
    const bool scale_in_exponent = a.scale2 > 0.0f && !a.alibi_heads;
    const float factor = scale_in_exponent ? a.scale2 : 1.0f;

    float o[M][D / 8][4];
    set_zero<M, D / 8>(o);
    u32 q_fragments[q_in_registers ? M : 1][q_in_registers ? D / 16 : 1][4];
    u32 stage = 0;
    for (i32 key = begin; key < end; key += KEYS, stage ^= 1) {
        cp_async_wait<0>();
        // The tile has arrived for all threads, and all are done with the other stage.
        __syncthreads();
        if (q_in_registers && key == begin)
            UNROLL for (int m = 0; m < (q_in_registers ? M : 0); m++)
                UNROLL for (int i = 0; i < D / 16; i++) load_a<T, D>(q_fragments[m][q_in_registers ? i : 0], queries, own + 16 * m, i);
        if (key + KEYS < end) fetch(key + KEYS, stage ^ 1);
        if (key > to || key + KEYS <= from) continue;
        const T *ks = stages + stage * 2 * KEYS * D, *vs = ks + KEYS * D;
        // Not unrolled: there are no registers left.
        NO_UNROLL for (i32 part = 0; part < KEYS; part += PART) {
            const i32 column0 = key + part;
            if (column0 > to) break;
            float s[M][PART / 8][4];
            if constexpr (q_in_registers) {
                set_zero<M, PART / 8>(s);
                UNROLL for (int i = 0; i < D / 16; i++)
                    UNROLL for (int n = 0; n < PART / 16; n++) {
                        u32 right[4];
                        load_b<T, D>(right, ks, 16 * n, i);
                        UNROLL for (int m = 0; m < M; m++) {
                            mma<T>(s[m][2 * n], q_fragments[m][i], right[0], right[1]);
                            mma<T>(s[m][2 * n + 1], q_fragments[m][i], right[2], right[3]);
                        }
                    }
            } else {
                gemm_abt<T, D, M, PART>(s, queries, own, ks, part);
            }

            if (!scale_in_exponent) apply_alibi<M, PART>(s, a.scale2, slope, column0 - first - mask.shift);
            if (column0 < all_from || column0 + PART - 1 > all_to) apply_mask<M, PART>(s, mask, first, column0);

            UNROLL for (int i = 0; i < 2 * M; i++) {
                const int m = i / 2, half = 2 * (i % 2);
                float new_max = row_max[i];
                UNROLL for (int n = 0; n < PART / 8; n++) new_max = fmaxf(new_max, fmaxf(s[m][n][half], s[m][n][half + 1]));
                new_max = fmaxf(new_max, __shfl_xor_sync(~0u, new_max, 1));
                new_max = fmaxf(new_max, __shfl_xor_sync(~0u, new_max, 2));
                // A row without any key so far has no maximum; any finite number will do.
                const float base = new_max == -INFINITY ? 0.0f : new_max * factor;
                const float rescale = exp2_fast(fmaf(row_max[i], factor, -base));
                row_max[i] = new_max;
                float part_sum = 0.0f;
                UNROLL for (int n = 0; n < PART / 8; n++)
                    UNROLL for (int e = half; e < half + 2; e++) {
                        s[m][n][e] = exp2_fast(fmaf(s[m][n][e], factor, -base));
                        part_sum += s[m][n][e];
                    }
                row_sum[i] = row_sum[i] * rescale + part_sum;
                // After the first tiles the maximum rarely changes.
                if (rescale != 1.0f)
                    UNROLL for (int n = 0; n < D / 8; n++)
                        UNROLL for (int e = half; e < half + 2; e++) o[m][n][e] *= rescale;
            }
            gemm_pv<T, D, M, PART>(o, s, vs, part);
        }
    }
    // The output goes through the queries' shared memory; without any tile their copy may still be pending.
    cp_async_wait<0>();
    __syncthreads();
    if (first >= rows) return;

    float inverse_sum[2 * M];
    UNROLL for (int i = 0; i < 2 * M; i++) {
        row_sum[i] += __shfl_xor_sync(~0u, row_sum[i], 1);
        row_sum[i] += __shfl_xor_sync(~0u, row_sum[i], 2);
        inverse_sum[i] = row_sum[i] > 0.0f ? 1.0f / row_sum[i] : 0.0f;
        const i32 row = first + 8 * i + i32(g);
        if (t == 0 && row < rows)
            a.lse[lse_offset(a, b, h) + u64(row)] =
                row_sum[i] > 0.0f ? fmaf(row_max[i], factor, log2_fast(row_sum[i])) * LN2 : -INFINITY;
    }
    store_tile<T, D, M>(o, inverse_sum, queries, own, as<T>(a.out) + query_offset(a, b, h), stride, first, rows);
}

extern "C" __global__ void __launch_bounds__(128) flash_bf16_64(Attend a) { forward<bf16, 64, 64>(a); }
EXPORT(flash_bf16_64)
extern "C" __global__ void __launch_bounds__(128) flash_bf16_96(Attend a) { forward<bf16, 96, 32>(a); }
EXPORT(flash_bf16_96)
extern "C" __global__ void __launch_bounds__(128) flash_bf16_128(Attend a) { forward<bf16, 128, 32>(a); }
EXPORT(flash_bf16_128)
extern "C" __global__ void __launch_bounds__(128) flash_f16_64(Attend a) { forward<f16, 64, 64>(a); }
EXPORT(flash_f16_64)
extern "C" __global__ void __launch_bounds__(128) flash_f16_96(Attend a) { forward<f16, 96, 32>(a); }
EXPORT(flash_f16_96)
extern "C" __global__ void __launch_bounds__(128) flash_f16_128(Attend a) { forward<f16, 128, 32>(a); }
EXPORT(flash_f16_128)
