"""A backend that keeps the graphs of capture and of AOT autograd, and a comparison with eager, for tests of operators that hold
graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

import refimpl
from refimpl.aot_entry_points import aot_module_simplified

Tensor = torch.Tensor


class Graphs:
    """The graphs of everything compiled with it as the backend: those captured, and their forwards and backwards."""

    def __init__(self) -> None:
        self.captured: list[GraphModule] = []
        self.forward: list[GraphModule] = []
        self.backward: list[GraphModule] = []

    def __call__(self, graph: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
        def keep(into: list[GraphModule]) -> Callable[..., Any]:
            return lambda module, _: (into.append(module), module)[1]

        self.captured.append(graph)
        return aot_module_simplified(graph, examples, keep(self.forward), keep(self.backward))


def calls(module: GraphModule, name: str, *, is_deep: bool = False) -> list[torch.fx.Node]:
    """The calls of a higher-order operator, with those in graphs of functions if `is_deep`."""
    modules = [m for m in module.modules() if isinstance(m, GraphModule)] if is_deep else [module]
    nodes = (node for each in modules for node in each.graph.find_nodes(op="call_function", sort=True, **_target(name)))
    return list(nodes)


def _target(name: str) -> dict[str, Any]:
    return {"target": getattr(torch.ops.higher_order, name)}


def graphs_of(module: GraphModule) -> set[str]:
    """The names of the attributes that the graph reads."""
    return {str(node.target) for node in module.graph.find_nodes(op="get_attr")}


def copies(args: Sequence[Any]) -> list[Any]:
    """The arguments with leaves of their own in place of tensors."""
    return [a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a for a in args]


def assert_same(ours: Any, theirs: Any) -> None:
    """Compares values in the same containers."""
    ours, ours_spec = pytree.tree_flatten(ours)
    theirs, theirs_spec = pytree.tree_flatten(theirs)
    assert ours_spec == theirs_spec
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(one, Tensor):
            torch.testing.assert_close(one, other)
            assert one.requires_grad == other.requires_grad
        else:
            assert one == other


def assert_as_eager(program: Callable[..., Any], *args: Any, **options: Any) -> Graphs:
    """Compares results, gradients (None too), and arguments after the call. Compiles with AOT autograd; returns its graphs."""
    graphs = Graphs()
    compiled = refimpl.compile(program, backend=graphs, fullgraph=True, **options)
    found = []
    for function in (compiled, program):
        given = copies(args)
        torch.manual_seed(5)
        results = function(*given)
        leaves = [t for t in pytree.tree_leaves(results) if isinstance(t, Tensor) and t.requires_grad]
        if leaves:
            torch.autograd.backward(
                [(leaf * torch.linspace(1, 2, leaf.numel()).view(leaf.shape)).sum() for leaf in leaves]
            )
        gradients = [a.grad for a in given if isinstance(a, Tensor)]
        detached = pytree.tree_map_only(Tensor, lambda t: t.detach(), results)
        found.append((detached, gradients, [a.detach() if isinstance(a, Tensor) else a for a in given]))
    assert_same(*found)
    return graphs
