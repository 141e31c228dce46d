"""Rule: one way to go on with a program under construction."""

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
    """`draw_statements` returns what to add, or None where the scene has nothing for it. It does not add it itself.

    A rule that opens a region of the scene is the exception: it adds the statements inside one by one, for each sees the results
    of those before it, and returns () when there are any.
    """

    name: str
    family: str  # fuzz.draw.settings.FAMILIES
    draw_statements: DrawStatements
    weight: float = 1.0
