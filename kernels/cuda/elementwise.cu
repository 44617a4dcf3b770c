// Traffic, activations, dropout, the optimizer: what an element becomes depends on that element alone. The words of 16 bytes and
// the single elements go through the same function, whose roundings are all written out: an element's bits do not depend on
// where it lies.
#include "prelude.h"

// dst[i] = value
KERNEL(256) fill(Run dst, u64 len, float value) {
    const u64 step = u64(blocks_x()) * threads() * 8;
    const bool wide = is_wide(dst);
    float x[8];
    UNROLL for (int j = 0; j < 8; j++) x[j] = value;
    for (u64 i = (u64(bid_x()) * threads() + tid()) * 8; i < len; i += step) store_some(dst, wide, i, len, x);
}
EXPORT(fill)

// Philox4x32-10 (kernels/src/philox.rs): the four words of a block.
struct Four { u32 x[4]; };
DEVICE Four philox(u32 stream, u64 seed, u64 step, u64 block) {
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
    return Four{{x0, x1, x2, x3}};
}

// Which words elements draw: element `i` that of `first + i`.
struct Draw { u64 seed, first, step; u32 stream; };
struct NoDraw {};

DEVICE void draw8(NoDraw, u64, u32 (&)[8]) {}
DEVICE u32 draw1(NoDraw, u64) { return 0; }
DEVICE u32 draw1(const Draw &draw, u64 i) {
    const u64 at = draw.first + i;
    const Four four = philox(draw.stream, draw.seed, draw.step, at / 4);
    const u32 a = at & 1 ? four.x[1] : four.x[0], b = at & 1 ? four.x[3] : four.x[2];
    return at & 2 ? b : a;
}
DEVICE void draw8(const Draw &draw, u64 i, u32 (&words)[8]) {
    // The last block of all numbers is followed by the first.
    const u64 at = draw.first + i, block = at / 4, last = ~u64(0) / 4;
    const u32 skip = u32(at % 4);
    u32 all[12] = {};
    UNROLL for (int k = 0; k < 3; k++) {
        if (k == 2 && skip == 0) break;
        const Four four = philox(draw.stream, draw.seed, draw.step, (block + k) & last);
        UNROLL for (int j = 0; j < 4; j++) all[4 * k + j] = four.x[j];
    }
    UNROLL for (int j = 0; j < 8; j++) words[j] = skip == 0 ? all[j] : skip == 1 ? all[j + 1] : skip == 2 ? all[j + 2] : all[j + 3];
}

// out = f(in, word) for every element, a tile of eight for each thread at a time. A run of nothing is not written.
template <int IN, int OUT, class D, class F>
DEVICE void map(const Run (&in)[IN], const Run (&out)[OUT], u64 len, const D &draw, F f) {
    const u64 tile = u64(threads()) * 8;
    bool wide = true;
    UNROLL for (int k = 0; k < IN; k++) wide = wide && is_wide(in[k]);
    UNROLL for (int k = 0; k < OUT; k++) wide = wide && is_wide(out[k]);
    for (u64 start = bid_x() * tile; start < len; start += blocks_x() * tile) {
        if (wide && start + tile <= len) {
            const u64 i = start + tid() * 8;
            Eight raw[IN];
            float x[IN][8], y[OUT][8];
            u32 words[8] = {};
            UNROLL for (int k = 0; k < IN; k++) raw[k] = fetch8(in[k], i);
            draw8(draw, i, words);
            UNROLL for (int k = 0; k < IN; k++) spread8(in[k].type, raw[k], x[k]);
            UNROLL for (int j = 0; j < 8; j++) {
                float given[IN], made[OUT];
                UNROLL for (int k = 0; k < IN; k++) given[k] = x[k][j];
                f(given, made, words[j]);
                UNROLL for (int k = 0; k < OUT; k++) y[k][j] = made[k];
            }
            UNROLL for (int k = 0; k < OUT; k++)
                if (out[k].at) store8(out[k], i, y[k]);
        } else {
            // Neighbours in neighbouring threads: what cannot be moved in wide words is at least moved together.
            for (u32 j = 0; j < 8; j++) {
                const u64 i = start + j * threads() + tid();
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

KERNEL(256) cast(Run src, Run dst, u64 len) {
    const Run in[1] = {src}, out[1] = {dst};
    map(in, out, len, NoDraw(), [](const float (&x)[1], float (&y)[1], u32) { y[0] = x[0]; });
}
EXPORT(cast)

KERNEL(256) add(Run a, Run b, Run dst, u64 len) {
    const Run in[2] = {a, b}, out[1] = {dst};
    map(in, out, len, NoDraw(), [](const float (&x)[2], float (&y)[1], u32) { y[0] = add_rn(x[0], x[1]); });
}
EXPORT(add)

// dst += alpha * src
KERNEL(256) accumulate(float alpha, Run src, Run dst, u64 len) {
    const Run in[2] = {src, dst}, out[1] = {dst};
    map(in, out, len, NoDraw(), [=](const float (&x)[2], float (&y)[1], u32) { y[0] = fma1(alpha, x[0], x[1]); });
}
EXPORT(accumulate)

KERNEL(256) scale(float alpha, Run dst, u64 len) {
    const Run in[1] = {dst}, out[1] = {dst};
    map(in, out, len, NoDraw(), [=](const float (&x)[1], float (&y)[1], u32) { y[0] = mul_rn(x[0], alpha); });
}
EXPORT(scale)

// As the host numbers them.
enum Act : u32 { SILU = 0, GELU = 1, GELU_TANH = 2 };

// 1 / (1 + e^-x), and 0 below -87. What comes of a NaN may be a number: activations multiply it by the NaN.
DEVICE float sigmoid(float x) {
    const float inside = x > 87.0f ? 87.0f : x < -87.0f ? -87.0f : x;
    const float share = rcp_fast(add_rn(1.0f, exp_near(-inside)));
    return x < -87.0f ? 0.0f : share;
}

// What an activation lets through of `x`, and its slope: act(x) = x * share.
template <u32 ACT> DEVICE void activation(float x, float &share, float &slope) {
    if (ACT == SILU) {
        share = sigmoid(x);
        slope = mul_rn(share, fma1(x, add_rn(1.0f, -share), 1.0f));
    } else if (ACT == GELU) {
        // The normal distribution within 2e-7: Abramowitz and Stegun, formula 7.1.26.
        const float z = mul_rn(x < 0.0f ? -x : x, 0.70710678f);
        const float t = rcp_fast(fma1(0.3275911f, z, 1.0f));
        float p = 1.0614054f;
        p = fma1(p, t, -1.453152f);
        p = fma1(p, t, 1.4214137f);
        p = fma1(p, t, -0.28449673f);
        p = fma1(p, t, 0.2548296f);
        const float falloff = exp_near(-mul_rn(z, z));
        const float beyond = mul_rn(mul_rn(mul_rn(0.5f, p), t), falloff);
        share = x < 0.0f ? beyond : add_rn(1.0f, -beyond);
        slope = fma1(x, mul_rn(falloff, 0.3989423f), share);
    } else {
        // (1 + tanh u) / 2 is the sigmoid of 2u.
        const float TWICE = 1.595769f, CUBIC = 0.044715f, square = mul_rn(x, x);
        share = sigmoid(mul_rn(mul_rn(TWICE, x), fma1(CUBIC, square, 1.0f)));
        const float inner = mul_rn(TWICE, fma1(3.0f * CUBIC, square, 1.0f));
        slope = fma1(mul_rn(x, inner), mul_rn(share, add_rn(1.0f, -share)), share);
    }
}

template <u32 ACT> DEVICE void activate_as(Run x, Run y, u64 len) {
    const Run in[1] = {x}, out[1] = {y};
    map(in, out, len, NoDraw(), [](const float (&x)[1], float (&y)[1], u32) {
        float share, slope;
        activation<ACT>(x[0], share, slope);
        y[0] = mul_rn(x[0], share);
    });
}
KERNEL(256) activate(u32 act, Run x, Run y, u64 len) {
    if (act == SILU) activate_as<SILU>(x, y, len);
    else if (act == GELU) activate_as<GELU>(x, y, len);
    else activate_as<GELU_TANH>(x, y, len);
}
EXPORT(activate)

template <u32 ACT> DEVICE void activate_backward_as(Run x, Run dy, Run dx, u64 len) {
    const Run in[2] = {x, dy}, out[1] = {dx};
    map(in, out, len, NoDraw(), [](const float (&x)[2], float (&dx)[1], u32) {
        float share, slope;
        activation<ACT>(x[0], share, slope);
        dx[0] = mul_rn(x[1], slope);
    });
}
KERNEL(256) activate_backward(u32 act, Run x, Run dy, Run dx, u64 len) {
    if (act == SILU) activate_backward_as<SILU>(x, dy, dx, len);
    else if (act == GELU) activate_backward_as<GELU>(x, dy, dx, len);
    else activate_backward_as<GELU_TANH>(x, dy, dx, len);
}
EXPORT(activate_backward)

// y = act(gate) * up
template <u32 ACT> DEVICE void swiglu_as(Run gate, Run up, Run y, u64 len) {
    const Run in[2] = {gate, up}, out[1] = {y};
    map(in, out, len, NoDraw(), [](const float (&x)[2], float (&y)[1], u32) {
        float share, slope;
        activation<ACT>(x[0], share, slope);
        y[0] = mul_rn(mul_rn(x[0], share), x[1]);
    });
}
KERNEL(256) swiglu(u32 act, Run gate, Run up, Run y, u64 len) {
    if (act == SILU) swiglu_as<SILU>(gate, up, y, len);
    else if (act == GELU) swiglu_as<GELU>(gate, up, y, len);
    else swiglu_as<GELU_TANH>(gate, up, y, len);
}
EXPORT(swiglu)

template <u32 ACT> DEVICE void swiglu_backward_as(Run gate, Run up, Run dy, Run dgate, Run dup, u64 len) {
    const Run in[3] = {gate, up, dy}, out[2] = {dgate, dup};
    map(in, out, len, NoDraw(), [](const float (&x)[3], float (&d)[2], u32) {
        float share, slope;
        activation<ACT>(x[0], share, slope);
        d[0] = mul_rn(mul_rn(x[2], x[1]), slope);
        d[1] = mul_rn(mul_rn(x[2], x[0]), share);
    });
}
KERNEL(256) swiglu_backward(u32 act, Run gate, Run up, Run dy, Run dgate, Run dup, u64 len) {
    if (act == SILU) swiglu_backward_as<SILU>(gate, up, dy, dgate, dup, len);
    else if (act == GELU) swiglu_backward_as<GELU>(gate, up, dy, dgate, dup, len);
    else swiglu_backward_as<GELU_TANH>(gate, up, dy, dgate, dup, len);
}
EXPORT(swiglu_backward)

// y = 0 where the draw is below the threshold, else x * scale.
KERNEL(256) dropout(u64 seed, u64 first, u64 threshold, float scale, Run x, Run y, u64 len) {
    const Run in[1] = {x}, out[1] = {y};
    const Draw draw = {seed, first, 0, 1};
    map(in, out, len, draw, [=](const float (&x)[1], float (&y)[1], u32 word) {
        y[0] = u64(word) < threshold ? 0.0f : mul_rn(x[0], scale);
    });
}
EXPORT(dropout)

// A step's constants, each rounded once (kernels/src/cpu/adamw.rs).
struct Step { float factor, keep, new1, old2, new2, rate, spread, eps; };

// Cuts the last `places` bits of a finite value, after adding the upper `places` bits of `word` to them.
DEVICE float cut(float x, u32 places, u32 word) {
    const u32 bits = float_to_bits(x);
    const u32 made = (bits + (word >> (32 - places))) & ~((1u << places) - 1);
    return (bits & 0x7fffffffu) < 0x7f800000u ? bits_to_float(made) : x;
}
// To a neighbour in a type of 16 bits, by chance (kernels/src/stochastic.rs).
DEVICE float by_chance(u32 type, float x, u32 word) {
    const float size = x < 0.0f ? -x : x;
    if (type == BF16) return cut(x, 16, word);
    if (type != F16) return x;
    if (size >= 6.1035156e-5f) return cut(x, 13, word);
    // Subnormal halves stand 2^-24 apart.
    const float units = mul_rn(size, 16777216.0f), whole = floor_of(units);
    const double fraction = mul_rn(double(add_rn(units, -whole)), 4294967296.0);
    const float up = add_rn(fraction, double(word)) >= 4294967296.0 ? 1.0f : 0.0f;
    const float made = div_rn(add_rn(whole, up), 16777216.0f);
    return bits_to_float((float_to_bits(made) & 0x7fffffffu) | (float_to_bits(x) & 0x80000000u));
}

// The step of an element from x = p, m, v, g to y = p, m, v, copy. The copy is of the parameter as it is stored.
template <bool CHANCE> DEVICE void adamw_step(const Step &s, u32 type, const float (&x)[4], float (&y)[4], u32 word) {
    const float g = mul_rn(x[3], s.factor);
    y[1] = fma1(s.new1, add_rn(g, -x[1]), x[1]);
    y[2] = fma1(s.old2, x[2], mul_rn(mul_rn(s.new2, g), g));
    const float under = fma1(sqrt_rn(y[2]), s.spread, s.eps);
    const float p = add_rn(mul_rn(x[0], s.keep), -div_rn(mul_rn(s.rate, y[1]), under));
    y[0] = CHANCE ? by_chance(type, p, word) : rounded(type, p);
    y[3] = y[0];
}
KERNEL(256)
adamw(Step step, u32 chance, u64 seed, u64 first, u64 number, Run p, Run m, Run v, Run g, Run copy, u64 len) {
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
