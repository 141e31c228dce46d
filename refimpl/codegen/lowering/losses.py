"""The rule of a loss that looks at its operands: as a kernel it asserts what eager asks of them."""

from __future__ import annotations

import torch

from refimpl.codegen.indices import product
from refimpl.codegen.lowering.reductions import finished, reduced
from refimpl.codegen.lowering.state import (
    LoweringState,
    NotLowered,
    RuleTable,
    apply,
    broadcast_indices,
    cast,
    computed_like,
    literal,
    opmath,
)
from refimpl.codegen.scalars import Scalar
from refimpl.codegen.tensors import Computed, Indices, Tensor

aten = torch.ops.aten

RULES = RuleTable()

MEAN, SUM = 1, 2
_COST = 8


@RULES.rule(aten.binary_cross_entropy.default)
def _binary_cross_entropy(
    state: LoweringState,
    node: torch.fx.Node,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """Logarithms are at least -100. Rounded after each step; half types are added up in float32."""
    operands = [x, target, *([] if weight is None else [weight])]
    dtype, compute = x.dtype, opmath(x.dtype)
    if not dtype.is_floating_point or any(operand.dtype != dtype for operand in operands):
        raise NotLowered(f"a loss of {', '.join(str(operand.dtype) for operand in operands)}")
    if target.shape != x.shape or (weight is not None and len(weight.shape) > len(x.shape)):
        raise NotLowered("a loss of operands of several shapes")

    def step(function: str, *arguments: Scalar) -> Scalar:
        return cast(apply(function, *(cast(argument, compute) for argument in arguments)), dtype)

    def logarithm(function: str, number: Scalar) -> Scalar:
        return step("maximum", step(function, number), literal(-100, dtype))

    def loss(indices: Indices) -> Scalar:
        chance, truth = (apply("checked_probability", operand.at(indices)) for operand in (x, target))
        no = step("mul", step("sub", truth, literal(1, dtype)), logarithm("log1p", apply("neg", chance)))
        value = step("sub", no, step("mul", truth, logarithm("log", chance)))
        return value if weight is None else step("mul", value, weight.at(broadcast_indices(indices, weight.shape)))

    if reduction not in (MEAN, SUM):
        return computed_like(node, loss, operands, _COST)
    losses = Computed(x.shape, dtype, x.device, loss, _COST + sum(operand.cost for operand in operands))
    total = reduced(state, node, "sum", losses, None, compute)
    if reduction == SUM:
        return finished(node, total)
    count = product(x.shape)
    return finished(node, total, lambda value: apply("div", value, literal(count, compute)))
