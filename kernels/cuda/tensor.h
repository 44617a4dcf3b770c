// GEMM on tensor cores for bf16 and f16.
#pragma once
// defines: Product, Groups, Tile, tile_of
#include "product.h"

// Tiles of 128 x 128, a warp has 64 x 32 of one. Slices of 32 along k are loaded by cp.async in STAGES stages. A slice keeps its
// layout in shared memory: 128 rows of 32 along k, or 32 rows of 128 along m or n.
static const u32 TILE = 128, TILE_K = 32, STAGES = 4, SLICE_BYTES = TILE * TILE_K * 2;

// Offset of a 16-byte chunk in a slice. Chunks are swizzled by their row, so that ldmatrix reads without bank conflicts.
template <bool K_CONTIGUOUS> __device__ inline u32 swizzled(u32 row, u32 chunk) {
    return K_CONTIGUOUS ? row * 64 + (chunk ^ (row / 2 % 4)) * 16 : row * 256 + (chunk ^ (row % 8)) * 16;
}

// Starts to copy the slice from `k0` on of 128 rows (or columns) from `first` on, of `count`. Zeros beyond the edge of the matrix,
// which no chunk crosses.
template <bool K_CONTIGUOUS, class T> __device__ inline void load_slice_async(u8 *to, const T *from, u32 pitch, u32 first, u32 count, u32 k0, u32 k) {
    UNROLL for (u32 i = 0; i < 2; i++) {
        const u32 piece = threadIdx.x + 256 * i;
        const u32 row = K_CONTIGUOUS ? piece / 4 : piece / 16, chunk = K_CONTIGUOUS ? piece % 4 : piece % 16;
        const u32 side = first + (K_CONTIGUOUS ? row : chunk * 8), depth = k0 + (K_CONTIGUOUS ? chunk * 8 : row);
        const bool valid = side < count && depth < k;
        const u64 at = K_CONTIGUOUS ? u64(side) * pitch + depth : u64(depth) * pitch + side;
        cp_async(to + swizzled<K_CONTIGUOUS>(row, chunk), from + (valid ? at : 0), valid);
    }
}

// Four 8 x 8 fragments of a slice: 2 along m or n from `side` on by 2 along k from `depth` on, k fastest if BY_K.
template <bool K_CONTIGUOUS, bool BY_K> __device__ inline void load_fragments(u32 (&r)[4], const u8 *slice, u32 side, u32 depth) {
    const u32 i = lane_id() / 8, on_side = BY_K ? i / 2 : i % 2, on_k = BY_K ? i % 2 : i / 2;
    const u32 s = side + on_side * 8, d = depth + on_k * 8;
    if (K_CONTIGUOUS) ldmatrix(r, slice + swizzled<true>(s + lane_id() % 8, d / 8));
    else ldmatrix_trans(r, slice + swizzled<false>(d + lane_id() % 8, s / 8));
}

struct alignas(8) Float2 { float x, y; };

template <class T, bool A_K_CONTIGUOUS, bool B_K_CONTIGUOUS> __device__ inline void tensor_core_tile(const Tile &where) {
    u8 *shared = reinterpret_cast<u8 *>(dynamic_shared);
    const Product &p = where.p;
    const T *a = as<T>(p.a), *b = as<T>(p.b);
    const u32 row = warp_id() % 2 * 64, col = warp_id() / 2 * 32, slices = (p.k + TILE_K - 1) / TILE_K;
    const bool active = where.row + row < p.m && where.col + col < p.n;
    float sums[4][4][4] = {};
    auto start = [&](u32 slice) {
        if (slice < slices) {
            u8 *to = shared + slice % STAGES * (2 * SLICE_BYTES);
            load_slice_async<A_K_CONTIGUOUS>(to, a, p.pitch_a, where.row, p.m, slice * TILE_K, p.k);
            load_slice_async<B_K_CONTIGUOUS>(to + SLICE_BYTES, b, B_K_CONTIGUOUS ? p.k : p.n, where.col, p.n, slice * TILE_K, p.k);
        }
        cp_async_commit();
    };
    for (u32 slice = 0; slice < STAGES - 1; slice++) start(slice);
    for (u32 slice = 0; slice < slices; slice++) {
        cp_async_wait<STAGES - 2>();
        // The slice has arrived for all threads, and all are done with the one before, which the next one overwrites.
        __syncthreads();
        start(slice + STAGES - 1);
        if (!active) continue;
        const u8 *of_a = shared + slice % STAGES * (2 * SLICE_BYTES), *of_b = of_a + SLICE_BYTES;
        UNROLL for (u32 depth = 0; depth < TILE_K; depth += 16) {
            u32 x[4][4], y[2][4];
            UNROLL for (u32 i = 0; i < 4; i++) load_fragments<A_K_CONTIGUOUS, false>(x[i], of_a, row + 16 * i, depth);
            UNROLL for (u32 j = 0; j < 2; j++) load_fragments<B_K_CONTIGUOUS, true>(y[j], of_b, col + 16 * j, depth);
            UNROLL for (u32 i = 0; i < 4; i++)
                UNROLL for (u32 j = 0; j < 4; j++) mma<T>(sums[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
        }
    }
    cp_async_wait<0>();
    __syncthreads();
    // The tile goes through shared memory, so that C is accessed in whole vectors: rows of 128 f32, swizzled in groups of four.
    float *tile = reinterpret_cast<float *>(shared);
    auto word = [&](u32 r, u32 c) { return tile + r * TILE + ((c / 4) ^ (r % 8)) * 4 + c % 4; };
    if (active)
        UNROLL for (u32 i = 0; i < 4; i++)
            UNROLL for (u32 j = 0; j < 4; j++)
                UNROLL for (u32 h = 0; h < 2; h++) {
                    const u32 r = row + 16 * i + 8 * h + lane_id() / 4, c = col + 8 * j + lane_id() % 4 * 2;
                    *reinterpret_cast<Float2 *>(word(r, c)) = Float2{sums[i][j][2 * h], sums[i][j][2 * h + 1]};
                }
    __syncthreads();
    const bool vectorized = p.n % 8 == 0 && p.pitch_c % 8 == 0 && is_aligned16(p.c);
    for (u32 piece = threadIdx.x; piece < TILE * TILE / 8; piece += blockDim.x) {
        const u32 r = piece / (TILE / 8), c = piece % (TILE / 8) * 8;
        if (where.row + r >= p.m || where.col + c >= p.n) continue;
        const u64 at = u64(where.row + r) * p.pitch_c + where.col + c;
        const u32 count = p.n - (where.col + c) < 8 ? p.n - (where.col + c) : 8;
        float x[8], old[8] = {};
        if (p.accumulate && vectorized) load8(p.c, at, old);
        else if (p.accumulate)
            UNROLL for (u32 j = 0; j < 8; j++) old[j] = j < count ? load(p.c, at + j) : 0;
        UNROLL for (u32 j = 0; j < 8; j++) x[j] = fmaf(p.alpha, *word(r, c + j), old[j]);
        if (vectorized) store8(p.c, at, x);
        else
            UNROLL for (u32 j = 0; j < 8; j++)
                if (j < count) store(p.c, at + j, x[j]);
    }
}

template <class T> __device__ inline void tensor_core_gemm(const Product &p, const Groups &of) {
    const Tile where = tile_of(p, of, TILE, TILE);
    if (where.none) return;
    switch (p.trans) {
    case 0: return tensor_core_tile<T, true, false>(where);
    case 1: return tensor_core_tile<T, false, false>(where);
    case 2: return tensor_core_tile<T, true, true>(where);
    default: return tensor_core_tile<T, false, true>(where);
    }
}
