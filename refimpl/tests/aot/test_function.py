"""Lines of the program in graphs that were captured before they are compiled ahead of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import refimpl
from refimpl.aot_entry_points import aot_module_simplified


def two_arguments(requires_grad: bool = True) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    torch.manual_seed(0)
    x = torch.randn(3, 4, requires_grad=requires_grad)
    y = torch.randn(3, 4, requires_grad=requires_grad)
    return [x, y], [x.add(1), y.add(1)]


@pytest.mark.parametrize("front_end", [refimpl.compile, torch.compile], ids=["refimpl", "torch"])
def test_nodes_of_a_captured_graph_keep_their_lines(front_end: Callable[..., Any]) -> None:
    """So do those of the backward graph, which have the line of what they are the gradient of."""
    lines: dict[str, str] = {}

    def compiler(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        for node in graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.cos.default):
            lines["backward" if node.meta.get("autograd_backward") else "forward"] = node.stack_trace or ""
        return graph_module.forward

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return aot_module_simplified(graph_module, example_inputs, fw_compiler=compiler)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.cos() * 2
        return y.sin()

    front_end(program, backend=backend)(torch.ones(3, requires_grad=True)).sum().backward()
    assert "y = x.cos() * 2" in lines["forward"]
    assert "return y.sin()" in lines["backward"]
