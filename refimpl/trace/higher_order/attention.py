"""Rules of flex_attention and its backward: the functions that change scores and masks are traced on single elements.

Counterpart: torch/_higher_order_ops/flex_attention.py trace_flex_attention, trace_flex_attention_backward
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from refimpl._torch import pytree
from refimpl.trace.higher_order.calls import HigherOrderCall, Recorded, Subgraph

Function = Callable[..., Any]
_GETITEM: Any = torch.Tensor.__getitem__


class IndexedByTensors(TorchFunctionMode):
    """`bias[q, k]` is the operator `index`, also for tensors of one integer, which would otherwise be read as numbers.

    Counterpart: torch/_dynamo/_trace_wrapped_higher_order_op.py TransformGetItemToIndex
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _GETITEM:
            indices = pytree.tree_leaves(args[1])
            if any(isinstance(index, torch.Tensor) for index in indices) and all(map(_is_index, indices)):
                return torch.ops.aten.index(args[0], [_as_index(index, args[0]) for index in indices])
        return func(*args, **(kwargs or {}))


def _is_index(index: Any) -> bool:
    return isinstance(index, torch.Tensor) or type(index) is int


def _as_index(index: Any, indexed: torch.Tensor) -> torch.Tensor:
    return index if isinstance(index, torch.Tensor) else torch.tensor(index, device=indexed.device)


def elements(like: torch.Tensor, *, count: int) -> tuple[torch.Tensor, ...]:
    """Integers for batch, head, query and key."""
    return tuple(torch.zeros((), dtype=torch.int32, device=like.device) for _ in range(count))


def score_of(query: torch.Tensor) -> torch.Tensor:
    """One score, in the dtype of the query."""
    return torch.zeros((), dtype=query.dtype, device=query.device)


def flex_attention(
    call: HigherOrderCall,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Function,
    block_mask: tuple[Any, ...],
    scale: Any,
    kernel_options: dict[str, Any],
    score_buffers: Sequence[Any] = (),
    mask_buffers: Sequence[Any] = (),
) -> Recorded:
    """Node: flex_attention(query, key, value, sdpa_score0, (..., sdpa_mask0), scale, options, buffers of both)."""
    positions, score = _examples(call, query)
    scores = _traced(call, score_mod, (score, *positions, *score_buffers))
    masks = _traced(call, block_mask[-1], (*positions, *mask_buffers))
    score_buffers = (*score_buffers, *call.lifted(scores))
    mask_buffers = (*mask_buffers, *call.lifted(masks))
    score_node, mask_node = call.attach({"sdpa_score": scores.graph_module, "sdpa_mask": masks.graph_module})
    blocks = block_mask[:-1]
    result = call.run(
        query, key, value, scores.graph_module, (*blocks, masks.graph_module), scale, kernel_options,
        score_buffers, mask_buffers,
    )  # fmt: skip
    args = (query, key, value, score_node, (*blocks, mask_node), scale, kernel_options, score_buffers, mask_buffers)
    return Recorded(args=args, kwargs={}, result=result)


def flex_attention_backward(
    call: HigherOrderCall,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    grad_out: Any,
    grad_logsumexp: Any,
    fw_graph: Function,
    joint_graph: Function,
    block_mask: tuple[Any, ...],
    scale: Any,
    kernel_options: dict[str, Any],
    score_buffers: Sequence[Any] = (),
    mask_buffers: Sequence[Any] = (),
) -> Recorded:
    """Node: flex_attention_backward(..., fw_graph0, joint_graph0, (..., mask_graph0), scale, options, buffers of both)."""
    positions, score = _examples(call, query)
    forward = _traced(call, fw_graph, (score, *positions, *score_buffers))
    joint = _traced(call, joint_graph, (score, *positions, score, *score_buffers))
    masks = _traced(call, block_mask[-1], (*positions, *mask_buffers))
    call.lifted(forward, joint, masks)  # torch has made the graphs, and none closes over anything
    nodes = call.attach(
        {"fw_graph": forward.graph_module, "joint_graph": joint.graph_module, "mask_graph": masks.graph_module}
    )
    blocks, tensors = block_mask[:-1], (query, key, value, out, logsumexp, grad_out, grad_logsumexp)
    rest = (scale, kernel_options, tuple(score_buffers), tuple(mask_buffers))
    result = call.run(*tensors, forward.graph_module, joint.graph_module, (*blocks, masks.graph_module), *rest)
    return Recorded(args=(*tensors, nodes[0], nodes[1], (*blocks, nodes[2]), *rest), kwargs={}, result=result)


def _examples(call: HigherOrderCall, query: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    if call.fake_mode is None:
        return elements(query, count=4), score_of(query)
    with call.fake_mode:
        return elements(query, count=4), score_of(query)


def _traced(call: HigherOrderCall, function: Function, operands: Sequence[Any]) -> Subgraph:
    def indexing(*values: Any) -> Any:
        with IndexedByTensors():
            return function(*values)

    return call.trace(indexing, operands)
