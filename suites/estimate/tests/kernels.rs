//! Published rates of single kernels, tests/published/kernels.csv, beside the roofline's.

use zbench_estimate::job::{Attention, Number};
use zbench_estimate::profile;
use zbench_estimate::roofline::{Heads, Product, Roofline};
use zbench_estimate::tuning::Tuning;

/// A benchmark of one kernel: nothing else warms the device, so best rates are reached, not sustained ones.
fn rested() -> Tuning {
    Tuning {
        sustained: 1.0,
        sustained_hot: 1.0,
        sustained_hotter: 1.0,
        pass_reached: 0.9,
        batched: 0.75,
        ..Tuning::DEFAULT
    }
}

/// TFLOP/s of a row.
fn predicted(row: &csv::StringRecord, column: &dyn Fn(&str) -> usize) -> f64 {
    let text = |name: &str| row.get(column(name)).unwrap();
    let number = |name: &str| text(name).parse::<f64>().unwrap();
    let machine = profile::machine(text("profile")).unwrap();
    let tuning = rested();
    let roof = Roofline { device: &machine.device, tuning: &tuning };
    let forms = [Number::F32, Number::Tf32, Number::Bf16, Number::F16, Number::Fp8, Number::Int8];
    let form = forms.into_iter().find(|form| form.name() == text("number")).unwrap();
    if text("kernel") == "gemm" {
        let (m, n, k) = (number("m"), number("n"), number("k"));
        return 2.0 * m * n * k / roof.product(Product { m, n, k, count: 1.0, out_bytes: 2.0 }, form) / 1e12;
    }
    let kind = match text("generation").parse().unwrap() {
        0 => Attention::Naive,
        generation => Attention::Flash(generation),
    };
    let call = Heads {
        batch: number("batch"),
        heads: number("heads"),
        width: number("head_dim"),
        value_width: number("head_dim"),
        queries: number("seq_len"),
        keys: number("seq_len"),
        causal: text("causal") == "true",
        dropout: false,
        fused_softmax: text("fused_softmax") == "true",
    };
    let (forward, backward) = roof.attention(call, kind, form);
    let (seconds, flops) = match text("pass") {
        "both" => (forward + backward, 3.5 * call.flops()),
        "backward" => (backward, 2.5 * call.flops()),
        _ => (forward, call.flops()),
    };
    flops / seconds / 1e12
}

#[test]
fn kernels_of_attention_and_products() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/published/kernels.csv");
    let mut reader = csv::Reader::from_path(path).unwrap();
    let header = reader.headers().unwrap().clone();
    let column = |name: &str| header.iter().position(|column| column == name).unwrap();
    let mut errors: Vec<f64> = Vec::new();
    for row in reader.records().map(Result::unwrap).filter(|row| &row[column("scored")] == "true") {
        let stated: f64 = row[column("tflops")].parse().unwrap();
        errors.push((predicted(&row, &column) / stated - 1.0).abs());
    }
    assert!(errors.len() > 150, "{}", errors.len());
    errors.sort_by(f64::total_cmp);
    let median = errors[errors.len() / 2];
    assert!(median <= 0.10, "{median}");
}
