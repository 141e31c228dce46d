"""Errors of functionalization: programs it refuses, and graphs it got wrong. Each names the node and the user's line."""

from __future__ import annotations

import re
from typing import Any

from refimpl.errors import RefimplError

_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def line_of(node: Any) -> str:
    """The user's line from the node's stack trace, as " (file.py:12)"; empty without a stack trace."""
    lines = _LINE.findall(node.meta.get("stack_trace") or "") if node is not None else []
    return f" ({lines[-1][0]}:{lines[-1][1]})" if lines else ""


class CannotFunctionalize(RefimplError, RuntimeError):
    """An op writes to memory in a way that has no functional form in refimpl."""

    def __init__(self, node: Any, *, seen: str, expected: str, do: str) -> None:
        super().__init__(
            f"cannot functionalize {node} = {getattr(node, 'target', None)}{line_of(node)}: {seen}\n"
            f"  expected: {expected}\n  what to do: {do}"
        )


class SymbolicMemory(CannotFunctionalize):
    """A program that can only be functionalized with integer sizes is traced with symbolic ones."""


class ResizedView(RefimplError, RuntimeError):
    """`resize_` makes a view larger, in a session or to symbolic sizes: the memory of its base would have to grow."""

    def __init__(self, node: Any) -> None:
        super().__init__(
            "Attempted to resize a view tensor to a larger size. This is not allowed in the functionalization pass, at "
            f"{node}{line_of(node)}\n  expected: resize_ to a larger size of a tensor that is no view\n"
            "  what to do: resize the tensor that was viewed, or clone the view first"
        )


class NotFunctional(RefimplError, AssertionError):
    """The verifier found a write or a stale read in a functionalized graph. This is a bug of the pass, not of the program."""

    def __init__(self, node: Any, *, seen: str, expected: str) -> None:
        super().__init__(f"the functionalized graph is wrong at {node}{line_of(node)}: {seen}\n  expected: {expected}")


class NoSession(RefimplError, RuntimeError):
    """A function that needs active functionalization is called outside of it."""

    def __init__(self, seen: str) -> None:
        super().__init__(
            f"{seen} while functionalization is off\n  expected: a call between enable_functionalization and "
            "disable_functionalization"
        )


class NotAFunctionalTensor(RefimplError, RuntimeError):
    """A function that takes a functional tensor got a plain tensor."""

    def __init__(self, tensor: Any) -> None:
        super().__init__(
            f"got a plain tensor of shape {tuple(tensor.shape)}\n"
            "  expected: a functional tensor: a result of to_functional_tensor, or of an op called while functionalization was on"
        )


class MixedTensors(RefimplError, RuntimeError):
    """An op writes a functional tensor into a plain tensor."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} writes a functional tensor into a plain tensor\n  expected: a functional tensor to write to\n"
            "  what to do: make the tensor functional with to_functional_tensor first"
        )


class FrozenTensor(RefimplError, RuntimeError):
    """An op writes to a frozen functional tensor."""

    def __init__(self, func: Any) -> None:
        super().__init__(
            f"{func} writes to a frozen functional tensor\n  expected: no writes after freeze_functional_tensor\n"
            "  what to do: clone it"
        )
