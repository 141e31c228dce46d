"""Statements that are a call of an operator."""

from __future__ import annotations

from fuzz.draw import Draw
from fuzz.opspec import OPERATORS
from fuzz.scene import Scene
from fuzz.strategies.rule import Rule
from fuzz.structure import Statement

_WEIGHTS = {name: spec.weight for name, spec in OPERATORS.items() if not spec.is_random and not spec.writes}


def draw_op(draw: Draw, scene: Scene) -> Statement | None:
    """A call of an operator, by weight and steering."""
    steering = scene.settings.steering
    weights = _WEIGHTS
    if steering.factors:
        weights = {name: weight * steering.factor(f"op:{name}") for name, weight in _WEIGHTS.items()}
    return OPERATORS[draw.weighted(weights)].draw_call(draw, scene)


RULES = (Rule(name="op", family="op", draw_statements=draw_op),)
