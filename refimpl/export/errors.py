"""Errors of export.

Counterpart: torch/_export/verifier.py SpecViolationError; torch/_dynamo/exc.py UserError as export uses it
"""

from __future__ import annotations

import functools
from typing import Any

from refimpl._torch import UnsupportedOperatorException, pytree, upstream_shape_error
from refimpl.capture.public.errors import UserError, UserErrorType
from refimpl.errors import RefimplError, UnsupportedByRefimpl


class SpecViolationError(RefimplError):
    """A graph violates the dialect of its exported program."""


class InputMismatch(RefimplError, AssertionError, RuntimeError):
    """An exported program is called with inputs it was not exported for. Versions of torch differ in the type of the error."""

    def __init__(self, *, seen: str, expected: str) -> None:
        super().__init__(
            f"{seen}\n  expected: {expected}\n  what to do: call it with such inputs, or export it again for these"
        )


class StructureMismatch(InputMismatch, ValueError, TypeError):
    """The pytree structure of the inputs differs."""

    def __init__(self, received: pytree.TreeSpec, expected: pytree.TreeSpec) -> None:
        super().__init__(
            seen=f"{_other_keywords(received, expected)}Trying to flatten user inputs with the containers that were exported: "
            f"Treespec of the inputs does not match with exported module: {received}",
            expected=str(expected),
        )


def _other_keywords(received: pytree.TreeSpec, expected: pytree.TreeSpec) -> str:
    """A sentence on the keywords of a call, if they are others than the exported program's."""
    specs = (received, expected)
    if any(spec.type is not tuple or [each.type for each in spec.children()] != [tuple, dict] for spec in specs):
        return ""
    given, wanted = (list(spec.children()[1].context) for spec in specs)
    if set(given) == set(wanted):
        return ""
    return f"Ran into a kwarg keyword mismatch: Got the following keywords {given} but expected {wanted}. "


class GradientOfWrapper(RefimplError, RuntimeError):
    """A gradient would have to pass between a wrapper and its dense tensors, in a decomposed program."""

    def __init__(self, seen: str) -> None:
        super().__init__(
            f"a decomposed program has {seen}\n"
            "  expected: no gradients through wrappers of tensors, whose class decides what they are\n"
            "  what to do: call it under torch.no_grad(), or call the program as `export` returned it"
        )


class MissingFakeKernel(UnsupportedByRefimpl, UnsupportedOperatorException):
    """An operator has no fake kernel, so a trace does not know its results."""

    def __init__(self, func: Any) -> None:
        self.func = func
        UnsupportedByRefimpl.__init__(
            self,
            seen=f"{func}, an operator without a fake kernel",
            supported="operators with fake kernels, and those of dense tensors",
            do="register one with torch.library.register_fake, or see what draft_export reports",
        )


def invalid_input(message: str) -> UserError:
    """The UserError for invalid arguments of export."""
    return UserError(UserErrorType.INVALID_INPUT, message)


def translated(error: Exception) -> Exception:
    """The UserError for an error of a trace that the program causes; other errors are returned as they are.

    The UserError is also of the error's own type, since callers catch either, by version and mode.
    """
    if isinstance(error, upstream_shape_error("ConstraintViolationError")):
        is_about_hint = "Received user-specified" in str(error)
        return _user_error_like(type(error), *((ValueError,) if is_about_hint else ()))(
            UserErrorType.CONSTRAINT_VIOLATION, str(error)
        )
    if isinstance(error, upstream_shape_error("GuardOnDataDependentSymNode")):
        return _user_error_like(type(error))(
            UserErrorType.ANTI_PATTERN,
            "Consider annotating your code using torch._check*(): its control flow depends on data.\n" + str(error),
            "constrain_as_size_example",
        )
    if isinstance(error, upstream_shape_error("PendingUnbackedSymbolNotFound")):
        return _user_error_like(type(error))(
            UserErrorType.DYNAMIC_CONTROL_FLOW,
            "refimpl does not support an operator with an unbacked symbol that is not in its result.\n"
            f"{error}\n  what to do: write it with operators whose results contain all their unbacked symbols",
        )
    if isinstance(error, UnsupportedOperatorException) and not isinstance(error, UnsupportedByRefimpl):
        return MissingFakeKernel(error.func)
    return error


@functools.lru_cache(maxsize=16)
def _user_error_like(kind: type[Exception], *others: type[Exception]) -> type[UserError]:
    """A subclass of UserError, `kind` and others."""

    def init(self: Any, error_type: UserErrorType, msg: str, case_name: str | None = None) -> None:
        RuntimeError.__init__(self, msg)  # the constructor of `kind` takes other arguments
        self.error_type, self.msg, self.case_name = error_type, msg, case_name

    return type("UserError", (UserError, kind, *others), {"__init__": init, "__str__": lambda self: self.msg})
