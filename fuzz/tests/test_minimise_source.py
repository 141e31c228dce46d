"""Minimising a user's function from its own source: helpers, imports and expressions are taken apart."""

from __future__ import annotations

import pytest

from fuzz.program.render import needed_definitions, render, render_function, to_program
from fuzz.program.structure import FuzzProgram
from fuzz.reduce.capture import captured
from fuzz.reduce.from_program import SOURCE, Way, forms
from fuzz.reduce.from_source import NotStructuredError, from_source
from fuzz.reduce.live import undefined_kinds
from fuzz.reduce.minimise import Minimised, minimise
from oracle.program import Call, ComparePolicy, Program
from oracle.program.build import instantiate
from oracle.program.input_text import parse_call
from oracle.subjects.registry import resolve
from oracle.verdict import Status

_SOURCE = '''
"""A user's file."""
import math
import torch
import torch.nn.functional as F
from torch import nn

SCALE = 1.5


def helper(x, scale=SCALE):
    """Scales."""
    if x.dim() > 5:
        raise ValueError(f"bad rank {x.dim()}")
    return F.relu(x) * scale


class Unused(nn.Module):
    pass


def program(a, b, *, flag=True):
    c = F.gelu(a) + math.sqrt(2.0) * b
    if flag:
        c = helper(c)
    d = torch.stack([c * i for i in range(3)])
    w = a[1:]
    BUG
    return d, c.mean()


def inputs(call):
    return (torch.randn(4 + call, 5), torch.randn(5)), {"flag": True}
'''


def _program(line: str, *, calls: int = 1) -> Program:
    return Program(name="file", source=_SOURCE.replace("BUG", line), calls=(Call(),) * calls)


def _minimised(line: str, subject: str, *, calls: int = 1) -> Minimised:
    return minimise(_program(line, calls=calls), resolve(subject), budget_s=120.0)


def test_a_lost_alias_is_found_in_a_file() -> None:
    found = _minimised("d = torch.narrow(w, 0, 1, 2)", "fuzz.tests.planted_bugs:lost_alias")
    assert found.how == SOURCE
    assert found.verdict.status is Status.FAIL_ALIAS
    assert found.after.statements == 1
    assert found.before.statements > 15
    assert found.program is not None
    assert "torch.narrow(a0, 0, 0, 1)" in render_function(found.program)


def test_a_crash_is_found_in_a_file() -> None:
    found = _minimised("c = torch.erfinv(c * 0.1)", "fuzz.tests.planted_bugs:crashes")
    assert (found.verdict.status, found.symptom.kind) == (Status.CRASH, "signal 9")
    assert found.after.statements == 1


def test_a_stale_result_keeps_two_calls() -> None:
    source = """
import torch


def program(x):
    y = torch.cos(x) * 2
    return torch.sin(y).sum(0), y


def inputs(call):
    return (torch.randn(3, 2),), {}
"""
    program = Program(name="file", source=source, calls=(Call(), Call()))
    found = minimise(program, resolve("fuzz.tests.planted_rules:stale"), budget_s=120.0)
    assert found.verdict.status is Status.FAIL_GUARD
    assert found.program is not None
    assert len(found.program.calls) == 2
    assert found.after.statements <= 2


def test_the_structure_of_a_file() -> None:
    program = from_source(instantiate(_program("pass", calls=2)), is_exact=False)
    text = render_function(program)
    assert text.startswith("def program(a, b, flag):\n")
    assert "torch.nn.functional.gelu(a)" in text  # not F.gelu
    assert text.endswith("return (d, r0)\n")
    assert [definition.name for definition in needed_definitions(program)] == ["math", "SCALE", "helper"]
    assert next(d.needs for d in program.definitions if d.name == "helper") == ("SCALE",)
    assert [[spec["shape"] for spec in call.args[:2]] for call in program.calls] == [[[4, 5], [5]], [[5, 5], [5]]]
    assert undefined_kinds(program) == frozenset()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("def program(a, b, *, flag=True)", "def program(*args)"), "by \\*"),
        (("SCALE = 1.5", "SCALE = 1.5\ntorch.manual_seed(3)"), "at module level"),
        (("SCALE = 1.5", "SCALE = OTHER = 1.5"), "more than one"),
        (("def program(", "@torch.no_grad()\ndef program("), "no plain function"),
        (("BUG", "w = {1, 2}"), "a set"),
    ],
)
def test_a_source_of_another_form_is_refused(change: tuple[str, str], reason: str) -> None:
    program = Program(name="file", source=_SOURCE.replace(*change).replace("BUG", "pass"))
    with pytest.raises(NotStructuredError, match=reason):
        from_source(instantiate(program), is_exact=False)
    found = [*forms(program, Way(how=SOURCE))]
    assert len(found) == 1
    assert isinstance(found[0], str)  # the same, as a reason


def test_a_function_of_a_users_file_is_taken_by_its_own_name() -> None:
    source = "import torch\n\ndef mix(a):\n    return a.sin() if a.dim() else mix(a[None])\n\nprogram = mix\n"
    given = Program(name="model.py", source=source, calls=(parse_call("f32[2]"),))
    program = from_source(instantiate(given), is_exact=False)
    text = render(program)
    assert "def program(a):" in text
    assert "def mix(a):" in text  # it calls itself


@pytest.mark.parametrize("described", [True, False])
def test_the_policy_of_a_program_goes_with_it_unless_it_describes_outputs(described: bool) -> None:
    policy = ComparePolicy(strides="ignore", undefined_outputs=("output",) if described else (), reason="a test")
    source = "import torch\n\ndef program(a):\n    return a + 1\n\ndef inputs(call):\n    return (torch.ones(2),), {}\n"
    given = Program(name="given", source=source, policy=policy)
    graphs = [*captured(lambda: instantiate(given), dynamic=False, is_exact=False)]
    if described:
        with pytest.raises(NotStructuredError, match="policy describes outputs"):
            from_source(instantiate(given), is_exact=False)
        assert graphs == ["its policy describes outputs, and a graph has other outputs"]
        return
    for found in (from_source(instantiate(given), is_exact=False), *graphs):
        assert isinstance(found, FuzzProgram)
        assert to_program(FuzzProgram.from_json(found.to_json()), name="again").policy == policy
