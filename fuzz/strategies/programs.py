"""Programs: layout of arguments, statements, results, call plan. `draw_program` is the whole grammar in one readable function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from fuzz.draw import Draw
from fuzz.scene import Scene
from fuzz.settings import Settings
from fuzz.strategies import autograd, control, modules, ops, python, random, views, writes
from fuzz.strategies.layouts import draw_layout
from fuzz.strategies.plans import draw_plan
from fuzz.strategies.results import draw_result
from fuzz.strategies.rule import Rule
from fuzz.structure import FuzzProgram

_GOES_ON = 0.75  # chance of one more statement
_TRIES = 6  # rules asked for one statement before the program ends earlier

RULES: Mapping[str, tuple[Rule, ...]] = MappingProxyType(
    {
        "op": ops.RULES,
        "view": views.RULES,
        "write": writes.RULES,
        "autograd": autograd.RULES,
        "random": random.RULES,
        "state": modules.RULES,
        "control": control.RULES,
        "python": python.RULES,
    }
)


def draw_program(draw: Draw, settings: Settings) -> FuzzProgram:
    """A program that eager accepts on the first call of its plan."""
    scene = Scene(draw, settings, seed=draw.integer(0, (1 << 31) - 1))
    modules.begin(draw, scene)
    draw_layout(draw, scene)
    for count in range(settings.max_statements):
        # A choice before each statement, not a number before all: Hypothesis can then take any of them out.
        if count >= settings.min_statements and not draw.chance(_GOES_ON):
            break
        _add_statement(draw, scene)
    result = draw_result(draw, scene)
    program = draw_plan(draw, scene, scene.to_program(result))
    if any(call.backward for call in program.calls) and not scene.accepts_backward(result):
        program = replace(program, calls=tuple(replace(call, backward=False) for call in program.calls))
    return program


def _add_statement(draw: Draw, scene: Scene) -> None:
    weights = {name: weight for name, weight in scene.settings.family_weights().items() if RULES.get(name)}
    if scene.state is None:
        weights.pop("state", None)
    steering = scene.settings.steering
    for _ in range(_TRIES):
        family = draw.weighted(weights)
        by_name = {rule.name: rule for rule in RULES[family]}
        rule = by_name[draw.weighted({n: r.weight * steering.factor(f"rule:{n}") for n, r in by_name.items()})]
        statements = rule.draw_statements(draw, scene)
        if statements is not None and scene.add(statements):
            scene.families[family] = None
            return
