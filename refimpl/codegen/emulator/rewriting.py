"""A kernel's Python function, changed where Python and Triton read the same text otherwise.

Counterpart: triton/compiler/code_generator.py CodeGenerator

| text | what becomes of it |
|---|---|
| `x = 0` | x is a tensor, as in Triton: numbers that are assigned are no longer constants (`x: tl.constexpr = 0` is one) |
| `range`, `min`, `max`, `abs`, `int`, `float`, `len`, `print` | the emulator's; a loop's variable is a tensor |
| `a and b`, `not a` | of values: logical, element by element |
| `a < b < c`, `try`, `with`, `lambda`, comprehensions over values, `yield`, ... | rejected, as Triton does |
| `assert c` | device_assert, which does nothing outside of debugging |
| `tl.atomic_add(...)` as a statement | told that nobody reads its result |
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Callable, Mapping
from typing import Any

RUNTIME = "_emulated_"
_REPLACED = ("range", "min", "max", "abs", "int", "float", "len", "print")
_REJECTED: dict[type[ast.AST], str] = {
    ast.Try: "try", ast.With: "with", ast.Yield: "yield", ast.Lambda: "lambda", ast.Raise: "raise", ast.ClassDef: "class",
    ast.Delete: "del", ast.Import: "import", ast.ImportFrom: "import", ast.Await: "await", ast.Nonlocal: "nonlocal",
    ast.Break: "break", ast.Continue: "continue", ast.DictComp: "a comprehension", ast.SetComp: "a comprehension",
}  # fmt: skip


class RewriteError(Exception):
    """The function has no source text, or its text has something that Triton refuses."""


class _Rewriter(ast.NodeTransformer):
    def __init__(self, known: Mapping[str, Any], local: set[str]) -> None:
        self.known, self.local = known, local
        self.may_diverge = False

    def _call(self, name: str, *args: ast.expr, at: ast.AST) -> ast.Call:
        function = ast.Attribute(value=ast.Name(id=RUNTIME, ctx=ast.Load()), attr=name, ctx=ast.Load())
        return ast.copy_location(ast.Call(func=function, args=list(args), keywords=[]), at)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        what = _REJECTED.get(type(node))
        if what is not None:
            raise RewriteError(f"line {getattr(node, 'lineno', '?')}: {what}, which Triton does not take in a kernel")
        return super().generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        is_builtin = node.id in _REPLACED and node.id not in self.local and node.id not in self.known
        if not is_builtin or not isinstance(node.ctx, ast.Load):
            return node
        runtime = ast.Name(id=RUNTIME, ctx=ast.Load())
        return ast.copy_location(ast.Attribute(value=runtime, attr=f"builtin_{node.id}", ctx=ast.Load()), node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        node.value = self._call("assigned", node.value, at=node.value)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if node.value is None:
            return node
        is_constant = "constexpr" in ast.unparse(node.annotation)
        value = node.value if is_constant else self._call("assigned", node.value, at=node.value)
        return ast.copy_location(ast.Assign(targets=[node.target], value=value), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        if not isinstance(node.target, ast.Name):
            raise RewriteError(f"line {node.lineno}: an assignment to {ast.unparse(node.target)}")
        load = ast.copy_location(ast.Name(id=node.target.id, ctx=ast.Load()), node)
        value = ast.copy_location(ast.BinOp(left=load, op=node.op, right=node.value), node)
        return self.visit(ast.copy_location(ast.Assign(targets=[node.target], value=value), node))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        name = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        no_parameters = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        rest = [ast.copy_location(ast.Lambda(args=no_parameters, body=value), value) for value in node.values]
        return self._call(name, *rest, at=node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return self._call("logical_not", node.operand, at=node) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if len(node.ops) > 1:
            raise RewriteError(
                f"line {node.lineno}: {ast.unparse(node)}: several comparisons in one, which Triton does not take"
            )
        return self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(ast.Expr(self._call("device_assert", node.test, at=node)), node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr.startswith("atomic_"):
            call.keywords.append(ast.keyword(arg="_discard", value=ast.Constant(True)))
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        self.may_diverge = True
        return self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.may_diverge = True
        return self.generic_visit(node)

    def visit_While(self, node: ast.While) -> ast.AST:
        self.may_diverge = True
        self.generic_visit(node)
        local = ast.Call(func=ast.Name(id="locals", ctx=ast.Load()), args=[], keywords=[])
        site = ast.Constant(node.lineno)
        node.test = self._call("carried", node.test, ast.copy_location(local, node), site, at=node.test)
        node.orelse = []
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        self.may_diverge = True
        return self.generic_visit(node)


def rewrite(function: Callable[..., Any], runtime: Any) -> tuple[Callable[..., Any], bool]:
    """The function as the emulator runs it, and whether its programs may take different branches. Raises RewriteError."""
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError) as error:
        raise RewriteError(f"no source text of {function!r}: {error}") from error
    tree = ast.parse(textwrap.dedent("".join(lines)))
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise RewriteError(f"{function!r} is no function of its own")
    code = function.__code__
    # Closures are read now; Triton, too, uses their contents at the time of compilation.
    cells = function.__closure__ or ()
    captured = {name: cell.cell_contents for name, cell in zip(code.co_freevars, cells, strict=True)}
    scope = {**function.__globals__, **captured} if captured else function.__globals__
    scope[RUNTIME] = runtime
    local = {*code.co_varnames, *code.co_cellvars}
    rewriter = _Rewriter(scope, local)
    definition.decorator_list = []
    _without_annotations(definition)
    definition.body = [rewriter.visit(statement) for statement in definition.body]
    ast.fix_missing_locations(tree)
    ast.increment_lineno(tree, first - 1)
    module = compile(tree, code.co_filename, "exec")
    inner = next(constant for constant in module.co_consts if isinstance(constant, types.CodeType))
    result = types.FunctionType(inner, scope, function.__name__, function.__defaults__)
    result.__kwdefaults__ = function.__kwdefaults__
    return result, rewriter.may_diverge


def _without_annotations(definition: ast.FunctionDef) -> None:
    """Defaults and annotations were evaluated already; they must not become constants of the module."""
    arguments = definition.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if argument is not None:
            argument.annotation = None
    definition.returns = None
    arguments.defaults = []
    arguments.kw_defaults = [None for _ in arguments.kwonlyargs]
