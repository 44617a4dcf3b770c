//! That the checks can fail: results with one element changed, and what becomes of a wrong one.

use super::numbers::floats;
use super::oracle::{self, Checked, Exact, Sums, Tolerance};
use crate::bench::{BenchResult, record};
use zbench_kernels::numerics::philox;
use zbench_kernels::{Attention, Cpu, DType, Gemm, Kernels, Op, View, ViewMut};
use zbench_kernels_testing::ByName;
use zbench_reports::bench::{self, Ceiling, Timing};
use zbench_reports::document::Tone;
use zbench_reports::record::{Record, Status};
use zbench_runner::{Header, Summary};

fn normals(len: usize, seed: u64) -> Vec<f32> {
    (0..len.div_ceil(4) as u64).flat_map(|block| philox::normals(seed, block)).take(len).collect()
}

#[test]
fn a_product_is_right_and_one_wrong_element_is_found() {
    for (m, n, k, trans_a, trans_b, accumulate) in
        [(3, 5, 700, false, true, false), (4, 2, 1, true, false, true), (1, 7, 64, true, true, false)]
    {
        let c = DType::F32;
        let op = Gemm { m, n, k, trans_a, trans_b, alpha: 1.0, accumulate, a: c, b: c, c, ..Gemm::DENSE };
        let (a, b, before) = (normals(m * k, 1), normals(k * n, 2), normals(m * n, 3));
        let mut got = before.clone();
        let cpu = Cpu::new(2);
        let mut scratch = vec![0f32; cpu.workspace(&Op::Gemm(op))];
        cpu.gemm(&op, View::of(&a), View::of(&b), ViewMut::of(&mut got), ViewMut::of(&mut scratch)).unwrap();
        let places: Vec<(usize, usize)> = (0..m).flat_map(|i| (0..n).map(move |j| (i, j))).collect();
        let held = oracle::elements(&op, View::of(&before), &places);
        let check = |got: &[f32]| oracle::gemm(&op, [View::of(&a), View::of(&b), View::of(got)], &held, &places);
        let right = check(&got);
        assert_eq!((right.count as usize, right.first_wrong.clone()), (m * n, None));
        assert!(right.worst <= 1.0);
        for wrong in [f32::NAN, f32::INFINITY, got[1] + 0.01, 0.0] {
            let mut changed = got.clone();
            changed[1] = wrong;
            let found = check(&changed);
            let told = found.first_wrong.expect("one element is wrong");
            assert!(found.worst > 1.0 && told.contains("of C"), "{told}");
        }
    }
}

#[test]
fn attention_is_right_and_one_wrong_row_is_found() {
    let (dtype, seq, dim) = (DType::F32, 19, 8);
    let op = Attention {
        batch: 2,
        seq,
        kv_seq: seq,
        causal: true,
        heads: 4,
        kv_heads: 2,
        head_dim: dim,
        scale: 0.35,
        window: Some(5),
        alibi: None,
        dtype,
    };
    let (q_len, kv_len) = (2 * seq * 4 * dim, 2 * seq * 2 * dim);
    let [q, dout] = [1, 4].map(|seed| normals(q_len, seed));
    let [k, v] = [2, 3].map(|seed| normals(kv_len, seed));
    let cpu = Cpu::new(1);
    let (mut out, mut lse) = (vec![0f32; q_len], vec![0f32; 2 * 4 * seq]);
    let mut scratch = vec![0f32; cpu.workspace(&Op::Attention(op)).max(cpu.workspace(&Op::AttentionBackward(op)))];
    let forward = cpu.workspace(&Op::Attention(op));
    let (q, k, v, dout) = (View::of(&q), View::of(&k), View::of(&v), View::of(&dout));
    let work = ViewMut::of(&mut scratch[..forward]);
    cpu.attention(&op, q, k, v, ViewMut::of(&mut out), ViewMut::of(&mut lse), work).unwrap();
    let (mut dq, mut dk, mut dv) = (vec![0f32; q_len], vec![0f32; kv_len], vec![0f32; kv_len]);
    let backward = cpu.workspace(&Op::AttentionBackward(op));
    let [a, b, c] = [&mut dq, &mut dk, &mut dv].map(|gradient| ViewMut::of(gradient.as_mut_slice()));
    let (o, l, work) = (View::of(&out), View::of(&lse), ViewMut::of(&mut scratch[..backward]));
    cpu.attention_backward(&op, q, k, v, o, l, dout, a, b, c, work).unwrap();
    let exact = Exact { op, operands: [q, k, v, dout] };
    let tolerance = oracle::tolerance(dtype, seq);
    let row = |of: &[f32], start: usize| floats(View::of(&of[start..start + dim]));
    for (batch, head, token) in [(0, 0, 0), (1, 3, 18), (0, 2, 7)] {
        let start = exact.query(batch, head, token);
        let [want_out, want_dq] = exact.of_query(batch, head, token);
        assert_eq!(oracle::compare("out", &row(&out, start), &want_out, tolerance).first_wrong, None);
        assert_eq!(oracle::compare("dq", &row(&dq, start), &want_dq, tolerance).first_wrong, None);
        let mut changed = row(&out, start);
        changed[3] += 0.01;
        assert!(oracle::compare("out", &changed, &want_out, tolerance).worst > 1.0);
        changed[3] = f64::NAN;
        assert!(oracle::compare("out", &changed, &want_out, tolerance).first_wrong.unwrap().contains("NaN"));
    }
    for (batch, head, token) in [(0, 0, 0), (1, 1, 18), (0, 1, 9)] {
        let start = exact.key(batch, head, token);
        let [want_dk, want_dv] = exact.of_key(batch, head, token);
        assert_eq!(oracle::compare("dk", &row(&dk, start), &want_dk, tolerance).first_wrong, None);
        assert_eq!(oracle::compare("dv", &row(&dv, start), &want_dv, tolerance).first_wrong, None);
        assert!(oracle::compare("dk", &want_dv.values, &want_dk, tolerance).worst > 1.0);
    }
}

#[test]
fn nothing_checked_is_not_wrong_and_parts_add_up() {
    let sums = |values: &[f64]| Sums { values: values.to_vec(), sizes: values.iter().map(|x| x.abs()).collect() };
    let (mut all, close) = (Checked::default(), Tolerance { share: 1e-9, tiny: 0.0 });
    all.add(oracle::compare("a", &[1.0, 2.0], &sums(&[1.0, 2.0]), close));
    assert_eq!((all.count, all.worst, &all.first_wrong), (2, 0.0, &None));
    all.add(oracle::compare("b", &[1.0], &sums(&[3.0]), close));
    all.add(oracle::compare("c", &[1.0], &sums(&[1.0]), close));
    assert!(all.count == 4 && all.worst > 1.0 && all.first_wrong.unwrap().contains(" of b is 1"));
}

/// A record as a run makes it of this answer.
fn answered(worst: f64, wrong: Option<&str>) -> Record {
    let timing = Timing {
        kernel: "gemm".into(),
        samples: 3,
        median_us: 10.0,
        p10_us: 9.0,
        p90_us: 11.0,
        gflops: 77.0,
        share: Some(0.5),
        checked: 4,
        worst,
        ..Timing::default()
    };
    let ceiling = Ceiling { gflops: Some(154.0), ..Ceiling::default() };
    let result =
        BenchResult { timings: vec![timing], ceiling, wrong: wrong.map(String::from), ..BenchResult::default() };
    let cell = serde_json::json!({ "suite": "gemm", "gemm": { "shape": "1x2x3" } });
    let mut record = Header::default().blank("key", cell, 1, jiff::Timestamp::UNIX_EPOCH);
    record::fill(&mut record, &result);
    record
}

#[test]
fn a_wrong_product_fails_and_its_numbers_are_struck_out() {
    let right = answered(0.3, None);
    let wrong = answered(40.0, Some("element [0, 1] of C is 5, and 7 within 1e-6 in f64"));
    assert_eq!((right.outcome.status, wrong.outcome.status), (Status::Measured, Status::Failed));
    assert!(wrong.outcome.reason.contains("wrong result: element [0, 1]"));
    let summary = |record: &Record| Summary { records: vec![record.clone()], ..Summary::default() };
    assert_eq!((summary(&right).exit_code(), summary(&wrong).exit_code()), (0, 5));
    let tone_and_share = |record: &Record| {
        let document = bench::document(&[record]);
        let table = document.tables().find(|table| table.name == "matrix products").unwrap().clone();
        let place = |title: &str| table.columns.iter().position(|column| column.title == title).unwrap();
        (table.rows[0][place("rate")].tone, table.rows[0][place("share")].text.clone())
    };
    assert_eq!(tone_and_share(&right), (Tone::Plain, "50.0 %".to_string()));
    assert_eq!(tone_and_share(&wrong), (Tone::Struck, "-".to_string()));
}
