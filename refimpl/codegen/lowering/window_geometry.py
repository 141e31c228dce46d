"""Pooling windows along one dimension: the elements of a window, and the windows that contain an element."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import sympy
import torch

from refimpl.codegen.indices import ONE, ZERO
from refimpl.codegen.lowering.state import NotLowered, apply, literal
from refimpl.codegen.lowering.views import compared
from refimpl.codegen.scalars import FromIndex, Scalar
from refimpl.symbolic.functions import FloorDiv, PythonMod

Found = tuple[sympy.Expr, list[Scalar]]
"""An index, and the conditions under which it is valid."""


class Windows(Protocol):
    """The windows along one dimension."""

    @property
    def length(self) -> int:
        """The most elements of a window."""
        ...

    @property
    def sharing(self) -> int:
        """The most windows that contain an element."""
        ...

    def element(self, window: sympy.Expr, k: sympy.Expr) -> Found:
        """The k-th element of a window."""
        ...

    def window(self, element: sympy.Expr, j: sympy.Expr) -> Found:
        """The j-th window that contains an element."""
        ...

    def count(self, window: sympy.Expr) -> Scalar | int:
        """The number of elements in a window."""
        ...


@dataclass(frozen=True)
class Steps:
    """Windows of `length` elements `dilation` apart, one per `stride`, starting `padding` before the first element.
    `counts_padding`: elements in the padding count, but not those behind it."""

    size: sympy.Expr
    windows: sympy.Expr
    length: int
    stride: int
    padding: int = 0
    dilation: int = 1
    counts_padding: bool = True

    @property
    def _span(self) -> int:
        return (self.length - 1) * self.dilation + 1

    @property
    def sharing(self) -> int:
        return -(-self._span // self.stride)

    def element(self, window: sympy.Expr, k: sympy.Expr) -> Found:
        place = (window * self.stride + k * self.dilation - self.padding).expand()
        conditions = [] if place.is_nonnegative else [compared("ge", place, ZERO)]
        furthest = k if k.is_Integer else self.length - 1
        last = (self.windows - 1) * self.stride + furthest * self.dilation - self.padding
        if not (self.size - 1 - last).expand().is_nonnegative:
            conditions.append(compared("lt", place, self.size))
        return place, conditions

    def window(self, element: sympy.Expr, j: sympy.Expr) -> Found:
        padded = element + self.padding
        window = FloorDiv(padded, sympy.Integer(self.stride)) if self.stride != 1 else padded
        window = (window + j - (self.sharing - 1)).expand()
        conditions = [compared("lt", window, self.windows)]
        if self.sharing > 1:
            conditions.append(compared("ge", window, ZERO))
        if self._span % self.stride != 0:
            conditions.append(compared("lt", (padded - window * self.stride).expand(), self._span))
        if self.dilation != 1:
            inner = PythonMod((padded - window * self.stride).expand(), sympy.Integer(self.dilation))
            conditions.append(compared("eq", inner, ZERO))
        return window, conditions

    def origin(self, element: sympy.Expr, k: sympy.Expr) -> Found:
        """The window whose k-th element this is."""
        start = (element + self.padding - k * self.dilation).expand()
        stride = sympy.Integer(self.stride)
        window = start if stride == ONE else FloorDiv(start, stride)
        conditions = [compared("ge", start, ZERO), compared("lt", window, self.windows)]
        if stride != ONE:
            conditions.append(compared("eq", PythonMod(start, stride), ZERO))
        return window, conditions

    def count(self, window: sympy.Expr) -> Scalar | int:
        last = (self.windows - 1) * self.stride - self.padding + self.length
        end_of_all = self.size + (self.padding if self.counts_padding else 0)
        is_whole = bool((end_of_all - last).expand().is_nonnegative)
        if is_whole and (self.counts_padding or self.padding == 0):
            return self.length
        start, padded_end = window * self.stride - self.padding, self.size + self.padding
        end = _least(FromIndex((start + self.length).expand()), FromIndex(padded_end))
        begin: Scalar = FromIndex(start.expand())
        if not self.counts_padding:
            end = _least(end, FromIndex(self.size))
            begin = apply("maximum", begin, literal(0, torch.int64))
        return apply("sub", end, begin)


@dataclass(frozen=True)
class Parts:
    """Adaptive pooling: that many windows, which cover the elements evenly. Neighbours may share an element."""

    size: int
    windows: int

    def _start(self, window: int) -> int:
        return window * self.size // self.windows

    def _end(self, window: int) -> int:
        return -(-(window + 1) * self.size // self.windows)

    @property
    def length(self) -> int:
        return max(self._end(window) - self._start(window) for window in range(self.windows))

    @property
    def sharing(self) -> int:
        starts = (math.ceil((element + 1) * self.windows / self.size) for element in range(self.size))
        return max(end - element * self.windows // self.size for element, end in enumerate(starts))

    def _bounds(self, window: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
        by = sympy.Integer(self.windows)
        end = ((window + 1) * self.size + self.windows - 1).expand()
        return FloorDiv(window * self.size, by), FloorDiv(end, by)

    def element(self, window: sympy.Expr, k: sympy.Expr) -> Found:
        start, end = self._bounds(window)
        return start + k, [compared("lt", start + k, end)]

    def window(self, element: sympy.Expr, j: sympy.Expr) -> Found:
        window = FloorDiv(element * self.windows, sympy.Integer(self.size)) + j
        is_begun = compared("lt", (window * self.size).expand(), ((element + 1) * self.windows).expand())
        return window, [compared("lt", window, self.windows), is_begun]

    def count(self, window: sympy.Expr) -> Scalar | int:
        start, end = self._bounds(window)
        return FromIndex(end - start)


def _least(a: Scalar, b: Scalar) -> Scalar:
    return apply("minimum", a, b)


def parts(size: sympy.Expr, windows: sympy.Expr) -> Windows:
    """The windows of adaptive pooling. Raises NotLowered for sizes known at run time."""
    if not (size.is_Integer and windows.is_Integer):
        if windows == ONE:
            raise NotLowered("a window of a size known at run time")
        raise NotLowered("windows of sizes known at run time")
    whole, count = int(size), int(windows)
    if count == 0 or whole % max(count, 1) != 0:
        return Parts(whole, count)
    return Steps(size, windows, whole // count, whole // count)
