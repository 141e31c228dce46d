"""What a program returns: results, arguments and views of them, one of them twice, in containers, or nothing."""

from __future__ import annotations

from fuzz.draw.choices import Draw
from fuzz.draw.scene import Scene, is_usable
from fuzz.program.structure import Entries, Items, Operand, Ref

_MOST = 6


def draw_result(draw: Draw, scene: Scene) -> Operand:
    """Every result that no statement reads is likely among one to six values; where memory is written, anything may be."""
    # what is only written to is not used up: its last value should be seen
    used = {name for statement in scene.statements if statement.results for name in statement.uses}
    live = [name for name, value in scene.values.items() if is_usable(value)]
    results = [name for statement in scene.statements for name in statement.results if name in live]
    wanted: list[Operand] = [Ref(name) for name in dict.fromkeys(results) if name not in used]
    is_written = len(results) < len(scene.statements)
    if live and draw.chance(0.6 if is_written else 0.3):
        wanted.append(Ref(draw.choice(live)))
    if wanted and draw.chance(0.05):
        wanted.append(draw.choice(wanted))  # the same object twice
    if not wanted and is_written and draw.chance(0.3):
        return None
    if not wanted:
        wanted = [Ref(live[-1])] if live else []
    wanted = wanted[:_MOST]
    if draw.chance(0.04):
        wanted.append(Ref(draw.choice([*scene.scalars])) if scene.scalars else draw.choice((None, 1)))
    if len(wanted) == 1 and draw.chance(0.9):
        return wanted[0]
    return _contained(draw, wanted)


def _contained(draw: Draw, wanted: list[Operand]) -> Operand:
    kind = draw.weighted({"tuple": 10, "list": 1.5, "dict": 1.5, "nested": 1})
    match kind:
        case "list":
            return Items(tuple(wanted), "list")
        case "dict":
            return Entries(tuple(zip(("x", "y", "z", "w", "u"), wanted, strict=False)))
        case "nested":
            inner = Items(tuple(wanted[1:]), "list")
            return Items((*wanted[:1], Entries((("rest", inner),))), "tuple")
        case _:
            return Items(tuple(wanted), "tuple")
