"""Minimising: every kind of symptom is kept, from values and gradients to refusals and stale results."""

from __future__ import annotations

from fuzz.program.render import render_function
from fuzz.program.structure import Block, walk
from fuzz.reduce.minimise import minimise
from fuzz.tests.minimise_models import LSTM, TRANSFORMER
from oracle.program import Call, Program
from oracle.subjects.registry import resolve
from oracle.verdict import Status, Verdict

_CELLS = LSTM.replace("STEPS", "2")


def _known(status: Status, symptom: str) -> Verdict:
    return Verdict(status=status, symptom=f"call 0: {symptom}", call=0)


def test_a_wrong_layer_norm_keeps_its_symptom() -> None:
    known = _known(
        Status.FAIL_ACCURACY, "output[0, 3] is 0.5, but should be 0.25 (fp64 0.25): error 0.25, allowed 1e-05"
    )
    program = Program(name="large", source=TRANSFORMER.replace("range(6)", "range(1)"), is_module=True)
    found = minimise(program, resolve("fuzz.tests.planted_rules:layer_norm"), verdict=known, budget_s=120.0)
    assert found.program is not None
    assert len([s for s in walk(found.program.statements) if not isinstance(s, Block)]) <= 3
    assert "layer_norm" in render_function(found.program)
    assert found.verdict.status is Status.FAIL_ACCURACY


def test_a_wrong_gradient_is_found_in_a_loop_of_cells() -> None:
    known = _known(
        Status.FAIL_GRAD, "grad of args[0][0] is 0.5, but should be 0.25 (fp64 0.25): error 0.25, allowed 1e-05"
    )
    program = Program(name="large", source=_CELLS, is_module=True, calls=(Call(backward=True),))
    found = minimise(program, resolve("fuzz.tests.planted_rules:sigmoid_gradient"), verdict=known, budget_s=120.0)
    assert found.program is not None
    assert render_function(found.program) == "def program(a0):\n    v0 = torch.sigmoid(a0)\n    return v0\n"
    assert found.verdict.status is Status.FAIL_GRAD
    assert found.program.calls[0].backward
    assert (found.shown, found.runs) == (1, 1)


def test_a_refused_operator_is_found_without_values_to_compare() -> None:
    program = Program(name="large", source=_CELLS, is_module=True)
    found = minimise(program, resolve("fuzz.tests.planted_rules:sigmoid_error"), budget_s=120.0)
    assert found.program is not None
    assert "torch.sigmoid" in render_function(found.program)
    assert found.after.statements == 1
    assert found.verdict.status is Status.FAIL_TO_RUN
    assert "sigmoid is not supported" in found.symptom.kind
