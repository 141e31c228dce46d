"""What a worker sees of a program beside the verdict. In a process of its own: it changes the process for good."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy.parsing.sympy_parser import parse_expr
from torch._inductor import dtype_propagation
from torch._inductor import utils as inductor_utils
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from fuzz.builds import simplifying
from fuzz.judge import observing
from fuzz.program.structure import FuzzProgram, OpCall, Ref
from oracle.isolate import Completed, Pool, Task
from oracle.program import Call
from oracle.subjects.registry import resolve


def seen_of(subject: str, program: FuzzProgram) -> dict[str, Any]:
    task = Task(
        key="observe",
        function="fuzz.tests.observing_tasks:observe_program",
        payload={"subject": resolve(subject).to_json(), "program": program.to_json()},
        group="",
        timeout_s=120,
        memory_bytes=4 * 2**30,
    )
    with Pool(workers=1, preload=("torch", "oracle.case")) as pool:
        (result,) = pool.run([task])
    assert isinstance(result.end, Completed), result.end
    return result.end.value


def test_overloads_graph_breaks_and_cheap_compiles() -> None:
    tensor = {"$": "tensor", "shape": [3], "dtype": "float32", "requires_grad": True}
    program = FuzzProgram(
        arguments=("a0",),
        calls=(Call(args=[tensor], backward=True),),
        statements=(
            OpCall(target="torch.sin", args=(Ref("a0"),), results=("v0",)),
            OpCall(target="torch._dynamo.graph_break"),
            OpCall(target="torch.mul", args=(Ref("v0"), 2), results=("v1",)),
        ),
        result=Ref("v1"),
    )
    seen = seen_of("aot_eager", program)
    assert seen["status"] == "pass"
    assert {"aten:aten.sin.default", "aten:aten.mul.Tensor", "aten:aten.cos.default"} <= set(seen["aten"])
    assert any(name.startswith("break:") for name in seen["compiler"])
    assert any(name.startswith("pass:aot_autograd") for name in seen["compiler"])
    assert seen["guard_latency"] == 0.0
    assert seen["configuration"] is None
    assert seen["collects"] is False
    for_logs, for_readers = seen["texts"]
    assert for_logs == ""
    assert "relu" in for_readers


def test_rules_of_dtypes_are_filled_in_again_where_an_operation_was_added(monkeypatch: pytest.MonkeyPatch) -> None:
    filled: list[object] = []
    monkeypatch.setattr(dtype_propagation.DtypePropagationOpsHandler, "__init__", filled.append)
    observing._keep_dtype_rules.__wrapped__()
    one = dtype_propagation.DtypePropagationOpsHandler()
    assert dtype_propagation.DtypePropagationOpsHandler() is one
    assert filled == [one]
    monkeypatch.setitem(inductor_utils.op_dtype_propagation_rules, "one more", None)
    dtype_propagation.DtypePropagationOpsHandler()
    dtype_propagation.DtypePropagationOpsHandler()
    assert filled == [one, one]


def test_what_is_simplified_again_is_remembered_and_what_has_no_hash_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(sympy, "simplify", lambda expression, *args, **options: seen.append(args) or expression)
    simplifying.remember_simplified.__wrapped__()
    simplify: Any = sympy.simplify
    x = sympy.Symbol("x")
    for _ in range(2):
        assert simplify(x * x) == x**2
    assert seen == [()]
    assert simplify([x], 1.5) == [x]
    assert simplify(x + x, 2.0) == 2 * x
    assert seen == [(), (1.5,), (2.0,)]
    assert simplify(3 * x + 1) == 3 * x + 1
    assert len(seen) == 3  # not asked


_SYMBOLS: list[sympy.Expr] = [sympy.Symbol(name, integer=True, nonnegative=True) for name in ("d0", "d1", "x2")]
_SYMBOLS.append(sympy.Symbol("s1", integer=True, positive=True))
_MULTIPLES = st.tuples(st.integers(-70, 70), st.sampled_from([*_SYMBOLS, sympy.Integer(1)]))
_SUMS = st.lists(_MULTIPLES, max_size=4).map(
    lambda terms: sympy.Add(*(sympy.Mul(factor, symbol) for factor, symbol in terms))
)
_FLOOR_DIV: Any = FloorDiv  # sympy says of its classes that they are types of undefined functions
_DIVISIONS = st.tuples(_SUMS, st.integers(2, 9)).map(lambda pair: _FLOOR_DIV(pair[0], pair[1]))
_INDICES = st.tuples(_SUMS, st.lists(st.tuples(st.integers(-9, 9), _DIVISIONS), max_size=3)).map(
    lambda parts: parts[0] + sympy.Add(*(sympy.Mul(factor, division) for factor, division in parts[1]))
)


@settings(max_examples=60, deadline=None)
@given(_INDICES)
def test_what_is_said_to_be_settled_sympy_gives_back(index: sympy.Expr) -> None:
    assert simplifying.is_settled(index)
    assert sympy.simplify(index) == index


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4*d0 - x2 + 7", True),
        ("0", True),
        ("d0*s1", False),
        ("d0/2", False),
        ("d0**2", False),
        ("Max(d0, 1)", False),
        ("FloorDiv(4*d0 + 1, 9) - FloorDiv(4*d0, 9)", True),
        ("FloorDiv(d0, s1)", False),
        ("FloorDiv(d0*s1, 2)", False),
        ("ModularIndexing(d0, 1, 4)", False),
    ],
)
def test_other_forms_are_left_to_sympy(text: str, expected: bool) -> None:
    names: dict[str, Any] = {str(symbol): symbol for symbol in _SYMBOLS}
    names |= {"FloorDiv": FloorDiv, "ModularIndexing": ModularIndexing}
    index = parse_expr(text, local_dict=names)
    assert simplifying.is_settled(index) is expected
