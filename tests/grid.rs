//! Expansion: order, exclusion, inclusion, narrowing, keys.

use crate::support::{TINY, cells, cells_of, parse};
use proptest::prelude::*;
use std::path::Path;
use zbench_config::Document;
use zbench_engine::config::Strategy as Sharding;

fn labels(text: &str) -> Vec<String> {
    cells(text).unwrap().into_iter().map(|cell| cell.label).collect()
}

const GRID: &str =
    "[parallel]\nranks = 4\n[grid]\n\"train.accumulation\" = [4, 1]\n\"parallel.strategy\" = [\"zero3\", \"ddp\"]\n";

#[test]
fn the_first_axis_varies_slowest_in_the_order_of_the_file() {
    let expected = ["zero3, accumulation=4", "ddp, accumulation=4", "zero3, accumulation=1", "ddp, accumulation=1"];
    assert_eq!(labels(GRID), expected);
}

#[test]
fn exclude_needs_all_terms_and_takes_lists() {
    let text = format!("{GRID}[[grid.exclude]]\n\"train.accumulation\" = 4\n\"parallel.strategy\" = \"ddp\"\n");
    assert_eq!(labels(&text).len(), 3);
    let text = format!("{GRID}[[grid.exclude]]\n\"train.accumulation\" = [1, 4]\n\"parallel.strategy\" = \"ddp\"\n");
    assert_eq!(labels(&text), ["zero3, accumulation=4", "zero3, accumulation=1"]);
    let by_default = format!("{GRID}[[grid.exclude]]\n\"memory.checkpointing\" = \"none\"\n");
    assert_eq!(labels(&by_default).len(), 0, "a term may match a default");
}

#[test]
fn includes_are_grids_beside_the_product() {
    let text = format!("{GRID}[[grid.include]]\n\"lora.rank\" = [4, 8]\n\"parallel.strategy\" = \"zero2\"\n");
    let cells = cells(&text).unwrap();
    assert_eq!(cells.len(), 6);
    let last = cells[5].resolved.as_ref().unwrap();
    assert_eq!((last.cell.lora.rank, last.cell.parallel.strategy), (8, Sharding::Zero2));
    let only_includes = "[[grid.include]]\n\"train.steps\" = 3\n[[grid.include]]\n\"train.steps\" = 4\n";
    assert_eq!(labels(only_includes), ["steps=3", "steps=4"]);
}

#[test]
fn equal_cells_are_one() {
    assert_eq!(labels("[grid]\n\"train.steps\" = [3, 3, 4]\n").len(), 2);
    let same = format!("{GRID}[[grid.include]]\n\"train.accumulation\" = 4\n\"parallel.strategy\" = \"ddp\"\n");
    assert_eq!(labels(&same).len(), 4);
}

/// Where no cell is left the values that there are stand in the message: of what was asked for, else of the axes.
#[test]
fn no_cell_left_names_the_values_that_there_are() {
    let why = |text: &str, only: &str| {
        let document = parse(text).unwrap();
        let axes = if only.is_empty() { Vec::new() } else { zbench_config::grid::parse_only(only, &document).unwrap() };
        assert_eq!(cells_of(&document, only).unwrap().len(), 0, "{only}");
        zbench_config::grid::none_left(&document, &axes)
    };
    assert_eq!(
        why(GRID, "parallel.strategy=zero2,train.accumulation=4"),
        "no cell is left: --only asks for parallel.strategy = \"zero2\", and cells have parallel.strategy = \"zero3\", \"ddp\""
    );
    let of_file = why(GRID, "parallel.ranks=8,parallel.ranks=16");
    assert!(of_file.contains("parallel.ranks = 8 or 16, and cells have parallel.ranks = 4"), "{of_file}");
    let of_default = why(GRID, "memory.checkpointing=full");
    assert!(of_default.ends_with("and cells have memory.checkpointing = \"none\""), "{of_default}");
    assert_eq!(
        why(GRID, "dead"),
        "no cell is left: --only asks for cells whose key begins with \"dead\", and no key does; `zbench plan FILE --format json` shows \
         the keys"
    );
    let excluded = format!("{GRID}[[grid.exclude]]\n\"train.accumulation\" = 4\n\"parallel.strategy\" = \"ddp\"\n");
    let both = why(&excluded, "train.accumulation=4,parallel.strategy=ddp");
    assert!(
        both.contains("is not left out by [[grid.exclude]] of train.accumulation = 4, 1; parallel.strategy"),
        "{both}"
    );
    let all = why(&format!("{GRID}[[grid.exclude]]\n\"memory.checkpointing\" = \"none\"\n"), "");
    assert!(all.contains("[[grid.exclude]] leaves out every combination of train.accumulation = 4, 1;"), "{all}");
}

#[test]
fn only_matches_any_key_and_alternatives() {
    let document = parse(GRID).unwrap();
    let count = |only: &str| cells_of(&document, only).unwrap().len();
    assert_eq!(count("parallel.strategy=ddp"), 2);
    assert_eq!(count("parallel.strategy=ddp,parallel.strategy=zero3"), 4);
    assert_eq!(count("parallel.strategy=ddp,train.accumulation=1"), 1);
    assert_eq!(count("train.lr=0.0003"), 4, "a default counts");
    assert_eq!(count("parallel.ranks=5"), 0);
    assert!(cells_of(&document, "parallel.stratgey=ddp").unwrap_err().to_string().contains("parallel.strategy"));
    assert_eq!((count("ddp"), count("zero3, ddp"), count("ddp, accumulation=4")), (2, 4, 1), "a label");
    assert!(cells_of(&document, "dpd").unwrap_err().to_string().contains("no strategy"));
}

#[test]
fn set_narrows_an_axis_and_wins_over_includes() {
    let text = format!("{GRID}[[grid.include]]\n\"lora.rank\" = 4\n\"parallel.strategy\" = \"zero2\"\n");
    let document = Document::parse(Path::new("t.toml"), &text, &["parallel.strategy=fsdp".into()]).unwrap();
    let cells = cells_of(&document, "").unwrap();
    assert_eq!(cells.len(), 3);
    assert!(cells.iter().all(|cell| cell.resolved.as_ref().unwrap().cell.parallel.strategy == Sharding::Fsdp));
}

#[test]
fn a_grid_narrowed_to_one_cell_keeps_it_beside_the_includes() {
    let text = format!("{GRID}[[grid.include]]\n\"lora.rank\" = 4\n");
    let set = ["parallel.strategy=fsdp".to_string(), "train.accumulation=2".to_string()];
    let document = Document::parse(Path::new("t.toml"), &text, &set).unwrap();
    let cells = cells_of(&document, "").unwrap();
    let ranks: Vec<usize> = cells.iter().map(|cell| cell.resolved.as_ref().unwrap().cell.lora.rank).collect();
    assert_eq!(ranks, [0, 4], "the product's one cell, then the include's");
    assert_eq!(zbench_config::grid::differences(&cells), ["lora.rank=0", "lora.rank=4"]);
    assert_eq!(cells_of(&document, "lora.rank=0").unwrap().len(), 1);
    // What only had includes still has none but those, whatever is set.
    let only_includes = "[[grid.include]]\n\"train.steps\" = 3\n";
    let document = Document::parse(Path::new("t.toml"), only_includes, &["train.lr=0.5".into()]).unwrap();
    assert_eq!(cells_of(&document, "").unwrap().len(), 1);
}

#[test]
fn what_a_grid_makes_impossible_is_a_cell_with_a_reason() {
    let cells = cells("[parallel]\nstrategy = \"zero2\"\n[grid]\n\"parallel.ranks\" = [3, 4]\n\"memory.offload_parameters\" = [\"host\"]\n\"lora.rank\" = [2]\n").unwrap();
    assert_eq!(cells.len(), 2);
    assert!(cells.iter().all(|cell| cell.resolved.is_err()));
    let cells = self::cells("[parallel]\nstrategy = \"hsdp\"\n[grid]\n\"parallel.ranks\" = [3, 4]\n").unwrap();
    assert!(cells[0].resolved.as_ref().is_err_and(|refusal| refusal.to_string().contains("on 3 ranks")));
    assert!(cells[1].resolved.is_ok());
}

#[test]
fn more_cells_than_wanted_are_refused() {
    let document = parse(GRID).unwrap();
    let context = zbench_config::Context::new("".into(), 2);
    let error = zbench_config::grid::expand(&document, &[], 3, &context, &mut Default::default()).unwrap_err();
    assert!(error.to_string().contains("4 cells and --max-cells is 3"), "{error}");
}

#[test]
fn a_key_is_of_what_is_resolved() {
    let key = |text: &str| cells(text).unwrap()[0].key.clone();
    let stated = "[train]\nsteps = 10\nlr = 3e-4\naccumulation = 2\n[precision]\npreset = \"f32\"\n";
    let implied = "[precision]\ncompute = \"f32\"\n[train]\nglobal_batch = 2\n";
    assert_eq!(key(stated), key(implied));
    assert_ne!(key(stated), key("[train]\naccumulation = 3\n"));
    assert_eq!(key(stated).len(), 16);
    assert!(key(stated).chars().all(|c| c.is_ascii_hexdigit()));
}

#[test]
fn a_file_stands_in_the_key_by_its_content() {
    let folder = tempfile::tempdir().unwrap();
    let key = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        cells(&format!("[train]\nseq_len = 4\n[data]\nsource = \"tokens\"\npath = {:?}\n", path.to_str().unwrap()))
            .unwrap()[0]
            .key
            .clone()
    };
    let (ones, twos) = ([1u8, 0, 0, 0].repeat(64), [2u8, 0, 0, 0].repeat(64));
    assert_eq!(key("a.bin", &ones), key("b.bin", &ones));
    assert_ne!(key("a.bin", &ones), key("a.bin", &twos));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The order of lines inside a section, and of sections, does not change a key.
    #[test]
    fn order_in_the_file_does_not_matter(seed in any::<prop::sample::Index>(), lines in Just(vec!["steps = 3", "lr = 0.1", "seed = 5", "eps = 1e-9"]).prop_shuffle()) {
        let sections = [format!("[train]\n{}\n", lines.join("\n")), "[parallel]\nranks = 2\n".to_string(), "[memory]\nattention = \"naive\"\n".to_string()];
        let first = seed.index(3);
        let text: String = (0..3).map(|i| sections[(first + i) % 3].clone()).collect();
        let reference = "[memory]\nattention = \"naive\"\n[train]\nsteps = 3\nseed = 5\nlr = 0.1\neps = 1e-9\n[parallel]\nranks = 2\n";
        prop_assert_eq!(&cells(&text).unwrap()[0].key, &cells(reference).unwrap()[0].key);
    }
}

#[test]
fn a_cell_survives_json() {
    for cell in cells(TINY).unwrap() {
        let cell = cell.resolved.unwrap().cell;
        let text = serde_json::to_string(&zbench_config::grid::plain(&cell)).unwrap();
        assert_eq!(serde_json::from_str::<zbench_engine::config::Cell>(&text).unwrap(), cell);
    }
}
