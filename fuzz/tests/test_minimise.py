"""Minimising programs that were not drawn: large modules and functions come down to the statements that a wrong rule needs."""

from __future__ import annotations

from typing import Any

from fuzz.program.render import render_function
from fuzz.reduce.minimise import Minimised, minimise
from fuzz.reduce.trials import TrialProcess
from fuzz.tests.minimise_models import TRANSFORMER, UNET
from oracle.program import Call, Program
from oracle.subjects.registry import resolve
from oracle.verdict import Status, Verdict

_NUMBER = Verdict(
    status=Status.FAIL_ACCURACY,
    symptom="call 0: output[0, 3] is 0.5, but should be 0.25 (fp64 0.25): error 0.25, allowed 1e-05",
    call=0,
)


def _minimised(
    backend: str,
    source: str,
    *,
    is_module: bool = True,
    budget_s: float = 120.0,
    known: Verdict | None = None,
    **fields: Any,
) -> Minimised:
    program = Program(name="large", source=source, is_module=is_module, **fields)
    path = backend if ":" in backend else f"fuzz.tests.planted_rules:{backend}"
    return minimise(program, resolve(path), verdict=known, budget_s=budget_s)


def _function(found: Minimised) -> str:
    assert found.program is not None, found.reasons
    return render_function(found.program).rstrip()


def test_a_wrong_division_of_integers_is_found() -> None:
    found = _minimised("floordiv", TRANSFORMER.replace("range(6)", "range(1)"), known=_NUMBER)
    assert _function(found) == "def program(a0):\n    v0 = a0 // 2\n    return v0"


def test_one_wrong_rule_is_found_in_a_transformer() -> None:
    found = _minimised("gelu", TRANSFORMER, known=_NUMBER)
    assert _function(found) == "def program(a0):\n    v0 = torch.nn.functional.gelu(a0)\n    return v0"
    assert found.how == "captured"
    assert found.reproduced
    assert found.is_finished
    assert found.nodes > 120
    assert found.before.statements > 25
    assert found.after.statements == 1
    assert found.after.elements <= 4
    assert found.verdict.status is Status.FAIL_ACCURACY


def test_a_wrong_rule_is_found_in_a_convolutional_net() -> None:
    found = _minimised("interpolate", UNET, known=_NUMBER)
    assert "interpolate(a0" in _function(found)
    assert found.after.statements == 1


def test_a_program_that_shows_nothing_is_given_back_with_counts() -> None:
    source = "import torch\n\n\ndef program(x):\n    return torch.sin(x) + 1\n"
    program = {"is_module": False, "calls": (Call(args=[{"$": "tensor", "shape": [3], "dtype": "float32"}]),)}
    found = _minimised("gelu", source, **program)
    assert (found.reproduced, found.shown, found.runs) == (False, 0, 3)
    assert found.program is None
    assert found.source.source == source
    assert found.before == found.after
    assert found.verdict.status is Status.PASS
    again = _minimised("gelu", source, known=_NUMBER, **program)  # a verdict that the program does not have
    assert (again.reproduced, again.shown, again.runs) == (False, 0, 3)
    assert again.program is None


def test_a_large_program_is_judged_briefly() -> None:
    """The runs under noise of three calls with gradients of gradients would use up the time for the search."""
    source = (
        "import torch\n"
        "def inputs(call): return (torch.ones(4, requires_grad=True),), {}\n"
        "def program(x): return torch.nn.functional.gelu(x)\n"
    )
    calls = (Call(backward=True), Call(backward=True, double_backward=True))
    program = Program(name="large", source=source, calls=calls)
    with TrialProcess() as trials:
        verdict = trials.judge_source(program, resolve("fuzz.tests.planted_rules:gelu"))
    assert (verdict.status, verdict.call) == (Status.FAIL_ACCURACY, 0)
    assert not any("grad" in text for text in verdict.also)
