//! How training drives a device, whatever the framework: the few numbers that data sheets do not state. Each says what it is
//! and where it comes from; `examples/fit.rs` walks over those that were fitted. What differs between frameworks is in
//! [`crate::framework`].

macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident = $value:expr;)*) => {
        /// The constants, by name.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Tuning { $($(#[$doc])* pub $name: f64,)* }

        impl Tuning {
            /// What the estimator uses.
            pub const DEFAULT: Tuning = Tuning { $($name: $value,)* };

            /// All names, in the order of the table.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name),)*];

            /// The constant of a name.
            pub fn get(&self, name: &str) -> Option<f64> {
                match name { $(stringify!($name) => Some(self.$name),)* _ => None }
            }

            /// Sets the constant of a name; false where there is none.
            pub fn set(&mut self, name: &str, value: f64) -> bool {
                match name { $(stringify!($name) => { self.$name = value; true })* _ => false }
            }
        }
    };
}

constants! {
    /// Share of the best product's rate that products of training hold, minute after minute (clocks under power and
    /// heat, operands that are not in cache): devices up to Ampere.
    sustained = 0.95;
    /// The same for devices of Hopper and later, which meet their power limit in products.
    sustained_hot = 0.89;
    /// The same for devices of Blackwell.
    sustained_hotter = 0.71;
    /// Bytes per element that a cast to eight bits moves, with a transposed copy, as far as nothing else does it.
    cast_bytes = 3.0;
    /// Elements of k that the start and end of a tile cost.
    k_fill = 64.0;
    /// Rate of a product whose rows are not multiples of 16 bytes, against an aligned one's.
    unaligned = 0.11;
    /// Share of memory's reached rate that element-wise kernels hold.
    pass_reached = 0.64;
    /// Share of the matrix peak that attention by tiles reaches at best (first generation), head of 64. These shares,
    /// lengths and `legacy_unit` were set by hand on kernels.csv, both halves seen.
    flash1_64 = 0.32;
    /// The same, head of 128.
    flash1_128 = 0.31;
    /// Second generation, head of 64.
    flash2_64 = 0.63;
    /// Second generation, head of 128.
    flash2_128 = 0.76;
    /// Third generation, head of 64 (of a device with asynchronous products).
    flash3_64 = 0.48;
    /// Third generation, head of 128.
    flash3_128 = 0.67;
    /// Attention's backward rate against forward's (2.5 times the FLOPs).
    flash_backward = 0.82;
    /// Length at which half of attention's rate is reached, all tokens seen.
    flash_length = 160.0;
    /// The same with a causal mask.
    flash_length_causal = 460.0;
    /// FLOP/s per unit that kernels written before Hopper's asynchronous products reach at most.
    legacy_unit = 3.85e12;
    /// Share of a product's rate that the batched products of attention's scores reach.
    batched = 0.5;
    /// Compute lost per second of communication that runs beside it (units and memory that the copies take).
    contention = 0.1;
    /// Seconds of host time per kernel, eager PyTorch.
    host_eager = 7e-6;
    /// Seconds of host time per kernel where modules are fused or compiled.
    host_fused = 5e-6;
    /// Share of tensor parallel collectives that hides behind products where a run asks for it. PyTorch's asynchronous tensor
    /// parallelism splits products in as many parts as ranks and sends each part while the next is computed; the first is exposed,
    /// and parts are less efficient. Set by hand on seven rows of torchtitan, both halves seen.
    tensor_asked = 0.3;
    /// Share of expert exchange that is hidden where a run asks for it: 20 of 132 units of a H800 copy meanwhile (DeepSeek-V3's
    /// report, 3.2.2), so exchange costs 0.15 of its time.
    expert_asked = 0.85;
    /// Kernels of a router and its permutations, forward.
    router_kernels = 30.0;
    /// Passes over a routed token's elements, forward: permute, sort, unpermute, weigh.
    router_passes = 10.0;
    /// Seconds that a sparse block's forward (and backward) waits for the host, which reads how many tokens each expert has.
    router_wait = 0.0003;
    /// Seconds that a stage waits for the host at each send, where sends are not started ahead.
    send_wait = 0.0015;
    /// Fixed share of a step that no row explains: data, logging, clocks, stragglers. The fit leaves it anywhere between
    /// 0.02 and 0.035; about the middle.
    other = 0.03;
    /// Growth of a step per doubling of nodes (stragglers), share.
    straggle = 0.006;
    /// Share of the host's memory rate that an update on the host reaches.
    host_update = 0.45;
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning::DEFAULT
    }
}
