//! DeepSpeed's estimators against their formulas evaluated by hand.

use zbench_estimate::deepspeed::{Formula, Offloaded, zero2, zero3};

const GIB: f64 = 1_073_741_824.0;

fn is(value: f64, bytes: f64) {
    assert!((value * GIB / bytes - 1.0).abs() < 1e-12, "{value} GiB is not {bytes} bytes");
}

#[test]
fn zero2_of_eight_gpus() {
    let lines = zero2(3e9, 8.0, 1.0, Formula::Current);
    assert_eq!(lines.len(), 2);
    is(lines[0].gpu_gib, 6e9);
    is(lines[0].host_gib, 3e9 * 32.0 * 1.5);
    is(lines[1].gpu_gib, 6e9 + 18.0 * 3e9 / 8.0);
    is(lines[1].host_gib, 3e9 * 4.0 * 8.0 * 1.5);
    is(zero2(3e9, 8.0, 1.0, Formula::Documented)[1].gpu_gib, 12e9 + 16.0 * 3e9 / 8.0);
    // One GPU: the 16 bytes of the optimizer outweigh 4 of weights.
    is(zero2(3e9, 1.0, 1.0, Formula::Current)[0].host_gib, 3e9 * 16.0 * 1.5);
}

#[test]
fn zero3_of_two_nodes() {
    let lines = zero3(3e9, 5e7, 8.0, 2.0);
    assert_eq!(lines.len(), 6);
    let line = |offloaded, init| {
        lines.iter().find(|l| l.offloaded == offloaded && l.zero_init == Some(init)).copied().expect("a line")
    };
    for init in [true, false] {
        is(line(Offloaded::ParametersAndOptimizer, init).gpu_gib, 2e8);
        is(line(Offloaded::Optimizer, init).gpu_gib, 2e8 + 2.0 * 3e9 / 16.0);
        is(line(Offloaded::Nothing, init).gpu_gib, 2e8 + 18.0 * 3e9 / 16.0);
    }
    is(line(Offloaded::ParametersAndOptimizer, true).host_gib, 3e9 * 9.0 * 1.5);
    is(line(Offloaded::Optimizer, true).host_gib, 3e9 * 8.0 * 1.5);
    is(line(Offloaded::Optimizer, false).host_gib, 3e9 * 32.0 * 1.5);
    is(line(Offloaded::Nothing, true).host_gib, 5e7 * 4.0 * 8.0 * 1.5);
    is(line(Offloaded::Nothing, false).host_gib, 3e9 * 32.0 * 1.5);
}
