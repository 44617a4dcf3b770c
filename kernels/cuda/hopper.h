// Hopper only (sm_90a): TMA copies with mbarriers, asynchronous warpgroup products (wgmma), register reallocation. host.h does not
// emulate these.
#pragma once
// defines: bf16, UNROLL
#include "prelude.h"

// A TMA descriptor (CUtensorMap), encoded by the driver; passed as a kernel parameter.
struct alignas(64) TensorMap { u64 words[16]; };

// mbarriers. A phase completes when `arrivals` threads and all announced bytes have arrived.
__device__ inline void barrier_init(u64 *barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// Makes new barriers visible to TMA copies; other threads see them after __syncthreads().
__device__ inline void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void barrier_arrive(u64 *barrier) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ inline void barrier_expect(u64 *barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
// Waits for the end of the phase of this parity: 0 for the first, 1 for the second, 0 for the third.
__device__ inline void barrier_wait(u64 *barrier, u32 parity) {
    asm volatile(
        "{.reg .pred p;\n"
        "again: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%0], %1;\n"
        "@!p bra again;}"
        ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}

// Starts a TMA copy of the box at these coordinates, innermost first; the barrier counts its bytes.
__device__ inline void tensor_in(void *to, const TensorMap *map, u64 *barrier, i32 x, i32 y, i32 z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
        ::"r"(shared_address(to)), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z) : "memory");
}

// A warpgroup releases or takes registers: how many each thread has afterwards.
template <int count> __device__ inline void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count)); }
template <int count> __device__ inline void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count)); }

// A named barrier of `count` threads; number 0 is __syncthreads().
__device__ inline void sync_some(u32 number, u32 count) { asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(count) : "memory"); }

// The shared memory descriptor of a wgmma operand: rows of 128 bytes with the 128-byte swizzle of TMA, aligned to 1024 bytes. `side`
// is the distance to the next 64 elements of a longer row where rows are the k dimension, 16 elsewhere; eight rows are 1024 bytes.
__device__ inline u64 wgmma_operand(const void *from, u32 side) {
    return u64(shared_address(from) >> 4 & 0x3fff) | u64(side >> 4 & 0x3fff) << 16 | u64(1024 >> 4) << 32 | u64(1) << 62;
}

// Orders register writes before the products that read them.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most the newest `left` groups are pending. The empty asm keeps reads of `d` behind it.
template <int left, int N> __device__ inline void wgmma_wait(float (&d)[N][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
    UNROLL for (int n = 0; n < N; n++)
        UNROLL for (int e = 0; e < 4; e++) asm volatile("" : "+f"(d[n][e])::"memory");
}

#define ZB_FOUR(x) "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])
// d = A B or d += A B: A 64 x 16 and B 16 x 128 in shared memory, both with rows along k.
__device__ inline void wgmma_rows_128(float (&d)[16][4], u64 a, u64 b, bool add) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, p, 1, 1, 0, 0;}"
        : ZB_FOUR(d[0]), ZB_FOUR(d[1]), ZB_FOUR(d[2]), ZB_FOUR(d[3]), ZB_FOUR(d[4]), ZB_FOUR(d[5]), ZB_FOUR(d[6]),
          ZB_FOUR(d[7]), ZB_FOUR(d[8]), ZB_FOUR(d[9]), ZB_FOUR(d[10]), ZB_FOUR(d[11]), ZB_FOUR(d[12]), ZB_FOUR(d[13]),
          ZB_FOUR(d[14]), ZB_FOUR(d[15])
        : "l"(a), "l"(b), "r"(u32(add)));
}
// d += A B: A 64 x 16 in registers, laid out as for mma in each warp; B 16 x 128 in shared memory with rows along n.
__device__ inline void wgmma_add(float (&d)[16][4], const u32 (&a)[4], u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
        : ZB_FOUR(d[0]), ZB_FOUR(d[1]), ZB_FOUR(d[2]), ZB_FOUR(d[3]), ZB_FOUR(d[4]), ZB_FOUR(d[5]), ZB_FOUR(d[6]),
          ZB_FOUR(d[7]), ZB_FOUR(d[8]), ZB_FOUR(d[9]), ZB_FOUR(d[10]), ZB_FOUR(d[11]), ZB_FOUR(d[12]), ZB_FOUR(d[13]),
          ZB_FOUR(d[14]), ZB_FOUR(d[15])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// d += A B: A 64 x 16 in registers, laid out as for mma in each warp; B 16 x 64 in shared memory with rows along n.
__device__ inline void wgmma_add(float (&d)[8][4], const u32 (&a)[4], u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
        : ZB_FOUR(d[0]), ZB_FOUR(d[1]), ZB_FOUR(d[2]), ZB_FOUR(d[3]), ZB_FOUR(d[4]), ZB_FOUR(d[5]), ZB_FOUR(d[6]),
          ZB_FOUR(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef ZB_FOUR
