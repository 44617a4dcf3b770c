// How threads share the rows of a matrix.
#pragma once
// defines: Run, load, store, load8, store8, warp_sum, block_sum, UNROLL
#include "prelude.h"

// A team is a warp or a whole block and works on one row at a time. A thread has eight columns at a time: adjacent ones if the
// width is a multiple of eight (vectorized loads), else columns `team` apart (coalesced loads). The mapping depends on the width and
// the team only, never on alignment, so that a row's result has the same bits wherever the row lies.
struct ColumnMap {
    u64 cols;
    u32 team, stride, start;
    bool vectorized;
};
__device__ inline ColumnMap column_map(u64 cols, u32 team, bool aligned) {
    const bool even = cols % 8 == 0;
    const u32 me = threadIdx.x % team;
    return ColumnMap{cols, team, even ? 1 : team, even ? me * 8 : me, even && aligned};
}
// The row of this thread's team where every team has one row.
__device__ inline u64 team_row(u32 team) { return u64(blockIdx.x) * (blockDim.x / team) + threadIdx.x / team; }

// This thread's eight of the `8 * team` columns from `base` on; `fill` beyond the end of the row.
__device__ inline void load_columns(Run run, u64 row, const ColumnMap &map, u64 base, float (&x)[8], float fill = 0) {
    const u64 i = base + map.start, at = row * map.cols + i;
    if (map.vectorized && i < map.cols) return load8(run, at, x);
    UNROLL for (u32 j = 0; j < 8; j++) x[j] = i + u64(j) * map.stride < map.cols ? load(run, at + u64(j) * map.stride) : fill;
}
__device__ inline void store_columns(Run run, u64 row, const ColumnMap &map, u64 base, const float (&x)[8]) {
    const u64 i = base + map.start, at = row * map.cols + i;
    if (map.vectorized) {
        if (i < map.cols) store8(run, at, x);
        return;
    }
    UNROLL for (u32 j = 0; j < 8; j++)
        if (i + u64(j) * map.stride < map.cols) store(run, at + u64(j) * map.stride, x[j]);
}

// Sum over a team, returned on all its threads. `scratch` has 32 elements of shared memory.
__device__ inline float team_sum(float x, u32 team, float *scratch) { return team == WARP_SIZE ? warp_sum(x) : block_sum(x, scratch); }
