// Matrix products of operands of any types and alignment, without tensor cores.
#include "product.h"

// Tiles of 128 x 64, slices of 16 along k. A thread has 2 x 4 rows, 64 apart, by 4
// columns. The next slice is on its way in registers while this one is computed with.
static const u32 HIGH = 128, WIDE = 64, DEEP = 16, HIGH_PITCH = HIGH + 4, WIDE_PITCH = WIDE + 4;
struct alignas(16) Four { float x[4]; };

// The elements of a slice that a thread moves are COUNT of SIZE x DEEP, neighbours along what is stored together.
template <u32 SIZE> DEVICE u32 side_of(bool along, u32 i) {
    const u32 piece = tid() + 256 * i;
    return along ? piece / DEEP : piece % SIZE;
}
template <u32 SIZE> DEVICE u32 depth_of(bool along, u32 i) {
    const u32 piece = tid() + 256 * i;
    return along ? piece % DEEP : piece / SIZE;
}
template <u32 SIZE, u32 COUNT>
DEVICE void read(float (&held)[COUNT], Run from, bool along, u32 first, u32 count, u32 k0, u32 k) {
    UNROLL for (u32 i = 0; i < COUNT; i++) {
        const u32 side = first + side_of<SIZE>(along, i), depth = k0 + depth_of<SIZE>(along, i);
        const u64 at = along ? u64(side) * k + depth : u64(depth) * count + side;
        held[i] = side < count && depth < k ? load(from, at) : 0;
    }
}
template <u32 SIZE, u32 COUNT> DEVICE void keep(float *to, const float (&held)[COUNT], bool along) {
    UNROLL for (u32 i = 0; i < COUNT; i++) to[depth_of<SIZE>(along, i) * (SIZE + 4) + side_of<SIZE>(along, i)] = held[i];
}

KERNEL(256) gemm_any(Product given, Groups of) {
    SHARED(float, of_a, 2 * DEEP * HIGH_PITCH);
    SHARED(float, of_b, 2 * DEEP * WIDE_PITCH);
    const Part part = part_of(given, of, HIGH, WIDE);
    if (part.none) return;
    const Product &p = part.p;
    const bool a_along = p.trans % 2 == 0, b_along = p.trans / 2 == 1;
    const u32 row = tid() / 16 * 4, col = tid() % 16 * 4, slices = (p.k + DEEP - 1) / DEEP;
    const bool inside = part.col + col < p.n;
    const bool busy[2] = {inside && part.row + row < p.m, inside && part.row + row + HIGH / 2 < p.m};
    float a[8], b[4], sums[2][4][4] = {};
    if (slices > 0) {
        read<HIGH>(a, p.a, a_along, part.row, p.m, 0, p.k);
        read<WIDE>(b, p.b, b_along, part.col, p.n, 0, p.k);
    }
    for (u32 slice = 0; slice < slices; slice++) {
        float *x = of_a + slice % 2 * DEEP * HIGH_PITCH, *y = of_b + slice % 2 * DEEP * WIDE_PITCH;
        keep<HIGH>(x, a, a_along);
        keep<WIDE>(y, b, b_along);
        // Whoever still computes does so with the other half.
        sync_block();
        if (slice + 1 < slices) {
            read<HIGH>(a, p.a, a_along, part.row, p.m, (slice + 1) * DEEP, p.k);
            read<WIDE>(b, p.b, b_along, part.col, p.n, (slice + 1) * DEEP, p.k);
        }
        if (!busy[0]) continue;
        // Joined to one instruction on the device; the processor is quicker with two.
        UNROLL for (u32 d = 0; d < DEEP; d++) {
            const Four right = *reinterpret_cast<const Four *>(y + d * WIDE_PITCH + col);
            UNROLL for (u32 h = 0; h < 2; h++) {
                if (!busy[h]) continue;
                const Four left = *reinterpret_cast<const Four *>(x + d * HIGH_PITCH + h * HIGH / 2 + row);
                UNROLL for (u32 i = 0; i < 4; i++)
                    UNROLL for (u32 j = 0; j < 4; j++) sums[h][i][j] += left.x[i] * right.x[j];
            }
        }
    }
    UNROLL for (u32 h = 0; h < 2; h++)
        UNROLL for (u32 i = 0; i < 4; i++)
            UNROLL for (u32 j = 0; j < 4; j++) {
                const u32 r = part.row + h * HIGH / 2 + row + i, c = part.col + col + j;
                if (r >= p.m || c >= p.n) continue;
                const u64 at = u64(r) * p.n + c;
                store(p.c, at, fma1(p.alpha, sums[h][i][j], p.accumulate ? load(p.c, at) : 0));
            }
}
EXPORT(gemm_any)
