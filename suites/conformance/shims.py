"""Names that test files of older or newer trees import from where the installed torch does not have them.

A row names the place a file looks in, and where the same thing is. It is used only when the name is not at its place, for
every pass alike. What has no row and is nowhere becomes an `Unusable` (stand_in.py), which fails the tests that use it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

_DEVICE_TYPE = "torch.testing._internal.common_device_type"
_INVOCATIONS = "torch.testing._internal.common_methods_invocations"
_SHAPES = "torch.fx.experimental.symbolic_shapes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shim:
    """One moved name."""

    looked_for: str
    found_at: str
    why: str
    adapt: Callable[[Any], Any] | None = None
    """Makes of the thing found what the caller expects, where the signature changed with the move."""


def _skip_ops(installed: Callable[..., Any]) -> Callable[..., Any]:
    """`skipOps(class_name, test_name, to_skip)`, and since 2.12 `skipOps(to_skip)`, on whichever is installed."""
    takes_three = len(inspect.signature(installed).parameters) == 3

    def skip_ops(*args: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        to_skip: Iterable[Any] = args[-1]

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            if not takes_three:
                return installed(to_skip)(function)
            *_, class_name, name = ("", *function.__qualname__.split("."))
            return installed(class_name, name, to_skip)(function)

        return decorate

    return skip_ops


_ROWS = (
    Shim(looked_for=f"{_SHAPES}.sym_float", found_at="torch.sym_float", why="a public function since 2.1"),
    Shim(looked_for=f"{_SHAPES}.sym_sqrt", found_at="torch._sym_sqrt", why="moved to torch beside sym_float"),
    *(
        Shim(
            looked_for=f"{_SHAPES}.{name}",
            found_at=f"torch.fx.experimental.sym_node.{name}",
            why="symbolic nodes have a module of their own since 2.2",
        )
        for name in (
            "to_node",
            "magic_methods",
            "unary_magic_methods",
            "bool_magic_methods",
            "magic_methods_on_operator_with_trailing_underscore",
        )
    ),
    *(
        Shim(
            looked_for=f"{_INVOCATIONS}.{name}",
            found_at=f"{_DEVICE_TYPE}.{name}",
            why="moved beside the decorators that read it",
        )
        for name in ("skip", "xfail")
    ),
    Shim(
        looked_for=f"{_INVOCATIONS}.skipOps",
        found_at=f"{_DEVICE_TYPE}.skipOps",
        why="moved, and reads class and test from the function it decorates",
        adapt=_skip_ops,
    ),
    *(
        Shim(
            looked_for=f"{_DEVICE_TYPE}.{name}",
            found_at=f"{_INVOCATIONS}.{name}",
            why="a newer tree on an older torch",
        )
        for name in ("skip", "xfail")
    ),
    Shim(
        looked_for=f"{_DEVICE_TYPE}.skipOps",
        found_at=f"{_INVOCATIONS}.skipOps",
        why="a newer tree on an older torch, where it is told class and test",
        adapt=_skip_ops,
    ),
)
SHIMS: dict[str, Shim] = {row.looked_for: row for row in _ROWS}
