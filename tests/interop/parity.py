#!/usr/bin/env python3
"""Trains random shapes of every family with transformers and with `zbench run`, from the same weights on the same tokens.

    cargo build --release
    VENV/bin/python tests/interop/parity.py target/release/zbench [--seed N] [--rounds N] [family ...]
                                                                  (VENV as in tests/fixtures/make.py)

tests/fixtures holds a few shapes of each family; here are others, drawn from the seed: sizes, heads, windows, biases, tying,
rotary scaling, norms. 20 steps in f32, AdamW with weight decay, one rank and a strategy on two and four ranks, each with a
checkpointing policy and an attention kernel drawn too. Losses must agree within 1e-4 and gradient norms within 1e-3 in
every step. Ends with 1 if anything is off.
"""

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from transformers import AutoModelForCausalLM

STEPS, SEQUENCES, LR = 20, 4, 1e-3
LOSS, NORM = 1e-4, 1e-3
STRATEGIES = ["ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp-grad-op", "hsdp", "hsdp-full-optimizer"]
POLICIES = ['"none"', '"full"', '"selective"', '"sqrt"', "{ every = 2 }", '["attention"]', '["qkv", "gate_up"]']


def heads(r):
    """Key heads, queries for each, and an even head size."""
    kv = r.choice([1, 2, 3])
    return kv, kv * r.choice([1, 2, 3]), 2 * r.randint(2, 9)


def rotary(r):
    kind = r.choice(["default", "default", "linear", "llama3"])
    table = dict(rope_type=kind, rope_theta=r.choice([100.0, 10000.0, 500000.0]))
    if kind != "default":
        table["factor"] = r.choice([2.0, 4.0, 8.0])
    if kind == "llama3":
        table |= dict(low_freq_factor=1.0, high_freq_factor=r.choice([2.0, 4.0]), original_max_position_embeddings=16)
    return table


def gated(r, **more):
    """What the families around Llama have in common; the size of a head is apart from hidden size / heads."""
    kv, queries, size = heads(r)
    return dict(hidden_size=queries * r.randint(3, 9), intermediate_size=r.randint(10, 70), num_hidden_layers=r.randint(1, 3),
                num_attention_heads=queries, num_key_value_heads=kv, head_dim=size, vocab_size=r.randint(30, 150),
                max_position_embeddings=64, rms_norm_eps=r.choice([1e-5, 1e-6]), rope_parameters=rotary(r),
                tie_word_embeddings=r.random() < 0.5, initializer_range=0.15) | more


def windows(r):
    return dict(use_sliding_window=r.random() < 0.6, sliding_window=r.randint(1, 30), max_window_layers=r.randint(0, 2))


def whole_heads(config):
    """Qwen2 has no head size of its own."""
    config["hidden_size"] = config["num_attention_heads"] * config.pop("head_dim")
    return config


def multiple(r, small=4, step=1):
    count = r.choice([1, 2, 3, 4, 6])
    return count, count * step * r.randint(small, 12)


def gpt2(r):
    count, width = multiple(r)
    return dict(n_embd=width, n_head=count, n_layer=r.randint(1, 3), n_positions=r.randint(40, 70), vocab_size=r.randint(30, 150),
                n_inner=r.choice([None, r.randint(10, 70)]), activation_function=r.choice(["gelu", "gelu_new"]), resid_pdrop=0.0,
                embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=r.random() < 0.5, initializer_range=0.15)


def falcon(r):
    count, width = multiple(r, step=2)
    new = r.random() < 0.5
    config = dict(hidden_size=width, num_attention_heads=count, num_hidden_layers=r.randint(1, 3), vocab_size=r.randint(30, 150),
                  bias=r.random() < 0.5, tie_word_embeddings=r.random() < 0.5, initializer_range=0.15,
                  new_decoder_architecture=new, multi_query=r.random() < 0.5, parallel_attn=new or r.random() < 0.5)
    if new:
        config["num_kv_heads"] = r.choice([d for d in range(1, count + 1) if count % d == 0])
    return config


def bloom(r):
    count, width = multiple(r)
    return dict(hidden_size=width, n_head=count, n_layer=r.randint(1, 3), vocab_size=r.randint(30, 150), initializer_range=0.15,
                layer_norm_epsilon=r.choice([1e-5, 1e-6]))


def mpt(r):
    count, width = multiple(r)
    return dict(d_model=width, n_heads=count, n_layers=r.randint(1, 3), max_seq_len=70, vocab_size=r.randint(30, 150),
                initializer_range=0.15)


def experts(r, count, chosen, least=1):
    """Of one expert whose weight is divided by itself the router's gradient is rounding, which Adam divides by its own size:
    where it then sends a token differs between any two programs. So weights that are normalised are two at least."""
    total = r.randint(2, 7)
    return {count: total, chosen: r.randint(least, min(3, total))}


def qwen3_moe(r):
    normalised = r.random() < 0.5
    more = dict(moe_intermediate_size=r.randint(6, 40), norm_topk_prob=normalised, decoder_sparse_step=r.choice([1, 1, 2]),
                mlp_only_layers=r.choice([[], [0]]))
    return gated(r, **more) | experts(r, "num_experts", "num_experts_per_tok", 1 + normalised) | windows(r)


FAMILIES = {
    "llama": lambda r: ("LlamaConfig", gated(r, attention_bias=r.random() < 0.4, mlp_bias=r.random() < 0.4,
                                             pad_token_id=r.choice([None, 3]))),
    "mistral": lambda r: ("MistralConfig", gated(r, sliding_window=r.choice([None, 1, 5, 17]))),
    "qwen2": lambda r: ("Qwen2Config", whole_heads(gated(r)) | windows(r)),
    "qwen3": lambda r: ("Qwen3Config", gated(r, attention_bias=r.random() < 0.4) | windows(r)),
    "gemma": lambda r: ("GemmaConfig", gated(r, tie_word_embeddings=True)),
    "gpt2": lambda r: ("GPT2Config", gpt2(r)),
    "falcon": lambda r: ("FalconConfig", falcon(r)),
    "bloom": lambda r: ("BloomConfig", bloom(r)),
    "mpt": lambda r: ("MptConfig", mpt(r)),
    "mixtral": lambda r: ("MixtralConfig", gated(r, sliding_window=r.choice([None, 5]))
                          | experts(r, "num_local_experts", "num_experts_per_tok", 2)),
    "qwen3_moe": lambda r: ("Qwen3MoeConfig", qwen3_moe(r)),
}


def make(family, r, out):
    """A model that is nowhere zero or one, as save_pretrained writes it, and tokens."""
    name, config = FAMILIES[family](r)
    torch.manual_seed(r.randrange(2**31))
    described = getattr(transformers, name)(**config)
    fresh = AutoModelForCausalLM.from_config(described)
    with torch.no_grad():
        for p in fresh.parameters():
            if p.ndim < 2:
                p.add_(torch.randn_like(p) * 0.1)
    fresh.save_pretrained(out, max_shard_size=r.choice(["30KB", "1GB"]))
    seq = r.randint(9, 33)
    vocab = described.vocab_size
    draw = np.random.default_rng(r.randrange(2**31))
    tokens = draw.integers(vocab, size=(STEPS, SEQUENCES, seq + 1))
    for t in range(4, seq + 1):
        follows = (3 * tokens[..., t - 1] + draw.integers(4, size=tokens.shape[:2])) % vocab
        tokens[..., t] = np.where(draw.random(tokens.shape[:2]) < 0.5, tokens[..., t - 4], follows)
    tokens.astype("<u2").tofile(out / "tokens.bin")
    return config, seq, torch.from_numpy(tokens)


def train(out, tokens):
    # The grouped products that transformers prefers for experts want sizes of 16 bytes.
    more = dict(experts_implementation="eager") if (out / "config.json").read_text().count("num_experts_per_tok") else {}
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager", **more)
    parameters = list(model.parameters())
    groups = [dict(params=[p for p in parameters if p.ndim >= 2], weight_decay=0.1),
              dict(params=[p for p in parameters if p.ndim < 2], weight_decay=0.0)]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=LR, betas=(0.9, 0.95), eps=1e-8, foreach=False)
    seen = []
    for batch in tokens:
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        grads = [p.grad for p in parameters if p.grad is not None]
        seen.append((loss.item(), math.sqrt(sum(g.double().square().sum().item() for g in grads))))
        optimizer.step()
    return seen


def ours(program, out, seq, ranks, strategy, policy, attention):
    cell = f"""
name = "parity"
[model]
path = "{out}"
[data]
source = "tokens"
path = "{out}/tokens.bin"
dtype = "u16"
[train]
seq_len = {seq}
micro_batch = {SEQUENCES // ranks}
steps = {STEPS}
untimed_steps = 0
lr = {LR}
betas = [0.9, 0.95]
eps = 1e-8
weight_decay = 0.1
[parallel]
ranks = {ranks}
strategy = "{strategy}"
[memory]
checkpointing = {policy}
attention = "{attention}"
"""
    (out / "cell.toml").write_text(cell)
    words = [program, "run", out / "cell.toml", "--format", "json", "--notebook", out / "notebook"]
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if done.returncode != 0:
        return done.stderr.strip().splitlines()[-1:] or [f"exit {done.returncode}"]
    record = json.loads(done.stdout.splitlines()[0])
    return [(s["loss"], s["grad_norm"]) for s in record["steps"]]


def check(program, family, r):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        config, seq, tokens = make(family, r, out)
        theirs = train(out, tokens)
        good = True
        for ranks in [1, 2, 4]:
            strategy = "ddp" if ranks == 1 else r.choice([s for s in STRATEGIES if ranks > 2 or not s.startswith("hsdp")])
            policy, attention = r.choice(POLICIES), r.choice(["flash", "naive"])
            got = ours(program, out, seq, ranks, strategy, policy, attention)
            what = f"{family}: {ranks} x {strategy}, {policy}, {attention}"
            if len(got) != STEPS:
                print(f"{what}: {got}; {config}")
                good = False
                continue
            loss = max(abs(a[0] - b[0]) / b[0] for a, b in zip(got, theirs))
            norm = max(abs(a[1] - b[1]) / b[1] for a, b in zip(got, theirs))
            fine = loss <= LOSS and norm <= NORM
            print(f"{what}: loss {loss:.1e}, norm {norm:.1e}{'' if fine else f'  OFF  seq {seq}; {config}'}", flush=True)
            good &= fine
        return good


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("program")
    parse.add_argument("families", nargs="*", default=list(FAMILIES))
    parse.add_argument("--seed", type=int, default=1)
    parse.add_argument("--rounds", type=int, default=3)
    given = parse.parse_intermixed_args()
    torch.set_num_threads(1)
    results = {}
    for number in range(given.rounds):
        for family in given.families:
            results[family, number] = check(given.program, family, random.Random(f"{given.seed} {family} {number}"))
    bad = [key for key, good in results.items() if not good]
    print(f"{len(results) - len(bad)} of {len(results)} models agree" + (f"; off: {bad}" if bad else ""))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
