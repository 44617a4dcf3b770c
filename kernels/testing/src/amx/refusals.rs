//! What instructions do where the assembler's text does not reach: small tiles, rounding, bytes that are rare or wrong, and
//! all that the CPU would refuse.

use super::decode::decode;
use super::encodings::{Config, FULL};
use super::machine::{Fault, Instruction, Lines, Machine};

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
