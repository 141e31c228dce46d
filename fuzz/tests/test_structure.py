"""The structured program: its JSON is read back as it was; damaged JSON is refused by name; nothing in it is evaluated."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.draw.choices import RandomDraw
from fuzz.draw.settings import Settings
from fuzz.program.structure import (
    Block,
    Entries,
    Expr,
    FuzzProgram,
    Items,
    Lines,
    OpCall,
    Operand,
    Ref,
    names_in,
    operand_json,
    operand_of,
    renamed,
    walk,
)
from fuzz.vocabulary.programs import draw_program
from oracle.errors import UsageError

names = st.sampled_from(["a0", "v1", "self.w0"])
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text()
)
leaves = scalars | names.map(Ref) | st.text(min_size=1).map(Expr)
operands = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3).flatmap(
            lambda items: st.sampled_from([Items(tuple(items), "list"), Items(tuple(items), "tuple")])
        )
        | st.lists(st.tuples(st.text(), inner), max_size=3).map(lambda pairs: Entries(tuple(pairs)))
    ),
    max_leaves=6,
)


@given(operands)
@settings(max_examples=300, deadline=None)
def test_operands_are_read_back(operand: Operand) -> None:
    assert repr(operand_of(json.loads(json.dumps(operand_json(operand))))) == repr(operand)


@given(st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_drawn_programs_are_read_back(number: int) -> None:
    program = draw_program(RandomDraw(number), Settings())
    text = json.dumps(program.to_json())
    assert repr(FuzzProgram.from_json(json.loads(text))) == repr(program)
    assert json.dumps(FuzzProgram.from_json(json.loads(text)).to_json()) == text


def one_of_everything() -> FuzzProgram:
    call = OpCall(target="torch.add", args=(Ref("a0"), 1.5), kwargs=(("alpha", float("inf")),), results=("v0",))
    lines = Lines(text="{v1} = [{v0}]", uses=("v0",), results=("v1",), definitions=("helper0",))
    block = Block(header="if {a0}.sum() > 0:", body=(call,), orelse=(lines,), uses=("a0",))
    return FuzzProgram(
        arguments=("a0",),
        inputs=("r0",),
        derive=(OpCall(target="operator.mul", args=(Ref("r0"), 1), results=("a0",)),),
        statements=(call, lines, block),
        result=Items((Ref("v0"), Entries((("x", Ref("a0")),))), "tuple"),
    )


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from places(value, (*path, key))
    elif isinstance(tree, list):
        for at, value in enumerate(tree):
            yield from places(value, (*path, at))


@pytest.mark.parametrize("junk", [None, 7, "text", [], {}, [[1]], {"$": 1}], ids=repr)
def test_damaged_json_is_a_usage_error_or_a_program(junk: Any) -> None:
    whole = json.loads(json.dumps(one_of_everything().to_json()))
    refused = 0
    for path in places(whole):
        damaged = copy.deepcopy({"root": whole})
        at: Any = damaged
        for key in ("root", *path)[:-1]:
            at = at[key]
        at[("root", *path)[-1]] = junk
        try:
            read = FuzzProgram.from_json(damaged["root"])
        except UsageError:
            refused += 1
        else:
            assert isinstance(read, FuzzProgram), path
    assert refused, "nothing that was damaged is refused"


@pytest.mark.parametrize("field", [name for name in one_of_everything().to_json() if name != "format"])
def test_a_missing_field_is_named(field: str) -> None:
    data = one_of_everything().to_json()
    del data[field]
    with pytest.raises(UsageError, match=field):
        FuzzProgram.from_json(data)


@pytest.mark.parametrize("version", [0, 99, "1", None])
def test_another_format_is_refused(version: Any) -> None:
    with pytest.raises(UsageError, match="format"):
        FuzzProgram.from_json({**one_of_everything().to_json(), "format": version})


def test_a_program_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(UsageError, match="format"):
        FuzzProgram.from_json([])  # type: ignore[arg-type]


def test_names_an_operand_reads() -> None:
    operand = Items((Ref("a0"), Entries((("x", Ref("v0")), ("y", 1))), Expr("a1")))
    assert [*names_in(operand)] == ["a0", "v0"]


def test_names_are_changed_inside_containers() -> None:
    operand = Items((Ref("a0"), Entries((("x", Ref("v0")),))))
    assert [*names_in(renamed(operand, {"v0": "v7"}))] == ["a0", "v7"]


def test_statements_in_blocks_are_walked() -> None:
    statements = one_of_everything().statements
    assert [type(statement).__name__ for statement in walk(statements)] == [
        "OpCall",
        "Lines",
        "Block",
        "OpCall",
        "Lines",
    ]


def test_what_a_call_reads_is_named_once() -> None:
    call = OpCall(target="torch.add", args=(Ref("a0"), Ref("a0")), kwargs=(("out", Ref("v0")),))
    assert call.uses == ("a0", "v0")
