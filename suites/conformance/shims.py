"""Names that test files of older or newer trees import, and that the installed torch has elsewhere or not at all.

A row has the name that a test file uses, and where the object is now. It applies in every pass, and only if the name does not
exist (with `always` also if the object there would not work with the installed torch). A name without a row becomes an `Unusable`
(stand_in.py), which fails the tests that use it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

_DEVICE_TYPE = "torch.testing._internal.common_device_type"
_INVOCATIONS = "torch.testing._internal.common_methods_invocations"
_CONFIGS = ("torch._functorch.config", "functorch.compile.config")
_SHAPES = "torch.fx.experimental.symbolic_shapes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shim:
    """One moved name."""

    looked_for: str
    found_at: str
    why: str
    adapt: Callable[[Any], Any] | None = None
    """Makes of the thing found what the caller expects, where the signature changed with the move."""
    always: bool = False
    """Also where the name is at its place."""


def _skip_ops(installed: Callable[..., Any]) -> Callable[..., Any]:
    """`skipOps(class_name, test_name, to_skip)`, and since 2.12 `skipOps(to_skip)`, for either version installed."""
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


def _skip_known_ops(installed: Callable[..., Any]) -> Callable[..., Any]:
    """The tree's own `skipOps(class_name, test_name, to_skip)`, which asserts that every named operator exists."""
    scope = installed.__globals__
    databases = [*scope["op_db"], *scope["additional_op_db"], *scope["autograd_function_db"]]
    known = {(op.name, op.variant_test_name) for op in databases}

    def skip_ops(class_name: str, test_name: str, to_skip: Iterable[Any]) -> Any:
        kept = [row for row in to_skip if (row.op_name, row.variant_name) in known]
        return installed(class_name, test_name, kept)

    return skip_ops


def _decorate_known_modules(installed: Callable[..., Any]) -> Callable[..., Any]:
    """The tree's own `decorateForModules(decorator, module_classes)`, which asserts that every module exists once."""
    known = {info.module_cls for info in installed.__globals__["module_db"]}

    def decorate_for_modules(decorator: Any, module_classes: Iterable[type], *args: Any, **kwargs: Any) -> Any:
        kept = [module for module in module_classes if module in known]
        return installed(decorator, kept, *args, **kwargs)

    return decorate_for_modules


def the_first(value: Any, _other: Any) -> Any:
    """The value that a test expects if a setting is on."""
    return value


def as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator in place of one that no longer exists: it does nothing."""
    return function


ALWAYS_ON = SimpleNamespace(use_fake_tensor=True, use_functionalize=True)
"""Settings that upstream has no longer: what they switched on is always so. Patching one here changes nothing."""

_ROWS = (
    *(
        Shim(
            looked_for=f"{config}.{setting}",
            found_at=f"suites.conformance.shims.ALWAYS_ON.{setting}",
            why="the only behaviour since 2.2",
        )
        for config in _CONFIGS
        for setting in vars(ALWAYS_ON)
    ),
    *(
        Shim(
            looked_for=f"torch._dynamo.utils.{name}",
            found_at="suites.conformance.shims.the_first",
            why="sizes and numbers may be dynamic since 2.1, without a setting",
        )
        for name in ("ifdyn", "ifunspec")
    ),
    Shim(
        looked_for="torch._dynamo.testing.skipIfPy311",
        found_at="suites.conformance.shims.as_it_is",
        why="Python 3.11 is captured since 2.1",
    ),
    Shim(
        looked_for="common_utils.skipOps",
        found_at="common_utils.skipOps",
        why="operators of the tree that left the database since",
        adapt=_skip_known_ops,
        always=True,
    ),
    Shim(
        looked_for="common_utils.decorateForModules",
        found_at="common_utils.decorateForModules",
        why="modules of the tree that left the database since",
        adapt=_decorate_known_modules,
        always=True,
    ),
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
