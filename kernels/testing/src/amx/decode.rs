//! From bytes to AMX instructions.
//!
//! They have the three-byte VEX prefix: `c4`, then `R X B mmmmm` with R, X and B inverted (they extend ModRM.reg, SIB.index and
//! SIB.base), then `W vvvv L pp` with vvvv inverted. All lie in map 2 (0F 38) with W = 0 and L = 0:
//!
//! | opcode | pp = none | 66 | F3 | F2 |
//! |---|---|---|---|---|
//! | 49, memory, reg 0 | ldtilecfg | sttilecfg | | |
//! | 49, register | tilerelease (ModRM c0) | | | tilezero (tile in reg, rm 0) |
//! | 4b, memory with SIB | | tileloaddt1 | tilestored | tileloadd |
//! | 5c, register | | | tdpbf16ps reg, rm, vvvv | |

use super::machine::{Fault, Instruction, Lines};

const NONE: u8 = 0;
const P66: u8 = 1;
const F3: u8 = 2;
const F2: u8 = 3;

/// What a ModRM byte with its SIB and displacement names.
struct Operand {
    /// ModRM.reg with VEX.R.
    reg: usize,
    /// ModRM.rm with VEX.B if it is a register.
    rm: Option<usize>,
    /// Base and displacement.
    at: u64,
    /// Index and scale, if there is a SIB.
    stride: Option<u64>,
}

/// The instruction at `rip`, whose byte `i` is `byte(i)`, and its length. `register` is the value of a general register.
pub(super) fn decode(
    byte: &mut dyn FnMut(usize) -> u8,
    register: &dyn Fn(usize) -> u64,
    rip: u64,
) -> Result<(Instruction, usize), Fault> {
    if byte(0) != 0xc4 || byte(1) & 0x1f != 2 {
        return Err(Fault::Foreign);
    }
    let (extend, last, opcode) = (!byte(1) >> 5, byte(2), byte(3));
    let (wide, vvvv, long, prefix) = (last >> 7, usize::from(!last >> 3 & 15), last >> 2 & 1, last & 3);
    let known = matches!((opcode, prefix), (0x49, NONE | P66 | F2) | (0x4b, P66 | F3 | F2) | (0x5c, F3));
    if !known {
        return Err(Fault::Foreign);
    }
    if wide != 0 || long != 0 {
        return Err(Fault::Undefined("VEX.W and VEX.L must be 0"));
    }
    let (operand, length) = operand(byte, register, extend, rip);
    let Operand { reg, rm, at, stride } = operand;
    if opcode != 0x5c && vvvv != 0 {
        return Err(Fault::Undefined("VEX.vvvv must be 1111b"));
    }
    let instruction = match (opcode, prefix, rm) {
        // An index is part of the address here.
        (0x49, NONE, None) if reg == 0 => Instruction::LoadConfig { at: at.wrapping_add(stride.unwrap_or(0)) },
        (0x49, P66, None) if reg == 0 => Instruction::StoreConfig { at: at.wrapping_add(stride.unwrap_or(0)) },
        (0x49, NONE, Some(0)) if reg == 0 => Instruction::Release,
        (0x49, F2, Some(0)) => Instruction::Zero { tile: reg },
        (0x4b, _, None) => {
            let Some(stride) = stride else { return Err(Fault::Undefined("a tile's address must have a SIB byte")) };
            let lines = Lines { at, stride };
            match prefix {
                F3 => Instruction::Store { tile: reg, to: lines },
                // The hint of tileloaddt1 says nothing about the result.
                _ => Instruction::Load { tile: reg, from: lines },
            }
        }
        (0x5c, F3, Some(rm)) => Instruction::Dot { c: reg, a: rm, b: vvvv },
        _ => return Err(Fault::Undefined("no form of this instruction")),
    };
    Ok((instruction, length))
}

/// Reads ModRM at byte 4 and what follows. `extend` has R, X and B in its bits 2, 1 and 0. Also the instruction's length.
fn operand(
    byte: &mut dyn FnMut(usize) -> u8,
    register: &dyn Fn(usize) -> u64,
    extend: u8,
    rip: u64,
) -> (Operand, usize) {
    let bit = |at: u8| usize::from(extend >> at & 1) << 3;
    let (r, x, b) = (bit(2), bit(1), bit(0));
    let modrm = byte(4);
    let (mode, reg, rm) = (modrm >> 6, usize::from(modrm >> 3 & 7) | r, usize::from(modrm & 7));
    if mode == 3 {
        return (Operand { reg, rm: Some(rm | b), at: 0, stride: None }, 5);
    }
    let mut length = 5;
    // Base and index; 4 in ModRM.rm asks for a SIB byte, whatever VEX.B.
    let (mut base, mut stride) = (rm, None);
    if rm == 4 {
        let sib = byte(length);
        length += 1;
        base = usize::from(sib & 7);
        let index = usize::from(sib >> 3 & 7) | x;
        // Number 4 itself is no index; 12 is one.
        stride = Some(if index == 4 { 0 } else { register(index) << (sib >> 6) });
    }
    // Without displacement, a base of 5 (13 too) is none: 32 bits alone, from the next instruction on if there is no SIB.
    let alone = mode == 0 && base == 5;
    let displacement = match mode {
        1 => i64::from(byte(length) as i8),
        2 => i64::from(four(byte, length)),
        _ if alone => i64::from(four(byte, length)),
        _ => 0,
    };
    length += match mode {
        1 => 1,
        2 => 4,
        _ if alone => 4,
        _ => 0,
    };
    let from = match alone {
        true if stride.is_none() => rip.wrapping_add(length as u64),
        true => 0,
        false => register(base | b),
    };
    (Operand { reg, rm: None, at: from.wrapping_add_signed(displacement), stride }, length)
}

fn four(byte: &mut dyn FnMut(usize) -> u8, at: usize) -> i32 {
    i32::from_le_bytes([0, 1, 2, 3].map(|i| byte(at + i)))
}
