"""Passes that turn text into structure: several lines into single ones, compound ones into blocks, expressions into operations.

What the grammar writes as text (`Lines`) can then be dropped, cut and unwrapped as everything else. These steps change no
meaning, but a compiler may see another program: each is tried like any other.
"""

from __future__ import annotations

import ast
import copy
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
from fuzz.reduce.search import SearchState
from fuzz.render import with_names
from fuzz.structure import (
    Block,
    Definition,
    Expr,
    FuzzProgram,
    Items,
    Lines,
    OpCall,
    Operand,
    Ref,
    Statement,
    renamed,
)

_BINARY: Mapping[type[ast.operator], str] = {
    ast.Add: "operator.add", ast.Sub: "operator.sub", ast.Mult: "operator.mul", ast.Div: "operator.truediv",
    ast.FloorDiv: "operator.floordiv", ast.Mod: "operator.mod", ast.Pow: "operator.pow", ast.MatMult: "operator.matmul",
    ast.BitAnd: "operator.and_", ast.BitOr: "operator.or_", ast.BitXor: "operator.xor",
}  # fmt: skip


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


def _replacing(path: tuple[object, ...], change: Callable[[Lines, FuzzProgram], list[Statement] | None]) -> Edit:
    def edit(program: FuzzProgram) -> FuzzProgram | None:
        statement = statement_at(program, path)
        instead = change(statement, program) if isinstance(statement, Lines) else None
        return exchanged(program, path, instead) if instead else None

    return edit


def _as_structure(lines: Lines, program: FuzzProgram) -> list[Statement] | None:
    """The same as smaller statements; None where the text is one already, or is more than this understands."""
    try:
        tree = ast.parse(textwrap.dedent(plain_text(lines)))
    except SyntaxError:
        return None
    if any(isinstance(node, (ast.JoinedStr, ast.Set)) for node in ast.walk(tree)):  # braces mean something else there
        return None
    values = _Values(lines, program, tree)
    found = [statement for node in tree.body for statement in values.statements(node)]
    return None if found == [lines] else found


class _Values:
    """Which names of a text are values."""

    def __init__(self, lines: Lines, program: FuzzProgram, tree: ast.Module) -> None:
        self._lines = lines
        stored = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        self._names = dict.fromkeys([*lines.uses, *lines.results, *stored])
        self._program = program

    def statements(self, node: ast.stmt) -> list[Statement]:
        operation = self._operation(node)
        if operation is not None:
            return [operation]
        header = self._header(node)
        if header is not None and isinstance(node, (ast.With, ast.If, ast.For, ast.While)):
            body = tuple(s for child in node.body for s in self.statements(child))
            orelse = [] if isinstance(node, ast.With) else node.orelse
            rest = tuple(s for child in orelse for s in self.statements(child))
            uses = self._loaded(ast.parse(with_names(header) + "\n    pass"))
            return [
                Block(header=header, body=body, orelse=rest, uses=uses, definitions=self._lines.definitions),
            ]
        return [self._text(node)]

    def _text(self, node: ast.stmt) -> Lines:
        text = self._braced(ast.unparse(node))
        stored = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        results = tuple(name for name in dict.fromkeys(stored) if name in self._names)
        return Lines(text=text, uses=self._loaded(node), results=results, definitions=self._lines.definitions)

    def _loaded(self, node: ast.AST) -> tuple[str, ...]:
        found = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
        found += [f"self.{n.attr}" for n in ast.walk(node) if _is_self_attribute(n)]  # type: ignore[attr-defined]
        return tuple(name for name in dict.fromkeys(found) if name in self._names)

    def _braced(self, text: str) -> str:
        names = sorted(self._names, key=len, reverse=True)
        if not names:
            return text
        return re.sub(rf"(?<![\w.])({'|'.join(map(re.escape, names))})(?!\w)", r"{\1}", text)

    def _header(self, node: ast.stmt) -> str | None:
        if not isinstance(node, (ast.With, ast.If, ast.For, ast.While)):
            return None
        bare = copy.copy(node)
        bare.body = [ast.Pass()]
        if not isinstance(bare, ast.With):
            bare.orelse = []
        return self._braced(ast.unparse(bare).splitlines()[0])

    def _operation(self, node: ast.stmt) -> OpCall | None:
        """`v = f(x)`, `f(x)`, `v = x.f()`, `v = x + y`; None for anything else."""
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            results, value = (node.targets[0].id,), node.value
        elif isinstance(node, ast.Expr):
            results, value = (), node.value
        else:
            return None
        if isinstance(value, ast.BinOp) and type(value.op) in _BINARY:
            args = (self._operand(value.left), self._operand(value.right))
            return None if _Unknown in args else OpCall(target=_BINARY[type(value.op)], args=args, results=results)
        if not isinstance(value, ast.Call) or any(isinstance(arg, ast.Starred) for arg in value.args):
            return None
        args = tuple(self._operand(arg) for arg in value.args)
        kwargs = tuple((keyword.arg, self._operand(keyword.value)) for keyword in value.keywords)
        target = ast.unparse(value.func)
        if isinstance(value.func, ast.Attribute) and not target.startswith("torch."):
            args, target = (self._operand(value.func.value), *args), f".{value.func.attr}"
        if _Unknown in args or any(key is None or operand is _Unknown for key, operand in kwargs):
            return None
        if not re.fullmatch(r"\.\w+|torch(\.\w+)+|\w+", target) or target in self._names:
            return None
        return OpCall(target=target, args=args, kwargs=tuple((str(k), v) for k, v in kwargs), results=results)

    def _operand(self, node: ast.expr) -> Operand:
        """The operand, or `_Unknown`."""
        if isinstance(node, ast.Name):
            return Ref(node.id) if node.id in self._names else _Unknown
        if _is_self_attribute(node) and f"self.{node.attr}" in self._names:  # type: ignore[attr-defined]
            return Ref(f"self.{node.attr}")  # type: ignore[attr-defined]
        if isinstance(node, (ast.List, ast.Tuple)):
            items = tuple(self._operand(item) for item in node.elts)
            return _Unknown if _Unknown in items else Items(items, "list" if isinstance(node, ast.List) else "tuple")
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError):
            text = ast.unparse(node)
            return Expr(text) if re.fullmatch(r"torch(\.\w+)+", text) else _Unknown
        return value if value is None or isinstance(value, (bool, int, float, complex, str)) else _Unknown


_Unknown = Expr("<not an operand>")


def _is_self_attribute(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


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
    body = [renamer.visit(node) for node in function.body[:-1]]
    body.append(ast.parse(f"{call.results[0]} = 0").body[0])
    body[-1].value = renamer.visit(last.value)  # type: ignore[attr-defined]
    text = "\n".join(ast.unparse(ast.fix_missing_locations(node)) for node in body)
    braced = re.sub(rf"(?<![\w.])({'|'.join(map(re.escape, [*names.values(), *call.results]))})(?!\w)", r"{\1}", text)
    read = tuple(names[parameter] for parameter in parameters)
    made = (*(names[name] for name in sorted(locals_)), *call.results)
    return [*lines, Lines(text=braced, uses=read, results=made, definitions=helper.needs)]


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
