// Tiles of two-byte elements in shared memory for the tensor cores: rows of D elements in chunks of 16 bytes, which change
// places within their row so that the eight rows that ldmatrix reads at once lie in different banks.
#pragma once
#include "prelude.h"

// Where a chunk lies, in elements.
template <int D> DEVICE u32 chunk_at(u32 row, u32 chunk) {
    // Rows of 192 bytes begin half a line of banks apart, so every other row is apart already.
    const u32 span = D % 64 == 0 ? 8 : 4, turn = D % 64 == 0 ? row % 8 : row / 2 % 4;
    return row * D + (chunk % span ^ turn) * 8 + chunk / span * span * 8;
}

// Begins to copy rows `first..first + ROWS` of `count` rows, which lie `stride` elements apart; zeros behind the last.
template <class T, int D, int ROWS, int THREADS>
DEVICE void tile_in(T *tile, const T *from, u64 stride, i32 first, i32 count) {
    // Eight lanes write all banks: a row of 64 elements, or half of two neighbouring rows of 96.
    const u32 lanes = D % 64 == 0 ? 8 : 4, pass = THREADS / lanes;
    static_assert(pass % 8 == 0 && ROWS % pass == 0, "a pass leaves a thread's place within its row as it is");
    const u32 row = tid() / lanes, chunk = tid() % lanes;
    tile += chunk_at<D>(row, chunk);
    from += u64(first + i32(row)) * stride + chunk * 8;
    UNROLL for (u32 i = 0; i < ROWS / pass; i++) {
        const bool valid = first + i32(row + i * pass) < count;
        UNROLL for (u32 j = 0; j < D / 8 / lanes; j++)
            cp_async(tile + i * pass * D + j * lanes * 8, from + i * pass * stride + j * lanes * 8, valid);
    }
}

// 16 x 16 of a tile as an A operand: rows from `row` on, columns from 16 * k on.
template <class T, int D> DEVICE void load_a(u32 (&r)[4], const T *tile, u32 row, u32 k) {
    ldmatrix(r, tile + chunk_at<D>(row + lane() % 16, 2 * k + lane() / 16));
}
// Two B operands of which each row of the tile is a column: r[0], r[1] of rows from `row` on, r[2], r[3] of those 8 further.
template <class T, int D> DEVICE void load_b(u32 (&r)[4], const T *tile, u32 row, u32 k) {
    ldmatrix(r, tile + chunk_at<D>(row + lane() / 16 * 8 + lane() % 8, 2 * k + lane() / 8 % 2));
}
// Two B operands whose rows are the tile's: r[0], r[1] of columns from 16 * n on, r[2], r[3] of those 8 further.
template <class T, int D> DEVICE void load_b_rows(u32 (&r)[4], const T *tile, u32 row, u32 n) {
    ldmatrix_trans(r, tile + chunk_at<D>(row + lane() % 16, 2 * n + lane() / 16));
}

// s = A B^T: M times 16 rows of tile `a` from `row` on, N rows of tile `b` from `from` on.
template <class T, int D, int M, int N>
DEVICE void times_rows(float (&s)[M][N / 8][4], const T *a, u32 row, const T *b, u32 from) {
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

// o += P B: P rounded to T; N rows of tile `b` from `from` on. What a product leaves in registers is laid out as the next
// one wants its A.
template <class T, int D, int M, int N>
DEVICE void add_weighted(float (&o)[M][D / 8][4], const float (&p)[M][N / 8][4], const T *b, u32 from) {
    UNROLL for (int k = 0; k < N / 16; k++) {
        u32 left[M][4];
        UNROLL for (int m = 0; m < M; m++)
            UNROLL for (int i = 0; i < 4; i++) {
                const float *pair = &p[m][2 * k + i / 2][2 * (i % 2)];
                left[m][i] = pack2<T>(pair[0], pair[1]);
            }
        UNROLL for (int n = 0; n < D / 16; n++) {
            u32 right[4];
            load_b_rows<T, D>(right, b, from + 16 * k, n);
            UNROLL for (int m = 0; m < M; m++) {
                mma<T>(o[m][2 * n], left[m], right[0], right[1]);
                mma<T>(o[m][2 * n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

template <int M, int D> DEVICE void clear(float (&o)[M][D][4]) {
    UNROLL for (int m = 0; m < M; m++)
        UNROLL for (int n = 0; n < D; n++)
            UNROLL for (int e = 0; e < 4; e++) o[m][n][e] = 0.0f;
}

// Stores a warp's M times 16 rows, each times its factor, to rows from `first` on, of `count`. On its way it goes through
// rows of a tile from `row` on, which belong to this warp alone: to memory in whole chunks.
template <class T, int D, int M>
DEVICE void tile_out(const float (&o)[M][D / 8][4], const float (&factor)[2 * M], T *tile, u32 row, T *to, u64 stride,
                     i32 first, i32 count) {
    const u32 g = lane() / 4, t = lane() % 4, chunks = D / 8;
    UNROLL for (int m = 0; m < M; m++)
        UNROLL for (int n = 0; n < D / 8; n++)
            UNROLL for (int half = 0; half < 2; half++) {
                const float f = factor[2 * m + half];
                T *at = tile + chunk_at<D>(row + 16 * m + 8 * half + g, n) + 2 * t;
                *reinterpret_cast<u32 *>(at) = pack2<T>(o[m][n][2 * half] * f, o[m][n][2 * half + 1] * f);
            }
    sync_warp();
    // Not unrolled: its addresses would push sums out of their registers.
    ROLLED for (u32 i = 0; i < 16 * M * chunks / WARP; i++) {
        const u32 at = i * WARP + lane(), r = at / chunks, chunk = at % chunks;
        if (first + i32(r) < count) store_quad(to + u64(first + i32(r)) * stride + chunk * 8, load_quad(tile + chunk_at<D>(row + r, chunk)));
    }
}
