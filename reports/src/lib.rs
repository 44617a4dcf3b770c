//! What was measured, and what can be said about it.
//!
//! [`record`] is one trial of one cell, [`store`] the append-only notebook that holds records on disk, [`stats`] the
//! medians, intervals and ties, [`document`] a text without a format, [`render`] the formats, and [`grid_report`],
//! [`estimate_report`] and [`notebook_report`] the documents made from records. Everything except the store is a pure function of its
//! arguments: nothing here measures, prints or knows how a record came about.

pub mod collectives;
pub mod document;
pub mod environment;
pub mod estimate_report;
pub mod gate;
pub mod grid_report;
pub mod named;
pub mod notebook_report;
pub mod record;
pub mod render;
pub mod stats;
pub mod store;
pub mod units;

pub use document::Document;
pub use named::{Named, Numbers};
pub use record::{Record, Remark, SCHEMA};
pub use store::{Contents, Notebook, StoreError};
