"""Statements that are a call of an operator."""

from __future__ import annotations

from fuzz.draw.choices import Draw
from fuzz.draw.scene import Scene
from fuzz.program.structure import Statement
from fuzz.vocabulary.operators import OPERATORS
from fuzz.vocabulary.statements.rule import Rule

_WEIGHTS = {name: spec.weight for name, spec in OPERATORS.items() if not spec.is_random and not spec.writes}


def draw_op(draw: Draw, scene: Scene) -> Statement | None:
    """A call of an operator, by weight and steering."""
    steering = scene.settings.steering
    weights = _WEIGHTS
    if steering.factors:
        weights = {name: weight * steering.factor(f"op:{name}") for name, weight in _WEIGHTS.items()}
    return OPERATORS[draw.weighted(weights)].draw_call(draw, scene)


RULES = (Rule(name="op", family="op", draw_statements=draw_op),)
