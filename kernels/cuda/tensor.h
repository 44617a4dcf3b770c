// Matrix products on tensor cores, of operands of one type of two bytes.
#pragma once
#include "product.h"

// On tensor cores: tiles of 128 x 128, a warp has 64 x 32 of one. Slices of 32 along k come by cp.async while others are
// computed with. In shared memory a slice lies as it lay outside: rows of 32 along k, or 32 rows of 128 along m or n.
static const u32 SIDE = 128, SLICE = 32, STAGES = 4, SLICE_BYTES = SIDE * SLICE * 2;

// Where 16 bytes lie in a slice. Chunks of a row change places by its number, so that the eight rows that ldmatrix reads at once
// lie in different banks.
template <bool ALONG> DEVICE u32 place(u32 row, u32 chunk) {
    return ALONG ? row * 64 + (chunk ^ (row / 2 % 4)) * 16 : row * 256 + (chunk ^ (row % 8)) * 16;
}

// The slice from `k0` on of 128 rows (or columns) from `first` on, of `count`, out of a matrix whose rows go along k if ALONG,
// else across. Zeros where the matrix has ended; chunks do not cross its edge.
template <bool ALONG, class T> DEVICE void fetch(u8 *to, const T *from, u32 first, u32 count, u32 k0, u32 k) {
    UNROLL for (u32 i = 0; i < 2; i++) {
        const u32 piece = tid() + 256 * i;
        const u32 row = ALONG ? piece / 4 : piece / 16, chunk = ALONG ? piece % 4 : piece % 16;
        const u32 side = first + (ALONG ? row : chunk * 8), depth = k0 + (ALONG ? chunk * 8 : row);
        const bool valid = side < count && depth < k;
        const u64 at = ALONG ? u64(side) * k + depth : u64(depth) * count + side;
        cp_async(to + place<ALONG>(row, chunk), from + (valid ? at : 0), valid);
    }
}

// Four 8 x 8 matrices out of a slice: two along the side from `side` on by two along k from `depth` on, those along k side by
// side if BY_K, else those along the side.
template <bool ALONG, bool BY_K> DEVICE void pieces(u32 (&r)[4], const u8 *slice, u32 side, u32 depth) {
    const u32 i = lane() / 8, on_side = BY_K ? i / 2 : i % 2, on_k = BY_K ? i % 2 : i / 2;
    const u32 s = side + on_side * 8, d = depth + on_k * 8;
    if (ALONG) ldmatrix(r, slice + place<true>(s + lane() % 8, d / 8));
    else ldmatrix_trans(r, slice + place<false>(d + lane() % 8, s / 8));
}

struct alignas(8) Two { float x, y; };

template <class T, bool A_ALONG, bool B_ALONG> DEVICE void tensor_tile(const Part &part) {
    DYNAMIC(u8, shared);
    const Product &p = part.p;
    const T *a = as<T>(p.a), *b = as<T>(p.b);
    const u32 row = warp() % 2 * 64, col = warp() / 2 * 32, slices = (p.k + SLICE - 1) / SLICE;
    const bool busy = part.row + row < p.m && part.col + col < p.n;
    float sums[4][4][4] = {};
    auto start = [&](u32 slice) {
        if (slice < slices) {
            u8 *to = shared + slice % STAGES * (2 * SLICE_BYTES);
            fetch<A_ALONG>(to, a, part.row, p.m, slice * SLICE, p.k);
            fetch<B_ALONG>(to + SLICE_BYTES, b, part.col, p.n, slice * SLICE, p.k);
        }
        cp_async_commit();
    };
    for (u32 slice = 0; slice < STAGES - 1; slice++) start(slice);
    for (u32 slice = 0; slice < slices; slice++) {
        cp_async_wait<STAGES - 2>();
        // Everybody's copies are there, and everybody is done with the slice before, whose place the next one takes.
        sync_block();
        start(slice + STAGES - 1);
        if (!busy) continue;
        const u8 *of_a = shared + slice % STAGES * (2 * SLICE_BYTES), *of_b = of_a + SLICE_BYTES;
        UNROLL for (u32 depth = 0; depth < SLICE; depth += 16) {
            u32 x[4][4], y[2][4];
            UNROLL for (u32 i = 0; i < 4; i++) pieces<A_ALONG, false>(x[i], of_a, row + 16 * i, depth);
            UNROLL for (u32 j = 0; j < 2; j++) pieces<B_ALONG, true>(y[j], of_b, col + 16 * j, depth);
            UNROLL for (u32 i = 0; i < 4; i++)
                UNROLL for (u32 j = 0; j < 4; j++) mma<T>(sums[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
        }
    }
    cp_async_wait<0>();
    sync_block();
    // The tile goes through shared memory, so that rows of C are read and written in whole words: rows of 128 f32, whose runs of
    // four change places by the row's number.
    float *tile = reinterpret_cast<float *>(shared);
    auto word = [&](u32 r, u32 c) { return tile + r * SIDE + ((c / 4) ^ (r % 8)) * 4 + c % 4; };
    if (busy)
        UNROLL for (u32 i = 0; i < 4; i++)
            UNROLL for (u32 j = 0; j < 4; j++)
                UNROLL for (u32 h = 0; h < 2; h++) {
                    const u32 r = row + 16 * i + 8 * h + lane() / 4, c = col + 8 * j + lane() % 4 * 2;
                    *reinterpret_cast<Two *>(word(r, c)) = Two{sums[i][j][2 * h], sums[i][j][2 * h + 1]};
                }
    sync_block();
    const bool wide = p.n % 8 == 0 && is_wide(p.c);
    for (u32 piece = tid(); piece < SIDE * SIDE / 8; piece += threads()) {
        const u32 r = piece / (SIDE / 8), c = piece % (SIDE / 8) * 8;
        if (part.row + r >= p.m || part.col + c >= p.n) continue;
        const u64 at = u64(part.row + r) * p.n + part.col + c;
        const u32 count = p.n - (part.col + c) < 8 ? p.n - (part.col + c) : 8;
        float x[8], old[8] = {};
        if (p.accumulate && wide) load8(p.c, at, old);
        else if (p.accumulate)
            UNROLL for (u32 j = 0; j < 8; j++) old[j] = j < count ? load(p.c, at + j) : 0;
        UNROLL for (u32 j = 0; j < 8; j++) x[j] = fma1(p.alpha, *word(r, c + j), old[j]);
        if (wide) store8(p.c, at, x);
        else
            UNROLL for (u32 j = 0; j < 8; j++)
                if (j < count) store(p.c, at + j, x[j]);
    }
}

template <class T> DEVICE void tensor(const Product &p, const Groups &of) {
    const Part part = part_of(p, of, SIDE, SIDE);
    if (part.none) return;
    switch (p.trans) {
    case 0: return tensor_tile<T, true, false>(part);
    case 1: return tensor_tile<T, false, false>(part);
    case 2: return tensor_tile<T, true, true>(part);
    default: return tensor_tile<T, false, true>(part);
    }
}
