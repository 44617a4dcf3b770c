// Tiles of 16-bit elements in shared memory for tensor cores: rows of D elements in chunks of 16 bytes, swizzled within their row
// so that the eight rows that ldmatrix reads at once lie in different banks.
#pragma once
// defines: as, lane_id, mma, ldmatrix, cp_async, load_uint4, UNROLL
#include "prelude.h"

// Offset of a chunk, in elements.
template <int D> __device__ inline u32 swizzled(u32 row, u32 chunk) {
    // Rows of 192 bytes start 16 banks apart, so every other row is free of conflicts already.
    const u32 span = D % 64 == 0 ? 8 : 4, turn = D % 64 == 0 ? row % 8 : row / 2 % 4;
    return row * D + (chunk % span ^ turn) * 8 + chunk / span * span * 8;
}

// Starts to copy rows `first..first + ROWS` of `count` rows, `stride` elements apart; zeros past the last.
template <class T, int D, int ROWS, int THREADS>
__device__ inline void load_tile_async(T *tile, const T *from, u64 stride, i32 first, i32 count) {
    // Eight lanes write all banks: a row of 64 elements, or half of two adjacent rows of 96.
    const u32 lanes = D % 64 == 0 ? 8 : 4, pass = THREADS / lanes;
    static_assert(pass % 8 == 0 && ROWS % pass == 0, "a pass leaves a thread's place within its row as it is");
    const u32 row = threadIdx.x / lanes, chunk = threadIdx.x % lanes;
    tile += swizzled<D>(row, chunk);
    from += u64(first + i32(row)) * stride + chunk * 8;
    UNROLL for (u32 i = 0; i < ROWS / pass; i++) {
        const bool valid = first + i32(row + i * pass) < count;
        UNROLL for (u32 j = 0; j < D / 8 / lanes; j++)
            cp_async(tile + i * pass * D + j * lanes * 8, from + i * pass * stride + j * lanes * 8, valid);
    }
}

// 16 x 16 of a tile as an A operand: rows from `row` on, columns from 16 * k on.
template <class T, int D> __device__ inline void load_a(u32 (&r)[4], const T *tile, u32 row, u32 k) {
    ldmatrix(r, tile + swizzled<D>(row + lane_id() % 16, 2 * k + lane_id() / 16));
}
// Two B operands whose columns are rows of the tile: r[0], r[1] rows from `row` on, r[2], r[3] the next 8.
template <class T, int D> __device__ inline void load_b(u32 (&r)[4], const T *tile, u32 row, u32 k) {
    ldmatrix(r, tile + swizzled<D>(row + lane_id() / 16 * 8 + lane_id() % 8, 2 * k + lane_id() / 8 % 2));
}
// Two B operands whose rows are rows of the tile: r[0], r[1] columns from 16 * n on, r[2], r[3] the next 8.
template <class T, int D> __device__ inline void load_b_transposed(u32 (&r)[4], const T *tile, u32 row, u32 n) {
    ldmatrix_trans(r, tile + swizzled<D>(row + lane_id() % 16, 2 * n + lane_id() / 16));
}

// s = A B^T: M times 16 rows of tile `a` from `row` on, N rows of tile `b` from `from` on.
template <class T, int D, int M, int N>
__device__ inline void gemm_abt(float (&s)[M][N / 8][4], const T *a, u32 row, const T *b, u32 from) {
    UNROLL for (int m = 0; m < M; m++)
        UNROLL for (int n = 0; n < N / 8; n++)
            UNROLL for (int e = 0; e < 4; e++) s[m][n][e] = 0.0f;
    UNROLL for (int k = 0; k < D / 16; k++) {
        u32 left[M][4];
        UNROLL for (int m = 0; m < M; m++) load_a<T, D>(left[m], a, row + 16 * m, k);
        UNROLL for (int n = 0; n < N / 16; n++) {
            u32 right[4];
            load_b<T, D>(right, b, from + 16 * n, k);
            UNROLL for (int m = 0; m < M; m++) {
                mma<T>(s[m][2 * n], left[m], right[0], right[1]);
                mma<T>(s[m][2 * n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

// o += P B: P rounded to T; N rows of tile `b` from `from` on. The accumulator layout of one product is the A layout of the next.
template <class T, int D, int M, int N>
__device__ inline void gemm_pv(float (&o)[M][D / 8][4], const float (&p)[M][N / 8][4], const T *b, u32 from) {
    UNROLL for (int k = 0; k < N / 16; k++) {
        u32 left[M][4];
        UNROLL for (int m = 0; m < M; m++)
            UNROLL for (int i = 0; i < 4; i++) {
                const float *pair = &p[m][2 * k + i / 2][2 * (i % 2)];
                left[m][i] = pack2<T>(pair[0], pair[1]);
            }
        UNROLL for (int n = 0; n < D / 16; n++) {
            u32 right[4];
            load_b_transposed<T, D>(right, b, from + 16 * k, n);
            UNROLL for (int m = 0; m < M; m++) {
                mma<T>(o[m][2 * n], left[m], right[0], right[1]);
                mma<T>(o[m][2 * n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

template <int M, int D> __device__ inline void set_zero(float (&o)[M][D][4]) {
    UNROLL for (int m = 0; m < M; m++)
        UNROLL for (int n = 0; n < D; n++)
            UNROLL for (int e = 0; e < 4; e++) o[m][n][e] = 0.0f;
}

// Stores a warp's M times 16 rows, each times its factor, to rows from `first` on, of `count`. They go through rows of a shared tile
// from `row` on, which only this warp uses, so that global stores are whole chunks.
template <class T, int D, int M>
__device__ inline void store_tile(const float (&o)[M][D / 8][4], const float (&factor)[2 * M], T *tile, u32 row, T *to, u64 stride,
                     i32 first, i32 count) {
    const u32 g = lane_id() / 4, t = lane_id() % 4, chunks = D / 8;
    UNROLL for (int m = 0; m < M; m++)
        UNROLL for (int n = 0; n < D / 8; n++)
            UNROLL for (int half = 0; half < 2; half++) {
                const float f = factor[2 * m + half];
                T *at = tile + swizzled<D>(row + 16 * m + 8 * half + g, n) + 2 * t;
                *reinterpret_cast<u32 *>(at) = pack2<T>(o[m][n][2 * half] * f, o[m][n][2 * half + 1] * f);
            }
    __syncwarp();
    // Not unrolled: the addresses would cause spills.
    NO_UNROLL for (u32 i = 0; i < 16 * M * chunks / WARP_SIZE; i++) {
        const u32 at = i * WARP_SIZE + lane_id(), r = at / chunks, chunk = at % chunks;
        if (first + i32(r) >= count) continue;
        store_uint4(to + u64(first + i32(r)) * stride + chunk * 8, load_uint4(tile + swizzled<D>(row + r, chunk)));
    }
}
