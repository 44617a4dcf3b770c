//! Plans with fewer blocks. Most blocks of a model are alike, so a dry run performs some of them, and what one of them did is counted
//! for all that are left out.

use crate::actions::{Action, Policy};
use crate::model::{FlatKind, Layout};
use crate::plan::Plan;
use crate::strategy::Reshard;
use std::ops::Range;
use std::sync::Arc;

/// The longest pattern of blocks that is looked for; where few inputs are kept, in blocks from one kept input to the next.
const LONGEST_PATTERN: usize = 8;

/// A plan without some blocks of the model, and what is counted for them.
pub struct ShortPlan {
    pub plan: Plan,
    /// The units that are counted again, because the blocks left out repeat them.
    pub units: Range<usize>,
    /// How many times more they are counted.
    pub times: usize,
}

impl ShortPlan {
    /// A plan without blocks that repeat those before them, and as many in front of and behind them as the schedule looks ahead.
    /// `None` where no block can be left out. `assemble` makes the plan of a layout.
    pub fn of(whole: &Plan, prefetch: usize, assemble: impl FnOnce(Arc<Layout>) -> Plan) -> Option<ShortPlan> {
        // Where slots are given back during a step, what is in them differs at both ends of the model, as far as the schedule looks ahead.
        let margins = if whole.sharding.reshard == Reshard::Never { [0, 1] } else { [prefetch + 1; 2] };
        let (left_out, period) = left_out(&whole.layout, &whole.policy, margins)?;
        let units = left_out.start + 1 - period..left_out.start + 1;
        let times = left_out.len() / period;
        let short = ShortPlan { plan: assemble(Arc::new(whole.layout.without(left_out))), units, times };
        let (last, all) = (short.plan.layout.head_unit(), whole.layout.head_unit());
        let stands_for = |few: &[Action], many: &[Action]| {
            let parts = micro_batches(few).flat_map(|actions| short.parts(actions));
            let counted = parts.flat_map(|(part, times)| std::iter::repeat_n(part, times)).flatten();
            let of_short = counted.map(|action| of_alike_blocks(*action, last));
            of_short.eq(many.iter().map(|action| of_alike_blocks(*action, all)))
        };
        let is_whole = lists(&short.plan).into_iter().zip(lists(whole)).all(|(few, many)| stands_for(few, many));
        is_whole.then_some(short)
    }

    /// The parts of a micro-batch's actions, in order, and how often each one counts.
    pub fn parts<'a>(&self, actions: &'a [Action]) -> Vec<(&'a [Action], usize)> {
        let Range { start, end } = self.units;
        let behind = |action: Action| actions.iter().position(|other| *other == action).map(|at| at + 1);
        let between = |from, to| Some(behind(from)?..behind(to)?);
        let forward = between(Action::Forward { unit: start - 1 }, Action::Forward { unit: end - 1 });
        let backward = between(Action::Backward { unit: end }, Action::Backward { unit: start });
        // Where all slots stay until the end, they are given back there.
        let ends = |action: &Action| matches!(action, Action::Release { .. } | Action::Update);
        let last = actions.iter().rposition(|action| !ends(action)).map_or(0, |last| last + 1);
        let is_counted = |at: &usize| matches!(actions[*at], Action::Release { unit } if self.units.contains(&unit));
        let released = (last..actions.len()).filter(is_counted).map(|at| at..at + 1);
        let (mut parts, mut done) = (Vec::new(), 0);
        for range in forward.into_iter().chain(backward).chain(released) {
            parts.push((&actions[done..range.start], 1));
            done = range.end;
            parts.push((&actions[range], 1 + self.times));
        }
        parts.push((&actions[done..], 1));
        parts
    }
}

/// An action without the number of its block: all blocks are unit 1.
fn of_alike_blocks(mut action: Action, head: usize) -> Action {
    if let Some(unit) = action.unit_mut() {
        *unit = if *unit == head { 2 } else { (*unit).min(1) };
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

/// The blocks that can be left out, and after how many blocks they repeat themselves. So many of the alike blocks stay in
/// front of and behind the one that is counted.
fn left_out(layout: &Layout, policy: &Policy, margins: [usize; 2]) -> Option<(Range<usize>, usize)> {
    let kind = |block: usize| (layout.same_as[block], FlatKind::ALL.map(|part| layout.units[block + 1].flat(part).len));
    let kinds: Vec<_> = (0..layout.blocks.len()).map(kind).collect();
    (1..=LONGEST_PATTERN).map(|pattern| pattern * policy.every).find_map(|period| {
        let repeats: Vec<usize> = (0..kinds.len().checked_sub(period)?).collect();
        let runs = repeats.chunk_by(|a, b| kinds[*a] == kinds[a + period] && kinds[*b] == kinds[b + period]);
        let longest = runs.filter(|run| kinds[run[0]] == kinds[run[0] + period]).max_by_key(|run| run.len())?;
        let first = longest[0].next_multiple_of(policy.every);
        let periods = (longest[0] + longest.len() + period).checked_sub(first)? / period;
        // The schedule is the same for every period once it gathers ahead, and until it has nothing to gather any more.
        let [before, behind] = margins.map(|blocks| blocks.div_ceil(period));
        let times = periods.checked_sub(before + 1 + behind).filter(|times| *times > 0)?;
        let start = first + (before + 1) * period;
        Some((start..start + times * period, period))
    })
}
