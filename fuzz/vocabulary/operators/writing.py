"""Operators that write: in place, into `out=`, and in place on lists of tensors.

Every write is defined: elements of the target do not overlap, operands are not partly overwritten (for operators that are not
pointwise: not at all), and the target is not a leaf that requires grad.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fuzz.draw.choices import Draw
from fuzz.draw.geometry import overlaps_itself, partly_overlap, share_memory
from fuzz.draw.inputs.shapes import draw_broadcastable
from fuzz.draw.inputs.specs import FLOATS, INTEGERS
from fuzz.draw.scene import Scene, dtype_name
from fuzz.program.structure import Items, OpCall, Operand, Ref
from fuzz.vocabulary.operators.build import (
    ALL,
    DOUBLES,
    INEXACT,
    INTEGRAL,
    NUMERIC,
    REAL,
    WRITABLE_LAYOUTS,
    CallBuilder,
    Part,
    PartLike,
    Unfit,
    call_of,
    draw_with,
    evaluate,
    named,
)
from fuzz.vocabulary.operators.operands import (
    a_divisor,
    a_number,
    add_distinct,
    dim,
    either,
    indices,
    number,
    of_shape,
    optional,
    other,
    several,
    size_of,
    x,
)
from fuzz.vocabulary.operators.spec import OpSpec

_IN_PLACE = "in place"
_OUT = "out"
_LEAVES = {"target": "no leaf that requires grad, and no two elements in one place"}


def target(
    dtypes: Sequence[str] = ALL,
    *,
    rank: tuple[int, int] = (0, 6),
    shape: Callable[[CallBuilder], Sequence[int]] | None = None,
    condition: Callable[[torch.Tensor], bool] = lambda tensor: True,
    layouts: Sequence[str] = WRITABLE_LAYOUTS,
) -> Part:
    """A tensor to write to."""

    def part(builder: CallBuilder) -> Ref:
        def fits(tensor: torch.Tensor) -> bool:
            return (
                dtype_name(tensor) in dtypes
                and rank[0] <= tensor.dim() <= rank[1]
                and not (tensor.is_leaf and tensor.requires_grad)
                and (shape is None or tuple(tensor.shape) == wanted)
                and condition(tensor)
            )

        wanted = None if shape is None else tuple(shape(builder))
        name = builder.scene.target(fits) if builder.draw.chance(0.85) else None
        if name is None:
            name = builder.add(
                dtypes,
                rank=rank,
                shape=wanted,
                layouts=layouts,
                requires_grad=False,
                condition=lambda tensor: tensor.numel() > 0 and condition(tensor),
            )
        return builder.take(name)

    return part


def source(
    dtypes: Sequence[str] = (),
    *,
    numbers: float = 0.2,
    mixes: float = 0.15,
    broadcasts: float = 0.3,
    shape: Callable[[CallBuilder], Sequence[int]] | None = None,
    is_apart: bool = False,
    domain: str = "any",
) -> Part:
    """An operand that broadcasts to the target, with a dtype that can be cast to the target's, and that does not partly overlap
    it (`is_apart`: shares no memory).
    """

    def part(builder: CallBuilder) -> Operand:
        draw, main = builder.draw, builder.main
        if shape is None and draw.chance(numbers):
            return a_number(builder) if domain == "any" else a_divisor(builder)
        allowed = [
            name for name in (dtypes or ALL) if torch.can_cast(getattr(torch, name), main.dtype)
        ] if draw.chance(mixes) else [dtype_name(main)]  # fmt: skip
        if shape is not None:
            wanted = shape(builder)
        else:
            wanted = draw_broadcastable(draw, main.shape) if draw.chance(broadcasts) else main.shape
        clashes = share_memory if is_apart else partly_overlap

        def is_apart_from_target(tensor: torch.Tensor) -> bool:
            return tensor.is_meta or not clashes(tensor, main)

        return builder.take(
            builder.find(
                allowed, shape=wanted, condition=is_apart_from_target, domain=domain, is_strict=domain != "any"
            )
        )

    return part


def _write(
    name: str, *parts: PartLike, weight: float = 1.0, spec: str = "", category: str = _IN_PLACE, **keywords: Any
) -> OpSpec:
    """A call whose first operand is the target. Its result, the target again, is bound sometimes."""
    call = call_of(name, parts, keywords, results="?")
    return OpSpec(name=spec or name, category=category, draw_call=call, weight=weight, writes=True, meta=_LEAVES)


def _unary(names: str, dtypes: Sequence[str], weight: float = 0.6) -> tuple[OpSpec, ...]:
    return tuple(_write(f".{name}_", target(dtypes), weight=weight) for name in names.split())


_POINTWISE = (
    *_unary("abs neg exp sin cos tanh sigmoid square reciprocal sqrt", INEXACT),
    *_unary("relu floor ceil trunc sign sgn", REAL),
    *_unary("log log2 log10 log1p rsqrt expm1 exp2 erf erfc tan sinh cosh atan frac round deg2rad nan_to_num", FLOATS, 0.3),
    *_unary("logical_not", ALL),
    *_unary("bitwise_not", INTEGRAL),
    *_unary("zero conj_physical", ALL),
    *(_write(f".{name}_", target(NUMERIC), source(NUMERIC), weight=1.5) for name in ("add", "sub", "mul")),
    _write(".add_", target(NUMERIC), source(NUMERIC), alpha=either(2, -1, 3), spec=".add_(alpha)"),
    _write(".div_", target(FLOATS), source(REAL), weight=1.2),
    _write(".div_", target(FLOATS), source(REAL), rounding_mode=either("floor", "trunc"), spec=".div_(rounding_mode)"),
    *(_write(f".{name}_", target(FLOATS), source(REAL)) for name in ("floor_divide", "remainder", "fmod")),
    *(_write(f".{name}_", target(INTEGERS), source(mixes=0, domain="nonzero"), spec=f".{name}_(integer)", weight=0.5)
      for name in ("floor_divide", "remainder")),
    _write(".pow_", target(FLOATS), number(2, 3, 0.5, 1)),
    _write(".pow_", target(DOUBLES), source(FLOATS, numbers=0), spec=".pow_(Tensor)", weight=0.4),
    *(_write(f".{name}_", target(FLOATS), source(FLOATS, numbers=0), weight=0.5)
      for name in ("atan2", "hypot", "copysign", "heaviside", "xlogy")),
    _write(".addcmul_", target(INEXACT), source(numbers=0, mixes=0), source(numbers=0, mixes=0),
           value=optional(either(2, -1, 0.5))),
    _write(".addcdiv_", target(INEXACT), source(numbers=0, mixes=0), source(numbers=0, mixes=0),
           value=optional(either(2, -1, 0.5))),
    _write(".lerp_", target(FLOATS), source(numbers=0, mixes=0), either(0.25, 0.75)),
    _write(".clamp_", target(REAL), min=either(-1, 0), max=optional(either(1, 2))),
    _write(".clamp_", target(REAL), source(numbers=0), spec=".clamp_(Tensor)"),
    _write(".clamp_min_", target(REAL), source(mixes=0), weight=0.5),
    _write(".clamp_max_", target(REAL), source(mixes=0), weight=0.5),
    *(_write(f".{name}_", target(REAL), source(REAL), weight=0.5) for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    *(_write(f".logical_{name}_", target(ALL), source(ALL, numbers=0), weight=0.5) for name in ("and", "or", "xor")),
    *(_write(f".bitwise_{name}_", target(INTEGRAL), source(INTEGRAL), weight=0.6) for name in ("and", "or", "xor")),
    *(_write(f".bitwise_{side}_shift_", target(INTEGERS), number(1, 2), weight=0.5) for side in ("left", "right")),
    _write(".fill_", target(ALL), a_number, weight=1.2),
    _write(".copy_", target(ALL), source(ALL, numbers=0, mixes=0.3), weight=1.5),
    _write(".masked_fill_", target(ALL), source(("bool",), mixes=1, numbers=0), a_number, weight=1.5),
    *(_write(f"operator.i{name}", target(NUMERIC), source(NUMERIC)) for name in ("add", "sub", "mul")),
    _write("operator.itruediv", target(FLOATS), source(REAL)),
    *(_write(f"torch.nn.functional.{name}", target(FLOATS), inplace=True, weight=0.4,
             spec=f"torch.nn.functional.{name}(inplace)")
      for name in ("relu", "relu6", "elu", "selu", "leaky_relu", "silu", "hardtanh", "hardswish", "hardsigmoid", "mish",
                   "celu")),
    _write("torch.nn.functional.threshold", target(FLOATS), 0.5, -1.0, True, weight=0.3,
           spec="torch.nn.functional.threshold(inplace)"),
    _write("torch.relu_", target(REAL), weight=0.4),
)  # fmt: skip


def _is_nonempty_row(tensor: torch.Tensor) -> bool:
    return tensor.dim() > 0 and tensor.shape[0] > 0


def _count(builder: CallBuilder) -> int:
    """The number of indices of dimension 0 in the operand before."""
    return builder.last.shape[0]


def _some_rows(builder: CallBuilder) -> Operand:
    count = builder.draw.choice((2, 1, 4))
    return indices(lambda b: (count,), lambda b: size_of(0, b.main))(builder)  # type: ignore[return-value]


def _distinct_rows(builder: CallBuilder) -> Operand:
    size = builder.main.shape[0]
    return add_distinct(builder, builder.draw.integer(min(1, size), min(size, 5)), size)


def _distinct_rows_once(builder: CallBuilder) -> Operand:
    return Items((_distinct_rows(builder),), "tuple")


def _rows(numbers: float = 0) -> Part:
    """Values for the rows of the operand before."""
    return source(shape=lambda b: (_count(b), *b.main.shape[1:]), mixes=0, is_apart=True, numbers=numbers)


_ROWS = target(ALL, rank=(1, 4), condition=_is_nonempty_row)
_ROWS_OF_NUMBERS = target(NUMERIC, rank=(1, 4), condition=_is_nonempty_row)


def _same_index(builder: CallBuilder) -> Operand:
    """An index for every element, along dimension 0, with repetitions."""
    return indices(lambda b: b.main.shape, lambda b: b.main.shape[0])(builder)  # type: ignore[return-value]


_APART_SAME = source(shape=lambda b: b.main.shape, mixes=0, is_apart=True)
_PLACED = (
    _write(".index_fill_", _ROWS, 0, _some_rows, a_number),
    _write(".index_copy_", _ROWS, 0, _distinct_rows, _rows()),
    _write(".index_add_", _ROWS_OF_NUMBERS, 0, _some_rows, _rows()),
    _write(".index_put_", _ROWS, _distinct_rows_once, _rows()),
    _write(".scatter_", _ROWS, 0, _same_index, a_number),
    _write(".scatter_add_", _ROWS_OF_NUMBERS, 0, _same_index, _APART_SAME),
    _write(".scatter_reduce_", target(REAL, rank=(1, 4), condition=_is_nonempty_row), 0, _same_index, _APART_SAME,
           either("sum", "prod", "amax", "amin", "mean")),
    _write(".masked_scatter_", target(ALL), source(("bool",), mixes=1, numbers=0, broadcasts=0), _APART_SAME),
    _write(".cumsum_", target(NUMERIC), dim()),
    _write(".cumprod_", target(NUMERIC), dim(), weight=0.5),
    _write(".tril_", target(ALL, rank=(2, 4)), optional(either(1, -1))),
    _write(".triu_", target(ALL, rank=(2, 4)), optional(either(1, -1))),
    _write(".fill_diagonal_", target(NUMERIC, rank=(2, 2)), a_number, weight=0.6),
    _write(".renorm_", target(FLOATS, rank=(2, 3)), 2, dim(), 1.0, weight=0.3),
    _write(".addr_", target(FLOATS, rank=(2, 2)), source(shape=lambda b: (b.main.shape[0],), mixes=0, is_apart=True),
           source(shape=lambda b: (b.main.shape[1],), mixes=0, is_apart=True), weight=0.5),
    _write(".addmm_", target(FLOATS, rank=(2, 2)), source(shape=lambda b: (b.main.shape[0], 3), mixes=0, is_apart=True),
           source(shape=lambda b: (3, b.main.shape[1]), mixes=0, is_apart=True), beta=optional(either(0.5, 0, 2)),
           weight=0.7),
    _write(".addmv_", target(FLOATS, rank=(1, 1)), source(shape=lambda b: (b.main.shape[0], 3), mixes=0, is_apart=True),
           source(shape=lambda b: (3,), mixes=0, is_apart=True), weight=0.4),
    _write(".baddbmm_", target(FLOATS, rank=(3, 3)),
           source(shape=lambda b: (*b.main.shape[:2], 3), mixes=0, is_apart=True),
           source(shape=lambda b: (b.main.shape[0], 3, b.main.shape[2]), mixes=0, is_apart=True), weight=0.4),
    *(_write(f".{name}_", target(ALL, rank=(2, 2), shape=lambda b: (3, 3)), *parts, weight=0.15, category="metadata")
      for name, parts in (("t", ()), ("unsqueeze", (0,)), ("transpose", (0, 1)), ("swapaxes", (0, 1)))),
)  # fmt: skip


def _into(name: str, *parts: PartLike, **keywords: Any) -> OpSpec:
    """`f(..., out=o)`: `o` has the shape of the result, its dtype or one that it can be cast to, and any strides. Several
    results: a tuple. Nothing requires grad: eager refuses it."""

    def draw_call(draw: Draw, scene: Scene) -> OpCall | None:
        builder = CallBuilder(draw, scene, may_require_grad=False)
        call = draw_with(builder, name, parts, keywords, "")
        assert call is not None
        value = evaluate(call, scene)
        outs: list[Ref] = []
        for result in value if isinstance(value, tuple) else (value,):
            if not isinstance(result, torch.Tensor) or not result.numel():
                raise Unfit
            dtype = dtype_name(result)
            if dtype == "float32" and draw.chance(0.15):
                dtype = "float64"
            if dtype not in ALL:
                raise Unfit
            outs.append(builder.take(_out_tensor(builder, result, dtype)))
        out: Operand = outs[0] if len(outs) == 1 else Items(tuple(outs), "tuple")
        filled = OpCall(target=call.target, args=call.args, kwargs=(*call.kwargs, ("out", out)))
        return named(filled, scene, "" if len(outs) > 1 else "?")

    return OpSpec(name=f"{name}(out)", category=_OUT, draw_call=draw_call, weight=0.4, writes=True, meta=_LEAVES)


def _out_tensor(builder: CallBuilder, result: torch.Tensor, dtype: str) -> str:
    """A live tensor that shares no memory with the operands, or a new argument."""

    def fits(tensor: torch.Tensor) -> bool:
        return (
            tensor.shape == result.shape
            and dtype_name(tensor) == dtype
            and not tensor.requires_grad
            and not overlaps_itself(tensor)
            and not any(share_memory(tensor, operand) for operand in builder.operands)
        )

    live = builder.scene.target(fits) if builder.draw.chance(0.4) else None
    return live or builder.add((dtype,), shape=tuple(result.shape), layouts=WRITABLE_LAYOUTS, requires_grad=False)


_SQUARE_ROWS = of_shape(lambda b: (b.main.shape[-1], 3))
OUT_VARIANTS = (
    *(_into(f"torch.{name}", x(NUMERIC), other(NUMERIC)) for name in ("add", "sub", "mul", "div")),
    *(_into(f"torch.{name}", x(REAL), other(REAL, numbers=0)) for name in ("maximum", "minimum", "fmax", "atan2")),
    *(_into(f"torch.{name}", x(REAL), other(REAL)) for name in ("eq", "lt", "ge")),
    *(_into(f"torch.{name}", x(FLOATS)) for name in ("sin", "cos", "exp", "sqrt", "tanh", "sigmoid", "floor", "erf")),
    *(_into(f"torch.{name}", x(NUMERIC)) for name in ("neg", "abs", "square")),
    _into("torch.logical_and", x(ALL), other(ALL, numbers=0)),
    _into("torch.bitwise_xor", x(INTEGRAL), other(INTEGRAL, numbers=0)),
    _into("torch.clamp", x(REAL), min=either(-1, 0), max=either(1, 2)),
    _into("torch.where", x(("bool",)), other(FLOATS, mixes=1, numbers=0), other(FLOATS, mixes=1, numbers=0)),
    _into("torch.pow", x(FLOATS), number(2, 3)),
    _into("torch.addcmul", x(FLOATS), other(FLOATS, mixes=0, numbers=0), other(FLOATS, mixes=0, numbers=0)),
    _into("torch.sum", x(NUMERIC, rank=(1, 4)), dim()),
    _into("torch.mean", x(FLOATS, rank=(1, 4)), dim()),
    _into("torch.amax", x(REAL, rank=(1, 4)), dim(least=1)),
    _into("torch.argmax", x(REAL, rank=(1, 4)), dim(least=1)),
    _into("torch.all", x(ALL, rank=(1, 4)), dim()),
    _into("torch.max", x(REAL, rank=(1, 4)), dim(least=1)),
    _into("torch.sort", x(REAL, rank=(1, 3)), stable=True, dim=dim()),
    _into("torch.cumsum", x(NUMERIC), dim()),
    _into("torch.logsumexp", x(FLOATS, rank=(1, 4)), dim()),
    _into("torch.mm", x(FLOATS, rank=(2, 2)), _SQUARE_ROWS),
    _into("torch.matmul", x(FLOATS, rank=(2, 3)), _SQUARE_ROWS),
    _into("torch.addmm", x(FLOATS, rank=(2, 2)), of_shape(lambda b: (b.main.shape[0], 3)),
          of_shape(lambda b: (3, b.main.shape[1]))),
    _into("torch.cat", several(ALL)),
    _into("torch.stack", several(ALL)),
    _into("torch.index_select", x(ALL, rank=(1, 3), condition=_is_nonempty_row), 0, _some_rows),
    _into("torch.gather", x(ALL, rank=(1, 3), condition=_is_nonempty_row), 0, _same_index),
    _into("torch.tril", x(ALL, rank=(2, 3))),
    _into("torch.arange", either(5, 8)),
    _into("torch.complex", x(DOUBLES), other(DOUBLES, numbers=0, mixes=0)),
)  # fmt: skip

IN_PLACE = (*_POINTWISE, *_PLACED)
