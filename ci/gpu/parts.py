"""The parts of ci/gpu-check in their order: what is known least and matters most comes first."""

import dataclasses
import glob
import importlib.util
import os
import shlex
import shutil
import sys
import typing


@dataclasses.dataclass
class Places:
    """Where things are on this machine."""

    pack: str
    state: str
    root: str
    python: str
    gpus: int

    def zbench(self, words):
        return [f"{self.pack}/zbench", *shlex.split(words), "--notebook", f"{self.state}/notebook"]


@dataclasses.dataclass
class Part:
    name: str
    seconds: float
    # Of `Places`: the commands, one after the other until one fails.
    commands: typing.Callable
    # Of `Places`: why it cannot run here, or None.
    missing: typing.Callable = lambda places: None
    environment: dict = dataclasses.field(default_factory=dict)
    # Runs while the parts after it do, until something is measured.
    is_beside: bool = False
    stage: str = ""


@dataclasses.dataclass
class Stage:
    name: str
    # None: until the end of the call.
    seconds: typing.Optional[float]
    parts: list
    # Whether anything that runs beside has to end first.
    measures: bool = True


def zbench(name, seconds, *lines):
    """Commands of zbench, whose records go into the notebook of the run."""
    return Part(name, seconds, lambda places: [places.zbench(line.format(state=places.state)) for line in lines])


def test(name, seconds, program, *arguments, threads=4, nocapture=False):
    """A test program on the GPU, in a few threads: they share it."""
    words = [*arguments, *(["--nocapture"] if nocapture else [])]
    variables = {"ZBENCH_TEST_GPU": "1", "RUST_TEST_THREADS": str(threads)}
    return Part(name, seconds, lambda places: [[f"{places.pack}/{program}", *words]], environment=variables)


def without_torch(_):
    return None if importlib.util.find_spec("torch") else "PyTorch is not installed: nothing to compare with"


def without_compiler(places):
    return None if shutil.which("c++") else "there is no C++ compiler: the imitated libraries cannot be made"


def sanitizer():
    """compute-sanitizer, which toolkits put beside the PATH."""
    if found := shutil.which("compute-sanitizer"):
        return found
    folders = ["/usr/local/cuda*/bin", "/usr/local/cuda*/compute-sanitizer", "/opt/nvidia/*", "/opt/nvidia/*/*"]
    folders += [f"{folder}/nvidia/*/bin" for folder in sys.path if folder]
    for folder in folders:
        for path in sorted(glob.glob(f"{folder}/compute-sanitizer")):
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return path
    return None


def sanitized(name, seconds, tool, command):
    """Under a tool of compute-sanitizer. Records of it would be of its own slowness: they go into a notebook apart."""

    def commands(places):
        found = sanitizer() or "compute-sanitizer"
        return [[found, "--tool", tool, "--target-processes", "all", "--error-exitcode", "99", *command(places)]]

    def missing(places):
        return None if sanitizer() else "compute-sanitizer is not installed"

    variables = {"ZBENCH_TEST_GPU": "1", "RUST_TEST_THREADS": "1"}
    return Part(name, seconds, commands, missing, variables)


def small_flash(places):
    line = "attention --device cuda --dtype bf16 --heads 2 --kv-heads 1 --head-dim 64 --seq-len 160 --kernel flash --pass both"
    words = shlex.split(f"{line} --iters 1 --seconds 0 --warmup 0 --fresh")
    return [f"{places.pack}/zbench", *words, "--notebook", f"{places.state}/sanitized"]


def yardstick(name, seconds, *arguments, is_beside=False):
    def commands(places):
        return [[places.python, f"{places.root}/ci/gpu/yardstick.py", "--out", f"{places.state}/yardstick.json", *arguments]]

    return Part(name, seconds, commands, without_torch, is_beside=is_beside)


def environment(places):
    # Not every machine has PyTorch, a toolkit or a sanitizer; the log says so.
    torch = "import torch; print('torch', torch.__version__, 'cuda', torch.version.cuda, 'cudnn', torch.backends.cudnn.version())"
    versions = f'"$0" -c "{torch}"; nvcc --version; "$1" --version; true'
    return [
        ["nvidia-smi", "-q"],
        ["sh", "-c", versions, places.python, sanitizer() or "compute-sanitizer"],
        [f"{places.pack}/zbench", "doctor"],
    ]


def nccl(places):
    """One rank, which shows every call of NCCL, and one for each GPU where there are several."""
    counts = [1] if places.gpus == 1 else [1, places.gpus]
    return [places.zbench(f"allreduce --backend nccl --ranks {count} {EVERY_COLLECTIVE}") for count in counts]


SMALL = "--iters 3 --seconds 0.05 --warmup 0.05"
ATTENTION = "attention --device cuda --dtype bf16 --heads {heads} --head-dim {dim} --batch {batch} --seq-len {lengths} --pass both"
# Llama 3.1 8B's at two lengths, GPT-2's at its own micro-batch.
SHAPES = [
    ATTENTION.format(heads="32 --kv-heads 8", dim=128, batch=1, lengths="4096,8192"),
    ATTENTION.format(heads=12, dim=64, batch=64, lengths=1024),
]
TINY_ATTENTION = ATTENTION.format(heads="4 --kv-heads 2", dim="64,128", batch=2, lengths=320)
# Squares; then the head of GPT-2 with its own vocabulary, and the MLP of Llama 3.1 8B.
PRODUCTS = "4096x4096x4096,8192x8192x8192,8192x50257x768,8192x14336x4096"
EVERY_COLLECTIVE = "--collective all -d all -o all -b 0 -e 1M -f 32 -n 3 --buffers hot"

STAGES = [
    Stage("environment", 10, [Part("environment", 10, environment)], measures=False),
    Stage(
        "smoke and parity",
        60,
        [
            yardstick("pytorch-warm-up", 12, "--warm-up", is_beside=True),
            zbench("smoke-products", 15, f"gemm --device cuda --shape 512x512x512,264x136x72 --dtype f32,bf16,f16 {SMALL}"),
            zbench("smoke-attention", 15, f"{TINY_ATTENTION} --kernel flash {SMALL}"),
            zbench("smoke-attention-hopper", 15, f"{TINY_ATTENTION} --kernel flash-hopper {SMALL}"),
            zbench("smoke-training", 20, "grid tests/configs/cuda-tiny.toml --trials 1 --no-repeats"),
            test("smoke-parity", 30, "engine", "--exact", "training::cuda::a_whole_run_follows_the_processors", threads=1),
        ],
        measures=False,
    ),
    Stage(
        "products, copies, attention, passes",
        90,
        [
            zbench("products", 30, f"gemm --device cuda --shape {PRODUCTS} --dtype bf16,f32"),
            zbench("attention", 25, *[f"{shape} --kernel flash" for shape in SHAPES]),
            zbench("attention-hopper", 25, *[f"{shape} --kernel flash-hopper" for shape in SHAPES]),
            zbench("copies-and-passes", 30, "calibrate --device cuda --rounds 3 --save {state}/machine.toml"),
        ],
    ),
    Stage(
        "models",
        140,
        [
            zbench("gpt2-124m", 45, "grid ci/gpu/gpt2-124m.toml --trials 2 --no-repeats"),
            zbench("llama-3b", 45, "grid ci/gpu/llama-3b.toml --trials 2 --no-repeats"),
            zbench("llama-8b-lora", 80, "grid ci/gpu/llama-8b-lora.toml --trials 2 --no-repeats"),
        ],
    ),
    Stage("PyTorch", 120, [yardstick("pytorch", 120)]),
    Stage(
        "sanitizers",
        40,
        [
            sanitized("racecheck", 25, "racecheck", small_flash),
            sanitized("synccheck", 25, "synccheck", small_flash),
        ],
    ),
    Stage(
        "the rest",
        None,
        [
            Part("nccl", 60, nccl),
            test("nccl-tests", 60, "engine", "comm_nccl::", nocapture=True),
            zbench("device-ranks", 40, f"allreduce --backend device --ranks 3 {EVERY_COLLECTIVE}"),
            zbench("device-ranks-sizes", 30, "allreduce --backend device --ranks 2 -b 1K -e 1G -f 8 -n 10"),
            zbench("strategies", 60, "grid ci/gpu/strategies.toml --trials 1 --no-repeats"),
            zbench("offload", 60, "grid ci/gpu/offload.toml --trials 1 --no-repeats"),
            # Not what imitates a GPU, only compiles, or is about disks.
            test("kernels", 150, "kernels", "--skip", "gpu::", "--skip", "compile::", "--skip", "disk::", threads=12),
            test("device-communicator", 60, "engine", "comm::conformance_device"),
            # Each run of training takes all of the GPU's free memory for its arenas: one test at a time.
            test("training", 150, "engine", "training::cuda::", threads=1),
            test("offload-training", 150, "engine", "training::offload_cuda::", threads=1),
            Part("imitated-machine", 60, lambda places: [[f"{places.pack}/kernels", "gpu::"]], without_compiler),
            sanitized("memcheck", 120, "memcheck", lambda places: [f"{places.pack}/kernels", "elementwise", "rows::rms_norm", "gemm::"]),
        ],
    ),
]

for stage in STAGES:
    for part in stage.parts:
        part.stage = stage.name
ALL = [part for stage in STAGES for part in stage.parts]


def show(places):
    for stage in STAGES:
        seconds = "what is left" if stage.seconds is None else f"{stage.seconds} s"
        print(f"# {stage.name}: {seconds}")
        for part in stage.parts:
            for command in part.commands(places):
                print(f"{part.name} {part.seconds} {shlex.join(command)}")
