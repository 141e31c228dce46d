"""Parses Python text into structured statements: compound statements become blocks, simple calls operations."""

from __future__ import annotations

import ast
import copy
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fuzz.program.render import with_names
from fuzz.program.structure import Block, Expr, FuzzProgram, Items, Lines, OpCall, Operand, Ref, Statement
from oracle.errors import UsageError
from oracle.program import Call

_BINARY: Mapping[type[ast.operator], str] = {
    ast.Add: "operator.add", ast.Sub: "operator.sub", ast.Mult: "operator.mul", ast.Div: "operator.truediv",
    ast.FloorDiv: "operator.floordiv", ast.Mod: "operator.mod", ast.Pow: "operator.pow", ast.MatMult: "operator.matmul",
    ast.BitAnd: "operator.and_", ast.BitOr: "operator.or_", ast.BitXor: "operator.xor",
}  # fmt: skip

UNKNOWN = Expr("<not an operand>")  # returned by `_Reader.operand` for an expression that is no operand


def statements_of(text: str, values: Iterable[str], definitions: tuple[str, ...] = ()) -> tuple[Statement, ...] | None:
    """The statements of a text in which these names, and those it binds, are values.

    None if the text has an f-string or a set, whose braces `Lines` would read as names. Raises SyntaxError.
    """
    tree = ast.parse(textwrap.dedent(text))
    if any(isinstance(node, (ast.JoinedStr, ast.Set)) for node in ast.walk(tree)):
        return None
    reader = _Reader(values, tree, definitions)
    return tuple(statement for node in tree.body for statement in reader.statements(node))


def program_of(source: str, args: Sequence[Any], **fields: Any) -> FuzzProgram:
    """The program of a function's source, `def program(a, b): ... return r`, called once on these specs.

    Raises UsageError for source of another form.
    """
    tree = ast.parse(textwrap.dedent(source))
    function = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "program"), None)
    if function is None or not isinstance(function.body[-1], ast.Return):
        raise UsageError(
            seen="source without a function `program` that ends with a return",
            expected="def program(a, b): ... return r",
            do="correct the source",
        )
    arguments = tuple(argument.arg for argument in function.args.args)
    body = ast.Module(body=function.body[:-1], type_ignores=[])
    statements = statements_of(ast.unparse(body), arguments)
    reader = _Reader(arguments, body, ())
    value = function.body[-1].value
    result = None if value is None else reader.operand(value)
    if statements is None or result is UNKNOWN:
        raise UsageError(
            seen="an f-string, a set, or a result that is an expression",
            expected="statements without braces, and a result of names",
            do="correct the source",
        )
    fields.setdefault("calls", (Call(args=[*args]),))
    return FuzzProgram(arguments=arguments, statements=statements, result=result, **fields)


def operand_in(node: ast.expr, values: Iterable[str]) -> Operand:
    """The operand of an expression in which these names are values; `UNKNOWN` for one that is no operand."""
    return _Reader(values, ast.Module(body=[], type_ignores=[]), ()).operand(node)


class _Reader:
    """Parses the nodes of one text; knows which names are values."""

    def __init__(self, values: Iterable[str], tree: ast.Module, definitions: tuple[str, ...]) -> None:
        stored = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        self._names = dict.fromkeys([*values, *stored])
        self._definitions = definitions

    def statements(self, node: ast.stmt) -> list[Statement]:
        operations = self._operations(node)
        if operations is not None:
            return operations
        header = self._header(node)
        if header is not None and isinstance(node, (ast.With, ast.If, ast.For, ast.While)):
            body = tuple(s for child in node.body for s in self.statements(child))
            orelse = [] if isinstance(node, ast.With) else node.orelse
            rest = tuple(s for child in orelse for s in self.statements(child))
            uses = self._loaded(ast.parse(with_names(header) + "\n    pass"))
            return [
                Block(header=header, body=body, orelse=rest, uses=uses, definitions=self._definitions),
            ]
        return [self._text(node)]

    def _text(self, node: ast.stmt) -> Lines:
        text = self._braced(ast.unparse(node))
        stored = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        results = tuple(name for name in dict.fromkeys(stored) if name in self._names)
        return Lines(text=text, uses=self._loaded(node), results=results, definitions=self._definitions)

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

    def _operations(self, node: ast.stmt) -> list[Statement] | None:
        """`v = f(x)`, `v = x.f(g(y))`, `v = x[i]`, `x[i] = y`, `x += y`, with inner calls first; None for anything else."""
        results: tuple[str, ...] = ()
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and type(node.op) in _BINARY:
            before, args = self._operands([node.value])
            target = _BINARY[type(node.op)].replace("operator.", "operator.i")
            return _unless_unknown(before, OpCall(target=target, args=(Ref(node.target.id), *args)))
        if isinstance(node, ast.Expr):
            value = node.value
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            value, (bound,) = node.value, node.targets
            if isinstance(bound, ast.Subscript):
                before, args = self._operands([bound.value, value])
                index = self._index(bound.slice)
                return _unless_unknown(before, OpCall(target="setitem", args=(args[0], index, args[1])))
            names = bound.elts if isinstance(bound, ast.Tuple) else [bound]
            if not all(isinstance(name, ast.Name) for name in names) or (
                isinstance(bound, ast.Tuple) and len(names) < 2
            ):
                return None
            results = tuple(name.id for name in names if isinstance(name, ast.Name))
        else:
            return None
        return self._computed(value, results)

    def _computed(self, value: ast.expr, results: tuple[str, ...]) -> list[Statement] | None:
        if isinstance(value, ast.BinOp) and type(value.op) in _BINARY:
            before, args = self._operands([value.left, value.right])
            return _unless_unknown(before, OpCall(target=_BINARY[type(value.op)], args=args, results=results))
        if isinstance(value, ast.Subscript):
            before, args = self._operands([value.value])
            return _unless_unknown(
                before, OpCall(target="getitem", args=(*args, self._index(value.slice)), results=results)
            )
        if not isinstance(value, ast.Call) or any(isinstance(arg, ast.Starred) for arg in value.args):
            return None
        target, given = ast.unparse(value.func), list(value.args)
        if isinstance(value.func, ast.Attribute) and not re.fullmatch(r"torch(\.\w+)+", target):
            target, given = f".{value.func.attr}", [value.func.value, *given]
        if not re.fullmatch(r"\.\w+|torch(\.\w+)+|\w+", target) or target in self._names:
            return None
        before, args = self._operands([*given, *(keyword.value for keyword in value.keywords)])
        keys = [keyword.arg or "" for keyword in value.keywords]
        kwargs = tuple(zip(keys, args[len(given) :], strict=True))
        if "" in keys:
            return None
        return _unless_unknown(before, OpCall(target=target, args=args[: len(given)], kwargs=kwargs, results=results))

    def _operands(self, nodes: Sequence[ast.expr]) -> tuple[list[Statement], tuple[Operand, ...]]:
        """The operands, and statements that compute those operands that are calls."""
        before: list[Statement] = []
        found: list[Operand] = []
        for node in nodes:
            operand = self.operand(node)
            if operand is UNKNOWN:
                name = next(f"t{i}" for i in range(1 << 20) if f"t{i}" not in self._names)
                self._names[name] = None
                inner = self._computed(node, (name,))
                if inner is not None:
                    before += inner
                    operand = Ref(name)
            found.append(operand)
        return before, tuple(found)

    def _index(self, node: ast.expr) -> Operand:
        operand = self.operand(node)
        if operand is not UNKNOWN:
            return operand
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        return UNKNOWN if names else Expr(ast.unparse(node).removeprefix("(").removesuffix(")"))

    def operand(self, node: ast.expr) -> Operand:
        """The operand, or `UNKNOWN`."""
        if isinstance(node, ast.Name):
            return Ref(node.id) if node.id in self._names else UNKNOWN
        if _is_self_attribute(node) and f"self.{node.attr}" in self._names:  # type: ignore[attr-defined]
            return Ref(f"self.{node.attr}")  # type: ignore[attr-defined]
        if isinstance(node, (ast.List, ast.Tuple)):
            items = tuple(self.operand(item) for item in node.elts)
            return (
                UNKNOWN
                if any(item is UNKNOWN for item in items)
                else Items(items, "list" if isinstance(node, ast.List) else "tuple")
            )
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError):
            text = ast.unparse(node)
            return Expr(text) if re.fullmatch(r"torch(\.\w+)+", text) else UNKNOWN
        return value if value is None or isinstance(value, (bool, int, float, complex, str)) else UNKNOWN


def _unless_unknown(before: list[Statement], operation: OpCall) -> list[Statement] | None:
    """Both lists of statements, or None if an operand could not be parsed."""
    operands = (*operation.args, *(value for _, value in operation.kwargs))
    return None if any(operand is UNKNOWN for operand in operands) else [*before, operation]


def _is_self_attribute(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
