"""Renders a structured program as Python source."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator

from typing_extensions import assert_never

from fuzz.program.structure import (
    Block,
    Definition,
    Entries,
    Expr,
    FuzzProgram,
    Items,
    Lines,
    OpCall,
    Operand,
    Ref,
    StateEntry,
    Statement,
    names_in,
    walk,
)
from oracle.program import Program

_INFIX = {
    "operator.add": "+",
    "operator.sub": "-",
    "operator.mul": "*",
    "operator.truediv": "/",
    "operator.floordiv": "//",
    "operator.mod": "%",
    "operator.pow": "**",
    "operator.matmul": "@",
    "operator.and_": "&",
    "operator.or_": "|",
    "operator.xor": "^",
    "operator.lshift": "<<",
    "operator.rshift": ">>",
    "operator.lt": "<",
    "operator.le": "<=",
    "operator.gt": ">",
    "operator.ge": ">=",
    "operator.eq": "==",
    "operator.ne": "!=",
    "operator.iadd": "+=",
    "operator.isub": "-=",
    "operator.imul": "*=",
    "operator.itruediv": "/=",
}
_PREFIX = {"operator.neg": "-", "operator.invert": "~", "operator.pos": "+"}
_NAME = re.compile(r"\{([A-Za-z_][\w.]*)\}")


def to_program(program: FuzzProgram, *, name: str) -> Program:
    """The `oracle.program.Program` of a structured program."""
    return Program(
        name=name,
        source=render(program),
        calls=program.calls,
        seed=program.seed,
        is_module=program.is_module,
        dynamic=program.dynamic,
        config=program.config,
        expects_raise=program.expects_raise,
        policy=program.policy,
    )


def render(program: FuzzProgram) -> str:
    """The module source for `oracle.program`, without unused definitions and state."""
    parts = ["import torch\n", *(f"\n{d.text.strip()}\n" for d in needed_definitions(program))]
    if program.derive:
        parts.append("\n" + _render_derive(program))
    parts.append("\n" + render_function(program))
    return "\n".join(parts)


def _render_derive(program: FuzzProgram) -> str:
    body = [*_render_all(program.derive), f"return [{', '.join(program.arguments)}], {{}}"]
    return f"def derive({', '.join(program.inputs)}):\n{_indented(body)}\n"


def render_function(program: FuzzProgram) -> str:
    """The function, or the module with its factory."""
    body = [*_render_all(program.statements), f"return {render_operand(program.result)}"]
    if program.state is None:
        return f"def program({', '.join(program.arguments)}):\n{_indented(body)}\n"
    state = [entry.text for entry in needed_state(program)]
    init = _indented(["super().__init__()", *state])
    forward = f"def forward({', '.join(('self', *program.arguments))}):\n{_indented(body)}"
    methods = textwrap.indent(f"def __init__(self):\n{init}\n\n{forward}", "    ")
    return f"class Model(torch.nn.Module):\n{methods}\n\n\ndef program():\n    return Model()\n"


def render_shown(program: FuzzProgram) -> str:
    """The function or module with its definitions and the derivation of its arguments, as findings show it."""
    derive = [_render_derive(program)] if program.derive else []
    return "\n".join([*(f"{d.text.strip()}\n" for d in needed_definitions(program)), *derive, render_function(program)])


def render_statement(statement: Statement) -> list[str]:
    """Lines of source, not indented."""
    match statement:
        case OpCall():
            return [_render_call(statement)]
        case Lines():
            return with_names(textwrap.dedent(statement.text).strip("\n")).splitlines()
        case Block():
            lines = [with_names(statement.header), *_indented_lines(_render_all(statement.body) or ["pass"])]
            if statement.orelse:
                lines += [with_names(statement.orelse_header), *_indented_lines(_render_all(statement.orelse))]
            return lines
    assert_never(statement)


def render_operand(operand: Operand) -> str:
    """An expression."""
    match operand:
        case Ref(name=name):
            return name
        case Expr(text=text):
            return text
        case Items(items=items, kind="tuple"):
            inside = ", ".join(render_operand(item) for item in items)
            return f"({inside},)" if len(items) == 1 else f"({inside})"
        case Items(items=items):
            return f"[{', '.join(render_operand(item) for item in items)}]"
        case Entries(entries=entries):
            return "{" + ", ".join(f"{key!r}: {render_operand(item)}" for key, item in entries) + "}"
        case float() if operand != operand or operand in (float("inf"), float("-inf")):
            return f"float('{operand}')"
        case _:
            return repr(operand)


def with_names(text: str) -> str:
    """Text of `Lines` and headers with names in place of `{v0}`."""
    return _NAME.sub(r"\1", text)


def needed_definitions(program: FuzzProgram) -> tuple[Definition, ...]:
    """The definitions that statements need, directly or through others, in order."""
    by_name = {definition.name: definition for definition in program.definitions}
    if not by_name:
        return ()
    wanted = [
        name
        for statement in walk((*program.derive, *program.statements))
        if not isinstance(statement, OpCall)
        for name in statement.definitions
    ]
    # calls such as `helper(v0)` and `torch.vmap(helper)` need it as well; so do statements between two calls
    text = " ".join(call.before for call in program.calls)
    text += " ".join(_render_call(s) for s in walk((*program.derive, *program.statements)) if isinstance(s, OpCall))
    wanted += [name for name in by_name if re.search(rf"\b{re.escape(name)}\b", text)]
    if program.state is not None:
        state = " ".join(entry.text for entry in needed_state(program))
        wanted += [name for name in by_name if re.search(rf"\b{re.escape(name)}\b", state)]
    found: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name in by_name and name not in found:
            found.add(name)
            wanted += by_name[name].needs
    return tuple(definition for definition in program.definitions if definition.name in found)


def needed_state(program: FuzzProgram) -> tuple[StateEntry, ...]:
    """Entries of the module that statements, other entries or the call plan use."""
    assert program.state is not None
    used = set(names_in(program.result))
    for statement in walk(program.statements):
        used.update(statement.uses)
        if not isinstance(statement, OpCall):
            text = statement.text if isinstance(statement, Lines) else statement.header
            used.update(re.findall(r"self\.\w+", text))
        else:
            used.add(statement.target)
    between = " ".join(call.before for call in program.calls)
    used.update(f"self.{name}" for name in re.findall(r"target\.(\w+)", between))
    needed: set[str] = set()
    for entry in reversed(program.state):
        if entry.name in used or entry.name in needed:
            needed.update((entry.name, *entry.needs))
    return tuple(entry for entry in program.state if entry.name in needed)


def _render_call(call: OpCall) -> str:
    args = [render_operand(arg) for arg in call.args]
    if call.target == "setitem":
        return f"{args[0]}[{_index(call.args[1])}] = {args[2]}"
    if call.target == "setattr":
        return f"{args[0]}.{call.args[1]} = {args[2]}"
    if call.target in _INFIX and _INFIX[call.target].endswith("=") and call.target.startswith("operator.i"):
        return f"{args[0]} {_INFIX[call.target]} {args[1]}"
    if call.target == "getitem":
        text = f"{args[0]}[{_index(call.args[1])}]"
    elif call.target == "getattr":
        text = f"{args[0]}.{call.args[1]}"
    elif call.target == "call":
        keywords = [f"{name}={render_operand(value)}" for name, value in call.kwargs]
        text = f"{args[0]}({', '.join(args[1:] + keywords)})"
    elif call.target in _INFIX:
        text = f"{_operand_text(call.args[0])} {_INFIX[call.target]} {_operand_text(call.args[1])}"
    elif call.target in _PREFIX:
        text = f"{_PREFIX[call.target]}{_operand_text(call.args[0])}"
    else:
        keywords = [f"{name}={render_operand(value)}" for name, value in call.kwargs]
        if call.target.startswith("."):
            text = f"{_operand_text(call.args[0])}{call.target}({', '.join(args[1:] + keywords)})"
        else:
            text = f"{call.target}({', '.join(args + keywords)})"
    return f"{', '.join(call.results)} = {text}" if call.results else text


def _index(operand: Operand) -> str:
    if isinstance(operand, Items) and operand.kind == "tuple" and operand.items:
        inside = ", ".join(render_operand(item) for item in operand.items)
        return f"{inside}," if len(operand.items) == 1 else inside
    return render_operand(operand)


def _operand_text(operand: Operand) -> str:
    text = render_operand(operand)
    return f"({text})" if isinstance(operand, (int, float, complex)) and text.startswith("-") else text


def _render_all(statements: Iterable[Statement]) -> list[str]:
    return [line for statement in statements for line in render_statement(statement)]


def _indented_lines(lines: Iterable[str]) -> Iterator[str]:
    return (f"    {line}" if line else line for line in lines)


def _indented(lines: Iterable[str]) -> str:
    return "\n".join(_indented_lines(lines))
