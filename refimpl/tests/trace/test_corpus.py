"""The corpus through make_fx: a graph does what its program does, and holds the ops that torch's own make_fx records."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx as torch_make_fx

import refimpl
from refimpl.tests.corpus import Program, fractional, programs_of
from refimpl.tests.corpus.compare import assert_same, observe

MODES = ("real", "fake", "symbolic")
CASES = fractional(
    (program, mode) for program in programs_of("trace") for mode in MODES if mode == "real" or not program.needs_data
)
SIZE_QUERIES = {torch.ops.aten.sym_size.int, torch.ops.aten.sym_stride.int, torch.ops.aten.sym_numel.default}
SEEN = ("structure", "results", "arguments", "layouts", "random_state")


# Symbolic traces have eager's matmul, whose last step is an unsafe view; torch's have a Python kernel that ends with a view.
SAME = {torch.ops.aten._unsafe_view.default: torch.ops.aten.view.default}


def _ops(graph: torch.fx.Graph) -> collections.Counter[Any]:
    """What computes. How often a size is read, and from which tensor, is a matter of taste."""
    targets = [node.target for node in graph.nodes if node.op == "call_function"]
    return collections.Counter(SAME.get(target, target) for target in targets if target not in SIZE_QUERIES)


@pytest.mark.parametrize(("program", "mode"), CASES, ids=str)
def test_the_graph_does_what_the_program_does(program: Program, mode: str) -> None:
    function, requires_grad = program.build(), program.with_gradients == (True,)
    graphs = []
    for make_fx in (refimpl.make_fx, torch_make_fx):
        torch.manual_seed(0)
        graphs.append(make_fx(function, tracing_mode=mode)(*program.make(requires_grad).arguments))  # pyright: ignore
    ours, theirs = graphs
    assert _ops(ours.graph) == _ops(theirs.graph)
    assert [n.target for n in ours.graph.find_nodes(op="placeholder")] == [
        n.target for n in theirs.graph.find_nodes(op="placeholder")
    ]
    expected, actual = (observe(f, lambda: program.make(requires_grad)) for f in (function, ours))
    assert_same(expected, actual, parts=SEEN, is_exact=True)
