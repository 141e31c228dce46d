"""Recomputes the scores of attention in the backward, for attention written in several operators, so that neither graph stores
them.

The forward saves the maximum of each row and the sum of its exponentials, from which the backward recomputes the weights. This
pays only if both graphs have a region there (`regions`). Lowering the regions of the joint graph shows whether they do.

Counterpart: torch/_inductor/fx_passes/fuse_attention.py, whose training patterns replace a joint graph's nodes by operators;
torch/_inductor/fx_passes/fuse_attention.py, whose patterns with dropout become calls of an operator that draws
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import sympy
import torch
from torch.utils.checkpoint import CheckpointPolicy

from refimpl.codegen.indices import to_index
from refimpl.codegen.loop_ir import Buffer
from refimpl.codegen.lowering.graph import RULES
from refimpl.codegen.lowering.regions import (
    COPIES,
    NotARegion,
    Region,
    conversions_of,
    find_forward,
    find_gradients,
    softmax_of,
)
from refimpl.codegen.lowering.state import LoweringState, NotLowered, whole
from refimpl.codegen.lowering.tiles import lower_region
from refimpl.codegen.options import CodegenOptions
from refimpl.codegen.sizes import facts_of


@dataclass(frozen=True)
class RecomputedAttention:
    """Nodes of a joint graph's forward: `again` are recomputed in the backward, `kept` are saved for it."""

    again: tuple[torch.fx.Node, ...] = ()
    kept: tuple[torch.fx.Node, ...] = ()


@contextlib.contextmanager
def tagged_for_recomputation(
    joint_module: torch.fx.GraphModule, num_fwd_outputs: int, options: CodegenOptions
) -> Iterator[frozenset[str]]:
    """Tags the joint graph's nodes for the partitioner while the context is open. Yields the names of the tagged nodes. If
    kernels draw random numbers, dropout of the weights becomes a product with a mask first."""
    graph = joint_module.graph
    if options.fuse_attention and options.random == "philox" and draw_masks_apart(graph):
        joint_module.recompile()
    found = find_recomputed(graph, num_fwd_outputs, options) if options.fuse_attention else RecomputedAttention()
    for nodes, policy in (
        (found.again, CheckpointPolicy.MUST_RECOMPUTE),
        (found.kept, CheckpointPolicy.MUST_SAVE),
    ):
        for node in nodes:
            node.meta["recompute"] = policy
    try:
        yield frozenset(node.name for node in (*found.again, *found.kept))
    finally:
        for node in (*found.again, *found.kept):
            del node.meta["recompute"]


def without_tags(graph_module: torch.fx.GraphModule, names: frozenset[str]) -> torch.fx.GraphModule:
    """The graph, with the tags of the named nodes removed."""
    for node in graph_module.graph.nodes:
        if node.name in names:
            node.meta.pop("recompute", None)
    return graph_module


def find_recomputed(graph: torch.fx.Graph, num_fwd_outputs: int, options: CodegenOptions) -> RecomputedAttention:
    """Finds all attention that both graphs can compute without scores in memory."""
    order = {node: at for at, node in enumerate(graph.nodes)}
    forward = _behind([item for item in _outputs(graph)[:num_fwd_outputs] if isinstance(item, torch.fx.Node)])
    state = LoweringState(options, facts=facts_of(n.meta.get("val") for n in graph.nodes if n.op == "placeholder"))
    again: dict[torch.fx.Node, None] = {}
    kept: dict[torch.fx.Node, None] = {}
    for node in forward:
        region = _found(find_forward, node, order, lambda user: user not in forward)
        if region is None or region.softmax is None or any("recompute" in inner.meta for inner in region.nodes):
            continue
        of_rows = (region.softmax.greatest, region.softmax.total)
        tiles = [one for one in region.nodes if one not in (*region.results, *of_rows)]
        gradients = _gradients_of(region, graph, order, forward.keys() - set(tiles))
        if gradients is not None and _is_lowered(state, region) and _is_lowered(state, gradients):
            again.update(dict.fromkeys([*tiles, *_copies_below(region)]))
            kept.update(dict.fromkeys(of_rows))
    return RecomputedAttention(tuple(again), tuple(kept))


def _copies_below(region: Region) -> list[torch.fx.Node]:
    """Views and copies that a region reads. Recomputing them as well lets the backward read their bases."""
    found: list[torch.fx.Node] = []
    stack = [
        source
        for node in (*region.products, *region.results)
        for source in node.all_input_nodes
        if source not in region.nodes
    ]
    while stack:
        node = stack.pop()
        if node.op == "call_function" and node.target in COPIES and "recompute" not in node.meta:
            found.append(node)
            stack.extend(node.all_input_nodes)
    return found


def _gradients_of(
    forward: Region, graph: torch.fx.Graph, order: dict[torch.fx.Node, int], ignored: set[torch.fx.Node]
) -> Region | None:
    for node in graph.nodes:
        made = _found(find_gradients, node, order, ignored.__contains__)
        if made is not None and not set(forward.products).isdisjoint(made.products):
            return made
    return None


def _found(find: Callable[..., Region | None], *arguments: Any) -> Region | None:
    try:
        return find(*arguments)
    except NotARegion:
        return None


def _is_lowered(state: LoweringState, region: Region) -> bool:
    """Whether the region lowers to kernels if all of its inputs are in memory."""
    values: dict[torch.fx.Node, Any] = {}
    for node in region.inputs:
        fake = node.meta.get("val")
        if isinstance(fake, torch.Tensor):
            shape, strides = (tuple(to_index(number) for number in numbers) for numbers in (fake.shape, fake.stride()))
            values[node] = whole(Buffer(node.name, shape, strides, fake.dtype, fake.device))
        else:
            values[node] = to_index(fake) if isinstance(fake, torch.SymInt) else fake
    try:
        lower_region(state, region, values, RULES.get)
    except NotLowered:
        return False
    return True


def _behind(nodes: Sequence[torch.fx.Node]) -> dict[torch.fx.Node, None]:
    """The nodes, and all that they are computed from."""
    found: dict[torch.fx.Node, None] = {}
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found[node] = None
            stack.extend(node.all_input_nodes)
    return found


def _outputs(graph: torch.fx.Graph) -> Sequence[Any]:
    returned: Any = graph.output_node().args[0]
    return returned


# Rewrites dropout of attention weights as a product with a mask that is drawn separately. `native_dropout` returns the dropped
# weights together with a mask, which the backward needs; a product with a mask needs no weights in memory (`lowering.regions`).
# This is done only if kernels draw the random numbers: the operators' own numbers need a call of the operator.

aten = torch.ops.aten


def draw_masks_apart(graph: torch.fx.Graph) -> int:
    """Rewrites dropout in a joint graph, whose nodes have fake values. Returns the number of rewritten calls."""
    calls = [
        user
        for node in list(graph.nodes)
        if softmax_of(node) is not None
        for weights in conversions_of(node)
        for user in weights.users
        if user.target is aten.native_dropout.default and user.args[0] is weights
    ]
    return sum(_apart(graph, call) for call in dict.fromkeys(calls))


def _apart(graph: torch.fx.Graph, call: torch.fx.Node) -> bool:
    weights, p, train, *_ = cast(Any, (*call.args, None))
    results = [user for user in call.users if user.target is operator.getitem]
    output, mask = call.meta["val"]
    is_drawn = train is True and isinstance(p, (int, float)) and 0 < p < 1 and len(results) == len(call.users)
    if not is_drawn or len({_strides(fake) for fake in (weights.meta["val"], output, mask)}) > 1:
        return False

    def insert(target: Any, *arguments: Any, **keywords: Any) -> torch.fx.Node:
        """Inserts a node with a fake value."""
        made = graph.call_function(target, arguments, keywords)
        values, options = torch.fx.map_arg((arguments, keywords), lambda node: node.meta["val"])
        with output.fake_mode:
            made.meta.update({**call.meta, "val": target(*cast(Any, values), **cast(Any, options))})
        return made

    wide = torch.promote_types(output.dtype, torch.float32)
    with graph.inserting_before(call):
        kept = insert(aten.bernoulli.p, insert(aten.empty_like.default, weights, dtype=mask.dtype), 1 - p)
        factor = insert(aten.mul.Tensor, insert(aten._to_copy.default, kept, dtype=wide), 1 / (1 - p))
        left = insert(aten.mul.Tensor, weights, factor)
        if output.dtype != wide:
            left = insert(aten._to_copy.default, left, dtype=output.dtype)
    for result in results:
        result.replace_all_uses_with(kept if result.args[1] else left)
        graph.erase_node(result)
    graph.erase_node(call)
    return True


def _strides(fake: torch.Tensor) -> tuple[sympy.Expr, ...]:
    return tuple(to_index(step) for step in fake.stride())
