//! What `zbench rule` is given.

use clap::{Args, Subcommand, ValueEnum};
use std::time::Duration;
use zbench_config::units::{self, duration};

/// `zbench rule`.
#[derive(Args, Debug)]
pub struct RuleArgs {
    /// Which.
    #[command(subcommand)]
    pub rule: Rule,
}

/// The rules.
#[derive(Subcommand, Debug)]
pub enum Rule {
    /// Bits that have to enter each node in a step of ZeRO-3 in 16 bits, and the bandwidth or the time that they need
    #[command(after_help = "Examples:
  zbench rule network --parameters 176e9 --nodes 48
  zbench rule network --parameters 40B --nodes 2 --step 30s           the bandwidth that a node needs for this step
  zbench rule network --parameters 40B --nodes 2 --network 400Gb/s    the least time of a step on these cards")]
    Network(NetworkRule),
    /// Bytes of weights, gradients and optimizer of Adam in mixed precision on each rank, by stage of ZeRO
    #[command(after_help = "Examples:
  zbench rule states --parameters 7.5B --ranks 64 --stage 3
  zbench rule states --parameters 40B --stage 0 --gradients 4         18 bytes per parameter: gradients in f32
  zbench rule states --parameters 7B --ranks 8 --stage 1 --gradients 4    Megatron's distributed optimizer")]
    States(StatesRule),
    /// DeepSpeed's estimate_zero2_model_states_mem_needs: memory of a GPU and of a node's host
    #[command(after_help = "Examples:
  zbench rule zero2 --parameters 2851598336 --gpus-per-node 8
  zbench rule zero2 --parameters 2851598336 --gpus-per-node 8 --nodes 2 --offload
  zbench rule zero2 --parameters 2851598336 --gpus-per-node 8 --formula documented    as older documentation has it")]
    Zero2(Zero2Rule),
    /// DeepSpeed's estimate_zero3_model_states_mem_needs: memory of a GPU and of a node's host
    #[command(after_help = "Examples:
  zbench rule zero3 --parameters 2851598336 --largest-layer 32899072 --gpus-per-node 8
  zbench rule zero3 --parameters 2851598336 --largest-layer 32899072 --gpus-per-node 8 --offload all
  zbench rule zero3 --parameters 2851598336 --largest-layer 32899072 --gpus-per-node 8 --offload optimizer --no-zero-init")]
    Zero3(Zero3Rule),
}

/// `zbench rule network`.
#[derive(Args, Debug)]
pub struct NetworkRule {
    /// Parameters of the model, as 176e9 or 176B
    #[arg(long, value_name = "N", value_parser = parameters)]
    pub parameters: f64,
    /// Nodes that the weights are split over
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub nodes: u32,
    /// Time of a step: print the bandwidth that a node needs for it
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub step: Option<Duration>,
    /// Rate of all network cards of a node, one way, as 3200Gb/s: print the least time of a step
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub network: Option<f64>,
}

/// `zbench rule states`.
#[derive(Args, Debug)]
pub struct StatesRule {
    /// Parameters of the model, as 7e9 or 7B
    #[arg(long, value_name = "N", value_parser = parameters)]
    pub parameters: f64,
    /// Data-parallel ranks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub ranks: u32,
    /// Stage of ZeRO: 0 splits nothing, 1 the optimizer, 2 gradients too, 3 weights too
    #[arg(long, value_name = "STAGE", value_parser = clap::value_parser!(u8).range(0..=3))]
    pub stage: u8,
    /// Bytes of a gradient: 2 in 16 bits, 4 in f32
    #[arg(long, value_name = "BYTES", default_value = "2", value_parser = ["2", "4"])]
    pub gradients: String,
}

/// The GPUs of an estimate of DeepSpeed.
#[derive(Args, Debug)]
pub struct Gpus {
    /// GPUs of a node
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub gpus_per_node: u32,
    /// Nodes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub nodes: u32,
}

impl Gpus {
    /// All of them.
    pub fn all(&self) -> u64 {
        u64::from(self.gpus_per_node) * u64::from(self.nodes)
    }
}

/// `zbench rule zero2`.
#[derive(Args, Debug)]
pub struct Zero2Rule {
    /// Parameters of the model, as 2851598336 or 2.85e9
    #[arg(long, value_name = "N", value_parser = parameters)]
    pub parameters: f64,
    /// Where.
    #[command(flatten)]
    pub gpus: Gpus,
    /// The optimizer is in the host's memory
    #[arg(long)]
    pub offload: bool,
    /// The formula of DeepSpeed's code, or that of its older documentation
    #[arg(long, value_enum, value_name = "FORMULA", default_value = "current")]
    pub formula: Zero2Formula,
}

/// Which formula of ZeRO-2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Zero2Formula {
    /// The code's
    Current,
    /// 4P + 16P/N without offload
    Documented,
}

/// `zbench rule zero3`.
#[derive(Args, Debug)]
pub struct Zero3Rule {
    /// Parameters of the model, as 2851598336 or 2.85e9
    #[arg(long, value_name = "N", value_parser = parameters)]
    pub parameters: f64,
    /// Parameters of its largest layer, often the embedding: vocabulary x width
    #[arg(long, value_name = "N", value_parser = parameters)]
    pub largest_layer: f64,
    /// Where.
    #[command(flatten)]
    pub gpus: Gpus,
    /// What is in the host's memory
    #[arg(long, value_enum, value_name = "WHAT", default_value = "none")]
    pub offload: Zero3Offload,
    /// The model is made whole on the host first, without deepspeed.zero.Init
    #[arg(long)]
    pub no_zero_init: bool,
}

/// What ZeRO-3 offloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Zero3Offload {
    /// Nothing
    None,
    /// The optimizer
    Optimizer,
    /// Optimizer and parameters
    All,
}

/// A number of parameters from 1 to 10^18, written as `7e9`, `7B`, `350M` or `7_000_000_000`.
fn parameters(text: &str) -> Result<f64, String> {
    let plain = text.trim().replace('_', "");
    let factor = |letter: char| match letter.to_ascii_uppercase() {
        'K' => Some(1e3),
        'M' => Some(1e6),
        'B' => Some(1e9),
        'T' => Some(1e12),
        _ => None,
    };
    let (number, factor) = match plain.chars().last().and_then(factor) {
        Some(factor) => (&plain[..plain.len() - 1], factor),
        None => (&plain[..], 1.0),
    };
    let value = number.parse::<f64>().ok().map(|number| (number * factor).round());
    value
        .filter(|value| (1.0..=1e18).contains(value))
        .ok_or_else(|| format!("`{text}` is no number of parameters from 1 to 1e18; write it as 7e9 or 7B"))
}

/// Bytes per second, written with their unit: a number alone is rarely meant in bytes.
fn rate(text: &str) -> Result<f64, String> {
    if text.trim().parse::<f64>().is_ok() {
        return Err(format!("`{text}` needs its unit, as 400Gb/s or 50GB/s"));
    }
    let rate = units::rate(text).filter(|rate| *rate >= 1.0 && *rate <= 1e18);
    rate.ok_or_else(|| format!("`{text}` is no rate; write it with its unit, as 400Gb/s or 50GB/s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_parameters_are_read_as_people_write_them() {
        for (text, value) in [("7e9", 7e9), ("7B", 7e9), ("1.3b", 1.3e9), ("350M", 3.5e8), ("7_000", 7e3), ("2T", 2e12)]
        {
            assert_eq!(parameters(text), Ok(value), "{text}");
        }
        for text in ["", "B", "0", "-7e9", "7e19", "nan", "inf", "7GB", "7 billion", "é", "∞B", "0.2"] {
            assert!(parameters(text).is_err(), "{text}");
        }
        assert_eq!(rate("400Gb/s"), Ok(5e10));
        assert!(rate("0").is_err() && rate("400Gb").is_err());
    }
}
