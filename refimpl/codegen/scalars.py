"""Expressions that one point of a loop nest computes. All of them are frozen.

Types are PyTorch's: an expression has the dtype of its value in memory, and conversions are explicit (`Apply("cast", ...)`), so
that the result does not depend on the promotion rules of the language that it is printed in. Indices are sympy expressions of
axis symbols and symbolic sizes, in elements.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import sympy
import torch

RANDOM_FUNCTIONS = frozenset(["philox_uniform", "philox_normal", "philox_integer"])
"""Functions of a seed, an element's index, and the number of the draw."""

ROUNDING_FUNCTIONS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "exp": (2, 1), "exp2": (2, 1), "expm1": (1, 1), "log": (1, 1), "log2": (1, 1), "log10": (2, 1), "log1p": (1, 1),
        "rsqrt": (2, 1), "sin": (2, 2), "cos": (2, 2), "tan": (4, 2), "asin": (2, 2), "acos": (2, 2), "atan": (2, 2),
        "sinh": (3, 2), "cosh": (2, 1), "tanh": (2, 1), "asinh": (3, 3), "acosh": (4, 3), "atanh": (3, 2), "erf": (2, 2),
        "erfc": (4, 5), "erfinv": (2, 5), "lgamma": (6, 4), "pow": (4, 2), "atan2": (3, 2),
    }
)  # fmt: skip
"""Functions of libdevice with their largest errors in ulp, for float32 and float64. NVIDIA documents these errors; no rule gives
them. The names are those of libdevice and of the aten operators."""


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A number."""

    value: int | float | bool
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, eq=False)
class FromIndex:
    """The value of an index expression, or of a size known at run time."""

    index: sympy.Expr
    dtype: torch.dtype = torch.int64


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """An element of a buffer. `indirect` are symbols of `index` whose values are computed at the same point."""

    buffer: str
    index: sympy.Expr
    dtype: torch.dtype
    indirect: tuple[tuple[sympy.Symbol, Scalar], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Apply:
    """A function of `functions.FUNCTIONS`. The arguments have the dtype that it computes in."""

    function: str
    arguments: tuple[Scalar, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, eq=False)
class Guarded:
    """`value` if `condition` is true, else `otherwise`. Loads in `value` are executed only if `condition` is true."""

    condition: Scalar
    value: Scalar
    otherwise: Literal

    @property
    def dtype(self) -> torch.dtype:
        return self.value.dtype


Scalar = Literal | FromIndex | Load | Apply | Guarded


def operands(scalar: Scalar) -> tuple[Scalar, ...]:
    """The operands of an expression."""
    match scalar:
        case Apply(arguments=arguments):
            return arguments
        case Load(indirect=indirect):
            return tuple(value for _, value in indirect)
        case Guarded(condition=condition, value=value, otherwise=otherwise):
            return condition, value, otherwise
        case _:
            return ()


def walk(*roots: Scalar, known: Collection[int] = ()) -> Iterator[Scalar]:
    """Every subexpression once, operands first. Skips expressions whose ids are in `known`, and their operands."""
    done: set[int] = set()
    stack: list[tuple[Scalar, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        scalar, is_open = stack.pop()
        if id(scalar) in done or id(scalar) in known:
            continue
        if is_open:
            done.add(id(scalar))
            yield scalar
            continue
        stack.append((scalar, True))
        stack.extend((operand, False) for operand in reversed(operands(scalar)) if id(operand) not in done)


def index_symbols(*roots: Scalar) -> set[sympy.Basic]:
    """All symbols in indices of the subexpressions."""
    return {
        symbol for part in walk(*roots) if isinstance(part, (Load, FromIndex)) for symbol in part.index.free_symbols
    }


def draws(*roots: Scalar) -> set[Any]:
    """The numbers of the random draws among the subexpressions."""
    found: set[Any] = set()
    for part in walk(*roots):
        if isinstance(part, Apply) and part.function in RANDOM_FUNCTIONS:
            number = part.arguments[2]
            assert isinstance(number, Literal)
            found.add(number.value)
    return found


def reindexed(scalar: Scalar, of_index: Callable[[sympy.Expr], sympy.Expr], memo: dict[int, Scalar]) -> Scalar:
    """The expression with other indices. `memo` preserves sharing among all calls with the same function."""
    for part in walk(scalar):
        if id(part) not in memo:
            memo[id(part)] = _rebuilt(part, of_index, memo)
    return memo[id(scalar)]


def _rebuilt(scalar: Scalar, of_index: Callable[[sympy.Expr], sympy.Expr], memo: dict[int, Scalar]) -> Scalar:
    match scalar:
        case FromIndex(index=index, dtype=dtype):
            return FromIndex(of_index(index), dtype)
        case Load(buffer=buffer, index=index, dtype=dtype, indirect=indirect):
            return Load(buffer, of_index(index), dtype, tuple((symbol, memo[id(value)]) for symbol, value in indirect))
        case Apply(function=function, arguments=arguments, dtype=dtype):
            return Apply(function, tuple(memo[id(argument)] for argument in arguments), dtype)
        case Guarded(condition=condition, value=value, otherwise=otherwise):
            return Guarded(memo[id(condition)], memo[id(value)], otherwise)
        case _:
            return scalar


def indirect_scalar(value: Scalar, symbols: Sequence[tuple[sympy.Symbol, Scalar]]) -> Load:
    """A load whose index has symbols, with the values of these."""
    assert isinstance(value, Load)
    return Load(value.buffer, value.index, value.dtype, tuple(symbols))


def with_places(scalar: Scalar, places: Sequence[tuple[sympy.Symbol, Scalar]]) -> Scalar | None:
    """The expression with the values of symbols added to the loads whose index contains them. None if a value uses such a symbol
    directly, or if no load uses one of the symbols."""
    symbols = {symbol for symbol, _ in places}
    used: set[sympy.Basic] = set()
    memo: dict[int, Scalar] = {}
    for part in walk(scalar):
        made = _rebuilt(part, lambda index: index, memo)
        if isinstance(part, FromIndex) and part.index.free_symbols & symbols:
            return None
        if isinstance(part, Load) and isinstance(made, Load):
            own = tuple(place for place in places if place[0] in part.index.free_symbols)
            used |= {symbol for symbol, _ in own}
            made = Load(part.buffer, part.index, part.dtype, (*made.indirect, *own))
        memo[id(part)] = made
    return memo[id(scalar)] if used == symbols else None


class StructuresState:
    """Numbers expressions by structure: equal expressions have equal numbers."""

    def __init__(self) -> None:
        self._by_structure: dict[Any, int] = {}
        self._by_identity: dict[int, tuple[Scalar, int]] = {}  # holds the expression, so that its id stays unique

    def of(self, scalar: Scalar) -> int:
        """The number of an expression's structure."""
        for part in walk(scalar):
            if id(part) not in self._by_identity:
                number = self._by_structure.setdefault(self._structure(part), len(self._by_structure))
                self._by_identity[id(part)] = part, number
        return self._by_identity[id(scalar)][1]

    def _structure(self, part: Scalar) -> Any:
        below = tuple(self._by_identity[id(operand)][1] for operand in operands(part))
        match part:
            case Literal(value=value, dtype=dtype):
                return Literal, repr(value), dtype
            case FromIndex(index=index, dtype=dtype):
                return FromIndex, index, dtype
            case Load(buffer=buffer, index=index, dtype=dtype, indirect=indirect):
                return Load, buffer, index, dtype, tuple(symbol for symbol, _ in indirect), below
            case Apply(function=function, dtype=dtype):
                return Apply, function, dtype, below
            case Guarded():
                return Guarded, below
