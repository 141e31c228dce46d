"""Dropout of weights of attention as a factor: what is kept is drawn by itself, and no value has a part in it.

`native_dropout` takes weights and gives what is left of them together with a mask, which the backward needs. As a product with a
mask, weights need no memory (`lowering.regions`). Only where kernels draw the random numbers: the
operator's own need its own call.

Counterpart: torch/_inductor/fx_passes/fuse_attention.py, whose patterns with dropout become calls of an operator that draws
"""

from __future__ import annotations

import operator
from typing import Any, cast

import sympy
import torch

from refimpl.codegen.indices import to_index
from refimpl.codegen.lowering.regions import conversions_of, softmax_of

aten = torch.ops.aten


def draw_masks_apart(graph: torch.fx.Graph) -> int:
    """Changes a joint graph, whose nodes have fake values; gives how many calls are changed."""
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
        """A node, with a fake value."""
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
