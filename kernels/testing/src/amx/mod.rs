//! AMX for tests on CPUs without it: the instructions raise SIGILL there, whose handler reads them, does what Intel's
//! Software Developer's Manual (volume 2) says, and steps over them. So the code that would run on such a CPU runs here to
//! the instruction, addresses and registers included. Where the CPU has AMX there is no handler, and tests run on it.
//!
//! What it cannot show: speed, the system's permission and its saving of tiles, and memory operands of other kinds than
//! ours (segments, 32-bit addresses).

// Signals, and registers by assembly.
#![allow(unsafe_code)]

mod decode;
#[cfg(test)]
mod encodings;
mod machine;
#[cfg(test)]
mod refusals;

use machine::Fault;
pub use machine::Machine;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};
use zbench_kernels::Cpu;
use zbench_kernels::cpu::peak;

/// What carries out the instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// The CPU.
    Silicon,
    /// The handler below.
    Emulator,
}

thread_local! {
    // Without a destructor and made by a constant, so that a signal handler may use it: no first use allocates or registers.
    static MACHINE: UnsafeCell<Machine> = const { UnsafeCell::new(Machine::new()) };
}

/// What SIGILL did before.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

/// Makes AMX instructions work in this process.
pub fn install() -> Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    *ENGINE.get_or_init(|| {
        if peak::describe().contains(&"amx-bf16") {
            return Engine::Silicon;
        }
        // SAFETY: plain data, of which zeros are a value; the handler is a function of the form that SA_SIGINFO asks for,
        // and what it needs is stored before it is there.
        unsafe {
            let mut previous: libc::sigaction = std::mem::zeroed();
            assert_eq!(libc::sigaction(libc::SIGILL, std::ptr::null(), &mut previous), 0);
            PREVIOUS.store(Box::leak(Box::new(previous)), Ordering::SeqCst);
            let mut action: libc::sigaction = std::mem::zeroed();
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_illegal;
            action.sa_sigaction = handler as usize;
            // Not on the alternate stack: std makes that one of 8 KiB, of which AVX-512 registers take a third.
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGILL, &action, std::ptr::null_mut()), 0);
        }
        Engine::Emulator
    })
}

/// Kernels that multiply bf16 by AMX whatever this CPU has. `None`, and a line that says why, where the rest of such a CPU
/// is missing too.
pub fn cpu(threads: usize) -> Option<Cpu> {
    install();
    // SAFETY: AMX instructions work from here on.
    let cpu = unsafe { Cpu::with_amx(threads) };
    if cpu.is_none() {
        eprintln!("AMX: NOT TESTED, since this CPU has no AVX-512, without which these kernels are never chosen");
    }
    cpu
}

/// This thread's emulated registers as they are now.
pub fn state() -> Machine {
    // SAFETY: only this thread's handler writes it, and not while this copies: no AMX instruction is in a copy. Volatile,
    // since no compiler knows that assembly which says it writes no memory does, by way of the handler.
    MACHINE.with(|machine| unsafe { machine.get().read_volatile() })
}

/// Addresses of the general registers in a signal's context, in the order of their numbers in instructions.
const REGISTERS: [c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

extern "C" fn on_illegal(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system hands a handler its thread's context; the program counter is at the instruction that was
    // refused, whose bytes the CPU has read. The machine is this thread's, which is in this handler.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let at = registers[libc::REG_RIP as usize] as usize as *const u8;
        let outcome = decode::decode(
            &mut |i| at.add(i).read(),
            &|number| registers[REGISTERS[number] as usize] as u64,
            at as u64,
        )
        .and_then(|(instruction, length)| {
            MACHINE.with(|machine| (*machine.get()).execute(instruction))?;
            Ok(length)
        });
        match outcome {
            Ok(length) => registers[libc::REG_RIP as usize] += length as i64,
            Err(fault) => die(fault),
        }
    }
}

/// Leaves the process to the end that the CPU would have given it.
///
/// # Safety
/// From the handler of SIGILL alone.
unsafe fn die(fault: Fault) {
    let say = |text: &str| {
        // SAFETY: so many bytes are there; `write` may be called in a handler.
        unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    };
    let why = match fault {
        Fault::Foreign => "",
        Fault::Undefined(why) | Fault::Protection(why) => why,
    };
    if !why.is_empty() {
        say("AMX emulator: ");
        say(why);
        say("\n");
    }
    // SAFETY: `install` stored it; all of these may be called in a handler.
    unsafe {
        match fault {
            // Refused again with the handler of before, when this one returns.
            Fault::Foreign | Fault::Undefined(_) => {
                libc::sigaction(libc::SIGILL, PREVIOUS.load(Ordering::SeqCst), std::ptr::null_mut());
            }
            Fault::Protection(_) => {
                libc::signal(libc::SIGSEGV, libc::SIG_DFL);
                libc::raise(libc::SIGSEGV);
            }
        }
    }
}
