#!/usr/bin/env python3
"""What PyTorch's tensor parallelism computes: writes tests/fixtures/tensor.json, which the engine's tests compare with.

    VENV/bin/python tests/interop/torch_tensor.py     (VENV as in tests/fixtures/make.py; processes talk over Gloo on loopback)

The parallel styles are those of torchtitan: ColwiseParallel and RowwiseParallel, SequenceParallel for norms where sequence parallelism
is on, embedding and head cut along the vocabulary, and loss_parallel. The fixture `llama` runs on 2 ranks, since it has 2 heads of keys
and values; `gpt2` (biases, LayerNorm, a tied head) runs on 4. In every case the 4 sequences of a step are one micro-batch, the loss is
the mean cross-entropy of its 128 tokens, and the optimizer is the fixture's AdamW.

    parameters   by fixture and Hugging Face's name: the shape, and 16 positions in the flattened tensor (row-major, in the form that
                 it has in the fixture's model.safetensors); the gradient is not 0 there
    cases        fixture, ranks, sequence_parallel, dtype and
      losses             of 5 steps; the first one is that of the initial weights
      gradients          of the first loss, by name: L2 norm, sum, and the elements at the positions
      partial_gradients  names of the gradients that were a term of a sum over the ranks after backward (DTensor's placement Partial)
      collectives        of a block (every block has the same) and of everything else, by pass and kind: on one rank the number of calls
                         and the sum of bytes, where a call counts the bytes of the whole tensor, not of its part on a rank

A gradient within a relative error e of its norm has a norm within e, elements within e times the norm, and a sum within e times the
norm times the root of the number of elements.

PyTorch differs from Megatron in two ways. It keeps the gathered inputs of matrices for backward, where Megatron gathers them again. It
adds the bias of a row-parallel matrix before the reduce-scatter, so the gradient of the bias is complete on each rank.

Nothing is written unless every case agrees with one rank of PyTorch (1e-5 in float32, 1e-12 in float64) and one rank agrees with what
transformers computed for the fixture (1e-5). These are errors of gradients relative to their norms, and of losses relative to them.
"""

import json
import math
from fnmatch import fnmatchcase

import numpy
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from torch_pipeline import FIXTURES, on_ranks

# Fixture, ranks.
CASES = [("llama", 2), ("gpt2", 4)]
WITHIN = {"float32": 1e-5, "float64": 1e-12}
STEPS, ELEMENTS = 5, 16
KINDS = {"all_reduce": "all_reduce", "all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}
# What belongs to a collective that was counted already.
NOT_COUNTED = ["wait_tensor", "_wrap_tensor_autograd"]


class Attention(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.head_dim, self.rope_theta = s.head_dim, s.rope_theta
        self.q_proj = nn.Linear(s.hidden, s.heads * s.head_dim, s.bias)
        self.k_proj = nn.Linear(s.hidden, s.kv_heads * s.head_dim, s.bias)
        self.v_proj = nn.Linear(s.hidden, s.kv_heads * s.head_dim, s.bias)
        self.o_proj = nn.Linear(s.heads * s.head_dim, s.hidden, s.bias)

    def forward(self, x):
        # The number of heads is that of the rank.
        q, k, v = (y.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for y in (self.q_proj(x), self.k_proj(x), self.v_proj(x)))
        if self.rope_theta:
            q, k = rotated(q, self.rope_theta), rotated(k, self.rope_theta)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(-2))


def rotated(x, theta):
    """Rotary embeddings as Llama's code in transformers has them: the halves of a head are the two coordinates."""
    tokens, size = x.shape[-2:]
    angles = torch.outer(torch.arange(tokens), theta ** (-torch.arange(0, size, 2) / size)).to(x.dtype).repeat(1, 2)
    first, second = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()


class Mlp(nn.Module):
    def __init__(self, s):
        super().__init__()
        if s.gated:
            self.gate_proj = nn.Linear(s.hidden, s.intermediate, s.bias)
        self.up_proj = nn.Linear(s.hidden, s.intermediate, s.bias)
        self.down_proj = nn.Linear(s.intermediate, s.hidden, s.bias)

    def forward(self, x):
        if hasattr(self, "gate_proj"):
            return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return self.down_proj(F.gelu(self.up_proj(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.input_layernorm, self.self_attn = s.norm(), Attention(s)
        self.post_attention_layernorm, self.mlp = s.norm(), Mlp(s)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    """Llama, or GPT-2 with separate matrices for queries, keys and values. It is not transformers', whose norms are always float32."""

    def __init__(self, s):
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocab, s.hidden)
        if s.positions:
            self.embed_positions = nn.Embedding(s.positions, s.hidden)
        self.layers = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.norm = s.norm()
        self.lm_head = nn.Linear(s.hidden, s.vocab, bias=False)
        self.tied = s.tied
        self.tie()

    def tie(self):
        if self.tied:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, ids):
        x = self.embed_tokens(ids)
        if hasattr(self, "embed_positions"):
            x = x + self.embed_positions(torch.arange(ids.shape[1]).unsqueeze(0))
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


class Settings:
    """What `Model` needs of the fixture's config.json."""

    def __init__(self, fixture):
        config = json.loads((FIXTURES / fixture / "config.json").read_text())
        llama = config["model_type"] == "llama"
        names = ("hidden_size", "num_hidden_layers", "num_attention_heads") if llama else ("n_embd", "n_layer", "n_head")
        self.hidden, self.layers, self.heads = (config[name] for name in names)
        self.kv_heads = config.get("num_key_value_heads", self.heads)
        self.head_dim = self.hidden // self.heads
        self.intermediate = config.get("intermediate_size", 4 * self.hidden)
        self.vocab, self.tied = config["vocab_size"], config["tie_word_embeddings"]
        self.gated, self.bias = llama, not llama
        self.positions = None if llama else config["n_positions"]
        self.rope_theta = config["rope_parameters"]["rope_theta"] if llama else None
        if llama:
            self.norm = lambda: nn.RMSNorm(self.hidden, eps=config["rms_norm_eps"])
        else:
            self.norm = lambda: nn.LayerNorm(self.hidden, eps=config["layer_norm_epsilon"])


# GPT-2's names of modules outside blocks, and inside.
GPT2 = {"embed_tokens": "wte", "embed_positions": "wpe", "norm": "ln_f"}
GPT2_BLOCK = {
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
    "self_attn.o_proj": "attn.c_proj",
    "mlp.up_proj": "mlp.c_fc",
    "mlp.down_proj": "mlp.c_proj",
}


def to_hugging_face(fixture, tensors):
    """Tensors of `Model` under Hugging Face's names and in its form: GPT-2's matrices are transposed, and q, k, v are one tensor."""
    if fixture == "llama":
        return {name if name.startswith("lm_head") else f"model.{name}": tensor for name, tensor in tensors.items()}
    named = {}
    for name, tensor in tensors.items():
        module, kind = name.rsplit(".", 1)
        if module in GPT2:
            named[f"transformer.{GPT2[module]}.{kind}"] = tensor
        elif module.startswith("layers."):
            _, number, module = module.split(".", 2)
            block = f"transformer.h.{number}"
            if module == "self_attn.q_proj":
                parts = [tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
                named[f"{block}.attn.c_attn.{kind}"] = torch.cat(parts).t()
            elif module in GPT2_BLOCK:
                named[f"{block}.{GPT2_BLOCK[module]}.{kind}"] = tensor.t()
    return named


def load_weights(fixture, model):
    """Copies the fixture's weights into the model."""
    weights = load_file(FIXTURES / fixture / "model.safetensors")
    # Elements are numbered over all parameters, so that the mapping of the numbers says where each element comes from.
    parameters = dict(model.named_parameters())
    elements = torch.full((sum(p.numel() for p in parameters.values()),), math.nan)
    numbers, start = {}, 0
    for name, parameter in parameters.items():
        numbers[name] = torch.arange(start, start + parameter.numel()).view(parameter.shape)
        start += parameter.numel()
    for name, places in to_hugging_face(fixture, numbers).items():
        elements[places] = weights.pop(name)
    assert not weights and not elements.isnan().any()
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(elements[numbers[name]])


def parallelize(model, ranks, sequence):
    """torchtitan's plan. The residual stream is whole on each rank, or cut along the sequence."""
    mesh = init_device_mesh("cpu", (ranks,))
    stream = Shard(1) if sequence else Replicate()
    # All matrices that read a tensor share its conversion, so that its gradient is reduced once.
    whole_input = PrepareModuleInput(input_layouts=stream, desired_input_layouts=Replicate())
    plan = {
        "embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
        "embed_positions": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
        "layers.*.self_attn": whole_input,
        "layers.*.mlp": whole_input,
        "lm_head": ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1), use_local_output=False),
    }
    for matrix in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
        plan[f"layers.*.{matrix}"] = ColwiseParallel()
    for matrix in ("self_attn.o_proj", "mlp.down_proj"):
        plan[f"layers.*.{matrix}"] = RowwiseParallel(output_layouts=stream)
    if sequence:
        for module in ("layers.*.input_layernorm", "layers.*.post_attention_layernorm", "norm"):
            plan[module] = SequenceParallel(use_local_output=True)
    names = [name for name, _ in model.named_modules()]
    plan = {pattern: style for pattern, style in plan.items() if any(fnmatchcase(name, pattern) for name in names)}
    parallelize_module(model, mesh, plan)
    model.tie()


class Collectives(TorchDispatchMode):
    """Collectives by where they were called, in a block or elsewhere, by pass and by kind: calls, and bytes of the whole tensors."""

    def __init__(self, tracker):
        super().__init__()
        self.tracker, self.seen = tracker, {}

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        # DTensor's own dispatch calls the collectives, with plain tensors.
        if DTensor in types:
            return NotImplemented
        output = function(*arguments, **(named or {}))
        name = str(function).split(".")[1]
        if function.namespace == "_c10d_functional" and name not in NOT_COUNTED:
            layers = [module.split(".")[2] for module in self.tracker.parents if module.startswith("Model.layers.")]
            place = f"block {layers[0]}" if layers else "elsewhere"
            passes = self.seen.setdefault(place, {"forward": {}, "backward": {}})
            counted = passes["backward" if self.tracker.is_bw else "forward"].setdefault(KINDS[name], {"calls": 0, "bytes": 0})
            counted["calls"] += 1
            counted["bytes"] += max(t.numel() * t.element_size() for t in (arguments[0], output))
        return output


def is_partial(tensor):
    return isinstance(tensor, DTensor) and any(isinstance(placement, Partial) for placement in tensor.placements)


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def train(ranks, fixture, sequence, dtype):
    """Losses of the first steps; of step 0 the gradients, which of them are partial, and the collectives."""
    folder = FIXTURES / fixture
    reference = json.loads((folder / "reference.json").read_text())
    tokens = numpy.fromfile(folder / "tokens.bin", dtype="<u4").reshape(-1, reference["mb"], reference["seq"] + 1)
    model = Model(Settings(fixture))
    load_weights(fixture, model)
    model.to(getattr(torch, dtype))
    if ranks > 1:
        parallelize(model, ranks, sequence)
    parameters, settings = list(model.parameters()), reference["optimizer"]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": settings["weight_decay"]},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=settings["lr"], betas=tuple(settings["betas"]), eps=settings["eps"], foreach=False)
    result = {"losses": []}
    for step in range(STEPS):
        batch = torch.from_numpy(tokens[step].astype("int64"))
        optimizer.zero_grad(set_to_none=True)
        with ModuleTracker() as tracker, Collectives(tracker) as collectives, loss_parallel():
            loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()
        result["losses"].append(whole(loss).item())
        if step == 0:
            gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
            partial = {name: torch.full(gradient.shape, is_partial(gradient)) for name, gradient in gradients.items()}
            result["partial_gradients"] = [name for name, tensor in to_hugging_face(fixture, partial).items() if tensor.any()]
            result["collectives"] = collectives.seen
            gradients = to_hugging_face(fixture, {name: whole(gradient) for name, gradient in gradients.items()})
            result["gradients"] = {name: gradient.contiguous().numpy() for name, gradient in gradients.items()}
        optimizer.step()
    return result


def train_every_kind(rank, ranks, fixture):
    return {(sequence, dtype): train(ranks, fixture, sequence, dtype) for sequence in (False, True) for dtype in WITHIN}


def check(runs, reference, within, what):
    """Ends the script unless the runs have the gradients and losses of the reference."""
    errors = {}
    for rank, run in enumerate(runs):
        assert run["gradients"].keys() == reference["gradients"].keys(), what
        for step, (loss, wanted) in enumerate(zip(run["losses"], reference["losses"], strict=True)):
            errors[f"loss of step {step}, rank {rank}"] = abs(loss - wanted) / wanted
        for name, gradient in run["gradients"].items():
            wanted = numpy.float64(reference["gradients"][name])
            errors[f"gradient of {name}, rank {rank}"] = numpy.linalg.norm(gradient - wanted) / numpy.linalg.norm(wanted)
    worst = max(errors, key=errors.get)
    print(f"{what}: relative errors of at most {errors[worst]:.1e} ({worst})", flush=True)
    # Written so that NaN is not within.
    beyond = [name for name, error in errors.items() if not error <= within]
    if beyond:
        raise SystemExit(f"{what}: {beyond[0]} has an error of {errors[beyond[0]]:.1e}, more than {within:.0e}")


def positions(gradient):
    """A multiplicative hash spreads them over rows and columns. Tokens that do not occur have rows of 0, which say little."""
    nonzero = numpy.flatnonzero(gradient)
    chosen = sorted({int(nonzero[index * 2654435761 % nonzero.size]) for index in range(ELEMENTS)})
    assert len(chosen) == ELEMENTS
    return chosen


def digest(gradient, places):
    values = numpy.float64(gradient)
    # The shortest decimal form from which the type's value is read back.
    elements = [float(str(element)) for element in gradient.ravel()[places]]
    return {"norm": float(numpy.linalg.norm(values)), "sum": float(values.sum()), "elements": elements}


def of_a_block_and_elsewhere(of_ranks):
    """The collectives of one rank, which all ranks have, with those of one block, which all blocks have."""
    assert all(of_rank == of_ranks[0] for of_rank in of_ranks)
    places = dict(of_ranks[0])
    elsewhere = places.pop("elsewhere")
    block, *others = places.values()
    assert others and all(other == block for other in others)
    return {"block": block, "elsewhere": elsewhere}


def case(fixture, ranks, kind, runs, one_rank, parameters):
    sequence, dtype = kind
    what = f"{fixture} on {ranks} ranks, sequence parallelism {'on' if sequence else 'off'}, {dtype}"
    check(runs, one_rank, WITHIN[dtype], what)
    return {
        "fixture": fixture,
        "ranks": ranks,
        "sequence_parallel": sequence,
        "dtype": dtype,
        "losses": runs[0]["losses"],
        "partial_gradients": runs[0]["partial_gradients"],
        "collectives": of_a_block_and_elsewhere([run["collectives"] for run in runs]),
        "gradients": {
            name: digest(gradient, parameters[name]["positions"]) for name, gradient in runs[0]["gradients"].items()
        },
    }


def to_json(value, depth):
    """JSON with a line for each entry of the outer levels, so that a difference shows where it is."""
    if depth == 0 or not isinstance(value, dict):
        return json.dumps(value)
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {to_json(entry, depth - 1)}" for key, entry in value.items()) + "\n}"


def main():
    torch.set_num_threads(1)
    parameters, cases = {}, []
    for fixture, ranks in CASES:
        losses = json.loads((FIXTURES / fixture / "reference.json").read_text())["loss"][:STEPS]
        given = {"losses": losses, "gradients": load_file(FIXTURES / fixture / "grads0.safetensors")}
        one_rank = {dtype: train(1, fixture, False, dtype) for dtype in WITHIN}
        for dtype, run in one_rank.items():
            # In float64, too: what transformers computed in float32 is that close to the exact values.
            check([run], given, 1e-5, f"{fixture} on one rank beside transformers, {dtype}")
        parameters[fixture] = {
            name: {"shape": gradient.shape, "positions": positions(gradient)} for name, gradient in one_rank["float64"]["gradients"].items()
        }
        results = on_ranks(ranks, train_every_kind, fixture)
        for kind in results[0]:
            runs = [result[kind] for result in results]
            cases.append(case(fixture, ranks, kind, runs, one_rank[kind[1]], parameters[fixture]))
    about = "gradients: L2 norm, sum, and the elements at parameters[fixture][name].positions; see tests/interop/torch_tensor.py"
    head = to_json({"torch": torch.__version__, "about": about, "parameters": parameters}, 3).removesuffix("\n}")
    lines = ",\n".join(to_json(case, 2) for case in cases)
    (FIXTURES / "tensor.json").write_text(f'{head},\n"cases": [\n{lines}\n]\n}}\n')


if __name__ == "__main__":
    main()
