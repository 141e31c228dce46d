"""Buckets: one key for one cause, however a program is spelled; another key for another cause."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fuzz.program.parsing import program_of
from fuzz.program.render import render
from fuzz.program.structure import Block, Definition, FuzzProgram, Lines, OpCall, Ref
from fuzz.reduce.canonical import canonical
from fuzz.triage.bucket import Bucket, bucket_key, bucket_of, operators_of
from oracle.symptom import Symptom

_WRONG = Symptom(status="fail_accuracy", kind="output: number")


def _tensor(*shape: int, dtype: str = "float32") -> dict[str, Any]:
    return {"$": "tensor", "shape": list(shape), "dtype": dtype}


def _program(body: str, *args: Any) -> FuzzProgram:
    return program_of(f"def program(a, b):\n    {body}\n    return r\n", args or (_tensor(3), _tensor(3)))


def _key(program: FuzzProgram, **changed: str) -> str:
    said = {"rung": "inductor", "subject": "inductor", **changed}
    return bucket_key(program, _WRONG, **said)


@pytest.mark.parametrize(
    "body",
    [
        "r = torch.floor_divide(a, b)",
        "r = torch.floor_divide(b, a)",
        "r = a // b",
        "r = a // 0.1",
        "r = a.floor_divide(b)",
        "r = a.floor_divide_(b)",
    ],
)
def test_spelling_names_and_values_make_no_difference(body: str) -> None:
    assert _key(_program("r = a // b")) == _key(_program(body, _tensor(5, 2, dtype="float64"), _tensor(1)))


@pytest.mark.parametrize("body", ["r = a % b", "r = a / b", "r = torch.floor(a / b)"])
def test_another_operator_is_another_bucket(body: str) -> None:
    assert _key(_program("r = a // b")) != _key(_program(body))


def test_symptom_rung_and_culprit_make_a_difference() -> None:
    program = _program("r = a // b")
    keys = {
        _key(program),
        _key(program, rung="aot_eager"),
        _key(program, culprit="lowering: aten.floor_divide"),
        bucket_key(program, replace(_WRONG, kind="output: nan for number"), "inductor", "inductor"),
        bucket_key(program, replace(_WRONG, status="fail_mutation"), "inductor", "inductor"),
    }
    assert len(keys) == 5


def test_a_wrong_argument_is_one_cause_whether_it_is_returned_or_not() -> None:
    returned = program_of("def program(a):\n    a.neg_()\n    return a\n", [_tensor(3)])
    alone = program_of("def program(a):\n    a.neg_()\n    return None\n", [_tensor(3)])
    mutated = Symptom(status="fail_mutation", kind="argument: number")
    assert _key(returned) == bucket_key(alone, mutated, "inductor", "inductor")
    result = program_of("def program(a):\n    r = a.neg()\n    return r\n", [_tensor(3)])
    assert _key(result) != bucket_key(alone, mutated, "inductor", "inductor")


def test_subjects_that_fail_on_one_rung_share_a_bucket() -> None:
    program = _program("r = a // b")
    assert _key(program, rung="aot_eager", subject="inductor") == _key(program, rung="aot_eager", subject="aot_eager")
    assert _key(program, rung="", subject="one:backend") != _key(program, rung="", subject="other:backend")


def test_what_feeds_a_guilty_lowering_makes_no_difference() -> None:
    culprit = "lowering: aten.argmin"
    one, other = _program("r = a.argmin()"), _program("c = a.exp()\n    r = c.argmin()")
    assert _key(one, culprit=culprit) == _key(other, culprit=culprit)
    assert _key(one) != _key(other)


def test_operators_in_text_blocks_and_helpers_count() -> None:
    helper = Definition(name="helper", text="def helper(x):\n    return torch.special.expit(x)")
    statements = (
        Block(header="for i in range(2):", body=(Lines(text="{v0} = torch.cumsum({a0}.add_(1), 0)", results=("v0",)),)),
        OpCall(target="helper", args=(Ref("v0"),), results=("v1",)),
    )
    program = FuzzProgram(arguments=("a0",), statements=statements, definitions=(helper,), result=Ref("v1"))
    assert operators_of(program) == ("add", "cumsum", "for", "sigmoid")


def test_equal_programs_have_equal_text_after_renaming() -> None:
    one = _program("c = a.exp()\n    r = torch.mul(b, c)")
    names = program_of(
        "def program(q, p):\n    x = p.exp()\n    y = torch.mul(q, x)\n    return y\n", (_tensor(3), _tensor(3))
    )
    assert render(canonical(one)) == render(canonical(names))
    assert "v1 = torch.mul(a1, v0)" in render(canonical(one))


def test_a_bucket_survives_json_and_counts() -> None:
    program = _program("r = a // b")
    reduced = {
        "program": program.to_json(), "source": render(program), "symptom": _WRONG.to_json(), "rung": "inductor",
    }  # fmt: skip
    bucket = bucket_of(reduced, subject="inductor", seed="7/3")
    assert Bucket.from_json(json.loads(json.dumps(bucket.to_json()))) == bucket
    longer = replace(bucket, source=bucket.source + "# more", count=2, first_seed="8/1")
    assert longer.merged(bucket) == replace(bucket, count=3, first_seed="8/1")
