"""Passes that turn text into structure: several lines into single ones, compound ones into blocks, expressions into operations.

Statements that the grammar writes as text (`Lines`) can then be dropped and unwrapped like others. These steps do not change the
meaning, but a compiler may treat the program differently, so each is tried like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from fuzz.program.editing import (
    Edit,
    exchanged,
    paths,
    renamed_statement,
    statement_at,
    tidied,
)
from fuzz.program.inlining import as_structure, body_in_place
from fuzz.program.structure import (
    Block,
    FuzzProgram,
    Lines,
    OpCall,
    Statement,
    renamed,
)
from fuzz.reduce.search import SearchState


def split_lines(state: SearchState) -> None:
    """Split text into single statements: compound ones become blocks, simple calls operations."""
    state.accept_edits([_replacing(path, as_structure) for path in _text_paths(state.current)])


def inline_helpers(state: SearchState) -> None:
    """Inline a helper function."""
    for path, statement in reversed([*paths(state.current.statements)]):
        if isinstance(statement, OpCall):
            helper = next((d for d in state.current.definitions if d.name == statement.target), None)
            body = body_in_place(statement, helper, state.current) if helper is not None else None
            if body is not None:
                state.accept(tidied(exchanged(state.current, path, body)))


def unroll_loops(state: SearchState) -> None:
    """Replace a counting loop by one copy of its body, with the counter at 0."""
    for path, statement in reversed([*paths(state.current.statements)]):
        found = re.match(r"for (\w+) in range\(", statement.header) if isinstance(statement, Block) else None
        if found is not None and isinstance(statement, Block):
            counter = Lines(text=f"{found[1]} = 0", results=(found[1],))
            state.accept(tidied(exchanged(state.current, path, [counter, *statement.body])))


def _text_paths(program: FuzzProgram) -> list[tuple[object, ...]]:
    found = [path for path, statement in paths(program.statements) if isinstance(statement, Lines)]
    return sorted(found, key=str, reverse=True)


def _replacing(path: tuple[object, ...], change: Callable[[Lines, FuzzProgram], tuple[Statement, ...] | None]) -> Edit:
    def edit(program: FuzzProgram) -> FuzzProgram | None:
        statement = statement_at(program, path)
        instead = change(statement, program) if isinstance(statement, Lines) else None
        return exchanged(program, path, instead) if instead else None

    return edit


def propagate_copies(state: SearchState) -> None:
    """Drop `v1 = v0`, and use v0 in place of v1."""
    for position in reversed(range(len(state.current.statements))):
        statement = state.current.statements[position]
        if not isinstance(statement, Lines):
            continue
        found = re.fullmatch(r"\{([\w.]+)\} = \{([\w.]+)\}", statement.text.strip())
        if found is not None:
            state.accept(_without_copy(state.current, position, found[1], found[2]))


def _without_copy(program: FuzzProgram, position: int, copy: str, original: str) -> FuzzProgram:
    rest = exchanged(program, (position,), ()).statements
    names = {copy: original}
    statements = tuple(renamed_statement(statement, names) for statement in rest)
    return tidied(replace(program, statements=statements, result=renamed(program.result, names)))
