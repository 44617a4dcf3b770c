//! Plans with fewer blocks. Most blocks of a model are alike, so a dry run performs some of them, and what one of them did is counted
//! for all that are left out.

use crate::actions::{Action, Policy};
use crate::model::{FlatKind, Layout};
use crate::plan::Plan;
use crate::strategy::Reshard;
use std::ops::Range;
use std::sync::Arc;

/// The longest repeating pattern of blocks that is looked for, in multiples of [`Policy::every`] blocks.
const LONGEST_PATTERN: usize = 8;

/// A plan without some blocks of the model, and what is counted for them.
pub struct ShortPlan {
    pub plan: Plan,
    pub repeats: Vec<Repeat>,
}

/// Units of a short plan that are counted again, because blocks that it leaves out repeat them.
pub struct Repeat {
    pub units: Range<usize>,
    /// How many times more they are counted.
    pub times: usize,
}

impl ShortPlan {
    /// Leaves out repeated blocks, but keeps as many on either side as the schedule looks ahead. `None` where no block can be left out.
    /// `assemble` makes the plan of a layout.
    pub fn of(whole: &Plan, prefetch: usize, assemble: impl FnOnce(Arc<Layout>) -> Plan) -> Option<ShortPlan> {
        // Where slots are given back during a step, what is in them differs at both ends of the model, as far as the schedule looks ahead.
        let never = whole.sharding.reshard == Reshard::Never;
        let margins = if never { [0, prefetch.max(1)] } else { [prefetch.saturating_add(1); 2] };
        let (left_out, period) = left_out(&whole.layout, &whole.policy, margins)?;
        let mut before = 0;
        let repeats = left_out.iter().map(|blocks| {
            let end = blocks.start - before + 1;
            before += blocks.len();
            Repeat { units: end - period..end, times: blocks.len() / period }
        });
        let repeats = repeats.collect();
        let mut layout = whole.layout.clone();
        left_out.iter().rev().for_each(|blocks| layout = Arc::new(layout.without(blocks.clone())));
        let short = ShortPlan { plan: assemble(layout), repeats };
        let stands_for = |few: &[Action], many: &[Action]| {
            let parts = micro_batches(few).flat_map(|actions| short.parts(actions));
            let counted = parts.flat_map(|(part, times)| std::iter::repeat_n(part, times)).flatten();
            let counted = counted.map(|action| of_kind(*action, &short.plan.layout));
            counted.eq(many.iter().map(|action| of_kind(*action, &whole.layout)))
        };
        let is_whole = lists(&short.plan).into_iter().zip(lists(whole)).all(|(few, many)| stands_for(few, many));
        is_whole.then_some(short)
    }

    /// The parts of a micro-batch's actions, in order, and how often each one counts.
    pub fn parts<'a>(&self, actions: &'a [Action]) -> Vec<(&'a [Action], usize)> {
        let behind = |action: Action| actions.iter().position(|other| *other == action).map(|at| at + 1);
        let between = |from, to| Some(behind(from)?..behind(to)?);
        // Where all slots stay until the end, they are given back there.
        let ends = |action: &Action| matches!(action, Action::Release { .. } | Action::Update);
        let last = actions.iter().rposition(|action| !ends(action)).map_or(0, |last| last + 1);
        let mut counted = Vec::new();
        for Repeat { units, times } in &self.repeats {
            let Range { start, end } = *units;
            let forward = between(Action::Forward { unit: start - 1 }, Action::Forward { unit: end - 1 });
            let backward = between(Action::Backward { unit: end }, Action::Backward { unit: start });
            let is_released = |at: &usize| matches!(actions[*at], Action::Release { unit } if units.contains(&unit));
            let released = (last..actions.len()).filter(is_released).map(|at| at..at + 1);
            counted.extend(forward.into_iter().chain(backward).chain(released).map(|range| (range, 1 + times)));
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

/// An action with the kind of its block in place of the block's number.
fn of_kind(mut action: Action, layout: &Layout) -> Action {
    if let Some(unit) = action.unit_mut() {
        *unit = match *unit {
            0 => 0,
            head if head == layout.head_unit() => usize::MAX,
            block => 1 + layout.same_as[block - 1],
        };
    }
    action
}

/// A list of actions by micro-batch. What follows the last micro-batch belongs to it.
pub fn micro_batches(actions: &[Action]) -> impl Iterator<Item = &[Action]> {
    actions.chunk_by(|_, next| !matches!(next, Action::Load { .. }))
}

fn lists(plan: &Plan) -> [&[Action]; 4] {
    [&plan.actions, &plan.evaluation.first, &plan.evaluation.next, &plan.evaluation.end]
}

/// The blocks that can be left out, in order, and after how many blocks they repeat themselves. `margins` is how many alike blocks stay
/// before and after those that are counted.
fn left_out(layout: &Layout, policy: &Policy, margins: [usize; 2]) -> Option<(Vec<Range<usize>>, usize)> {
    let kind = |block: usize| (layout.same_as[block], FlatKind::ALL.map(|part| layout.units[block + 1].flat(part).len));
    let kinds: Vec<_> = (0..layout.blocks.len()).map(kind).collect();
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
                let from = first + (before + 1) * period;
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
