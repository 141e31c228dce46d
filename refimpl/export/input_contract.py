"""Input checks of an exported program: types, dtypes, sizes, constants and guards.

Counterpart: torch/_export/utils.py _check_input_constraints_for_graph; the `_guards_fn` of torch/export/_unlift.py
Differs: dtypes are checked as well. Sizes of 0 and 1 are accepted if only the default range, which starts at 2, excludes them, as
upstream does.

Note [Where symbols are read]
A symbol is read from the first size that equals it, or else from a size that is a linear function of it. All other sizes and the
guards are computed from the symbols and compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from refimpl._torch import is_opaque_object, storage_key
from refimpl.export.constants import class_name
from refimpl.export.errors import InputMismatch
from refimpl.symbolic.guard_output import linear
from refimpl.symbolic.guards import PRINTED_NAMES, python_source

DEFAULT_LOWER = 2  # sizes of 0 and 1 are not symbols

Numbers = dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """A size or SymInt of the inputs, and its expression."""

    leaf: int
    dim: int | None  # None: the leaf is a SymInt
    name: str
    expr: Any


class InputContract:
    """Checks the leaves of inputs. Made once for an exported program."""

    def __init__(
        self,
        names: Sequence[str],
        values: Sequence[Any],
        ranges: Mapping[Any, Any],
        guards: Sequence[Any] = (),
        written: Sequence[int] = (),
    ) -> None:
        """names: names of the leaves, for messages. values: the fake tensors, symbols and constants that the program was traced
        with. ranges: range of each symbol. guards: further conditions on the symbols. written: leaves that the program writes
        to at its end; they must not share memory with another leaf."""
        self._written = list(written)
        self._names = list(names)
        self._values = list(values)
        sizes = [size for i, value in enumerate(values) for size in _sizes(i, names[i], value)]
        self._fixed = [size for size in sizes if size.expr.is_number]
        symbolic = [size for size in sizes if not size.expr.is_number]
        self._readers: list[tuple[str, _Size, int, int]] = []  # symbol, size, scale, offset
        by_symbol: dict[Any, str] = {}
        for size in sorted(symbolic, key=lambda size: not size.expr.is_Symbol):
            read = linear(size.expr)
            if read is not None and read[0] not in by_symbol:
                symbol, scale, offset = read
                by_symbol[symbol] = size.name if scale == 1 and not offset else str(symbol)
                self._readers.append((str(symbol), size, scale, offset))
        known = set(by_symbol)
        self._computed = [(s, _compiled(s.expr)) for s in symbolic if s.expr.free_symbols <= known]
        self._ranges = [
            (str(symbol), by_symbol[symbol], bounds.lower, bounds.upper)
            for symbol, bounds in ranges.items()
            if symbol in known
        ]
        self._guards = [
            (python_source(guard, lambda symbol: by_symbol[symbol]), _compiled(guard))
            for guard in guards
            if guard.free_symbols and guard.free_symbols <= known
        ]

    def __deepcopy__(self, memo: Any) -> InputContract:
        """Itself: it is immutable, and a copy of its fake tensors would copy their whole trace."""
        return self

    def check(self, leaves: Sequence[Any]) -> None:
        """Raises InputMismatch for the first leaf that does not fit. If a size is symbolic, its conditions become guards."""
        for name, expected, leaf in zip(self._names, self._values, leaves, strict=True):
            _check_kind(name, expected, leaf)
        for size in self._fixed:
            found = _number(size, leaves)
            if found != int(size.expr):
                raise _failed(f"{size.name} == {size.expr}", found)
        numbers: Numbers = {}
        for symbol, size, scale, offset in self._readers:
            found = _number(size, leaves)
            numbers[symbol] = (found - offset) // scale
            if (found - offset) % scale:
                raise _failed(f"{size.name} == {size.expr} for an integer {symbol}", found)
        for size, compute in self._computed:
            found = _number(size, leaves)
            if compute(numbers) != found:
                raise _failed(f"{size.name} == {size.expr}", found)
        for symbol, name, lower, upper in self._ranges:
            value = numbers[symbol]
            if lower > DEFAULT_LOWER and value < lower:
                raise _failed(f"{name} >= {lower}", value)
            if upper < math.inf and value > upper:
                raise _failed(f"{name} <= {upper}", value)
        if self._written:
            self._check_memory(leaves)
        for text, holds in self._guards:
            if not holds(numbers):
                raise InputMismatch(seen=f"Guard failed: {text}", expected=f"sizes that satisfy it, not {numbers}")

    def _check_memory(self, leaves: Sequence[Any]) -> None:
        owners: dict[int, int] = {}
        for index, leaf in enumerate(leaves):
            if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or not leaf.numel():
                continue
            other = owners.setdefault(storage_key(leaf), index)
            if other != index and {other, index} & set(self._written):
                raise InputMismatch(
                    seen=f"{self._names[other]} and {self._names[index]} share memory, and the program writes to one of them",
                    expected="inputs that share no memory, as a functional graph needs",
                )


def _sizes(leaf: int, name: str, value: Any) -> list[_Size]:
    if isinstance(value, torch.SymInt):
        return [_Size(leaf=leaf, dim=None, name=name, expr=value.node.expr)]
    if not isinstance(value, torch.Tensor):
        return []
    return [
        _Size(leaf=leaf, dim=dim, name=f"{name}.size()[{dim}]", expr=sympy.sympify(getattr(getattr(s, "node", s), "expr", s)))
        for dim, s in enumerate(value.shape)
    ]  # fmt: skip


def _number(size: _Size, leaves: Sequence[Any]) -> int:
    leaf = leaves[size.leaf]
    return leaf if size.dim is None else leaf.shape[size.dim]


def _compiled(expr: Any) -> Callable[[Numbers], Any]:
    """Compile an expression to a function of the symbols' values."""
    code = compile(python_source(expr, lambda symbol: f"_numbers[{str(symbol)!r}]"), "<condition on sizes>", "eval")
    names = {**PRINTED_NAMES, "max": torch.sym_max, "min": torch.sym_min, "__builtins__": {}}
    return lambda numbers: eval(code, names, {"_numbers": numbers})


def _check_kind(name: str, expected: Any, leaf: Any) -> None:
    if isinstance(expected, torch.Tensor):
        if not isinstance(leaf, torch.Tensor):
            raise InputMismatch(seen=f"Expected input {name} to be a tensor, but got {type(leaf)}", expected="a tensor")
        if leaf.dim() != expected.dim():
            raise InputMismatch(
                seen=f"Guard failed: len({name}.size()) == {expected.dim()}; the shape is {tuple(leaf.shape)}",
                expected=f"{expected.dim()} dimensions",
            )
        if leaf.dtype != expected.dtype:
            raise InputMismatch(seen=f"Guard failed: {name}.dtype == {expected.dtype}; it is {leaf.dtype}",
                                expected=str(expected.dtype))  # fmt: skip
    elif isinstance(expected, torch.SymInt):
        if not isinstance(leaf, (int, torch.SymInt)):
            raise InputMismatch(seen=f"Expected input {name} to be an int, but got {type(leaf)}", expected="an int")
    elif is_opaque_object(expected):
        kinds = class_name(expected), class_name(leaf)
        if kinds[0] != kinds[1]:
            raise InputMismatch(seen=f"Expected input {name} to be a {kinds[0]}, but got {kinds[1]}", expected=kinds[0])
    elif isinstance(expected, (bool, int, float, str, type(None))) and not _is_same(expected, leaf):
        raise InputMismatch(seen=f"Guard failed: {name} == {expected!r}; it is {leaf!r}", expected=repr(expected))


def _is_same(expected: Any, leaf: Any) -> bool:
    if isinstance(expected, float) and isinstance(leaf, float) and math.isnan(expected):
        return math.isnan(leaf)
    is_symbolic = type(expected) is int and isinstance(leaf, torch.SymInt)
    return (is_symbolic or type(expected) is type(leaf)) and bool(expected == leaf)


def _failed(condition: str, found: Any) -> InputMismatch:
    return InputMismatch(
        seen=f"Guard failed: {condition}; it is {found}", expected="an input the program was exported for"
    )
