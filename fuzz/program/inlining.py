"""Inlines helper functions into a program, as structured statements if their text can be parsed."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping

from fuzz.program.editing import exchanged, fresh_name, paths, plain_text
from fuzz.program.parsing import statements_of
from fuzz.program.structure import Definition, Expr, FuzzProgram, Lines, OpCall, Operand, Ref, Statement


def inlined(program: FuzzProgram) -> FuzzProgram | None:
    """The program with its helper functions inlined; None if it has none that can be."""
    helpers = {definition.name: definition for definition in program.definitions}
    found = program
    for path, statement in reversed([*paths(program.statements)]):
        if isinstance(statement, OpCall) and statement.target in helpers:
            body = body_in_place(statement, helpers[statement.target], found)
            found = exchanged(found, path, body) if body is not None else found
    return None if found is program else found


def body_in_place(call: OpCall, helper: Definition, program: FuzzProgram) -> list[Statement] | None:
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
    return [*lines, *(as_structure(body, program) or (body,))]


def as_structure(lines: Lines, program: FuzzProgram) -> tuple[Statement, ...] | None:
    """The text as several structured statements; None if it is a single one, or cannot be parsed."""
    try:
        found = statements_of(plain_text(lines), [*lines.uses, *lines.results], lines.definitions)
    except SyntaxError:
        return None
    return None if found == (lines,) else found


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
