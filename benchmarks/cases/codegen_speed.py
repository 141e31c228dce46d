"""Speed of programs on a GPU: eager, Inductor and our kernels.

Sides: ours and ours_tuned (with measured configurations and CUDA graphs), eager, inductor and inductor_max (max-autotune); each
runs with a cold L2, on the GPU's own clock. The results of a side are compared with eager's before it is measured; a side that is
wrong or raises gets an error and no time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

from benchmarks.harness import Case, Side, benchmark
from benchmarks.models import ConvBlock, all_models
from oracle.errors import UsageError
from refimpl.backends.triton import triton
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.codegen.autotune import Trial, bench_on_gpu
from refimpl.codegen.cuda_graphs import WARM_UPS
from refimpl.codegen.options import CodegenOptions


@benchmark(repeat=25)
def codegen_speed(dtype: str = "float32", models: bool = False, cpu: bool = False) -> Iterator[Case]:
    """Programs on a GPU (`models`: the models suite too); `cpu`: tiny ones on the emulator, whose times mean nothing.

    `GB/s`: bytes that must be read and written (inputs and outputs, each once) divided by our time; `of_copy`: the same as a
    share of the bandwidth of a copy on the device. `max_over_tuned`: Inductor's time with max-autotune divided by our tuned time.
    """
    if not cpu and not torch.cuda.is_available():
        raise UsageError(
            seen="no CUDA device is there",
            expected="a GPU that kernels can be measured on",
            do="run this on a machine with one, or with --set cpu=true to test the benchmark",
        )
    device, sizes = ("cpu", TINY) if cpu else ("cuda", ON_GPU)
    made: torch.dtype = getattr(torch, dtype)
    copied = 0.0 if cpu else copy_bandwidth(sizes.copied)
    makers = {**programs(sizes, device, made), **(model_programs(device) if models else {})}
    for name, make in makers.items():
        moved: list[float] = []
        sides = functools.partial(_sides, make, 1e-3 if made == torch.float32 else 5e-2, moved)
        bench = None if cpu else _bench_once
        yield Case(name, sides, bench=bench, derive=functools.partial(_bandwidth, moved, copied))


def _bench_once(sides: Sequence[Side]) -> list[float]:
    return [found / 1e3 for found in bench_on_gpu([Trial(lambda: None, side) for side in sides], 1)]


class Program(NamedTuple):
    """A function of its inputs, and whether its gradients are part of it."""

    function: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]
    has_backward: bool = False


@dataclass(frozen=True)
class Sizes:
    """Sizes of the programs: rows and columns of matrices, tokens, and images."""

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
    """Functions that make the programs, by name."""

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
    """Programs of the models suite, forward and backward."""

    def maker(make: Callable[[], Any]) -> Callable[[], Program]:
        def made() -> Program:
            model = make()
            inputs = tuple(value.to(device) for value in model.inputs)
            return Program(model.module.to(device).eval(), inputs, has_backward=True)

        return made

    return {f"model: {name}": maker(make) for name, make in all_models().items()}


def _gelu_chain(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x))) * scale + y


def _rms_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Any:
    total = x + residual
    return total, total * torch.rsqrt(total.float().square().mean(-1, keepdim=True) + 1e-6).to(x.dtype) * weight


def _ours(function: Callable[..., Any], options: CodegenOptions) -> Callable[..., Any]:
    return with_options(function, CaptureOptions(backend=functools.partial(triton, options=options)))


def peers(function: Callable[..., Any]) -> dict[str, Callable[[], Callable[..., Any]]]:
    """Side -> a function that compiles a function; compilation happens in its first call."""
    compile_by_torch: Any = torch.compile
    return {
        "ours": lambda: _ours(function, CodegenOptions()),
        "ours_tuned": lambda: _ours(function, CodegenOptions(autotune=True, cuda_graphs=True)),
        "eager": lambda: function,
        "inductor": lambda: compile_by_torch(function),
        "inductor_max": lambda: compile_by_torch(function, mode="max-autotune"),
    }


class CheckedState:
    """Runs a program on one side. The first call compiles, and raises ValueError if the results differ from eager's."""

    def __init__(self, program: Program, make: Callable[[], Callable[..., Any]], tolerance: float) -> None:
        self.program, self.make, self.tolerance = program, make, tolerance
        self.call: Callable[..., Any] | None = None

    def __call__(self) -> None:
        if self.call is not None:
            called(self.program, self.call)
            return
        expected, call = called(self.program, self.program.function), self.make()
        for _ in range(WARM_UPS + 1):
            called(self.program, call)
        found = difference(expected, called(self.program, call))  # replays the CUDA graph, if it was recorded
        if found > self.tolerance:
            raise ValueError(f"differs from eager by {found:.1e} of the greatest value")
        self.call = call


def _sides(make: Callable[[], Program], tolerance: float, moved: list[float]) -> dict[str, Side]:
    torch.compiler.reset()
    program = make()
    if not program.has_backward:
        moved.append(least_bytes(program))
    return {side: CheckedState(program, how, tolerance) for side, how in peers(program.function).items()}


def _bandwidth(moved: Sequence[float], copied: float, seconds: Mapping[str, Any]) -> dict[str, float]:
    figures: dict[str, float] = {}
    if moved and "ours" in seconds:
        reached = moved[0] / seconds["ours"]
        figures |= {"GB/s": reached / 1e9, **({"of_copy": reached / copied} if copied else {})}
    if {"inductor_max", "ours_tuned"} <= seconds.keys():
        figures["max_over_tuned"] = seconds["inductor_max"] / seconds["ours_tuned"]
    return figures


def called(program: Program, call: Callable[..., Any]) -> list[torch.Tensor]:
    """Call the program: its results, and gradients of inputs and parameters if they are part of it."""
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
    """A tangent, the same for all peers. With ones, gradients through norms would be only rounding errors."""
    values = torch.arange(shape.numel(), device=device, dtype=torch.float32).mul(12.9898).sin()
    return values.view(shape).to(dtype)


def _tensors(value: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(dict(value) if isinstance(value, dict) else value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def difference(expected: Sequence[torch.Tensor], actual: Sequence[torch.Tensor]) -> float:
    """The largest difference relative to each tensor's largest value; infinity if shapes differ."""
    if [value.shape for value in expected] != [value.shape for value in actual]:
        return math.inf
    worst = 0.0
    for a, b in zip(expected, actual, strict=True):
        scale = max(float(a.abs().max()), 1e-6) if a.numel() else 1.0
        found = float((a.double() - b.double()).abs().max()) / scale if a.numel() else 0.0
        worst = max(worst, math.inf if math.isnan(found) else found)
    return worst


def least_bytes(program: Program) -> int:
    """Bytes that must be read and written: inputs, parameters and results, each once; gradients are not counted."""
    with torch.no_grad():
        results = _tensors(program.function(*program.inputs))
    parameters = list(program.function.parameters()) if isinstance(program.function, nn.Module) else []
    return sum(value.nbytes for value in (*program.inputs, *parameters, *results))


def copy_bandwidth(size: int) -> float:
    """Bytes per second that a copy on the GPU reads and writes."""
    source = torch.zeros(size, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    (milliseconds,) = bench_on_gpu([Trial(lambda: None, lambda: target.copy_(source))])
    return 2 * size / milliseconds * 1e3
