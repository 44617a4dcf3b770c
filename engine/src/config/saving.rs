//! Training checkpoints: where, when and how the state of a run is written, and where it goes on from.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Where, when and how the state of a run is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Saving {
    /// The folder that holds a folder `step-00000010` for each checkpoint.
    pub dir: PathBuf,
    /// Steps from one to the next; 0 = after the last step, and when the run is stopped.
    pub every: u64,
    /// So many newest are kept; 0 = all.
    pub keep: usize,
    /// What the files hold.
    pub layout: Layout,
    /// Training goes on while they are written.
    #[serde(rename = "async")]
    pub asynchronous: bool,
    /// Past the system's page cache, where the file system can.
    pub direct: bool,
    /// What the run starts from.
    pub resume: Resume,
}

/// What the files of a checkpoint hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// A file for each rank with its part.
    Sharded,
    /// Whole tensors under Hugging Face's names, which transformers opens, and the optimizer's beside them.
    Full,
}

/// What a run starts from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resume {
    /// The newest checkpoint in the folder, if there is one.
    #[default]
    Auto,
    /// Its beginning, whatever the folder holds.
    Never,
    /// This checkpoint.
    From(PathBuf),
}
