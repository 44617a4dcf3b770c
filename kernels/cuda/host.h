// Emulates on a CPU what kernels use of CUDA and of the first part of prelude.h, under the same names. The threads of a block are fibers
// of one OS thread, which switch where a warp or a block waits. What is undefined on a GPU is an error here: diverged lanes in a
// warp-wide operation, barriers that some threads never reach, misaligned addresses. Shared memory starts as NaN, and cp.async copies
// arrive as late as possible.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define ZB_ASAN 1
#else
#define ZB_ASAN 0
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

// Hidden: each source becomes a library of its own, and their functions must not replace each other.
#define __global__ __attribute__((visibility("hidden")))
#define __device__ static
#define __launch_bounds__(...)
#define __grid_constant__
#define EXPORT(name) \
    extern "C" int zb_##name(const zb::Launch *launch, void **arguments) { return zb::run(launch, name, arguments); }
#define UNROLL
#define NO_UNROLL

namespace zb {

// Laid out as in host.rs.
struct Launch {
    u32 grid[3];
    u32 threads;
    u32 shared;
    // 0: threads run in order, 1: from last to first. A missing barrier shows as a difference between the two.
    u32 order;
    char *error;
    u64 error_bytes;
};

const u32 LANES = 32, SLOT = 64;
const size_t STACK = ZB_ASAN ? 512 << 10 : 96 << 10;

struct Copy { void *to; const void *from; bool valid; };

struct Fiber {
#if defined(__x86_64__)
    void *sp;
#else
    ucontext_t context;
#endif
    char *stack = nullptr;
    void *fake = nullptr;
    // Waits until the word is no longer what it was.
    const u32 *watch = nullptr;
    u32 seen = 0, index = 0;
    bool done = false;
    std::vector<Copy> copies;
    std::vector<size_t> groups;
};

struct Barrier { u32 arrived = 0, generation = 0, alive = 0; };

struct Warp {
    Barrier barrier;
    const char *operation = nullptr;
    // Double buffered: no lane can be two operations ahead.
    alignas(16) u8 slots[2][LANES][SLOT];
};

struct State {
    Launch launch;
    u32 block[3];
    u64 generation = 0;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    Barrier barrier;
    Fiber *current = nullptr;
    bool failed = false;
    char *dynamic = nullptr;
    void (*enter)(void *) = nullptr;
    void *entered = nullptr;
#if defined(__x86_64__)
    void *home;
#else
    ucontext_t home;
#endif
    const void *home_stack = nullptr;
    size_t home_bytes = 0;
    ~State() {
        for (Fiber &fiber : fibers) free(fiber.stack);
    }
};

static thread_local State state;

#if defined(__x86_64__)
// Saves the callee-saved registers and switches to another stack.
extern "C" void zb_switch(void **from, void *to) __attribute__((visibility("hidden")));
asm(R"(
.text
.globl zb_switch
.hidden zb_switch
.type zb_switch,@function
zb_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
#endif

static void to_home(bool for_ever) {
    State &s = state;
#if ZB_ASAN
    __sanitizer_start_switch_fiber(for_ever ? nullptr : &s.current->fake, s.home_stack, s.home_bytes);
#endif
    (void)for_ever;
#if defined(__x86_64__)
    zb_switch(&s.current->sp, s.home);
#else
    swapcontext(&s.current->context, &s.home);
#endif
#if ZB_ASAN
    __sanitizer_finish_switch_fiber(state.current->fake, &state.home_stack, &state.home_bytes);
#endif
}

[[noreturn]] static void fail(const char *why) {
    State &s = state;
    if (!s.failed) {
        snprintf(s.launch.error, s.launch.error_bytes, "block (%u, %u, %u), thread %u: %s", s.block[0], s.block[1],
                 s.block[2], s.current->index, why);
        s.failed = true;
    }
    to_home(true);
    abort();
}

static void release(Barrier &barrier) {
    barrier.arrived = 0;
    barrier.generation++;
}

static void wait(Barrier &barrier) {
    if (++barrier.arrived == barrier.alive) return release(barrier);
    Fiber &fiber = *state.current;
    fiber.watch = &barrier.generation;
    fiber.seen = barrier.generation;
    to_home(false);
}

static void leave(Fiber &fiber) {
    State &s = state;
    fiber.done = true;
    Warp &warp = s.warps[fiber.index / LANES];
    if (warp.barrier.arrived > 0) fail("it ended while other lanes of its warp wait for it");
    warp.barrier.alive--;
    s.barrier.alive--;
    if (s.barrier.arrived > 0 && s.barrier.arrived == s.barrier.alive) release(s.barrier);
}

static void fiber_main() {
#if ZB_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &state.home_stack, &state.home_bytes);
#endif
    state.enter(state.entered);
    leave(*state.current);
    to_home(true);
    abort();
}

static void prepare(Fiber &fiber, u32 index) {
    if (!fiber.stack) fiber.stack = static_cast<char *>(aligned_alloc(64, STACK));
    fiber.watch = nullptr;
    fiber.index = index;
    fiber.done = false;
    fiber.fake = nullptr;
    fiber.copies.clear();
    fiber.groups.clear();
#if defined(__x86_64__)
    // As if zb_switch had been called: six registers, where to return to, and a word that aligns the stack as a call does.
    void **top = reinterpret_cast<void **>(fiber.stack + STACK);
    *--top = nullptr;
    *--top = reinterpret_cast<void *>(fiber_main);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    fiber.sp = top;
#else
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, fiber_main, 0);
#endif
}

static void resume(Fiber &fiber) {
    State &s = state;
    s.current = &fiber;
#if ZB_ASAN
    void *fake;
    __sanitizer_start_switch_fiber(&fake, fiber.stack, STACK);
#endif
#if defined(__x86_64__)
    zb_switch(&s.home, fiber.sp);
#else
    swapcontext(&s.home, &fiber.context);
#endif
#if ZB_ASAN
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

// Runs the block until all its threads have ended.
static void turns() {
    State &s = state;
    const u32 count = s.launch.threads;
    for (bool all = false; !all && !s.failed;) {
        bool moved = false;
        all = true;
        for (u32 i = 0; i < count && !s.failed; i++) {
            Fiber &fiber = s.fibers[s.launch.order ? count - 1 - i : i];
            if (fiber.done) continue;
            all = false;
            if (fiber.watch && *fiber.watch == fiber.seen) continue;
            fiber.watch = nullptr;
            moved = true;
            resume(fiber);
        }
        if (!all && !moved && !s.failed) {
            snprintf(s.launch.error, s.launch.error_bytes, "block (%u, %u, %u): threads wait at barriers that others never reach",
                     s.block[0], s.block[1], s.block[2]);
            s.failed = true;
        }
    }
}

static int run_blocks(const Launch *launch, void (*enter)(void *), void *entered) {
    State &s = state;
    s.launch = *launch;
    s.failed = false;
    s.enter = enter;
    s.entered = entered;
    if (launch->threads == 0 || launch->threads > 1024 || launch->threads % LANES != 0) {
        snprintf(launch->error, launch->error_bytes, "%u threads are no block of whole warps", launch->threads);
        return 1;
    }
    if (s.fibers.size() < launch->threads) s.fibers.resize(launch->threads);
    s.warps.resize(launch->threads / LANES);
    void *dynamic = nullptr;
    if (launch->shared && posix_memalign(&dynamic, 128, launch->shared)) return 1;
    s.dynamic = static_cast<char *>(dynamic);
    for (u32 z = 0; z < launch->grid[2] && !s.failed; z++)
        for (u32 y = 0; y < launch->grid[1] && !s.failed; y++)
            for (u32 x = 0; x < launch->grid[0] && !s.failed; x++) {
                s.block[0] = x, s.block[1] = y, s.block[2] = z;
                s.generation++;
                if (dynamic) memset(dynamic, 0xff, launch->shared);
                s.barrier = Barrier{0, 0, launch->threads};
                for (Warp &warp : s.warps) warp.barrier = Barrier{0, 0, LANES}, warp.operation = nullptr;
                for (u32 i = 0; i < launch->threads; i++) prepare(s.fibers[i], i);
                turns();
            }
    free(dynamic);
    s.dynamic = nullptr;
    return s.failed;
}

template <unsigned... I> struct Indices {};
template <unsigned N, unsigned... I> struct Count : Count<N - 1, N - 1, I...> {};
template <unsigned... I> struct Count<0, I...> { typedef Indices<I...> type; };

template <class... A> struct Bound {
    void (*kernel)(A...);
    void **arguments;
    template <unsigned... I> void call(Indices<I...>) const { kernel(*static_cast<A *>(arguments[I])...); }
    static void enter(void *bound) { static_cast<Bound *>(bound)->call(typename Count<sizeof...(A)>::type()); }
};

template <class... A> int run(const Launch *launch, void (*kernel)(A...), void **arguments) {
    Bound<A...> bound{kernel, arguments};
    return run_blocks(launch, Bound<A...>::enter, &bound);
}

// Static shared memory: on the heap, so that AddressSanitizer finds overruns; refilled with NaN for each block.
template <class T, size_t N> struct Shared {
    T *at = nullptr;
    u64 generation = 0;
    ~Shared() { free(at); }
    T *get() {
        void *p = at;
        if (!p && posix_memalign(&p, 16, sizeof(T) * N)) abort();
        at = static_cast<T *>(p);
        if (generation != state.generation) memset(p, 0xff, sizeof(T) * N), generation = state.generation;
        return at;
    }
};

static Warp &own_warp() { return state.warps[state.current->index / LANES]; }

// Writes this lane's value to its slot and returns all slots. All lanes must take part with the same operation.
template <class T> static u8 (*offer(const char *operation, const T &own))[SLOT] {
    static_assert(sizeof(T) <= SLOT, "a lane shows at most a slot");
    Warp &warp = own_warp();
    if (warp.barrier.alive != LANES) fail("lanes of its warp have ended already");
    if (warp.barrier.arrived == 0) warp.operation = operation;
    if (strcmp(warp.operation, operation) != 0) fail("lanes of its warp do different things at once");
    auto *slots = warp.slots[warp.barrier.generation % 2];
    memcpy(slots[state.current->index % LANES], &own, sizeof(T));
    return slots;
}
template <class T> static u8 (*exchange(const char *operation, const T &own))[SLOT] {
    auto *slots = offer(operation, own);
    wait(own_warp().barrier);
    return slots;
}
// The last lane to arrive computes the results of all lanes in the slots.
template <class T, class Work> static T together(const char *operation, const T &own, Work work) {
    auto *slots = offer(operation, own);
    Warp &warp = own_warp();
    if (warp.barrier.arrived + 1 == warp.barrier.alive) {
        T all[LANES];
        for (u32 i = 0; i < LANES; i++) memcpy(&all[i], slots[i], sizeof(T));
        work(all);
        for (u32 i = 0; i < LANES; i++) memcpy(slots[i], &all[i], sizeof(T));
    }
    wait(warp.barrier);
    T value;
    memcpy(&value, slots[state.current->index % LANES], sizeof(T));
    return value;
}
template <class T> static T of_slot(u8 (*slots)[SLOT], u32 lane) {
    T value;
    memcpy(&value, slots[lane], sizeof(T));
    return value;
}

static void whole(u32 mask) {
    if (mask != ~0u) fail("only whole warps exchange here");
}
static void aligned(const void *p, const char *why) {
    if (reinterpret_cast<u64>(p) % 16 != 0) fail(why);
}

} // namespace zb

#define SHARED(type, name, count)                          \
    static thread_local zb::Shared<type, (count)> name##_; \
    type *name = name##_.get()
#define dynamic_shared (zb::state.dynamic)

// Macros, because their values change with every switch of fibers.
struct uint3 { u32 x, y, z; };
struct alignas(16) uint4 { u32 x, y, z, w; };
static inline uint3 zb_triple(const u32 (&x)[3]) { return uint3{x[0], x[1], x[2]}; }
#define threadIdx (uint3{zb::state.current->index, 0, 0})
#define blockDim (uint3{zb::state.launch.threads, 1, 1})
#define blockIdx zb_triple(zb::state.block)
#define gridDim zb_triple(zb::state.launch.grid)

__device__ inline void __syncthreads() { zb::wait(zb::state.barrier); }
__device__ inline void __syncwarp() { zb::exchange("__syncwarp", 0); }

template <class T> __device__ inline T __shfl_xor_sync(u32 mask, T x, u32 lanes) {
    zb::whole(mask);
    return zb::of_slot<T>(zb::exchange("__shfl_xor_sync", x), (zb::state.current->index ^ lanes) % zb::LANES);
}
__device__ inline u32 __match_any_sync(u32 mask, u32 x) {
    zb::whole(mask);
    auto *slots = zb::exchange("__match_any_sync", x);
    u32 same = 0;
    for (u32 lane = 0; lane < zb::LANES; lane++) same |= u32(zb::of_slot<u32>(slots, lane) == x) << lane;
    return same;
}

__device__ inline float __uint_as_float(u32 bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
__device__ inline u32 __float_as_uint(float x) {
    u32 bits;
    memcpy(&bits, &x, 4);
    return bits;
}

__device__ inline float to_float(f16 x) {
    _Float16 y;
    memcpy(&y, &x, 2);
    return float(y);
}
template <class T> T from_float(float x);
template <> inline bf16 from_float<bf16>(float x) {
    u32 bits = __float_as_uint(x);
    if (x != x) return bf16{0x7fff};
    return bf16{u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
template <> inline f16 from_float<f16>(float x) {
    _Float16 y = _Float16(x);
    f16 z;
    memcpy(&z, &y, 2);
    return z;
}
template <class T> u32 pack2(float low, float high) {
    return u32(from_float<T>(low).bits) | u32(from_float<T>(high).bits) << 16;
}

// fmaf, fmaxf, floorf and log are those of the C library. host.rs compiles with -ffp-contract=off, so nothing is contracted to fma.
__device__ inline float __fmul_rn(float a, float b) { return a * b; }
__device__ inline float __fadd_rn(float a, float b) { return a + b; }
__device__ inline float __fdiv_rn(float a, float b) { return a / b; }
__device__ inline float __fsqrt_rn(float x) { return sqrtf(x); }
__device__ inline double __dmul_rn(double a, double b) { return a * b; }
__device__ inline double __dadd_rn(double a, double b) { return a + b; }
__device__ inline float exp2_fast(float x) { return exp2f(x); }
__device__ inline float log2_fast(float x) { return log2f(x); }
__device__ inline float rcp_fast(float x) { return 1.0f / x; }
__device__ inline u32 __popc(u32 x) { return u32(__builtin_popcount(x)); }
// Integers only: for floats, CUDA's min and max are fminf and fmaxf, which treat NaN differently.
template <class T> __device__ inline T min(T a, T b) {
    static_assert(std::is_integral<T>::value, "of integers");
    return a < b ? a : b;
}
template <class T> __device__ inline T max(T a, T b) {
    static_assert(std::is_integral<T>::value, "of integers");
    return a > b ? a : b;
}

// Atomic, because ranks are threads of one process.
__device__ inline u32 atomicOr(u32 *at, u32 x) { return __atomic_fetch_or(at, x, __ATOMIC_RELAXED); }
__device__ inline u32 atomicMax(u32 *at, u32 x) {
    u32 old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (x > old && !__atomic_compare_exchange_n(at, &old, x, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}

// The same value as to_float gives, without a call.
static inline float zb_widen(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }
static inline float zb_widen(f16 x) {
    const u32 sign = u32(x.bits & 0x8000) << 16, rest = x.bits & 0x7fff;
    const float value = rest >= 0x7c00 ? __uint_as_float(rest << 13 | 0x7f800000) : __uint_as_float(rest << 13) * 0x1p112f;
    return __uint_as_float(__float_as_uint(value) | sign);
}

struct zb_product { u32 a[4], b[2]; float d[4]; };
template <class T> static void zb_multiply(zb_product *lanes) {
    float a[16][16], b[16][8], d[16][8];
    for (u32 lane = 0; lane < zb::LANES; lane++) {
        const u32 g = lane / 4, t = lane % 4;
        const zb_product &own = lanes[lane];
        // Each register has two adjacent elements along k.
        for (u32 i = 0; i < 4; i++)
            for (u32 e = 0; e < 2; e++) a[g + 8 * (i % 2)][2 * t + e + 8 * (i / 2)] = zb_widen(T{u16(own.a[i] >> 16 * e)});
        for (u32 i = 0; i < 2; i++)
            for (u32 e = 0; e < 2; e++) b[2 * t + e + 8 * i][g] = zb_widen(T{u16(own.b[i] >> 16 * e)});
        for (u32 i = 0; i < 4; i++) d[g + 8 * (i / 2)][2 * t + i % 2] = own.d[i];
    }
    for (u32 m = 0; m < 16; m++)
        for (u32 k = 0; k < 16; k++)
            for (u32 n = 0; n < 8; n++) d[m][n] += a[m][k] * b[k][n];
    for (u32 lane = 0; lane < zb::LANES; lane++)
        for (u32 i = 0; i < 4; i++) lanes[lane].d[i] = d[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
}
template <class T> void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    const zb_product own = {{a[0], a[1], a[2], a[3]}, {b0, b1}, {d[0], d[1], d[2], d[3]}};
    const zb_product made = zb::together("mma", own, zb_multiply<T>);
    for (u32 i = 0; i < 4; i++) d[i] = made.d[i];
}

struct zb_rows { const u16 *row; u32 r[4]; };
static void zb_matrices(zb_rows *lanes, bool transposed) {
    for (u32 lane = 0; lane < zb::LANES; lane++) {
        const u32 g = lane / 4, t = lane % 4;
        for (u32 i = 0; i < 4; i++) {
            auto element = [&](u32 y, u32 x) { return u32(lanes[8 * i + y].row[x]); };
            const u32 low = transposed ? element(2 * t, g) : element(g, 2 * t);
            const u32 high = transposed ? element(2 * t + 1, g) : element(g, 2 * t + 1);
            lanes[lane].r[i] = low | high << 16;
        }
    }
}
static inline void zb_ldmatrix(const char *operation, u32 (&r)[4], const void *row, bool transposed) {
    zb::aligned(row, "ldmatrix wants rows at multiples of 16 bytes");
    const zb_rows own = {static_cast<const u16 *>(row), {}};
    // As on a GPU, the warp reads its rows at once.
    const zb_rows made = zb::together(operation, own, [&](zb_rows *lanes) { zb_matrices(lanes, transposed); });
    for (u32 i = 0; i < 4; i++) r[i] = made.r[i];
}
__device__ inline void ldmatrix(u32 (&r)[4], const void *row) { zb_ldmatrix("ldmatrix", r, row, false); }
__device__ inline void ldmatrix_trans(u32 (&r)[4], const void *row) { zb_ldmatrix("ldmatrix_trans", r, row, true); }

__device__ inline void cp_async(void *to, const void *from, bool valid) {
    zb::aligned(to, "cp_async wants shared addresses at multiples of 16 bytes");
    if (valid) zb::aligned(from, "cp_async wants global addresses at multiples of 16 bytes");
    zb::state.current->copies.push_back(zb::Copy{to, from, valid});
}
__device__ inline void cp_async_commit() {
    zb::Fiber &fiber = *zb::state.current;
    fiber.groups.push_back(fiber.copies.size());
}
template <int left> static inline void cp_async_wait() {
    zb::Fiber &fiber = *zb::state.current;
    if (fiber.groups.size() <= size_t(left)) return;
    const size_t ready = fiber.groups.size() - left, copies = fiber.groups[ready - 1];
    for (size_t i = 0; i < copies; i++) {
        const zb::Copy &copy = fiber.copies[i];
        if (copy.valid) memcpy(copy.to, copy.from, 16);
        else memset(copy.to, 0, 16);
    }
    fiber.copies.erase(fiber.copies.begin(), fiber.copies.begin() + copies);
    fiber.groups.erase(fiber.groups.begin(), fiber.groups.begin() + ready);
    for (size_t &group : fiber.groups) group -= copies;
}

__device__ inline uint4 load_uint4(const void *from) {
    zb::aligned(from, "words of 16 bytes lie at multiples of 16");
    uint4 words;
    memcpy(&words, from, 16);
    return words;
}
__device__ inline void store_uint4(void *to, uint4 words) {
    zb::aligned(to, "words of 16 bytes lie at multiples of 16");
    memcpy(to, &words, 16);
}
