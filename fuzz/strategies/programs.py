"""Programs: layout of arguments, statements, results, call plan. `draw_program` is the whole grammar in one readable function."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fuzz.draw import Draw
from fuzz.scene import Scene
from fuzz.settings import Settings
from fuzz.strategies import ops
from fuzz.strategies.plans import draw_plan
from fuzz.strategies.rule import Rule
from fuzz.structure import FuzzProgram, Items, Operand, Ref

_TRIES = 6  # rules asked for one statement before the program ends earlier

RULES: Mapping[str, tuple[Rule, ...]] = MappingProxyType({"op": ops.RULES})


def draw_program(draw: Draw, settings: Settings) -> FuzzProgram:
    """A program that eager accepts on the first call of its plan."""
    scene = Scene(draw, settings, seed=draw.integer(0, (1 << 31) - 1))
    for _ in range(draw.integer(1, 2)):
        scene.new_tensor()
    for _ in range(draw.integer(settings.min_statements, settings.max_statements)):
        _add_statement(draw, scene)
    return draw_plan(draw, scene, scene.to_program(_result(draw, scene)))


def _add_statement(draw: Draw, scene: Scene) -> None:
    weights = {name: weight for name, weight in scene.settings.family_weights().items() if RULES.get(name)}
    steering = scene.settings.steering
    for _ in range(_TRIES):
        family = draw.weighted(weights)
        by_name = {rule.name: rule for rule in RULES[family]}
        rule = by_name[draw.weighted({n: r.weight * steering.factor(f"rule:{n}") for n, r in by_name.items()})]
        statements = rule.draw_statements(draw, scene)
        if statements is not None and scene.add(statements):
            scene.families[family] = None
            return


def _result(draw: Draw, scene: Scene) -> Operand:
    """One to three values, results rather than arguments; every result that no statement reads is likely among them."""
    used = {name for statement in scene.statements for name in statement.uses}
    results = [name for statement in scene.statements for name in statement.results if name in scene.values]
    wanted = [name for name in dict.fromkeys(results) if name not in used]
    if draw.chance(0.3):
        wanted.append(draw.choice([*scene.values]))
    if not wanted:
        wanted = [[*scene.values][-1]]
    wanted = wanted[-4:]
    return Ref(wanted[0]) if len(wanted) == 1 else Items(tuple(Ref(name) for name in wanted), "tuple")
