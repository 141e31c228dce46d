"""Rule: one way to add statements to a program under construction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fuzz.draw.choices import Draw
from fuzz.draw.scene import Scene
from fuzz.program.structure import Statement

DrawStatements: TypeAlias = Callable[[Draw, Scene], "Statement | Sequence[Statement] | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`draw_statements` returns statements without adding them, or None if the scene has no operands for them.

    A rule that opens a region of the scene is an exception: it adds the statements inside one by one, since each uses earlier
    results, and returns () if there are any.
    """

    name: str
    family: str  # "op", "view", "write", "autograd", "random", "state", "control" or "python"
    draw_statements: DrawStatements
    weight: float = 1.0
