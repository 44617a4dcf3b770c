//! Plans with fewer blocks. Most blocks of a model are alike, so a dry run performs some of them, and what one of them did is counted
//! for all that are left out.

use crate::action::Action;
use crate::config::Cell;
use crate::mesh::strategy::Reshard;
use crate::model::{FlatKind, Layout};
use crate::plan::schedule::Policy;
use crate::plan::{Plan, StagePlan};
use crate::state::buckets;
use std::ops::Range;
use std::sync::Arc;

/// The longest repeating pattern of blocks that is looked for, in multiples of [`Policy::every`] blocks.
const LONGEST_PATTERN: usize = 8;

/// A stage plan without some blocks of its layers, and what is counted for them.
pub struct CompressedPlan {
    pub stage_plan: StagePlan,
    pub repeats: Vec<Repeat>,
}

/// Layers of a compressed plan that are counted again, because blocks that it leaves out repeat them. Each has a unit of its own, with
/// the same number.
pub struct Repeat {
    pub layers: Range<usize>,
    /// How many times more they are counted.
    pub times: usize,
}

impl CompressedPlan {
    /// Leaves out repeated blocks, but keeps as many on either side as the schedule looks ahead. `None` where no block can be left out:
    /// also where gradients of several units are reduced together, since blocks then differ in what they reduce. `assemble` makes
    /// the stage plan of a layout.
    pub fn of(
        cell: &Cell,
        plan: &Plan,
        whole: &StagePlan,
        assemble: impl FnOnce(Arc<Layout>) -> StagePlan,
    ) -> Option<CompressedPlan> {
        // An update unit by unit has fetches of units before their turn, which no repeat of a block has.
        if cell.memory.offloads() {
            return None;
        }
        // Blocks are counted again within one chunk, and whole.
        let splits = |pass: &Action| matches!(pass, Action::BackwardInput { .. });
        if whole.layout.chunks.len() > 1 || whole.actions.iter().any(splits) {
            return None;
        }
        // Layers of one stack have units in their order.
        if whole.layout.layers.iter().enumerate().any(|(number, layer)| layer.unit != number) {
            return None;
        }
        let trains = |unit: &usize| whole.layout.units[*unit].trainable().len > 0;
        let reduced_together = |units: &Range<usize>| units.clone().filter(trains).count() > 1;
        if buckets(cell, &plan.sharding, &plan.mesh, &whole.layout).iter().any(reduced_together) {
            return None;
        }
        let prefetch = cell.parallel.prefetch;
        // Where slots are given back during a step, what is in them differs at both ends of the model, as far as the schedule looks ahead.
        let never = plan.sharding.reshard == Reshard::Never;
        let mut margins = if never { [0, prefetch.max(1)] } else { [prefetch.saturating_add(1); 2] };
        // What is counted of block n in backward begins with the reduction of block n + 1. That waits for the reduction of block n + 2.
        margins[1] = margins[1].max(2);
        // What is counted again begins behind another layer's actions, and leaves the gradient of its input.
        let first = usize::from(whole.layout.embedding().is_some());
        let is_first_like_others = first == 1 && whole.wants_gradient.get(first).is_some_and(|wanted| *wanted);
        margins[0] = margins[0].max(usize::from(!is_first_like_others));
        let (left_out, period) = left_out(&whole.layout, &plan.policy, margins)?;
        let mut before = 0;
        let repeats = left_out.iter().map(|layers| {
            let end = layers.start - before;
            before += layers.len();
            Repeat { layers: end - period..end, times: layers.len() / period }
        });
        let repeats = repeats.collect();
        let mut layout = whole.layout.clone();
        left_out.iter().rev().for_each(|layers| layout = Arc::new(layout.without(layers.clone())));
        let compressed = CompressedPlan { stage_plan: assemble(layout), repeats };
        let stands_for = |few: &[Action], many: &[Action]| {
            let parts = cycles(few, 1).flat_map(|actions| compressed.parts(actions));
            let counted = parts.flat_map(|(part, times)| std::iter::repeat_n(part, times)).flatten();
            let counted = counted.map(|action| of_kind(*action, &compressed.stage_plan.layout));
            counted.eq(many.iter().map(|action| of_kind(*action, &whole.layout)))
        };
        let is_whole =
            lists(&compressed.stage_plan).into_iter().zip(lists(whole)).all(|(few, many)| stands_for(few, many));
        is_whole.then_some(compressed)
    }

    /// The parts of a cycle's actions, in order, and how often each one counts.
    pub fn parts<'a>(&self, actions: &'a [Action]) -> Vec<(&'a [Action], usize)> {
        // Where all slots stay until the end, they are given back there.
        let ends =
            |action: &Action| matches!(action, Action::Release { .. } | Action::ReduceTied { .. } | Action::Update);
        let last = actions.iter().rposition(|action| !ends(action)).map_or(0, |last| last + 1);
        let mut counted = Vec::new();
        for Repeat { layers, times } in &self.repeats {
            let Range { start, end } = *layers;
            let (mut forward, mut backward) = (0, 0);
            for (at, action) in actions.iter().enumerate() {
                let behind = at + 1;
                match *action {
                    Action::Forward { layer, .. } if layer + 1 == start => forward = behind,
                    Action::Forward { layer, .. } if layer + 1 == end => counted.push((forward..behind, 1 + times)),
                    Action::Backward { layer, .. } if layer == end => backward = behind,
                    Action::Backward { layer, .. } if layer == start => counted.push((backward..behind, 1 + times)),
                    Action::Release { unit } if at >= last && layers.contains(&unit) => {
                        counted.push((at..behind, 1 + times));
                    }
                    _ => {}
                }
            }
        }
        counted.sort_by_key(|(range, _)| range.start);
        let (mut parts, mut done) = (Vec::new(), 0);
        for (range, times) in counted {
            parts.push((&actions[done..range.start], 1));
            done = range.end;
            parts.push((&actions[range], times));
        }
        parts.push((&actions[done..], 1));
        parts
    }
}

/// An action with the first of the layers that are like its own in place of its layer's or its unit's number.
fn of_kind(mut action: Action, layout: &Layout) -> Action {
    if let Some(place) = action.place_mut() {
        let is_block = layout.layers[*place].block().is_some();
        // What stands behind the blocks has another number in the compressed plan.
        *place = if is_block { layout.same_as[*place] } else { usize::MAX - usize::from(*place == 0) };
    }
    action
}

/// A list of actions by cycles: each begins with the forward of a micro-batch, or of so many. What follows the last one belongs to it.
pub fn cycles(actions: &[Action], micros: usize) -> impl Iterator<Item = &[Action]> {
    actions.chunk_by(move |_, next| !matches!(next, Action::Load { micro } if micro.is_multiple_of(micros)))
}

fn lists(stage_plan: &StagePlan) -> [&[Action]; 4] {
    [&stage_plan.actions, &stage_plan.evaluation.first, &stage_plan.evaluation.next, &stage_plan.evaluation.end]
}

/// The layers that can be left out, all of them blocks, in order, and after how many they repeat themselves. `margins` is how many alike blocks stay
/// before and after those that are counted.
fn left_out(layout: &Layout, policy: &Policy, margins: [usize; 2]) -> Option<(Vec<Range<usize>>, usize)> {
    let embedding = usize::from(layout.embedding().is_some());
    let kind = |layer: usize| (layout.same_as[layer], FlatKind::ALL.map(|part| layout.units[layer].flat(part).len));
    let blocks = layout.blocks().count();
    let kinds: Vec<_> = (embedding..embedding + blocks).map(kind).collect();
    let of_period = |period: usize| {
        let mut left_out = Vec::new();
        let (mut start, [before, behind]) = (0, margins.map(|blocks| blocks.div_ceil(period)));
        while start < kinds.len() {
            // A run of periods that are alike, from a block on whose input is kept.
            let first = start.next_multiple_of(policy.every);
            let alike =
                (first..kinds.len().saturating_sub(period)).take_while(|block| kinds[*block] == kinds[block + period]);
            let alike = alike.count();
            let times = ((alike + period) / period).saturating_sub(before + 1 + behind);
            if times > 0 {
                let from = embedding + first + (before + 1) * period;
                left_out.push(from..from + times * period);
            }
            start = if times > 0 { first + alike + period } else { first + alike + 1 };
        }
        (left_out, period)
    };
    let count = |(left_out, _): &(Vec<Range<usize>>, usize)| left_out.iter().map(Range::len).sum::<usize>();
    let mut best = (Vec::new(), 1);
    for period in (1..=LONGEST_PATTERN).map(|pattern| policy.every.saturating_mul(pattern)) {
        // No period leaves out more than all but the margins and one block.
        let is_best = count(&best).saturating_add(margins[0]).saturating_add(margins[1]) + 1 >= kinds.len();
        if is_best || period >= kinds.len() {
            break;
        }
        let found = of_period(period);
        best = if count(&found) > count(&best) { found } else { best };
    }
    (!best.0.is_empty()).then_some(best)
}
