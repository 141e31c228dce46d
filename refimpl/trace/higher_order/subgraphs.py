"""Rules of higher-order operators that call one function once.

Counterpart: torch/_higher_order_ops/base_hop.py, invoke_subgraph.py, wrap.py, hints_wrap.py, strict_mode.py, run_const_graph.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl._torch import SYMBOLIC_TYPES, pytree
from refimpl.trace.graph_builder import LITERALS
from refimpl.trace.higher_order.calls import IS_RECORDED, HigherOrderCall, Recorded, Rule
from refimpl.trace.higher_order.compile_regions import KeptRegion, content

Function = Callable[..., Any]


def function_first(stem: str) -> Rule:
    """The rule of `operator(function, *operands, **keywords)`; the graph is called `<stem>0`. A keyword's object that graph code
    has no literal for is an attribute of the graph module.
    """

    def rule(call: HigherOrderCall, function: Function, *operands: Any, **kwargs: Any) -> Recorded:
        subgraph = call.trace(function, operands)
        operands = (*operands, *call.lifted(subgraph))
        (node,) = call.attach({stem: subgraph.graph_module})
        if call.fake_mode is None:
            result = call.run(subgraph.graph_module, *operands, **kwargs)
        else:
            result = call.fresh(subgraph.result)
        settings = {name: value if _is_printed(value) else call.constant(value) for name, value in kwargs.items()}
        return Recorded(args=(node, *operands), kwargs=settings, result=result)

    return rule


def _is_printed(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, tuple, list, dict, *SYMBOLIC_TYPES, *LITERALS))


def operands_second(stem: str) -> Rule:
    """The rule of `operator(function, operands)`."""

    def rule(call: HigherOrderCall, function: Function, operands: Sequence[Any]) -> Recorded:
        subgraph = call.trace(function, operands)
        operands = type(operands)((*operands, *call.lifted(subgraph)))  # pyright: ignore[reportCallIssue]
        (node,) = call.attach({stem: subgraph.graph_module})
        if call.fake_mode is None:
            result = call.run(subgraph.graph_module, operands)
        else:
            result = call.fresh(subgraph.result)
        return Recorded(args=(node, operands), kwargs={}, result=result)

    return rule


def invoke_subgraph(call: HigherOrderCall, function: Function, identifier: str, *operands: Any) -> Recorded:
    """Node: invoke_subgraph(repeated_subgraph0, identifier, *operands). Calls with the same identifier share a graph.

    A function with closed-over values has a graph for each call, because another call may close over others. A graph of calls
    with one tensor at two places has one input for both, and does not serve calls with two.
    """
    if isinstance(function, KeptRegion):
        return _kept_region(call, function, operands)
    key = (identifier, same_operands(operands))
    known = call.recording.reused_graphs.get(key)
    if known is None:
        subgraph = call.trace(function, operands)
        (node,) = call.attach({"repeated_subgraph": subgraph.graph_module})
        if not subgraph.lifted:
            call.recording.reused_graphs[key] = subgraph, node
    else:
        subgraph, node = known
        node = call.recording.builder.graph.get_attr(str(node.target))
    operands = (*operands, *call.lifted(subgraph))
    if call.fake_mode is None:
        result: Any = call.run(subgraph.graph_module, identifier, *operands)
    elif known is None:
        result = call.fresh(subgraph.result)
    else:  # the operands may have other sizes than those of the first call
        with call.fake_mode:
            result = call.fresh(subgraph.graph_module(*operands))
    return Recorded(args=(node, identifier, *operands), kwargs={}, result=result)


def _kept_region(call: HigherOrderCall, region: KeptRegion, operands: Sequence[Any]) -> Recorded:
    """The node of a region that is called by the program. An equal graph that the trace has already takes the place of its own.

    Closed-over values are operands too, so that equal layers have one graph.
    """
    subgraph = call.trace(region, operands)
    token = IS_RECORDED.set(True)  # the node is as good for gradients as the region's operators
    try:
        operands = (*operands, *call.lifted(subgraph))
    finally:
        IS_RECORDED.reset(token)
    key = (KeptRegion, region.code, same_operands(operands), *content(subgraph.graph_module, "val"))
    known = call.recording.reused_graphs
    if key in known:
        name, target = known[key]
        node = call.recording.builder.graph.get_attr(target)
    else:
        (node,) = call.attach({"repeated_subgraph": subgraph.graph_module})
        name = f"subgraph_{sum(each[0] is KeptRegion for each in known if isinstance(each, tuple))}"
        known[key] = name, str(node.target)
    if call.fake_mode is None:
        result: Any = call.run(subgraph.graph_module, name, *operands)
    else:
        result = call.fresh(subgraph.result)
    return Recorded(args=(node, name, *operands), kwargs={}, result=result)


def same_operands(operands: Sequence[Any]) -> tuple[int, ...]:
    """For each operand the first place at which the same object or symbolic number is: (0, 1, 0) for (x, y, x)."""
    names = [str(operand) if isinstance(operand, SYMBOLIC_TYPES) else id(operand) for operand in operands]
    return tuple(map(names.index, names))


def hints_wrapper(
    call: HigherOrderCall, function: Function, args: Sequence[Any], kwargs: dict[str, Any], hints: Any
) -> Recorded:
    """Node: hints_wrapper(hints_wrapper_body_graph_0, operands, {}, hints=hints)."""
    leaves, spec = pytree.tree_flatten((tuple(args), kwargs))

    def flat(*operands: Any) -> Any:
        args, kwargs = pytree.tree_unflatten(list(operands), spec)
        return function(*args, **kwargs)

    subgraph = call.trace(flat, leaves)
    operands = (*leaves, *call.lifted(subgraph))
    (node,) = call.attach({"hints_wrapper_body_graph_": subgraph.graph_module})
    if call.fake_mode is None:
        result = call.run(subgraph.graph_module, operands, {}, hints=hints)
    else:
        result = call.fresh(subgraph.result)
    return Recorded(args=(node, operands, {}), kwargs={"hints": hints}, result=result)
