//! The estimator's shapes beside the engine's layouts: two descriptions of one model must count alike.

use crate::job;
use std::path::{Path, PathBuf};
use zbench_config::Document;
use zbench_engine::config::Cell;
use zbench_engine::hf;
use zbench_engine::model::{FlatKind, Layout};

fn cell(preset: &str, more: &str) -> Cell {
    let text = format!("[model]\npreset = \"{preset}\"\n[train]\nseq_len = 128\n[hardware]\ndevice = \"cuda\"\n{more}");
    let document = Document::parse(Path::new("t.toml"), &text, &[]).unwrap();
    let context = zbench_config::Context::new(PathBuf::new(), 1);
    zbench_config::resolve(&document.base, &context).unwrap().cell
}

/// A shape has biases everywhere or nowhere and norms of one kind; what families do beside that is vectors, not matrices.
const VECTORS: f64 = 0.002;

#[test]
fn every_presets_parameters_are_those_of_the_engine_but_for_vectors() {
    for preset in hf::preset_names() {
        let cell = cell(preset, "");
        let layout = Layout::new(&cell, 1);
        let engine: u64 = layout.parameters(FlatKind::Trainable) + layout.frozen_parameters();
        let shape = job(&cell).model;
        let off = shape.parameters() as f64 / engine as f64 - 1.0;
        assert!(off.abs() < VECTORS, "{preset}: {} instead of {engine}", shape.parameters());
    }
}

#[test]
fn adapters_are_counted_by_the_engine() {
    let cell = cell("llama2-7b", "[lora]\nrank = 8\ntargets = \"all-linear\"\nbase = \"nf4\"\n");
    let zbench_estimate::job::Peft::Adapters { trainable, base, .. } = job(&cell).peft else {
        panic!("adapters are adapters")
    };
    assert_eq!(trainable, Layout::new(&cell, 1).parameters(FlatKind::Trainable));
    assert_eq!(base, zbench_estimate::job::Number::Nf4);
}

#[test]
fn every_software_has_its_word() {
    let key = zbench_config::keys::find("hardware.software").unwrap();
    for stack in zbench_estimate::job::Stack::ALL {
        assert_eq!(key.kind.check(&toml::Value::String(stack.name().into())), Ok(()));
    }
}
