//! The emulator against the assembler: every instruction with several registers and forms of address, carried out.

use super::machine::Tile;
use super::{Engine, install, state};
use std::arch::asm;
use zbench_kernels::numerics::philox;

/// A tile configuration in memory.
#[repr(C, align(64))]
pub(super) struct Config(pub [u8; 64]);

impl Config {
    /// `(rows, bytes of a row)` of tiles 0 to 7.
    pub fn of(shapes: [(u8, u16); 8]) -> Config {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        for (tile, (rows, row_bytes)) in shapes.into_iter().enumerate() {
            bytes[16 + 2 * tile..18 + 2 * tile].copy_from_slice(&row_bytes.to_le_bytes());
            bytes[48 + tile] = rows;
        }
        Config(bytes)
    }

    fn load(&self) {
        // SAFETY: a whole configuration; AMX is there, if only by the emulator.
        unsafe { asm!("ldtilecfg [{}]", in(reg) self, options(nostack)) };
    }
}

/// Eight whole tiles.
pub(super) static FULL: Config = {
    let mut bytes = [0; 64];
    bytes[0] = 1;
    let mut tile = 0;
    while tile < 8 {
        (bytes[16 + 2 * tile], bytes[48 + tile]) = (64, 16);
        tile += 1;
    }
    Config(bytes)
};

fn release() {
    // SAFETY: as above.
    unsafe { asm!("tilerelease", options(nostack)) };
}

/// Bytes that are all different from their neighbours'.
fn noise(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 167 + i / 256 * 31 + 5) as u8).collect()
}

/// What a tile of 16 rows of 64 bytes holds.
macro_rules! contents {
    ($tile:literal) => {{
        let mut tile: Tile = [[7; 16]; 16];
        // SAFETY: a tile takes 1 KiB.
        unsafe {
            asm!(concat!("tilestored [{at} + {stride}], tmm", $tile), at = in(reg) &mut tile, stride = in(reg) 64usize, options(nostack));
        }
        if install() == Engine::Emulator {
            assert_eq!(state().tiles[$tile], tile, "tile {}", $tile);
        }
        tile
    }};
}

/// The tile at byte `at` of `bytes` with rows `stride` apart.
fn gathered(bytes: &[u8], at: usize, stride: usize) -> Tile {
    std::array::from_fn(|row| {
        let row = &bytes[at.wrapping_add(row.wrapping_mul(stride))..][..64];
        std::array::from_fn(|i| u32::from_le_bytes(row[4 * i..4 * i + 4].try_into().unwrap()))
    })
}

/// Loads by one form of address and compares. `$base` and `$index` are registers by name, which the text uses.
macro_rules! loads {
    ($from:ident, $tile:literal, $op:literal, $text:literal, $base:tt = $at:expr, $index:tt = $step:expr, start $start:expr, stride $stride:expr) => {{
        // SAFETY: so many bytes are there.
        unsafe {
            asm!(
                concat!($op, " tmm", $tile, ", ", $text),
                in($base) $from.as_ptr().wrapping_add($at), in($index) $step as usize, options(nostack)
            );
        }
        assert_eq!(contents!($tile), gathered(&$from, $start, $stride), $text);
    }};
}

#[test]
fn loads_by_every_form_of_address() {
    install();
    let from = noise(16_384);
    FULL.load();
    loads!(from, 0, "tileloadd", "[rax + rcx]", "rax" = 3, "rcx" = 64, start 3, stride 64);
    loads!(from, 1, "tileloaddt1", "[rdx + rsi*2 + 8]", "rdx" = 5, "rsi" = 50, start 13, stride 100);
    loads!(from, 2, "tileloadd", "[r8 + r9*4 - 128]", "r8" = 130, "r9" = 33, start 2, stride 132);
    loads!(from, 3, "tileloaddt1", "[r10 + r11*8 + 0x1234]", "r10" = 1, "r11" = 9, start 0x1235, stride 72);
    loads!(from, 4, "tileloadd", "[r12 + r13]", "r12" = 77, "r13" = 65, start 77, stride 65);
    loads!(from, 5, "tileloadd", "[r13 + r12*2]", "r13" = 78, "r12" = 64, start 78, stride 128);
    loads!(from, 6, "tileloaddt1", "[rdi + r14 - 0x800]", "rdi" = 0x900, "r14" = 80, start 0x100, stride 80);
    loads!(from, 7, "tileloadd", "[r15 + rdi + 64]", "r15" = 1, "rdi" = 128, start 65, stride 128);
    loads!(from, 0, "tileloadd", "[rcx + r15*8]", "rcx" = 9, "r15" = 16, start 9, stride 128);
    // A negative stride goes up from the last row.
    loads!(from, 2, "tileloadd", "[rax + rdx]", "rax" = 1600, "rdx" = -100isize, start 1600, stride 100usize.wrapping_neg());
    // No index: every row is the first.
    loads!(from, 3, "tileloadd", "[r12]", "r12" = 21, "rax" = 64, start 21, stride 0);
    loads!(from, 4, "tileloadd", "[rsi + 300]", "rsi" = 21, "rax" = 64, start 321, stride 0);
    // Registers that the compiler keeps for itself.
    let base = from.as_ptr().wrapping_add(40);
    // SAFETY: as above; the registers are put back.
    unsafe {
        asm!("push rbp", "mov rbp, rax", "tileloadd tmm5, [rbp + rcx]", "pop rbp", in("rax") base, in("rcx") 96usize);
        asm!("push rbx", "mov rbx, rcx", "tileloadd tmm6, [rax + rbx*2 + 16]", "pop rbx", in("rax") base, in("rcx") 48usize);
        asm!("push rbp", "push rbx", "mov rbp, rcx", "mov rbx, rax", "tileloadd tmm7, [rbx + rbp]", "pop rbx", "pop rbp",
            in("rax") base, in("rcx") 112usize);
    }
    assert_eq!(contents!(5), gathered(&from, 40, 96));
    assert_eq!(contents!(6), gathered(&from, 56, 96));
    assert_eq!(contents!(7), gathered(&from, 40, 112));
    // SAFETY: 4 KiB of stack, of which tile 5 is stored to the second and loaded from there.
    unsafe {
        asm!("sub rsp, 4096", "tilestored [rsp + rcx*2 + 1024], tmm5", "tileloadd tmm1, [rsp + rcx*2 + 1024]", "add rsp, 4096", in("rcx") 32usize);
    }
    assert_eq!(contents!(1), gathered(&from, 40, 96));
    release();
}

#[test]
fn stores_by_several_forms_of_address() {
    install();
    let from = noise(4096);
    FULL.load();
    loads!(from, 0, "tileloadd", "[rax + rcx]", "rax" = 1, "rcx" = 64, start 1, stride 64);
    loads!(from, 6, "tileloadd", "[rax + rcx]", "rax" = 50, "rcx" = 70, start 50, stride 70);
    loads!(from, 7, "tileloadd", "[rax + rcx]", "rax" = 99, "rcx" = 90, start 99, stride 90);
    let mut to = vec![0xaau8; 8192];
    let base = to.as_mut_ptr();
    // SAFETY: inside `to`.
    unsafe {
        asm!("tilestored [r13 + r12*4 + 100], tmm7", in("r13") base, in("r12") 25usize, options(nostack));
        asm!("tilestored [r12 + r15 + 0x800], tmm0", in("r12") base, in("r15") 64usize, options(nostack));
        asm!("tilestored [rdi + r8*8 - 8], tmm6", in("rdi") base.wrapping_add(0x1008), in("r8") 16usize, options(nostack));
    }
    let mut want = vec![0xaau8; 8192];
    for (at, stride, (start, step)) in [(100, 100, (99, 90)), (0x800, 64, (1, 64)), (0x1000, 128, (50, 70))] {
        for row in 0..16 {
            want[at + row * stride..][..64].copy_from_slice(&from[start + row * step..][..64]);
        }
    }
    assert!(to == want);
    release();
}

#[test]
fn tiles_smaller_than_the_whole() {
    install();
    let from = noise(4096);
    let config = Config::of([(3, 20), (16, 64), (1, 4), (16, 4), (1, 64), (5, 60), (7, 8), (0, 0)]);
    config.load();
    let mut to = [0xaau8; 1024];
    let mut stored = Config([9; 64]);
    // SAFETY: inside `from` and `to`.
    unsafe {
        asm!("tileloadd tmm0, [rax + rcx]", in("rax") from.as_ptr(), in("rcx") 30usize, options(nostack));
        asm!("tilestored [rax + rcx], tmm0", in("rax") &mut to, in("rcx") 50usize, options(nostack));
        asm!("sttilecfg [r13]", in("r13") &mut stored, options(nostack));
    }
    for (i, byte) in to.iter().enumerate() {
        let (row, col) = (i / 50, i % 50);
        assert_eq!(*byte, if row < 3 && col < 20 { from[row * 30 + col] } else { 0xaa }, "byte {i}");
    }
    assert_eq!(stored.0, config.0);
    release();
    // SAFETY: as above.
    unsafe { asm!("sttilecfg [r12 + r9 - 200]", in("r12") &mut stored, in("r9") 200usize, options(nostack)) };
    assert_eq!(stored.0, [0; 64]);
    if install() == Engine::Emulator {
        assert!(!state().configured);
    }
}

#[test]
fn configurations_by_several_forms_of_address() {
    install();
    let both = [Config::of([(1, 4), (2, 8), (3, 12), (4, 16), (5, 20), (6, 24), (7, 28), (8, 32)]), Config(FULL.0)];
    let loaded = || {
        let mut stored = Config([9; 64]);
        // SAFETY: 64 bytes.
        unsafe { asm!("sttilecfg [{}]", in(reg) &mut stored, options(nostack)) };
        stored.0
    };
    // SAFETY: a whole configuration each.
    unsafe {
        asm!("ldtilecfg [r12 + 64]", in("r12") &both, options(nostack));
        assert_eq!(loaded(), FULL.0);
        asm!("ldtilecfg [r13]", in("r13") &both, options(nostack));
        assert_eq!(loaded(), both[0].0);
        asm!("ldtilecfg [rax + r14*4 - 0x1000]", in("rax") (&raw const both).wrapping_byte_add(0x1000), in("r14") 16usize, options(nostack));
        assert_eq!(loaded(), FULL.0);
        asm!("ldtilecfg [r9 + rdi]", in("r9") &both, in("rdi") 0usize, options(nostack));
        assert_eq!(loaded(), both[0].0);
        asm!("ldtilecfg [rip + {}]", sym FULL, options(nostack));
        assert_eq!(loaded(), FULL.0);
    }
    release();
    assert_eq!(loaded(), [0; 64]);
}

#[test]
fn zero_and_release() {
    install();
    let from = noise(2048);
    FULL.load();
    loads!(from, 0, "tileloadd", "[rax + rcx]", "rax" = 0, "rcx" = 64, start 0, stride 64);
    loads!(from, 5, "tileloadd", "[rax + rcx]", "rax" = 1, "rcx" = 64, start 1, stride 64);
    loads!(from, 7, "tileloadd", "[rax + rcx]", "rax" = 2, "rcx" = 64, start 2, stride 64);
    // SAFETY: configured above.
    unsafe { asm!("tilezero tmm5", options(nostack)) };
    assert_eq!(contents!(0), gathered(&from, 0, 64));
    assert_eq!(contents!(5), [[0; 16]; 16]);
    assert_eq!(contents!(7), gathered(&from, 2, 64));
    // Configured again, tiles are zero.
    FULL.load();
    assert_eq!(contents!(0), [[0; 16]; 16]);
    assert_eq!(contents!(7), [[0; 16]; 16]);
    release();
}

/// A tile of pairs of bf16.
fn deviates(seed: u64) -> Tile {
    let draws: Vec<f32> = (0..128).flat_map(|block| philox::normals(seed, block)).collect();
    let bits = |x: f32| half::bf16::from_f32(x).to_bits();
    std::array::from_fn(|row| {
        std::array::from_fn(|i| {
            let [low, high] = [0, 1].map(|half| u32::from(bits(draws[row * 32 + 2 * i + half])));
            low | high << 16
        })
    })
}

/// Two bf16 in f64.
fn halves(pair: u32) -> [f64; 2] {
    [pair << 16, pair & 0xffff_0000].map(|bits| f64::from(f32::from_bits(bits)))
}

/// Products with tile `$c += $a $b`, whole tiles of random numbers, against f64.
macro_rules! products {
    ($c:literal, $a:literal, $b:literal) => {{
        let (a, b, c) = (deviates($a), deviates($b + 10), deviates($c + 20));
        let c: [[f32; 16]; 16] = c.map(|row| row.map(|bits| halves(bits)[1] as f32));
        // SAFETY: three whole tiles.
        unsafe {
            asm!(concat!("tileloadd tmm", $a, ", [{at} + {stride}]"), at = in(reg) &a, stride = in(reg) 64usize, options(nostack));
            asm!(concat!("tileloadd tmm", $b, ", [{at} + {stride}]"), at = in(reg) &b, stride = in(reg) 64usize, options(nostack));
            asm!(concat!("tileloadd tmm", $c, ", [{at} + {stride}]"), at = in(reg) &c, stride = in(reg) 64usize, options(nostack));
            asm!(concat!("tdpbf16ps tmm", $c, ", tmm", $a, ", tmm", $b), options(nostack));
        }
        let got = contents!($c);
        for m in 0..16 {
            for n in 0..16 {
                let terms = (0..16).flat_map(|k| {
                    let (a, b) = (halves(a[m][k]), halves(b[k][n]));
                    [a[0] * b[0], a[1] * b[1]]
                });
                let (sum, sizes) = terms.fold((f64::from(c[m][n]), 0.0), |(sum, sizes), x| (sum + x, sizes + x.abs()));
                // 16 roundings of partial sums in each half and two more, each at most half a unit of what was added up.
                let bound = 18.0 * 2f64.powi(-24) * (sizes + f64::from(c[m][n]).abs());
                let got = f64::from(f32::from_bits(got[m][n]));
                assert!((got - sum).abs() <= bound, "tmm{} += tmm{} tmm{}, {m}, {n}: {got}, not {sum}", $c, $a, $b);
            }
        }
        assert_eq!(contents!($a), a);
        assert_eq!(contents!($b), b);
    }};
}

#[test]
fn products_of_any_registers() {
    install();
    FULL.load();
    products!(0, 4, 6);
    products!(3, 5, 7);
    products!(7, 0, 1);
    products!(6, 2, 5);
    products!(1, 7, 0);
    release();
}

/// The signal that ends a child which runs `act`, and what it said.
fn child(act: fn()) -> (i32, String) {
    let mut ends = [0; 2];
    // SAFETY: the child calls what a signal handler may, and ends without returning.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        let process = libc::fork();
        assert!(process >= 0);
        if process == 0 {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &none);
            libc::dup2(ends[1], 2);
            act();
            libc::_exit(0);
        }
        libc::close(ends[1]);
        let mut said = String::new();
        std::io::Read::read_to_string(&mut <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(ends[0]), &mut said)
            .unwrap();
        let mut status = 0;
        assert_eq!(libc::waitpid(process, &mut status, 0), process);
        let signal = if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { 0 };
        (signal, said)
    }
}

/// What the CPU refuses ends the process as it would there.
#[test]
fn the_process_dies_as_it_would() {
    if install() == Engine::Silicon {
        // The CPU's own doing.
        return;
    }
    // SAFETY, all: only children run them.
    assert_eq!(child(|| FULL.load()), (0, String::new()));
    // SAFETY: as above.
    let (signal, said) = child(|| unsafe { asm!("ud2") });
    assert_eq!((signal, said.as_str()), (libc::SIGILL, ""));
    // SAFETY: as above.
    let (signal, said) = child(|| unsafe { asm!("tilerelease", "tilezero tmm1") });
    assert_eq!(signal, libc::SIGILL);
    assert!(said.contains("tiles are not configured"), "{said}");
    let (signal, said) = child(|| {
        let mut config = Config(FULL.0);
        config.0[50] = 17;
        config.load();
    });
    assert_eq!(signal, libc::SIGSEGV);
    assert!(said.contains("more than 16 rows"), "{said}");
}

/// Every thread has tiles of its own.
#[test]
fn threads_do_not_share_tiles() {
    install();
    let from = noise(2048);
    FULL.load();
    loads!(from, 2, "tileloadd", "[rax + rcx]", "rax" = 0, "rcx" = 64, start 0, stride 64);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            FULL.load();
            assert_eq!(contents!(2), [[0; 16]; 16]);
            loads!(from, 2, "tileloadd", "[rax + rcx]", "rax" = 9, "rcx" = 64, start 9, stride 64);
            release();
        });
    });
    assert_eq!(contents!(2), gathered(&from, 0, 64));
    release();
}
