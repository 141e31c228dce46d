"""The text of symbolic expressions: it reads back as the expression written, and no other text is accepted."""

from __future__ import annotations

from typing import Any

import pytest
import sympy

from refimpl.export.archive.errors import ArchiveError
from refimpl.export.archive.expressions import to_expression, to_text
from refimpl.export.archive.operators import FUNCTIONS, name_of, named
from refimpl.export.region_operators import REGION_OPERATORS
from refimpl.export.verifier import TrainingIRVerifier
from refimpl.symbolic import functions as f
from refimpl.symbolic.operations import BINARY, UNARY, negate, relation

N, U, Z = sympy.Symbol("s0", integer=True, positive=True), sympy.Symbol("u0", integer=True), sympy.Symbol("zf0")
SYMBOLS = {str(symbol): symbol for symbol in (N, U, Z)}
TWO = sympy.Integer(2)
BOTH: Any = sympy.And

EXPRESSIONS: list[Any] = [
    N,
    sympy.Integer(-(10**30)),
    sympy.Float(0.1),
    sympy.Float(float("inf")),
    2 * N - 3,
    (N + U) ** 2 * U,
    f.FloorDiv(N + 1, TWO),
    f.Max(N, U, TWO),
    f.Where(relation(sympy.Gt, U, N), U, N),
    relation(sympy.Eq, f.PythonMod(N, sympy.Integer(3)), sympy.Integer(0)),
    BOTH(relation(sympy.Ge, U, TWO), relation(sympy.Le, U, N)),
    negate(relation(sympy.Lt, Z, sympy.Float(0.5))),
    sympy.true,
    *(function(f.ToFloat(N)) for function in f.MATH_FUNCTIONS.values()),
    *(o.ints(U) for o in UNARY.values() if o.ints is not None and o.result is not bool),
    *(o.floats(Z) for o in UNARY.values() if o.floats is not None),
    *(o.ints(N, U) for name, o in BINARY.items() if o.ints is not None and name not in ("and_", "or_")),
    *(o.floats(Z, f.ToFloat(N)) for o in BINARY.values() if o.floats is not None),
]


@pytest.mark.parametrize("expr", EXPRESSIONS, ids=str)
def test_an_expression_is_read_back(expr: Any) -> None:
    assert to_expression(to_text(expr), SYMBOLS) == expr


def test_the_text_is_prefix_form() -> None:
    assert to_text(f.FloorDiv(2 * N + U, sympy.Integer(3))) == "FloorDiv(Add(u0, Mul(2, s0)), 3)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be read from position 0"),
        ("s0 + 1", "has more after position 2"),
        ("s1", "the symbol 's1'"),
        ("Add(s0", "cannot be read"),
        ("Add(s0 1)", "lacks a comma"),
        ("Add()", "where a number or name should be"),
        ("exec(s0)", "the function 'exec'"),
        ("s0.free_symbols", "has more after"),
        ("0x", "cannot be read"),
        ("Pow(10, 1000000000)", "the exponent 1000000000"),
        ("PowByNatural(10, 1000000000)", "the exponent 1000000000"),
        ("LShift(1, 1000000000)", "the exponent 1000000000"),
        ("9" * 200, "more than 100 digits"),
        ("Add(" * 500 + "s0" + ")" * 500, "nested more than 200 deep"),
        ("FloorDiv(s0)", "cannot be evaluated"),
        ("Equality(s0)", "cannot be evaluated"),
    ],
)
def test_other_text_is_refused(text: str, said: str) -> None:
    with pytest.raises(ArchiveError) as raised:
        to_expression(text, SYMBOLS)
    assert said in str(raised.value)


def test_a_function_outside_the_grammar_is_refused_when_it_is_written() -> None:
    with pytest.raises(ArchiveError, match="the function sin in the symbolic expression"):
        to_text(sympy.sin(N))


def test_every_function_that_a_program_may_call_has_a_name() -> None:
    allowed = (*TrainingIRVerifier().allowed_builtin_ops(), *REGION_OPERATORS)
    assert [named(name_of(function)) for function in allowed] == list(allowed)
    assert set(FUNCTIONS.values()) == set(allowed)
    assert {"operator.getitem", "operator.and_", "math.trunc", "builtins.round", "torch.sym_sqrt"} <= FUNCTIONS.keys()


@pytest.mark.parametrize(
    "name", ["os.system", "torch.ops.load_library", "torch.ops.load_library.x", "torch.load", "eval", ""]
)
def test_other_names_lead_nowhere(name: str) -> None:
    with pytest.raises(ArchiveError):
        named(name)
