// The loss: logits to their gradient, in the buffer where they lie.
#include "rows.h"

// A maximum, and the sum of e^(x - top) over what it is the maximum of. Of nothing: -infinity and 0.
struct Soft { float top, sum; };
DEVICE float never() { return bits_to_float(0xff800000); }

// e^(x - top), where nothing is above -infinity as if top were 0: differences of infinities are no numbers.
DEVICE float share(float x, float top) { return exp2_fast(mul_rn(x - (top == never() ? 0 : top), 1.44269504f)); }
// The same bits in either order.
DEVICE Soft both(Soft a, Soft b) {
    const float top = larger(a.top, b.top);
    return Soft{top, add_rn(mul_rn(a.sum, share(a.top, top)), mul_rn(b.sum, share(b.top, top)))};
}

// One row a block. losses[row] = log(sum of e^x) - x[target], and in the logits' place scale * (softmax - one_hot); zeros
// where the target is ~0. Row r of a gradient of two bytes lies where row r / 2 of the logits lay, so the launcher
// starts rows in waves (see rows.rs): but for row 0, no block writes what another one, or it itself, still reads. Row 0 is
// written from its front on, each run of `8 * threads` columns after it was read: it takes the place of columns before.
KERNEL(1024) cross_entropy(Run logits, Run gradient, Run targets, Run losses, u64 first, u64 vocab, float scale, u32 *faults) {
    SHARED(Soft, aside, 32);
    const u64 row = first + bid_x();
    const u32 target = as<u32>(targets)[row];
    const bool narrow = gradient.type != F32;
    const Walk way = walk(vocab, threads(), is_wide(logits));
    const u64 step = u64(threads()) * 8;
    float v[8];
    // A target outside counts as ignored.
    if (target >= vocab) {
        if (tid() == 0) {
            if (target != ~0u) fault(faults, 2, u32(row), target);
            store(losses, row, 0);
        }
        UNROLL for (int j = 0; j < 8; j++) v[j] = 0;
        for (u64 base = 0; base < vocab; base += step) give(gradient, row, way, base, v);
        return;
    }
    const float wanted = load(logits, row * vocab + target);
    Soft all = {never(), 0};
    for (u64 base = 0; base < vocab; base += step) {
        take(logits, row, way, base, v, never());
        float top = all.top;
        UNROLL for (int j = 0; j < 8; j++) top = larger(top, v[j]);
        all.sum = mul_rn(all.sum, share(all.top, top));
        UNROLL for (int j = 0; j < 8; j++) all.sum = add_rn(all.sum, share(v[j], top));
        all.top = top;
    }
    UNROLL for (u32 mask = 16; mask > 0; mask /= 2) all = both(all, Soft{shfl_xor(all.top, mask), shfl_xor(all.sum, mask)});
    if (lane() == 0) aside[warp()] = all;
    sync_block();
    all = aside[0];
    for (u32 i = 1; i < threads() / WARP; i++) all = both(all, aside[i]);
    if (tid() == 0) store(losses, row, float(double(all.top) + log_of(double(all.sum)) - double(wanted)));
    const float factor = scale / all.sum;
    for (u64 base = 0; base < vocab; base += step) {
        take(logits, row, way, base, v);
        UNROLL for (u32 j = 0; j < 8; j++) {
            v[j] = mul_rn(share(v[j], all.top), factor);
            if (base + way.start + u64(j) * way.gap == target) v[j] = add_rn(v[j], -scale);
        }
        if (narrow && row == 0) sync_block();
        give(gradient, row, way, base, v);
    }
}
EXPORT(cross_entropy)
