"""Tokens among the inputs and outputs of a functional program, and what its module does without them.

Counterpart: torch/_functorch/_aot_autograd/utils.py unlift_tokens, as torch/export/_unlift.py uses it
Differs: a module runs its nodes in their order, so that operators with effects are called themselves, with their gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from refimpl._torch import OpOverload, with_effects


@fx.has_side_effect
def call_in_order(token: torch.Tensor, operator: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """The token, and what the operator gives; as `with_effects`, of which this is the form for graphs that are run in order."""
    result = operator(*args, **kwargs)
    has_several = isinstance(operator, OpOverload) and len(operator._schema.returns) > 1
    return (token, *result) if has_several else (token, result)


def made_token(graph: fx.Graph, like: fx.Node) -> fx.Node:
    """The token before anything has happened."""
    made = graph.call_function(torch.ops.prims._make_token.default, (), name=like.name)
    made.meta = dict(like.meta)
    return made


def run_in_order(node: fx.Node) -> None:
    """Makes a call of `with_effects` one of the operator. Other nodes are left as they are."""
    if node.target is with_effects:
        node.target = call_in_order
