// Attention on the tensor cores, forward (FlashAttention-2's design): a block has 128 queries of a head, 32 for each of its
// four warps; keys and values come in tiles of 64, the next on its way while one is used; scores stay in registers.
#include "attention.h"
#include "tiles.h"

// Scores scaled and slanted by ALiBi; `ahead` is how far the first column lies before the first row's own key.
template <int M, int N> DEVICE void slanted(float (&s)[M][N / 8][4], float scale2, float slope, i32 ahead) {
    ahead += 2 * i32(lane() % 4) - i32(lane() / 4);
    UNROLL for (int m = 0; m < M; m++)
        UNROLL for (int n = 0; n < N / 8; n++)
            UNROLL for (int e = 0; e < 4; e++)
                s[m][n][e] = fma1(s[m][n][e], scale2, slope * float(ahead + 8 * n + e % 2 - 16 * m - e / 2 * 8));
}

// Takes away the scores of keys that a row does not see.
template <int M, int N> DEVICE void masked(float (&s)[M][N / 8][4], const Sight &sight, i32 row0, i32 column0) {
    UNROLL for (int i = 0; i < 2 * M; i++) {
        const i32 row = row0 + 8 * i + i32(lane() / 4), low = first_key(sight, row), high = last_key(sight, row);
        UNROLL for (int n = 0; n < N / 8; n++)
            UNROLL for (int e = 0; e < 2; e++) {
                const i32 column = column0 + 8 * n + 2 * i32(lane() % 4) + e;
                if (column < low || column > high) s[i / 2][n][2 * (i % 2) + e] = minus_infinity();
            }
    }
}

// Dynamic shared memory: (128 + 4 * 64) * D elements. PART of a tile's keys are worked on at once.
template <class T, int D, int PART> DEVICE void forward(const Attend &a) {
    const int M = 2, ROWS = 128, KEYS = 64, THREADS = 128;
    // What is read of the queries again and again fits into registers where heads are small.
    constexpr bool held = D == 64;
    DYNAMIC(T, shared);
    T *queries = shared, *stages = shared + ROWS * D;

    const u32 tiles = tiles_of(a.rows, ROWS);
    const Place at = place(tiles, a.batch * a.heads, a.section);
    const u32 b = at.head / a.heads, h = at.head % a.heads, kv = h / (a.heads / a.kv_heads);
    // Later queries see more keys, so they come first.
    const i32 first_row = i32((tiles - 1 - at.tile) * ROWS), rows = i32(a.rows), keys = i32(a.keys);
    const Sight sight = sight_of(a, b);
    const i32 last_row = smaller_of(first_row + ROWS, rows) - 1;
    const i32 begin = first_key(sight, first_row) / KEYS * KEYS, end = last_key(sight, last_row) + 1;
    const u64 stride = u64(a.heads) * D, kv_stride = u64(a.kv_heads) * D;
    const T *q = as<T>(a.q) + query_head(a, b, h), *k = as<T>(a.k) + key_head(a, b, kv), *v = as<T>(a.v) + key_head(a, b, kv);

    auto fetch = [&](i32 key, u32 stage) {
        T *to = stages + stage * 2 * KEYS * D;
        tile_in<T, D, KEYS, THREADS>(to, k, kv_stride, key, keys);
        tile_in<T, D, KEYS, THREADS>(to + KEYS * D, v, kv_stride, key, keys);
        cp_async_commit();
    };
    tile_in<T, D, ROWS, THREADS>(queries, q, stride, first_row, rows);
    cp_async_commit();
    if (begin < end) fetch(begin, 0);

    const u32 g = lane() / 4, t = lane() % 4, own = warp() * 16 * M;
    const i32 first = first_row + i32(own), last = smaller_of(first + 16 * M, rows) - 1;
    // This warp's queries see nothing outside of these keys, and all of what is between the other two.
    const i32 from = first_key(sight, first), to = first < rows ? last_key(sight, last) : -1;
    const i32 all_from = first_key(sight, last), all_to = last_key(sight, first);
    float top[2 * M], sum[2 * M];
    UNROLL for (int i = 0; i < 2 * M; i++) top[i] = minus_infinity(), sum[i] = 0.0f;
    const float slope = slope2(a, h);
    // Else the scores are scaled first: a negative factor turns their order round.
    const bool fold = a.scale2 > 0.0f && !a.alibi;
    const float factor = fold ? a.scale2 : 1.0f;

    float o[M][D / 8][4];
    clear<M, D / 8>(o);
    u32 kept[held ? M : 1][held ? D / 16 : 1][4];
    u32 stage = 0;
    for (i32 key = begin; key < end; key += KEYS, stage ^= 1) {
        cp_async_wait<0>();
        // Everyone's copies are there, and everyone is done with the other stage.
        sync_block();
        if (held && key == begin)
            UNROLL for (int m = 0; m < (held ? M : 0); m++)
                UNROLL for (int i = 0; i < D / 16; i++) load_a<T, D>(kept[m][held ? i : 0], queries, own + 16 * m, i);
        if (key + KEYS < end) fetch(key + KEYS, stage ^ 1);
        if (key > to || key + KEYS <= from) continue;
        const T *ks = stages + stage * 2 * KEYS * D, *vs = ks + KEYS * D;
        // Unrolled only where it is one part: registers are all taken.
        ROLLED for (i32 part = 0; part < KEYS; part += PART) {
            const i32 column0 = key + part;
            if (column0 > to) break;
            float s[M][PART / 8][4];
            if constexpr (held) {
                clear<M, PART / 8>(s);
                UNROLL for (int i = 0; i < D / 16; i++)
                    UNROLL for (int n = 0; n < PART / 16; n++) {
                        u32 right[4];
                        load_b<T, D>(right, ks, 16 * n, i);
                        UNROLL for (int m = 0; m < M; m++) {
                            mma<T>(s[m][2 * n], kept[m][i], right[0], right[1]);
                            mma<T>(s[m][2 * n + 1], kept[m][i], right[2], right[3]);
                        }
                    }
            } else {
                times_rows<T, D, M, PART>(s, queries, own, ks, part);
            }

            if (!fold) slanted<M, PART>(s, a.scale2, slope, column0 - first - sight.shift);
            if (column0 < all_from || column0 + PART - 1 > all_to) masked<M, PART>(s, sight, first, column0);

            UNROLL for (int i = 0; i < 2 * M; i++) {
                const int m = i / 2, half = 2 * (i % 2);
                float new_top = top[i];
                UNROLL for (int n = 0; n < PART / 8; n++) new_top = max_of(new_top, max_of(s[m][n][half], s[m][n][half + 1]));
                new_top = max_of(new_top, shfl_xor(new_top, 1));
                new_top = max_of(new_top, shfl_xor(new_top, 2));
                // A row that has seen nothing yet has no top; any finite number serves.
                const float base = new_top == minus_infinity() ? 0.0f : new_top * factor;
                const float shrink = exp2_fast(fma1(top[i], factor, -base));
                top[i] = new_top;
                float part_sum = 0.0f;
                UNROLL for (int n = 0; n < PART / 8; n++)
                    UNROLL for (int e = half; e < half + 2; e++) {
                        s[m][n][e] = exp2_fast(fma1(s[m][n][e], factor, -base));
                        part_sum += s[m][n][e];
                    }
                sum[i] = sum[i] * shrink + part_sum;
                // After the first tiles the top hardly ever changes.
                if (shrink != 1.0f)
                    UNROLL for (int n = 0; n < D / 8; n++)
                        UNROLL for (int e = half; e < half + 2; e++) o[m][n][e] *= shrink;
            }
            add_weighted<T, D, M, PART>(o, s, vs, part);
        }
    }
    // Where there was no tile the queries may still be on their way to where the output goes through.
    cp_async_wait<0>();
    sync_block();
    if (first >= rows) return;

    float over[2 * M];
    UNROLL for (int i = 0; i < 2 * M; i++) {
        sum[i] += shfl_xor(sum[i], 1);
        sum[i] += shfl_xor(sum[i], 2);
        over[i] = sum[i] > 0.0f ? 1.0f / sum[i] : 0.0f;
        const i32 row = first + 8 * i + i32(g);
        if (t == 0 && row < rows)
            a.lse[line_of(a, b, h) + u64(row)] =
                sum[i] > 0.0f ? fma1(top[i], factor, log2_fast(sum[i])) * LN2 : minus_infinity();
    }
    tile_out<T, D, M>(o, over, queries, own, as<T>(a.out) + query_head(a, b, h), stride, first, rows);
}

KERNEL(128) flash_bf16_64(Attend a) { forward<bf16, 64, 64>(a); }
EXPORT(flash_bf16_64)
KERNEL(128) flash_bf16_96(Attend a) { forward<bf16, 96, 32>(a); }
EXPORT(flash_bf16_96)
KERNEL(128) flash_bf16_128(Attend a) { forward<bf16, 128, 32>(a); }
EXPORT(flash_bf16_128)
KERNEL(128) flash_f16_64(Attend a) { forward<f16, 64, 64>(a); }
EXPORT(flash_f16_64)
KERNEL(128) flash_f16_96(Attend a) { forward<f16, 96, 32>(a); }
EXPORT(flash_f16_96)
KERNEL(128) flash_f16_128(Attend a) { forward<f16, 128, 32>(a); }
EXPORT(flash_f16_128)
