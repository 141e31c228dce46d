"""Lowerings of reductions, and of binary cross entropy: half dtypes are accumulated in float32, and the result is rounded
once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from refimpl.codegen.indices import ONE, product
from refimpl.codegen.loop_ir import ReductionKind
from refimpl.codegen.lowering.state import (
    KERNEL_DTYPES,
    LoweringState,
    NotLowered,
    RuleTable,
    apply,
    broadcast_indices,
    cast,
    computed_like,
    fake_of,
    literal,
    opmath,
    shape_of,
)
from refimpl.codegen.lowering.views import reshaping
from refimpl.codegen.scalars import Scalar
from refimpl.codegen.tensors import Computed, Indices, Tensor
from refimpl.trace.decompositions.promotion import statistics_dtype

aten = torch.ops.aten

RULES = RuleTable()


def dims_of(x: Tensor, dims: Any) -> list[int]:
    """The dimensions of a reduction; all if none are given."""
    rank = len(x.shape)
    if dims is None or (isinstance(dims, Sequence) and not dims):
        return list(range(rank))
    given = [dims] if isinstance(dims, int) else list(dims)
    return sorted(dim + rank if dim < 0 else dim for dim in given if rank)


def converted(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in another dtype, computed at each load. Raises NotLowered for a dtype that kernels do not load."""
    if x.dtype == dtype:
        return x
    if x.dtype not in KERNEL_DTYPES:
        raise NotLowered(f"an argument of {x.dtype}")
    return Computed(x.shape, dtype, x.device, lambda indices: cast(x.at(indices), dtype), x.cost + 1)


def reduced(
    state: LoweringState, node: torch.fx.Node, kind: ReductionKind, x: Tensor, dims: Any, accumulate: torch.dtype
) -> Tensor:
    """A reduction, with reduced dimensions of size 1, in the accumulator's dtype."""
    if x.dtype not in KERNEL_DTYPES or accumulate not in KERNEL_DTYPES:
        raise NotLowered(f"a reduction of {x.dtype} in {accumulate}")
    dtype = torch.int64 if kind in ("argmax", "argmin") else accumulate
    return state.reduce(kind, converted(x, accumulate), dims_of(x, dims), dtype, (node.name,))


def finished(node: torch.fx.Node, kept: Tensor, formula: Any = None) -> Tensor:
    """The reduction in the node's shape and dtype, after a formula."""
    fake = fake_of(node)
    move = reshaping(kept.shape, shape_of(fake))

    def value(indices: Indices) -> Scalar:
        scalar = kept.at(move(indices))
        return cast(scalar if formula is None else formula(scalar), fake.dtype)

    return computed_like(node, value, [kept], cost=1)


@RULES.rule(aten.sum.dim_IntList, aten.sum.default)
def _sum(
    state: LoweringState, node: torch.fx.Node, x: Tensor, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    to = fake_of(node).dtype
    source = x if dtype is None else converted(x, dtype)
    return finished(node, reduced(state, node, "sum", source, dims, opmath(to)))


@RULES.rule(aten.prod.default, aten.prod.dim_int)
def _prod(
    state: LoweringState, node: torch.fx.Node, x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    source = x if dtype is None else converted(x, dtype)
    return finished(node, reduced(state, node, "prod", source, dim, opmath(fake_of(node).dtype)))


@RULES.rule(aten.mean.default, aten.mean.dim)
def _mean(
    state: LoweringState, node: torch.fx.Node, x: Tensor, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    compute = opmath(fake_of(node).dtype)
    if not compute.is_floating_point:
        raise NotLowered(f"mean in {compute}")
    source = x if dtype is None else converted(x, dtype)
    count = product(x.shape[dim] for dim in dims_of(x, dims))
    total = reduced(state, node, "sum", source, dims, compute)
    return finished(node, total, lambda value: apply("div", value, literal(count, compute)))


@RULES.rule(aten.var.correction)
def _var(
    state: LoweringState,
    node: torch.fx.Node,
    x: Tensor,
    dims: Any = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> Tensor:
    return _variance(state, node, x, dims, 1 if correction is None else correction)


def _variance(state: LoweringState, node: torch.fx.Node, x: Tensor, dims: Any, correction: Any) -> Tensor:
    """Computes the mean first, then the deviations from it. If a CPU reduction has a single result, its mean is rounded to
    float32."""
    compute = statistics_dtype(x.dtype, x.device)
    if not compute.is_floating_point or not isinstance(correction, (int, float)):
        raise NotLowered(f"variance of {x.dtype} with correction {correction}")
    over = dims_of(x, dims)
    count = product(x.shape[dim] for dim in over)
    is_only_result = x.dtype == torch.float32 and all(dim in over or size == ONE for dim, size in enumerate(x.shape))
    first = torch.float32 if is_only_result else compute
    total = reduced(state, node, "sum", x, dims, first)
    source = converted(x, compute)

    def squared(indices: Indices) -> Scalar:
        kept = tuple(index * 0 if dim in over else index for dim, index in enumerate(indices))
        mean = cast(apply("div", total.at(kept), literal(count, first)), compute)
        away = apply("sub", source.at(indices), mean)
        return apply("mul", away, away)

    around = Computed(x.shape, compute, x.device, squared, x.cost + 3)
    spread = reduced(state, node, "sum", around, dims, compute)

    def divided(value: Scalar) -> Scalar:
        if count.is_Integer:
            return apply("div", value, literal(max(int(count) - correction, 0), compute))
        degrees = apply("sub", literal(count, compute), literal(correction, compute))
        return apply("div", value, apply("maximum", degrees, literal(0, compute)))

    return finished(node, spread, divided)


@RULES.rule(aten.amax.default, aten.amin.default)
def _amax(state: LoweringState, node: torch.fx.Node, x: Tensor, dims: Any = (), keepdim: bool = False) -> Tensor:
    kind: ReductionKind = "max" if node.target is aten.amax.default else "min"
    if x.dtype == torch.bool:
        kind = "any" if kind == "max" else "all"
    return finished(node, reduced(state, node, kind, x, dims, opmath(x.dtype)))


@RULES.rule(aten.any.default, aten.any.dim, aten.any.dims)
def _any(state: LoweringState, node: torch.fx.Node, x: Tensor, dims: Any = None, keepdim: bool = False) -> Tensor:
    return finished(node, reduced(state, node, "any", x, dims, torch.bool))


@RULES.rule(aten.argmax.default, aten.argmin.default)
def _argmax(state: LoweringState, node: torch.fx.Node, x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    kind: ReductionKind = "argmax" if node.target is aten.argmax.default else "argmin"
    if x.dtype == torch.bool:
        raise NotLowered("argmax of bool")
    if dim is None and len(x.shape) > 1:
        flat = Computed((product(x.shape),), x.dtype, x.device, _flattened(x), x.cost)
        return finished(node, _kept(reduced(state, node, kind, flat, 0, opmath(x.dtype)), len(x.shape)))
    return finished(node, reduced(state, node, kind, x, dim, opmath(x.dtype)))


def _flattened(x: Tensor) -> Any:
    move = reshaping(x.shape, (product(x.shape),))
    return lambda indices: x.at(move(indices))


def _kept(x: Tensor, rank: int) -> Computed:
    """A tensor with one element, with that many dimensions."""
    return Computed((ONE,) * rank, x.dtype, x.device, lambda indices: x.at((indices[0] * 0,)), x.cost)


@RULES.rule(aten.max.dim, aten.min.dim)
def _max_dim(
    state: LoweringState, node: torch.fx.Node, x: Tensor, dim: int, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    is_max = node.target is aten.max.dim
    if x.dtype == torch.bool:
        x = converted(x, torch.int32)
    values, places = node.meta["val"]
    kinds: tuple[ReductionKind, ReductionKind] = ("max", "argmax") if is_max else ("min", "argmin")
    both = []
    for kind, fake in zip(kinds, (values, places), strict=True):
        kept = reduced(state, node, kind, x, dim, opmath(x.dtype))
        move = reshaping(kept.shape, shape_of(fake))
        dtype = fake.dtype

        def value(indices: Indices, kept: Tensor = kept, move: Any = move, dtype: torch.dtype = dtype) -> Scalar:
            return cast(kept.at(move(indices)), dtype)

        both.append(Computed(shape_of(fake), dtype, x.device, value))
    return both[0], both[1]


@RULES.rule(aten.cumsum.default, aten.cumprod.default)
def _scan(state: LoweringState, node: torch.fx.Node, x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    to = fake_of(node).dtype
    if x.dtype not in KERNEL_DTYPES or to not in KERNEL_DTYPES:
        raise NotLowered(f"a scan of {x.dtype} in {to}")
    source = converted(x if dtype is None else converted(x, dtype), opmath(to))
    kind: ReductionKind = "cumsum" if node.target is aten.cumsum.default else "cumprod"
    at = dim + len(x.shape) if dim < 0 else dim
    scanned = state.scan(kind, source, at, (node.name,)) if x.shape else source
    return computed_like(node, lambda indices: cast(scanned.at(indices), to), [scanned], cost=0)


# A loss that checks its operands: the kernel asserts what eager's kernel checks.

_MEAN, _SUM = 1, 2  # values of at::Reduction
_COST_OF_LOSS = 8


@RULES.rule(aten.binary_cross_entropy.default)
def _binary_cross_entropy(
    state: LoweringState,
    node: torch.fx.Node,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    """Logarithms are at least -100. Each step is rounded; half dtypes are accumulated in float32."""
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

    if reduction not in (_MEAN, _SUM):
        return computed_like(node, loss, operands, _COST_OF_LOSS)
    losses = Computed(x.shape, dtype, x.device, loss, _COST_OF_LOSS + sum(operand.cost for operand in operands))
    total = reduced(state, node, "sum", losses, None, compute)
    if reduction == _SUM:
        return finished(node, total)
    count = product(x.shape)
    return finished(node, total, lambda value: apply("div", value, literal(count, compute)))
