//! What the compiler says a kernel takes.

/// What a kernel takes of a multiprocessor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    pub kernel: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of a thread's memory that are written since registers do not suffice.
    pub spill_stores: u32,
    /// Bytes read again.
    pub spill_loads: u32,
    /// Bytes of a thread's stack.
    pub stack: u32,
    /// Bytes of shared memory, without what a launch adds.
    pub shared: u32,
}

impl Usage {
    /// What the log of a program that was compiled with `--ptxas-options=-v` says, by kernels' names.
    pub fn of_log(log: &str) -> Vec<Usage> {
        let mut all: Vec<Usage> = Vec::new();
        for line in log.lines() {
            if let Some((_, rest)) = line.split_once("Compiling entry function '") {
                let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
                all.push(Usage { kernel, ..Usage::default() });
            }
            let Some(last) = all.last_mut() else { continue };
            // `    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads`
            // `ptxas info : Used 26 registers, used 1 barriers, 6144 bytes smem, 392 bytes cmem[0]`
            // A warning names the kernel and repeats the spills.
            for part in line.split(',').filter(|_| !line.contains("warning")) {
                let words: Vec<&str> = part.split_whitespace().collect();
                let number = |unit: &[&str]| {
                    let at = words.windows(unit.len() + 1).find(|window| window[1..] == *unit)?;
                    at[0].parse::<u32>().ok()
                };
                let fields: [(&[&str], &mut u32); 5] = [
                    (&["registers"], &mut last.registers),
                    (&["bytes", "spill", "stores"], &mut last.spill_stores),
                    (&["bytes", "spill", "loads"], &mut last.spill_loads),
                    (&["bytes", "stack", "frame"], &mut last.stack),
                    (&["bytes", "smem"], &mut last.shared),
                ];
                for (unit, field) in fields {
                    if let Some(value) = number(unit) {
                        *field = value;
                    }
                }
            }
        }
        all.sort_by(|a, b| a.kernel.cmp(&b.kernel));
        all
    }

    /// Whether registers did not suffice.
    pub fn spills(&self) -> bool {
        self.spill_stores + self.spill_loads > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_by_kernel() {
        let log = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'rows' for 'sm_90a'\n\
            ptxas info    : Function properties for rows\n    \
            16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n\
            ptxas info    : Used 255 registers, used 1 barriers, 16 bytes cumulative stack size, 6144 bytes smem\n\
            ptxas info    : Compile time = 12.1 ms\n\
            ptxas warning : Registers are spilled to local memory in function 'rows', 8 bytes spill stores, 4 bytes spill loads\n\
            ptxas info    : Compiling entry function 'fill' for 'sm_90a'\n\
            ptxas info    : Function properties for fill\n    \
            0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
            ptxas info    : Used 26 registers, used 0 barriers\n";
        let usage = Usage::of_log(log);
        let fill = Usage { kernel: "fill".into(), registers: 26, ..Usage::default() };
        let (spill_stores, spill_loads) = (8, 4);
        let rows = Usage { kernel: "rows".into(), registers: 255, spill_stores, spill_loads, stack: 16, shared: 6144 };
        assert_eq!(usage, [fill, rows]);
        assert_eq!(usage.iter().map(Usage::spills).collect::<Vec<_>>(), [false, true]);
        assert_eq!(Usage::of_log("nothing of use"), []);
    }
}
