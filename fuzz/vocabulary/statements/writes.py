"""Statements that write: in place, through an index, into `out=`, into lists, through views and aliases of a tensor, into state.

All writes are defined: never through memory that overlaps itself, from operands that are partly overwritten, to an element twice,
or where autograd has saved the old value and would not notice.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from fuzz.draw.choices import Draw
from fuzz.draw.scene import Scene
from fuzz.program.structure import OpCall, Operand, Ref
from fuzz.vocabulary.operators import OPERATORS
from fuzz.vocabulary.statements.rule import Rule
from fuzz.vocabulary.statements.views import any_dim
from fuzz.vocabulary.statements.write_operands import Drawn, beside, is_float8, is_inexact, write
from fuzz.vocabulary.statements.writes_elsewhere import (
    behind_autograd,
    foreach,
    out_argument,
    reshaped_in_place,
    state_written,
)
from fuzz.vocabulary.statements.writes_parts import assigned, beside_view, indexed, masked, shifted, through_view

_OPERATORS = {"add_": "operator.iadd", "sub_": "operator.isub", "mul_": "operator.imul", "div_": "operator.itruediv"}


def arithmetic(draw: Draw, scene: Scene) -> Drawn:
    """add_, mul_ and their operators, with a tensor that broadcasts, a number, itself, or another dtype."""
    name = scene.target(lambda tensor: not is_float8(tensor))
    if name is None:
        return None
    tensor = scene.values[name]
    how = draw.weighted({"add_": 5, "mul_": 5, "sub_": 2, "div_": 1, "copy_": 2})
    if tensor.dtype is torch.bool:
        how = draw.choice(("logical_and_", "logical_or_", "logical_xor_", "copy_"))
    if how == "div_" and not is_inexact(tensor):
        how = "mul_"
    operand = Ref(name) if draw.chance(0.08) else scene.operand_for(name)
    if not isinstance(operand, Ref):
        how = {"copy_": "fill_", "logical_and_": "fill_", "logical_or_": "fill_", "logical_xor_": "fill_"}.get(how, how)
    if how == "div_" and not isinstance(operand, Ref):
        operand = 2.0
    if how in _OPERATORS and draw.chance(0.3):
        return OpCall(target=_OPERATORS[how], args=(Ref(name), operand))
    keyword = ("alpha", 2) if how in ("add_", "sub_") and draw.chance(0.15) else None
    return write(name, how, operand, keyword=keyword, result=scene.fresh() if draw.chance(0.2) else "")


def unary(draw: Draw, scene: Scene) -> Drawn:
    name = scene.target(lambda tensor: not is_float8(tensor))
    if name is None:
        return None
    tensor = scene.values[name]
    if tensor.dtype is torch.bool:
        return write(name, draw.choice(("logical_not_", "zero_")))
    options: list[tuple[str, tuple[Operand, ...]]] = [
        ("neg_", ()), ("zero_", ()), ("fill_", (scene.number(tensor),)), ("square_", ()), ("conj_physical_", ()),
    ]  # fmt: skip
    if not tensor.is_complex():
        options += [
            ("abs_", ()),
            ("clamp_", (-1, 1) if tensor.dtype is not torch.uint8 else (0, 1)),
            ("clamp_min_", (0,)),
            ("sign_", ()),
        ]
    if tensor.is_floating_point():
        options += [
            ("sin_", ()), ("sigmoid_", ()), ("tanh_", ()), ("relu_", ()), ("floor_", ()), ("exp_", ()), ("sqrt_", ()),
            ("round_", ()), ("nan_to_num_", ()), ("leaky_relu_", ()), ("hardtanh_", ()), ("frac_", ()),
        ]  # fmt: skip
    how, args = draw.choice(options)
    if how in ("leaky_relu_", "hardtanh_"):
        how = f"torch.nn.functional.{how}"
        return OpCall(target=how, args=(Ref(name),), results=(scene.fresh(),))
    return write(name, how, *args, result=scene.fresh() if draw.chance(0.15) else "")


def filled(draw: Draw, scene: Scene) -> Drawn:
    """Fill with one number: allowed even if elements overlap."""
    name = scene.pick(lambda tensor: tensor.numel() > 0 and not scene.is_saved_elsewhere(tensor))
    if name is None:
        return None
    return write(name, "zero_") if draw.chance(0.5) else write(name, "fill_", scene.number(scene.values[name]))


def ternary(draw: Draw, scene: Scene) -> Drawn:
    name = scene.target(lambda tensor: is_inexact(tensor) and not is_float8(tensor))
    if name is None:
        return None
    one, other = beside(draw, scene, name), beside(draw, scene, name)
    how = draw.weighted({"addcmul_": 2, "lerp_": 2, "addcdiv_": 0.5})
    if how == "lerp_":
        return write(name, how, one, 0.5)
    return write(name, how, one, other, keyword=("value", 0.5) if draw.chance(0.5) else None)


def triangular(draw: Draw, scene: Scene) -> Drawn:
    name = scene.target(lambda tensor: tensor.dim() >= 2 and not is_float8(tensor))
    if name is None:
        return None
    how = draw.choice(("tril_", "triu_", "fill_diagonal_", "cumsum_", "cumprod_"))
    if how.startswith("cum"):
        return write(name, how, any_dim(draw, scene.values[name]))
    if how == "fill_diagonal_":
        return write(name, how, scene.number(scene.values[name]))
    return write(name, how, draw.choice((0, 1, -1)))


def random_write(draw: Draw, scene: Scene) -> Drawn:
    """Random numbers in place."""
    if scene.is_random or not scene.settings.is_random:
        return None
    name = scene.target(lambda tensor: tensor.is_floating_point() and not is_float8(tensor))
    if name is None:
        return None
    how = draw.choice(("uniform_", "normal_", "bernoulli_", "exponential_", "random_", "log_normal_", "geometric_"))
    scene.is_random = True
    args: tuple[Operand, ...] = {"bernoulli_": (0.5,), "random_": (5,), "geometric_": (0.4,)}.get(how, ())
    return write(name, how, *args)


def catalogued(draw: Draw, scene: Scene) -> Drawn:
    """An operator of the catalogue that writes."""
    steering = scene.settings.steering
    weights = {
        name: spec.weight * steering.factor(f"op:{name}")
        for name, spec in OPERATORS.items()
        if spec.writes and not spec.is_random
    }
    return OPERATORS[draw.weighted(weights)].draw_call(draw, scene) if weights else None


_TABLE: tuple[tuple[Callable[[Draw, Scene], Drawn], float], ...] = (
    (arithmetic, 5),
    (unary, 3),
    (filled, 1),
    (ternary, 1),
    (triangular, 0.7),
    (random_write, 0.3),
    (catalogued, 3),
    (assigned, 4),
    (shifted, 1.5),
    (masked, 2),
    (indexed, 2),
    (through_view, 3.5),
    (beside_view, 1.5),
    (out_argument, 2),
    (foreach, 1.5),
    (reshaped_in_place, 1.5),
    (behind_autograd, 1),
    (state_written, 1),
)
RULES = tuple(Rule(name=rule.__name__, family="write", draw_statements=rule, weight=weight) for rule, weight in _TABLE)
