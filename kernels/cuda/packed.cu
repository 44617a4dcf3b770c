// NF4 and int8 weights, packed and unpacked. The same bits as on CPUs.
//   UNROLL
// defines: Run, load, load8_bounded, store8_bounded, is_aligned16, abs_bits, fast_divide, lane_id, warp_id, EXPORT, SHARED, UNROLL
#include "prelude.h"

// The published tables, as kernels/src/packed.rs has them; a test compares the two.
__device__ const float NF4[16] = {
    -1.0f, -0.6961928f, -0.52507305f, -0.3949175f, -0.28444138f, -0.18477343f, -0.091050036f, 0.0f,
    0.0795803f, 0.1609302f, 0.2461123f, 0.33791524f, 0.44070983f, 0.562617f, 0.72295684f, 1.0f,
};
__device__ const float DYNAMIC[256] = {
    -0.99296874f, -0.9789063f, -0.96484375f, -0.9507812f, -0.93671876f, -0.92265624f, -0.9085938f, -0.89453125f,
    -0.8804687f, -0.86640626f, -0.85234374f, -0.8382813f, -0.82421875f, -0.8101562f, -0.79609376f, -0.78203124f,
    -0.7679688f, -0.75390625f, -0.7398437f, -0.72578126f, -0.7117188f, -0.6976563f, -0.68359375f, -0.6695312f,
    -0.65546876f, -0.6414063f, -0.6273438f, -0.61328125f, -0.5992187f, -0.58515626f, -0.5710938f, -0.5570313f,
    -0.54296875f, -0.5289062f, -0.5148437f, -0.50078124f, -0.4867187f, -0.47265625f, -0.45859373f, -0.44453126f,
    -0.43046874f, -0.41640624f, -0.40234375f, -0.38828123f, -0.37421876f, -0.36015624f, -0.34609374f, -0.33203125f,
    -0.31796873f, -0.30390626f, -0.28984374f, -0.27578127f, -0.26171875f, -0.24765624f, -0.23359375f, -0.21953125f,
    -0.20546874f, -0.19140625f, -0.17734376f, -0.16328125f, -0.14921875f, -0.13515624f, -0.12109375f, -0.107031256f,
    -0.09859375f, -0.09578126f, -0.092968754f, -0.09015625f, -0.08734375f, -0.08453125f, -0.08171876f, -0.07890625f,
    -0.07609375f, -0.07328125f, -0.070468746f, -0.067656256f, -0.06484375f, -0.06203125f, -0.059218753f, -0.05640625f,
    -0.05359375f, -0.05078125f, -0.04796875f, -0.04515625f, -0.042343747f, -0.03953125f, -0.036718752f, -0.03390625f,
    -0.03109375f, -0.028281251f, -0.02546875f, -0.02265625f, -0.019843752f, -0.01703125f, -0.01421875f, -0.01140625f,
    -0.00971875f, -0.009156249f, -0.00859375f, -0.00803125f, -0.00746875f, -0.00690625f, -0.00634375f, -0.00578125f,
    -0.0052187503f, -0.0046562497f, -0.00409375f, -0.0035312497f, -0.00296875f, -0.00240625f, -0.00184375f, -0.0012812499f,
    -0.0009437501f, -0.00083125f, -0.00071875006f, -0.0006062501f, -0.00049375003f, -0.00038125002f, -0.00026875004f, -0.00015625001f,
    -8.875e-5f, -6.625e-5f, -4.375e-5f, -2.1249998e-5f, -7.75e-6f, -3.2500002e-6f, -5.5000004e-7f, 0.0f,
    5.5000004e-7f, 3.2500002e-6f, 7.75e-6f, 2.1249998e-5f, 4.375e-5f, 6.625e-5f, 8.875e-5f, 0.00015625001f,
    0.00026875004f, 0.00038125002f, 0.00049375003f, 0.0006062501f, 0.00071875006f, 0.00083125f, 0.0009437501f, 0.0012812499f,
    0.00184375f, 0.00240625f, 0.00296875f, 0.0035312497f, 0.00409375f, 0.0046562497f, 0.0052187503f, 0.00578125f,
    0.00634375f, 0.00690625f, 0.00746875f, 0.00803125f, 0.00859375f, 0.009156249f, 0.00971875f, 0.01140625f,
    0.01421875f, 0.01703125f, 0.019843752f, 0.02265625f, 0.02546875f, 0.028281251f, 0.03109375f, 0.03390625f,
    0.036718752f, 0.03953125f, 0.042343747f, 0.04515625f, 0.04796875f, 0.05078125f, 0.05359375f, 0.05640625f,
    0.059218753f, 0.06203125f, 0.06484375f, 0.067656256f, 0.070468746f, 0.07328125f, 0.07609375f, 0.07890625f,
    0.08171876f, 0.08453125f, 0.08734375f, 0.09015625f, 0.092968754f, 0.09578126f, 0.09859375f, 0.107031256f,
    0.12109375f, 0.13515624f, 0.14921875f, 0.16328125f, 0.17734376f, 0.19140625f, 0.20546874f, 0.21953125f,
    0.23359375f, 0.24765624f, 0.26171875f, 0.27578127f, 0.28984374f, 0.30390626f, 0.31796873f, 0.33203125f,
    0.34609374f, 0.36015624f, 0.37421876f, 0.38828123f, 0.40234375f, 0.41640624f, 0.43046874f, 0.44453126f,
    0.45859373f, 0.47265625f, 0.4867187f, 0.50078124f, 0.5148437f, 0.5289062f, 0.54296875f, 0.5570313f,
    0.5710938f, 0.58515626f, 0.5992187f, 0.61328125f, 0.6273438f, 0.6414063f, 0.65546876f, 0.6695312f,
    0.68359375f, 0.6976563f, 0.7117188f, 0.72578126f, 0.7398437f, 0.75390625f, 0.7679688f, 0.78203124f,
    0.79609376f, 0.8101562f, 0.82421875f, 0.8382813f, 0.85234374f, 0.86640626f, 0.8804687f, 0.89453125f,
    0.9085938f, 0.92265624f, 0.93671876f, 0.9507812f, 0.96484375f, 0.9789063f, 0.99296874f, 1.0f,
};

enum : u32 { BLOCK = 64, SECOND = 256 };

// The scale of elements whose largest magnitude has these bits.
__device__ inline float scale_of(u32 bits) { return bits < 0x7f800000u ? __uint_as_float(bits) : __uint_as_float(0x7fc00000u); }

// Eight lanes pack a block of 64 elements.
extern "C" __global__ void __launch_bounds__(256) pack_nf4(Run src, u64 len, u8 *codes, float *scales) {
    SHARED(float, middles, 16);
    if (threadIdx.x < 15) middles[threadIdx.x] = __fmul_rn(__fadd_rn(NF4[threadIdx.x], NF4[threadIdx.x + 1]), 0.5f);
    __syncthreads();
    const u64 blocks = (len + BLOCK - 1) / BLOCK, step = u64(gridDim.x) * (blockDim.x / 8);
    const bool vectorized = is_aligned16(src);
    // All lanes of a warp loop equally often, as shuffles require.
    for (u64 base = (u64(blockIdx.x) * blockDim.x + threadIdx.x / WARP_SIZE * WARP_SIZE) / 8; base < blocks; base += step) {
        const u64 number = base + lane_id() / 8, i = number * BLOCK + lane_id() % 8 * 8;
        float x[8] = {};
        u32 bits = 0;
        if (i < len) load8_bounded(src, vectorized, i, len, x);
        UNROLL for (int j = 0; j < 8; j++) bits = max(bits, abs_bits(x[j]));
        UNROLL for (u32 mask = 4; mask > 0; mask /= 2) bits = max(bits, __shfl_xor_sync(~0u, bits, mask));
        const float scale = scale_of(bits), inverse = __fdiv_rn(1.0f, scale < 1e-38f ? 1e-38f : scale);
        if (lane_id() % 8 == 0 && number < blocks) scales[number] = scale;
        u32 word = 0;
        UNROLL for (u32 j = 0; j < 8; j++) {
            const float value = __fmul_rn(x[j], inverse);
            // Binary search: how many of the sorted midpoints it is above.
            u32 code = 0;
            UNROLL for (u32 half = 8; half > 0; half /= 2) code += value > middles[code + half - 1] ? half : 0;
            // Elements past the end are zero bits.
            if (i + j < len) word |= code << (j / 2 * 8 + (j % 2 ? 0 : 4));
        }
        u8 *at = codes + i / 2;
        if (i + 8 <= len && reinterpret_cast<u64>(at) % 4 == 0) *reinterpret_cast<u32 *>(at) = word;
        else UNROLL for (u32 j = 0; j < 4; j++)
            if (i + 2 * j < len) at[j] = u8(word >> 8 * j);
    }
}
EXPORT(pack_nf4)

// A thread block packs a row; the last row may be short.
extern "C" __global__ void __launch_bounds__(256) pack_int8(Run src, u64 len, u64 cols, i8 *codes, float *scales) {
    SHARED(u32, scratch, 32);
    const float MAGIC = 12582912.0f;
    const u64 rows = (len + cols - 1) / cols;
    for (u64 row = blockIdx.x; row < rows; row += gridDim.x) {
        const u64 start = row * cols, end = start + cols < len ? start + cols : len;
        u32 bits = 0;
        for (u64 i = start + threadIdx.x; i < end; i += blockDim.x) bits = max(bits, abs_bits(load(src, i)));
        UNROLL for (u32 mask = WARP_SIZE / 2; mask > 0; mask /= 2) bits = max(bits, __shfl_xor_sync(~0u, bits, mask));
        if (lane_id() == 0) scratch[warp_id()] = bits;
        __syncthreads();
        for (u32 i = 0; i < blockDim.x / WARP_SIZE; i++) bits = max(bits, scratch[i]);
        __syncthreads();
        const float scale = scale_of(bits), product = __fmul_rn(__fdiv_rn(1.0f, scale), 127.0f);
        // All codes are 0 if a row has only (nearly) zeros, where the inverse overflows, or a value that is not finite.
        const float inverse = abs_bits(product) < 0x7f800000u ? product : 0.0f;
        if (threadIdx.x == 0) scales[row] = scale;
        for (u64 i = start + threadIdx.x; i < end; i += blockDim.x) {
            const u32 sum = __float_as_uint(__fadd_rn(__fmul_rn(load(src, i), inverse), MAGIC));
            codes[i] = inverse > 0.0f ? i8(sum - __float_as_uint(MAGIC)) : i8(0);
        }
    }
}
EXPORT(pack_int8)

// The scale of a block: as stored, or double quantized if `coded` is not null.
__device__ inline float scale_at(const float *scales, const u8 *coded, const float *second, float offset, u64 block) {
    if (!coded) return scales[block];
    return __fadd_rn(__fmul_rn(DYNAMIC[coded[block]], second[block / SECOND]), offset);
}

extern "C" __global__ void __launch_bounds__(256) unpack_nf4(const u8 *codes, const float *scales, const u8 *coded, const float *second,
        const float *offset, Run dst, u64 len) {
    // In shared memory, since different entries lie in different banks.
    SHARED(float, entries, 16);
    if (threadIdx.x < 16) entries[threadIdx.x] = NF4[threadIdx.x];
    __syncthreads();
    const bool vectorized = is_aligned16(dst);
    const float added = coded ? *offset : 0.0f;
    for (u64 i = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * 8; i < len; i += u64(gridDim.x) * blockDim.x * 8) {
        const u8 *at = codes + i / 2;
        u32 word = 0;
        if (i + 8 <= len && reinterpret_cast<u64>(at) % 4 == 0) word = *reinterpret_cast<const u32 *>(at);
        else UNROLL for (u32 j = 0; j < 4; j++)
            if (i + 2 * j < len) word |= u32(at[j]) << 8 * j;
        const float scale = scale_at(scales, coded, second, added, i / BLOCK);
        float x[8];
        UNROLL for (u32 j = 0; j < 8; j++) x[j] = __fmul_rn(entries[word >> (j / 2 * 8 + (j % 2 ? 0 : 4)) & 15], scale);
        store8_bounded(dst, vectorized, i, len, x);
    }
}
EXPORT(unpack_nf4)

extern "C" __global__ void __launch_bounds__(256) unpack_int8(const i8 *codes, const float *scales, u64 cols, Run dst, u64 len) {
    const bool vectorized = is_aligned16(dst);
    for (u64 i = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * 8; i < len; i += u64(gridDim.x) * blockDim.x * 8) {
        const i8 *at = codes + i;
        i8 kept[8] = {};
        if (i + 8 <= len && reinterpret_cast<u64>(at) % 8 == 0) {
            const u64 word = *reinterpret_cast<const u64 *>(at);
            UNROLL for (u32 j = 0; j < 8; j++) kept[j] = i8(word >> 8 * j);
        } else {
            UNROLL for (u32 j = 0; j < 8; j++)
                if (i + j < len) kept[j] = at[j];
        }
        u64 row = fast_divide(i, cols), next = (row + 1) * cols;
        float scale = scales[row], x[8];
        UNROLL for (u32 j = 0; j < 8; j++) {
            if (i + j >= next && i + j < len) {
                scale = scales[++row];
                next += cols;
            }
            x[j] = __fmul_rn(__fmul_rn(float(kept[j]), scale), 1.0f / 127.0f);
        }
        store8_bounded(dst, vectorized, i, len, x);
    }
}
EXPORT(unpack_int8)
