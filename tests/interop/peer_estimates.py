#!/usr/bin/env python3
"""Writes what other estimators say of the published results of tests/published to tests/interop/peer_estimates.csv.

    git clone https://github.com/NVIDIA/Megatron-LM PEERS/Megatron-LM          (check out the commits of PEERS_AT below)
    git clone https://github.com/cli99/llm-analysis PEERS/llm-analysis
    git clone https://github.com/calculon-ai/calculon PEERS/calculon
    python3 -m venv VENV && VENV/bin/pip install fire==0.7.1                   (Python 3.11 or newer; llm-analysis imports it)
    VENV/bin/pip install numpy==2.4.6 pandas==3.1.1 psutil==7.2.2              (calculon imports them)
    VENV/bin/python tests/interop/peer_estimates.py target/debug/zbench PEERS
    python3 tests/interop/peer_estimates.py target/debug/zbench                (zbench's column anew, the others as they are)

Every result of memory or speed that `zbench plan --validate` scores is a line. A peer's cell is its number in the result's
unit, or the reason why the peer cannot express the result. The table at the end compares each peer with zbench on exactly
the results that the peer can express. An error is |predicted / published - 1|.

A peer can express a result if it has an input for, or always assumes, what the result says of: the stack and its kind of
attention, MLP and experts; each parallel axis, what is sharded, the pipeline's schedule; recomputation, offload, adapters;
the types of weights and products; the optimizer. Smaller things are the peer's own approximation and count as its error:
biases, norms, positions, tied matrices, dropout, the loss, the program that ran, the allocator, the device's context, what
overlaps. Results whose micro-batch or interleaving the source does not state are left out, as no peer searches. All peers
state one peak; it is compared with whichever of allocated, reserved or device memory was published, and their weights,
gradients and optimizer state with what was allocated between steps.

Megatron-LM: `report_theoretical_memory` itself, with an `args` of the row's sizes and degrees. Only runs of Megatron-LM or
Megatron Core. It assumes 18 bytes a parameter (6 + 12 / data ranks with the distributed optimizer). Its activations know
neither attention's scores nor experts, and Megatron prints the report all the same: MEGATRON_IGNORES names these rows.

llm-analysis: `LLMAnalysis.training`. Its own figures of a device where it has it (LLM_ANALYSIS_GPUS); others, and the
network where a row changes it, are the ratings of configs/machines (inter-node bandwidth is that of a node, as in its own
files). Weights, activations and embedding of 16 bits; master_weights_dtype_bytes are the gradients' bytes and
other_op_bytes the rest, so that all state has the row's bytes. ddp is rdp_size, zero1 to zero3 (fsdp = 3, fsdp-grad-op = 2)
are ds_zero over dp_size, hsdp is both; for speeds all but stage 3 are rdp_size, since its time gathers each layer over
dp_size whatever ds_zero is. memory.checkpointing "full" is FULL, memory.recompute "core" is ATTN_COMPUTE;
memory.attention is flash_attn, model.dropout is softmax_dropout. Column llm_analysis has its default efficiencies, which are
1; llm_analysis_assumed has those that its README names for whoever must assume some: 0.5 of FLOP/s, 0.9 of the memory.
Tokens are the global batch's over latency_per_iter and ranks.

calculon: `Llm.compile` and `run`. Its systems a100_80g and h100_80g_nvl8 with their efficiencies; other devices are
a100_80g with the ratings of configs/machines (vector unit: twice the peak in f32, as V100 has in f16; network: a
device's share of a node's). 16 bits are its float16. zero1 is optimizer_sharding; sequence parallelism is "rs_ag" with
seq_par_ag_redo, else "ar"; memory.recompute "core" is "attn_only". Nothing overlaps. Groups are inside a node, tensor
ranks first, then data, then stages, as far as they fit. Its blocks keep attention's scores. It has no embedding and no head,
so models are left out whose embedding has more than a tenth of the blocks' parameters. The memory's size is lifted, so that
it answers for every row.
"""

import contextlib
import csv
import dataclasses
import importlib.util
import io
import json
import logging
import re
import subprocess
import sys
import tomllib
import types
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
OUT = Path(__file__).with_suffix(".csv")
PEERS_AT = {
    "Megatron-LM": "d98e8a64ddf34856e74b24714e3bedb2f5a39553",
    "llm-analysis": "d841e40aec8c84b9e76ba9cfbce67418adb172bd",
    "calculon": "caa4b11f8fe1fee3ba57adaacb7590d7deabd053",
}
COLUMNS = ["id", "family", "quantity", "unit", "published", "zbench"]
KINDS = ["memory, peak", "memory, between steps", "speed"]
# What each peer answers; other cells are empty.
PEERS = {"megatron": KINDS[:2], "llm_analysis": KINDS, "llm_analysis_assumed": KINDS[2:], "calculon": KINDS}
BYTES = {"B": 1, "MB": 1e6, "GB": 1e9, "MiB": 2**20, "GiB": 2**30}
WIDTH = {"f32": 4, "bf16": 2, "f16": 2, "none": 0}
ZERO = {"ddp": 0, "zero1": 1, "zero2": 2, "fsdp-grad-op": 2, "zero3": 3, "fsdp": 3, "hsdp": 3}
LLM_ANALYSIS_GPUS = {"a100-80gb": "a100-sxm-80gb", "a100-40gb": "a100-sxm-40gb", "h100-sxm": "h100-sxm-80gb",
                     "v100-32gb": "v100-sxm-32gb", "v100-16gb": "v100-sxm-16gb"}
ASSUMED = {"flops_efficiency": 0.5, "hbm_memory_efficiency": 0.9}
CALCULON_SYSTEMS = {"a100-80gb": "a100_80g", "h100-sxm": "h100_80g_nvl8"}
MEGATRON_IGNORES = {
    "keeps attention's scores": lambda row: row.get("memory.attention") == "naive" and row.recompute != "core",
    "has experts": lambda row: "model.num_experts" in row,
}


class Refused(Exception):
    """A peer cannot express a result."""


def flat(table, prefix=""):
    values = {}
    for key, value in table.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return values


class Row(dict):
    """The keys of one published result, as docs/configuration.md describes them."""

    def __init__(self, keys):
        super().__init__(keys)
        self.is_memory = self["published.quantity"] == "memory"
        self.is_state = self.get("published.size") == "after_step"
        self.kind = KINDS[1 if self.is_state else 0] if self.is_memory else KINDS[2]
        degree = lambda axis: self.get(f"parallel.{axis}", 1)
        self.ranks, self.tensor, self.stages, self.context = map(degree, ["ranks", "tensor", "pipeline", "context"])
        self.sequence, self.chunks = degree("sequence"), degree("virtual_stages")
        self.data = self.ranks // (self.tensor * self.stages * self.context)
        self.strategy = self.get("parallel.strategy", "ddp")
        self.micro, self.accumulation = self["train.micro_batch"], self.get("train.accumulation", 1)
        self.batch, self.tokens = self.micro * self.accumulation * self.data, self["train.seq_len"]
        self.gated = self.get("model.mlp", "gated") == "gated"
        named = next((self[key] for key in self if key.startswith("memory.recompute")), None)
        self.recompute = named or self.get("memory.checkpointing", "none")

    def refuse(self, reasons):
        for reason, holds in reasons.items():
            if holds:
                raise Refused(reason)

    def refuse_what_no_peer_knows(self):
        unknown = " and ".join(self.get("published.unknown", []))
        self.refuse({
            f"the source does not state {unknown}": unknown,
            "FLOP/s by a convention": self["published.quantity"] in ["tflops_per_gpu", "mfu_pct"],
            "adapters": "lora.rank" in self,
            "an encoder and a decoder": "model.num_decoder_layers" in self,
            "products in fp8": "precision.products" in self,
            "products in f32": self["precision.compute"] == "f32",
            "an optimizer other than Adam": "train.optimizer" in self,
            "offload": any(key.startswith("memory.offload") for key in self),
            "blocks dealt out by hand": "parallel.pipeline_split" in self,
            "optimizer state over other ranks": "parallel.optimizer_shard" in self,
            "the last stage's peak": self.is_memory and not self.is_state and self.stages > 1
            and self.get("published.stage") == "last",
        })

    def speed(self, seconds):
        return seconds if self["published.quantity"] == "step_time_s" else self.batch * self.tokens / seconds / self.ranks


def amount(value):
    """A rating of a profile in bytes, FLOPs and seconds."""
    value = value["value"] if isinstance(value, dict) else value
    if not isinstance(value, str):
        return value
    number, scale, unit = re.fullmatch(r"([\d.]+)([TGu]?)(FLOP/s|B/s|b/s|s|)", value).groups()
    return float(number) * {"T": 1e12, "G": 1e9, "u": 1e-6, "": 1}[scale] / (8 if unit == "b/s" else 1)


class Machine:
    """Ratings of a row's machine: its profile with the row's changes."""

    def __init__(self, row):
        self.name = row["hardware.profile"]
        profile = tomllib.loads((ROOT / f"configs/machines/{self.name}.toml").read_text())
        changes = dict(change.split("=") for change in row.get("hardware.changes", []))
        at = lambda *path: amount(changes.get(".".join(path)) or self.within(profile, path))
        self.peak, self.single = at("compute", "f16", "peak"), at("compute", "f32", "peak")
        self.link, self.latency = at("node", "link", "bandwidth"), at("node", "link", "latency")
        self.memory, self.host = at("hbm", "bandwidth"), at("node", "host_link", "bandwidth")
        self.devices = int(at("node", "devices"))
        self.network = int(at("network", "nics")) * at("network", "rate") if "network" in profile else None
        self.has_own_network = any(key in changes for key in ["network.nics", "network.rate"])

    def within(self, table, path):
        for key in path:
            table = table[key]
        return table


class Megatron:
    def __init__(self, peers):
        stub = types.ModuleType("megatron_report.utils")
        stub.is_hybrid_model, stub.print_rank_0 = lambda args: False, lambda text: None
        sys.modules |= {"megatron_report": types.ModuleType("megatron_report"), stub.__name__: stub}
        path = peers / "Megatron-LM/megatron/training/theoretical_memory_usage.py"
        spec = importlib.util.spec_from_file_location("megatron_report.theory", path)
        self.theory = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.theory)

    def estimate(self, row):
        """Bytes."""
        types_of = [WIDTH[row[f"precision.{of}"]] for of in ["parameters", "gradients", "master", "optimizer"]]
        row.refuse({
            "not a run of Megatron-LM": row["hardware.software"] not in ["megatron-lm", "megatron-core"],
            f"strategy {row.strategy}": row.strategy not in ["ddp", "zero1"],
            "state of other types": types_of != [2, 4, 4, 4],
            "context parallelism": row.context > 1 and not (row.is_state and row.strategy == "ddp"),
            "recomputation other than of attention": not row.is_state and row.recompute not in ["none", "core"],
        })
        experts, first = row.get("model.num_experts"), row.get("model.first_k_dense_replace", 0)
        layers, heads = row["model.num_hidden_layers"], row["model.num_attention_heads"]
        latent = "model.kv_lora_rank" in row
        args = types.SimpleNamespace(
            hidden_size=row["model.hidden_size"], ffn_hidden_size=row["model.intermediate_size"], num_layers=layers,
            num_attention_heads=heads, kv_channels=row["model.head_dim"], num_query_groups=row["model.num_key_value_heads"],
            group_query_attention=not latent and row["model.num_key_value_heads"] != heads, swiglu=row.gated,
            normalization="RMSNorm" if row.get("model.norm", "rms") == "rms" else "LayerNorm",
            padded_vocab_size=row["model.vocab_size"],
            untie_embeddings_and_output_weights=not row["model.tie_word_embeddings"],
            add_bias_linear=row.get("model.bias", False),
            multi_latent_attention=latent, q_lora_rank=row.get("model.q_lora_rank"), kv_lora_rank=row.get("model.kv_lora_rank"),
            qk_head_dim=row.get("model.qk_nope_head_dim"), qk_pos_emb_head_dim=row.get("model.qk_rope_head_dim"),
            v_head_dim=row.get("model.v_head_dim"), num_experts=experts, moe_router_topk=row.get("model.num_experts_per_tok"),
            moe_ffn_hidden_size=row.get("model.moe_intermediate_size"), moe_layer_freq=[0] * first + [1] * (layers - first),
            moe_shared_expert_intermediate_size=row.get("model.shared_expert_intermediate_size"), moe_latent_size=None,
            mtp_num_layers=row.get("model.num_nextn_predict_layers"), seq_length=row.tokens, micro_batch_size=row.micro,
            tensor_model_parallel_size=row.tensor, pipeline_model_parallel_size=row.stages, data_parallel_size=row.data,
            virtual_pipeline_model_parallel_size=row.chunks if row.chunks > 1 else None, world_size=row.ranks,
            expert_model_parallel_size=row.get("parallel.expert", 1), sequence_parallel=row.sequence > 1,
            expert_tensor_parallel_size=row.get("parallel.expert_tensor", 1), use_distributed_optimizer=row.strategy == "zero1",
            recompute_granularity="selective" if row.recompute == "core" else None)
        with contextlib.redirect_stdout(io.StringIO()):
            state, _, total = self.theory.report_theoretical_memory(args, num_microbatches=row.accumulation)
        return (state if row.is_state else total) * 2**20


class LlmAnalysis:
    def __init__(self, peers):
        sys.path.insert(0, str(peers / "llm-analysis"))
        from llm_analysis import analysis, config
        analysis.logger.setLevel(logging.CRITICAL)
        self.analysis, self.config = analysis, config

    def gpu(self, machine):
        own = self.config.gpu_configs.get(LLM_ANALYSIS_GPUS.get(machine.name))
        gpu = own or self.config.GPUConfig(
            machine.name, mem_per_GPU_in_GB=80, hbm_bandwidth_in_GB_per_sec=machine.memory / 1e9,
            intra_node_bandwidth_in_GB_per_sec=machine.link / 1e9, intra_node_min_message_latency=machine.latency,
            peak_fp16_TFLOPS=machine.peak / 1e12)
        if machine.network and (machine.has_own_network or not own):
            gpu = dataclasses.replace(gpu, inter_node_bandwidth_in_GB_per_sec=machine.network / 1e9)
        return gpu

    def estimate(self, row, **efficiencies):
        """Bytes or seconds a step."""
        machine = Machine(row)
        recomputation = {"none": "NONE", "core": "ATTN_COMPUTE", "full": "FULL"}
        heads, width, experts = row["model.num_attention_heads"], row["model.hidden_size"], row.get("model.num_experts", 1)
        row.refuse({
            f"strategy {row.strategy}": row.strategy not in ZERO,
            "context parallelism": row.context > 1,
            "latent attention": "model.kv_lora_rank" in row,
            "heads that are not the width": heads * row["model.head_dim"] != width,
            "blocks without experts or a shared expert": any(f"model.{key}" in row for key in
                                                             ["first_k_dense_replace", "shared_expert_intermediate_size"]),
            "experts split as the tensor ranks are not": experts > 1 and row.get("parallel.expert_tensor", 1) != row.tensor,
            "multi-token prediction": "model.num_nextn_predict_layers" in row,
            "interleaved stages": row.chunks > 1 and not row.is_state,
            "recomputation by operation, module or block": str(row.recompute) not in recomputation and not row.is_state,
            "asynchronous tensor parallelism": "parallel.tensor_overlap" in row,
            "tensor ranks over several nodes": row.tensor > machine.devices,
        })
        config, analysis = self.config, self.analysis
        stage = ZERO[row.strategy]
        is_split = stage == 3 or stage > 0 and row.is_memory
        shard = row.get("parallel.shard", row.data) if is_split else 1
        model = config.ModelConfig(
            name="row", num_layers=row["model.num_hidden_layers"], n_head=heads, hidden_dim=width, max_seq_len=row.tokens,
            vocab_size=row["model.vocab_size"], num_key_value_heads=row["model.num_key_value_heads"],
            ffn_embed_dim=row.get("model.moe_intermediate_size", row["model.intermediate_size"]), moe_num_experts=experts,
            moe_top_k=row.get("model.num_experts_per_tok", 1), mlp_gated_linear_units=row.gated)
        degrees = config.ParallelismConfig(tp_size=row.tensor, pp_size=row.stages, dp_size=shard, rdp_size=row.data // shard,
                                           ep_size=row.get("parallel.expert", 1), sp_size=row.sequence)
        gradients = WIDTH[row["precision.gradients"]] + 4 * row.get("precision.main_gradients", False)
        weights = WIDTH[row["precision.parameters"]] + WIDTH[row["precision.master"]] - 2
        said = analysis.LLMAnalysis(model, self.gpu(machine), config.DtypeConfig(), degrees, **efficiencies).training(
            batch_size_per_gpu=row.micro, gradient_accumulation_steps=row.accumulation, seq_len=row.tokens,
            activation_recomputation=analysis.ActivationRecomputation[recomputation.get(str(row.recompute), "NONE")],
            ds_zero=analysis.DSZeRO(stage if is_split else 0), master_weights_dtype_bytes=gradients,
            other_op_bytes=weights + 2 * WIDTH[row["precision.optimizer"]] - gradients,
            flash_attn=row.get("memory.attention") != "naive", softmax_dropout=row.get("model.dropout", 0) > 0)
        if not row.is_memory:
            return said["latency_per_iter"]
        return said["(weight+op_state+grad)_memory_per_gpu" if row.is_state else "estimated_peak_memory_per_gpu"]


class Calculon:
    def __init__(self, peers):
        sys.path.insert(0, str(peers / "calculon"))
        import calculon
        self.calculon, self.folder = calculon, peers / "calculon/systems"
        self.log = logging.getLogger("calculon")
        self.log.setLevel(logging.CRITICAL)

    def system(self, machine):
        own = CALCULON_SYSTEMS.get(machine.name)
        system = json.loads((self.folder / f"{own or 'a100_80g'}.json").read_text())
        inside, between = system["networks"]
        system["mem1"]["GiB"], inside["size"] = 1e9, machine.devices
        if not own:
            system["matrix"]["float16"]["tflops"] = machine.peak / 1e12
            system["vector"]["float16"]["tflops"] = 2 * machine.single / 1e12
            system["mem1"]["GBps"], system["mem2"]["GBps"] = machine.memory / 1e9, machine.host / 1e9
            inside["bandwidth"] = machine.link / 1e9
        if machine.network and (machine.has_own_network or not own):
            between["bandwidth"] = machine.network / machine.devices / 1e9
        return self.calculon.System(system)

    def estimate(self, row):
        """Bytes or seconds a step."""
        heads, keys, width = row["model.num_attention_heads"], row["model.num_key_value_heads"], row["model.hidden_size"]
        blocks = row["model.num_hidden_layers"] * width * (4 * width + 2 * row["model.intermediate_size"])
        recomputation = {"none": "none", "core": "attn_only", "full": "full"}
        row.refuse({
            f"strategy {row.strategy}": row.strategy not in ["ddp", "zero1"],
            "context parallelism": row.context > 1,
            "experts": "model.num_experts" in row,
            "latent attention": "model.kv_lora_rank" in row,
            "grouped keys and values": keys not in [1, heads],
            "a gated MLP": row.gated,
            "an embedding above a tenth of the blocks": 10 * row["model.vocab_size"] * width > blocks,
            "attention by tiles": row.get("memory.attention") != "naive" and not row.is_state,
            "recomputation by operation, module or block": str(row.recompute) not in recomputation and not row.is_state,
        })
        machine, llm = Machine(row), self.calculon.llm.Llm
        app = llm.Application({
            "hidden": width, "feedforward": row["model.intermediate_size"], "seq_size": row.tokens,
            "attn_heads": heads, "attn_size": row["model.head_dim"], "num_blocks": row["model.num_hidden_layers"]})
        is_outside = lambda ranks: int(ranks > machine.devices)
        recompute = recomputation.get(str(row.recompute), "none")
        run = llm.Execution.from_json({
            "num_procs": row.ranks, "tensor_par": row.tensor, "pipeline_par": row.stages, "data_par": row.data,
            "tensor_par_net": is_outside(row.tensor), "data_par_net": is_outside(row.tensor * row.data),
            "pipeline_par_net": is_outside(row.ranks), "batch_size": row.batch, "microbatch_size": row.micro,
            "datatype": "float16", "fused_activation": False, "attention_type": "multihead" if keys == heads else "multiquery",
            "activation_recompute": recompute, "pipeline_interleaving": row.chunks,
            "optimizer_sharding": row.strategy == "zero1" and row.data > 1,
            "tensor_par_comm_type": "rs_ag" if row.sequence > 1 else "ar", "tensor_par_overlap": "none",
            "seq_par_ag_redo": row.sequence > 1 and recompute != "full", "data_par_overlap": False,
            "weight_offload": False, "activations_offload": False, "optimizer_offload": False, "training": True})
        model, system = llm(app, self.log), self.system(machine)
        model.compile(system, run)
        model.run(system)
        said = model.get_stats_json(False)
        if not row.is_memory:
            return said["total_time"]
        state = ["weight_space", "weight_grad_space", "optimizer_space"]
        return sum(said[part] for part in state) if row.is_state else said["proc_mem_tier1_cap_req"]


def ask(row, kinds, estimate):
    """The peer's number in the row's unit, or why it has none."""
    if row.kind not in kinds:
        return ""
    try:
        row.refuse_what_no_peer_knows()
        said = estimate(row)
    except Refused as reason:
        return str(reason)
    except Exception as error:  # An assertion or an error of the peer's own.
        return f"refused by itself: {str(error) or type(error).__name__}".replace(",", ";").replace("\n", " ")
    return f"{said / BYTES[row.get('published.unit', 'GB')] if row.is_memory else row.speed(said):.6g}"


def published():
    for file in sorted((ROOT / "tests/published").glob("*.toml")):
        top = tomllib.loads(file.read_text())
        cells = top.pop("grid")["include"]
        for keys in (flat(top) | flat(cell) for cell in cells):
            if keys.get("suite") != "collectives":
                yield keys["published.id"], Row(keys)


def number(text):
    try:
        return float(text)
    except ValueError:
        return None


def quantile(values, share):
    values, place = sorted(values), share * (len(values) - 1)
    low = int(place)
    return values[low] + (values[min(low + 1, len(values) - 1)] - values[low]) * (place - low)


def line(name, lines, peer):
    errors = [[abs(number(one[of]) / number(one["published"]) - 1) for one in lines] for of in [peer, "zbench"]]
    figures = [f"{100 * quantile(error, share):7.1f} %" for error in errors for share in [0.5, 0.9]]
    print(f"  {name:44}{len(lines):5}  {figures[0]} {figures[1]}  {figures[2]} {figures[3]}")


def table(lines, rows):
    print(f"{'':46}{'rows':>5}  {'peer: median':>9}     p90  zbench: median   p90")
    for peer in PEERS:
        print(peer)
        for kind in PEERS[peer]:
            here = [one for one in lines if rows[one["id"]].kind == kind]
            said = [one for one in here if number(one[peer]) is not None]
            if said:
                line(kind, said, peer)
                families = sorted({one["family"] for one in said})
                for family in families if len(families) > 1 else []:
                    line(f"    {family}", [one for one in said if one["family"] == family], peer)
                if peer == "megatron" and kind == KINDS[0]:
                    ignored = lambda one: any(holds(rows[one["id"]]) for holds in MEGATRON_IGNORES.values())
                    line("    of which the report reads all", [one for one in said if not ignored(one)], peer)
            reasons = Counter(one[peer] for one in here if number(one[peer]) is None)
            if said and reasons:
                print(f"  {kind}: {sum(reasons.values())} of {len(here)} not expressible:")
                for reason, count in reasons.most_common():
                    print(f"{count:10} {reason}")


def main(zbench, peers=None):
    validated = subprocess.check_output([zbench, "plan", "--validate", ROOT / "tests/published", "--format", "json"], text=True)
    rows = dict(published())
    scored = [row for row in map(json.loads, validated.splitlines()) if row["scored"] and row["id"] in rows]
    if peers:
        folder = Path(peers)
        for name, commit in PEERS_AT.items():
            at = subprocess.check_output(["git", "-C", folder / name, "rev-parse", "HEAD"], text=True).strip()
            assert at == commit, f"{folder / name} is at {at}; check out {commit}"
        analysis = LlmAnalysis(folder).estimate
        estimates = {"megatron": Megatron(folder).estimate, "llm_analysis": analysis, "calculon": Calculon(folder).estimate,
                     "llm_analysis_assumed": lambda row: analysis(row, **ASSUMED)}
        said = {row["id"]: {peer: ask(rows[row["id"]], kinds, estimates[peer]) for peer, kinds in PEERS.items()}
                for row in scored}
    else:
        with OUT.open() as file:
            said = {one["id"]: one for one in csv.DictReader(text for text in file if not text.startswith("#"))}
        new = [row["id"] for row in scored if row["id"] not in said]
        assert not new, f"{OUT.name} has no line of {', '.join(new)}; give PEERS, too"
    lines = [{"id": row["id"], "family": row["family"], "quantity": row["quantity"], "unit": row["unit"],
              "published": f"{row['published']:.9g}", "zbench": f"{row['predicted']:.9g}"}
             | {peer: said[row["id"]][peer] for peer in PEERS} for row in scored]
    with OUT.open("w", newline="") as file:
        for name, commit in PEERS_AT.items():
            file.write(f"# {name} at {commit}\n")
        file.write("# tests/interop/peer_estimates.py wrote this and says what each peer was told\n")
        writer = csv.DictWriter(file, [*COLUMNS, *PEERS], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    table(lines, rows)


main(*sys.argv[1:])
