"""Input checks of an exported program: types, dtypes, sizes, constants and guards, as a Python function of the input leaves.

Counterpart: torch/export/_unlift.py _get_input_guards_for_graph, _convert_guards_code_to_fn, GuardsFn;
  torch/_export/utils.py _check_input_constraints_for_graph
Differs: numbers of dimensions, dtypes and kinds of values are checked as well. Sizes of 0 and 1 are accepted if only the default
range, which starts at 2, excludes them, as upstream does.

Note [Where symbols are read]
A symbol is read from the first size that equals it, or else from a size that is a linear function of it. All other sizes and the
guards are computed from the symbols and compared.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import sympy
import torch
from sympy.printing.precedence import PRECEDENCE
from torch import fx

from refimpl._torch import assert_in_graph, is_exporting, is_opaque_object, is_traceable_wrapper_subclass, storage_key
from refimpl.aot.analysis.subclasses import check_layout, dense_parts, layout_of
from refimpl.aot.errors import UnexpectedSubclass
from refimpl.capture.entry_points.export_signature import INPUT_CONSTANT_TYPES
from refimpl.export.constants import class_name
from refimpl.export.errors import InputMismatch
from refimpl.symbolic.functions import FloorDiv, PythonMod
from refimpl.symbolic.guard_output import linear
from refimpl.symbolic.guards import PRINTED_NAMES, PythonSource, python_source

DEFAULT_LOWER = 2  # sizes of 0 and 1 are not symbols


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """A size or SymInt of the inputs, and its expression."""

    leaf: int
    dim: int | None  # None: the leaf is a SymInt
    name: str
    expr: Any

    @property
    def default_lower(self) -> float:
        """The lower bound that its range has if nothing is known of it, and that calls need not have."""
        return -math.inf if self.dim is None else DEFAULT_LOWER

    @property
    def source(self) -> str:
        """Python that reads it from `args`, the leaves."""
        return f"args[{self.leaf}]" if self.dim is None else f"args[{self.leaf}].size()[{self.dim}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Condition:
    """A condition on sizes: Python of `args`, the same in the user's names, and Python of what is compared."""

    source: str
    text: str
    found: str


class _ConditionText(PythonSource):
    """Prints conditions for messages, with the terms of a sum as torch orders them: `-1 + x.size()[0]`."""

    def _print_Add(self, expr: sympy.Add, order: Any = None) -> str:  # noqa: N802
        return " + ".join(self.parenthesize(term, PRECEDENCE["Add"]) for term in expr.args)


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
        self._ranges = ranges
        sizes = [size for i, value in enumerate(values) for size in _sizes(i, names[i], value)]
        self._firsts: dict[Any, _Size] = {}  # expression -> the first size of an input with this expression
        for size in sizes:
            self._firsts.setdefault(size.expr, size)
        self._readers: dict[Any, tuple[_Size, int, int]] = {}  # symbol -> size, scale, offset
        for size in sorted(sizes, key=lambda size: not size.expr.is_Symbol):
            read = None if size.expr.is_number else linear(size.expr)
            if read is not None:
                self._readers.setdefault(read[0], (size, *read[1:]))
        conditions = [found for size in sizes for found in self._of_size(size)]
        for size in sizes:
            conditions += self._derived(size)
        for guard in guards:
            if guard.free_symbols and guard.free_symbols <= self._readers.keys():
                divisors = [divisor for divisor in _divisors(guard) if divisor.free_symbols]
                conditions += [self._condition(sympy.Ne(divisor, 0), found="") for divisor in divisors]
                conditions.append(self._condition(guard, found=""))
        self.conditions = list(dict.fromkeys(conditions))
        self.check_leaves = self._compiled()

    def __deepcopy__(self, memo: Any) -> InputContract:
        """Itself: it is immutable, and a copy of its fake tensors would copy their whole trace."""
        return self

    def check(self, leaves: Sequence[Any]) -> None:
        """Raises InputMismatch for the first leaf that does not fit. If a size is symbolic, its conditions become guards."""
        self.check_leaves(*leaves)

    # ---------------------------------------------------------------------------------------------- conditions on sizes

    def _of_size(self, size: _Size) -> list[_Condition]:
        """A fixed size is a number. A size that is a symbol is in its range, and equals the size that the symbol is read from."""
        if size.expr.is_number:
            return [_compared(size, f"== {size.expr}")]
        reader = self._readers.get(size.expr)
        if reader is not None and reader[0] is not size:
            first = reader[0]
            if size.expr.is_Symbol and first.expr == size.expr:
                return [_compared(size, f"== {first.source}", f"== {first.name}")]
        found = []
        bounds = self._ranges.get(size.expr)
        if bounds is not None and bounds.lower > size.default_lower:
            found.append(_compared(size, f">= {bounds.lower}"))
        if bounds is not None and bounds.upper < math.inf:
            found.append(_compared(size, f"<= {bounds.upper}"))
        return found

    def _derived(self, size: _Size) -> list[_Condition]:
        """A size that is a function of symbols equals an earlier size that is the same function, or else that function; where a
        symbol is read from it, it is divisible."""
        if size.expr.is_Symbol or not size.expr.free_symbols <= self._readers.keys() or size.expr.is_number:
            return []
        first = self._firsts[size.expr]
        if first is not size:
            return [_compared(size, f"== {first.source}", f"== {first.name}")]
        read = linear(size.expr)
        mine = sympy.Symbol(size.name, integer=True)
        if read is not None and self._readers[read[0]][0] is size:
            symbol, scale, offset = read
            found = [] if scale == 1 else [_compared_modulo(size, scale, offset)]
            bounds = self._ranges.get(symbol)
            whole = self._ranges.get(size.expr)
            if bounds is not None and whole is None and bounds.lower > size.default_lower:
                found.append(_compared(size, f">= {scale * bounds.lower + offset}"))
            if bounds is not None and whole is None and bounds.upper < math.inf:
                found.append(_compared(size, f"<= {scale * bounds.upper + offset}"))
            return found
        if read is not None and read[1] == 1:
            symbol, _, offset = read
            _, scale, shift = self._readers[symbol]
            if scale == 1 and not shift:
                return [self._condition(sympy.Eq(symbol, mine - offset), found=size.source, given={mine: size})]
        return [self._condition(sympy.Eq(size.expr, mine), found=size.source, given={mine: size})]

    def _condition(self, expr: Any, *, found: str, given: Mapping[Any, _Size] | None = None) -> _Condition:
        """The condition, with symbols as the sizes that they are read from."""
        direct = {symbol: size for symbol, (size, scale, offset) in self._readers.items() if scale == 1 and not offset}
        known = {**direct, **(given or {})}
        # A symbol that is read from `symbol + 2` is that size minus 2: sympy then simplifies the sum.
        shifted = {
            symbol: sympy.Symbol(size.name, integer=True) - offset
            for symbol, (size, scale, offset) in self._readers.items()
            if scale == 1 and offset
        }
        if shifted.keys() & expr.free_symbols:
            expr = expr.subs(shifted)
            known |= {sympy.Symbol(self._readers[s][0].name, integer=True): self._readers[s][0] for s in shifted}

        def source_of(symbol: Any) -> str:
            return known[symbol].source if symbol in known else self._divided(symbol, "source")

        def text_of(symbol: Any) -> str:
            return known[symbol].name if symbol in known else self._divided(symbol, "name")

        text = str(_ConditionText(text_of).doprint(expr)).replace("\n", "")
        return _Condition(
            source=python_source(expr, source_of), text=ast.unparse(ast.parse(text, mode="eval")), found=found
        )

    def _divided(self, symbol: Any, attribute: str) -> str:
        size, scale, offset = self._readers[symbol]
        return f"(({getattr(size, attribute)} - {offset}) // {scale})"

    # ------------------------------------------------------------------------------------------------------- the check

    def _compiled(self) -> Callable[..., None]:
        """The check as a function of the leaves. Its body is plain Python, which any tracer can run."""
        lines = [f"def check(*args):\n  assert len(args) == {len(self._names)}, 'number of inputs'"]
        lines += [f"  require_kind({name!r}, expected[{i}], args[{i}])" for i, name in enumerate(self._names)]
        for found in self.conditions:
            lines.append(f"  require({found.source}, {f'Guard failed: {found.text}'!r}, {found.found or None})")
        if self._written:
            lines.append("  require_memory(args)")
        names: dict[str, Any] = {
            **PRINTED_NAMES,
            "max": partial(_folded, torch.sym_max),
            "min": partial(_folded, torch.sym_min),
            "require": require,
            "require_kind": require_kind,
            "require_memory": self._check_memory,
            "expected": [_kind_of(value) for value in self._values],
        }
        exec(compile("\n".join(lines), "<conditions on inputs>", "exec"), names)
        return names["check"]

    def _check_memory(self, leaves: Sequence[Any]) -> None:
        if is_exporting():
            return
        owners: dict[int, int] = {}
        for index, leaf in enumerate(leaves):
            for part in dense_parts(leaf):
                if not isinstance(part, torch.Tensor) or part.layout is not torch.strided or not part.numel():
                    continue
                other = owners.setdefault(storage_key(part), index)
                if other != index and {other, index} & set(self._written):
                    raise InputMismatch(
                        seen=f"{self._names[other]} and {self._names[index]} share memory, and the program writes to one of them",
                        expected="inputs that share no memory, as a functional graph needs",
                    )


class GuardsFn(torch.nn.Module):
    """The submodule `_guards_fn` of an exported program's module: checks the leaves of the inputs, returns nothing."""

    def __init__(self, contract: InputContract) -> None:
        super().__init__()
        self.check = contract.check_leaves
        self._is_impure = True  # a node that calls it has no users, and stays

    def forward(self, *args: Any) -> None:
        """Raises InputMismatch for the first leaf that does not fit."""
        self.check(*args)


def _divisors(condition: Any) -> list[Any]:
    """What the condition divides by, innermost first: a size for which one is 0 is outside of the guards."""
    inner = [divisor for argument in condition.args for divisor in _divisors(argument)]
    return [*inner, condition.args[1]] if isinstance(condition, (FloorDiv, PythonMod)) else inner


def _compared(size: _Size, source: str, text: str | None = None) -> _Condition:
    return _Condition(source=f"{size.source} {source}", text=f"{size.name} {text or source}", found=size.source)


def _compared_modulo(size: _Size, scale: int, offset: int) -> _Condition:
    def printed(name: str) -> str:
        return f"({name} - {offset}) % {scale} == 0" if offset else f"{name} % {scale} == 0"

    return _Condition(source=printed(size.source), text=printed(size.name), found=size.source)


def _sizes(leaf: int, name: str, value: Any) -> list[_Size]:
    if isinstance(value, torch.SymInt):
        return [_Size(leaf=leaf, dim=None, name=name, expr=value.node.expr)]
    if not isinstance(value, torch.Tensor):
        return []
    return [
        _Size(leaf=leaf, dim=dim, name=f"{name}.size()[{dim}]", expr=sympy.sympify(getattr(getattr(s, "node", s), "expr", s)))
        for dim, s in enumerate(value.shape)
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------ called by the generated function


def _folded(function: Callable[[Any, Any], Any], *values: Any) -> Any:
    """A function of two values applied to all of them: sympy joins nested `Max` into one of many arguments."""
    return reduce(function, values)


def require(condition: Any, message: str, found: Any = None) -> None:
    """Raises InputMismatch if the condition does not hold. A condition that a tracer stands in for becomes an assertion."""
    if isinstance(condition, fx.Proxy):
        assert_in_graph(condition, message)
    elif not condition:
        seen = message if found is None else f"{message}; it is {found}"
        raise InputMismatch(seen=seen, expected="an input the program was exported for")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What a leaf must be, besides its sizes."""

    type: type[Any]
    dtype: torch.dtype | None = None
    ndim: int = 0
    constant: Any = None
    wrapper: torch.Tensor | None = None
    """The fake of a wrapper subclass; its dense tensors must fit too."""


def _kind_of(value: Any) -> _Kind | None:
    if isinstance(value, torch.Tensor):
        is_wrapper = is_traceable_wrapper_subclass(value)
        return _Kind(type=torch.Tensor, dtype=value.dtype, ndim=value.dim(), wrapper=value if is_wrapper else None)
    if isinstance(value, torch.SymInt):
        return _Kind(type=torch.SymInt)
    if is_opaque_object(value):
        return _Kind(type=type(value), constant=class_name(value))
    return _Kind(type=type(value), constant=value) if isinstance(value, INPUT_CONSTANT_TYPES) else None


def require_kind(name: str, expected: _Kind | None, leaf: Any) -> None:
    """Raises InputMismatch for a leaf of another type, dtype or number of dimensions, or another constant."""
    if expected is None or isinstance(leaf, fx.Proxy):
        return
    if expected.type is torch.Tensor:
        if not isinstance(leaf, torch.Tensor):
            raise InputMismatch(seen=f"Expected input {name} to be a tensor, but got {type(leaf)}", expected="a tensor")
        if leaf.dim() != expected.ndim:
            raise InputMismatch(
                seen=f"Guard failed: len({name}.size()) == {expected.ndim}; the shape is {tuple(leaf.shape)}",
                expected=f"{expected.ndim} dimensions",
            )
        if leaf.dtype != expected.dtype:
            raise InputMismatch(
                seen=f"Guard failed: {name}.dtype == {expected.dtype}; it is {leaf.dtype}. Tensor dtype mismatch!",
                expected=str(expected.dtype),
            )
        if expected.wrapper is not None and not is_exporting():
            _require_parts(name, expected.wrapper, leaf)
    elif expected.type is torch.SymInt:
        if not isinstance(leaf, (int, torch.SymInt)):
            raise InputMismatch(seen=f"Expected input {name} to be an int, but got {type(leaf)}", expected="an int")
    elif issubclass(expected.type, INPUT_CONSTANT_TYPES):
        if not _is_same(expected.constant, leaf):
            raise InputMismatch(
                seen=f"Guard failed: {name} == {expected.constant!r}; it is {leaf!r}", expected=repr(expected.constant)
            )
    elif class_name(leaf) != expected.constant:
        raise InputMismatch(
            seen=f"Expected input {name} to be a {expected.constant}, but got {class_name(leaf)}",
            expected=expected.constant,
        )


def _require_parts(name: str, expected: torch.Tensor, leaf: torch.Tensor) -> None:
    """Raises InputMismatch for a leaf of another class than a wrapper's, with another context or other dense tensors."""
    try:
        check_layout(leaf, layout_of(expected), f"the input {name}")
    except UnexpectedSubclass as error:
        raise InputMismatch(
            seen=str(error).partition("\n")[0], expected=f"a {type(expected).__name__} like the example"
        ) from error
    for mine, given in zip(dense_parts(expected), dense_parts(leaf), strict=True):
        if isinstance(mine, torch.Tensor) and (mine.dtype, mine.shape) != (given.dtype, given.shape):
            raise InputMismatch(
                seen=f"the input {name} has inside a tensor of {given.dtype} and shape {tuple(given.shape)}",
                expected=f"one of {mine.dtype} and shape {tuple(mine.shape)}",
            )


def _is_same(expected: Any, leaf: Any) -> bool:
    if isinstance(expected, float) and isinstance(leaf, float) and math.isnan(expected):
        return math.isnan(leaf)
    is_symbolic = type(expected) is int and isinstance(leaf, torch.SymInt)
    return (is_symbolic or type(expected) is type(leaf)) and bool(expected == leaf)
