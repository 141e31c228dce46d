"""The lowered value of a node: a tensor in memory, or one whose elements are computed at each use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import sympy
import torch

from refimpl.codegen.indices import linear
from refimpl.codegen.loop_ir import Buffer, Operand
from refimpl.codegen.scalars import Load, Scalar

Indices = tuple[sympy.Expr, ...]


@dataclass(frozen=True, eq=False)
class Stored:
    """A buffer, or a view of one. `offset` is in elements from the start of the buffer's tensor."""

    buffer: Buffer
    shape: Indices
    strides: Indices
    offset: sympy.Expr
    is_whole: bool = True
    """Whether it is the buffer's whole tensor."""

    @property
    def dtype(self) -> torch.dtype:
        return self.buffer.dtype

    @property
    def device(self) -> torch.device:
        return self.buffer.device

    @property
    def cost(self) -> int:
        return 0

    def at(self, indices: Sequence[sympy.Expr]) -> Scalar:
        """The element at one index per dimension."""
        return Load(self.buffer.name, linear(indices, self.strides, self.offset), self.dtype)

    def as_operand(self) -> Operand:
        """The tensor as an argument of an extern call."""
        return Operand(self.buffer.name, self.shape, self.strides, self.offset, self.is_whole)


@dataclass(frozen=True, eq=False)
class Computed:
    """A tensor whose elements are computed at each use. `cost` is the number of functions that one element takes."""

    shape: Indices
    dtype: torch.dtype
    device: torch.device
    value: Callable[[Indices], Scalar]
    cost: int = 1
    _memo: dict[Indices, Scalar] = field(default_factory=dict)

    def at(self, indices: Sequence[sympy.Expr]) -> Scalar:
        """The element at one index per dimension. Equal indices give the same expression."""
        key = tuple(indices)
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self.value(key)
        return found


Tensor = Stored | Computed
