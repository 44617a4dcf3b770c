// What every kernel includes. Kernels are plain CUDA C++. NVRTC compiles them at run time, without the toolkit's headers, so this
// file has the types, the conversions and the PTX instructions for which CUDA has no function. A C++ compiler reads host.h instead
// of the first part: host.h implements CUDA's own names on a CPU, so that the arithmetic can be checked without a GPU.
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

// 16-bit floats are storage types only: arithmetic is in f32.
struct bf16 { u16 bits; };
struct f16 { u16 bits; };

#ifdef __CUDACC_RTC__

// Follows every kernel. Rust lists the kernels of a source by it, and on a CPU it defines the function that launches the kernel.
#define EXPORT(name)
// Static shared memory. A macro, because host.h needs the size: it allocates the memory and fills it with NaN for every block.
#define SHARED(type, name, count) __shared__ __align__(16) type name[count]
// Dynamic shared memory, of the size given at launch.
extern __shared__ __align__(128) unsigned char dynamic_shared[];
// Macros, because C++ compilers reject the unknown pragma.
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#define INFINITY __uint_as_float(0x7f800000u)

__device__ inline float to_float(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
// Rounded to nearest even.
template <class T> __device__ inline T from_float(float x);
template <> __device__ inline bf16 from_float<bf16>(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
template <> __device__ inline f16 from_float<f16>(float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
// Two values in one word, the first in the low half.
template <class T> __device__ inline u32 pack2(float low, float high);
template <> __device__ inline u32 pack2<bf16>(float low, float high) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
template <> __device__ inline u32 pack2<f16>(float low, float high) {
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

// 2^x by the special function unit: error of 2 ulp, subnormal results are flushed to 0.
__device__ inline float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// log2(x) by the same unit: error of 2^-22, relative, and absolute near 1.
__device__ inline float log2_fast(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// 1 / x by the same unit: error of 1 ulp, subnormal numbers are flushed to 0.
__device__ inline float rcp_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline u32 shared_address(const void *p) { return u32(__cvta_generic_to_shared(p)); }

// D += A B: A 16 x 16 by rows, B 16 x 8 by columns, D 16 x 8 in f32. With g = lane / 4 and t = lane % 4, a register
// holds two neighbours along k: a[0] row g and a[1] row g + 8 from k = 2t on, a[2] and a[3] the same from 2t + 8 on; b[0]
// column g from k = 2t on, b[1] from 2t + 8 on; d[0], d[1] row g and d[2], d[3] row g + 8 of columns 2t, 2t + 1.
template <class T> __device__ inline void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1);
template <> __device__ inline void mma<bf16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> __device__ inline void mma<f16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices of two-byte elements: lane l gives the address of row l % 8 of matrix l / 8, a multiple of 16 bytes in
// shared memory; r[i] gets of matrix i the elements 2t and 2t + 1 of row g, or transposed: rows 2t and 2t + 1 of column g.
__device__ inline void ldmatrix(u32 (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)));
}
__device__ inline void ldmatrix_trans(u32 (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)));
}

// Starts an asynchronous copy of 16 bytes from global to shared memory, both aligned to 16; writes zeros if not `valid`. This thread
// may read them after cp_async_wait for their group, other threads after a barrier that follows it.
__device__ inline void cp_async(void *to, const void *from, bool valid) {
    u32 bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the newest `left` groups are pending.
template <int left> __device__ inline void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory"); }

__device__ inline uint4 load_uint4(const void *from) { return *reinterpret_cast<const uint4 *>(from); }
__device__ inline void store_uint4(void *to, uint4 words) { *reinterpret_cast<uint4 *>(to) = words; }

#else
//   and what stands above under the same names
// defines: threadIdx, blockIdx, blockDim, gridDim, __syncthreads, __shfl_xor_sync, min, max, atomicOr, atomicMax,
//   and what stands above under the same names
#include "host.h"
#endif

static const u32 WARP_SIZE = 32;
__device__ inline u32 lane_id() { return threadIdx.x % WARP_SIZE; }
__device__ inline u32 warp_id() { return threadIdx.x / WARP_SIZE; }

// The bits of |x|. Compared as integers they order magnitudes, infinity and NaN last.
__device__ inline u32 abs_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }

// Element types, numbered as in launch.rs.
enum Type : u32 { F64 = 0, F32 = 1, BF16 = 2, F16 = 3, U32 = 4, I32 = 5, I8 = 6 };

// A pointer to elements of a type that is known at run time. The switch costs little: all threads take the same branch, and these
// kernels are bound by memory.
struct Run {
    void *at;
    u32 type;
    u32 reserved;
};

template <class T> __device__ inline T *as(Run run) { return reinterpret_cast<T *>(run.at); }

// Element `i` of f32, bf16 or f16, as f32.
__device__ inline float load(Run run, u64 i) {
    switch (run.type) {
    case BF16: return to_float(as<bf16>(run)[i]);
    case F16: return to_float(as<f16>(run)[i]);
    default: return as<float>(run)[i];
    }
}
// Rounded to nearest even.
__device__ inline void store(Run run, u64 i, float x) {
    switch (run.type) {
    case BF16: as<bf16>(run)[i] = from_float<bf16>(x); break;
    case F16: as<f16>(run)[i] = from_float<f16>(x); break;
    default: as<float>(run)[i] = x;
    }
}

// Whether eight elements, from a multiple of eight on, can be moved in 16-byte accesses.
__device__ inline bool is_aligned16(Run run) { return reinterpret_cast<u64>(run.at) % 16 == 0; }

template <class T> __device__ inline void unpack8(uint4 q, float (&x)[8]) {
    u32 words[4] = {q.x, q.y, q.z, q.w};
    UNROLL for (int i = 0; i < 4; i++) {
        x[2 * i] = to_float(T{u16(words[i])});
        x[2 * i + 1] = to_float(T{u16(words[i] >> 16)});
    }
}
template <class T> __device__ inline uint4 pack8(const float (&x)[8]) {
    return uint4{pack2<T>(x[0], x[1]), pack2<T>(x[2], x[3]), pack2<T>(x[4], x[5]), pack2<T>(x[6], x[7])};
}

// Eight elements from `i` on; `i` is a multiple of eight and the run aligned to 16 bytes.
__device__ inline void load8(Run run, u64 i, float (&x)[8]) {
    if (run.type == BF16) return unpack8<bf16>(load_uint4(as<bf16>(run) + i), x);
    if (run.type == F16) return unpack8<f16>(load_uint4(as<f16>(run) + i), x);
    uint4 a = load_uint4(as<float>(run) + i), b = load_uint4(as<float>(run) + i + 4);
    u32 words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    UNROLL for (int j = 0; j < 8; j++) x[j] = __uint_as_float(words[j]);
}
__device__ inline void store8(Run run, u64 i, const float (&x)[8]) {
    if (run.type == BF16) return store_uint4(as<bf16>(run) + i, pack8<bf16>(x));
    if (run.type == F16) return store_uint4(as<f16>(run) + i, pack8<f16>(x));
    u32 w[8];
    UNROLL for (int j = 0; j < 8; j++) w[j] = __float_as_uint(x[j]);
    store_uint4(as<float>(run) + i, uint4{w[0], w[1], w[2], w[3]});
    store_uint4(as<float>(run) + i + 4, uint4{w[4], w[5], w[6], w[7]});
}

// load8 in two steps, so that the loads of several runs are in flight before the first value is used.
struct Raw8 { uint4 low, high; };
__device__ inline Raw8 load8_raw(Run run, u64 i) {
    const bool words = run.type == F32;
    const char *at = as<char>(run) + (words ? 4 : 2) * i;
    Raw8 raw = {};
    raw.low = load_uint4(at);
    if (words) raw.high = load_uint4(at + 16);
    return raw;
}
__device__ inline void raw8_to_float(u32 type, const Raw8 &raw, float (&x)[8]) {
    if (type == BF16) return unpack8<bf16>(raw.low, x);
    if (type == F16) return unpack8<f16>(raw.low, x);
    const u32 words[8] = {raw.low.x,  raw.low.y,  raw.low.z,  raw.low.w,
                          raw.high.x, raw.high.y, raw.high.z, raw.high.w};
    UNROLL for (int j = 0; j < 8; j++) x[j] = __uint_as_float(words[j]);
}

// Eight elements from `i` on, those from `end` on skipped (loaded as zeros). Vectorized where the run is aligned, `i` is a multiple of
// eight and none is skipped.
__device__ inline void load8_bounded(Run run, bool vectorized, u64 i, u64 end, float (&x)[8]) {
    if (vectorized && i + 8 <= end) return load8(run, i, x);
    UNROLL for (u32 j = 0; j < 8; j++) x[j] = i + j < end ? load(run, i + j) : 0.0f;
}
__device__ inline void store8_bounded(Run run, bool vectorized, u64 i, u64 end, const float (&x)[8]) {
    if (vectorized && i + 8 <= end) return store8(run, i, x);
    UNROLL for (u32 j = 0; j < 8; j++)
        if (i + j < end) store(run, i + j, x[j]);
}

// Rounded to the nearest value of a type, as f32.
__device__ inline float round_to(u32 type, float x) {
    if (type == BF16) return to_float(from_float<bf16>(x));
    if (type == F16) return to_float(from_float<f16>(x));
    return x;
}

// e^x with an error of at most 4 ulp; subnormal results are 0. x * log2(e) is split into a high part, which goes to exp2, and a low
// part, which corrects the result.
__device__ inline float exp_4ulp(float x) {
    const float LOG2E = 1.442695f, LOG2E_LOW = 1.925963e-8f, LN2 = 0.6931472f;
    const float inside = x > 89.0f ? 89.0f : x < -88.0f ? -88.0f : x;
    const float high = __fmul_rn(inside, LOG2E), low = fmaf(inside, LOG2E_LOW, fmaf(inside, LOG2E, -high));
    const float y = __fmul_rn(exp2_fast(high), fmaf(low, LN2, 1.0f));
    return x < -87.3f ? 0.0f : y;
}

// a / b, with a 32-bit division where both fit: it is several times faster.
__device__ inline u64 fast_divide(u64 a, u64 b) { return (a | b) >> 32 ? a / b : u32(a) / u32(b); }

// Sum and maximum over a warp, returned on all lanes, in a fixed order.
__device__ inline float warp_sum(float x) {
    UNROLL for (u32 mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(~0u, x, mask);
    return x;
}
__device__ inline double warp_sum(double x) {
    UNROLL for (u32 mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(~0u, x, mask);
    return x;
}
__device__ inline float larger(float a, float b) { return a > b ? a : b; }
__device__ inline float warp_max(float x) {
    UNROLL for (u32 mask = 16; mask > 0; mask /= 2) x = larger(x, __shfl_xor_sync(~0u, x, mask));
    return x;
}
// Sum over a block of whole warps, returned on all threads. `scratch` has 32 elements of shared memory, free again on return.
template <class T> __device__ inline T block_sum(T x, T *scratch) {
    x = warp_sum(x);
    if (lane_id() == 0) scratch[warp_id()] = x;
    __syncthreads();
    T all = 0;
    for (u32 i = 0; i < blockDim.x / WARP_SIZE; i++) all += scratch[i];
    __syncthreads();
    return all;
}
__device__ inline float block_max(float x, float *scratch) {
    x = warp_max(x);
    if (lane_id() == 0) scratch[warp_id()] = x;
    __syncthreads();
    float all = scratch[0];
    for (u32 i = 1; i < blockDim.x / WARP_SIZE; i++) all = larger(all, scratch[i]);
    __syncthreads();
    return all;
}

// Reports invalid input to the host (launch.rs lists the checks): the check's number and two values. The first report stays. All
// kernels of a stream share the words, but a kernel has one check only, so reports of two checks never mix.
__device__ inline void report_fault(u32 *words, u32 check, u32 a, u32 b) {
    if (words[0] != 0 || atomicOr(&words[0], check) != 0) return;
    words[1] = a;
    words[2] = b;
}
