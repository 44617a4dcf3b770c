// f32 tiles of 64 x 64 for blocks of 256 threads, 4 x 4 elements per thread: rows from 4 * (threadIdx.x / 16) on, columns from
// 4 * (threadIdx.x % 16) on. Heads may have any size: dot products loop over it in steps, outputs have 128 columns at a time.
#pragma once
// defines: Attend, query_offset, key_offset
#include "attention.h"

static const u32 THREADS = 256, TILE = 64, STEP = 32, COLUMNS = 128, PAD = 4;

__device__ inline u32 own_row() { return threadIdx.x / 16 * 4; }
__device__ inline u32 own_column() { return threadIdx.x % 16 * 4; }

struct Float4 { float x[4]; };
__device__ inline Float4 load_float4(const float *from) {
    const uint4 q = load_uint4(from);
    return Float4{{__uint_as_float(q.x), __uint_as_float(q.y), __uint_as_float(q.z), __uint_as_float(q.w)}};
}
__device__ inline void store_float4(float *to, const float (&x)[4]) {
    store_uint4(to, uint4{__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3])});
}

// Rows of one head: row i starts at element `start + i * stride`.
struct Rows {
    Run run;
    u64 start, stride;
    i32 count;
};
__device__ inline Rows query_rows(const Attend &a, Run run, u32 b, u32 h) {
    return Rows{run, query_offset(a, b, h), u64(a.heads) * a.head_dim, i32(a.rows)};
}
__device__ inline Rows key_rows(const Attend &a, Run run, u32 b, u32 h) {
    return Rows{run, key_offset(a, b, h), u64(a.kv_heads) * a.head_dim, i32(a.keys)};
}
__device__ inline float element(const Rows &rows, i32 row, u32 column) {
    return row < rows.count ? load(rows.run, rows.start + u64(row) * rows.stride + column) : 0.0f;
}

// s = A B^T over the whole head: rows of `a` from `row` on, rows of `b` from `from` on. `scratch` has 2 * STEP * (TILE + PAD) floats.
__device__ inline void tile_abt(float (&s)[4][4], const Rows &a, i32 row, const Rows &b, i32 from, u32 dim, float *scratch) {
    float *left = scratch, *right = scratch + STEP * (TILE + PAD);
    const u32 thread = threadIdx.x, own_a = own_row(), own_b = own_column();
    UNROLL for (int i = 0; i < 4; i++)
        UNROLL for (int j = 0; j < 4; j++) s[i][j] = 0.0f;
    for (u32 start = 0; start < dim; start += STEP) {
        const u32 width = min(STEP, dim - start);
        __syncthreads();
        for (u32 i = thread; i < TILE * STEP; i += THREADS) {
            const u32 r = i / STEP, c = i % STEP;
            if (c >= width) continue;
            left[c * (TILE + PAD) + r] = element(a, row + i32(r), start + c);
            right[c * (TILE + PAD) + r] = element(b, from + i32(r), start + c);
        }
        __syncthreads();
        for (u32 c = 0; c < width; c++) {
            const Float4 x = load_float4(left + c * (TILE + PAD) + own_a), y = load_float4(right + c * (TILE + PAD) + own_b);
            UNROLL for (int i = 0; i < 4; i++)
                UNROLL for (int j = 0; j < 4; j++) s[i][j] += x.x[i] * y.x[j];
        }
    }
}

// o += P B for columns of the head from `first` on: `p` has P transposed with `depth` valid columns; rows of `b` from `from` on.
// A thread has its rows and its columns in both halves of 64. `scratch` as above.
__device__ inline void add_pb(float (&o)[4][8], const float *p, const Rows &b, i32 from, u32 depth, u32 first, u32 dim, float *scratch) {
    const u32 thread = threadIdx.x, own_a = own_row(), own_b = own_column(), step = 16, width = min(COLUMNS, dim - first);
    for (u32 start = 0; start < depth; start += step) {
        __syncthreads();
        for (u32 i = thread; i < step * COLUMNS; i += THREADS) {
            const u32 r = i / COLUMNS, c = i % COLUMNS;
            scratch[r * (COLUMNS + PAD) + c] = c < width ? element(b, from + i32(start + r), first + c) : 0.0f;
        }
        __syncthreads();
        const u32 end = min(step, depth - start);
        for (u32 k = 0; k < end; k++) {
            const Float4 x = load_float4(p + (start + k) * (TILE + PAD) + own_a);
            for (u32 half = 0; half < 2 && 64 * half < width; half++) {
                const Float4 y = load_float4(scratch + k * (COLUMNS + PAD) + 64 * half + own_b);
                UNROLL for (int i = 0; i < 4; i++)
                    UNROLL for (int j = 0; j < 4; j++) {
                        // The branch keeps indices of `o` constant, so that it stays in registers.
                        if (half == 0) o[i][j] += x.x[i] * y.x[j];
                        else o[i][4 + j] += x.x[i] * y.x[j];
                    }
            }
        }
    }
}

// Stores a thread's part of a tile to shared memory, transposed, as add_pb expects it.
__device__ inline void store_transposed(float *p, const float (&s)[4][4]) {
    UNROLL for (int j = 0; j < 4; j++) {
        const float column[4] = {s[0][j], s[1][j], s[2][j], s[3][j]};
        store_float4(p + (own_column() + j) * (TILE + PAD) + own_row(), column);
    }
}

// Stores o, each row times its factor, to columns of the head from `first` on.
__device__ inline void store_rows(const float (&o)[4][8], const float (&factor)[4], const Rows &to, i32 row, u32 first, u32 dim) {
    for (u32 i = 0; i < 4; i++)
        for (u32 j = 0; j < 8; j++) {
            const i32 r = row + i32(own_row() + i);
            const u32 c = first + j / 4 * 64 + own_column() + j % 4;
            if (r < to.count && c < dim) store(to.run, to.start + u64(r) * to.stride + c, o[i][j] * factor[i]);
        }
}

// Sum and maximum over the 16 threads that share rows.
__device__ inline float group_sum(float x) {
    UNROLL for (u32 mask = 8; mask > 0; mask /= 2) x += __shfl_xor_sync(~0u, x, mask);
    return x;
}
__device__ inline float group_max(float x) {
    UNROLL for (u32 mask = 8; mask > 0; mask /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, mask));
    return x;
}

__device__ inline u32 chunks_of(const Attend &a) { return (a.head_dim + COLUMNS - 1) / COLUMNS; }
