"""Passes that turn text into structure: several lines into single ones, compound ones into blocks, expressions into operations.

What the grammar writes as text (`Lines`) can then be dropped, cut and unwrapped as everything else. These steps change no
meaning, but a compiler may see another program: each is tried like any other.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace

from fuzz.reduce.editing import (
    Edit,
    exchanged,
    fresh_name,
    paths,
    plain_text,
    renamed_statement,
    statement_at,
    tidied,
)
from fuzz.reduce.parsing import statements_of
from fuzz.reduce.search import SearchState
from fuzz.structure import (
    Block,
    Definition,
    Expr,
    FuzzProgram,
    Lines,
    OpCall,
    Operand,
    Ref,
    Statement,
    renamed,
)


def split_lines(state: SearchState) -> None:
    """Text of several statements as several; compound statements as blocks; simple calls as operations."""
    state.accept_edits([_replacing(path, _as_structure) for path in _text_paths(state.current)])


def inline_helpers(state: SearchState) -> None:
    """The body of a helper function in the place of its call."""
    for path, statement in reversed([*paths(state.current.statements)]):
        if isinstance(statement, OpCall):
            helper = next((d for d in state.current.definitions if d.name == statement.target), None)
            body = _inlined(statement, helper, state.current) if helper is not None else None
            if body is not None:
                state.accept(tidied(exchanged(state.current, path, body)))


def inlined(program: FuzzProgram) -> FuzzProgram | None:
    """The program without calls of helper functions; None where it has none that can be inlined."""
    helpers = {definition.name: definition for definition in program.definitions}
    found = program
    for path, statement in reversed([*paths(program.statements)]):
        if isinstance(statement, OpCall) and statement.target in helpers:
            body = _inlined(statement, helpers[statement.target], found)
            found = exchanged(found, path, body) if body is not None else found
    return None if found is program else found


def unroll_loops(state: SearchState) -> None:
    """The body of a counting loop once, with the counter at 0."""
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


def _as_structure(lines: Lines, program: FuzzProgram) -> tuple[Statement, ...] | None:
    """The same as smaller statements; None where the text is one already, or is more than can be read."""
    try:
        found = statements_of(plain_text(lines), [*lines.uses, *lines.results], lines.definitions)
    except SyntaxError:
        return None
    return None if found == (lines,) else found


def _inlined(call: OpCall, helper: Definition, program: FuzzProgram) -> list[Statement] | None:
    """The helper's body on the call's operands, as text; None for helpers of another form."""
    tree = ast.parse(textwrap.dedent(helper.text))
    function = tree.body[0] if len(tree.body) == 1 else None
    if not isinstance(function, ast.FunctionDef) or function.decorator_list or call.kwargs:
        return None
    parameters = [parameter.arg for parameter in function.args.args]
    last = function.body[-1]
    returns = [
        node for node in ast.walk(function) if isinstance(node, (ast.Return, ast.Yield, ast.Nonlocal, ast.Global))
    ]
    if len(parameters) != len(call.args) or returns != [last] or len(call.results) != 1 or last.value is None:  # type: ignore[attr-defined]
        return None
    locals_ = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    names: dict[str, str] = {}
    for name in (*parameters, *sorted(locals_)):
        names.setdefault(name, fresh_name(program, f"h{len(names)}_"))
    renamer = _Renamer(names)
    lines = [
        Lines(text=f"{{{names[parameter]}}} = {_operand_text(arg)}", uses=_names(arg), results=(names[parameter],))
        for parameter, arg in zip(parameters, call.args, strict=True)
    ]
    nodes = [renamer.visit(node) for node in function.body[:-1]]
    nodes.append(ast.parse(f"{call.results[0]} = 0").body[0])
    nodes[-1].value = renamer.visit(last.value)  # type: ignore[attr-defined]
    text = "\n".join(ast.unparse(ast.fix_missing_locations(node)) for node in nodes)
    braced = re.sub(rf"(?<![\w.])({'|'.join(map(re.escape, [*names.values(), *call.results]))})(?!\w)", r"{\1}", text)
    read = tuple(names[parameter] for parameter in parameters)
    made = (*(names[name] for name in sorted(locals_)), *call.results)
    body = Lines(text=braced, uses=read, results=made, definitions=helper.needs)
    return [*lines, *(_as_structure(body, program) or (body,))]


class _Renamer(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(id=self._names.get(node.id, node.id), ctx=node.ctx)


def _operand_text(operand: Operand) -> str:
    if isinstance(operand, Ref):
        return f"{{{operand.name}}}"
    if isinstance(operand, Expr):
        return operand.text
    return repr(operand)


def _names(operand: Operand) -> tuple[str, ...]:
    return (operand.name,) if isinstance(operand, Ref) else ()


def propagate_copies(state: SearchState) -> None:
    """`v1 = v0` gone, its readers reading v0."""
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
