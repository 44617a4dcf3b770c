// GEMM for any types and alignment, without tensor cores.
// defines: Product, Groups, Tile, tile_of
#include "product.h"

// Tiles of 128 x 64, slices of 16 along k. A thread has 2 x 4 rows, 64 apart, by 4 columns. The next slice is prefetched to registers.
static const u32 TILE_M = 128, TILE_N = 64, TILE_K = 16, PITCH_M = TILE_M + 4, PITCH_N = TILE_N + 4;
struct alignas(16) Float4 { float x[4]; };

// A thread loads COUNT of the SIZE x TILE_K elements of a slice, coalesced along the contiguous dimension.
template <u32 SIZE> __device__ inline u32 side_of(bool along, u32 i) {
    const u32 piece = threadIdx.x + 256 * i;
    return along ? piece / TILE_K : piece % SIZE;
}
template <u32 SIZE> __device__ inline u32 depth_of(bool along, u32 i) {
    const u32 piece = threadIdx.x + 256 * i;
    return along ? piece % TILE_K : piece / SIZE;
}
template <u32 SIZE, u32 COUNT>
__device__ inline void load_slice(float (&registers)[COUNT], Run from, bool along, u32 pitch, u32 first, u32 count, u32 k0, u32 k) {
    UNROLL for (u32 i = 0; i < COUNT; i++) {
        const u32 side = first + side_of<SIZE>(along, i), depth = k0 + depth_of<SIZE>(along, i);
        const u64 at = along ? u64(side) * pitch + depth : u64(depth) * pitch + side;
        registers[i] = side < count && depth < k ? load(from, at) : 0;
    }
}
template <u32 SIZE, u32 COUNT> __device__ inline void store_slice(float *to, const float (&registers)[COUNT], bool along) {
    UNROLL for (u32 i = 0; i < COUNT; i++) to[depth_of<SIZE>(along, i) * (SIZE + 4) + side_of<SIZE>(along, i)] = registers[i];
}

extern "C" __global__ void __launch_bounds__(256) gemm_any(Product given, Groups of) {
    SHARED(float, of_a, 2 * TILE_K * PITCH_M);
    SHARED(float, of_b, 2 * TILE_K * PITCH_N);
    const Tile where = tile_of(given, of, TILE_M, TILE_N);
    if (where.none) return;
    const Product &p = where.p;
    const bool a_along = p.trans % 2 == 0, b_along = p.trans / 2 == 1;
    const u32 pitch_b = b_along ? p.k : p.n;
    const u32 row = threadIdx.x / 16 * 4, col = threadIdx.x % 16 * 4, slices = (p.k + TILE_K - 1) / TILE_K;
    const bool inside = where.col + col < p.n;
    const bool active[2] = {inside && where.row + row < p.m, inside && where.row + row + TILE_M / 2 < p.m};
    float a[8], b[4], sums[2][4][4] = {};
    if (slices > 0) {
        load_slice<TILE_M>(a, p.a, a_along, p.pitch_a, where.row, p.m, 0, p.k);
        load_slice<TILE_N>(b, p.b, b_along, pitch_b, where.col, p.n, 0, p.k);
    }
    for (u32 slice = 0; slice < slices; slice++) {
        float *x = of_a + slice % 2 * TILE_K * PITCH_M, *y = of_b + slice % 2 * TILE_K * PITCH_N;
        store_slice<TILE_M>(x, a, a_along);
        store_slice<TILE_N>(y, b, b_along);
        // Double buffered: threads that still compute use the other half.
        __syncthreads();
        if (slice + 1 < slices) {
            load_slice<TILE_M>(a, p.a, a_along, p.pitch_a, where.row, p.m, (slice + 1) * TILE_K, p.k);
            load_slice<TILE_N>(b, p.b, b_along, pitch_b, where.col, p.n, (slice + 1) * TILE_K, p.k);
        }
        if (!active[0]) continue;
        // nvcc contracts this to fma; on a CPU without FMA, fmaf would be slow.
        UNROLL for (u32 d = 0; d < TILE_K; d++) {
            const Float4 right = *reinterpret_cast<const Float4 *>(y + d * PITCH_N + col);
            UNROLL for (u32 h = 0; h < 2; h++) {
                if (!active[h]) continue;
                const Float4 left = *reinterpret_cast<const Float4 *>(x + d * PITCH_M + h * TILE_M / 2 + row);
                UNROLL for (u32 i = 0; i < 4; i++)
                    UNROLL for (u32 j = 0; j < 4; j++) sums[h][i][j] += left.x[i] * right.x[j];
            }
        }
    }
    UNROLL for (u32 h = 0; h < 2; h++)
        UNROLL for (u32 i = 0; i < 4; i++)
            UNROLL for (u32 j = 0; j < 4; j++) {
                const u32 r = where.row + h * TILE_M / 2 + row + i, c = where.col + col + j;
                if (r >= p.m || c >= p.n) continue;
                const u64 at = u64(r) * p.pitch_c + c;
                store(p.c, at, fmaf(p.alpha, sums[h][i][j], p.accumulate ? load(p.c, at) : 0));
            }
}
EXPORT(gemm_any)
