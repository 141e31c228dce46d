"""Applies the suggested fixes of a constraint violation to `dynamic_shapes`.

Counterpart: torch/export/dynamic_shapes.py refine_dynamic_shapes_from_suggested_fixes
"""

from __future__ import annotations

import ast
import re
from typing import Any

from refimpl._torch import pytree
from refimpl.errors import BadParameter
from refimpl.export.shapes.dims import Dim

_FIX = re.compile(r"^\s*(\w+) = (.+?)\s*(?:#.*)?$")


def refine_dynamic_shapes_from_suggested_fixes(msg: str, dynamic_shapes: Any) -> Any:
    """The dynamic shapes with the changes that the message of the error suggests.

    Raises AssertionError for a message without suggested fixes.
    """
    _, found, text = msg.partition("Suggested fixes:")
    if not found:
        raise BadParameter(seen="a message without suggested fixes", expected="the message of a constraint violation")
    fixes: dict[str, ast.expr] = {}
    for line in text.splitlines():
        match = _FIX.match(line)
        if match is not None and match[2] != "None":
            fixes[match[1]] = ast.parse(match[2], mode="eval").body
    known = {d.__name__: d for d in pytree.tree_leaves(dynamic_shapes) if isinstance(d, Dim)}
    made: dict[str, Any] = {}

    def named(name: str) -> Any:
        if name not in made:
            made[name] = evaluated(fixes[name]) if name in fixes else known.get(name) or Dim(name)
        return made[name]

    def evaluated(node: ast.expr) -> Any:
        """A number, a Dim, or a linear function of one."""
        match node:
            case ast.Constant(value=int() as value):
                return value
            case ast.Name(id=name):
                return named(name)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return evaluated(left) + evaluated(right)
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                return evaluated(left) - evaluated(right)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return evaluated(left) * evaluated(right)
            case ast.Call(func=ast.Name(id="Dim"), args=[ast.Constant(value=str() as name)], keywords=bounds):
                given = {k.arg: k.value.value for k in bounds if k.arg and isinstance(k.value, ast.Constant)}
                return Dim(name, **given)  # pyright: ignore[reportArgumentType]
            case _:
                seen = f"the suggested fix {ast.unparse(node)}"
                raise BadParameter(seen=seen, expected="a number, a Dim or a linear function")

    def refined(dim: Any) -> Any:
        if not isinstance(dim, Dim):
            return dim
        root = getattr(dim, "root", dim)
        if dim.__name__ in fixes:
            return named(dim.__name__)
        if root is dim or root.__name__ not in fixes:
            return dim
        offset = dim.fn(0)  # type: ignore[attr-defined]
        scaled = named(root.__name__) * (dim.fn(1) - offset)  # type: ignore[attr-defined]
        return scaled + offset if offset else scaled

    return pytree.tree_map(refined, dynamic_shapes)
