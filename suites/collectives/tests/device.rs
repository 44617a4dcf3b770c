//! The bench in the memory of a device that the ranks share: kernels run on the processor, at once or as late as they may.

use super::{Meddle, Outcome, plan, planned, run_on};
use crate::collectives::data::{self, Expected, Mismatch, Pattern};
use crate::collectives::gpus::{RankDevice, rank_device_on};
use crate::collectives::memory::Memory;
use crate::collectives::place::Cache;
use crate::collectives::plan::Plan;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use zbench_collectives::group;
use zbench_kernels::cuda::host::{Host, Order};
use zbench_kernels::memory::device::Device;
use zbench_kernels::{Arena, Category, Cpu, Cuda, DType, Kernels, ReduceOp, View, ViewMut};
use zbench_kernels_testing::Late;

static HOST: LazyLock<Host> = LazyLock::new(host);

/// Compiled kernels are kept beside the test program, for all test programs of the workspace.
fn host() -> Host {
    let kept = std::env::current_exe().unwrap().with_file_name("cache/kernels");
    Host::new(&kept, "c++", &[], Order::Forward).unwrap_or_else(|error| panic!("{error}"))
}

fn machine(late: bool) -> Arc<dyn Device> {
    if late { Arc::new(Late(HOST.clone())) } else { Arc::new(HOST.clone()) }
}

const STALL: Duration = Duration::from_secs(60);

/// Bytes of the device's memory that ranks may take together.
const MEMORY: u64 = 30 << 20;

fn run(ranks: usize, late: bool, plan: &Plan, meddle: impl Fn(usize) -> Meddle) -> Outcome {
    let seat = |_| {
        let mut seat = rank_device_on(plan, machine(late), 3, Some("0000:19:00.0".into()), ranks).unwrap();
        (seat.place.cache, seat.place.memory_bytes) = (Cache::of_host(Some(64 << 10)), MEMORY);
        seat
    };
    let seats: Vec<RankDevice> = (0..ranks).map(seat).collect();
    let cores = (0..ranks).map(|_| Arc::new(Cpu::new(1)) as Arc<dyn Kernels>).collect();
    let talks = group("talk", cores, STALL).unwrap();
    run_on(&seats, Some(talks), plan, meddle, usize::MAX, STALL)
}

fn right(ranks: usize, late: bool, plan: &Plan) -> Outcome {
    let outcome = run(ranks, late, plan, |_| Meddle::Nothing);
    assert!(outcome.results.iter().all(Result::is_ok), "{ranks} ranks: {:?}", outcome.results);
    assert!(!outcome.told.rows.is_empty());
    for row in &outcome.told.rows {
        assert!(row.sides().count() > 0 || row.root == -1 && ranks == 1, "{ranks} ranks: {row:?}");
        assert!(row.sides().all(|side| side.wrong == Some(0) && side.time_us > 0.0), "{ranks} ranks: {row:?}");
    }
    outcome
}

#[test]
fn all_collectives_of_all_types_are_right_on_a_device() {
    for ranks in [1, 2, 3] {
        // Late queues show what is read before it was written; the other order of work is the quicker one.
        let plan = plan("--collective all -d all -o all -r -1 -b 0 -e 518 -i 259 -n 1 -w 0 -u 3 --buffers hot");
        let outcome = right(ranks, ranks == 3, &plan);
        assert_eq!(outcome.told.sections.len(), 9);
        let expected = 6 * 5 * 3 * (2 + ranks) + 6 * 3 * (3 * ranks) + 6 * 3 * 3;
        assert_eq!(outcome.told.rows.len(), expected, "{ranks} ranks");
        assert_eq!(outcome.told.settings.backend, "device");
    }
}

#[test]
fn flags_of_timing_and_buffers_work_on_a_device() {
    for words in ["--buffers rotate -n 5", "-z 1", "-z 2 -C 1", "-z 3 -m 2", "-I 1 -K 1 -S 1", "-M 1 -N 2 -u 5 -c 2"] {
        let plan = plan(&format!("-b 1K -e 8K -f 8 -n 3 {words}").replacen("-n 3 --buffers rotate -n 5", "-n 5", 1));
        right(2, true, &plan);
    }
    let split = |name: &str| (name == "NCCL_TESTS_SPLIT").then(|| "MOD 2".to_string());
    let outcome = right(4, true, &planned("-b 1K -e 1K -n 2", split));
    assert_eq!((outcome.told.settings.ranks, outcome.told.settings.group_ranks), (4, 2));
}

#[test]
fn ranks_that_share_a_gpu_have_its_number_its_bus_and_its_memory() {
    let outcome = right(3, false, &plan("-b 1K -e 64G -f 1 -i 64G -n 1 --buffers hot"));
    for device in &outcome.told.devices {
        assert_eq!(
            (device.device, device.device_hex.as_str(), device.device_info.as_str()),
            (3, "0000:19:00.0", "cuda on the host")
        );
    }
    let settings = &outcome.told.settings;
    // Three ranks of two buffers each, less the gaps between slots.
    assert_eq!(settings.maximum_bytes, (MEMORY / 6 - (1 << 20)) / 24 * 24);
    assert_eq!(settings.reduced_from, Some(64 << 30));
    assert!(settings.timing.contains("until the device has done"), "{}", settings.timing);
}

/// Timed loops end when the device has done what they asked for: with queues that do nothing before they are waited for, not
/// one sum is left when a rank has ended.
#[test]
fn nothing_is_left_undone_when_the_time_is_taken() {
    let count = |host: &Host| host.launches().get("reduce_floats").copied().unwrap_or(0);
    for words in ["", "-I 1"] {
        let own = host();
        let machine: Arc<dyn Device> = Arc::new(Late(own.clone()));
        let plan = plan(&format!("-b 1K -e 1K -n 5 -w 0 -c 0 --buffers hot {words}"));
        let seats: Vec<RankDevice> =
            (0..2).map(|_| rank_device_on(&plan, machine.clone(), 0, None, 2).unwrap()).collect();
        let talks = group("talk", (0..2).map(|_| Arc::new(Cpu::new(1)) as Arc<dyn Kernels>).collect(), STALL).unwrap();
        let outcome = run_on(&seats, Some(talks), &plan, |_| Meddle::Nothing, usize::MAX, STALL);
        assert!(outcome.results.iter().all(Result::is_ok), "{:?}", outcome.results);
        // Two ranks, two sides, one call before the timed ones.
        assert_eq!(count(&own), 2 * 2 * (1 + 5), "`{words}`");
    }
}

/// The check must be able to fail: one flipped bit in the device's memory is one wrong element, with its place.
#[test]
fn one_flipped_bit_on_a_device_is_found() {
    let flip = |rank| if rank == 1 { Meddle::Flip(5) } else { Meddle::Nothing };
    for late in [false, true] {
        let outcome = run(2, late, &plan("-b 64 -e 64 -n 1"), flip);
        let row = &outcome.told.rows[0];
        assert_eq!((row.sides().count(), row.wrong()), (2, Some(2)), "{row:?}");
        for side in row.sides() {
            let wrong = side.first_wrong.as_ref().unwrap();
            assert_eq!((wrong.rank, wrong.offset), (1, 5));
        }
    }
}

/// What is looked at in blocks is told as if it were looked at in one: right data, a wrong bit in any block, what was never
/// written, and what was written behind the end.
#[test]
fn blocks_of_a_devices_memory_are_compared_as_one() {
    let kernels = Cuda::new(machine(true)).unwrap();
    let (arena, host_arena) = (Arena::on(machine(true), None, 1 << 20).unwrap(), Arena::host(None).unwrap());
    let memory = Memory::new(&kernels, &host_arena).of_blocks(32);
    let pattern = Pattern { dtype: DType::F32, op: None, ranks: 2, seed: 9 };
    let expected = |index: u64| Expected { value: pattern.input(1, index), tolerance: 0.0 };
    let mut buffer = arena.alloc(Category::Workspace, DType::F32, 116).unwrap();
    let look = |view: View<'_>| memory.compare(view, 3..103, 103..116, expected).unwrap();
    memory.poison(&mut buffer.view_mut()).unwrap();
    assert_eq!(look(buffer.view()).count, 100);
    memory.fill(&mut buffer.slice_mut(3..103), pattern, 1, 0).unwrap();
    assert_eq!(look(buffer.view()), Mismatch::default());
    let mut own = vec![0f32; 116];
    data::poison(&mut ViewMut::of(&mut own)).unwrap();
    data::fill(&mut ViewMut::of(&mut own[3..103]), pattern, 1, 0).unwrap();
    for at in [3, 34, 35, 66, 67, 102, 103, 115] {
        let mut wrong = own.clone();
        wrong[at] = f32::from_bits(wrong[at].to_bits() ^ 1);
        kernels.upload(View::of(&wrong), buffer.view_mut()).unwrap();
        let found = look(buffer.view());
        assert_eq!(found, data::compare(View::of(&wrong), 3..103, 103..116, expected).unwrap());
        assert_eq!((found.count, found.first.map(|first| first.0)), (1, Some(at as u64 - 3)));
    }
    kernels.upload(View::of(&own), buffer.view_mut()).unwrap();
    assert_eq!(look(buffer.view()), Mismatch::default());
}

/// Memory for timed calls is random from end to end.
#[test]
fn regions_on_a_device_are_random_all_over() {
    let kernels = Cuda::new(machine(true)).unwrap();
    let (arena, host_arena) = (Arena::on(machine(true), None, 1 << 20).unwrap(), Arena::host(None).unwrap());
    let memory = Memory::new(&kernels, &host_arena).of_blocks(32);
    let pattern = Pattern { dtype: DType::F32, op: Some(ReduceOp::Sum), ranks: 2, seed: 9 };
    for len in [0, 1, 32, 33, 64, 100, 1000] {
        let mut buffer = arena.alloc(Category::Workspace, DType::F32, len).unwrap();
        memory.fill_repeating(buffer.view_mut(), pattern, 1, 7).unwrap();
        let mut found = vec![0f32; len];
        kernels.download(buffer.view(), ViewMut::of(&mut found)).unwrap();
        let wanted: Vec<f32> = (0..len).map(|at| pattern.input(1, 7 + at as u64 % 32) as f32).collect();
        assert_eq!(found, wanted, "{len}");
    }
}
