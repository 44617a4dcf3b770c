// Tiles of 64 x 64 in f32 for blocks of 256 threads, each of which has 4 x 4 of them: rows from 4 * (tid / 16) on, columns
// from 4 * (tid % 16) on. Heads may be of any size: products run over them in steps, and sums that have a column for each of
// their elements are made for 128 of them at a time.
#pragma once
#include "attention.h"

static const u32 THREADS = 256, TILE = 64, STEP = 32, COLUMNS = 128, PAD = 4;

DEVICE u32 own_row() { return tid() / 16 * 4; }
DEVICE u32 own_column() { return tid() % 16 * 4; }

struct four { float x[4]; };
DEVICE four load_four(const float *from) {
    const quad q = load_quad(from);
    return four{{bits_to_float(q.x), bits_to_float(q.y), bits_to_float(q.z), bits_to_float(q.w)}};
}
DEVICE void store_four(float *to, const float (&x)[4]) {
    store_quad(to, quad{float_to_bits(x[0]), float_to_bits(x[1]), float_to_bits(x[2]), float_to_bits(x[3])});
}

// Rows of one head: row i begins at element `start + i * stride`.
struct Rows {
    Run run;
    u64 start, stride;
    i32 count;
};
DEVICE Rows query_rows(const Attend &a, Run run, u32 b, u32 h) {
    return Rows{run, query_head(a, b, h), u64(a.heads) * a.head_dim, i32(a.rows)};
}
DEVICE Rows key_rows(const Attend &a, Run run, u32 b, u32 h) {
    return Rows{run, key_head(a, b, h), u64(a.kv_heads) * a.head_dim, i32(a.keys)};
}
DEVICE float element(const Rows &rows, i32 row, u32 column) {
    return row < rows.count ? load(rows.run, rows.start + u64(row) * rows.stride + column) : 0.0f;
}

// s = A B^T over the whole head: rows of `a` from `row` on, rows of `b` from `from` on. `room` holds 2 * STEP * (TILE + PAD).
DEVICE void plain_times(float (&s)[4][4], const Rows &a, i32 row, const Rows &b, i32 from, u32 dim, float *room) {
    float *left = room, *right = room + STEP * (TILE + PAD);
    const u32 thread = tid(), own_a = own_row(), own_b = own_column();
    UNROLL for (int i = 0; i < 4; i++)
        UNROLL for (int j = 0; j < 4; j++) s[i][j] = 0.0f;
    for (u32 start = 0; start < dim; start += STEP) {
        const u32 width = STEP < dim - start ? STEP : dim - start;
        sync_block();
        for (u32 i = thread; i < TILE * STEP; i += THREADS) {
            const u32 r = i / STEP, c = i % STEP;
            if (c >= width) continue;
            left[c * (TILE + PAD) + r] = element(a, row + i32(r), start + c);
            right[c * (TILE + PAD) + r] = element(b, from + i32(r), start + c);
        }
        sync_block();
        for (u32 c = 0; c < width; c++) {
            const four x = load_four(left + c * (TILE + PAD) + own_a), y = load_four(right + c * (TILE + PAD) + own_b);
            UNROLL for (int i = 0; i < 4; i++)
                UNROLL for (int j = 0; j < 4; j++) s[i][j] += x.x[i] * y.x[j];
        }
    }
}

// o += P B for columns of the head from `first` on: `p` holds P transposed, and `depth` of its columns count; rows of `b` from
// `from` on. A thread has its rows, and its columns of both halves of 64. `room` as above.
DEVICE void plain_add(float (&o)[4][8], const float *p, const Rows &b, i32 from, u32 depth, u32 first, u32 dim, float *room) {
    const u32 thread = tid(), own_a = own_row(), own_b = own_column(), step = 16, width = COLUMNS < dim - first ? COLUMNS : dim - first;
    for (u32 start = 0; start < depth; start += step) {
        sync_block();
        for (u32 i = thread; i < step * COLUMNS; i += THREADS) {
            const u32 r = i / COLUMNS, c = i % COLUMNS;
            room[r * (COLUMNS + PAD) + c] = c < width ? element(b, from + i32(start + r), first + c) : 0.0f;
        }
        sync_block();
        const u32 end = step < depth - start ? step : depth - start;
        for (u32 k = 0; k < end; k++) {
            const four x = load_four(p + (start + k) * (TILE + PAD) + own_a);
            for (u32 half = 0; half < 2 && 64 * half < width; half++) {
                const four y = load_four(room + k * (COLUMNS + PAD) + 64 * half + own_b);
                UNROLL for (int i = 0; i < 4; i++)
                    UNROLL for (int j = 0; j < 4; j++) {
                        // The half is known only where the loop is unrolled.
                        if (half == 0) o[i][j] += x.x[i] * y.x[j];
                        else o[i][4 + j] += x.x[i] * y.x[j];
                    }
            }
        }
    }
}

// A thread's part of a tile to shared memory, transposed, as plain_add wants it.
DEVICE void plain_keep(float *p, const float (&s)[4][4]) {
    UNROLL for (int j = 0; j < 4; j++) {
        const float column[4] = {s[0][j], s[1][j], s[2][j], s[3][j]};
        store_four(p + (own_column() + j) * (TILE + PAD) + own_row(), column);
    }
}

// Stores o, each row times its factor, to columns of the head from `first` on.
DEVICE void plain_store(const float (&o)[4][8], const float (&factor)[4], const Rows &to, i32 row, u32 first, u32 dim) {
    for (u32 i = 0; i < 4; i++)
        for (u32 j = 0; j < 8; j++) {
            const i32 r = row + i32(own_row() + i);
            const u32 c = first + j / 4 * 64 + own_column() + j % 4;
            if (r < to.count && c < dim) store(to.run, to.start + u64(r) * to.stride + c, o[i][j] * factor[i]);
        }
}

// Sum and maximum over the 16 threads that share rows.
DEVICE float row_sum(float x) {
    UNROLL for (u32 mask = 8; mask > 0; mask /= 2) x += shfl_xor(x, mask);
    return x;
}
DEVICE float row_max(float x) {
    UNROLL for (u32 mask = 8; mask > 0; mask /= 2) x = max_of(x, shfl_xor(x, mask));
    return x;
}

DEVICE u32 chunks_of(const Attend &a) { return (a.head_dim + COLUMNS - 1) / COLUMNS; }
