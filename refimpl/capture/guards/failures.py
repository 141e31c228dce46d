"""Why a call does not fit a segment: which fact of a tensor, or which relation between sizes, is another one.

Counterpart: torch/_dynamo/guards.py get_guard_fail_reason; torch/csrc/dynamo/guards.cpp TensorCheck::check_verbose
Differs: the reason also names the kind of the guard and the source in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from refimpl._torch import tensor_keys, without_overrides
from refimpl.capture.guards.guard_list import GuardKind, GuardList, ShapeFacts, TensorFacts
from refimpl.capture.guards.sources import READ_ERRORS, DimensionSource, ReaderBuilder, SlotSource, Source
from refimpl.symbolic.guards import PRINTED_NAMES


def reason(guards: GuardList, frames: Any) -> str | None:
    """The first guard that does not hold now, in words; None if all hold."""
    guard = guards.failing(frames)
    if guard is None:
        return None
    match guard.kind:
        case GuardKind.TENSOR:
            what = _of_tensor(guard.seen, guard.source, _read(guard.source, frames))
        case GuardKind.SHAPES:
            what = _of_sizes(guard.seen, frames)
        case _:
            return str(guard)
    return f"{guard.kind.name} {guard.source.name}: {what}"


def _of_tensor(seen: TensorFacts, source: Source, found: Any) -> str:
    """The first fact in which the object differs from the tensor that was seen."""
    name = _short(source)
    if not issubclass(type(found), torch.Tensor):
        return f"expected type of '{name}' to be a tensor type, but found {type(found)}"
    if type(found) is not seen.class_:
        return f"expected type of '{name}' to be {seen.class_}, but found {type(found)}"
    with without_overrides():
        facts = [
            ("dispatch key set mismatch.", seen.keys, tensor_keys(found).raw_repr()),
            ("dtype mismatch.", seen.dtype, found.dtype),
            ("device mismatch.", seen.device, found.device),
            ("requires_grad mismatch.", seen.requires_grad, found.requires_grad),
        ]
        numbers = [("size", seen.sizes, found.shape)]
        if seen.strides is not None and found.layout is torch.strided:
            numbers.append(("stride", seen.strides, found.stride()))
    facts += [each for kind, expected, actual in numbers for each in _by_dimension(kind, expected, actual)]
    for what, expected, actual in facts:
        if expected != actual:
            return f"tensor '{name}' {what} expected {expected}, actual {actual}"
    return f"tensor '{name}' is another one"


def _by_dimension(
    kind: str, expected: Sequence[int | None] | None, actual: Sequence[int]
) -> list[tuple[str, Any, Any]]:
    """What differs between sizes or strides, as facts. A dimension that is a symbol has no expected number."""
    if expected is None or len(expected) != len(actual):
        return [("rank mismatch.", None if expected is None else len(expected), len(actual))]
    pairs = enumerate(zip(expected, actual, strict=True))
    return [(f"{kind} mismatch at index {dim}.", *pair) for dim, pair in pairs if pair[0] is not None]


def _of_sizes(seen: ShapeFacts, frames: Any) -> str:
    """The first assumption about sizes that does not hold: a size that had to be one number, else a relation."""
    for number, source in seen.numbers():
        expected = seen.shape_env.replace(number.node.expr)
        if isinstance(source, DimensionSource) and source.dim is not None and isinstance(expected, sympy.Integer):
            actual = _read(source, frames)
            if actual != expected:
                what = f"{source.which} mismatch at index {source.dim}. expected {expected}, actual {actual}"
                return f"tensor '{_short(source.of)}' {what}"
    builder = ReaderBuilder(constants=dict(PRINTED_NAMES))
    for line, text in zip(seen.lines(builder.read), seen.lines(lambda source: source.name), strict=True):
        if not builder.function(f"bool({line})", name="explain")(frames):
            return text
    return "a relation between sizes"


def _short(source: Source) -> str:
    """The name of a variable, or the source in full."""
    return source.variable if isinstance(source, SlotSource) else source.name


def _read(source: Source, frames: Any) -> Any:
    """What the source reads now; None where that fails."""
    builder = ReaderBuilder()
    try:
        return builder.function(builder.read(source), name="value")(frames)
    except READ_ERRORS:
        return None
