use super::super::curves::Point;
use super::*;
use crate::mesh::GroupName;
use crate::recorder::{Phase, Recorded};
use zbench_kernels::{Elementwise, Op};

/// 10 us for each of f32's fills and sums of squares, 3 us for casts per 100 elements.
fn curves() -> Curves {
    let mut curves = Curves::default();
    let point = |seconds| Point { sizes: vec![100.0], seconds };
    curves.add("fill f32", point(10e-6));
    curves.add("sum_squares f32", point(10e-6));
    curves.add("cast f32-bf16", point(3e-6));
    curves
}

fn recorded(action: Action, ops: &[(&'static str, Op)], collectives: &[Collective]) -> RecordedAction {
    let operation = |(term, op): &(&'static str, Op)| Recorded { phase: Phase::Update, term, op: *op };
    RecordedAction { action, operations: ops.iter().map(operation).collect(), collectives: collectives.to_vec() }
}

fn moved(make: fn(Elementwise) -> Op, len: usize, to: DType) -> Op {
    make(Elementwise { len, sources: 1, from: DType::F32, to })
}

/// A microsecond for each thousand bytes, and only gathers.
struct Links;

impl Machine for Links {
    fn collective(&self, call: &Collective, dtype: DType) -> Result<f64, String> {
        assert_eq!(dtype, DType::Bf16);
        match call.kind {
            CollectiveKind::AllGather | CollectiveKind::AllReduce => Ok(call.bytes as f64 * 1e-9),
            other => Err(format!("no fit of {}", other.name())),
        }
    }
}

fn clock(curves: &Curves, crowd: f64) -> Clock<'_> {
    let overheads = Overheads { operation: 1e-6, load: 5e-6, step: 7e-6, call: 2e-6, all_reduce: 5e-6 };
    Clock { curves, overheads, machine: &Links, crowd, reduce: DType::Bf16, corrections: BySpan::all(1.0) }
}

fn gather(bytes: u64) -> Collective {
    Collective { axis: GroupName::Data, kind: CollectiveKind::AllGather, ranks: 4, bytes, in_place: false }
}

#[test]
fn a_step_is_what_its_operations_collectives_and_overheads_take() {
    let (f, b) = (DType::F32, DType::Bf16);
    let actions = [
        recorded(Action::Load { micro: 0 }, &[], &[]),
        recorded(
            Action::Gather { unit: 0, refresh: false, slot: true },
            &[("gather", moved(Op::Cast, 200, b))],
            &[gather(20_000)],
        ),
        recorded(
            Action::Forward { micro: 0, layer: 0 },
            &[("x", moved(|m| Op::Fill(m, 0.0), 100, f)), ("x", moved(|m| Op::Fill(m, 0.0), 300, f))],
            &[],
        ),
        recorded(Action::Release { unit: 0 }, &[], &[]),
        recorded(
            Action::Recompute { micro: 0, layer: 0, output: false },
            &[("x", moved(|m| Op::Fill(m, 0.0), 100, f))],
            &[],
        ),
        recorded(Action::Backward { micro: 0, layer: 0 }, &[("x", moved(|m| Op::Fill(m, 0.0), 200, f))], &[]),
        recorded(
            Action::Reduce { unit: 0, first: true, last: true },
            &[],
            &[Collective { kind: CollectiveKind::AllReduce, ..gather(3_000) }],
        ),
        recorded(
            Action::Update,
            &[("norm", moved(Op::SumSquares, 100, DType::F64)), ("adamw", moved(|m| Op::Fill(m, 0.0), 100, f))],
            &[gather(1_000)],
        ),
    ];
    let curves = curves();
    // By hand, microseconds: load 5; gather 6 + 1 and 20 + 2; forward 10 + 30 + 2; recompute 11; backward 21; reduce
    // 3 + 5; agree 11 and 1 + 2; optimizer 11; other 7.
    let hand = [42.0, 21.0, 11.0, 29.0, 8.0, 14.0, 11.0, 0.0, 5.0, 7.0];
    let time = clock(&curves, 1.0).time(&actions).unwrap();
    time.spans_ms
        .iter()
        .zip(hand)
        .for_each(|((_, ms), us)| assert!((ms * 1e3 - us).abs() < 1e-9, "{:?}", time.spans_ms));
    assert!((time.step_ms() * 1e3 - 148.0).abs() < 1e-9);
    // Two ranks to a core: all but the collectives' 33 us twice.
    let crowded = clock(&curves, 2.0).time(&actions).unwrap();
    assert!((crowded.step_ms() * 1e3 - (2.0 * 115.0 + 33.0)).abs() < 1e-9);
    // A correction is a factor on its span and on nothing else.
    let mut corrected = clock(&curves, 1.0);
    corrected.corrections[Span::Backward] = 1.5;
    let more = corrected.time(&actions).unwrap().step_ms() - time.step_ms();
    assert!((more * 1e3 - 10.5).abs() < 1e-9);
}

#[test]
fn what_was_not_measured_is_said() {
    let curves = curves();
    let unknown =
        [recorded(Action::Forward { micro: 0, layer: 0 }, &[("x", moved(|m| Op::Scale(m, 1.0), 8, DType::F32))], &[])];
    let reason = clock(&curves, 1.0).time(&unknown).unwrap_err().to_string();
    assert!(reason.contains("scale f32"), "{reason}");
    let sum = Collective { kind: CollectiveKind::ReduceScatter, ..gather(8) };
    let reason = clock(&curves, 1.0).time(&[recorded(Action::Update, &[], &[sum])]).unwrap_err().to_string();
    assert_eq!(reason, "no fit of reduce_scatter");
}
