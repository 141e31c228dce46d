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


def wrong_calls(*operators: str, backward: bool = False) -> Callable[[Wrong], Backend]:
    """Make a function the backend that calls it in place of these operators, in forward graphs or in backward graphs."""

    def backend_of(wrong: Wrong) -> Backend:
        rules = dict.fromkeys(operators, wrong)
        return named_after(wrong, aten_backend({}, rules) if backward else aten_backend(rules))

    return backend_of


def edited_backend(edit: Callable[[GraphModule], None]) -> Backend:
    """Make a function that changes a graph a backend that applies it to aten forward graphs."""

    def compile_edited(gm: GraphModule, example_inputs: Any) -> Callable[..., Any]:
        edit(gm)
        gm.recompile()
        return gm.forward

    def compile_plain(gm: GraphModule, example_inputs: Any) -> Callable[..., Any]:
        return gm.forward

    return named_after(edit, aot_autograd(fw_compiler=compile_edited, bw_compiler=compile_plain))


def named_after(function: Callable[..., Any], backend: Backend) -> Backend:
    """The backend as a function with another one's name, module and docstring, so that its import path leads to it."""

    def named(gm: GraphModule, example_inputs: Any) -> Callable[..., Any]:
        return backend(gm, example_inputs)

    named.__name__, named.__qualname__ = function.__name__, function.__qualname__
    named.__module__, named.__doc__ = function.__module__, function.__doc__
    return named
