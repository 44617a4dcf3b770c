//! Whose folder the training checkpoints of a trial go into.

use std::borrow::Cow;
use std::path::PathBuf;
use zbench_engine::config::{Cell, Resume};
use zbench_engine::training_state::newest;

/// Whose folder the training checkpoints of a trial go into.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Folders {
    /// The cell's own: one run goes on there.
    #[default]
    Cell,
    /// One of the trial's own in it: trials of a grid are runs of their own. A trial that was stopped goes on there; one that
    /// had come to its end is run anew, and so is every one that is asked for afresh.
    Trial {
        /// Whatever was there before does not count.
        fresh: bool,
    },
    /// A passing one: a repetition leaves nothing and goes on from nothing.
    Passing(PathBuf),
}

impl Folders {
    /// The cell as a trial of it runs.
    pub fn placed<'a>(&self, cell: &'a Cell, key: &str, trial: u32) -> Cow<'a, Cell> {
        let mut placed = Cow::Borrowed(cell);
        let Some(saving) = &cell.checkpoint else { return placed };
        let (dir, resume) = match self {
            Folders::Cell => return placed,
            Folders::Trial { fresh } => {
                let dir = saving.dir.join(format!("{key}-trial{trial}"));
                let last = (cell.train.untimed_steps + cell.train.steps) as u64;
                // A checkpoint that cannot be read is the run's to complain about.
                let ended = matches!(newest(&dir), Ok(Some((step, _))) if step >= last);
                let resume = match &saving.resume {
                    Resume::Auto if ended || *fresh => Resume::Never,
                    other => other.clone(),
                };
                (dir, resume)
            }
            Folders::Passing(dir) => (dir.clone(), Resume::Never),
        };
        if let Some(saving) = &mut placed.to_mut().checkpoint {
            (saving.dir, saving.resume) = (dir, resume);
        }
        placed
    }

    /// Removes what was passing.
    pub fn clear(&self) {
        if let Folders::Passing(dir) = self {
            // It may never have been made; what cannot be removed harms nobody.
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}
