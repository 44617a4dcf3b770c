//! The bench over ranks as threads, and over communicators that meddle with what passes through them.

use super::args::AllreduceArgs;
use super::bench::{Finish, rank_main};
use super::gpus::RankDevice;
use super::member::Member;
use super::place::{Cache, Place};
use super::plan::Plan;
use super::{CollectiveError, Watch};
use clap::Parser;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zbench_collectives::{Call, CommError, Communicator, Kind, OwnedCall, Result, Shared, Ticket, group};
use zbench_kernels::{Arena, Cpu, DType, Kernels, View, ViewMut};
use zbench_reports::collectives::{Device, Pairs, Row, Settings};
use zbench_test_tiers as tiers;

mod device;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: AllreduceArgs,
}

pub(super) fn plan(words: &str) -> Plan {
    planned(words, |_| None)
}

fn planned(words: &str, variable: impl Fn(&str) -> Option<String>) -> Plan {
    let words = std::iter::once("allreduce").chain(words.split_whitespace());
    Plan::new(&Line::parse_from(words).args, variable).unwrap()
}

/// What is done to a call of floats, which measured calls are and what ranks say to each other beside them is not.
#[derive(Clone, Copy)]
enum Meddle {
    Nothing,
    /// Flips the lowest bit of this element of what is received.
    Flip(usize),
    /// Is late in every call.
    Late(Duration),
    /// Is late in every call with this peer.
    LateWith(usize, Duration),
    /// Gives up at this call.
    Fail(usize),
}

struct Meddled {
    inner: Box<dyn Communicator>,
    kernels: Arc<dyn Kernels>,
    meddle: Meddle,
    calls: Mutex<usize>,
}

impl Communicator for Meddled {
    fn member(&self) -> zbench_collectives::Member {
        self.inner.member()
    }
    fn call(&self, call: Call<'_>) -> Result<()> {
        let Call { kind, send, mut recv } = call;
        let is_measured = recv.as_ref().map(|view| view.dtype()).or(send.map(|view| view.dtype())) == Some(DType::F32);
        let meddle = if is_measured { self.meddle } else { Meddle::Nothing };
        let mut calls = self.calls.lock().unwrap();
        *calls += usize::from(is_measured);
        match (meddle, kind) {
            (Meddle::Late(time), _) => std::thread::sleep(time),
            (Meddle::LateWith(peer, time), Kind::SendRecv { to, .. }) if to == peer => std::thread::sleep(time),
            (Meddle::Fail(at), _) if *calls == at => {
                return Err(CommError::Invalid { operation: "test", reason: "gives up".into() });
            }
            _ => {}
        }
        self.inner.call(Call { kind, send, recv: recv.as_mut().map(|view| view.reborrow()) })?;
        if let (Meddle::Flip(at), Some(view)) = (meddle, &mut recv)
            && at < view.len()
        {
            let mut element = [0f32];
            self.kernels.download(view.as_view().slice(at..at + 1), ViewMut::of(&mut element))?;
            element[0] = f32::from_bits(element[0].to_bits() ^ 1);
            self.kernels.upload(View::of(&element), view.slice_mut(at..at + 1))?;
        }
        Ok(())
    }
    fn start(&self, request: OwnedCall) -> Result<Ticket> {
        self.inner.start(request)
    }
    fn wait(&self, ticket: Ticket) -> Result<OwnedCall> {
        self.inner.wait(ticket)
    }
    fn split(&self, color: usize, key: usize, name: &str) -> Result<Box<dyn Communicator>> {
        let inner = self.inner.split(color, key, name)?;
        let kernels = self.kernels.clone();
        Ok(Box::new(Meddled { inner, kernels, meddle: self.meddle, calls: Mutex::new(0) }))
    }
    fn abort(&self, reason: &str) {
        self.inner.abort(reason);
    }
    fn wire_bytes(&self) -> u64 {
        self.inner.wire_bytes()
    }
}

#[derive(Default)]
struct Told {
    settings: Settings,
    devices: Vec<Device>,
    sections: Vec<String>,
    rows: Vec<Row>,
    notes: Vec<String>,
    pairs: Option<Pairs>,
}

/// Remembers everything; asks to stop after some rows.
struct Memory {
    told: Mutex<Told>,
    stop_after: usize,
}

impl Watch for Memory {
    fn stop(&self) -> bool {
        self.told.lock().unwrap().rows.len() >= self.stop_after
    }
    fn begin(&self, settings: &Settings, devices: &[Device]) {
        let mut told = self.told.lock().unwrap();
        (told.settings, told.devices) = (settings.clone(), devices.to_vec());
    }
    fn section(&self, collective: &str) {
        self.told.lock().unwrap().sections.push(collective.into());
    }
    fn row(&self, row: Row) {
        self.told.lock().unwrap().rows.push(row);
    }
    fn note(&self, note: String) {
        self.told.lock().unwrap().notes.push(note);
    }
    fn pairs(&self, pairs: Pairs) {
        self.told.lock().unwrap().pairs = Some(pairs);
    }
}

struct Outcome {
    told: Told,
    results: Vec<std::result::Result<Finish, CollectiveError>>,
}

impl Outcome {
    fn finish(&self) -> Finish {
        *self.results[0].as_ref().unwrap()
    }
}

fn run(ranks: usize, plan: &Plan, meddle: impl Fn(usize) -> Meddle, stop_after: usize, stall: Duration) -> Outcome {
    let place = Place {
        memory_bytes: (64 << 20) * ranks as u64,
        cache: Cache::of_host(Some(1 << 20)),
        host: "here".into(),
        device: "test".into(),
        gpu: None,
    };
    let seat = |_| {
        let arena = Arena::host(None).unwrap();
        RankDevice { kernels: Arc::new(Cpu::new(1)), host_arena: arena.clone(), arena, place: place.clone() }
    };
    let seats: Vec<RankDevice> = (0..ranks).map(seat).collect();
    run_on(&seats, None, plan, meddle, stop_after, stall)
}

/// The same with these seats; `talks` where ranks talk through others than the communicators that are measured.
fn run_on(
    seats: &[RankDevice],
    talks: Option<Vec<Shared>>,
    plan: &Plan,
    meddle: impl Fn(usize) -> Meddle,
    stop_after: usize,
    stall: Duration,
) -> Outcome {
    let comms = group("test", seats.iter().map(|seat| seat.kernels.clone()).collect(), stall).unwrap();
    let mut talks: Vec<Option<Shared>> = match talks {
        Some(talks) => talks.into_iter().map(Some).collect(),
        None => seats.iter().map(|_| None).collect(),
    };
    let memory = Memory { told: Mutex::default(), stop_after };
    let results = std::thread::scope(|scope| {
        let start = |(rank, ((comm, seat), control))| {
            let (meddle, memory) = (meddle(rank), &memory);
            scope.spawn(move || {
                let (comm, seat, control): (Shared, &RankDevice, Option<Shared>) = (comm, seat, control);
                let world =
                    Meddled { inner: Box::new(comm), kernels: seat.kernels.clone(), meddle, calls: Mutex::new(0) };
                let control: &dyn Communicator = control.as_ref().map_or(&world, |control| control);
                let member = Member {
                    world: &world,
                    control,
                    kernels: &*seat.kernels,
                    arena: &seat.arena,
                    host_arena: &seat.host_arena,
                    place: &seat.place,
                    formed: "threads of a test",
                    threads: 1,
                    local_ranks: seats.len(),
                };
                let result = rank_main(&member, plan, memory);
                if let Err(error) = &result {
                    world.abort(&error.to_string());
                    control.abort(&error.to_string());
                }
                result
            })
        };
        let threads: Vec<_> = comms.into_iter().zip(seats).zip(talks.drain(..)).enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    Outcome { told: memory.told.into_inner().unwrap(), results }
}

fn plain(ranks: usize, plan: &Plan) -> Outcome {
    run(ranks, plan, |_| Meddle::Nothing, usize::MAX, Duration::from_secs(60))
}

/// Every collective, type and reduction at sizes with empty, odd and even parts: right data on both sides.
#[test]
fn all_collectives_of_all_types_are_right() {
    // Three ranks have parts of different lengths.
    let sizes = tiers::cases("collectives of all types (numbers of ranks)", [1, 1, 4]) as usize;
    for ranks in [3, 2, 1, 4].into_iter().take(sizes) {
        let plan = plan("--collective all -d all -o all -r -1 -b 0 -e 1034 -i 517 -n 2 -w 0 -u 3 --buffers rotate");
        let outcome = plain(ranks, &plan);
        assert!(outcome.results.iter().all(std::result::Result::is_ok), "{ranks} ranks: {:?}", outcome.results);
        assert_eq!(outcome.told.sections.len(), 9);
        let reducing = 6 * 5 * 3;
        let expected = reducing * (2 + ranks) + 6 * 3 * (3 * ranks) + 6 * 3 * 3;
        assert_eq!(outcome.told.rows.len(), expected, "{ranks} ranks");
        for row in &outcome.told.rows {
            let sides = row.sides().count();
            let is_ring = row.root == -1 && row.redop == "none" && sides < 2;
            assert!(sides == 2 || is_ring, "{ranks} ranks: {row:?}");
            assert!(row.sides().all(|side| side.wrong == Some(0) && side.time_us > 0.0), "{ranks} ranks: {row:?}");
            assert!(row.size > 0 || row.sides().all(|side| side.busbw == 0.0));
        }
        let only_sendrecv = |note: &String| note.contains("sendrecv");
        assert!(outcome.told.notes.iter().all(only_sendrecv), "{:?}", outcome.told.notes);
    }
}

#[test]
fn bandwidths_follow_from_times_sizes_and_factors() {
    for (ranks, factor) in [(2, 1.0), (3, 4.0 / 3.0), (4, 1.5)] {
        let outcome = plain(ranks, &plan("-b 4K -e 16K -n 5 -I 1 -K 1"));
        for row in &outcome.told.rows {
            for side in row.sides() {
                let iterations = side.iterations.as_ref().unwrap();
                assert_eq!((side.time_us, iterations.times_us.len()), (iterations.p50_us, 5));
                assert_eq!((iterations.skipped, iterations.per_rank_us.len()), (1, ranks));
                assert!((side.algbw - row.size as f64 / side.time_us / 1e3).abs() < 1e-9 * side.algbw);
                assert!((side.busbw - factor * side.algbw).abs() < 1e-9 * side.busbw);
            }
            // Every rank asks for what it has not: at least the other ranks' part of its result.
            assert!(row.wire_bytes_rank > 0.0 && row.wire_bytes_link > 0.0, "{row:?}");
        }
        assert_eq!(outcome.told.settings.group_ranks, ranks);
        assert_eq!(outcome.told.devices.iter().map(|d| d.device).collect::<Vec<_>>(), (0..ranks).collect::<Vec<_>>());
        assert!(outcome.told.devices.iter().all(|d| (d.hostname.as_str(), d.device_info.as_str()) == ("here", "test")));
    }
}

/// The check must be able to fail: one flipped bit of one element on one rank is one wrong element, with its place.
#[test]
fn one_flipped_bit_is_one_wrong_element_with_its_place() {
    let flip = |rank| if rank == 1 { Meddle::Flip(5) } else { Meddle::Nothing };
    for (words, sides) in [("-b 64 -e 64 -n 1", 2), ("-b 64 -e 64 -n 1 --collective sendrecv", 1)] {
        let outcome = run(2, &plan(words), flip, usize::MAX, Duration::from_secs(60));
        let row = &outcome.told.rows[0];
        assert_eq!((row.sides().count(), row.wrong()), (sides, Some(sides as u64)), "{row:?}");
        for side in row.sides() {
            let wrong = side.first_wrong.as_ref().unwrap();
            assert_eq!((wrong.rank, wrong.offset, wrong.host.as_str()), (1, 5, "here"));
        }
    }
    let unchecked = run(2, &plan("-b 64 -e 64 -n 1 -c 0"), flip, usize::MAX, Duration::from_secs(60));
    assert_eq!(unchecked.told.rows[0].wrong(), None);
}

#[test]
fn a_stop_ends_all_ranks_between_rows() {
    let outcome = run(3, &plan("-b 8 -e 8 -N 0 -n 1"), |_| Meddle::Nothing, 4, Duration::from_secs(60));
    for result in &outcome.results {
        assert!(result.as_ref().is_ok_and(|finish| finish.interrupted && finish.rows == 4), "{result:?}");
    }
    assert_eq!(outcome.told.rows.len(), 4);
    assert!(!plain(2, &plan("-b 8 -e 8 -N 3")).finish().interrupted);
}

/// What was measured before a failure has been told; every rank hears of it.
#[test]
fn a_rank_that_gives_up_or_stalls_ends_all_and_keeps_the_rows() {
    let gives_up = |rank| if rank == 2 { Meddle::Fail(40) } else { Meddle::Nothing };
    let outcome = run(3, &plan("-b 64 -e 64 -N 0 -n 2 -c 0"), gives_up, usize::MAX, Duration::from_secs(60));
    let rows = outcome.told.rows.len();
    assert!((3..10).contains(&rows), "{rows}");
    assert!(outcome.results.iter().all(|result| result.is_err() || result.as_ref().is_ok_and(|f| f.rows == rows)));
    assert!(outcome.results[0].is_err(), "rank 0 hears of it");

    let stalls = |rank| if rank == 1 { Meddle::Late(Duration::from_secs(3)) } else { Meddle::Nothing };
    let outcome = run(2, &plan("-b 64 -e 64 -n 2"), stalls, usize::MAX, Duration::from_millis(300));
    let error = outcome.results[0].as_ref().unwrap_err();
    match error {
        CollectiveError::Comm(CommError::Stalled { missing, operation, .. }) => {
            assert_eq!((&missing[..], *operation), (&[1][..], "all_reduce"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn sizes_are_reduced_to_what_memory_holds() {
    let outcome = plain(2, &plan("-b 64M -e 512M -n 1 -w 0 -c 0 --buffers hot"));
    let settings = &outcome.told.settings;
    // 64 MiB a rank: two buffers of a little less than half.
    assert!(settings.maximum_bytes < 32 << 20 && settings.maximum_bytes > 30 << 20, "{}", settings.maximum_bytes);
    assert_eq!((settings.reduced_from, outcome.told.rows[0].size), (Some(512 << 20), settings.maximum_bytes));
}

#[test]
fn groups_of_a_split_measure_on_their_own() {
    let split = |name: &str| (name == "NCCL_TESTS_SPLIT").then(|| "MOD 2".to_string());
    let outcome = plain(4, &planned("-b 1K -e 1K -n 2", split));
    assert_eq!((outcome.told.settings.ranks, outcome.told.settings.group_ranks), (4, 2));
    assert_eq!(outcome.told.devices.iter().map(|d| d.group).collect::<Vec<_>>(), [0, 1, 0, 1]);
    let row = &outcome.told.rows[0];
    assert!(row.sides().all(|side| side.wrong == Some(0) && side.busbw == side.algbw), "{row:?}");
}

/// A rank that is late in every call is found by its pairs and by halving, and nobody else is blamed.
#[test]
fn a_slow_rank_is_named_by_pairs_and_by_halves() {
    // It takes 11 s.
    if tiers::cases("collectives: a slow rank by pairs and by halves", [0, 1, 1]) == 0 {
        return;
    }
    // All are late, so that a loaded machine makes no pair stand out by itself; the slow one ten times as much.
    let slow = |rank| Meddle::Late(Duration::from_millis(if rank == 3 { 40 } else { 4 }));
    let outcome = run(5, &plan("--bisect -e 64K -n 10"), slow, usize::MAX, Duration::from_secs(60));
    let pairs = outcome.told.pairs.unwrap();
    assert_eq!((&pairs.bad_ranks[..], &pairs.bad_links[..]), (&[3][..], &[][..]), "{}", pairs.text());
    assert_eq!(pairs.suspects.iter().filter(|suspect| suspect.confirmed).count(), 4, "{}", pairs.text());
    assert!(pairs.suspects.iter().all(|suspect| suspect.again_gb_s.len() == super::pairs::RETRIES));
    let last = pairs.halves.last().unwrap();
    assert!(last.contains("[3]") || last.contains("rank(s) [3]"), "{}", pairs.text());
    assert!(pairs.text().contains("Verdict: rank 3 on here is slow with every other rank"), "{}", pairs.text());
}

#[test]
fn a_slow_link_is_named_and_its_ranks_are_not() {
    // Every other pair has one who is late, so that a loaded machine makes none stand out by itself.
    let slow = |rank| match rank {
        1 => Meddle::LateWith(2, Duration::from_millis(40)),
        _ => Meddle::Late(Duration::from_millis(4)),
    };
    let outcome = run(4, &plan("--collective pairs -e 64K -n 10"), slow, usize::MAX, Duration::from_secs(60));
    let pairs = outcome.told.pairs.unwrap();
    assert_eq!((&pairs.bad_ranks[..], &pairs.bad_links[..]), (&[][..], &[[1, 2]][..]), "{}", pairs.text());
    assert!(pairs.text().contains("link between rank 1 on here and rank 2 on here is slow"), "{}", pairs.text());
    for (a, line) in pairs.gb_s.iter().enumerate() {
        assert!(line.iter().enumerate().all(|(b, rate)| rate.is_some() == (a != b)));
    }
}

/// A rank that zbench started is that rank, also where it is the only one: it would start itself again without end.
#[test]
fn a_rank_that_zbench_started_starts_none() {
    use super::world_spec::{LaunchMode, WorldSpec};
    let world = |source| zbench_launch::World {
        rank: 0,
        size: 1,
        local_rank: Some(0),
        local_size: Some(1),
        host: None,
        port: 1,
        token: "token".into(),
        secret: true,
        source,
        launcher: String::new(),
        notes: Vec::new(),
    };
    for backend in ["shm", "tcp"] {
        let args = Line::parse_from(["allreduce", "--backend", backend, "--ranks", "1"]).args;
        let way = |launched| WorldSpec::new(&args, launched, true).unwrap().way;
        assert!(matches!(way(Some(world(zbench_launch::Source::Ours))), LaunchMode::Member(..)), "{backend}");
        assert!(matches!(way(Some(world(zbench_launch::Source::Slurm))), LaunchMode::Start), "{backend}");
        assert!(matches!(way(None), LaunchMode::Start), "{backend}");
    }
}
