"""Models as users write them, on backends with one wrong rule each: `localise` names the module, the line and the operator."""

from __future__ import annotations

import pytest

from oracle.localisation.search import localise_program
from oracle.program.build import instantiate
from oracle.program.user_file import program_of_file
from oracle.subjects.registry import resolve
from triage.tests.models import BACKENDS, MODELS, WrongModel

_QUICK = ("LSTM",)  # and the state space model: benchmarks/tests/test_localisation_models.py


@pytest.mark.parametrize(
    "model",
    [pytest.param(model, id=model.name, marks=[] if model.name in _QUICK else [pytest.mark.slow]) for model in MODELS],
)
def test_the_first_wrong_value_is_named(model: WrongModel) -> None:
    backward = model.direction == "backward"  # of the LSTM it begins in the last layer, with the output gate
    program = program_of_file(model.path, inputs=model.inputs, calls=1, backward=backward)
    found = localise_program(lambda: instantiate(program), resolve(f"{BACKENDS}:{model.backend}"), runs=1)
    value = found.value
    assert found.first_wrong == f"{BACKENDS}:{model.backend}"
    assert value is not None
    assert (value.module, value.source, value.operator) == (model.module, model.source, model.operator)
    assert value.direction == model.direction
    assert f"first wrong value:  {model.module}, {model.source}, {model.operator}" in found.text()
