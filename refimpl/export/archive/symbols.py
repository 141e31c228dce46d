"""Records of a program's symbols and the facts about them, from which a ShapeEnv is built again.

Counterpart: torch/_export/serde/serialize.py serialize_sym_int, symbol_name_to_symbol of GraphModuleDeserializer
Differs: facts that were learnt while tracing are kept too. Sources are not, since they are Python text.
"""

from __future__ import annotations

import math
from typing import Any

import sympy
import torch

from refimpl.export.archive.errors import ArchiveError, field, identifier, optional, strings, typed
from refimpl.export.archive.expressions import to_expression, to_text
from refimpl.symbolic.functions import to_number
from refimpl.symbolic.guards import RuntimeAssert, ShapeGuard
from refimpl.symbolic.ranges import EmptyRange, Range
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.symbolic.stacks import Stack
from refimpl.symbolic.sym_node import SymNode

_PYTHON_TYPES: dict[str, type] = {"int": int, "float": float, "bool": bool}
_COUNTERS = {
    "zf": "_float_counter",
    "u": "unbacked_symint_counter",
    "zuf": "unbacked_symfloat_counter",
}
_INFINITIES = {"inf": math.inf, "-inf": -math.inf}


class SymbolWriter:
    """Writes expressions, and collects their symbols."""

    def __init__(self, env: ShapeEnv | None) -> None:
        self.env = env
        self._symbols: dict[str, Any] = {}
        self._texts: dict[Any, str] = {}

    def expression(self, expr: Any) -> str:
        """The text of an expression. Raises ArchiveError for one that the grammar lacks."""
        found = self._texts.get(expr)
        if found is None:
            for symbol in expr.free_symbols:
                self._declare(symbol)
            found = self._texts[expr] = to_text(expr)
        return found

    def _declare(self, symbol: Any) -> None:
        known = self._symbols.setdefault(str(symbol), symbol)
        if known != symbol:
            raise ArchiveError(seen=f"two symbols named {symbol}", expected="one", do="export the program again")
        if symbol != _made(str(symbol), _assumption(symbol)):
            raise ArchiveError(
                seen=f"the symbol {symbol} with the assumptions {symbol.assumptions0}",
                expected="a number, integer, positive or not negative",
                do="export the program with refimpl.export",
            )

    def number(self, value: Any) -> Any:
        """A number without symbols, also a SymInt that a guard made constant, as an int; others as their expression in text."""
        if isinstance(value, int):
            return value
        expr = value.node.expr
        return int(expr) if isinstance(expr, sympy.Integer) else self.expression(expr)

    def symbolic(self, value: Any) -> dict[str, Any]:
        """A SymInt, SymFloat or SymBool with its type."""
        self._check_environment(value.node.shape_env)
        return {"sym": self.expression(value.node.expr), "type": value.node.pytype.__name__}

    def _check_environment(self, env: Any) -> None:
        if self.env is None:
            self.env = env
        if env is not self.env:
            raise ArchiveError(
                seen="symbols of two ShapeEnvs in one program", expected="one", do="export the program again"
            )

    def record(self) -> dict[str, Any]:
        """All written symbols with their ranges, hints and replacements, and the guards and runtime asserts."""
        env = self.env
        if env is None:
            return {"symbols": [], "replacements": [], "guards": [], "asserts": []}
        guards = self._texts_of(env, [guard.expr for guard in env.guards])
        conditions = [condition for group in env.deferred_runtime_asserts.values() for condition in group]
        asserts = self._texts_of(env, [condition.expr for condition in conditions])
        replacements: list[Any] = []
        done: set[str] = set()
        while len(done) < len(self._symbols):  # replacements may contain further symbols
            for name, symbol in list(self._symbols.items()):
                if name not in done and symbol in env.replacements:
                    replacements.append([name, self.expression(env.replacements[symbol])])
                done.add(name)
        ordered = sorted(self._symbols.values(), key=lambda s: (env._order.get(s, len(env._order)), str(s)))
        return {
            "symbols": [_symbol_record(env, symbol) for symbol in ordered],
            "replacements": replacements,
            "guards": guards,
            "asserts": asserts,
        }

    def _texts_of(self, env: ShapeEnv, conditions: list[Any]) -> list[str]:
        """The texts of the conditions whose symbols all occur in the program."""
        found = [env.replace(condition) for condition in conditions]
        ours = [c for c in found if c.free_symbols and all(str(s) in self._symbols for s in c.free_symbols)]
        return list(dict.fromkeys(self.expression(condition) for condition in ours))


def _symbol_record(env: ShapeEnv, symbol: Any) -> dict[str, Any]:
    value = env.backed_var_to_val.get(symbol)
    hint = None if value is None else to_number(value)
    return {
        "name": str(symbol),
        "assumes": _assumption(symbol),
        "range": range_record(env.facts.range_of(symbol)),
        "hint": hint.hex() if isinstance(hint, float) else hint,
        "unbacked": symbol in env.unbacked,
        "size_like": symbol in env.facts.size_like,
    }


def _assumption(symbol: Any) -> str:
    if not symbol.is_integer:
        return "number"
    return "positive" if symbol.is_positive else "nonnegative" if symbol.is_nonnegative else "integer"


def _made(name: str, assumed: str) -> Any:
    kinds: dict[str, dict[str, bool]] = {
        "number": {},
        "integer": {"integer": True},
        "positive": {"integer": True, "positive": True},
        "nonnegative": {"integer": True, "nonnegative": True},
    }
    if assumed not in kinds:
        raise ArchiveError(seen=f"the symbol {name} is assumed to be {assumed!r}", expected=f"one of {list(kinds)}")
    return sympy.Symbol(name, **kinds[assumed])


def range_record(found: Range) -> list[Any]:
    """Both bounds; infinite ones as text."""
    return [str(b) if isinstance(b, float) and math.isinf(b) else b for b in (found.lower, found.upper)]


def to_range(record: Any, where: str) -> Range:
    """The range of a record. Raises ArchiveError for an empty range, or for bounds that are no numbers."""
    bounds = typed(record, list, where)
    if len(bounds) != 2:
        raise ArchiveError(seen=f"{where} has {len(bounds)} bounds", expected="two")
    found: list[Any] = [_INFINITIES.get(bound, bound) if isinstance(bound, str) else bound for bound in bounds]
    if any(isinstance(b, bool) or not isinstance(b, (int, float)) or b != b for b in found):
        raise ArchiveError(seen=f"{where} is {bounds}", expected="two numbers, 'inf' or '-inf'")
    try:
        return Range(found[0], found[1])
    except EmptyRange as error:
        raise ArchiveError(seen=f"{where}: {error}", expected="a lower bound that is not above the upper") from error


class SymbolReader:
    """Builds a ShapeEnv from a record, and reads expressions and symbolic numbers."""

    def __init__(self, record: Any, env: ShapeEnv | None = None) -> None:
        """With an environment, expressions are of its symbols, and the record declares none. Raises ArchiveError."""
        self.env = env or ShapeEnv()
        self.symbols: dict[str, Any] = {str(symbol): symbol for symbol in self.env.facts.ranges}
        for position, each in enumerate(field(record, "symbols", list, "symbols")):
            self._declare(each, f"symbols[{position}]")
        try:
            for pair in field(record, "replacements", list, "symbols"):
                name, text = typed(pair, list, "symbols.replacements")
                self.env.set_replacement(self.symbol(name), self.expression(text))
            self._learn(strings(record, "guards", "symbols"), strings(record, "asserts", "symbols"))
        except EmptyRange as error:
            raise ArchiveError(
                seen=f"what is known of the symbols excludes each other: {error}", expected="facts that agree"
            ) from error

    def _declare(self, record: Any, where: str) -> None:
        name = identifier(field(record, "name", str, where), where)
        if name in self.symbols:
            raise ArchiveError(seen=f"the symbol {name} is declared twice", expected="once")
        env = self.env
        symbol = self.symbols[name] = _made(name, field(record, "assumes", str, where))
        env._register(symbol, to_range(field(record, "range", list, where), f"{where}.range"))
        hint: Any = record.get("hint")
        if isinstance(hint, str):
            hint = float.fromhex(hint)
        if hint is not None:
            if not isinstance(hint, (int, float)) or isinstance(hint, bool):
                raise ArchiveError(seen=f"{where}.hint is {hint!r}", expected="a number or null")
            env.backed_var_to_val[symbol] = sympy.Float(hint) if isinstance(hint, float) else sympy.Integer(hint)
            env._values[symbol] = hint
        if optional(record, "unbacked", bool, where):
            env.unbacked[symbol] = len(env.unbacked)
        if optional(record, "size_like", bool, where):
            env.facts.size_like.add(symbol)
        letters = name.rstrip("0123456789")
        counter, number = _COUNTERS.get(letters), name[len(letters) :]
        if letters == "s" and number:  # new symbols must have new names
            env.symbol_numbers.add(int(number[:9]))
        elif counter is not None and number:
            setattr(env, counter, max(getattr(env, counter), int(number[:9]) + 1))

    def _learn(self, guards: list[str], asserts: list[str]) -> None:
        env, nowhere = self.env, Stack([])
        for text in guards:
            env.guards.append(ShapeGuard(self.expression(text), nowhere))
            env.learn(env.guards[-1].expr)
        for text in asserts:
            condition = self.expression(text)
            newest = max(
                (s for s in condition.free_symbols if s in env.unbacked), key=env.unbacked.__getitem__, default=None
            )
            env.deferred_runtime_asserts.setdefault(newest, []).append(RuntimeAssert(condition, "", nowhere))
            env.num_deferred_runtime_asserts += 1
            env.learn(condition)

    def symbol(self, name: Any) -> Any:
        """A declared symbol. Raises ArchiveError for others."""
        if not isinstance(name, str) or name not in self.symbols:
            raise ArchiveError(seen=f"the symbol {name!r}", expected=f"a declared one: {sorted(self.symbols)}")
        return self.symbols[name]

    def expression(self, text: Any) -> Any:
        """Parse an expression. Raises ArchiveError."""
        return to_expression(typed(text, str, "a symbolic expression"), self.symbols)

    def number(self, record: Any) -> Any:
        """An int, or a SymInt of an expression."""
        if isinstance(record, int) and not isinstance(record, bool):
            return record
        return torch.SymInt(SymNode(self.expression(record), self.env, int))

    def symbolic(self, record: Any, where: str) -> Any:
        """A SymInt, SymFloat or SymBool."""
        kind = _PYTHON_TYPES.get(field(record, "type", str, where))
        node = SymNode(self.expression(field(record, "sym", str, where)), self.env, kind or int)
        if kind is int:
            return torch.SymInt(node)
        if kind is float:
            return torch.SymFloat(node)
        if kind is bool:
            return torch.SymBool(node)
        raise ArchiveError(seen=f"{where}.type is {record['type']!r}", expected=f"one of {sorted(_PYTHON_TYPES)}")
