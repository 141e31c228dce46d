"""functionalize: make a function run as a graph without mutation. Autograd and tracers see the graph's ops.

Counterpart: torch/_functorch/eager_transforms.py functionalize
Differs: every call traces and functionalizes the whole function, then runs the graph. Upstream wraps the arguments and rewrites
each op as it runs. A function that reads a value out of a tensor (`.item()`) cannot be traced.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch

from refimpl._torch import pytree
from refimpl.aot.analysis.metadata import OutputInfo, OutputKind, ProgramAnalysis
from refimpl.aot.functional_call import create_tree_flattened_fn
from refimpl.aot.functional_program import FunctionalProgram, ProgramRequest, functional_program
from refimpl.aot.options import AOTConfig
from refimpl.aot.runtime.graph_call import with_flat_bases
from refimpl.aot.runtime.wrapper import runtime_wrapper
from refimpl.errors import BadParameter
from refimpl.functionalize import functionalize_graph

Removed = Literal["mutations", "mutations_and_views"]
_REMOVED = ("mutations", "mutations_and_views")
_VIEWS = (OutputKind.VIEW_OF_INPUT, OutputKind.VIEW_OF_INTERMEDIATE)


def functionalize(func: Callable[..., Any], *, remove: Removed = "mutations") -> Callable[..., Any]:
    """A function like `func` whose ops do not write to tensors and, with "mutations_and_views", make no views.

    Mutations of arguments are copied into them at the end. Every call is traced, so there are no guards. Raises BadParameter for
    another `remove`, and whatever `func` raises.
    """
    if remove not in _REMOVED:
        raise BadParameter(
            seen=f"functionalize(remove={remove!r})", expected=f"one of {', '.join(map(repr, _REMOVED))}"
        )

    @functools.wraps(func)
    def run(*args: Any, **kwargs: Any) -> Any:
        flat, structure = create_tree_flattened_fn(func, args, kwargs)
        leaves = pytree.tree_leaves((args, kwargs))
        request = ProgramRequest(function=flat, args=leaves, config=AOTConfig(), wants_backward=False)
        program = functional_program(request)
        if _is_differentiated(leaves) and _has_wrong_gradient(program):
            program = functional_program(replace(request, config=AOTConfig(functionalization="scatter")))
        if remove == "mutations_and_views":
            graph_module = functionalize_graph(program.graph_module, keeps_views=False).graph_module
            program = replace(program, graph_module=graph_module)
        return structure.unflatten(_run(program, leaves, has_views=remove == "mutations"))

    return run


def _is_differentiated(leaves: list[Any]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)


def _has_wrong_gradient(program: FunctionalProgram) -> bool:
    """Whether the graph has as_strided_scatter: torch 2.13 gives `self` the gradient of the overwritten elements, and none to
    the others."""
    return any(node.target is torch.ops.aten.as_strided_scatter.default for node in program.graph_module.graph.nodes)


def _run(program: FunctionalProgram, leaves: list[Any], *, has_views: bool) -> list[Any]:
    """Run the graph in the caller's grad mode, then write mutations to the arguments, then make results that are views."""
    graph = with_flat_bases(lambda slots: program.graph_module(*slots), program.replaced)

    def forward(holder: list[Any], slots: list[Any]) -> tuple[torch.Tensor, ...]:
        holder.extend(graph(slots))
        return tuple(holder[position] for position in program.analysis.differentiable)

    call = runtime_wrapper(
        _as_computed(program.analysis, has_views=has_views),
        program.traced.plan,
        inference=None,
        training=forward,
        aot_id=-1,
        captured=program.traced.captured,
    )
    results = call(leaves)
    if has_views:
        return results
    return [
        torch.view_copy(result, result.shape)
        if info.kind in _VIEWS and any(result is leaf for leaf in leaves)
        else result
        for info, result in zip(program.analysis.outputs, results, strict=True)
    ]


def _as_computed(analysis: ProgramAnalysis, *, has_views: bool) -> ProgramAnalysis:
    """The analysis for a graph whose ops autograd records itself: any input may require grad, and results that the graph computes
    are returned as they are. Without views, so are results that were views."""
    inputs = tuple(replace(info, requires_grad=True) for info in analysis.inputs)

    def output(info: OutputInfo) -> OutputInfo:
        is_new = info.kind is OutputKind.FRESH or (info.kind in _VIEWS and not has_views)
        return replace(info, kind=OutputKind.FRESH, steps=()) if is_new else info

    return replace(analysis, inputs=inputs, outputs=tuple(map(output, analysis.outputs)), owned=())
