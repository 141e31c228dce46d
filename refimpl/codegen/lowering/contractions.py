"""Lowerings of matrix products: contractions of two operands, each of which is computed at its loads if that is cheap.

A product with a vector is a plain reduction. So are products of integers, whose sums are exact modulo overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from refimpl.codegen.indices import ONE, ZERO, affine_terms, linear, product
from refimpl.codegen.loop_ir import Axis, Buffer, Nest, Reduction, new_axis
from refimpl.codegen.loop_simplification import normalised
from refimpl.codegen.lowering.state import (
    HALF,
    KERNEL_DTYPES,
    LoweringState,
    NotLowered,
    RuleTable,
    apply,
    broadcast_indices,
    cast,
    fake_of,
    literal,
    opmath,
    shape_of,
    whole,
)
from refimpl.codegen.lowering.views import guarded
from refimpl.codegen.scalars import Apply, Guarded, Literal, Load, Scalar, index_symbols, walk
from refimpl.codegen.schedule import guess
from refimpl.codegen.tensors import Computed, Indices, Stored, Tensor
from refimpl.trace.decompositions.device_numerics import uses_cpu_blas

aten = torch.ops.aten

RULES = RuleTable()

# An operand that costs more functions than this is stored in memory first, because every block of the other operand loads it
# again.
CHEAP_OPERAND = 2
DOT_DTYPES = (*HALF, torch.float32, torch.float64)
# Larger products are left to the operator's own kernel. The emulator computes about 1.5e9 multiply-adds of dots per second on two
# cores, and 3e7 of reductions. On a GPU the libraries are assumed to be faster unless autotuning has measured otherwise.
MOST_EMULATED = {"dot": 2**29, "sum": 2**24}
MOST_ON_A_GPU = 2**26

# (kept indices, reduced indices) -> an element of an operand
OperandAt = Callable[[Indices, Indices], Scalar]


@dataclass(frozen=True)
class ContractionSpec:
    """`target[kept]` = the sum over `reduced` of left * right. `strides` are the target's strides of the kept dimensions.

    Operands have `dtype`; the result is rounded to the target's.
    """

    kept: Indices
    reduced: Indices
    left: OperandAt
    right: OperandAt
    dtype: torch.dtype
    strides: Indices
    is_convolution: bool = False
    skips_guarded: bool = False
    """Whether a product with a guarded operand is skipped, so that padding times infinity is not NaN."""

    @property
    def multiply_adds(self) -> sympy.Expr:
        return product((*self.kept, *self.reduced))


def contracted(state: LoweringState, spec: ContractionSpec, target: Buffer, origins: tuple[str, ...]) -> Stored:
    """Lowers a contraction that fills a buffer. An empty sum is zero."""
    accumulate = opmath(spec.dtype)
    if ZERO in (*spec.kept, *spec.reduced):
        zeros = Computed(target.shape, target.dtype, target.device, lambda indices: literal(0, target.dtype))
        return state.store(zeros, target.strides, origins)
    kept = tuple(new_axis(size) for size in spec.kept)
    reduced = tuple(new_axis(size) for size in spec.reduced)
    at = _indices(kept), _indices(reduced)
    left, right = spec.left(*at), spec.right(*at)
    axes, over = (tuple(axis for axis in group if axis.size != ONE) for group in (kept, reduced))
    sides = index_symbols(left), index_symbols(right)
    has_sides = all(
        any(axis.symbol in mine and axis.symbol not in other for axis in axes)
        for mine, other in (sides, reversed(sides))
    )
    is_dot = bool(over) and has_sides and spec.dtype in DOT_DTYPES
    check_size(state, state.facts.guess(spec.multiply_adds), "dot" if is_dot else "sum", target.device)
    conditions = [side.condition for side in (left, right) if spec.skips_guarded and isinstance(side, Guarded)]
    if is_dot:
        value: Scalar = Apply("dot", (left, right), accumulate)
    else:
        sides_there = (side.value if conditions and isinstance(side, Guarded) else side for side in (left, right))
        value = apply("mul", *(cast(side, accumulate) for side in sides_there))
    value = guarded(conditions, value, Literal(0.0, accumulate))
    nest = Nest(
        axes=axes,
        reduced=over,
        order=(*axes, *over) if is_dot or not over else _order(axes, over, (left, right)),
        reduction=_reduction(spec, target.device, is_dot=is_dot) if over else None,
        value=value if over else cast(value, target.dtype),
        target=target,
        index=linear(at[0], spec.strides),
        origins=origins,
    )  # fmt: skip
    state.steps.append(normalised(nest))
    return whole(target)


def _reduction(spec: ContractionSpec, device: torch.device, *, is_dot: bool) -> Reduction:
    return dot_of(device, is_convolution=spec.is_convolution) if is_dot else Reduction("sum")


def dot_of(device: torch.device, *, is_convolution: bool = False) -> Reduction:
    """A dot with eager's precision of float32 on the device, by PyTorch's flags."""
    libraries: Any = torch.backends
    flags = libraries.cudnn.conv if is_convolution else libraries.cuda.matmul
    is_tf32 = device.type == "cuda" and flags.fp32_precision == "tf32"
    return Reduction("dot", "tf32" if is_tf32 else "ieee")


def check_size(state: LoweringState, multiply_adds: int, kind: str, device: torch.device) -> None:
    """Raises NotLowered if the options or the size demand the operator's own kernel."""
    match state.options.contractions:
        case "template":
            return
        case "extern":
            raise NotLowered("products are calls, by option")
        case "measured":
            most = MOST_EMULATED[kind] if device.type == "cpu" else MOST_ON_A_GPU
            if multiply_adds > most:
                raise NotLowered(f"{multiply_adds} multiply-adds, where {most} are the most for a kernel of our own")


def _indices(axes: Sequence[Axis]) -> Indices:
    return tuple(ZERO if axis.size == ONE else axis.symbol for axis in axes)


def _order(kept: tuple[Axis, ...], reduced: tuple[Axis, ...], operands: tuple[Scalar, Scalar]) -> tuple[Axis, ...]:
    """Puts the reduced axes inside the kept ones, unless the operand with most axes is contiguous along a kept one."""
    axes = {axis.symbol: axis in kept for axis in (*kept, *reduced)}
    loads = [part for part in walk(*operands) if isinstance(part, Load)]
    widest = max(loads, key=lambda load: len(load.index.free_symbols & axes.keys()), default=None)
    terms = None if widest is None else affine_terms(widest.index, frozenset(axes))
    if terms is None or not terms[0]:
        return (*kept, *reduced)
    innermost = min(terms[0], key=lambda symbol: guess(terms[0][symbol]))
    return (*reduced, *kept) if axes[innermost] else (*kept, *reduced)


def operand(state: LoweringState, node: torch.fx.Node, tensor: Tensor) -> Tensor:
    """The tensor, stored in memory if it is too expensive to compute at each load, or if it is float64 computed from other
    dtypes: Triton does not compile such products."""
    is_dear = tensor.cost > CHEAP_OPERAND
    if tensor.dtype == torch.float64 and not is_dear:
        loads = [part for part in walk(tensor.at(operand_indices(tensor))) if isinstance(part, Load)]
        is_dear = any(load.dtype != torch.float64 for load in loads)
    return state.store(tensor, origins=(node.name,)) if is_dear else tensor


def operand_indices(tensor: Tensor) -> Indices:
    """A symbol for each dimension, to see which expression computes an element of the tensor."""
    return tuple(sympy.Symbol(f"operand{dim}", integer=True, nonnegative=True) for dim in range(len(tensor.shape)))


def check_operands(node: torch.fx.Node, *tensors: Tensor, allow_integers: bool = False) -> None:
    """Raises NotLowered for dtypes or devices that the operands may not have."""
    fake = fake_of_any(node)
    takes_integers = allow_integers and fake.device.type == "cpu"
    known = KERNEL_DTYPES - {torch.bool} if takes_integers else DOT_DTYPES
    for tensor in tensors:
        if tensor.dtype not in known or tensor.dtype != tensors[0].dtype:
            raise NotLowered(f"a product of {' and '.join(str(tensor.dtype) for tensor in tensors)}")
        if tensor.device != fake.device:
            raise NotLowered(f"an argument on {tensor.device}, and the result on {fake.device}")


def fake_of_any(node: torch.fx.Node) -> torch.Tensor:
    """A fake tensor among the node's results, all of which are on one device."""
    value = node.meta.get("val")
    fakes = [
        item for item in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(item, torch.Tensor)
    ]
    if not fakes:
        raise NotLowered("no result is a tensor")
    return fakes[0]


def result_buffer(state: LoweringState, fake: torch.Tensor, dtype: torch.dtype | None = None) -> Buffer:
    """A buffer for a result, with the strides of its fake tensor."""
    return state.new_buffer(shape_of(fake), fake.dtype if dtype is None else dtype, fake.device, fake.stride())


# ---- products of matrices


def _product(
    state: LoweringState, node: torch.fx.Node, a: Tensor, b: Tensor, dtype: torch.dtype | None = None
) -> Stored:
    """Matrix products, or batches of them: [..., m, k] x [..., k, n]. `dtype` is the result's, if it is not the operands'."""
    check_operands(node, a, b, allow_integers=True)
    fake = fake_of(node)
    a, b = operand(state, node, a), operand(state, node, b)
    target = result_buffer(state, fake, dtype)
    spec = ContractionSpec(
        kept=shape_of(fake),
        reduced=(a.shape[-1],),
        left=lambda kept, reduced: a.at((*kept[:-1], *reduced)),
        right=lambda kept, reduced: b.at((*kept[:-2], *reduced, kept[-1])),
        dtype=a.dtype,
        strides=target.strides,
    )
    return contracted(state, spec, target, (node.name,))


@RULES.rule(aten.mm.default, aten.bmm.default)
def _mm(state: LoweringState, node: torch.fx.Node, a: Tensor, b: Tensor) -> Stored:
    return _product(state, node, a, b)


@RULES.rule(aten.addmm.default, aten.baddbmm.default)
def _addmm(
    state: LoweringState, node: torch.fx.Node, x: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Stored:
    """beta * x + alpha * (a @ b), rounded once. With beta = 0 x is not read, so its NaN has no effect; with alpha = 0 libraries
    skip the product."""
    fake = fake_of(node)
    check_operands(node, x, a, b, allow_integers=True)
    if not fake.dtype.is_floating_point and not all(isinstance(number, int) for number in (alpha, beta)):
        raise NotLowered(f"alpha={alpha}, beta={beta} of {fake.dtype}")
    compute = opmath(fake.dtype)
    factors = [None if is_one(number) else literal(number, compute) for number in (beta, alpha)]
    ignores = isinstance(beta, (int, float)) and beta == 0
    is_library = node.target is aten.addmm.default and uses_cpu_blas(fake.dtype, fake.device)
    if is_library and isinstance(alpha, (int, float)) and alpha == 0:
        factors, total = [factors[0], None], _zeros(node, 0.0 if ignores else -0.0)
    else:
        total = _product(state, node, a, b, compute)

    def value(indices: Indices) -> Scalar:
        terms = (
            [total.at(indices)]
            if ignores
            else [cast(x.at(broadcast_indices(indices, x.shape)), compute), total.at(indices)]
        )
        scaled = [
            term if factor is None else apply("mul", term, factor)
            for term, factor in zip(terms, factors[-len(terms) :], strict=True)
        ]
        return cast(scaled[0] if ignores else apply("add", *scaled), fake.dtype)

    result = Computed(total.shape, fake.dtype, fake.device, value, x.cost + 2)
    return state.store(result, fake.stride(), (node.name,))


def _zeros(node: torch.fx.Node, zero: float) -> Computed:
    """Zeros in place of a product. With -0.0 the other term of a sum stays as it is."""
    fake = fake_of(node)
    return Computed(shape_of(fake), fake.dtype, fake.device, lambda at: literal(zero, fake.dtype), 0)


def is_one(number: Any) -> bool:
    """Whether it is the number 1, and not a symbolic size."""
    return isinstance(number, (int, float)) and number == 1
