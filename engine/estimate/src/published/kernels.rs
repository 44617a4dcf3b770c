//! Rows of kernels: FLOP/s of attention and of matrix products.

use super::guess::{Guess, machine};
use super::job::Refused;
use super::row::Row;
use super::words::{self, any};
use crate::job::{Attention, Number};
use crate::roofline::{Heads, Product, Roofline};
use crate::tuning::Tuning;

fn form(text: &str) -> Number {
    match () {
        () if any(text, &["fp8", "float8", "e4m3"]) => Number::Fp8,
        () if text.contains("int8") => Number::Int8,
        () if text.contains("bf16") => Number::Bf16,
        () if text.contains("16") => Number::F16,
        () if text.contains("tf32") => Number::Tf32,
        () => Number::F32,
    }
}

/// The generation of a kernel by its library's name.
fn kernel(library: &str) -> (Attention, bool) {
    let has = |words: &[&str]| any(library, words);
    match () {
        () if has(&["attention-3", "fa3", "flash-3", "cudnn", "attention-4"]) => (Attention::Flash(3), false),
        () if has(&["attention-2", "fa2", "flash-2", "sdpa"]) => (Attention::Flash(2), false),
        // The compiler's own kernel, years later than the one of the first FlashAttention.
        () if library.trim() == "triton" => (Attention::Flash(2), false),
        () if has(&["attention-1", "fa1", "flash", "xformers", "triton", "cutlass", "efficient"]) => {
            (Attention::Flash(1), false)
        }
        () if has(&["megatron", "apex", "fused"]) => (Attention::Naive, true),
        () => (Attention::Naive, false),
    }
}

/// The prediction of a row.
///
/// # Errors
/// What of it cannot be expressed.
pub fn predict(row: &Row) -> Result<Guess, Refused> {
    predict_with(row, &Tuning::DEFAULT)
}

/// The same with other constants.
///
/// # Errors
/// What of it cannot be expressed.
pub fn predict_with(row: &Row, tuning: &Tuning) -> Result<Guess, Refused> {
    let gpu = row.words("gpu");
    let name = words::machine(&gpu, row.number("gpu_mem_gb").unwrap_or(0.0))?;
    let machine = machine(name, 0, None, "")?;
    // A bench: nothing else warms the device, so best rates are reached, not sustained ones.
    let rested = Tuning {
        sustained: 1.0,
        sustained_hot: 1.0,
        sustained_hotter: 1.0,
        pass_reached: 0.9,
        batched: 0.75,
        ..tuning.clone()
    };
    let roof = Roofline { device: &machine.device, tuning: &rested };
    let form = form(&row.words("dtype"));
    let of = |columns: &[&str]| columns.iter().find_map(|column| row.number(column).filter(|n| *n > 0.0));
    let stated = of(&["tflops"]);
    let one_sided = !row.text("bound").is_empty();
    let predicted = if row.words("kernel").contains("gemm") || row.words("kernel").contains("matmul") {
        let (Some(m), Some(n), Some(k)) = (of(&["m"]), of(&["n"]), of(&["k"])) else {
            return Err(Refused("a product without m, n and k".into()));
        };
        2.0 * m * n * k / roof.product(Product { m, n, k, count: 1.0, out_bytes: 2.0 }, form) / 1e12
    } else {
        let (Some(width), Some(heads)) = (of(&["head_dim", "hdim"]), of(&["n_heads", "heads", "nheads"])) else {
            return Err(Refused("attention without heads and their width".into()));
        };
        let (Some(batch), Some(seq)) = (of(&["batch"]), of(&["seq", "seqlen"])) else {
            return Err(Refused("attention without a batch and a length".into()));
        };
        let (kind, fused_softmax) = kernel(&row.words("library"));
        let causal = row.words("causal").starts_with('y') || row.words("causal").starts_with('t');
        let call = Heads {
            batch,
            heads,
            width,
            value_width: width,
            queries: seq,
            keys: seq,
            causal,
            dropout: false,
            fused_softmax,
        };
        let (forward, backward) = roof.attention(call, kind, form);
        let direction = format!("{} {}", row.words("pass"), row.words("direction"));
        let (there, back) = (direction.contains("fwd"), direction.contains("bwd"));
        let (seconds, flops) = match (there, back) {
            (true, true) => (forward + backward, 3.5 * call.flops()),
            (false, true) => (backward, 2.5 * call.flops()),
            _ => (forward, call.flops()),
        };
        flops / seconds / 1e12
    };
    Guess { quantity: "tflops", stated, predicted, one_sided }.checked()
}
