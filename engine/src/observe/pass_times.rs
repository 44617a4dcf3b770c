//! When a stage of a pipeline does its passes: what a timeline of a schedule is drawn from.

use crate::action::Action;
use serde::{Deserialize, Serialize};

/// A pass, as [`crate::plan::pipeline::Pass`] has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PassKind {
    Forward,
    Backward,
    BackwardInput,
    BackwardWeight,
}

impl PassKind {
    /// The pass that an action is a part of, and its micro-batch. Recomputation is a part of backward.
    fn of(action: Action) -> Option<(PassKind, usize)> {
        Some(match action {
            Action::Forward { micro, .. } => (PassKind::Forward, micro),
            Action::Backward { micro, .. } | Action::Recompute { micro, .. } => (PassKind::Backward, micro),
            Action::BackwardInput { micro, .. } => (PassKind::BackwardInput, micro),
            Action::BackwardWeight { micro, .. } => (PassKind::BackwardWeight, micro),
            _ => return None,
        })
    }

    /// The kind of a pass that goes on with this. Layers that do not split their backward are in one of the two passes.
    fn joined(self, next: PassKind) -> Option<PassKind> {
        use PassKind::{Backward, BackwardInput, BackwardWeight, Forward};
        match (self, next) {
            (Forward, Forward) => Some(Forward),
            (BackwardWeight, BackwardWeight | Backward) => Some(BackwardWeight),
            (Backward, Backward) => Some(Backward),
            (Backward | BackwardInput, Backward | BackwardInput) => Some(BackwardInput),
            _ => None,
        }
    }
}

/// A pass of a micro-batch through a stage, or through one of its chunks. Moments are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassTime {
    pub kind: PassKind,
    pub micro: usize,
    pub from: u64,
    pub until: u64,
}

/// Adds a stretch of an action, which lies behind those before.
pub(crate) fn add(passes: &mut Vec<PassTime>, action: Option<Action>, from: u64, until: u64) {
    let Some((kind, micro)) = action.and_then(PassKind::of) else { return };
    let last = passes.last_mut().filter(|last| last.micro == micro);
    match last.and_then(|last| Some((last.kind.joined(kind)?, last))) {
        Some((kind, last)) => (last.kind, last.until) = (kind, until),
        None => passes.push(PassTime { kind, micro, from, until }),
    }
}

/// The passes of several steps, for their means.
#[derive(Clone, Debug, Default)]
pub(crate) struct PassTimes {
    passes: Vec<PassTime>,
    /// Sums of the moments at which they begin and end.
    sums: Vec<[u128; 2]>,
    steps: u128,
}

impl PassTimes {
    /// Adds a step that began at `zero`. Every step has the same passes.
    pub fn add(&mut self, passes: Vec<PassTime>, zero: u64) {
        self.sums.resize(passes.len(), [0; 2]);
        for ([from, until], pass) in self.sums.iter_mut().zip(&passes) {
            *from += u128::from(zero + pass.from);
            *until += u128::from(zero + pass.until);
        }
        (self.passes, self.steps) = (passes, self.steps + 1);
    }

    /// Means over the steps: as means are linear, what comes before another thing does so here, too.
    pub fn means(&self) -> Vec<PassTime> {
        let mean = |sum: u128| (sum / self.steps) as u64;
        let of = |(pass, [from, until]): (&PassTime, &[u128; 2])| PassTime {
            from: mean(*from),
            until: mean(*until),
            ..*pass
        };
        self.passes.iter().zip(&self.sums).map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_a_pass_are_one_and_steps_are_averaged() {
        let layer = 0;
        let actions = [
            (Action::Forward { micro: 0, layer }, [0, 2]),
            (Action::Forward { micro: 0, layer: 1 }, [3, 5]),
            (Action::Update, [5, 6]),
            (Action::Forward { micro: 1, layer }, [6, 7]),
            (Action::Recompute { micro: 1, layer, output: true }, [8, 9]),
            (Action::BackwardInput { micro: 1, layer }, [9, 12]),
            (Action::BackwardWeight { micro: 1, layer }, [12, 13]),
            (Action::Backward { micro: 1, layer: 2 }, [13, 15]),
        ];
        let mut passes = Vec::new();
        for (action, [from, until]) in actions {
            add(&mut passes, Some(action), from, until);
        }
        add(&mut passes, None, 15, 16);
        let expected = [
            (PassKind::Forward, 0, [0, 5]),
            (PassKind::Forward, 1, [6, 7]),
            (PassKind::BackwardInput, 1, [8, 12]),
            (PassKind::BackwardWeight, 1, [12, 15]),
        ];
        let pass = |(kind, micro, [from, until]): (PassKind, usize, [u64; 2])| PassTime { kind, micro, from, until };
        assert_eq!(passes, expected.map(pass));
        let mut times = PassTimes::default();
        assert_eq!(times.means(), []);
        times.add(passes.clone(), 1000);
        times.add(passes, 3000);
        assert_eq!(times.means()[3], pass((PassKind::BackwardWeight, 1, [2012, 2015])));
    }
}
