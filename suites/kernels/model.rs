//! The matrix products of a model's training step, from the operations that its plan states.

use super::gemm::{Use, layout};
use zbench_engine::compute::recorder::Phase;
use zbench_engine::config::Cell;
use zbench_engine::plan::Plan;
use zbench_kernels::{Cpu, Gemm, Op};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Products {
    /// Every distinct product, in the order of its first occurrence, and where it occurs.
    pub all: Vec<(Gemm, Vec<Use>)>,
    /// Operations of experts' grouped products, which are another kernel.
    pub grouped_flops: f64,
    pub flops: f64,
}

/// The products of one step of rank 0.
///
/// # Errors
/// What keeps the cell from being planned, with its key.
pub fn products(cell: &Cell) -> Result<Products, (String, String)> {
    // Scratch sizes depend on the threads, operations do not.
    let kernels = Cpu::new(1);
    let plan = Plan::new(cell, &kernels).map_err(|error| (error.key.to_string(), error.reason))?;
    let mut products = Products::default();
    for stated in plan.operations(cell, &kernels, 0) {
        let op = match &stated.op {
            Op::Gemm(op) => *op,
            other @ Op::GroupedGemm(_) => {
                products.grouped_flops += other.flops() as f64;
                continue;
            }
            _ => continue,
        };
        products.flops += stated.op.flops() as f64;
        let pass = match (stated.phase, layout(&op)) {
            (Phase::Recompute, _) => "again",
            (_, "nt") => "forward",
            (_, "nn") => "dx",
            (_, "tn") => "dw",
            _ => "other",
        };
        let place = products.all.iter().position(|(known, _)| *known == op).unwrap_or_else(|| {
            products.all.push((op, Vec::new()));
            products.all.len() - 1
        });
        let uses = &mut products.all[place].1;
        match uses.iter_mut().find(|known| known.layer == stated.term && known.pass == pass) {
            Some(known) => known.count += 1,
            None => uses.push(Use { layer: stated.term.into(), pass: pass.into(), count: 1 }),
        }
    }
    Ok(products)
}
