"""Lowerings of random operators for `random="philox"`: numbers are functions of a seed and a counter.

Counterpart: torch/_inductor/fx_passes/replace_random.py, torch/_inductor/inductor_prims.py random
Differs: numbers have all bits of the dtype, and are never 1.0; each operator has counters of its own, of (element, operator).

Note [counters]: a graph draws one seed per device and call from the device's default generator, which follows torch.manual_seed
and fork_rng. An element's number is a function of the seed, its row-major index (whatever the strides) and the operator's number
in the graph. Blocks, fusion and recomputation do not affect it. The backward sees the forward's numbers because partitioners
never recompute a random operator: what the backward needs is saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import sympy
import torch

from refimpl.codegen.indices import contiguous_strides, linear
from refimpl.codegen.lowering.pointwise import tensors_of
from refimpl.codegen.lowering.state import (
    LoweringState,
    NotLowered,
    RuleTable,
    apply,
    broadcast_indices,
    by_name,
    cast,
    computed_like,
    fake_of,
    literal,
    opmath,
    shape_of,
)
from refimpl.codegen.scalars import Apply, FromIndex, Scalar
from refimpl.codegen.tensors import Computed, Indices, Stored, Tensor

aten = torch.ops.aten

RULES = RuleTable()

COST = 12  # of a number: with two users it is stored in memory
_BITS = 63  # bits of philox_integer

# Maps an index to a random number.
Draw = Callable[[Indices], Scalar]
Kind = Literal["philox_uniform", "philox_normal", "philox_integer"]


def _rule(*targets: Any) -> Callable[[Any], Any]:
    """Registers a function as the lowering of operators, unless numbers must equal eager's or a generator is given."""

    def register(function: Any) -> Any:
        def rule(
            state: LoweringState, node: torch.fx.Node, *arguments: Any, generator: Any = None, **keywords: Any
        ) -> Any:
            if state.options.random == "eager":
                raise NotLowered("random numbers of eager's")
            if generator is not None:
                raise NotLowered("a generator of its own")
            return function(state, node, *arguments, **keywords)

        RULES.rule(*targets)(rule)
        return function

    return register


def _floating(node: torch.fx.Node) -> torch.dtype:
    """The dtype of a result that must be floating point."""
    fake = fake_of(node)
    if not fake.dtype.is_floating_point or fake.layout is not torch.strided:
        raise NotLowered(f"random numbers of {fake.dtype}, {fake.layout}")
    literal(0, fake.dtype)
    return fake.dtype


def _draw(state: LoweringState, node: torch.fx.Node, kind: Kind, dtype: torch.dtype, shape: Indices) -> Draw:
    """The numbers of one operator. Called after all checks, since it takes a seed."""
    seed = state.seed(fake_of(node).device)
    number = literal(state.next_draw(), torch.int64)
    strides = contiguous_strides(shape)
    return lambda indices: Apply(kind, (seed, FromIndex(linear(indices, strides)), number), dtype)


def _drawn(
    state: LoweringState,
    node: torch.fx.Node,
    kind: Kind,
    drawn: torch.dtype,
    formula: Callable[..., Scalar],
    *operands: Tensor,
    compute: torch.dtype | None = None,
) -> Computed:
    """A formula of one random number, and of tensors in `compute`, for every element of the result."""
    fake = fake_of(node)
    computed_like(node, lambda indices: literal(0, fake.dtype), tensors_of(operands))  # raises before a seed is drawn
    draw = _draw(state, node, kind, drawn, shape_of(fake))

    def value(indices: Indices) -> Scalar:
        others = [operand.at(broadcast_indices(indices, operand.shape)) for operand in operands]
        scalars = [cast(other, compute or other.dtype) for other in others]
        return cast(formula(draw(indices), *scalars), fake.dtype)

    return computed_like(node, value, tensors_of(operands), cost=COST)


# ---- uniform


@_rule(aten.rand.default, aten.rand_like.default)
def _rand(state: LoweringState, node: torch.fx.Node, *_: Any, **keywords: Any) -> Computed:
    return _drawn(state, node, "philox_uniform", _floating(node), lambda u: u)


@_rule(aten.uniform.default)
def _uniform(state: LoweringState, node: torch.fx.Node, x: Tensor, low: float = 0.0, high: float = 1.0) -> Computed:
    dtype = _floating(node)
    if not low <= high or not all(isinstance(bound, (int, float)) for bound in (low, high)):
        raise NotLowered(f"from {low} to {high}")
    if high - low > torch.finfo(dtype).max:
        raise NotLowered("a range wider than the dtype")
    if (low, high) == (0, 1):
        return _rand(state, node)
    compute = opmath(dtype)

    def formula(u: Scalar) -> Scalar:
        scaled = apply("mul", cast(u, compute), literal(high - low, compute))
        value = cast(apply("add", scaled, literal(low, compute)), dtype)
        is_outside = Apply("ge", (cast(value, compute), literal(high, compute)), torch.bool)  # by rounding
        return apply("where", is_outside, literal(low, dtype), value, dtype=dtype)

    return _drawn(state, node, "philox_uniform", dtype, formula)


# ---- normal


@_rule(aten.randn.default, aten.randn_like.default)
def _randn(state: LoweringState, node: torch.fx.Node, *_: Any, **keywords: Any) -> Computed:
    return _drawn(state, node, "philox_normal", opmath(_floating(node)), lambda z: z)


@_rule(
    aten.normal.float_float, aten.normal_functional.default, aten.normal.Tensor_float, aten.normal.float_Tensor,
    aten.normal.Tensor_Tensor,
)  # fmt: skip
def _normal(state: LoweringState, node: torch.fx.Node, *arguments: Any, **keywords: Any) -> Computed:
    given = by_name(node, arguments, keywords)
    mean, deviation = given["mean"], given["std"]
    compute = opmath(_floating(node))
    of_tensors = [isinstance(each, (Stored, Computed)) for each in (mean, deviation)]
    if not of_tensors[1]:
        _check(deviation >= 0, f"a deviation of {deviation}")

    def formula(z: Scalar, *elements: Scalar) -> Scalar:
        at = elements[0] if of_tensors[0] else literal(mean, compute)
        width = apply("checked_deviation", elements[-1]) if of_tensors[1] else literal(deviation, compute)
        return apply("add", apply("mul", z, width), at)

    return _drawn(state, node, "philox_normal", compute, formula, *tensors_of((mean, deviation)), compute=compute)


@_rule(aten.log_normal.default)
def _log_normal(
    state: LoweringState, node: torch.fx.Node, x: Tensor, mean: float = 1.0, deviation: float = 2.0
) -> Computed:
    compute = opmath(_floating(node))
    _check(deviation > 0, f"a deviation of {deviation}")

    def formula(z: Scalar) -> Scalar:
        scaled = apply("mul", z, literal(deviation, compute))
        return apply("exp", apply("add", scaled, literal(mean, compute)))

    return _drawn(state, node, "philox_normal", compute, formula)


# ---- functions of uniform numbers


def _within(u: Scalar) -> Scalar:
    """Moves a number off both ends, to above 0 and below 1."""
    half, last = (2.0**-54, 1 - 2.0**-53) if u.dtype == torch.float64 else (2.0**-25, 1 - 2.0**-24)
    return apply("minimum", apply("add", u, literal(half, u.dtype)), literal(last, u.dtype))


@_rule(aten.exponential.default)
def _exponential(state: LoweringState, node: torch.fx.Node, x: Tensor, rate: float = 1.0) -> Computed:
    compute = opmath(_floating(node))
    _check(rate > 0, f"a rate of {rate}")

    def formula(u: Scalar) -> Scalar:
        return apply("div", apply("neg", apply("log", _within(u))), literal(rate, compute))

    return _drawn(state, node, "philox_uniform", compute, formula)


@_rule(aten.cauchy.default)
def _cauchy(state: LoweringState, node: torch.fx.Node, x: Tensor, median: float = 0.0, width: float = 1.0) -> Computed:
    compute = opmath(_floating(node))
    _check(width > 0, f"a width of {width}")

    def formula(u: Scalar) -> Scalar:
        angle = apply("mul", apply("sub", _within(u), literal(0.5, compute)), literal(math.pi, compute))
        return apply("add", apply("mul", apply("tan", angle), literal(width, compute)), literal(median, compute))

    return _drawn(state, node, "philox_uniform", compute, formula)


# ---- bools, and dropout


def _is_below(p: float) -> Callable[[Scalar], Scalar]:
    """Whether an integer is among the fraction `p` of all: never for 0, always for 1."""
    last = int(math.ldexp(p, _BITS)) - 1
    return lambda integer: Apply("le", (integer, literal(last, torch.int64)), torch.bool)


def _check(holds: bool, seen: str) -> None:
    if not holds:
        raise NotLowered(seen)


@_rule(aten.bernoulli.p)
def _bernoulli_p(state: LoweringState, node: torch.fx.Node, x: Tensor, p: float) -> Computed:
    _check(isinstance(p, (int, float)) and 0 <= p <= 1, f"a probability of {p}")
    return _drawn(state, node, "philox_integer", torch.int64, _is_below(p))


@_rule(aten.bernoulli.default, aten.bernoulli.Tensor)
def _bernoulli(state: LoweringState, node: torch.fx.Node, x: Tensor, p: Tensor | None = None) -> Computed:
    probabilities = x if p is None else p
    if not probabilities.dtype.is_floating_point:
        raise NotLowered(f"probabilities of {probabilities.dtype}")
    compute = opmath(probabilities.dtype)

    def formula(u: Scalar, p: Scalar) -> Scalar:
        return Apply("lt", (u, apply("checked_probability", p)), torch.bool)

    return _drawn(state, node, "philox_uniform", compute, formula, probabilities, compute=compute)


@_rule(aten.native_dropout.default)
def _native_dropout(
    state: LoweringState, node: torch.fx.Node, x: Tensor, p: float, train: bool | None = None
) -> list[Computed]:
    _check(isinstance(p, (int, float)) and 0 <= p <= 1 and train is not False, f"p={p}, train={train}")
    output, mask = node.meta["val"]
    if x.dtype != output.dtype or not x.dtype.is_floating_point or x.device != output.device:
        raise NotLowered(f"dropout of {x.dtype}")
    compute = opmath(x.dtype)
    literal(0, compute)
    shape = x.shape
    strides = contiguous_strides(shape)
    seed, number = state.seed(x.device), literal(state.next_draw(), torch.int64)
    is_below = _is_below(1 - p)

    def is_kept(indices: Indices) -> Scalar:
        return is_below(Apply("philox_integer", (seed, FromIndex(linear(indices, strides)), number), torch.int64))

    def value(indices: Indices) -> Scalar:
        factor = cast(is_kept(indices), compute)
        scale = literal(0.0 if p == 1 else 1 / (1 - p), compute)
        return cast(apply("mul", apply("mul", cast(x.at(indices), compute), factor), scale), x.dtype)

    return [
        Computed(shape, x.dtype, x.device, value, COST + x.cost),
        Computed(shape, mask.dtype, x.device, is_kept, COST),
    ]


# ---- integers


@_rule(aten.randint.default, aten.randint.low, aten.randint_like.default, aten.randint_like.low_dtype)
def _randint(state: LoweringState, node: torch.fx.Node, *arguments: Any, **keywords: Any) -> Computed:
    given = by_name(node, arguments, keywords)
    low, high = given.get("low", 0), given["high"]
    dtype = fake_of(node).dtype
    span = sympy.sympify(high) - sympy.sympify(low)
    _check(bool(span.is_integer) and bool(span.is_positive) and dtype != torch.bool, f"from {low} to {high}")
    if span.is_Integer:
        _check(span < 2**_BITS and _holds(dtype, low) and _holds(dtype, high - 1), f"from {low} to {high} in {dtype}")
    else:
        _check(dtype == torch.int64, f"from {low} to {high} in {dtype}")

    def formula(integer: Scalar) -> Scalar:
        return apply("add", apply("mod", integer, literal(span, torch.int64)), literal(low, torch.int64))

    return _drawn(state, node, "philox_integer", torch.int64, formula)


def _holds(dtype: torch.dtype, number: Any) -> bool:
    if not dtype.is_floating_point:
        return torch.iinfo(dtype).min <= number <= torch.iinfo(dtype).max
    digits = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24}.get(dtype, 53)
    return abs(number) <= 2**digits
