//! FLOPs of a training step as the field's reports count them. docs/flops.md compares them.

use crate::job::Job;

/// A way of counting a step's FLOPs. N are the parameters that a token goes through, L blocks, h the hidden size, s tokens of a
/// sequence, B sequences of a step, V rows of the vocabulary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Convention {
    /// 6 N + 12 L h s per token: attention over the whole square (PaLM, appendix B).
    #[default]
    Full,
    /// 72 B s L h² (1 + s/6h + V/16Lh), Megatron-LM's formula without recomputation (Narayanan et al. 2021, section 5.1).
    Megatron,
    /// The same with a forward that is recomputed, 96 in place of 72, whether it is or not.
    MegatronRecomputed,
    /// 6 N per token.
    SixN,
    /// 8 N per token.
    EightN,
    /// What is computed, recomputation included.
    Hardware,
}

impl Convention {
    /// All of them.
    pub const ALL: [Convention; 6] = [
        Convention::Full,
        Convention::Megatron,
        Convention::MegatronRecomputed,
        Convention::SixN,
        Convention::EightN,
        Convention::Hardware,
    ];

    /// The name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Convention::Full => "full",
            Convention::Megatron => "megatron",
            Convention::MegatronRecomputed => "megatron-recomputed",
            Convention::SixN => "6n",
            Convention::EightN => "8n",
            Convention::Hardware => "hardware",
        }
    }

    /// That of a name.
    pub fn named(name: &str) -> Option<Convention> {
        Convention::ALL.into_iter().find(|convention| convention.name() == name)
    }

    /// FLOPs of a job's step of so many tokens; `hardware` is what is computed.
    pub fn flops(self, job: &Job, tokens: f64, hardware: f64) -> f64 {
        let model = &job.model;
        let (l, h, s) = (model.layers as f64, model.hidden as f64, job.batch.seq as f64);
        let n = match model.stated_parameters {
            stated if stated > 0 && model.layers == 0 => stated as f64,
            _ => model.active_parameters() as f64,
        };
        let megatron = || match model.layers * model.hidden {
            0 => 6.0 * n * tokens,
            _ => 72.0 * tokens * l * h * h * (1.0 + s / (6.0 * h) + model.vocab as f64 / (16.0 * l * h)),
        };
        match self {
            Convention::Full => tokens * (6.0 * n + 12.0 * l * h * s),
            Convention::Megatron => megatron(),
            Convention::MegatronRecomputed => megatron() * 4.0 / 3.0,
            Convention::SixN => 6.0 * n * tokens,
            Convention::EightN => 8.0 * n * tokens,
            Convention::Hardware => hardware,
        }
    }
}
