//! Writes a preset with fresh weights as transformers lays a model out: a checkpoint of any size, in the memory of one of its
//! files. Nothing is trained.
//!
//!     cargo run --release -p zbench-engine --features examples --example fresh_model -- PRESET FOLDER [DTYPE [SEED [SHARD_BYTES]]]
//!
//! DTYPE is f32 (the default), bf16 or f16; a file ends before SHARD_BYTES (256 MiB). What a run of the preset with
//! train.seed = SEED (0) draws is what is written, rounded to DTYPE.

use std::error::Error;
use std::path::Path;
use zbench_engine::checkpoint::save::{SaveOptions, save_fresh};
use zbench_engine::formats::hf;
use zbench_engine::formats::hf::PartialModel;
use zbench_kernels::{Cpu, DType};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (preset, folder, rest) = match args.as_slice() {
        [preset, folder, rest @ ..] if rest.len() <= 3 => (preset, Path::new(folder), rest),
        _ => return Err("usage: fresh_model PRESET FOLDER [f32|bf16|f16 [SEED [SHARD_BYTES]]]".into()),
    };
    let dtype = match rest.first().map_or("f32", String::as_str) {
        "f32" => DType::F32,
        "bf16" => DType::Bf16,
        "f16" => DType::F16,
        other => return Err(format!("DTYPE is f32, bf16 or f16, not {other}").into()),
    };
    let seed = rest.get(1).map_or(Ok(0), |text| text.parse())?;
    let shard_bytes = rest.get(2).map_or(Ok(256 << 20), |text| text.parse())?;
    let model: PartialModel = toml::from_str(hf::preset(preset)?)?;
    let cores = std::thread::available_parallelism()?.get();
    save_fresh(&model.resolve(preset)?, seed, &Cpu::new(cores), folder, SaveOptions { dtype, shard_bytes })?;
    let bytes: u64 =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.metadata()?.len())).sum::<std::io::Result<u64>>()?;
    println!("{}: {:.2} GB", folder.display(), bytes as f64 / 1e9);
    Ok(())
}
