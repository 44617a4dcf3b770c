//! Whose folders a trial writes into: its training checkpoints, and the model and adapters of its end.

use std::borrow::Cow;
use std::path::PathBuf;
use zbench_engine::checkpoint::training::newest;
use zbench_engine::config::{Cell, Resume};

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
    /// Temporary ones in this folder, for everything that the cell writes: a repetition leaves nothing, touches nothing that
    /// was written before, and goes on from nothing.
    Passing(PathBuf),
}

impl Folders {
    /// The cell as a trial of it runs.
    pub fn placed<'a>(&self, cell: &'a Cell, key: &str, trial: u32) -> Cow<'a, Cell> {
        let mut placed = Cow::Borrowed(cell);
        if let Folders::Passing(dir) = self {
            let cell = placed.to_mut();
            let writes =
                [(&mut cell.model.save, "model"), (&mut cell.lora.save, "adapters"), (&mut cell.lora.merge, "merged")];
            for (path, name) in writes {
                *path = path.take().map(|_| dir.join(name));
            }
        }
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
            Folders::Passing(dir) => (dir.join("checkpoints"), Resume::Never),
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
