"""Minimising programs that were not drawn: large modules and functions come down to the statements that a wrong rule needs."""

from __future__ import annotations

from typing import Any

import pytest

from fuzz.program.render import render_function
from fuzz.program.structure import Block, walk
from fuzz.reduce.minimise import Minimised, minimise
from fuzz.tests.minimise_models import LSTM, TRANSFORMER, UNET
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


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ("gelu", "def program(a0):\n    v0 = torch.nn.functional.gelu(a0)\n    return v0"),
        ("floordiv", "def program(a0):\n    v0 = a0 // 2\n    return v0"),
    ],
)
def test_one_wrong_rule_is_found_in_a_transformer(backend: str, expected: str) -> None:
    found = _minimised(backend, TRANSFORMER, known=_NUMBER)
    assert expected == _function(found)
    assert found.how == "captured"
    assert found.reproduced
    assert found.is_finished
    assert found.nodes > 120
    assert found.before.statements > 25
    assert found.after.statements == 1
    assert found.after.elements <= 4
    assert found.verdict.status is Status.FAIL_ACCURACY


def test_layer_norm_keeps_few_statements() -> None:
    found = _minimised("layer_norm", TRANSFORMER.replace("range(6)", "range(2)"), known=_NUMBER)
    assert found.program is not None
    statements = [s for s in walk(found.program.statements) if not isinstance(s, Block)]
    assert len(statements) <= 3
    assert "layer_norm" in _function(found)
    assert found.symptom.kind == "output: number"


def test_a_wrong_gradient_is_found_in_a_loop_of_cells() -> None:
    found = _minimised("sigmoid_gradient", LSTM.replace("STEPS", "3"), calls=(Call(backward=True),))
    assert _function(found) == "def program(a0):\n    v0 = torch.sigmoid(a0)\n    return v0"
    assert found.verdict.status is Status.FAIL_GRAD
    assert found.shown == found.runs == 1


def test_a_backend_that_refuses_an_operator_is_found_without_values_to_compare() -> None:
    found = _minimised("sigmoid_error", LSTM.replace("STEPS", "4"))
    assert "torch.sigmoid" in _function(found)
    assert found.after.statements == 1
    assert found.verdict.status is Status.FAIL_TO_RUN
    assert "sigmoid is not supported" in found.symptom.kind


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
