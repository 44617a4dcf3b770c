// Element-wise kernels: fill, cast, add, activations, dropout, AdamW. Vectorized and scalar accesses use the same function, in which
// every rounding is explicit, so that an element's bits do not depend on alignment or position.
//   EXPORT, UNROLL
// defines: Run, load, store, store8, store8_bounded, load8_raw, raw8_to_float, is_aligned16, round_to, rcp_fast, exp_4ulp, EXPORT,
//   UNROLL
#include "prelude.h"

// dst[i] = value
extern "C" __global__ void __launch_bounds__(256) fill(Run dst, u64 len, float value) {
    const u64 step = u64(gridDim.x) * blockDim.x * 8;
    const bool vectorized = is_aligned16(dst);
    float x[8];
    UNROLL for (int j = 0; j < 8; j++) x[j] = value;
    for (u64 i = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * 8; i < len; i += step) store8_bounded(dst, vectorized, i, len, x);
}
EXPORT(fill)

// Philox4x32-10 (kernels/src/philox.rs): the four random words of a counter.
struct PhiloxBlock { u32 x[4]; };
__device__ inline PhiloxBlock philox(u32 stream, u64 seed, u64 step, u64 block) {
    u32 x0 = u32(block), x1 = u32(block >> 32), x2 = u32(step), x3 = stream;
    u32 k0 = u32(seed), k1 = u32(seed >> 32) ^ u32(step >> 32);
    UNROLL for (int i = 0; i < 10; i++) {
        const u64 p = u64(x0) * 0xD2511F53u, q = u64(x2) * 0xCD9E8D57u;
        x0 = u32(q >> 32) ^ x1 ^ k0;
        x1 = u32(q);
        x2 = u32(p >> 32) ^ x3 ^ k1;
        x3 = u32(p);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return PhiloxBlock{{x0, x1, x2, x3}};
}

// Which random words elements use: element `i` the word number `first + i`.
struct Draw { u64 seed, first, step; u32 stream; };
struct NoDraw {};

__device__ inline void draw8(NoDraw, u64, u32 (&)[8]) {}
__device__ inline u32 draw1(NoDraw, u64) { return 0; }
__device__ inline u32 draw1(const Draw &draw, u64 i) {
    const u64 at = draw.first + i;
    const PhiloxBlock words_of_block = philox(draw.stream, draw.seed, draw.step, at / 4);
    const u32 a = at & 1 ? words_of_block.x[1] : words_of_block.x[0], b = at & 1 ? words_of_block.x[3] : words_of_block.x[2];
    return at & 2 ? b : a;
}
__device__ inline void draw8(const Draw &draw, u64 i, u32 (&words)[8]) {
    // The counter wraps around. `i` is a multiple of eight, so all threads skip the same number of words.
    const u64 at = draw.first + i, block = at / 4, last = ~u64(0) / 4;
    const u32 skip = u32(draw.first % 4);
    u32 all[12] = {};
    UNROLL for (int k = 0; k < 3; k++) {
        if (k == 2 && skip == 0) break;
        const PhiloxBlock words_of_block = philox(draw.stream, draw.seed, draw.step, (block + k) & last);
        UNROLL for (int j = 0; j < 4; j++) all[4 * k + j] = words_of_block.x[j];
    }
    UNROLL for (int j = 0; j < 8; j++) words[j] = skip == 0 ? all[j] : skip == 1 ? all[j + 1] : skip == 2 ? all[j + 2] : all[j + 3];
}

// out = f(in, word) for every element, eight per thread and step. Null outputs are not written.
template <int IN, int OUT, class D, class F>
__device__ inline void map(const Run (&in)[IN], const Run (&out)[OUT], u64 len, const D &draw, F f) {
    const u64 tile = u64(blockDim.x) * 8;
    bool vectorized = true;
    UNROLL for (int k = 0; k < IN; k++) vectorized = vectorized && is_aligned16(in[k]);
    UNROLL for (int k = 0; k < OUT; k++) vectorized = vectorized && is_aligned16(out[k]);
    for (u64 start = blockIdx.x * tile; start < len; start += gridDim.x * tile) {
        if (vectorized && start + tile <= len) {
            const u64 i = start + threadIdx.x * 8;
            Raw8 raw[IN];
            float x[IN][8], y[OUT][8];
            u32 words[8] = {};
            UNROLL for (int k = 0; k < IN; k++) raw[k] = load8_raw(in[k], i);
            draw8(draw, i, words);
            UNROLL for (int k = 0; k < IN; k++) raw8_to_float(in[k].type, raw[k], x[k]);
            UNROLL for (int j = 0; j < 8; j++) {
                float given[IN], made[OUT];
                UNROLL for (int k = 0; k < IN; k++) given[k] = x[k][j];
                f(given, made, words[j]);
                UNROLL for (int k = 0; k < OUT; k++) y[k][j] = made[k];
            }
            UNROLL for (int k = 0; k < OUT; k++)
                if (out[k].at) store8(out[k], i, y[k]);
        } else {
            // Not vectorized, but coalesced.
            for (u32 j = 0; j < 8; j++) {
                const u64 i = start + j * blockDim.x + threadIdx.x;
                if (i >= len) break;
                float given[IN], made[OUT];
                UNROLL for (int k = 0; k < IN; k++) given[k] = load(in[k], i);
                f(given, made, draw1(draw, i));
                UNROLL for (int k = 0; k < OUT; k++)
                    if (out[k].at) store(out[k], i, made[k]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) cast(Run src, Run dst, u64 len) {
    const Run in[1] = {src}, out[1] = {dst};
    map(in, out, len, NoDraw(), [](const float (&x)[1], float (&y)[1], u32) { y[0] = x[0]; });
}
EXPORT(cast)

extern "C" __global__ void __launch_bounds__(256) add(Run a, Run b, Run dst, u64 len) {
    const Run in[2] = {a, b}, out[1] = {dst};
    map(in, out, len, NoDraw(), [](const float (&x)[2], float (&y)[1], u32) { y[0] = __fadd_rn(x[0], x[1]); });
}
EXPORT(add)

// dst += alpha * src
extern "C" __global__ void __launch_bounds__(256) accumulate(float alpha, Run src, Run dst, u64 len) {
    const Run in[2] = {src, dst}, out[1] = {dst};
    map(in, out, len, NoDraw(), [=](const float (&x)[2], float (&y)[1], u32) { y[0] = fmaf(alpha, x[0], x[1]); });
}
EXPORT(accumulate)

extern "C" __global__ void __launch_bounds__(256) scale(float alpha, Run dst, u64 len) {
    const Run in[1] = {dst}, out[1] = {dst};
    map(in, out, len, NoDraw(), [=](const float (&x)[1], float (&y)[1], u32) { y[0] = __fmul_rn(x[0], alpha); });
}
EXPORT(scale)

// Numbered as in elementwise.rs.
enum Activation : u32 { SILU = 0, GELU = 1, GELU_TANH = 2 };

// 1 / (1 + e^-x), and 0 below -87. The result for NaN may be a number; activations multiply it by x, which gives NaN.
__device__ inline float sigmoid(float x) {
    const float inside = x > 87.0f ? 87.0f : x < -87.0f ? -87.0f : x;
    const float factor = rcp_fast(__fadd_rn(1.0f, exp_4ulp(-inside)));
    return x < -87.0f ? 0.0f : factor;
}

// An activation as a factor, act(x) = x * factor, and its derivative.
template <u32 ACT> __device__ inline void activation(float x, float &factor, float &derivative) {
    if (ACT == SILU) {
        factor = sigmoid(x);
        derivative = __fmul_rn(factor, fmaf(x, __fadd_rn(1.0f, -factor), 1.0f));
    } else if (ACT == GELU) {
        // The normal distribution function within 2e-7: Abramowitz and Stegun, formula 7.1.26.
        const float z = __fmul_rn(x < 0.0f ? -x : x, 0.70710678f);
        const float t = rcp_fast(fmaf(0.3275911f, z, 1.0f));
        float p = 1.0614054f;
        p = fmaf(p, t, -1.453152f);
        p = fmaf(p, t, 1.4214137f);
        p = fmaf(p, t, -0.28449673f);
        p = fmaf(p, t, 0.2548296f);
        const float gauss = exp_4ulp(-__fmul_rn(z, z));
        const float tail = __fmul_rn(__fmul_rn(__fmul_rn(0.5f, p), t), gauss);
        factor = x < 0.0f ? tail : __fadd_rn(1.0f, -tail);
        derivative = fmaf(x, __fmul_rn(gauss, 0.3989423f), factor);
    } else {
        // (1 + tanh u) / 2 is the sigmoid of 2u.
        const float TWICE = 1.595769f, CUBIC = 0.044715f, square = __fmul_rn(x, x);
        factor = sigmoid(__fmul_rn(__fmul_rn(TWICE, x), fmaf(CUBIC, square, 1.0f)));
        const float inner = __fmul_rn(TWICE, fmaf(3.0f * CUBIC, square, 1.0f));
        derivative = fmaf(__fmul_rn(x, inner), __fmul_rn(factor, __fadd_rn(1.0f, -factor)), factor);
    }
}

template <u32 ACT> __device__ inline void activate_as(Run x, Run y, u64 len) {
    const Run in[1] = {x}, out[1] = {y};
    map(in, out, len, NoDraw(), [](const float (&x)[1], float (&y)[1], u32) {
        float factor, derivative;
        activation<ACT>(x[0], factor, derivative);
        y[0] = __fmul_rn(x[0], factor);
    });
}
extern "C" __global__ void __launch_bounds__(256) activate(u32 act, Run x, Run y, u64 len) {
    if (act == SILU) activate_as<SILU>(x, y, len);
    else if (act == GELU) activate_as<GELU>(x, y, len);
    else activate_as<GELU_TANH>(x, y, len);
}
EXPORT(activate)

template <u32 ACT> __device__ inline void activate_backward_as(Run x, Run dy, Run dx, u64 len) {
    const Run in[2] = {x, dy}, out[1] = {dx};
    map(in, out, len, NoDraw(), [](const float (&x)[2], float (&dx)[1], u32) {
        float factor, derivative;
        activation<ACT>(x[0], factor, derivative);
        dx[0] = __fmul_rn(x[1], derivative);
    });
}
extern "C" __global__ void __launch_bounds__(256) activate_backward(u32 act, Run x, Run dy, Run dx, u64 len) {
    if (act == SILU) activate_backward_as<SILU>(x, dy, dx, len);
    else if (act == GELU) activate_backward_as<GELU>(x, dy, dx, len);
    else activate_backward_as<GELU_TANH>(x, dy, dx, len);
}
EXPORT(activate_backward)

// y = act(gate) * up
template <u32 ACT> __device__ inline void swiglu_as(Run gate, Run up, Run y, u64 len) {
    const Run in[2] = {gate, up}, out[1] = {y};
    map(in, out, len, NoDraw(), [](const float (&x)[2], float (&y)[1], u32) {
        float factor, derivative;
        activation<ACT>(x[0], factor, derivative);
        y[0] = __fmul_rn(__fmul_rn(x[0], factor), x[1]);
    });
}
extern "C" __global__ void __launch_bounds__(256) swiglu(u32 act, Run gate, Run up, Run y, u64 len) {
    if (act == SILU) swiglu_as<SILU>(gate, up, y, len);
    else if (act == GELU) swiglu_as<GELU>(gate, up, y, len);
    else swiglu_as<GELU_TANH>(gate, up, y, len);
}
EXPORT(swiglu)

template <u32 ACT> __device__ inline void swiglu_backward_as(Run gate, Run up, Run dy, Run dgate, Run dup, u64 len) {
    const Run in[3] = {gate, up, dy}, out[2] = {dgate, dup};
    map(in, out, len, NoDraw(), [](const float (&x)[3], float (&d)[2], u32) {
        float factor, derivative;
        activation<ACT>(x[0], factor, derivative);
        d[0] = __fmul_rn(__fmul_rn(x[2], x[1]), derivative);
        d[1] = __fmul_rn(__fmul_rn(x[2], x[0]), factor);
    });
}
extern "C" __global__ void __launch_bounds__(256) swiglu_backward(u32 act, Run gate, Run up, Run dy, Run dgate, Run dup, u64 len) {
    if (act == SILU) swiglu_backward_as<SILU>(gate, up, dy, dgate, dup, len);
    else if (act == GELU) swiglu_backward_as<GELU>(gate, up, dy, dgate, dup, len);
    else swiglu_backward_as<GELU_TANH>(gate, up, dy, dgate, dup, len);
}
EXPORT(swiglu_backward)

// y = 0 where the random word is below the threshold, else x * scale.
extern "C" __global__ void __launch_bounds__(256) dropout(u64 seed, u64 first, u64 threshold, float scale, Run x, Run y, u64 len) {
    const Run in[1] = {x}, out[1] = {y};
    const Draw draw = {seed, first, 0, 1};
    map(in, out, len, draw, [=](const float (&x)[1], float (&y)[1], u32 word) {
        y[0] = u64(word) < threshold ? 0.0f : __fmul_rn(x[0], scale);
    });
}
EXPORT(dropout)

// The constants of an AdamW step, each rounded once (kernels/src/cpu/adamw.rs).
struct Step { float factor, keep, new1, old2, new2, rate, spread, eps; };

// Adds the upper `places` bits of `word` to the last `places` bits of a finite value, then clears these.
__device__ inline float stochastic_truncate(float x, u32 places, u32 word) {
    const u32 bits = __float_as_uint(x);
    const u32 made = (bits + (word >> (32 - places))) & ~((1u << places) - 1);
    return (bits & 0x7fffffffu) < 0x7f800000u ? __uint_as_float(made) : x;
}
// Stochastic rounding to bf16 or f16 (kernels/src/stochastic.rs).
__device__ inline float stochastic_round(u32 type, float x, u32 word) {
    const float size = x < 0.0f ? -x : x;
    if (type == BF16) return stochastic_truncate(x, 16, word);
    if (type != F16) return x;
    if (size >= 6.1035156e-5f) return stochastic_truncate(x, 13, word);
    // Subnormal f16 values are multiples of 2^-24.
    const float units = __fmul_rn(size, 16777216.0f), whole = floorf(units);
    const double fraction = __dmul_rn(double(__fadd_rn(units, -whole)), 4294967296.0);
    const float up = __dadd_rn(fraction, double(word)) >= 4294967296.0 ? 1.0f : 0.0f;
    const float made = __fdiv_rn(__fadd_rn(whole, up), 16777216.0f);
    return __uint_as_float((__float_as_uint(made) & 0x7fffffffu) | (__float_as_uint(x) & 0x80000000u));
}

// One element: x = p, m, v, g; y = p, m, v, copy. The copy is of the parameter after rounding.
template <bool STOCHASTIC> __device__ inline void adamw_step(const Step &s, u32 type, const float (&x)[4], float (&y)[4], u32 word) {
    const float g = __fmul_rn(x[3], s.factor);
    y[1] = fmaf(s.new1, __fadd_rn(g, -x[1]), x[1]);
    y[2] = fmaf(s.old2, x[2], __fmul_rn(__fmul_rn(s.new2, g), g));
    const float under = fmaf(__fsqrt_rn(y[2]), s.spread, s.eps);
    const float p = __fadd_rn(__fmul_rn(x[0], s.keep), -__fdiv_rn(__fmul_rn(s.rate, y[1]), under));
    y[0] = STOCHASTIC ? stochastic_round(type, p, word) : round_to(type, p);
    y[3] = y[0];
}
extern "C" __global__ void __launch_bounds__(256) adamw(Step step, u32 chance, u64 seed, u64 first, u64 number, Run p, Run m, Run v, Run g,
        Run copy, u64 len) {
    const Run in[4] = {p, m, v, g}, out[4] = {p, m, v, copy};
    const u32 type = p.type;
    if (chance) {
        const Draw draw = {seed, first, number, 2};
        map(in, out, len, draw, [=](const float (&x)[4], float (&y)[4], u32 word) { adamw_step<true>(step, type, x, y, word); });
    } else {
        map(in, out, len, NoDraw(), [=](const float (&x)[4], float (&y)[4], u32 word) { adamw_step<false>(step, type, x, y, word); });
    }
}
EXPORT(adamw)
