//! Threads that share the kernels of one queue: nobody gets what another asked for.

use crate::harness::*;
use std::sync::{Arc, Barrier};
use zbench_kernels::cuda::host::Order;
use zbench_kernels::memory::device::Device;
use zbench_kernels::*;
use zbench_kernels_testing::{ByName, Late};

const THREADS: usize = 4;
const ROUNDS: usize = 60;

/// Machines that work at once, and when somebody waits.
fn machines() -> [Arc<dyn Device>; 2] {
    let host = host(Order::Forward);
    [Arc::new(host.clone()), Arc::new(Late(host))]
}

/// Random elements on the device; another length for each thread, and with it another number of blocks.
fn random(cuda: &Cuda, arena: &Arena, thread: usize) -> Buffer {
    let len = 1500 + 2100 * thread;
    let mut buffer = arena.alloc(Category::Workspace, DType::F32, len).unwrap();
    cuda.upload(Tensor::normal(DType::F32, len, 90 + thread as u64).view(), buffer.view_mut()).unwrap();
    buffer
}

fn told(cuda: &Cuda, sums: &[Sum]) -> Result<Vec<f64>> {
    let mut values = vec![0.0; sums.len()];
    cuda.read_scalars(sums, &mut values).map(|()| values)
}

fn later(cuda: &Cuda, x: View<'_>) -> Result<Sum> {
    cuda.sum_async(&Op::sum(x.len(), x.dtype()), x)
}

#[test]
fn sums_of_threads_do_not_mix() {
    for machine in machines() {
        let cuda = Cuda::new(machine).unwrap();
        let arena = cuda.arena(Some(1 << 20), 1).unwrap();
        let buffers: Vec<Buffer> = (0..THREADS).map(|thread| random(&cuda, &arena, thread)).collect();
        let alone: Vec<[f64; 2]> =
            buffers.iter().map(|x| [cuda.sum(x.view()).unwrap(), cuda.sum_squares(x.view()).unwrap()]).collect();
        let begin = Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for (x, [sum, squares]) in buffers.iter().zip(&alone) {
                let (cuda, begin) = (&cuda, &begin);
                scope.spawn(move || {
                    begin.wait();
                    for round in 0..ROUNDS {
                        let later = [
                            later(cuda, x.view()).unwrap(),
                            cuda.sum_async(&Op::sum_squares(x.len(), x.dtype()), x.view()).unwrap(),
                            Sum::Known(round as f64),
                            // A part of it: fewer blocks, behind those of the whole.
                            later(cuda, x.view().slice(0..1)).unwrap(),
                        ];
                        let known = told(cuda, &later).unwrap();
                        assert_eq!(known[..3], [*sum, *squares, round as f64], "round {round}");
                        assert!(known[3] != 0.0 && known[3].abs() < 6.0, "one element: {}", known[3]);
                        // What was told is no sum any more.
                        assert!(told(cuda, &later).is_err());
                        assert_eq!(cuda.sum(x.view()).unwrap().to_bits(), sum.to_bits(), "round {round}");
                        assert_eq!(cuda.sum_squares(x.view()).unwrap().to_bits(), squares.to_bits(), "round {round}");
                    }
                });
            }
        });
    }
}

#[test]
fn sums_are_told_once_and_more_of_them_than_there_are_slots() {
    for machine in machines() {
        let cuda = Cuda::new(machine).unwrap();
        let arena = cuda.arena(Some(1 << 20), 1).unwrap();
        let x = random(&cuda, &arena, 0);
        let parts: Vec<f64> = (0..1030).map(|i| cuda.sum(x.view().slice(i..i + 3)).unwrap()).collect();
        for _ in 0..2 {
            let later: Vec<Sum> = (0..1030).map(|i| later(&cuda, x.view().slice(i..i + 3)).unwrap()).collect();
            assert!(matches!(later[0], Sum::Slot(_)) && matches!(later[1029], Sum::Known(_)));
            assert_eq!(told(&cuda, &later).unwrap(), parts);
        }
        // A sum may be told by another thread than asked for it; what this one does not ask for is forgotten.
        let [handed, forgotten] = [0, 1].map(|i| later(&cuda, x.view().slice(i..i + 3)).unwrap());
        std::thread::scope(|scope| {
            assert_eq!(scope.spawn(|| told(&cuda, &[handed]).unwrap()).join().unwrap(), [parts[0]]);
        });
        assert_eq!(told(&cuda, &[]).unwrap(), []);
        let error = told(&cuda, &[forgotten]).unwrap_err().to_string();
        assert!(error.contains("is not one of those asked for since"), "{error}");
    }
}

#[test]
fn a_fault_is_told_while_others_wait_for_sums() {
    let op = Embedding { rows: 1, cols: 8, vocab: VocabPart::whole(4), padding: None, dtype: DType::F32 };
    for machine in machines() {
        let cuda = Cuda::new(machine).unwrap();
        let arena = cuda.arena(Some(1 << 20), 1).unwrap();
        let x = random(&cuda, &arena, 1);
        let sum = cuda.sum(x.view()).unwrap();
        let table = random(&cuda, &arena, 0);
        let mut ids = arena.alloc(Category::Workspace, DType::U32, 1).unwrap();
        cuda.upload(View::of(&[9u32]), ids.view_mut()).unwrap();
        let (begin, faults) = (Barrier::new(THREADS), ROUNDS / 4);
        let told: usize = std::thread::scope(|scope| {
            let work = |thread: usize| {
                let (cuda, begin, x, table, ids) = (&cuda, &begin, &x, &table, &ids);
                let mut out = arena.alloc(Category::Workspace, DType::F32, 8).unwrap();
                move || {
                    begin.wait();
                    let mut told = 0;
                    for round in 0..faults {
                        if thread == 0 {
                            cuda.embedding(&op, ids.view(), table.view(), out.view_mut()).unwrap();
                        }
                        match cuda.sum(x.view()) {
                            Ok(got) => assert_eq!(got.to_bits(), sum.to_bits(), "round {round}"),
                            Err(error) => {
                                assert!(error.to_string().contains("token id 9"), "{error}");
                                told += 1;
                            }
                        }
                    }
                    told
                }
            };
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(work(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        // Each comes out of one call, whoever made it: before the next one its maker has waited too.
        assert_eq!(told, faults);
        cuda.synchronize().unwrap();
    }
}
