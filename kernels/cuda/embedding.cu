// The embedding, and its gradient: sums over the rows of each token, in the rows' order.
#include "rows.h"

// out[row] = table[ids[row]], moved in words of `word` bytes, of which a row has `words`. An id outside counts as 0.
KERNEL(256) embedding(Run ids, Run table, Run out, u64 rows, u64 words, u32 word, u64 vocab, u32 team, u32 *faults) {
    const u64 row = row_of(team);
    if (row >= rows) return;
    const u32 me = tid() % team, given = as<u32>(ids)[row], id = given < vocab ? given : 0;
    if (id != given && me == 0) fault(faults, 1, u32(row), given);
    if (vocab == 0) return;
    const u64 from = id * words, to = row * words;
    for (u64 i = me; i < words; i += team) {
        if (word == 16) store_quad(as<quad>(out) + to + i, load_quad(as<quad>(table) + from + i));
        else if (word == 4) as<u32>(out)[to + i] = as<u32>(table)[from + i];
        else as<u16>(out)[to + i] = as<u16>(table)[from + i];
    }
}
EXPORT(embedding)

// The gradient wants the rows of a token together, in order. Rows are sorted by keys of id and row: no two are equal, so
// whatever way they are sorted the order is one. Then a block has WINDOW rows of that order and adds up each token's;
// what belongs to a token that began in a window before is carried to the table behind that.
static const u32 WINDOW = 32;
// No id: behind all others. Rows without gradient have it.
static const u32 NONE = ~0u;
DEVICE u32 id_of(u64 key) { return u32(key >> 32); }

// Keys of `count` rows from `first` on, sorted in each tile of `tile` keys, a power of two.
KERNEL(512) embedding_sort(Run ids, u64 *keys, u64 first, u32 count, u32 tile, u64 vocab, u32 has_padding, u32 padding, u32 *faults) {
    DYNAMIC(u64, key);
    for (u32 i = tid(); i < tile; i += threads()) {
        const u32 row = bid_x() * tile + i;
        u32 id = NONE;
        if (row < count) {
            id = as<u32>(ids)[first + row];
            if (id >= vocab) {
                fault(faults, 1, u32(first + row), id);
                id = NONE;
            }
            if (has_padding && id == padding) id = NONE;
        }
        key[i] = u64(id) << 32 | row;
    }
    sync_block();
    for (u32 size = 2; size <= tile; size *= 2)
        for (u32 gap = size / 2; gap > 0; gap /= 2) {
            for (u32 i = tid(); i < tile / 2; i += threads()) {
                const u32 low = 2 * i - i % gap, high = low + gap;
                const u64 a = key[low], b = key[high];
                if ((a > b) == (low % (2 * size) < size)) {
                    key[low] = b;
                    key[high] = a;
                }
            }
            sync_block();
        }
    for (u32 i = tid(); i < tile; i += threads()) keys[u64(bid_x()) * tile + i] = key[i];
}
EXPORT(embedding_sort)

// Runs of `width` sorted keys to runs of twice that: a key's place is its own and as many as the other run has before it.
KERNEL(256) embedding_merge(const u64 *from, u64 *to, u32 count, u32 width) {
    const u32 i = bid_x() * 256 + tid();
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

// Adds up the rows of a window, 1024 columns a block: to the table, or to carried[window] what belongs to the token that the
// window before ends with.
KERNEL(128) embedding_sum(const u64 *keys, Run dy, Run table, Run carried, u64 first, u64 cols) {
    SHARED(u32, id, WINDOW + 1);
    SHARED(u32, row, WINDOW);
    const u64 window = bid_x(), start = window * WINDOW;
    if (tid() < WINDOW) {
        const u64 key = keys[start + tid()];
        id[tid()] = id_of(key);
        row[tid()] = u32(key);
    }
    if (tid() == WINDOW) id[WINDOW] = NONE;
    bool continues = window > 0 && id_of(keys[start]) == id_of(keys[start - (window > 0)]);
    sync_block();
    const Walk way = walk(cols, 128, is_wide(dy) && is_wide(table) && is_wide(carried));
    const u64 base = u64(bid_y()) * 1024;
    float sum[8] = {};
    for (u32 p = 0; p < WINDOW && id[p] != NONE; p += 2) {
        // Two rows are on their way at once.
        float v[2][8];
        UNROLL for (u32 q = 0; q < 2; q++)
            if (id[p + q] != NONE) take(dy, first + row[p + q], way, base, v[q]);
        UNROLL for (u32 q = 0; q < 2; q++) {
            const u32 own = id[p + q];
            if (own == NONE) break;
            UNROLL for (int j = 0; j < 8; j++) sum[j] = add_rn(sum[j], v[q][j]);
            if (id[p + q + 1] == own) continue;
            if (!continues) {
                float old[8];
                take(table, own, way, base, old);
                UNROLL for (int j = 0; j < 8; j++) sum[j] = add_rn(old[j], sum[j]);
            }
            give(continues ? carried : table, continues ? window : own, way, base, sum);
            continues = false;
            UNROLL for (int j = 0; j < 8; j++) sum[j] = 0;
        }
    }
}
EXPORT(embedding_sum)

// Adds to the table what windows carried, a token's in order. Block w starts with window w + 1, where a token is carried that
// was not carried to the window before.
KERNEL(128) embedding_carry(const u64 *keys, Run table, Run carried, u64 windows, u64 cols) {
    const u64 window = bid_x() + 1;
    auto head = [&](u64 w) { return id_of(keys[w * WINDOW]); };
    auto before = [&](u64 w) { return id_of(keys[w * WINDOW - 1]); };
    const u32 id = head(window);
    if (id == NONE || before(window) != id) return;
    if (window > 1 && head(window - 1) == id && before(window - 1) == id) return;
    const Walk way = walk(cols, 128, is_wide(table) && is_wide(carried));
    const u64 base = u64(bid_y()) * 1024;
    float sum[8];
    take(table, id, way, base, sum);
    for (u64 w = window; w < windows && head(w) == id; w++) {
        float v[8];
        take(carried, w, way, base, v);
        UNROLL for (int j = 0; j < 8; j++) sum[j] = add_rn(sum[j], v[j]);
    }
    give(table, id, way, base, sum);
}
EXPORT(embedding_carry)
