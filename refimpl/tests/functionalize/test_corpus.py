"""The corpus functionalized by both strategies, with views and with copies: eager mode's values, and no input is written to."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import refimpl
from refimpl.functionalize import functionalize_graph
from refimpl.tests.corpus import Program, case, programs_of, refusal
from refimpl.tests.corpus.compare import assert_same, observe

STRATEGIES: tuple[dict[str, Any], ...] = ({}, {"strategy": "scatter"}, {"keeps_views": False})
CASES = [
    case(program, f"functionalize.{mode}")
    for program in programs_of("functionalize")
    for mode in ("real", "fake", "symbolic")
]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize(("program", "mode"), CASES)
def test_a_functional_graph_computes_what_eager_computes(program: Program, mode: str) -> None:
    function = program.build()

    def with_inputs(*given: Any) -> Any:
        return function(*given), *given

    with refusal(program, f"functionalize.{mode}"):
        torch.manual_seed(0)
        graph = refimpl.make_fx(with_inputs, tracing_mode=mode)(*program.make(False).arguments)
        expected = observe(with_inputs, lambda: program.make(False))
        untouched = observe(lambda *given: None, lambda: program.make(False))
        for options in STRATEGIES:
            actual = observe(functionalize_graph(graph, **options).graph_module, lambda: program.make(False))
            assert_same(expected, actual, parts=("structure", "results"), is_exact=True, what=f"{options}: ")
            if options.get("keeps_views", True):  # lazily conjugated and negated results stay so
                tensors = sum(isinstance(result, torch.Tensor) for result in expected.results)
                assert [one[3:5] for one in actual.layouts[:tensors]] == [
                    one[3:5] for one in expected.layouts[:tensors]
                ]
            assert_same(untouched, actual, parts=("arguments",), is_exact=True, what=f"{options}: ")
