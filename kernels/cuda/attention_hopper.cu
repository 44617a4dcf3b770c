// Attention on Hopper, forward, causal, of bf16 (FlashAttention-3's design, without its turns of the two consumers): one
// group of four warps brings tiles, two others have 64 queries each; a tile's scores are multiplied out while the weights of
// the tile before meet their values. Without windows, slopes, documents and offsets, and for positive scales only. It has been
// compiled, never run.
#include "attention.h"
#include "hopper.h"
#include "tiles.h"

// Dynamic shared memory: 1024 bytes to align, 128 queries, and two stages of 128 keys and their values, in halves of 64
// elements of a head: rows of 128 bytes.
template <int D>
DEVICE void hopper_forward(const TensorMap *q_map, const TensorMap *k_map, const TensorMap *v_map, const Attend &a) {
    const int ROWS = 128, KEYS = 128, STAGES = 2, HALVES = D / 64, OWN = 64 * D, TILE = KEYS * D;
    DYNAMIC(u8, shared);
    // Of the barriers the full ones count bytes, the empty ones the eight warps that have read.
    SHARED(u64, barriers, 1 + 4 * STAGES);
    u64 *q_full = barriers, *k_full = barriers + 1, *v_full = k_full + STAGES;
    u64 *k_empty = v_full + STAGES, *v_empty = k_empty + STAGES;
    bf16 *queries = reinterpret_cast<bf16 *>(shared + (1024 - shared_address(shared) % 1024) % 1024);
    bf16 *ks = queries + 2 * OWN, *vs = ks + STAGES * TILE;

    const u32 tiles = tiles_of(a.rows, ROWS);
    const Place at = place(tiles, a.batch * a.heads, a.section);
    const u32 b = at.head / a.heads, h = at.head % a.heads, kv = h / (a.heads / a.kv_heads);
    // Later queries see more keys, so they come first. The last tile of keys is the one in which queries have their own.
    const i32 tile = i32(tiles - 1 - at.tile), first_row = tile * ROWS, turns = tile + 1;
    if (tid() == 0) {
        barrier_init(q_full, 1);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(k_full + i, 1), barrier_init(v_full + i, 1);
            barrier_init(k_empty + i, 8), barrier_init(v_empty + i, 8);
        }
        barriers_ready();
    }
    sync_block();

    if (warp() < 4) {
        fewer_registers<24>();
        if (tid() != 0) return;
        barrier_expect(q_full, 2 * OWN * sizeof(bf16));
        for (int group = 0; group < 2; group++)
            for (int half = 0; half < HALVES; half++) {
                bf16 *to = queries + group * OWN + half * 64 * 64;
                tensor_in(to, q_map, q_full, i32(h * D) + 64 * half, first_row + 64 * group, i32(b));
            }
        for (i32 i = 0; i < turns; i++) {
            const i32 stage = i % STAGES, key = (tile - i) * KEYS;
            const u32 parity = u32(i / STAGES - 1) & 1;
            auto bring = [&](bf16 *to, const TensorMap *map, u64 *full, u64 *empty) {
                if (i >= STAGES) barrier_wait(empty + stage, parity);
                barrier_expect(full + stage, TILE * sizeof(bf16));
                for (int half = 0; half < HALVES; half++)
                    tensor_in(to + stage * TILE + half * KEYS * 64, map, full + stage, i32(kv * D) + 64 * half, key, i32(b));
            };
            bring(ks, k_map, k_full, k_empty);
            bring(vs, v_map, v_full, v_empty);
        }
        return;
    }

    more_registers<240>();
    const u32 group = warp() / 4 - 1, own = warp() % 4 * 16, g = lane() / 4, t = lane() % 4;
    const i32 first = first_row + i32(group * 64 + own), rows = i32(a.rows);
    bf16 *mine = queries + group * OWN;
    const u64 q_at = wgmma_operand(mine, 16), k_at = wgmma_operand(ks, 16), v_at = wgmma_operand(vs, KEYS * 64 * sizeof(bf16));
    // Addresses of operands are in units of 16 bytes.
    const u64 stage_step = TILE * sizeof(bf16) / 16;
    auto multiply = [&](float (&s)[16][4], i32 i) {
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
    auto weigh = [&](i32 i) {
        const u64 v = v_at + u64(i % STAGES) * stage_step;
        // Sixteen keys are sixteen rows of 128 bytes.
        UNROLL for (int c = 0; c < KEYS / 16; c++) wgmma_add(o, p[c], v + c * (16 * 128 / 16));
        wgmma_commit();
    };
    auto release = [&](u64 *empty, i32 i) {
        if (lane() == 0) barrier_arrive(empty + i % STAGES);
    };

    float top[2] = {minus_infinity(), minus_infinity()}, sum[2] = {0.0f, 0.0f}, shrink[2];
    // Scores become weights; what was summed up before shrinks.
    auto soften = [&](float (&s)[16][4]) {
        UNROLL for (int i = 0; i < 2; i++) {
            float new_top = top[i];
            UNROLL for (int n = 0; n < KEYS / 8; n++) new_top = max_of(new_top, max_of(s[n][2 * i], s[n][2 * i + 1]));
            new_top = max_of(new_top, shfl_xor(new_top, 1));
            new_top = max_of(new_top, shfl_xor(new_top, 2));
            // Every row has seen its own key in the first tile, so it has a top.
            const float base = new_top * a.scale2;
            shrink[i] = exp2_fast(fma1(top[i], a.scale2, -base));
            top[i] = new_top;
            float part = 0.0f;
            UNROLL for (int n = 0; n < KEYS / 8; n++)
                UNROLL for (int e = 2 * i; e < 2 * i + 2; e++) {
                    s[n][e] = exp2_fast(fma1(s[n][e], a.scale2, -base));
                    part += s[n][e];
                }
            sum[i] = sum[i] * shrink[i] + part;
        }
    };
    auto pack = [&](const float (&s)[16][4]) {
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
    multiply(s, 0);
    wgmma_wait<0>(s);
    release(k_empty, 0);
    // Only here do queries meet keys behind their own; behind the last key of a sequence lie no rows that are kept.
    UNROLL for (int n = 0; n < KEYS / 8; n++)
        UNROLL for (int e = 0; e < 4; e++) {
            const i32 ahead = 8 * n + 2 * i32(t) + e % 2 - i32(group * 64 + own + g) - e / 2 * 8;
            if (ahead > 0) s[n][e] = minus_infinity();
        }
    soften(s);
    pack(s);
    UNROLL for (int n = 0; n < D / 8; n++)
        UNROLL for (int e = 0; e < 4; e++) o[n][e] = 0.0f;
    for (i32 i = 1; i < turns; i++) {
        barrier_wait(k_full + i % STAGES, u32(i / STAGES) & 1);
        wgmma_fence();
        multiply(s, i);
        barrier_wait(v_full + (i - 1) % STAGES, u32((i - 1) / STAGES) & 1);
        weigh(i - 1);
        wgmma_wait<1>(s);
        release(k_empty, i);
        soften(s);
        wgmma_wait<0>(o);
        release(v_empty, i - 1);
        UNROLL for (int n = 0; n < D / 8; n++)
            UNROLL for (int e = 0; e < 4; e++) o[n][e] *= shrink[e / 2];
        pack(s);
    }
    barrier_wait(v_full + (turns - 1) % STAGES, u32((turns - 1) / STAGES) & 1);
    wgmma_fence();
    weigh(turns - 1);
    wgmma_wait<0>(o);

    float over[2];
    UNROLL for (int i = 0; i < 2; i++) {
        sum[i] += shfl_xor(sum[i], 1);
        sum[i] += shfl_xor(sum[i], 2);
        over[i] = 1.0f / sum[i];
        const i32 row = first + 8 * i + i32(g);
        if (t == 0 && row < rows) a.lse[line_of(a, b, h) + u64(row)] = fma1(top[i], a.scale2, log2_fast(sum[i])) * LN2;
    }
    // The output goes through where this group's queries lay; all its warps have read them.
    sync_some(1 + group, 128);
    float all[1][D / 8][4];
    UNROLL for (int n = 0; n < D / 8; n++)
        UNROLL for (int e = 0; e < 4; e++) all[0][n][e] = o[n][e];
    tile_out<bf16, D, 1>(all, over, mine, own, as<bf16>(a.out) + query_head(a, b, h), u64(a.heads) * D, first, rows);
}

KERNEL(384, 1) flash_hopper_64(TENSOR_MAP(q), TENSOR_MAP(k), TENSOR_MAP(v), Attend a) { hopper_forward<64>(&q, &k, &v, a); }
EXPORT(flash_hopper_64)
KERNEL(384, 1) flash_hopper_128(TENSOR_MAP(q), TENSOR_MAP(k), TENSOR_MAP(v), Attend a) { hopper_forward<128>(&q, &k, &v, a); }
EXPORT(flash_hopper_128)
