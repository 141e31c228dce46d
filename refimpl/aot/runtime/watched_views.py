"""Programs that write to the memory of a view whose gradient is looked at run as they are.

Counterpart: none; torch's graphs give such a hook the gradients of all uses, or of none

A write makes the history of every view of that base anew, without its hooks: they stay with the uses from before. A graph has one
place for the gradient of an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from refimpl._torch import storage_key
from refimpl.aot.analysis.input_plan import InputPlan
from refimpl.aot.analysis.metadata import Geometry
from refimpl.aot.joint.graph import FlatFunction
from refimpl.aot.runtime.wrapper import FlatCall


def as_it_is_with_watched_views(
    call: FlatCall,
    function: FlatFunction,
    args: Sequence[Any],
    *,
    plan: InputPlan,
    mutated: Sequence[int],
    captured: Sequence[torch.Tensor],
) -> FlatCall:
    """`call`, or `function` where a view among arguments and captured tensors is watched and lies in memory that is written.

    args: those of the compilation; mutated: slots, and captured tensors behind these, that the program writes to.
    """
    written = sorted(
        {position for index in mutated if index < len(plan.slots) for position in plan.slots[index].members}
    )
    written_captured = [captured[index - len(plan.slots)] for index in mutated if index >= len(plan.slots)]
    positions = [position for position, arg in enumerate(args) if _may_be_watched(arg)]
    others = [tensor for tensor in captured if _may_be_watched(tensor)]
    if not mutated or (not positions and not others):
        return call

    def call_or_run(leaves: list[Any]) -> list[Any]:
        watched = [tensor for tensor in (*(leaves[position] for position in positions), *others) if _is_watched(tensor)]
        if watched:
            places = {_place(tensor) for tensor in (*(leaves[position] for position in written), *written_captured)}
            if not places.isdisjoint(map(_place, watched)):
                return list(function(*leaves))
        return call(leaves)

    return call_or_run


def _may_be_watched(arg: Any) -> bool:
    """By what is the same at every call."""
    return isinstance(arg, torch.Tensor) and arg.requires_grad and not isinstance(arg, torch.nn.Parameter)


def _is_watched(tensor: torch.Tensor) -> bool:
    """Whether it is a view with a history, and a hook or `retain_grad` waits for its gradient."""
    if tensor._base is None or tensor.is_leaf:
        return False
    return bool(tensor._backward_hooks) or tensor.retains_grad


def _place(tensor: torch.Tensor) -> int:
    """The memory that it lies in; for what has none to tell, the base it is a view of."""
    return -id(tensor._base) if Geometry.of(tensor) is None else storage_key(tensor)
