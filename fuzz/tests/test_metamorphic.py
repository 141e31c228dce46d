"""Metamorphic relations: they hold on a right compiler, and each shows a compiler that breaks it."""

from __future__ import annotations

import pytest

from fuzz.draw.choices import RandomDraw
from fuzz.draw.settings import Settings
from fuzz.judge.metamorphic import RELATIONS, Road, relation_named
from fuzz.judge.relation import judge_relation
from fuzz.program.parsing import program_of
from fuzz.program.render import render
from fuzz.program.structure import Definition, FuzzProgram, OpCall, Ref
from fuzz.tests.specs import tensor_spec
from fuzz.vocabulary.programs import draw_program
from oracle.program import Call
from oracle.subjects.base import Subject
from oracle.subjects.registry import load, resolve
from oracle.verdict import Status, Verdict

_RELATE = {relation.name: relation.relate for relation in RELATIONS}


_POINTWISE = program_of(
    "def program(a, b):\n    c = torch.add(a, b)\n    r = torch.hypot(c, b)\n    return r\n",
    [tensor_spec(8), tensor_spec(8)],
)
_TWO_OUTPUTS = program_of(
    "def program(a, b):\n    c = a.sum()\n    b.mul_(2)\n    d = torch.mul(b, 3)\n    return c, d\n",
    [tensor_spec(3), tensor_spec(4)],
)
_WITH_HELPER = FuzzProgram(
    arguments=("a",),
    statements=(OpCall(target="helper", args=(Ref("a"),), results=("r",)),),
    result=Ref("r"),
    definitions=(Definition(name="helper", text="def helper(x):\n    y = x.exp()\n    return y + 1"),),
    calls=(Call(args=[tensor_spec(3)]),),
)


def judge_relations(program: FuzzProgram, subject: Subject, *names: str) -> dict[str, Verdict]:
    """The verdict on every relation that applies, or on those named, by its name."""
    results = {name: judge_relation(program, relation_named(name), subject) for name in names or _RELATE}
    return {name: result.verdict for name, result in results.items() if result is not None}


def test_relations_apply_where_they_have_something_to_do() -> None:
    def applying(program: FuzzProgram) -> set[str]:
        return {name for name, relate in _RELATE.items() if relate(program) is not None}

    everywhere = {"compile twice", "dead code added", "function outlined", "outputs permuted"}
    everywhere |= {"fresh process", "through refimpl"}
    assert applying(_POINTWISE) == {*everywhere, "copies inserted", "batch split"}
    assert applying(_TWO_OUTPUTS) == {*everywhere, "outputs reversed", "copies inserted"}
    assert applying(_WITH_HELPER) == {*everywhere, "function inlined"}


def test_a_batch_is_split_where_rows_are() -> None:
    split = _RELATE["batch split"]
    body = "def program(a, b):\n    c = torch.add(a, b)\n    d = torch.exp(c)\n    return c, d\n"
    broadcast = program_of(body, [tensor_spec(6, 4), tensor_spec(4)])
    related = split(broadcast)
    assert related is not None
    assert "half0_a = a[:a.shape[0] // 2]" in render(related.program)
    assert "half0_b" not in render(related.program)  # every row needs all of it
    found = judge_relation(broadcast, relation_named("batch split"), load(resolve("dynamo")))
    assert found is not None
    assert found.verdict.status is Status.PASS
    assert split(program_of(body, [tensor_spec(6, 4), tensor_spec(5, 4)])) is None
    assert split(program_of(body, [tensor_spec(1, 4), tensor_spec(4)])) is None
    softmax = program_of("def program(a):\n    r = torch.softmax(a, 0)\n    return r\n", [tensor_spec(6, 4)])
    assert split(softmax) is not None
    assert judge_relation(softmax, relation_named("batch split"), load(resolve("dynamo"))) is None  # eager says no


def test_a_related_program_is_another_program() -> None:
    for name, relate in _RELATE.items():
        for program in (_POINTWISE, _TWO_OUTPUTS, _WITH_HELPER):
            related = relate(program)
            if related is not None and relation_named(name).road is Road.HERE and name != "compile twice":
                assert render(related.program) != render(program), name


@pytest.mark.parametrize("program", [_POINTWISE, _TWO_OUTPUTS, _WITH_HELPER])
def test_relations_hold_on_a_right_compiler(program: FuzzProgram) -> None:
    found = judge_relations(program, load(resolve("dynamo")))
    assert len(found) >= 4
    assert {name: v.symptom for name, v in found.items() if v.status is not Status.PASS} == {}


def test_relations_hold_on_drawn_programs() -> None:
    subject, judged = load(resolve("dynamo")), 0
    for number in range(3):
        program = draw_program(RandomDraw(f"relations/{number}"), Settings(focus="ops", max_statements=3))
        found = judge_relations(program, subject)
        judged += len(found)
        assert {name: v.symptom for name, v in found.items() if v.status.is_finding} == {}, render(program)
    assert judged > 3


def test_a_bug_that_depends_on_sizes_shows_in_a_split_batch() -> None:
    subject = load(resolve("fuzz.tests.planted_bugs:number_in_one_place"))
    found = judge_relations(_POINTWISE, subject, "batch split", "compile twice")
    assert found["batch split"].status is Status.FAIL_ACCURACY
    assert found["compile twice"].status is Status.PASS


def test_a_compiler_that_keeps_something_shows_when_it_compiles_again() -> None:
    program = program_of("def program(a, n):\n    r = a * n\n    return r\n", [tensor_spec(3), 2])
    twice = FuzzProgram(
        arguments=program.arguments,
        statements=program.statements,
        result=program.result,
        calls=(Call(args=[tensor_spec(3), 2]), Call(args=[tensor_spec(3), 5])),
    )
    subject = load(resolve("compile:fuzz.tests.planted_bugs:keeps_across_compiles"))
    found = judge_relations(twice, subject, "compile twice")
    assert found["compile twice"].status is Status.FAIL_GUARD


def test_a_relation_that_eager_does_not_keep_does_not_apply() -> None:
    # of programs that draw numbers, those that are changed are asked nothing
    noisy = program_of("def program(a):\n    r = torch.rand_like(a)\n    return r\n", [tensor_spec(3)])
    found = judge_relations(noisy, load(resolve("dynamo")))
    assert {name: verdict.status for name, verdict in found.items()} == {
        "compile twice": Status.PASS,
        "through refimpl": Status.PASS,
    }
