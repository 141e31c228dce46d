"""No operator of a graph comes from one of torch's Python kernels, and the watch that says so sees them where they do."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import _prims, _refs
from torch._decomp import decompositions
from torch._refs.nn import functional

import refimpl
from refimpl.tests.corpus import Program, programs_of
from refimpl.tests.upstream_code import (
    COMPOSITES,
    DERIVATIVES,
    OPERATORS,
    SeenCode,
    compiled_call_of,
    part_of,
    trace_of,
    watched,
    watched_operators,
    works,
)

Tensor = torch.Tensor
TRACED = programs_of("trace")
COMPILED = programs_of("aot")[::10]


@pytest.mark.parametrize(
    ("run", "program"),
    [*((trace_of, program) for program in TRACED), *((compiled_call_of, program) for program in COMPILED)],
    ids=[*(f"trace-{program}" for program in TRACED), *(f"compile-{program}" for program in COMPILED)],
)
def test_no_operator_of_a_graph_comes_from_a_python_kernel_of_torch(
    run: Callable[[Program], None], program: Program
) -> None:
    with warnings.catch_warnings(), watched(counts_calls=False) as seen:
        warnings.simplefilter("ignore")
        run(program)
    assert seen.recorded == {}


@pytest.mark.parametrize(
    ("function", "part", "name"),
    [
        (functional.celu, "Python references", "_refs/nn/functional/__init__.py:celu"),
        (decompositions.silu, "Python decompositions", "_decomp/decompositions.py:silu"),
        (_prims._cbrt_aten, "Python references", "_prims/__init__.py:_cbrt_aten"),
    ],
)
@pytest.mark.parametrize("mode", ["real", "symbolic"])
def test_operators_that_python_kernels_record_are_seen(
    function: Callable[[Tensor], Tensor], part: str, name: str, mode: str
) -> None:
    with watched(counts_calls=False) as seen:
        refimpl.make_fx(function, tracing_mode=mode)(torch.ones(3))
    assert (part, name) in seen.recorded


def test_calls_of_python_functions_are_counted() -> None:
    with watched(counts_calls=True) as seen:
        refimpl.make_fx(torch.sin, tracing_mode="symbolic")(torch.ones(3))
        _refs.square(torch.ones(2))
    assert seen.calls["Python references", "_refs/__init__.py:square"] == 1
    assert any(part == "fake tensors" for part, _ in seen.calls)
    assert part_of(_refs.__file__) == "Python references"
    assert part_of(__file__) is None


def test_operators_composite_kernels_and_derivatives_are_counted() -> None:
    seen = SeenCode()
    x = torch.ones(2, 3, requires_grad=True)
    with watched_operators(seen, {}):
        (x @ torch.ones(3, 2)).sum().backward()
    assert seen.calls[COMPOSITES, "aten::matmul"] == 1
    assert seen.calls[DERIVATIVES, "MmBackward0"] == 1
    assert seen.calls[OPERATORS, "all that are not composite"] > 2


def test_the_sample_is_fixed_and_a_part_of_all() -> None:
    sample, everything = ([name for name, _ in works(everything=flag)] for flag in (False, True))
    assert sample == [name for name, _ in works(everything=False)]
    assert len(set(sample)) == len(sample) > 200
    assert set(sample) < set(everything)
