// Embedding, forward and backward. The gradient of a token is the sum of its rows in their order.
// defines: ColumnMap, column_map, team_row, load_columns, store_columns
#include "rows.h"

// out[row] = table[ids[row] - start]; a row has `words` words of `word` bytes. The table has `len` rows of a vocabulary of `vocab`
// words. The ids of other ranks' rows, and ids out of range, which are reported, give zeros.
extern "C" __global__ void __launch_bounds__(256) embedding(Run ids, Run table, Run out, u64 rows, u64 words, u32 word, u64 start, u64 len,
        u64 vocab, u32 team, u32 *faults) {
    const u64 row = team_row(team);
    if (row >= rows) return;
    const u32 me = threadIdx.x % team, id = as<u32>(ids)[row];
    if (id >= vocab && me == 0) report_fault(faults, 1, u32(row), id);
    // Unsigned: an id before the first row is far behind the last one.
    const bool found = id < vocab && id - start < len;
    const u64 from = (id - start) * words, to = row * words;
    for (u64 i = me; i < words; i += team) {
        if (word == 16) store_uint4(as<uint4>(out) + to + i, found ? load_uint4(as<uint4>(table) + from + i) : uint4{});
        else if (word == 4) as<u32>(out)[to + i] = found ? as<u32>(table)[from + i] : 0;
        else as<u16>(out)[to + i] = found ? as<u16>(table)[from + i] : 0;
    }
}
EXPORT(embedding)

// Backward, deterministic without atomics: rows are sorted by (id, row). These keys are unique, so every sorting algorithm gives the
// same order. Then each block sums the rows of each token in a window of WINDOW sorted rows. A token that started in an earlier window
// has its partial sum stored in `carried`, and embedding_carry adds these to the table in order. Where the table is a rank's part of
// a vocabulary, the ids of other ranks are sorted too and skipped then: a token has the same windows on every rank, hence the same bits.
static const u32 WINDOW = 32;
// Sorts last. The id of rows without a gradient.
static const u32 NONE = ~0u;
__device__ inline u32 id_of(u64 key) { return u32(key >> 32); }

// Keys of `count` rows from `first` on; a block sorts `tile` of them, a power of two (bitonic sort).
extern "C" __global__ void __launch_bounds__(512) embedding_sort(Run ids, u64 *keys, u64 first, u32 count, u32 tile, u64 vocab,
        u32 has_padding, u32 padding, u32 *faults) {
    u64 *key = reinterpret_cast<u64 *>(dynamic_shared);
    for (u32 i = threadIdx.x; i < tile; i += blockDim.x) {
        const u32 row = blockIdx.x * tile + i;
        u32 id = NONE;
        if (row < count) {
            id = as<u32>(ids)[first + row];
            if (id >= vocab) {
                report_fault(faults, 1, u32(first + row), id);
                id = NONE;
            }
            if (has_padding && id == padding) id = NONE;
        }
        key[i] = u64(id) << 32 | row;
    }
    __syncthreads();
    for (u32 size = 2; size <= tile; size *= 2)
        for (u32 gap = size / 2; gap > 0; gap /= 2) {
            for (u32 i = threadIdx.x; i < tile / 2; i += blockDim.x) {
                const u32 low = 2 * i - i % gap, high = low + gap;
                const u64 a = key[low], b = key[high];
                if ((a > b) == (low % (2 * size) < size)) {
                    key[low] = b;
                    key[high] = a;
                }
            }
            __syncthreads();
        }
    for (u32 i = threadIdx.x; i < tile; i += blockDim.x) keys[u64(blockIdx.x) * tile + i] = key[i];
}
EXPORT(embedding_sort)

// Merges pairs of `width` sorted keys: the rank of a key is its index plus the number of smaller keys in the other half.
extern "C" __global__ void __launch_bounds__(256) embedding_merge(const u64 *from, u64 *to, u32 count, u32 width) {
    const u32 i = blockIdx.x * 256 + threadIdx.x;
    if (i >= count) return;
    const u64 key = from[i];
    const u32 start = i / width * width, pair = i / (2 * width) * (2 * width), other = start == pair ? start + width : pair;
    u32 low = other, high = other < count ? (other + width < count ? other + width : count) : other;
    while (low < high) {
        const u32 middle = low + (high - low) / 2;
        if (from[middle] < key) low = middle + 1;
        else high = middle;
    }
    to[pair + (i - start) + (low - other)] = key;
}
EXPORT(embedding_merge)

// Sums the rows of a window, 1024 columns per block, into the table; for a token that continues from the window before, to
// carried[window]. The table has the ids from `start` on, `len` of them.
extern "C" __global__ void __launch_bounds__(128) embedding_sum(const u64 *keys, Run dy, Run table, Run carried, u64 first, u64 cols,
        u64 start, u64 len) {
    SHARED(u32, id, WINDOW + 1);
    SHARED(u32, row, WINDOW);
    const u64 window = blockIdx.x, from = window * WINDOW;
    // All are other ranks' tokens.
    if (id_of(keys[from + WINDOW - 1]) < start || id_of(keys[from]) >= start + len) return;
    if (threadIdx.x < WINDOW) {
        const u64 key = keys[from + threadIdx.x];
        id[threadIdx.x] = id_of(key);
        row[threadIdx.x] = u32(key);
    }
    if (threadIdx.x == WINDOW) id[WINDOW] = NONE;
    bool continues = window > 0 && id_of(keys[from]) == id_of(keys[from - (window > 0)]);
    __syncthreads();
    const ColumnMap map = column_map(cols, 128, is_aligned16(dy) && is_aligned16(table) && is_aligned16(carried));
    const u64 base = u64(blockIdx.y) * 1024;
    float sum[8] = {};
    for (u32 p = 0; p < WINDOW && id[p] != NONE; p += 2) {
        // Two rows are in flight at once.
        float v[2][8];
        UNROLL for (u32 q = 0; q < 2; q++)
            if (id[p + q] != NONE) load_columns(dy, first + row[p + q], map, base, v[q]);
        UNROLL for (u32 q = 0; q < 2; q++) {
            const u32 own = id[p + q];
            if (own == NONE) break;
            UNROLL for (int j = 0; j < 8; j++) sum[j] = __fadd_rn(sum[j], v[q][j]);
            if (id[p + q + 1] == own) continue;
            if (own - start < len) {
                if (!continues) {
                    float old[8];
                    load_columns(table, own - start, map, base, old);
                    UNROLL for (int j = 0; j < 8; j++) sum[j] = __fadd_rn(old[j], sum[j]);
                }
                store_columns(continues ? carried : table, continues ? window : own - start, map, base, sum);
            }
            continues = false;
            UNROLL for (int j = 0; j < 8; j++) sum[j] = 0;
        }
    }
}
EXPORT(embedding_sum)

// Adds the carried sums of a token to the table, in order. Block w works if a token is carried into window w + 1 that was not
// carried into the window before.
extern "C" __global__ void __launch_bounds__(128) embedding_carry(const u64 *keys, Run table, Run carried, u64 windows, u64 cols,
        u64 start, u64 len) {
    const u64 window = blockIdx.x + 1;
    auto head = [&](u64 w) { return id_of(keys[w * WINDOW]); };
    auto before = [&](u64 w) { return id_of(keys[w * WINDOW - 1]); };
    const u32 id = head(window);
    if (id == NONE || id - start >= len || before(window) != id) return;
    if (window > 1 && head(window - 1) == id && before(window - 1) == id) return;
    const ColumnMap map = column_map(cols, 128, is_aligned16(table) && is_aligned16(carried));
    const u64 base = u64(blockIdx.y) * 1024;
    float sum[8];
    load_columns(table, id - start, map, base, sum);
    for (u64 w = window; w < windows && head(w) == id; w++) {
        float v[8];
        load_columns(carried, w, map, base, v);
        UNROLL for (int j = 0; j < 8; j++) sum[j] = __fadd_rn(sum[j], v[j]);
    }
    store_columns(table, id - start, map, base, sum);
}
EXPORT(embedding_carry)
