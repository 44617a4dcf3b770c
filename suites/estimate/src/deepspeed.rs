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
    /// The formula of `host_gib` in bytes: P parameters, L those of the largest layer, N GPUs in all.
    pub host: &'static str,
    /// That of `gpu_gib`.
    pub gpu: &'static str,
}

/// The factor on host memory that the tool calls additional buffer.
const BUFFER: f64 = 1.5;
const GIB: f64 = 1_073_741_824.0;

/// ZeRO-2's table for so many parameters.
pub fn zero2(parameters: f64, gpus_per_node: f64, nodes: f64, formula: Formula) -> Vec<Line> {
    [true, false].map(|offload| zero2_line(parameters, gpus_per_node, nodes, offload, formula)).to_vec()
}

/// A line of that table: with the optimizer offloaded, or nothing.
pub fn zero2_line(parameters: f64, gpus_per_node: f64, nodes: f64, offload: bool, formula: Formula) -> Line {
    let gpus = (gpus_per_node * nodes).max(1.0);
    let (gpu, gpu_bytes) = match (offload, formula) {
        (true, _) => ("2P", 2.0 * parameters),
        // 2 bytes of weights and, over all GPUs, 2 + 4 of gradients, 4 of master copy, 8 of moments.
        (false, Formula::Current) => ("2P + 18P/N", 2.0 * parameters + 18.0 * parameters / gpus),
        (false, Formula::Documented) => ("4P + 16P/N", 4.0 * parameters + 16.0 * parameters / gpus),
    };
    let (host, host_bytes) = match offload {
        true => ("1.5 P max(4N, 16)", parameters * (4.0 * gpus).max(16.0)),
        false => ("1.5 × 4P × GPUs of a node", parameters * 4.0 * gpus_per_node),
    };
    let offloaded = if offload { Offloaded::Optimizer } else { Offloaded::Nothing };
    Line { offloaded, zero_init: None, host_gib: host_bytes * BUFFER / GIB, gpu_gib: gpu_bytes / GIB, host, gpu }
}

/// ZeRO-3's table for so many parameters, of which the largest layer has so many.
pub fn zero3(parameters: f64, largest: f64, gpus_per_node: f64, nodes: f64) -> Vec<Line> {
    let places = [Offloaded::ParametersAndOptimizer, Offloaded::Optimizer, Offloaded::Nothing];
    let line = |place, init| zero3_line(parameters, largest, gpus_per_node, nodes, place, init);
    places.into_iter().flat_map(|place| [line(place, true), line(place, false)]).collect()
}

/// A line of that table.
pub fn zero3_line(
    parameters: f64,
    largest: f64,
    gpus_per_node: f64,
    nodes: f64,
    offloaded: Offloaded,
    zero_init: bool,
) -> Line {
    let (gpus, nodes) = ((gpus_per_node * nodes).max(1.0), nodes.max(1.0));
    // The layer that is gathered: weights and gradients of 2 bytes.
    let layer = 4.0 * largest;
    let (gpu, gpu_bytes) = match offloaded {
        Offloaded::ParametersAndOptimizer => ("4L", layer),
        Offloaded::Optimizer => ("4L + 2P/N", layer + 2.0 * parameters / gpus),
        Offloaded::Nothing => ("4L + 18P/N", layer + 18.0 * parameters / gpus),
    };
    let whole = parameters * 4.0 * gpus_per_node;
    let (host, host_bytes) = match (offloaded, zero_init) {
        (Offloaded::ParametersAndOptimizer, true) => ("1.5 × 18P/nodes", parameters * 18.0 / nodes),
        (Offloaded::ParametersAndOptimizer, false) => {
            ("1.5 P max(4 × GPUs of a node, 18/nodes)", whole.max(parameters * 18.0 / nodes))
        }
        (Offloaded::Optimizer, true) => ("1.5 × 16P/nodes", parameters * 16.0 / nodes),
        (Offloaded::Optimizer, false) => {
            ("1.5 P max(4 × GPUs of a node, 16/nodes)", whole.max(parameters * 16.0 / nodes))
        }
        (Offloaded::Nothing, true) => ("1.5 × 4L × GPUs of a node", largest * 4.0 * gpus_per_node),
        (Offloaded::Nothing, false) => ("1.5 × 4P × GPUs of a node", whole),
    };
    let zero_init = Some(zero_init);
    Line { offloaded, zero_init, host_gib: host_bytes * BUFFER / GIB, gpu_gib: gpu_bytes / GIB, host, gpu }
}
