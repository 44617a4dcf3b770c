//! Blocks of a model are mostly alike, and so is what they ask for: a turn of the first is stated, those of the others repeat
//! what it did.

use super::Plan;
use crate::layers::{Effect, Piece, Saved, Sketch};

/// What a block does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Turn {
    /// Forward.
    Forward {
        /// Whether its input is kept.
        keeps: bool,
    },
    /// Forward, and nothing is kept.
    Look,
    /// Forward again, of what was not kept.
    Restore {
        /// Also of its output.
        output: bool,
    },
    /// Backward.
    Backward,
}

/// Everything that a turn depends on, within one plan.
#[derive(Clone, Debug, PartialEq)]
struct Before {
    turn: Turn,
    /// The first block that it is like.
    like: usize,
    stream: Option<Piece>,
    saved: Saved<Piece>,
}

struct Known {
    before: Before,
    effect: Effect,
    /// What the turn makes of the stream, and what is then kept.
    after: (Option<Piece>, Saved<Piece>),
}

/// The turns of one plan that differ.
#[derive(Default)]
pub struct Blocks(Vec<Known>);

impl Blocks {
    /// States a block's turn, or repeats it. One by one where operations are listed, and where what a block does depends on
    /// whether a form of its weights has been made.
    pub fn turn(
        &mut self,
        plan: &Plan,
        s: &mut Sketch<'_>,
        index: usize,
        turn: Turn,
        stream: Option<Piece>,
        saved: Saved<Piece>,
    ) -> (Option<Piece>, Saved<Piece>) {
        if s.ops.is_some() || !s.prepacked.is_empty() {
            return state(plan, s, index, turn, stream, saved);
        }
        let before = Before { turn, like: plan.layout.like[index], stream, saved };
        if let Some(known) = self.0.iter().find(|known| known.before == before) {
            s.repeat(&known.effect);
            return known.after.clone();
        }
        let Before { stream, saved, .. } = before.clone();
        let (after, effect) = s.noted(|s| state(plan, s, index, turn, stream, saved));
        self.0.push(Known { before, effect, after: after.clone() });
        after
    }
}

fn state(
    plan: &Plan,
    s: &mut Sketch<'_>,
    index: usize,
    turn: Turn,
    stream: Option<Piece>,
    mut saved: Saved<Piece>,
) -> (Option<Piece>, Saved<Piece>) {
    let block = &plan.layout.blocks[index];
    match (turn, stream) {
        (Turn::Forward { keeps }, Some(input)) => {
            let (output, saved) = block.forward_stated(s, input, keeps, &plan.policy.keep);
            (Some(output), saved)
        }
        (Turn::Look, Some(input)) => {
            let (output, saved) = block.forward_stated(s, input, false, &[]);
            (Some(output), saved)
        }
        (Turn::Backward, Some(gradient)) => (Some(block.backward_stated(s, saved, gradient)), Saved::default()),
        (Turn::Restore { output }, _) => (block.restore_stated(s, &mut saved, output), saved),
        // Forward and backward of a block without a stream are no turns.
        (_, None) => (None, saved),
    }
}
