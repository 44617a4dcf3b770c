//! Kernels that multiply by AMX, on CPUs without it too, instruction by instruction.

mod attention;
mod products;

use crate::harness::{GUARD, SENTINEL, Tensor, assert_close};
use std::sync::LazyLock;
use zbench_kernels::cpu::peak;
use zbench_kernels::{Cpu, DType, Kernels, Result};
use zbench_kernels_testing::{Reference, amx::cpu};

/// Devices with 1, 2 and 3 threads that multiply bf16 by AMX; `None` where even the emulator cannot.
static AMX: LazyLock<Option<[Cpu; 3]>> = LazyLock::new(|| Some([cpu(1)?, cpu(2)?, cpu(3)?]));

/// The same kernels by the next best instructions.
static NEXT: LazyLock<Cpu> = LazyLock::new(|| {
    let best = ["avx512-bf16", "avx512"].into_iter().find(|name| peak::describe().contains(name)).unwrap();
    Cpu::with_instructions(2, best).unwrap()
});

/// The devices. Says so where there are none, so that no test is silently less than it seems.
fn devices() -> Option<&'static [Cpu; 3]> {
    if AMX.is_none() {
        eprintln!("AMX: NOT TESTED, as said above");
    }
    AMX.as_ref()
}

/// As the harness's `compare`: `call` on the reference in f64 and by AMX must agree, and AMX with itself to the bit
/// whatever the threads, and with the next best instructions as far as their type allows. `outs` names what is written.
fn hold<const N: usize>(
    case: &str,
    tensors: [Tensor; N],
    outs: &[usize],
    call: impl Fn(&dyn Kernels, &dyn Fn(DType) -> DType, &mut [Tensor; N]) -> Result<()>,
) {
    let Some(devices) = devices() else { return };
    let mut exact = tensors.each_ref().map(Tensor::exact);
    call(&Reference, &|_| DType::F64, &mut exact).unwrap();
    let mut next = tensors.clone();
    call(&*NEXT, &|dtype| dtype, &mut next).unwrap();
    let mut first: Option<[Tensor; N]> = None;
    for device in devices {
        let case = format!("{case}, {} threads", device.threads());
        let mut got = tensors.clone();
        call(device, &|dtype| dtype, &mut got).unwrap();
        for i in 0..N {
            let case = format!("{case}, tensor {i}");
            if !outs.contains(&i) {
                assert_eq!(got[i].bits(), tensors[i].bits(), "{case} is no output");
                continue;
            }
            assert_close(&case, &got[i], &exact[i].values());
            assert_close(&format!("{case}, beside {}", NEXT.name()), &got[i], &next[i].values());
            let guard = got[i].len - GUARD;
            assert!(got[i].values()[guard..].iter().all(|x| *x == SENTINEL), "{case}: wrote past it");
            if let Some(first) = &first {
                assert_eq!(first[i].bits(), got[i].bits(), "{case} depends on the threads");
            }
        }
        first.get_or_insert(got);
    }
}
