"""A program as the text of a script: definitions at module level, the inputs of each call, what is called.

Text that a script does not need is left out: the docstring and metadata of a program's file, names that are used once, factories
that only make a module, dtypes that torch chooses by itself.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuzz.draw.inputs.source import SHOWN_ELEMENTS, InputSource, input_source
from fuzz.program.render import to_program
from fuzz.program.structure import FuzzProgram
from oracle.program import Call, Program

_DEVICE = re.compile(r",\s*device=DEVICE\b|\bdevice=DEVICE,\s*|\bdevice=DEVICE\b")
_OWN_NAMES = frozenset(["PROGRAM", "DEVICE"])  # metadata of a program's file
# Tensors that torch.tensor makes with this dtype by itself. An empty list and one of floats give float32.
_IMPLIED_DTYPES = (
    (re.compile(r"(torch\.tensor\(\[[^\]]*\]), dtype=torch\.float32\)"), r"\1)"),
    (re.compile(r"(torch\.tensor\(\[[^\]]+\]), dtype=torch\.(?:int64|bool|complex64)\)"), r"\1)"),
)
_SCALAR = re.compile(r"torch\.tensor\(\[([^\],]+)\](, dtype=[\w.]+)?\)\.reshape\(\(\)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCall:
    """One call: statements that make its inputs, and an expression for each input."""

    plan: Call
    lines: tuple[str, ...]
    args: tuple[str, ...]
    kwargs: tuple[tuple[str, str], ...] = ()
    rest: str = ""  # what follows in the call instead: "*args, **kwargs"

    @property
    def given(self) -> str:
        """The arguments as they stand in a call."""
        return ", ".join([*self.args, *(f"{name}={text}" for name, text in self.kwargs), *filter(None, [self.rest])])


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """The body of `derive`: its parameters, and how it makes the arguments."""

    names: tuple[str, ...]
    made: InputSource


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenProgram:
    """The text of a program, without `import torch`."""

    imports: tuple[str, ...]
    source: str
    target: str  # an expression for what is called: "program", "Model()"
    calls: tuple[WrittenCall, ...]
    derives: bool  # the arguments are made from the inputs, by `derived` or by the source's `derive`
    derived: Derived | None
    is_module: bool
    seed: int
    dynamic: bool | None
    config: Mapping[str, Any]


def written(program: FuzzProgram | Program) -> WrittenProgram:
    """The text of a program. Raises UsageError for an input that has no text."""
    plain = to_program(program, name="script") if isinstance(program, FuzzProgram) else program
    source = _DEVICE.sub("", plain.source)
    tree = ast.parse(source)
    makers = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    inputs = makers.get("inputs")
    if isinstance(program, FuzzProgram):
        calls = [
            _call_of(program.calls[n], _inlined(input_source(program, n, explicit=SHOWN_ELEMENTS)))
            for n in _each(plain)
        ]
    else:
        calls = [_call_of(call, _inputs_of(inputs, source, number)) for number, call in enumerate(plain.calls)]
    is_dissolved = inputs is not None and not any("inputs(" in line for call in calls for line in call.lines)
    target, factory = _target(tree, is_module=plain.is_module)
    derived = _derived(makers.get("derive"), source)
    unused = [factory, inputs if is_dissolved else None, makers.get("derive") if derived else None]
    left_out = [node for node in tree.body if _is_left_out(node) or any(node is one for one in unused)]
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom)) and not _is_left_out(node)]
    text = _without(source, [*left_out, *imports, *_docstring(tree)])
    if re.search(r"\bDEVICE\b", "\n".join([text, *(line for call in calls for line in (*call.lines, call.given))])):
        text = 'DEVICE = "cpu"\n' + text
    return WrittenProgram(
        imports=tuple(ast.unparse(node) for node in imports),
        source=text,
        target=target,
        calls=tuple(calls),
        derives="derive" in makers,
        derived=derived,
        is_module=plain.is_module,
        seed=plain.seed,
        dynamic=plain.dynamic,
        config=plain.config,
    )


def _each(program: Program) -> range:
    return range(len(program.calls))


def _call_of(plan: Call, made: InputSource) -> WrittenCall:
    rest = "*args, **kwargs" if "args, kwargs = inputs(" in "".join(made.lines) else ""
    return WrittenCall(
        plan=plan,
        lines=tuple(map(_shorter, made.lines)),
        args=tuple(map(_shorter, made.args)),
        kwargs=tuple((name, _shorter(text)) for name, text in made.kwargs),
        rest=rest,
    )


# ----------------------------------------------------------------------------------------------------------------- inputs


def _inputs_of(inputs: ast.FunctionDef | None, source: str, number: int) -> InputSource:
    """The body of `inputs(call)`, if it does the same for every call; else a call of it."""
    if inputs is None:
        return InputSource(lines=(), args=())
    asks = any(isinstance(node, ast.Name) and node.id == inputs.args.args[0].arg for node in ast.walk(inputs))
    made = None if asks else _body_of(inputs, source)
    return made or InputSource(lines=(f"args, kwargs = inputs({number})",), args=())


def _derived(derive: ast.FunctionDef | None, source: str) -> Derived | None:
    """The body of `derive`, unless it returns in several places or takes keywords."""
    if derive is None or derive.args.kwonlyargs or derive.args.vararg or derive.args.kwarg or derive.args.defaults:
        return None
    made = _body_of(derive, source)
    return None if made is None else Derived(names=tuple(one.arg for one in derive.args.args), made=made)


def _body_of(function: ast.FunctionDef, source: str) -> InputSource | None:
    """The statements of a function that ends with `return (arguments), {keywords}`, and these; None for another function."""
    *body, last = [node for node in function.body if not _is_text(node)]
    if any(isinstance(node, (ast.Return, ast.Yield)) for part in body for node in ast.walk(part)):
        return None
    match last:
        case ast.Return(
            value=ast.Tuple(elts=[ast.Tuple(elts=args) | ast.List(elts=args), ast.Dict(keys=keys, values=values)])
        ) if not any(isinstance(arg, ast.Starred) for arg in args) and all(map(_is_name, keys)):
            return InputSource(
                lines=tuple(line for part in body for line in _lines_of(part, source)),
                args=tuple(map(ast.unparse, args)),
                kwargs=tuple(
                    (ast.literal_eval(key), ast.unparse(v)) for key, v in zip(keys, values, strict=True) if key
                ),
            )
        case _:
            return None


def _is_name(key: ast.expr | None) -> bool:
    return isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value.isidentifier()


def _inlined(made: InputSource) -> InputSource:
    """The inputs without names that occur once."""
    lines, args, kwargs = list(made.lines), list(made.args), list(made.kwargs)
    for line in made.lines:
        name, _, text = line.partition(" = ")
        used = re.compile(rf"\b{re.escape(name)}\b")
        users = [*args, *(value for _, value in kwargs)]
        elsewhere = any(used.search(other) for other in lines if other is not line)
        if elsewhere or sum(len(used.findall(user)) for user in users) != 1:
            continue
        lines.remove(line)
        args = [_put(used, text, arg) for arg in args]
        kwargs = [(key, _put(used, text, value)) for key, value in kwargs]
    return InputSource(lines=tuple(lines), args=tuple(args), kwargs=tuple(kwargs))


def _put(used: re.Pattern[str], text: str, user: str) -> str:
    return used.sub(lambda _: text, user)


def _shorter(text: str) -> str:
    for pattern, instead in _IMPLIED_DTYPES:
        text = pattern.sub(instead, text)
    return _SCALAR.sub(lambda match: f"torch.tensor({match[1]}{match[2] or ''})", text)


# ---------------------------------------------------------------------------------------------------------------- sources


def _target(tree: ast.Module, *, is_module: bool) -> tuple[str, ast.stmt | None]:
    """What is called, and the factory that is not needed then."""
    if not is_module:
        return "program", None
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="program")], value=ast.Name(id=name)):
                return f"{name}()", node
            case ast.FunctionDef(name="program", body=[*_, ast.Return(value=ast.Call() as made)]) if (
                len([part for part in node.body if not _is_text(part)]) == 1
            ):
                return ast.unparse(made), node
            case _:
                pass
    return "program()", None


def _is_left_out(node: ast.stmt) -> bool:
    match node:
        case ast.Import(names=[ast.alias(name="torch", asname=None)]):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name in _OWN_NAMES
        case _:
            return False


def _docstring(tree: ast.Module) -> list[ast.stmt]:
    return [tree.body[0]] if tree.body and _is_text(tree.body[0]) else []


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _without(source: str, nodes: Sequence[ast.stmt]) -> str:
    """The source without these statements, and with at most one empty line between others."""
    gone = {number for node in nodes for number in range(_first_line(node), (node.end_lineno or node.lineno) + 1)}
    kept = [line.rstrip() for number, line in enumerate(source.splitlines(), start=1) if number not in gone]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip("\n")


def _first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def _lines_of(node: ast.stmt, source: str) -> list[str]:
    lines = source.splitlines()[_first_line(node) - 1 : node.end_lineno]
    return textwrap.dedent("\n".join(lines)).splitlines()
