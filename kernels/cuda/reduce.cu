// Several buffers into one, element by element as a balanced tree; and a buffer to a number.
#include "prelude.h"

// As the host lays it out: where sources begin and their types, or a table of them where they are more.
enum : u32 { MOST = 256 };
struct Sources {
    u64 at[MOST];
    u8 type[MOST];
    const Run *table;
};
DEVICE Run source(const Sources &sources, u32 number) {
    if (sources.table) return sources.table[number];
    return Run{reinterpret_cast<void *>(sources.at[number]), sources.type[number], 0};
}

// As the host numbers them; an average is a sum with a share.
enum Join : u32 { ADD = 0, MUL = 1, LEAST = 2, MOST_OF = 3 };

DEVICE float times(float a, float b) { return mul_rn(a, b); }
DEVICE double times(double a, double b) { return mul_rn(a, b); }
DEVICE i64 times(i64 a, i64 b) { return i64(u64(a) * u64(b)); }
DEVICE float plus(float a, float b) { return add_rn(a, b); }
DEVICE double plus(double a, double b) { return add_rn(a, b); }
DEVICE i64 plus(i64 a, i64 b) { return i64(u64(a) + u64(b)); }

// The smaller or larger of a number and a NaN is the number.
template <class A> DEVICE A join(u32 joining, A a, A b) {
    if (joining == ADD) return plus(a, b);
    if (joining == MUL) return times(a, b);
    if (joining == LEAST) return a < b || b != b ? a : b;
    return a > b || b != b ? a : b;
}

// An element as what it is joined in.
DEVICE void take(Run run, u64 i, float &x) { x = load(run, i); }
DEVICE void take(Run run, u64 i, double &x) { x = run.type == F64 ? as<double>(run)[i] : double(load(run, i)); }
DEVICE void take(Run run, u64 i, i64 &x) {
    if (run.type == I8) x = as<i8>(run)[i];
    else if (run.type == I32) x = as<i32>(run)[i];
    else x = as<u32>(run)[i];
}

// `x` in f32, rounded to odd: rounding that again to a narrower type gives the nearest of it (kernels/src/round.rs).
DEVICE float to_odd(double x) {
    const float near = float(x);
    const u32 bits = float_to_bits(near);
    if (double(near) == x || x != x || (bits & 1)) return near;
    if (near == 0.0f) return bits_to_float(x < 0.0 ? 0x80000001u : 1u);
    const double size = x < 0.0 ? -x : x, of_near = near < 0.0f ? -double(near) : double(near);
    return bits_to_float(size > of_near ? bits + 1 : bits - 1);
}
DEVICE void put(Run run, u64 i, float x) { store(run, i, x); }
DEVICE void put(Run run, u64 i, double x) {
    if (run.type == F64) as<double>(run)[i] = x;
    else if (run.type == F32) as<float>(run)[i] = float(x);
    else store(run, i, to_odd(x));
}
DEVICE void put(Run run, u64 i, i64 x) {
    if (run.type == I8) as<i8>(run)[i] = i8(x);
    else as<u32>(run)[i] = u32(x);
}

// The tree of one to four neighbours, in x[0].
template <class A, int E> DEVICE void join4(u32 joining, u32 many, A (&x)[4][E]) {
    UNROLL for (int e = 0; e < E; e++) {
        if (many > 1) x[0][e] = join(joining, x[0][e], x[1][e]);
        if (many > 3) x[2][e] = join(joining, x[2][e], x[3][e]);
        if (many > 2) x[0][e] = join(joining, x[0][e], x[2][e]);
    }
}

// The tree over `count` sources of E elements: four neighbours are joined at once, and subtrees as soon as there are two of
// one height, like carries of a binary counter; `read(first, many, x)` reads one to four sources. At most FEW of them.
enum : u32 { DEPTH = 3, FEW = (4 << DEPTH) - 4 };
template <class A, int E, class Read> DEVICE void tree(u32 joining, u32 count, Read read, A (&out)[E]) {
    A spare[DEPTH][E] = {};
    u32 groups = 0;
    for (; 4 * groups < count; groups++) {
        const u32 many = count - 4 * groups;
        A x[4][E] = {};
        read(4 * groups, many, x);
        join4(joining, many, x);
        bool placed = false;
        UNROLL for (u32 level = 0; level < DEPTH; level++) {
            if (placed) continue;
            placed = !(groups >> level & 1);
            UNROLL for (int e = 0; e < E; e++) {
                if (placed) spare[level][e] = x[0][e];
                else x[0][e] = join(joining, spare[level][e], x[0][e]);
            }
        }
    }
    bool any = false;
    UNROLL for (u32 level = 0; level < DEPTH; level++) {
        if (!(groups >> level & 1)) continue;
        UNROLL for (int e = 0; e < E; e++) out[e] = any ? join(joining, spare[level][e], out[e]) : spare[level][e];
        any = true;
    }
}

// The same of any number of sources, with subtrees aside in memory.
template <class A, class Read> DEVICE A tall_tree(u32 joining, u32 count, Read read) {
    A spare[30];
    u32 groups = 0, level = 0;
    for (; 4 * groups < count; groups++) {
        A x[4][1] = {};
        read(4 * groups, count - 4 * groups, x);
        join4(joining, count - 4 * groups, x);
        for (level = 0; groups >> level & 1; level++) x[0][0] = join(joining, spare[level], x[0][0]);
        spare[level] = x[0][0];
    }
    for (level = 0; !(groups >> level & 1);) level++;
    A all = spare[level];
    for (level++; groups >> level; level++)
        if (groups >> level & 1) all = join(joining, spare[level], all);
    return all;
}

// What is done to the joined elements: an average's last step, and the sum with what was there.
template <class A> struct Finish { A share; u32 count, average, accumulate; };
DEVICE float shared(const Finish<float> &f, float x) { return mul_rn(x, f.share); }
DEVICE double shared(const Finish<double> &f, double x) { return mul_rn(x, f.share); }
// Sums of integers of 32 bits stay below 2^53.
DEVICE i64 shared(const Finish<i64> &f, i64 x) { return i64(double(x) / double(f.count)); }
template <class A> DEVICE A finished(const Finish<A> &f, A x, A old) {
    if (f.average) x = shared(f, x);
    return f.accumulate ? plus(old, x) : x;
}

// E elements from `first` on, each `threads()` behind the one before.
template <class A, int E> DEVICE void read_apart(const Sources &sources, u32 number, u32 many, u64 first, u64 len, A (&x)[4][E]) {
    UNROLL for (u32 k = 0; k < 4; k++) {
        if (k >= many) continue;
        const Run run = source(sources, number + k);
        UNROLL for (int e = 0; e < E; e++) {
            const u64 i = first + u64(e) * threads();
            take(run, i < len ? i : len - 1, x[k][e]);
        }
    }
}
template <class A> DEVICE void finish(const Finish<A> &f, Run dst, u64 i, A x) {
    A old = 0;
    if (f.accumulate) take(dst, i, old);
    put(dst, i, finished(f, x, old));
}

// Elements from `whole` on, four for each thread at a time.
template <class A> DEVICE void pass(const Sources &sources, u32 joining, const Finish<A> &f, Run dst, u64 len, u64 whole) {
    const u64 step = u64(blocks_x()) * threads() * 4;
    for (u64 i = whole + u64(bid_x()) * threads() * 4 + tid(); i < len; i += step) {
        if (f.count <= FEW) {
            A out[4] = {};
            tree(joining, f.count, [&](u32 number, u32 many, A (&x)[4][4]) { read_apart(sources, number, many, i, len, x); }, out);
            UNROLL for (u32 e = 0; e < 4; e++)
                if (i + e * threads() < len) finish(f, dst, i + e * threads(), out[e]);
            continue;
        }
        for (u64 at = i; at < len && at < i + 4 * threads(); at += threads()) {
            const A x = tall_tree<A>(joining, f.count, [&](u32 number, u32 many, A (&x)[4][1]) { read_apart(sources, number, many, at, len, x); });
            finish(f, dst, at, x);
        }
    }
}

// Eight neighbours, in wide words.
template <u32 JOINING> DEVICE void together(const Sources &sources, const Finish<float> &f, Run dst, u64 i) {
    float out[8] = {}, old[8] = {};
    if (f.accumulate) load8(dst, i, old);
    tree(JOINING, f.count, [&](u32 number, u32 many, float (&x)[4][8]) {
        Eight raw[4];
        UNROLL for (u32 k = 0; k < 4; k++)
            if (k < many) raw[k] = fetch8(source(sources, number + k), i);
        UNROLL for (u32 k = 0; k < 4; k++)
            if (k < many) spread8(source(sources, number + k).type, raw[k], x[k]);
    }, out);
    UNROLL for (int j = 0; j < 8; j++) out[j] = finished(f, out[j], old[j]);
    store8(dst, i, out);
}

KERNEL(256) reduce_floats(LARGE(Sources, sources), u32 joining, Finish<float> f, Run dst, u64 len) {
    bool wide = f.count <= FEW && is_wide(dst);
    for (u32 k = 0; wide && k < f.count; k++) wide = is_wide(source(sources, k));
    const u64 tile = u64(threads()) * 8, whole = wide ? len / tile * tile : 0;
    for (u64 start = bid_x() * tile; start < whole; start += blocks_x() * tile) {
        const u64 i = start + tid() * 8;
        if (joining == ADD) together<ADD>(sources, f, dst, i);
        else if (joining == MUL) together<MUL>(sources, f, dst, i);
        else if (joining == LEAST) together<LEAST>(sources, f, dst, i);
        else together<MOST_OF>(sources, f, dst, i);
    }
    pass(sources, joining, f, dst, len, whole);
}
EXPORT(reduce_floats)

KERNEL(256) reduce_doubles(LARGE(Sources, sources), u32 joining, Finish<double> f, Run dst, u64 len) {
    pass(sources, joining, f, dst, len, 0);
}
EXPORT(reduce_doubles)

KERNEL(256) reduce_integers(LARGE(Sources, sources), u32 joining, Finish<i64> f, Run dst, u64 len) {
    pass(sources, joining, f, dst, len, 0);
}
EXPORT(reduce_integers)

// A block's share of the sum, or of the sum of squares, to sums[block]. Which thread adds what depends on the length and the
// number of blocks alone, not on how elements are moved.
KERNEL(256) sum(Run x, u32 squares, double *sums, u64 len) {
    SHARED(double, aside, 32);
    const u64 tile = u64(threads()) * 8;
    const bool wide = is_wide(x);
    double all = 0;
    for (u64 start = bid_x() * tile; start < len; start += blocks_x() * tile) {
        const u64 i = start + tid() * 8;
        float values[8];
        load_some(x, wide, i, len, values);
        // A product of two f32 is exact.
        UNROLL for (int j = 0; j < 8; j++) all += squares ? double(values[j]) * double(values[j]) : double(values[j]);
    }
    all = block_sum(all, aside);
    if (tid() == 0) sums[bid_x()] = all;
}
EXPORT(sum)

// The blocks' shares, added in their order, which is that in which the host adds them.
KERNEL(32) total(const double *sums, u32 count, double *to) {
    if (tid() > 0) return;
    double all = 0;
    for (u32 i = 0; i < count; i++) all += sums[i];
    *to = all;
}
EXPORT(total)
