"""The errors that capture raises, under upstream's names.

Counterpart: torch/_dynamo/exc.py
Differs: types of its own, because capture must not load what it is compared with.
"""

from __future__ import annotations

import os
from enum import Enum, auto
from typing import Any

from refimpl.capture.breaks import GraphBreak
from refimpl.errors import BadParameter, RefimplError, UncapturedHigherOrderOp


class CaptureError(RefimplError, RuntimeError):
    """Base class of capture's errors.

    Counterpart: torch/_dynamo/exc.py TorchDynamoException
    """


class Unsupported(GraphBreak, CaptureError):
    """A graph break that is not allowed: under `fullgraph`, or in an export."""

    @classmethod
    def of(cls, reason: GraphBreak) -> Unsupported:
        """The graph break as an error."""
        kind = cls if reason.operator is None else UncapturedHigherOrderOpError
        made = kind(reason.kind.name, **reason.details)
        made.stack, made.operator = reason.stack, reason.operator
        return made

    @property
    def msg(self) -> str:
        """Upstream's name for the text."""
        return str(self)


class TorchRuntimeError(CaptureError):
    """An operator raises on fake tensors, where a graph break is not allowed. It would raise without capture too."""


class BackendCompilerFailed(CaptureError):
    """The backend raised an error, `inner_exception`."""

    def __init__(self, backend: Any, inner: BaseException) -> None:
        name = getattr(backend, "compiler_name", None)
        self.backend_name = name if isinstance(name, str) else getattr(backend, "__name__", type(backend).__name__)
        self.inner_exception = inner
        path = getattr(inner, "minifier_path", None)
        is_written = path is not None and os.path.exists(path)
        super().__init__(
            f"backend={self.backend_name!r} raised:\n{type(inner).__name__}: {inner}\n"
            "  expected: a function of the graph's inputs\n  what to do: fix the backend, or try backend='eager'"
            + (f"\n  to make the graph smaller: python {path}" if is_written else "")
        )


class ResetRequired(CaptureError):
    """A setting was changed that existing segments depend on."""


class RecompileError(CaptureError):
    """A function is captured again although `config.error_on_recompile` is set."""


class FailOnRecompileLimitHit(CaptureError):
    """A function has reached its recompile limit and `config.fail_on_recompile_limit_hit` is set."""


class InvalidBackend(CaptureError, BadParameter):
    """The backend's name is unknown."""


class InternalTorchDynamoError(CaptureError):
    """Capture itself failed."""


class UncapturedHigherOrderOpError(Unsupported, UncapturedHigherOrderOp):
    """A call of a higher-order operator cannot be captured, and eager has no other way to run it.

    The first sentence is upstream's, because its tests match it.
    """

    def __str__(self) -> str:
        return (
            "This higher order operator doesn't work unless it is captured completely with torch.compile. Got graph "
            f"break/error:\n\n{super().__str__()}\n  Higher Order Operator: {self.operator}"
        )


class UserErrorType(Enum):
    """Why a program cannot be exported."""

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
