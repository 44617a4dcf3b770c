//! DeepSpeed's estimators against their formulas evaluated by hand, and against DeepSpeed's own code run in Python
//! (tests/interop/deepspeed_estimators.py).

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

/// Tolerance: one byte, as DeepSpeed cuts off fractions of a byte, and two factors that are multiplied in another order may
/// round across a whole one.
#[test]
fn every_row_of_deepspeeds_own_code_is_met_to_the_byte() {
    let text = include_str!("../../../tests/interop/deepspeed_estimators.csv");
    let mut seen = 0;
    for row in text.lines().skip(1) {
        let cells: Vec<&str> = row.split(',').collect();
        let number = |at: usize| cells[at].parse::<f64>().expect(row);
        let (parameters, largest, gpus, nodes) = (number(2), number(3), number(4), number(5));
        let lines = match cells[1] {
            "2" => zero2(parameters, gpus, nodes, Formula::Current),
            "3" => zero3(parameters, largest, gpus, nodes),
            other => panic!("stage {other}"),
        };
        let offloaded = match cells[6] {
            "none" => Offloaded::Nothing,
            "optimizer" => Offloaded::Optimizer,
            "all" => Offloaded::ParametersAndOptimizer,
            other => panic!("offload {other}"),
        };
        let init = cells[7].parse::<bool>().ok();
        let line = lines.iter().find(|line| line.offloaded == offloaded && line.zero_init == init).expect(row);
        for (gib, bytes) in [(line.host_gib, number(8)), (line.gpu_gib, number(9))] {
            assert!((gib * GIB - bytes).abs() <= 1.0, "{row}: {} bytes", gib * GIB);
        }
        assert_eq!(cells[0], "0.19.8");
        seen += 1;
    }
    assert_eq!(seen, 4 * 5 * (2 + 6));
}
