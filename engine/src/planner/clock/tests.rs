use super::*;
use crate::action::Moved;
use crate::action::stream::Stream;
use crate::compute::recorder::{Overlap, Phase, Recorded};
use crate::config::MemoryTier;
use crate::memory::moves::MoveEvent;
use crate::planner::curves::Point;
use zbench_collectives::GroupName;
use zbench_kernels::{Category, Elementwise, Op};

/// 10 us for each of f32's fills and sums of squares, 3 us for casts per 100 elements.
fn curves() -> Curves {
    let mut curves = Curves::default();
    let point = |seconds| Point { sizes: vec![100.0], seconds };
    curves.add("fill f32", point(10e-6));
    curves.add("sum_squares f32", point(10e-6));
    curves.add("cast f32-bf16", point(3e-6));
    curves.add(COPY, point(4e-6));
    curves
}

fn recorded(action: Action, ops: &[(&'static str, Op)], collectives: &[Collective]) -> RecordedAction {
    let operation = |(term, op): &(&'static str, Op)| Recorded { phase: Phase::Update, term, op: *op };
    RecordedAction {
        action,
        operations: ops.iter().map(operation).collect(),
        collectives: collectives.to_vec(),
        moves: Vec::new(),
        overlaps: Vec::new(),
        least: 0.0,
    }
}

fn moved(make: fn(Elementwise) -> Op, len: usize, to: DType) -> Op {
    make(Elementwise { len, sources: 1, from: DType::F32, to })
}

/// A microsecond for each thousand bytes, and only gathers, all-reduces and messages.
struct Links;

impl Machine for Links {
    fn collective(&self, call: &Collective, dtype: DType) -> Result<f64, String> {
        assert_eq!(dtype, DType::Bf16);
        match call.kind {
            CollectiveKind::AllGather | CollectiveKind::AllReduce | CollectiveKind::Recv | CollectiveKind::SendRecv => {
                Ok(call.bytes as f64 * 1e-9)
            }
            other => Err(format!("no fit of {}", other.name())),
        }
    }

    /// A microsecond for a byte to the disk, two from it, and 6 at least for one alone.
    fn disk_move(&self, of: &Move) -> Result<DiskTime, String> {
        let each = match (of.from, of.to, of.bytes) {
            (_, _, 7) => return Err("the disk was not measured".into()),
            (MemoryTier::Disk, MemoryTier::Host, _) => 2e-6,
            (MemoryTier::Host, MemoryTier::Disk, _) => 1e-6,
            other => panic!("{other:?} is no transfer of a disk"),
        };
        let busy = of.bytes as f64 * each;
        Ok(DiskTime { busy, alone: busy.max(6e-6) })
    }
}

fn clock(curves: &Curves, crowd: f64) -> Clock<'_> {
    let overheads = Overheads { operation: 1e-6, load: 5e-6, step: 7e-6, call: 2e-6, all_reduce: 5e-6, tensor: 3e-6 };
    Clock { curves, overheads, machine: &Links, crowd, reduce: DType::Bf16, corrections: BySpan::all(1.0) }
}

fn gather(bytes: u64) -> Collective {
    Collective {
        axis: GroupName::Data,
        kind: CollectiveKind::AllGather,
        ranks: 4,
        bytes,
        in_place: false,
        is_started: false,
    }
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
    let hand = [42.0, 21.0, 11.0, 29.0, 8.0, 0.0, 0.0, 14.0, 11.0, 0.0, 5.0, 7.0];
    let time = clock(&curves, 1.0).time([&actions]).unwrap();
    time.spans_ms
        .iter()
        .zip(hand)
        .for_each(|((_, ms), us)| assert!((ms * 1e3 - us).abs() < 1e-9, "{:?}", time.spans_ms));
    assert!((time.step_ms() * 1e3 - 148.0).abs() < 1e-9);
    // Two ranks to a core: all but the collectives' 33 us twice.
    let crowded = clock(&curves, 2.0).time([&actions]).unwrap();
    assert!((crowded.step_ms() * 1e3 - (2.0 * 115.0 + 33.0)).abs() < 1e-9);
    // A correction is a factor on its span and on nothing else.
    let mut corrected = clock(&curves, 1.0);
    corrected.corrections[Span::Backward] = 1.5;
    let more = corrected.time([&actions]).unwrap().step_ms() - time.step_ms();
    assert!((more * 1e3 - 10.5).abs() < 1e-9);
}

fn fill(action: Action, hundreds: usize) -> RecordedAction {
    recorded(action, &[("x", moved(|m| Op::Fill(m, 0.0), 100 * hundreds, DType::F32))], &[])
}

/// Of 3,000 bytes.
fn message(is_send: bool, gradient: bool) -> RecordedAction {
    let (micro, stream) = (0, Stream::Decoder);
    let (action, kind) = match is_send {
        true => (Action::Send { micro, chunk: 0, stream, gradient }, CollectiveKind::Send),
        false => (Action::Receive { micro, chunk: 0, stream, gradient }, CollectiveKind::Recv),
    };
    recorded(action, &[], &[Collective { axis: GroupName::Pipeline, kind, ranks: 2, ..gather(3_000) }])
}

fn two_stages() -> [Vec<RecordedAction>; 2] {
    let (forward, backward) = (Action::Forward { micro: 0, layer: 0 }, Action::Backward { micro: 0, layer: 0 });
    let update = |hundreds: usize| {
        let norm = ("norm", moved(Op::SumSquares, 100, DType::F64));
        let adamw = ("adamw", moved(|m| Op::Fill(m, 0.0), 100 * hundreds, DType::F32));
        recorded(Action::Update, &[norm, adamw], &[gather(1_000)])
    };
    [
        vec![fill(forward, 1), message(true, false), message(false, true), fill(backward, 2), update(1)],
        vec![message(false, false), fill(forward, 3), fill(backward, 1), message(true, true), update(3)],
    ]
}

/// By hand, microseconds. Both begin at 7. Stage 0 goes forward until 18. Stage 1 has the message at 21, computes until 52 and 63. Stage 0
/// has its gradient at 66, computes until 87 and has its norm at 98. Stage 1 waits for that message until 66, and from 77 for the norm. Behind
/// the agreement stage 0 takes 14, stage 1 takes 34.
#[test]
fn stages_wait_for_messages_and_for_the_agreement() {
    let curves = curves();
    let near = |ms: f64, us: f64| (ms * 1e3 - us).abs() < 1e-9;
    let time = clock(&curves, 1.0).time(two_stages()).unwrap();
    let hand = [31.0, 11.0, 0.0, 0.0, 0.0, 11.0 + 3.0 + 3.0, 0.0, 11.0 + 21.0 + 3.0, 31.0, 0.0, 0.0, 7.0];
    time.spans_ms.iter().zip(hand).for_each(|((_, ms), us)| assert!(near(ms, us), "{:?}", time.spans_ms));
    let pipeline = time.pipeline.unwrap();
    assert!(near(pipeline.ms, 80.0), "{pipeline:?}");
    assert!((pipeline.bubble - (1.0 - (32.0 + 42.0) / 160.0)).abs() < 1e-9, "{pipeline:?}");
    let lines = clock(&curves, 1.0).timelines(two_stages()).unwrap();
    let ends: Vec<f64> = lines.iter().map(|line| line.iter().map(|stretch| stretch.ms).sum()).collect();
    assert!(near(ends[0], 112.0) && near(ends[1], 132.0), "{ends:?}");
    // Corrected spans move what waits for them; waits are not corrected, the bytes of messages are.
    let mut corrected = clock(&curves, 1.0);
    (corrected.corrections[Span::Forward], corrected.corrections[Span::ExposedPipeline]) = (2.0, 3.0);
    assert!(near(corrected.time(two_stages()).unwrap().step_ms(), 186.0));
    // Without stages nobody waits, and there is no bubble.
    let alone = clock(&curves, 1.0).time([[fill(Action::Forward { micro: 0, layer: 0 }, 1)]]).unwrap();
    assert_eq!((alone.pipeline, near(alone.step_ms(), 18.0)), (None, true));
}

/// Sums of a layer over tensor ranks: those that are waited for are between the operations, those that were started beside them.
#[test]
fn collectives_of_layers_are_priced_as_they_travel() {
    let fill = |hundreds: usize| ("x", moved(|m| Op::Fill(m, 0.0), 100 * hundreds, DType::F32));
    let forward = Action::Forward { micro: 0, layer: 0 };
    let sum = |is_started| Collective { kind: CollectiveKind::AllReduce, is_started, ..gather(8_000) };
    let curves = curves();
    let near = |recorded: RecordedAction, [compute, exposed]: [f64; 2]| {
        let time = clock(&curves, 1.0).time([[recorded]]).unwrap();
        let spans = [Span::Forward, Span::ExposedTensor].map(|span| time.spans_ms[span] * 1e3);
        assert!((spans[0] - compute).abs() < 1e-9 && (spans[1] - exposed).abs() < 1e-9, "{spans:?}");
    };
    // Each lasts 8 + 5 us; operations 11, 11 and 1 us beside 20.
    let operations = [fill(1), fill(1), fill(2)];
    let blocking = recorded(forward, &operations, &[sum(false), sum(false)]);
    near(blocking.clone(), [43.0, 26.0]);
    // From 11 until 24, from 24 until 37; the operations are over at 43.
    let overlaps = |places: [usize; 4]| {
        use Overlap::{Starts, Waits};
        let overlaps = places.into_iter().zip([Starts, Starts, Waits, Waits]).collect();
        RecordedAction { overlaps, collectives: vec![sum(true), sum(true)], ..blocking.clone() }
    };
    near(overlaps([1, 2, 3, 3]), [43.0, 0.0]);
    // Both are waited for behind the second operation, at 22: until 37.
    near(overlaps([1, 2, 2, 2]), [43.0, 15.0]);
    // A third in the same action, behind them.
    let mut more = overlaps([1, 2, 2, 2]);
    more.collectives.push(sum(false));
    near(more, [43.0, 28.0]);
    // A started one that another action waits for is priced where it starts.
    let gathers = Action::Gather { unit: 0, refresh: false, slot: true };
    let time =
        clock(&curves, 1.0).time([[recorded(gathers, &[], &[Collective { is_started: true, ..gather(20_000) }])]]);
    assert!((time.unwrap().spans_ms[Span::ExposedGather] * 1e3 - 22.0).abs() < 1e-9);
}

/// By hand, microseconds: the stages of the test before come to the exchange at 87 and, when the message is received, at 66. Both begin it at
/// 87, and a byte takes a nanosecond: until 93. Stage 0 has its norm at 104, stage 1 too, and waits for nobody.
#[test]
fn both_ends_exchange_the_gradients_of_tied_embeddings() {
    let curves = curves();
    let near = |ms: f64, us: f64| (ms * 1e3 - us).abs() < 1e-9;
    let exchange = Collective { axis: GroupName::Pipeline, kind: CollectiveKind::SendRecv, ranks: 2, ..gather(6_000) };
    let mut stages = two_stages();
    for actions in &mut stages {
        let update = actions.pop().unwrap();
        actions.extend([recorded(Action::ReduceTied { unit: 0 }, &[], &[exchange]), update]);
    }
    let lines = clock(&curves, 1.0).timelines(stages.clone()).unwrap();
    let ends: Vec<f64> = lines.iter().map(|line| line.iter().map(|stretch| stretch.ms).sum()).collect();
    assert!(near(ends[0], 118.0) && near(ends[1], 138.0), "{ends:?}");
    let exchanged = |line: &[Stretch]| -> f64 {
        let of = line.iter().filter(|stretch| stretch.action == Some(Action::ReduceTied { unit: 0 }));
        of.inspect(|stretch| assert_eq!(stretch.span, Span::ExposedPipeline)).map(|stretch| stretch.ms).sum()
    };
    assert!(near(exchanged(&lines[0]), 6.0) && near(exchanged(&lines[1]), 30.0), "{lines:?}");
    // An end that comes to it alone waits for ever.
    let at = stages[1].iter().position(|recorded| recorded.action == Action::ReduceTied { unit: 0 }).unwrap();
    stages[1].remove(at);
    let reason = clock(&curves, 1.0).time(stages).unwrap_err().to_string();
    assert!(reason.contains("do not meet"), "{reason}");
}

#[test]
fn a_pace_is_the_least_time_of_an_action() {
    let curves = curves();
    let forward = |least| RecordedAction { least, ..fill(Action::Forward { micro: 0, layer: 0 }, 1) };
    for (least, us) in [(0.0, 11.0), (9e-6, 11.0), (30e-6, 30.0)] {
        let time = clock(&curves, 1.0).time([[forward(least)]]).unwrap();
        assert!((time.spans_ms[Span::Forward] * 1e3 - us).abs() < 1e-9, "{least}: {:?}", time.spans_ms);
    }
}

#[test]
fn stages_that_wait_for_each_other_have_no_time() {
    let [mut first, second] = two_stages();
    first.swap(1, 2);
    let reason = clock(&curves(), 1.0).time([first, second]).unwrap_err().to_string();
    assert!(reason.contains("do not meet"), "{reason}");
}

#[test]
fn what_was_not_measured_is_said() {
    let curves = curves();
    let unknown =
        [recorded(Action::Forward { micro: 0, layer: 0 }, &[("x", moved(|m| Op::Scale(m, 1.0), 8, DType::F32))], &[])];
    let reason = clock(&curves, 1.0).time([&unknown]).unwrap_err().to_string();
    assert!(reason.contains("scale f32"), "{reason}");
    let sum = Collective { kind: CollectiveKind::ReduceScatter, ..gather(8) };
    let reason = clock(&curves, 1.0).time([[recorded(Action::Update, &[], &[sum])]]).unwrap_err().to_string();
    assert_eq!(reason, "no fit of reduce_scatter");
}

fn moves(action: Action, moves: &[MoveEvent]) -> RecordedAction {
    RecordedAction { moves: moves.to_vec(), ..recorded(action, &[], &[]) }
}

fn fetch(unit: usize) -> Action {
    Action::Fetch { unit, what: Moved::State }
}

/// A read of a unit's state, whose transfer has the unit's number.
fn read(unit: usize, bytes: u64) -> MoveEvent {
    let of = Move { what: Category::Optimizer, from: MemoryTier::Disk, to: MemoryTier::Host, bytes };
    MoveEvent::Start { transfer: unit as u64, of }
}

fn write(transfer: u64, bytes: u64) -> MoveEvent {
    MoveEvent::Start {
        transfer,
        of: Move { what: Category::Optimizer, from: MemoryTier::Host, to: MemoryTier::Disk, bytes },
    }
}

/// An update of a unit that waits for its state and computes for 10 us, or so many times longer, and 1 us beside.
fn update(unit: usize, times: usize) -> RecordedAction {
    let fill = ("adamw", moved(|m| Op::Fill(m, 0.0), 100 * times, DType::F32));
    let wait = MoveEvent::Wait { transfer: unit as u64 };
    RecordedAction { moves: vec![wait], ..recorded(Action::UpdateUnit { unit }, &[fill], &[]) }
}

/// Microseconds of offload, and of the step without the 7 that are in no action.
fn offload_and_step(actions: &[RecordedAction]) -> (f64, f64) {
    let curves = curves();
    let clock = clock(&curves, 1.0);
    let time = clock.time([actions]).unwrap();
    let line: f64 = clock.timelines([actions]).unwrap().concat().iter().map(|stretch| stretch.ms).sum();
    assert!((line - time.step_ms()).abs() < 1e-9);
    let us = |ms: f64| (ms * 1e6).round() / 1e3;
    (us(time.spans_ms[Span::Offload]), us(time.step_ms()) - 7.0)
}

#[test]
fn copies_between_device_and_host_are_the_ranks_own_work() {
    let copy = |bytes| {
        MoveEvent::Copy(Move { what: Category::Gradients, from: MemoryTier::Device, to: MemoryTier::Host, bytes })
    };
    // By hand: 4 and 8 us of copies, 1 us beside each; the sum that went down is booked as offload, the rest of the action is not.
    let reduce = RecordedAction {
        moves: vec![copy(100), copy(200)],
        ..recorded(
            Action::Reduce { unit: 0, first: true, last: true },
            &[],
            &[Collective { kind: CollectiveKind::AllReduce, ..gather(3_000) }],
        )
    };
    assert_eq!(offload_and_step(&[reduce]), (14.0, 22.0));
}

#[test]
fn a_transfer_that_is_waited_for_late_is_hidden() {
    // 5 bytes are read in 10 us, which the update of the unit before covers; each start costs 1 us.
    let hidden = [moves(fetch(1), &[read(1, 5)]), update(0, 1), update(1, 1)];
    assert_eq!(offload_and_step(&hidden), (1.0, 23.0));
    // Of 15 bytes a part is.
    let exposed = [moves(fetch(1), &[read(1, 15)]), update(0, 1), update(1, 1)];
    // Begun at 0; at 12 the update of the unit before is over, at 30 the read.
    assert_eq!(offload_and_step(&exposed), (1.0 + 18.0, 41.0));
}

#[test]
fn a_transfer_that_is_waited_for_at_once_is_all_exposed() {
    // Without prefetch: 1 us to begin, of the transfer's 40 that are left 39.
    let all = [moves(fetch(0), &[read(0, 20)]), update(0, 1)];
    assert_eq!(offload_and_step(&all), (40.0, 51.0));
}

#[test]
fn transfers_of_one_drive_wait_for_each_other() {
    // Two reads of 20 us begin at once, and a write of 10: the last is over 50 us after the first began.
    let starts = moves(fetch(0), &[read(0, 10), read(1, 10), write(2, 10)]);
    let settle = moves(Action::WaitStore { unit: 0 }, &[MoveEvent::Wait { transfer: 2 }]);
    assert_eq!(offload_and_step(&[starts.clone(), settle.clone()]), (50.0, 50.0));
    // Where the first is waited for, the rest goes on.
    let both = [starts, update(0, 1), update(1, 1), settle];
    // By hand: begun at 0, 1 and 2; 17 us until 20; computes to 31; 9 until 40; to 51, when the write is over since 1 us.
    assert_eq!(offload_and_step(&both), (3.0 + 17.0 + 9.0, 51.0));
}

#[test]
fn small_transfers_take_longer_alone_than_together() {
    let settle = |transfer| moves(Action::WaitStore { unit: 0 }, &[MoveEvent::Wait { transfer }]);
    // One after the other: 6 us each. Together: begun at 0, 1 and 2, the last is over 6 us after it began.
    let alone = [0, 1, 2].map(|number| [moves(fetch(0), &[write(number, 1)]), settle(number)]).concat();
    assert_eq!(offload_and_step(&alone), (18.0, 18.0));
    let together = [moves(fetch(0), &[0, 1, 2].map(|number| write(number, 1))), settle(0), settle(1), settle(2)];
    assert_eq!(offload_and_step(&together), (8.0, 8.0));
}

/// The same two units, without prefetch and with: what is fetched ahead is read while the unit before is updated.
#[test]
fn prefetch_hides_what_the_updates_cover() {
    let none = [moves(fetch(0), &[read(0, 10)]), update(0, 1), moves(fetch(1), &[read(1, 10)]), update(1, 1)];
    let one = [moves(fetch(0), &[read(0, 10)]), moves(fetch(1), &[read(1, 10)]), update(0, 1), update(1, 1)];
    assert_eq!(offload_and_step(&none), (40.0, 62.0));
    // Reads end at 20 and 40; 18 us are left of the first, 9 of the second behind the first update.
    assert_eq!(offload_and_step(&one), (2.0 + 18.0 + 9.0, 51.0));
}

#[test]
fn moves_that_were_not_measured_are_said() {
    let mut curves = curves();
    let unknown = [moves(fetch(0), &[read(0, 7)])];
    let reason = clock(&curves, 1.0).time([&unknown]).unwrap_err();
    assert_eq!(reason, NoTime::Disk("the disk was not measured".into()));
    let down = Move { what: Category::Gradients, from: MemoryTier::Device, to: MemoryTier::Host, bytes: 8 };
    let copies = [moves(Action::WaitStore { unit: 0 }, &[MoveEvent::Copy(down)])];
    assert!(clock(&curves, 1.0).time([&copies]).is_ok());
    curves = Curves::default();
    let reason = clock(&curves, 1.0).time([&copies]).unwrap_err().to_string();
    assert!(reason.contains("\"copy\""), "{reason}");
}
