// What only Hopper has (sm_90a): copies of whole tiles that a barrier in shared memory counts, products that four warps ask for
// together and that run beside them, and registers that warps hand to each other. Nothing imitates these on a processor.
#pragma once
#include "prelude.h"

// How a tensor lies in memory and which part of it a copy brings, as the driver encodes it; a kernel's parameter.
struct alignas(64) TensorMap { u64 words[16]; };
#define TENSOR_MAP(name) const __grid_constant__ TensorMap name

// Barriers in shared memory. A phase ends when so many threads have arrived, and as many bytes as they announced.
DEVICE void barrier_init(u64 *barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// Lets copies see barriers that were just made; others of the block see them behind a block's barrier.
DEVICE void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void barrier_arrive(u64 *barrier) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
DEVICE void barrier_expect(u64 *barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
// Waits for the end of the phase of this parity: 0 for the first, 1 for the second, 0 for the third.
DEVICE void barrier_wait(u64 *barrier, u32 parity) {
    asm volatile(
        "{.reg .pred p;\n"
        "again: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%0], %1;\n"
        "@!p bra again;}"
        ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}

// Begins to copy a box whose first element has these coordinates, innermost first; its bytes count for the barrier.
DEVICE void tensor_in(void *to, const TensorMap *map, u64 *barrier, i32 x, i32 y, i32 z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
        ::"r"(shared_address(to)), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z) : "memory");
}

// Four warps that begin at a multiple of four give registers back, or take them: how many each thread then has.
template <int count> DEVICE void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count)); }
template <int count> DEVICE void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count)); }

// A barrier of some of a block's warps, by a number that is not 0.
DEVICE void sync_some(u32 number, u32 count) { asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(count) : "memory"); }

// Where an operand of wgmma lies: rows of 128 bytes whose chunks change places as copies with a swizzle of 128 bytes leave
// them, from a multiple of 1024 bytes on. `side` is how far the next 64 elements of a row are, where a row is longer and rows
// are what is summed up, and 16 elsewhere; eight rows further is 1024 bytes.
DEVICE u64 wgmma_operand(const void *from, u32 side) {
    return u64(shared_address(from) >> 4 & 0x3fff) | u64(side >> 4 & 0x3fff) << 16 | u64(1024 >> 4) << 32 | u64(1) << 62;
}

// Before products read registers that were written.
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until all but the newest `left` groups are done; what they wrote is read only behind it.
template <int left, int N> DEVICE void wgmma_wait(float (&d)[N][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
    UNROLL for (int n = 0; n < N; n++)
        UNROLL for (int e = 0; e < 4; e++) asm volatile("" : "+f"(d[n][e])::"memory");
}

#define ZB_FOUR(x) "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])
// d = A B or d += A B: A 64 x 16 and B 16 x 128 in shared memory, both by rows of 16 elements along what is summed up.
DEVICE void wgmma_rows_128(float (&d)[16][4], u64 a, u64 b, bool add) {
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
// d += A B: A 64 x 16 in registers, as mma has it for each of the four warps; B 16 x 128 in shared memory, 128 elements of a
// row beside each other.
DEVICE void wgmma_add(float (&d)[16][4], const u32 (&a)[4], u64 b) {
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
// d += A B: A 64 x 16 in registers, as mma has it for each of the four warps; B 16 x 64 in shared memory, 64 elements of a
// row beside each other.
DEVICE void wgmma_add(float (&d)[8][4], const u32 (&a)[4], u64 b) {
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
