"""Capture to source: the flat program computes what the program given computes, and keeps its values, views and modes."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch

from fuzz.program.render import render, to_program
from fuzz.program.structure import FuzzProgram, OpCall, Ref
from fuzz.reduce.capture import captured, specs_like
from fuzz.reduce.from_graph import name_of
from fuzz.reduce.windows import SHORT, narrowed
from fuzz.tests.minimise_models import TRANSFORMER
from oracle.program import Call, Program
from oracle.program.build import instantiate
from oracle.program.inputs import decode

_MODES = """
import torch


def program(x, y):
    with torch.no_grad():
        a = x.sin()
        b = a[:, 1:]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        c = x @ y
    y.add_(1)
    return b, c, x.to(torch.float64)


def inputs(call):
    return (torch.randn(2, 3, requires_grad=True), torch.randn(3, 2)), {}
"""


def _captured(source: str, *, is_exact: bool = True, **fields: Any) -> list[FuzzProgram | str]:
    program = Program(name="given", source=source, **fields)
    return [*captured(partial(instantiate, program), dynamic=False, is_exact=is_exact)]


def _result(program: Program) -> Any:
    instance = instantiate(program)
    args, kwargs = instance.inputs(0)
    return instance.target(*args, **kwargs)


def test_a_captured_module_computes_the_same() -> None:
    (flat,) = _captured(TRANSFORMER.replace("range(6)", "range(2)"), is_module=True)
    assert isinstance(flat, FuzzProgram)
    assert "class" not in render(flat)
    expected = _result(Program(name="given", source=TRANSFORMER.replace("range(6)", "range(2)"), is_module=True))
    (found,) = _result(to_program(flat, name="flat"))
    assert torch.equal(expected, found)


def test_modes_and_writes_are_kept() -> None:
    (flat,) = _captured(_MODES)
    assert isinstance(flat, FuzzProgram)
    text = render(flat)
    assert "with torch.no_grad():\n" in text
    assert "with torch.autocast('cpu', torch.bfloat16, True, None):\n" in text
    expected, found = (_result(p) for p in (Program(name="given", source=_MODES), to_program(flat, name="flat")))
    for one, two in zip(expected, found, strict=True):
        assert torch.equal(one, two)
        assert (one.dtype, one.requires_grad) == (two.dtype, two.requires_grad)


def test_what_no_statement_can_say_is_a_reason() -> None:
    source = """
import torch


def program(x):
    return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,))


def inputs(call):
    return (torch.randn(3),), {}
"""
    (reason,) = _captured(source)
    assert isinstance(reason, str)
    assert "GraphModule" in reason


def test_large_tensors_are_drawn_from_a_similar_distribution() -> None:
    torch.manual_seed(0)
    given = {
        "small weights": torch.randn(40, 40) * 0.02,
        "positive": torch.rand(400) + 1,
        "mask": torch.where(torch.rand(500) < 0.3, float("-inf"), 0.0),
        "integers": torch.randint(3, 9, (600,)),
    }
    drawn = dict(zip(given, decode(specs_like([*given.values()]), seed=0), strict=True))
    assert 0.015 < drawn["small weights"].std() < 0.025
    assert drawn["positive"].min() >= 1
    assert set(drawn["mask"].tolist()) == {0.0, float("-inf")}
    assert 3 <= drawn["integers"].min() <= drawn["integers"].max() < 9
    same = torch.arange(3.0)
    one, two = decode(specs_like([same, same[1:]]), seed=0)
    assert one.untyped_storage()._cdata == two.untyped_storage()._cdata
    assert torch.equal(two, same[1:])


def test_names_of_functions() -> None:
    assert name_of(torch.nn.functional.gelu) == "torch.nn.functional.gelu"
    assert name_of(torch.ops.aten.sin.default) == "torch.ops.aten.sin.default"
    assert name_of(lambda x: x) is None


def test_a_long_program_is_narrowed_in_few_trials() -> None:
    targets = ["torch.sinh" if position == 217 else "torch.sin" for position in range(400)]
    statements = tuple(
        OpCall(target=target, args=(Ref(f"v{at}"),), results=(f"v{at + 1}",)) for at, target in enumerate(targets)
    )
    spec = {"$": "tensor", "shape": [2], "dtype": "float32"}
    program = FuzzProgram(arguments=("v0",), statements=statements, result=Ref("v400"), calls=(Call(args=[spec]),))

    def shows(candidate: FuzzProgram) -> bool:
        return any(isinstance(s, OpCall) and s.target == "torch.sinh" for s in candidate.statements)

    found = narrowed(program, shows, [], deadline=time.monotonic() + 60)
    assert shows(found.program)
    assert len(found.program.statements) <= SHORT
    assert found.trials <= 21  # seven windows for each level
    pointed = narrowed(program, shows, [217], deadline=time.monotonic() + 60)
    assert (len(pointed.program.statements), pointed.trials) == (1, 1)
