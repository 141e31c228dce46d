"""Makes backends that are wrong for some operators: calls in a graph are replaced by calls of wrong functions.

`aten_backend` replaces calls in the forward and backward graphs of AOT autograd, `graph_backend` in the captured graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

Wrong: TypeAlias = Callable[..., Any]  # called as wrong(op, *args, **kwargs)
Rules: TypeAlias = Mapping[str, Wrong]  # "aten.add" (all overloads) or "aten.add.Tensor" -> its replacement


Backend: TypeAlias = Callable[[GraphModule, Any], Callable[..., Any]]


def with_wrong_calls(gm: GraphModule, rules: Rules) -> GraphModule:
    """Replace calls in the graph module, in place."""
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        name = str(node.target)
        wrong = rules.get(name) or rules.get(name.rpartition(".")[0])
        if wrong is not None:
            node.args = (node.target, *node.args)
            node.target = wrong
    gm.recompile()
    return gm


def aten_backend(forward: Rules, backward: Rules | None = None) -> Backend:
    """A backend with one table of replacements for forward (and inference) graphs, and one for backward graphs."""

    def compile_forward(gm: GraphModule, example_inputs: Any) -> Callable[..., Any]:
        return with_wrong_calls(gm, forward).forward

    def compile_backward(gm: GraphModule, example_inputs: Any) -> Callable[..., Any]:
        return with_wrong_calls(gm, backward if backward is not None else {}).forward

    return aot_autograd(fw_compiler=compile_forward, bw_compiler=compile_backward)


def edited_backend(edit: Callable[[GraphModule], None], *, backward: bool = False) -> Backend:
    """A backend whose aten graphs are changed by a function."""

    def compile_edited(gm: GraphModule, example_inputs: Any) -> Callable[..., Any]:
        edit(gm)
        gm.recompile()
        return gm.forward

    def compile_plain(gm: GraphModule, example_inputs: Any) -> Callable[..., Any]:
        return gm.forward

    first, second = (compile_plain, compile_edited) if backward else (compile_edited, compile_plain)
    return aot_autograd(fw_compiler=first, bw_compiler=second)
