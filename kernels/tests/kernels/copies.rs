//! Copies between a device and pinned memory, on queues that do nothing before somebody waits, or on a GPU; and that what lies on the
//! host is computed there to the device's bits.

use crate::harness::*;
use std::sync::Arc;
use zbench_kernels::cuda::host::Order;
use zbench_kernels::memory::device::Device;
use zbench_kernels::*;
use zbench_kernels_testing::{ByName, Late};
use zbench_test_tiers as tiers;

struct Both {
    cuda: Cuda,
    device: Arena,
    host: Arena,
    streams: CopyStreams,
}

fn both() -> Both {
    on(gpu().map_or_else(late, |gpu| Arc::new(gpu.clone())))
}

fn late() -> Arc<dyn Device> {
    Arc::new(Late(host(Order::Forward)))
}

fn on(machine: Arc<dyn Device>) -> Both {
    let cuda = Cuda::new(machine).unwrap().with_host(Cpu::new(2));
    let (device, host) = (cuda.arena(Some(64 << 20), 1).unwrap(), cuda.host_arena(64 << 20).unwrap());
    let streams = cuda.copy_streams().unwrap().unwrap();
    Both { cuda, device, host, streams }
}

const LEN: usize = 3000;

impl Both {
    fn on(&self, arena: &Arena, value: f64) -> Buffer {
        let mut buffer = arena.alloc(Category::Workspace, DType::F32, LEN).unwrap();
        self.cuda.fill(buffer.view_mut(), value).unwrap();
        buffer
    }

    /// What the device's own queue sees, behind what it was asked for.
    fn seen(&self, buffer: &Buffer) -> Vec<f32> {
        let mut values = vec![0.0; buffer.len()];
        self.cuda.download(buffer.view(), ViewMut::of(&mut values)).unwrap();
        values
    }
}

fn on_host(buffer: &Buffer) -> &[f32] {
    buffer.view().as_slice::<f32>().unwrap()
}

#[test]
fn a_copy_to_the_host_comes_behind_the_devices_work_and_before_the_host_reads() {
    let both = both();
    let (mut there, mut here) = (both.on(&both.device, 1.0), both.on(&both.host, 0.0));
    both.cuda.fill(there.view_mut(), 2.5).unwrap();
    let part = 100..LEN - 50;
    let done = both.streams.download(&both.cuda, there.slice(part.clone()), &mut here, part.clone()).unwrap();
    // The device may write again when it has waited.
    both.cuda.wait_event(&*done).unwrap();
    both.cuda.fill(there.view_mut(), 3.0).unwrap();
    assert!(on_host(&here)[part.clone()].iter().all(|value| *value == 2.5));
    assert!(on_host(&here)[..100].iter().chain(&on_host(&here)[part.end..]).all(|value| *value == 0.0));
    assert!(both.seen(&there).iter().all(|value| *value == 3.0));
}

#[test]
fn the_host_writes_and_gives_back_memory_when_its_copies_are_over() {
    let both = both();
    let mut there = [both.on(&both.device, 0.0), both.on(&both.device, 0.0)];
    let mut here = both.on(&both.host, 4.0);
    let first = both.streams.upload(&both.cuda, &mut here, 0..LEN, there[0].view_mut()).unwrap();
    here.view_mut().as_slice_mut::<f32>().unwrap().fill(5.0);
    let second = both.streams.upload(&both.cuda, &mut here, 0..LEN, there[1].view_mut()).unwrap();
    let place = here.ptr();
    drop(here);
    let again = both.on(&both.host, 6.0);
    assert_eq!(again.ptr(), place, "the memory is used again");
    [first, second].iter().for_each(|event| both.cuda.wait_event(&**event).unwrap());
    assert!(both.seen(&there[0]).iter().all(|value| *value == 4.0));
    assert!(both.seen(&there[1]).iter().all(|value| *value == 5.0));
}

/// What is written by the one stream and read by the other needs nobody to wait.
#[test]
fn copies_of_one_buffer_keep_their_order() {
    let both = both();
    let (there, mut back) = (both.on(&both.device, 7.0), both.on(&both.device, 0.0));
    let mut here = both.on(&both.host, 0.0);
    both.streams.download(&both.cuda, there.view(), &mut here, 0..LEN).unwrap();
    let done = both.streams.upload(&both.cuda, &mut here, 0..LEN, back.view_mut()).unwrap();
    both.cuda.wait_event(&*done).unwrap();
    assert!(both.seen(&back).iter().all(|value| *value == 7.0));
}

/// The queues are late enough for a missing event to be seen.
#[test]
fn what_the_device_does_not_wait_for_has_not_come() {
    let both = on(late());
    let (mut there, mut here) = (both.on(&both.device, 0.0), both.on(&both.host, 8.0));
    let done = both.streams.upload(&both.cuda, &mut here, 0..LEN, there.view_mut()).unwrap();
    assert!(both.seen(&there).iter().all(|value| *value == 0.0));
    both.cuda.wait_event(&*done).unwrap();
    assert!(both.seen(&there).iter().all(|value| *value == 8.0));
}

#[test]
fn other_memory_is_refused() {
    let both = both();
    let plain = Arena::host(Some(1 << 20)).unwrap();
    let (mut pageable, mut there) = (both.on(&plain, 0.0), both.on(&both.device, 0.0));
    let mut pinned = both.on(&both.host, 0.0);
    let error = both.streams.upload(&both.cuda, &mut pageable, 0..LEN, there.view_mut()).err().unwrap();
    assert!(error.to_string().contains("not of pinned memory"), "{error}");
    let error = both.streams.download(&both.cuda, pageable.view(), &mut pinned, 0..LEN).err().unwrap();
    assert!(error.to_string().contains("lie in host memory"), "{error}");
    let error = both.streams.download(&both.cuda, there.slice(0..5), &mut pinned, 0..4).err().unwrap();
    assert!(matches!(error, KernelError::Shape { wanted: 4, given: 5, .. }), "{error}");
    let error = both.streams.upload(&both.cuda, &mut pinned, 1..LEN + 1, there.view_mut()).err().unwrap();
    assert!(error.to_string().contains("no part of"), "{error}");
    assert!(matches!(both.host.alloc(Category::Workspace, DType::F32, 17 << 20), Err(OutOfMemory { .. })));
}

/// Whether a sum is taken before or after a copy makes no difference.
#[test]
fn sums_on_the_host_have_the_devices_bits() {
    let both = both();
    for dtype in tiers::some("copies::sums_on_the_host_have_the_devices_bits (types)", FLOATS, [1, 3]) {
        for len in [1, 7, 8, 9, 255, 2047, 2048, 2049, 70_001, 2048 * 1024, 2048 * 1024 + 2777] {
            let values = Tensor::normal(dtype, len, 11 + len as u64);
            let copies = [&both.device, &both.host].map(|arena| {
                let mut copy = arena.alloc(Category::Workspace, dtype, len).unwrap();
                both.cuda.upload(values.view(), copy.view_mut()).unwrap();
                copy
            });
            let [there, here] = copies.each_ref().map(|copy| {
                [both.cuda.sum(copy.view()).unwrap().to_bits(), both.cuda.sum_squares(copy.view()).unwrap().to_bits()]
            });
            assert_eq!(there, here, "{len} of {dtype}");
        }
    }
}

#[test]
fn updates_on_the_host_have_the_devices_bits() {
    let both = both();
    let roundings = [Rounding::Nearest, Rounding::Stochastic { seed: 3, first: 17 }];
    for (parameters, rounding) in [(DType::F32, 0), (DType::Bf16, 0), (DType::Bf16, 1), (DType::F16, 1)] {
        let op = AdamW {
            len: LEN,
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.1,
            step: 3,
            grad_scale: 0.25,
            clip: 0.7,
            parameters,
            gradients: DType::F32,
            moments: DType::F32,
            rounding: roundings[rounding],
            copy: (parameters == DType::F32).then_some(DType::Bf16),
        };
        let updated = |arena: &Arena| {
            let buffer = |dtype, seed| {
                let mut copy = arena.alloc(Category::Workspace, dtype, LEN).unwrap();
                both.cuda.upload(Tensor::normal(dtype, LEN, seed).view(), copy.view_mut()).unwrap();
                copy
            };
            let (mut p, mut m, mut v, g) =
                (buffer(parameters, 1), buffer(DType::F32, 2), both.on(arena, 0.5), buffer(DType::F32, 4));
            let mut copy = op.copy.map(|dtype| buffer(dtype, 5));
            let to = copy.as_mut().map(Buffer::view_mut);
            both.cuda.adamw(&op, p.view_mut(), m.view_mut(), v.view_mut(), g.view(), to).unwrap();
            [Some(p), Some(m), Some(v), copy].map(|buffer| {
                let Some(buffer) = buffer else { return Vec::new() };
                let mut wide = vec![0f32; LEN];
                both.cuda.cast(buffer.view(), ViewMut::of(&mut wide)).unwrap();
                wide.into_iter().map(f32::to_bits).collect()
            })
        };
        assert_eq!(updated(&both.device), updated(&both.host), "{parameters}, {:?}", op.rounding);
    }
}
