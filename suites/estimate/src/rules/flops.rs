//! FLOPs per token of training, forward and backward, as the field's programs count them. They differ in which
//! parameters they count and in whether attention is the whole square or the half that is causal; for Llama 3 8B at
//! 32,768 tokens the highest is twice the lowest.

use super::{Check, digits};
use crate::job::{Job, Kind, Peft, Recompute, Shape};
use crate::shape::Matrix;

const UNIT: &str = "FLOP/token";

/// What of a shape these rules know.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    /// Parameters that a token goes through, with embedding, head, norms and biases.
    pub parameters: f64,
    /// Rows of the token table times its width.
    pub embedding: f64,
    /// Elements of a learned position table.
    pub positions: f64,
    /// Whether the head reads the token table.
    pub tied: bool,
    /// Elements of the matrices that a token goes through, the head's too.
    pub matrices: f64,
    /// Blocks.
    pub layers: f64,
    /// Width of the residual stream.
    pub hidden: f64,
    /// Width of all queries and of what attention returns, halved: heads times the size of a head.
    pub attention: f64,
    /// Tokens of a sequence.
    pub seq: f64,
    /// Tokens that one sees at most.
    pub seen: f64,
}

impl Sizes {
    /// Of a model with one stack.
    pub fn of(model: &Shape, seq: usize) -> Sizes {
        let head = model.vocab as f64 * model.hidden as f64;
        let blocks = model.blocks();
        let of_block = |matrices: &[Matrix]| matrices.iter().map(|m| m.flops_per_token() / 2.0).sum::<f64>();
        let matrices: f64 = blocks.iter().map(|block| block.count as f64 * of_block(&block.matrices)).sum();
        Sizes {
            parameters: model.active_parameters() as f64,
            embedding: head,
            positions: model.positions as f64 * model.hidden as f64,
            tied: model.tied,
            matrices: matrices + head,
            layers: model.layers as f64,
            hidden: model.hidden as f64,
            attention: (model.query_width() + model.value_width()) as f64 / 2.0,
            seq: seq as f64,
            seen: if model.window > 0 { model.window.min(seq) as f64 } else { seq as f64 },
        }
    }

    fn square(&self) -> (String, f64) {
        let value = 12.0 * self.layers * self.attention * self.seq;
        (product(12.0, [self.layers, self.attention, self.seq]), value)
    }

    fn half(&self) -> (String, f64) {
        let value = 6.0 * self.layers * self.attention * self.seq;
        (product(6.0, [self.layers, self.attention, self.seq]), value)
    }
}

fn product(factor: f64, numbers: [f64; 3]) -> String {
    numbers.iter().fold(factor.to_string(), |text, number| text + " × " + &digits(*number))
}

fn times(factor: f64, parameters: f64) -> (String, f64) {
    (format!("{factor} × {}", digits(parameters)), factor * parameters)
}

fn sum(check: Check, parameters: (String, f64), attention: (String, f64)) -> Check {
    check.term("parameters", parameters.0, parameters.1).term("attention", attention.0, attention.1)
}

/// 6N: all parameters, no attention.
pub fn six_n(parameters: f64) -> Check {
    let (how, value) = times(6.0, parameters);
    Check::new("flops-6n", "6 × parameters", "Kaplan et al. 2020; ml-engineering", UNIT).term("parameters", how, value)
}

/// 8N: with the forward that full recomputation repeats. Work of the hardware, not of the model.
pub fn eight_n(parameters: f64) -> Check {
    let (how, value) = times(8.0, parameters);
    let says = "8 × parameters: 6 and the forward again, what the hardware does under full recomputation";
    Check::new("flops-8n", says, "ml-engineering; BigScience", UNIT).term("parameters", how, value)
}

/// All but learned positions, attention whole.
pub fn palm(s: &Sizes) -> Check {
    let says = "6 × parameters without learned positions + 12 × layers × heads × head size × tokens";
    let check = Check::new("flops-palm", says, "PaLM paper, appendix B; nanoGPT", UNIT);
    sum(check, times(6.0, s.parameters - s.positions), s.square())
}

/// Matrices alone, attention whole within the window.
pub fn nanochat(s: &Sizes) -> Check {
    let says = "6 × matrices + 12 × heads × head size × min(window, tokens) over the layers";
    let windowed = Sizes { seq: s.seen, ..*s }.square();
    sum(Check::new("flops-nanochat", says, "nanochat", UNIT), times(6.0, s.matrices), windowed)
}

/// All but a token table that is read alone, attention whole.
pub fn torchtitan(s: &Sizes) -> Check {
    let says = "6 × (parameters without an untied token table) + 12 × layers × heads × head size × tokens";
    let table = if s.tied { 0.0 } else { s.embedding };
    sum(Check::new("flops-torchtitan", says, "torchtitan", UNIT), times(6.0, s.parameters - table), s.square())
}

/// Matrices with the head, attention whole.
pub fn nanotron(s: &Sizes) -> Check {
    let says = "6 × matrices with the head + 12 × layers × heads × head size × tokens";
    sum(Check::new("flops-nanotron", says, "nanotron", UNIT), times(6.0, s.matrices), s.square())
}

/// All parameters, attention halved.
pub fn llm_c(s: &Sizes) -> Check {
    let says = "6 × parameters + 6 × layers × width × tokens";
    let attention = 6.0 * s.layers * s.hidden * s.seq;
    sum(
        Check::new("flops-llm.c", says, "llm.c", UNIT),
        times(6.0, s.parameters),
        (product(6.0, [s.layers, s.hidden, s.seq]), attention),
    )
}

/// Every product as it is, the head padded, attention halved: what zbench reports.
pub fn megatron(s: &Sizes, padding: f64) -> Check {
    let says = "3 × forward products (blocks, head with padded vocabulary) + the causal half of attention";
    let rows = s.embedding / s.hidden;
    let padded = (rows / padding).ceil() * padding;
    let blocks = s.matrices - s.embedding;
    Check::new("flops-megatron", says, "Megatron-LM, num_floating_point_operations", UNIT)
        .term("blocks", format!("6 × {}", digits(blocks)), 6.0 * blocks)
        .term("head", format!("6 × {} × {}", digits(padded), digits(s.hidden)), 6.0 * padded * s.hidden)
        .term("attention", s.half().0, s.half().1)
}

/// Matrices, attention halved.
pub fn max_text(s: &Sizes) -> Check {
    let says = "6 × matrices + 6 × layers × heads × head size × tokens, halved since July 2025";
    sum(Check::new("flops-maxtext", says, "MaxText, pull request 1988", UNIT), times(6.0, s.matrices), s.half())
}

/// All parameters, attention whole, by width.
pub fn llm_foundry(s: &Sizes) -> Check {
    let says = "3 × 2 × parameters + 3 × 4 × layers × width × tokens";
    let attention = 12.0 * s.layers * s.hidden * s.seq;
    sum(
        Check::new("flops-llm-foundry", says, "LLM Foundry", UNIT),
        times(6.0, s.parameters),
        (product(12.0, [s.layers, s.hidden, s.seq]), attention),
    )
}

/// Three forwards, or four where one is repeated; the embedding counts as a product.
pub fn cookbook(s: &Sizes, recomputed: bool) -> Check {
    let factor = if recomputed { 4.0 } else { 3.0 };
    let says = format!("{factor} × forward: 2 × parameters + 4 × layers × width × tokens");
    let attention = 4.0 * factor * s.layers * s.attention * s.seq;
    sum(
        Check::new("flops-cookbook", says, "EleutherAI cookbook", UNIT),
        times(2.0 * factor, s.parameters),
        (product(4.0 * factor, [s.layers, s.attention, s.seq]), attention),
    )
}

/// Narayanan's formula for GPT under full recomputation, 96 L h² (1 + s/6h + V/16Lh): what the hardware does. TFLOP/s by
/// it are a third above those of the model.
pub fn narayanan(s: &Sizes) -> Check {
    let says = "96 L h² + 16 L h s + 6 V h = 96 L h² (1 + s/6h + V/16Lh), recomputed forward included";
    let rows = s.embedding / s.hidden;
    Check::new("flops-narayanan", says, "Narayanan et al. 2021, section 5.1; BigScience", UNIT)
        .term(
            "blocks",
            format!("96 × {} × {}²", digits(s.layers), digits(s.hidden)),
            96.0 * s.layers * s.hidden * s.hidden,
        )
        .term("attention", product(16.0, [s.layers, s.hidden, s.seq]), 16.0 * s.layers * s.hidden * s.seq)
        .term("logits", format!("6 × {} × {}", digits(rows), digits(s.hidden)), 6.0 * rows * s.hidden)
}

/// Frozen matrices make no gradient of their own: forward and the gradient of activations, 4 instead of 6.
pub fn lora(s: &Sizes, trainable: f64) -> Check {
    let says = "4 × frozen matrices + 6 × adapters + the causal half of attention";
    let (frozen, adapters) = (times(4.0, s.matrices), times(6.0, trainable));
    Check::new("flops-lora", says, "arithmetic; Megatron-Bridge", UNIT)
        .term("frozen matrices", frozen.0, frozen.1)
        .term("adapters", adapters.0, adapters.1)
        .term("attention", s.half().0, s.half().1)
}

/// Those that say something about a job.
pub(super) fn all(job: &Job) -> Vec<Check> {
    let parameters = job.model.active_parameters() as f64;
    let full = matches!(job.recompute, Recompute::Full { .. });
    let mut list = vec![six_n(parameters)];
    if full {
        list.push(eight_n(parameters));
    }
    // Two stacks see two lengths, and a count has no layers: of those there is 6N.
    if !matches!(job.model.kind, Kind::Decoder) {
        return list;
    }
    let sizes = Sizes::of(&job.model, job.batch.seq);
    let padding = 128.0 * job.degrees.tensor as f64;
    list.extend([
        palm(&sizes),
        nanochat(&sizes),
        torchtitan(&sizes),
        nanotron(&sizes),
        llm_c(&sizes),
        megatron(&sizes, padding),
        max_text(&sizes),
        llm_foundry(&sizes),
        cookbook(&sizes, full),
    ]);
    if full && !job.model.gated {
        list.push(narayanan(&sizes));
    }
    if let Peft::Adapters { trainable, .. } = job.peft {
        list.push(lora(&sizes, trainable as f64));
    }
    list
}
