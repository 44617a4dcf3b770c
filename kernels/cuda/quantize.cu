// Block quantization to int8 or int4 with an f32 scale for each block, and back. The same bits as on CPUs.
// defines: Run, load8_bounded, store8_bounded, is_aligned16, abs_bits, fast_divide, lane_id, warp_id, EXPORT, UNROLL
#include "prelude.h"

// Numbered as in quantize.rs. INT8: -127 to 127. INT4: -7 to 7, two in a byte, the even element in the low four bits.
enum Format : u32 { INT8 = 0, INT4 = 1 };

// The scale of a block whose largest magnitude has these bits.
__device__ inline float scale_of(u32 format, u32 bits) {
    if (bits >= 0x7f800000u) return __uint_as_float(0x7fc00000u);
    const float limit = format == INT8 ? 127.0f : 7.0f, scale = __fdiv_rn(__uint_as_float(bits), limit);
    if (scale < 1.17549435e-38f) return 0.0f;
    const bool finite = abs_bits(__fmul_rn(scale, limit)) < 0x7f800000u;
    return finite ? scale : __uint_as_float(__float_as_uint(scale) - 1);
}
// x / scale as an integer, ties to even; 0 where there is no scale. Adding 1.5 * 2^23 leaves it in the low bits.
__device__ inline i32 to_integer(float x, float inverse) {
    const float MAGIC = 12582912.0f;
    return i8(__float_as_uint(__fadd_rn(__fmul_rn(x, inverse), MAGIC)) - __float_as_uint(MAGIC));
}
__device__ inline i32 quantized(float x, float scale, float inverse) { return scale > 0.0f ? to_integer(x, inverse) : 0; }

// Up to eight integers from `i` on, a multiple of eight. An odd number of INT4 ends with four zero bits.
__device__ inline void store8_quantized(u32 format, u8 *values, u64 i, u64 end, const i32 (&x)[8]) {
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
__device__ inline void load8_quantized(u32 format, const u8 *values, u64 i, u64 end, i32 (&x)[8]) {
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

// For blocks whose length is a multiple of eight: `lanes` lanes of a warp, a power of two, share a block; they keep its values in
// registers, or read them again from the cache.
extern "C" __global__ void __launch_bounds__(256) quantize_blocks(Run src, u64 len, u64 block, u32 format, u32 lanes, u8 *values,
        float *scales) {
    const u64 blocks = (len + block - 1) / block, warps = u64(gridDim.x) * (blockDim.x / WARP_SIZE);
    const u32 own = lane_id() % lanes, each = WARP_SIZE / lanes;
    const bool vectorized = is_aligned16(src);
    // All lanes of a warp loop equally often, as shuffles require.
    for (u64 base = (u64(blockIdx.x) * (blockDim.x / WARP_SIZE) + warp_id()) * each; base < blocks; base += warps * each) {
        const u64 number = base + lane_id() / lanes, start = number * block;
        const u64 end = number >= blocks ? start : start + block < len ? start + block : len;
        float x[8];
        u32 bits = 0;
        u64 kept = end;
        for (u64 i = start + own * 8; i < end; i += lanes * 8) {
            load8_bounded(src, vectorized, i, end, x);
            UNROLL for (int j = 0; j < 8; j++) bits = max(bits, abs_bits(x[j]));
            kept = i;
        }
        for (u32 mask = lanes / 2; mask > 0; mask /= 2) bits = max(bits, __shfl_xor_sync(~0u, bits, mask));
        const float scale = scale_of(format, bits), inverse = __fdiv_rn(1.0f, scale);
        if (own == 0 && number < blocks) scales[number] = scale;
        for (u64 i = start + own * 8; i < end; i += lanes * 8) {
            if (i != kept || start + own * 8 != kept) load8_bounded(src, vectorized, i, end, x);
            i32 made[8];
            UNROLL for (int j = 0; j < 8; j++) made[j] = quantized(x[j], scale, inverse);
            store8_quantized(format, values, i, end, made);
        }
    }
}
EXPORT(quantize_blocks)

// Blocks of any length take three passes. First the bits of each block's largest magnitude, initially 0: an atomic maximum of
// integers does not depend on the order. A warp has 2048 elements, mostly of one block.
extern "C" __global__ void __launch_bounds__(256) quantize_absmax(Run src, u64 len, u64 block, u32 *bits) {
    const u64 SPAN = 2048, step = u64(gridDim.x) * (blockDim.x / WARP_SIZE) * SPAN;
    const bool vectorized = is_aligned16(src);
    for (u64 base = (u64(blockIdx.x) * (blockDim.x / WARP_SIZE) + warp_id()) * SPAN; base < len; base += step) {
        const u64 end = base + SPAN < len ? base + SPAN : len, first = fast_divide(base, block);
        const bool one = fast_divide(end - 1, block) == first;
        u64 number = first, next = (number + 1) * block;
        u32 found = 0;
        for (u64 i = base + lane_id() * 8; i < end; i += WARP_SIZE * 8) {
            float x[8];
            load8_bounded(src, vectorized, i, end, x);
            UNROLL for (u32 j = 0; j < 8; j++) {
                if (!one && i + j >= next && i + j < end) {
                    if (found) atomicMax(bits + number, found);
                    number = fast_divide(i + j, block);
                    next = (number + 1) * block;
                    found = 0;
                }
                found = max(found, abs_bits(x[j]));
            }
        }
        if (one) {
            UNROLL for (u32 mask = WARP_SIZE / 2; mask > 0; mask /= 2) found = max(found, __shfl_xor_sync(~0u, found, mask));
            if (lane_id() != 0) found = 0;
        }
        if (found) atomicMax(bits + number, found);
    }
}
EXPORT(quantize_absmax)

// Second: the scales, in place.
extern "C" __global__ void __launch_bounds__(256) quantize_scales(float *scales, u64 count, u32 format) {
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += u64(gridDim.x) * blockDim.x)
        scales[i] = scale_of(format, __float_as_uint(scales[i]));
}
EXPORT(quantize_scales)

// Third: the integers.
extern "C" __global__ void __launch_bounds__(256) quantize_values(Run src, u64 len, u64 block, u32 format, u8 *values,
        const float *scales) {
    const bool vectorized = is_aligned16(src);
    for (u64 i = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * 8; i < len; i += u64(gridDim.x) * blockDim.x * 8) {
        float x[8];
        i32 made[8];
        load8_bounded(src, vectorized, i, len, x);
        u64 number = fast_divide(i, block), next = (number + 1) * block;
        float scale = scales[number], inverse = __fdiv_rn(1.0f, scale);
        UNROLL for (u32 j = 0; j < 8; j++) {
            if (i + j >= next && i + j < len) {
                scale = scales[++number], inverse = __fdiv_rn(1.0f, scale);
                next += block;
            }
            made[j] = quantized(x[j], scale, inverse);
        }
        store8_quantized(format, values, i, len, made);
    }
}
EXPORT(quantize_values)

// dst = (dst +) value * scale
extern "C" __global__ void __launch_bounds__(256) dequantize(const u8 *values, const float *scales, u64 block, u32 format, u32 accumulate,
        Run dst, u64 len) {
    const bool vectorized = is_aligned16(dst);
    for (u64 i = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * 8; i < len; i += u64(gridDim.x) * blockDim.x * 8) {
        i32 kept[8];
        float x[8] = {};
        load8_quantized(format, values, i, len, kept);
        if (accumulate) load8_bounded(dst, vectorized, i, len, x);
        u64 number = fast_divide(i, block), next = (number + 1) * block;
        float scale = scales[number];
        UNROLL for (u32 j = 0; j < 8; j++) {
            if (i + j >= next && i + j < len) {
                scale = scales[++number];
                next += block;
            }
            const float product = __fmul_rn(float(kept[j]), scale);
            x[j] = accumulate ? __fadd_rn(x[j], product) : product;
        }
        store8_bounded(dst, vectorized, i, len, x);
    }
}
EXPORT(dequantize)
