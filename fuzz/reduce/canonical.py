"""The canonical form of a structured program, equal for programs that differ only in names. Does not import torch."""

from __future__ import annotations

from dataclasses import replace

from fuzz.program.editing import defined_names, with_renamed
from fuzz.program.render import needed_definitions, needed_state
from fuzz.program.structure import Block, FuzzProgram, Statement, names_in, walk


def canonical(program: FuzzProgram) -> FuzzProgram:
    """Rename values in order of occurrence (inputs i0, arguments a0, results v0), and drop everything that is not needed."""
    slim = replace(program, definitions=needed_definitions(program))
    if slim.state is not None:
        slim = replace(slim, state=needed_state(slim))
    slim = _in_order_of_use(slim)
    names: dict[str, str] = {}
    if slim.derive:
        names.update({name: f"i{number}" for number, name in enumerate(slim.inputs)})
    count = 0
    for name in slim.arguments:
        if name not in names:
            names[name] = f"a{count}"
            count += 1
    results = [name for name in defined_names(_flat(slim.statements)) if name not in names and "." not in name]
    names.update({name: f"v{number}" for number, name in enumerate(results)})
    # rename in two steps by way of unused names, since a new name may be another value's old name
    away = {old: f"{new}_" for old, new in names.items()}
    back = {f"{new}_": new for new in names.values()}
    return with_renamed(with_renamed(slim, away), back)


def _in_order_of_use(program: FuzzProgram) -> FuzzProgram:
    """Sort arguments by their first use, if their order has no meaning."""
    specs = [spec for call in program.calls for spec in call.args or ()]
    if program.derive or any(
        isinstance(s, dict) and ({"id", "storage"} & set(s) or s.get("$") == "same") for s in specs
    ):
        return program
    read = [name for statement in walk(program.statements) for name in statement.uses]
    read += names_in(program.result)
    order = [name for name in dict.fromkeys([*read, *program.arguments]) if name in program.arguments]
    at = [program.arguments.index(name) for name in order]
    calls = tuple(replace(call, args=[call.args[i] for i in at]) if call.args else call for call in program.calls)
    return replace(program, arguments=tuple(order), calls=calls)


def _flat(statements: tuple[Statement, ...]) -> list[Statement]:
    found: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Block):
            found += _flat(statement.body) + _flat(statement.orelse)
        else:
            found.append(statement)
    return found
