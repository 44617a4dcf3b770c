//! Plans made with what earlier cells left are those made by themselves.

use crate::support::root;
use std::sync::Arc;
use zbench_config::files::Files;
use zbench_config::{Context, Document, grid};
use zbench_engine::compute::hardware;
use zbench_engine::config::Cell;
use zbench_engine::model::{self, FlatKind, Layout};
use zbench_engine::plan::Plan;
use zbench_engine::planner::Planner;

fn cells(file: &str) -> Vec<Cell> {
    let document = Document::read(&root().join("configs").join(file), &[]).unwrap();
    let context = Context::new(document.folder().to_path_buf(), 4);
    let cells = grid::expand(&document, &[], 1000, &context, &mut Files::default()).unwrap();
    cells.into_iter().filter_map(|cell| Some(cell.resolved.ok()?.cell)).collect()
}

/// By a planner that has planned all the others, by one that is new, and with every block stated by itself.
#[test]
fn what_is_kept_changes_no_estimate() {
    for file in ["quickstart.toml", "llama70b.toml", "qlora70b.toml", "precision-table.toml"] {
        let (cells, shared) = (cells(file), Planner::default());
        let planned: Vec<_> = cells.iter().map(|cell| shared.plan(cell)).collect();
        assert!(planned.iter().any(Result::is_ok), "{file}: no cell is planned");
        // From the last to the first, so that each is planned after other cells than before.
        for (cell, before) in cells.iter().zip(&planned).rev() {
            let kernels = hardware::planner(cell).unwrap();
            let alone = Plan::new(cell, &*kernels);
            match (before, &alone) {
                (Ok(before), Ok(alone)) => {
                    let what = format!("{file}: {:?} {:?}", cell.parallel, cell.memory);
                    assert_eq!(before.stage_plan_of(0).estimate, alone.stage_plan_of(0).estimate, "{what}");
                    assert_eq!(
                        shared.plan(cell).unwrap().stage_plan_of(0).estimate,
                        alone.stage_plan_of(0).estimate,
                        "{what}"
                    );
                    assert_eq!(
                        alone.estimate_block_by_block(cell, &*kernels, 0),
                        alone.stage_plan_of(0).estimate,
                        "{what}"
                    );
                    assert_eq!(before.layout, alone.layout, "{what}");
                }
                (Err(before), Err(alone)) => assert_eq!(before, alone, "{file}"),
                _ => panic!("{file}: {:?} is refused by one planner alone", cell.parallel),
            }
        }
    }
}

#[test]
fn layouts_are_shared_where_nothing_they_depend_on_differs() {
    let planner = Planner::default();
    let base = cells("quickstart.toml").remove(0);
    let layout = |change: fn(&mut Cell)| {
        let mut cell = base.clone();
        change(&mut cell);
        planner.layout(&cell, 4)
    };
    let same = |a: Arc<Layout>, b: Arc<Layout>| Arc::ptr_eq(&a, &b);
    assert!(same(layout(|_| ()), layout(|cell| cell.train.micro_batch *= 2)));
    assert!(same(layout(|_| ()), layout(|cell| cell.parallel.prefetch += 1)));
    let others: [fn(&mut Cell); 3] = [
        |cell| cell.model.num_hidden_layers += 1,
        |cell| cell.lora.rank = 4,
        |cell| cell.precision.compute = zbench_kernels::DType::Bf16,
    ];
    for other in others {
        assert!(!same(layout(|_| ()), layout(other)));
        assert!(same(layout(other), layout(other)));
    }
    assert!(!same(planner.layout(&base, 4), planner.layout(&base, 8)));
}

/// Blocks that are alike are counted once and multiplied.
#[test]
fn parameters_are_those_of_the_layout() {
    for file in ["quickstart.toml", "qlora70b.toml"] {
        for cell in cells(file) {
            let layout = Layout::new(&cell, 1);
            for part in FlatKind::ALL {
                assert_eq!(model::parameters(&cell, part), layout.parameters(part), "{file}: {part:?}");
            }
        }
    }
}
