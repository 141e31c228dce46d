"""Passes over statements: fewer results, a shorter end, a shorter beginning, fewer statements in between.

The value of a dropped statement becomes a new argument, so that any statement can be dropped even if others read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fuzz.program.editing import (
    Edit,
    add_argument,
    defined_names,
    exchanged,
    fresh_name,
    paths,
    renamed_statement,
    tidied,
    used_names,
    uses_of,
)
from fuzz.program.structure import (
    Block,
    Entries,
    FuzzProgram,
    Items,
    OpCall,
    Operand,
    Ref,
    Statement,
    names_in,
    renamed,
)
from fuzz.reduce.live import LiveCall
from fuzz.reduce.search import SearchState

# ------------------------------------------------------------------------------------------------------------- results


def reduce_result(state: SearchState, *, first: int | str | None = None) -> None:
    """Return one value instead of several, or none. `first` is the position or key to try first."""
    while _parts(state.current.result):
        program = state.current
        parts = sorted(_parts(program.result), key=lambda part: part[0] != first)
        alone = [replace(program, result=value) for _, value in parts]
        if not any(state.accept_first([sliced(candidate), tidied(candidate)]) for candidate in alone):
            break
    keys = [key for key, _ in _parts(state.current.result)]
    state.accept_edits([_without_part(key) for key in reversed(keys)])
    state.accept_first([sliced(state.current)])


def _parts(result: Operand) -> list[tuple[int | str, Operand]]:
    """The items of a returned container, by position or key."""
    if isinstance(result, Items):
        return [*enumerate(result.items)]
    return [*result.entries] if isinstance(result, Entries) else []


def drop_result(state: SearchState) -> None:
    """Return nothing, for a symptom that is not in the results."""
    state.accept(replace(state.current, result=None))


def _without_part(key: int | str) -> Edit:
    def edit(program: FuzzProgram) -> FuzzProgram | None:
        kept = [(at, value) for at, value in _parts(program.result) if at != key]
        if isinstance(program.result, Items):
            return replace(program, result=replace(program.result, items=tuple(value for _, value in kept)))
        return replace(program, result=Entries(tuple((str(at), value) for at, value in kept)))

    return edit


def sliced(program: FuzzProgram) -> FuzzProgram:
    """Keep only statements that the result depends on, and writes to values that it depends on."""
    needed = set(names_in(program.result))
    kept: list[Statement] = []
    for statement in reversed(program.statements):
        if needed & (set(statement.results) | _written(statement)):
            kept.insert(0, statement)
            needed |= uses_of(statement)
    return tidied(replace(program, statements=tuple(kept)))


def _written(statement: Statement) -> set[str]:
    """The values that a statement may write to, judged by its text."""
    if isinstance(statement, OpCall):
        is_write = statement.target in ("setitem",) or statement.target.startswith("operator.i")
        is_write |= statement.target.rstrip("_") != statement.target and not statement.target.endswith("__")
        out = {name for key, value in statement.kwargs if key == "out" for name in names_in(value)}
        return out | (set(statement.uses) if is_write or not statement.results else set())
    return uses_of(statement)


# -------------------------------------------------------------------------------------------------- beginning and end


def truncate(state: SearchState) -> None:
    """Return an earlier wrong value: binary search over the end of the program."""
    low, high = 0, len(state.current.statements) - 1
    while low < high:
        middle = (low + high) // 2
        if state.accept(_ending_at(state.current, middle)):
            # unneeded statements were dropped as well, so positions have changed; no candidate is tried twice
            low, high = 0, len(state.current.statements) - 1
        else:
            low = middle + 1


def _ending_at(program: FuzzProgram, position: int) -> FuzzProgram:
    statement = program.statements[position]
    result: Operand = None
    if program.result is not None:
        names = [*statement.results] or [*statement.uses][:1]
        result = Ref(names[0]) if len(names) == 1 else Items(tuple(Ref(name) for name in names), "tuple")
    shorter = replace(program, statements=program.statements[: position + 1], result=result)
    return tidied(shorter) if result is None else sliced(shorter)


def cut_beginning(state: SearchState) -> None:
    """Replace the program's beginning by its values: binary search over the start."""
    low, high = 0, len(state.current.statements) - 1
    dropped = 0  # number of statements dropped from the start
    while low < high:
        middle = (low + high + 1) // 2
        if state.accept(starting_at(state.current, middle - dropped, state.live)):
            low, dropped = middle, middle
        else:
            high = middle - 1


def starting_at(program: FuzzProgram, position: int, live: Sequence[LiveCall] | None) -> FuzzProgram | None:
    """The program without the statements before `position`: their values are arguments. None if one of them cannot be."""
    if live is None or position <= 0:
        return None
    gone, kept = program.statements[:position], program.statements[position:]
    read = set(names_in(program.result)).union(*(uses_of(statement) for statement in kept))
    # arguments that the beginning wrote to have changed, so they get new specs as well
    written = [name for name in program.arguments if any(name in _written(statement) for statement in gone)]
    names = [name for name in dict.fromkeys((*defined_names(gone), *written)) if name in read]
    return with_values(replace(program, statements=kept), names, live, before=position)


def with_values(
    program: FuzzProgram, names: Sequence[str], live: Sequence[LiveCall], *, before: int, keeps_grad: bool = True
) -> FuzzProgram | None:
    """The program with these names as new arguments, with their values when statement `before` began."""
    for name in names:
        try:
            specs = [call.value(name, before=before) for call in live]
        except KeyError:
            return None
        if not keeps_grad:
            specs = [{k: v for k, v in s.items() if k != "requires_grad"} if isinstance(s, dict) else s for s in specs]
        new = fresh_name(program, "c")
        program = replace(
            program,
            statements=tuple(renamed_statement(s, {name: new}) for s in program.statements),
            result=renamed(program.result, {name: new}),
        )
        program = add_argument(program, new, specs)
    return tidied(program)


# ----------------------------------------------------------------------------------------------------------- in between


def drop_statements(state: SearchState) -> None:
    """Drop top-level statements, the last ones first; then those in blocks."""
    live = state.live
    positions = [*reversed(range(len(state.current.statements)))]
    state.accept_edits([_dropping(position, live, keeps_grad=True) for position in positions])
    live = state.live
    positions = [*reversed(range(len(state.current.statements)))]
    state.accept_edits([_dropping(position, live, keeps_grad=False) for position in positions])
    nested = [path for path, _ in paths(state.current.statements) if len(path) > 1]
    state.accept_edits([_dropping_nested(path) for path in sorted(nested, key=_depth_first, reverse=True)])


def _depth_first(path: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(f"{part:04d}" if isinstance(part, int) else part for part in path)


def _dropping(position: int, live: Sequence[LiveCall] | None, *, keeps_grad: bool) -> Edit:
    def edit(program: FuzzProgram) -> FuzzProgram | None:
        statement = program.statements[position]
        without = exchanged(program, (position,), ())
        earlier = {*program.arguments, *defined_names(program.statements[:position])}
        names = [name for name in statement.results if name not in earlier]
        items = [name for name in names_in(without.result) if name in names]
        if items and isinstance(
            without.result, Items
        ):  # a result that only this statement bound is not bound by the others
            kept = tuple(item for item in without.result.items if not set(names_in(item)) & set(items))
            if kept:
                without = replace(without, result=kept[0] if len(kept) == 1 else replace(without.result, items=kept))
        needed = [name for name in names if name in used_names(without)]
        if not needed:
            return tidied(without)
        if live is None:
            return None
        return with_values(without, needed, live, before=position + 1, keeps_grad=keeps_grad)

    return edit


def _dropping_nested(path: tuple[Any, ...]) -> Edit:
    def edit(program: FuzzProgram) -> FuzzProgram | None:
        return tidied(exchanged(program, path, ()))

    return edit


def unwrap_blocks(state: SearchState) -> None:
    """Replace a block by its body, or by its other branch."""
    found = [path for path, statement in paths(state.current.statements) if isinstance(statement, Block)]
    for path in sorted(found, key=_depth_first, reverse=True):
        block = next((s for at, s in paths(state.current.statements) if at == path), None)
        if not isinstance(block, Block):
            continue
        choices = [block.body, block.orelse, (*block.body, *block.orelse)]
        state.accept_first([tidied(exchanged(state.current, path, choice)) for choice in choices if choice])
