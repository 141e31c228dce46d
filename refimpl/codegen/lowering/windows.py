"""Lowerings of pooling and other operators on windows.

`window_geometry` says which elements a window has, and which windows contain an element. So gradients are sums over windows too,
without atomics, and results do not differ from run to run. Small windows are unrolled in eager's order; large ones are
reductions.

Counterpart: torch/_inductor/lowering.py max_pool2d_with_indices, avg_pool2d, _adaptive_avg_pool2d and their gradients
Differs: three-dimensional gradients and those of adaptive pooling are lowered too; among equal maxima, and for NaN, eager's
choice is taken.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from refimpl.codegen.indices import ONE, ZERO
from refimpl.codegen.loop_ir import ReductionKind
from refimpl.codegen.lowering.state import (
    HALF,
    KERNEL_DTYPES,
    LoweringState,
    NotLowered,
    RuleTable,
    apply,
    cast,
    computed_like,
    fake_of,
    literal,
    opmath,
    shape_of,
)
from refimpl.codegen.lowering.views import compared, guarded
from refimpl.codegen.lowering.window_geometry import Found, Steps, Windows, parts
from refimpl.codegen.scalars import Apply, FromIndex, Scalar
from refimpl.codegen.tensors import Computed, Indices, Stored, Tensor
from refimpl.symbolic.functions import FloorDiv

aten = torch.ops.aten

RULES = RuleTable()

# Windows of up to this many elements are unrolled.
WRITTEN_OUT = 32

# A tensor that several windows load is stored in memory first if an element of it costs more functions than this.
CHEAP = 2

_BEYOND = 2**62

_MAXIMA = (
    aten.max_pool2d_with_indices.default,
    aten.max_pool3d_with_indices.default,
    aten.adaptive_max_pool2d.default,
    aten.adaptive_max_pool3d.default,
)


# ---- over all dimensions


def _located(indices: Sequence[Found]) -> tuple[Indices, list[Scalar]]:
    return tuple(place for place, _ in indices), [condition for _, conditions in indices for condition in conditions]


def reduced_over(
    state: LoweringState, node: torch.fx.Node, kind: ReductionKind, shape: Indices, lengths: Sequence[int],
    value: Callable[[Indices, Indices], Scalar], dtype: torch.dtype, device: torch.device,
) -> Tensor:  # fmt: skip
    """Reduces value(point, k) over all k below `lengths`, for every point of a shape. Short reductions are unrolled in order."""
    rank = len(shape)
    if _is_written_out(lengths):
        combine = {"sum": "add", "max": "maximum"}[kind]

        def written_out(at: Indices) -> Scalar:
            values = (value(at, k) for k in _all(lengths))
            return functools.reduce(lambda a, b: apply(combine, a, b), values)

        cost = 3 * math.prod(lengths)
        return state.store(Computed(shape, dtype, device, written_out, cost), origins=(node.name,))
    wide = Computed(
        (*shape, *(sympy.Integer(length) for length in lengths)), dtype, device, lambda at: value(at[:rank], at[rank:])
    )
    kept = state.reduce(kind, wide, range(rank, rank + len(lengths)), dtype, (node.name,))
    zeros = (ZERO,) * len(lengths)
    return Computed(shape, dtype, device, lambda at: kept.at((*at, *zeros)), 0)


def _is_written_out(lengths: Sequence[int]) -> bool:
    return math.prod(lengths) <= WRITTEN_OUT


def _all(lengths: Sequence[int]) -> list[Indices]:
    ranges = (range(length) for length in lengths)
    return [tuple(sympy.Integer(k) for k in ks) for ks in itertools.product(*ranges)]


def _source(state: LoweringState, node: torch.fx.Node, x: Tensor) -> Tensor:
    """A tensor whose elements are loaded by several windows."""
    return x if isinstance(x, Stored) or x.cost <= CHEAP else state.store(x, origins=(node.name,))


def _check_dtype(x: Tensor) -> None:
    if x.dtype not in KERNEL_DTYPES or x.dtype == torch.bool:
        raise NotLowered(f"windows of {x.dtype}")


def _numbers(values: Any, rank: int) -> list[int]:
    given = [values] if isinstance(values, int) else list(values)
    if not all(isinstance(number, int) for number in given):
        raise NotLowered("windows of sizes known at run time")
    return given * rank if len(given) == 1 else given


def _steps(
    sizes: Indices, windows: Indices, rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any = 1, *,
    counts_padding: bool = True,
) -> list[Windows]:  # fmt: skip
    """The windows of the last `rank` dimensions."""
    lengths = _numbers(kernel, rank)
    options = (
        lengths,
        _numbers(stride, rank) if stride != [] else lengths,
        _numbers(padding, rank),
        _numbers(dilation, rank),
    )
    return [
        Steps(size, count, *each, counts_padding=counts_padding)
        for size, count, *each in zip(sizes[-rank:], windows[-rank:], *options, strict=True)
    ]


# ---- maxima


def _pooled_maxima(
    state: LoweringState, node: torch.fx.Node, x: Tensor, windows: Sequence[Windows]
) -> tuple[Tensor, Tensor]:
    """The maxima, and their flat indices in the dimensions of the windows: the first of equal ones, or the last NaN."""
    _check_dtype(x)
    source, rank = _source(state, node, x), len(windows)
    sizes, shape = x.shape[-rank:], shape_of(node.meta["val"][0])
    compute = opmath(x.dtype)
    info = torch.finfo(compute) if compute.is_floating_point else torch.iinfo(compute)
    lowest = literal(float("-inf") if compute.is_floating_point else info.min, compute)

    def read(at: Indices, k: Indices) -> tuple[Scalar, Scalar, list[Scalar]]:
        """An element, its flat index, and the conditions under which it exists."""
        found, conditions = _located([w.element(o, i) for w, o, i in zip(windows, at[-rank:], k, strict=True)])
        element = cast(source.at((*at[:-rank], *found)), compute)
        place = functools.reduce(lambda a, b: a * b[0] + b[1], zip(sizes, found, strict=True), ZERO)
        return guarded(conditions, element, lowest), FromIndex(sympy.sympify(place).expand()), conditions

    lengths = [window.length for window in windows]
    if not _is_written_out(lengths):
        return _reduced_maxima(state, node, shape, lengths, read, x)

    @functools.cache
    def chosen(at: Indices) -> tuple[Scalar, Scalar]:
        best, where = lowest, literal(-1, torch.int64)
        may_be_nowhere = True
        for k in _all(lengths):
            value, place, conditions = read(at, k)
            better: Scalar = Apply("gt", (value, best), torch.bool)
            if compute.is_floating_point:
                better = apply("or", better, Apply("ne", (value, value), torch.bool))
            if may_be_nowhere:  # the lowest number of the dtype equals the value of padding
                better = apply("or", better, Apply("lt", (where, literal(0, torch.int64)), torch.bool))
            better = functools.reduce(lambda a, b: apply("and", a, b), conditions, better)
            may_be_nowhere = may_be_nowhere and bool(conditions)
            best = apply("where", better, value, best, dtype=compute)
            where = apply("where", better, place, where, dtype=torch.int64)
        return best, where

    cost = 6 * math.prod(lengths)
    values = Computed(shape, x.dtype, x.device, lambda at: cast(chosen(at)[0], x.dtype), cost)
    places = Computed(shape, torch.int64, x.device, lambda at: chosen(at)[1], cost)
    return state.store(values, origins=(node.name,)), state.store(places, origins=(node.name,))


def _reduced_maxima(
    state: LoweringState, node: torch.fx.Node, shape: Indices, lengths: Sequence[int],
    read: Callable[[Indices, Indices], tuple[Scalar, Scalar, list[Scalar]]], x: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Finds the indices by a second reduction: the maximum of a number that is greater for an earlier equal value, or a later
    NaN."""
    compute = opmath(x.dtype)
    best = reduced_over(state, node, "max", shape, lengths, lambda at, k: read(at, k)[0], compute, x.device)
    beyond = literal(_BEYOND, torch.int64)

    def number(at: Indices, k: Indices) -> Scalar:
        value, place, conditions = read(at, k)
        none = literal(-1, torch.int64)
        is_best = Apply("eq", (value, best.at(at)), torch.bool)
        is_nan = Apply("ne", (value, value), torch.bool)
        late = apply("where", is_nan, place, none, dtype=torch.int64)
        ranked = apply("where", is_best, apply("sub", beyond, place), late, dtype=torch.int64)
        return guarded(conditions, ranked, none)

    numbers = reduced_over(state, node, "max", shape, lengths, number, torch.int64, x.device)

    def place(at: Indices) -> Scalar:
        value, found = best.at(at), numbers.at(at)
        is_number = Apply("eq", (value, value), torch.bool)
        return apply("where", is_number, apply("sub", beyond, found), found, dtype=torch.int64)

    return (
        Computed(shape, x.dtype, x.device, lambda at: cast(best.at(at), x.dtype)),
        Computed(shape, torch.int64, x.device, place, 2),
    )


def _maxima_gradient(
    state: LoweringState, node: torch.fx.Node, grad: Tensor, indices: Tensor, windows: Sequence[Windows]
) -> Tensor:
    """Each element sums the gradients of the windows whose maximum it is."""
    _check_dtype(grad)
    rank, fake = len(windows), fake_of(node)
    shape, compute = shape_of(fake), opmath(grad.dtype)
    source, places = _source(state, node, grad), _source(state, node, indices)
    zero = literal(0, compute)

    def value(at: Indices, j: Indices) -> Scalar:
        found, conditions = _located([w.window(i, n) for w, i, n in zip(windows, at[-rank:], j, strict=True)])
        window = (*at[:-rank], *found)
        place = functools.reduce(lambda a, b: a * b[0] + b[1], zip(shape[-rank:], at[-rank:], strict=True), ZERO)
        is_here = Apply("eq", (places.at(window), FromIndex(sympy.sympify(place).expand())), torch.bool)
        taken = apply("where", is_here, cast(source.at(window), compute), zero, dtype=compute)
        return guarded(conditions, taken, zero)

    total = reduced_over(state, node, "sum", shape, [w.sharing for w in windows], value, compute, grad.device)
    return computed_like(node, lambda at: cast(total.at(at), grad.dtype), [total, source, places], cost=0)


def _rank_of(node: torch.fx.Node) -> int:
    return 3 if "3d" in str(node.target) else 2


@RULES.rule(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def _max_pool(
    state: LoweringState, node: torch.fx.Node, x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0,
    dilation: Any = 1, ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    shape = shape_of(node.meta["val"][0])
    return _pooled_maxima(
        state, node, x, _steps(x.shape, shape, _rank_of(node), kernel, list(stride), padding, dilation)
    )


def _check_from_forward(node: torch.fx.Node, indices: Any, options: Sequence[Any] = ()) -> None:
    """Raises NotLowered unless the indices are known to lie in the windows: the forward of the same image is in the graph, or the
    graph is a backward whose forward saved them."""
    forward = indices.args[0] if indices.target is operator.getitem else None
    if forward is not None and forward.target in _MAXIMA and forward.args[0] is node.args[1]:
        rank = _rank_of(node)
        if not options or _window_options(rank, *forward.args[1:]) == _window_options(rank, *options):
            return
    placeholders = node.graph.find_nodes(op="placeholder")
    if indices.op == "placeholder" and any(one.name.startswith("tangents") for one in placeholders):
        return
    raise NotLowered("indices that need not be of its windows")


def _window_options(
    rank: int, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Any, ...]:
    numbers = (_numbers(number, rank) for number in (kernel, stride or kernel, padding, dilation))
    return (*numbers, ceil_mode)


@RULES.rule(aten.max_pool2d_with_indices_backward.default, aten.max_pool3d_with_indices_backward.default)
def _max_pool_backward(
    state: LoweringState, node: torch.fx.Node, grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any,
    dilation: Any, ceil_mode: bool, indices: Tensor,
) -> Tensor:  # fmt: skip
    _check_from_forward(node, node.args[7], node.args[2:7])
    windows = _steps(x.shape, grad.shape, _rank_of(node), kernel, list(stride), padding, dilation)
    return _maxima_gradient(state, node, grad, indices, windows)


@RULES.rule(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def _adaptive_max_pool(state: LoweringState, node: torch.fx.Node, x: Tensor, output_size: Any) -> tuple[Tensor, Tensor]:
    return _pooled_maxima(state, node, x, _parts(x.shape, shape_of(node.meta["val"][0]), _rank_of(node)))


@RULES.rule(aten.adaptive_max_pool2d_backward.default, aten.adaptive_max_pool3d_backward.default)
def _adaptive_max_pool_backward(
    state: LoweringState, node: torch.fx.Node, grad: Tensor, x: Tensor, indices: Tensor
) -> Tensor:
    _check_from_forward(node, node.args[2])
    return _maxima_gradient(state, node, grad, indices, _parts(x.shape, grad.shape, _rank_of(node)))


def _parts(sizes: Indices, windows: Indices, rank: int) -> list[Windows]:
    if ZERO in (*sizes[-rank:], *windows[-rank:]):
        raise NotLowered("adaptive windows of an image of no size")  # eager raises for most of them
    return [parts(size, count) for size, count in zip(sizes[-rank:], windows[-rank:], strict=True)]


# ---- means


def _divisor(windows: Sequence[Windows], at: Indices, compute: torch.dtype, override: Any = None) -> Scalar:
    """The number of elements in the window at a point, in the dtype of the computation."""
    if override is not None:
        return literal(override, compute)
    known = 1
    read: Scalar | None = None
    for window, place in zip(windows, at[-len(windows) :], strict=True):
        count = window.count(place)
        if isinstance(count, int):
            known *= count
        else:
            read = count if read is None else apply("mul", read, count)
    if read is None:
        return literal(known, compute)
    return cast(apply("mul", read, literal(known, torch.int64)) if known != 1 else read, compute)


def _divided(total: Scalar, divisor: Scalar) -> Scalar:
    return apply("div" if total.dtype.is_floating_point else "truncdiv", total, divisor)


def _means(
    state: LoweringState, node: torch.fx.Node, x: Tensor, windows: Sequence[Windows], override: Any = None
) -> Tensor:
    _check_dtype(x)
    source, rank, shape, compute = _source(state, node, x), len(windows), shape_of(fake_of(node)), opmath(x.dtype)

    def value(at: Indices, k: Indices) -> Scalar:
        found, conditions = _located([w.element(o, i) for w, o, i in zip(windows, at[-rank:], k, strict=True)])
        return guarded(conditions, cast(source.at((*at[:-rank], *found)), compute), literal(0, compute))

    total = reduced_over(state, node, "sum", shape, [w.length for w in windows], value, compute, x.device)

    def mean(at: Indices) -> Scalar:
        return cast(_divided(total.at(at), _divisor(windows, at, compute, override)), x.dtype)

    return computed_like(node, mean, [total, source], cost=1)


def _means_gradient(
    state: LoweringState, node: torch.fx.Node, grad: Tensor, windows: Sequence[Windows], override: Any = None
) -> Tensor:
    _check_dtype(grad)
    rank, shape, compute = len(windows), shape_of(fake_of(node)), opmath(grad.dtype)
    source = _source(state, node, grad)

    def value(at: Indices, j: Indices) -> Scalar:
        found, conditions = _located([w.window(i, n) for w, i, n in zip(windows, at[-rank:], j, strict=True)])
        window = (*at[:-rank], *found)
        share = _divided(cast(source.at(window), compute), _divisor(windows, window, compute, override))
        return guarded(conditions, share, literal(0, compute))

    total = reduced_over(state, node, "sum", shape, [w.sharing for w in windows], value, compute, grad.device)
    return computed_like(node, lambda at: cast(total.at(at), grad.dtype), [total, source], cost=0)


@RULES.rule(aten.avg_pool2d.default, aten.avg_pool3d.default)
def _avg_pool(
    state: LoweringState, node: torch.fx.Node, x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: Any = None,
) -> Tensor:  # fmt: skip
    shape = shape_of(fake_of(node))
    rank = _rank_of(node)
    if rank == 3 and x.dtype in HALF and x.device.type == "cpu":
        raise NotLowered(f"avg_pool3d of {x.dtype} on the CPU, which eager refuses")
    windows = _steps(x.shape, shape, rank, kernel, list(stride), padding, counts_padding=count_include_pad)
    return _means(state, node, x, windows, divisor_override)


@RULES.rule(aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default)
def _avg_pool_backward(
    state: LoweringState, node: torch.fx.Node, grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any,
    ceil_mode: bool, count_include_pad: bool, divisor_override: Any = None,
) -> Tensor:  # fmt: skip
    rank = _rank_of(node)
    windows = _steps(x.shape, grad.shape, rank, kernel, list(stride), padding, counts_padding=count_include_pad)
    return _means_gradient(state, node, grad, windows, divisor_override)


@RULES.rule(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def _adaptive_avg_pool(state: LoweringState, node: torch.fx.Node, x: Tensor, output_size: Any) -> Tensor:
    return _means(state, node, x, _parts(x.shape, shape_of(fake_of(node)), _rank_of(node)))


@RULES.rule(aten._adaptive_avg_pool2d_backward.default, aten._adaptive_avg_pool3d_backward.default)
def _adaptive_avg_pool_backward(state: LoweringState, node: torch.fx.Node, grad: Tensor, x: Tensor) -> Tensor:
    return _means_gradient(state, node, grad, _parts(x.shape, grad.shape, _rank_of(node)))


# ---- sums of windows, and of reflections


@RULES.rule(aten.col2im.default)
def _col2im(
    state: LoweringState, node: torch.fx.Node, x: Tensor, output_size: Any, kernel: Any, dilation: Any, padding: Any,
    stride: Any,
) -> Tensor:  # fmt: skip
    """(N, C * kh * kw, windows) to (N, C, H, W)."""
    _check_dtype(x)
    shape, compute = shape_of(fake_of(node)), opmath(x.dtype)
    lengths = _numbers(kernel, 2)
    options = (lengths, _numbers(stride, 2), _numbers(padding, 2), _numbers(dilation, 2))
    counts = [
        FloorDiv(size + 2 * pad - dilated * (length - 1) - 1, sympy.Integer(step)) + 1
        for size, length, step, pad, dilated in zip(shape[-2:], *options, strict=True)
    ]
    windows = [Steps(size, count, *each) for size, count, *each in zip(shape[-2:], counts, *options, strict=True)]
    source = _source(state, node, x)

    def value(at: Indices, k: Indices) -> Scalar:
        (row, column), conditions = _located([w.origin(i, n) for w, i, n in zip(windows, at[-2:], k, strict=True)])
        channel = (at[-3] * lengths[0] + k[0]) * lengths[1] + k[1]
        element = source.at((*at[:-3], channel.expand(), (row * counts[1] + column).expand()))
        return guarded(conditions, cast(element, compute), literal(0, compute))

    total = reduced_over(state, node, "sum", shape, lengths, value, compute, x.device)
    return computed_like(node, lambda at: cast(total.at(at), x.dtype), [total, source], cost=0)


@RULES.rule(
    aten.reflection_pad1d_backward.default,
    aten.reflection_pad2d_backward.default,
    aten.reflection_pad3d_backward.default,
)
def _reflection_pad_backward(
    state: LoweringState, node: torch.fx.Node, grad: Tensor, x: Tensor, padding: Sequence[Any]
) -> Tensor:
    """Each element sums its own gradient and those of its reflections before the first and after the last element."""
    _check_dtype(grad)
    rank = len(padding) // 2
    sides = _numbers(padding, len(padding))
    compute = opmath(grad.dtype)
    source = _source(state, node, grad)
    dims = [(x.shape[-1 - pair], sides[2 * pair], sides[2 * pair + 1]) for pair in reversed(range(rank))]

    def value(at: Indices, k: Indices) -> Scalar:
        found = [_reflected(*dim, i, int(which)) for dim, i, which in zip(dims, at[-rank:], k, strict=True)]
        places, conditions = _located(found)
        return guarded(conditions, cast(source.at((*at[:-rank], *places)), compute), literal(0, compute))

    total = reduced_over(state, node, "sum", x.shape, [3] * rank, value, compute, grad.device)
    return computed_like(node, lambda at: cast(total.at(at), grad.dtype), [total, source], cost=0)


def _reflected(size: sympy.Expr, before: int, after: int, element: sympy.Expr, which: int) -> Found:
    """Position of an element in the padded dimension: 0 for itself, 1 for its reflection before the first, 2 for that after the
    last."""
    if which == 0:
        place = element + before
        is_cut = before < 0 or after < 0
        inside = [compared("ge", place, ZERO), compared("lt", place, size + before + after)]
        return place, inside if is_cut else []
    if which == 1:
        return before - element, [compared("ge", element, ONE), compared("le", element, before)]
    place = before + 2 * (size - 1) - element
    return place, [compared("lt", element, size - 1), compared("lt", place, size + before + after)]
