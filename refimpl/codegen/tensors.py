"""What a node of a graph is lowered to: a tensor in memory, or one that is computed where it is read."""

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
    """A buffer, or a view of one. `offset` is in elements from where the buffer's tensor begins."""

    buffer: Buffer
    shape: Indices
    strides: Indices
    offset: sympy.Expr
    is_whole: bool = True
    """Whether it is the buffer's own tensor."""

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
        """The element at one index for every dimension."""
        return Load(self.buffer.name, linear(indices, self.strides, self.offset), self.dtype)

    def as_operand(self) -> Operand:
        """As the argument of a call."""
        return Operand(self.buffer.name, self.shape, self.strides, self.offset, self.is_whole)


@dataclass(frozen=True, eq=False)
class Computed:
    """A tensor whose elements are computed where they are read. `cost` counts the functions that one element takes."""

    shape: Indices
    dtype: torch.dtype
    device: torch.device
    value: Callable[[Indices], Scalar]
    cost: int = 1
    _memo: dict[Indices, Scalar] = field(default_factory=dict)

    def at(self, indices: Sequence[sympy.Expr]) -> Scalar:
        """The element at one index for every dimension. The same index gives the same expression."""
        key = tuple(indices)
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self.value(key)
        return found


Tensor = Stored | Computed
