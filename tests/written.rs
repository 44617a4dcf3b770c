//! Folders that transformers and PEFT wrote (tests/fixtures/written).

use crate::support::{cells, root, run, stderr};
use serde_json::Value;
use std::path::Path;
use zbench_engine::checkpoint::weights::note_of_untied_head;
use zbench_engine::config::Cell;
use zbench_engine::plan::Plan;
use zbench_engine::run::launch_ranks::train;
use zbench_kernels::Cpu;

fn json(path: &Path) -> Option<Value> {
    serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()
}

/// One step of the model in a folder, or of the adapters in it over the base that they name.
fn text(name: &str, more: &str) -> String {
    let all = root().join("tests/fixtures/written");
    let (folder, tokens) = (all.join(name), all.join("tokens.bin"));
    let (base, lora) = match json(&folder.join("adapter_config.json")) {
        Some(config) => {
            (all.join(config["base_model_name_or_path"].as_str().unwrap()), format!("[lora]\npath = {folder:?}"))
        }
        None => (folder, String::new()),
    };
    format!(
        "[model]\npath = {base:?}\n{more}\n[data]\nsource = \"tokens\"\npath = {tokens:?}\ndtype = \"u16\"\n[train]\nseq_len = 12\n\
         steps = 1\nuntimed_steps = 0\n[parallel]\nranks = 1\nstrategy = \"ddp\"\n{lora}"
    )
}

fn cell(name: &str, more: &str) -> Cell {
    let cells = cells(&text(name, more)).unwrap_or_else(|error| panic!("{name}: {error}"));
    cells[0].resolved.as_ref().unwrap().cell.clone()
}

#[test]
fn runs_start_from_the_loss_of_transformers() {
    let reference = json(&root().join("tests/fixtures/written/reference.json")).unwrap();
    for (name, loss) in reference["losses"].as_object().unwrap() {
        let (cell, loss) = (cell(name, ""), loss.as_f64().unwrap());
        let plan = Plan::new(&cell, &Cpu::new(1)).unwrap();
        let ran = train(&cell, &plan, &|_| {}).unwrap_or_else(|failure| panic!("{name}: {}", failure.cause));
        let ours = ran.steps[0].loss;
        assert!((ours - loss).abs() < 1e-5 * loss, "{name}: {ours} for {loss}");
    }
}

#[test]
fn an_untied_head_is_noted_unless_the_file_ties_it() {
    for (name, apart) in [("llama-own-head", true), ("falcon-own-head", true), ("llama-headless", false)] {
        let model = cell(name, "").model;
        assert_eq!((!model.tie_word_embeddings, note_of_untied_head(&model).is_some()), (apart, apart), "{name}");
    }
    let tied = cell("llama-own-head", "tie_word_embeddings = true").model;
    assert!(tied.tie_word_embeddings && note_of_untied_head(&tied).is_none());
    let error = cells(&text("llama-headless", "tie_word_embeddings = false")).unwrap_err().to_string();
    assert!(error.contains("missing (1): lm_head.weight (was the model saved without its head?"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let path = crate::support::write(folder.path(), &text("falcon-own-head", ""));
    let said = stderr(&run(folder.path(), &["plan", path.to_str().unwrap()]));
    assert!(said.contains("falcon-own-head/config.json ties the head") && said.contains("lm_head.weight"), "{said}");
}
