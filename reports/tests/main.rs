//! Tests of the crate's public face: one binary, a module per topic.

mod it;
#[path = "../../tests/part.rs"]
mod part;
#[path = "../../tests/scope.rs"]
mod scope;
