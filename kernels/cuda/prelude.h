// What every kernel stands on, instead of the toolkit's headers: types, threads, shared memory, conversions, the
// instructions of a warp. NVRTC sees the part for the device; a C++ compiler sees host.h, which carries out the same names on
// a processor, so that the arithmetic can be checked where there is no GPU.
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

// Two-byte floats as they lie in memory. Arithmetic is in f32.
struct bf16 { u16 bits; };
struct f16 { u16 bits; };

#ifdef __CUDACC_RTC__

#define DEVICE __device__ __forceinline__
// A kernel of blocks of at most so many threads, of which so many are to fit beside each other if that is given too. Every kernel is listed by EXPORT(name) behind its body.
#define KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
#define EXPORT(name)
// Shared memory of fixed size, and the block's one run of dynamic shared memory, at a multiple of 128 bytes.
#define SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define DYNAMIC(type, name)                                     \
    extern __shared__ __align__(128) unsigned char zb_dynamic[]; \
    type *name = reinterpret_cast<type *>(zb_dynamic)
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
// A table of constants: TABLE(type, name, count) = {...};
#define TABLE(type, name, count) static __device__ const type name[count]
// A parameter so large that nobody may copy it to index it.
#define LARGE(type, name) const __grid_constant__ type name

DEVICE u32 tid() { return threadIdx.x; }
DEVICE u32 threads() { return blockDim.x; }
DEVICE u32 bid_x() { return blockIdx.x; }
DEVICE u32 bid_y() { return blockIdx.y; }
DEVICE u32 bid_z() { return blockIdx.z; }
DEVICE u32 blocks_x() { return gridDim.x; }
DEVICE u32 blocks_y() { return gridDim.y; }

DEVICE void sync_block() { __syncthreads(); }
DEVICE void sync_warp() { __syncwarp(); }

DEVICE float shfl_xor(float x, u32 mask) { return __shfl_xor_sync(~0u, x, mask); }
DEVICE float shfl(float x, u32 lane) { return __shfl_sync(~0u, x, lane); }
DEVICE u32 shfl_xor(u32 x, u32 mask) { return __shfl_xor_sync(~0u, x, mask); }
DEVICE u32 shfl(u32 x, u32 lane) { return __shfl_sync(~0u, x, lane); }
DEVICE double shfl_xor(double x, u32 mask) { return __shfl_xor_sync(~0u, x, mask); }

DEVICE float bits_to_float(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 float_to_bits(float x) { return __float_as_uint(x); }

DEVICE float to_float(float x) { return x; }
DEVICE float to_float(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }
DEVICE float to_float(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
// Rounded to nearest even.
template <class T> DEVICE T from_float(float x);
template <> DEVICE float from_float<float>(float x) { return x; }
template <> DEVICE bf16 from_float<bf16>(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
template <> DEVICE f16 from_float<f16>(float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
// Two in a word, the first in the low half.
template <class T> DEVICE u32 pack2(float low, float high);
template <> DEVICE u32 pack2<bf16>(float low, float high) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
template <> DEVICE u32 pack2<f16>(float low, float high) {
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

// 2^x by the special function unit: 2 units in the last place, subnormal results become 0.
DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Logarithm to base 2 by the same unit: 2^-22 of the result, or absolute near 1.
DEVICE float log2_fast(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// The larger; the other of one that is no number.
DEVICE float max_of(float a, float b) { return fmaxf(a, b); }
// One multiplication and one addition with a single rounding; and both kept apart, whatever the compiler would join.
DEVICE float fma1(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE float mul_rn(float a, float b) { return __fmul_rn(a, b); }
DEVICE float add_rn(float a, float b) { return __fadd_rn(a, b); }
DEVICE u32 mul_high(u32 a, u32 b) { return __umulhi(a, b); }
DEVICE float div_rn(float a, float b) { return __fdiv_rn(a, b); }
DEVICE float sqrt_rn(float x) { return __fsqrt_rn(x); }
DEVICE double mul_rn(double a, double b) { return __dmul_rn(a, b); }
DEVICE double add_rn(double a, double b) { return __dadd_rn(a, b); }
DEVICE float floor_of(float x) { return floorf(x); }
// 1 / x by the special function unit: 1 unit in the last place, subnormal numbers count as 0.
DEVICE float rcp_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE u32 bit_count(u32 x) { return __popc(x); }
// The lanes of the warp, a bit each, that call with the same number.
DEVICE u32 match_any(u32 x) { return __match_any_sync(~0u, x); }
DEVICE double log_of(double x) { return log(x); }

DEVICE float atomic_add(float *at, float x) { return atomicAdd(at, x); }
DEVICE u32 atomic_add(u32 *at, u32 x) { return atomicAdd(at, x); }
DEVICE u32 atomic_or(u32 *at, u32 x) { return atomicOr(at, x); }
DEVICE u32 atomic_min(u32 *at, u32 x) { return atomicMin(at, x); }
DEVICE u32 atomic_max(u32 *at, u32 x) { return atomicMax(at, x); }

DEVICE u32 shared_address(const void *p) { return u32(__cvta_generic_to_shared(p)); }

// D += A B: A 16 x 16 by rows, B 16 x 8 by columns, D 16 x 8 in f32. With g = lane / 4 and t = lane % 4, a register
// holds two neighbours along k: a[0] row g and a[1] row g + 8 from k = 2t on, a[2] and a[3] the same from 2t + 8 on; b[0]
// column g from k = 2t on, b[1] from 2t + 8 on; d[0], d[1] row g and d[2], d[3] row g + 8 of columns 2t, 2t + 1.
template <class T> DEVICE void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1);
template <> DEVICE void mma<bf16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> DEVICE void mma<f16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices of two-byte elements: lane l gives the address of row l % 8 of matrix l / 8, a multiple of 16 bytes in
// shared memory; r[i] gets of matrix i the elements 2t and 2t + 1 of row g, or transposed: rows 2t and 2t + 1 of column g.
DEVICE void ldmatrix(u32 (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)));
}
DEVICE void ldmatrix_trans(u32 (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)));
}

// 16 bytes from global to shared memory on their own way, both addresses multiples of 16; zeros where `valid` is not. They
// are there for this thread after cp_async_wait of their group, for others after a barrier behind that.
DEVICE void cp_async(void *to, const void *from, bool valid) {
    u32 bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}
DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all but the newest `left` groups are there.
template <int left> DEVICE void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory"); }

struct alignas(16) quad { u32 x, y, z, w; };
DEVICE quad load_quad(const void *from) { return *reinterpret_cast<const quad *>(from); }
DEVICE void store_quad(void *to, quad q) { *reinterpret_cast<quad *>(to) = q; }

#else
#include "host.h"
#endif

static const u32 WARP = 32;
DEVICE u32 lane() { return tid() % WARP; }
DEVICE u32 warp() { return tid() / WARP; }

// Types of elements, as the host numbers them.
enum Type : u32 { F64 = 0, F32 = 1, BF16 = 2, F16 = 3, U32 = 4, I32 = 5, I8 = 6 };

// A run of elements: where it begins and their type. What elements are is decided once a kernel runs: all threads go the same
// way, and memory is what these kernels wait for.
struct Run {
    void *at;
    u32 type;
    u32 reserved;
};

template <class T> DEVICE T *as(Run run) { return reinterpret_cast<T *>(run.at); }

// Element `i` of a run of f32, bf16 or f16, as f32.
DEVICE float load(Run run, u64 i) {
    switch (run.type) {
    case BF16: return to_float(as<bf16>(run)[i]);
    case F16: return to_float(as<f16>(run)[i]);
    default: return as<float>(run)[i];
    }
}
// Rounded to nearest even.
DEVICE void store(Run run, u64 i, float x) {
    switch (run.type) {
    case BF16: as<bf16>(run)[i] = from_float<bf16>(x); break;
    case F16: as<f16>(run)[i] = from_float<f16>(x); break;
    default: as<float>(run)[i] = x;
    }
}

// Whether eight elements from a multiple of eight on can be moved in words of 16 bytes.
DEVICE bool is_wide(Run run) { return reinterpret_cast<u64>(run.at) % 16 == 0; }

template <class T> DEVICE void unpack8(quad q, float (&x)[8]) {
    u32 words[4] = {q.x, q.y, q.z, q.w};
    UNROLL for (int i = 0; i < 4; i++) {
        x[2 * i] = to_float(T{u16(words[i])});
        x[2 * i + 1] = to_float(T{u16(words[i] >> 16)});
    }
}
template <class T> DEVICE quad pack8(const float (&x)[8]) {
    return quad{pack2<T>(x[0], x[1]), pack2<T>(x[2], x[3]), pack2<T>(x[4], x[5]), pack2<T>(x[6], x[7])};
}

// Eight elements from `i` on, of a run that is wide, where `i` is a multiple of eight.
DEVICE void load8(Run run, u64 i, float (&x)[8]) {
    if (run.type == BF16) return unpack8<bf16>(load_quad(as<bf16>(run) + i), x);
    if (run.type == F16) return unpack8<f16>(load_quad(as<f16>(run) + i), x);
    quad a = load_quad(as<float>(run) + i), b = load_quad(as<float>(run) + i + 4);
    u32 words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    UNROLL for (int j = 0; j < 8; j++) x[j] = bits_to_float(words[j]);
}
DEVICE void store8(Run run, u64 i, const float (&x)[8]) {
    if (run.type == BF16) return store_quad(as<bf16>(run) + i, pack8<bf16>(x));
    if (run.type == F16) return store_quad(as<f16>(run) + i, pack8<f16>(x));
    u32 w[8];
    UNROLL for (int j = 0; j < 8; j++) w[j] = float_to_bits(x[j]);
    store_quad(as<float>(run) + i, quad{w[0], w[1], w[2], w[3]});
    store_quad(as<float>(run) + i + 4, quad{w[4], w[5], w[6], w[7]});
}

// Eight elements as they lie in memory, of a run that is wide, where `i` is a multiple of eight; and as f32. Apart, so that the
// words of several runs are under way before the first of them is waited for.
struct Eight { quad low, high; };
DEVICE Eight fetch8(Run run, u64 i) {
    const bool words = run.type == F32;
    const char *at = as<char>(run) + (words ? 4 : 2) * i;
    Eight eight = {};
    eight.low = load_quad(at);
    if (words) eight.high = load_quad(at + 16);
    return eight;
}
DEVICE void spread8(u32 type, const Eight &eight, float (&x)[8]) {
    if (type == BF16) return unpack8<bf16>(eight.low, x);
    if (type == F16) return unpack8<f16>(eight.low, x);
    const u32 words[8] = {eight.low.x,  eight.low.y,  eight.low.z,  eight.low.w,
                          eight.high.x, eight.high.y, eight.high.z, eight.high.w};
    UNROLL for (int j = 0; j < 8; j++) x[j] = bits_to_float(words[j]);
}

// Up to eight elements of f32, bf16 or f16 from `i` on, those before `end`, zeros behind: at once where the run is wide, `i` a
// multiple of eight, and none are missing.
DEVICE void load_some(Run run, bool wide, u64 i, u64 end, float (&x)[8]) {
    if (wide && i + 8 <= end) return load8(run, i, x);
    UNROLL for (u32 j = 0; j < 8; j++) x[j] = i + j < end ? load(run, i + j) : 0.0f;
}
DEVICE void store_some(Run run, bool wide, u64 i, u64 end, const float (&x)[8]) {
    if (wide && i + 8 <= end) return store8(run, i, x);
    UNROLL for (u32 j = 0; j < 8; j++)
        if (i + j < end) store(run, i + j, x[j]);
}

// To the nearest of a type of floats, and back.
DEVICE float rounded(u32 type, float x) {
    if (type == BF16) return to_float(from_float<bf16>(x));
    if (type == F16) return to_float(from_float<f16>(x));
    return x;
}

// e^x within 4 units in the last place, where it is a normal number; 0 below that. The power of two is made of the product's
// high part, and corrected by its low part.
DEVICE float exp_near(float x) {
    const float LOG2E = 1.442695f, LOG2E_LOW = 1.925963e-8f, LN2 = 0.6931472f;
    const float inside = x > 89.0f ? 89.0f : x < -88.0f ? -88.0f : x;
    const float high = mul_rn(inside, LOG2E), low = fma1(inside, LOG2E_LOW, fma1(inside, LOG2E, -high));
    const float y = mul_rn(exp2_fast(high), fma1(low, LN2, 1.0f));
    return x < -87.3f ? 0.0f : y;
}

// a / b, by the short way where both are short.
DEVICE u64 quotient(u64 a, u64 b) { return (a | b) >> 32 ? a / b : u32(a) / u32(b); }

// Sum and maximum over a warp, on all lanes, in one order.
DEVICE float warp_sum(float x) {
    UNROLL for (u32 mask = 16; mask > 0; mask /= 2) x += shfl_xor(x, mask);
    return x;
}
DEVICE double warp_sum(double x) {
    UNROLL for (u32 mask = 16; mask > 0; mask /= 2) x += shfl_xor(x, mask);
    return x;
}
DEVICE float larger(float a, float b) { return a > b ? a : b; }
DEVICE float warp_max(float x) {
    UNROLL for (u32 mask = 16; mask > 0; mask /= 2) x = larger(x, shfl_xor(x, mask));
    return x;
}
// Sum over a block of whole warps, on all threads; `aside` holds 32 elements of shared memory, free again afterwards.
template <class T> DEVICE T block_sum(T x, T *aside) {
    x = warp_sum(x);
    if (lane() == 0) aside[warp()] = x;
    sync_block();
    T all = 0;
    for (u32 i = 0; i < threads() / WARP; i++) all += aside[i];
    sync_block();
    return all;
}
DEVICE float block_max(float x, float *aside) {
    x = warp_max(x);
    if (lane() == 0) aside[warp()] = x;
    sync_block();
    float all = aside[0];
    for (u32 i = 1; i < threads() / WARP; i++) all = larger(all, aside[i]);
    sync_block();
    return all;
}

// Leaves for the host what is wrong, as launch.rs lists it: which check, and two numbers. The first one found stays. All kernels
// of a queue share the words, and one kernel makes one check, so the bits of two checks never mix.
DEVICE void fault(u32 *words, u32 check, u32 a, u32 b) {
    if (words[0] != 0 || atomic_or(&words[0], check) != 0) return;
    words[1] = a;
    words[2] = b;
}
