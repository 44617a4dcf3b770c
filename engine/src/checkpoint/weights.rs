//! Weights on disk as Hugging Face lays them out: `model.safetensors`, or `model.safetensors.index.json` and its shards.
//!
//! Opening reads and checks headers only. [`Checkpoint::read`] then reads just the bytes of the slice it is asked for,
//! at their position in the file and through a buffer of 1 MiB at most: a rank that owns a hundredth of a model touches a
//! hundredth of its files. Positioned reads do this without `unsafe`, and a file that shrinks or a disk that fails
//! while training starts is an error; under a memory map it would be a signal that ends the process.

mod elements;
mod error;
mod header;
mod model;
mod read;
mod write;

pub(crate) use elements::{decoder, encode, stored_type};
pub use error::CheckpointError;
pub use model::note_of_untied_head;
pub use safetensors::Dtype as StoredType;
pub use write::write_safetensors;

use crate::formats::files;
use crate::formats::peft::WEIGHTS;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

pub type Result<T> = std::result::Result<T, CheckpointError>;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The head's tensor; no family puts it into the module that all other names begin with.
const HEAD: &str = "lm_head.weight";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub dtype: StoredType,
    /// Elements by dim, row-major.
    pub shape: Vec<usize>,
    pub file: PathBuf,
    /// Which of the checkpoint's files.
    index: usize,
    /// Position of its first byte in the file.
    pub(crate) begin: u64,
}

impl TensorInfo {
    /// Elements in all; opening has checked that the product fits.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of one element; opening has refused types whose elements are no whole bytes where a model wants the tensor.
    fn width(&self) -> usize {
        self.dtype.bitsize() / 8
    }

    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.bitsize() / 8
    }
}

/// An opened and validated checkpoint; may be shared between ranks.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    files: Vec<std::fs::File>,
    tensors: BTreeMap<String, TensorInfo>,
}

/// `model.safetensors.index.json`. Its `metadata.total_size` is not looked at: published indices are known to be wrong
/// there, and every file's size is checked against its own header.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Opens the folder's weights and checks every header: lengths, JSON, types, shapes, offsets without gap or
    /// overlap, and that files are as long as their headers say.
    ///
    /// # Errors
    /// No such folder, no weights in it, an index that names absent files or tensors, a file that is truncated or lies:
    /// each names the file, the tensor where there is one, and what to do.
    pub fn open(dir: &Path) -> Result<Checkpoint> {
        let found = std::fs::metadata(dir).map_err(|source| CheckpointError::io("open the folder", dir, source))?;
        if !found.is_dir() {
            let reason = "it is a file; give the folder with config.json and the weights".into();
            return Err(CheckpointError::NoWeights { dir: dir.into(), reason });
        }
        if dir.join(SINGLE).exists() {
            return Checkpoint::single(dir, SINGLE);
        }
        if dir.join(INDEX).exists() {
            return Checkpoint::sharded(dir);
        }
        let reason = format!(
            "it holds neither {SINGLE} nor {INDEX}; weights of another format (pytorch_model.bin, consolidated.pth) \
             must be converted to safetensors first"
        );
        Err(CheckpointError::NoWeights { dir: dir.into(), reason })
    }

    /// Opens the weights of a folder of adapters, checked as [`Checkpoint::open`] checks a model's.
    ///
    /// # Errors
    /// As there.
    pub fn open_adapters(dir: &Path) -> Result<Checkpoint> {
        if dir.join(WEIGHTS).exists() {
            return Checkpoint::single(dir, WEIGHTS);
        }
        let reason =
            format!("it holds no {WEIGHTS}; adapters of another format (adapter_model.bin) must be converted first");
        Err(CheckpointError::NoWeights { dir: dir.into(), reason })
    }

    pub(crate) fn single(dir: &Path, name: &str) -> Result<Checkpoint> {
        let path = dir.join(name);
        let (file, tensors) = header::open(&path, 0)?;
        Ok(Checkpoint { dir: dir.into(), files: vec![file], tensors })
    }

    fn sharded(dir: &Path) -> Result<Checkpoint> {
        let index_path = dir.join(INDEX);
        let weight_map = read_index(&index_path)?;
        let names: BTreeSet<&String> = weight_map.values().collect();
        let absent: Vec<String> = names.iter().filter(|name| !dir.join(name).exists()).map(|n| n.to_string()).collect();
        if !absent.is_empty() {
            return Err(CheckpointError::AbsentShards { index: index_path, absent });
        }
        let mut checkpoint = Checkpoint { dir: dir.into(), files: Vec::new(), tensors: BTreeMap::new() };
        for shard in names {
            let path = dir.join(shard);
            let (file, mut tensors) = header::open(&path, checkpoint.files.len())?;
            for (name, _) in weight_map.iter().filter(|(_, file)| *file == shard) {
                let Some(info) = tensors.remove(name) else {
                    let tensor = name.clone();
                    return Err(CheckpointError::AbsentTensor { index: index_path, tensor, file: path });
                };
                checkpoint.tensors.insert(name.clone(), info);
            }
            checkpoint.files.push(file);
        }
        Ok(checkpoint)
    }

    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// All tensors, in the order of their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Compares with what a model expects. `lm_head.weight` where the head is tied, and rotary frequencies and causal
    /// masks, which older files store, may be there in addition.
    ///
    /// # Errors
    /// All tensors that are missing, of another shape or unreadable type, or unexpected, in one error.
    pub fn check(&self, expected: &[(String, Vec<usize>)]) -> Result<()> {
        let mut missing = Vec::new();
        let mut wrong = Vec::new();
        for (name, shape) in expected {
            match self.tensors.get(name) {
                None if name == HEAD => missing.push(format!(
                    "{name} (was the model saved without its head? model.tie_word_embeddings = true uses the embedding)"
                )),
                None => missing.push(name.clone()),
                Some(info) if info.shape != *shape => {
                    wrong.push(format!("{name} is {:?} and should be {shape:?}", info.shape));
                }
                Some(info) if decoder(info.dtype).is_none() => {
                    wrong.push(format!("{name}: {}", unreadable(info.dtype)))
                }
                Some(_) => {}
            }
        }
        let known: BTreeSet<&str> = expected.iter().map(|(name, _)| name.as_str()).collect();
        let buffers = ["rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias"];
        let harmless = |name: &str| name == HEAD || buffers.iter().any(|end| name.ends_with(end));
        let unexpected: Vec<String> =
            self.names().filter(|name| !known.contains(name) && !harmless(name)).map(String::from).collect();
        if missing.is_empty() && wrong.is_empty() && unexpected.is_empty() {
            return Ok(());
        }
        Err(CheckpointError::Mismatch { dir: self.dir.clone(), missing, wrong, unexpected })
    }
}

/// Tensor name to file name; the file names are plain ones, so that an index cannot reach outside its folder.
fn read_index(path: &Path) -> Result<BTreeMap<String, String>> {
    let bad = |reason: String| CheckpointError::Index { file: path.into(), reason };
    let bytes = files::read(path).map_err(|source| CheckpointError::io("read", path, source))?;
    let index: Index = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
    if index.weight_map.is_empty() {
        return Err(bad("its weight_map is empty".into()));
    }
    for (tensor, file) in &index.weight_map {
        if !files::is_plain_name(file) {
            return Err(bad(format!("weight_map puts {tensor} in {file:?}, which is not the plain name of a file")));
        }
    }
    Ok(index.weight_map)
}

fn unreadable(dtype: StoredType) -> String {
    format!("it is stored as {dtype:?}; zbench reads F32, BF16 and F16: convert it")
}
