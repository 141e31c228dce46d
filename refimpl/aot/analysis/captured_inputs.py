"""A function mode that turns tensors of closures and globals into inputs of the graph.

Counterpart: none in AOT autograd; dynamo has made such tensors inputs before
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

from refimpl._torch import FakeTensor, FakeTensorMode, is_traceable_wrapper_subclass, pytree, without_torch_function
from refimpl.aot.analysis.fake_arguments import fake_slots
from refimpl.trace.recording_mode import paused_recordings

_FIRST_SOURCE = 1_000_000  # names of captured tensors in guards must not be those of arguments


class Inputs(Protocol):
    """What holds the inputs of a trace."""

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Whether the trace has a node for the tensor."""
        ...

    def input_at(self, position: int) -> Any:
        """The tensor that the program gets for a slot."""
        ...

    def add_captured(self, fake: torch.Tensor, *, is_leaf: bool) -> Any:
        """Add a placeholder; returns the tensor that the program uses."""
        ...


class CapturedInputsMode(TorchFunctionMode):
    """Replaces tensors of closures and globals by fake inputs when the program passes one to a torch function.

    This happens before autograd, so that the real tensors get no history.
    """

    def __init__(self, inputs: Inputs, fake_mode: FakeTensorMode, real_slots: Sequence[Any]) -> None:
        super().__init__()
        self.tensors: list[torch.Tensor] = []
        self._inputs = inputs
        self._fake_mode = fake_mode
        self._kept = list(real_slots)  # keeps them alive, so that no id is used twice
        self._positions = {id(t): i for i, t in enumerate(real_slots) if isinstance(t, torch.Tensor)}
        self._seen: dict[int, Any] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(torch.Tensor, self.replaced, (args, kwargs or {}))
        return func(*args, **kwargs)

    def known_input(self, value: torch.Tensor) -> Any:
        """The fake input for a real tensor that is an input already, else None."""
        if id(value) in self._positions:
            return self._inputs.input_at(self._positions[id(value)])
        return self._seen.get(id(value))

    def replaced(self, value: Any) -> Any:
        """The fake input for a real tensor; any other value unchanged."""
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor) or is_traceable_wrapper_subclass(value):
            return value
        if self._inputs.is_known(value):
            return value
        if id(value) in self._positions:
            return self._inputs.input_at(self._positions[id(value)])
        if id(value) not in self._seen:
            with paused_recordings(), without_torch_function():
                source = _FIRST_SOURCE + len(self.tensors)
                fake = fake_slots([value], self._fake_mode, num_static=1, dynamic=False, first_source=source)[0]
                self._seen[id(value)] = self._inputs.add_captured(fake, is_leaf=value.is_leaf)
            self.tensors.append(value)
        return self._seen[id(value)]
