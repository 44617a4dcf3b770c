// FlashAttention-3 forward for Hopper, causal, bf16, without ping-pong scheduling: a producer warpgroup loads tiles by TMA, two consumer
// warpgroups have 64 queries each; Q K^T of a tile runs while P V of the tile before is computed. No windows, ALiBi, documents or
// offsets, and positive scales only. It has been compiled, never run.
// defines: Attend, TileIndex, tile_index, ceil_div, lse_offset, query_offset
#include "attention.h"
//   sync_some, fewer_registers, more_registers
// defines: TensorMap, tensor_in, barrier_init, barrier_expect, barrier_wait, barrier_arrive, wgmma_rows_128, wgmma_add, wgmma_wait,
//   sync_some, fewer_registers, more_registers
#include "hopper.h"
// defines: store_tile
#include "tiles.h"

// Dynamic shared memory: 1024 bytes for alignment, 128 queries, and two stages of 128 keys and values, in halves of 64 elements of a
// head: rows of 128 bytes.
template <int D>
__device__ inline void hopper_forward(const TensorMap *q_map, const TensorMap *k_map, const TensorMap *v_map, const Attend &a) {
    const int ROWS = 128, KEYS = 128, STAGES = 2, HALVES = D / 64, OWN = 64 * D, TILE = KEYS * D;
    u8 *shared = reinterpret_cast<u8 *>(dynamic_shared);
    // Full barriers count bytes that have arrived, empty barriers the eight consumer warps that are done.
    SHARED(u64, barriers, 1 + 4 * STAGES);
    u64 *q_full = barriers, *k_full = barriers + 1, *v_full = k_full + STAGES;
    u64 *k_empty = v_full + STAGES, *v_empty = k_empty + STAGES;
    bf16 *queries = reinterpret_cast<bf16 *>(shared + (1024 - shared_address(shared) % 1024) % 1024);
    bf16 *ks = queries + 2 * OWN, *vs = ks + STAGES * TILE;

    const u32 tiles = ceil_div(a.rows, ROWS);
    const TileIndex at = tile_index(tiles, a.batch * a.heads, a.section);
    const u32 b = at.head / a.heads, h = at.head % a.heads, kv = h / (a.heads / a.kv_heads);
    // Later queries attend to more keys, so their blocks start first. Keys are processed from the diagonal tile backwards.
    const i32 tile = i32(tiles - 1 - at.tile), first_row = tile * ROWS, steps = tile + 1;
    if (threadIdx.x == 0) {
        barrier_init(q_full, 1);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(k_full + i, 1), barrier_init(v_full + i, 1);
            barrier_init(k_empty + i, 8), barrier_init(v_empty + i, 8);
        }
        barriers_ready();
    }
    __syncthreads();

    if (warp_id() < 4) {
        fewer_registers<24>();
        if (threadIdx.x != 0) return;
        barrier_expect(q_full, 2 * OWN * sizeof(bf16));
        for (int group = 0; group < 2; group++)
            for (int half = 0; half < HALVES; half++) {
                bf16 *to = queries + group * OWN + half * 64 * 64;
                tensor_in(to, q_map, q_full, i32(h * D) + 64 * half, first_row + 64 * group, i32(b));
            }
        for (i32 i = 0; i < steps; i++) {
            const i32 stage = i % STAGES, key = (tile - i) * KEYS;
            const u32 parity = u32(i / STAGES - 1) & 1;
            auto load_kv = [&](bf16 *to, const TensorMap *map, u64 *full, u64 *empty) {
                if (i >= STAGES) barrier_wait(empty + stage, parity);
                barrier_expect(full + stage, TILE * sizeof(bf16));
                for (int half = 0; half < HALVES; half++)
                    tensor_in(to + stage * TILE + half * KEYS * 64, map, full + stage, i32(kv * D) + 64 * half, key, i32(b));
            };
            load_kv(ks, k_map, k_full, k_empty);
            load_kv(vs, v_map, v_full, v_empty);
        }
        return;
    }

    more_registers<240>();
    const u32 group = warp_id() / 4 - 1, own = warp_id() % 4 * 16, g = lane_id() / 4, t = lane_id() % 4;
    const i32 first = first_row + i32(group * 64 + own), rows = i32(a.rows);
    bf16 *mine = queries + group * OWN;
    const u64 q_at = wgmma_operand(mine, 16), k_at = wgmma_operand(ks, 16), v_at = wgmma_operand(vs, KEYS * 64 * sizeof(bf16));
    // Operand addresses are in units of 16 bytes.
    const u64 stage_step = TILE * sizeof(bf16) / 16;
    auto qk_gemm = [&](float (&s)[16][4], i32 i) {
        const u64 k = k_at + u64(i % STAGES) * stage_step;
        UNROLL for (int c = 0; c < D / 16; c++) {
            // Sixteen elements are 32 bytes of a row; a half is 64 queries or 128 keys.
            const u64 q_step = c / 4 * (64 * 128 / 16) + c % 4 * 2, k_step = c / 4 * (KEYS * 128 / 16) + c % 4 * 2;
            wgmma_rows_128(s, q_at + q_step, k + k_step, c > 0);
        }
        wgmma_commit();
    };
    float o[D / 8][4];
    u32 p[KEYS / 16][4];
    auto pv_gemm = [&](i32 i) {
        const u64 v = v_at + u64(i % STAGES) * stage_step;
        // Sixteen keys are sixteen rows of 128 bytes.
        UNROLL for (int c = 0; c < KEYS / 16; c++) wgmma_add(o, p[c], v + c * (16 * 128 / 16));
        wgmma_commit();
    };
    auto release = [&](u64 *empty, i32 i) {
        if (lane_id() == 0) barrier_arrive(empty + i % STAGES);
    };

    float row_max[2] = {-INFINITY, -INFINITY}, row_sum[2] = {0.0f, 0.0f}, rescale[2];
    // Online softmax: scores become unnormalized probabilities.
    auto softmax = [&](float (&s)[16][4]) {
        UNROLL for (int i = 0; i < 2; i++) {
            float new_max = row_max[i];
            UNROLL for (int n = 0; n < KEYS / 8; n++) new_max = fmaxf(new_max, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
            new_max = fmaxf(new_max, __shfl_xor_sync(~0u, new_max, 1));
            new_max = fmaxf(new_max, __shfl_xor_sync(~0u, new_max, 2));
            // The first tile has every row's own key, so the maximum is finite.
            const float base = new_max * a.scale2;
            rescale[i] = exp2_fast(fmaf(row_max[i], a.scale2, -base));
            row_max[i] = new_max;
            float part = 0.0f;
            UNROLL for (int n = 0; n < KEYS / 8; n++)
                UNROLL for (int e = 2 * i; e < 2 * i + 2; e++) {
                    s[n][e] = exp2_fast(fmaf(s[n][e], a.scale2, -base));
                    part += s[n][e];
                }
            row_sum[i] = row_sum[i] * rescale[i] + part;
        }
    };
    auto pack_probabilities = [&](const float (&s)[16][4]) {
        UNROLL for (int c = 0; c < KEYS / 16; c++)
            UNROLL for (int i = 0; i < 4; i++) {
                const float *pair = &s[2 * c + i / 2][2 * (i % 2)];
                p[c][i] = pack2<bf16>(pair[0], pair[1]);
            }
    };

    float s[KEYS / 8][4];
    barrier_wait(q_full, 0);
    barrier_wait(k_full, 0);
    wgmma_fence();
    qk_gemm(s, 0);
    wgmma_wait<0>(s);
    release(k_empty, 0);
    // Only the diagonal tile needs the causal mask; rows past the end of the sequence are not stored.
    UNROLL for (int n = 0; n < KEYS / 8; n++)
        UNROLL for (int e = 0; e < 4; e++) {
            const i32 ahead = 8 * n + 2 * i32(t) + e % 2 - i32(group * 64 + own + g) - e / 2 * 8;
            if (ahead > 0) s[n][e] = -INFINITY;
        }
    softmax(s);
    pack_probabilities(s);
    UNROLL for (int n = 0; n < D / 8; n++)
        UNROLL for (int e = 0; e < 4; e++) o[n][e] = 0.0f;
    for (i32 i = 1; i < steps; i++) {
        barrier_wait(k_full + i % STAGES, u32(i / STAGES) & 1);
        wgmma_fence();
        qk_gemm(s, i);
        barrier_wait(v_full + (i - 1) % STAGES, u32((i - 1) / STAGES) & 1);
        pv_gemm(i - 1);
        wgmma_wait<1>(s);
        release(k_empty, i);
        softmax(s);
        wgmma_wait<0>(o);
        release(v_empty, i - 1);
        UNROLL for (int n = 0; n < D / 8; n++)
            UNROLL for (int e = 0; e < 4; e++) o[n][e] *= rescale[e / 2];
        pack_probabilities(s);
    }
    barrier_wait(v_full + (steps - 1) % STAGES, u32((steps - 1) / STAGES) & 1);
    wgmma_fence();
    pv_gemm(steps - 1);
    wgmma_wait<0>(o);

    float inverse_sum[2];
    UNROLL for (int i = 0; i < 2; i++) {
        row_sum[i] += __shfl_xor_sync(~0u, row_sum[i], 1);
        row_sum[i] += __shfl_xor_sync(~0u, row_sum[i], 2);
        inverse_sum[i] = 1.0f / row_sum[i];
        const i32 row = first + 8 * i + i32(g);
        if (t == 0 && row < rows) a.lse[lse_offset(a, b, h) + u64(row)] = fmaf(row_max[i], a.scale2, log2_fast(row_sum[i])) * LN2;
    }
    // The output goes through the shared memory of this group's queries, once all its warps have read them.
    sync_some(1 + group, 128);
    float all[1][D / 8][4];
    UNROLL for (int n = 0; n < D / 8; n++)
        UNROLL for (int e = 0; e < 4; e++) all[0][n][e] = o[n][e];
    store_tile<bf16, D, 1>(all, inverse_sum, mine, own, as<bf16>(a.out) + query_offset(a, b, h), u64(a.heads) * D, first, rows);
}

extern "C" __global__ void __launch_bounds__(384, 1) flash_hopper_64(const __grid_constant__ TensorMap q,
        const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v, Attend a) {
    hopper_forward<64>(&q, &k, &v, a);
}
EXPORT(flash_hopper_64)
extern "C" __global__ void __launch_bounds__(384, 1) flash_hopper_128(const __grid_constant__ TensorMap q,
        const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v, Attend a) {
    hopper_forward<128>(&q, &k, &v, a);
}
EXPORT(flash_hopper_128)
