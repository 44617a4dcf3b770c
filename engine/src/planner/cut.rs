//! Where a model is cut into the stages of a pipeline.

use std::ops::Range;

/// Cuts layers into `parts` runs with at least one block each, so that the most expensive part costs as little as possible; of such
/// cuts it takes the one with the smallest sum of squares, and of those the one with the longest first parts. `costs` and `is_block` are
/// by layer. There are at least as many blocks as parts.
pub fn balanced(costs: &[u64], is_block: &[bool], parts: usize) -> Vec<Range<usize>> {
    let limit = best(costs, is_block, parts, |so_far, part| so_far.max(part)).0;
    let (_, cuts) = best(costs, is_block, parts, |so_far, part| {
        if part > limit { u128::MAX } else { so_far.saturating_add(part.saturating_mul(part)) }
    });
    cuts
}

/// The cut with the smallest total, which `add` makes of the parts' costs one after the other, beginning with 0.
fn best(costs: &[u64], is_block: &[bool], parts: usize, add: impl Fn(u128, u128) -> u128) -> (u128, Vec<Range<usize>>) {
    let layers = costs.len();
    // From the end: `totals[k][i]` is the smallest total of the layers from i on in k parts, and where the first of these ends.
    let mut totals = vec![vec![(u128::MAX, layers); layers + 1]; parts + 1];
    totals[0][layers] = (0, layers);
    for k in 1..=parts {
        for begin in 0..layers {
            let (mut cost, mut blocks) = (0u128, 0);
            for end in begin + 1..=layers {
                cost += u128::from(costs[end - 1]);
                blocks += usize::from(is_block[end - 1]);
                let (rest, _) = totals[k - 1][end];
                if blocks == 0 || rest == u128::MAX {
                    continue;
                }
                let total = add(rest, cost);
                if total <= totals[k][begin].0 && total != u128::MAX {
                    totals[k][begin] = (total, end);
                }
            }
        }
    }
    let mut begin = 0;
    let cuts = (1..=parts).rev().map(|k| {
        let end = totals[k][begin].1;
        std::mem::replace(&mut begin, end)..end
    });
    let cuts = cuts.collect();
    (totals[parts][0].0, cuts)
}

/// Cuts layers at the blocks whose numbers are given: the first block of each part but the first.
pub fn stated(firsts: &[usize], is_block: &[bool]) -> Vec<Range<usize>> {
    let blocks: Vec<usize> = (0..is_block.len()).filter(|layer| is_block[*layer]).collect();
    let begins = std::iter::once(0).chain(firsts.iter().skip(1).map(|block| blocks[*block]));
    let begins: Vec<usize> = begins.collect();
    let ends = begins.iter().skip(1).copied().chain([is_block.len()]);
    begins.iter().copied().zip(ends).map(|(begin, end)| begin..end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Embedding, blocks, head.
    fn model(blocks: &[u64], head: u64) -> (Vec<u64>, Vec<bool>) {
        let costs = [&[0], blocks, &[head]].concat();
        let is_block = (0..costs.len()).map(|layer| layer > 0 && layer <= blocks.len()).collect();
        (costs, is_block)
    }

    #[test]
    fn the_head_counts_and_first_stages_have_more() {
        let cut = |blocks: usize, head, parts| {
            let (costs, is_block) = model(&vec![10; blocks], head);
            balanced(&costs, &is_block, parts).iter().map(Range::len).collect::<Vec<_>>()
        };
        // With the embedding and the head.
        assert_eq!(cut(4, 0, 2), [3, 3]);
        assert_eq!(cut(9, 0, 4), [4, 2, 2, 3]);
        assert_eq!(cut(8, 20, 2), [6, 4]);
        assert_eq!(cut(8, 200, 4), [4, 2, 2, 2]);
        assert_eq!(cut(3, 5, 3), [2, 1, 2]);
        assert_eq!(cut(5, 5, 1), [7]);
    }

    #[test]
    fn stated_blocks_begin_their_stages() {
        let (_, is_block) = model(&[1; 8], 1);
        assert_eq!(stated(&[0, 3, 7], &is_block), [0..4, 4..8, 8..10]);
        assert_eq!(stated(&[0], &is_block), [0..10]);
    }

    proptest! {
        #[test]
        fn no_other_cut_is_better(blocks in prop::collection::vec(1u64..20, 1..8), head in 0u64..40, parts in 1usize..5) {
            prop_assume!(parts <= blocks.len());
            let (costs, is_block) = model(&blocks, head);
            let cost = |range: &Range<usize>| costs[range.clone()].iter().sum::<u64>();
            let cuts = balanced(&costs, &is_block, parts);
            let order = |cuts: &[Range<usize>]| {
                (cuts.iter().map(cost).max(), cuts.iter().map(|part| cost(part).pow(2)).sum::<u64>())
            };
            // All ways to choose where stages begin.
            let all = (0..1u32 << blocks.len()).filter(|bits| bits & 1 == 1 && bits.count_ones() as usize == parts);
            let firsts = all.map(|bits| (0..blocks.len()).filter(|block| bits >> block & 1 == 1).collect::<Vec<_>>());
            let least = firsts.map(|firsts| order(&stated(&firsts, &is_block))).min();
            prop_assert_eq!(Some(order(&cuts)), least);
            prop_assert!(cuts.iter().all(|part| part.clone().any(|layer| is_block[layer])));
        }
    }
}
