//! Bytes that forward keeps for backward in a transformer layer: sbh(34 + 5as/h) and what becomes of it under tensor and
//! sequence parallelism and recomputation. The rule is for 16-bit activations, a GELU MLP of four times the width,
//! dropout, and scores in memory; other models are other sums, which the estimator makes.

use super::{Check, digits};
use crate::job::{Attention, Job, Recompute};

const UNIT: &str = "bytes";
const SOURCE: &str = "Korthikanti et al. 2022, section 4";

/// A layer and how it is split.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layer {
    /// Tokens of a sequence.
    pub seq: f64,
    /// Sequences of a micro-batch.
    pub micro: f64,
    /// Width.
    pub hidden: f64,
    /// Heads.
    pub heads: f64,
    /// Ranks that share each matrix.
    pub tensor: f64,
    /// Whether what lies between the matrices is split, too.
    pub sequence: bool,
    /// Whether scores, their softmax and its dropout are in memory.
    pub scores: bool,
}

/// What lies whole on each rank without sequence parallelism, in sbh: 10 in all.
const BETWEEN: [(&str, f64); 5] = [
    ("inputs of two norms", 4.0),
    ("input of queries, keys, values", 2.0),
    ("mask behind attention", 1.0),
    ("input of the MLP", 2.0),
    ("mask behind the MLP", 1.0),
];

/// What tensor parallelism splits, in sbh: 24 in all.
const WITHIN: [(&str, f64); 4] = [
    ("queries, keys, values", 6.0),
    ("input of the projection", 2.0),
    ("input of GELU", 8.0),
    ("input of the second matrix", 8.0),
];

/// Bytes of a layer, term by term.
pub fn layer(l: &Layer) -> Check {
    let (name, says) = match (l.tensor > 1.0, l.sequence, l.scores) {
        (false, _, true) => ("activations", "sbh(34 + 5as/h)"),
        (false, _, false) => ("activations-selective", "34 sbh: scores are made again, or never in memory"),
        (true, false, true) => ("activations-tensor", "sbh(10 + 24/t + 5as/(ht))"),
        (true, false, false) => ("activations-tensor-selective", "sbh(10 + 24/t)"),
        (true, true, true) => ("activations-tensor-sequence", "sbh/t (34 + 5as/h)"),
        (true, true, false) => ("activations-tensor-sequence-selective", "34 sbh/t"),
    };
    let sbh = l.seq * l.micro * l.hidden;
    let between = if l.sequence { l.tensor } else { 1.0 };
    let over = |ranks: f64| if ranks == 1.0 { String::new() } else { format!(" / {}", digits(ranks)) };
    let mut check = Check::new(name, format!("{says} of a layer"), SOURCE, UNIT);
    for (parts, ranks) in [(&BETWEEN[..], between), (&WITHIN[..], l.tensor)] {
        for (name, factor) in parts {
            check = check.term(*name, format!("{factor} × {}{}", digits(sbh), over(ranks)), factor * sbh / ranks);
        }
    }
    if l.scores {
        let squares = l.heads * l.seq * l.seq * l.micro;
        let how = format!("5 × {}{}", digits(squares), over(l.tensor));
        check = check.term("softmax, its mask and what passes it", how, 5.0 * squares / l.tensor);
    }
    check
}

/// Full recomputation keeps a layer's input: 2sbh, split over `ranks` where they are partitioned.
pub fn full(l: &Layer, ranks: f64) -> Check {
    let sbh = l.seq * l.micro * l.hidden;
    let (says, over) = if ranks > 1.0 {
        ("2sbh/t of a layer: its input, partitioned", format!(" / {}", digits(ranks)))
    } else {
        ("2sbh of a layer: its input", String::new())
    };
    Check::new("activations-full", says, SOURCE, UNIT).term(
        "input",
        format!("2 × {}{over}", digits(sbh)),
        2.0 * sbh / ranks,
    )
}

/// Megatron's own estimate of a layer under tensor and sequence parallelism: sbh/t (18 + 4 ffn/h).
pub fn megatron(l: &Layer, ffn: f64) -> Check {
    let sbh = l.seq * l.micro * l.hidden;
    let over = |how: String| if l.tensor > 1.0 { format!("{how} / {}", digits(l.tensor)) } else { how };
    Check::new("activations-megatron", "sbh/t (18 + 4 ffn/h) of a layer", "Megatron-LM, theoretical_memory_usage", UNIT)
        .term("attention, norms, inputs", over(format!("18 × {}", digits(sbh))), 18.0 * sbh / l.tensor)
        .term(
            "MLP",
            over(format!("4 × {} × {}", digits(ffn), digits(l.seq * l.micro))),
            4.0 * ffn * l.seq * l.micro / l.tensor,
        )
}

/// Those that say something about a job: the plain sum, what this job does to it, and Megatron's estimate.
pub(super) fn all(job: &Job) -> Vec<Check> {
    let model = &job.model;
    let ours = Layer {
        seq: job.batch.seq as f64 / job.degrees.context.max(1) as f64,
        micro: job.batch.micro as f64,
        hidden: model.hidden as f64,
        heads: model.heads as f64,
        tensor: job.degrees.tensor.max(1) as f64,
        sequence: job.degrees.sequence,
        scores: job.attention == Attention::Naive && job.recompute != Recompute::Core,
    };
    let plain = Layer { tensor: 1.0, sequence: false, scores: true, ..ours };
    let mut list = vec![layer(&plain)];
    if ours != plain {
        list.push(layer(&ours));
    }
    if let Recompute::Full { partitioned, .. } = job.recompute {
        list.push(full(&ours, if partitioned || ours.sequence { ours.tensor } else { 1.0 }));
    }
    list.push(megatron(&ours, model.ffn as f64));
    list
}
