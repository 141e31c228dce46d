"""The search alone: passes on programs whose symptom is that they hold something, without a subject."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from fuzz.program.parsing import program_of
from fuzz.program.render import render_function
from fuzz.program.structure import (
    Definition,
    Entries,
    FuzzProgram,
    Items,
    Lines,
    OpCall,
    Ref,
    StateEntry,
    names_in,
    walk,
)
from fuzz.reduce import Hint, reduce, reduce_counted
from fuzz.reduce.live import undefined_kinds, values_of
from fuzz.reduce.specs import reshaped
from fuzz.tests.specs import tensor_spec
from oracle.program import Call
from oracle.program.inputs import decode, encode

_INTEGERS = {"kind": "integers", "low": 0, "high": 9, "seed": 1}
_LARGE = program_of(
    """
def program(a, b):
    c = torch.sin(a) + b
    d = c.sum(dim=0)
    e = c * 2
    with torch.no_grad():
        f = torch.relu(e)
    g = torch.cat([f, c], dim=0)
    h = g.t().contiguous()
    return d, h
""",
    [tensor_spec(6, 7), tensor_spec(7, requires_grad=True)],
)


def _has(target: str) -> Callable[[FuzzProgram], bool]:
    return lambda program: any(isinstance(s, OpCall) and s.target == target for s in walk(program.statements))


def _searched(program: FuzzProgram, shows: Callable[[FuzzProgram], bool], **more: Any) -> FuzzProgram:
    return reduce(program, shows, deadline=time.monotonic() + 60, **more)


_ONE_TENSOR = [tensor_spec(4, 4)]


@pytest.mark.parametrize(
    "body",
    [
        "for i in range(3):\n        b = torch.sin(a)\n        c = b * i",
        "if a.sum() > 1e9:\n        c = a * 2\n    else:\n        c = torch.sin(a)",
        "with torch.no_grad():\n        for i in range(2):\n            c = torch.sin(a).cos()",
        "b = torch.exp(torch.sin(torch.cos(a)) + 1) * 2\n    c = b.sum()",
        "c = helper(a)",
    ],
)
def test_a_statement_comes_out_of_what_is_around_it(body: str) -> None:
    helper = Definition(name="helper", text="def helper(x):\n    y = x.exp()\n    z = torch.sin(y)\n    return z + 1")
    program = program_of(f"def program(a):\n    {body}\n    return c\n", _ONE_TENSOR, definitions=(helper,))
    shows = _has("torch.sin") if "helper" not in body else lambda p: _has("torch.sin")(p) or _has("helper")(p)
    reduced = _searched(program, shows)
    assert render_function(reduced) == "def program(a0):\n    v0 = torch.sin(a0)\n    return None\n"


def test_one_of_several_results_is_left() -> None:
    program = program_of(
        "def program(a):\n    b = torch.cos(a)\n    c = torch.sin(a)\n    d = c + b\n    return [b]\n", _ONE_TENSOR
    )
    results = {
        "tuple": Items((Ref("b"), Ref("c"), Ref("d")), "tuple"),
        "dict": Entries((("x", Ref("b")), ("y", Ref("c")), ("z", Ref("d")))),
        "nested": Items((Ref("b"), Entries((("y", Items((Ref("d"), Ref("c")))),)))),
    }
    for kind, result in results.items():
        shows = partial(_returns, "torch.sin")
        reduced = _searched(replace(program, result=result), shows, hint=Hint(needs_output=True))
        assert render_function(reduced) == "def program(a0):\n    v0 = torch.sin(a0)\n    return v0\n", kind


def _returns(target: str, program: FuzzProgram) -> bool:
    made = [name for s in program.statements if isinstance(s, OpCall) and s.target == target for name in s.results]
    return bool(set(made) & set(names_in(program.result)))


def test_lines_of_text_are_taken_apart() -> None:
    text = "parts = []\nfor i in range(3):\n    parts.append({a} + i)\n{c} = torch.sin(sum(parts))\n{d} = {c} * 2"
    lines = Lines(text=text, uses=("a",), results=("c", "d"))
    program = FuzzProgram(arguments=("a",), statements=(lines,), result=Ref("d"), calls=(Call(args=_ONE_TENSOR),))
    reduced = _searched(program, lambda p: "torch.sin" in render_function(p))
    assert render_function(reduced) == "def program(a0):\n    v0 = torch.sin(a0)\n    return None\n"


def test_a_module_becomes_a_function() -> None:
    state = (
        StateEntry(name="self.w", text="self.w = torch.nn.Parameter(torch.ones(4))"),
        StateEntry(name="self.b", text="self.register_buffer('b', torch.zeros(4))"),
    )
    statements = (
        OpCall(target="torch.sin", args=(Ref("a"),), results=("x",)),
        OpCall(target="torch.hypot", args=(Ref("x"), Ref("self.w")), results=("y",)),
        OpCall(target="torch.add", args=(Ref("y"), Ref("self.b")), results=("z",)),
    )
    program = FuzzProgram(
        arguments=("a",), statements=statements, result=Ref("z"), state=state, calls=(Call(args=_ONE_TENSOR),)
    )
    reduced = _searched(program, _has("torch.hypot"))
    assert not reduced.is_module
    assert render_function(reduced) == "def program(a0):\n    v0 = torch.hypot(a0, a0)\n    return None\n"


def test_a_plan_keeps_the_calls_that_matter() -> None:
    sizes = (3, 5, 5, 7)
    calls = tuple(Call(args=[tensor_spec(n)], before=f"WORD = {n}", grad_mode="no_grad", backward=False) for n in sizes)
    program = program_of("def program(a):\n    r = a + 1\n    return r\n", [], calls=calls)

    def shows(candidate: FuzzProgram) -> bool:  # a call with another size than an earlier one, after something was done
        shapes = [call.args[0]["shape"] for call in candidate.calls if call.args]
        return any(a != b for a, b in itertools.pairwise(shapes)) and candidate.calls[-1].before != ""

    reduced = _searched(program, shows)
    assert len(reduced.calls) == 2
    assert reduced.calls[0].before == ""
    assert reduced.calls[1].grad_mode == "grad"


def test_inputs_become_plain() -> None:
    spec = tensor_spec(
        6, 8, dtype="bfloat16", stride=[16, 2], offset=3, requires_grad=True, fill={"kind": "special", "seed": 4}
    )
    other = tensor_spec(6, dtype="int16", storage="m", fill=_INTEGERS)
    program = program_of("def program(a, b, c):\n    r = torch.sin(a)\n    return r, b, c\n", [spec, other, {**other}])
    reduced = _searched(program, _has("torch.sin"))
    assert reduced.calls[0].args == [{"$": "tensor", "shape": [1], "dtype": "float32", "fill": {"kind": "arange"}}]


def test_what_is_needed_is_kept() -> None:
    spec = tensor_spec(6, 8, stride=[16, 2], offset=3)
    program = program_of("def program(a):\n    r = torch.sin(a)\n    return r\n", [spec])

    def shows(candidate: FuzzProgram) -> bool:
        (found,) = candidate.calls[0].args or [{}]
        shape, stride = found.get("shape", []), found.get("stride", [0])
        return len(shape) == 2 and shape[1] > 4 and stride[-1] == 2

    reduced = _searched(program, shows)
    (found,) = reduced.calls[0].args
    assert (found["shape"], found["stride"]) == ([1, 5], [10, 2])


def test_a_candidate_with_an_open_meaning_is_not_tried() -> None:
    """An index that occurs twice, after its values were made equal, would let any write win."""
    program = program_of(
        "def program(a, i, b):\n    a[i] = b\n    return a\n",
        [tensor_spec(4), tensor_spec(3, dtype="int64", fill={"kind": "values", "values": [2, 0, 1]}), tensor_spec(3)],
    )
    tried: list[FuzzProgram] = []

    def shows(candidate: FuzzProgram) -> bool:
        tried.append(candidate)
        return any(isinstance(s, OpCall) and s.target == "setitem" for s in candidate.statements)

    _searched(program, shows)
    for candidate in tried:
        assert undefined_kinds(candidate) == frozenset()


def test_searches_are_deterministic_and_stop_in_time() -> None:
    program = _LARGE
    one, other = (_searched(program, _has("torch.relu")) for _ in range(2))
    assert one == other
    asked: list[FuzzProgram] = []

    def slow(candidate: FuzzProgram) -> bool:
        asked.append(candidate)
        return _has("torch.relu")(candidate)

    few = reduce_counted(program, slow, deadline=time.monotonic() + 60, max_trials=3)
    assert not few.is_finished
    assert len(asked) <= 4  # one more for the names
    assert _has("torch.relu")(few.program)
    late = reduce_counted(program, slow, deadline=time.monotonic() - 1)
    assert render_function(late.program).count("\n") == render_function(program).count("\n")


def test_no_candidate_is_tried_twice() -> None:
    asked: list[str] = []

    def shows(candidate: FuzzProgram) -> bool:
        asked.append(json.dumps(candidate.to_json(), sort_keys=True))
        return _has("torch.relu")(candidate)

    _searched(_LARGE, shows)
    assert len(set(asked)) == len(asked)


def test_an_operator_that_does_not_matter_becomes_the_plainest() -> None:
    written = [
        program_of(
            f"def program(a):\n    {body}\n    return None\n",
            [tensor_spec(3, dtype="float64", fill={"kind": "arange"})],
        )
        for body in ("a.sgn_()", "a.addcdiv_(a, a)", "torch.nn.functional.celu(a, inplace=True)")
    ]

    def is_written(program: FuzzProgram) -> bool:
        live = values_of(program)
        return live is not None and any(call.written for call in live)

    found = {render_function(_searched(program, is_written)) for program in written}
    assert found == {"def program(a0):\n    a0.neg_()\n    return None\n"}


def test_arguments_that_are_written_to_stay_apart() -> None:
    """Two lists of one tensor would leave open which write wins."""
    program = program_of(
        "def program(a, b, c):\n    torch._foreach_add_([a, b], [c, c])\n    return None\n",
        [tensor_spec(3), tensor_spec(3), tensor_spec(3)],
    )
    tried: list[FuzzProgram] = []

    def shows(candidate: FuzzProgram) -> bool:
        tried.append(candidate)
        return _has("torch._foreach_add_")(candidate)

    _searched(program, shows)
    assert tried
    assert not [p for p in tried if undefined_kinds(p) and "two writes to one place" in (undefined_kinds(p) or ())]


def test_an_empty_tensor_that_becomes_larger_holds_other_numbers() -> None:
    empty = {"$": "tensor", "shape": [2, 0], "dtype": "float32", "fill": {"kind": "values", "values": []}}
    assert reshaped(empty, [2, 1])["fill"] == {"kind": "arange"}
    full = {"$": "tensor", "shape": [2, 2], "dtype": "float32", "fill": {"kind": "values", "values": [1, 2, 3, 4]}}
    assert reshaped(full, [2, 1])["fill"]["values"] == [1, 3]


def test_a_smaller_tensor_keeps_what_lies_between_its_elements():
    memory = torch.full((13,), torch.nan)
    memory[1::2] = torch.arange(6.0)
    spec = encode(memory.as_strided((2, 3), (6, 2), 1))
    assert isinstance(spec, dict)
    assert spec["fill"]["kind"] == "raw"
    small = reshaped(spec, [2, 2])
    built = decode(small, seed=0)
    assert (built.shape, built.stride(), built.storage_offset()) == ((2, 2), (4, 2), 1)
    assert built.tolist() == [[0.0, 1.0], [3.0, 4.0]]
    between = built.as_strided((4,), (2,), 0)
    assert bool(between.isnan().all())
