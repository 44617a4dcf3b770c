//! How software drives a device: the few numbers that data sheets do not state. Each says what it is and where it comes
//! from; `examples/fit.rs` walks over those that were fitted.

use crate::job::Stack;

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
    /// Share of tensor parallel collectives that Megatron-Core hides behind products.
    tensor_hidden = 0.7;
    /// The same of a stack that hides none of them unless a run asks for it. PyTorch's asynchronous tensor parallelism splits
    /// products in as many parts as ranks and sends each part while the next is computed; the first is exposed, and parts are
    /// less efficient. Set by hand on seven rows of torchtitan, both halves seen.
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
    /// Attention's kernels in Triton within trainers of late 2023 against those of the first generation's benches:
    /// set by hand on LLM Foundry's long sequences, both halves seen.
    attention_fsdp1 = 1.3;
    /// Bytes per parameter and gather (and as many per reduction) that FSDP2 copies between parameters and its buffers. More
    /// than its copies alone: whatever else its units cost at few tokens a step (torchao's and torchtitan's rows) is in it.
    shard_copies = 20.0;
    /// The same of FSDP1, whose units are flat: casts, divisions, sums.
    flat_copies = 6.0;
    /// Share of network time that ZeRO-3 of DeepSpeed leaves exposed although there is compute to hide it.
    deepspeed_exposed = 1.0;
    /// Share of the network's rate that it reaches parameter by parameter.
    deepspeed_network = 0.44;
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning::DEFAULT
    }
}

/// How far element-wise work is fused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fusion {
    /// Each operation is a kernel.
    Eager,
    /// Hand-written kernels for norms, activations and dropout with residual.
    Fused,
    /// A compiler, or kernels written for this model.
    Compiled,
}

/// Copies of sharded parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// In place.
    None,
    /// Of one flat tensor a unit.
    Flat,
    /// Of each parameter.
    Each,
}

/// What a stack does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drive {
    /// Element-wise work.
    pub fusion: Fusion,
    /// Gradients are reduced while backward runs.
    pub overlap_reduce: bool,
    /// Gathered weights of the optimizer's shards wait in nobody's way.
    pub overlap_gather: bool,
    /// Tensor parallel collectives hide behind products (by `tensor_hidden`).
    pub overlap_tensor: bool,
    /// Sends between stages hide behind compute.
    pub overlap_sends: bool,
    /// Gradients of weights are added up in f32 by the product itself.
    pub fused_accumulation: bool,
    /// Passes that the optimizer makes over its state against one fused pass.
    pub optimizer_passes: f64,
    /// GELU is one kernel.
    pub gelu: bool,
    /// Weights in f32 mean autocast, not casts of shards.
    pub autocast: bool,
    /// How sharded parameters are copied from and to the buffers of collectives.
    pub copies: Copies,
    /// Attention of the first generation is a later one, in Triton.
    pub triton: bool,
    /// Whether the communication queue keeps ahead of compute with a whole unit; else `deepspeed_exposed` is paid.
    pub prefetch: bool,
    /// Whether collectives of the data axis run beside compute at all.
    pub overlaps: bool,
}

impl Drive {
    /// Of a stack.
    pub const fn of(stack: Stack) -> Drive {
        let eager = Drive {
            fusion: Fusion::Eager,
            overlap_reduce: true,
            overlap_gather: true,
            overlap_tensor: false,
            overlap_sends: false,
            fused_accumulation: false,
            optimizer_passes: 2.0,
            gelu: true,
            autocast: false,
            copies: Copies::None,
            triton: false,
            prefetch: true,
            overlaps: true,
        };
        match stack {
            // Its collectives are waited for where they start (docs/cuda.md, docs/sharding.md).
            Stack::Zbench => Drive {
                fusion: Fusion::Fused,
                fused_accumulation: true,
                optimizer_passes: 1.0,
                overlaps: false,
                ..eager
            },
            Stack::MegatronLm => Drive {
                fusion: Fusion::Fused,
                overlap_reduce: false,
                overlap_gather: false,
                optimizer_passes: 1.3,
                fused_accumulation: true,
                ..eager
            },
            Stack::MegatronDeepspeed => Drive {
                fusion: Fusion::Fused,
                overlap_reduce: false,
                overlap_gather: false,
                optimizer_passes: 1.3,
                prefetch: false,
                copies: Copies::Each,
                ..eager
            },
            Stack::MegatronCore => Drive {
                fusion: Fusion::Fused,
                overlap_tensor: true,
                overlap_sends: true,
                fused_accumulation: true,
                optimizer_passes: 1.0,
                ..eager
            },
            Stack::Deepspeed => {
                Drive { copies: Copies::Each, optimizer_passes: 1.0, prefetch: false, gelu: false, ..eager }
            }
            Stack::Fsdp1 => Drive { triton: true, copies: Copies::Flat, ..eager },
            Stack::Fsdp1Compiled => Drive { fusion: Fusion::Compiled, triton: true, copies: Copies::Flat, ..eager },
            Stack::Fsdp2 => Drive { copies: Copies::Each, ..eager },
            Stack::Torch => Drive { gelu: false, autocast: true, ..eager },
            Stack::Fsdp2Compiled => Drive { fusion: Fusion::Compiled, copies: Copies::Each, ..eager },
            Stack::TorchCompiled => Drive { fusion: Fusion::Compiled, ..eager },
        }
    }

    /// Share of the rate of attention's kernels that this stack reaches.
    pub const fn attention(&self, tuning: &Tuning) -> f64 {
        if self.triton { tuning.attention_fsdp1 } else { 1.0 }
    }

    /// Bytes per parameter that a gather (and as many that a reduction) copies.
    pub const fn copy_bytes(&self, tuning: &Tuning) -> f64 {
        match self.copies {
            Copies::None => 0.0,
            Copies::Flat => tuning.flat_copies,
            Copies::Each => tuning.shard_copies,
        }
    }
}
