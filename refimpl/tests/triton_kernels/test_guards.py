"""Calls of one compiled function after what its launches depend on has changed, and how many graphs that takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import refimpl

pytest.importorskip("triton")

import triton

from refimpl.tests.triton_kernels.programs import Program, blocks, kernels


def assert_calls_agree(function: Program, calls: Sequence[Callable[[], tuple[Any, ...]]], graphs: int) -> None:
    """Each call changes something and returns the arguments."""
    __tracebackhide__ = True
    made: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        made.append(graph)
        return graph

    compiled = refimpl.compile(function, backend=backend, fullgraph=True)
    for call in calls:
        args = call()
        assert torch.equal(compiled(*args), function(*args))
    assert len(made) == graphs


def given(*args: Any) -> Callable[[], tuple[Any, ...]]:
    return lambda: args


def numbers(count: int = 20) -> torch.Tensor:
    return torch.arange(float(count))


def test_a_constexpr_argument_changes() -> None:
    calls = [given(numbers(), numbers(), block) for block in (8, 16, 8)]
    assert_calls_agree(lambda x, y, block: kernels.add(x, y, block), calls, 2)


def test_sizes_change() -> None:
    calls = [given(numbers(n), numbers(n)) for n in (5, 7, 20, 33)]
    assert_calls_agree(lambda x, y: kernels.add(x, y), calls, 2)


def scaled(x: Any, n: Any, factor: Any) -> Any:
    z = x.clone()
    kernels.scale_kernel[(2,)](z, n, factor)
    return z


def test_an_integer_changes() -> None:
    assert_calls_agree(scaled, [given(numbers(), n, 2.0) for n in (3, 4, 5)], 2)


def test_a_float_changes() -> None:
    assert_calls_agree(scaled, [given(numbers(), 20, factor) for factor in (2.0, 3.5, -0.0, 2.0)], 3)


def test_an_argument_is_none_in_some_calls() -> None:
    def function(x: Any, bias: Any) -> Any:
        out = torch.empty_like(x)
        kernels.optional_kernel[(3,)](x, bias, out, 20, BLOCK=8)
        return out

    assert_calls_agree(function, [given(numbers(), bias) for bias in (None, numbers(), None)], 2)


def test_a_global_that_the_kernel_reads_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Any) -> Any:
        out = torch.empty_like(x)
        kernels.global_kernel[(3,)](x, out, 20, BLOCK=8)
        return out

    def with_factor(factor: float) -> Any:
        monkeypatch.setattr(kernels, "FACTOR", factor)
        return (numbers(),)

    assert_calls_agree(function, [lambda f=f: with_factor(f) for f in (2.0, 5.0, 2.0)], 1)


def test_a_function_that_the_kernel_calls_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new one writes something else, or nothing."""

    def function(x: Any) -> Any:
        out = torch.zeros_like(x)
        kernels.through_helper_kernel[(3,)](x, out, 20, BLOCK=8)
        return out

    def with_helper(helper: Any) -> Any:
        monkeypatch.setattr(kernels, "write_to", helper)
        return (numbers(),)

    helpers = (kernels.write_to, kernels.write_to_nothing, kernels.write_tenfold, kernels.write_to)
    assert_calls_agree(function, [lambda h=h: with_helper(h) for h in helpers], 3)


def test_the_kernel_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_kernel(kernel: Any) -> Any:
        monkeypatch.setattr(kernels, "add_kernel", kernel)
        return (numbers(), numbers())

    both = (kernels.add_kernel, kernels.subtract_kernel, kernels.add_kernel)
    assert_calls_agree(lambda x, y: kernels.add(x, y), [lambda k=k: with_kernel(k) for k in both], 2)


def test_a_configuration_changes() -> None:
    kernel = triton.autotune(configs=[triton.Config({"BLOCK": 8})], key=["n"])(kernels.add_kernel)

    def function(x: Any, y: Any) -> Any:
        out = torch.zeros_like(x)
        kernel[lambda meta: (meta["n"] // meta["BLOCK"],)](x, y, out, x.numel())
        return out

    def with_block(block: int) -> Any:
        kernel.configs[0].kwargs["BLOCK"] = block
        return (numbers(), numbers())

    assert_calls_agree(function, [lambda b=b: with_block(b) for b in (8, 16, 8)], 2)


def test_heuristics_choose_by_size() -> None:
    def function(x: Any, y: Any) -> Any:
        out = torch.zeros_like(x)
        kernels.heuristic_add_kernel[blocks](x, y, out, x.numel())
        return out

    assert_calls_agree(function, [given(numbers(n), numbers(n)) for n in (5, 7, 20, 33, 9)], 3)


def test_what_the_grid_reads_changes() -> None:
    size = {"block": 8}

    def function(x: Any, y: Any) -> Any:
        out = torch.zeros_like(x)
        kernels.add_kernel[lambda meta: (meta["n"] // size["block"],)](x, y, out, 20, BLOCK=8)
        return out

    def with_size(block: int) -> Any:
        size["block"] = block
        return (numbers(), numbers())

    assert_calls_agree(function, [lambda b=b: with_size(b) for b in (8, 10, 8)], 2)


def test_a_launch_between_graph_breaks() -> None:
    made: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        made.append(graph)
        return graph

    def function(x: Any, y: Any) -> Any:
        first = kernels.add(x, y)
        refimpl.graph_break()
        kernels.scale_kernel[(2,)](first, 20, 2.0)
        return first + y

    x, y = numbers(), numbers()
    assert torch.equal(refimpl.compile(function, backend=backend)(x, y), function(x, y))
    assert len(made) == 2
