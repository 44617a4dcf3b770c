//! What was measured, and what can be said about it.
//!
//! [`record`] is one trial of one cell, [`store`] the append-only notebook that holds records on disk, [`stats`] the
//! medians, intervals and ties of trials, [`evidence`] what turns of cells say, [`plot`] a drawing without a format, [`document`] a text of words, tables and drawings,
//! [`render`] the formats, and [`grid_report`],
//! [`estimate_report`] and [`notebook_report`] the documents made from records. Everything except the store is a pure function of its
//! arguments: nothing here measures, prints or knows how a record came about.

pub mod batch;
pub mod bench;
pub mod bundle;
pub mod collectives;
pub mod compare;
pub mod document;
pub mod environment;
pub mod estimate;
pub mod estimate_report;
pub mod evidence;
mod figures;
pub mod gate;
mod gather;
mod grid;
pub mod grid_report;
pub mod label;
pub mod max_batch;
mod max_batch_report;
pub mod notebook_report;
pub mod order_report;
pub mod ordered_map;
mod phrase;
pub mod plot;
pub mod random;
pub mod record;
pub mod redact;
pub mod render;
pub mod screen;
pub mod stats;
pub mod store;
pub mod table;
mod text;
mod turns_analysis;
pub mod units;
pub mod warm_up;

pub use document::Document;
pub use ordered_map::{NumberMap, OrderedMap};
pub use record::{Record, Remark, SCHEMA};
pub use screen::Screen;
pub use store::{Contents, Index, IndexEntry, Notebook, StoreError};
