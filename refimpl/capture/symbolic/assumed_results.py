"""Calls whose results a user says are always the same: made while capturing, with what the arguments are now.

Counterpart: torch/_dynamo/variables/functions.py invoke_and_store_as_constant; torch/_dynamo/decorators.py assume_constant_result
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch

from refimpl._torch import pytree
from refimpl.capture.guards.sources import KeptSource
from refimpl.capture.public.fake_values import get_real_value
from refimpl.capture.values import TensorValue, Value
from refimpl.capture.values.value import unsupported


class _Evaluation:
    """What `get_real_value` needs of the graph so far: its inputs as they are now."""

    def __init__(self, state: Any) -> None:
        self.fake_mode = state.fake_mode
        self.nn_modules: dict[str, Any] = {}
        inputs = [node for node in state.graph.graph.nodes if node.op == "placeholder"]
        self.real_value_cache = dict(zip(inputs, state.graph.examples, strict=True))


def assumed_result(domain: Any, function: FunctionType, args: list[Any], kwargs: dict[str, Any]) -> Value:
    """The value of what the call gives. An argument that comes out is a constant like everything else.

    Raises GraphBreak for arguments of which no object is known, and for tensors that were computed after the graph wrote to
    something; what the function raises comes out.
    """
    evaluation = _Evaluation(domain.state)
    given = [_real_of(domain, arg, evaluation) for arg in args]
    named = {name: _real_of(domain, arg, evaluation) for name, arg in kwargs.items()}
    own = {id(leaf) for leaf in pytree.tree_leaves((given, named)) if isinstance(leaf, torch.Tensor)}
    result = pytree.tree_map_only(
        torch.Tensor, lambda tensor: tensor.detach().clone() if id(tensor) in own else tensor, function(*given, **named)
    )
    return domain.state.wrap(result, KeptSource(result, f"{function.__qualname__}()"))


def _real_of(domain: Any, arg: Any, evaluation: _Evaluation) -> Any:
    value = domain.state.see(arg)
    if isinstance(value, TensorValue) and value.source is None:
        if domain.state.graph.has_effects:
            unsupported("a call whose result is assumed to be constant, after a write,", value)
        return get_real_value(value.node, evaluation)
    return domain.state.real_of(value)
