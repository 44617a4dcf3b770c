//! The regression gate: rules, samples, decisions, verdicts and the documents made of them. Everything here is a pure
//! function of its arguments; what measures is behind [`procedure::Bench`]. How it decides: docs/gate.md.

pub mod annotations;
pub mod baseline;
pub mod decision;
pub mod document;
pub mod junit;
pub mod metric;
pub mod next;
pub mod procedure;
pub mod ranks;
pub mod replay;
pub mod report;
mod rows;
pub mod rules;
pub mod self_test;
pub mod trial;
pub mod turns;
pub mod verdict;
pub mod words;

pub use crate::random;
pub use decision::Samples;
pub use metric::{Figure, Kind, Metric};
pub use procedure::{Bench, Opponent, Question};
pub use report::{CellReport, GATE_SCHEMA, Report, Row};
pub use rules::{Bound, Rule, Rules};
pub use trial::{Side, Trial};
pub use verdict::Verdict;
