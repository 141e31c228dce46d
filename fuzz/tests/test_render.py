"""Source of structured programs: goldens of every kind of statement; what nothing needs is left out."""

from __future__ import annotations

import pytest

from fuzz.draw.choices import RandomDraw
from fuzz.draw.settings import FOCUSES, Settings
from fuzz.program.render import needed_definitions, needed_state, render, render_operand, render_statement, to_program
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
)
from fuzz.vocabulary.programs import draw_program

A, V = Ref("a0"), Ref("v0")


def call(target: str, *args: Operand, results: tuple[str, ...] = (), **kwargs: Operand) -> OpCall:
    return OpCall(target=target, args=args, kwargs=tuple(kwargs.items()), results=results)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (call("torch.add", A, 1, alpha=2, results=("v0",)), "v0 = torch.add(a0, 1, alpha=2)"),
        (call(".add_", A, V), "a0.add_(v0)"),
        (call(".chunk", A, 2, 0, results=("v0", "v1")), "v0, v1 = a0.chunk(2, 0)"),
        (call("operator.mul", A, -2.0, results=("v0",)), "v0 = a0 * (-2.0)"),
        (call("operator.neg", A, results=("v0",)), "v0 = -a0"),
        (call("operator.iadd", A, 3), "a0 += 3"),
        (call("getitem", A, Expr("1:, ::2"), results=("v0",)), "v0 = a0[1:, ::2]"),
        (call("getitem", A, Items((Expr(":"), V), "tuple"), results=("v1",)), "v1 = a0[:, v0]"),
        (call("getitem", A, Items((V,), "tuple"), results=("v1",)), "v1 = a0[v0,]"),
        (call("getitem", A, "x", results=("v0",)), "v0 = a0['x']"),
        (call("setitem", A, Expr("1:"), V), "a0[1:] = v0"),
        (call("getattr", A, "mT", results=("v0",)), "v0 = a0.mT"),
        (call("setattr", A, "data", V), "a0.data = v0"),
        (call("call", V, A, results=("v1",)), "v1 = v0(a0)"),
        (call("torch.full", Items((2,), "tuple"), float("nan"), results=("v0",)), "v0 = torch.full((2,), float('nan'))"),
        (Lines(text="{v0} = {a0} if {a0} is None else 1", uses=("a0",), results=("v0",)), "v0 = a0 if a0 is None else 1"),
        (
            Block(header="if {a0}.sum() > 0:", body=(call(".neg_", A),), orelse=(call(".abs_", A),), uses=("a0",)),
            "if a0.sum() > 0:\n    a0.neg_()\nelse:\n    a0.abs_()",
        ),
        (Block(header="with torch.no_grad():", body=()), "with torch.no_grad():\n    pass"),
    ],
)  # fmt: skip
def test_statements(statement: Statement, expected: str) -> None:
    assert "\n".join(render_statement(statement)) == expected


@pytest.mark.parametrize(
    ("operand", "expected"),
    [
        (None, "None"),
        (-0.0, "-0.0"),
        (float("-inf"), "float('-inf')"),
        (2j, "2j"),
        (Items((), "tuple"), "()"),
        (Items((A,), "list"), "[a0]"),
        (Entries((("x", A), ("y", Items((V, 1), "tuple")))), "{'x': a0, 'y': (v0, 1)}"),
    ],
)
def test_operands(operand: Operand, expected: str) -> None:
    assert render_operand(operand) == expected


def test_a_function_with_derived_arguments() -> None:
    program = FuzzProgram(
        arguments=("a0",),
        inputs=("r0",),
        derive=(
            call("operator.mul", Ref("r0"), 1, results=("t0",)),
            call("getitem", Ref("t0"), Expr("1:"), results=("a0",)),
        ),
        statements=(call(".zero_", A),),
        result=A,
    )
    assert render(program) == (
        "import torch\n\n\n"
        "def derive(r0):\n    t0 = r0 * 1\n    a0 = t0[1:]\n    return [a0], {}\n\n\n"
        "def program(a0):\n    a0.zero_()\n    return a0\n"
    )


def test_a_module_keeps_the_state_that_is_read() -> None:
    entries = tuple(
        StateEntry(name=f"self.{name}", text=f"self.{name} = {text}", needs=needs)
        for name, text, needs in (
            ("w0", "torch.ones(3)", ()),
            ("w1", "self.w0", ("self.w0",)),
            ("unused", "torch.ones(2)", ()),
        )
    )
    program = FuzzProgram(
        arguments=("a0",), statements=(call("torch.add", A, Ref("self.w1"), results=("v0",)),), result=V, state=entries
    )
    assert [entry.name for entry in needed_state(program)] == ["self.w0", "self.w1"]
    assert "unused" not in render(program)
    assert "return v0" in render(program)


def test_definitions_that_statements_need() -> None:
    definitions = tuple(
        Definition(name=name, text=f"{name} = 1", needs=needs)
        for name, needs in (("SCALE", ()), ("helper", ("SCALE",)), ("Scaled", ()), ("mapped", ()), ("unused", ()))
    )
    program = FuzzProgram(
        arguments=("a0",),
        statements=(
            call("helper", A, results=("v0",)),
            call("Scaled.apply", V, results=("v1",)),
            call("torch.vmap", Expr("mapped"), results=("v2",)),
        ),
        definitions=definitions,
    )
    assert [definition.name for definition in needed_definitions(program)] == ["SCALE", "helper", "Scaled", "mapped"]


@pytest.mark.parametrize("focus", FOCUSES)
def test_drawn_programs_are_python(focus: str) -> None:
    for number in range(30):
        program = draw_program(RandomDraw(f"render/{number}"), Settings(focus=focus))
        source = to_program(program, name="p").source
        assert source == render(program)
        compile(source, "<program>", "exec")
