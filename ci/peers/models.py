"""The two models of the comparison, with the batch of a step: what both sides are told."""

EPS = 1e-5
MODELS = {
    "tiny": dict(hidden=128, layers=4, heads=4, kv_heads=2, ffn=352, vocab=1024, seq=64, micro_batch=1),
    "32m": dict(hidden=512, layers=8, heads=8, kv_heads=4, ffn=1376, vocab=8192, seq=512, micro_batch=4),
    "134m": dict(hidden=768, layers=12, heads=12, kv_heads=12, ffn=2048, vocab=32000, seq=512, micro_batch=2),
}


def toml(name, dtype, strategy, ranks, threads, steps, warmup, clip):
    """The same as a configuration of zbench."""
    m = MODELS[name]
    shard = 2 if strategy == "hsdp" else ranks
    lines = [
        f'name = "pace {name} {dtype} {strategy}"',
        "[model]", 'family = "llama"', f"hidden_size = {m['hidden']}", f"intermediate_size = {m['ffn']}",
        f"num_hidden_layers = {m['layers']}", f"num_attention_heads = {m['heads']}",
        f"num_key_value_heads = {m['kv_heads']}", f"vocab_size = {m['vocab']}",
        f"max_position_embeddings = {m['seq']}", f"rms_norm_eps = {EPS}",
        "[train]", f"seq_len = {m['seq']}", f"micro_batch = {m['micro_batch']}", f"steps = {steps}",
        f"untimed_steps = {warmup}", f"clip_norm = {float(clip)}", "lr = 1e-4", "seed = 1",
        "[parallel]", f"ranks = {ranks}", f'strategy = "{strategy}"',
    ]
    if strategy == "hsdp":
        lines.append(f"shard = {shard}")
    lines += ["[precision]", f'preset = "{"f32" if dtype == "f32" else "bf16-mixed"}"',
              "[hardware]", f"threads_per_rank = {threads}"]
    return "\n".join(lines) + "\n"
