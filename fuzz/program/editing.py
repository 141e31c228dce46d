"""Edits of a structured program that several passes use: replace statements, rename values, add and drop arguments.

A path is the position of a statement: `(2,)`, or in a block `(2, "body", 0)`. Every function returns a new program.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from typing_extensions import assert_never

from fuzz.program.render import with_names
from fuzz.program.structure import (
    Block,
    FuzzProgram,
    Lines,
    OpCall,
    Statement,
    names_in,
    renamed,
    walk,
)
from oracle.program import Call

Path: TypeAlias = tuple[Any, ...]
Edit: TypeAlias = Callable[[FuzzProgram], "FuzzProgram | None"]  # None: the edit does not apply

# ------------------------------------------------------------------------------------------------------------ statements


def paths(statements: Sequence[Statement], prefix: Path = ()) -> Iterator[tuple[Path, Statement]]:
    """Every statement with its path, a block before its body."""
    for position, statement in enumerate(statements):
        path = (*prefix, position)
        yield path, statement
        if isinstance(statement, Block):
            yield from paths(statement.body, (*path, "body"))
            yield from paths(statement.orelse, (*path, "orelse"))


def statement_at(program: FuzzProgram, path: Path) -> Statement | None:
    """The statement at a path, or None."""
    found = [statement for at, statement in paths(program.statements) if at == path]
    return found[0] if found else None


def exchanged(program: FuzzProgram, path: Path, instead: Sequence[Statement]) -> FuzzProgram:
    """The program with one statement replaced by others."""
    return replace(program, statements=_exchanged(program.statements, path, tuple(instead)))


def _exchanged(statements: tuple[Statement, ...], path: Path, instead: tuple[Statement, ...]) -> tuple[Statement, ...]:
    position = path[0]
    if len(path) == 1:
        return (*statements[:position], *instead, *statements[position + 1 :])
    block = statements[position]
    assert isinstance(block, Block), f"path {path} leads into {block}"
    inner = _exchanged(getattr(block, path[1]), path[2:], instead)
    changed = replace(block, body=inner) if path[1] == "body" else replace(block, orelse=inner)
    return (*statements[:position], changed, *statements[position + 1 :])


def uses_of(statement: Statement) -> set[str]:
    """The values that a statement reads, including the statements in a block."""
    used = set(statement.uses)
    if isinstance(statement, Block):
        for inner in (*statement.body, *statement.orelse):
            used |= uses_of(inner)
    elif isinstance(statement, OpCall) and statement.target.startswith("self."):
        used.add(statement.target)
    return used


def used_names(program: FuzzProgram) -> set[str]:
    """All values that the function's statements and its result read."""
    used = set(names_in(program.result))
    for statement in program.statements:
        used |= uses_of(statement)
    return used


def defined_names(statements: Sequence[Statement]) -> list[str]:
    """The names that statements bind, in order."""
    return list(dict.fromkeys(name for statement in statements for name in statement.results))


def with_renamed(program: FuzzProgram, names: Mapping[str, str]) -> FuzzProgram:
    """Rename values everywhere in the function and in `derive`."""
    return replace(
        program,
        arguments=tuple(names.get(name, name) for name in program.arguments),
        inputs=tuple(names.get(name, name) for name in program.inputs),
        derive=tuple(renamed_statement(s, names) for s in program.derive),
        statements=tuple(renamed_statement(s, names) for s in program.statements),
        result=renamed(program.result, names),
    )


def renamed_statement(statement: Statement, names: Mapping[str, str]) -> Statement:
    """A statement with renamed values."""

    def of(many: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(names.get(name, name) for name in many))

    braced = {old: f"{{{new}}}" for old, new in names.items()}
    match statement:
        case OpCall():
            return replace(
                statement,
                args=tuple(renamed(arg, names) for arg in statement.args),
                kwargs=tuple((key, renamed(arg, names)) for key, arg in statement.kwargs),
                results=tuple(names.get(name, name) for name in statement.results),
            )
        case Lines():
            return replace(
                statement,
                text=_rebraced(statement.text, braced),
                uses=of(statement.uses),
                results=of(statement.results),
            )
        case Block():
            return replace(
                statement,
                header=_rebraced(statement.header, braced),
                orelse_header=_rebraced(statement.orelse_header, braced),
                body=tuple(renamed_statement(s, names) for s in statement.body),
                orelse=tuple(renamed_statement(s, names) for s in statement.orelse),
                uses=of(statement.uses),
            )
    assert_never(statement)


_BRACED = re.compile(r"\{([A-Za-z_][\w.]*)\}")


def _rebraced(text: str, braced: Mapping[str, str]) -> str:
    """Text with `{old}` replaced by `{new}`."""
    return _BRACED.sub(lambda match: braced.get(match[1], match[0]), text)


# ------------------------------------------------------------------------------------------------------------- arguments


def input_names(program: FuzzProgram) -> tuple[str, ...]:
    """Names of the inputs in the calls' `args`, in order."""
    return program.inputs if program.derive else program.arguments


def specs_of(program: FuzzProgram, name: str) -> list[Any]:
    """The spec of an input in every call."""
    position = input_names(program).index(name)
    return [call.args[position] for call in program.calls]


def with_specs(program: FuzzProgram, name: str, specs: Sequence[Any]) -> FuzzProgram:
    """The program with other specs of an input, one for each call."""
    position = input_names(program).index(name)
    calls = tuple(
        replace(call, args=[*call.args[:position], spec, *call.args[position + 1 :]])
        for call, spec in zip(program.calls, specs, strict=True)
    )
    return replace(program, calls=calls)


def add_argument(program: FuzzProgram, name: str, specs: Sequence[Any]) -> FuzzProgram:
    """A new last argument, with a spec for each call."""
    calls = tuple(
        replace(call, args=[*(call.args or []), spec]) for call, spec in zip(program.calls, specs, strict=True)
    )
    program = replace(program, arguments=(*program.arguments, name), calls=calls)
    return replace(program, inputs=(*program.inputs, name)) if program.derive else program


def drop_arguments(program: FuzzProgram, dropped: set[str]) -> FuzzProgram:
    """Drop these arguments, and inputs that `derive` no longer needs."""
    arguments = tuple(name for name in program.arguments if name not in dropped)
    if not program.derive:
        return _drop_inputs(replace(program, arguments=arguments), program.arguments, dropped)
    needed = set(arguments)
    derive: list[Statement] = []
    for statement in reversed(program.derive):
        if needed & set(statement.results) or not statement.results:
            needed |= uses_of(statement)
            derive.insert(0, statement)
    unneeded = {name for name in program.inputs if name not in needed}
    slim = replace(program, arguments=arguments, derive=tuple(derive))
    if not derive:
        # the remaining inputs are arguments, in the order of the arguments
        order = [program.inputs.index(name) for name in arguments]
        calls = tuple(replace(call, args=[call.args[i] for i in order]) for call in program.calls)
        return replace(slim, inputs=(), calls=calls)
    slim = _drop_inputs(slim, program.inputs, unneeded)
    return replace(slim, inputs=tuple(name for name in program.inputs if name not in unneeded))


def _drop_inputs(program: FuzzProgram, names: Sequence[str], dropped: set[str]) -> FuzzProgram:
    kept = [position for position, name in enumerate(names) if name not in dropped]
    calls = tuple(replace(call, args=_kept_specs(call, kept)) for call in program.calls)
    return replace(program, calls=calls)


def _kept_specs(call: Call, kept: Sequence[int]) -> list[Any]:
    """The specs at these positions. If a dropped spec is referred to as `same`, the first such reference becomes the spec."""
    specs = [call.args[position] for position in kept]
    held = {
        spec["id"]: spec for spec in call.args if isinstance(spec, dict) and "id" in spec and spec.get("$") != "same"
    }
    said = {spec["id"] for spec in specs if isinstance(spec, dict) and "id" in spec and spec.get("$") != "same"}
    for position, spec in enumerate(specs):
        if isinstance(spec, dict) and spec.get("$") == "same" and spec["id"] not in said and spec["id"] in held:
            specs[position] = held[spec["id"]]
            said.add(spec["id"])
    return specs


def unused_arguments(program: FuzzProgram) -> set[str]:
    """Arguments that are not read and share no memory with others."""
    used = used_names(program) | {name for statement in program.statements for name in statement.results}
    return {name for name in program.arguments if name not in used and not _is_shared(program, name)}


def _is_shared(program: FuzzProgram, name: str) -> bool:
    return name in input_names(program) and any(
        isinstance(spec, dict) and ("storage" in spec or spec.get("$") == "same" or "id" in spec)
        for spec in specs_of(program, name)
    )


def tidied(program: FuzzProgram) -> FuzzProgram:
    """The program without unused arguments."""
    unused = unused_arguments(program)
    return drop_arguments(program, unused) if unused else program


def fresh_name(program: FuzzProgram, prefix: str) -> str:
    """An unused name with this prefix."""
    taken = {*program.arguments, *program.inputs, *defined_names(tuple(walk(program.statements)))}
    number = 0
    while f"{prefix}{number}" in taken:
        number += 1
    return f"{prefix}{number}"


def plain_text(lines: Lines) -> str:
    """The text of `Lines` as it is rendered."""
    return with_names(lines.text)
