"""Operators on lists of tensors (`torch._foreach_*`) with different shapes; in-place ones on tensors that share no memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fuzz.draw.geometry import share_storage
from fuzz.draw.inputs.specs import FLOATS
from fuzz.draw.scene import dtype_name
from fuzz.program.structure import Items, Operand, Ref
from fuzz.vocabulary.operators.build import DOUBLES, NUMERIC, WRITABLE_LAYOUTS, CallBuilder, Part, PartLike, call_of
from fuzz.vocabulary.operators.operands import either
from fuzz.vocabulary.operators.spec import OpSpec

_CATEGORY = "foreach"


def _list(dtypes: Sequence[str]) -> Part:
    """Two or three tensors of any shapes."""

    def part(builder: CallBuilder) -> Items:
        builder.list_length = builder.draw.integer(2, 3)
        refs = [builder.take(builder.find(dtypes)) for _ in range(builder.list_length)]
        return Items(tuple(refs), "list")

    return part


def _targets(dtypes: Sequence[str]) -> Part:
    """Two or three tensors to write to, in storages of their own."""

    def part(builder: CallBuilder) -> Items:
        refs: list[Ref] = []
        builder.list_length = builder.draw.integer(2, 3)
        for _ in range(builder.list_length):
            taken = list(builder.operands)

            def fits(tensor: torch.Tensor, taken: Sequence[torch.Tensor] = tuple(taken)) -> bool:
                is_free = not any(share_storage(tensor, one) for one in taken)
                return is_free and dtype_name(tensor) in dtypes and not (tensor.is_leaf and tensor.requires_grad)

            name = builder.scene.target(fits)
            if name is None:
                name = builder.add(
                    dtypes, layouts=WRITABLE_LAYOUTS, requires_grad=False, condition=lambda tensor: tensor.numel() > 0
                )
            refs.append(builder.take(name))
        return Items(tuple(refs), "list")

    return part


def _matching(*, is_apart: bool = False) -> Part:
    """A list with the shapes and dtypes of the first one."""

    def part(builder: CallBuilder) -> Items:
        firsts = builder.operands[: builder.list_length]
        refs = []
        for one in firsts:
            refs.append(
                builder.take(
                    builder.find(
                        (dtype_name(one),),
                        shape=one.shape,
                        condition=lambda tensor: (
                            tensor.is_meta or not is_apart or not any(share_storage(tensor, other) for other in firsts)
                        ),
                    )
                )
            )
        return Items(tuple(refs), "list")

    return part


def _scalars(builder: CallBuilder) -> Operand:
    return Items(tuple(builder.draw.choice((2.0, 0.5, -1.0, 3.0)) for _ in range(builder.list_length)), "list")


_SCALAR = either(2, 0.5, -1.0, 3)


def _row(
    name: str, *parts: PartLike, spec: str = "", writes: bool = False, has_gradient: bool = True, **keywords: Any
) -> OpSpec:
    call = call_of(
        f"torch._foreach_{name}", parts, keywords, results="" if writes else "*", may_require_grad=has_gradient
    )
    full = f"torch._foreach_{spec or name}"
    return OpSpec(name=full, category=_CATEGORY, draw_call=call, weight=0.3, writes=writes)


_UNARY = (
    *("abs", "neg", "exp", "sqrt", "sin", "cos", "tanh", "sigmoid", "floor", "ceil", "round", "trunc", "sign"),
    *("reciprocal", "erf", "log", "log1p", "expm1"),
)
_BINARY = ["add", "sub", "mul", "div", "maximum", "minimum"]
_TERNARY = ("addcmul", "addcdiv")

LISTS = (
    *(_row(name, _list(FLOATS)) for name in _UNARY),
    *(_row(name, _list(NUMERIC if name in ("add", "sub", "mul") else FLOATS), _matching()) for name in _BINARY),
    *(_row(name, _list(FLOATS), _SCALAR, spec=f"{name}(Scalar)") for name in _BINARY),
    *(_row(name, _list(FLOATS), _scalars, spec=f"{name}(ScalarList)") for name in _BINARY[:4]),
    *(_row(name, _list(FLOATS), _matching(), _matching(), value=either(1, 0.5, -1)) for name in _TERNARY),
    _row("lerp", _list(FLOATS), _matching(), either(0.25, 0.75)),
    _row("pow", _list(FLOATS), either(2, 0.5)),
    _row("norm", _list(DOUBLES), either(2, 1, float("inf"))),
    _row("clamp_min", _list(FLOATS), either(0, -0.5)),
    _row("clamp_max", _list(FLOATS), either(0.5, 1)),
    *(_row(f"{name}_", _targets(FLOATS), writes=True) for name in ("abs", "neg", "exp", "sqrt", "sigmoid", "zero")),
    *(_row(f"{name}_", _targets(FLOATS), _matching(is_apart=True), writes=True,
           has_gradient=name != "copy") for name in (*_BINARY, "copy")),
    *(_row(f"{name}_", _targets(FLOATS), _SCALAR, spec=f"{name}_(Scalar)", writes=True) for name in _BINARY[:4]),
    *(
        _row(f"{name}_", _targets(FLOATS), _matching(is_apart=True), _matching(is_apart=True), value=either(1, -0.5),
             writes=True)
        for name in _TERNARY
    ),
    _row("lerp_", _targets(FLOATS), _matching(is_apart=True), either(0.25, 0.75), writes=True),
)  # fmt: skip
