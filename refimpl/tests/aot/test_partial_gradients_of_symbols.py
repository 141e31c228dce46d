"""Backward with only some of the tangents and with symbolic sizes: nothing is computed for results whose tangent is missing.

Zeros in place of a missing tangent would be wrong: times an infinite derivative they are NaN, and their strides may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from refimpl.backends import aot_eager
from refimpl.backends.triton import triton
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.pipeline import compile_aot
from refimpl.tests.capture.capturing import same

OPERATORS: dict[str, Callable[..., torch.Tensor]] = {
    "addr": torch.addr,
    "addmm": lambda x, y, z: torch.addmm(x, y.unsqueeze(1), z.unsqueeze(0)),
    "addmv": lambda x, y, z: torch.addmv(y, x, z, beta=2),
    "baddbmm": lambda x, y, z: torch.baddbmm(x.unsqueeze(0), y.reshape(1, -1, 1), z.reshape(1, 1, -1)),
    "add": lambda x, y, z: x + y.unsqueeze(1) - z,
    "sum": lambda x, y, z: x.sum(0) * 1,
    "mean": lambda x, y, z: x.mean(1, keepdim=True) + 1,
    "expand": lambda x, y, z: x.unsqueeze(0).expand(2, *x.shape) + z,
    "stack": lambda x, y, z: torch.stack([x, z.expand_as(x)], 1),
    "flip": lambda x, y, z: x.flip(0),
    "double": lambda x, y, z: x.double(),
    "reshape": lambda x, y, z: x.reshape(-1),
    "slice": lambda x, y, z: torch.cat([x[1:], x[:1]]),
}
BACKENDS = {"graphs": aot_eager, "kernels": triton}


def arguments(rows: int, columns: int) -> list[torch.Tensor]:
    """The first element is 0, where a square root has an infinite derivative."""
    shapes = ((rows, columns), (rows,), (columns,))
    return [torch.arange(float(torch.Size(shape).numel())).reshape(shape).requires_grad_() for shape in shapes]


def laid_out(gradients: Any) -> list[Any]:
    return [None if g is None else (g.stride(), g.untyped_storage().nbytes()) for g in gradients]


@pytest.mark.fractional
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_gradients_inside_of_a_program_are_eager_mode_s_for_any_size(operator: str, backend: str) -> None:
    def program(x: Any, y: Any, z: Any) -> Any:
        result = OPERATORS[operator](x, y, z)  # it is there when the gradients are asked for, but has none itself
        return torch.autograd.grad(result.sum(), [x, y, z], allow_unused=True)

    compiled = with_options(program, CaptureOptions(backend=BACKENDS[backend], dynamic=True))
    for rows, columns in ((3, 4), (5, 2), (4, 1), (1, 3), (1, 1)):
        expected, actual = program(*arguments(rows, columns)), compiled(*arguments(rows, columns))
        assert same(actual, expected)
        assert laid_out(actual) == laid_out(expected), (rows, columns)


def of_chosen_rows(x: Any, y: Any) -> tuple[Any, ...]:
    """How many there are hangs on data."""
    rows = x[(x.detach()[:, 0] >= 0).nonzero()[:, 0]]
    return rows.sqrt(), rows.sum(), (rows + 1).mean(1), y.sum()


PROGRAMS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "the sum of what has an infinite derivative": lambda x, y: (x.sqrt(), x.sum(0), y.sum()),
    "a size of a result": lambda x, y: (x[:, 1:].sqrt(), (x[1:].sum() + y.sum()).expand(x.shape[0] - 1, 2)),
    "sums beside what is read together": lambda x, y: (torch.cat([x.sqrt(), x.exp()]).sum(1), (x * y).mean(0), y.log()),
    "sizes in new shapes": lambda x, y: (x.reshape(-1).sqrt(), x.t().reshape(-1).sum(), (x + y).reshape(-1)),
    "sizes that hang on data": of_chosen_rows,
}


@pytest.mark.fractional
@pytest.mark.parametrize("partition", ["default", "min_cut", None])
@pytest.mark.parametrize("backend", ["eager", "triton"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_only_what_arrives_is_computed(name: str, backend: str, partition: Any) -> None:
    program = PROGRAMS[name]
    compiled = compile_aot(program, dynamic=True, backend=backend, partition=partition)

    def gradients(function: Any, size: tuple[int, int], used: int) -> Any:
        x, y = (torch.arange(float(size[0] * size[1])).reshape(size).requires_grad_() for _ in range(2))
        return torch.autograd.grad(function(x, y)[used].sum(), [x, y], allow_unused=True)

    for size in ((2, 3), (4, 5), (1, 2)):
        for used in range(len(program(torch.ones(2, 3), torch.ones(2, 3)))):
            expected, actual = gradients(program, size, used), gradients(compiled, size, used)
            assert [g is None for g in actual] == [g is None for g in expected], used
            torch.testing.assert_close(actual, expected, equal_nan=True)


def test_a_part_that_a_compiler_makes_for_one_size_runs_as_it_is() -> None:
    """Guards are read before a part is compiled: none can be added."""
    asks, asked = False, 0

    def backend(graph_module: torch.fx.GraphModule, examples: Any) -> Callable[..., Any]:
        nonlocal asked
        sizes = [size for size in examples if isinstance(size, torch.SymInt)]
        if asks and sizes:
            asked += 1
            assert sizes[0] == 3
            return lambda *args: pytest.fail("this was compiled for one size")
        return graph_module

    compiled = compile_aot(lambda x: (x.sqrt(), x.sum()), backend=backend, dynamic=True)
    for size in (3, 4):
        x = torch.zeros(size, requires_grad=True)
        results = compiled(x)
        asks = True
        assert same(torch.autograd.grad(results[1], x)[0], torch.ones(size))
        assert asked == 1
