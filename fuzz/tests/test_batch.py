"""Batches: several programs as one mean what each means alone, and what is wrong with the one is said of the member."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fuzz.judge.single import judge
from fuzz.program.batch import Batch, batch_key, combine, grouped, inlined, named_members
from fuzz.program.render import render, to_program
from fuzz.program.structure import Block, Definition, FuzzProgram, Lines, OpCall, Ref, StateEntry
from oracle.program import Call
from oracle.subjects.registry import load, resolve
from oracle.verdict import Status, Verdict


def tensor(shape: list[int], **fields: Any) -> dict[str, Any]:
    return {"$": "tensor", "shape": shape, "dtype": "float32", **fields}


def function(target: str, *args: Any, **fields: Any) -> FuzzProgram:
    names = tuple(f"a{i}" for i in range(len(args)))
    statement = OpCall(target=target, args=tuple(map(Ref, names)), results=("v0",))
    defaults: dict[str, Any] = {"calls": (Call(args=list(args)),), "statements": (statement,), "result": Ref("v0")}
    return FuzzProgram(arguments=names, **{**defaults, **fields})


SIN = function("torch.sin", tensor([3]))
ADD = function("torch.add", tensor([3], storage="s"), tensor([3], storage="s"))
MODULE = FuzzProgram(
    arguments=("a0",),
    calls=(Call(args=[tensor([4])]),),
    statements=(OpCall(target="torch.mul", args=(Ref("a0"), Ref("self.w0")), results=("v0",)),),
    result=Ref("v0"),
    state=(StateEntry(name="self.w0", text="self.w0 = torch.nn.Parameter(torch.ones(4))"),),
)
DERIVED = FuzzProgram(
    arguments=("a0", "a1"),
    inputs=("r0",),
    derive=(Lines(text="{a0} = {r0}[1:]\n{a1} = {r0}[:2]", uses=("r0",), results=("a0", "a1")),),
    calls=(Call(args=[tensor([3])]),),
    statements=(OpCall(target="torch.outer", args=(Ref("a0"), Ref("a1")), results=("v0",)),),
    result=Ref("v0"),
)


def verdict_of(batch: Batch, subject: str = "eager") -> Verdict:
    return judge(to_program(batch.program, name="batch"), load(resolve(subject))).verdict


def key_of(program: FuzzProgram) -> str | None:
    return batch_key(program)


def test_a_batch_runs_its_members() -> None:
    batch = combine([SIN, ADD, DERIVED, SIN])
    source = render(batch.program)
    assert "def member0(a0):" in source
    assert "result1 = member1(m1_a0, m1_a1)" in source
    assert "return (result0, result1, result2, result3)" in source
    verdict = verdict_of(batch)
    assert verdict.status is Status.PASS, verdict
    assert verdict.compared.tensors >= 4


def test_a_batch_of_modules_is_a_module() -> None:
    batch = combine([MODULE, MODULE])
    assert batch.program.is_module
    assert verdict_of(batch, "dynamo").status is Status.PASS


def test_members_keep_their_storages_apart() -> None:
    specs = combine([ADD, ADD]).program.calls[0].args
    assert [spec["storage"] for spec in specs] == ["m0.s", "m0.s", "m1.s", "m1.s"]


@pytest.mark.parametrize(
    "change",
    [
        {"expects_raise": True},
        {"families": ("random",)},
        {"calls": (Call(args=[tensor([3])]), Call(args=[tensor([3])], before="X = 1"))},
        {"statements": (OpCall(target="torch.nn.functional.dropout", args=(Ref("a0"),), results=("v0",)),)},
    ],
)
def test_some_programs_are_judged_alone(change: dict[str, Any]) -> None:
    assert key_of(SIN) is not None
    assert key_of(replace(SIN, **change)) is None


def test_other_call_plans_are_other_batches() -> None:
    leaf = function("torch.sin", tensor([3], requires_grad=True))
    backward = replace(leaf, calls=(replace(leaf.calls[0], backward=True),))
    twice = replace(SIN, calls=SIN.calls * 2)
    keys = [key_of(p) for p in (SIN, leaf, backward, replace(SIN, dynamic=True), twice, MODULE)]
    assert len(set(keys)) == 5
    assert keys[0] == keys[2] == key_of(ADD)  # nothing to differentiate beside something


def test_groups_are_filled_and_every_program_is_in_one() -> None:
    one = replace(SIN, definitions=(Definition(name="helper", text="def helper(): return 1"),))
    helped = replace(one, statements=(OpCall(target="helper", results=("v0",)),))
    other = replace(helped, definitions=(Definition(name="helper", text="def helper(): return 2"),))
    programs = [SIN, ADD, helped, other, SIN, MODULE]
    groups = grouped(programs, ["k", "k", "k", "k", None, "m"], size=3)
    assert groups == [[0, 1, 2], [3], [4], [5]]


@pytest.mark.parametrize(
    ("symptom", "also", "named", "is_complete"),
    [
        ("call 0: output[1][2] is 3, but should be 4", (), (1,), True),
        ("call 0: args[1] is 3, but should be 4", (), (1,), True),
        ("call 0: grad of args[0] is 3, but should be 4", ("call 0: output[2].stride() is (1,)",), (0, 2), True),
        ("call 0: output[0] shares the storage of args[2]", (), (0, 1), True),
        ("call 0: module.member3.w0 is 3, but should be 4", (), (3,), True),
        ("outcome is RuntimeError in call", (), (), False),
        ("call 0: output[1] is 3", ("call 0: output[1] is 3",) * 20, (1,), False),
    ],
)
def test_symptoms_name_members(symptom: str, also: tuple[str, ...], named: tuple[int, ...], is_complete: bool) -> None:
    batch = combine([SIN, ADD, SIN, SIN])
    verdict = Verdict(status=Status.FAIL_ACCURACY, symptom=symptom, also=also)
    assert named_members(verdict, batch) == (named, is_complete)


def test_a_batch_is_inlined_for_the_reducer() -> None:
    block = Block(
        header="if {a0}.numel() > 1:",
        uses=("a0",),
        body=(Lines(text="{v0} = {a0} * 2", uses=("a0",), results=("v0",)),),
    )
    branching = replace(SIN, statements=(OpCall(target="torch.cos", args=(Ref("a0"),), results=("v0",)), block))
    flat = inlined(combine([SIN, branching]))
    assert flat is not None
    source = render(flat)
    assert "m1_v0 = m1_a0 * 2" in source
    assert "if m1_a0.numel() > 1:" in source
    assert judge(to_program(flat, name="flat"), load(resolve("eager"))).verdict.status is Status.PASS
    returns = replace(SIN, statements=(Lines(text="return {a0}", uses=("a0",)), *SIN.statements))
    assert inlined(combine([returns, SIN])) is None
    assert inlined(combine([MODULE])) is None


def test_a_branch_in_a_member_keeps_its_meaning_when_it_is_inlined() -> None:
    branch = Block(
        header="if {a0}.sum() > 99:",
        body=(Lines(text="{v0} = {a0} + 1", uses=("a0",), results=("v0",)),),
        orelse_header="elif {a0}.numel() == 3:",
        orelse=(Lines(text="{v0} = {a0} - 1", uses=("a0",), results=("v0",)),),
        uses=("a0",),
    )
    member = FuzzProgram(arguments=("a0",), calls=(Call(args=[tensor([3])]),), statements=(branch,), result=Ref("v0"))
    flat = inlined(combine([SIN, member]))
    assert flat is not None
    assert "elif m1_a0.numel() == 3:" in render(flat)
    assert judge(to_program(flat, name="flat"), load(resolve("eager"))).verdict.status is Status.PASS
