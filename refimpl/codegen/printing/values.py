"""Prints the values of a kernel's points as lines of Triton.

A kernel computes blocks of points. The dimensions of its blocks (`Dimension`) stand for axes of the loop IR. A value is a block
with size 1 in the dimensions along which it does not vary. Values that do not vary along reduced dimensions belong to the outer
scope, the others to the inner one, which may be a loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from refimpl.codegen.indices import ONE, product
from refimpl.codegen.loop_ir import Axis, Nest
from refimpl.codegen.printing.functions import BOUNDS_MESSAGES, COMPARISONS, TRITON_DTYPES, constant, expression
from refimpl.codegen.printing.index_text import IndexTextState
from refimpl.codegen.printing.random import random_function
from refimpl.codegen.scalars import RANDOM_FUNCTIONS, Apply, FromIndex, Guarded, Literal, Load, Scalar, walk
from refimpl.codegen.sizes import GivenNumbers


@dataclass(frozen=True)
class Dimension:
    """One dimension of a kernel's blocks. The index in it is called `name`; its length is the constant `block`.

    axes: the axes that it covers as one run, outermost first. mask: the name of the mask of its points; None if all blocks are
    full.
    """

    name: str
    axes: tuple[Axis, ...]
    block: str
    is_reduced: bool = False
    mask: str | None = None

    @property
    def size(self) -> sympy.Expr:
        """The number of points."""
        return product(axis.size for axis in self.axes)

    @property
    def symbols(self) -> frozenset[sympy.Symbol]:
        return frozenset(axis.symbol for axis in self.axes)

    def is_filled(self, block: int) -> bool:
        """Whether blocks of this length have no points beyond the end."""
        return bool(self.size.is_Integer and self.size > 0 and self.size % block == 0)

    def name_axes(self, indices: IndexTextState) -> None:
        """Names the index on each axis, and the index along all of them."""
        indices.runs[self.name] = self.axes
        for position, axis in enumerate(self.axes):
            indices.symbols[axis.symbol] = self.name if len(self.axes) == 1 else f"{self.name}{position}"

    def axis_lines(self, indices: IndexTextState) -> list[str]:
        """Lines that compute the used axes' indices from the index in the dimension."""
        if len(self.axes) == 1:
            return []
        lines = []
        step: sympy.Expr = ONE
        for position in range(len(self.axes) - 1, -1, -1):
            axis = self.axes[position]
            if f"{self.name}{position}" in indices.used:
                text = self.name if step == ONE else f"{self.name} // {indices.factor(step)}"
                if position > 0:
                    text = f"{text} % {indices.factor(axis.size)}"
                lines.append(f"{self.name}{position} = {text}")
            step = step * axis.size
        return lines


@dataclass(frozen=True)
class Space:
    """The dimensions of a kernel's blocks, in order."""

    dimensions: tuple[Dimension, ...]

    @property
    def reduced(self) -> frozenset[sympy.Symbol]:
        """Symbols of the reduced axes."""
        return frozenset[sympy.Symbol]().union(*(d.symbols for d in self.dimensions if d.is_reduced))

    def shape(self, *, is_wide: bool = True) -> str:
        """The shape of a block; unless `is_wide`, with size 1 in reduced dimensions."""
        return self.shape_along(self.names(is_wide=is_wide))

    def shape_along(self, names: frozenset[str]) -> str:
        """The shape of a block with size 1 except in these dimensions."""
        return _shape(d.block if d.name in names else "1" for d in self.dimensions)

    @property
    def unit(self) -> str:
        """The shape of a single value."""
        return _shape("1" for _ in self.dimensions)

    def masks(self, *, is_wide: bool) -> list[str]:
        """The masks of all dimensions; unless `is_wide`, without the reduced ones."""
        return self.masks_of(self.names(is_wide=is_wide))

    def masks_of(self, names: frozenset[str]) -> list[str]:
        """The masks of these dimensions."""
        return [d.mask for d in self.dimensions if d.mask is not None and d.name in names]

    def masks_along(self, symbols: set[Any] | frozenset[Any]) -> list[str]:
        """The masks of the dimensions that contain these axes."""
        return [d.mask for d in self.dimensions if d.mask is not None and symbols & d.symbols]

    def along(self, symbols: Any) -> frozenset[str]:
        """Names of the dimensions that contain these axes."""
        return frozenset(d.name for d in self.dimensions if d.symbols & symbols)

    def names(self, *, is_wide: bool = True) -> frozenset[str]:
        """Names of all dimensions; unless `is_wide`, without the reduced ones."""
        return frozenset(d.name for d in self.dimensions if is_wide or not d.is_reduced)

    def places(self, dimension: Dimension) -> str:
        """A subscript that puts a row of values along one dimension."""
        if len(self.dimensions) == 1:
            return ""
        return _shape(":" if d is dimension else "None" for d in self.dimensions)


def _shape(parts: Any) -> str:
    return f"[{', '.join(parts)}]"


@dataclass
class KernelNamesState:
    """Names used in the whole kernel. `pointers`: parameters by buffer; `sizes`: parameters by number, one for each number of
    `given`; `helpers`: functions that are called."""

    pointers: dict[str, str] = field(default_factory=dict)
    sizes: dict[sympy.Expr, str] = field(default_factory=dict)
    given: GivenNumbers = GivenNumbers()
    helpers: set[str] = field(default_factory=set)
    count: int = 0

    def new(self, prefix: str = "t") -> str:
        """A new name."""
        self.count += 1
        return f"{prefix}{self.count}"

    def pointer(self, buffer: str) -> str:
        """The parameter for a buffer."""
        return self.pointers.setdefault(buffer, f"p{len(self.pointers)}")


@dataclass
class ScopeState:
    """Printed lines, and the names of the values that they compute. A loaded value belongs to the mask that it is loaded
    under."""

    lines: list[str] = field(default_factory=list)
    names: dict[Any, str] = field(default_factory=dict)


class _DependenceState:
    """Finds which values vary along some axes."""

    def __init__(self, symbols: frozenset[sympy.Symbol]) -> None:
        self.symbols = symbols
        self.known: dict[int, bool] = {}

    def of(self, scalar: Scalar) -> bool:
        """Whether the value varies along the axes."""
        for part in walk(scalar, known=self.known):
            self.known[id(part)] = self._own(part)
        return self.known[id(scalar)]

    def _own(self, part: Scalar) -> bool:
        match part:
            case FromIndex(index=index):
                return bool(index.free_symbols & self.symbols)
            case Load(index=index, indirect=indirect):
                return bool(index.free_symbols & self.symbols) or any(self.known[id(v)] for _, v in indirect)
            case Apply(arguments=arguments):
                return any(self.known[id(argument)] for argument in arguments)
            case Guarded(condition=condition, value=value):
                return self.known[id(condition)] or self.known[id(value)]
            case _:
                return False


class ValuePrinter:
    """Prints the values of one space into an outer and an inner scope.

    looped: axes along which values vary between iterations of the inner scope. Default: the reduced axes.
    made: nests whose values the kernel computes; `rows` names the results of reductions, by buffer. `indices.symbols` must name
    every axis.
    """

    def __init__(
        self,
        space: Space,
        made: Mapping[str, Nest],
        names: KernelNamesState,
        outer: ScopeState,
        inner: ScopeState,
        looped: frozenset[sympy.Symbol] | None = None,
    ) -> None:
        self.space = space
        self.made = made
        self.names = names
        self.outer = outer
        self.inner = inner
        self.rows: dict[str, str] = {}
        self.spread: dict[
            str, frozenset[str]
        ] = {}  # by name of a value: the dimensions in which its block is not of size 1
        self.indices = IndexTextState(
            [axis for d in space.dimensions for axis in d.axes], sizes=names.sizes, given=names.given
        )
        self._wide = _DependenceState(space.reduced)
        self._looped = self._wide if looped is None else _DependenceState(looped)
        self._guard: str | None = None
        self._guard_is_wide = self._guard_is_looped = False

    def value(self, scalar: Scalar) -> str:
        """The name of the value, printed on first use."""
        parts = [scalar] if self._guard is not None else list(_unguarded(scalar))
        for part in parts:
            self._emit(part)
        return self._emit(scalar)

    def is_wide(self, scalar: Scalar) -> bool:
        """Whether the value varies along a reduced dimension."""
        return (self._guard is not None and self._guard_is_wide) or self._wide.of(scalar)

    def _scope_of(self, scalar: Scalar) -> ScopeState:
        """The scope that computes a value: the inner one if the value varies in the loop."""
        is_looped = (self._guard is not None and self._guard_is_looped) or self._looped.of(scalar)
        return self.inner if is_looped else self.outer

    def _emit(self, scalar: Scalar) -> str:
        if isinstance(scalar, Load) and not scalar.indirect:
            if scalar.buffer in self.rows:
                return self.rows[scalar.buffer]
            if scalar.buffer in self.made:
                return self.value(self.made[scalar.buffer].value)
        key = (id(scalar), self._guard)
        is_wide = self.is_wide(scalar)
        scope = self._scope_of(scalar)
        everywhere = (id(scalar), None)
        found = scope.names.get(key) or scope.names.get(everywhere)
        if found is None and scope is self.inner:
            found = self.outer.names.get(key) or self.outer.names.get(everywhere)
        if found is not None:
            return found
        match scalar:
            case Literal(value=value, dtype=dtype):
                text, spread = constant(value, dtype, self.space.unit), frozenset[str]()
            case FromIndex(index=index, dtype=dtype):
                text, spread = self._index_value(index, dtype), self.space.along(index.free_symbols)
            case Load():
                text, spread = self._load(scalar, scope, is_wide=is_wide)
            case Guarded():
                text, spread = self._guarded(scalar, scope, is_wide=is_wide)
            case Apply(function="checked_index" | "checked_place", arguments=(place, limit)):
                checked = scope.names[key] = self._emit(place)
                holds = f"({checked} >= 0) & ({checked} < {self._emit(limit)})"
                self._assert(holds, BOUNDS_MESSAGES[scalar.function], scope, is_wide=is_wide)
                return checked
            case Apply(function="checked_probability" | "checked_deviation", arguments=(number,)):
                checked = scope.names[key] = self._emit(number)
                is_probability = scalar.function == "checked_probability"
                holds = f"({checked} >= 0) & ({checked} <= 1)" if is_probability else f"{checked} >= 0"
                message = "a probability that is not in [0, 1]" if is_probability else "a deviation below 0"
                self._assert(holds, message, scope, is_wide=is_wide)
                return checked
            case Apply(function=function, arguments=(FromIndex(index=a), FromIndex(index=b))) if (
                function in COMPARISONS and (a - b).free_symbols & self.indices.symbols.keys()
            ):
                text, spread = self._index_comparison(function, a, b)
            case Apply(function=function, arguments=arguments, dtype=dtype) if function in RANDOM_FUNCTIONS:
                helper, names = random_function(function, dtype), [self._emit(argument) for argument in arguments]
                self.names.helpers |= {"_words", helper}
                text, spread = f"{helper}({', '.join(names)})", self._spread_of(*names)
            case Apply(function=function, arguments=arguments, dtype=dtype):
                names = [self._emit(argument) for argument in arguments]
                text = expression(function, names, [argument.dtype for argument in arguments], dtype)
                spread = self._spread_of(*names)
        same = scope.names.get(text)  # equal text is an equal value, in one scope and under one guard
        if same is None or (self._guard is not None and isinstance(scalar, (Load, Guarded))):
            same = self.names.new()
            scope.lines.append(f"{same} = {text}")
            scope.names[text] = same
            self.spread[same] = spread
        scope.names[key] = same
        return same

    def _spread_of(self, *names: str) -> frozenset[str]:
        return frozenset[str]().union(*(self.spread.get(name, frozenset()) for name in names))

    def full(self, name: str, *, is_wide: bool = True) -> str:
        """A value as a block of the whole space; unless `is_wide`, without the reduced dimensions."""
        if self.spread.get(name, frozenset()) >= self.space.names(is_wide=is_wide):
            return name
        return f"tl.broadcast_to({name}, {self.space.shape(is_wide=is_wide)})"

    def _index_value(self, index: sympy.Expr, dtype: torch.dtype) -> str:
        text = self.indices.place(index)
        if index.free_symbols & self.indices.symbols.keys():
            return f"({text}).to({TRITON_DTYPES[dtype]})"
        return f"tl.full({self.space.unit}, {text}, {TRITON_DTYPES[dtype]})"

    def _index_comparison(self, function: str, a: sympy.Expr, b: sympy.Expr) -> tuple[str, frozenset[str]]:
        """Compares indices without computing them as values."""
        text = f"{self.indices.place(a)} {COMPARISONS[function]} {self.indices.place(b)}"
        return text, self.space.along((a - b).free_symbols)

    def _assert(self, holds: str, message: str, scope: ScopeState, *, is_wide: bool) -> None:
        """Asserts a condition at the unmasked points."""
        holds = f"({holds})"
        for mask in [
            *self.space.masks_of(self._counted(scope, is_wide=is_wide)),
            *([self._guard] if self._guard else []),
        ]:
            holds = f"{holds} | ~{mask}"
        scope.lines.append(f'tl.device_assert({holds}, "{message}")')

    def _counted(self, scope: ScopeState, *, is_wide: bool) -> frozenset[str]:
        """Names of the dimensions whose index exists in a scope: those of a loop do not exist before it."""
        names = self.space.names(is_wide=is_wide)
        return names if scope is self.inner else names - self.space.along(self._looped.symbols)

    def _load(self, load: Load, scope: ScopeState, *, is_wide: bool) -> tuple[str, frozenset[str]]:
        """The text of a load, and the dimensions of its result."""
        spread = self.space.along(load.index.free_symbols)
        for symbol, value in load.indirect:
            self.indices.symbols[symbol] = self._emit(value)
            if symbol in load.index.free_symbols:  # not in a tensor that is one element everywhere
                spread |= self.spread.get(self.indices.symbols[symbol], frozenset())
        index = self.indices.place(load.index)
        pointer = self.names.pointer(load.buffer)
        counted = self._counted(scope, is_wide=is_wide)
        masks = self._masks_of(load, counted)
        if not masks:
            return f"tl.load({_offset(pointer, index)})", spread
        if (self._guard is not None or load.indirect) and not spread >= counted:
            index, spread = self._spread_out(index, load.index, counted), counted
        return f"tl.load({_offset(pointer, index)}, {' & '.join(masks)}, other=0)", spread

    def _masks_of(self, load: Load, counted: frozenset[str]) -> list[str]:
        """Masks of a load: it must not read beyond the ends, nor where a guard is false."""
        if self._guard is not None:
            return [*self.space.masks_of(counted), self._guard]
        if load.indirect:
            return self.space.masks_of(counted)
        return self.space.masks_along(load.index.free_symbols)

    def _guarded(self, guarded: Guarded, scope: ScopeState, *, is_wide: bool) -> tuple[str, frozenset[str]]:
        condition = self._emit(guarded.condition)
        around = self._guard, self._guard_is_wide, self._guard_is_looped
        if self._guard is not None:
            both = self.names.new("guard")
            scope.lines.append(f"{both} = {condition} & {self._guard}")
            self.spread[both] = self._spread_of(condition, self._guard)
            condition = both
        self._guard, self._guard_is_wide, self._guard_is_looped = condition, is_wide, scope is self.inner
        value = self._emit(guarded.value)
        self._guard, self._guard_is_wide, self._guard_is_looped = around
        otherwise = self._emit(guarded.otherwise)
        return f"tl.where({condition}, {value}, {otherwise})", self._spread_of(condition, value, otherwise)

    def store(self, nest: Nest, value: str, *, is_wide: bool) -> str:
        """The line that stores a nest's value."""
        for symbol, place in nest.indirect:
            self.indices.symbols[symbol] = self.value(place)
        pointer = self.names.pointer(nest.target.name)
        masks = self.space.masks(is_wide=is_wide)
        if nest.condition is not None:
            masks = [*masks, self.value(nest.condition)]
        mask = f", {' & '.join(masks)}" if masks else ""
        index = self.indices.place(nest.index)
        names = self.space.names(is_wide=is_wide)
        if not self.space.along(nest.index.free_symbols) >= names:
            index = self._spread_out(index, nest.index, names)
        where = f"{_offset(pointer, index)}, {value}{mask}"
        return (
            f"tl.store({where})"
            if nest.write in ("whole", "part")
            else f'tl.atomic_{nest.write}({where}, sem="relaxed")'
        )

    def store_along(self, dimension: Dimension, nest: Nest, value: str) -> str:
        """The line that stores a row of results along a dimension."""
        where = _offset(self.names.pointer(nest.target.name), self.indices.place(nest.index))
        return f"tl.store({where}, {value}{'' if dimension.mask is None else f', {dimension.mask}'})"

    def _spread_out(self, text: str, index: sympy.Expr, names: frozenset[str]) -> str:
        """The text of an index as a block along these dimensions."""
        shape = self.space.shape_along(names)
        if index.free_symbols & self.indices.symbols.keys():
            return f"tl.broadcast_to({text}, {shape})"
        return f"tl.full({shape}, {text}, tl.int64)"


def _offset(pointer: str, index: str) -> str:
    """A pointer plus an offset. The offset is summed first, because it is narrower than a pointer."""
    is_one = index.isidentifier() or index.isdecimal() or index.startswith("tl.")
    return f"{pointer} + {index}" if is_one else f"{pointer} + ({index})"


def _unguarded(scalar: Scalar) -> list[Scalar]:
    """Subexpressions that are computed at every point, operands first, which keeps recursion shallow. Constants and indices are
    printed at their uses: comparisons of indices need no values."""
    inside: set[int] = set()
    for part in walk(scalar):
        if isinstance(part, Guarded):
            inside.update(id(p) for p in walk(part.value))
    return [part for part in walk(scalar) if id(part) not in inside and not isinstance(part, (FromIndex, Literal))]
