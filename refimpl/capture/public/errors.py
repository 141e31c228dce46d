"""What capture raises to its user, by upstream's names.

Counterpart: torch/_dynamo/exc.py
Differs: types of their own, for capture must not load what it is compared with.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

from refimpl.capture.breaks import GraphBreak
from refimpl.errors import BadParameter, RefimplError


class CaptureError(RefimplError, RuntimeError):
    """Base of what capture raises.

    Counterpart: torch/_dynamo/exc.py TorchDynamoException
    """


class Unsupported(GraphBreak, CaptureError):
    """A graph break where there may be none: under `fullgraph`, or in an export."""

    @classmethod
    def of(cls, reason: GraphBreak) -> Unsupported:
        """The same break, as an error."""
        made = cls(reason.kind.name, **reason.details)
        made.stack = reason.stack
        return made

    @property
    def msg(self) -> str:
        """Upstream's name for its text."""
        return str(self)


class TorchRuntimeError(CaptureError):
    """An operator raises on tensors without data, where there may be no graph break: it would raise without capture too."""


class BackendCompilerFailed(CaptureError):
    """A backend raises. `inner_exception` is what it raised."""

    def __init__(self, backend: Any, inner: BaseException) -> None:
        self.backend_name = getattr(backend, "__name__", type(backend).__name__)
        self.inner_exception = inner
        super().__init__(
            f"backend={self.backend_name!r} raised:\n{type(inner).__name__}: {inner}\n"
            "  expected: a function of the graph's inputs\n  what to do: mend the backend, or try backend='eager'"
        )


class ResetRequired(CaptureError):
    """Settings were changed that hold for what is captured already."""


class RecompileError(CaptureError):
    """A function was captured a second time while `config.error_on_recompile` is set."""


class FailOnRecompileLimitHit(CaptureError):
    """A function was captured as often as it may be, and `config.fail_on_recompile_limit_hit` is set."""


class InvalidBackend(CaptureError, BadParameter):
    """A backend's name that nobody has."""


class InternalTorchDynamoError(CaptureError):
    """A failure of capture itself."""


class UncapturedHigherOrderOpError(Unsupported):
    """A higher-order operator whose functions cannot be captured."""


class UserErrorType(Enum):
    """What is wrong with a program that is exported."""

    DYNAMIC_CONTROL_FLOW = auto()
    ANTI_PATTERN = auto()
    STANDARD_LIBRARY = auto()
    CONSTRAINT_VIOLATION = auto()
    DYNAMIC_DIM = auto()
    INVALID_INPUT = auto()
    INVALID_OUTPUT = auto()
    UNSUPPORTED_ALIASED_MUTATED_DYNAMIC_INPUTS = auto()


class UserError(CaptureError):
    """The program cannot be exported as it is."""

    def __init__(self, error_type: UserErrorType, msg: str, case_name: str | None = None) -> None:
        self.error_type = error_type
        self.case_name = case_name
        self.msg = msg
        super().__init__(msg)
