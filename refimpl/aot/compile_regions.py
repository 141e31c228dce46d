"""Regions with a graph of their own (`invoke_subgraph`) in a program that AOT autograd traces: one forward and one backward graph
for all calls of a region.

Counterpart: torch/_higher_order_ops/invoke_subgraph.py InvokeSubgraphAutogradOp; torch/_functorch/_aot_autograd/graph_compile.py
run_joint_graph_passes_on_hops
Differs: a region is functionalized and partitioned when it is first traced, so the joint graph calls its final graphs. A gradient
is None where eager's is: if no tangent that it depends on is given.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from refimpl._torch import below_autograd, gradients_in_trace
from refimpl.aot.partition.default import default_partition
from refimpl.errors import MutatedRegionInput
from refimpl.functionalize import functionalize_graph
from refimpl.functionalize.schemas import facts_of
from refimpl.trace.higher_order.subgraphs import same_operands
from refimpl.trace.recording_mode import paused_recordings
from refimpl.trace.tracing import Trace, current_trace

_OPERATOR: Any = torch.ops.higher_order.invoke_subgraph
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plain:
    """A region without gradients. After its outputs, the graph returns the new values of the operands at `written`."""

    graph: torch.fx.GraphModule
    name: str
    closed_over: tuple[Any, ...]
    count: int
    written: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trained:
    """A region with gradients.

    count: how many results of the forward graph are the region's; the rest is saved, the tensors first, and the backward graph
    takes the `num_numbers` numbers first. tangents: the outputs that have one, with its fake. depends: for each gradient, the
    numbers of the tangents that it is computed from; None for an operand without gradient.
    """

    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule
    name: str
    closed_over: tuple[Any, ...]
    count: int
    num_numbers: int
    tangents: dict[int, torch.Tensor]
    depends: tuple[frozenset[int] | None, ...]


def call_region(run: Function, identifier: str, operands: Sequence[Any]) -> Any:
    """The results of a region, as a tuple. run: the region's function, which is traced when it is first seen.

    Returns NotImplemented if no trace with fake tensors is running. Raises MutatedRegionInput if the region writes to an operand
    and has gradients.
    """
    trace = current_trace()
    if trace is None or trace.fake_mode is None or trace.recording is None or not trace.recording.is_recording:
        return NotImplemented
    is_trained = torch.is_grad_enabled() and any(map(_requires_grad, operands))
    known = trace.recording.reused_graphs
    key = (identifier, is_trained, same_operands(operands), *map(_metadata, operands))
    plan = known.get(key)
    if plan is None:
        name = identifier
        for number in itertools.count(1):
            if (_OPERATOR, name) not in known:
                break
            name = f"{identifier}_{number}"
        known[_OPERATOR, name] = True
        shape_env: Any = trace.fake_mode.shape_env
        with contextlib.nullcontext() if shape_env is None else shape_env.ignore_fresh_unbacked_symbols():
            plan = known[key] = (_trained if is_trained else _plain)(trace, run, name, operands)
    if isinstance(plan, _Trained):
        return _Region.apply(plan, *operands, *plan.closed_over)
    with below_autograd():
        results = _OPERATOR(plan.graph, plan.name, *operands, *plan.closed_over)
    for position, new in zip(plan.written, results[plan.count :], strict=True):
        operands[position].copy_(new)
    return tuple(results[: plan.count])


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _metadata(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return str(value), type(value)
    return str(tuple(value.shape)), str(value.stride()), value.dtype, value.device, value.requires_grad


# ---------------------------------------------------------------------------------------------------- without gradients


def _plain(trace: Trace, run: Function, name: str, operands: Sequence[Any]) -> _Plain:
    subgraph = trace.trace_function(run, tuple(operands))
    graph_module = subgraph.graph_module
    output = graph_module.graph.output_node()
    returned = list(output.args[0])  # pyright: ignore[reportArgumentType]
    done = functionalize_graph(graph_module)
    if done.written:
        placeholders = graph_module.graph.find_nodes(op="placeholder")
        output.args = ((*returned, *(placeholders[position] for position in done.written)),)
        done = functionalize_graph(graph_module)
    _remove_unused(done.graph_module)
    return _Plain(
        graph=done.graph_module,
        name=name,
        closed_over=tuple(value for value, _ in subgraph.lifted),
        count=len(returned),
        written=done.written,
    )


def _remove_unused(module: torch.fx.GraphModule) -> None:
    """Remove ops that nothing reads, but for effects and random draws."""
    for node in reversed(module.graph.nodes):
        if node.op == "call_function" and not node.users:
            facts = facts_of(node.target)
            if not facts.is_effectful and not facts.is_random:
                module.graph.erase_node(node)
    module.recompile()


# ------------------------------------------------------------------------------------------------------- with gradients


def _trained(trace: Trace, run: Function, name: str, operands: Sequence[Any]) -> _Trained:
    with torch.no_grad():
        without = [_leaf(operand, requires_grad=False) for operand in operands]
        if functionalize_graph(trace.trace_function(run, tuple(without)).graph_module).written:
            raise MutatedRegionInput(name)
    leaves = [_leaf(operand, requires_grad=_requires_grad(operand)) for operand in operands]
    once = trace.trace_function(run, tuple(leaves))
    outputs = tuple(once.result)
    tangents = {i: _tangent(output) for i, output in enumerate(outputs) if _requires_grad(output)}
    inputs = [leaf for leaf in leaves if _requires_grad(leaf)]

    def joint(*values: Any) -> tuple[Any, ...]:
        with torch.enable_grad():
            results = tuple(run(*values[: len(leaves)]))
            chosen = [(results[i], values[len(leaves) + number]) for number, i in enumerate(tangents)]
            used = [(result, tangent) for result, tangent in chosen if result.requires_grad]
            found: Sequence[Any] = [None] * len(inputs)
            if used:
                ends, given = zip(*used, strict=True)
                found = gradients_in_trace(ends, inputs, given, allow_unused=True)
        each = iter(found)
        return (*results, *(next(each) if _requires_grad(leaf) else None for leaf in leaves))

    traced = trace.trace_function(joint, (*leaves, *tangents.values()))
    graph_module = functionalize_graph(traced.graph_module, num_tangents=0).graph_module
    _name_inputs(graph_module.graph, len(leaves), len(tangents))
    closed_over = tuple(value for value, _ in traced.lifted)
    forward, backward = default_partition(graph_module, None, num_fwd_outputs=len(outputs))
    return _Trained(
        forward=forward,
        backward=backward,
        name=name,
        closed_over=closed_over,
        count=len(outputs),
        num_numbers=sum(not isinstance(node.meta.get("val"), torch.Tensor) for node in _inputs(backward.graph)),
        tangents=tangents,
        depends=(*_dependences(backward.graph), *(None for _ in closed_over)),
    )


def _leaf(operand: Any, *, requires_grad: bool) -> Any:
    """A new fake like the operand, without history."""
    if not isinstance(operand, torch.Tensor):
        return operand
    with paused_recordings(), torch.no_grad():
        made = torch.empty_strided(operand.shape, operand.stride(), dtype=operand.dtype, device=operand.device)
    return made.requires_grad_(requires_grad)


def _tangent(output: torch.Tensor) -> torch.Tensor:
    with paused_recordings(), torch.no_grad():
        return torch.empty(output.shape, dtype=output.dtype, device=output.device)


def _inputs(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return list(graph.find_nodes(op="placeholder"))


def _name_inputs(graph: torch.fx.Graph, num_operands: int, num_tangents: int) -> None:
    """Name the placeholders as partitioners expect them."""
    for position, node in enumerate(_inputs(graph)):
        is_tangent = num_operands <= position < num_operands + num_tangents
        name = f"tangents_{position - num_operands}" if is_tangent else f"primals_{position}"
        node.target = node.name = name


def _dependences(graph: torch.fx.Graph) -> list[frozenset[int] | None]:
    tangents = [node for node in _inputs(graph) if str(node.target).startswith("tangents_")]
    reached: dict[Any, frozenset[int]] = {}
    for node in graph.nodes:
        if node.op == "output":
            return [reached[r] if isinstance(r, torch.fx.Node) else None for r in node.args[0]]
        of_inputs = [reached[used] for used in node.all_input_nodes]
        reached[node] = frozenset({tangents.index(node)}) if node in tangents else frozenset().union(*of_inputs)
    raise AssertionError("a graph without an output")


class _Region(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: _Trained, *operands: Any) -> Any:
        with below_autograd():
            results = _OPERATOR(plan.forward, f"partitioned_fw_{plan.name}_0", *operands)
        ctx.plan, ctx.saved = plan, results[plan.count :]
        outputs = tuple(results[: plan.count])
        plain = [o for i, o in enumerate(outputs) if isinstance(o, torch.Tensor) and i not in plan.tangents]
        ctx.mark_non_differentiable(*plain)
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        plan: _Trained = ctx.plan
        given = [gradients[i] for i in plan.tangents]
        arrived = {number for number, gradient in enumerate(given) if gradient is not None}
        like = plan.tangents.values()
        tangents = [_zeros(t) if g is None else g.contiguous() for g, t in zip(given, like, strict=True)]
        tensors = [value for value in ctx.saved if isinstance(value, torch.Tensor)]
        numbers = [value for value in ctx.saved if not isinstance(value, torch.Tensor)]
        with below_autograd():
            results = _OPERATOR(plan.backward, f"partitioned_bw_{plan.name}_0", *numbers, *tensors, *tangents)
        found: list[Any] = [None]
        for position, depends in enumerate(plan.depends):
            found.append(None if not depends or depends.isdisjoint(arrived) else results[position])
        return tuple(found)


def _zeros(like: torch.Tensor) -> torch.Tensor:
    return torch.zeros(like.shape, dtype=like.dtype, device=like.device)
