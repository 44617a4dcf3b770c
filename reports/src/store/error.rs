//! Errors of a notebook.

use std::io;
use std::path::PathBuf;

/// An error of a notebook.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory cannot be made or is not one.
    #[error("the notebook {path} cannot be opened: {source}; name a directory that you may write to (--notebook DIR)", path = path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The directory is read-only.
    #[error("nothing can be written into the notebook {path}: {source}; nothing was run: name one that you may write to (--notebook DIR)", path = path.display())]
    ReadOnly {
        /// The directory.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file exists and cannot be read.
    #[error("the notebook's file {path} cannot be read: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// There is no room for the line; earlier lines are unchanged.
    #[error("no room for the record in {path}: {source}; free some space and run the same command again, earlier records are safe", path = path.display())]
    Full {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The line could not be written; earlier lines are unchanged unless `damage` says otherwise.
    #[error("the record could not be added to {path}: {source}{damage}", path = path.display())]
    Append {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
        /// What could not be undone; else empty.
        damage: String,
    },
    /// A value without a JSON form.
    #[error("the record {id} has no JSON form: {source}")]
    Encode {
        /// Id of the record.
        id: String,
        /// The reason.
        source: serde_json::Error,
    },
    /// No record's id begins with the prefix.
    #[error("no record has an id that begins with `{prefix}`; `zbench list` shows the {count} records of {path}", path = path.display())]
    NotFound {
        /// The beginning of an id that was searched for.
        prefix: String,
        /// How many records there are.
        count: usize,
        /// The file.
        path: PathBuf,
    },
    /// The record exists, but this version cannot read it.
    #[error("the record {id} is line {line} of {path}, and cannot be read: {reason}", path = path.display())]
    Unreadable {
        /// Its id.
        id: String,
        /// Line of the file, from 1.
        line: usize,
        /// Why.
        reason: String,
        /// The file.
        path: PathBuf,
    },
    /// Several ids begin with the prefix.
    #[error("`{prefix}` stands for {count} records ({ids}); give more of the id", count = ids.len(), ids = first_few(ids))]
    Ambiguous {
        /// The beginning of an id that was searched for.
        prefix: String,
        /// The ids that begin with it.
        ids: Vec<String>,
    },
}

fn first_few(ids: &[String]) -> String {
    let shown: Vec<&str> = ids.iter().take(4).map(String::as_str).collect();
    let more = if ids.len() > shown.len() { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}
