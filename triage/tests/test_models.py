"""Models as users write them, on backends with one wrong rule each: `localise` names the module, the line and the operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from oracle.localisation.report import Localisation
from oracle.localisation.search import localise_program
from oracle.program.build import instantiate
from oracle.program.user_file import program_of_file
from oracle.subjects.registry import resolve

_MODELS = Path(__file__).parent / "models"
_BACKENDS = "triage.tests.models.wrong_backends"


def _line(file: str, text: str) -> str:
    """Where the text is in a file: "model.py:41"."""
    lines = (_MODELS / file).read_text().splitlines()
    return f"{file}:{next(number for number, line in enumerate(lines, start=1) if text in line)}"


def _localised(target: str, inputs: str, backend: str, *, backward: bool) -> Localisation:
    program = program_of_file(str(_MODELS / target), inputs=inputs, calls=1, backward=backward)
    return localise_program(lambda: instantiate(program), resolve(f"{_BACKENDS}:{backend}"), runs=1)


@pytest.mark.parametrize(
    ("target", "inputs", "backend", "text", "module", "operator"),
    [
        pytest.param(
            "transformer.py:Transformer", "i64[1, 4] < 32", "wrong_softmax", "weights = scores.softmax",
            "layers.0.attention", "softmax", marks=pytest.mark.slow,
        ),
        pytest.param(
            "transformer.py:Transformer(depth=1)", "i64[1, 4] < 32", "wrong_floor_divide", "bucket = (distance // 2)",
            "bias", "floordiv", marks=pytest.mark.slow,
        ),
        pytest.param(
            "unet.py:UNet(width=2)", "f32[1, 3, 8, 8]", "wrong_interpolate", "x = F.interpolate(", "ups.0", "interpolate",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "experts.py:Model(depth=1)", "f32[1, 4, 8]", "wrong_index_add", ".index_add_(", "mixtures.0", "index_add_",
            marks=pytest.mark.slow,
        ),
        ("state_space.py:StateSpace(depth=1)", "f32[1, 2, 6]", "wrong_cumsum", "torch.cumsum(", "total", "cumsum"),
    ],
)  # fmt: skip
def test_the_first_wrong_value_is_named(
    target: str, inputs: str, backend: str, text: str, module: str, operator: str
) -> None:
    found = _localised(target, inputs, backend, backward=False)
    value = found.value
    assert found.first_wrong == f"{_BACKENDS}:{backend}"
    assert value is not None
    assert (value.module, value.source, value.operator) == (module, _line(target.split(":")[0], text), operator)
    assert value.direction == "forward"
    assert f"first wrong value:  {module}, {value.source}, {operator}" in found.text()


def test_the_first_wrong_gradient_is_named() -> None:
    found = _localised("lstm.py:LSTM", "f32[1, 1, 3]", "wrong_sigmoid_gradient", backward=True)
    value = found.value
    assert found.first_wrong == f"{_BACKENDS}:wrong_sigmoid_gradient"
    assert value is not None
    # The backward begins in the last layer, with the output gate.
    where = (value.module, value.source, value.operator)
    assert where == ("cells.1", _line("lstm.py", "torch.sigmoid(o)"), "sigmoid")
    assert value.direction == "backward"
