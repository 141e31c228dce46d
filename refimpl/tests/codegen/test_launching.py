"""How compiled graphs launch: each kernel once, whatever it is called, and with little in between."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from refimpl.codegen.emulator import KernelError
from refimpl.codegen.kernel import Kernel, Parameter
from refimpl.codegen.levels.device import DeviceLevel
from refimpl.tests.codegen.checks import compiled_with_graphs
from refimpl.tests.codegen.launch_graphs import NothingLevel, graph_of


def _layers(x: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = x.sort(1)[0] * 2 - 1
    return x.sort(0)[0] * 2 - 2


def test_what_is_printed_alike_is_one_kernel() -> None:
    compiled, graphs = compiled_with_graphs(_layers)
    x = torch.randn(5, 7)
    torch.testing.assert_close(compiled(x), _layers(x))
    (graph,) = graphs
    assert len(graph.kernels) == 2
    assert [launch.kernel.name for launch in graph.printed] == ["kernel_0"] * 4 + ["kernel_1"]


class _RecordingLevel(DeviceLevel):
    """A GPU's level that notes what it would compile and launch."""

    def __init__(self) -> None:
        self.fp_fusion = False
        self._compiled: dict[tuple[Any, ...], Any] = {}
        self.compiled: list[list[int]] = []
        self.launched: list[tuple[Any, ...]] = []

    def _check_device(self, kernel: Kernel, arguments: Sequence[Any]) -> None:
        pass

    def _compile(self, kernel: Kernel, constants: Any, aligned: Sequence[int]) -> Any:
        self.compiled.append(list(aligned))
        return self

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *values: self.launched.append((grid, *values))


_KERNEL = Kernel(
    "k",
    "",
    (
        Parameter("grid", "*fp32"), Parameter("B", "constexpr"), Parameter("key", "*fp32"), Parameter("n", "i64"),
        Parameter("is_last", "i1"), Parameter("scale", "fp32"),
    ),
)  # fmt: skip


def test_a_kernel_is_compiled_once_for_each_alignment() -> None:
    level = _RecordingLevel()
    launch = level.bind(_KERNEL, {"B": 64})
    x = torch.zeros(64)
    for odd in (0, 0, 1, 0, 1):
        launch((2, 3), (x, x[odd:], 32 + odd, False, 0.0))
    assert level.compiled == [[0, 2, 3], [0]]
    grid, first, block, *_, scale = level.launched[-1]
    assert (grid, first is x, block, scale) == ((2, 3, 1), True, 64, 0.0)
    assert len(level.launched) == 5
    level.launch(_KERNEL, (0,), (x, x, 32, False, 0.0), {"B": 64})
    assert len(level.launched) == 5
    assert len(level.compiled) == 2  # what was compiled is found again when it is bound anew
    level.launch(_KERNEL, (1,), (x, x, 32, False, 0.0), {"B": 128})
    assert len(level.compiled) == 3


def test_the_first_launch_is_checked() -> None:
    x = torch.zeros(64)
    with pytest.raises(KernelError, match=r"a tensor of torch\.float64 for 'key'"):
        _RecordingLevel().bind(_KERNEL, {"B": 64})((1,), (x, x.double(), 1, False, 0.0))


def _python_calls(call: Callable[..., Any], x: torch.Tensor) -> int:
    """Functions that run, of Python and of C, but for what runs inside those."""
    count = depth = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count, depth
        if event in ("call", "c_call"):
            depth += 1
            count += depth == 2
        elif event in ("return", "c_return", "c_exception"):
            depth -= 1

    sys.setprofile(note)
    try:
        call(x)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("reuse", [True, False])
def test_a_launch_is_one_call_and_its_allocations(*, reuse: bool) -> None:
    beside = set()
    for length in (8, 24):
        graph = graph_of(length, NothingLevel(), reuse=reuse)
        own = len(graph.printed) + graph.source.count(" = empty(") + graph.source.count(" = as_strided(")
        beside.add(_python_calls(graph.call, torch.ones(8, 8)) - own)
    (constant,) = beside
    assert constant <= 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_saved_values_that_hooks_give_back_in_another_dtype_are_converted(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.cos() * x.t() + x.amin(0)).sum()

    def pack(saved: torch.Tensor) -> torch.Tensor:
        return saved * 1 if saved.dtype == torch.bool else saved.to(dtype)

    x = torch.arange(4.0).view(2, 2).requires_grad_()
    (expected,) = torch.autograd.grad(function(x), x)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
        result = compiled_with_graphs(function)[0](x)
    torch.testing.assert_close(torch.autograd.grad(result, x)[0], expected, rtol=4e-3, atol=4e-3)
