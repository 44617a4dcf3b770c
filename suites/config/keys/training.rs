//! The keys of data, training and training checkpoints.

use super::Default::{From, Is};
use super::Kind::*;
use super::{Key, NUMBER, REAL, REAL_POSITIVE, SIZE, key};

/// Their part of the table.
pub(super) const KEYS: &[Key] = &[
    key(
        "data.source",
        Choice(&["synthetic", "tokens", "text", "jsonl", "chat", "mix"]),
        Is("\"synthetic\""),
        "A seeded generator, a raw file of tokens, a text and its tokenizer, documents or conversations as lines of JSON, or \
         several files of these (docs/data.md).",
    ),
    key("data.path", Path, From("needed by all but synthetic and mix"), "The file of tokens, text or lines of JSON."),
    key("data.dtype", Choice(&["u16", "u32"]), Is("\"u32\""), "Width of a token in a raw file, little-endian."),
    key("data.tokenizer", Path, From("needed by text, jsonl, chat and mix"), "A Hugging Face tokenizer.json."),
    key("data.field", Text, Is("\"text\""), "jsonl: the key of a line's text."),
    key(
        "data.files",
        Files,
        From("needed by mix"),
        "mix: a list of tables { path, form = \"jsonl\" or \"chat\", weight = 1.0, field = \"text\" }; sequences are taken by weight.",
    ),
    key(
        "data.packing",
        Choice(&["packed", "padded", "stream"]),
        Is("\"packed\""),
        "Lines of JSON: packed: whole documents together in a sequence, none sees another; padded: one document to a sequence; \
         stream: one after the other, cut anywhere.",
    ),
    key("data.shuffle", Bool, Is("false"), "Every epoch in an order of its own, drawn from train.seed."),
    key(
        "data.template",
        Choice(&["chatml", "plain"]),
        Is("\"chatml\""),
        "chat: how messages become text: <|im_start|>role … <|im_end|>, or role: ….",
    ),
    key("data.loss_on", Choice(&["answers", "all"]), Is("\"answers\""), "chat: which tokens have a loss."),
    key(
        "data.document_end",
        Count { min: 0, max: 1 << 31 },
        From("the tokenizer's end of text, if it has one"),
        "Lines of JSON: the token behind every document.",
    ),
    key(
        "data.prefetch",
        Count { min: 0, max: 1024 },
        Is("2"),
        "Micro-batches that a thread of each rank reads ahead; 0 = none.",
    ),
    key("train.seq_len", SIZE, Is("512"), "Tokens of a sequence."),
    key(
        "train.decoder_seq_len",
        SIZE,
        From("train.seq_len"),
        "Tokens of the decoder's sequence, of families t5 and custom.",
    ),
    key("train.micro_batch", SIZE, Is("1"), "Sequences per rank and micro-batch."),
    key("train.accumulation", SIZE, Is("1"), "Micro-batches per step."),
    key(
        "train.global_batch",
        SIZE,
        From("ranks × micro_batch × accumulation"),
        "Sequences per step over all ranks, instead of train.accumulation.",
    ),
    key("train.steps", SIZE, Is("10"), "Timed steps."),
    key("train.untimed_steps", NUMBER, Is("2"), "Steps before them: they train and are recorded, and are not timed."),
    key("train.seed", Seed, Is("0"), "Seed of initialisation, synthetic data and dropout."),
    key(
        "train.optimizer",
        Choice(&["adamw", "adamw-8bit", "adamw-4bit", "momentum", "muon", "sgd"]),
        Is("\"adamw\""),
        "The optimizer. Others than adamw are priced and not run: adamw with moments of 8 or 4 bits, momentum (one moment: SGD with \
         momentum, Lion), muon (one moment, of whole matrices), sgd (none).",
    ),
    key("train.lr", REAL, Is("3e-4"), "Peak learning rate."),
    key("train.betas", Betas, Is("[0.9, 0.999]"), "Decay of the first and second moment."),
    key("train.eps", REAL_POSITIVE, Is("1e-8"), "Added to the optimizer's denominator."),
    key(
        "train.weight_decay",
        REAL,
        Is("0.01"),
        "Decoupled decay of tensors of two or more dimensions, embeddings included.",
    ),
    key("train.clip_norm", REAL, Is("0.0"), "Largest global gradient norm; 0 = no clipping."),
    key(
        "train.lr_schedule",
        Choice(&["constant", "linear", "cosine"]),
        Is("\"constant\""),
        "Course of the learning rate after the warm-up.",
    ),
    key("train.lr_warmup_steps", NUMBER, Is("0"), "Steps of linear warm-up, untimed steps included."),
    key(
        "train.lr_steps",
        Choice(&["transformers", "deepspeed", "from-one"]),
        Is("\"transformers\""),
        "The step of this course that update k (1 for the first) takes its rate from. transformers, and PyTorch: k - 1, so that a \
         warm-up begins at 0 and the last update is above train.lr_min. deepspeed: k - 2, and 0 for the first two. from-one: k, \
         as in records without this key.",
    ),
    key(
        "train.delayed_update",
        Count { min: 0, max: 1 },
        Is("0"),
        "Steps by which an update lags behind its gradients, as in ZeRO-Offload; 1 hides moves of optimizer state (docs/offload.md).",
    ),
    key("train.lr_min", REAL, Is("0.0"), "Learning rate at the end of a decaying schedule; at most train.lr."),
    key(
        "train.eval_every",
        NUMBER,
        Is("0"),
        "Steps from one evaluation to the next, with one before the first step and one after the last; 0 = none (docs/trainer.md).",
    ),
    key("train.eval_batches", SIZE, Is("8"), "Micro-batches of each rank in an evaluation."),
    key(
        "train.eval_share",
        Real { min: 0.0, max: 0.5, positive: true },
        Is("0.05"),
        "Share of the source's sequences, its last, that is kept from training for evaluations.",
    ),
    key(
        "train.divergence_factor",
        REAL,
        Is("0.0"),
        "The run ends as diverged when the loss has been this many times its smallest; 0 = only when it is not finite.",
    ),
    key("train.divergence_steps", SIZE, Is("5"), "For so many steps one after the other."),
    key(
        "checkpoint.dir",
        Path,
        From("absent: no training checkpoints"),
        "Folder for training checkpoints, one folder step-00000010 each (docs/training-checkpoints.md). In a grid every trial \
         has a folder of its own in it.",
    ),
    key(
        "checkpoint.every",
        NUMBER,
        Is("0"),
        "Steps from one checkpoint to the next; 0 = after the last step and when stopped.",
    ),
    key("checkpoint.keep", NUMBER, Is("2"), "So many newest checkpoints are kept; 0 = all."),
    key(
        "checkpoint.layout",
        Choice(&["sharded", "full"]),
        Is("\"sharded\""),
        "sharded: a file for each rank with its part; full: whole tensors, the model as transformers opens it.",
    ),
    key("checkpoint.async", Bool, Is("false"), "Training goes on while a checkpoint is written."),
    key(
        "checkpoint.direct",
        Bool,
        Is("true"),
        "Write and read past the page cache (O_DIRECT), where the file system can.",
    ),
    key(
        "checkpoint.resume",
        Text,
        Is("\"auto\""),
        "auto: go on from the newest checkpoint in checkpoint.dir, if there is one; never: start anew; or the folder of a checkpoint.",
    ),
    key(
        "checkpoint.load_as",
        ShardSpecs,
        From("[\"ddp:1\"], and hsdp on as many ranks where they halve"),
        "Suite checkpoint: loads each checkpoint as these, STRATEGY:RANKS, of a hybrid STRATEGY:RANKS/SHARD.",
    ),
    key("checkpoint.repeats", Count { min: 1, max: 1000 }, Is("3"), "Suite checkpoint: measurements in one trial."),
];
