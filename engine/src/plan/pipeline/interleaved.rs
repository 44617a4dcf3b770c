//! Interleaved 1F1B (Narayanan et al. 2021, section 2.2.2), in the order of Megatron-LM and of PyTorch's
//! ScheduleInterleaved1F1B: micro-batches go through the chunks in groups of as many as there are stages.

use super::{Pass, Pipeline};

pub(super) fn passes(pipeline: &Pipeline, stage: usize) -> Vec<Pass> {
    let Pipeline { stages, chunks, micros, .. } = *pipeline;
    let all = chunks * micros;
    // How many groups came before, the place in the order of chunks, the place in the group.
    let place = |number: usize| (number / (stages * chunks), number / stages % chunks, number % stages);
    let forward = |number| {
        let (group, chunk, at) = place(number);
        Pass::Forward { chunk, micro: group * stages + at }
    };
    let backward = |number| {
        let (group, behind, at) = place(number);
        Pass::Backward { chunk: chunks - 1 - behind, micro: group * stages + at }
    };
    let ahead = (2 * (stages - 1 - stage) + (chunks - 1) * stages).min(all);
    let mut list: Vec<Pass> = (0..ahead).map(forward).collect();
    for number in 0..all {
        list.extend((ahead + number < all).then(|| forward(ahead + number)));
        list.push(backward(number));
    }
    list
}
