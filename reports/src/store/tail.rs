//! Reads the records that were added to a notebook since the last read.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};

use super::contents::{Line, parse_line};
use super::{Index, Notebook, StoreError, lock, open_if_there};
use crate::record::Record;

/// Reads a notebook's records as they are added.
#[derive(Debug)]
pub struct Tail {
    notebook: Notebook,
    /// End of the last whole line that was read. Only later bytes can still change.
    offset: u64,
}

impl Notebook {
    /// A reader that begins behind what the index has.
    pub fn tail(&self, index: &Index) -> Tail {
        Tail { notebook: self.clone(), offset: index.end }
    }
}

impl Tail {
    /// The records that were added since the last call. Unreadable lines are skipped; [`Notebook::read`] reports them.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub fn news(&mut self) -> Result<Vec<Record>, StoreError> {
        let path = self.notebook.path();
        let Some(file) = open_if_there(&path)? else { return Ok(Vec::new()) };
        self.read(&file).map_err(|source| StoreError::Read { path, source })
    }

    fn read(&mut self, mut file: &File) -> io::Result<Vec<Record>> {
        let _lock = lock(file, File::lock_shared)?;
        if file.metadata()?.len() < self.offset {
            // Another file was put in its place.
            self.offset = 0;
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let mut reader = BufReader::new(file);
        let mut records = Vec::new();
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line)? > 0 && line.last() == Some(&b'\n') {
            self.offset += line.len() as u64;
            if let Ok(Line::Record(record)) = parse_line(&line) {
                records.push(*record);
            }
            line.clear();
        }
        Ok(records)
    }
}
