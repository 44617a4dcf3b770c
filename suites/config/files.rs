//! The files that a cell names: opened and checked before any cell starts, and hashed, so that a cell is known by what
//! it reads and not by where it lies.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use zbench_engine::checkpoint::training::position_in;
use zbench_engine::checkpoint::weights::Checkpoint;
use zbench_engine::config::{Cell, Data, Resume};
use zbench_engine::data::Source;
use zbench_engine::formats::files::regular;
use zbench_engine::model::Layout;

/// Remembers what was checked and hashed: cells of a grid share files.
#[derive(Default)]
pub struct Files {
    checked: HashMap<String, Result<(), String>>,
    hashes: HashMap<PathBuf, String>,
}

impl Files {
    /// Opens everything the cell reads. `Err` is (key, what is wrong).
    pub fn check(&mut self, cell: &Cell) -> Result<(), (&'static str, String)> {
        let (data, vocab, seq_len) = (&cell.data, cell.model.vocab_size, cell.train.seq_len);
        if !matches!(data, Data::Synthetic {}) {
            let held = cell.watch.and_then(|watch| watch.evaluation).map(|evaluation| evaluation.share);
            let open = || {
                let source = Source::open(data, vocab, seq_len, cell.train.seed);
                let source = source.and_then(|source| match held {
                    Some(share) => source.hold_out(share),
                    None => Ok(source),
                });
                source.map(|_| ()).map_err(|error| error.to_string())
            };
            let name = format!("{data:?} {vocab} {seq_len} {held:?}");
            self.checked.entry(name).or_insert_with(open).clone().map_err(|error| (key_of(data, &error), error))?;
        }
        if let Some(saving) = &cell.checkpoint {
            if saving.dir.exists() && !saving.dir.is_dir() {
                let message = format!("{} is a file; name a folder", saving.dir.display());
                return Err(("checkpoint.dir", message));
            }
            if let Resume::From(dir) = &saving.resume {
                position_in(dir).map_err(|error| ("checkpoint.resume", error.to_string()))?;
            }
        }
        if let Some(folder) = &cell.model.weights {
            let open = || {
                let tensors = Layout::new(cell, 1).checkpoint_tensors();
                Checkpoint::of_model(folder, &cell.model, &tensors).map(drop).map_err(|error| error.to_string())
            };
            let name = format!("{:?}", cell.model);
            self.checked.entry(name).or_insert_with(open).clone().map_err(|error| ("model.path", error))?;
        }
        if let Some(folder) = &cell.lora.path {
            let open = || {
                let tensors = Layout::new(cell, 1).adapter_tensors();
                let adapters = Checkpoint::open_adapters(folder).map_err(|error| error.to_string())?;
                adapters.check(&tensors).map_err(|error| error.to_string())
            };
            let name = format!("{:?} {:?}", cell.model, cell.lora);
            self.checked.entry(name).or_insert_with(open).clone().map_err(|error| ("lora.path", error))?;
        }
        Ok(())
    }

    /// The content of a file, or of the weights in a folder, as `blake3:…`. A file that cannot be read is named by its
    /// path: the check has already refused it, or it went away since.
    pub fn hash(&mut self, path: &Path) -> String {
        if let Some(hash) = self.hashes.get(path) {
            return hash.clone();
        }
        let hash = content(path).map_or_else(|_| format!("path:{}", path.display()), |hash| format!("blake3:{hash}"));
        self.hashes.insert(path.into(), hash.clone());
        hash
    }
}

/// The key that a source's error is about.
fn key_of(data: &Data, error: &str) -> &'static str {
    let names = |path: &PathBuf| error.starts_with(&path.display().to_string());
    match data {
        Data::Text { tokenizer, .. } if names(tokenizer) => "data.tokenizer",
        Data::Documents(documents) if names(&documents.tokenizer) => "data.tokenizer",
        Data::Documents(_) if error.starts_with("data.document_end") => "data.document_end",
        Data::Documents(documents) if documents.files.len() > 1 => "data.files",
        _ => "data.path",
    }
}

fn content(path: &Path) -> std::io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    if path.is_dir() {
        let mut files: Vec<PathBuf> =
            std::fs::read_dir(path)?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
        files.sort();
        let weights = |path: &PathBuf| path.extension().is_some_and(|ext| ext == "safetensors" || ext == "json");
        for file in files.iter().filter(|path| weights(path)) {
            hasher.update(file.file_name().unwrap_or_default().as_encoded_bytes());
            regular(file)?;
            hasher.update_reader(std::fs::File::open(file)?)?;
        }
    } else {
        regular(path)?;
        hasher.update_reader(std::fs::File::open(path)?)?;
    }
    Ok(hasher.finalize().to_hex()[..16].to_string())
}
