"""How fast compiled programs are: `python -m refimpl.benchmarks.codegen_speed [--rounds N] [--csv FILE] [--resume] [--cpu]`.

Eager, Inductor (its default, and max-autotune), and refimpl's kernels (the default, and `tuned`: with measured configurations
and CUDA graphs), by turns, each run with a cold L2; milliseconds of the GPU's own clock, medians over rounds. The results of
every peer are compared with eager's before it is measured; a peer that is wrong or raises has no figure, and is named.

`bandwidth`: what has to be read and written at least (inputs and outputs, each once) over our time; `of_copy`: as a part of what
a copy on the device reaches. Ratios are Inductor's time over ours: above 1 ours is faster.

--resume keeps the rows that the table has, those of programs among them at which an earlier run ended.

--cpu runs everything in tiny sizes, our kernels on the emulator: it tests this program, and its figures mean nothing.
"""

from __future__ import annotations

import argparse
import functools
import math
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

from refimpl.backends.triton import triton
from refimpl.benchmarks.partition_models import ConvBlock, own_models, transformers_models
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.codegen.autotune import Trial, bench_on_gpu, by_turns
from refimpl.codegen.cuda_graphs import WARM_UPS
from refimpl.codegen.options import CodegenOptions

NO_GPU = 2  # exit code
LOST_GPU = (
    3  # a kernel has left the device unusable for this process; with --resume another one goes on after that program
)


class Program(NamedTuple):
    """A function of its inputs, and whether its gradients are part of it."""

    function: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]
    has_backward: bool = False


@dataclass(frozen=True)
class Sizes:
    """Of the programs: rows and columns of matrices, tokens, and images."""

    rows: int
    columns: int
    classes: int
    batch: int
    tokens: int
    width: int
    heads: int
    channels: int
    image: int
    copied: int
    """Bytes of the copy that bandwidth is compared with."""


ON_GPU = Sizes(8192, 4096, 32768, 16, 1024, 1024, 16, 64, 56, 1 << 30)
TINY = Sizes(4, 16, 24, 2, 8, 16, 2, 4, 6, 1 << 12)


def programs(sizes: Sizes, device: str, dtype: torch.dtype) -> dict[str, Callable[[], Program]]:
    """Makers of the rows of the table."""

    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    def matrix() -> torch.Tensor:
        return tensor(sizes.rows, sizes.columns)

    def module(made: nn.Module, *inputs: torch.Tensor, has_backward: bool = False) -> Program:
        return Program(made.to(device, dtype), inputs, has_backward)

    def block(*, has_backward: bool) -> Program:
        made = nn.TransformerEncoderLayer(
            sizes.width, sizes.heads, 4 * sizes.width, dropout=0.0, activation="gelu", batch_first=True
        )
        return module(made, tensor(sizes.batch, sizes.tokens, sizes.width), has_backward=has_backward)

    def mlp() -> Program:
        width = sizes.width
        layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        return module(layers, tensor(sizes.batch * sizes.tokens, width))

    def heads() -> tuple[torch.Tensor, ...]:
        shape = sizes.batch, sizes.heads, sizes.tokens, sizes.width // sizes.heads
        return tensor(*shape), tensor(*shape), tensor(*shape)

    def classes() -> tuple[torch.Tensor, ...]:
        places = torch.randint(sizes.classes, (sizes.rows // 4 or 1,), device=device)
        return tensor(len(places), sizes.classes), places

    columns = (sizes.columns,)
    return {
        "pointwise chain": lambda: Program(_gelu_chain, (matrix(), matrix(), tensor(*columns))),
        "softmax": lambda: Program(lambda x: x.softmax(-1), (matrix(),)),
        "softmax of columns": lambda: Program(lambda x: x.softmax(0), (matrix(),)),
        "layer norm": lambda: Program(
            lambda x, w, b: F.layer_norm(x, columns, w, b), (matrix(), tensor(*columns), tensor(*columns))
        ),
        "cross entropy": lambda: Program(F.cross_entropy, classes()),
        "rms norm of residual": lambda: Program(_rms_norm, (matrix(), matrix(), tensor(*columns))),
        "sum of all": lambda: Program(lambda x: x.sum(), (matrix(),)),
        "transposed sum": lambda: Program(lambda x, y: x.t() + y, (matrix(), matrix().t().contiguous())),
        "gelu mlp": mlp,
        "attention": lambda: Program(F.scaled_dot_product_attention, heads()),
        "conv block": lambda: module(
            ConvBlock(lambda c: nn.GroupNorm(2, c), channels=sizes.channels),
            tensor(sizes.batch, sizes.channels, sizes.image, sizes.image),
        ),
        "transformer block": lambda: block(has_backward=False),
        "transformer block, backward": lambda: block(has_backward=True),
    }


def model_programs(device: str) -> dict[str, Callable[[], Program]]:
    """The models suite, forward and backward, in small."""

    def maker(make: Callable[[], Any]) -> Callable[[], Program]:
        def made() -> Program:
            model = make()
            inputs = tuple(value.to(device) for value in model.inputs)
            return Program(model.module.to(device).eval(), inputs, has_backward=True)

        return made

    return {f"model: {name}": maker(make) for name, make in {**own_models(), **transformers_models()}.items()}


def _gelu_chain(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x))) * scale + y


def _rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Any:
    total = x + residual
    return total, total * torch.rsqrt(total.float().square().mean(-1, keepdim=True) + 1e-6).to(x.dtype) * weight


def _ours(function: Callable[..., Any], options: CodegenOptions) -> Callable[..., Any]:
    return with_options(function, CaptureOptions(backend=functools.partial(triton, options=options)))


def peers(function: Callable[..., Any], chosen: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """By name, ways to run a function; nothing is compiled before the first call."""
    compile_by_torch: Any = torch.compile
    made: dict[str, Callable[[], Callable[..., Any]]] = {
        "eager": lambda: function,
        "inductor": lambda: compile_by_torch(function),
        "inductor_max": lambda: compile_by_torch(function, mode="max-autotune"),
        "ours": lambda: _ours(function, CodegenOptions()),
        "ours_tuned": lambda: _ours(function, CodegenOptions(autotune=True, cuda_graphs=True)),
    }
    return {name: made[name]() for name in chosen}


PEERS = ("eager", "inductor", "inductor_max", "ours", "ours_tuned")


def called(program: Program, call: Callable[..., Any]) -> list[torch.Tensor]:
    """Results, and gradients of inputs and parameters where they are part of the program."""
    if not program.has_backward:
        with torch.no_grad():
            return _tensors(call(*program.inputs))
    results = [value for value in _tensors(call(*program.inputs)) if value.requires_grad]
    parameters = list(program.function.parameters()) if isinstance(program.function, nn.Module) else []
    tangents = [_tangent(value.shape, value.dtype, value.device) for value in results]
    gradients = torch.autograd.grad(results, parameters, tangents, allow_unused=True)
    return [*results, *(gradient for gradient in gradients if gradient is not None)]


@functools.lru_cache(maxsize=8)
def _tangent(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The same for all peers; of ones, gradients through norms would be nothing but rounding."""
    values = torch.arange(shape.numel(), device=device, dtype=torch.float32).mul(12.9898).sin()
    return values.view(shape).to(dtype)


def _tensors(value: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(dict(value) if isinstance(value, dict) else value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def difference(expected: Sequence[torch.Tensor], actual: Sequence[torch.Tensor]) -> float:
    """The greatest one, over the greatest value of each tensor; infinity for other shapes."""
    if [value.shape for value in expected] != [value.shape for value in actual]:
        return math.inf
    worst = 0.0
    for a, b in zip(expected, actual, strict=True):
        scale = max(float(a.abs().max()), 1e-6) if a.numel() else 1.0
        found = float((a.double() - b.double()).abs().max()) / scale if a.numel() else 0.0
        worst = max(worst, math.inf if math.isnan(found) else found)
    return worst


def measure(
    program: Program,
    chosen: Sequence[str],
    bench: Callable[[Sequence[Trial], int], list[float]],
    rounds: int,
    tolerance: float,
) -> tuple[dict[str, float], dict[str, str]]:
    """Milliseconds by peer, and what is wrong with those that have none."""
    expected = called(program, program.function)
    usable: dict[str, Callable[..., Any]] = {}
    wrong: dict[str, str] = {}
    for name, call in peers(program.function, chosen).items():
        try:
            for _ in range(WARM_UPS + 1):
                called(program, call)
            found = difference(expected, called(program, call))  # replayed, where there is a recording
        except Exception as error:  # a peer's failure is a row, not ours
            wrong[name] = _said(error)
            continue
        if found > tolerance:
            wrong[name] = f"differs from eager by {found:.1e} of the greatest value"
        else:
            usable[name] = call
    trials = [Trial(lambda: None, lambda call=call: called(program, call)) for call in usable.values()]
    return dict(zip(usable, bench(trials, rounds), strict=True)), wrong


def least_bytes(program: Program) -> int:
    """That have to be read and written: inputs, parameters and results, each once; gradients are not counted."""
    with torch.no_grad():
        results = _tensors(program.function(*program.inputs))
    parameters = list(program.function.parameters()) if isinstance(program.function, nn.Module) else []
    return sum(value.nbytes for value in (*program.inputs, *parameters, *results))


def copy_bandwidth(bench: Callable[[Sequence[Trial], int], list[float]], device: str, size: int, rounds: int) -> float:
    """Bytes for each second that a copy on the device reads and writes."""
    source = torch.zeros(size, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    (milliseconds,) = bench([Trial(lambda: None, lambda: target.copy_(source))], rounds)
    return 2 * size / milliseconds * 1e3


def bench_on_cpu(trials: Sequence[Trial], rounds: int) -> list[float]:
    """Medians of the clock on the wall."""

    def measured(trial: Trial) -> Callable[[], float]:
        started = time.perf_counter()
        trial.run()
        elapsed = (time.perf_counter() - started) * 1e3
        return lambda: elapsed

    return by_turns(trials, measured, lambda: None, rounds)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:120]


def moved_bytes(program: Program, times: dict[str, float]) -> float:
    """`least_bytes` where a bandwidth follows from them."""
    return math.nan if program.has_backward or "ours" not in times else least_bytes(program)


def row_of(
    name: str, times: dict[str, float], wrong: dict[str, str], moved: float = math.nan, copy: float = math.nan
) -> dict[str, Any]:
    """A line of the table. `moved`: bytes that have to be; `copy`: those that a copy moves in a second."""
    ours = times.get("ours", math.nan)
    bandwidth = moved / ours * 1e3
    row: dict[str, Any] = {"program": name}
    row.update({f"{peer}_ms": round(times.get(peer, math.nan), 4) for peer in PEERS})
    row["eager_over_ours"] = round(times.get("eager", math.nan) / ours, 3)
    row["inductor_over_ours"] = round(times.get("inductor", math.nan) / ours, 3)
    row["inductor_max_over_tuned"] = round(times.get("inductor_max", math.nan) / times.get("ours_tuned", math.nan), 3)
    row["bandwidth_gb_s"] = round(bandwidth / 1e9, 2)
    row["of_copy"] = round(bandwidth / copy, 3)
    row["wrong"] = "; ".join(f"{peer}: {why}" for peer, why in wrong.items())
    return row


def kept_rows(csv: Path | None) -> list[dict[str, Any]]:
    """Of a table that is there; none where there is none."""
    if csv is None or not csv.exists():
        return []
    return pd.read_csv(csv).fillna({"wrong": ""}).to_dict("records")


def keep(csv: Path | None, rows: Sequence[dict[str, Any]]) -> None:
    """Writes the table, where one is asked for."""
    if csv is not None:
        csv.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(rows).to_csv(csv, index=False)


def is_lost() -> bool:
    """Whether nothing runs on the current device any more in this process."""
    try:
        torch.zeros(1, device="cuda").add_(1).item()
    except RuntimeError:
        return True
    return False


def geometric_means(rows: Sequence[dict[str, Any]]) -> dict[str, tuple[float, int]]:
    """Of each ratio, over the rows that have it; and how many they are."""
    means: dict[str, tuple[float, int]] = {}
    for column in ("eager_over_ours", "inductor_over_ours", "inductor_max_over_tuned", "of_copy"):
        values = [row[column] for row in rows if row[column] > 0]
        if values:
            means[column] = math.exp(statistics.fmean(map(math.log, values))), len(values)
    return means


def machine_folder() -> Path:
    """Where tables of the current GPU are kept."""
    name = re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name().lower()).strip("-")
    version = torch.__version__.split("+")[0]
    return Path(__file__).parents[2] / "results" / "data" / f"{name}-torch-{version}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `python -m`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--only", default="", help="programs whose names contain this")
    parser.add_argument("--models", action="store_true", help="the models suite too")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument(
        "--peers", default=",".join(PEERS), help="some of the default, by commas; eager and ours are needed"
    )
    parser.add_argument("--cpu", action="store_true", help="tiny sizes on the emulator: a test of this program")
    parser.add_argument(
        "--csv", type=Path, help="a file; on a GPU, one in the folder of its tables unless another is given"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the table that is there")
    options = parser.parse_args(arguments)
    if not options.cpu and not torch.cuda.is_available():
        print(
            "no CUDA device is there\n  expected: a GPU that kernels can be measured on\n"
            "  what to do: run this on a machine with one, or with --cpu to test the program",
            file=sys.stderr,
        )
        sys.exit(NO_GPU)
    chosen = [name for name in options.peers.split(",") if name]
    if not {"eager", "ours"} <= set(chosen) <= set(PEERS):
        parser.error(f"--peers {options.peers}: expected eager, ours and others of {', '.join(PEERS)}")
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    device, sizes = ("cpu", TINY) if options.cpu else ("cuda", ON_GPU)
    dtype = getattr(torch, options.dtype)
    bench = bench_on_cpu if options.cpu else bench_on_gpu
    copy = copy_bandwidth(bench, device, sizes.copied, options.rounds)
    print(f"a copy on the device: {copy / 1e9:.0f} GB/s", flush=True)
    makers = programs(sizes, device, dtype)
    if options.models:
        makers.update(model_programs(device))
    tolerance = 1e-3 if dtype == torch.float32 else 5e-2
    csv = options.csv
    if csv is None and not options.cpu:
        csv = machine_folder() / f"codegen-speed-{options.dtype}.csv"
    rows = kept_rows(csv) if options.resume else []
    known = {row["program"] for row in rows}
    for name in (name for name in makers if options.only in name and name not in known):
        torch.compiler.reset()
        keep(csv, [*rows, row_of(name, {}, {"all": "did not end"})])
        program = makers[name]()
        try:
            times, wrong = measure(program, chosen, bench, options.rounds, tolerance)
            rows.append(row_of(name, times, wrong, moved_bytes(program, times), copy))
        except RuntimeError as error:  # eager itself, or the device
            rows.append(row_of(name, {}, {"all": _said(error)}))
        print("  ".join(f"{key}={value}" for key, value in rows[-1].items() if value != ""), flush=True)
        keep(csv, rows)
        if device == "cuda" and is_lost():
            print(f"{name}: the device is unusable for this process; --resume goes on", file=sys.stderr)
            sys.exit(LOST_GPU)
    for column, (mean, count) in geometric_means(rows).items():
        print(f"{column}: {mean:.2f} geometric mean of {count} programs")
    if options.cpu:
        print("on a CPU: these figures mean nothing, for kernels are emulated and sizes are tiny")


if __name__ == "__main__":
    main()
