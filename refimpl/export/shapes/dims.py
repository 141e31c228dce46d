"""Dim and the hints Dim.AUTO, Dim.DYNAMIC, Dim.STATIC, for sizes of inputs.

Counterpart: torch/export/dynamic_shapes.py Dim, _DimHint, dims
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from refimpl.errors import BadParameter

# The value of `max` that means no upper bound.
NO_LIMIT = sys.maxsize - 1


class DimHintType(Enum):
    """For a size without a name: AUTO may be specialised, DYNAMIC must not be, STATIC is."""

    AUTO = auto()
    STATIC = auto()
    DYNAMIC = auto()


@dataclass(frozen=True)
class DimHint:
    """`Dim.AUTO`, `Dim.DYNAMIC`, `Dim.STATIC`. They can be called with bounds, once; a static size must be within them."""

    type: DimHintType
    min: int | None = None
    max: int | None = None
    is_bounded: bool = False  # whether it was called

    def __call__(self, min: int | None = None, max: int | None = None) -> DimHint:
        if self.is_bounded:
            raise TypeError(f"{self!r} already has bounds and cannot be called again")
        _check_bounds("a Dim", 0 if min is None else min, NO_LIMIT if max is None else max)
        return replace(self, min=min, max=max, is_bounded=True)

    def __repr__(self) -> str:
        bounds = ", ".join(f"{n}={v}" for n, v in (("min", self.min), ("max", self.max)) if v is not None)
        return f"DimHint({self.type.name}{', ' if bounds else ''}{bounds})"


def _check_bounds(name: str, low: int, high: int) -> None:
    if low < 0:
        raise BadParameter(seen=f"{name} with min = {low}", expected="a size, 0 or more")
    if high <= low:
        raise BadParameter(
            seen=f"Cannot create Dim {name} with inconsistent min={low}, max={high}", expected="a max above min"
        )


class Dim:
    """A named size; dimensions with the same name have the same size. `2 * dim + 1` is a size derived from it.

    min, max: inclusive bounds. Raises AssertionError for a name that is no identifier and for bounds without a number between
    them; NotImplementedError for arithmetic other than increasing linear functions with integers.
    """

    AUTO, DYNAMIC, STATIC = map(DimHint, (DimHintType.AUTO, DimHintType.DYNAMIC, DimHintType.STATIC))

    def __init__(self, name: str, *, min: int | None = None, max: int | None = None) -> None:
        if not name.isidentifier():
            raise BadParameter(
                seen=f"a Dim with the name {name!r}", expected="an identifier of Python: letters, digits, _"
            )
        self.__name__ = name
        self.min = 0 if min is None else min
        self.max = NO_LIMIT if max is None else max
        _check_bounds(repr(name), self.min, self.max)

    def __add__(self, other: Any) -> Dim:
        return DerivedDim(f"{self.__name__} + {_integer(other, 'added to')}", self, lambda x: x + other)

    def __radd__(self, other: Any) -> Dim:
        return self + other

    def __sub__(self, other: Any) -> Dim:
        return DerivedDim(f"{self.__name__} - {_integer(other, 'subtracted from')}", self, lambda x: x - other)

    def __rsub__(self, other: Any) -> Dim:
        raise _not_linear(f"{other!r} - {self.__name__}")

    def __mul__(self, other: Any) -> Dim:
        if _integer(other, "multiplied with") <= 0:
            raise _not_linear(f"{self.__name__} * {other}")
        return DerivedDim(f"{other}*{self.__name__}", self, lambda x: x * other)

    def __rmul__(self, other: Any) -> Dim:
        return self * other

    def __repr__(self) -> str:
        bounds = [f"min={self.min}"] if self.min else []
        bounds += [f"max={self.max}"] if self.max != NO_LIMIT else []
        return f"Dim({', '.join([repr(self.__name__), *bounds])})"


class DerivedDim(Dim):
    """A size that is an increasing linear function of the Dim `root`."""

    def __init__(self, name: str, base: Dim, function: Callable[[int], int]) -> None:
        self.__name__ = name
        outer = base.fn if isinstance(base, DerivedDim) else _same
        self.root: Dim = base.root if isinstance(base, DerivedDim) else base
        self.fn: Callable[[int], int] = lambda x: function(outer(x))
        self.min = self.fn(self.root.min)
        self.max = NO_LIMIT if self.root.max == NO_LIMIT else self.fn(self.root.max)

    def __repr__(self) -> str:
        return self.__name__


def dims(*names: str, min: int | None = None, max: int | None = None) -> tuple[Dim, ...]:
    """A Dim for every name, all with the same bounds."""
    bounded = functools.partial(Dim, min=min, max=max)
    return tuple(map(bounded, names))


def _same(value: int) -> int:
    return value


def _integer(value: Any, done: str) -> int:
    if type(value) is not int:
        raise _not_linear(f"{value!r} {done} a Dim")
    return value


def _not_linear(seen: str) -> NotImplementedError:
    return NotImplementedError(f"{seen}\n  expected: a * dim + b with integers a > 0 and b")
