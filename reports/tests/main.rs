//! Tests of the crate's public face: one binary, a module per topic.

mod it;
mod part;
