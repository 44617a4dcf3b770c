//! Rows as others write them: trainers, devices and models by names that the files here do not have.

use zbench_estimate::job::{Attention, Recompute, Stack};
use zbench_estimate::published::row::read;
use zbench_estimate::published::throughput::{Prepared, prepare};
use zbench_estimate::time::{Axis, SpanKind};
use zbench_estimate::tuning::Tuning;

fn row(cells: &str) -> Prepared {
    let header = "id,family,model,seq,gpu,n_gpus,n_nodes,framework,sharding,tp,pp,ep,dp,micro_batch,grad_accum,precision,compile,peft,\
                  offload,tokens_per_s_per_gpu,notes";
    let rows = read(&format!("{header}\nx,y,{cells},1000,\n")).expect("CSV");
    prepare(&rows[0]).unwrap_or_else(|why| panic!("{cells}: {why}"))
}

fn stack(cells: &str) -> Stack {
    row(cells).expressed.job.stack
}

#[test]
fn trainers_are_known_by_what_they_do() {
    assert_eq!(stack("Llama 3 8B,4096,H100 80GB,64,8,nanotron,zero1,4,2,,8,2,8,bf16,,,"), Stack::MegatronCore);
    assert_eq!(stack("Llama-2-13B,4096,A100-SXM4-80GB,64,8,Colossal-AI,,4,2,,8,2,8,bf16,,,"), Stack::MegatronLm);
    assert_eq!(stack("DeepSeek-V3,4096,H800,2048,256,HAI-LLM,zero1,1,16,64,128,1,120,fp8,,,"), Stack::MegatronCore);
    assert_eq!(stack("Mistral-7B,2048,A100,8,1,axolotl,deepspeed zero3,,,,8,2,4,bf16,,,"), Stack::Deepspeed);
    assert_eq!(stack("gemma-2-27b,2048,H200,8,1,accelerate,fsdp,,,,8,2,4,bf16,,,"), Stack::Fsdp1);
    assert_eq!(stack("OLMo-2-13B,2048,H100,8,1,OLMo-core,fsdp,,,,8,2,4,bf16,yes,,"), Stack::Fsdp1Compiled);
    assert_eq!(
        stack("GPT-NeoX-20B,2048,A100-40GB,96,12,gpt-neox,zero1,2,4,,12,4,32,fp16,,,"),
        Stack::MegatronDeepspeed
    );
    assert_eq!(stack("Llama-3-8B,2048,RTX 5090,1,1,transformers,,,,,1,1,1,bf16,,,"), Stack::Torch);
}

#[test]
fn what_a_trainer_does_unasked_is_supposed() {
    let job = row("Llama-3-8B,2048,L40S,1,1,trl,,,,,1,1,8,bf16,,qlora,").expressed.job;
    assert_eq!(job.recompute, Recompute::Full { every: 1, partitioned: false });
    assert_eq!(job.attention, Attention::Flash(2));
    let job = row("Llama-2-7B,2048,A100,1,1,transformers,,,,,1,1,8,bf16,,lora,").expressed.job;
    assert_eq!((job.recompute, job.attention), (Recompute::None, Attention::Naive));
}

#[test]
fn devices_without_rows_have_profiles() {
    for (gpu, profile) in [
        ("NVIDIA H800", "h800"),
        ("A800-SXM4-80GB", "a800"),
        ("H20-3e", "h20"),
        ("H200", "h200"),
        ("MI250X (GCD)", "mi250x"),
        ("AMD Instinct MI325X", "mi325x"),
        ("GeForce RTX 5090", "rtx5090"),
        ("RTX A6000", "rtx-a6000"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A100", "a100-80gb"),
        ("A40", "a40"),
    ] {
        let cells = format!("Llama-2-7B,2048,{gpu},8,1,transformers,zero3,,,,8,1,1,bf16,,,");
        assert_eq!(row(&cells).machine.name, profile, "{gpu}");
    }
}

#[test]
fn exchange_that_runs_beside_another_micro_batch_is_cheaper() {
    // One stage: of several, another one may end last.
    let exposed = |framework: &str| {
        let cells = format!("DeepSeek-V3,4096,H800,2048,256,{framework},zero1,1,1,64,2048,1,8,fp8,,,");
        row(&cells).time(&Tuning::DEFAULT).span(SpanKind::Exposed(Axis::Expert))
    };
    let (hidden, whole) = (exposed("HAI-LLM (DualPipe)"), exposed("Megatron-Core"));
    assert!(hidden > 0.0 && (hidden / whole - 0.15).abs() < 1e-9, "{hidden} of {whole}");
}

#[test]
fn an_update_on_the_host_is_a_core_a_rank() {
    let step = |offload: &str| {
        let cells = format!("Llama-2-7B,4096,A100,8,1,DeepSpeed,zero2,,,,8,1,8,bf16,,,{offload}");
        row(&cells).time(&Tuning::DEFAULT).span(SpanKind::Offload)
    };
    assert_eq!(step("none"), 0.0);
    // 6.74e9 parameters over 8 ranks, 32 bytes of each at 2.6 GB/s: 10.4 s, and the way there and back.
    let on_host = step("cpu optimizer");
    assert!(on_host > 10.3 && on_host < 11.5, "{on_host}");
}
