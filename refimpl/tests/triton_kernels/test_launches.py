"""Programs that launch Triton kernels agree with eager mode: results, arguments after the call, and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import refimpl

pytest.importorskip("triton")

import triton

from refimpl.tests.triton_kernels.programs import (
    PROGRAMS,
    Program,
    added_by_kernel,
    arguments,
    blocks,
    in_a_branch,
    kernels,
)


def traced(function: Program) -> Program:
    """Traced with symbolic sizes, and run on the same arguments."""
    graph: Any = None

    def call(*args: Any) -> Any:
        nonlocal graph
        graph = graph or refimpl.make_fx(function, tracing_mode="symbolic")(*args)
        return graph(*args)

    return call


ROADS: dict[str, Callable[[Program], Program]] = {
    "compile": lambda function: refimpl.compile(function, fullgraph=True, dynamic=True, backend="aot_eager"),
    "compile_aot": refimpl.compile_aot,
}
MORE_ROADS: dict[str, Callable[[Program], Program]] = {
    "compile_static": lambda function: refimpl.compile(function, fullgraph=True),
    "make_fx": traced,
}
ON_MORE_ROADS = (
    "grid_is_a_function", "writes_views_of_one_tensor", "operators_between_launches", "autotuned_of_several", "heuristics",
    "through_an_operator_of_a_library",
)  # fmt: skip
CASES = [(name, road) for name in PROGRAMS for road in ROADS]
CASES += [(name, road) for name in ON_MORE_ROADS for road in MORE_ROADS]


def seen(function: Program, args: tuple[Any, ...]) -> list[Any]:
    """What a caller sees of one call: the result, and the arguments afterwards."""
    result = function(*args)
    return [*tree_leaves(result), *args]


def assert_same(expected: list[Any], actual: list[Any]) -> None:
    __tracebackhide__ = True
    assert len(actual) == len(expected)
    for one, other in zip(expected, actual, strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(other, one, rtol=0, atol=0, equal_nan=True)
            assert other.stride() == one.stride()
        else:
            assert other == one


@pytest.mark.parametrize(("name", "road"), CASES)
def test_values_and_arguments_are_those_of_eager_mode(name: str, road: str) -> None:
    function = PROGRAMS[name]
    compiled = {**ROADS, **MORE_ROADS}[road](function)
    first = seen(function, arguments())
    assert_same(first, seen(compiled, arguments()))
    assert_same(seen(function, arguments()), seen(compiled, arguments()))


@pytest.mark.parametrize("road", ROADS)
def test_a_branch_launches_a_kernel(road: str) -> None:
    compiled = ROADS[road](in_a_branch)
    x, y = arguments()
    assert_same(seen(added_by_kernel, (x, y)), seen(compiled, (x, y)))
    assert_same([-x - y], [compiled(-x, y)])


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("option", [{}, {"reset_to_zero": ["count_ptr"]}, {"restore_value": ["count_ptr"]}], ids=str)
def test_the_first_call_of_an_autotuned_kernel_does_what_eager_mode_does(option: dict[str, Any], road: str) -> None:
    """It launches every configuration on the tensors themselves, so a sum counts twice unless the option prevents that."""

    def fresh() -> Program:
        configurations = [triton.Config({"BLOCK": 8}), triton.Config({"BLOCK": 16})]
        tuned = triton.autotune(configurations, key=["n"], do_bench=kernels.run_once, **option)(kernels.count_kernel)

        def function(x: Any) -> Any:
            count = torch.full((1,), 5.0)
            tuned[blocks](x, count, x.numel())
            return count

        return function

    expected, actual = fresh(), ROADS[road](fresh())
    x, _ = arguments()
    assert [expected(x), expected(x)] == [actual(x), actual(x)]
