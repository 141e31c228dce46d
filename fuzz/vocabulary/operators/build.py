"""Draws a call from a description of its operands, one `Part` for each operand, in order.

A row of an operator table describes the operands: `op("torch.cumsum", "scan", x(NUMERIC), dim())`. `op` makes an `OpSpec` from
it. Parts get tensors from a `CallBuilder`, which takes them from the scene or adds arguments to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import torch

from fuzz.draw.choices import Draw
from fuzz.draw.geometry import overlaps_itself
from fuzz.draw.inputs.shapes import draw_rank, draw_shape
from fuzz.draw.inputs.specs import COMPLEX, FLOATS, INTEGERS, draw_dtype
from fuzz.draw.scene import REFUSALS, Scene, dtype_name
from fuzz.program.structure import Entries, Expr, Items, OpCall, Operand, Ref
from fuzz.vocabulary.operators.spec import DrawCall, OpSpec

REAL: Final = (*FLOATS, *INTEGERS)
INEXACT: Final = (*FLOATS, *COMPLEX)
NUMERIC: Final = (*FLOATS, *INTEGERS, *COMPLEX)
INTEGRAL: Final = (*INTEGERS, "bool")
ALL: Final = (*NUMERIC, "bool")
DOUBLES: Final = ("float32", "float64")  # dtypes of kernels without half precision
WRITABLE_LAYOUTS: Final = ("contiguous", "transposed", "sliced", "offset", "channels_last", "gapped")
_TRIES: Final = 8  # attempts to draw an argument, or operands, that fulfil a condition
MOST_RESULTS: Final = 6  # of an operator whose number of results depends on its input


class Unfit(Exception):
    """Raised if the scene has no value for an operand, and none should be added."""


class Omitted:
    """Stands for an omitted operand."""


OMIT: Final = Omitted()
Part: TypeAlias = "Callable[[CallBuilder], Operand | Omitted]"
PartLike: TypeAlias = "Part | Operand"  # a constant stands for itself


class CallBuilder:
    """A call under construction. `main` is the first tensor; the other operands must fit it."""

    def __init__(self, draw: Draw, scene: Scene, *, may_require_grad: bool = True) -> None:
        self.draw = draw
        self.scene = scene
        self.may_require_grad = may_require_grad
        self.list_length = 0  # of the first operand, if it is a list of tensors
        self._picked: list[str] = []

    @property
    def main(self) -> torch.Tensor:
        return self.scene.values[self._picked[0]]

    @property
    def operands(self) -> list[torch.Tensor]:
        """The tensors used so far."""
        return [self.scene.values[name] for name in self._picked]

    @property
    def last(self) -> torch.Tensor:
        return self.scene.values[self._picked[-1]]

    def take(self, name: str) -> Ref:
        """Use this tensor as an operand."""
        self._picked.append(name)
        return Ref(name)

    def find(
        self,
        dtypes: Sequence[str],
        *,
        rank: tuple[int, int] = (0, 6),
        shape: Sequence[int] | None = None,
        condition: Callable[[torch.Tensor], bool] = lambda tensor: True,
        domain: str = "any",
        is_strict: bool = False,
        layouts: Sequence[str] = (),
        is_dense: bool = False,
        requires_grad: bool | None = None,
    ) -> str:
        """A live tensor that fits, or a new argument. A `domain` applies to new arguments only: with `is_strict` no live value is
        used, else one is used every second time. `is_dense`: elements do not overlap.
        """

        def fits(tensor: torch.Tensor) -> bool:
            return (
                dtype_name(tensor) in dtypes
                and rank[0] <= tensor.dim() <= rank[1]
                and (shape is None or tuple(tensor.shape) == tuple(shape))
                and (self.may_require_grad or not tensor.requires_grad)
                and (requires_grad is not False or not tensor.requires_grad)
                and condition(tensor)
                and (not is_dense or tensor.is_meta or not overlaps_itself(tensor))
            )

        wants_domain = domain != "any" and (is_strict or self.draw.chance(0.5))
        if not wants_domain and not layouts and not self.draw.chance(0.1):
            found = self.scene.pick(fits)
            if found is not None:
                return found
        return self.add(
            dtypes,
            rank=rank,
            shape=shape,
            domain=domain,
            layouts=layouts or (WRITABLE_LAYOUTS if is_dense else ()),
            requires_grad=requires_grad,
            condition=fits,
        )

    def add(
        self,
        dtypes: Sequence[str],
        *,
        rank: tuple[int, int] = (0, 6),
        shape: Sequence[int] | None = None,
        domain: str = "any",
        layouts: Sequence[str] = (),
        requires_grad: bool | None = None,
        condition: Callable[[torch.Tensor], bool] | None = None,
    ) -> str:
        """A new argument of one of these dtypes. Raises Unfit when no drawn shape and dtype fulfils `condition`."""
        draw, scene = self.draw, self.scene
        allowed = [name for name in dtypes if name in scene.settings.dtypes] or dtypes
        for _ in range(_TRIES):
            drawn = shape
            if drawn is None:
                drawn_rank = draw_rank(draw, at_least=rank[0], at_most=rank[1])
                drawn = draw_shape(draw, scene.sizes, max_numel=scene.settings.max_numel, rank=drawn_rank)
            dtype = draw_dtype(draw, allowed)
            if condition is None or condition(torch.empty(drawn, dtype=getattr(torch, dtype), device="meta")):
                break
        else:
            raise Unfit
        return scene.new_tensor(
            drawn,
            dtype,
            domain=domain,
            layouts=layouts,
            requires_grad=requires_grad if self.may_require_grad else False,
        )


def op(
    target: str,
    category: str,
    *parts: PartLike,
    results: str = "v",
    weight: float = 1.0,
    name: str = "",
    is_view: bool = False,
    is_random: bool = False,
    has_gradient: bool = True,
    aten: Sequence[str] = (),
    why: Mapping[str, str] | None = None,
    **keywords: Any,
) -> OpSpec:
    """The specification of an operator with these operands. `why`: reasons for restricted domains. With `has_gradient=False`
    (eager's backward is not implemented, or its result is undefined) no operand requires a gradient.
    """
    return OpSpec(
        name=name or target,
        category=category,
        draw_call=call_of(target, parts, keywords, results=results, may_require_grad=has_gradient),
        weight=weight,
        is_view=is_view,
        is_random=is_random,
        aten=tuple(aten),
        meta=dict(why or {}),
    )


def guarded(spec: OpSpec) -> OpSpec:
    """The specification, with None instead of a call if the scene has no operand that fits, or if the result would depend on the
    order of a sum that overflows. Arguments added before are removed.
    """
    may_overflow = adds_up(spec)

    def draw_call(draw: Draw, scene: Scene) -> OpCall | None:
        for _ in range(_TRIES if may_overflow else 1):
            before = len(scene.arguments)
            try:
                call = spec.draw_call(draw, scene)
            except Unfit:
                call = None
            if call is not None and not (may_overflow and _takes_extremes(call, scene)):
                return call
            scene.forget_arguments(before)
        return None

    return replace(spec, draw_call=draw_call)


def _takes_extremes(call: OpCall, scene: Scene) -> bool:
    return any(can_overflow(scene.values[name]) for name in call.uses if name in scene.values)


def call_of(
    target: str,
    parts: Sequence[PartLike],
    keywords: Mapping[str, PartLike] | None = None,
    *,
    results: str = "v",
    may_require_grad: bool = True,
) -> DrawCall:
    """A function that draws the parts in order, then the keywords.

    `results` has a letter per result: "v" is bound, "_" is bound to a name that is never used (indices that ties leave
    undefined); "*": two to MOST_RESULTS results; "?": one result, bound sometimes (the target of a write); "" for none.
    """

    def draw_call(draw: Draw, scene: Scene) -> OpCall | None:
        builder = CallBuilder(draw, scene, may_require_grad=may_require_grad)
        return draw_with(builder, target, parts, keywords or {}, results)

    return draw_call


def draw_with(
    builder: CallBuilder, target: str, parts: Sequence[PartLike], keywords: Mapping[str, PartLike], results: str
) -> OpCall | None:
    """Draw a call. Raises Unfit if a part finds no operand."""
    args = [operand for part in parts if not isinstance(operand := draw_part(builder, part), Omitted)]
    pairs = [
        (name, operand)
        for name, part in keywords.items()
        if not isinstance(operand := draw_part(builder, part), Omitted)
    ]
    call = OpCall(target=target, args=tuple(args), kwargs=tuple(pairs))
    return named(call, builder.scene, results)


def named(call: OpCall, scene: Scene, results: str) -> OpCall | None:
    """The call with names for its results."""
    if results == "*":
        value = evaluate(call, scene)
        if not isinstance(value, (tuple, list)) or not 2 <= len(value) <= MOST_RESULTS:
            return None
        results = "v" * len(value)
    if results == "?":
        results = "v" if scene.draw.chance(0.3) else ""
    names = tuple(scene.fresh() if kind == "v" else f"_{scene.fresh()}" for kind in results)
    return OpCall(target=call.target, args=call.args, kwargs=call.kwargs, results=names)


def evaluate(call: OpCall, scene: Scene) -> Any:
    """The result of a call of a function or method, which is not kept; None if eager refuses."""
    args = [_value_of(arg, scene) for arg in call.args]
    kwargs = {name: _value_of(arg, scene) for name, arg in call.kwargs}
    if call.target.startswith("."):
        function = getattr(args.pop(0), call.target[1:])
    else:
        function = torch
        for part in call.target.split(".")[1:]:
            function = getattr(function, part)
    try:
        with torch.no_grad():
            return function(*args, **kwargs)  # type: ignore[operator]
    except REFUSALS:
        return None


def _value_of(operand: Operand, scene: Scene) -> Any:
    match operand:
        case Ref(name=name):
            return scene.values[name] if name in scene.values else scene.scalars[name]
        case Expr(text=text):
            return eval(text, {"torch": torch})
        case Items(items=items, kind=kind):
            values = [_value_of(item, scene) for item in items]
            return tuple(values) if kind == "tuple" else values
        case Entries(entries=entries):
            return {key: _value_of(item, scene) for key, item in entries}
        case _:
            return operand


def draw_part(builder: CallBuilder, part: PartLike) -> Operand | Omitted:
    return part(builder) if callable(part) else part


# Operators whose result depends on the order of a sum if a partial sum overflows get no elements near the largest number. `3e38 +
# 3e38 - 3e38` is infinite or not, depending on the kernel, and neither result is wrong. Infinities and NaN are allowed, since
# with them the result does not depend on the order.

_CATEGORIES = frozenset(
    ["matmul", "linalg", "conv", "norm", "loss", "attention", "fft", "scan", "resize", "masked", "embedding"]
)
_NAMES = re.compile(
    r"sum|mean|prod|\bstd|\bvar|norm|dist|trace|mm\b|mv|bmm|addr|avg_pool|lp_pool|similarity|index_add|index_reduce|scatter_add"
    r"|scatter_reduce|accumulate|index_put|\bput\b|fold|im2col|trap|linear|grid_|upsample|quantile|polynomial|embedding|cov|dot"
    r"|matmul|softmax|_backward"
)
_LARGEST_HALF = 256.0  # its square is still finite in float16


def adds_up(spec: OpSpec) -> bool:
    """Whether the operator adds or multiplies elements of one tensor."""
    return spec.category in _CATEGORIES or _NAMES.search(spec.name) is not None


def can_overflow(tensor: torch.Tensor) -> bool:
    """Whether a sum of products of its finite elements may leave the range of the dtype."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.element_size() == 1 or not tensor.numel():
        return False
    dtype = tensor.dtype.to_real() if tensor.is_complex() else tensor.dtype
    bound = _LARGEST_HALF if dtype is torch.float16 else torch.finfo(dtype).max ** 0.5 / tensor.numel()
    with torch.no_grad():
        parts = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        return bool((parts.abs().masked_fill(~parts.isfinite(), 0) > bound).any())
