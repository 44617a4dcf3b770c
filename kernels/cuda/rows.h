// How threads share the rows of a matrix.
#pragma once
#include "prelude.h"

// A team is a warp, or all threads of a block; it has one row at a time. Every thread has eight columns at a time: neighbours
// where the width is a multiple of eight, so that they can be one or two words; else columns that lie a team apart, so that
// neighbouring threads read neighbours. Who has which column depends on the width and the team alone: a row has the same
// bits wherever it lies.
struct Walk {
    u64 cols;
    u32 team, gap, start;
    bool wide;
};
DEVICE Walk walk(u64 cols, u32 team, bool aligned) {
    const bool even = cols % 8 == 0;
    const u32 me = tid() % team;
    return Walk{cols, team, even ? 1 : team, even ? me * 8 : me, even && aligned};
}
// The row of this thread's team, if every team has one row.
DEVICE u64 row_of(u32 team) { return u64(bid_x()) * (threads() / team) + tid() / team; }

// This thread's eight of the `8 * team` columns from `base` on; `none` where the row has ended.
DEVICE void take(Run run, u64 row, const Walk &w, u64 base, float (&x)[8], float none = 0) {
    const u64 i = base + w.start, at = row * w.cols + i;
    if (w.wide && i < w.cols) return load8(run, at, x);
    UNROLL for (u32 j = 0; j < 8; j++) x[j] = i + u64(j) * w.gap < w.cols ? load(run, at + u64(j) * w.gap) : none;
}
DEVICE void give(Run run, u64 row, const Walk &w, u64 base, const float (&x)[8]) {
    const u64 i = base + w.start, at = row * w.cols + i;
    if (w.wide) {
        if (i < w.cols) store8(run, at, x);
        return;
    }
    UNROLL for (u32 j = 0; j < 8; j++)
        if (i + u64(j) * w.gap < w.cols) store(run, at + u64(j) * w.gap, x[j]);
}

// Over a team, on all its threads; `aside` holds 32 elements of shared memory.
DEVICE float team_sum(float x, u32 team, float *aside) { return team == WARP ? warp_sum(x) : block_sum(x, aside); }
