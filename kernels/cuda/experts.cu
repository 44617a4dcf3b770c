// Mixture of experts: routing, dispatch to experts, combine.
//   warp_id, load_uint4, report_fault, EXPORT, SHARED, UNROLL
// defines: Run, as, load, store, load8, store8, load8_bounded, store8_bounded, is_aligned16, round_to, exp_4ulp, warp_sum, lane_id,
//   warp_id, load_uint4, report_fault, EXPORT, SHARED, UNROLL
#include "prelude.h"

static const u32 NONE = ~0u;

// Result of routing: the expert of each choice (row, rank), the choice of each slot, the slot of each choice.
struct Indices {
    const u32 *ids, *order, *places;
    u64 slots;
    u32 experts, top;
    // Where invalid indices are reported.
    u32 *faults;
};
enum : u32 { EXPERTS = 4 };

__device__ inline void report(const Indices &n, u64 choice, u32 named) { report_fault(n.faults, EXPERTS, u32(choice), named); }
// The choice of a slot; NONE, reported by one lane, if the indices contradict each other.
__device__ inline u32 choice_of(const Indices &n, u64 slot, bool says) {
    const u32 choice = n.order[slot];
    if (choice >= n.slots) {
        if (says) report(n, choice, u32(slot));
        return NONE;
    }
    const u32 id = n.ids[choice], place = n.places[choice];
    if (id < n.experts && place == slot) return choice;
    if (says) report(n, choice, id < n.experts ? place : id);
    return NONE;
}
// The slot of a choice, likewise.
__device__ inline u32 slot_of(const Indices &n, u64 choice, bool says) {
    const u32 id = n.ids[choice], place = n.places[choice];
    if (id < n.experts && place < n.slots && n.order[place] == choice) return place;
    if (says) report(n, choice, id < n.experts ? place : id);
    return NONE;
}

__device__ inline u64 global_warp() { return u64(blockIdx.x) * (blockDim.x / WARP_SIZE) + warp_id(); }
__device__ inline u64 warp_count() { return u64(gridDim.x) * (blockDim.x / WARP_SIZE); }

// The denominator of a row's softmax over all experts, on all lanes.
__device__ inline float softmax_sum(Run logits, u64 row, u32 experts, float most) {
    float sum = 0;
    for (u32 e = lane_id(); e < experts; e += WARP_SIZE) sum += exp_4ulp(load(logits, row * experts + e) - most);
    return warp_sum(sum);
}

// Top-k: a warp finds the best experts of a row one after the other, each the best below the one before. Weights are rounded to `type`.
extern "C" __global__ void __launch_bounds__(256) route_topk(Run logits, u64 rows, u32 experts, u32 top, u32 normalised, u32 type,
        float *weights, u32 *ids) {
    for (u64 row = global_warp(); row < rows; row += warp_count()) {
        float last = 0, first = 0;
        u32 last_id = 0;
        double sum = 0;
        for (u32 j = 0; j < top; j++) {
            float best = -INFINITY;
            u32 id = NONE;
            for (u32 e = lane_id(); e < experts; e += WARP_SIZE) {
                const float logit = load(logits, row * experts + e), key = logit != logit ? INFINITY : logit;
                const bool left = j == 0 || key < last || (key == last && e > last_id);
                if (left && (key > best || (key == best && e < id))) best = key, id = e;
            }
            UNROLL for (u32 mask = WARP_SIZE / 2; mask > 0; mask /= 2) {
                const float other = __shfl_xor_sync(~0u, best, mask);
                const u32 its = __shfl_xor_sync(~0u, id, mask);
                if (other > best || (other == best && its < id)) best = other, id = its;
            }
            if (j == 0) first = best;
            last = best, last_id = id;
            const float power = exp_4ulp(best - first);
            sum += double(power);
            if (lane_id() == j % WARP_SIZE) ids[row * top + j] = id, weights[row * top + j] = power;
        }
        const float factor = float(1.0 / (normalised ? sum : double(softmax_sum(logits, row, experts, first))));
        for (u32 j = lane_id(); j < top; j += WARP_SIZE) weights[row * top + j] = round_to(type, __fmul_rn(weights[row * top + j], factor));
    }
}
EXPORT(route_topk)

// A stable counting sort of choices by expert, in chunks, one warp each. First: a histogram of each chunk.
extern "C" __global__ void __launch_bounds__(32) route_histogram(const u32 *ids, u64 slots, u32 chunk, u32 experts, u32 *counts) {
    u32 *own = reinterpret_cast<u32 *>(dynamic_shared);
    for (u32 e = lane_id(); e < experts; e += WARP_SIZE) own[e] = 0;
    __syncwarp();
    const u64 start = u64(blockIdx.x) * chunk, end = start + chunk < slots ? start + chunk : slots;
    for (u64 base = start; base < end; base += WARP_SIZE) {
        const u32 id = base + lane_id() < end ? ids[base + lane_id()] : NONE, same = __match_any_sync(~0u, id);
        if (id != NONE && (same & ((1u << lane_id()) - 1)) == 0) own[id] += __popc(same);
        __syncwarp();
    }
    for (u32 e = lane_id(); e < experts; e += WARP_SIZE) counts[u64(blockIdx.x) * experts + e] = own[e];
}
EXPORT(route_histogram)

// Second: exclusive prefix sums, by expert and then chunk, in place of the counts. With one chunk `counts` and `offsets` may be the
// same memory.
extern "C" __global__ void __launch_bounds__(256) route_scan(u32 *counts, u32 *offsets, u32 chunks, u32 experts) {
    SHARED(u32, sums, 256);
    const u32 each = (experts + blockDim.x - 1) / blockDim.x, from = threadIdx.x * each;
    const u32 to = from + each < experts ? from + each : experts;
    u32 sum = 0;
    for (u32 e = from; e < to; e++)
        for (u32 c = 0; c < chunks; c++) sum += counts[u64(c) * experts + e];
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (u32 d = 1; d < blockDim.x; d *= 2) {
        const u32 before = threadIdx.x >= d ? sums[threadIdx.x - d] : 0;
        __syncthreads();
        sums[threadIdx.x] += before;
        __syncthreads();
    }
    u32 next = sums[threadIdx.x] - sum;
    for (u32 e = from; e < to; e++) {
        const u32 first = next;
        for (u32 c = 0; c < chunks; c++) {
            u32 *count = counts + u64(c) * experts + e;
            const u32 many = *count;
            *count = next;
            next += many;
        }
        offsets[e] = first;
        if (e + 1 == experts) offsets[experts] = next;
    }
}
EXPORT(route_scan)

// Third: every choice goes to its slot, behind earlier choices of the same expert.
extern "C" __global__ void __launch_bounds__(32) route_scatter(const u32 *ids, u64 slots, u32 chunk, u32 experts, const u32 *starts,
        u32 *order) {
    u32 *next = reinterpret_cast<u32 *>(dynamic_shared);
    for (u32 e = lane_id(); e < experts; e += WARP_SIZE) next[e] = starts[u64(blockIdx.x) * experts + e];
    __syncwarp();
    const u64 start = u64(blockIdx.x) * chunk, end = start + chunk < slots ? start + chunk : slots;
    for (u64 base = start; base < end; base += WARP_SIZE) {
        const u32 id = base + lane_id() < end ? ids[base + lane_id()] : NONE, same = __match_any_sync(~0u, id);
        const u32 before = __popc(same & ((1u << lane_id()) - 1)), at = id == NONE ? 0 : next[id];
        __syncwarp();
        if (id != NONE) {
            order[at + before] = u32(base + lane_id());
            if (before == 0) next[id] = at + __popc(same);
        }
        __syncwarp();
    }
}
EXPORT(route_scatter)

extern "C" __global__ void __launch_bounds__(256) route_invert(const u32 *order, u32 *places, u64 slots) {
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < slots; i += u64(gridDim.x) * blockDim.x) places[order[i]] = u32(i);
}
EXPORT(route_invert)

// A warp recomputes a row's weights, and from their gradient that of the logits.
extern "C" __global__ void __launch_bounds__(256) route_backward(Indices n, Run logits, const float *dweights, Run dlogits, u64 rows,
        u32 normalised) {
    for (u64 row = global_warp(); row < rows; row += warp_count()) {
        const u64 at = row * n.experts;
        const u32 *ids = n.ids + row * n.top;
        const float *gradients = dweights + row * n.top;
        // An invalid id is reported and skipped.
        const u32 first = n.top > 0 && ids[0] < n.experts ? ids[0] : 0;
        const float most = n.top > 0 ? load(logits, at + first) : 0.0f;
        double sum = 0, products = 0;
        for (u32 j = lane_id(); j < n.top; j += WARP_SIZE) {
            if (ids[j] < n.experts) sum += double(exp_4ulp(load(logits, at + ids[j]) - most));
            else report(n, row * n.top + j, ids[j]);
        }
        sum = normalised ? warp_sum(sum) : double(softmax_sum(logits, row, n.experts, most));
        const float factor = float(1.0 / sum);
        for (u32 j = lane_id(); j < n.top; j += WARP_SIZE)
            if (ids[j] < n.experts) products += double(exp_4ulp(load(logits, at + ids[j]) - most) * factor) * double(gradients[j]);
        const float mean = float(warp_sum(products));
        for (u32 e = lane_id(); e < n.experts; e += WARP_SIZE)
            store(dlogits, at + e, normalised ? 0.0f : -exp_4ulp(load(logits, at + e) - most) * factor * mean);
        __syncwarp();
        for (u32 j = lane_id(); j < n.top; j += WARP_SIZE)
            if (ids[j] < n.experts)
                store(dlogits, at + ids[j], exp_4ulp(load(logits, at + ids[j]) - most) * factor * (gradients[j] - mean));
    }
}
EXPORT(route_backward)

// A warp copies the row of a slot.
extern "C" __global__ void __launch_bounds__(256) dispatch(Indices n, Run x, Run y, u64 cols) {
    const u32 size = x.type == F32 ? 4 : 2;
    const bool vectorized = is_aligned16(x) && is_aligned16(y) && cols * size % 16 == 0;
    for (u64 slot = global_warp(); slot < n.slots; slot += warp_count()) {
        const u32 choice = choice_of(n, slot, lane_id() == 0);
        if (choice == NONE) continue;
        const u64 from = choice / n.top * cols, to = slot * cols;
        if (vectorized) {
            const char *source = as<char>(x) + from * size;
            char *target = as<char>(y) + to * size;
            for (u64 i = lane_id() * 16; i < cols * size; i += WARP_SIZE * 16) store_uint4(target + i, load_uint4(source + i));
        } else if (size == 4) {
            for (u64 i = lane_id(); i < cols; i += WARP_SIZE) as<u32>(y)[to + i] = as<u32>(x)[from + i];
        } else {
            for (u64 i = lane_id(); i < cols; i += WARP_SIZE) as<u16>(y)[to + i] = as<u16>(x)[from + i];
        }
    }
}
EXPORT(dispatch)

// A warp sums 256 columns of a row, in the order of choices. Null `weights`: all are 1.
extern "C" __global__ void __launch_bounds__(256) combine(Indices n, Run x, const float *weights, u32 accumulate, Run y, u64 rows,
        u64 cols) {
    const u64 parts = (cols + 255) / 256;
    const bool vectorized = is_aligned16(x) && is_aligned16(y) && cols % 8 == 0;
    for (u64 work = global_warp(); work < rows * parts; work += warp_count()) {
        const u64 row = work / parts, part = work % parts, column = part * 256 + lane_id() * 8;
        float sum[8] = {}, old[8] = {};
        for (u32 j = 0; j < n.top; j++) {
            const u64 choice = row * n.top + j;
            const u32 slot = slot_of(n, choice, part == 0 && lane_id() == 0);
            if (slot == NONE || column >= cols) continue;
            const float weight = weights ? weights[choice] : 1.0f;
            float values[8];
            load8_bounded(x, vectorized, slot * cols + column, (slot + u64(1)) * cols, values);
            UNROLL for (int i = 0; i < 8; i++) sum[i] = fmaf(weight, values[i], sum[i]);
        }
        if (column >= cols) continue;
        const u64 at = row * cols + column, end = (row + 1) * cols;
        if (accumulate) {
            load8_bounded(y, vectorized, at, end, old);
            UNROLL for (int i = 0; i < 8; i++) sum[i] = __fadd_rn(old[i], sum[i]);
        }
        store8_bounded(y, vectorized, at, end, sum);
    }
}
EXPORT(combine)

// Backward of the weights: the dot product of a slot's rows x and dx; then both are multiplied by the slot's weight.
extern "C" __global__ void __launch_bounds__(256) weigh(Indices n, const float *weights, Run x, Run dx, float *dweights, u64 cols) {
    const bool vectorized = is_aligned16(x) && is_aligned16(dx) && cols % 8 == 0;
    for (u64 slot = global_warp(); slot < n.slots; slot += warp_count()) {
        const u32 choice = choice_of(n, slot, lane_id() == 0);
        if (choice == NONE) continue;
        const float weight = weights[choice];
        const u64 end = (slot + 1) * cols;
        float dot = 0;
        for (u64 i = slot * cols + lane_id() * 8; i < end; i += WARP_SIZE * 8) {
            if (vectorized) {
                float a[8], b[8];
                load8(x, i, a);
                load8(dx, i, b);
                UNROLL for (int j = 0; j < 8; j++) {
                    dot = fmaf(a[j], b[j], dot);
                    a[j] = __fmul_rn(a[j], weight);
                    b[j] = __fmul_rn(b[j], weight);
                }
                store8(x, i, a);
                store8(dx, i, b);
            } else {
                for (u64 k = i; k < i + 8 && k < end; k++) {
                    const float a = load(x, k), b = load(dx, k);
                    dot = fmaf(a, b, dot);
                    store(x, k, __fmul_rn(a, weight));
                    store(dx, k, __fmul_rn(b, weight));
                }
            }
        }
        dot = warp_sum(dot);
        if (lane_id() == 0) dweights[choice] = dot;
    }
}
EXPORT(weigh)
