// A mixture of experts: routing, and moving rows to their experts and back.
#include "prelude.h"

static const u32 NONE = ~0u;

// What `route` wrote: of each choice its expert, of each slot its choice, of each choice its slot.
struct Indices {
    const u32 *ids, *order, *places;
    u64 slots;
    u32 experts, top;
    // Where to write what is wrong with them.
    u32 *faults;
};
enum : u32 { EXPERTS = 4 };

DEVICE void report(const Indices &n, u64 choice, u32 named) { fault(n.faults, EXPERTS, u32(choice), named); }
// The choice of a slot, NONE where it has none of its own; one lane says so.
DEVICE u32 choice_of(const Indices &n, u64 slot, bool says) {
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
DEVICE u32 slot_of(const Indices &n, u64 choice, bool says) {
    const u32 id = n.ids[choice], place = n.places[choice];
    if (id < n.experts && place < n.slots && n.order[place] == choice) return place;
    if (says) report(n, choice, id < n.experts ? place : id);
    return NONE;
}

DEVICE u64 own_warp() { return u64(bid_x()) * (threads() / WARP) + warp(); }
DEVICE u64 all_warps() { return u64(blocks_x()) * (threads() / WARP); }

// The softmax's sum over all experts of a row, on all lanes.
DEVICE float mass(Run logits, u64 row, u32 experts, float most) {
    float sum = 0;
    for (u32 e = lane(); e < experts; e += WARP) sum += exp_near(load(logits, row * experts + e) - most);
    return warp_sum(sum);
}

// A warp finds a row's best experts, the best first: each time the best behind the one found last. `as` is the type that
// weights are rounded to.
KERNEL(256) route_choose(Run logits, u64 rows, u32 experts, u32 top, u32 normalised, u32 type, float *weights, u32 *ids) {
    for (u64 row = own_warp(); row < rows; row += all_warps()) {
        float last = 0, first = 0;
        u32 last_id = 0;
        double sum = 0;
        for (u32 j = 0; j < top; j++) {
            float best = -bits_to_float(0x7f800000u);
            u32 id = NONE;
            for (u32 e = lane(); e < experts; e += WARP) {
                const float logit = load(logits, row * experts + e), key = logit != logit ? bits_to_float(0x7f800000u) : logit;
                const bool left = j == 0 || key < last || (key == last && e > last_id);
                if (left && (key > best || (key == best && e < id))) best = key, id = e;
            }
            UNROLL for (u32 mask = WARP / 2; mask > 0; mask /= 2) {
                const float other = shfl_xor(best, mask);
                const u32 its = shfl_xor(id, mask);
                if (other > best || (other == best && its < id)) best = other, id = its;
            }
            if (j == 0) first = best;
            last = best, last_id = id;
            const float power = exp_near(best - first);
            sum += double(power);
            if (lane() == j % WARP) ids[row * top + j] = id, weights[row * top + j] = power;
        }
        const float factor = float(1.0 / (normalised ? sum : double(mass(logits, row, experts, first))));
        for (u32 j = lane(); j < top; j += WARP) weights[row * top + j] = rounded(type, mul_rn(weights[row * top + j], factor));
    }
}
EXPORT(route_choose)

// Choices are sorted in chunks, each of which a warp goes through in order. First how many of a chunk go to each expert.
KERNEL(32) route_count(const u32 *ids, u64 slots, u32 chunk, u32 experts, u32 *counts) {
    DYNAMIC(u32, own);
    for (u32 e = lane(); e < experts; e += WARP) own[e] = 0;
    sync_warp();
    const u64 start = u64(bid_x()) * chunk, end = start + chunk < slots ? start + chunk : slots;
    for (u64 base = start; base < end; base += WARP) {
        const u32 id = base + lane() < end ? ids[base + lane()] : NONE, same = match_any(id);
        if (id != NONE && (same & ((1u << lane()) - 1)) == 0) own[id] += bit_count(same);
        sync_warp();
    }
    for (u32 e = lane(); e < experts; e += WARP) counts[u64(bid_x()) * experts + e] = own[e];
}
EXPORT(route_count)

// Then where an expert's slots begin, and a chunk's among them, in place of the counts. Of one chunk these are the same, and so
// may be their memory.
KERNEL(256) route_scan(u32 *counts, u32 *offsets, u32 chunks, u32 experts) {
    SHARED(u32, sums, 256);
    const u32 each = (experts + threads() - 1) / threads(), from = tid() * each;
    const u32 to = from + each < experts ? from + each : experts;
    u32 sum = 0;
    for (u32 e = from; e < to; e++)
        for (u32 c = 0; c < chunks; c++) sum += counts[u64(c) * experts + e];
    sums[tid()] = sum;
    sync_block();
    for (u32 d = 1; d < threads(); d *= 2) {
        const u32 before = tid() >= d ? sums[tid() - d] : 0;
        sync_block();
        sums[tid()] += before;
        sync_block();
    }
    u32 next = sums[tid()] - sum;
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

// Then every choice goes to its slot, behind those before it that go to the same expert.
KERNEL(32) route_place(const u32 *ids, u64 slots, u32 chunk, u32 experts, const u32 *starts, u32 *order) {
    DYNAMIC(u32, next);
    for (u32 e = lane(); e < experts; e += WARP) next[e] = starts[u64(bid_x()) * experts + e];
    sync_warp();
    const u64 start = u64(bid_x()) * chunk, end = start + chunk < slots ? start + chunk : slots;
    for (u64 base = start; base < end; base += WARP) {
        const u32 id = base + lane() < end ? ids[base + lane()] : NONE, same = match_any(id);
        const u32 before = bit_count(same & ((1u << lane()) - 1)), at = id == NONE ? 0 : next[id];
        sync_warp();
        if (id != NONE) {
            order[at + before] = u32(base + lane());
            if (before == 0) next[id] = at + bit_count(same);
        }
        sync_warp();
    }
}
EXPORT(route_place)

KERNEL(256) route_invert(const u32 *order, u32 *places, u64 slots) {
    for (u64 i = u64(bid_x()) * threads() + tid(); i < slots; i += u64(blocks_x()) * threads()) places[order[i]] = u32(i);
}
EXPORT(route_invert)

// A warp makes a row's weights again, and from their gradient that of the logits.
KERNEL(256) route_backward(Indices n, Run logits, const float *dweights, Run dlogits, u64 rows, u32 normalised) {
    for (u64 row = own_warp(); row < rows; row += all_warps()) {
        const u64 at = row * n.experts;
        const u32 *ids = n.ids + row * n.top;
        const float *gradients = dweights + row * n.top;
        // An id that is no expert is reported, and left out.
        const u32 first = n.top > 0 && ids[0] < n.experts ? ids[0] : 0;
        const float most = n.top > 0 ? load(logits, at + first) : 0.0f;
        double sum = 0, products = 0;
        for (u32 j = lane(); j < n.top; j += WARP) {
            if (ids[j] < n.experts) sum += double(exp_near(load(logits, at + ids[j]) - most));
            else report(n, row * n.top + j, ids[j]);
        }
        sum = normalised ? warp_sum(sum) : double(mass(logits, row, n.experts, most));
        const float factor = float(1.0 / sum);
        for (u32 j = lane(); j < n.top; j += WARP)
            if (ids[j] < n.experts) products += double(exp_near(load(logits, at + ids[j]) - most) * factor) * double(gradients[j]);
        const float mean = float(warp_sum(products));
        for (u32 e = lane(); e < n.experts; e += WARP)
            store(dlogits, at + e, normalised ? 0.0f : -exp_near(load(logits, at + e) - most) * factor * mean);
        sync_warp();
        for (u32 j = lane(); j < n.top; j += WARP)
            if (ids[j] < n.experts) store(dlogits, at + ids[j], exp_near(load(logits, at + ids[j]) - most) * factor * (gradients[j] - mean));
    }
}
EXPORT(route_backward)

// A warp copies the row of a slot.
KERNEL(256) dispatch(Indices n, Run x, Run y, u64 cols) {
    const u32 size = x.type == F32 ? 4 : 2;
    const bool wide = is_wide(x) && is_wide(y) && cols * size % 16 == 0;
    for (u64 slot = own_warp(); slot < n.slots; slot += all_warps()) {
        const u32 choice = choice_of(n, slot, lane() == 0);
        if (choice == NONE) continue;
        const u64 from = choice / n.top * cols, to = slot * cols;
        if (wide) {
            const char *source = as<char>(x) + from * size;
            char *target = as<char>(y) + to * size;
            for (u64 i = lane() * 16; i < cols * size; i += WARP * 16) store_quad(target + i, load_quad(source + i));
        } else if (size == 4) {
            for (u64 i = lane(); i < cols; i += WARP) as<u32>(y)[to + i] = as<u32>(x)[from + i];
        } else {
            for (u64 i = lane(); i < cols; i += WARP) as<u16>(y)[to + i] = as<u16>(x)[from + i];
        }
    }
}
EXPORT(dispatch)

// A warp sums 256 columns of a row, in the order of choices. `weights` may be null: each counts as it is.
KERNEL(256) combine(Indices n, Run x, const float *weights, u32 accumulate, Run y, u64 rows, u64 cols) {
    const u64 parts = (cols + 255) / 256;
    const bool wide = is_wide(x) && is_wide(y) && cols % 8 == 0;
    for (u64 work = own_warp(); work < rows * parts; work += all_warps()) {
        const u64 row = work / parts, part = work % parts, column = part * 256 + lane() * 8;
        float sum[8] = {}, old[8] = {};
        for (u32 j = 0; j < n.top; j++) {
            const u64 choice = row * n.top + j;
            const u32 slot = slot_of(n, choice, part == 0 && lane() == 0);
            if (slot == NONE || column >= cols) continue;
            const float weight = weights ? weights[choice] : 1.0f;
            float values[8];
            load_some(x, wide, slot * cols + column, (slot + u64(1)) * cols, values);
            UNROLL for (int i = 0; i < 8; i++) sum[i] = fma1(weight, values[i], sum[i]);
        }
        if (column >= cols) continue;
        const u64 at = row * cols + column, end = (row + 1) * cols;
        if (accumulate) {
            load_some(y, wide, at, end, old);
            UNROLL for (int i = 0; i < 8; i++) sum[i] = add_rn(old[i], sum[i]);
        }
        store_some(y, wide, at, end, sum);
    }
}
EXPORT(combine)

// A warp takes the product of a slot's two rows, and multiplies both by the slot's weight.
KERNEL(256) weigh(Indices n, const float *weights, Run x, Run dx, float *dweights, u64 cols) {
    const bool wide = is_wide(x) && is_wide(dx) && cols % 8 == 0;
    for (u64 slot = own_warp(); slot < n.slots; slot += all_warps()) {
        const u32 choice = choice_of(n, slot, lane() == 0);
        if (choice == NONE) continue;
        const float weight = weights[choice];
        const u64 end = (slot + 1) * cols;
        float dot = 0;
        for (u64 i = slot * cols + lane() * 8; i < end; i += WARP * 8) {
            if (wide) {
                float a[8], b[8];
                load8(x, i, a);
                load8(dx, i, b);
                UNROLL for (int j = 0; j < 8; j++) {
                    dot = fma1(a[j], b[j], dot);
                    a[j] = mul_rn(a[j], weight);
                    b[j] = mul_rn(b[j], weight);
                }
                store8(x, i, a);
                store8(dx, i, b);
            } else {
                for (u64 k = i; k < i + 8 && k < end; k++) {
                    const float a = load(x, k), b = load(dx, k);
                    dot = fma1(a, b, dot);
                    store(x, k, mul_rn(a, weight));
                    store(dx, k, mul_rn(b, weight));
                }
            }
        }
        dot = warp_sum(dot);
        if (lane() == 0) dweights[choice] = dot;
    }
}
EXPORT(weigh)
