//! Where a model is cut into the stages of a pipeline.

use std::ops::Range;

/// Cuts layers into `parts` runs with at least one block each, so that the most expensive part costs as little as possible, and the others
/// as near to the mean as that leaves room for. `costs` and `is_block` are by layer. There are at least as many blocks as parts.
pub fn balanced(costs: &[u64], is_block: &[bool], parts: usize) -> Vec<Range<usize>> {
    let layers = Layers::new(costs, is_block);
    // The least limit that some cut keeps to.
    let (mut low, mut high) = (0, layers.cost(0..costs.len()));
    while low < high {
        let middle = low + (high - low) / 2;
        if layers.ends(parts, middle).is_some() { high = middle } else { low = middle + 1 }
    }
    let ends = layers.ends(parts, high).unwrap_or_default();
    // From the end, where the head is, which no part shares: what it leaves is shared by the others.
    let (mut cuts, mut end) = (Vec::with_capacity(parts), costs.len());
    for before in (0..parts).rev() {
        // The parts before this one end no later than this, and this one has a block.
        let latest = ends.get(before).copied().unwrap_or(0).min(layers.last_block_before(end));
        let (left, mut begin) = (layers.cost(0..end), latest);
        // No more than the mean of what is left: the first parts have what cannot be shared evenly.
        let fits = |begin: usize| layers.cost(begin..end) * (before as u128 + 1) <= left;
        while begin > 0 && layers.blocks[begin - 1] >= before && fits(begin - 1) {
            begin -= 1;
        }
        let begin = if before == 0 { 0 } else { begin };
        cuts.push(begin..end);
        end = begin;
    }
    cuts.reverse();
    cuts
}

/// Sums over the layers before each.
struct Layers {
    costs: Vec<u128>,
    blocks: Vec<usize>,
}

impl Layers {
    fn new(costs: &[u64], is_block: &[bool]) -> Layers {
        let mut sums = Layers { costs: vec![0], blocks: vec![0] };
        let (mut cost, mut blocks) = (0, 0);
        for (of_layer, is_block) in costs.iter().zip(is_block) {
            (cost, blocks) = (cost + u128::from(*of_layer), blocks + usize::from(*is_block));
            sums.costs.push(cost);
            sums.blocks.push(blocks);
        }
        sums
    }

    fn cost(&self, range: Range<usize>) -> u128 {
        self.costs[range.end] - self.costs[range.start]
    }

    /// The last block of the layers before `end`.
    fn last_block_before(&self, end: usize) -> usize {
        self.blocks.partition_point(|before| *before < self.blocks[end]).saturating_sub(1)
    }

    /// Where the first part, the first two, … end at the latest, if none costs more than `limit`; nothing where no cut keeps to it. The
    /// first number is that of no part.
    fn ends(&self, parts: usize, limit: u128) -> Option<Vec<usize>> {
        let (all, blocks) = (self.costs.len() - 1, *self.blocks.last()?);
        let mut ends = vec![0];
        for behind in (0..parts).rev() {
            let begin = *ends.last()?;
            // As much as the limit allows, a block for each part behind.
            let end = self.costs.partition_point(|cost| *cost <= self.costs[begin] + limit) - 1;
            let end = end.min(self.blocks.partition_point(|before| before + behind <= blocks) - 1).min(all);
            if end < begin || self.blocks[end] == self.blocks[begin] {
                return None;
            }
            ends.push(end);
        }
        (ends.last() == Some(&all)).then_some(ends)
    }
}

/// Cuts layers at the blocks whose numbers are given: the first block of each part, where the first part has the layers before it, too.
pub fn stated(firsts: &[usize], is_block: &[bool]) -> Vec<Range<usize>> {
    let blocks: Vec<usize> = (0..is_block.len()).filter(|layer| is_block[*layer]).collect();
    let begins: Vec<usize> =
        std::iter::once(0).chain(firsts.iter().skip(1).filter_map(|block| blocks.get(*block).copied())).collect();
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
        assert_eq!(stated(&[0], &is_block).first(), Some(&(0..10)));
    }

    proptest! {
        #[test]
        fn no_other_cut_has_a_cheaper_most_expensive_part(
            blocks in prop::collection::vec(1u64..20, 1..8), head in 0u64..40, parts in 1usize..5,
        ) {
            prop_assume!(parts <= blocks.len());
            let (costs, is_block) = model(&blocks, head);
            let most = |cuts: &[Range<usize>]| cuts.iter().map(|part| costs[part.clone()].iter().sum::<u64>()).max();
            let cuts = balanced(&costs, &is_block, parts);
            prop_assert_eq!(cuts.len(), parts);
            prop_assert!(cuts.iter().all(|part| part.clone().any(|layer| is_block[layer])), "{:?}", cuts);
            let follow = cuts.windows(2).all(|pair| pair[0].end == pair[1].start);
            prop_assert!(follow && cuts[0].start == 0 && cuts[parts - 1].end == costs.len(), "{:?}", cuts);
            // All ways to choose where stages begin.
            let all = (0..1u32 << blocks.len()).filter(|bits| bits & 1 == 1 && bits.count_ones() as usize == parts);
            let firsts = all.map(|bits| (0..blocks.len()).filter(|block| bits >> block & 1 == 1).collect::<Vec<_>>());
            prop_assert_eq!(most(&cuts), firsts.map(|firsts| most(&stated(&firsts, &is_block))).min().flatten());
        }
    }
}
