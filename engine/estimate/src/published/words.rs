//! What texts say, by keywords: other spellings are to be expected.

use crate::job::{Attention, Number, Offload, Place, Precision, Recompute, Stack};

/// Whether a text holds one of some words.
pub fn any(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.contains(word))
}

/// The profile of a device, by its name in lower case and its memory in gigabytes (0 = not said).
pub fn machine(text: &str, gigabytes: f64) -> Result<&'static str, String> {
    let has = |words: &[&str]| any(text, words);
    let small = |limit: f64| gigabytes > 0.0 && gigabytes < limit;
    if text.is_empty() {
        return Err("the row names no device".into());
    }
    if has(&["tpu"]) {
        return Err(format!("no profile for `{text}`: TPUs are not among the machines"));
    }
    Ok(match () {
        () if has(&["gb300"]) => "gb300",
        () if has(&["gb200"]) => "gb200",
        () if has(&["gh200"]) => "gh200",
        () if has(&["b300"]) => "b300",
        () if has(&["b200"]) => "b200",
        () if has(&["h200"]) => "h200",
        () if has(&["h100"]) && has(&["nvl"]) && !has(&["nvlink"]) => "h100-nvl",
        () if has(&["h100"]) && has(&["pcie"]) => "h100-pcie",
        () if has(&["h100"]) && (has(&["500w", "hbm2e", "lower tdp"]) || (gigabytes > 90.0 && gigabytes < 100.0)) => {
            "h100-sxm-96gb"
        }
        () if has(&["h20"]) => "h20",
        () if has(&["h800"]) => "h800",
        () if has(&["h100"]) => "h100-sxm",
        () if has(&["a100"]) && has(&["pcie"]) && (small(60.0) || has(&["40"])) => "a100-40gb-pcie",
        () if has(&["a100"]) && has(&["pcie"]) => "a100-80gb-pcie",
        () if has(&["a100"]) && (small(60.0) || (gigabytes == 0.0 && has(&["40gb", "40 gb", "-40"]))) => "a100-40gb",
        () if has(&["a800"]) => "a800",
        () if has(&["a100", "ampere"]) && !has(&["rtx"]) => "a100-80gb",
        () if has(&["mi250"]) => "mi250x",
        () if has(&["mi325"]) => "mi325x",
        () if has(&["mi355", "mi350"]) => "mi355x",
        () if has(&["mi300"]) => "mi300x",
        () if has(&["l40"]) => "l40s",
        () if has(&["v100"]) && (small(24.0) || has(&["16gb", "16 gb"])) => "v100-16gb",
        () if has(&["v100"]) => "v100-32gb",
        () if has(&["3090"]) => "rtx3090",
        () if has(&["4090"]) => "rtx4090",
        () if has(&["titan"]) => "titan-rtx",
        () if has(&["5090"]) => "rtx5090",
        () if has(&["a6000"]) => "rtx-a6000",
        () if has(&["a40"]) => "a40",
        () if has(&["a10"]) && !has(&["a10g"]) => "a10",
        () if has(&["a5000"]) => "rtx-a5000",
        () if has(&["6000 ada", "6000-ada", "rtx 6000"]) => "rtx-6000-ada",
        () => return Err(format!("no profile for the device `{text}`")),
    })
}

/// Bytes of memory of a profile's device as published rows use them (what a program can have is a little less).
pub fn device_gigabytes(machine: &str) -> f64 {
    match machine {
        "a100-40gb" | "a100-40gb-pcie" => 40.0,
        "h100-sxm-96gb" | "h100-nvl" | "gh200" | "h20" => 96.0,
        "rtx5090" => 32.0,
        "h200" => 141.0,
        "b200" => 180.0,
        "gb200" => 186.0,
        "b300" | "gb300" | "mi355x" => 288.0,
        "mi300x" => 192.0,
        "mi325x" => 256.0,
        "mi250x" => 64.0,
        "l40s" | "rtx-6000-ada" | "rtx-a6000" | "a40" => 48.0,
        "v100-32gb" => 32.0,
        "v100-16gb" => 16.0,
        "rtx3090" | "rtx4090" | "titan-rtx" | "rtx-a5000" | "a10" => 24.0,
        _ => 80.0,
    }
}

/// The software, by the framework's text, whether it is compiled, and the sharding's text where no framework is named.
pub fn stack(framework: &str, compiled: bool, sharding: &str, device: &str) -> Stack {
    let has = |words: &[&str]| any(framework, words);
    if has(&["zbench"]) {
        return Stack::Zbench;
    }
    if has(&["megatron-deepspeed", "megatron + deepspeed", "zero3 + deepspeed", "neox"]) {
        return Stack::MegatronDeepspeed;
    }
    if has(&["megatron-core", "megatron core", "mcore", "nemo", "bridge", "megascale"]) {
        return Stack::MegatronCore;
    }
    if has(&["megatron", "megascale", "metaseq"]) {
        let hopper = ["h100", "h200", "h800", "h20", "gh200", "b100", "b200", "b300", "gb300", "mi3"];
        return if any(device, &hopper) { Stack::MegatronCore } else { Stack::MegatronLm };
    }
    if has(&["torchtitan", "fsdp2"]) || any(sharding, &["fsdp2"]) {
        return if compiled { Stack::Fsdp2Compiled } else { Stack::Fsdp2 };
    }
    if has(&["fsdp", "composer", "llm-foundry", "llm foundry", "mosaic"]) {
        return if compiled { Stack::Fsdp1Compiled } else { Stack::Fsdp1 };
    }
    if has(&["deepspeed", "zero"]) {
        return Stack::Deepspeed;
    }
    if has(&["flash-attention", "flashattention", "llm.c"]) {
        return Stack::TorchCompiled;
    }
    // Trainers of many names shard by one of two libraries, and say by which in the words for sharding.
    if any(sharding, &["fsdp"]) {
        return if compiled { Stack::Fsdp1Compiled } else { Stack::Fsdp1 };
    }
    if compiled {
        return Stack::TorchCompiled;
    }
    if any(sharding, &["zero2", "zero3", "zero-2", "zero-3", "zero++", "stage 2", "stage 3", "deepspeed"]) {
        return Stack::Deepspeed;
    }
    Stack::Torch
}

/// Types. `stack` decides what a bare `bf16` means.
pub fn precision(text: &str, notes: &str, stack: Stack, adapters: bool) -> Precision {
    let has = |words: &[&str]| any(text, words);
    let half = if has(&["fp16", "float16"]) && !has(&["bf16"]) { Number::F16 } else { Number::Bf16 };
    let eight = has(&["fp8", "float8", "f8"]);
    let products = if eight { Number::Fp8 } else { half };
    let mixed16 = Precision { weights: half, compute: half, products, ..Precision::MIXED16 };
    let single = has(&["fp32", "float32", "tf32"]) && !has(&["bf16", "fp16", "fp8", "float8", "amp"]);
    let mut precision = if single {
        let products = if has(&["tf32"]) { Number::Tf32 } else { Number::F32 };
        Precision { products, ..Precision::F32 }
    } else if has(&["everything"]) || (has(&["bf16 weights", "pure bf16"]) && !has(&["master"])) {
        Precision { master: 0.0, moments: 4.0, ..mixed16 }
    } else {
        match stack {
            // f32 main gradients and master (Megatron-Core's default for bf16; its distributed optimizer: 6 + 12/dp).
            Stack::MegatronCore | Stack::MegatronLm => Precision { gradients: 4.0, reduce: 4.0, ..mixed16 },
            // DeepSpeed's bf16 optimizer sums gradients in f32 beside those of 16 bits; what came before it did not.
            Stack::MegatronDeepspeed
                if half == Number::Bf16 && !any(notes, &["before the fp32", "before the bf16 opt"]) =>
            {
                Precision { gradients: 6.0, ..mixed16 }
            }
            Stack::MegatronDeepspeed | Stack::Deepspeed => mixed16,
            // f32 at home, 16 bits where they are gathered.
            Stack::Fsdp2 | Stack::Fsdp2Compiled => Precision { products, compute: half, ..Precision::F32 },
            Stack::Fsdp1 | Stack::Fsdp1Compiled if adapters => mixed16,
            Stack::Fsdp1 | Stack::Fsdp1Compiled => Precision { products, compute: half, reduce: 2.0, ..Precision::F32 },
            // Autocast: everything in f32, products in 16 bits.
            _ if adapters => mixed16,
            _ => Precision { products, compute: half, ..Precision::F32 },
        }
    };
    if has(&["2+2+12"]) || (stack == Stack::Torch && has(&["fp16 mixed + adam"])) {
        precision = mixed16;
    }
    if any(notes, &["8-bit adam", "ao 8-bit", "8-bit optim", "adamw8bit"]) || has(&["8-bit adam", "adamw8bit"]) {
        precision.moments = 2.0;
    } else if any(notes, &["4-bit adam", "ao 4-bit", "4-bit optim"]) {
        precision.moments = 1.0;
    }
    precision
}

/// What backward makes again.
pub fn recompute(text: &str, modules: &[String], stack: Stack, framework: &str) -> Recompute {
    let has = |words: &[&str]| any(text, words);
    if !modules.is_empty() {
        return Recompute::Modules(modules.to_vec());
    }
    if text.is_empty() && framework.contains("torchtune") {
        return Recompute::Full { every: 1, partitioned: false };
    }
    if text.is_empty() || has(&["none", "no recompute"]) || text == "no" {
        return Recompute::None;
    }
    if has(&["full", "uniform", "block", "yes", "checkpoint"]) && !has(&["selective"]) {
        // DeepSpeed's Megatron with ZeRO-3 has them on by default.
        let partitioned = has(&["partition", "(pa)"]) || framework.contains("zero3 + deepspeed");
        return Recompute::Full { every: 1, partitioned };
    }
    if has(&["every", "layer"]) {
        let digits: String =
            text.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
        return Recompute::SomeBlocks { of: digits.parse().unwrap_or(2).max(1) };
    }
    if has(&["op"]) {
        return Recompute::PerOp;
    }
    match stack {
        Stack::Fsdp2 | Stack::Fsdp2Compiled => Recompute::PerOp,
        Stack::Fsdp1 | Stack::Fsdp1Compiled => Recompute::SomeBlocks { of: 2 },
        _ => Recompute::Core,
    }
}

/// The attention kernel.
pub fn attention(text: &str, stack: Stack, framework: &str, seq: usize) -> Attention {
    let has = |words: &[&str]| any(text, words);
    if has(&["unfused", "naive", "local", "none", "eager", "standard"]) {
        return Attention::Naive;
    }
    if has(&["flash-3", "fa3", "cudnn", "te/"]) {
        return Attention::Flash(3);
    }
    if has(&["flash-2", "fa2"]) {
        return Attention::Flash(2);
    }
    if has(&["flash-1", "flash (1", "triton", "xformers", "memory-efficient"]) {
        return Attention::Flash(1);
    }
    if has(&["flash", "sdpa", "fused", "auto"]) {
        return Attention::Flash(2);
    }
    if any(framework, &["nanogpt", "litgpt", "lit-gpt", "llm.c", "torchtune"]) {
        return Attention::Flash(2);
    }
    match stack {
        Stack::MegatronCore => Attention::Flash(3),
        Stack::Fsdp1 | Stack::Fsdp1Compiled | Stack::Fsdp2 | Stack::Fsdp2Compiled => Attention::Flash(2),
        Stack::TorchCompiled | Stack::Zbench => Attention::Flash(2),
        // Nobody keeps the scores of sequences this long.
        _ if seq > 8192 => Attention::Flash(2),
        _ => Attention::Naive,
    }
}

/// What lives elsewhere. ZeRO-Offload, called `cpu` alone, offloads the optimizer (and under ZeRO-3 the weights).
pub fn offload(text: &str, stack: Stack) -> Offload {
    let has = |words: &[&str]| any(text, words);
    let mut offload = Offload::default();
    if text.is_empty() || text == "none" || text == "no" {
        return offload;
    }
    let place = if has(&["nvme", "disk", "ssd"]) { Place::Disk } else { Place::Host };
    let named = has(&["param", "optim", "activ", "weights"]);
    if has(&["optim"]) || !named {
        offload.optimizer = place;
    }
    if has(&["param", "weights"]) || !named {
        offload.parameters = place;
    }
    let fsdp = [Stack::Fsdp1, Stack::Fsdp1Compiled, Stack::Fsdp2, Stack::Fsdp2Compiled].contains(&stack);
    if offload.parameters != Place::Device && fsdp {
        // FSDP updates where its weights are.
        offload.optimizer = offload.parameters;
    }
    if has(&["activ"]) {
        offload.activations = Place::Host;
    }
    offload
}
