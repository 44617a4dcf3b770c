//! Safetensors files as they are written: planned with all their tensors, then filled front to back. Hugging Face's files and both
//! layouts of training checkpoints are written this way.

use super::blocks::{ALIGNMENT, BlockWriter, WriteOptions, Written};
use super::weights::{encode, stored_type};
use crate::formats::hf::{weights_file, weights_index};
use crate::model::{FlatKind, Layout, stored_tensors};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};
use zbench_kernels::DType;

/// The format's own limit.
pub(super) const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Bytes of the length in front of a file's header.
pub(super) const LENGTH_BYTES: u64 = 8;
/// The one key of a header that is not a tensor.
pub(super) const METADATA: &str = "__metadata__";

/// Name and shape of a tensor.
pub type Named = (String, Vec<usize>);

/// A planned file.
#[derive(Default)]
pub(super) struct Outline {
    pub name: String,
    /// In the order of the data.
    pub tensors: Vec<(Named, DType)>,
}

impl Outline {
    pub fn new(name: &str, tensors: impl IntoIterator<Item = Named>, dtype: DType) -> Outline {
        Outline { name: name.into(), tensors: tensors.into_iter().map(|tensor| (tensor, dtype)).collect() }
    }

    /// The files of a model's weights: one is ended before its data take more than `limit` bytes, and a tensor is never divided.
    pub fn of_model(tensors: Vec<Named>, dtype: DType, limit: u64) -> Vec<Outline> {
        let (mut files, mut bytes) = (vec![Outline::default()], 0);
        for tensor in tensors {
            let more = bytes_of(&tensor, dtype);
            if bytes > 0 && bytes + more > limit {
                files.push(Outline::default());
                bytes = 0;
            }
            bytes += more;
            if let Some(file) = files.last_mut() {
                file.tensors.push((tensor, dtype));
            }
        }
        let count = files.len();
        files.iter_mut().enumerate().for_each(|(number, file)| file.name = weights_file(number, count));
        files
    }

    pub fn data_bytes(&self) -> u64 {
        self.tensors.iter().map(|(tensor, dtype)| bytes_of(tensor, *dtype)).sum()
    }

    /// The file's header: its length and JSON, padded with spaces so that the data begin at a multiple of `alignment` bytes. `format` goes
    /// into the metadata.
    pub fn header(&self, format: &str, alignment: usize) -> std::io::Result<Vec<u8>> {
        let mut entries = Map::new();
        entries.insert(METADATA.into(), json!({"format": format}));
        let mut begin = 0;
        for (tensor, dtype) in &self.tensors {
            let end = begin + bytes_of(tensor, *dtype);
            let entry = json!({"dtype": stored_type(*dtype), "shape": tensor.1, "data_offsets": [begin, end]});
            entries.insert(tensor.0.clone(), entry);
            begin = end;
        }
        let length = LENGTH_BYTES as usize;
        let mut json = Value::Object(entries).to_string().into_bytes();
        json.resize((json.len() + length).next_multiple_of(alignment) - length, b' ');
        let bytes = json.len() as u64;
        if bytes > MAX_HEADER_BYTES {
            let reason = format!("the header would take {bytes} bytes; the format allows {MAX_HEADER_BYTES}");
            return Err(Error::new(ErrorKind::InvalidInput, reason));
        }
        Ok([&bytes.to_le_bytes()[..], &json].concat())
    }
}

fn bytes_of((_, shape): &Named, dtype: DType) -> u64 {
    (shape.iter().product::<usize>() * dtype.size()) as u64
}

/// Names and shapes of all stored tensors, in the order of [`crate::exec::Executor::export_weights`].
pub(super) fn model_tensors(layout: &Layout) -> Vec<Named> {
    let parts = layout.units.iter().flat_map(|unit| FlatKind::ALL.map(|part| stored_tensors(unit.tensors_of(part))));
    parts.flatten().collect()
}

/// The text of the index of a model's files, whose bytes are `total`.
pub(super) fn index_text<'a>(total: u64, files: impl Iterator<Item = &'a Outline>) -> String {
    let entries = files.flat_map(|file| file.tensors.iter().map(|((name, _), _)| (name.clone(), json!(file.name))));
    weights_index(total, entries.collect())
}

/// A file that could not be written.
#[derive(Debug)]
pub(super) struct WriteError {
    pub path: PathBuf,
    pub source: Error,
}

/// Planned files of a folder that are filled one after the other, tensor by tensor.
pub(super) struct TensorFiles {
    dir: PathBuf,
    files: Vec<TensorFile>,
    /// Where the files are until all of them are complete; `None` = in their folder.
    hidden: Option<HiddenDir>,
}

struct TensorFile {
    outline: Outline,
    writer: BlockWriter,
    /// Tensors that have come.
    taken: usize,
}

impl TensorFiles {
    /// Files under their own names, of which a rank may write a share.
    pub fn create(dir: &Path, outlines: Vec<Outline>, options: WriteOptions) -> Result<TensorFiles, WriteError> {
        TensorFiles { dir: dir.into(), files: Vec::new(), hidden: None }.open(outlines, ALIGNMENT, options)
    }

    /// Files that take their names, and replace others of these names, when all of them are complete.
    pub fn create_hidden(dir: &Path, outlines: Vec<Outline>) -> Result<TensorFiles, WriteError> {
        let named = || outlines.first().map_or(dir.into(), |outline| dir.join(&outline.name));
        let hidden = HiddenDir::create(dir).map_err(|source| WriteError { path: named(), source })?;
        let files = TensorFiles { dir: dir.into(), files: Vec::new(), hidden: Some(hidden) };
        files.open(outlines, LENGTH_BYTES as usize, WriteOptions::default())
    }

    fn open(
        mut self,
        outlines: Vec<Outline>,
        alignment: usize,
        options: WriteOptions,
    ) -> Result<TensorFiles, WriteError> {
        let dir = self.hidden.as_ref().map_or(&self.dir, |hidden| &hidden.0);
        for outline in outlines {
            let create = || {
                // transformers refuses files that do not say which framework's layout they follow.
                let header = outline.header("pt", alignment)?;
                let bytes = header.len() as u64 + outline.data_bytes();
                let mut writer = BlockWriter::create(&dir.join(&outline.name), bytes, options)?;
                writer.push(&header)?;
                Ok(writer)
            };
            let writer = create().map_err(|source| WriteError { path: self.dir.join(&outline.name), source })?;
            self.files.push(TensorFile { outline, writer, taken: 0 });
        }
        Ok(self)
    }

    /// Appends the values of the next tensor, rounded to nearest even. A rank that has no files ignores them.
    pub fn take(&mut self, values: &[f32]) -> Result<(), WriteError> {
        let next = self.files.iter_mut().find(|file| file.taken < file.outline.tensors.len());
        let Some(TensorFile { outline, writer, taken }) = next else { return Ok(()) };
        let dtype = outline.tensors[*taken].1;
        let width = dtype.size() as u64;
        *taken += 1;
        let appended = writer.append(values.len() as u64 * width, |range, to| {
            encode(dtype, &values[(range.start / width) as usize..(range.end / width) as usize], to);
        });
        appended.map_err(|source| WriteError { path: self.dir.join(&outline.name), source })
    }

    pub fn outlines(&self) -> impl Iterator<Item = &Outline> {
        self.files.iter().map(|file| &file.outline)
    }

    /// Host memory of all buffers, bytes.
    pub fn memory(&self) -> u64 {
        self.files.iter().map(|file| file.writer.memory()).sum()
    }

    /// Returns when all files are on the disk under their names.
    pub fn finish(self) -> Result<Vec<(Outline, Written)>, WriteError> {
        let failed = |name: &str| {
            let path = self.dir.join(name);
            |source| WriteError { path, source }
        };
        let mut complete = Vec::new();
        for TensorFile { outline, writer, .. } in self.files {
            let written = writer.finish().map_err(failed(&outline.name))?;
            complete.push((outline, written));
        }
        if let Some(HiddenDir(hidden)) = &self.hidden {
            for (Outline { name, .. }, _) in &complete {
                std::fs::rename(hidden.join(name), self.dir.join(name)).map_err(failed(name))?;
            }
            let dir = if self.dir.as_os_str().is_empty() { Path::new(".") } else { &self.dir };
            // A new name is durable only when its folder is flushed.
            File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed(""))?;
        }
        Ok(complete)
    }
}

/// A folder of this writer's own beside its files' places. It is removed when this is dropped.
struct HiddenDir(PathBuf);

impl HiddenDir {
    fn create(dir: &Path) -> std::io::Result<HiddenDir> {
        for attempt in 0u64.. {
            let hidden = dir.join(format!(".zbench-{}-{attempt}.part", std::process::id()));
            match std::fs::create_dir(&hidden) {
                // Another thread's, or left by a killed process that had this number.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => return made.map(|()| HiddenDir(hidden)),
            }
        }
        Err(ErrorKind::AlreadyExists.into())
    }
}

impl Drop for HiddenDir {
    fn drop(&mut self) {
        // Best effort: the disk that refused the write may refuse this too.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
