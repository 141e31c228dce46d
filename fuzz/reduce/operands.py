"""Passes over the operands of operations: fewer keywords, shorter lists, numbers for tensors, simpler numbers, other values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from fuzz.program.editing import Edit, defined_names, exchanged, paths, statement_at, tidied
from fuzz.program.structure import Expr, FuzzProgram, Items, OpCall, Operand, Ref
from fuzz.reduce.live import LiveCall
from fuzz.reduce.search import SearchState

_FIXED = ("getitem", "setitem", "getattr", "setattr")


def reduce_keywords(state: SearchState) -> None:
    """Drop keyword arguments, and items of lists."""
    edits: list[Edit] = []
    for path, statement in _calls(state.current):
        edits += [_without_keyword(path, key) for key, _ in statement.kwargs]
    state.accept_edits(edits)
    for path, statement in _calls(state.current):
        for position, arg in enumerate(statement.args):
            if isinstance(arg, Items) and len(arg.items) > 1 and any(isinstance(item, Ref) for item in arg.items):
                state.accept_edits([_without_item(path, position, i) for i in reversed(range(len(arg.items)))])


def reduce_operands(state: SearchState) -> None:
    """Replace a tensor by a number or an earlier value, and a number by a simpler one."""
    live = state.live
    for path, statement in reversed(_calls(state.current)):
        for position, arg in enumerate(statement.args):
            if isinstance(arg, Ref) and (position > 0 or not statement.target.startswith(".")):
                choices = [*_earlier(state.current, path, arg.name, live), 2]
                state.accept_first([_with_operand(state.current, path, position, choice) for choice in choices])
    edits: list[Edit] = []
    for path, statement in _calls(state.current):
        for position, arg in enumerate(statement.args):
            simple = _simpler_number(arg)
            if simple is not None:
                edits.append(_exchanging(path, position, simple))
            if isinstance(arg, Expr) and position == len(statement.args) - 1 and position > 0:
                edits.append(_without_last(path, position))
    state.accept_edits(edits)
    state.accept_edits(
        [
            _exchanging(path, position, 0)
            for path, statement in _calls(state.current)
            for position, arg in enumerate(statement.args)
            if position > 0 and type(arg) is int and arg != 0
        ]
    )


def generalise_operators(state: SearchState) -> None:
    """Replace an operator by the simplest one that still shows the failure.

    So programs that fail for one reason with different operators are reduced to the same program.
    """
    for path, statement in reversed(_calls(state.current)):
        plain = _plainest(statement)
        if plain is not None:
            state.accept(tidied(exchanged(state.current, path, [plain])))


def _plainest(call: OpCall) -> OpCall | None:
    """`neg` of the first tensor, in place if the call is."""
    first = next((arg for arg in call.args if isinstance(arg, Ref)), None)
    if first is None or len(call.results) > 1 or call.target in ("setitem", "getitem", ".neg_", "torch.neg"):
        return None
    last = call.target.rpartition(".")[2]
    is_write = (last.endswith("_") and not last.endswith("__")) or ("inplace", True) in call.kwargs
    if is_write or not call.results:
        return OpCall(target=".neg_", args=(first,), results=call.results)
    return OpCall(target="torch.neg", args=(first,), results=call.results)


def _calls(program: FuzzProgram) -> list[tuple[Any, OpCall]]:
    return [(path, statement) for path, statement in paths(program.statements) if isinstance(statement, OpCall)]


def _earlier(program: FuzzProgram, path: Any, name: str, live: Sequence[LiveCall] | None) -> Iterator[Ref]:
    """Arguments, then earlier results, with the same shape and dtype as this value in every call."""
    if live is None:
        return
    position = path[0]

    def facts(of: str) -> list[Any]:
        found = []
        for number, call in enumerate(live):
            if of in program.arguments and not program.derive:
                spec = program.calls[number].args[program.arguments.index(of)]
            else:
                spec = call.value(of, before=position)
            found.append((spec["shape"], spec["dtype"]) if isinstance(spec, dict) and "shape" in spec else spec)
        return found

    try:
        wanted = facts(name)
    except KeyError:
        return
    written = {name for call in live for name in call.written}
    if name in written:
        return
    candidates = [*program.arguments, *defined_names(program.statements[:position])]
    candidates = [other for other in candidates if other not in written]
    for other in candidates[: candidates.index(name) if name in candidates else None]:
        try:
            if facts(other) == wanted:
                yield Ref(other)
        except KeyError:
            continue


def _with_operand(program: FuzzProgram, path: Any, position: int, operand: Operand) -> FuzzProgram | None:
    statement = statement_at(program, path)
    if not isinstance(statement, OpCall) or position >= len(statement.args) or statement.args[position] == operand:
        return None
    args = (*statement.args[:position], operand, *statement.args[position + 1 :])
    return tidied(exchanged(program, path, [replace(statement, args=args)]))


def _exchanging(path: Any, position: int, operand: Operand) -> Edit:
    return lambda program: _with_operand(program, path, position, operand)


def _without_last(path: Any, position: int) -> Edit:
    def edit(program: FuzzProgram) -> FuzzProgram | None:
        statement = statement_at(program, path)
        if not isinstance(statement, OpCall) or len(statement.args) != position + 1:
            return None
        if statement.target.startswith("operator.") or statement.target in _FIXED:
            return None  # infix operators and indexing have no operand to leave out
        return exchanged(program, path, [replace(statement, args=statement.args[:-1])])

    return edit


def _without_keyword(path: Any, key: str) -> Edit:
    def edit(program: FuzzProgram) -> FuzzProgram | None:
        statement = statement_at(program, path)
        if not isinstance(statement, OpCall):
            return None
        kwargs = tuple((name, value) for name, value in statement.kwargs if name != key)
        return tidied(exchanged(program, path, [replace(statement, kwargs=kwargs)]))

    return edit


def _without_item(path: Any, position: int, item: int) -> Edit:
    def edit(program: FuzzProgram) -> FuzzProgram | None:
        statement = statement_at(program, path)
        if not isinstance(statement, OpCall):
            return None
        items = statement.args[position]
        if not isinstance(items, Items) or len(items.items) < 2 or item >= len(items.items):
            return None
        fewer = replace(items, items=(*items.items[:item], *items.items[item + 1 :]))
        return _with_operand(program, path, position, fewer)

    return edit


def _simpler_number(operand: Operand) -> Operand | None:
    """1 or 2 instead of another number; None if the number is simple."""
    if isinstance(operand, bool) or not isinstance(operand, (int, float, complex)):
        return None
    if isinstance(operand, int):
        return None if abs(operand) <= 2 else 2
    return None if operand in (0.0, 1.0, 2.0, 0.5, -1.0) else 2.0
