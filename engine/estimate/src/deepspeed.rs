//! DeepSpeed's own estimators of model states for ZeRO-2 and ZeRO-3 (`estimate_zero2_model_states_mem_needs` and its
//! ZeRO-3 twin), term by term as the tool computes them; what it prints as GB is GiB.

/// Which formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formula {
    /// The code's.
    Current,
    /// What older documentation printed: ZeRO-2 as 4P + 16P/N.
    Documented,
}

/// What is offloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offloaded {
    /// Parameters and optimizer (ZeRO-3 alone).
    ParametersAndOptimizer,
    /// Optimizer.
    Optimizer,
    /// Nothing.
    Nothing,
}

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// What is offloaded.
    pub offloaded: Offloaded,
    /// Whether weights are made split (`zero.Init`); ZeRO-2 has no such choice.
    pub zero_init: Option<bool>,
    /// GiB of host memory per node.
    pub host_gib: f64,
    /// GiB per GPU.
    pub gpu_gib: f64,
}

/// The factor on host memory that the tool calls additional buffer.
const BUFFER: f64 = 1.5;
const GIB: f64 = 1_073_741_824.0;

/// ZeRO-2's table for so many parameters.
pub fn zero2(parameters: f64, gpus_per_node: f64, nodes: f64, formula: Formula) -> Vec<Line> {
    let gpus = (gpus_per_node * nodes).max(1.0);
    let line =
        |offloaded, gpu: f64, host: f64| Line { offloaded, zero_init: None, host_gib: host / GIB, gpu_gib: gpu / GIB };
    // Without offload: 2 bytes of weights and, over all GPUs, 2 + 4 of gradients, 4 of master copy, 8 of moments.
    let gpu = match formula {
        Formula::Current => 2.0 * parameters + 18.0 * parameters / gpus,
        Formula::Documented => 4.0 * parameters + 16.0 * parameters / gpus,
    };
    vec![
        line(Offloaded::Optimizer, 2.0 * parameters, parameters * (4.0 * gpus).max(16.0) * BUFFER),
        line(Offloaded::Nothing, gpu, parameters * 4.0 * gpus_per_node * BUFFER),
    ]
}

/// ZeRO-3's table for so many parameters, of which the largest layer has so many.
pub fn zero3(parameters: f64, largest: f64, gpus_per_node: f64, nodes: f64) -> Vec<Line> {
    let (gpus, nodes) = ((gpus_per_node * nodes).max(1.0), nodes.max(1.0));
    // The layer that is gathered: weights and gradients of 2 bytes.
    let layer = 4.0 * largest;
    let mut lines = Vec::new();
    for offloaded in [Offloaded::ParametersAndOptimizer, Offloaded::Optimizer, Offloaded::Nothing] {
        let gpu = layer
            + match offloaded {
                Offloaded::ParametersAndOptimizer => 0.0,
                Offloaded::Optimizer => 2.0 * parameters / gpus,
                Offloaded::Nothing => 18.0 * parameters / gpus,
            };
        for zero_init in [true, false] {
            let whole = parameters * 4.0 * gpus_per_node;
            let host = match (offloaded, zero_init) {
                (Offloaded::ParametersAndOptimizer, true) => parameters * 18.0 / nodes,
                (Offloaded::ParametersAndOptimizer, false) => whole.max(parameters * 18.0 / nodes),
                (Offloaded::Optimizer, true) => parameters * 16.0 / nodes,
                (Offloaded::Optimizer, false) => whole.max(parameters * 16.0 / nodes),
                (Offloaded::Nothing, true) => largest * 4.0 * gpus_per_node,
                (Offloaded::Nothing, false) => whole,
            };
            lines.push(Line {
                offloaded,
                zero_init: Some(zero_init),
                host_gib: host * BUFFER / GIB,
                gpu_gib: gpu / GIB,
            });
        }
    }
    lines
}
