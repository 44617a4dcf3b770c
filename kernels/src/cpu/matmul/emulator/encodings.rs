//! The emulator against the assembler: every instruction with other registers and forms of address, carried out, and what
//! the CPU would refuse.

use super::decode::decode;
use super::machine::{Fault, Instruction, Lines, Machine, Tile};
use super::{Engine, install, state};
use crate::philox;
use std::arch::asm;

/// A tile configuration in memory.
#[repr(C, align(64))]
struct Config([u8; 64]);

impl Config {
    /// `(rows, bytes of a row)` of tiles 0 to 7.
    fn of(shapes: [(u8, u16); 8]) -> Config {
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

static FULL: Config = {
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
            asm!(concat!("tilestored [{at} + {stride}], tmm", $tile), at = in(reg) &mut tile, stride = in(reg) 64u64, options(nostack));
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
        asm!("push rbp", "mov rbp, rax", "tileloadd tmm5, [rbp + rcx]", "pop rbp", in("rax") base, in("rcx") 96);
        asm!("push rbx", "mov rbx, rcx", "tileloadd tmm6, [rax + rbx*2 + 16]", "pop rbx", in("rax") base, in("rcx") 48);
        asm!("push rbp", "push rbx", "mov rbp, rcx", "mov rbx, rax", "tileloadd tmm7, [rbx + rbp]", "pop rbx", "pop rbp",
            in("rax") base, in("rcx") 112);
    }
    assert_eq!(contents!(5), gathered(&from, 40, 96));
    assert_eq!(contents!(6), gathered(&from, 56, 96));
    assert_eq!(contents!(7), gathered(&from, 40, 112));
    // SAFETY: 4 KiB of stack, of which tile 5 is stored to the second and loaded from there.
    unsafe {
        asm!("sub rsp, 4096", "tilestored [rsp + rcx*2 + 1024], tmm5", "tileloadd tmm1, [rsp + rcx*2 + 1024]", "add rsp, 4096", in("rcx") 32);
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
        asm!("tilestored [r13 + r12*4 + 100], tmm7", in("r13") base, in("r12") 25, options(nostack));
        asm!("tilestored [r12 + r15 + 0x800], tmm0", in("r12") base, in("r15") 64, options(nostack));
        asm!("tilestored [rdi + r8*8 - 8], tmm6", in("rdi") base.wrapping_add(0x1008), in("r8") 16, options(nostack));
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
        asm!("tileloadd tmm0, [rax + rcx]", in("rax") from.as_ptr(), in("rcx") 30, options(nostack));
        asm!("tilestored [rax + rcx], tmm0", in("rax") &mut to, in("rcx") 50, options(nostack));
        asm!("sttilecfg [r13]", in("r13") &mut stored, options(nostack));
    }
    for (i, byte) in to.iter().enumerate() {
        let (row, col) = (i / 50, i % 50);
        assert_eq!(*byte, if row < 3 && col < 20 { from[row * 30 + col] } else { 0xaa }, "byte {i}");
    }
    assert_eq!(stored.0, config.0);
    release();
    // SAFETY: as above.
    unsafe { asm!("sttilecfg [r12 + r9 - 200]", in("r12") &mut stored, in("r9") 200, options(nostack)) };
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
        asm!("ldtilecfg [rax + r14*4 - 0x1000]", in("rax") (&raw const both).wrapping_byte_add(0x1000), in("r14") 16, options(nostack));
        assert_eq!(loaded(), FULL.0);
        asm!("ldtilecfg [r9 + rdi]", in("r9") &both, in("rdi") 0, options(nostack));
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

/// Numbers of bf16, `per_row` pairs to a row.
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
            asm!(concat!("tileloadd tmm", $a, ", [{at} + {stride}]"), at = in(reg) &a, stride = in(reg) 64u64, options(nostack));
            asm!(concat!("tileloadd tmm", $b, ", [{at} + {stride}]"), at = in(reg) &b, stride = in(reg) 64u64, options(nostack));
            asm!(concat!("tileloadd tmm", $c, ", [{at} + {stride}]"), at = in(reg) &c, stride = in(reg) 64u64, options(nostack));
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

fn run(machine: &mut Machine, instruction: Instruction) -> Result<(), Fault> {
    // SAFETY: the tests below give addresses of what they own.
    unsafe { machine.execute(instruction) }
}

fn configured(config: &Config) -> Machine {
    let mut machine = Machine::new();
    run(&mut machine, Instruction::LoadConfig { at: &raw const config.0 as u64 }).unwrap();
    machine
}

/// Small tiles: what lies past the shape is cleared, terms past it do not count.
#[test]
fn products_of_small_tiles() {
    // 3 x 5 sums of 2 pairs.
    let mut machine = configured(&Config::of([(3, 20), (3, 8), (2, 20), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)]));
    let pair = |x: f32, y: f32| x.to_bits() >> 16 | y.to_bits() & 0xffff_0000;
    machine.tiles[0] = [[9f32.to_bits(); 16]; 16];
    machine.tiles[1] = std::array::from_fn(|m| std::array::from_fn(|k| pair(m as f32 + 1.0, -(k as f32) - 1.0)));
    machine.tiles[2] = std::array::from_fn(|k| std::array::from_fn(|n| pair(n as f32, k as f32 + 2.0)));
    run(&mut machine, Instruction::Dot { c: 0, a: 1, b: 2 }).unwrap();
    for (m, row) in machine.tiles[0].iter().enumerate() {
        for (n, bits) in row.iter().enumerate() {
            // k = 0: (m+1) n - 1 * 2, k = 1: (m+1) n - 2 * 3.
            let want = if m < 3 && n < 5 { 9.0 + 2.0 * (m as f32 + 1.0) * n as f32 - 8.0 } else { 0.0 };
            assert_eq!(f32::from_bits(*bits), want, "{m}, {n}");
        }
    }
}

/// One sum of one pair: the order of operations, and denormals.
#[test]
fn products_round_and_flush() {
    let dot = |c: u32, pairs: &[([u32; 2], [u32; 2])]| {
        let pairs_bytes = 4 * pairs.len() as u16;
        let none = (0, 0);
        let shapes = [(1, 4), (1, pairs_bytes), (pairs.len() as u8, 4), none, none, none, none, none];
        let mut machine = configured(&Config::of(shapes));
        machine.tiles[0][0][0] = c;
        for (k, ([a, a_next], [b, b_next])) in pairs.iter().enumerate() {
            machine.tiles[1][0][k] = a | a_next << 16;
            machine.tiles[2][k][0] = b | b_next << 16;
        }
        run(&mut machine, Instruction::Dot { c: 0, a: 1, b: 2 }).unwrap();
        machine.tiles[0][0][0]
    };
    let (one, zero, minus) = (0x3f80, 0, 0xbf80);
    let f = |x: f32| x.to_bits();
    // Denormals in: bf16 0x0001 and 0x807f, f32 1 and its negative.
    assert_eq!(dot(f(0.0), &[([0x0001, zero], [0x7f00, zero])]), f(0.0));
    assert_eq!(dot(f(3.0), &[([0x7f00, one], [0x807f, one])]), f(4.0));
    assert_eq!(dot(0x0000_0001, &[([zero, zero], [one, one])]), f(0.0));
    assert_eq!(dot(0x807f_ffff, &[([one, zero], [one, zero])]), f(1.0));
    // Denormals out: 2^-100 * 2^-30, alone and as a difference of normal sums.
    assert_eq!(dot(f(0.0), &[([0x0d80, zero], [0x3080, zero])]), f(0.0));
    assert_eq!(dot(f(-(2f32.powi(-126))), &[([0x0080, zero], [0x3fc0, zero])]), f(-0.0).min(f(0.0)));
    // The least normal number stays.
    assert_eq!(dot(f(0.0), &[([0x0080, zero], [one, zero])]), 0x0080_0000);
    // Sums of even and odd terms are apart, and C comes last: 2^24 + 1 - 2^24 in the even ones loses the 1, across it does not.
    let big = 0x4b80;
    assert_eq!(
        dot(f(0.0), &[([big, zero], [one, zero]), ([one, zero], [one, zero]), ([big, zero], [minus, zero])]),
        f(0.0)
    );
    assert_eq!(dot(f(0.0), &[([big, one], [one, one]), ([big, zero], [minus, zero])]), f(1.0));
    assert_eq!(dot(f(16_777_216.0), &[([one, one], [one, one])]), f(16_777_218.0));
    // A product is not rounded before it is added: (1 + 2^-7)^2 - 1 - 2^-6 = 2^-14, with 2^10 before it 2^10 exactly again.
    assert_eq!(dot(f(0.0), &[([one, zero], [0xbf82, zero]), ([0x3f81, zero], [0x3f81, zero])]), f(2f32.powi(-14)));
    // Infinity and what is no number.
    assert_eq!(dot(f(1.0), &[([0x7f80, zero], [one, zero])]), f(f32::INFINITY));
    assert!(f32::from_bits(dot(f(1.0), &[([0x7f80, zero], [zero, zero])])).is_nan());
}

#[test]
fn bad_configurations_are_refused() {
    let with = |change: &dyn Fn(&mut [u8; 64])| {
        let mut config = Config(FULL.0);
        change(&mut config.0);
        let mut machine = Machine::new();
        run(&mut machine, Instruction::LoadConfig { at: &raw const config.0 as u64 }).map(|()| machine.configured)
    };
    let refused = |change: &dyn Fn(&mut [u8; 64])| matches!(with(change), Err(Fault::Protection(_)));
    assert_eq!(with(&|_| ()), Ok(true));
    assert_eq!(with(&|c| c[0] = 0), Ok(false));
    assert!(refused(&|c| c[0] = 2));
    for reserved in [2, 15, 32, 47, 56, 63] {
        assert!(refused(&|c| c[reserved] = 1), "byte {reserved}");
    }
    assert!(refused(&|c| c[48] = 17));
    assert!(refused(&|c| c[30] = 65));
    assert!(refused(&|c| c[55] = 0));
    assert!(refused(&|c| c[16] = 0));
    assert_eq!(with(&|c| (c[16], c[48]) = (0, 0)), Ok(true));
}

#[test]
fn what_the_tiles_do_not_allow_is_refused() {
    let refused =
        |machine: &Machine, instruction| matches!(run(&mut machine.clone(), instruction), Err(Fault::Undefined(_)));
    let mut memory = vec![0u8; 4096];
    let at = Lines { at: memory.as_mut_ptr() as u64, stride: 64 };
    let all =
        |tile| [Instruction::Zero { tile }, Instruction::Load { tile, from: at }, Instruction::Store { tile, to: at }];
    for instruction in all(0) {
        assert!(refused(&Machine::new(), instruction), "not configured: {instruction:?}");
    }
    assert!(refused(&Machine::new(), Instruction::Dot { c: 0, a: 1, b: 2 }));
    let machine = configured(&Config::of([(4, 16), (4, 8), (2, 16), (0, 0), (5, 8), (2, 12), (3, 16), (4, 7)]));
    for instruction in all(3).into_iter().chain(all(8)) {
        assert!(refused(&machine, instruction), "{instruction:?}");
    }
    assert!(refused(&machine, Instruction::Load { tile: 7, from: at }), "rows of 7 bytes");
    assert_eq!(run(&mut machine.clone(), Instruction::Zero { tile: 7 }), Ok(()));
    assert_eq!(run(&mut machine.clone(), Instruction::Dot { c: 0, a: 1, b: 2 }), Ok(()));
    for (c, a, b) in
        [(0, 0, 2), (0, 1, 1), (1, 2, 1), (0, 4, 2), (0, 1, 5), (0, 1, 6), (7, 1, 2), (0, 1, 8), (8, 1, 2), (0, 2, 1)]
    {
        assert!(refused(&machine, Instruction::Dot { c, a, b }), "{c} += {a} {b}");
    }
    let mut late = FULL.0;
    late[1] = 16;
    assert!(refused(&configured(&Config(late)), Instruction::Load { tile: 0, from: at }), "a start row past the end");
    // A start row inside: rows before it stay, and it is zero after.
    late[1] = 10;
    let mut machine = configured(&Config(late));
    memory.fill(1);
    let at = Lines { at: memory.as_ptr() as u64, stride: 0 };
    run(&mut machine, Instruction::Load { tile: 0, from: at }).unwrap();
    assert!(
        machine.tiles[0].iter().enumerate().all(|(row, line)| *line == [if row < 10 { 0 } else { 0x0101_0101 }; 16])
    );
    run(&mut machine, Instruction::Load { tile: 0, from: at }).unwrap();
    assert_eq!(machine.tiles[0], [[0x0101_0101; 16]; 16]);
}

/// Bytes that the assembler does not make of our text.
#[test]
fn bytes_that_are_rare_or_wrong() {
    let of = |bytes: &[u8]| decode(&mut |i| bytes[i], &|number| 1000 * (number as u64 + 1), 0x40_0000);
    // tileloadd tmm3, [rcx*2 + 0x10000]: no base.
    let load = |tile, at, stride| Ok((Instruction::Load { tile, from: Lines { at, stride } }, 10));
    assert_eq!(of(&[0xc4, 0xe2, 0x7b, 0x4b, 0x1c, 0x4d, 0, 0, 1, 0]), load(3, 0x10000, 4000));
    // The same with VEX.B, which does not make it r13.
    assert_eq!(of(&[0xc4, 0xc2, 0x7b, 0x4b, 0x1c, 0x4d, 0, 0, 1, 0]), load(3, 0x10000, 4000));
    // With a displacement of 8 bits it is a base.
    let load = |tile, at, stride| Ok((Instruction::Load { tile, from: Lines { at, stride } }, 7));
    assert_eq!(of(&[0xc4, 0xe2, 0x7b, 0x4b, 0x5c, 0x4d, 0xff]), load(3, 5999, 4000));
    assert_eq!(of(&[0xc4, 0xc2, 0x79, 0x4b, 0x5c, 0x4d, 0x7f]), load(3, 14_127, 4000));
    // Index 4 is none, index 12 is r12.
    assert_eq!(of(&[0xc4, 0xe2, 0x7b, 0x4b, 0x44, 0xe0, 0x00]), load(0, 1000, 0));
    assert_eq!(of(&[0xc4, 0xa2, 0x7b, 0x4b, 0x44, 0xe0, 0x00]), load(0, 1000, 13_000 * 8));
    // ldtilecfg [rip + 16] counts from the next instruction.
    assert_eq!(of(&[0xc4, 0xe2, 0x78, 0x49, 0x05, 16, 0, 0, 0]), Ok((Instruction::LoadConfig { at: 0x40_0019 }, 9)));
    // Tile 8, by VEX.R, VEX.B and VEX.vvvv: named as such, and refused by the machine.
    assert_eq!(of(&[0xc4, 0x62, 0x7b, 0x49, 0xc0]), Ok((Instruction::Zero { tile: 8 }, 5)));
    assert_eq!(of(&[0xc4, 0xc2, 0x4a, 0x5c, 0xc4]), Ok((Instruction::Dot { c: 0, a: 12, b: 6 }, 5)));
    assert_eq!(of(&[0xc4, 0xe2, 0x0a, 0x5c, 0xc4]), Ok((Instruction::Dot { c: 0, a: 4, b: 14 }, 5)));
    let undefined = |bytes: &[u8]| matches!(of(bytes), Err(Fault::Undefined(_)));
    assert!(undefined(&[0xc4, 0xe2, 0xfb, 0x4b, 0x04, 0x08]), "VEX.W");
    assert!(undefined(&[0xc4, 0xe2, 0x7f, 0x4b, 0x04, 0x08]), "VEX.L");
    assert!(undefined(&[0xc4, 0xe2, 0x73, 0x4b, 0x04, 0x08]), "VEX.vvvv");
    assert!(undefined(&[0xc4, 0xe2, 0x7b, 0x4b, 0x00]), "no SIB");
    assert!(undefined(&[0xc4, 0xe2, 0x7b, 0x4b, 0xc0]), "a register in place of memory");
    assert!(undefined(&[0xc4, 0xe2, 0x4a, 0x5c, 0x00]), "memory in place of a register");
    assert!(undefined(&[0xc4, 0xe2, 0x78, 0x49, 0xc1]), "tilerelease with a register");
    for foreign in [
        [0x0f, 0x0b, 0, 0, 0],
        [0xc4, 0xe2, 0x79, 0x5c, 0xc4],
        [0xc4, 0xe1, 0x7b, 0x49, 0xc0],
        [0xc4, 0xe2, 0x7a, 0x49, 0xc0],
    ] {
        assert_eq!(of(&foreign), Err(Fault::Foreign), "{foreign:x?}");
    }
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
