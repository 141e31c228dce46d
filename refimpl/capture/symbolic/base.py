"""What the parts of the symbolic domain ask of one another."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from refimpl.capture.interpreter.domain import Domain
from refimpl.capture.symbolic.state import CaptureState
from refimpl.capture.symbolic.values import ObjectValue, TensorValue, Value


class SymbolicBase(Domain):
    """A domain over the values of one segment."""

    state: CaptureState

    @abstractmethod
    def is_constant(self, value: Any) -> bool:
        """Whether an object is one that equal objects may stand for."""

    @abstractmethod
    def constant_of(self, value: Any, what: str) -> Any:
        """The object of a constant, or of a tuple or list of constants. Breaks for everything else."""

    @abstractmethod
    def elements(self, value: Any) -> list[Value]:
        """All that iterating gives, where that runs no code of the user's."""

    @abstractmethod
    def folded(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
        """What the function gives for constants. Breaks where it raises."""

    @abstractmethod
    def enter_function(self, function: Value, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """`Enter` with a frame of a function written in Python."""

    @abstractmethod
    def call_special(self, value: ObjectValue, name: str, args: list[Value]) -> Any:
        """`value.__name__(...)`, looked up on the class, where it is a function written in Python."""

    @abstractmethod
    def size_value(self, tensor: TensorValue, dim: int) -> Value:
        """A size of a tensor."""

    @abstractmethod
    def hooks_of(self, value: ObjectValue) -> bool:
        """Whether calling the module runs more than its `forward`; guarded where it does not."""
