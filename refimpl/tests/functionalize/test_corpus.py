"""The corpus functionalized by both strategies, with views and with copies: eager mode's values, and no input is written to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import refimpl
from refimpl.functionalize import functionalize_graph
from refimpl.tests.corpus import Program, case, fractional, programs_of, refusal
from refimpl.tests.corpus.compare import Seen, assert_same, observe

STRATEGIES: tuple[dict[str, Any], ...] = ({}, {"strategy": "scatter"}, {"keeps_views": False})
CASES = fractional(
    case(program, f"functionalize.{mode}")
    for program in programs_of("functionalize")
    for mode in ("real", "fake", "symbolic")
    if mode != "real" or program.topic != "drawn"  # how it is traced shows in the programs that were written by hand
)


def with_bases(done: Any, inputs: Sequence[Any]) -> list[Any]:
    """The arguments of a functional graph in which inputs that share memory have become one base."""
    groups = {member: group for group in done.replaced for member in group.members}
    return [
        groups[i].base(inputs) if i in groups else x
        for i, x in enumerate(inputs)
        if i not in groups or groups[i].members[0] == i
    ]


def _sharing(inputs: Sequence[Any]) -> list[tuple[int, ...]]:
    """Positions of inputs, by the storage they share with others."""
    groups: dict[int, list[int]] = {}
    for i, x in enumerate(inputs):
        if isinstance(x, Tensor):
            groups.setdefault(x.untyped_storage().data_ptr(), []).append(i)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def _forms(seen: Seen, eager: Seen) -> list[Any]:
    """For every result, whether it is lazily conjugated or negated, and its strides if eager's result is no view of an input."""
    results = sum(isinstance(result, Tensor) for result in eager.results)
    inputs = set(range(results, len(eager.layouts)))
    forms = []
    for (_, shape, (stride, _), _, *lazy, _, _), own in zip(seen.layouts[:results], eager.layouts, strict=False):
        strides = [step for size, step in zip(shape, stride, strict=True) if size > 1]
        forms.append((lazy, strides if inputs.isdisjoint(own[6]) else None))
    return forms


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize(("program", "mode"), CASES)
def test_a_functional_graph_computes_what_eager_computes(program: Program, mode: str) -> None:
    function = program.build()

    def make() -> Any:
        return program.make(False)

    def with_inputs(*given: Any) -> Any:
        return function(*given), *given

    with refusal(program, f"functionalize.{mode}"):
        torch.manual_seed(0)
        inputs = make().arguments
        groups = _sharing(inputs)
        graph = refimpl.make_fx(with_inputs, tracing_mode=mode)(*inputs)
        expected, untouched = observe(with_inputs, make), observe(lambda *given: None, make)
        for options in STRATEGIES:
            done = functionalize_graph(graph, alias_groups=groups, **options)
            actual = observe(lambda *given, done=done: done.graph_module(*with_bases(done, given)), make)
            assert_same(expected, actual, parts=("structure", "results"), is_exact=True, what=f"{options}: ")
            assert_same(untouched, actual, parts=("arguments",), is_exact=True, what=f"{options}: ")
            if options.get("keeps_views", True):
                assert _forms(actual, expected) == _forms(expected, expected), options
            _assert_written_are_told(
                done.written, untouched.arguments[: len(inputs)], expected.arguments[: len(inputs)]
            )


def _assert_written_are_told(written: Sequence[int], before: Sequence[Any], after: Sequence[Any]) -> None:
    __tracebackhide__ = True
    for i, (one, other) in enumerate(zip(before, after, strict=True)):
        if isinstance(one, Tensor) and one.shape == other.shape and not torch.equal(one, other):
            assert i in written, f"input {i} is written, but not said to be"
