// Block quantisation: floats to small integers with a scale for each block, and back. Roundings are those of the cores, to the bit.
#include "prelude.h"

// As the host numbers them: -127 to 127, a byte each; -7 to 7, two to a byte, the even one in the low four bits.
enum Format : u32 { INT8 = 0, INT4 = 1 };

// The bits of floats without sign are in the order of their values, infinity and NaN last.
DEVICE u32 size_bits(float x) { return float_to_bits(x) & 0x7fffffffu; }
DEVICE u32 most(u32 a, u32 b) { return a > b ? a : b; }

// The scale of a block whose largest magnitude has these bits.
DEVICE float scale_of(u32 format, u32 bits) {
    if (bits >= 0x7f800000u) return bits_to_float(0x7fc00000u);
    const float limit = format == INT8 ? 127.0f : 7.0f, scale = div_rn(bits_to_float(bits), limit);
    if (scale < 1.17549435e-38f) return 0.0f;
    const bool finite = size_bits(mul_rn(scale, limit)) < 0x7f800000u;
    return finite ? scale : bits_to_float(float_to_bits(scale) - 1);
}
// x / scale as an integer, ties to even; 0 where there is no scale. Adding 1.5 * 2^23 leaves it in the low bits.
DEVICE i32 integer(float x, float inverse) {
    const float MAGIC = 12582912.0f;
    return i8(float_to_bits(add_rn(mul_rn(x, inverse), MAGIC)) - float_to_bits(MAGIC));
}
DEVICE i32 integer_of(float x, float scale, float inverse) { return scale > 0.0f ? integer(x, inverse) : 0; }

// Up to eight integers to where they lie, those from `i` on, a multiple of eight. Behind the last of an odd number are four
// zero bits.
DEVICE void put8(u32 format, u8 *values, u64 i, u64 end, const i32 (&x)[8]) {
    u8 bytes[8];
    UNROLL for (u32 j = 0; j < 8; j++) {
        const u32 pair = (u32(x[2 * j % 8]) & 15) | u32(x[(2 * j + 1) % 8]) << 4;
        bytes[j] = format == INT8 ? u8(x[j]) : j < 4 ? u8(pair) : 0;
    }
    const u32 low = bytes[0] | bytes[1] << 8 | bytes[2] << 16 | u32(bytes[3]) << 24;
    const u32 high = bytes[4] | bytes[5] << 8 | bytes[6] << 16 | u32(bytes[7]) << 24;
    u8 *at = values + (format == INT8 ? i : i / 2);
    const u64 left = end - i < 8 ? end - i : 8, count = format == INT8 ? left : (left + 1) / 2;
    if (left == 8 && reinterpret_cast<u64>(at) % 4 == 0) {
        reinterpret_cast<u32 *>(at)[0] = low;
        if (format == INT8) reinterpret_cast<u32 *>(at)[1] = high;
        return;
    }
    UNROLL for (u32 j = 0; j < 8; j++)
        if (j < count) at[j] = bytes[j];
}
DEVICE void get8(u32 format, const u8 *values, u64 i, u64 end, i32 (&x)[8]) {
    const u8 *at = values + (format == INT8 ? i : i / 2);
    const u64 left = end - i < 8 ? end - i : 8, count = format == INT8 ? left : (left + 1) / 2;
    u8 bytes[8] = {};
    if (left == 8 && reinterpret_cast<u64>(at) % 4 == 0) {
        const u32 low = reinterpret_cast<const u32 *>(at)[0], high = format == INT8 ? reinterpret_cast<const u32 *>(at)[1] : 0;
        UNROLL for (u32 j = 0; j < 4; j++) bytes[j] = u8(low >> 8 * j), bytes[j + 4] = u8(high >> 8 * j);
    } else {
        UNROLL for (u32 j = 0; j < 8; j++)
            if (j < count) bytes[j] = at[j];
    }
    UNROLL for (u32 j = 0; j < 8; j++) {
        const u8 pair = bytes[j / 2];
        x[j] = format == INT8 ? i32(i8(bytes[j])) : j % 2 ? i32(i8(pair)) >> 4 : i32(i8(u8(pair << 4))) >> 4;
    }
}

// Blocks whose length is a multiple of eight: `lanes` lanes of a warp, a power of two, share one, and read it a second time
// from the cache, or have it still.
KERNEL(256) quantize_blocks(Run src, u64 len, u64 block, u32 format, u32 lanes, u8 *values, float *scales) {
    const u64 blocks = (len + block - 1) / block, warps = u64(blocks_x()) * (threads() / WARP);
    const u32 own = lane() % lanes, each = WARP / lanes;
    const bool wide = is_wide(src);
    // All lanes go round as often as any of their warp.
    for (u64 base = (u64(bid_x()) * (threads() / WARP) + warp()) * each; base < blocks; base += warps * each) {
        const u64 number = base + lane() / lanes, start = number * block;
        const u64 end = number >= blocks ? start : start + block < len ? start + block : len;
        float x[8];
        u32 bits = 0;
        u64 kept = end;
        for (u64 i = start + own * 8; i < end; i += lanes * 8) {
            load_some(src, wide, i, end, x);
            UNROLL for (int j = 0; j < 8; j++) bits = most(bits, size_bits(x[j]));
            kept = i;
        }
        for (u32 mask = lanes / 2; mask > 0; mask /= 2) bits = most(bits, shfl_xor(bits, mask));
        const float scale = scale_of(format, bits), inverse = div_rn(1.0f, scale);
        if (own == 0 && number < blocks) scales[number] = scale;
        for (u64 i = start + own * 8; i < end; i += lanes * 8) {
            if (i != kept || start + own * 8 != kept) load_some(src, wide, i, end, x);
            i32 made[8];
            UNROLL for (int j = 0; j < 8; j++) made[j] = integer_of(x[j], scale, inverse);
            put8(format, values, i, end, made);
        }
    }
}
EXPORT(quantize_blocks)

// Blocks of any length, in passes. First the bits of the largest magnitudes, which begin as 0: a maximum of integers is the
// same in every order. A warp looks at 2048 elements; mostly all are of one block.
KERNEL(256) quantize_largest(Run src, u64 len, u64 block, u32 *bits) {
    const u64 SPAN = 2048, step = u64(blocks_x()) * (threads() / WARP) * SPAN;
    const bool wide = is_wide(src);
    for (u64 base = (u64(bid_x()) * (threads() / WARP) + warp()) * SPAN; base < len; base += step) {
        const u64 end = base + SPAN < len ? base + SPAN : len, first = quotient(base, block);
        const bool one = quotient(end - 1, block) == first;
        u64 number = first, next = (number + 1) * block;
        u32 found = 0;
        for (u64 i = base + lane() * 8; i < end; i += WARP * 8) {
            float x[8];
            load_some(src, wide, i, end, x);
            UNROLL for (u32 j = 0; j < 8; j++) {
                if (!one && i + j >= next && i + j < end) {
                    if (found) atomic_max(bits + number, found);
                    number = quotient(i + j, block);
                    next = (number + 1) * block;
                    found = 0;
                }
                found = most(found, size_bits(x[j]));
            }
        }
        if (one) {
            UNROLL for (u32 mask = WARP / 2; mask > 0; mask /= 2) found = most(found, shfl_xor(found, mask));
            if (lane() != 0) found = 0;
        }
        if (found) atomic_max(bits + number, found);
    }
}
EXPORT(quantize_largest)

// Then the scales in their place.
KERNEL(256) quantize_scales(float *scales, u64 count, u32 format) {
    for (u64 i = u64(bid_x()) * threads() + tid(); i < count; i += u64(blocks_x()) * threads())
        scales[i] = scale_of(format, float_to_bits(scales[i]));
}
EXPORT(quantize_scales)

// Then the integers.
KERNEL(256) quantize_values(Run src, u64 len, u64 block, u32 format, u8 *values, const float *scales) {
    const bool wide = is_wide(src);
    for (u64 i = (u64(bid_x()) * threads() + tid()) * 8; i < len; i += u64(blocks_x()) * threads() * 8) {
        float x[8];
        i32 made[8];
        load_some(src, wide, i, len, x);
        u64 number = quotient(i, block), next = (number + 1) * block;
        float scale = scales[number], inverse = div_rn(1.0f, scale);
        UNROLL for (u32 j = 0; j < 8; j++) {
            if (i + j >= next && i + j < len) {
                scale = scales[++number], inverse = div_rn(1.0f, scale);
                next += block;
            }
            made[j] = integer_of(x[j], scale, inverse);
        }
        put8(format, values, i, len, made);
    }
}
EXPORT(quantize_values)

// dst = (dst +) value * scale
KERNEL(256) dequantize(const u8 *values, const float *scales, u64 block, u32 format, u32 accumulate, Run dst, u64 len) {
    const bool wide = is_wide(dst);
    for (u64 i = (u64(bid_x()) * threads() + tid()) * 8; i < len; i += u64(blocks_x()) * threads() * 8) {
        i32 kept[8];
        float x[8] = {};
        get8(format, values, i, len, kept);
        if (accumulate) load_some(dst, wide, i, len, x);
        u64 number = quotient(i, block), next = (number + 1) * block;
        float scale = scales[number];
        UNROLL for (u32 j = 0; j < 8; j++) {
            if (i + j >= next && i + j < len) {
                scale = scales[++number];
                next += block;
            }
            const float product = mul_rn(float(kept[j]), scale);
            x[j] = accumulate ? add_rn(x[j], product) : product;
        }
        store_some(dst, wide, i, len, x);
    }
}
EXPORT(dequantize)
