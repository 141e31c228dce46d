"""Turns a program's own source into a structured program: one function, with what it needs at module level as definitions.

Names that the source imports from torch become dotted names (`F.relu` is `torch.nn.functional.relu`), so that they are operations
like others. The inputs become specs.

A program that has no structured form with its difference can still lose statements (`without_statements`). Such a program is a
module whose difference is in its class, as in the export of a buffer that `forward` assigns, or a source with several functions.
"""

from __future__ import annotations

import ast
import copy
import inspect
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from fuzz.program.parsing import UNKNOWN, operand_in, statements_of
from fuzz.program.structure import Block, Definition, FuzzProgram, OpCall, Operand, Statement
from fuzz.reduce.capture import specs_like
from oracle.program import Call, Program
from oracle.program.build import Instance
from oracle.program.inputs import encode

_BODIES = ("body", "orelse", "finalbody", "handlers")
_INPUTS = ("inputs", "derive")


class NotStructuredError(Exception):
    """The source has another form than one function with definitions around it; the message says which."""


def from_source(instance: Instance, *, is_exact: bool) -> FuzzProgram:
    """The structured program. With `is_exact` inputs keep all their values; otherwise large tensors are drawn from a similar
    distribution.

    Raises NotStructuredError for a module or a source of another form, and UsageError for inputs without a spec.
    """
    program = instance.program
    if program.is_module:
        raise NotStructuredError("the program is a module")
    if program.policy.describes_outputs:
        raise NotStructuredError("its policy describes outputs that a smaller program would not have")
    rewriter = _Rewriter(_with_program(ast.parse(program.source)))
    tree = rewriter.rewritten()
    function = _function(tree)
    definitions = tuple(d for d in _definitions(tree) if d.name not in rewriter.full)
    names = tuple(argument.arg for argument in (*function.args.args, *function.args.kwonlyargs))
    body, result = _with_named_result(function, names)
    text = "\n".join(ast.unparse(ast.fix_missing_locations(node)) for node in body)
    statements = statements_of(text, names)
    if statements is None or result is UNKNOWN:
        raise NotStructuredError("the function has a set, whose braces are those of names")
    return FuzzProgram(
        arguments=names,
        calls=tuple(_call(instance, number, names, is_exact=is_exact) for number in range(len(program.calls))),
        statements=tuple(_with_definitions(statement, definitions) for statement in statements),
        result=result,
        definitions=definitions,
        config=program.config,
        dynamic=program.dynamic,
        expects_raise=program.expects_raise,
        policy=program.policy,
        seed=program.seed,
    )


def statement_count(program: Program) -> int:
    """The number of statements in a program's source, without those that only make inputs."""
    return sum(
        isinstance(inner, ast.stmt)
        for node in ast.parse(program.source).body
        if not (isinstance(node, ast.FunctionDef) and node.name == "inputs")
        for inner in ast.walk(node)
    )


def _with_program(tree: ast.Module) -> ast.Module:
    """The source with a function `program` in the place of `program = NAME`, which a user's file ends with."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for at, node in enumerate(tree.body):
        match node:
            case ast.Assign(targets=[ast.Name(id="program")], value=ast.Name(id=name)) if name in functions:
                function = copy.deepcopy(functions[name])
                function.name = "program"
                tree.body[at] = function
            case _:
                pass
    return tree


class _Rewriter(ast.NodeTransformer):
    """Writes torch's names in full, and texts with values in them as plain texts. `full`: the names written so."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        imported = (pair for node in tree.body for pair in _imported(node))
        self.full = {
            name: full
            for name, full in imported
            if (full == "torch" or full.startswith("torch.")) and name not in bound
        }

    def rewritten(self) -> ast.Module:
        return self.visit(self._tree)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        full = self.full.get(node.id)
        return node if full is None else ast.parse(full, mode="eval").body

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        return ast.Constant("text")


def _imported(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """The names that an import binds, with what they are."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            root = alias.name.partition(".")[0]
            yield (alias.asname, alias.name) if alias.asname else (root, root)
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        for alias in node.names:
            yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _function(tree: ast.Module) -> ast.FunctionDef:
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "program"]
    if len(found) != 1 or found[0].decorator_list:
        raise NotStructuredError("the source has no plain function `program`")
    function = found[0]
    if function.args.vararg or function.args.kwarg or function.args.posonlyargs:
        raise NotStructuredError("the function takes arguments by * or by position only")
    if any(isinstance(node, (ast.Yield, ast.YieldFrom, ast.Global, ast.Nonlocal)) for node in ast.walk(function)):
        raise NotStructuredError("the function yields, or binds names outside of it")
    return function


def _definitions(tree: ast.Module) -> tuple[Definition, ...]:
    """Everything at module level besides the function and its inputs."""
    texts: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            texts.update(_import_texts(node))
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            if node.name == "derive":
                raise NotStructuredError("the source derives its arguments")
            if node.name not in ("program", "inputs"):
                texts[node.name] = ast.unparse(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if len(targets) != 1 or not isinstance(targets[0], ast.Name) or targets[0].id in texts:
                raise NotStructuredError("an assignment at module level binds more than one new name")
            texts[targets[0].id] = ast.unparse(node)
        elif not _says_nothing(node):
            raise NotStructuredError(f"the source has `{ast.unparse(node).splitlines()[0]}` at module level")
    used = {
        name: {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)} & set(texts) - {name}
        for name, text in texts.items()
    }
    return tuple(Definition(name=name, text=text, needs=tuple(sorted(used[name]))) for name, text in texts.items())


def _says_nothing(node: ast.stmt) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    is_script = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
    return is_text or is_script or isinstance(node, ast.Pass)


def _import_texts(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return
    for alias in node.names:
        name = alias.asname or alias.name.partition(".")[0]
        if name == "*":
            raise NotStructuredError("the source imports *")
        if name != "torch":
            one = ast.ImportFrom(node.module, [alias], node.level) if isinstance(node, ast.ImportFrom) else None
            yield name, ast.unparse(one or ast.Import([alias]))


def _with_named_result(function: ast.FunctionDef, names: tuple[str, ...]) -> tuple[list[ast.stmt], Operand]:
    """The body without its docstring and last return, and what it returns, each value by a name."""
    body = [node for node in function.body if not _says_nothing(node)]
    value: ast.expr | None = None
    if body and isinstance(body[-1], ast.Return):
        value = body[-1].value
        body = body[:-1]
    if value is None:
        return body, None
    taken = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)} | set(names)
    items = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value]
    named: list[ast.expr] = []
    for item in items:
        if isinstance(item, (ast.Name, ast.Constant)):
            named.append(item)
            continue
        name = next(f"r{number}" for number in range(1 << 20) if f"r{number}" not in taken)
        taken.add(name)
        body.append(ast.Assign(targets=[ast.Name(name, ast.Store())], value=item))
        named.append(ast.Name(name, ast.Load()))
    whole: ast.expr = named[0] if items == [value] else type(value)(named, ast.Load())  # type: ignore[call-arg]
    return body, operand_in(whole, taken)


def _with_definitions(statement: Statement, definitions: tuple[Definition, ...]) -> Statement:
    """The statement with the names of the definitions that its text mentions."""
    if isinstance(statement, OpCall):
        return statement
    text = statement.header if isinstance(statement, Block) else statement.text
    found = tuple(d.name for d in definitions if re.search(rf"\b{re.escape(d.name)}\b", text))
    if isinstance(statement, Block):
        body = tuple(_with_definitions(inner, definitions) for inner in statement.body)
        orelse = tuple(_with_definitions(inner, definitions) for inner in statement.orelse)
        return replace(statement, definitions=found, body=body, orelse=orelse)
    return replace(statement, definitions=found)


def _call(instance: Instance, number: int, names: tuple[str, ...], *, is_exact: bool) -> Call:
    """The call with specs of its arguments, in the order of the names."""
    args, kwargs = instance.inputs(number)
    bound = inspect.signature(instance.target).bind(*args, **kwargs)
    bound.apply_defaults()
    given: Mapping[str, Any] = bound.arguments
    values = [given[name] for name in names]
    specs = encode(values) if is_exact else specs_like(values)
    return replace(instance.program.calls[number], args=specs, kwargs=None, values="given", training=None)


# --------------------------------------------------------------------------------------------- without a structured form


def without_statements(program: Program, shows: Callable[[Program], bool], *, deadline: float) -> tuple[Program, bool]:
    """The program without statements that `shows` does not need, and whether the search was finished by `deadline`.

    Large runs of statements are tried first, then single ones, until none can go. `deadline` is a time of `time.monotonic`.
    """
    current, tried = program, {program.source}
    size = len(_statements(ast.parse(program.source)))
    while size:
        at, is_smaller = 0, False
        while at < len(_statements(ast.parse(current.source))):
            if time.monotonic() > deadline:
                return current, False
            source = _without(current.source, at, at + size)
            candidate = replace(current, source=source)
            if source not in tried and shows(candidate):
                current, is_smaller = candidate, True
            else:
                at += size
            tried.add(source)
        if size > 1 or not is_smaller:
            size //= 2
    return current, True


def _statements(tree: ast.Module) -> list[ast.stmt]:
    """The statements that may go, each before those in it."""
    found: list[ast.stmt] = []

    def look(node: ast.AST) -> None:
        for name in _BODIES:
            for inner in getattr(node, name, ()):
                if isinstance(inner, ast.FunctionDef) and inner.name in _INPUTS:
                    continue
                if isinstance(inner, ast.stmt):
                    found.append(inner)
                look(inner)

    look(tree)
    return found


def _without(source: str, low: int, high: int) -> str:
    """The source without the statements of these numbers. What is left empty has a `pass`."""
    tree = ast.parse(source)
    gone = {id(node) for node in _statements(tree)[low:high]}
    for node in [*ast.walk(tree)]:
        for name in _BODIES:
            body = getattr(node, name, None)
            if not isinstance(body, list) or not any(id(inner) in gone for inner in body):
                continue
            kept = [inner for inner in body if id(inner) not in gone]
            setattr(node, name, kept if kept or name != "body" or node is tree else [ast.Pass()])
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"
