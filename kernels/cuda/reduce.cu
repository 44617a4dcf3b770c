// Element-wise reduction of several buffers in a balanced tree, and the sum of one buffer.
//   SHARED, UNROLL
// defines: Run, as, load, store, load8, store8, load8_bounded, load8_raw, raw8_to_float, is_aligned16, block_sum, EXPORT, SHARED,
//   UNROLL
#include "prelude.h"

// Addresses and types of the sources, laid out as in reduce.rs; a table in device memory if there are more than fit.
enum : u32 { MAX_INLINE = 256 };
struct Sources {
    u64 at[MAX_INLINE];
    u8 type[MAX_INLINE];
    const Run *table;
};
__device__ inline Run source(const Sources &sources, u32 number) {
    if (sources.table) return sources.table[number];
    return Run{reinterpret_cast<void *>(sources.at[number]), sources.type[number], 0};
}

// Numbered as in reduce.rs; an average is a sum with a factor.
enum ReduceOp : u32 { SUM = 0, PRODUCT = 1, MIN = 2, MAX = 3 };

__device__ inline float times(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double times(double a, double b) { return __dmul_rn(a, b); }
__device__ inline i64 times(i64 a, i64 b) { return i64(u64(a) * u64(b)); }
__device__ inline float plus(float a, float b) { return __fadd_rn(a, b); }
__device__ inline double plus(double a, double b) { return __dadd_rn(a, b); }
__device__ inline i64 plus(i64 a, i64 b) { return i64(u64(a) + u64(b)); }

// The minimum or maximum of a number and NaN is the number.
template <class A> __device__ inline A combine(u32 op, A a, A b) {
    if (op == SUM) return plus(a, b);
    if (op == PRODUCT) return times(a, b);
    if (op == MIN) return a < b || b != b ? a : b;
    return a > b || b != b ? a : b;
}

// Loads an element as the type of the arithmetic.
__device__ inline void load_as(Run run, u64 i, float &x) { x = load(run, i); }
__device__ inline void load_as(Run run, u64 i, double &x) { x = run.type == F64 ? as<double>(run)[i] : double(load(run, i)); }
__device__ inline void load_as(Run run, u64 i, i64 &x) {
    if (run.type == I8) x = as<i8>(run)[i];
    else if (run.type == I32) x = as<i32>(run)[i];
    else x = as<u32>(run)[i];
}

// `x` rounded to odd in f32: rounding this again to a narrower type has no double rounding error (kernels/src/round.rs).
__device__ inline float round_to_odd(double x) {
    const float near = float(x);
    const u32 bits = __float_as_uint(near);
    if (double(near) == x || x != x || (bits & 1)) return near;
    if (near == 0.0f) return __uint_as_float(x < 0.0 ? 0x80000001u : 1u);
    const double size = x < 0.0 ? -x : x, of_near = near < 0.0f ? -double(near) : double(near);
    return __uint_as_float(size > of_near ? bits + 1 : bits - 1);
}
__device__ inline void store_as(Run run, u64 i, float x) { store(run, i, x); }
__device__ inline void store_as(Run run, u64 i, double x) {
    if (run.type == F64) as<double>(run)[i] = x;
    else if (run.type == F32) as<float>(run)[i] = float(x);
    else store(run, i, round_to_odd(x));
}
__device__ inline void store_as(Run run, u64 i, i64 x) {
    if (run.type == I8) as<i8>(run)[i] = i8(x);
    else as<u32>(run)[i] = u32(x);
}

// Reduces one to four neighbours into x[0].
template <class A, int E> __device__ inline void combine4(u32 op, u32 n, A (&x)[4][E]) {
    UNROLL for (int e = 0; e < E; e++) {
        if (n > 1) x[0][e] = combine(op, x[0][e], x[1][e]);
        if (n > 3) x[2][e] = combine(op, x[2][e], x[3][e]);
        if (n > 2) x[0][e] = combine(op, x[0][e], x[2][e]);
    }
}

// Reduces `count` sources, at most SHALLOW, of E elements each: four neighbours at a time, and subtrees as soon as there are two of the
// same height, like the carries of a binary counter. `read(first, n, x)` reads one to four sources.
enum : u32 { DEPTH = 3, SHALLOW = (4 << DEPTH) - 4 };
template <class A, int E, class Read> __device__ inline void tree_reduce(u32 op, u32 count, Read read, A (&out)[E]) {
    A spare[DEPTH][E] = {};
    u32 groups = 0;
    for (; 4 * groups < count; groups++) {
        const u32 n = count - 4 * groups;
        A x[4][E] = {};
        read(4 * groups, n, x);
        combine4(op, n, x);
        bool placed = false;
        UNROLL for (u32 level = 0; level < DEPTH; level++) {
            if (placed) continue;
            placed = !(groups >> level & 1);
            UNROLL for (int e = 0; e < E; e++) {
                if (placed) spare[level][e] = x[0][e];
                else x[0][e] = combine(op, spare[level][e], x[0][e]);
            }
        }
    }
    bool any = false;
    UNROLL for (u32 level = 0; level < DEPTH; level++) {
        if (!(groups >> level & 1)) continue;
        UNROLL for (int e = 0; e < E; e++) out[e] = any ? combine(op, spare[level][e], out[e]) : spare[level][e];
        any = true;
    }
}

// The same for any number of sources, with subtrees in local memory.
template <class A, class Read> __device__ inline A tree_reduce_deep(u32 op, u32 count, Read read) {
    A spare[30];
    u32 groups = 0, level = 0;
    for (; 4 * groups < count; groups++) {
        A x[4][1] = {};
        read(4 * groups, count - 4 * groups, x);
        combine4(op, count - 4 * groups, x);
        for (level = 0; groups >> level & 1; level++) x[0][0] = combine(op, spare[level], x[0][0]);
        spare[level] = x[0][0];
    }
    for (level = 0; !(groups >> level & 1);) level++;
    A all = spare[level];
    for (level++; groups >> level; level++)
        if (groups >> level & 1) all = combine(op, spare[level], all);
    return all;
}

// What follows the reduction: the division of an average, and the sum with the old value.
template <class A> struct Finish { A share; u32 count, average, accumulate; };
__device__ inline float averaged(const Finish<float> &f, float x) { return __fmul_rn(x, f.share); }
__device__ inline double averaged(const Finish<double> &f, double x) { return __dmul_rn(x, f.share); }
// Sums of 32-bit integers stay below 2^53.
__device__ inline i64 averaged(const Finish<i64> &f, i64 x) { return i64(double(x) / double(f.count)); }
template <class A> __device__ inline A finish_value(const Finish<A> &f, A x, A old) {
    if (f.average) x = averaged(f, x);
    return f.accumulate ? plus(old, x) : x;
}

// E elements from `first` on, `blockDim.x` apart.
template <class A, int E> __device__ inline void load_strided(const Sources &sources, u32 number, u32 n, u64 first, u64 len, A (&x)[4][E]) {
    UNROLL for (u32 k = 0; k < 4; k++) {
        if (k >= n) continue;
        const Run run = source(sources, number + k);
        UNROLL for (int e = 0; e < E; e++) {
            const u64 i = first + u64(e) * blockDim.x;
            load_as(run, i < len ? i : len - 1, x[k][e]);
        }
    }
}
template <class A> __device__ inline void finish(const Finish<A> &f, Run dst, u64 i, A x) {
    A old = 0;
    if (f.accumulate) load_as(dst, i, old);
    store_as(dst, i, finish_value(f, x, old));
}

// Elements from `whole` on, four per thread and step, not vectorized.
template <class A> __device__ inline void reduce_scalars(const Sources &sources, u32 op, const Finish<A> &f, Run dst, u64 len, u64 whole) {
    const u64 step = u64(gridDim.x) * blockDim.x * 4;
    for (u64 i = whole + u64(blockIdx.x) * blockDim.x * 4 + threadIdx.x; i < len; i += step) {
        if (f.count <= SHALLOW) {
            A out[4] = {};
            tree_reduce(op, f.count, [&](u32 number, u32 n, A (&x)[4][4]) { load_strided(sources, number, n, i, len, x); }, out);
            UNROLL for (u32 e = 0; e < 4; e++)
                if (i + e * blockDim.x < len) finish(f, dst, i + e * blockDim.x, out[e]);
            continue;
        }
        for (u64 at = i; at < len && at < i + 4 * blockDim.x; at += blockDim.x) {
            auto read = [&](u32 number, u32 n, A (&x)[4][1]) { load_strided(sources, number, n, at, len, x); };
            finish(f, dst, at, tree_reduce_deep<A>(op, f.count, read));
        }
    }
}

// Eight adjacent elements, vectorized.
template <u32 OP> __device__ inline void reduce8(const Sources &sources, const Finish<float> &f, Run dst, u64 i) {
    float out[8] = {}, old[8] = {};
    if (f.accumulate) load8(dst, i, old);
    tree_reduce(OP, f.count, [&](u32 number, u32 n, float (&x)[4][8]) {
        Raw8 raw[4];
        UNROLL for (u32 k = 0; k < 4; k++)
            if (k < n) raw[k] = load8_raw(source(sources, number + k), i);
        UNROLL for (u32 k = 0; k < 4; k++)
            if (k < n) raw8_to_float(source(sources, number + k).type, raw[k], x[k]);
    }, out);
    UNROLL for (int j = 0; j < 8; j++) out[j] = finish_value(f, out[j], old[j]);
    store8(dst, i, out);
}

extern "C" __global__ void __launch_bounds__(256) reduce_floats(const __grid_constant__ Sources sources, u32 op, Finish<float> f,
        Run dst, u64 len) {
    bool vectorized = f.count <= SHALLOW && is_aligned16(dst);
    for (u32 k = 0; vectorized && k < f.count; k++) vectorized = is_aligned16(source(sources, k));
    const u64 tile = u64(blockDim.x) * 8, whole = vectorized ? len / tile * tile : 0;
    for (u64 start = blockIdx.x * tile; start < whole; start += gridDim.x * tile) {
        const u64 i = start + threadIdx.x * 8;
        if (op == SUM) reduce8<SUM>(sources, f, dst, i);
        else if (op == PRODUCT) reduce8<PRODUCT>(sources, f, dst, i);
        else if (op == MIN) reduce8<MIN>(sources, f, dst, i);
        else reduce8<MAX>(sources, f, dst, i);
    }
    reduce_scalars(sources, op, f, dst, len, whole);
}
EXPORT(reduce_floats)

extern "C" __global__ void __launch_bounds__(256) reduce_doubles(const __grid_constant__ Sources sources, u32 op, Finish<double> f,
        Run dst, u64 len) {
    reduce_scalars(sources, op, f, dst, len, 0);
}
EXPORT(reduce_doubles)

extern "C" __global__ void __launch_bounds__(256) reduce_integers(const __grid_constant__ Sources sources, u32 op, Finish<i64> f,
        Run dst, u64 len) {
    reduce_scalars(sources, op, f, dst, len, 0);
}
EXPORT(reduce_integers)

// Partial sum, or sum of squares, of each block. Which thread adds what depends on the length and the grid only, not on alignment.
extern "C" __global__ void __launch_bounds__(256) sum(Run x, u32 squares, double *sums, u64 len) {
    SHARED(double, scratch, 32);
    const u64 tile = u64(blockDim.x) * 8;
    const bool vectorized = is_aligned16(x);
    double all = 0;
    for (u64 start = blockIdx.x * tile; start < len; start += gridDim.x * tile) {
        const u64 i = start + threadIdx.x * 8;
        float values[8];
        load8_bounded(x, vectorized, i, len, values);
        // A product of two f32 is exact.
        UNROLL for (int j = 0; j < 8; j++) all += squares ? double(values[j]) * double(values[j]) : double(values[j]);
    }
    all = block_sum(all, scratch);
    if (threadIdx.x == 0) sums[blockIdx.x] = all;
}
EXPORT(sum)

// Adds the partial sums in the order in which the host adds them.
extern "C" __global__ void __launch_bounds__(32) sum_partials(const double *sums, u32 count, double *to) {
    if (threadIdx.x > 0) return;
    double all = 0;
    for (u32 i = 0; i < count; i++) all += sums[i];
    *to = all;
}
EXPORT(sum_partials)
