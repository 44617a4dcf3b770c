use super::*;
use crate::job::Attention;
use crate::profile;

fn roofs() -> Vec<crate::machine::Machine> {
    ["v100-32gb", "a100-80gb", "h100-sxm", "h200", "b200", "mi300x", "rtx4090"]
        .iter()
        .map(|name| profile::machine(name).expect(name))
        .collect()
}

fn product(m: f64, n: f64, k: f64) -> Product {
    Product { m, n, k, count: 1.0, out_bytes: 2.0 }
}

#[test]
fn a_large_product_reaches_what_the_profile_says_and_never_more() {
    for machine in roofs() {
        let roof = Roofline { device: &machine.device, tuning: &Tuning::DEFAULT };
        let flops = 2.0 * 8192.0 * 16384.0 * 8192.0;
        let rate = flops / roof.product(product(8192.0, 16384.0, 8192.0), Number::F16);
        assert!(rate <= roof.sustained(Number::F16), "{}: {rate:e}", machine.name);
        assert!(rate >= 0.85 * roof.sustained(Number::F16), "{}: {rate:e}", machine.name);
    }
}

#[test]
fn no_product_beats_the_peak_or_the_memory() {
    for machine in roofs() {
        let roof = Roofline { device: &machine.device, tuning: &Tuning::DEFAULT };
        for m in [1.0, 17.0, 128.0, 1000.0, 4096.0] {
            for n in [8.0, 96.0, 4096.0] {
                for k in [16.0, 256.0, 8192.0] {
                    let took = roof.product(product(m, n, k), Number::F16);
                    assert!(took >= 2.0 * m * n * k / roof.peak(Number::F16));
                    assert!(took >= 2.0 * (m * k + k * n + m * n) / machine.device.bandwidth);
                    assert!(took >= machine.device.launch);
                }
            }
        }
    }
}

#[test]
fn one_tile_more_than_the_units_takes_longer() {
    let machine = profile::machine("a100-80gb").expect("a100");
    let roof = Roofline { device: &machine.device, tuning: &Tuning::DEFAULT };
    // 108 tiles of 256 x 128: one wave; one column of tiles more begins a second.
    let even = roof.product(product(256.0 * 9.0, 128.0 * 12.0, 8192.0), Number::F16);
    let over = roof.product(product(256.0 * 9.0, 128.0 * 13.0, 8192.0), Number::F16);
    assert!(over > 1.05 * even, "{over} {even}");
    assert!(over < 2.0 * even, "{over} {even}");
}

#[test]
fn rows_that_are_not_aligned_are_slow() {
    let machine = profile::machine("a100-80gb").expect("a100");
    let roof = Roofline { device: &machine.device, tuning: &Tuning::DEFAULT };
    let even = roof.product(product(2048.0, 2048.0, 112.0), Number::F16);
    let odd = roof.product(product(2048.0, 2048.0, 108.0), Number::F16);
    assert!(odd > 2.0 * even, "{odd} {even}");
}

fn heads(queries: f64, causal: bool) -> Heads {
    Heads {
        batch: 4.0,
        heads: 16.0,
        width: 128.0,
        value_width: 128.0,
        queries,
        keys: queries,
        causal,
        dropout: false,
        fused_softmax: true,
    }
}

#[test]
fn attention_counts_half_of_the_square_where_it_is_causal() {
    let full = heads(2048.0, false).flops();
    assert_eq!(full, 4.0 * 4.0 * 16.0 * 2048.0 * 2048.0 * 128.0);
    assert_eq!(heads(2048.0, true).flops(), full / 2.0);
}

#[test]
fn attention_by_tiles_beats_scores_and_no_peak() {
    for machine in roofs() {
        let roof = Roofline { device: &machine.device, tuning: &Tuning::DEFAULT };
        for generation in 1..=3 {
            for causal in [false, true] {
                let call = heads(4096.0, causal);
                let (forward, backward) = roof.attention(call, Attention::Flash(generation), Number::F16);
                assert!(forward >= call.flops() / roof.peak(Number::F16));
                assert!(backward > 2.0 * forward, "backward makes 2.5 times the products");
                let (naive, naive_back) = roof.attention(call, Attention::Naive, Number::F16);
                let quicker = forward + backward < naive + naive_back;
                assert!(quicker || generation == 1, "{} {generation}", machine.name);
            }
        }
    }
}

#[test]
fn scores_move_at_least_their_bytes() {
    let machine = profile::machine("a100-80gb").expect("a100");
    let roof = Roofline { device: &machine.device, tuning: &Tuning::DEFAULT };
    let (forward, _) = roof.attention(heads(2048.0, true), Attention::Naive, Number::F16);
    // Written, read and written by the softmax, read: 8 bytes an element.
    let bytes = 8.0 * 4.0 * 16.0 * 2048.0 * 2048.0;
    assert!(forward > bytes / machine.device.bandwidth);
}
