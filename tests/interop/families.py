#!/usr/bin/env python3
"""Opens with transformers what zbench writes, for every family of tests/fixtures.

    cargo build -p zbench-engine --features examples --example export
    VENV/bin/python tests/interop/families.py target/debug/examples/export     (VENV as in tests/fixtures/make.py)

For each fixture zbench reads the model, writes it in one file and in several, and transformers must give the logits of the
original; then zbench trains three steps on two ranks under ZeRO-3, writes, and transformers' loss on the fourth step's
tokens must be zbench's own. Largest logit difference 1e-5, relative loss difference 1e-5. Ends with 1 if anything is off.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForCausalLM

FIXTURES = Path(__file__).parent.parent / "fixtures"
NAMES = ["llama", "llama3-rope", "linear-rope", "gpt2", "qwen2", "qwen2-window", "mistral", "mistral-one", "qwen3", "gemma",
         "gemma-pad", "gpt2-exact", "falcon", "falcon-new", "falcon-bias", "bloom", "mpt", "mixtral", "mixtral-one",
         "qwen3-moe", "qwen3-moe-step", "qwen3-moe-one"]
LOGITS = LOSS = 1e-5
STEPS = 3


def load(folder):
    # torch's grouped product wants rows of whole 16 bytes; the plain loop over experts takes any.
    more = dict(experts_implementation="eager") if hasattr(AutoConfig.from_pretrained(folder), "num_experts_per_tok") else {}
    model, seen = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                       output_loading_info=True, **more)
    odd = {key: value for key, value in seen.items() if value}
    assert not odd, f"{folder}: {odd}"
    return model.eval()


def tokens_of(folder):
    given = "train" not in json.loads((folder / "reference.json").read_text())
    seq = 32 if given else json.loads((folder / "reference.json").read_text())["train"]["seq_len"]
    kind = "u32" if given else "u16"
    tokens = np.fromfile(folder / "tokens.bin", dtype="<u4" if given else "<u2").astype(np.int64)
    return kind, seq, torch.from_numpy(tokens.reshape(-1, 4, seq + 1))


def export(program, folder, steps, out, shard_bytes):
    kind, seq, _ = tokens_of(folder)
    words = [program, folder, folder / "tokens.bin", kind, seq, steps, out, shard_bytes]
    return float(subprocess.run([str(w) for w in words], check=True, capture_output=True, text=True).stdout)


def check(program, name):
    folder = FIXTURES / name
    tokens = tokens_of(folder)[2]
    with tempfile.TemporaryDirectory() as out, torch.no_grad():
        original = load(folder)(input_ids=tokens[0][:, :-1]).logits
        off = []
        for shard_bytes in [10**9, 10**4]:
            place = Path(out) / str(shard_bytes)
            export(program, folder, 0, place, shard_bytes)
            assert (place / "model.safetensors.index.json").exists() == (shard_bytes < 10**9)
            off.append((load(place)(input_ids=tokens[0][:, :-1]).logits - original).abs().max().item())
        place = Path(out) / "trained"
        ours = export(program, folder, STEPS, place, 10**9)
        logits = load(place)(input_ids=tokens[STEPS][:, :-1]).logits
        theirs = F.cross_entropy(logits.flatten(0, 1), tokens[STEPS][:, 1:].flatten()).item()
    relative = abs(ours - theirs) / theirs
    good = max(off) <= LOGITS and relative <= LOSS
    print(f"| {name} | {off[0]:.1e} | {off[1]:.1e} | {relative:.1e} | {'yes' if good else 'NO'} |")
    return good


def main():
    torch.set_num_threads(1)
    print("| fixture | logits, one file | logits, several files | loss after 3 steps | within |\n| --- | --- | --- | --- | --- |")
    results = [check(sys.argv[1], name) for name in sys.argv[2:] or NAMES]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
