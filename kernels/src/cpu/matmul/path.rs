//! Which instructions multiply matrices.

#![allow(unsafe_code, reason = "a system call that asks for AMX's tiles")]

use crate::cpu::level::Level;

/// A way to multiply tiles, with sums in f32. What is said of bf16 holds for two matrices of it; other types are multiplied as
/// f32, by vectors of the same width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// Widened to f32, in loops that any CPU of the architecture runs.
    Portable,
    /// Widened to f32, 8 lanes.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Widened to f32, 16 lanes.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// Dot products of pairs, 16 lanes: `vdpbf16ps`.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    /// Tiles of 16 x 32 by 32 x 16: `tdpbf16ps`.
    #[cfg(target_arch = "x86_64")]
    Amx,
}

impl Path {
    /// The best that this CPU has.
    pub fn detect() -> Path {
        Path::available().pop().unwrap_or(Path::Portable)
    }

    /// All that this CPU has, the slowest first.
    pub fn available() -> Vec<Path> {
        #[cfg(target_arch = "x86_64")]
        {
            let of_level = |level| match level {
                Level::Portable => Path::Portable,
                Level::Avx2 => Path::Avx2,
                Level::Avx512 => Path::Avx512,
            };
            let mut found: Vec<Path> = Level::available().into_iter().map(of_level).collect();
            if found.last() == Some(&Path::Avx512) {
                if std::arch::is_x86_feature_detected!("avx512bf16") {
                    // Where dot products run at half the rate of f32 they come before it, so that it is chosen.
                    let at = if dot_products_pay() { found.len() } else { found.len() - 1 };
                    found.insert(at, Path::Avx512Bf16);
                }
                if has_amx() {
                    found.push(Path::Amx);
                }
            }
            found
        }
        #[cfg(not(target_arch = "x86_64"))]
        vec![Path::Portable]
    }

    pub fn name(self) -> &'static str {
        match self {
            Path::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Path::Avx512Bf16 => "avx512-bf16",
            #[cfg(target_arch = "x86_64")]
            Path::Amx => "amx-bf16",
        }
    }

    /// What element-wise loops use beside it.
    pub fn level(self) -> Level {
        match self {
            Path::Portable => Level::Portable,
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => Level::Avx2,
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 | Path::Avx512Bf16 | Path::Amx => Level::Avx512,
        }
    }
}

/// Whether `vdpbf16ps` does more per second than multiply-adds of f32. On AMD (Zen 4 on) and on Cooper Lake it does twice
/// as much; on Sapphire Rapids it was measured at half (110 against 220 GFLOP/s a core), and its successors share the design.
#[cfg(target_arch = "x86_64")]
fn dot_products_pay() -> bool {
    use std::arch::x86_64::__cpuid;
    let vendor = __cpuid(0);
    if [vendor.ebx, vendor.edx, vendor.ecx] != [0x756e_6547, 0x4965_6e69, 0x6c65_746e] {
        // Not "GenuineIntel".
        return true;
    }
    let id = __cpuid(1).eax;
    let (family, model) = (id >> 8 & 0xf, (id >> 4 & 0xf) | (id >> 12 & 0xf0));
    // Of this model only Cooper Lake has the instruction.
    family == 6 && model == 0x55
}

/// Whether the CPU has AMX with bf16 and the system lets this process use its tiles.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_amx() -> bool {
    use std::arch::x86_64::{__cpuid_count, __get_cpuid_max};
    const TILE: u32 = 1 << 24;
    const BF16: u32 = 1 << 22;
    if __get_cpuid_max(0).0 < 7 || __cpuid_count(7, 0).edx & (TILE | BF16) != TILE | BF16 {
        return false;
    }
    #[cfg(target_os = "linux")]
    {
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const XTILEDATA: libc::c_long = 18;
        // It is given only where the system saves tiles (so XCR0 need not be read) and every thread's alternate stack holds
        // them; systems before Linux 5.16 and sandboxes say no. Threads and forks have it too, another program does not.
        // SAFETY: asks for a permission, for the whole process; touches no memory. Asking again is harmless.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0 }
    }
    #[cfg(not(target_os = "linux"))]
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_has_its_path() {
        let (paths, levels) = (Path::available(), Level::available());
        assert!(levels.iter().all(|level| paths.iter().any(|path| path.name() == format!("{level:?}").to_lowercase())));
        assert!(paths.iter().all(|path| levels.contains(&path.level())));
        assert_eq!(Path::detect().level(), Level::detect());
    }
}
